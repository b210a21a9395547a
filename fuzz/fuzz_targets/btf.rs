//! The kernel's description of its types: cut, circular or senseless, it is refused or found empty.
#![no_main]

use libfuzzer_sys::fuzz_target;
use napkin_kernel::count::btf::{Btf, Kind};

fuzz_target!(|data: &[u8]| {
    // The first bytes are given, so that there is something to look through.
    let mut bytes = data.to_vec();
    if let Some(magic) = bytes.get_mut(..2) {
        magic.copy_from_slice(&[0x9f, 0xeb]);
    }
    let Ok(btf) = Btf::new(bytes) else { return };
    assert!(btf.len() <= data.len());
    for name in ["a", "net", ""] {
        for kind in [Kind::Struct, Kind::Func] {
            let _ = btf.find(kind, name);
        }
        let _ = btf.enumerator(name);
    }
    for id in (0..20).chain([u32::MAX]) {
        for path in ["a", "a.b", "net", ""] {
            let _ = btf.member(id, path);
        }
    }
});
