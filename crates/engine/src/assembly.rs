//! Assembles an engine from its configuration: instances of its devices' queues, on its CPUs.
//!
//! Nothing runs yet: no thread is started here, no interrupt unmasked and no setting applied.

use std::collections::BTreeSet;
use std::sync::Arc;

use napkin_core::{CpuId, Host, Id, check};
use napkin_nic::PacketQueue;
use napkin_policy::InstancePolicy;
use napkin_stack::{Input, Stack};

use crate::config::{DeviceConfig, EngineConfig, EngineError};
use crate::cpu::EngineCpu;
use crate::port::Port;
use crate::shared::{Device, Napi, Shared};
use crate::spin::Spin;
use napkin_os::sched;

/// The maximum number of instances that the core supports.
const MAX_INSTANCES: usize = u16::MAX as usize - 1;

/// Refuses an invalid configuration.
pub(crate) fn validate(config: &EngineConfig) -> Result<(), EngineError> {
    if config.cpus.is_empty() {
        return Err(EngineError::NoCpu);
    }
    if config.devices.is_empty() || config.devices.iter().any(|device| device.queues.is_empty()) {
        return Err(EngineError::NoQueue);
    }
    let queues = config.devices.iter().map(|device| device.queues.len()).sum();
    if queues > MAX_INSTANCES {
        return Err(EngineError::TooManyQueues { queues, most: MAX_INSTANCES });
    }
    let mut seen = BTreeSet::new();
    for cpu in &config.cpus {
        if !sched::may_exist(*cpu) {
            return Err(sched::unusable(*cpu).into());
        }
        if !seen.insert(*cpu) {
            return Err(EngineError::CpuTwice(*cpu));
        }
    }
    let cpus = config.cpus.len();
    let mut names = BTreeSet::new();
    for device in &config.devices {
        let bad = |c: char| c == '/' || c.is_whitespace() || c.is_control();
        if device.name.is_empty() || device.name.len() > 15 || device.name.contains(bad) {
            return Err(EngineError::DeviceName(device.name.clone()));
        }
        if !names.insert(device.name.as_str()) {
            return Err(EngineError::DeviceTwice(device.name.clone()));
        }
        check(&device.settings)?;
        for (queue, (_, cpu)) in device.queues.iter().enumerate() {
            if usize::from(*cpu) >= cpus {
                let device = device.name.clone();
                return Err(EngineError::QueueCpu { device, queue, cpu: *cpu, cpus });
            }
        }
    }
    Ok(())
}

/// The assembled parts of an engine.
pub(crate) struct Parts {
    pub(crate) shared: Shared,
    /// The settings to be applied to each instance.
    pub(crate) settings: Vec<InstancePolicy>,
}

/// Makes instances of the devices' queues, each with its line and its way into the stack.
pub(crate) fn assemble(
    os_cpus: &[usize],
    configs: Vec<DeviceConfig>,
    cpus: Vec<EngineCpu>,
) -> Result<Parts, EngineError> {
    let (mut settings, mut napis) = (Vec::new(), Vec::new());
    let (mut devices, mut ports) = (Vec::new(), Vec::new());
    for (device, config) in configs.into_iter().enumerate() {
        let stack = Stack::new(config.addresses);
        let cost = Spin::new(config.delivery_cost);
        let mut ids = Vec::new();
        for (queue, (nic, cpu)) in config.queues.into_iter().enumerate() {
            let id = Id(napis.len() as u16);
            let napi = Napi::new(device, queue, nic.counters());
            let port = port(&stack, nic, cost, &napi, (id, &cpus[usize::from(cpu)]))?;
            ports.push((port, CpuId(cpu)));
            napis.push(napi);
            settings.push(config.settings);
            ids.push(id);
        }
        devices.push(Device { name: config.name, stack, napis: ids, cost });
    }
    let host = Host::new(os_cpus.len() as u16, ports);
    let shared = Shared::new(host, cpus.into(), napis.into(), devices.into());
    Ok(Parts { shared, settings })
}

/// Makes a device's queue an instance's port, on the CPU that serves it.
pub(crate) fn port(
    stack: &Arc<Stack>,
    nic: Box<dyn PacketQueue>,
    cost: Spin,
    napi: &Napi,
    (id, cpu): (Id, &EngineCpu),
) -> Result<Port, EngineError> {
    let input = Input::new(Arc::clone(stack), Shared::napi_id(id), nic.transmitter());
    let mut port = Port::new(nic, input, cost, napi.port.clone());
    port.attach(cpu, id)?;
    Ok(port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use napkin_core::{Ns, Work};
    use napkin_nic::{Frame, QueueCounters, SendError, Transmitter};
    use napkin_policy::Policy;
    use napkin_stack::Address;
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

    /// A queue that is never used.
    struct Idle(Arc<OwnedFd>);

    impl Transmitter for Idle {
        fn send(&self, _: &[u8], _: Ns) -> Result<(), SendError> {
            Err(SendError::Down)
        }
    }

    impl PacketQueue for Idle {
        fn poll(&mut self, _: u16, _: Ns, _: &mut Vec<Frame>) -> Work {
            Work::NONE
        }
        fn mask(&mut self) {}
        fn unmask(&mut self, _: Ns) -> bool {
            false
        }
        fn interrupt(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }
        fn acknowledge(&mut self) {}
        fn transmitter(&self) -> Arc<dyn Transmitter> {
            Arc::new(Idle(Arc::clone(&self.0)))
        }
        fn counters(&self) -> Arc<QueueCounters> {
            Arc::default()
        }
    }

    fn device(name: &str, queues: usize) -> DeviceConfig {
        let flags = rustix::event::EventfdFlags::empty();
        let fd = Arc::new(rustix::event::eventfd(0, flags).expect("a descriptor"));
        let queue = || (Box::new(Idle(Arc::clone(&fd))) as Box<dyn PacketQueue>, 0);
        DeviceConfig {
            name: name.into(),
            addresses: Address::v4([2; 6], [10, 0, 0, 1], 24).into(),
            queues: (0..queues).map(|_| queue()).collect(),
            delivery_cost: 0,
            settings: Policy::BASE.instance,
        }
    }

    fn refused(cpus: &[usize], devices: Vec<DeviceConfig>) -> Option<String> {
        let config = EngineConfig::new(cpus.to_vec(), devices);
        validate(&config).err().map(|error| error.to_string())
    }

    #[test]
    fn what_cannot_be_told_apart_is_refused() {
        assert_eq!(refused(&[0, 1], vec![device("a", 1), device("b", 1)]), None);
        let twice = refused(&[0], vec![device("a", 1), device("a", 1)]);
        assert_eq!(twice.as_deref(), Some("two devices are called a: give each its own name"));
        let twice = refused(&[3, 0, 3], vec![device("a", 1)]);
        assert_eq!(twice.as_deref(), Some("CPU 3 is given twice"));
    }

    #[test]
    fn what_cannot_be_counted_is_refused() {
        assert_eq!(refused(&[0], vec![device("a", MAX_INSTANCES)]), None);
        let many = refused(&[0], vec![device("a", MAX_INSTANCES), device("b", 1)]);
        let many = many.expect("refused");
        assert!(many.contains("65535 queues") && many.contains("at most 65534"), "{many}");
        let absent = refused(&[usize::MAX], vec![device("a", 1)]).expect("refused");
        assert!(absent.contains("is not available to this process"), "{absent}");
    }
}
