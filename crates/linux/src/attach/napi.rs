//! What an attachment reads from devices: the CPU on which an instance is polled, and which devices have a
//! policy's settings.

use std::collections::BTreeMap;

use napkin_policy::Policy;

use super::pin::Resolver;
use napkin_kernel::device::{self, DeviceError, Napi};
use napkin_kernel::netlink::Netdev;
use napkin_kernel::settings::{Setting, Settings};
use napkin_os::procfs::irq;

/// Returns a resolver of the CPU on which each NAPI instance of this network namespace is polled: the CPU of
/// its thread, or else that of its interrupt. An instance with several CPUs, or with neither, resolves to
/// none for now, and is looked up again later.
///
/// # Errors
/// If the kernel does not answer.
pub fn cpus_by_napi() -> Result<Box<dyn Resolver>, DeviceError> {
    Ok(Box::new(PollCpus::new(Running)?))
}

/// The queries to the kernel.
trait Kernel {
    /// The instances of all devices.
    fn instances(&mut self) -> Result<Vec<Napi>, DeviceError>;

    /// The CPUs of a thread; `None` if it has ended.
    fn thread_cpus(&mut self, tid: i32) -> Option<Vec<usize>>;

    /// The CPUs to which an interrupt may go (`smp_affinity`).
    fn irq_cpus(&mut self, irq: u32) -> Option<Vec<usize>>;

    /// The CPUs to which an interrupt went last (`effective_affinity`).
    fn effective_cpus(&mut self, irq: u32) -> Option<Vec<usize>>;
}

/// The running kernel.
struct Running;

impl Kernel for Running {
    fn instances(&mut self) -> Result<Vec<Napi>, DeviceError> {
        let devices = device::read_all(&mut Netdev::open()?)?;
        Ok(devices.into_iter().flat_map(|device| device.napis).collect())
    }

    fn thread_cpus(&mut self, tid: i32) -> Option<Vec<usize>> {
        napkin_os::sched::affinity(Some(tid)).ok()
    }

    fn irq_cpus(&mut self, irq: u32) -> Option<Vec<usize>> {
        irq::affinity(irq).ok()
    }

    fn effective_cpus(&mut self, irq: u32) -> Option<Vec<usize>> {
        irq::effective_affinity(irq).ok()
    }
}

/// Rounds between two reads of all devices, while an instance has no CPU of its own.
const ROUNDS: u32 = 4;
/// The same while all have one: threads may be turned on, or a queue may get another interrupt.
const RENEWED: u32 = 10;

/// The polling CPUs of instances. The affinity of a thread or an interrupt is read each time, which takes a
/// system call or two. All devices are read again soon for unknown instances, and seldom for known ones.
struct PollCpus<K> {
    kernel: K,
    napis: BTreeMap<u32, Napi>,
    /// Rounds since the devices were read.
    rounds: u32,
}

impl<K: Kernel> PollCpus<K> {
    fn new(kernel: K) -> Result<PollCpus<K>, DeviceError> {
        let mut cpus = PollCpus { kernel, napis: BTreeMap::new(), rounds: 0 };
        cpus.read()?;
        Ok(cpus)
    }

    fn read(&mut self) -> Result<(), DeviceError> {
        let napis = self.kernel.instances()?;
        self.napis = napis.into_iter().map(|napi| (napi.id, napi)).collect();
        self.rounds = 0;
        Ok(())
    }

    fn now(&mut self, napi_id: u32) -> Option<usize> {
        let one = |cpus: Vec<usize>| if let [cpu] = cpus[..] { Some(cpu) } else { None };
        let Napi { pid, irq, thread_cpus, settings, .. } = self.napis.get(&napi_id)?;
        // After the device was set down and up, an instance may have no thread although the kernel still
        // reports one (e1000e).
        if let (Some(tid), true) = (pid, settings.threaded != Some(0)) {
            // In a PID namespace where the thread has another ID, its CPUs are unknown.
            thread_cpus.as_ref()?;
            return self.kernel.thread_cpus(*tid).and_then(one);
        }
        let irq = (*irq)?;
        // An interrupt that may go to one CPU will go there. `effective_affinity` is where it went last: most
        // controllers move an interrupt when the next one fires.
        let allowed = self.kernel.irq_cpus(irq)?;
        one(allowed).or_else(|| self.kernel.effective_cpus(irq).and_then(one))
    }
}

impl<K: Kernel> Resolver for PollCpus<K> {
    fn cpu(&mut self, napi_id: u32) -> Option<usize> {
        let now = self.now(napi_id);
        let due = if now.is_some() { RENEWED } else { ROUNDS };
        if self.rounds < due {
            return now;
        }
        // The driver may have recreated its instances and interrupts. If the kernel does not answer, the next
        // attempt comes after as many rounds.
        self.rounds = 0;
        if self.read().is_ok() { self.now(napi_id) } else { now }
    }

    fn next_round(&mut self) {
        self.rounds = self.rounds.saturating_add(1);
    }
}

/// Returns the devices of this network namespace that have an instance with a policy's settings.
///
/// # Errors
/// If the kernel does not answer.
pub fn set_on(policy: &Policy) -> Result<Vec<String>, DeviceError> {
    let wanted = Settings::of(&policy.instance);
    let so = |napi: &Napi| {
        Setting::ALL.iter().all(|setting| {
            napi.settings.get(*setting).unwrap_or(0) == wanted.get(*setting).unwrap_or(0)
        })
    };
    let mut devices = device::read_all(&mut Netdev::open()?)?;
    devices.retain(|device| device.napis.iter().any(so));
    Ok(devices.into_iter().map(|device| device.ifname).collect())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;
    use crate::apply::fake::Fake;
    use crate::{place::Instance, place::Place, place::Value};

    impl Kernel for Rc<RefCell<Fake>> {
        fn instances(&mut self) -> Result<Vec<Napi>, DeviceError> {
            Ok(self.borrow().devices.iter().flat_map(|device| device.napis.clone()).collect())
        }

        fn thread_cpus(&mut self, tid: i32) -> Option<Vec<usize>> {
            let fake = self.borrow();
            let mut napis = fake.devices.iter().flat_map(|device| &device.napis);
            napis.find(|napi| napi.pid == Some(tid))?.thread_cpus.clone()
        }

        fn irq_cpus(&mut self, irq: u32) -> Option<Vec<usize>> {
            let fake = self.borrow();
            let mut napis = fake.devices.iter().flat_map(|device| &device.napis);
            napis.find(|napi| napi.irq == Some(irq))?.irq_cpus.clone()
        }

        fn effective_cpus(&mut self, irq: u32) -> Option<Vec<usize>> {
            self.borrow().effective.get(&irq).cloned()
        }
    }

    /// A device of two queues whose interrupts may go to any CPU, and go to CPU 0.
    fn fake() -> Rc<RefCell<Fake>> {
        let mut fake = Fake::new(2);
        fake.devices.truncate(1);
        for napi in &fake.devices[0].napis {
            fake.effective.insert(napi.irq.expect("the fake has them"), vec![0]);
        }
        Rc::new(RefCell::new(fake))
    }

    fn ids(fake: &Rc<RefCell<Fake>>) -> Vec<u32> {
        fake.borrow().devices[0].napis.iter().map(|napi| napi.id).collect()
    }

    fn set(fake: &Rc<RefCell<Fake>>, queue: usize, place: fn(Instance) -> Place, value: &Value) {
        let mut fake = fake.borrow_mut();
        let (instance, _) = Instance::all(&fake.devices[0]).swap_remove(queue);
        fake.somebody_sets(&place(instance), value);
    }

    #[test]
    fn an_interrupt_that_was_just_moved_is_where_it_will_go() {
        let fake = fake();
        let mut cpus = PollCpus::new(fake.clone()).expect("the fake answers");
        let ids = ids(&fake);
        assert_eq!([cpus.cpu(ids[0]), cpus.cpu(ids[1])], [Some(0), Some(0)], "where they went");
        // As set by `--cpus 1,3`. No interrupt has fired since: `effective_affinity` still has the old CPU.
        set(&fake, 0, Place::IrqCpus, &Value::cpus(&[1]));
        set(&fake, 1, Place::IrqCpus, &Value::cpus(&[3]));
        assert_eq!([cpus.cpu(ids[0]), cpus.cpu(ids[1])], [Some(1), Some(3)]);
        // An interrupt that may go to several CPUs counts as being where it last went.
        set(&fake, 1, Place::IrqCpus, &Value::cpus(&[2, 3]));
        fake.borrow_mut().effective.insert(25, vec![2]);
        assert_eq!(cpus.cpu(ids[1]), Some(2));
    }

    #[test]
    fn an_instance_without_a_cpu_of_its_own_is_asked_for_again() {
        let fake = fake();
        let mut cpus = PollCpus::new(fake.clone()).expect("the fake answers");
        // The driver recreates its instances, with interrupts that have not fired yet.
        fake.borrow_mut().recreate();
        for (queue, napi) in fake.borrow_mut().devices[0].napis.iter_mut().enumerate() {
            napi.irq = Some(60 + queue as u32);
        }
        let ids = ids(&fake);
        let mut round = || {
            cpus.next_round();
            cpus.cpu(ids[0])
        };
        let rounds: Vec<_> = (0..ROUNDS).map(|_| round()).collect();
        assert!(rounds.iter().all(Option::is_none), "{rounds:?}");
        assert_eq!(round(), None, "no interrupt has come");
        fake.borrow_mut().effective.insert(60, vec![3]);
        assert_eq!(round(), Some(3));
    }

    #[test]
    fn a_thread_that_is_made_later_is_followed() {
        let fake = fake();
        let mut cpus = PollCpus::new(fake.clone()).expect("the fake answers");
        let ids = ids(&fake);
        let threaded = |instance| Place::Napi(instance, Setting::Threaded);
        set(&fake, 0, threaded, &Value::Number(1));
        set(&fake, 0, Place::ThreadCpus, &Value::cpus(&[2]));
        assert_eq!(cpus.cpu(ids[0]), Some(0), "as it was");
        (0..RENEWED).for_each(|_| cpus.next_round());
        assert_eq!(cpus.cpu(ids[0]), Some(2));
    }

    #[test]
    fn a_thread_polls_where_it_is_and_only_while_it_polls() {
        let fake = fake();
        let ids = ids(&fake);
        let threaded = |value| {
            let place = |instance| Place::Napi(instance, Setting::Threaded);
            set(&fake, 0, place, &Value::Number(value));
        };
        threaded(1);
        let mut cpus = PollCpus::new(fake.clone()).expect("the fake answers");
        assert_eq!(cpus.cpu(ids[0]), None, "it may run anywhere");
        set(&fake, 0, Place::ThreadCpus, &Value::cpus(&[2]));
        assert_eq!(cpus.cpu(ids[0]), Some(2));
        // e1000e, down and up: the kernel still reports the thread, and does not use it.
        fake.borrow_mut().down_and_up();
        let ids = self::ids(&fake);
        let mut cpus = PollCpus::new(fake.clone()).expect("the fake answers");
        assert_eq!(cpus.cpu(ids[0]), Some(0), "its interrupt's");
    }
}
