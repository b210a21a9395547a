//! The interface to the kernel, which tests implement with a model.

use std::collections::BTreeMap;

use super::error::BackendError;
use crate::place::{Instance, Place, Spot, ThreadId, Value};
use napkin_kernel::device::{Device, Napi};
use napkin_kernel::probe::Kernel;
use napkin_os::rights::Right;

/// How a device is identified for a lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target<'a> {
    /// By its name.
    Name(&'a str),
    /// By its interface index, which stays when it is renamed.
    Index(u32),
}

/// The location of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Whereabouts {
    /// In this network namespace, with this interface index.
    Here(u32),
    /// In another network namespace.
    Elsewhere {
        /// Its name there.
        ifname: String,
        /// A file that refers to that namespace.
        namespace: String,
    },
    /// Nowhere: it was deleted.
    Gone,
    /// Not here, and not all other namespaces could be searched.
    Unknown,
}

/// A device at one moment, with the values of all its places.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The device: index, name, driver, instances.
    pub device: Device,
    /// The value of each place.
    pub values: BTreeMap<Place, Value>,
    /// The CPUs that are online.
    pub cpus: Vec<usize>,
    /// The identity of the device, unique for this boot: the inode of its directory in sysfs. `None` where
    /// sysfs does not show this namespace.
    pub identity: Option<u64>,
    /// The position of each instance in the device's list.
    instances: BTreeMap<Instance, usize>,
    /// The identity of each instance, by its NAPI id.
    by_id: BTreeMap<u32, Instance>,
}

impl Snapshot {
    /// Builds a snapshot, and indexes its instances.
    pub fn new(
        device: Device,
        values: BTreeMap<Place, Value>,
        cpus: Vec<usize>,
        identity: Option<u64>,
    ) -> Snapshot {
        let all = Instance::all(&device).into_iter().enumerate();
        let instances: BTreeMap<Instance, usize> =
            all.map(|(at, (instance, _))| (instance, at)).collect();
        let by_id = instances.iter().map(|(it, at)| (device.napis[*at].id, it.clone())).collect();
        Snapshot { device, values, cpus, identity, instances, by_id }
    }

    /// Returns an instance by the queues that it polls.
    pub fn napi(&self, instance: &Instance) -> Option<&Napi> {
        self.device.napis.get(*self.instances.get(instance)?)
    }

    /// Returns the identity of the instance with this NAPI id.
    pub fn by_id(&self, id: u32) -> Option<&Instance> {
        self.by_id.get(&id)
    }

    /// Returns a place with its instance's NAPI id.
    pub fn spot(&self, place: &Place) -> Spot {
        let napi = place.instance().and_then(|instance| self.napi(instance));
        Spot { place: place.clone(), napi_id: napi.map(|napi| napi.id) }
    }
}

/// The kernel operations of `apply` and `restore`; tests implement them with a model.
pub trait Backend {
    /// The probed capabilities of the kernel.
    fn kernel(&self) -> &Kernel;

    /// Whether this process may change devices.
    ///
    /// # Errors
    /// The right that is missing.
    fn may_change(&self) -> Result<(), Right>;

    /// Looks at a device.
    ///
    /// # Errors
    /// If there is none, or the kernel does not answer.
    fn look(&mut self, target: Target<'_>) -> Result<Snapshot, BackendError>;

    /// Returns the interface index of the device with this identity, if it is in this namespace.
    ///
    /// # Errors
    /// If the kernel does not answer.
    fn here(&mut self, identity: u64) -> Result<Option<u32>, BackendError>;

    /// Returns the location of the device with this identity, in this or another namespace.
    ///
    /// # Errors
    /// If the kernel does not answer.
    fn whereabouts(&mut self, identity: u64) -> Result<Whereabouts, BackendError>;

    /// Returns the current value of a place; `None` if it does not exist (any more).
    ///
    /// # Errors
    /// If the kernel does not answer.
    fn read(&mut self, at: &Snapshot, place: &Place) -> Result<Option<Value>, BackendError>;

    /// Sets a place.
    ///
    /// # Errors
    /// If it is gone, or the kernel refuses; then its value is unchanged.
    fn write(&mut self, at: &Snapshot, place: &Place, value: &Value) -> Result<(), BackendError>;

    /// Sets a place to its previous value. A thread gets those of its CPUs that are online, whereas
    /// [`Backend::write`] gives it all or fails.
    ///
    /// # Errors
    /// As [`Backend::write`].
    fn put_back(
        &mut self,
        at: &Snapshot,
        place: &Place,
        value: &Value,
    ) -> Result<(), BackendError> {
        self.write(at, place, value)
    }

    /// Returns the thread of an instance, while it polls the instance.
    ///
    /// # Errors
    /// If the kernel does not answer.
    fn thread(
        &mut self,
        at: &Snapshot,
        instance: &Instance,
    ) -> Result<Option<ThreadId>, BackendError>;

    /// Returns the value of a place of a thread; `None` if the thread has ended. An instance that its thread no
    /// longer polls may keep the thread for later.
    fn read_thread(&mut self, thread: ThreadId, place: &Place) -> Option<Value>;

    /// Sets a place of a thread to its previous value, as [`Backend::put_back`].
    ///
    /// # Errors
    /// If it has ended, or the kernel refuses.
    fn write_thread(
        &mut self,
        thread: ThreadId,
        place: &Place,
        value: &Value,
    ) -> Result<(), BackendError>;

    /// Returns the CPUs of a new kernel thread, on which no affinity was set.
    fn new_thread_cpus(&self) -> Vec<usize>;
}

impl<W: Backend> Backend for &mut W {
    fn kernel(&self) -> &Kernel {
        (**self).kernel()
    }

    fn may_change(&self) -> Result<(), Right> {
        (**self).may_change()
    }

    fn look(&mut self, target: Target<'_>) -> Result<Snapshot, BackendError> {
        (**self).look(target)
    }

    fn here(&mut self, identity: u64) -> Result<Option<u32>, BackendError> {
        (**self).here(identity)
    }

    fn whereabouts(&mut self, identity: u64) -> Result<Whereabouts, BackendError> {
        (**self).whereabouts(identity)
    }

    fn read(&mut self, at: &Snapshot, place: &Place) -> Result<Option<Value>, BackendError> {
        (**self).read(at, place)
    }

    fn write(&mut self, at: &Snapshot, place: &Place, value: &Value) -> Result<(), BackendError> {
        (**self).write(at, place, value)
    }

    fn put_back(
        &mut self,
        at: &Snapshot,
        place: &Place,
        value: &Value,
    ) -> Result<(), BackendError> {
        (**self).put_back(at, place, value)
    }

    fn thread(
        &mut self,
        at: &Snapshot,
        instance: &Instance,
    ) -> Result<Option<ThreadId>, BackendError> {
        (**self).thread(at, instance)
    }

    fn read_thread(&mut self, thread: ThreadId, place: &Place) -> Option<Value> {
        (**self).read_thread(thread, place)
    }

    fn write_thread(
        &mut self,
        thread: ThreadId,
        place: &Place,
        value: &Value,
    ) -> Result<(), BackendError> {
        (**self).write_thread(thread, place, value)
    }

    fn new_thread_cpus(&self) -> Vec<usize> {
        (**self).new_thread_cpus()
    }
}
