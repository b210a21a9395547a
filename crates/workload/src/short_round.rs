//! The short round of a plain `napkin bench`: three workloads on embedded devices, each under the policies that
//! show its effect, in about a minute.

use std::time::Duration;

use napkin_policy::Policy;

use crate::flood_ping::engine::FloodPing;
use crate::live::Live;
use crate::options::Options;
use crate::udp_sink::engine::{Offered, UdpSink};
use crate::xsk_rr::engine::XskRr;
use crate::xsk_rr::pace::PACES;
use napkin_policy::NamedPolicy;

/// Returns the workloads of the short round, each with its policies. Without `window`, each has a short window of
/// its own; the window of the options is ignored.
pub fn round(options: &Options, window: Option<Duration>) -> Vec<(Box<dyn Live>, Options)> {
    let with = |policies: Vec<Policy>, short: u64| Options {
        policies: NamedPolicy::all(policies),
        repetitions: options.repetitions,
        window: window.unwrap_or(Duration::from_millis(short)),
        warm_up: options.warm_up.min(Duration::from_millis(100)),
        ..options.clone()
    };
    let sink = UdpSink {
        offered: [0.3, 0.6, 0.9, 4.0].map(Offered::TimesPeak).to_vec(),
        ..UdpSink::default()
    };
    let defer = Policy::defer(20 * napkin_policy::MICROSECOND);
    let suspend = Policy::suspend(20 * napkin_policy::MICROSECOND);
    vec![
        (
            Box::new(FloodPing::synthetic()) as Box<dyn Live>,
            with(
                vec![
                    Policy::BASE,
                    Policy::hold(napkin_policy::MILLISECOND),
                    Policy::THREADED,
                    Policy::WORKQUEUE,
                    defer,
                ],
                200,
            ),
        ),
        (
            Box::new(sink),
            with(vec![Policy::BASE, Policy::KSOFTIRQD, Policy::THREADED, Policy::FEEDBACK], 200),
        ),
        (
            Box::new(XskRr { paces: vec![PACES[0]], wire: None }),
            with(
                vec![
                    Policy::INTERRUPTS,
                    Policy::BUSYPOLL,
                    Policy::BUSYPOLL_SEPARATE,
                    Policy::THREADED_BUSY_POLL,
                    Policy::NAPIBUSY,
                    Policy::FULLBUSY,
                    suspend,
                ],
                300,
            ),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_that_was_asked_for_is_kept_and_without_one_they_are_short() {
        let windows = |asked| {
            let round = round(&Options::default(), asked);
            round.into_iter().map(|(_, options)| options.window.as_millis()).collect::<Vec<_>>()
        };
        assert_eq!(windows(Some(Duration::from_secs(2))), [2_000; 3]);
        assert_eq!(windows(None), [200, 200, 300]);
    }
}
