//! The table of keys itself, and its manual.

use super::*;

/// Keys that contain a preset's name, with the reason: each word was the kernel's before it was a policy's.
const SHARED_WORDS: [(&str, &str); 3] = [
    ("kernel.inline-while-ksoftirqd", "a rule of the kernel's version; the thread exists in all"),
    ("cost.ksoftirqd-loop", "the thread runs under every policy"),
    ("nic.tx-interrupts", "a property of the driver"),
];

#[test]
fn the_table_is_in_order() {
    let kebab = |name: &str| name.bytes().all(|b| b.is_ascii_lowercase() || b == b'-');
    for (place, key) in schema().keys().iter().enumerate() {
        let path = key.path();
        assert!(schema().section(key.section).is_some(), "{path} stands in no known section");
        assert!(
            kebab(key.name),
            "{path}: lower-case letters and hyphens; a number would be a row's"
        );
        assert!(
            schema().keys()[place + 1..].iter().all(|other| other.path() != path),
            "{path} is there twice"
        );
        assert!(!key.what.is_empty() && !key.what.ends_with('.'), "{path}");
        let (least, most) = key.takes.limits();
        assert!(key.default.is_none_or(|value| (least..=most).contains(&value)), "{path}");
    }
    for section in schema().sections() {
        assert!(
            schema().keys().iter().any(|key| key.section == section.name),
            "[{}] is empty",
            section.name
        );
    }
}

#[test]
fn no_key_belongs_to_a_policy() {
    let policies = PRESETS.iter().map(|p| p.name).chain(FAMILIES.iter().map(|f| f.prefix));
    for policy in policies {
        for path in schema().keys().iter().map(Key::path).filter(|path| path.contains(policy)) {
            let excused = SHARED_WORDS.iter().any(|(shared, _)| *shared == path);
            assert!(excused, "{path} carries the name of the policy '{policy}'");
        }
    }
    for (shared, why) in SHARED_WORDS {
        assert!(schema().key(shared).is_some(), "{shared} ({why}) is gone; take it off the list");
    }
}

#[test]
fn every_key_has_its_row_in_the_manual() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/profiles.md");
    let manual = std::fs::read_to_string(path).expect("docs/profiles.md");
    let row = |key: &Key| {
        let default = key.default.map_or("-".to_string(), |value| key.takes.show(value));
        format!("| `{}` | {} | {default} | {} |", key.path(), key.takes, key.what)
    };
    let missing: Vec<String> = schema()
        .keys()
        .iter()
        .map(row)
        .filter(|row| !manual.lines().any(|line| line == row))
        .collect();
    assert!(missing.is_empty(), "docs/profiles.md lacks:\n{}", missing.join("\n"));
    let rows = manual.lines().filter(|line| line.starts_with("| `")).count();
    assert_eq!(rows, schema().keys().len(), "docs/profiles.md has rows of keys that do not exist");
}
