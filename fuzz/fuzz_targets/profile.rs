//! The text of a profile: read, or refused with every fault in words.
#![no_main]

use libfuzzer_sys::fuzz_target;
use napkin_machine::profile::Profile;

fuzz_target!(|text: &str| {
    match Profile::parse(napkin_workload::schema(), text, "fuzzed") {
        Ok(profile) => profile.constants().for_each(|constant| drop(constant)),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
