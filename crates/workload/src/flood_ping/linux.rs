//! `flood-ping` (2007) in the linux world: the operating system's `ping -f`, answered by the kernel.

use std::time::Duration;

use serde_json::{Map, Value};

use crate::error::BenchError;
use crate::linux::pair::SERVER;
use crate::linux::testbed::Testbed;
use crate::linux::window::Window;
use crate::linux::{failed, notes};
use crate::live::Live;
use crate::ping::Ping;
use crate::waiting::Waiting;
use crate::{live::Trial, options::Options};
use napkin_measure::report::{Column, Measurement, Report, column};

/// The workload, which has a single load: a closed loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FloodPing;

impl Live for FloodPing {
    fn name(&self) -> &'static str {
        "flood-ping"
    }

    fn world(&self) -> &'static str {
        "linux"
    }

    fn loads(&self) -> usize {
        1
    }

    fn load(&self, _: usize) -> Map<String, Value> {
        Map::from_iter([("client".to_owned(), "ping -f".into())])
    }

    fn run(&self, _: usize, trial: Trial<'_>) -> Result<Measurement, BenchError> {
        let placement = trial.options.placement();
        let testbed = Testbed::new(trial.policy, placement)?;
        let flood = || Ping::start(trial, placement.other, SERVER.into());
        let ping = testbed.pair.client.run(flood).map_err(failed)??;
        trial.warm_up(Duration::ZERO)?;
        let window = Window::begin(&testbed, placement, &[ping.id()])?;
        trial.window()?;
        let mut figures = window.end()?;
        ping.stop()?;
        // Every packet that reaches the server's device is an echo request, and the kernel answers it.
        figures.packets = figures.polled_packets;
        let seconds = figures.window_ns.unwrap_or(1) as f64 / 1e9;
        figures.achieved_per_s = figures.packets.map(|packets| packets as f64 / seconds);
        Ok(figures)
    }

    fn conclude(&self, report: &mut Report) {
        crate::linux::conclude(report);
    }

    fn columns(&self) -> Vec<&'static Column> {
        vec![
            column::POLICY,
            column::CLIENT,
            column::ACHIEVED,
            column::PACKETS,
            column::POLLS,
            column::EMPTY_POLLS,
            column::SOFTIRQ_POLLS,
            column::THREAD_POLLS,
            column::DEFERRALS,
            column::WATCHDOGS,
            column::BUSY,
            column::INTERRUPTED,
        ]
    }

    fn notes(&self, options: &Options) -> Vec<String> {
        let mut notes = notes();
        notes.push("closed loop: the client keeps its latency to itself".into());
        notes.extend(Waiting::Nowhere.note(&options.policies));
        notes
    }
}
