//! The swarm can fail: with a known race put back into the core, some seed finds it.

use napkin_core::race::{self, Race};
use napkin_machine::swarm;

/// Returns the error of the first seed that finds this race.
fn breaks(wanted: Race) -> Option<String> {
    race::set(Some(wanted));
    let found = (0..400).find_map(|seed| {
        // A context that takes what it does not own may trip an assertion of the core first.
        match std::panic::catch_unwind(|| swarm::run(seed)) {
            Ok(Ok(_)) => None,
            Ok(Err(broken)) => Some(broken.to_string()),
            Err(_) => Some(format!("seed {seed}: an assertion of the core")),
        }
    });
    race::set(None);
    found
}

#[test]
fn every_race_that_a_single_threaded_world_can_show_is_found() {
    for wanted in [
        Race::LostInterrupt,
        Race::EarlyTimer,
        Race::ThreadTestsSched,
        Race::BusyBitStays,
        Race::UnmaskWithoutLook,
        Race::ModeWaitsForDrain,
        Race::ProlongWithoutPoll,
    ] {
        let found = breaks(wanted);
        println!("{wanted:?}: {found:?}");
        assert!(found.is_some(), "{wanted:?} is in the core, and 400 seeds show nothing");
    }
}
