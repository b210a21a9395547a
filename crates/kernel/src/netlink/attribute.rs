//! Netlink attribute lists: a parser for untrusted input, and a builder.
//!
//! The parser does not recurse: callers descend into nested lists explicitly, so the depth is bounded by their
//! code. A list lies within one message and every attribute takes at least four bytes of it, so the length of the
//! list bounds the work. What the attributes mean is up to the callers.

use netlink_packet_core::{NLA_F_NESTED, NLA_TYPE_MASK, NlaBuffer, NlasIterator};

/// A description of what is wrong with a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

/// Limit of a text from the kernel, in bytes. The kernel's longest names have 63.
const TEXT: usize = 256;

/// One attribute of a list.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attribute<'a> {
    /// Its type, without the flags for nesting and byte order.
    pub(crate) kind: u16,
    /// Its value, without padding.
    pub(crate) value: &'a [u8],
}

/// Iterates over a list. An attribute that exceeds the list ends it with an error.
pub(crate) fn attributes(
    list: &[u8],
) -> impl Iterator<Item = Result<Attribute<'_>, Malformed>> + '_ {
    NlasIterator::new(list).map(|item| {
        let item: NlaBuffer<&[u8]> =
            item.map_err(|_| Malformed("an attribute's length is not within its list"))?;
        let (kind, length) = (item.kind(), usize::from(item.length()));
        let value = item.into_inner().get(4..length);
        let value = value.ok_or(Malformed("an attribute's length is not within its list"))?;
        Ok(Attribute { kind, value })
    })
}

/// Splits a message into a fixed header of `size` bytes and the rest.
pub(crate) fn split_header(message: &[u8], size: usize) -> Result<(&[u8], &[u8]), Malformed> {
    message.split_at_checked(size).ok_or(Malformed("a message is shorter than its header"))
}

impl<'a> Attribute<'a> {
    /// Reads an unsigned number of 1, 2, 4 or 8 bytes. The kernel writes its `uint` type in 4 bytes if the value
    /// fits, else in 8.
    pub(crate) fn u64(&self) -> Result<u64, Malformed> {
        let value = self.value;
        if let Ok(bytes) = value.try_into() {
            Ok(u64::from_ne_bytes(bytes))
        } else if let Ok(bytes) = value.try_into() {
            Ok(u64::from(u32::from_ne_bytes(bytes)))
        } else if let Ok(bytes) = value.try_into() {
            Ok(u64::from(u16::from_ne_bytes(bytes)))
        } else if let [byte] = value {
            Ok(u64::from(*byte))
        } else {
            Err(Malformed("a number does not have 1, 2, 4 or 8 bytes"))
        }
    }

    /// Reads an unsigned number that must fit into 32 bits.
    pub(crate) fn u32(&self) -> Result<u32, Malformed> {
        u32::try_from(self.u64()?).map_err(|_| Malformed("a number is too large"))
    }

    pub(crate) fn bool(&self) -> Result<bool, Malformed> {
        Ok(self.u64()? != 0)
    }

    /// Reads text up to its first NUL; invalid UTF-8 is replaced.
    pub(crate) fn text(&self) -> Result<String, Malformed> {
        let text = self.value.split(|byte| *byte == 0).next().unwrap_or_default();
        if text.len() > TEXT {
            return Err(Malformed("a text is too long"));
        }
        Ok(String::from_utf8_lossy(text).into_owned())
    }

    /// Iterates over the nested list.
    pub(crate) fn nested(
        &self,
    ) -> impl Iterator<Item = Result<Attribute<'a>, Malformed>> + use<'a> {
        attributes(self.value)
    }
}

/// A builder for the body of a message: fixed headers and attributes.
#[derive(Debug, Default)]
pub(crate) struct Body {
    bytes: Vec<u8>,
    overflow: bool,
}

impl Body {
    pub(crate) fn new() -> Body {
        Body::default()
    }

    /// Appends a fixed header.
    pub(crate) fn header(mut self, bytes: &[u8]) -> Body {
        self.bytes.extend_from_slice(bytes);
        self.pad();
        self
    }

    /// Appends a flag: an attribute without a value.
    pub(crate) fn flag(self, kind: u16) -> Body {
        self.bytes(kind, &[])
    }

    pub(crate) fn u16(self, kind: u16, value: u16) -> Body {
        self.bytes(kind, &value.to_ne_bytes())
    }

    pub(crate) fn u32(self, kind: u16, value: u32) -> Body {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// Appends a number of the kernel's `uint` type: in 4 bytes if it fits, else in 8.
    pub(crate) fn uint(self, kind: u16, value: u64) -> Body {
        match u32::try_from(value) {
            Ok(value) => self.u32(kind, value),
            Err(_) => self.bytes(kind, &value.to_ne_bytes()),
        }
    }

    /// Appends text with a terminating NUL. The kernel reads it up to the first NUL; no name of the kernel's
    /// contains one.
    pub(crate) fn text(self, kind: u16, text: &str) -> Body {
        let mut bytes = Vec::from(text);
        bytes.push(0);
        self.bytes(kind, &bytes)
    }

    pub(crate) fn bytes(mut self, kind: u16, value: &[u8]) -> Body {
        let start = self.start(kind & NLA_TYPE_MASK);
        self.bytes.extend_from_slice(value);
        self.end(start);
        self
    }

    /// Appends a nested list, which `fill` builds.
    pub(crate) fn nest(mut self, kind: u16, fill: impl FnOnce(Body) -> Body) -> Body {
        let start = self.start(kind | NLA_F_NESTED);
        let mut body = fill(self);
        body.end(start);
        body
    }

    /// Returns the body, or `None` if a value was too long for its length field.
    pub(crate) fn finish(self) -> Option<Vec<u8>> {
        (!self.overflow).then_some(self.bytes)
    }

    fn start(&mut self, kind: u16) -> usize {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0, 0]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        start
    }

    fn end(&mut self, start: usize) {
        match u16::try_from(self.bytes.len() - start) {
            Ok(length) => self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes()),
            Err(_) => self.overflow = true,
        }
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(list: &[u8]) -> Vec<Attribute<'_>> {
        attributes(list).collect::<Result<_, _>>().expect("a good list")
    }

    #[test]
    fn what_is_built_is_read() {
        let body = Body::new()
            .header(&[9; 4])
            .u32(1, 7)
            .uint(2, u64::from(u32::MAX) + 1)
            .uint(3, 5)
            .text(4, "eth0")
            .nest(5, |body| body.flag(1).u16(2, 3));
        let body = body.finish().expect("short");
        let (header, list) = split_header(&body, 4).expect("a header");
        assert_eq!(header, [9; 4]);
        let list = read(list);
        assert_eq!(list.iter().map(|a| a.kind).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        assert_eq!(list[0].u32(), Ok(7));
        assert_eq!(list[1].u64(), Ok(1 << 32));
        assert_eq!(list[1].u32(), Err(Malformed("a number is too large")));
        assert_eq!(list[2].value.len(), 4, "a small uint takes 4 bytes");
        assert_eq!(list[3].text().as_deref(), Ok("eth0"));
        let within: Vec<_> = list[4].nested().collect::<Result<_, _>>().expect("a good list");
        assert_eq!((within[0].kind, within[0].value.len()), (1, 0));
        assert_eq!(within[1].u64(), Ok(3));
    }

    #[test]
    fn a_value_that_does_not_fit_its_length_field_is_no_message() {
        assert!(Body::new().text(1, &"x".repeat(65_530)).finish().is_some());
        assert!(Body::new().text(1, &"x".repeat(65_531)).finish().is_none());
        let long = "x".repeat(40_000);
        assert!(Body::new().nest(1, |b| b.text(1, &long).text(2, &long)).finish().is_none());
    }

    #[test]
    fn lengths_that_lie_end_the_list() {
        for list in [
            &[0, 0, 1, 0][..],
            &[3, 0, 1, 0],
            &[5, 0, 1, 0],
            &[255, 255, 1, 0, 1, 2, 3, 4],
            &[4, 0, 1],
            &[4],
        ] {
            let read: Vec<_> = attributes(list).collect();
            assert_eq!(read.len(), 1, "{list:?}");
            assert!(read[0].is_err(), "{list:?}");
        }
    }

    #[test]
    fn numbers_and_texts_of_odd_lengths_are_refused() {
        for length in [0, 3, 5, 7, 9, 100] {
            let value = vec![1; length];
            assert!(Attribute { kind: 1, value: &value }.u64().is_err(), "{length}");
        }
        let long = [b'a'; 257];
        assert!(Attribute { kind: 1, value: &long }.text().is_err());
        let text = Attribute { kind: 1, value: b"et\xffh\0rest" }.text();
        assert_eq!(text.as_deref(), Ok("et\u{fffd}h"));
    }
}
