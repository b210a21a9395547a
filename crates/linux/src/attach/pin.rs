//! Pins waiting threads to the CPU where their packets are polled.
//!
//! A thread that waits on an epoll context whose sockets all receive from one NAPI instance, or in a receive
//! on one socket, is pinned to the CPU where that instance is polled. A thread that another program has moved
//! meanwhile is left alone. So is one that waits in another way (`poll`, `select`, io_uring): that is
//! reported if it leaves no thread to pin.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::attached::{Attached, MAX_CHANGES, MAX_DESCRIPTORS};
use super::event::{Event, EventKind};
use super::inherited_cpus::{Pins, lineage};
use crate::process_change::{Recorder, What};
use napkin_kernel::process::{Descriptor, Kind, ProcessError, socket, socket::is_internet};
use napkin_os::procfs::thread::ticks_now;

/// Resolves the CPU on which a NAPI instance is polled.
pub trait Resolver {
    /// Returns the CPU on which an instance is polled now; `None` if that is not exactly one CPU.
    fn cpu(&mut self, napi_id: u32) -> Option<usize>;

    /// Announces a new scan for threads: unknown instances may be looked up again.
    fn next_round(&mut self) {}
}

impl<F: FnMut(u32) -> Option<usize>> Resolver for F {
    fn cpu(&mut self, napi_id: u32) -> Option<usize> {
        self(napi_id)
    }
}

/// The maximum number of members of an epoll context whose NAPI ID is read.
const MAX_MEMBERS: usize = 1_024;

/// Consecutive scans without a thread to pin before that is reported.
const SURE: u8 = 3;

impl Attached {
    /// Pins the waiting threads whose instance is polled on a known CPU.
    pub(super) fn pin(
        &mut self,
        cpu_of: &mut dyn Resolver,
        pins: &mut Pins,
        recorder: &mut dyn Recorder,
        events: &mut Vec<Event>,
    ) {
        self.unpinned = match self.pin_waiting(cpu_of, pins, recorder, events) {
            Ok(()) => false,
            // A process that has ended is removed by the next scan, and has no running threads.
            Err(error) if error.is_gone() => {
                self.ran = None;
                false
            }
            Err(error) => {
                self.failed_once(error.to_string(), events);
                true
            }
        };
    }

    fn pin_waiting(
        &mut self,
        cpu_of: &mut dyn Resolver,
        pins: &mut Pins,
        recorder: &mut dyn Recorder,
        events: &mut Vec<Event>,
    ) -> Result<(), ProcessError> {
        self.forget_ended()?;
        let waits = self.process.waits(1, Duration::ZERO)?;
        let ran = |tid: &i32| self.ran.as_ref().is_none_or(|ran| ran.contains(tid));
        self.ran = Some(waits.running.iter().copied().filter(ran).collect());
        if waits.seen.is_empty() && waits.receives.is_empty() {
            // The kernel does not report what a running thread waits for.
            self.nothing_to_pin = match waits.running.is_empty() {
                true => self.nothing_to_pin.saturating_add(1),
                false => 0,
            };
            // The threads may be doing something else for a moment.
            if self.nothing_to_pin >= SURE {
                let why = "no thread to pin: none waits by epoll, or in a receive on a socket";
                self.failed_once(why.into(), events);
            }
            return Ok(());
        }
        self.nothing_to_pin = 0;
        let found = self.process.descriptors(MAX_DESCRIPTORS)?;
        let by_inode: BTreeMap<u64, _> = found
            .sockets()
            .filter_map(|descriptor| match descriptor.kind {
                Kind::Socket(inode) => Some((inode, descriptor)),
                _ => None,
            })
            .collect();
        let mut ids_of: BTreeMap<i32, Option<BTreeSet<u32>>> = BTreeMap::new();
        for (wait, _) in &waits.seen {
            let Some(epoll) = found.epolls().find(|epoll| epoll.fd == wait.epfd) else { continue };
            if let std::collections::btree_map::Entry::Vacant(entry) = ids_of.entry(wait.epfd) {
                let members = self.process.members(&epoll, MAX_MEMBERS)?.list;
                let inodes = members.iter().filter_map(|member| member.inode);
                let sockets = inodes.filter_map(|inode| by_inode.get(&inode).copied());
                entry.insert(self.napi_ids(sockets)?);
            }
            let Some(ids) = &ids_of[&wait.epfd] else { continue };
            let from = format!("the sockets of its epoll {}", wait.epfd);
            self.move_to((wait.tid, ids, &from), cpu_of, pins, recorder, events)?;
        }
        for receive in &waits.receives {
            let socket = found.sockets().filter(|socket| socket.fd == receive.fd);
            let Some(ids) = self.napi_ids(socket)? else { continue };
            let of = (receive.tid, &ids, "its socket");
            self.move_to(of, cpu_of, pins, recorder, events)?;
        }
        Ok(())
    }

    /// Forgets the changes of threads that have ended: a server may start new ones without end.
    fn forget_ended(&mut self) -> Result<(), ProcessError> {
        let threads: BTreeSet<i32> = self.process.threads()?.into_iter().collect();
        // A list that may be truncated does not prove that a missing thread has ended.
        if threads.len() < MAX_CHANGES {
            self.changes.retain(|_, change| match change.what {
                What::Affinity { tid, .. } => threads.contains(&tid),
                _ => true,
            });
        }
        Ok(())
    }

    /// The NAPI instances from which these internet sockets last received; `None` if there is no such socket.
    fn napi_ids(
        &self,
        sockets: impl Iterator<Item = Descriptor>,
    ) -> Result<Option<BTreeSet<u32>>, ProcessError> {
        let mut ids = None;
        for socket in sockets {
            let Some(taken) = self.process.take(&socket)? else { continue };
            // Other sockets never receive through NAPI.
            if !is_internet(&taken) {
                continue;
            }
            let ids = ids.get_or_insert_with(BTreeSet::new);
            ids.extend(socket::napi_id(&taken).ok().flatten());
        }
        Ok(ids)
    }

    /// Pins a thread that waits for what these instances deliver; `from` describes the sockets in messages.
    fn move_to(
        &mut self,
        (tid, ids, from): (i32, &BTreeSet<u32>, &str),
        cpu_of: &mut dyn Resolver,
        pins: &mut Pins,
        recorder: &mut dyn Recorder,
        events: &mut Vec<Event>,
    ) -> Result<(), ProcessError> {
        let Some(&napi_id) = ids.first() else {
            // Reported once for a process: a server may start a thread for each connection.
            let why = format!("nothing has come to {from} through a NAPI instance so far");
            if self.first_report("no NAPI instance".into()) {
                events.push(self.event(EventKind::NotPinned { tid, why }));
            }
            return Ok(());
        };
        if ids.len() > 1 {
            let why = format!("{from} receive from {} NAPI instances", ids.len());
            self.not_pinned(tid, why, events);
            return Ok(());
        }
        let Some(cpu) = cpu_of.cpu(napi_id) else {
            let why = format!("no CPU of its own is known for NAPI {napi_id}");
            self.not_pinned(tid, why, events);
            return Ok(());
        };
        let new = vec![cpu];
        let Some(thread_start_time) = self.process.thread_start_time(tid)? else { return Ok(()) };
        let Ok(now) = napkin_os::sched::affinity(Some(tid)) else { return Ok(()) };
        if now == new {
            return Ok(());
        }
        let with = |old, since| {
            let new = new.clone();
            What::Affinity { tid, thread_start_time, old, new, since }
        };
        let place = with(vec![], None).place();
        let old = match self.changes.get(&place).map(|change| &change.what) {
            Some(What::Affinity { new, .. }) if *new != now => {
                self.not_pinned(tid, "it was moved by another program".into(), events);
                return Ok(());
            }
            Some(What::Affinity { old, .. }) => old.clone(),
            _ => match pins.before(&lineage(&self.process), thread_start_time, &now) {
                // Inherited from a pinned thread.
                Some(before) => before.to_vec(),
                None => napkin_os::sched::cpus_to_restore(tid).unwrap_or(now),
            },
        };
        let what = with(old, Some(ticks_now()));
        self.record(what.clone(), recorder)?;
        match napkin_os::sched::pin(Some(tid), &new) {
            Ok(()) => {
                pins.add((self.process.pid(), self.process.start_time()), &what);
                let cpus = new;
                events.push(self.event(EventKind::Pinned { tid, napi_id, cpus }));
            }
            Err(error) => {
                let error = self.process.sched_refused(error);
                if error.is_gone() {
                    return self.process.alive().then_some(()).ok_or(error);
                }
                self.not_pinned(tid, error.to_string(), events);
            }
        }
        Ok(())
    }
}
