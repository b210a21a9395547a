//! Options common to the runs of all workloads, and the assignment of CPUs.

use std::time::Duration;

use napkin_os::sched::{CpuList, SchedError, usable_cpus};
use napkin_policy::{NamedPolicy, Time};

use crate::error::BenchError;

/// Upper limit of the repetitions of each policy under each load.
pub const MOST_REPETITIONS: usize = 10_000;

/// Default number of repetitions of each policy under each load. The range of six covers the median with 97 %, that
/// of three with 75 %.
pub const REPETITIONS: usize = 6;

/// Upper limit of the queues of the device under test on the engine.
pub const MOST_QUEUES: u16 = 64;

/// Upper limit of the window of one run.
const LONGEST_WINDOW: Duration = Duration::from_secs(3_600);

/// Options common to the runs of all workloads.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// The policies to compare.
    pub policies: Vec<NamedPolicy>,
    /// Repetitions of each policy under each load.
    pub repetitions: usize,
    /// The measured part of one run.
    pub window: Duration,
    /// The part before the window that is not measured.
    pub warm_up: Duration,
    /// The seed of all randomness.
    pub seed: u64,
    /// The operating system's CPUs to use; the first one serves the queue. If empty, all usable CPUs.
    pub cpus: Vec<usize>,
    /// Queues of the device under test, for workloads that support several. Each has its own CPU, as long as there
    /// are CPUs besides the client's.
    pub queues: u16,
    /// Whether to show progress on standard error.
    pub progress: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            policies: Vec::new(),
            repetitions: REPETITIONS,
            window: Duration::from_millis(500),
            warm_up: Duration::from_millis(200),
            seed: 1,
            cpus: Vec::new(),
            queues: 1,
            progress: true,
        }
    }
}

impl Options {
    /// Refuses invalid options before anything runs.
    ///
    /// # Errors
    /// [`BenchError::Usage`] for the first problem.
    pub fn check(&self) -> Result<(), BenchError> {
        if self.policies.is_empty() || self.repetitions == 0 || self.window.is_zero() {
            return Err(BenchError::Usage(
                "nothing to run: give at least one policy, one repetition and a window".into(),
            ));
        }
        if self.repetitions > MOST_REPETITIONS || self.window > LONGEST_WINDOW {
            return Err(BenchError::Usage(format!(
                "give at most {MOST_REPETITIONS} repetitions, and a window of at most 1h, not {} and {}",
                self.repetitions,
                Time(u64::try_from(self.window.as_nanos()).unwrap_or(u64::MAX))
            )));
        }
        if !(1..=MOST_QUEUES).contains(&self.queues) {
            return Err(BenchError::Usage(format!(
                "give 1 to {MOST_QUEUES} queues on the engine, not {}",
                self.queues
            )));
        }
        NamedPolicy::distinct(&self.policies).map_err(BenchError::Usage)?;
        let usable = usable_cpus();
        if let Some(cpu) = self.cpus.iter().find(|cpu| !usable.contains(cpu)) {
            let refused = SchedError::Cpu { cpu: *cpu, usable: CpuList(usable).to_string() };
            return Err(BenchError::Usage(refused.to_string()));
        }
        Ok(())
    }

    /// Returns the CPU of the queue, and those of the application or client and of its poller, distinct if
    /// possible.
    pub fn placement(&self) -> Placement {
        let usable = usable_cpus();
        let cpus = if self.cpus.is_empty() { &usable } else { &self.cpus };
        // The CPUs with the highest numbers are the least likely to take the host's own interrupts.
        let (queue, other, poller) = match (cpus.as_slice(), self.cpus.is_empty()) {
            ([], _) => (0, 0, 0),
            ([one], _) => (*one, *one, *one),
            ([.., poller, other, queue], true) => (*queue, *other, *poller),
            ([.., other, queue], true) => (*queue, *other, *queue),
            ([queue, other, poller, ..], false) => (*queue, *other, *poller),
            ([queue, other, ..], false) => (*queue, *other, *queue),
        };
        Placement { queue, other, poller }
    }

    /// Returns the CPUs that serve the queues: the first queue's CPU, then one for each further queue while there
    /// are CPUs besides the client's. They are taken in the given order, or from the highest number down.
    pub fn serving(&self) -> Vec<usize> {
        let Placement { queue, other, .. } = self.placement();
        let given = match self.cpus.is_empty() {
            true => usable_cpus().into_iter().rev().collect(),
            false => self.cpus.clone(),
        };
        let more = given.into_iter().filter(|cpu| ![queue, other].contains(cpu));
        std::iter::once(queue).chain(more).take(self.queues.into()).collect()
    }
}

/// The role of each CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// The CPU of the queue: of its interrupts, softirqs and threads.
    pub queue: usize,
    /// The CPU of the application or the client.
    pub other: usize,
    /// The CPU of an application thread that only polls; the queue's CPU if there is no third one.
    pub poller: usize,
}

impl Placement {
    /// Whether the queue and the application share one CPU.
    pub fn shared(self) -> bool {
        self.queue == self.other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_queue_has_a_cpu_while_there_are_any_beside_the_client_s() {
        let serving = |cpus: &[usize], queues| {
            Options { cpus: cpus.to_vec(), queues, ..Options::default() }.serving()
        };
        assert_eq!(serving(&[5, 3], 1), [5]);
        assert_eq!(serving(&[5, 3], 4), [5], "they share it");
        assert_eq!(serving(&[5, 3, 9, 1], 2), [5, 9]);
        assert_eq!(serving(&[5, 3, 9, 1], 4), [5, 9, 1]);
        assert_eq!(serving(&[5], 2), [5]);
        let usable = Options { queues: MOST_QUEUES, ..Options::default() }.serving();
        let placement = Options::default().placement();
        assert!(placement.shared() || !usable.contains(&placement.other), "{usable:?}");
    }

    #[test]
    fn no_queue_and_too_many_are_refused() {
        let policies = NamedPolicy::all([napkin_policy::Policy::BASE]);
        for queues in [0, MOST_QUEUES + 1] {
            let options = Options { queues, policies: policies.clone(), ..Options::default() };
            let error = options.check().unwrap_err().to_string();
            assert!(error.contains("1 to 64 queues"), "{error}");
        }
    }
}
