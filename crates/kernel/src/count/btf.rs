//! The kernel's description of its own types (BTF), as far as programs here need it: the number of
//! a type, where a member lies in a structure, the value of an enumerator.
//!
//! The reader is total: whatever the bytes are, it answers or says what is wrong with them. It keeps
//! the bytes and the place of each type in them; names are compared where they are. It does not read
//! modules' descriptions (`/sys/kernel/btf/NAME`), which continue the kernel's.

use std::fs::File;
use std::io::{self, Read};

use thiserror::Error;

/// Where the kernel shows it.
pub const KERNEL: &str = "/sys/kernel/btf/vmlinux";

/// More than any kernel's (a usual one has 5-10 MiB).
const LARGEST: u64 = 256 << 20;

/// Typedefs and qualifiers of one type are followed no further than this, nor are structures without
/// a name within each other.
const DEEPEST: u32 = 32;

/// No more members than this are looked at for one name; the kernel's largest structure has some
/// hundreds. A forged description cannot make the search long by nesting.
const MOST_MEMBERS: u32 = 20_000;

/// Why a description cannot be used.
#[derive(Debug, Error)]
pub enum BtfError {
    /// The file cannot be read.
    #[error(
        "{KERNEL} cannot be read ({0}): counting needs a kernel built with CONFIG_DEBUG_INFO_BTF"
    )]
    Read(#[source] io::Error),
    /// It does not begin as BTF does.
    #[error("not BTF, or of a machine with another order of bytes: it begins with {0:#06x}")]
    Magic(u16),
    /// A part of it lies outside of it.
    #[error("damaged BTF: {what} at byte {at} is not within its {len} bytes")]
    Truncated {
        /// The part of the type information that ends early.
        what: &'static str,
        /// Where it begins.
        at: usize,
        /// How many bytes there are.
        len: usize,
    },
    /// A kind of type that this reader does not know, and so cannot skip.
    #[error("BTF of a newer format: type {id} is of kind {kind}")]
    UnknownKind {
        /// The type's number.
        id: u32,
        /// `BTF_KIND_*` as it was read.
        kind: u32,
    },
}

/// Kinds of types that matter here (`linux/btf.h`).
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
/// A function's parameters and what it answers.
const FUNCTION_FORM: u32 = 13;

/// Types as the kernel describes them in `/sys/kernel/btf`.
#[derive(Debug)]
pub struct Btf {
    bytes: Vec<u8>,
    /// Where each type begins; number 0 (void) is none.
    types: Vec<u32>,
    /// Where the names begin.
    names: usize,
    /// Where they end.
    names_end: usize,
}

/// One type's fixed part.
#[derive(Debug, Clone, Copy)]
struct Head {
    name: u32,
    kind: u32,
    /// How many members, enumerators or parameters follow.
    count: u32,
    /// The kind's one flag: members' places are (bits, place) pairs.
    flag: bool,
    /// A size, or the number of another type.
    size_or_type: u32,
    /// Where what follows it begins.
    rest: usize,
}

/// A member that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// Bytes from the structure's beginning.
    pub offset: u32,
    /// Its type's number.
    pub type_id: u32,
}

impl Btf {
    /// The running kernel's.
    ///
    /// # Errors
    /// If the kernel shows none, or it cannot be understood.
    pub fn kernel() -> Result<Btf, BtfError> {
        let mut bytes = Vec::new();
        let file = File::open(KERNEL).map_err(BtfError::Read)?;
        file.take(LARGEST).read_to_end(&mut bytes).map_err(BtfError::Read)?;
        Btf::new(bytes)
    }

    /// Looks through all types once.
    ///
    /// # Errors
    /// If the bytes are not BTF, are cut, or have a kind of type of a later format.
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

    /// How many types there are; their numbers begin at 1.
    pub fn len(&self) -> usize {
        self.types.len() - 1
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of the first type of that kind and name.
    pub fn find(&self, kind: Kind, name: &str) -> Option<u32> {
        self.all().find_map(|(id, head)| {
            (head.kind == kind as u32 && self.is_named(head.name, name)).then_some(id)
        })
    }

    /// Where a member lies in a structure, through named and nameless structures within it:
    /// `nd_net.net`. `None` if it has no such member, or the member is a bit field.
    pub fn member(&self, structure: u32, path: &str) -> Option<Member> {
        let mut here = Member { offset: 0, type_id: structure };
        for name in path.split('.') {
            if name.is_empty() {
                return None;
            }
            let mut left = MOST_MEMBERS;
            let found = self.member_named(self.plain(here.type_id)?, name, DEEPEST, &mut left)?;
            here =
                Member { offset: here.offset.checked_add(found.offset)?, type_id: found.type_id };
        }
        Some(here)
    }

    /// Which of a function's parameters has that name, from 0, and how many it has.
    pub fn parameter(&self, function: u32, name: &str) -> Option<(usize, usize)> {
        let head = self.by_id(function).filter(|head| head.kind == Kind::Func as u32)?;
        let form = self.by_id(head.size_or_type).filter(|head| head.kind == FUNCTION_FORM)?;
        let count = index(form.count);
        let named = |which: &usize| {
            self.word(form.rest + which * 8).is_some_and(|word| self.is_named(word, name))
        };
        Some(((0..count).find(named)?, count))
    }

    /// The value of the first enumerator of that name.
    pub fn enumerator(&self, name: &str) -> Option<u64> {
        self.enumerators().find_map(|(named, value)| self.is_named(named, name).then_some(value))
    }

    /// All enumerators: where the name of each is, and its value.
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

    /// The name at that place.
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

    /// The structure or union behind typedefs and qualifiers.
    fn plain(&self, id: u32) -> Option<u32> {
        let mut id = id;
        for _ in 0..DEEPEST {
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
        deeper: u32,
        left: &mut u32,
    ) -> Option<Member> {
        let head = self.by_id(structure)?;
        if head.kind != Kind::Struct as u32 && head.kind != UNION {
            return None;
        }
        (0..index(head.count)).find_map(|which| {
            *left = left.checked_sub(1)?;
            let at = head.rest + which * 12;
            let (named, type_id, place) = (self.word(at)?, self.word(at + 4)?, self.word(at + 8)?);
            let (bits, place) =
                if head.flag { (place >> 24, place & 0x00ff_ffff) } else { (0, place) };
            let whole = bits == 0 && place % 8 == 0;
            if self.is_named(named, name) {
                return whole.then_some(Member { offset: place / 8, type_id });
            }
            // A member without a name lends its own members to whoever holds it.
            if !whole || !self.is_named(named, "") {
                return None;
            }
            let within =
                self.member_named(self.plain(type_id)?, name, deeper.checked_sub(1)?, left)?;
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

    /// Whether the name at that place is this one, to its end.
    fn is_named(&self, name: u32, wanted: &str) -> bool {
        let names = self.bytes.get(self.names..self.names_end).unwrap_or_default();
        let Some(rest) = names.get(index(name)..) else { return false };
        rest.strip_prefix(wanted.as_bytes()).is_some_and(|after| after.first() == Some(&0))
    }
}

/// A section's bounds, from the two words in the header that give them.
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

/// A number of the file as an index; there is no machine with BTF and less than 32 bits.
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
