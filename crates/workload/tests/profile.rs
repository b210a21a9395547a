//! Host profiles as their authors meet them: what is read, and what every mistake gets to hear.

use napkin_machine::profile::{Draft, Key, Origin, Problem, Profile, ProfileError, Takes, Written};
use napkin_policy::{FAMILIES, PRESETS};
use napkin_workload::schema;
use proptest::prelude::*;

/// Keys that carry a preset's name, and why they may: each word was the kernel's before it was a
/// policy's.
const SHARED_WORDS: [(&str, &str); 3] = [
    ("kernel.inline-while-ksoftirqd", "a rule of the kernel's version; the thread exists in all"),
    ("cost.ksoftirqd-loop", "the thread runs under every policy"),
    ("nic.tx-interrupts", "a property of the driver"),
];

/// A valid value for a key, as a profile spells it.
fn valid(key: &Key) -> String {
    match (key.name, key.takes) {
        ("cpus", _) => "64".to_string(),
        ("queues", _) => "8".to_string(),
        (_, Takes::Time { .. }) => "\"350 ns\"".to_string(),
        (_, Takes::Count { min, .. }) => min.to_string(),
        (_, Takes::Ratio { max, .. }) => max.to_string(),
        (_, Takes::Frequency) => "\"2 GHz\"".to_string(),
        (_, Takes::Rate) => "\"100 Gbit/s\"".to_string(),
        (_, Takes::Size) => "\"8 MiB\"".to_string(),
        (_, Takes::Choice(words)) => format!("\"{}\"", words[0]),
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

/// The sample with one key's line replaced; `constant` is what stands after the `=`.
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

/// What a text gets to hear.
fn says(text: &str) -> String {
    Profile::parse(schema(), text, "test.toml").expect_err("a mistake").to_string()
}

/// What one constant of the sample gets to hear; its line is checked, and left out.
fn about(path: &str, constant: &str) -> String {
    let (text, line) = with(path, constant);
    let error = says(&text);
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
    // A table of its own ends its section, so it stands at the text's end.
    let (text, _) = with("oracle.send", "{}");
    let apart = text.replace("send = {}\n", "");
    let apart = format!("{apart}[oracle.send]\nvalue = \"5us\"\nsource = \"x\"\n");
    assert_eq!(read(&apart).time("oracle.send"), 5_000);
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

#[test]
fn an_unknown_key_gets_the_nearest_one() {
    let text = sample().replace("\npoll = ", "\npol = ");
    assert!(says(&text).contains("cost.pol: no key is called so; did you mean 'cost.poll'?"));
    let elsewhere =
        sample().replace("[link]\n", "[link]\nqueues = { value = 8, source = \"x\" }\n");
    let error = says(&elsewhere);
    assert!(
        error.contains("link.queues: no key is called so; did you mean 'nic.queues'?"),
        "{error}"
    );
    let error = says(&sample().replace("[locality]", "[localty]"));
    assert!(error.contains("localty: a profile has no such section; did you mean 'locality'?"));
    assert_eq!(
        about("cost.poll", "{ value = \"1 ns\", sorce = \"x\", source = \"x\" }"),
        ".sorce: a constant has no such field; did you mean 'source'? it has value, source, fitted, \
         assumed, range and note"
    );
}

#[test]
fn a_missing_key_is_named_with_the_line_of_its_section() {
    let text = sample();
    let header = 1 + text.lines().position(|line| line == "[link]").expect("the section");
    let without: String = text
        .lines()
        .filter(|line| !line.starts_with("rate = "))
        .map(|l| format!("{l}\n"))
        .collect();
    assert_eq!(
        says(&without),
        format!(
            "test.toml:{header}: link.rate: the key is missing; give it a number with bit/s, kbit/s, \
             Mbit/s or Gbit/s, with its source"
        )
    );
}

#[test]
fn every_required_section_and_both_headlines_are_missed() {
    let error = says("");
    for section in schema().sections() {
        let line = format!("{}: the section is missing; every profile has it", section.name);
        assert_eq!(error.contains(&line), section.required, "{}", section.name);
    }
    assert!(error.contains("test.toml:1: name: it is missing"), "{error}");
    assert!(error.contains("test.toml:1: about: it is missing"), "{error}");
    assert!(
        says(&sample().replace("\"for tests\"", "\" \"")).contains("about: this has to be a text")
    );
}

#[test]
fn a_workload_may_be_left_out_but_not_half() {
    let text = sample();
    let (before, _) = text.split_once("[memcached]").expect("the section");
    let mut profile = read(before);
    assert!(profile.has("cost") && !profile.has("memcached"));
    let error = profile.require("memcached").expect_err("not there").to_string();
    assert!(error.starts_with("test.toml: memcached: this profile does not describe"), "{error}");
    assert!(profile.set("memcached.work", 1.0).is_err());
    let error = says(&format!("{before}[memcached]\n"));
    assert!(error.contains("memcached.work: the key is missing"), "{error}");
}

#[test]
fn a_unit_that_does_not_fit_is_told_which_do() {
    let sourced = |value: &str| format!("{{ value = {value}, source = \"x\" }}");
    let said = |path, value: &str| about(path, &sourced(value));
    assert_eq!(
        said("cost.poll", "\"3 GHz\""),
        "the unit 'GHz' does not fit; write a number with ns, us, ms, s or cycles"
    );
    assert_eq!(
        said("cost.poll", "350"),
        "'350' has no unit; write it as a text with ns, us, ms, s or cycles"
    );
    assert_eq!(
        said("nic.queues", "\"8 us\""),
        "the unit 'us' does not fit; write a plain number (count 1..=1024)"
    );
    assert_eq!(
        said("processor.frequency", "\"3.2\""),
        "'3.2' has no unit; write it as a text with Hz, kHz, MHz or GHz"
    );
    assert_eq!(
        said("kernel.scheduler", "\"efvdf\""),
        "'efvdf' is not one of cfs, eevdf; did you mean 'eevdf'?"
    );
    assert_eq!(said("kernel.hrtick", "true"), "'true' is not one of off, on");
    assert_eq!(
        said("cost.poll", "[1]"),
        "'[1]' is not a value; write a number with ns, us, ms, s or cycles"
    );
}

#[test]
fn a_value_beyond_its_limits_is_shown_with_them() {
    let said = |path, value: &str| about(path, &format!("{{ value = {value}, source = \"x\" }}"));
    assert_eq!(said("cost.poll", "\"-5 us\""), "-5 us is negative; write 0 or more");
    assert_eq!(said("cost.poll", "\"-5 cycles\""), "-5 cycles is negative; write 0 or more");
    assert_eq!(said("cost.poll", "\"inf ns\""), "inf ns is not a finite number; write one");
    assert_eq!(said("cost.poll", "\"1e400 ns\""), "inf ns is not a finite number; write one");
    assert_eq!(said("processor.smt-speed", "nan"), "NaN is not a finite number; write one");
    assert_eq!(
        said("cost.poll", "\"2e4 s\""),
        "20000 s is too large; at most 3600000000000 ns is allowed"
    );
    assert_eq!(said("nic.queues", "2.5"), "2.5 is not a whole number; round it");
    assert_eq!(
        said("nic.queues", "65"),
        "65 queues are more than the 64 CPUs of processor.cpus; at most one queue a CPU"
    );
}

#[test]
fn zero_is_refused_where_it_cannot_be() {
    let zero = |path: &str| {
        let value = match schema().key(path).expect(path).takes {
            Takes::Frequency => "\"0 Hz\"",
            Takes::Rate => "\"0 bit/s\"",
            Takes::Time { .. } => "\"0 ns\"",
            _ => "0",
        };
        with(path, &format!("{{ value = {value}, source = \"x\" }}")).0
    };
    for path in [
        "processor.cpus",
        "processor.frequency",
        "processor.smt",
        "processor.smt-speed",
        "kernel.hz",
        "kernel.slice",
        "nic.queues",
        "nic.ring",
        "locality.half",
        "link.rate",
    ] {
        let error = says(&zero(path));
        assert!(error.contains(&format!("{path}: 0")) && error.contains("too small"), "{error}");
    }
    for path in ["cost.poll", "nic.dma", "link.latency"] {
        assert_eq!(read(&zero(path)).get(path), 0.0);
    }
}

#[test]
fn a_measured_constant_may_have_its_spread_and_is_drawn_from_it() {
    let ranges = |constant: &str| {
        let profile = read(&with("cost.poll", constant).0);
        profile.uncertain().map(|it| (it.low, it.high)).collect::<Vec<_>>()
    };
    assert_eq!(ranges("{ value = \"100 ns\", source = \"a data sheet\" }"), []);
    let measured = "{ value = \"100 ns\", source = \"measured\", range = [\"95 ns\", \"0.2 us\"] }";
    assert_eq!(ranges(measured), [(95.0, 200.0)]);
    let outside = "{ value = \"1 us\", source = \"measured\", range = [\"95 ns\", \"0.2 us\"] }";
    assert!(about("cost.poll", outside).contains("outside of its range"));
    let profile = read(&with("cost.poll", measured).0);
    assert!(profile.to_toml().contains(measured), "{}", profile.to_toml());
}

#[test]
fn an_assumed_constant_says_why_and_may_have_a_range() {
    let origin = |constant: &str| {
        let profile = read(&with("cost.poll", constant).0);
        let all: Vec<_> = profile.uncertain().collect();
        let stated = profile.constants().find(|it| it.key.name == "poll").unwrap();
        let text = format!("{:?}", stated.origin);
        (text, all.iter().map(|it| (it.low, it.high)).collect::<Vec<_>>())
    };
    let (said, ranges) = origin("{ value = \"100 ns\", assumed = \"as others\" }");
    assert_eq!(said, "Assumed { why: \"as others\", range: None }");
    assert_eq!(ranges, [(80.0, 120.0)], "20 % where nobody says more");
    let (_, ranges) =
        origin("{ value = \"100 ns\", assumed = \"as others\", range = [\"90 ns\", \"1 us\"] }");
    assert_eq!(ranges, [(90.0, 1_000.0)]);
    assert!(
        about("cost.poll", "{ value = \"1 ns\", assumed = \"x\", range = [\"2 ns\", \"3 ns\"] }")
            .contains("1 ns")
    );
    assert_eq!(
        about("cost.poll", "{ value = \"1 ns\", assumed = \"\" }"),
        ".assumed: this has to be a text that says something"
    );
}

#[test]
fn a_draw_changes_what_is_uncertain_within_its_range_and_nothing_else() {
    for name in Profile::names() {
        let profile = Profile::named(schema(), name).unwrap();
        let (one, again, other) = (profile.drawn(7), profile.drawn(7), profile.drawn(8));
        let (one, other) = (one.unwrap(), other.unwrap());
        assert_eq!(one, again.unwrap(), "{name}: a seed draws the same");
        assert_ne!(one, other, "{name}");
        let ranges: Vec<_> = profile.uncertain().collect();
        assert!(!ranges.is_empty());
        for (before, after) in profile.constants().zip(one.constants()) {
            match ranges.iter().find(|range| range.key == before.key) {
                Some(range) => {
                    let within = (range.low..=range.high).contains(&after.value);
                    assert!(within, "{name}: {range:?} has not {}", after.value);
                }
                None => assert_eq!(before.value, after.value, "{name}: {}", before.key.path()),
            }
        }
    }
}

#[test]
fn a_constant_says_where_it_is_from_exactly_once() {
    let said = |constant: &str| about("cost.poll", constant);
    assert_eq!(
        said("{ value = \"1 ns\" }"),
        "neither source nor fitted nor assumed; say where the value comes from, that it was fitted, or \
         why it is assumed"
    );
    let both = "{ value = \"1 ns\", source = \"x\", fitted = true, range = [\"1 ns\", \"2 ns\"] }";
    assert_eq!(said(both), "a constant has only one of source, fitted and assumed");
    let both = "{ value = \"1 ns\", source = \"x\", assumed = \"y\" }";
    assert_eq!(said(both), "a constant has only one of source, fitted and assumed");
    assert_eq!(
        said("{ value = \"1 ns\", source = \"\" }"),
        ".source: this has to be a text that says something"
    );
    assert_eq!(
        said("{ value = \"1 ns\", fitted = true }"),
        "a fitted constant needs range = [..., ...], the bounds of the fit"
    );
    assert_eq!(
        said("{ value = \"1 ns\", fitted = false, range = [\"1 ns\", \"2 ns\"] }"),
        ".fitted: write fitted = true, or leave it out"
    );
    assert!(said("\"350 ns\"").starts_with("a constant is written as {"));
    assert!(
        said("{ source = \"x\" }").starts_with("the value is missing; give it a number with ns")
    );
}

#[test]
fn a_fitted_value_lies_in_its_range() {
    let said = |value: &str, range: &str| {
        about("cost.poll", &format!("{{ value = \"{value}\", fitted = true, range = [{range}] }}"))
    };
    assert_eq!(
        said("1 us", "\"100 ns\", \"900 ns\""),
        "1 us is outside of its range, 100 ns to 900 ns; change the value or the range"
    );
    assert!(said("99 ns", "\"100 ns\", \"900 ns\"").starts_with("99 ns is outside"));
    assert_eq!(
        said("1 ns", "\"2 ns\", \"1 ns\""),
        ".range: the larger end stands first; swap them"
    );
    assert_eq!(
        said("1 ns", "\"1 ns\""),
        ".range: a range is a list of two values, the smaller one first"
    );
    assert!(said("1 ns", "\"-1 ns\", \"2 ns\"").starts_with(".range: -1 ns is negative"));
    assert!(said("1 ns", "\"0 ns\", \"2 B\"").starts_with(".range: the unit 'B' does not fit"));
    let edges = "{ value = \"900 ns\", fitted = true, range = [\"0.1 us\", \"900 ns\"] }";
    let profile = read(&with("cost.poll", edges).0);
    let fitted: Vec<_> = profile.fitted().map(|(key, range)| (key.path(), range)).collect();
    assert_eq!(fitted, [("cost.poll".to_string(), 100.0..=900.0)]);
}

#[test]
fn all_mistakes_are_said_in_the_order_of_their_lines() {
    let text = sample()
        .replace("[nic]\n", "[nic]\ncolour = 1\n")
        .replace("poll-frame = { value = \"350 ns\"", "poll-frame = { value = \"350\"")
        .replace("hz = { value = 1,", "hz = { value = 0,");
    let error = Profile::parse(schema(), &text, "test.toml").expect_err("three mistakes");
    let keys: Vec<&str> = error.faults().iter().map(|fault| fault.key.as_str()).collect();
    assert_eq!(keys, ["kernel.hz", "cost.poll-frame", "nic.colour"]);
    assert_eq!(error.to_string().lines().count(), 3, "{error}");
    // A wrong frequency is one mistake, not one for each constant in cycles.
    let (text, _) = with("cost.poll", "{ value = \"9 cycles\", source = \"x\" }");
    let error = says(&text.replace("\"2 GHz\"", "\"0 GHz\""));
    assert_eq!(error.lines().count(), 1, "{error}");
}

#[test]
fn what_is_not_toml_is_said_with_its_line() {
    assert!(says("name = \"x\"\n[cost\n").starts_with("test.toml:2: this is not TOML: "));
    let twice = sample().replace("[link]\n", "[link]\nrate = 1\n");
    assert!(says(&twice).contains("this is not TOML: duplicate key"), "{}", says(&twice));
    assert!(says(&"#".repeat(2 << 20)).contains("longer than 1 MiB"));
}

#[test]
fn a_sweep_is_held_to_the_rules_of_a_file() {
    let fitted = "{ value = \"350 ns\", fitted = true, range = [\"100 ns\", \"900 ns\"] }";
    let mut profile = read(&with("cost.poll", fitted).0);
    profile.set_text("cost.poll = 0.4us").expect("within the range");
    assert_eq!(profile.time("cost.poll"), 400);
    let before = profile.clone();
    let refused = |profile: &mut Profile, setting: &str| {
        profile.set_text(setting).expect_err(setting).to_string()
    };
    assert!(refused(&mut profile, "cost.poll=1us").contains("outside of its range"));
    assert!(refused(&mut profile, "cost.pol=1us").contains("did you mean 'cost.poll'?"));
    assert!(refused(&mut profile, "cost.poll").contains("written as section.key=value"));
    assert!(refused(&mut profile, "cost.poll=1").contains("cost.poll: '1' has no unit"));
    assert!(refused(&mut profile, "nic.queues=65").contains("more than the 64 CPUs"));
    assert!(profile.set("kernel.scheduler", 2.0).is_err());
    for value in [f64::NAN, f64::INFINITY, -1.0] {
        assert!(profile.set("cost.look", value).is_err(), "{value}");
    }
    assert_eq!(profile, before, "what was refused changed nothing");
    assert!(profile.set_text("processor.cpus=4").is_err(), "8 queues");
    profile.set_texts(["processor.cpus=4", "nic.queues=4"]).expect("together they fit");
    profile.set_text("kernel.scheduler=eevdf").expect("a word");
    assert_eq!(profile.choice("kernel.scheduler"), "eevdf");
    let set: Vec<String> =
        profile.constants().filter(|stated| stated.set).map(|stated| stated.key.path()).collect();
    assert_eq!(set, ["processor.cpus", "kernel.scheduler", "cost.poll", "nic.queues"]);
}

#[test]
fn a_fit_is_written_back_into_the_text_and_touches_nothing_else() {
    let fitted = "{ value = \"0.35 us\", fitted = true, range = [\"100 ns\", \"900 ns\"] } # why";
    let (text, _) = with("cost.poll", fitted);
    let text = text.replace(
        "claim = { value = \"350 ns\", source = \"test\" }",
        "claim = { fitted = true,   range = ['0 ns', '5 us'], value = '100 cycles' }",
    );
    let mut profile = read(&text);
    assert_eq!(profile.write_fitted(&text).as_deref(), Ok(text.as_str()), "nothing has changed");
    profile.set("cost.poll", 400.0).expect("in range");
    profile.set("cost.claim", 100.0).expect("in range");
    profile.set("cost.send", 100.0).expect("not fitted, so not written");
    let expected =
        text.replace("\"0.35 us\"", "\"0.4 us\"").replace("'100 cycles'", "\"200 cycles\"");
    assert_eq!(profile.write_fitted(&text).as_ref(), Ok(&expected));
    // Other line ends and a byte order mark move the places, not the result.
    let foreign = |text: &str| format!("\u{feff}{}", text.replace('\n', "\r\n"));
    let mut profile = read(&foreign(&text));
    profile.set("cost.poll", 400.0).expect("in range");
    profile.set("cost.claim", 100.0).expect("in range");
    assert_eq!(profile.write_fitted(&foreign(&text)), Ok(foreign(&expected)));
    let other = profile.write_fitted("name = \"other\"").expect_err("another profile's text");
    assert!(other.to_string().contains("cost.poll: the value is missing"), "{other}");
}

#[test]
#[should_panic(expected = "no key is called 'cost.pol'")]
fn a_look_up_of_no_key_is_a_mistake_of_the_program() {
    read(&sample()).get("cost.pol");
}

#[test]
#[should_panic(expected = "no count is called 'cost.poll'")]
fn a_look_up_of_the_wrong_kind_is_a_mistake_of_the_program() {
    read(&sample()).count("cost.poll");
}

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

#[test]
fn every_built_in_profile_is_valid_and_none_is_forgotten() {
    for name in Profile::names() {
        let profile = Profile::named(schema(), name).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(profile.name(), name);
        assert_eq!(Profile::load(schema(), name), Ok(profile));
    }
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../machine/profiles");
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for file in files.map(|file| file.file_name().to_string_lossy().into_owned()) {
        let stem = file.strip_suffix(".toml").unwrap_or_else(|| panic!("profiles/{file}"));
        assert!(Profile::names().any(|name| name == stem), "profiles/{file} is not embedded");
    }
}

#[test]
fn a_profile_that_is_not_there_is_said_to_be_so() {
    let error = Profile::named(schema(), "no such\u{1b}[2J").expect_err("unknown").to_string();
    assert!(error.starts_with("no profile is called 'no such\\u{1b}[2J'; "), "{error}");
    assert!(error.ends_with("write the path of a TOML file"), "{error}");
    for name in Profile::names() {
        let error = Profile::load(schema(), &format!("{name}x")).expect_err("misspelt").to_string();
        assert!(error.contains(&format!("did you mean '{name}'?")), "{error}");
    }
    let unreadable = |path: &str| match Profile::load(schema(), path) {
        Err(ProfileError::Unreadable { path: named, reason }) => (named, reason),
        other => panic!("{other:?}"),
    };
    assert_eq!(unreadable("./nowhere.toml").0, "./nowhere.toml");
    assert_eq!(unreadable("/dev/zero").1, "it is not a file");
}

#[test]
fn a_file_is_read_and_named_in_its_errors() {
    let path = std::env::temp_dir().join(format!("napkin-profile-{}.toml", std::process::id()));
    let name = path.to_str().expect("a path in UTF-8");
    std::fs::write(&path, sample()).expect("a file");
    let good = Profile::load(schema(), name);
    std::fs::write(&path, sample().replace("hz = { value = 1,", "hz = { value = 0,")).expect("it");
    let bad = Profile::load(schema(), name);
    std::fs::remove_file(&path).expect("it");
    assert_eq!(good.expect("valid").count("processor.cpus"), 64);
    assert!(bad.expect_err("0 Hz").to_string().starts_with(&format!("{name}:")));
}

/// Whatever the text was: errors say something and point into it, and what was read can be used.
fn holds(text: &str) -> Result<(), TestCaseError> {
    match Profile::parse(schema(), text, "x") {
        Err(error) => {
            prop_assert!(!error.to_string().is_empty() && !error.faults().is_empty());
            let lines = 1 + text.matches('\n').count();
            for fault in error.faults() {
                prop_assert!(
                    fault.line.is_some_and(|line| (1..=lines).contains(&line)),
                    "{}",
                    fault
                );
                prop_assert!(!fault.to_string().contains(char::is_control));
            }
        }
        Ok(profile) => {
            for stated in profile.constants() {
                let (least, most) = stated.key.takes.limits();
                prop_assert!((least..=most).contains(&stated.value), "{:?}", stated);
                prop_assert_eq!(profile.get(&stated.key.path()), stated.value);
            }
            prop_assert_eq!(profile.write_fitted(text), Ok(text.to_string()));
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn no_text_panics(text in any::<String>()) {
        holds(&text)?;
    }

    #[test]
    fn no_text_of_our_own_words_panics(
        text in "((name|about|cost|nic|poll|queues|value|source|fitted|range|note)?\
                 ( = |\\.|\n|\\[|\\]\n|\\{|\\}|, |\"|'|true|-?[0-9]{1,3}|1e999|inf| ns| cycles)){0,24}",
    ) {
        holds(&text)?;
    }

    #[test]
    fn a_valid_profile_with_a_few_changes_never_panics(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), 0..4_u8, any::<char>()), 1..6),
    ) {
        let mut text: Vec<char> = sample().chars().collect();
        for (at, how, new) in changes {
            let at = at.index(text.len());
            match how {
                0 => text[at] = new,
                1 => text.insert(at, new),
                2 => { text.remove(at); }
                _ => { let from = at.saturating_sub(20); text.drain(from..at); }
            }
        }
        holds(&text.into_iter().collect::<String>())?;
    }

    #[test]
    fn no_value_panics(
        place in 0..schema().keys().len(),
        value in prop_oneof![
            any::<f64>().prop_map(|number| number.to_string()),
            any::<i64>().prop_map(|number| number.to_string()),
            ("-?[0-9]{1,4}(\\.[0-9]{1,3})?(e-?[0-9]{1,3})?", " ?(ns|us|ms|s|cycles|Hz|GHz|B|MiB|Gbit/s|)")
                .prop_map(|(number, unit)| format!("\"{number}{unit}\"")),
            "\"[a-z0-9 ./-]{0,12}\"",
        ],
        fitted in any::<bool>(),
    ) {
        let basis = match fitted {
            true => format!("fitted = true, range = [{value}, {value}]"),
            false => "source = \"x\"".to_string(),
        };
        let constant = format!("{{ value = {value}, {basis} }}");
        holds(&with(&schema().keys()[place].path(), &constant).0)?;
    }

    #[test]
    fn no_setting_panics_and_what_is_refused_changes_nothing(
        place in 0..schema().keys().len(), number in any::<f64>(), text in any::<String>(),
    ) {
        let mut profile = read(&sample());
        let path = schema().keys()[place].path();
        for setting in [text.clone(), format!("{path}={text}"), format!("{path}={number} ns")] {
            let before = profile.clone();
            if profile.set_text(&setting).is_err() {
                prop_assert_eq!(&profile, &before);
            }
        }
        if profile.set(&path, number).is_ok() {
            prop_assert_eq!(profile.get(&path), number);
        }
    }

    #[test]
    fn a_fitted_value_reads_back_as_exactly_the_number_that_was_found(
        value in 100.0..900.0_f64, unit in prop_oneof!["ns", "us", "ms", "s", "cycles"],
    ) {
        let fitted =
            format!("{{ value = \"0 {unit}\", fitted = true, range = [\"0 ns\", \"900 ns\"] }}");
        let (text, _) = with("cost.poll", &fitted);
        let mut profile = read(&text);
        profile.set("cost.poll", value).expect("in range");
        let written = profile.write_fitted(&text).expect("its own text");
        prop_assert_eq!(read(&written).get("cost.poll"), value);
    }
}

#[test]
fn problems_can_be_told_apart_by_a_program() {
    let error =
        Profile::parse(schema(), &sample().replace("[link]", "[lnk]"), "x").expect_err("a slip");
    let problems: Vec<&Problem> = error.faults().iter().map(|fault| &fault.problem).collect();
    assert!(problems.contains(&&Problem::MissingSection));
    let known = schema().sections().iter().map(|section| section.name).collect();
    assert!(problems.contains(&&Problem::UnknownSection { nearest: Some("link"), known }));
}

const BASED: &str = r#"
name = "mine"
about = "another card and a slower clock"
based-on = "epyc-7662"
[processor]
frequency = { value = "1 GHz", source = "lscpu" }
[nic]
ring = { value = 512, source = "ethtool -g" }
"#;

#[test]
fn a_profile_that_is_based_on_another_states_only_what_differs() {
    let base = Profile::named(schema(), "epyc-7662").expect("built in");
    let mine = Profile::parse(schema(), BASED, "mine.toml").expect("nothing is wrong");
    assert_eq!((mine.name(), mine.based_on(), base.based_on()), ("mine", Some("epyc-7662"), None));
    assert_eq!(mine.constants().count(), base.constants().count());
    let own = mine.constants().filter(|it| !it.inherited).map(|it| it.key.path());
    assert_eq!(own.collect::<Vec<_>>(), ["processor.frequency", "nic.ring"]);
    assert_eq!((mine.count("nic.ring"), mine.get("processor.frequency")), (512, 1e9));
    for (here, there) in mine.constants().zip(base.constants()).filter(|(here, _)| here.inherited) {
        assert_eq!((here.key, &here.origin), (there.key, &there.origin));
    }
    assert!(mine.has("memcached") && mine.fitted().count() > 0, "its workloads and ranges, too");
    assert_eq!(mine.fitted_here().count(), 0);
    assert_eq!(base.fitted_here().count(), base.fitted().count());
    // Nothing that it has fitted itself: its text is as it was.
    assert_eq!(mine.write_fitted(BASED).as_deref(), Ok(BASED));
}

#[test]
fn what_is_wrong_with_a_base_or_beside_it_is_said_with_its_line() {
    let says = |from: &str, to: &str| {
        assert!(BASED.contains(from));
        Profile::parse(schema(), &BASED.replace(from, to), "mine.toml").unwrap_err().to_string()
    };
    let unknown = says("epyc-7662", "epyc-7661");
    assert!(
        unknown.contains("mine.toml:4: based-on: no built-in profile is called 'epyc-7661'"),
        "{unknown}"
    );
    assert!(unknown.contains("did you mean 'epyc-7662'?"), "{unknown}");
    assert!(!unknown.contains("the section is missing"), "one mistake: {unknown}");
    assert!(says("\"epyc-7662\"", "7").contains("based-on"));
    assert!(says("about", "abut").contains("about"));
    assert!(says("ring = ", "rin = ").contains("nic.rin"));
    // What the base says must fit as well, at the line that names it.
    let queues = says("frequency = { value = \"1 GHz\"", "cpus = { value = 1");
    assert!(queues.contains("mine.toml:4: nic.queues"), "{queues}");
}

#[test]
fn a_whole_profile_is_written_as_a_file_that_needs_no_other() {
    let values = |profile: &Profile| -> Vec<(String, f64)> {
        profile.constants().map(|it| (it.key.path(), it.value)).collect()
    };
    for name in Profile::names() {
        let profile = Profile::named(schema(), name).expect("built in");
        let again = Profile::parse(schema(), &profile.to_toml(), name).expect("its own text");
        assert_eq!((again.name(), again.about()), (profile.name(), profile.about()));
        assert_eq!(values(&again), values(&profile), "{name}");
        let origins = |profile: &Profile| -> Vec<String> {
            profile.constants().map(|it| format!("{:?} {:?}", it.origin, it.note)).collect()
        };
        assert_eq!(origins(&again), origins(&profile), "{name}");
    }
    let mut mine = Profile::parse(schema(), BASED, "mine.toml").expect("nothing is wrong");
    let text = mine.to_toml();
    assert!(text.contains("# inherited from epyc-7662") && !text.contains("based-on"), "{text}");
    let again = Profile::parse(schema(), &text, "all.toml").expect("its own text");
    assert_eq!((values(&again), again.based_on()), (values(&mine), None));
    mine.set_text("cost.poll=555ns").expect("in its range");
    assert_eq!(
        Profile::parse(schema(), &mine.to_toml(), "").expect("its own text").time("cost.poll"),
        555
    );
}

#[test]
fn what_was_measured_is_written_on_top_of_a_built_in_profile_and_read_back() {
    let written = |key: &str, value: f64, range: Option<(f64, f64)>| Written {
        key: key.into(),
        value,
        sourced: true,
        why: "measured on \"a host\", two\nlines".into(),
        range,
    };
    let draft = |constants: Vec<Written>| Draft {
        name: "mine".into(),
        about: "a host".into(),
        based_on: "epyc-7662".into(),
        comments: vec!["seen\n[nic]".into()],
        constants,
    };
    let all = vec![
        written("nic.interrupt-cpu", 1.0, None),
        written("cost.poll", 123.46, Some((130.0, 140.0))),
        written("memcached.client-slow", 0.123_456, Some((-1.0, 3.0))),
        written("processor.cpus", 8.0, None),
    ];
    let text = draft(all).to_toml(schema()).expect("a profile");
    let profile = Profile::parse(schema(), &text, "mine.toml")
        .unwrap_or_else(|error| panic!("{error}\n{text}"));
    let own: Vec<_> =
        profile.constants().filter(|it| !it.inherited).map(|it| it.key.path()).collect();
    assert_eq!(own, ["processor.cpus", "cost.poll", "nic.interrupt-cpu", "memcached.client-slow"]);
    assert_eq!(profile.choice("nic.interrupt-cpu"), "sender");
    assert_eq!((profile.get("cost.poll"), profile.ratio("memcached.client-slow")), (123.5, 0.1235));
    let range = |path: &str| {
        let mut ranges = profile.uncertain().filter(|it| it.key.path() == path);
        ranges.next().map(|it| (it.low, it.high))
    };
    assert_eq!(range("cost.poll"), Some((123.5, 140.0)), "a range holds its value");
    assert_eq!(range("memcached.client-slow"), Some((0.0, 1.0)), "and keeps to the key's limits");

    let said = |constants| draft(constants).to_toml(schema()).expect_err("refused").to_string();
    let one = || written("cost.poll", 1.0, None);
    assert!(said(vec![one(), one()]).contains("twice"));
    assert!(said(vec![written("cost.polls", 1.0, None)]).contains("cost.polls"));
    assert!(said(vec![written("cost.poll", f64::NAN, None)]).contains("cost.poll"));
    assert!(said(vec![written("processor.cpus", 2.0, None)]).contains("8"), "8 queues on 2 CPUs");
}
