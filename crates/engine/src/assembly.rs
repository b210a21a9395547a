//! An engine's parts, put together: instances of its devices' queues, on its CPUs.

use std::sync::Arc;

use napkin_core::policy::InstancePolicy;
use napkin_core::{CpuId, Host, Id, check};
use napkin_nic::PacketQueue;
use napkin_stack::{Input, Stack};

use crate::config::{DeviceConfig, EngineConfig, EngineError};
use crate::cpu::EngineCpu;
use crate::port::Port;
use crate::shared::{Device, Napi, Shared};
use crate::spin::Spin;

/// Refuses a configuration that makes no sense.
pub(crate) fn validate(config: &EngineConfig) -> Result<(), EngineError> {
    if config.cpus.is_empty() {
        return Err(EngineError::NoCpu);
    }
    if config.devices.is_empty() || config.devices.iter().any(|device| device.queues.is_empty()) {
        return Err(EngineError::NoQueue);
    }
    let cpus = config.cpus.len();
    for device in &config.devices {
        let bad = |c: char| c == '/' || c.is_whitespace() || c.is_control();
        if device.name.is_empty() || device.name.len() > 15 || device.name.contains(bad) {
            return Err(EngineError::DeviceName(device.name.clone()));
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

/// Makes instances of the devices' queues, each with its line and its way into the stack.
pub(crate) fn assemble(
    os_cpus: &[usize],
    configs: Vec<DeviceConfig>,
    cpus: Vec<EngineCpu>,
    settings: &mut Vec<InstancePolicy>,
) -> Result<Shared, EngineError> {
    let (mut napis, mut devices, mut ports) = (Vec::new(), Vec::new(), Vec::new());
    for (device, config) in configs.into_iter().enumerate() {
        let stack = Stack::new(config.address);
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
    Ok(Shared::new(host, cpus.into(), napis.into(), devices.into()))
}

/// A device's queue as an instance's port, on the CPU that serves it.
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
