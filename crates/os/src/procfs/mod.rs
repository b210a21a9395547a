//! Parsers for `/proc`: CPUs, interrupts, softirqs, threads and sysctls.
//!
//! Parsers accept any input and keep no more memory than it has; every file is read up to a limit. A value that a
//! kernel does not report is `None`. Other programs' descriptors belong to the linux world.

pub mod cpus;
mod cpuset;
pub mod interrupts;
pub mod irq;
pub mod softnet;
pub mod stat;
pub mod sysctl;
mod table;
pub mod thread;

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

pub use cpuset::cpuset;
pub use interrupts::{Interrupt, Interrupts, counter_increase};
pub use irq::IrqError;
pub use softnet::Softnet;
pub use stat::CpuTimes;
pub use sysctl::{Sysctl, SysctlError};
pub use thread::{ThreadStat, Threads, Time};

/// Reads a text file of at most `limit` bytes. A longer file is cut after the last complete line that fits, so that
/// no number is cut in two. Bytes that are not UTF-8 become U+FFFD.
///
/// # Errors
/// If the file does not exist or this process may not read it.
pub fn read_text(path: impl AsRef<Path>, limit: usize) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(limit as u64).read_to_end(&mut bytes)?;
    if bytes.len() == limit {
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        bytes.truncate(whole);
    }
    Ok(match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_file_ends_with_a_whole_line() {
        // A file of known length; files in procfs grow with the size of the machine.
        let path = std::env::temp_dir().join(format!("napkin-read-text-{}", std::process::id()));
        std::fs::write(&path, "one 1\ntwo 22\nthree 333").expect("a file");
        for (limit, text) in [
            (3, ""),
            (6, "one 1\n"),
            (10, "one 1\n"),
            (13, "one 1\ntwo 22\n"),
            (22, "one 1\ntwo 22\n"),
            (23, "one 1\ntwo 22\nthree 333"),
        ] {
            assert_eq!(read_text(&path, limit).expect("a file"), text, "{limit}");
        }
        std::fs::remove_file(&path).expect("a file");
        assert!(read_text("/proc/no-such-file", 3).is_err());
    }
}
