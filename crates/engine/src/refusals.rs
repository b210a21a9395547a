//! Scheduling classes that threads were to have and were refused.
//!
//! A refusal is no error: the thread serves traffic all the same, and the operator is warned. There is one entry
//! per running thread, removed when the thread ends, under a separate lock that is held only briefly, so that
//! readers do not wait for a change.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::activity::Role;
use napkin_os::sched::SchedError;

/// The number of threads that a sentence names; it counts the others.
const NAMED: usize = 4;

#[derive(Debug)]
struct Refusal {
    role: Role,
    thread: String,
    why: String,
}

/// The refusals of one engine's threads.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Mutex<Vec<Refusal>>);

impl Refusals {
    fn lock(&self) -> MutexGuard<'_, Vec<Refusal>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a thread's refusal, if there is one.
    pub(crate) fn note(&self, role: Role, thread: &str, refused: Option<SchedError>) {
        if let Some(refused) = refused {
            let (thread, why) = (thread.to_owned(), refused.to_string());
            self.lock().push(Refusal { role, thread, why });
        }
    }

    /// Removes the refusal of a thread that has ended.
    pub(crate) fn forget(&self, thread: &str) {
        self.lock().retain(|refusal| refusal.thread != thread);
    }

    /// One sentence per role and reason, for the threads that `asked` selects.
    pub(crate) fn sentences(&self, asked: impl Fn(Role, &str) -> bool) -> Vec<String> {
        let refusals = self.lock();
        let mut groups: Vec<(Role, &str, Vec<&str>)> = Vec::new();
        for Refusal { role, thread, why } in refusals.iter().filter(|it| asked(it.role, &it.thread))
        {
            match groups.iter_mut().find(|group| (group.0, group.1) == (*role, why.as_str())) {
                Some((.., threads)) => threads.push(thread),
                None => groups.push((*role, why, vec![thread])),
            }
        }
        groups.iter().map(|(role, why, threads)| sentence(*role, why, threads)).collect()
    }
}

fn sentence(role: Role, why: &str, threads: &[&str]) -> String {
    let mut text = threads.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
    if let more @ 1.. = threads.len().saturating_sub(NAMED) {
        text.push_str(&format!(" and {more} more"));
    }
    text.push_str(&format!(": {why}"));
    if role == Role::Irq {
        text.push_str("; interrupts do not preempt the application there");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    fn refused() -> Option<SchedError> {
        Some(SchedError::RealTime { priority: 50, source: Errno::PERM })
    }

    #[test]
    fn threads_that_were_refused_the_same_share_a_sentence() {
        let refusals = Refusals::default();
        for cpu in 0..6 {
            refusals.note(Role::Irq, &format!("irq/{cpu}"), refused());
        }
        refusals.note(Role::Napi, "napi/syn0-1", refused());
        refusals.note(Role::Napi, "napi/syn0-2", None);
        let [irq, napi] = &refusals.sentences(|_, _| true)[..] else { panic!("two kinds") };
        assert!(irq.starts_with("irq/0, irq/1, irq/2, irq/3 and 2 more: real-time"), "{irq}");
        assert!(irq.ends_with("interrupts do not preempt the application there"), "{irq}");
        assert!(napi.starts_with("napi/syn0-1: real-time priority 50 was refused"), "{napi}");
        assert_eq!(refusals.sentences(|role, _| role == Role::Worker), [""; 0]);
    }

    #[test]
    fn what_was_refused_to_a_thread_goes_with_it() {
        let refusals = Refusals::default();
        refusals.note(Role::Napi, "napi/syn0-1", refused());
        refusals.forget("napi/syn0-1");
        assert!(refusals.sentences(|_, _| true).is_empty());
    }
}
