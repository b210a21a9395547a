//! `ssd` (2020) on the engine: napkin's NBD server, and a client that reads and writes at a fixed rate.
//!
//! The disk is memory, filled beforehand. Each request takes a flash device's time, drawn as in the machine.
//! Requests are due at random times (Poisson), half of them reads, each on a random connection. If the connection
//! still waits for an answer, the request waits, and its latency includes that wait; the machine's client sends it
//! at once.

use std::sync::Arc;
use std::time::Duration;

use napkin_client::{Config, Disk, Load as Rate, RequestKind};
use napkin_machine::profile::Profile;
use napkin_service::Nbd;
use napkin_service::nbd::{Action, BlockStore, MemoryStore, Operation, TCP_LIMITS};
use serde_json::{Map, Value, json};

use super::OPERATIONS;
use super::device::Device;
use super::flash::Flash;
use crate::client_results;
use crate::embedded::{self, OVERHEAD, Threads};
use crate::error::BenchError;
use crate::live::{Live, Trial};
use crate::machine::Scenario;
use crate::machine::scenario::{field, size, whole};
use crate::options::Options;
use crate::rate::whole_rate;
use crate::server::{Servers, Wire};
use napkin_measure::report::{Column, Measurement, Report, column};

/// Size of the disk in bytes.
const EXPORT: u64 = 64 << 20;

/// Operations of one size, at a rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// Bytes per operation.
    pub bytes: u32,
    /// Operations per second.
    pub per_second: f64,
}

impl Load {
    /// Parses a load in the machine world's syntax: `4K:10000`.
    ///
    /// # Errors
    /// [`BenchError::Usage`] with the expected form.
    pub fn read(text: &str) -> Result<Load, BenchError> {
        let refused =
            || BenchError::Usage(format!("'{text}' is no load of ssd: give {OPERATIONS}"));
        let (bytes, rate) = text.split_once(':').ok_or_else(refused)?;
        let bytes =
            size(bytes, OPERATIONS).map_err(|error| BenchError::Usage(error.to_string()))?;
        let rate = whole_rate(rate).filter(|rate| *rate > 0).ok_or_else(refused)?;
        Ok(Load { bytes, per_second: rate as f64 })
    }
}

/// ssd on the engine.
#[derive(Debug, Clone, PartialEq)]
pub struct Ssd {
    /// The loads.
    pub loads: Vec<Load>,
    /// The number of the client's connections.
    pub connections: usize,
    /// The wire between client and engine.
    pub wire: Wire,
}

/// Returns a disk of which every byte was written.
fn filled() -> Result<MemoryStore, BenchError> {
    let mut memory =
        MemoryStore::new(EXPORT).map_err(|error| BenchError::Usage(error.to_string()))?;
    let piece = 1u64 << 20;
    for offset in (0..EXPORT).step_by(piece as usize) {
        let action = Action::Write(vec![b'.'; piece as usize]);
        // An operation in memory finishes at once and cannot fail.
        memory.begin(Operation { tag: 0, offset, action });
    }
    Ok(memory)
}

impl Live for Ssd {
    fn name(&self) -> &'static str {
        "ssd"
    }

    fn loads(&self) -> usize {
        self.loads.len()
    }

    fn load(&self, index: usize) -> Map<String, Value> {
        let Load { bytes, per_second } = self.loads[index];
        let mut load = field("bytes", bytes);
        load.insert("operations_per_s".to_owned(), whole(per_second));
        load
    }

    fn settings(&self) -> Value {
        json!({ "connections": self.connections, "wire": self.wire.to_string() })
    }

    fn run(&self, index: usize, trial: Trial<'_>) -> Result<Measurement, BenchError> {
        let Load { bytes, per_second } = self.loads[index];
        let named = Profile::named(crate::schema(), super::machine::Ssd.profile());
        let profile = named.map_err(|error| BenchError::Usage(error.to_string()))?;
        let device = Device::new(&profile, bytes);
        let memory = filled()?;
        let mut threads = Threads { services: Vec::new(), limits: TCP_LIMITS, timers: Vec::new() };
        for queue in 0..trial.options.queues {
            let seed = trial.seed.wrapping_add(u64::from(queue) << 32);
            let store = Flash::new(memory.clone(), device, bytes, seed);
            let store = store.map_err(|errno| BenchError::Proc(errno.into()))?;
            threads.timers.push(Arc::clone(store.timer()));
            let service = Nbd::new("ssd", false, store);
            threads.services.push(service.map_err(|it| BenchError::Usage(it.to_string()))?);
        }
        let rate = Rate::Open { per_second };
        let client = embedded::client(self.connections, rate, trial.options, trial.seed);
        let asks = RequestKind::Disk(Disk { bytes, within: EXPORT });
        let config = Config { asks, update: 0.5, records: 1, ..client };
        let (mut figures, results) = embedded::run(trial, threads, &config, &self.wire)?;
        client_results::add_client_results(&mut figures, &results);
        let mut put = |name: &str, value: Value| figures.extra.insert(name.to_owned(), value);
        put("connections", self.connections.into());
        put("reads", results.gets.into());
        put("writes", results.sets.into());
        Ok(figures)
    }

    fn conclude(&self, report: &mut Report) {
        report.rows.iter_mut().for_each(|row| row.notes.extend(client_results::client_notes(row)));
    }

    fn overhead(&self) -> Duration {
        OVERHEAD
    }

    fn columns(&self) -> Vec<&'static Column> {
        let own = [
            column::BYTES,
            column::OPERATIONS_PER_S,
            column::POLICY,
            column::ACHIEVED,
            column::P50,
            column::P95,
            column::P99,
            column::P999,
        ];
        embedded::columns(&own, &self.wire)
    }

    fn notes(&self, options: &Options) -> Vec<String> {
        let mut notes =
            embedded::notes(options, &Servers { wire: self.wire.clone(), ..Servers::default() });
        notes.push(
            "the disk is memory that answers after a flash device's time, drawn as in the machine; on top \
             comes by what this host's timers are late"
                .to_owned(),
        );
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_bytes_and_a_rate_and_anything_else_is_told_so() {
        let read = |text| Load::read(text).map_err(|error| error.to_string());
        assert_eq!(read("64K:2800"), Ok(Load { bytes: 65_536, per_second: 2_800.0 }));
        assert_eq!(read("1M:1k"), Ok(Load { bytes: 1 << 20, per_second: 1_000.0 }));
        for wrong in ["4K", "4K:", "4K:0", "4K:max", ":5", "0:5", "64M:5"] {
            let error = read(wrong).unwrap_err();
            assert!(error.contains("4K:50000"), "{wrong}: {error}");
        }
    }
}
