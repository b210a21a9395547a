//! `tcp-rr` (2020) on the engine: an echo service over a thousand connections, each with one outstanding request.
//!
//! The document's hosts have seven CPUs per queue and one thread of the program per CPU, and nothing is pinned.
//! Here a queue, the thread that polls it and seven of the program's threads share one CPU, so that they compete as
//! they do there. Where a thread would have migrated to another CPU, it waits here.

use std::time::Duration;

use napkin_client::{Config, Load, RequestKind};
use napkin_policy::NamedPolicy;
use napkin_service::EchoStream;
use serde_json::{Map, Value, json};

use crate::embedded::{self, OVERHEAD};
use crate::error::BenchError;
use crate::live::{Live, Trial};
use crate::machine::scenario::{field, size};
use crate::options::Options;
use crate::os_server;
use crate::server::Subject;
use crate::server::{Server, Servers};
use napkin_measure::report::{Column, Measurement, column};

/// Threads of the program per queue: the document's host has 56 CPUs, hence 56 threads, and 8 queues. A single
/// thread would leave the scheduler no choice.
pub const THREADS_PER_QUEUE: usize = 7;

/// tcp-rr on the engine, or on a server beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TcpRr {
    /// Bytes of a request and of its response, each a load.
    pub bytes: Vec<u32>,
    /// Connections, each with one request at a time.
    pub flows: usize,
    /// Threads of the program; `None` for [`THREADS_PER_QUEUE`] per queue.
    pub threads: Option<usize>,
    /// The servers, and the engine's wire.
    pub servers: Servers,
}

impl Default for TcpRr {
    fn default() -> Self {
        TcpRr { bytes: vec![1], flows: 1_000, threads: None, servers: Servers::default() }
    }
}

impl TcpRr {
    /// Parses loads in the machine world's syntax.
    ///
    /// # Errors
    /// A load that is not a size.
    pub(super) fn read(loads: &[String]) -> Result<Vec<u32>, BenchError> {
        let read = |text: &String| size(text, super::SIZE);
        let bytes: Result<_, _> = loads.iter().map(read).collect();
        bytes.map_err(|error| BenchError::Usage(error.to_string()))
    }
}

impl Live for TcpRr {
    fn name(&self) -> &'static str {
        "tcp-rr"
    }

    fn loads(&self) -> usize {
        self.bytes.len()
    }

    fn load(&self, index: usize) -> Map<String, Value> {
        field("bytes", self.bytes[index])
    }

    fn settings(&self) -> Value {
        let wire = self.servers.wire.to_string();
        json!({ "flows": self.flows, "threads": self.threads, "wire": wire })
    }

    fn run(&self, index: usize, trial: Trial<'_>) -> Result<Measurement, BenchError> {
        let client = embedded::client(self.flows, Load::Closed, trial.options, trial.seed);
        let config = Config { asks: RequestKind::Echo(self.bytes[index]), records: 1, ..client };
        let threads = self.threads.unwrap_or(THREADS_PER_QUEUE * usize::from(trial.options.queues));
        let services = vec![EchoStream; threads];
        let (mut figures, _) = match trial.server {
            Some(Server::Kernel) => os_server::run(trial, services, &config)?,
            _ => embedded::run(trial, services, &config, &self.servers.wire)?,
        };
        figures.extra.insert("flows".to_owned(), self.flows.into());
        figures.extra.insert("threads".to_owned(), threads.into());
        Ok(figures)
    }

    fn subjects(&self, policies: &[NamedPolicy]) -> Vec<Subject> {
        self.servers.subjects(policies)
    }

    fn overhead(&self) -> Duration {
        OVERHEAD
    }

    fn columns(&self) -> Vec<&'static Column> {
        let own = [
            column::BYTES,
            column::POLICY,
            column::ACHIEVED,
            column::P50,
            column::P95,
            column::P99,
            column::P999,
        ];
        embedded::columns(&own, &self.servers.wire)
    }

    fn notes(&self, options: &Options) -> Vec<String> {
        embedded::notes(options, &self.servers)
    }
}
