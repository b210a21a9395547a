//! The state that all contexts of one engine share.
//!
//! What the contexts do with it is in `contexts` and `drive`; what a change locks for its whole length is in
//! `napi_threads`. The locks here are held for a few instructions, and none is on a packet's path.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use napkin_core::{CpuId, Host, Id, Ns};
use napkin_nic::{QueueCounters, QueueCounts};
use napkin_stack::Stack;

use crate::activity::{Activity, Meter, Role};
use crate::cpu::EngineCpu;
use crate::parker::Parker;
use crate::port::{Port, PortShares};
use crate::slack::Slack;
use crate::spin::Spin;
use crate::workers::Workers;
use napkin_os::clock;
use napkin_os::sched::{self, Class};

/// One instance's place in its device, and where its thread sleeps.
#[derive(Debug)]
pub(crate) struct Napi {
    pub(crate) device: usize,
    pub(crate) queue: usize,
    device_counts: Mutex<DeviceCounts>,
    pub(crate) port: PortShares,
    pub(crate) slack: Slack,
    pub(crate) parker: Parker,
    /// Whether its thread is to end once the mode is no longer the thread's.
    pub(crate) leaving: AtomicBool,
}

/// The counters of the instance's queues: of the current one, and the sum of those before it.
#[derive(Debug)]
struct DeviceCounts {
    present: Arc<QueueCounters>,
    before: QueueCounts,
}

impl Napi {
    pub(crate) fn new(device: usize, queue: usize, counters: Arc<QueueCounters>) -> Napi {
        let before = QueueCounts::default();
        Napi {
            device,
            queue,
            device_counts: Mutex::new(DeviceCounts { present: counters, before }),
            port: PortShares::default(),
            slack: Slack::default(),
            parker: Parker::default(),
            leaving: AtomicBool::new(false),
        }
    }

    fn device_counts(&self) -> MutexGuard<'_, DeviceCounts> {
        self.device_counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the device of the current queue has gone for good.
    pub(crate) fn gone(&self) -> bool {
        self.device_counts().present.gone()
    }

    /// The device's counts, over all of the instance's queues.
    pub(crate) fn queue_counts(&self) -> QueueCounts {
        let counts = self.device_counts();
        let mut sum = counts.before;
        sum.add(&counts.present.read());
        sum
    }

    /// Switches to the counters of another queue.
    pub(crate) fn replace_counters(&self, counters: Arc<QueueCounters>) {
        let mut counts = self.device_counts();
        let last = counts.present.read();
        counts.before.add(&last);
        counts.present = counters;
    }
}

/// The state that all contexts share.
pub(crate) struct Shared {
    pub(crate) host: Host<Port>,
    pub(crate) cpus: Box<[EngineCpu]>,
    pub(crate) napis: Box<[Napi]>,
    pub(crate) devices: Box<[Device]>,
    pub(crate) workers: Workers,
    /// The CPUs that the thread which started the engine could use, for threads whose placement names none.
    pub(crate) usable: Vec<usize>,
    /// The class of that thread if it is fair, batch or idle, otherwise fair; for threads that are to be fair.
    pub(crate) class: Class,
    pub(crate) stopping: AtomicBool,
    /// Whether every thread, interrupt threads included, is to end in place of its next sleep.
    pub(crate) ended: AtomicBool,
    activities: Mutex<Vec<Arc<Activity>>>,
    pub(crate) panics: AtomicU64,
    #[cfg(debug_assertions)]
    pub(crate) faults: crate::fault_point::Faults,
}

#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) stack: Arc<Stack>,
    pub(crate) napis: Vec<Id>,
    /// The extra cost of delivering one frame.
    pub(crate) cost: Spin,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("devices", &self.devices).finish_non_exhaustive()
    }
}

impl Shared {
    pub(crate) fn new(
        host: Host<Port>,
        cpus: Box<[EngineCpu]>,
        napis: Box<[Napi]>,
        devices: Box<[Device]>,
    ) -> Shared {
        let workers = Workers::new(cpus.len());
        // Real-time priority goes only to threads whose placement names it.
        let fair = |class: &Class| class.is_fair() || matches!(class, Class::Batch | Class::Idle);
        Shared {
            host,
            cpus,
            napis,
            devices,
            workers,
            // If the affinity cannot be read, such threads keep the one that they inherit.
            usable: sched::affinity(None).unwrap_or_default(),
            class: sched::class(None).ok().filter(fair).unwrap_or_default(),
            stopping: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            activities: Mutex::default(),
            panics: AtomicU64::new(0),
            #[cfg(debug_assertions)]
            faults: crate::fault_point::Faults::default(),
        }
    }

    #[inline]
    pub(crate) fn cpu(&self, cpu: CpuId) -> &EngineCpu {
        &self.cpus[usize::from(cpu.0)]
    }

    #[inline]
    pub(crate) fn napi(&self, id: Id) -> &Napi {
        &self.napis[usize::from(id.0)]
    }

    /// Creates the account of a thread, and registers it.
    pub(crate) fn register(&self, role: Role, name: String) -> Arc<Activity> {
        let activity = Activity::new(role, name);
        self.add_activity(&activity);
        activity
    }

    /// Sets the timer for an instance's deadline, which has been stored.
    pub(crate) fn arm(&self, id: Id, at: Ns) {
        let at = self.napi(id).slack.armed(at);
        self.cpu(self.host.instance(id).cpu()).timer.bring_forward(at);
    }

    /// Registers a thread's account, and drops those of threads that have ended.
    pub(crate) fn add_activity(&self, activity: &Arc<Activity>) {
        let mut activities = self.activities();
        // The account of a thread that has ended stays only while a reader holds it.
        activities.retain(|it| it.tid() != 0 || Arc::strong_count(it) > 1);
        activities.push(Arc::clone(activity));
    }

    pub(crate) fn activities(&self) -> MutexGuard<'_, Vec<Arc<Activity>>> {
        self.activities.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A meter for steps that are not accounted to any thread.
    pub(crate) fn anonymous_meter(&self) -> Meter {
        thread_local! {
            static UNACCOUNTED: Arc<Activity> = Activity::new(Role::Application, String::new());
        }
        Meter::new(UNACCOUNTED.with(Arc::clone), clock::now())
    }

    /// Wakes every context if the calling thread unwinds past the returned guard. The guard is made before the pass
    /// and so dropped after it: what the pass held has been left to a softirq by then.
    pub(crate) fn on_unwind(&self) -> impl Drop + '_ {
        OnUnwind(self)
    }

    /// Wakes every context, to find what a context that unwound has left behind.
    pub(crate) fn look_everywhere(&self) {
        for cpu in &self.cpus {
            cpu.kick();
            cpu.ksoftirqd.unpark();
        }
        for napi in &self.napis {
            napi.parker.unpark();
        }
        for worker in &self.workers.parkers {
            worker.unpark();
        }
    }

    /// Checks after the stop that nothing is owned (invariant 4), and that every frame that was taken from a device
    /// is accounted for exactly once (8). (A wait of the application that found events just before may suspend an
    /// instance just after: that has no effect, and ends with its context.)
    #[cfg(debug_assertions)]
    pub(crate) fn assert_at_rest(&self) {
        for device in &self.devices {
            let taken = |id: &Id| {
                let state = self.host.instance(*id).state();
                assert!(state.disabled(), "invariant 4: instance {} is left in {state:?}", id.0);
                self.napi(*id).port.watched.at_rest(*id)
            };
            let taken: u64 = device.napis.iter().map(taken).sum();
            let counters = device.stack.counters();
            let (frames, accounted) = (counters.frames, counters.accounted());
            assert_eq!((taken, taken), (frames, accounted), "invariant 8: {}", device.name);
        }
    }

    /// The NAPI id that an application sees: the core's index, counted from 1, because 0 means none.
    pub(crate) const fn napi_id(id: Id) -> u32 {
        id.0 as u32 + 1
    }

    /// The instance of that id, if there is one.
    pub(crate) fn instance_of(&self, napi_id: u32) -> Option<Id> {
        let index = napi_id.checked_sub(1)?;
        ((index as usize) < self.napis.len()).then_some(Id(index as u16))
    }
}

struct OnUnwind<'a>(&'a Shared);

impl Drop for OnUnwind<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.look_everywhere();
        }
    }
}
