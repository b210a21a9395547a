//! The bench workloads as the machine has them: their loads, policies and published testbeds.
//!
//! A scenario itself (host, programs, client) is `napkin-machine`'s. Here is only what the command
//! line needs to run any of them: names, defaults, and the form of a load, which is one word.

use std::fmt;

use napkin_machine::load::Rate;
use napkin_machine::profile::{Profile, Takes};
use napkin_machine::scenario::{self, Outcome, Run};
use napkin_policy::text::quoted;
use napkin_policy::{MILLISECOND, Ns};
use napkin_policy::{Policy, Time};
use serde_json::{Map, Value};

use crate::rate::whole_rate;

/// A workload in this world.
pub trait Scenario: fmt::Debug + Sync {
    /// Its name on the command line.
    fn name(&self) -> &'static str;

    /// The profile of the published testbed.
    fn profile(&self) -> &'static str;

    /// The section that a profile needs for it.
    fn section(&self) -> &'static str;

    /// The policies that tell its story.
    fn policies(&self) -> Vec<Policy>;

    /// The loads of the publication, or some of them.
    fn loads(&self) -> Vec<String>;

    /// A load in the workload's own terms, for the report.
    ///
    /// # Errors
    /// A load that is none, is zero, or does not fit through the profile's link.
    fn load(&self, text: &str, profile: &Profile) -> Result<Map<String, Value>, LoadError>;

    /// Runs it under a load that [`Scenario::load`] has let through.
    ///
    /// # Errors
    /// Whatever keeps the scenario from being built, or the first invariant that did not hold.
    fn run(&self, load: &str, run: Run<'_>) -> Result<Outcome, String>;
}

/// What is wrong with a load.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// Not a load of this workload.
    #[error("a load of '{given}' is none: give {form}")]
    Form {
        /// What was given.
        given: String,
        /// What it may be.
        form: &'static str,
    },
    /// Nothing would be sent.
    #[error("a load of 0 sends nothing: give {form}")]
    Zero {
        /// What it may be.
        form: &'static str,
    },
    /// More than the link carries.
    #[error(
        "a load of {given} is beyond the wire: {frames:.0} frames of at least {bytes} bytes a second \
         need {needed}, and link.rate of '{profile}' is {rate}; give at most {most:.0}"
    )]
    BeyondWire {
        /// What was given.
        given: String,
        /// Frames a second that it means.
        frames: f64,
        /// Bytes of each on the wire.
        bytes: u32,
        /// The rate that it needs.
        needed: String,
        /// The profile.
        profile: String,
        /// The link's rate.
        rate: String,
        /// Frames a second that the link carries.
        most: f64,
    },
}

/// The form of a plain rate.
const RATE_FORM: &str = "a whole number a second above 0, as in 200000, 200k or 1M";

/// The form of a rate that may be unlimited.
const RATE_OR_MAX: &str = "requests a second above 0, as in 200000, 200k or 1M, or max";

/// Bytes that the smallest Ethernet frame takes on the wire, with preamble and gap.
const LEAST_FRAME: u32 = 84;

/// Reads a rate and holds it to the link, given the least that one of its frames takes there.
///
/// # Errors
/// A text that is no rate, a rate of zero, and one beyond `link.rate`.
pub fn per_second(text: &str, profile: &Profile, bytes: u32) -> Result<f64, LoadError> {
    rate_of(text, profile, bytes, RATE_FORM)
}

fn rate_of(
    text: &str,
    profile: &Profile,
    bytes: u32,
    form: &'static str,
) -> Result<f64, LoadError> {
    let no_load = || LoadError::Form { given: quoted(text), form };
    let rate = whole_rate(text).ok_or_else(no_load)?;
    if rate == 0 {
        return Err(LoadError::Zero { form });
    }
    let link = profile.get("link.rate");
    let most = link / 8.0 / f64::from(bytes);
    if rate as f64 > most {
        let show = |bits: f64| Takes::Rate.show(bits);
        return Err(LoadError::BeyondWire {
            given: quoted(text),
            frames: rate as f64,
            bytes,
            needed: show(rate as f64 * 8.0 * f64::from(bytes)),
            profile: profile.name().to_owned(),
            rate: show(link),
            most: most.floor(),
        });
    }
    Ok(rate as f64)
}

fn field(name: &str, value: impl Into<Value>) -> Map<String, Value> {
    Map::from_iter([(name.to_owned(), value.into())])
}

/// Whole rates are shown without a fraction.
fn whole(rate: f64) -> Value {
    Value::from(rate as u64)
}

/// 2007: a flood ping.
#[derive(Debug)]
struct FloodPing;

/// The form of a pace of pings.
const PINGS: &str = "flood, or echo requests a second above 0, as in 100 or 10k";

impl FloodPing {
    fn pace(text: &str, profile: &Profile) -> Result<Option<f64>, LoadError> {
        if text == "flood" {
            return Ok(None);
        }
        rate_of(text, profile, LEAST_FRAME, PINGS).map(Some)
    }
}

impl Scenario for FloodPing {
    fn name(&self) -> &'static str {
        "flood-ping"
    }

    fn profile(&self) -> &'static str {
        "desktop-2007"
    }

    fn section(&self) -> &'static str {
        "flood-ping"
    }

    fn policies(&self) -> Vec<Policy> {
        vec![Policy::BASE, Policy::hold(MILLISECOND)]
    }

    fn loads(&self) -> Vec<String> {
        vec!["flood".to_owned()]
    }

    fn load(&self, text: &str, profile: &Profile) -> Result<Map<String, Value>, LoadError> {
        Ok(match Self::pace(text, profile)? {
            None => field("requests_per_s", "flood"),
            Some(rate) => field("requests_per_s", whole(rate)),
        })
    }

    fn run(&self, load: &str, run: Run<'_>) -> Result<Outcome, String> {
        let pace = Self::pace(load, run.profile).map_err(|error| error.to_string())?;
        scenario::flood_ping::run(run, pace)
    }
}

/// 2018: a datagram sink under a generator that does not care.
#[derive(Debug)]
struct UdpSink;

impl Scenario for UdpSink {
    fn name(&self) -> &'static str {
        "udp-sink"
    }

    fn profile(&self) -> &'static str {
        "qemu-2018"
    }

    fn section(&self) -> &'static str {
        "udp-sink"
    }

    fn policies(&self) -> Vec<Policy> {
        vec![Policy::BASE_6_4, Policy::KSOFTIRQD_AS_POSTED, Policy::KSOFTIRQD, Policy::FEEDBACK]
    }

    fn loads(&self) -> Vec<String> {
        Vec::from(["5000", "13000", "21000", "30000", "60000"].map(str::to_owned))
    }

    fn load(&self, text: &str, profile: &Profile) -> Result<Map<String, Value>, LoadError> {
        per_second(text, profile, LEAST_FRAME).map(|rate| field("packets_per_s", whole(rate)))
    }

    fn run(&self, load: &str, run: Run<'_>) -> Result<Outcome, String> {
        let rate = per_second(load, run.profile, LEAST_FRAME).map_err(|error| error.to_string())?;
        scenario::udp_sink::run(run, rate)
    }
}

/// 2024: memcached under mutilate.
#[derive(Debug)]
struct Memcached;

impl Memcached {
    fn rate(text: &str, profile: &Profile) -> Result<Rate, LoadError> {
        if text == "max" {
            return Ok(Rate::Max);
        }
        rate_of(text, profile, LEAST_FRAME, RATE_OR_MAX).map(Rate::PerS)
    }
}

impl Scenario for Memcached {
    fn name(&self) -> &'static str {
        "memcached"
    }

    fn profile(&self) -> &'static str {
        "epyc-7662"
    }

    fn section(&self) -> &'static str {
        "memcached"
    }

    fn policies(&self) -> Vec<Policy> {
        let us = napkin_policy::MICROSECOND;
        vec![
            Policy::BASE,
            Policy::defer(20 * us),
            Policy::NAPIBUSY,
            Policy::FULLBUSY,
            Policy::suspend(20 * us),
        ]
    }

    fn loads(&self) -> Vec<String> {
        Vec::from(["200000", "600000", "1000000", "max"].map(str::to_owned))
    }

    fn load(&self, text: &str, profile: &Profile) -> Result<Map<String, Value>, LoadError> {
        Ok(match Self::rate(text, profile)? {
            Rate::Max => field("requests_per_s", "max"),
            Rate::PerS(rate) => field("requests_per_s", whole(rate)),
        })
    }

    fn run(&self, load: &str, run: Run<'_>) -> Result<Outcome, String> {
        let rate = Self::rate(load, run.profile).map_err(|error| error.to_string())?;
        let setup = scenario::memcached::Setup::of(run.profile, rate);
        scenario::memcached::run(run, setup)
    }
}

/// 2025: xsk_rr over AF_XDP.
#[derive(Debug)]
struct XskRr;

/// The form of a pace.
const PACE: &str = "frames a second, and after a colon for how long the application is busy with \
                    each, as in 12000 or 60000:2us";

/// Longest delay after a reply.
const LONGEST_DELAY: Ns = 1_000 * MILLISECOND;

impl XskRr {
    fn pace(text: &str, profile: &Profile) -> Result<scenario::xsk_rr::Pace, LoadError> {
        let (rate, delay) = text.split_once(':').unwrap_or((text, "0ns"));
        let rate = rate_of(rate, profile, LEAST_FRAME, PACE)?;
        let delay = delay.parse().ok().map(|Time(delay)| delay).filter(|it| *it <= LONGEST_DELAY);
        let delay = delay.ok_or_else(|| LoadError::Form { given: quoted(text), form: PACE })?;
        Ok(scenario::xsk_rr::Pace { period: (1e9 / rate) as Ns, delay })
    }
}

impl Scenario for XskRr {
    fn name(&self) -> &'static str {
        "xsk-rr"
    }

    fn profile(&self) -> &'static str {
        "xsk-2025"
    }

    fn section(&self) -> &'static str {
        "xsk-rr"
    }

    fn policies(&self) -> Vec<Policy> {
        vec![
            Policy::INTERRUPTS,
            Policy::BUSYPOLL,
            Policy::BUSYPOLL_SEPARATE,
            Policy::THREADED_BUSY_POLL,
        ]
    }

    fn loads(&self) -> Vec<String> {
        Vec::from(["12000", "32000:30us", "125000:6us"].map(str::to_owned))
    }

    fn load(&self, text: &str, profile: &Profile) -> Result<Map<String, Value>, LoadError> {
        let pace = Self::pace(text, profile)?;
        let rate = text.split(':').next().unwrap_or(text);
        let mut load = field("frames_per_s", whole(rate_of(rate, profile, LEAST_FRAME, PACE)?));
        load.insert("delay_ns".to_owned(), pace.delay.into());
        Ok(load)
    }

    fn run(&self, load: &str, run: Run<'_>) -> Result<Outcome, String> {
        let pace = Self::pace(load, run.profile).map_err(|error| error.to_string())?;
        scenario::xsk_rr::run(run, pace).map(|ran| ran.outcome)
    }
}

/// 2020: request and response over a thousand connections.
#[derive(Debug)]
struct TcpRr;

/// The form of a size.
const SIZE: &str = "bytes of a request and of its response, from 1 to 16M, as in 1, 5K or 1M";

/// The largest request, and the largest operation.
const LARGEST: u64 = 16 << 20;

/// Reads a size in bytes.
fn size(text: &str, form: &'static str) -> Result<u32, LoadError> {
    let number = text.trim().trim_end_matches(['B', 'b']);
    let (digits, scale) = match number.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1 << 10),
        None => number.strip_suffix('M').map_or((number, 1), |digits| (digits, 1 << 20)),
    };
    let bytes = digits.parse::<u64>().ok().and_then(|bytes| bytes.checked_mul(scale));
    match bytes {
        Some(0) => Err(LoadError::Zero { form }),
        Some(bytes) if bytes <= LARGEST => Ok(bytes as u32),
        _ => Err(LoadError::Form { given: quoted(text), form }),
    }
}

impl Scenario for TcpRr {
    fn name(&self) -> &'static str {
        "tcp-rr"
    }

    fn profile(&self) -> &'static str {
        "xeon-56"
    }

    fn section(&self) -> &'static str {
        "tcp-rr"
    }

    fn policies(&self) -> Vec<Policy> {
        vec![Policy::BASE_6_4, Policy::THREADED, Policy::WORKQUEUE]
    }

    fn loads(&self) -> Vec<String> {
        Vec::from(["1", "5K"].map(str::to_owned))
    }

    fn load(&self, text: &str, _: &Profile) -> Result<Map<String, Value>, LoadError> {
        size(text, SIZE).map(|bytes| field("bytes", bytes))
    }

    fn run(&self, load: &str, run: Run<'_>) -> Result<Outcome, String> {
        let bytes = size(load, SIZE).map_err(|error| error.to_string())?;
        scenario::tcp_rr::run(run, scenario::tcp_rr::Setup::published(bytes))
    }
}

/// 2020: remote disk operations at a fixed rate.
#[derive(Debug)]
struct Ssd;

/// The form of a load of operations.
const OPERATIONS: &str = "bytes of an operation, a colon and operations a second, as in 4K:50000";

impl Ssd {
    fn setup(text: &str, profile: &Profile) -> Result<scenario::ssd::Setup, LoadError> {
        let form = OPERATIONS;
        let none = || LoadError::Form { given: quoted(text), form };
        let (bytes, rate) = text.split_once(':').ok_or_else(none)?;
        let bytes = size(bytes, form)?;
        let rate = rate_of(rate, profile, bytes.max(LEAST_FRAME), form)?;
        Ok(scenario::ssd::Setup::published(bytes, rate))
    }
}

impl Scenario for Ssd {
    fn name(&self) -> &'static str {
        "ssd"
    }

    fn profile(&self) -> &'static str {
        "xeon-56"
    }

    fn section(&self) -> &'static str {
        "ssd"
    }

    fn policies(&self) -> Vec<Policy> {
        vec![Policy::BASE_6_4, Policy::THREADED, Policy::WORKQUEUE]
    }

    fn loads(&self) -> Vec<String> {
        Vec::from(["4K:572600", "64K:157900", "1M:10980"].map(str::to_owned))
    }

    fn load(&self, text: &str, profile: &Profile) -> Result<Map<String, Value>, LoadError> {
        let setup = Self::setup(text, profile)?;
        let mut load = field("bytes", setup.bytes);
        load.insert("operations_per_s".to_owned(), whole(setup.per_second));
        Ok(load)
    }

    fn run(&self, load: &str, run: Run<'_>) -> Result<Outcome, String> {
        let setup = Self::setup(load, run.profile).map_err(|error| error.to_string())?;
        scenario::ssd::run(run, setup)
    }
}

/// Every workload of this world.
pub const SCENARIOS: &[&dyn Scenario] = &[&FloodPing, &UdpSink, &TcpRr, &Ssd, &Memcached, &XskRr];

/// The workload of that name.
pub fn find(name: &str) -> Option<&'static dyn Scenario> {
    SCENARIOS.iter().find(|it| it.name() == name).copied()
}

#[cfg(test)]
mod tests;
