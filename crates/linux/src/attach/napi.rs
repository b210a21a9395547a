//! What an attachment asks of the devices: where an instance is polled, and whether some device has
//! a policy's settings.

use std::collections::BTreeMap;

use napkin_core::Policy;

use super::pin::Resolver;
use crate::device::{self, DeviceError, Napi};
use crate::netlink::Netdev;
use crate::procfs::irq;
use crate::settings::{Setting, Settings};

/// Where each NAPI instance of this network namespace is polled now: on its thread's CPU, or else on
/// the one to which its interrupt goes. Of an instance with several, or with neither, nothing is
/// known.
///
/// # Errors
/// If the kernel does not answer.
pub fn cpus_by_napi() -> Result<Resolver, DeviceError> {
    let devices = device::read_all(&mut Netdev::open()?)?;
    let cpus: BTreeMap<u32, usize> = devices
        .iter()
        .flat_map(|device| &device.napis)
        .filter_map(|napi| Some((napi.id, cpu_of(napi)?)))
        .collect();
    Ok(Box::new(move |id| cpus.get(&id).copied()))
}

fn cpu_of(napi: &Napi) -> Option<usize> {
    let one = |cpus: &[usize]| if let [cpu] = cpus { Some(*cpu) } else { None };
    if napi.pid.is_some() {
        return napi.thread_cpus.as_deref().and_then(one);
    }
    // Of those to which it may go it goes to the effective one.
    let effective = napi.irq.and_then(|irq| irq::effective_affinity(irq).ok());
    effective.as_deref().and_then(one).or_else(|| napi.irq_cpus.as_deref().and_then(one))
}

/// Which devices of this network namespace have an instance that is set as a policy says.
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
