//! Random texts, values and settings.

use super::*;

/// For any text: an error has a message and points into the text, and a parsed profile can be used.
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
        let (text, _) = with("cost.poll-frame", &fitted);
        let mut profile = read(&text);
        profile.set("cost.poll-frame", value).expect("in range");
        let written = profile.write_fitted(&text).expect("its own text");
        prop_assert_eq!(read(&written).get("cost.poll-frame"), value);
    }
}
