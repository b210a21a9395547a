//! A fake kernel for tests: devices whose places can be set, without any effect.

use std::collections::BTreeMap;

use napkin_os::sched::{Class, still_available};

use super::backend::{Backend, Snapshot, Target, Whereabouts};
use super::error::BackendError;
use crate::place::{COMPARED, Instance, Place, ThreadId, Value};
use crate::support::tests::linux;
use napkin_kernel::device::{Device, DeviceError, Napi};
use napkin_kernel::probe::{Interface, Kernel};
use napkin_kernel::settings::{Setting, Settings};
use napkin_os::rights::Right;

/// The number of CPUs.
pub(super) const CPUS: usize = 4;

/// Something that another program or the kernel does meanwhile.
pub(super) type Interference = fn(&mut Fake);

#[derive(Debug)]
pub(crate) struct Fake {
    kernel: Kernel,
    pub(crate) devices: Vec<Device>,
    /// The CPUs that last handled each interrupt; constant, as there are no interrupts.
    pub(crate) effective: BTreeMap<u32, Vec<usize>>,
    of_device: BTreeMap<(u32, Setting), u64>,
    /// The identity of each device, by interface index.
    pub(super) identities: BTreeMap<u32, u64>,
    /// The location reported for a device that is not here.
    pub(super) elsewhere: Whereabouts,
    next_id: u32,
    /// Instances of `va` that are absent, whose settings the driver keeps.
    absent: Vec<Napi>,
    /// The kernel refuses the write that follows this many writes, once.
    pub(super) refuses_after: Option<u32>,
    pub(super) writes: u32,
    /// Calls the function after this many writes, once.
    pub(super) after_write: Option<(u32, Interference)>,
    pub(super) right: bool,
    /// CPUs that are offline.
    pub(super) off: Vec<usize>,
    /// Whether the kernel fails to answer.
    pub(super) unresponsive: bool,
    /// Whether sysfs hides the identities of devices.
    pub(super) hides_identities: bool,
    /// Whether another program makes a real-time thread spin; if napkin does, the fake panics.
    pub(super) real_time_may_spin: bool,
}

impl Fake {
    /// Linux 6.18 with one device, `va`, that has this many queues, each with an interrupt.
    pub(crate) fn new(queues: u32) -> Fake {
        Fake::of(linux(6, 18), queues)
    }

    pub(super) fn of(kernel: Kernel, queues: u32) -> Fake {
        let mut fake = Fake {
            kernel,
            devices: Vec::new(),
            effective: BTreeMap::new(),
            of_device: BTreeMap::new(),
            identities: BTreeMap::from([(7, 700), (8, 800)]),
            elsewhere: Whereabouts::Gone,
            next_id: 513,
            absent: Vec::new(),
            refuses_after: None,
            writes: 0,
            after_write: None,
            right: true,
            off: Vec::new(),
            unresponsive: false,
            hides_identities: false,
            real_time_may_spin: false,
        };
        fake.add(7, "va", queues);
        fake.add(8, "vb", queues);
        fake
    }

    fn add(&mut self, ifindex: u32, ifname: &str, queues: u32) {
        let napis = (0..queues).map(|queue| self.napi(queue)).collect();
        let ifname = ifname.to_owned();
        self.devices.push(Device { ifindex, ifname, driver: Some("fake".into()), up: true, napis });
        for setting in Setting::ALL {
            if matches!(self.kernel.way(setting), Some(Interface::Device { .. })) {
                self.of_device.insert((ifindex, setting), 0);
            }
        }
    }

    fn napi(&mut self, queue: u32) -> Napi {
        self.next_id += 1;
        let mut settings = Settings::default();
        for setting in Setting::ALL {
            settings.set(setting, 0);
        }
        Napi {
            id: self.next_id,
            rx_queues: vec![queue],
            tx_queues: vec![queue],
            irq: Some(24 + queue),
            irq_cpus: Some((0..CPUS).collect()),
            pid: None,
            thread_cpus: None,
            thread_class: None,
            settings,
        }
    }

    /// The driver creates its instances anew, with the same settings.
    pub(crate) fn recreate(&mut self) {
        for napi in self.devices.iter_mut().flat_map(|device| &mut device.napis) {
            self.next_id += 1;
            napi.id = self.next_id;
        }
    }

    /// `va` goes down and up: its instances have new ids, and their threads are disabled but kept. Like e1000e
    /// under Linux 7.2, which goes on reporting the thread.
    pub(crate) fn down_and_up(&mut self) {
        self.recreate();
        self.devices[0].napis.iter_mut().for_each(|napi| napi.settings.threaded = Some(0));
    }

    /// Returns the instance of a thread, in use or not.
    fn of_thread(&mut self, thread: ThreadId) -> Option<&mut Napi> {
        let mut napis = self.devices.iter_mut().flat_map(|device| &mut device.napis);
        napis.find(|napi| napi.pid == Some(thread.tid))
    }

    /// The driver of `va` makes its instances, in order of their ids, poll these receive and transmit queues.
    /// It keeps settings by id: those of an instance that goes absent return with the instance.
    pub(super) fn channels(&mut self, layout: &[(Vec<u32>, Vec<u32>)]) {
        let mut all = std::mem::take(&mut self.devices[0].napis);
        all.append(&mut self.absent);
        all.sort_by_key(|napi| napi.id);
        while all.len() < layout.len() {
            all.push(self.napi(0));
        }
        self.absent = all.split_off(layout.len());
        for (napi, (rx, tx)) in all.iter_mut().zip(layout) {
            (napi.rx_queues, napi.tx_queues) = (rx.clone(), tx.clone());
        }
        self.devices[0].napis = all;
    }

    /// Returns the settings of each instance of `va`, present or absent, by its id.
    pub(super) fn by_id(&self) -> BTreeMap<u32, Settings> {
        let all = self.devices[0].napis.iter().chain(&self.absent);
        all.map(|napi| (napi.id, napi.settings)).collect()
    }

    /// Returns the values of all places of all devices.
    pub(super) fn everything(&mut self) -> BTreeMap<(u32, Place), Value> {
        let indexes: Vec<u32> = self.devices.iter().map(|device| device.ifindex).collect();
        let mut all = BTreeMap::new();
        for ifindex in indexes {
            let at = self.look(Target::Index(ifindex)).expect("it is there");
            all.extend(at.values.into_iter().map(|(place, value)| ((ifindex, place), value)));
        }
        all
    }

    /// Another program sets a place of `va`.
    pub(crate) fn somebody_sets(&mut self, place: &Place, value: &Value) {
        let at = self.look(Target::Name("va")).expect("it is there");
        self.set(&at, place, value);
    }

    fn on(&self) -> Vec<usize> {
        (0..CPUS).filter(|cpu| !self.off.contains(cpu)).collect()
    }

    /// Returns the values of the places of an instance.
    fn values(&self, it: &Instance, napi: &Napi) -> BTreeMap<Place, Value> {
        let mut values = BTreeMap::new();
        for setting in Setting::ALL.into_iter().filter(|it| self.kernel.per_napi(*it)) {
            let value = Value::Number(napi.settings.get(setting).unwrap_or(0));
            values.insert(Place::Napi(it.clone(), setting), value);
        }
        let cpus = |cpus: &Option<Vec<usize>>| cpus.as_deref().map(Value::cpus);
        let on = napi.thread_cpus.as_ref().map(|cpus| still_available(cpus, &self.on()));
        let thread = cpus(&on).map(|value| (Place::ThreadCpus(it.clone()), value));
        let class = napi.thread_class.map(Value::Class);
        let class = class.map(|value| (Place::ThreadClass(it.clone()), value));
        let irq = cpus(&napi.irq_cpus).map(|value| (Place::IrqCpus(it.clone()), value));
        values.extend([thread, class, irq].into_iter().flatten());
        values
    }

    fn set(&mut self, at: &Snapshot, place: &Place, value: &Value) {
        if let (Place::Device(setting), Value::Number(number)) = (place, value) {
            self.of_device.insert((at.device.ifindex, *setting), *number);
            if *setting == Setting::Threaded {
                let of = |device: &&mut Device| device.ifindex == at.device.ifindex;
                let device = self.devices.iter_mut().find(of).expect("it was found");
                device.napis.iter_mut().for_each(|napi| thread(napi, *number != 0));
            }
            return;
        }
        let id = at.napi(place.instance().expect("not the device's")).expect("it was found").id;
        let may_spin = self.real_time_may_spin;
        let mut napis = self.devices.iter_mut().flat_map(|device| &mut device.napis);
        let napi = napis.find(|napi| napi.id == id).expect("no instance has this id any more");
        match (place, value) {
            (Place::Napi(_, setting), Value::Number(number)) => {
                napi.settings.set(*setting, *number);
                if *setting == Setting::Threaded {
                    thread(napi, *number != 0);
                }
                let spins = napi.settings.threaded == Some(2);
                assert!(
                    !spins || may_spin || napi.thread_class.is_some_and(Class::is_fair),
                    "a real-time thread spins"
                );
            }
            (Place::ThreadCpus(_), Value::Cpus(cpus)) => {
                assert!(napi.pid.is_some(), "no thread to pin");
                napi.thread_cpus = Some(cpus.clone());
            }
            (Place::ThreadClass(_), Value::Class(class)) => {
                assert!(napi.pid.is_some(), "no thread to classify");
                let spins = napi.settings.threaded == Some(2);
                assert!(!spins || may_spin || class.is_fair(), "a spinning thread's class");
                napi.thread_class = Some(*class);
            }
            (Place::IrqCpus(_), Value::Cpus(cpus)) => napi.irq_cpus = Some(cpus.clone()),
            (place, value) => panic!("{} cannot be {value}", place.what()),
        }
    }
}

/// Gives an instance a thread, or takes it away.
fn thread(napi: &mut Napi, threaded: bool) {
    if threaded && napi.pid.is_none() {
        napi.pid = Some(1_000 + napi.id.cast_signed());
        napi.thread_cpus = Some((0..CPUS).collect());
        napi.thread_class = Some(Class::Fair);
    } else if !threaded {
        (napi.pid, napi.thread_cpus, napi.thread_class) = (None, None, None);
    }
}

impl Backend for Fake {
    fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    fn may_change(&self) -> Result<(), Right> {
        if self.right { Ok(()) } else { Err(Right::NetAdmin) }
    }

    fn look(&mut self, target: Target<'_>) -> Result<Snapshot, BackendError> {
        if self.unresponsive {
            let value = String::from("silence");
            return Err(BackendError::NoSuchValue { what: "device", value });
        }
        let device = self.devices.iter().find(|device| match target {
            Target::Name(ifname) => device.ifname == ifname,
            Target::Index(ifindex) => device.ifindex == ifindex,
        });
        let Some(device) = device.cloned() else {
            let ifname = format!("{target:?}");
            return Err(DeviceError::Absent { ifname, nearest: None, there: vec![] }.into());
        };
        // The fake's own comparisons do not count.
        let compared = COMPARED.get();
        let mut values = BTreeMap::new();
        for (it, napi) in Instance::all(&device) {
            values.extend(self.values(&it, napi));
        }
        for ((ifindex, setting), value) in &self.of_device {
            if *ifindex == device.ifindex {
                values.insert(Place::Device(*setting), Value::Number(*value));
            }
        }
        let identity = self.identities.get(&device.ifindex).copied();
        let snapshot = Snapshot::new(device, values, self.on(), identity);
        COMPARED.set(compared);
        Ok(snapshot)
    }

    fn here(&mut self, identity: u64) -> Result<Option<u32>, BackendError> {
        if self.hides_identities {
            let value = identity.to_string();
            return Err(BackendError::NoSuchValue { what: "identity", value });
        }
        let found = self.identities.iter().find(|(_, it)| **it == identity);
        Ok(found.map(|(ifindex, _)| *ifindex))
    }

    fn whereabouts(&mut self, identity: u64) -> Result<Whereabouts, BackendError> {
        let found = self.here(identity)?.map(Whereabouts::Here);
        Ok(found.unwrap_or_else(|| self.elsewhere.clone()))
    }

    fn read(&mut self, at: &Snapshot, place: &Place) -> Result<Option<Value>, BackendError> {
        let Some(instance) = place.instance().filter(|_| !self.unresponsive) else {
            let now = self.look(Target::Index(at.device.ifindex))?;
            return Ok(now.values.get(place).cloned());
        };
        let compared = COMPARED.get();
        let device = self.devices.iter().find(|it| it.ifindex == at.device.ifindex);
        let mut all = device.map(Instance::all).unwrap_or_default().into_iter();
        let of = all.find(|(it, _)| it == instance);
        let value = of.and_then(|(it, napi)| self.values(&it, napi).remove(place));
        COMPARED.set(compared);
        Ok(value)
    }

    fn write(&mut self, at: &Snapshot, place: &Place, value: &Value) -> Result<(), BackendError> {
        if self.refuses_after == Some(self.writes) {
            self.refuses_after = None;
            let value = value.to_string();
            return Err(BackendError::NoSuchValue { what: place.what(), value });
        }
        if let (Place::ThreadCpus(_), Value::Cpus(cpus)) = (place, value) {
            assert!(
                !cpus.iter().any(|cpu| self.off.contains(cpu)),
                "a thread on a CPU that is off"
            );
        }
        self.writes += 1;
        self.set(at, place, value);
        if let Some((_, happens)) = self.after_write.take_if(|(writes, _)| *writes == self.writes) {
            happens(self);
        }
        Ok(())
    }

    fn put_back(
        &mut self,
        at: &Snapshot,
        place: &Place,
        value: &Value,
    ) -> Result<(), BackendError> {
        match (place, value) {
            (Place::ThreadCpus(_), Value::Cpus(cpus)) => {
                let on = Value::Cpus(still_available(cpus, &self.on()));
                self.write(at, place, &on)
            }
            (place, value) => self.write(at, place, value),
        }
    }

    fn thread(
        &mut self,
        at: &Snapshot,
        instance: &Instance,
    ) -> Result<Option<ThreadId>, BackendError> {
        let Some(id) = at.napi(instance).map(|napi| napi.id) else { return Ok(None) };
        let mut napis = self.devices.iter().flat_map(|device| &device.napis);
        let tid = napis.find(|napi| napi.id == id).and_then(|napi| napi.pid);
        Ok(tid.map(|tid| ThreadId { tid, start_ticks: 7 }))
    }

    fn read_thread(&mut self, thread: ThreadId, place: &Place) -> Option<Value> {
        let napi = self.of_thread(thread)?;
        match place {
            Place::ThreadCpus(_) => napi.thread_cpus.as_deref().map(Value::cpus),
            _ => napi.thread_class.map(Value::Class),
        }
    }

    fn write_thread(
        &mut self,
        thread: ThreadId,
        place: &Place,
        value: &Value,
    ) -> Result<(), BackendError> {
        let napi = self.of_thread(thread).expect("a thread");
        match value {
            Value::Cpus(cpus) => napi.thread_cpus = Some(cpus.clone()),
            Value::Class(class) => napi.thread_class = Some(*class),
            value @ Value::Number(_) => panic!("{} cannot be {value}", place.what()),
        }
        Ok(())
    }

    fn new_thread_cpus(&self) -> Vec<usize> {
        (0..CPUS).collect()
    }
}
