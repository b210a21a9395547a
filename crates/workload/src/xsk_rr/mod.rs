//! `xsk-rr` (2025): packets at a fixed rate, answered inline by a busy application.

pub mod engine;
pub mod linux;
pub mod machine;
pub mod pace;

use napkin_policy::Policy;

use crate::error::BenchError;
use crate::live::Live;
use crate::machine::Scenario;
use crate::server::{CLIENT_PORT, FRAMES, PORT, Wire};
use crate::setting::no_loads;
use crate::setting::{Given, Setting, cost, up_to};
use crate::workload::Workload;
use crate::world::World;
use pace::{PACES, Pace};

/// Requests and answers at a fixed pace, in the machine and in linux on AF_XDP rings.
pub(crate) struct XskRr;

/// The UDP port of both ends.
const UDP_PORT: u16 = 54_321;
/// Bytes of a datagram, in both directions.
const PAYLOAD: usize = 400;

const SETTINGS: [Setting; 5] = [
    Setting {
        worlds: &[World::Engine, World::Linux],
        check: |text| up_to(text, 10_000_000),
        ..Setting::engine(
            "rate",
            "N",
            "Packets a second. [default: the document's five workloads, each with its delay]",
        )
    },
    Setting {
        requires: Some("rate"),
        worlds: &[World::Engine, World::Linux],
        check: cost,
        ..Setting::engine(
            "delay",
            "TIME",
            "For how long the application does not receive after a reply, at most 1s; goes with --rate. \
             [default: 0us]",
        )
    },
    FRAMES,
    PORT,
    CLIENT_PORT,
];

impl Workload for XskRr {
    fn name(&self) -> &'static str {
        "xsk-rr"
    }

    fn about(&self) -> &'static str {
        "2025: packets at a fixed rate, answered inline by a busy application. How low, how steady?"
    }

    fn shows(&self) -> &'static str {
        "Frames come at a fixed rate, and a program answers each at once. Shows how soon and how \
         steadily each policy lets it answer, and how much CPU goes into looking for frames."
    }

    fn worlds(&self) -> &'static [World] {
        &[World::Engine, World::Machine, World::Linux]
    }

    fn policies(&self, _: World) -> Vec<Policy> {
        // In the linux world, over a veth, the two in the middle are refused, and the report gives the reason.
        vec![
            Policy::INTERRUPTS,
            Policy::BUSYPOLL,
            Policy::BUSYPOLL_SEPARATE,
            Policy::THREADED_BUSY_POLL,
        ]
    }

    fn settings(&self) -> &'static [Setting] {
        &SETTINGS
    }

    fn engine(&self, loads: &[String], given: &Given) -> Result<Box<dyn Live>, BenchError> {
        no_loads(loads)?;
        Ok(Box::new(engine::XskRr { paces: paces(given)?, wire: Wire::read(given)? }))
    }

    fn linux(&self, loads: &[String], given: &Given) -> Result<Box<dyn Live>, BenchError> {
        no_loads(loads)?;
        Ok(Box::new(linux::XskRr { paces: paces(given)? }))
    }

    fn machine(&self) -> Option<&'static dyn Scenario> {
        Some(&machine::XskRr)
    }
}

/// Returns the requested pace, or all of the document's.
fn paces(given: &Given) -> Result<Vec<Pace>, BenchError> {
    let Some(name) = given.number("rate")? else { return Ok(PACES.to_vec()) };
    Ok(vec![Pace::of(name, given.time("delay")?.unwrap_or(0))])
}
