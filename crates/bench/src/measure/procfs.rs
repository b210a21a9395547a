//! Reading `/proc` again and again without allocating: what [`super::cpu`] and [`super::stat`] share.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Nanoseconds in one of the clock ticks that `/proc` counts in.
pub(super) fn tick_ns() -> u64 {
    1_000_000_000 / rustix::param::clock_ticks_per_second().max(1)
}

/// Reads a whole file from its start into the buffer, whose memory is kept.
pub(super) fn read_again(file: &File, buffer: &mut Vec<u8>) -> io::Result<()> {
    /// No file of ours is longer: the longest, /proc/stat, has about 100 bytes a CPU and 2 a vector.
    const LONGEST: usize = 1 << 22;
    buffer.resize(buffer.capacity().max(4096), 0);
    let mut length = 0;
    loop {
        match file.read_at(&mut buffer[length..], length as u64) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if length == buffer.len() {
            if length >= LONGEST {
                break;
            }
            buffer.resize(length * 2, 0);
        }
    }
    buffer.truncate(length);
    Ok(())
}

/// The words of a text between white space.
pub(super) fn words(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

/// A word as a whole number.
pub(super) fn number(word: &[u8]) -> Option<u64> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_longer_than_the_buffer_is_read_whole_and_the_memory_is_kept() {
        let file = File::open("/proc/self/smaps").unwrap();
        let mut buffer = Vec::new();
        read_again(&file, &mut buffer).unwrap();
        assert!(buffer.len() > 4096, "smaps of any process is longer than a page");
        let capacity = buffer.capacity();
        let short = File::open("/proc/self/comm").unwrap();
        read_again(&short, &mut buffer).unwrap();
        assert!(buffer.ends_with(b"\n") && buffer.capacity() == capacity);
    }

    #[test]
    fn words_and_numbers() {
        assert_eq!(words(b" a\t7 \n").collect::<Vec<_>>(), [&b"a"[..], b"7"]);
        assert_eq!((number(b"7"), number(b"-7"), number(b"\xff")), (Some(7), None, None));
    }
}
