//! The short round of `napkin bench` alone: all three workloads on embedded devices, each with the
//! policies that tell its story, in about a minute.

use std::time::Duration;

use napkin_core::Policy;

use crate::flood_ping::FloodPing;
use crate::udp_sink::{Offered, UdpSink};
use crate::workload::{Options, Workload};
use crate::xsk_rr::{PACES, XskRr};

/// The workloads of the short round, with the policies that each is run under.
pub fn round(options: &Options) -> Vec<(Box<dyn Workload>, Options)> {
    let with = |policies: Vec<Policy>, window: u64| Options {
        policies,
        repetitions: options.repetitions,
        window: options.window.min(Duration::from_millis(window)),
        warm_up: options.warm_up.min(Duration::from_millis(150)),
        ..options.clone()
    };
    let sink = UdpSink {
        offered: [0.3, 0.6, 0.9, 4.0].map(Offered::TimesPeak).to_vec(),
        ..UdpSink::default()
    };
    let defer = Policy::defer(20 * napkin_core::MICROSECOND);
    let suspend = Policy::suspend(20 * napkin_core::MICROSECOND);
    vec![
        (
            Box::new(FloodPing::synthetic()) as Box<dyn Workload>,
            with(
                vec![
                    Policy::BASE,
                    Policy::hold(napkin_core::MILLISECOND),
                    Policy::THREADED,
                    Policy::WORKQUEUE,
                    defer,
                ],
                500,
            ),
        ),
        (
            Box::new(sink),
            with(vec![Policy::BASE, Policy::KSOFTIRQD, Policy::THREADED, Policy::FEEDBACK], 500),
        ),
        (
            Box::new(XskRr { paces: vec![PACES[0]] }),
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
                700,
            ),
        ),
    ]
}
