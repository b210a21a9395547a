//! The guard's watching thread: takes readings, ends the suspension of starving instances, and restores it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Options;
use super::event::{Event, EventKind};
use super::judge::{Judge, TICK, counted};
use super::report::{self, Message};
use crate::apply::{
    ApplyError, Backend as _, Linux, Suspension, Target, end_suspension, give_back, held_by_others,
};
use crate::attach::cpu_time;
use crate::journal::{Holder, JournalError, Store};
use napkin_kernel::count::{Counter, Key};
use napkin_kernel::netlink::Netdev;

/// The interval at which the instances and their settings are listed.
const LIST_EVERY: Duration = Duration::from_secs(1);

/// The maximum share of a CPU that readings may take, as a divisor.
const CPU_SHARE_DIVISOR: u32 = 20;

/// The time for which another napkin may hold a device's lock before that is reported.
const LOCK_PATIENCE: Duration = Duration::from_millis(500);

/// The state of the watching thread.
pub(super) struct Watch {
    options: Options,
    counter: Counter,
    netns: u32,
    backend: Linux,
    store: Store,
    netdev: Netdev,
    reports: Sender<Message>,
    judge: Judge,
    /// The instances that can be suspended, with their device and their timeout.
    watched: BTreeMap<u32, (u32, Duration)>,
    listed: Instant,
    /// The suspensions that were ended, by NAPI id.
    ended: BTreeMap<u32, Ended>,
    /// The same ids, shared with [`Guard`](super::Guard).
    pub(super) ended_ids: Arc<Mutex<BTreeSet<u32>>>,
    /// How often each instance's suspension was ended.
    times: BTreeMap<u32, u32>,
    /// Starving instances whose suspension could not be ended: since when, and whether that was reported.
    failing: BTreeMap<u32, (Instant, bool)>,
    /// Whether an instance has starved, shared with [`Guard`](super::Guard).
    pub(super) starved: Arc<AtomicBool>,
}

struct Ended {
    suspension: Suspension,
    retry_at: Option<Instant>,
}

impl Watch {
    pub(super) fn new(
        options: Options,
        counter: Counter,
        netns: u32,
        backend: Linux,
        store: Store,
        netdev: Netdev,
        reports: Sender<Message>,
    ) -> Watch {
        Watch {
            options,
            counter,
            netns,
            backend,
            store,
            netdev,
            reports,
            judge: Judge::default(),
            watched: BTreeMap::new(),
            listed: Instant::now(),
            ended: BTreeMap::new(),
            ended_ids: Arc::default(),
            times: BTreeMap::new(),
            failing: BTreeMap::new(),
            starved: Arc::default(),
        }
    }

    /// Watches until the other end of `stopped` is dropped, then restores all suspensions.
    pub(super) fn run(&mut self, stopped: &Receiver<()>) {
        let (mut last, mut before) = (Instant::now(), cpu_time());
        let mut wait = TICK;
        while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(wait) {
            let (now, used) = (Instant::now(), cpu_time());
            let step = now.saturating_duration_since(last);
            let step = counted(step, wait, used.saturating_sub(before));
            (last, before) = (now, used);
            if now.saturating_duration_since(self.listed) >= LIST_EVERY {
                self.list();
            }
            let starving = self.starving(step);
            let cost = cpu_time().saturating_sub(before);
            for (napi_id, silent) in starving {
                self.end_suspension_of(napi_id, silent);
            }
            self.try_again(now);
            wait = TICK.max(cost * CPU_SHARE_DIVISOR).min(LIST_EVERY);
        }
        self.give_all_back();
    }

    /// Lists the instances that can be suspended.
    pub(super) fn list(&mut self) {
        self.listed = Instant::now();
        // Listed again next time; the old list is still mostly valid.
        let Ok(napis) = self.netdev.napis(self.options.only) else { return };
        let present: BTreeSet<u32> = napis.iter().map(|napi| napi.id).collect();
        let suspended = napis.into_iter().filter(|napi| napi.settings.policy().suspends());
        let timeout = |ns: Option<u64>| Duration::from_nanos(ns.unwrap_or(0));
        let listed: BTreeMap<u32, (u32, Duration)> = suspended
            .map(|it| (it.id, (it.ifindex, timeout(it.settings.irq_suspend_timeout))))
            .collect();
        for (napi_id, known) in &self.watched {
            if listed.get(napi_id) != Some(known) {
                self.judge.forget(*napi_id);
            }
        }
        self.judge.keep(|napi_id| present.contains(&napi_id));
        self.times.retain(|napi_id, _| present.contains(napi_id));
        self.failing.retain(|napi_id, _| present.contains(napi_id));
        self.watched = listed;
    }

    /// Returns the devices of the watched instances that another napkin has locked, with the holder of the
    /// lock.
    pub(super) fn held_by_others(&mut self) -> Vec<(String, Holder)> {
        let devices: BTreeSet<u32> = self.watched.values().map(|(ifindex, _)| *ifindex).collect();
        held_by_others(&mut self.backend, &self.store, &devices, self.options.held)
    }

    /// Returns the starving instances, with the time for which they were not polled.
    fn starving(&mut self, step: Duration) -> Vec<(u32, Duration)> {
        let mut starving = Vec::new();
        for (napi_id, (ifindex, timeout)) in &self.watched {
            let key = Key { netns: self.netns, ifindex: *ifindex, napi_id: *napi_id };
            let Some(counts) = self.counter.of(&key) else { continue };
            let silent = self.judge.reading(*napi_id, &counts, *timeout, step);
            starving.extend(silent.map(|silent| (*napi_id, silent)));
        }
        starving
    }

    /// Ends the suspension of a starving instance, and reports it.
    fn end_suspension_of(&mut self, napi_id: u32, silent: Duration) {
        let Some((ifindex, timeout)) = self.watched.get(&napi_id).copied() else { return };
        // The timeout may have been raised since it was listed.
        let now = self.netdev.napi(napi_id).ok().and_then(|it| it.settings.irq_suspend_timeout);
        if now.is_some_and(|now| Duration::from_nanos(now) != timeout) {
            self.list();
            return;
        }
        let (backend, store, held) = (&mut self.backend, &self.store, self.options.held);
        match end_suspension(backend, store, (ifindex, napi_id), held) {
            Ok(None) => self.list(),
            Ok(Some(suspension)) => {
                // Before all else: a keeper of the device would set the timeout again.
                self.ended_ids().insert(napi_id);
                self.starved.store(true, Ordering::Relaxed);
                self.judge.forget(napi_id);
                self.failing.remove(&napi_id);
                self.watched.remove(&napi_id);
                self.record_ended(suspension, silent);
            }
            Err(error) => self.report_failure(napi_id, ifindex, &error),
        }
    }

    fn record_ended(&mut self, suspension: Suspension, silent: Duration) {
        let napi_id = suspension.napi_id;
        let times = self.times.entry(napi_id).or_default();
        let again = self.options.again.pause(*times);
        *times = times.saturating_add(1);
        self.report(Message::Ended { suspension: suspension.clone(), silent, again });
        let retry_at = again.and_then(|pause| Instant::now().checked_add(pause));
        self.ended.insert(napi_id, Ended { suspension, retry_at });
    }

    /// Reports once that an instance's suspension could not be ended. Waits a while if another napkin holds the
    /// device's lock, because that one may be ending the suspension itself.
    fn report_failure(&mut self, napi_id: u32, ifindex: u32, error: &ApplyError) {
        let locked = matches!(error, ApplyError::Journal(JournalError::Locked { .. }));
        let (since, reported) = self.failing.entry(napi_id).or_insert((Instant::now(), false));
        if *reported || (locked && since.elapsed() < LOCK_PATIENCE) {
            return;
        }
        *reported = true;
        self.starved.store(true, Ordering::Relaxed);
        let at = self.backend.look(Target::Index(ifindex)).ok();
        let subject = at.as_ref().and_then(|at| at.by_id(napi_id)).map(ToString::to_string);
        let ifname = at.map_or_else(|| format!("ifindex {ifindex}"), |at| at.device.ifname);
        let subject = subject.unwrap_or_else(|| "no queue".into());
        let kind = EventKind::Failed { why: error.to_string() };
        self.report(Message::Known(Event { ifname, subject, napi_id, kind }));
    }

    /// Restores the suspensions whose pause is over.
    fn try_again(&mut self, now: Instant) {
        let due = |ended: &Ended| ended.retry_at.is_some_and(|at| at <= now);
        let due: Vec<u32> =
            self.ended.iter().filter(|(_, it)| due(it)).map(|(napi_id, _)| *napi_id).collect();
        for napi_id in due {
            let Some(Ended { suspension, .. }) = self.ended.remove(&napi_id) else { continue };
            self.ended_ids().remove(&napi_id);
            match give_back(&mut self.backend, &self.store, &suspension, self.options.held) {
                Ok(true) => {
                    let kind = EventKind::Again { timeout: suspension.timeout };
                    self.report(Message::Known(report::event(&suspension, kind)));
                }
                // Another program has set it since, or it is gone.
                Ok(false) => {}
                Err(_) => {
                    let retry_at = now.checked_add(LIST_EVERY);
                    self.ended.insert(napi_id, Ended { suspension, retry_at });
                    self.ended_ids().insert(napi_id);
                    continue;
                }
            }
            self.list();
        }
    }

    fn give_all_back(&mut self) {
        for Ended { suspension, .. } in std::mem::take(&mut self.ended).into_values() {
            let back = give_back(&mut self.backend, &self.store, &suspension, self.options.held);
            if let Err(error) = back {
                let kind = EventKind::NotGivenBack { why: error.to_string() };
                self.report(Message::Known(report::event(&suspension, kind)));
            }
        }
    }

    fn ended_ids(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.ended_ids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn report(&self, message: Message) {
        // The reporting thread ends after this one, unless it has panicked.
        let _ = self.reports.send(message);
    }
}
