//! Runs the example `std_world` under every preset: each frame arrives, and the owner of the preset's mode polls.

use napkin_core::Owner;
use napkin_policy::{PRESETS, Threaded};

#[path = "../examples/std_world.rs"]
#[allow(dead_code, reason = "its main")]
mod example;

#[test]
fn every_preset_delivers_every_frame() {
    for preset in PRESETS {
        let policy = preset.policy;
        let owner = match policy.instance.threaded {
            Threaded::Enabled | Threaded::BusyPoll => Owner::Thread,
            Threaded::Workqueue => Owner::Worker,
            _ if policy.epoll.enabled() || policy.application.socket_busy_polls() => {
                Owner::Application
            }
            _ => Owner::Softirq,
        };
        // An application on a loaded host may never get to wait and poll: one run of ten has to show it.
        let polled = (0..10).any(|_| {
            let (received, counts) = example::deliver(&policy);
            assert_eq!(received, example::FRAMES, "{policy}");
            counts.polls[owner as usize] > 0
        });
        assert!(polled, "{policy}: no poll by the {}", owner.name());
    }
}
