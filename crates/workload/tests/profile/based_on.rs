//! Profiles that are based on another one, and writing of profiles.

use super::*;

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
    for (derived, original) in
        mine.constants().zip(base.constants()).filter(|(derived, _)| derived.inherited)
    {
        assert_eq!((derived.key, &derived.origin), (original.key, &original.origin));
    }
    assert!(mine.has("memcached") && mine.fitted().count() > 0, "its workloads and ranges, too");
    assert_eq!(mine.fitted_here().count(), 0);
    assert_eq!(base.fitted_here().count(), base.fitted().count());
    // It has fitted no constants itself, so its text does not change.
    assert_eq!(mine.write_fitted(BASED).as_deref(), Ok(BASED));
}

#[test]
fn what_is_wrong_with_a_base_or_beside_it_is_said_with_its_line() {
    let refusal = |from: &str, to: &str| {
        assert!(BASED.contains(from));
        Profile::parse(schema(), &BASED.replace(from, to), "mine.toml").unwrap_err().to_string()
    };
    let unknown = refusal("epyc-7662", "epyc-7661");
    assert!(
        unknown.contains("mine.toml:4: based-on: no built-in profile is called 'epyc-7661'"),
        "{unknown}"
    );
    assert!(unknown.contains("did you mean 'epyc-7662'?"), "{unknown}");
    assert!(!unknown.contains("the section is missing"), "one mistake: {unknown}");
    assert!(refusal("\"epyc-7662\"", "7").contains("based-on"));
    assert!(refusal("about", "abut").contains("about"));
    assert!(refusal("ring = ", "rin = ").contains("nic.rin"));
    // The base's values must also be consistent; an error is reported at the line that names the base.
    let queues = refusal("frequency = { value = \"1 GHz\"", "cpus = { value = 1");
    assert!(queues.contains("mine.toml:4: nic.queues"), "{queues}");
}

#[test]
fn a_whole_profile_is_written_as_a_file_that_needs_no_other() {
    let values = |profile: &Profile| -> Vec<(String, f64)> {
        profile.constants().map(|it| (it.key.path(), it.value)).collect()
    };
    for name in Profile::names() {
        let profile = Profile::named(schema(), name).expect("built in");
        let reread = Profile::parse(schema(), &profile.to_toml(), name).expect("its own text");
        assert_eq!((reread.name(), reread.about()), (profile.name(), profile.about()));
        assert_eq!(values(&reread), values(&profile), "{name}");
        let origins = |profile: &Profile| -> Vec<String> {
            profile.constants().map(|it| format!("{:?} {:?}", it.origin, it.note)).collect()
        };
        assert_eq!(origins(&reread), origins(&profile), "{name}");
    }
    let mut mine = Profile::parse(schema(), BASED, "mine.toml").expect("nothing is wrong");
    let text = mine.to_toml();
    assert!(text.contains("# inherited from epyc-7662") && !text.contains("based-on"), "{text}");
    let reread = Profile::parse(schema(), &text, "all.toml").expect("its own text");
    assert_eq!((values(&reread), reread.based_on()), (values(&mine), None));
    mine.set_text("cost.poll=555ns").expect("in its range");
    assert_eq!(
        Profile::parse(schema(), &mine.to_toml(), "").expect("its own text").time("cost.poll"),
        555
    );
}

#[test]
fn what_was_measured_is_written_on_top_of_a_built_in_profile_and_read_back() {
    let written = |key: &str, value: f64, range: Option<(f64, f64)>| DraftConstant {
        key: key.into(),
        value,
        sourced: true,
        why: "measured on \"a host\", two\nlines".into(),
        range,
    };
    let draft = |constants: Vec<DraftConstant>| Draft {
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

    let refusal = |constants| draft(constants).to_toml(schema()).expect_err("refused").to_string();
    let one = || written("cost.poll", 1.0, None);
    assert!(refusal(vec![one(), one()]).contains("twice"));
    assert!(refusal(vec![written("cost.polls", 1.0, None)]).contains("cost.polls"));
    assert!(refusal(vec![written("cost.poll", f64::NAN, None)]).contains("cost.poll"));
    assert!(
        refusal(vec![written("processor.cpus", 2.0, None)]).contains("8"),
        "8 queues on 2 CPUs"
    );
}
