//! The configuration of a client: the server, the load, the connections and threads.

use std::net::SocketAddr;
use std::time::Duration;

use napkin_os::sched::CpuList;

use super::disk::{self, Disk};
use super::error::ClientError;

/// Maximum number of connections of one client, a little less than the operating system's default range of
/// ephemeral ports.
const MOST_CONNECTIONS: usize = 28_000;
/// Maximum number of threads of one client.
const MOST_THREADS: usize = 256;
/// Maximum number of records of a store.
const MOST_RECORDS: usize = 10_000_000;
/// Maximum size of an echo request, in bytes.
const MOST_BYTES: u32 = 16 << 20;
/// The highest rate, in requests per second.
const HIGHEST_RATE: f64 = 1e8;

/// The load on the server.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Load {
    /// Open loop: requests follow a schedule, whatever the server does.
    Open {
        /// Requests per second, of all connections together.
        per_second: f64,
    },
    /// Closed loop: each connection sends the next request as soon as the previous one is answered.
    Closed,
}

/// What a client's thread does while nothing is due and no answer has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClientWait {
    /// Sleeps until the next request is due (timerfd) or an answer comes. It needs little CPU; its sends are late
    /// by the operating system's timer and wake-up latency. That is part of the latency, and
    /// [`ClientFigures::send_delay_ns`](super::ClientFigures::send_delay_ns) tells how much it was.
    #[default]
    Sleep,
    /// Polls without sleeping, as mutilate does. Each thread needs a CPU of its own.
    Spin,
}

/// The kind of server, and of its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RequestKind {
    /// A memcached: gets and sets of its records.
    #[default]
    Records,
    /// A memcached that is being filled: each record is set once, and then no more requests are sent. Closed loop
    /// only.
    Fill,
    /// An echo server: each request and answer has this many bytes.
    Echo(u32),
    /// A remote disk (NBD): reads, and the share of writes in [`Config::update`].
    Disk(Disk),
}

/// A client and its load.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The server's address and port.
    pub address: SocketAddr,
    /// Number of connections, distributed over the threads in turn.
    pub connections: usize,
    /// Number of threads.
    pub threads: usize,
    /// Thread `i` is pinned to the `i`-th of these CPUs, cyclically; if empty, threads are not pinned.
    pub cpus: CpuList,
    /// Open or closed loop.
    pub load: Load,
    /// Number of records of the store; each request chooses one uniformly at random.
    pub records: usize,
    /// Share of sets (or writes) among the requests, 0 to 1.
    pub update: f64,
    /// The kind of requests.
    pub asks: RequestKind,
    /// Seed of the records, the schedules and the choice of requests.
    pub seed: u64,
    /// What idle threads do.
    pub wait: ClientWait,
    /// How long a server may be silent, with requests outstanding, before it is considered dead.
    pub answer_timeout: Duration,
}

impl Config {
    /// A client of this server with mutilate's share of sets and 10 000 records: 16 connections, on one thread that
    /// sleeps, in a closed loop.
    pub fn new(address: SocketAddr) -> Config {
        Config {
            address,
            connections: 16,
            threads: 1,
            cpus: CpuList::default(),
            load: Load::Closed,
            records: 10_000,
            update: 0.03,
            asks: RequestKind::Records,
            seed: 1,
            wait: ClientWait::default(),
            answer_timeout: Duration::from_secs(10),
        }
    }

    /// The rate of the open loop; `None` for the closed loop.
    pub fn per_second(&self) -> Option<f64> {
        match self.load {
            Load::Open { per_second } => Some(per_second),
            Load::Closed => None,
        }
    }

    /// Mean time between two requests of a connection, in nanoseconds; `None` for the closed loop.
    pub(super) fn mean_gap(&self) -> Option<f64> {
        self.per_second().map(|rate| self.connections as f64 * 1e9 / rate)
    }

    /// `answer_timeout` in nanoseconds.
    pub(super) fn answer_timeout_ns(&self) -> u64 {
        u64::try_from(self.answer_timeout.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Validates the values.
    ///
    /// # Errors
    /// [`ClientError::Config`] names the invalid value.
    pub(super) fn check(&self) -> Result<(), ClientError> {
        let within = |what: &'static str, value: usize, most: usize| {
            if (1..=most).contains(&value) {
                return Ok(());
            }
            Err(ClientError::Config(format!("{what} of a client: 1 to {most}, not {value}")))
        };
        within("connections", self.connections, MOST_CONNECTIONS)?;
        within("threads", self.threads, MOST_THREADS)?;
        within("records", self.records, MOST_RECORDS)?;
        let bytes = match self.asks {
            RequestKind::Records | RequestKind::Fill => None,
            RequestKind::Echo(bytes) => Some((bytes, MOST_BYTES)),
            RequestKind::Disk(disk) => Some((disk.bytes, disk::MOST_BYTES)),
        };
        if let Some((bytes, most)) = bytes
            && !(1..=most).contains(&bytes)
        {
            return Err(ClientError::Config(format!(
                "bytes of a request: 1 to {most}, not {bytes}"
            )));
        }
        if let RequestKind::Disk(disk) = self.asks
            && disk.places() == 0
        {
            return Err(ClientError::Config(format!(
                "operations of {} bytes within {}: there is no place for one",
                disk.bytes, disk.within
            )));
        }
        if self.threads > self.connections {
            return Err(ClientError::Config(format!(
                "{} threads for {} connections: give each thread one at least",
                self.threads, self.connections
            )));
        }
        if !(0.0..=1.0).contains(&self.update) {
            return Err(ClientError::Config(format!(
                "the share of sets is from 0 to 1, not {}",
                self.update
            )));
        }
        if self.answer_timeout.is_zero() {
            return Err(ClientError::Config("an answer needs some time: not 0".to_owned()));
        }
        match self.per_second() {
            Some(_) if self.asks == RequestKind::Fill => {
                Err(ClientError::Config("a store is filled without a schedule".to_owned()))
            }
            Some(rate) if !(rate > 0.0 && rate <= HIGHEST_RATE) => Err(ClientError::Config(
                format!("requests a second: more than 0, at most {HIGHEST_RATE:e}, not {rate}"),
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_no_sense_is_named() {
        let good = Config::new(([127, 0, 0, 1], 11211).into());
        assert!(good.check().is_ok());
        let open = |per_second| Load::Open { per_second };
        let disk = |bytes| RequestKind::Disk(Disk { bytes, within: 8_191 });
        for (wrong, named) in [
            (Config { connections: 0, ..good.clone() }, "connections"),
            (Config { threads: 17, ..good.clone() }, "17 threads for 16"),
            (Config { records: 0, ..good.clone() }, "records"),
            (Config { asks: RequestKind::Echo(0), ..good.clone() }, "bytes of a request"),
            (Config { asks: disk(33 << 20), ..good.clone() }, "bytes of a request"),
            (Config { asks: disk(8_192), ..good.clone() }, "no place"),
            (Config { update: f64::NAN, ..good.clone() }, "NaN"),
            (
                Config { asks: RequestKind::Fill, load: open(1.0), ..good.clone() },
                "without a schedule",
            ),
            (Config { load: open(0.0), ..good.clone() }, "requests a second"),
            (Config { load: open(f64::INFINITY), ..good.clone() }, "inf"),
            (Config { answer_timeout: Duration::ZERO, ..good }, "not 0"),
        ] {
            let message = wrong.check().expect_err(named).to_string();
            assert!(message.contains(named), "{message}");
        }
    }
}
