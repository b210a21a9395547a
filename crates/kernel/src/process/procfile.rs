//! Bounded reads of procfs files and directories.

use std::io::Read;
use std::mem::MaybeUninit;

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags, RawDir, open};
use rustix::io::Errno;

/// The size of the buffer for directory entries, in bytes.
const PIECE: usize = 16 << 10;

/// Reads a file's first `limit` bytes. The size of a procfs file is unknown until it is read.
pub(super) fn read(path: &str, limit: u64) -> Result<Vec<u8>, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = open(path, flags, Mode::empty())?;
    let mut bytes = Vec::new();
    std::fs::File::from(file)
        .take(limit)
        .read_to_end(&mut bytes)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    Ok(bytes)
}

/// Reads a file's first `limit` bytes as text; invalid UTF-8 is replaced.
pub(super) fn read_text(path: &str, limit: u64) -> Result<String, Errno> {
    read(path, limit).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// Opens a directory for listing and for relative access.
pub(super) fn directory(path: &str) -> Result<OwnedFd, Errno> {
    open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Calls `each` for every entry of a directory that is a number, until `each` returns false.
pub(super) fn each_number(
    directory: impl AsFd,
    mut each: impl FnMut(&std::ffi::CStr, i32) -> bool,
) -> Result<(), Errno> {
    let mut piece = [MaybeUninit::<u8>::uninit(); PIECE];
    let mut entries = RawDir::new(directory, &mut piece);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name();
        let number = name.to_str().ok().and_then(|name| name.parse().ok());
        if let Some(number) = number
            && !each(name, number)
        {
            break;
        }
    }
    Ok(())
}

/// Returns the entries of a directory that are numbers, in ascending order, at most `limit`.
pub(super) fn numbers(path: &str, limit: usize) -> Result<Vec<i32>, Errno> {
    let mut numbers = Vec::new();
    each_number(directory(path)?, |_, number| {
        numbers.push(number);
        numbers.len() < limit
    })?;
    numbers.sort_unstable();
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_to_its_bound_and_no_further() {
        assert_eq!(read("/proc/self/status", 5), Ok(b"Name:".to_vec()));
        assert_eq!(read("/proc/self/no-such-file", 5), Err(Errno::NOENT));
    }

    #[test]
    fn only_numbers_are_listed_and_no_more_than_asked_for() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(numbers("/proc", usize::MAX).unwrap().contains(&own));
        assert_eq!(numbers("/proc", 1).unwrap().len(), 1);
        assert_eq!(numbers("/proc/sys", usize::MAX), Ok(Vec::new()));
    }
}
