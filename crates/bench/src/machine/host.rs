//! What was modelled: the host block of a report from this world.

use std::collections::BTreeMap;

use napkin_machine::profile::Profile;
use serde::{Deserialize, Serialize};

use crate::measure::Host;

/// The modelled testbed. It stands in the report's host block as `profile`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Testbed {
    /// The profile's name.
    pub name: String,
    /// What it describes.
    pub about: String,
    /// Where the profile was read: `built-in`, or the file's path.
    pub source: String,
    /// Logical CPUs.
    pub cpus: u64,
    /// Receive queues.
    pub queues: u64,
    /// The processor's frequency.
    pub frequency_hz: f64,
    /// How many of its constants were fitted to published figures.
    pub fitted: usize,
    /// The constants that this run has changed (`--set`), in base units.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub set: BTreeMap<String, f64>,
}

/// The host block. What only a real host has (kernel, timers, steal) stays `null`.
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
