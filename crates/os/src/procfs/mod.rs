//!
//! Parsers are total and keep no more than they were given; every file is read up to a limit. What a
//! kernel does not say is `None`. Not other programs' descriptors: those are the linux world's.

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

/// Reads a text file of at most `limit` bytes. Of a longer one the last line that fits is the last
/// that is given, so that no number is cut in two; bytes that are no text become U+FFFD.
///
/// # Errors
/// If it is not there, or not for this process.
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
        // Of a length of its own: those of procfs are as long as the machine is large.
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
