//! How the kernel is read and written here, so that a test can put another in its place.

use std::collections::BTreeMap;

use super::error::BackendError;
use crate::place::{Instance, Place, Spot, ThreadId, Value};
use napkin_kernel::device::{Device, Napi};
use napkin_kernel::probe::Kernel;
use napkin_os::rights::Right;

/// Where a device is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target<'a> {
    /// By its name.
    Name(&'a str),
    /// By its number, which stays when it is renamed.
    Index(u32),
}

/// Where a device is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Whereabouts {
    /// In this network namespace, with this number.
    Here(u32),
    /// In a namespace that is not this thread's.
    Elsewhere {
        /// As it is called there.
        ifname: String,
        /// A file that stands for that namespace.
        namespace: String,
    },
    /// Nowhere: it was deleted.
    Gone,
    /// Not here, and not all other namespaces may be looked into.
    Unknown,
}

/// A device as it was found, with the value of every place that it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The device as it was found: name, index, inode, driver.
    pub device: Device,
    /// What each place is set to.
    pub values: BTreeMap<Place, Value>,
    /// The CPUs that are on.
    pub cpus: Vec<usize>,
    /// What tells the device from every other one of this boot: the inode of its directory in sysfs.
    /// `None` where sysfs does not show this namespace.
    pub identity: Option<u64>,
    /// The place of each instance in the device's list, by what it polls.
    instances: BTreeMap<Instance, usize>,
    /// What each instance polls, by its id.
    by_id: BTreeMap<u32, Instance>,
}

impl Snapshot {
    /// A device as it is, with the values of its places.
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

    /// An instance that was found.
    pub fn napi(&self, instance: &Instance) -> Option<&Napi> {
        self.device.napis.get(*self.instances.get(instance)?)
    }

    /// What the instance of this id polls.
    pub fn by_id(&self, id: u32) -> Option<&Instance> {
        self.by_id.get(&id)
    }

    /// A place with its instance's id.
    pub fn spot(&self, place: &Place) -> Spot {
        let napi = place.instance().and_then(|instance| self.napi(instance));
        Spot { place: place.clone(), napi_id: napi.map(|napi| napi.id) }
    }
}

/// What `apply` and `restore` ask of a kernel; tests put a modelled one in its place.
pub trait Backend {
    /// What it can do.
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

    /// The number in this namespace of the device of this identity, if it is here.
    ///
    /// # Errors
    /// If the kernel does not answer.
    fn here(&mut self, identity: u64) -> Result<Option<u32>, BackendError>;

    /// Where the device of this identity is, be it here or in another namespace.
    ///
    /// # Errors
    /// If the kernel does not answer.
    fn whereabouts(&mut self, identity: u64) -> Result<Whereabouts, BackendError>;

    /// What a place is set to now; `None` if it is not there (any more).
    ///
    /// # Errors
    /// If the kernel does not answer.
    fn read(&mut self, at: &Snapshot, place: &Place) -> Result<Option<Value>, BackendError>;

    /// Sets a place.
    ///
    /// # Errors
    /// If it is gone, or the kernel refuses; then it is as it was.
    fn write(&mut self, at: &Snapshot, place: &Place, value: &Value) -> Result<(), BackendError>;

    /// Sets a place to what it was before. A thread gets those of its CPUs that are on, where
    /// [`Backend::write`] gives it all or none.
    ///
    /// # Errors
    /// As there.
    fn put_back(
        &mut self,
        at: &Snapshot,
        place: &Place,
        value: &Value,
    ) -> Result<(), BackendError> {
        self.write(at, place, value)
    }

    /// The thread of an instance, while the instance is polled by it.
    ///
    /// # Errors
    /// If the kernel does not answer.
    fn thread(
        &mut self,
        at: &Snapshot,
        instance: &Instance,
    ) -> Result<Option<ThreadId>, BackendError>;

    /// What a place of a thread's is set to; `None` if the thread has ended. An instance that is no
    /// longer polled by it may keep it for the next time.
    fn read_thread(&mut self, thread: ThreadId, place: &Place) -> Option<Value>;

    /// Sets a place of a thread's to what it was before, as [`Backend::put_back`].
    ///
    /// # Errors
    /// If it has ended, or the kernel refuses.
    fn write_thread(
        &mut self,
        thread: ThreadId,
        place: &Place,
        value: &Value,
    ) -> Result<(), BackendError>;

    /// The CPUs of a kernel thread that nobody has placed.
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
