use super::*;
use crate::list::WORKLOADS;
use napkin_measure::report::Column;

fn emulator() -> Profile {
    Profile::named(crate::schema(), "emulator-7.2").unwrap()
}

#[test]
fn a_rate_is_a_whole_number_with_or_without_a_scale() {
    let read = |text| per_second(text, &emulator(), LEAST_FRAME);
    assert_eq!(read("200000"), Ok(200_000.0));
    assert_eq!((read("200k"), read("1M")), (Ok(200_000.0), Ok(1_000_000.0)));
    for wrong in ["", "k", "-5", "1.5k", "1e5", "99999999999999999999", "many"] {
        let error = read(wrong).unwrap_err();
        assert!(error.to_string().contains("200000, 200k or 1M"), "{wrong}: {error}");
    }
}

#[test]
fn a_load_of_zero_or_beyond_the_wire_is_refused_and_the_key_is_named() {
    let mut profile = emulator();
    profile.set_text("link.rate=1 Gbit/s").unwrap();
    let zero = per_second("0", &profile, LEAST_FRAME).unwrap_err();
    assert!(zero.to_string().starts_with("a load of 0 sends nothing"), "{zero}");
    assert!(per_second("1488095", &profile, LEAST_FRAME).is_ok(), "the wire's limit");
    let beyond = per_second("1488096", &profile, LEAST_FRAME).unwrap_err().to_string();
    assert!(beyond.contains("link.rate of 'emulator-7.2' is 1"), "{beyond}");
    assert!(beyond.ends_with("give at most 1488095"), "{beyond}");
}

#[test]
fn every_scenario_s_defaults_are_loads_of_its_own_profile() {
    for scenario in WORKLOADS.iter().filter_map(|it| it.machine()) {
        let name = scenario.name();
        let profile = Profile::named(crate::schema(), scenario.profile())
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(scenario.require(&profile), Ok(()), "{name}");
        assert!(!scenario.loads().is_empty(), "{name}");
        for load in scenario.loads() {
            let load = scenario.load(&load, &profile).unwrap_or_else(|e| panic!("{name}: {e}"));
            let unknown = load.keys().find(|key| Column::of_load(key).is_none());
            assert_eq!(unknown, None, "{name}: the tables have a column for each");
        }
        assert!(scenario.load("0", &profile).is_err(), "{name}");
        assert!(scenario.load("nonsense", &profile).is_err(), "{name}");
    }
}

#[test]
fn a_size_is_in_bytes_and_its_scales_are_binary() {
    let read = |text| size(text, "bytes");
    assert_eq!((read("1"), read("1B"), read("5K")), (Ok(1), Ok(1), Ok(5 << 10)));
    assert_eq!((read("5KB"), read("16M")), (Ok(5 << 10), Ok(16 << 20)));
    for wrong in ["0", "17M", "K", "", "-1", "1.5K", "99999999999999999999"] {
        assert!(read(wrong).is_err(), "{wrong}");
    }
}
