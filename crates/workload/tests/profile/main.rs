//! Host profiles as their authors meet them: what is read, and the message for every mistake.

mod based_on;
mod files;
mod mistakes;
mod origin;
mod random;
mod table;

use napkin_machine::profile::{
    Draft, DraftConstant, Key, Origin, Problem, Profile, ProfileError, ValueKind,
};
use napkin_policy::{FAMILIES, PRESETS};
use napkin_workload::schema;
use proptest::prelude::*;

/// A valid value for a key, as a profile spells it.
fn valid(key: &Key) -> String {
    match (key.name, key.takes) {
        ("cpus", _) => "64".to_string(),
        ("queues", _) => "8".to_string(),
        (_, ValueKind::Time { .. }) => "\"350 ns\"".to_string(),
        (_, ValueKind::Count { min, .. }) => min.to_string(),
        (_, ValueKind::Ratio { max, .. }) => max.to_string(),
        (_, ValueKind::Frequency) => "\"2 GHz\"".to_string(),
        (_, ValueKind::Rate) => "\"100 Gbit/s\"".to_string(),
        (_, ValueKind::Size) => "\"8 MiB\"".to_string(),
        (_, ValueKind::Choice(words)) => format!("\"{}\"", words[0]),
    }
}

/// A valid profile with every section and key, built from the table. Line 1 is the name's.
fn sample() -> String {
    let mut text = "name = \"sample\"\nabout = \"for tests\"\n".to_string();
    for section in schema().sections() {
        text += &format!("\n[{}]\n", section.name);
        for key in schema().keys().iter().filter(|key| key.section == section.name) {
            text += &format!("{} = {{ value = {}, source = \"test\" }}\n", key.name, valid(key));
        }
    }
    text
}

/// The sample with one key's line replaced by `constant`, and the number of that line.
fn with(path: &str, constant: &str) -> (String, usize) {
    let (section, name) = path.split_once('.').expect("a full name");
    let mut lines: Vec<String> = sample().lines().map(str::to_string).collect();
    let header = format!("[{section}]");
    let start = lines.iter().position(|line| *line == header).expect("the section");
    let prefix = format!("{name} = ");
    let at = start + lines[start..].iter().position(|l| l.starts_with(&prefix)).expect("the key");
    lines[at] = format!("{prefix}{constant}");
    (lines.join("\n") + "\n", at + 1)
}

fn read(text: &str) -> Profile {
    Profile::parse(schema(), text, "test.toml").unwrap_or_else(|error| panic!("{error}"))
}

/// The error message for a text.
fn refusal(text: &str) -> String {
    Profile::parse(schema(), text, "test.toml").expect_err("a mistake").to_string()
}

/// The error message for one constant of the sample, without its position, which is checked here.
fn about(path: &str, constant: &str) -> String {
    let (text, line) = with(path, constant);
    let error = refusal(&text);
    let place = format!("test.toml:{line}: {path}");
    let rest = error.strip_prefix(&place).unwrap_or_else(|| panic!("{place} ... is not {error:?}"));
    assert!(!rest.contains('\n'), "one mistake, one message: {error}");
    rest.strip_prefix(": ").unwrap_or(rest).to_string()
}

#[test]
fn a_valid_profile_says_what_was_written() {
    let profile = read(&sample());
    assert_eq!((profile.name(), profile.about()), ("sample", "for tests"));
    assert_eq!(profile.time("cost.poll"), 350);
    assert_eq!(profile.count("processor.cpus"), 64);
    assert_eq!(profile.get("processor.frequency"), 2e9);
    assert_eq!(profile.get("link.rate"), 1e11);
    assert_eq!(profile.ratio("processor.smt-speed"), 1.0);
    assert_eq!(profile.choice("kernel.preemption"), "none");
    assert!(!profile.on("nic.adaptive"));
    assert_eq!(profile.constants().count(), schema().keys().len());
    assert!(
        profile
            .constants()
            .all(|stated| stated.origin == Origin::Source { what: "test", range: None })
    );
    assert_eq!(profile.fitted().count(), 0);
}

#[test]
fn a_constant_may_be_a_table_of_its_own_and_carry_a_note() {
    let (text, _) = with(
        "oracle.send",
        "{ value = \"5us\", source = \"tables\", note = \"includes the copy\" }",
    );
    let stated = |path: &str| {
        let profile = read(&text);
        let found = profile.constants().find(|stated| stated.key.path() == path).expect("a key");
        (found.value, found.note.map(str::to_string))
    };
    assert_eq!(stated("oracle.send"), (5_000.0, Some("includes the copy".to_string())));
    // A table of its own ends its section, so it is placed at the end of the text.
    let (text, _) = with("oracle.send", "{}");
    let separate = text.replace("send = {}\n", "");
    let separate = format!("{separate}[oracle.send]\nvalue = \"5us\"\nsource = \"x\"\n");
    assert_eq!(read(&separate).time("oracle.send"), 5_000);
}

#[test]
fn cycles_follow_the_frequency() {
    let mut profile = read(&with("cost.poll", "{ value = \"1000 cycles\", source = \"x\" }").0);
    assert_eq!(profile.time("cost.poll"), 500);
    profile.set_text("processor.frequency=4GHz").expect("a frequency");
    assert_eq!(profile.time("cost.poll"), 250);
    assert_eq!(profile.time("cost.look"), 350);
}

#[test]
fn a_default_stands_in_for_a_key_that_is_left_out() {
    let key =
        schema().keys().iter().find(|key| key.default.is_some()).expect("some key has a default");
    let line = format!("{} = {{ value = {}, source = \"test\" }}\n", key.name, valid(key));
    let profile = read(&sample().replacen(&line, "", 1));
    assert_eq!(Some(profile.get(&key.path())), key.default);
    let origins: Vec<_> = profile.constants().filter(|s| s.origin == Origin::Default).collect();
    assert_eq!(origins.len(), 1);
    assert_eq!(origins[0].key.path(), key.path());
}
