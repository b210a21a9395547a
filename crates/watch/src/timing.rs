//! How long requests take within this host, sampled so that it is cheap: the kernel's programs
//! ([`latency`]) at work for a moment at a time, and away in between.
//!
//! Timed are the answers on the ports on which anybody serves in this network namespace, whoever it is. Up
//! to so many of them a second as [`Often`] says all are; where there are more, for [`ON`] at a time and then not
//! until its turn is over, by a thread of its own, which sleeps in between. Counts go on across ports that come and go.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use napkin_kernel::count::CountError;
use napkin_kernel::count::latency::{Options, Parts, Probe, Reading};
use napkin_kernel::listening;
use napkin_os::signals::Signals;

/// How long requests are timed at a time where there are more.
const ON: Duration = Duration::from_millis(50);
/// How often the rate is looked at while all are timed.
const LOOK: Duration = Duration::from_secs(1);
/// How often it is looked whether others serve now.
const PORTS: Duration = Duration::from_secs(5);

/// How often requests are timed where there are too many to time all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Often {
    /// Once a second, for who looks on.
    Second,
    /// Once in five seconds, for who asks every ten or more.
    FiveSeconds,
}

impl Often {
    /// So many requests a second are all timed, and how long a turn is where there are more.
    ///
    /// A request that is timed takes a few thousand instructions more, 1 us on a fast machine and 4 on a slow
    /// one: of what runs all day a server is to feel less than a hundredth. Who looks on wants percentiles of
    /// each second, which take a thousand of them.
    fn turns(self) -> (f64, Duration) {
        match self {
            Often::Second => (10_000.0, Duration::from_secs(1)),
            Often::FiveSeconds => (2_000.0, Duration::from_secs(5)),
        }
    }

    /// How long they are not timed after [`ON`], at so many a second.
    fn off(self, per_second: f64) -> Duration {
        let (all, turn) = self.turns();
        if per_second > all { turn - ON } else { Duration::ZERO }
    }
}

/// A measurement that goes on until it is dropped.
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
    /// The programs, and the ports that they look at.
    probe: Probe,
    ports: BTreeSet<u16>,
    /// The inode of the network namespace whose sockets they look at.
    netns: u32,
    /// What earlier programs have counted, by instance.
    past: BTreeMap<u32, Parts>,
    /// The instances that were asked for last.
    napi_ids: Vec<u32>,
    /// Those of them whose frames are handed to other CPUs.
    handed_over: Vec<u32>,
    /// Why it does not go on as it should.
    failure: Option<String>,
    ended: bool,
}

impl Timing {
    /// Begins to time, in the calling thread's network namespace, which has this inode.
    ///
    /// # Errors
    /// If a right is missing, or this kernel lacks what it takes.
    pub(crate) fn start(often: Often, netns: u32) -> Result<Timing, CountError> {
        let ports = listening::ports().unwrap_or_default();
        let state = State {
            probe: start(&ports, netns)?,
            ports,
            netns,
            past: BTreeMap::new(),
            napi_ids: Vec::new(),
            handed_over: Vec::new(),
            failure: None,
            ended: false,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), ends: Condvar::new() });
        let theirs = shared.clone();
        let blocked = Signals::block_all();
        // It inherits the namespace, in which it looks for ports.
        let thread = std::thread::Builder::new().name("timing".into());
        let thread = thread.spawn(move || theirs.take_turns(often));
        drop(blocked);
        let thread = thread.map_err(|error| CountError::Absent(format!("a thread: {error}")))?;
        Ok(Timing { shared, thread: Some(thread) })
    }

    /// What was timed of these instances' requests since the start, by id. Of the instances `handed_over` frames
    /// are handed to other CPUs.
    pub(crate) fn read(
        &self,
        napi_ids: &[u32],
        handed_over: &[u32],
        notes: &mut Vec<String>,
    ) -> BTreeMap<u32, Parts> {
        let mut state = self.shared.state();
        state.napi_ids = napi_ids.to_vec();
        state.handed_over = handed_over.to_vec();
        if let Err(error) = state.probe.handed_over(handed_over) {
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
            // One that panicked has been told of on standard error.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits, unless it is at its end.
    fn wait<'a>(&self, state: MutexGuard<'a, State>, time: Duration) -> MutexGuard<'a, State> {
        let waited = self.ends.wait_timeout_while(state, time, |state| !state.ended);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn take_turns(&self, often: Often) {
        let mut state = self.state();
        let (mut looked, mut on) = (Instant::now(), ON);
        // The programs could not be brought back.
        let mut away = false;
        // As of the last look at the ports.
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
                // Those that are away are not paused again, and are tried again before long.
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

    /// Of each instance that was asked for.
    fn counts(&self) -> Result<Reading, CountError> {
        let mut reading = self.probe.read(&self.napi_ids)?;
        // What came through no instance of these.
        reading.instances.remove(&0);
        for (id, past) in &self.past {
            if let Some(parts) = reading.instances.get_mut(id) {
                parts.add(past);
            }
        }
        Ok(reading)
    }

    /// Looks at other ports, if there are others, by new programs; whether it does.
    fn follow_ports(&mut self) -> Result<bool, CountError> {
        let ports = listening::ports().map_err(|error| CountError::Absent(error.to_string()))?;
        if ports == self.ports {
            return Ok(false);
        }
        let mut probe = start(&ports, self.netns)?;
        probe.handed_over(&self.handed_over)?;
        self.past = self.counts()?.instances;
        (self.probe, self.ports) = (probe, ports);
        Ok(true)
    }
}

fn start(ports: &BTreeSet<u16>, netns: u32) -> Result<Probe, CountError> {
    // Without any, port 0 stands for nobody.
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
