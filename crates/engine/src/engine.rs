//! The engine: started from devices and CPUs, changed while it runs, stopped at any time.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use napkin_core::{Counts, CpuCounts, CpuId, Disable, Enable, Id, check};
use napkin_nic::PacketQueue;
use napkin_policy::{CpuPolicy, InstancePolicy};
use napkin_stack::Stack;

use crate::activity::{Activity, Role};
use crate::assembly;
use crate::change::{self, NapiChange};
use crate::config::{Contexts, EngineConfig, EngineError};
use crate::contexts;
use crate::cpu::EngineCpu;
use crate::drive;
use crate::napi_info::NapiInfo;
use crate::napi_threads::{self, NapiThreads, SpawnContext, ThreadTid};
use crate::port::Port;
use crate::refusals::Refusals;
use crate::shared::Shared;
use crate::thread::{join, spawn};
use crate::waiter::Waiters;
use napkin_os::sched::Placement;

/// A running engine. Dropping it stops it.
#[derive(Debug)]
pub struct Engine {
    shared: Arc<Shared>,
    waiters: Arc<Waiters>,
    contexts: Contexts,
    /// Irq threads and ksoftirqds.
    fixed: Vec<JoinHandle<()>>,
    /// Locked for the whole length of a change, and never by readers.
    changes: Mutex<NapiThreads>,
    thread_ids: Box<[ThreadTid]>,
    refusals: Refusals,
}

impl Engine {
    /// Starts an engine: its threads run and its devices are served when this returns.
    ///
    /// # Errors
    /// An invalid configuration, settings out of their limits, a CPU that does not exist, or an operating system
    /// that refuses descriptors or threads. Real-time priority that is refused is no error but a
    /// [warning](Engine::warnings).
    pub fn start(config: EngineConfig) -> Result<Engine, EngineError> {
        assembly::validate(&config)?;
        let cpus = config.cpus.iter().map(|os| EngineCpu::new(*os)).collect::<Result<Vec<_>, _>>();
        let cpus = cpus.map_err(|e| EngineError::os("a CPU's descriptors", e.into()))?;
        let parts = assembly::assemble(&config.cpus, config.devices, cpus)?;
        let shared = Arc::new(parts.shared);
        let mut engine = Engine {
            waiters: Waiters::new(Arc::clone(&shared)),
            contexts: config.contexts,
            fixed: Vec::new(),
            changes: Mutex::new(NapiThreads::new(parts.settings.len())),
            thread_ids: parts.settings.iter().map(|_| ThreadTid::default()).collect(),
            refusals: Refusals::default(),
            shared,
        };
        for index in 0..engine.shared.cpus.len() as u16 {
            let cpu = engine.shared.host.cpu(CpuId(index));
            cpu.set_policy(config.cpu_policy);
            cpu.set_limits(config.limits);
            engine.start_cpu(CpuId(index))?;
        }
        for (id, settings) in engine.shared.host.ids().zip(parts.settings) {
            engine.apply(id, &settings)?;
            if let Ok(enable) = Enable::new(&engine.shared.host, id) {
                drive::control(&engine.shared, enable);
            }
        }
        Ok(engine)
    }

    /// The current warnings, as sentences: scheduling classes, such as real-time priority, that threads were
    /// refused.
    pub fn warnings(&self) -> Vec<String> {
        self.refusals.sentences(|_, _| true)
    }

    /// The stack of a device.
    ///
    /// # Errors
    /// If there is no such device.
    pub fn stack(&self, device: &str) -> Result<Arc<Stack>, EngineError> {
        let found = self.shared.devices.iter().find(|it| it.name == device);
        found
            .map(|device| Arc::clone(&device.stack))
            .ok_or_else(|| EngineError::NoDevice(device.to_owned()))
    }

    /// The names of the devices, in the order of their numbers (from 1).
    pub fn devices(&self) -> Vec<String> {
        self.shared.devices.iter().map(|device| device.name.clone()).collect()
    }

    /// The operating system's CPUs, in the order of the engine's numbers.
    pub fn cpus(&self) -> Vec<usize> {
        self.shared.cpus.iter().map(|cpu| cpu.os).collect()
    }

    /// Every instance, in the order of devices and queues.
    pub fn napis(&self) -> Vec<NapiInfo> {
        self.shared.host.ids().map(|id| self.info(id)).collect()
    }

    /// One instance.
    ///
    /// # Errors
    /// If there is no such instance.
    pub fn napi(&self, napi_id: u32) -> Result<NapiInfo, EngineError> {
        self.id(napi_id).map(|id| self.info(id))
    }

    /// The counts of one CPU.
    ///
    /// # Panics
    /// If the engine has no such CPU.
    pub fn cpu_counts(&self, cpu: CpuId) -> CpuCounts {
        self.shared.host.cpu(cpu).counts()
    }

    /// Resets every instance's shortest idle gap ([`Counts::idle_gap_min`]), at the start of a measured window.
    pub fn restart_idle_gaps(&self) {
        for id in self.shared.host.ids() {
            self.shared.host.instance(id).restart_idle_gap();
        }
    }

    /// Every thread that serves, or has served, traffic; those of the application from their first
    /// wait on.
    pub fn activities(&self) -> Vec<Arc<Activity>> {
        self.shared.activities().clone()
    }

    /// The number of times that a context was restarted after a panic.
    pub fn panics(&self) -> u64 {
        self.shared.panics.load(Ordering::Relaxed)
    }

    /// Changes some of an instance's settings while traffic flows (`napi-set`) and leaves the others
    /// as they are. Reading and writing are one step: two callers that change different settings
    /// both succeed. The mode is applied first, as in the kernel; a thread exists before its mode is
    /// set and has ended when a change away from it returns.
    ///
    /// Returns warnings, as sentences: settings now in force that do not have the effect they seem to have, and
    /// threads of the requested mode that did not get their scheduling class.
    ///
    /// # Errors
    /// No such instance, a value out of its limits, or a thread that cannot be started: nothing is changed then.
    pub fn change(&self, napi_id: u32, change: &NapiChange) -> Result<Vec<String>, EngineError> {
        self.change_all(&[self.id(napi_id)?], change)
    }

    /// The same for all instances of a device.
    ///
    /// # Errors
    /// As [`Engine::change`], and if there is no such device. A value out of its limits changes no instance; a
    /// thread that cannot be started leaves the instances before it changed.
    pub fn change_device(
        &self,
        device: &str,
        change: &NapiChange,
    ) -> Result<Vec<String>, EngineError> {
        self.change_all(self.napis_of(device)?, change)
    }

    fn change_all(&self, napis: &[Id], change: &NapiChange) -> Result<Vec<String>, EngineError> {
        let mut warnings: Vec<String> = Vec::new();
        let mut napi_threads = self.napi_threads();
        for id in napis {
            let before = self.shared.host.instance(*id).settings();
            let settings = change.applied(before);
            // Without a change the owner is not disturbed.
            if settings != before {
                self.apply_to(&mut napi_threads, *id, &settings)?;
            }
            if let Some(weight) = change.weight() {
                self.shared.host.set_weight(*id, weight)?;
            }
            // Instances with the same settings have the same warnings: report each once.
            for warning in change::warnings(settings).iter().map(ToString::to_string) {
                if !warnings.contains(&warning) {
                    warnings.push(warning);
                }
            }
        }
        drop(napi_threads);
        if let Some(mode) = change.threaded() {
            warnings.extend(napi_threads::refused(self.spawn_context(), napis, mode));
        }
        Ok(warnings)
    }

    fn napis_of(&self, device: &str) -> Result<&[Id], EngineError> {
        let found = self.shared.devices.iter().find(|it| it.name == device);
        let device = found.ok_or_else(|| EngineError::NoDevice(device.to_owned()))?;
        Ok(&device.napis)
    }

    /// Changes the policy of one CPU.
    ///
    /// # Panics
    /// If the engine has no such CPU.
    pub fn set_cpu_policy_of(&self, cpu: CpuId, policy: CpuPolicy) {
        self.shared.host.cpu(cpu).set_policy(policy);
    }

    /// Replaces an instance's queue: its device was re-created, or went away and came back. The instance keeps its
    /// id, its settings, its thread and its counts; frames still in the old queue are lost.
    ///
    /// # Errors
    /// No such instance, an engine that is stopping, or an interrupt that cannot be registered: the old queue stays
    /// in use then.
    pub fn replace_queue(
        &self,
        napi_id: u32,
        queue: Box<dyn PacketQueue>,
    ) -> Result<(), EngineError> {
        let id = self.id(napi_id)?;
        // One change at a time, and none after the stop.
        let napi_threads = self.napi_threads();
        if napi_threads.stopped {
            return Err(EngineError::Stopping);
        }
        let (shared, napi) = (&self.shared, self.shared.napi(id));
        let device = &shared.devices[napi.device];
        let cpu = shared.cpu(shared.host.instance(id).cpu());
        let counters = queue.counters();
        let port = assembly::port(&device.stack, queue, device.cost, napi, (id, cpu))?;
        if let Ok(disable) = Disable::new(&shared.host, id) {
            drive::control(shared, disable);
        }
        let replaced = shared.host.change_queue(id, |old| *old = port);
        debug_assert!(replaced.is_ok(), "{napi_id} was not disabled");
        napi.replace_counters(counters);
        if let Ok(enable) = Enable::new(&shared.host, id) {
            drive::control(shared, enable);
        }
        drop(napi_threads);
        Ok(())
    }

    /// Stops: every queue is masked, every thread has ended, and waiting threads of the application
    /// have returned an error, when this returns.
    pub fn stop(mut self) {
        self.shut_down();
    }

    pub(crate) fn waiters(&self) -> &Arc<Waiters> {
        &self.waiters
    }

    pub(crate) fn id(&self, napi_id: u32) -> Result<Id, EngineError> {
        let last = self.shared.napis.len() as u32;
        self.shared.instance_of(napi_id).ok_or(EngineError::NoNapi { id: napi_id, last })
    }

    fn info(&self, id: Id) -> NapiInfo {
        let napi = self.shared.napi(id);
        let instance = self.shared.host.instance(id);
        NapiInfo {
            id: Shared::napi_id(id),
            device: self.shared.devices[napi.device].name.clone(),
            ifindex: napi.device as u32 + 1,
            queue: napi.queue,
            cpu: instance.cpu().0,
            pid: self.thread_ids[usize::from(id.0)].tid(),
            gone: napi.gone(),
            settings: instance.settings(),
            weight: instance.weight(),
            suspending: instance.suspending_contexts(),
            counts: instance.counts(),
            queue_counts: napi.queue_counts(),
            line_calls: napi.port.counts.line_calls.load(Ordering::Relaxed),
        }
    }

    fn spawn_context(&self) -> SpawnContext<'_> {
        SpawnContext { shared: &self.shared, contexts: &self.contexts, refusals: &self.refusals }
    }

    fn napi_threads(&self) -> MutexGuard<'_, NapiThreads> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start_cpu(&mut self, id: CpuId) -> Result<(), EngineError> {
        let os_cpu = self.shared.cpu(id).os;
        let place = |class| Placement { cpus: vec![os_cpu], class };
        let (name, placement) = (format!("irq/{os_cpu}"), place(self.contexts.irq));
        let (_, handle, refused) =
            spawn(&self.shared, Role::Irq, name.clone(), &placement, move |shared, meter| {
                contexts::irq(shared, id, meter);
            })?;
        self.fixed.push(handle);
        self.refusals.note(Role::Irq, &name, refused);
        let (name, placement) = (format!("ksoftirqd/{os_cpu}"), place(self.contexts.ksoftirqd));
        let (_, handle, refused) = spawn(
            &self.shared,
            Role::Ksoftirqd,
            name.clone(),
            &placement,
            move |shared, meter| {
                contexts::ksoftirqd(shared, id, meter);
            },
        )?;
        self.fixed.push(handle);
        self.refusals.note(Role::Ksoftirqd, &name, refused);
        Ok(())
    }

    /// Changes settings; returns the counts from just before.
    pub(crate) fn apply(&self, id: Id, settings: &InstancePolicy) -> Result<Counts, EngineError> {
        self.apply_to(&mut self.napi_threads(), id, settings)
    }

    fn apply_to(
        &self,
        napi_threads: &mut NapiThreads,
        id: Id,
        settings: &InstancePolicy,
    ) -> Result<Counts, EngineError> {
        check(settings)?;
        if napi_threads.stopped {
            return Err(EngineError::Stopping);
        }
        let (context, place) = (self.spawn_context(), (id, &self.thread_ids[usize::from(id.0)]));
        napi_threads.start_missing(context, place, settings.threaded)?;
        let before = self.shared.host.instance(id).counts();
        self.shared.host.set(id, settings)?;
        if !napi_threads::has_thread(settings.threaded) {
            napi_threads.end_thread(context, place);
        }
        Ok(before)
    }

    fn shut_down(&mut self) {
        let mut napi_threads = self.napi_threads();
        if std::mem::replace(&mut napi_threads.stopped, true) {
            return;
        }
        let threads = napi_threads.take_handles();
        // No change is possible from here on.
        drop(napi_threads);
        self.shared.stopping.store(true, Ordering::Release);
        self.waiters.wake();
        // Wakes every context to find anything that was left behind.
        self.shared.look_everywhere();
        for id in self.shared.host.ids() {
            if let Ok(disable) = Disable::new(&self.shared.host, id) {
                drive::control(&self.shared, disable);
            }
        }
        self.shared.ended.store(true, Ordering::Release);
        self.shared.look_everywhere();
        for handle in threads.into_iter().chain(std::mem::take(&mut self.fixed)) {
            join(handle);
        }
        for activity in self.shared.activities().iter() {
            if activity.role != Role::Application {
                activity.set_tid(0);
            }
        }
        #[cfg(debug_assertions)]
        if !std::thread::panicking() {
            self.shared.assert_at_rest();
        }
        for id in self.shared.host.ids() {
            // Everything is disabled, and stays so.
            let closed = self.shared.host.change_queue(id, Port::close);
            debug_assert!(closed.is_ok(), "instance {} was not disabled", id.0);
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shut_down();
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{Class, DeviceConfig, sched};
    use napkin_nic::Pool;
    use napkin_nic::synthetic::{Arrivals, SyntheticConfig, SyntheticQueue};
    use napkin_policy::{Policy, Threaded};
    use napkin_stack::Address;

    /// The configuration of an engine with one silent queue.
    pub(crate) fn silent() -> EngineConfig {
        let silent = SyntheticConfig { arrivals: Arrivals::Silent, ..SyntheticConfig::default() };
        let template = Box::new(|_: u32, _: u64, _: &mut [u8]| 0);
        let queue = SyntheticQueue::new(&silent, template, Pool::new(8), None).expect("sound");
        let device = DeviceConfig {
            name: "syn0".into(),
            addresses: Address::v4([2; 6], [10, 0, 0, 1], 24).into(),
            queues: vec![(Box::new(queue), 0)],
            delivery_cost: 0,
            settings: Policy::BASE.instance,
        };
        EngineConfig::new(sched::usable_cpus()[..1].to_vec(), vec![device])
    }

    /// Such an engine, with a scheduling class for its threads that does not exist.
    fn engine() -> Engine {
        let none = Placement { class: Class::Fifo(100), ..Placement::default() };
        let contexts =
            Contexts { irq: Class::Fair, napi: none.clone(), worker: none, ..Contexts::default() };
        Engine::start(EngineConfig { contexts, ..silent() }).expect("it starts")
    }

    fn mode(threaded: Threaded) -> NapiChange {
        NapiChange::default().with("threaded", threaded as u64).expect("a mode")
    }

    #[test]
    fn reading_waits_for_no_change() {
        let engine = engine();
        engine.change(1, &mode(Threaded::Enabled)).expect("a thread");
        // A change that takes for ever.
        let change = engine.napi_threads();
        let napi = engine.napi(1).expect("it is there");
        assert!(napi.pid.is_some() && !napi.gone);
        assert_eq!((engine.napis().len(), engine.warnings().len()), (1, 1));
        drop(change);
    }

    #[test]
    fn an_application_wants_its_cpu_for_as_long_as_it_does_not_sleep() {
        let engine = engine();
        let shared = Arc::clone(&engine.shared);
        let wanted = || shared.cpu(CpuId(0)).wanted();
        assert!(!wanted());
        let waiter = engine.waiters().add(CpuId(0));
        assert!(wanted());
        std::thread::scope(|scope| {
            scope.spawn(|| waiter.metered(|meter| waiter.sleep(napkin_core::NEVER, meter)));
            let sleeps = (0..10_000).any(|_| {
                std::thread::sleep(std::time::Duration::from_millis(1));
                !wanted()
            });
            waiter.wake();
            assert!(sleeps, "it sleeps, and wants its CPU");
            assert!(wanted(), "from then on, whether or not it runs yet");
        });
        assert!(wanted());
        drop(waiter);
        assert!(!wanted());
    }

    #[test]
    fn a_class_that_a_thread_did_not_get_is_told_for_as_long_as_the_thread_lives() {
        let engine = engine();
        assert_eq!(engine.warnings(), [""; 0]);
        let warnings = engine.change(1, &mode(Threaded::Enabled)).expect("a thread");
        assert_eq!(warnings, engine.warnings());
        let [warning] = &warnings[..] else { panic!("{warnings:?}") };
        assert!(
            warning.starts_with("napi/syn0-1: real-time priority 100 was refused"),
            "{warning}"
        );
        // A change of another setting does not repeat the warning; a change of the mode does.
        let weight = NapiChange::default().with_weight(7).expect("at least 1");
        assert_eq!(engine.change(1, &weight).expect("sound"), [""; 0]);
        assert_eq!(engine.change(1, &mode(Threaded::BusyPoll)).expect("its thread"), warnings);
        assert_eq!(engine.change(1, &mode(Threaded::Disabled)).expect("no thread"), [""; 0]);
        assert_eq!(engine.warnings(), [""; 0]);
        let warnings = engine.change(1, &mode(Threaded::Workqueue)).expect("workers");
        assert!(warnings[0].starts_with("kworker/u:0: real-time"), "{warnings:?}");
    }
}
