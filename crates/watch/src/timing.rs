//! Times requests within this host at a limited cost: the kernel's programs ([`latency`]) are attached for a
//! short time, and detached in between.
//!
//! Answers on all listening ports of this network namespace are timed, whichever process serves them. Up to the rate
//! given by [`Often`] all requests are timed. At higher rates they are timed for [`ON`], and then not until the turn
//! is over, by a separate thread that sleeps in between. Counts are kept when ports come and go.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use napkin_kernel::count::CountError;
use napkin_kernel::count::latency::{Options, Parts, Probe, Reading};
use napkin_kernel::listening;
use napkin_os::signals::Signals;

/// The time for which requests are timed in a turn at higher rates.
const ON: Duration = Duration::from_millis(50);
/// The interval at which the rate is checked while all requests are timed.
const LOOK: Duration = Duration::from_secs(1);
/// The interval at which listening ports are checked.
const PORTS: Duration = Duration::from_secs(5);

/// How often requests are timed if there are too many to time all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Often {
    /// Once a second, for a live view.
    Second,
    /// Once in five seconds, for readers that sample every ten seconds or more.
    FiveSeconds,
}

impl Often {
    /// Returns the rate per second up to which all requests are timed, and the length of a turn at higher rates.
    ///
    /// Timing a request takes a few thousand instructions more, 1 us on a fast machine and 4 us on a slow
    /// one: a tool that runs all day should cost a server less than a hundredth. A live view needs
    /// percentiles of each second, which take a thousand requests.
    fn turns(self) -> (f64, Duration) {
        match self {
            Often::Second => (10_000.0, Duration::from_secs(1)),
            Often::FiveSeconds => (2_000.0, Duration::from_secs(5)),
        }
    }

    /// How long requests are not timed after [`ON`], at this rate.
    fn off(self, per_second: f64) -> Duration {
        let (all, turn) = self.turns();
        if per_second > all { turn - ON } else { Duration::ZERO }
    }
}

/// A measurement that runs until it is dropped.
#[derive(Debug)]
pub(crate) struct Timing {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    ends: Condvar,
}

#[derive(Debug)]
struct State {
    /// The attached programs, for these ports.
    probe: Probe,
    ports: BTreeSet<u16>,
    /// The inode of the network namespace whose sockets are timed.
    netns: u32,
    /// Counts of earlier programs, by instance.
    past: BTreeMap<u32, Parts>,
    /// The instances of the last read.
    napi_ids: Vec<u32>,
    /// Those of them whose frames are handed to other CPUs (RPS).
    steered: Vec<u32>,
    /// Why timing fails at present.
    failure: Option<String>,
    ended: bool,
}

impl Timing {
    /// Starts to time requests in the calling thread's network namespace, whose inode is `netns`.
    ///
    /// # Errors
    /// If a privilege is missing, or this kernel lacks what timing needs.
    pub(crate) fn start(often: Often, netns: u32) -> Result<Timing, CountError> {
        let ports = listening::ports().unwrap_or_default();
        let state = State {
            probe: start(&ports, netns)?,
            ports,
            netns,
            past: BTreeMap::new(),
            napi_ids: Vec::new(),
            steered: Vec::new(),
            failure: None,
            ended: false,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), ends: Condvar::new() });
        let thread_shared = shared.clone();
        let blocked = Signals::block_all();
        // The thread inherits the namespace in which it looks for ports.
        let thread = std::thread::Builder::new().name("timing".into());
        let thread = thread.spawn(move || thread_shared.take_turns(often));
        drop(blocked);
        let thread = thread.map_err(|error| CountError::Absent(format!("a thread: {error}")))?;
        Ok(Timing { shared, thread: Some(thread) })
    }

    /// Returns the times of these instances' requests since the start, by NAPI ID. `steered` lists
    /// instances whose frames are handed to other CPUs (RPS).
    pub(crate) fn read(
        &self,
        napi_ids: &[u32],
        steered: &[u32],
        notes: &mut Vec<String>,
    ) -> BTreeMap<u32, Parts> {
        let mut state = self.shared.state();
        state.napi_ids = napi_ids.to_vec();
        state.steered = steered.to_vec();
        if let Err(error) = state.probe.set_steered(steered) {
            notes.push(format!("times in the ring are too short under RPS: {error}"));
        }
        notes.extend(state.probe.notes().iter().cloned());
        notes.extend(state.failure.clone());
        if state.ports.len() > Options::MOST {
            let (all, most) = (state.ports.len(), Options::MOST);
            notes.push(format!("requests are timed on the lowest {most} of {all} ports"));
        }
        match state.counts() {
            Ok(Reading { instances, sharing, .. }) => {
                if sharing > 0 {
                    let count = if sharing == 1 {
                        "1 instance shares a place with another: its".to_owned()
                    } else {
                        format!("{sharing} instances share a place with others: their")
                    };
                    notes.push(format!("{count} requests' times are not told apart"));
                }
                instances
            }
            Err(error) => {
                notes.push(format!("times of requests are not known: {error}"));
                BTreeMap::new()
            }
        }
    }
}

impl Drop for Timing {
    fn drop(&mut self) {
        self.shared.state().ended = true;
        self.shared.ends.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic was already printed to standard error.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for `time`, or until the end.
    fn wait<'a>(&self, state: MutexGuard<'a, State>, time: Duration) -> MutexGuard<'a, State> {
        let waited = self.ends.wait_timeout_while(state, time, |state| !state.ended);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn take_turns(&self, often: Often) {
        let mut state = self.state();
        let (mut looked, mut on) = (Instant::now(), ON);
        // Whether the programs are detached, and could not be attached again.
        let mut away = false;
        // The result of the last check of the ports.
        let mut ports = Ok(());
        while !state.ended {
            let (began, before) = (Instant::now(), state.sends());
            state = self.wait(state, on);
            let rate = state.sends().saturating_sub(before) as f64 / began.elapsed().as_secs_f64();
            let off = often.off(rate);
            on = if off.is_zero() { LOOK } else { ON };
            let turn = if state.ended || off.is_zero() && !away {
                Ok(())
            } else {
                // Detached programs are not paused again, and attaching is retried soon.
                let paused = if away { Ok(()) } else { state.probe.pause() };
                state = self.wait(state, if away { LOOK } else { off });
                let back = state.probe.resume();
                away = back.is_err();
                back.and(paused)
            };
            if looked.elapsed() >= PORTS {
                looked = Instant::now();
                let followed = state.follow_ports();
                away &= !matches!(followed, Ok(true));
                ports = followed.map(drop);
            }
            let failed = turn.as_ref().err().or(ports.as_ref().err());
            state.failure = failed.map(|error| format!("requests are not timed: {error}"));
        }
    }
}

impl State {
    fn sends(&self) -> u64 {
        self.probe.read(&[]).map_or(0, |reading| reading.sends)
    }

    /// The counts of the instances of the last read.
    fn counts(&self) -> Result<Reading, CountError> {
        let mut reading = self.probe.read(&self.napi_ids)?;
        // Requests that came through none of these instances.
        reading.instances.remove(&0);
        for (id, past) in &self.past {
            if let Some(parts) = reading.instances.get_mut(id) {
                parts.add(past);
            }
        }
        Ok(reading)
    }

    /// Attaches new programs if the listening ports have changed; returns whether they have.
    fn follow_ports(&mut self) -> Result<bool, CountError> {
        let ports = listening::ports().map_err(|error| CountError::Absent(error.to_string()))?;
        if ports == self.ports {
            return Ok(false);
        }
        let mut probe = start(&ports, self.netns)?;
        probe.set_steered(&self.steered)?;
        self.past = self.counts()?.instances;
        (self.probe, self.ports) = (probe, ports);
        Ok(true)
    }
}

fn start(ports: &BTreeSet<u16>, netns: u32) -> Result<Probe, CountError> {
    // Without a listening port, port 0 matches no request.
    let none = [0].into_iter().filter(|_| ports.is_empty());
    let ports = ports.iter().copied().chain(none).take(Options::MOST).collect();
    Probe::start(&Options { processes: Vec::new(), ports, namespace: Some(netns), one_in: 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_are_timed_for_a_moment_in_each_turn_and_few_always() {
        let at = |often: Often, rate: f64| often.off(rate).as_millis();
        assert_eq!([0.0, 1_000.0, 10_000.0].map(|rate| at(Often::Second, rate)), [0; 3]);
        assert_eq!([1_000.0, 2_000.0].map(|rate| at(Often::FiveSeconds, rate)), [0; 2]);
        assert_eq!(at(Often::FiveSeconds, 10_000.0), 4_950, "a slow host's saturated server");
        assert_eq!([Often::Second, Often::FiveSeconds].map(|it| at(it, 40_000.0)), [950, 4_950]);
    }
}
