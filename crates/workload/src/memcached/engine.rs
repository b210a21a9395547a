//! `memcached` (2024) on the engine: napkin's own memcached, and a client with mutilate's requests. For comparison,
//! the same service on the operating system's sockets, and Debian's memcached.
//!
//! One worker per queue, on the queue's CPU, as in the document. The store is filled before the client's first
//! connection.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use napkin_client::{ClientFigures, Config, Load, Records, populate};
use napkin_os::meter::ThreadMeter;
use napkin_policy::NamedPolicy;
use napkin_service::memcached::{Limits, Memcached as Service};
use napkin_service::{Served, StreamService};
use napkin_stack::Flow;
use serde_json::{Map, Value, json};

use super::program::Program;
use crate::client_results;
use crate::embedded::{self, OVERHEAD};
use crate::error::BenchError;
use crate::linux::failed;
use crate::live::{Live, Trial};
use crate::options::Options;
use crate::os_server;
use crate::server::Subject;
use crate::server::{Server, Servers};
use napkin_measure::report::{Column, Measurement, Report, column};

/// Both addresses of the pseudo-connection that fills the store.
const NO_PEER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 1);

/// memcached on the engine, or on a server beside it.
#[derive(Debug, Clone, PartialEq)]
pub struct Memcached {
    /// The loads.
    pub loads: Vec<Load>,
    /// The number of the client's connections.
    pub connections: usize,
    /// The servers, and the engine's wire.
    pub servers: Servers,
}

impl Default for Memcached {
    fn default() -> Self {
        let open = |per_second| Load::Open { per_second };
        let loads = vec![open(20_000.0), open(60_000.0), Load::Closed];
        Memcached { loads, connections: 32, servers: Servers::default() }
    }
}

/// Returns a service with all records in its store.
///
/// # Errors
/// If the store refuses a record.
fn filled(config: &Config) -> Result<Service, BenchError> {
    // The epoch does not matter, because no record expires.
    let mut service =
        Service::new(Limits::default(), 0).map_err(|error| BenchError::Usage(error.to_string()))?;
    let records = Records::new(config.records, config.seed);
    // This is not a connection of any client.
    let mut connection = service.open(Flow::new(NO_PEER, NO_PEER));
    let (mut set, mut reply) = (Vec::new(), Vec::new());
    for record in 0..records.len() {
        set.clear();
        records.put_set(record, false, &mut set);
        let served = service.serve(&mut connection, &set, &mut reply, napkin_engine::now());
        if served != Served::Request(set.len()) || !reply.is_empty() {
            let reply = String::from_utf8_lossy(&reply).into_owned();
            return Err(BenchError::Usage(format!("the store refuses a record: {reply}")));
        }
    }
    Ok(service)
}

/// Runs Debian's memcached and its client, and measures a window.
fn program(trial: Trial<'_>, config: &Config) -> Result<(Measurement, ClientFigures), BenchError> {
    let Trial { interrupt, options, .. } = trial;
    let (pair, config) = (os_server::pair(options)?, os_server::config(config));
    let cpus = options.serving();
    let start = || Program::start(&cpus, options.queues, config.connections, interrupt);
    let mut server = pair.server.run(start).map_err(failed)??;
    let filled = pair.client.run(|| {
        server.wait_until_listening(interrupt)?;
        populate(&config).map_err(BenchError::from)
    });
    filled.map_err(failed)??;
    let meter = ThreadMeter::of_process(server.id()).map_err(BenchError::Proc)?;
    let results = os_server::measure(trial, &pair, &config, meter, &[server.id()])?;
    server.check_running()?;
    Ok(results)
}

impl Live for Memcached {
    fn name(&self) -> &'static str {
        "memcached"
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

    fn settings(&self) -> Value {
        json!({ "wire": self.servers.wire.to_string() })
    }

    fn run(&self, index: usize, trial: Trial<'_>) -> Result<Measurement, BenchError> {
        let load = self.loads[index];
        let config = embedded::client(self.connections, load, trial.options, trial.seed);
        // One worker per queue, all of them on one store.
        let services = || Ok::<_, BenchError>(vec![filled(&config)?; trial.options.queues.into()]);
        let (mut figures, results) = match trial.server.unwrap_or(Server::Napkin) {
            Server::Napkin => embedded::run(trial, services()?, &config, &self.servers.wire)?,
            Server::Kernel => os_server::run(trial, services()?, &config)?,
            Server::Memcached => program(trial, &config)?,
        };
        client_results::add_store_counts(&mut figures, &results);
        client_results::add_client_results(&mut figures, &results);
        Ok(figures)
    }

    fn subjects(&self, policies: &[NamedPolicy]) -> Vec<Subject> {
        self.servers.subjects(policies)
    }

    fn conclude(&self, report: &mut Report) {
        report.rows.iter_mut().for_each(|row| row.notes.extend(client_results::client_notes(row)));
    }

    fn overhead(&self) -> Duration {
        let filled = |server| match server {
            Server::Memcached => OVERHEAD + Duration::from_secs(1),
            _ => OVERHEAD,
        };
        // The longest, because all servers run equally often, except for napkin's additional policies.
        self.servers.servers.iter().copied().map(filled).max().unwrap_or(OVERHEAD)
    }

    fn columns(&self) -> Vec<&'static Column> {
        let own = [
            column::POLICY,
            column::REQUESTS_PER_S,
            column::OFFERED,
            column::ACHIEVED,
            column::P50,
            column::P90,
            column::P95,
            column::P99,
            column::P999,
        ];
        embedded::columns(&own, &self.servers.wire)
    }

    fn notes(&self, options: &Options) -> Vec<String> {
        let mut notes = embedded::notes(options, &self.servers);
        if self.loads.contains(&Load::Closed) {
            notes.push(client_results::CLOSED_LOOP_NOTE.to_owned());
        }
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_that_will_be_asked_for_is_in_the_store() {
        let config = Config { records: 500, ..Config::new(([127, 0, 0, 1], 1).into()) };
        let mut service = filled(&config).expect("it is filled");
        let records = Records::new(500, config.seed);
        let mut connection = service.open(Flow::new(NO_PEER, NO_PEER));
        for record in 0..500 {
            let (mut get, mut reply) = (Vec::new(), Vec::new());
            records.put_get(record, &mut get);
            service.serve(&mut connection, &get, &mut reply, napkin_engine::now());
            assert!(reply.starts_with(b"VALUE "), "{}", String::from_utf8_lossy(&get));
        }
    }
}
