//! The kernel's BTF type information, as far as the programs here need it: type ids, offsets of structure members,
//! and values of enumerators.
//!
//! The reader accepts any bytes: it returns a result or an error that says what is wrong. It keeps the bytes and
//! the offset of each type in them, and compares names in place. It does not read the BTF of modules
//! (`/sys/kernel/btf/NAME`), which extends the kernel's.

use std::fs::File;
use std::io::{self, Read};

use thiserror::Error;

/// The file in which the kernel exports its BTF.
pub const KERNEL: &str = "/sys/kernel/btf/vmlinux";

/// Limit of the file's size, above any kernel's (usual are 5-10 MiB).
const MAX_BYTES: u64 = 256 << 20;

/// Limit of typedefs and qualifiers that are followed for one type, and of the nesting of anonymous structures.
const MAX_DEPTH: u32 = 32;

/// Limit of members that are searched for one name; the kernel's largest structure has some hundreds. It keeps the
/// search short even if forged BTF nests deeply.
const MAX_MEMBERS: u32 = 20_000;

/// The reason why BTF cannot be used.
#[derive(Debug, Error)]
pub enum BtfError {
    /// The file cannot be read.
    #[error(
        "{KERNEL} cannot be read ({0}): counting needs a kernel built with CONFIG_DEBUG_INFO_BTF"
    )]
    Read(#[source] io::Error),
    /// It does not begin with BTF's magic number.
    #[error("not BTF, or of a machine with another order of bytes: it begins with {0:#06x}")]
    Magic(u16),
    /// A part of it lies outside of the file.
    #[error("damaged BTF: {what} at byte {at} is not within its {len} bytes")]
    Truncated {
        /// The part of the type information that ends early.
        what: &'static str,
        /// The offset of that part in bytes.
        at: usize,
        /// The size of the file in bytes.
        len: usize,
    },
    /// A kind of type that this reader does not know, and so cannot skip.
    #[error("BTF of a newer format: type {id} is of kind {kind}")]
    UnknownKind {
        /// The type's id.
        id: u32,
        /// The value of `BTF_KIND_*` in the file.
        kind: u32,
    },
}

/// Kinds of types that callers search for (`linux/btf.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the format's own names")]
pub enum Kind {
    Struct = 4,
    Typedef = 8,
    Func = 12,
}

const UNION: u32 = 5;
const ENUM: u32 = 6;
const ENUM64: u32 = 19;
/// `BTF_KIND_FUNC_PROTO`: a function's parameters and return type.
const FUNC_PROTO: u32 = 13;

/// The kernel's type information, read from `/sys/kernel/btf`.
#[derive(Debug)]
pub struct Btf {
    bytes: Vec<u8>,
    /// The offset of each type; id 0 (void) has none.
    types: Vec<u32>,
    /// The start of the string section.
    names: usize,
    /// The end of the string section.
    names_end: usize,
}

/// The fixed part of a type.
#[derive(Debug, Clone, Copy)]
struct Head {
    name: u32,
    kind: u32,
    /// The number of members, enumerators or parameters that follow.
    count: u32,
    /// The kind flag: the offsets of members are pairs of bit-field size and bit offset.
    flag: bool,
    /// A size, or the id of another type.
    size_or_type: u32,
    /// The offset of the data after the fixed part.
    rest: usize,
}

/// The place and type of a structure member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// The offset in bytes from the start of the structure.
    pub offset: u32,
    /// The id of the member's type.
    pub type_id: u32,
}

impl Btf {
    /// Reads the running kernel's BTF.
    ///
    /// # Errors
    /// If the kernel exports none, or it cannot be parsed.
    pub fn kernel() -> Result<Btf, BtfError> {
        let mut bytes = Vec::new();
        let file = File::open(KERNEL).map_err(BtfError::Read)?;
        file.take(MAX_BYTES).read_to_end(&mut bytes).map_err(BtfError::Read)?;
        Btf::new(bytes)
    }

    /// Parses BTF: walks over all types once to record their offsets.
    ///
    /// # Errors
    /// If the bytes are not BTF, are truncated, or have a kind of type of a later format.
    pub fn new(bytes: Vec<u8>) -> Result<Btf, BtfError> {
        let magic = u16_at(&bytes, 0, "the magic number")?;
        if magic != 0xeb9f {
            return Err(BtfError::Magic(magic));
        }
        let header = index(u32_at(&bytes, 4, "the header")?);
        let types = section(&bytes, header, 8, "the section of types")?;
        let (names, names_end) = section(&bytes, header, 16, "the section of names")?;
        let mut btf = Btf { bytes, types: vec![0], names, names_end };
        let (mut at, end) = types;
        while at < end {
            let head = btf.head(at)?;
            let id = u32::try_from(btf.types.len()).unwrap_or(u32::MAX);
            let rest = match head.kind {
                // Pointers, typedefs, qualifiers, functions, forward declarations, floats, tags.
                2 | 7..=12 | 16 | 18 => 0,
                // Integers, variables, declaration tags.
                1 | 14 | 17 => 4,
                // An array.
                3 => 12,
                // Enumerators of 32 bits, and parameters.
                6 | 13 => 8 * u64::from(head.count),
                // Members, variables of a section, enumerators of 64 bits.
                4 | 5 | 15 | 19 => 12 * u64::from(head.count),
                kind => return Err(BtfError::UnknownKind { id, kind }),
            };
            let next = head.rest as u64 + rest;
            let next = usize::try_from(next)
                .ok()
                .filter(|&next| next <= end)
                .ok_or(BtfError::Truncated { what: "a type", at, len: btf.bytes.len() })?;
            btf.types.push(u32::try_from(at).unwrap_or(u32::MAX));
            at = next;
        }
        Ok(btf)
    }

    /// The number of types; their ids begin at 1.
    pub fn len(&self) -> usize {
        self.types.len() - 1
    }

    /// Whether there are no types.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the id of the first type of that kind and name.
    pub fn find(&self, kind: Kind, name: &str) -> Option<u32> {
        self.all().find_map(|(id, head)| {
            (head.kind == kind as u32 && self.is_named(head.name, name)).then_some(id)
        })
    }

    /// Returns the member at a path of names in a structure, such as `nd_net.net`, also through anonymous
    /// structures and unions. `None` if there is no such member, or it is a bit field.
    pub fn member(&self, structure: u32, path: &str) -> Option<Member> {
        let mut reached = Member { offset: 0, type_id: structure };
        for name in path.split('.') {
            if name.is_empty() {
                return None;
            }
            let mut members_left = MAX_MEMBERS;
            let found = self.member_named(
                self.resolve(reached.type_id)?,
                name,
                MAX_DEPTH,
                &mut members_left,
            )?;
            reached = Member {
                offset: reached.offset.checked_add(found.offset)?,
                type_id: found.type_id,
            };
        }
        Some(reached)
    }

    /// Returns the index, from 0, of a function's parameter of that name, and the number of its parameters.
    pub fn parameter(&self, function: u32, name: &str) -> Option<(usize, usize)> {
        let head = self.by_id(function).filter(|head| head.kind == Kind::Func as u32)?;
        let proto = self.by_id(head.size_or_type).filter(|head| head.kind == FUNC_PROTO)?;
        let count = index(proto.count);
        let named = |which: &usize| {
            self.word(proto.rest + which * 8).is_some_and(|word| self.is_named(word, name))
        };
        Some(((0..count).find(named)?, count))
    }

    /// Returns the value of the first enumerator of that name.
    pub fn enumerator(&self, name: &str) -> Option<u64> {
        self.enumerators().find_map(|(named, value)| self.is_named(named, name).then_some(value))
    }

    /// Iterates over all enumerators: the offset of the name, and the value.
    pub(crate) fn enumerators(&self) -> impl Iterator<Item = (u32, u64)> {
        self.all().flat_map(move |(_, head)| {
            let (count, size) = match head.kind {
                ENUM => (head.count, 8),
                ENUM64 => (head.count, 12),
                _ => (0, 0),
            };
            (0..index(count)).filter_map(move |which| {
                let at = head.rest + which * size;
                let high = if head.kind == ENUM64 { self.word(at + 8)? } else { 0 };
                Some((self.word(at)?, u64::from(self.word(at + 4)?) | u64::from(high) << 32))
            })
        })
    }

    /// Returns the name at an offset in the string section.
    #[cfg(test)]
    pub(crate) fn name(&self, name: u32) -> Option<&str> {
        let names = self.bytes.get(self.names..self.names_end)?;
        std::ffi::CStr::from_bytes_until_nul(names.get(index(name)..)?).ok()?.to_str().ok()
    }

    fn all(&self) -> impl Iterator<Item = (u32, Head)> {
        (1..).zip(self.types.iter().skip(1)).filter_map(|(id, &at)| {
            let head = self.head(index(at)).ok()?;
            Some((id, head))
        })
    }

    fn by_id(&self, id: u32) -> Option<Head> {
        let at = *self.types.get(index(id)).filter(|_| id != 0)?;
        self.head(index(at)).ok()
    }

    /// Resolves typedefs and qualifiers to a structure or union.
    fn resolve(&self, id: u32) -> Option<u32> {
        let mut id = id;
        for _ in 0..MAX_DEPTH {
            match self.by_id(id)? {
                head if head.kind == Kind::Struct as u32 || head.kind == UNION => return Some(id),
                // typedef, volatile, const, restrict, type tag.
                head if matches!(head.kind, 8..=11 | 18) => id = head.size_or_type,
                _ => return None,
            }
        }
        None
    }

    fn member_named(
        &self,
        structure: u32,
        name: &str,
        depth_left: u32,
        members_left: &mut u32,
    ) -> Option<Member> {
        let head = self.by_id(structure)?;
        if head.kind != Kind::Struct as u32 && head.kind != UNION {
            return None;
        }
        (0..index(head.count)).find_map(|which| {
            *members_left = members_left.checked_sub(1)?;
            let at = head.rest + which * 12;
            let (named, type_id, place) = (self.word(at)?, self.word(at + 4)?, self.word(at + 8)?);
            let (bits, place) =
                if head.flag { (place >> 24, place & 0x00ff_ffff) } else { (0, place) };
            let whole = bits == 0 && place % 8 == 0;
            if self.is_named(named, name) {
                return whole.then_some(Member { offset: place / 8, type_id });
            }
            // The members of an anonymous member are addressed as members of its container.
            if !whole || !self.is_named(named, "") {
                return None;
            }
            let within = self.member_named(
                self.resolve(type_id)?,
                name,
                depth_left.checked_sub(1)?,
                members_left,
            )?;
            Some(Member { offset: (place / 8).checked_add(within.offset)?, ..within })
        })
    }

    fn head(&self, at: usize) -> Result<Head, BtfError> {
        const WHAT: &str = "a type";
        let info = u32_at(&self.bytes, at + 4, WHAT)?;
        Ok(Head {
            name: u32_at(&self.bytes, at, WHAT)?,
            kind: info >> 24 & 0x1f,
            count: info & 0xffff,
            flag: info >> 31 != 0,
            size_or_type: u32_at(&self.bytes, at + 8, WHAT)?,
            rest: at + 12,
        })
    }

    fn word(&self, at: usize) -> Option<u32> {
        u32_at(&self.bytes, at, "").ok()
    }

    /// Whether the name at that offset equals `wanted` in full.
    fn is_named(&self, name: u32, wanted: &str) -> bool {
        let names = self.bytes.get(self.names..self.names_end).unwrap_or_default();
        let Some(rest) = names.get(index(name)..) else { return false };
        rest.strip_prefix(wanted.as_bytes()).is_some_and(|after| after.first() == Some(&0))
    }
}

/// Reads the bounds of a section from two words of the header, its offset and length.
fn section(
    bytes: &[u8],
    header: usize,
    at: usize,
    what: &'static str,
) -> Result<(usize, usize), BtfError> {
    let start = u32_at(bytes, at, what)?;
    let length = u32_at(bytes, at + 4, what)?;
    let start = header.saturating_add(index(start));
    let end = start.saturating_add(index(length));
    if end > bytes.len() {
        return Err(BtfError::Truncated { what, at: start, len: bytes.len() });
    }
    Ok((start, end))
}

/// Converts a number in the file to an index; hosts with BTF have at least 32-bit addresses.
fn index(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn array_at<const N: usize>(
    bytes: &[u8],
    at: usize,
    what: &'static str,
) -> Result<[u8; N], BtfError> {
    at.checked_add(N)
        .and_then(|end| bytes.get(at..end))
        .and_then(|part| part.try_into().ok())
        .ok_or(BtfError::Truncated { what, at, len: bytes.len() })
}

fn u16_at(bytes: &[u8], at: usize, what: &'static str) -> Result<u16, BtfError> {
    array_at(bytes, at, what).map(u16::from_ne_bytes)
}

fn u32_at(bytes: &[u8], at: usize, what: &'static str) -> Result<u32, BtfError> {
    array_at(bytes, at, what).map(u32::from_ne_bytes)
}

#[cfg(test)]
mod tests;
