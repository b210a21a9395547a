//! The configuration of an engine; and its errors.
//!
//! Only the description: it is checked in `assembly`, and changed while the engine runs by a
//! [`NapiChange`](crate::NapiChange).

use napkin_core::{Limits, Ns, SettingError};
use napkin_nic::PacketQueue;
use napkin_policy::{CpuPolicy, InstancePolicy};
use napkin_stack::Addresses;
use thiserror::Error;

use napkin_os::sched::{Class, Placement, SchedError};

/// A device to be served.
pub struct DeviceConfig {
    /// Its name, of at most 15 bytes and unique, as thread names and the control socket show it.
    pub name: String,
    /// The addresses of the stack on it: Ethernet address, VLAN and IP addresses.
    pub addresses: Addresses,
    /// Its queues, each with the engine's CPU (an index into [`EngineConfig::cpus`]) that serves it.
    pub queues: Vec<(Box<dyn PacketQueue>, u16)>,
    /// The extra cost of delivering one frame, in nanoseconds of spinning; 0 for none.
    pub delivery_cost: Ns,
    /// The settings of each of its instances.
    pub settings: InstancePolicy,
}

impl DeviceConfig {
    /// A device with these queues, each with the engine's CPU that serves it.
    pub fn new(
        name: impl Into<String>,
        addresses: impl Into<Addresses>,
        queues: Vec<(Box<dyn PacketQueue>, u16)>,
        settings: InstancePolicy,
    ) -> Self {
        let (name, addresses) = (name.into(), addresses.into());
        DeviceConfig { name, addresses, queues, delivery_cost: 0, settings }
    }
}

impl std::fmt::Debug for DeviceConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceConfig")
            .field("name", &self.name)
            .field("queues", &self.queues.len())
            .finish_non_exhaustive()
    }
}

/// Where and in which class each kind of context runs. Interrupt threads and ksoftirqd are always pinned to their
/// CPU. A placement without CPUs means those that the thread which starts the engine may use. [`Class::Fair`] means
/// that thread's own class, where that is nice, batch or idle, and as far as the rights go: a thread that is
/// started later, by one that is nicer or idle, may lack the right to be less so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contexts {
    /// The class of `irq/<cpu>`.
    pub irq: Class,
    /// The class of `ksoftirqd/<cpu>`.
    pub ksoftirqd: Class,
    /// The instances' own threads, `napi/<dev>-<id>`.
    pub napi: Placement,
    /// The shared pool's threads, `kworker/u:<n>`.
    pub worker: Placement,
}

impl Default for Contexts {
    /// Interrupts preempt the application, as they do in a kernel (`SCHED_FIFO` 50, if this process may);
    /// everything else is fair. Threads that are unbound in the kernel run on the CPUs that the thread which starts
    /// the engine may use at that time, whichever thread starts them later.
    fn default() -> Self {
        Contexts {
            irq: Class::Fifo(50),
            ksoftirqd: Class::Fair,
            napi: Placement::default(),
            worker: Placement::default(),
        }
    }
}

/// The configuration of an engine.
#[derive(Debug)]
pub struct EngineConfig {
    /// The operating system's CPUs that serve traffic, each once. The engine numbers them from 0.
    pub cpus: Vec<usize>,
    /// The devices that the engine serves; at least one.
    pub devices: Vec<DeviceConfig>,
    /// The policy of each CPU.
    pub cpu_policy: CpuPolicy,
    /// The limits of each CPU's softirqs.
    pub limits: Limits,
    /// Where and in which class contexts run.
    pub contexts: Contexts,
}

impl EngineConfig {
    /// An engine for these devices on these CPUs, with the kernel's defaults for everything else.
    pub fn new(cpus: Vec<usize>, devices: Vec<DeviceConfig>) -> Self {
        EngineConfig {
            cpus,
            devices,
            cpu_policy: CpuPolicy::default(),
            limits: Limits::default(),
            contexts: Contexts::default(),
        }
    }
}

/// An error of starting, changing or reading an engine.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EngineError {
    /// No CPU was given.
    #[error("an engine needs at least one CPU")]
    NoCpu,
    /// No device was given, or a device has no queue.
    #[error("an engine needs at least one device, and each device at least one queue")]
    NoQueue,
    /// More instances than there are ids.
    #[error("{queues} queues would be as many NAPI instances, and an engine has at most {most}")]
    TooManyQueues {
        /// How many were given.
        queues: usize,
        /// How many are allowed.
        most: usize,
    },
    /// A CPU was given twice; it has one interrupt thread and one softirq context.
    #[error("CPU {0} is given twice")]
    CpuTwice(usize),
    /// Two devices have one name, by which devices are found.
    #[error("two devices are called {0}: give each its own name")]
    DeviceTwice(String),
    /// A queue on a CPU that the engine does not have.
    #[error("queue {queue} of {device} is on CPU {cpu}, but the engine has {cpus}: give 0 to {}", cpus - 1)]
    QueueCpu {
        /// The device's name.
        device: String,
        /// The queue's index among those of its direction, from 0.
        queue: usize,
        /// The CPU it names.
        cpu: u16,
        /// The number of the engine's CPUs.
        cpus: usize,
    },
    /// A name that is no interface name, and would not fit a thread's name.
    #[error("device name {0:?} is no interface name: give 1 to 15 bytes without '/' and blanks")]
    DeviceName(String),
    /// A requested placement that could not be had.
    #[error(transparent)]
    Placement(#[from] SchedError),
    /// A value out of its limits.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The operating system refused a descriptor or a thread.
    #[error("{what}: {source}")]
    Os {
        /// What was requested of the operating system.
        what: &'static str,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// No such instance.
    #[error("no NAPI instance has id {id}: give one of 1 to {last} (see dev-get, napi-get)")]
    NoNapi {
        /// The requested id.
        id: u32,
        /// The last id that exists.
        last: u32,
    },
    /// No such device.
    #[error("no device {0:?}: see dev-get")]
    NoDevice(String),
    /// The engine is stopping.
    #[error("the engine is stopping")]
    Stopping,
}

impl EngineError {
    /// An error of the operating system.
    pub(crate) fn os(what: &'static str, source: std::io::Error) -> EngineError {
        EngineError::Os { what, source }
    }
}
