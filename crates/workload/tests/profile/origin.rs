//! The origin of a constant: measured, fitted or assumed; and how it is drawn, swept and written back.

use super::*;

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
    let (shown, ranges) = origin("{ value = \"100 ns\", assumed = \"as others\" }");
    assert_eq!(shown, "Assumed { why: \"as others\", range: None }");
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
        let (one, repeated, other) = (profile.drawn(7), profile.drawn(7), profile.drawn(8));
        let (one, other) = (one.unwrap(), other.unwrap());
        assert_eq!(one, repeated.unwrap(), "{name}: a seed draws the same");
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
    let message = |constant: &str| about("cost.poll", constant);
    assert_eq!(
        message("{ value = \"1 ns\" }"),
        "neither source nor fitted nor assumed; say where the value comes from, that it was fitted, or \
         why it is assumed"
    );
    let both = "{ value = \"1 ns\", source = \"x\", fitted = true, range = [\"1 ns\", \"2 ns\"] }";
    assert_eq!(message(both), "a constant has only one of source, fitted and assumed");
    let both = "{ value = \"1 ns\", source = \"x\", assumed = \"y\" }";
    assert_eq!(message(both), "a constant has only one of source, fitted and assumed");
    assert_eq!(
        message("{ value = \"1 ns\", source = \"\" }"),
        ".source: this has to be a text that says something"
    );
    assert_eq!(
        message("{ value = \"1 ns\", fitted = true }"),
        "a fitted constant needs range = [..., ...], the bounds of the fit"
    );
    assert_eq!(
        message("{ value = \"1 ns\", fitted = false, range = [\"1 ns\", \"2 ns\"] }"),
        ".fitted: write fitted = true, or leave it out"
    );
    assert!(message("\"350 ns\"").starts_with("a constant is written as {"));
    assert!(
        message("{ source = \"x\" }").starts_with("the value is missing; give it a number with ns")
    );
}

#[test]
fn a_fitted_value_lies_in_its_range() {
    let message = |value: &str, range: &str| {
        about("cost.poll", &format!("{{ value = \"{value}\", fitted = true, range = [{range}] }}"))
    };
    assert_eq!(
        message("1 us", "\"100 ns\", \"900 ns\""),
        "1 us is outside of its range, 100 ns to 900 ns; change the value or the range"
    );
    assert!(message("99 ns", "\"100 ns\", \"900 ns\"").starts_with("99 ns is outside"));
    assert_eq!(
        message("1 ns", "\"2 ns\", \"1 ns\""),
        ".range: the larger end stands first; swap them"
    );
    assert_eq!(
        message("1 ns", "\"1 ns\""),
        ".range: a range is a list of two values, the smaller one first"
    );
    assert!(message("1 ns", "\"-1 ns\", \"2 ns\"").starts_with(".range: -1 ns is negative"));
    assert!(message("1 ns", "\"0 ns\", \"2 B\"").starts_with(".range: the unit 'B' does not fit"));
    let edges = "{ value = \"900 ns\", fitted = true, range = [\"0.1 us\", \"900 ns\"] }";
    let profile = read(&with("cost.poll", edges).0);
    let fitted: Vec<_> = profile.fitted().map(|(key, range)| (key.path(), range)).collect();
    assert_eq!(fitted, [("cost.poll".to_string(), 100.0..=900.0)]);
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
    // Other line endings and a byte order mark change positions, but not the result.
    let foreign = |text: &str| format!("\u{feff}{}", text.replace('\n', "\r\n"));
    let mut profile = read(&foreign(&text));
    profile.set("cost.poll", 400.0).expect("in range");
    profile.set("cost.claim", 100.0).expect("in range");
    assert_eq!(profile.write_fitted(&foreign(&text)), Ok(foreign(&expected)));
    let other = profile.write_fitted("name = \"other\"").expect_err("another profile's text");
    assert!(other.to_string().contains("cost.poll: the value is missing"), "{other}");
}
