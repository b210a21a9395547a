//! Tests on small BTF files that are built here, truncated, or corrupted.

use super::*;
use proptest::prelude::*;

/// Writes BTF, type by type.
#[derive(Default)]
struct Writer {
    types: Vec<u8>,
    names: Vec<u8>,
}

impl Writer {
    fn name(&mut self, name: &str) -> u32 {
        let at = self.names.len();
        self.names.extend_from_slice(name.as_bytes());
        self.names.push(0);
        u32::try_from(at).expect("short")
    }

    fn words(&mut self, words: &[u32]) {
        for word in words {
            self.types.extend_from_slice(&word.to_ne_bytes());
        }
    }

    fn head(&mut self, name: &str, kind: u32, count: u32, size_or_type: u32) {
        let name = self.name(name);
        self.words(&[name, kind << 24 | count, size_or_type]);
    }

    /// Writes a structure or union; members are (name, type id, bit offset).
    fn structure(&mut self, name: &str, kind: u32, members: &[(&str, u32, u32)]) {
        self.head(name, kind, u32::try_from(members.len()).expect("few"), 64);
        for (name, type_id, bits) in members {
            let name = self.name(name);
            self.words(&[name, *type_id, *bits]);
        }
    }

    fn finish(self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&0xeb9f_u16.to_ne_bytes());
        bytes.extend_from_slice(&[1, 0]);
        let types = u32::try_from(self.types.len()).expect("short");
        let names = u32::try_from(self.names.len()).expect("short");
        for word in [24, 0, types, types, names] {
            bytes.extend_from_slice(&u32::to_ne_bytes(word));
        }
        bytes.extend_from_slice(&self.types);
        bytes.extend_from_slice(&self.names);
        bytes
    }
}

fn small() -> Vec<u8> {
    let mut writer = Writer::default();
    writer.name("");
    writer.head("int", 1, 0, 4); // 1
    writer.words(&[32]);
    writer.structure("", UNION, &[("inner", 1, 0), ("alias", 1, 0)]); // 2
    writer.structure("outer", 4, &[("first", 1, 0), ("", 2, 32), ("deep", 4, 64)]); // 3
    writer.head("deep_t", 8, 0, 5); // 4, a typedef of:
    writer.structure("deep", 4, &[("bottom", 1, 96)]); // 5
    writer.head("colour", ENUM, 2, 4); // 6
    for (name, value) in [("RED", 0), ("GREEN", 7)] {
        let name = writer.name(name);
        writer.words(&[name, value]);
    }
    writer.head("large", ENUM64, 1, 8); // 7
    let name = writer.name("HUGE");
    writer.words(&[name, 5, 1]);
    writer.head("function", 12, 0, 1); // 8
    writer.finish()
}

#[test]
fn members_are_found_through_typedefs_and_through_unions_without_a_name() {
    let btf = Btf::new(small()).expect("well formed");
    assert_eq!(btf.len(), 8);
    let outer = btf.find(Kind::Struct, "outer").expect("there");
    let offset = |path| btf.member(outer, path).map(|member| member.offset);
    assert_eq!(offset("first"), Some(0));
    assert_eq!(offset("inner"), Some(4));
    assert_eq!(offset("alias"), Some(4));
    assert_eq!(offset("deep"), Some(8));
    assert_eq!(offset("deep.bottom"), Some(20));
    assert_eq!(offset("bottom"), None, "that one is not lent");
    assert_eq!(offset("first.inner"), None, "a number has no members");
    assert_eq!(offset(""), None);
    assert_eq!(btf.find(Kind::Struct, "oute"), None, "names are whole");
    assert_eq!(btf.find(Kind::Func, "function"), Some(8));
    assert_eq!(btf.find(Kind::Func, "outer"), None, "of that kind only");
    assert_eq!(btf.enumerator("GREEN"), Some(7));
    assert_eq!(btf.enumerator("HUGE"), Some(1 << 32 | 5));
    assert_eq!(btf.enumerator("BLUE"), None);
}

/// Makes every kind of query that the crate makes.
fn ask(bytes: Vec<u8>) {
    let Ok(btf) = Btf::new(bytes) else { return };
    for id in 0..=u32::try_from(btf.len()).unwrap_or(0).min(20) {
        for path in ["first", "inner", "deep.bottom", "no.such", ""] {
            let _ = btf.member(id, path);
        }
    }
    let _ = (btf.find(Kind::Struct, "outer"), btf.find(Kind::Typedef, "deep_t"));
    let _ = (btf.enumerator("GREEN"), btf.enumerator("HUGE"));
}

#[test]
fn a_description_that_is_cut_anywhere_is_an_error() {
    let whole = small();
    for end in 0..whole.len() {
        let error = Btf::new(whole[..end].to_vec()).expect_err("cut");
        assert!(matches!(error, BtfError::Truncated { .. }), "{end}: {error}");
    }
}

#[test]
fn another_order_of_bytes_and_a_later_kind_of_type_are_named() {
    let mut swapped = small();
    swapped.swap(0, 1);
    assert!(matches!(Btf::new(swapped), Err(BtfError::Magic(0x9feb))));
    let mut writer = Writer::default();
    writer.head("later", 31, 0, 0);
    let error = Btf::new(writer.finish()).expect_err("unknown");
    assert!(matches!(error, BtfError::UnknownKind { id: 1, kind: 31 }), "{error}");
}

#[test]
fn structures_that_hold_themselves_and_typedefs_in_a_ring_end() {
    let mut writer = Writer::default();
    writer.name("");
    // Each of the 3000 anonymous members has the type of the structure itself.
    let members = vec![("", 1, 0); 3000];
    writer.structure("snake", 4, &members);
    writer.head("a", 8, 0, 3);
    writer.head("b", 8, 0, 2);
    writer.structure("ring", 4, &[("", 2, 0), ("x", 2, 0)]);
    let btf = Btf::new(writer.finish()).expect("well formed");
    assert_eq!(btf.member(1, "tail"), None);
    assert_eq!(btf.member(4, "y"), None);
    assert_eq!(btf.member(4, "x.y"), None);
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic_or_run_for_ever(
        bytes in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        ask(bytes);
    }

    #[test]
    fn nor_does_a_good_description_with_some_bytes_changed(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
    ) {
        let mut bytes = small();
        for (place, value) in changes {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        ask(bytes);
    }

    #[test]
    fn nor_do_types_of_any_shape_behind_a_good_header(
        words in prop::collection::vec(any::<u32>(), 0..200),
    ) {
        let mut writer = Writer::default();
        writer.name("");
        // Make small numbers the most likely, so that types refer to other types.
        let words: Vec<u32> = words.iter().map(|word| word >> (word % 32)).collect();
        writer.words(&words);
        ask(writer.finish());
    }
}
