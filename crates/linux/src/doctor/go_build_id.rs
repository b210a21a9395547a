//! Detects programs made by Go's linker, which leaves a note with its name in the file, even in a stripped one.
//!
//! Parses only as much ELF as needed and accepts any input. Nothing of the program is run or mapped.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// The maximum number of bytes read of a file's head, and of each of its notes.
const HEAD: usize = 16 * 1024;

/// The note's type, `ELF_NOTE_GOBUILDID_TAG`.
const GO_BUILD_ID: u32 = 4;

/// A program header's type, `PT_NOTE`.
const PT_NOTE: u32 = 4;

/// Whether a process runs a Go program.
///
/// # Errors
/// If the process, or the privilege to read its file, is missing: the text names it.
pub(super) fn is_go(pid: i32) -> Result<bool, String> {
    let path = format!("/proc/{pid}/exe");
    let file = File::open(&path).map_err(|error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => format!("CAP_SYS_PTRACE, to read {path}"),
        _ => format!("{path}: {error}"),
    })?;
    let read = |offset: u64, most: usize| {
        let mut bytes = vec![0; most.min(HEAD)];
        let got = file.read_at(&mut bytes, offset).unwrap_or(0);
        bytes.truncate(got);
        bytes
    };
    Ok(notes(&read(0, HEAD)).into_iter().any(|(offset, size)| has_go(&read(offset, size))))
}

/// Returns the offset and size of each note segment of a 64-bit, little-endian ELF file.
fn notes(head: &[u8]) -> Vec<(u64, usize)> {
    // Magic, 64 bits, little-endian.
    if !head.starts_with(b"\x7fELF\x02\x01") {
        return vec![];
    }
    let (Some(table), Some(size), Some(count)) =
        (u64_at(head, 32), u16_at(head, 54), u16_at(head, 56))
    else {
        return vec![];
    };
    let header = |place: u16| {
        let start = usize::try_from(table).ok()?;
        let start = start.checked_add(usize::from(size).checked_mul(usize::from(place))?)?;
        let header = head.get(start..)?;
        let note = u32_at(header, 0)? == PT_NOTE;
        let found = (u64_at(header, 8)?, usize::try_from(u64_at(header, 32)?).ok()?);
        note.then_some(found)
    };
    (0..count).filter_map(header).collect()
}

/// Whether the notes contain one of Go's.
fn has_go(mut notes: &[u8]) -> bool {
    while let (Some(name), Some(text), Some(kind)) =
        (u32_at(notes, 0), u32_at(notes, 4), u32_at(notes, 8))
    {
        if kind == GO_BUILD_ID && name == 4 && notes.get(12..16) == Some(b"Go\0\0") {
            return true;
        }
        let aligned = |size: u32| (size as usize).checked_next_multiple_of(4);
        let (Some(name), Some(text)) = (aligned(name), aligned(text)) else { return false };
        let next = 12_usize.checked_add(name).and_then(|it| it.checked_add(text));
        match next.and_then(|next| notes.get(next..)) {
            Some(rest) => notes = rest,
            None => return false,
        }
    }
    false
}

fn u16_at(bytes: &[u8], place: usize) -> Option<u16> {
    bytes.get(place..)?.first_chunk().copied().map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], place: usize) -> Option<u32> {
    bytes.get(place..)?.first_chunk().copied().map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], place: usize) -> Option<u64> {
    bytes.get(place..)?.first_chunk().copied().map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn note(name: &[u8], kind: u32, text: &[u8]) -> Vec<u8> {
        let mut note = Vec::new();
        for number in [name.len() as u32, text.len() as u32, kind] {
            note.extend(number.to_le_bytes());
        }
        for part in [name, text] {
            note.extend(part);
            note.resize(note.len().next_multiple_of(4), 0);
        }
        note
    }

    #[test]
    fn go_s_note_is_found_behind_others() {
        let mut notes = note(b"GNU\0", 3, b"0123456789");
        assert!(!has_go(&notes));
        notes.extend(note(b"Go\0\0", GO_BUILD_ID, b"an/id"));
        assert!(has_go(&notes));
    }

    #[test]
    fn a_rust_program_is_not_go_s() {
        assert_eq!(is_go(std::process::id() as i32), Ok(false));
    }

    #[test]
    fn a_process_that_is_not_there_is_said() {
        assert!(is_go(-1).is_err());
    }

    proptest! {
        #[test]
        fn no_file_is_too_strange(
            mut bytes in prop::collection::vec(any::<u8>(), 0..600), elf: bool,
        ) {
            if elf && bytes.len() > 6 {
                bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
            }
            notes(&bytes);
            has_go(&bytes);
        }
    }
}
