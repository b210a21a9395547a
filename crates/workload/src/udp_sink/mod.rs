//! `udp-sink` (2018): a receiver on its queue's CPU, offered more than it can take.

pub mod engine;
pub mod linux;
pub mod machine;
pub mod saturation;

use napkin_measure::conclusion::Rule;
use napkin_policy::{MICROSECOND, Policy};

use crate::error::BenchError;
use crate::linux::rates;
use crate::live::Live;
use crate::machine::Scenario;
use crate::server::{CLIENT_PORT, FRAMES, PORT, Wire};
use crate::setting::no_loads;
use crate::setting::{Given, Setting, cost};
use crate::workload::Workload;
use crate::world::World;
use engine::{Offered, Waits};

/// Datagrams to one receiver, up to more than it can take.
pub(crate) struct UdpSink;

const SETTINGS: [Setting; 8] = [
    Setting {
        list: true,
        default: Some("0.2,0.4,0.6,0.8,0.9,1,1.1,1.2,1.4,1.6,1.8,2,2.5,3,4"),
        check: offered,
        ..Setting::engine(
            "offered",
            "LIST",
            "Offered rates, as multiples of the rate at which the CPU is full.",
        )
    },
    Setting {
        value: None,
        conflicts: Some("offered"),
        ..Setting::engine(
            "corner",
            "",
            "The document's corner (II) instead: each interrupt falls just after a softirq has ended.",
        )
    },
    Setting {
        default: Some("blocking"),
        choices: &[("blocking", "In a blocking receive call"), ("epoll", "In an epoll wait")],
        ..Setting::engine("application", "APPLICATION", "How the application waits.")
    },
    Setting {
        default: Some("20us"),
        check: cost,
        ..Setting::engine(
            "delivery",
            "TIME",
            "What it costs to deliver a packet, as in 20us; at most 1s.",
        )
    },
    Setting {
        default: Some("20us"),
        check: cost,
        ..Setting::engine(
            "consume",
            "TIME",
            "What it costs the application to consume one; at most 1s.",
        )
    },
    FRAMES,
    PORT,
    CLIENT_PORT,
];

fn offered(text: &str) -> Result<(), String> {
    match text.parse::<f64>() {
        Ok(times) if (0.001..=1_000.0).contains(&times) => Ok(()),
        _ => Err("give multiples of the peak from 0.001 to 1000".into()),
    }
}

impl Workload for UdpSink {
    fn name(&self) -> &'static str {
        "udp-sink"
    }

    fn about(&self) -> &'static str {
        "2018: a receiver on its queue's CPU, offered more than it can take. Who survives overload?"
    }

    fn shows(&self) -> &'static str {
        "A program receives datagrams on the CPU that also delivers them, up to several times more \
         than that CPU can take. Shows under which policies it keeps receiving, and which starve it."
    }

    fn rule(&self) -> Rule {
        Rule::Overload
    }

    fn worlds(&self) -> &'static [World] {
        &[World::Engine, World::Machine, World::Linux]
    }

    fn policies(&self, world: World) -> Vec<Policy> {
        match world {
            World::Engine => vec![Policy::BASE, Policy::KSOFTIRQD, Policy::FEEDBACK],
            World::Machine => vec![
                Policy::BASE_6_4,
                Policy::KSOFTIRQD_AS_POSTED,
                Policy::KSOFTIRQD,
                Policy::FEEDBACK,
            ],
            World::Linux => {
                let defer = Policy::defer(20 * MICROSECOND);
                vec![Policy::BASE, Policy::THREADED, defer, Policy::BUSYPOLL]
            }
        }
    }

    fn settings(&self) -> &'static [Setting] {
        &SETTINGS
    }

    fn engine(&self, loads: &[String], given: &Given) -> Result<Box<dyn Live>, BenchError> {
        no_loads(loads)?;
        let default = engine::UdpSink::default();
        let times = given.all("offered").iter().filter_map(|it| it.parse().ok());
        let times: Vec<Offered> = times.map(Offered::TimesPeak).collect();
        let (wire, corner) = (Wire::read(given)?, given.switched_on("corner"));
        if corner && wire.is_some() {
            return Err(BenchError::Usage(engine::CORNER_HAS_NO_WIRE.to_owned()));
        }
        Ok(Box::new(engine::UdpSink {
            wire,
            offered: match times {
                _ if corner => vec![Offered::AfterSoftirq],
                times if times.is_empty() => default.offered,
                times => times,
            },
            waits: match given.one("application") {
                Some("epoll") => Waits::Epoll,
                _ => Waits::Blocking,
            },
            delivery: given.time("delivery")?.unwrap_or(default.delivery),
            consume: given.time("consume")?.unwrap_or(default.consume),
        }))
    }

    fn machine(&self) -> Option<&'static dyn Scenario> {
        Some(&machine::UdpSink)
    }

    fn linux(&self, loads: &[String], _: &Given) -> Result<Box<dyn Live>, BenchError> {
        let default = linux::UdpSink::default();
        let offered = if loads.is_empty() { default.offered } else { rates(loads)? };
        Ok(Box::new(linux::UdpSink { offered }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_policy_of_the_linux_defaults_waits_in_an_epoll_that_the_sink_has_not() {
        let policies = UdpSink.policies(World::Linux);
        assert!(policies.iter().all(|policy| !policy.epoll.enabled()), "{policies:?}");
    }

    #[test]
    fn the_defaults_that_are_shown_are_those_that_hold() {
        let times = SETTINGS[0].default.expect("one").split(',');
        let times: Vec<Offered> = times.map(|it| Offered::TimesPeak(it.parse().unwrap())).collect();
        let default = engine::UdpSink::default();
        assert_eq!(times, default.offered);
        let cost =
            |place: usize| Given([("x", vec![SETTINGS[place].default.unwrap().into()])].into());
        assert_eq!(cost(3).time("x").unwrap(), Some(default.delivery));
        assert_eq!(cost(4).time("x").unwrap(), Some(default.consume));
    }
}
