//! The text of a policy: what is read is said in words that read the same again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use napkin_policy::{NamedPolicy, Policy};

fuzz_target!(|text: &str| {
    if let Ok(policy) = text.parse::<Policy>() {
        policy.validate().expect("it was read");
        let said = policy.to_string();
        assert_eq!(said.parse::<Policy>().as_ref(), Ok(&policy), "{said}");
        let said = policy.spelled_out().to_string();
        assert_eq!(said.parse::<Policy>().as_ref(), Ok(&policy), "{said}");
        policy.warnings().iter().for_each(|warning| drop(warning.to_string()));
        assert!(policy.conflict_on_cpu(&policy).is_none());
    }
    if let Ok(named) = NamedPolicy::read(text) {
        let _ = NamedPolicy::distinct(&named);
    }
});
