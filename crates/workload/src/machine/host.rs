//! The modelled host, as the host block of a report from this world.

use napkin_machine::profile::Profile;

use napkin_measure::Host;
use napkin_measure::host::Testbed;

/// Returns the host block. Fields that only a real host has (kernel, timers, steal) stay `null`.
pub fn host(profile: &Profile, source: &str) -> Host {
    let cpus = profile.count("processor.cpus");
    let set = profile.constants().filter(|constant| constant.set);
    let set = set.map(|constant| (constant.key.path(), constant.value)).collect();
    let testbed = Testbed {
        name: profile.name().to_owned(),
        about: profile.about().to_owned(),
        source: source.to_owned(),
        cpus,
        queues: profile.count("nic.queues"),
        frequency_hz: profile.get("processor.frequency"),
        fitted: profile.fitted().count(),
        set,
    };
    Host {
        arch: "modelled".to_owned(),
        cpu_model: Some(testbed.name.clone()),
        cpus: u32::try_from(cpus).ok(),
        smt: Some(profile.count("processor.smt") > 1),
        profile: Some(testbed),
        ..Host::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn the_host_is_the_profile_s_and_says_what_was_changed() {
        let mut profile = crate::machine::stand_in::profile();
        profile.set_text("cost.poll=400ns").unwrap();
        let host = host(&profile, "built-in");
        let testbed = host.profile.as_ref().unwrap();
        assert_eq!((testbed.name.as_str(), testbed.cpus), ("emulator-7.2", 2));
        assert_eq!(testbed.set, BTreeMap::from([("cost.poll".to_owned(), 400.0)]));
        assert_eq!(host.cpus, Some(2));
        let json = serde_json::to_value(&host).unwrap();
        assert_eq!(json["profile"]["frequency_hz"], 1e9);
        assert!(json["kernel"].is_null(), "nothing is filled in");
    }
}
