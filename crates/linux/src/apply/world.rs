//! How the kernel is read and written here, so that a test can put another in its place.

use std::collections::BTreeMap;

use super::error::WorldError;
use super::place::{Instance, Place, Value};
use crate::device::{Device, Napi};
use crate::kernel::Kernel;
use crate::rights::Right;

/// Which device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target<'a> {
    /// By its name.
    Name(&'a str),
    /// By its number, which stays when it is renamed.
    Index(u32),
}

/// A device as it was found, with the value of every place that it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The device.
    pub device: Device,
    /// What each place is set to.
    pub values: BTreeMap<Place, Value>,
    /// The CPUs that are on.
    pub cpus: Vec<usize>,
}

impl Snapshot {
    /// An instance that was found.
    pub fn napi(&self, instance: &Instance) -> Option<&Napi> {
        let all = Instance::all(&self.device);
        all.into_iter().find(|(other, _)| other == instance).map(|(_, napi)| napi)
    }
}

/// The kernel.
pub trait World {
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
    fn look(&mut self, target: Target<'_>) -> Result<Snapshot, WorldError>;

    /// What a place is set to now; `None` if it is not there (any more).
    ///
    /// # Errors
    /// If the kernel does not answer.
    fn read(&mut self, at: &Snapshot, place: &Place) -> Result<Option<Value>, WorldError>;

    /// Sets a place.
    ///
    /// # Errors
    /// If it is gone, or the kernel refuses; then it is as it was.
    fn write(&mut self, at: &Snapshot, place: &Place, value: &Value) -> Result<(), WorldError>;

    /// The CPUs of a kernel thread that nobody has placed.
    fn new_thread_cpus(&self) -> Vec<usize>;
}

impl<W: World> World for &mut W {
    fn kernel(&self) -> &Kernel {
        (**self).kernel()
    }

    fn may_change(&self) -> Result<(), Right> {
        (**self).may_change()
    }

    fn look(&mut self, target: Target<'_>) -> Result<Snapshot, WorldError> {
        (**self).look(target)
    }

    fn read(&mut self, at: &Snapshot, place: &Place) -> Result<Option<Value>, WorldError> {
        (**self).read(at, place)
    }

    fn write(&mut self, at: &Snapshot, place: &Place, value: &Value) -> Result<(), WorldError> {
        (**self).write(at, place, value)
    }

    fn new_thread_cpus(&self) -> Vec<usize> {
        (**self).new_thread_cpus()
    }
}
