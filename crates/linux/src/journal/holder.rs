//! The holder of a lock, as it has recorded itself in the lock file.

use std::fmt;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::time::{SystemTime, UNIX_EPOCH};

use napkin_policy::text::escaped;
use serde::{Deserialize, Serialize};

/// The maximum length of the recorded command, in characters.
const MAX_COMMAND: usize = 200;

/// The holder of a lock, as recorded in the lock file.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Holder {
    /// Process ID; 0 if it is not recorded.
    pub pid: u32,
    /// Its command line.
    pub command: String,
    /// When it took the lock, in seconds since 1970.
    pub since: u64,
}

impl Holder {
    /// Describes this process, from now on.
    pub(super) fn here() -> Holder {
        let bytes = fs::read("/proc/self/cmdline").unwrap_or_default();
        let words = bytes.split(|byte| *byte == 0).filter(|word| !word.is_empty());
        let words: Vec<_> = words.map(String::from_utf8_lossy).collect();
        let command = words.join(" ").chars().take(MAX_COMMAND).collect();
        Holder { pid: std::process::id(), command, since: now() }
    }

    /// Reads the holder from a lock file; the default if it cannot be read.
    pub(super) fn read(file: &mut File) -> Holder {
        let mut bytes = Vec::new();
        let read =
            file.seek(SeekFrom::Start(0)).and_then(|_| file.take(4_096).read_to_end(&mut bytes));
        read.ok().and_then(|_| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
    }

    /// Its process and command: constant for as long as it holds the lock.
    pub fn name(&self) -> String {
        if self.pid == 0 {
            return "another napkin".into();
        }
        // Untrusted: the file may have been written by any process with access to the directory.
        format!("process {} ({})", self.pid, escaped(&self.command))
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())?;
        if self.pid == 0 {
            return Ok(());
        }
        let seconds = now().saturating_sub(self.since);
        let time = match seconds {
            0..120 => format!("{seconds} s"),
            120..7_200 => format!("{} min", seconds / 60),
            _ => format!("{} h", seconds / 3_600),
        };
        write!(f, ", for {time} now")
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
