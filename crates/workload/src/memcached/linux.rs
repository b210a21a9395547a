//! `memcached` (2024) in the linux world: Debian's unpatched memcached, under a policy of the kernel.
//!
//! memcached has one worker thread on the serving CPU; the client has its own CPU. The device and, from outside,
//! memcached's epoll descriptors are configured for the policy. napkin's client loads it over the veth: in an open
//! loop with latency from the intended time, or in a closed loop for the maximum rate.

use std::net::SocketAddr;
use std::time::Duration;

use napkin_os::sched::CpuList;
use serde_json::{Map, Value, json};

use super::program::Program;
use crate::client_results;
use crate::embedded::PORT;
use crate::error::BenchError;
use crate::linux::pair::SERVER;
use crate::linux::testbed::Testbed;
use crate::linux::window::Window;
use crate::linux::{failed, notes};
use crate::live::Live;
use crate::{live::Trial, options::Options, options::Placement};
use napkin_client::{Client, ClientWait, Config, Load, populate};
use napkin_measure::report::{Column, Measurement, Report, column};

/// A real memcached in one namespace, and the load generator in another.
#[derive(Debug, Clone, PartialEq)]
pub struct Memcached {
    /// The loads.
    pub loads: Vec<Load>,
    /// The number of the client's connections.
    pub connections: usize,
}

impl Default for Memcached {
    fn default() -> Self {
        let open = |per_second| Load::Open { per_second };
        Memcached { loads: vec![open(5_000.0), open(20_000.0), Load::Closed], connections: 32 }
    }
}

impl Memcached {
    fn config(&self, index: usize, placement: Placement, seed: u64) -> Config {
        let wait = if placement.shared() { ClientWait::Sleep } else { ClientWait::Spin };
        Config {
            connections: self.connections,
            cpus: CpuList(vec![placement.other]),
            load: self.loads[index],
            seed,
            wait,
            ..Config::new(SocketAddr::from((SERVER, PORT)))
        }
    }
}

impl Live for Memcached {
    fn name(&self) -> &'static str {
        "memcached"
    }

    fn world(&self) -> &'static str {
        "linux"
    }

    fn loads(&self) -> usize {
        self.loads.len()
    }

    fn load(&self, index: usize) -> Map<String, Value> {
        let rate = match self.loads[index] {
            Load::Open { per_second } => json!(per_second as u64),
            Load::Closed => json!("max"),
        };
        let connections = json!(self.connections);
        Map::from_iter([
            ("requests_per_s".to_owned(), rate),
            ("connections".to_owned(), connections),
        ])
    }

    fn run(&self, index: usize, trial: Trial<'_>) -> Result<Measurement, BenchError> {
        let Trial { policy, seed, interrupt, .. } = trial;
        let placement = trial.options.placement();
        let testbed = Testbed::new(policy, placement)?;
        let config = self.config(index, placement, seed);
        let start = || Program::start(&[placement.queue], 1, self.connections, interrupt);
        let mut server = testbed.pair.server.run(start).map_err(failed)??;
        let filled = testbed.pair.client.run(|| {
            server.wait_until_listening(interrupt)?;
            populate(&config).map_err(failed)
        });
        filled.map_err(failed)??;
        let attachment = server.attach(policy)?;
        let client = testbed.pair.client.run(|| Client::start(&config)).map_err(failed)?;
        let mut client = client.map_err(failed)?;
        trial.warm_up(Duration::ZERO)?;
        let window = Window::begin(&testbed, placement, &[server.id()])?;
        let user_before = server.user_ns();
        client.begin_window().map_err(failed)?;
        trial.window()?;
        let results = client.end_window().map_err(failed)?;
        let mut figures = window.end()?;
        if let (Some(before), Some(now)) = (user_before, server.user_ns()) {
            let user = now.saturating_sub(before);
            figures.extra.insert("program_user_ns".to_owned(), user.into());
        }
        client.stop().map_err(failed)?;
        // The settings inside memcached end with its process, so they need not be restored.
        attachment.leave();
        server.check_running()?;
        client_results::add_store_counts(&mut figures, &results);
        client_results::add_client_results(&mut figures, &results);
        Ok(figures)
    }

    fn conclude(&self, report: &mut Report) {
        report.rows.iter_mut().for_each(|row| row.notes.extend(client_results::client_notes(row)));
        crate::linux::conclude(report);
    }

    fn overhead(&self) -> Duration {
        Duration::from_millis(1_500)
    }

    fn columns(&self) -> Vec<&'static Column> {
        vec![
            column::POLICY,
            column::REQUESTS_PER_S,
            column::OFFERED,
            column::ACHIEVED,
            column::P50,
            column::P95,
            column::P99,
            column::P999,
            column::UNANSWERED,
            column::LATE,
            column::BUSY,
            column::INTERRUPTED,
            column::POLLS,
            column::SOFTIRQ_POLLS,
            column::THREAD_POLLS,
            column::APPLICATION_POLLS,
            column::EMPTY_POLLS,
            column::PACKETS_PER_POLL,
            column::DEFERRALS,
            column::WATCHDOGS,
            column::SUSPENSIONS,
        ]
    }

    fn notes(&self, options: &Options) -> Vec<String> {
        let mut notes = notes();
        if self.loads.contains(&Load::Closed) {
            notes.push(client_results::CLOSED_LOOP_NOTE.to_owned());
        }
        let spinning: Vec<_> = options
            .policies
            .iter()
            .filter(|it| it.policy.application.spin)
            .map(|it| it.name.as_str())
            .collect();
        if !spinning.is_empty() {
            notes.push(format!(
                "memcached sleeps in epoll_wait and cannot be made to spin from outside: {} has its \
                 busy poll, and not its application",
                spinning.join(", ")
            ));
        }
        notes
    }
}
