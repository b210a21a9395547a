//! The message for each mistake in a profile.

use super::*;

#[test]
fn an_unknown_key_gets_the_nearest_one() {
    let text = sample().replace("\npoll = ", "\npol = ");
    assert!(refusal(&text).contains("cost.pol: no key is called so; did you mean 'cost.poll'?"));
    let elsewhere =
        sample().replace("[link]\n", "[link]\nqueues = { value = 8, source = \"x\" }\n");
    let error = refusal(&elsewhere);
    assert!(
        error.contains("link.queues: no key is called so; did you mean 'nic.queues'?"),
        "{error}"
    );
    let error = refusal(&sample().replace("[locality]", "[localty]"));
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
        refusal(&without),
        format!(
            "test.toml:{header}: link.rate: the key is missing; give it a number with bit/s, kbit/s, \
             Mbit/s or Gbit/s, with its source"
        )
    );
}

#[test]
fn every_required_section_and_both_headlines_are_missed() {
    let error = refusal("");
    for section in schema().sections() {
        let line = format!("{}: the section is missing; every profile has it", section.name);
        assert_eq!(error.contains(&line), section.required, "{}", section.name);
    }
    assert!(error.contains("test.toml:1: name: it is missing"), "{error}");
    assert!(error.contains("test.toml:1: about: it is missing"), "{error}");
    assert!(
        refusal(&sample().replace("\"for tests\"", "\" \""))
            .contains("about: this has to be a text")
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
    let error = refusal(&format!("{before}[memcached]\n"));
    assert!(error.contains("memcached.work: the key is missing"), "{error}");
}

#[test]
fn a_unit_that_does_not_fit_is_told_which_do() {
    let sourced = |value: &str| format!("{{ value = {value}, source = \"x\" }}");
    let message = |path, value: &str| about(path, &sourced(value));
    assert_eq!(
        message("cost.poll", "\"3 GHz\""),
        "the unit 'GHz' does not fit; write a number with ns, us, ms, s or cycles"
    );
    assert_eq!(
        message("cost.poll", "350"),
        "'350' has no unit; write it as a text with ns, us, ms, s or cycles"
    );
    assert_eq!(
        message("nic.queues", "\"8 us\""),
        "the unit 'us' does not fit; write a plain number (count 1..=1024)"
    );
    assert_eq!(
        message("processor.frequency", "\"3.2\""),
        "'3.2' has no unit; write it as a text with Hz, kHz, MHz or GHz"
    );
    assert_eq!(
        message("kernel.scheduler", "\"efvdf\""),
        "'efvdf' is not one of cfs, eevdf; did you mean 'eevdf'?"
    );
    assert_eq!(message("kernel.hrtick", "true"), "'true' is not one of off, on");
    assert_eq!(
        message("cost.poll", "[1]"),
        "'[1]' is not a value; write a number with ns, us, ms, s or cycles"
    );
}

#[test]
fn a_value_beyond_its_limits_is_shown_with_them() {
    let message =
        |path, value: &str| about(path, &format!("{{ value = {value}, source = \"x\" }}"));
    assert_eq!(message("cost.poll", "\"-5 us\""), "-5 us is negative; write 0 or more");
    assert_eq!(message("cost.poll", "\"-5 cycles\""), "-5 cycles is negative; write 0 or more");
    assert_eq!(message("cost.poll", "\"inf ns\""), "inf ns is not a finite number; write one");
    assert_eq!(message("cost.poll", "\"1e400 ns\""), "inf ns is not a finite number; write one");
    assert_eq!(message("processor.smt-speed", "nan"), "NaN is not a finite number; write one");
    assert_eq!(
        message("cost.poll", "\"2e4 s\""),
        "20000 s is too large; at most 3600000000000 ns is allowed"
    );
    assert_eq!(message("nic.queues", "2.5"), "2.5 is not a whole number; round it");
    assert_eq!(
        message("nic.queues", "65"),
        "65 queues are more than the 64 CPUs of processor.cpus; at most one queue a CPU"
    );
}

#[test]
fn zero_is_refused_where_it_cannot_be() {
    let zero = |path: &str| {
        let value = match schema().key(path).expect(path).takes {
            ValueKind::Frequency => "\"0 Hz\"",
            ValueKind::Rate => "\"0 bit/s\"",
            ValueKind::Time { .. } => "\"0 ns\"",
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
        "cost.poll",
        "cost.look",
        "locality.half",
        "link.rate",
    ] {
        let error = refusal(&zero(path));
        assert!(error.contains(&format!("{path}: 0")) && error.contains("too small"), "{error}");
    }
    for path in ["cost.poll-frame", "nic.dma", "link.latency"] {
        assert_eq!(read(&zero(path)).get(path), 0.0);
    }
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
    // A wrong frequency is one mistake, not one per constant in cycles.
    let (text, _) = with("cost.poll", "{ value = \"9 cycles\", source = \"x\" }");
    let error = refusal(&text.replace("\"2 GHz\"", "\"0 GHz\""));
    assert_eq!(error.lines().count(), 1, "{error}");
}

#[test]
fn what_is_not_toml_is_said_with_its_line() {
    assert!(refusal("name = \"x\"\n[cost\n").starts_with("test.toml:2: this is not TOML: "));
    let twice = sample().replace("[link]\n", "[link]\nrate = 1\n");
    assert!(refusal(&twice).contains("this is not TOML: duplicate key"), "{}", refusal(&twice));
    assert!(refusal(&"#".repeat(2 << 20)).contains("longer than 1 MiB"));
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
fn problems_can_be_told_apart_by_a_program() {
    let error =
        Profile::parse(schema(), &sample().replace("[link]", "[lnk]"), "x").expect_err("a slip");
    let problems: Vec<&Problem> = error.faults().iter().map(|fault| &fault.problem).collect();
    assert!(problems.contains(&&Problem::MissingSection));
    let known = schema().sections().iter().map(|section| section.name).collect();
    assert!(problems.contains(&&Problem::UnknownSection { nearest: Some("link"), known }));
}
