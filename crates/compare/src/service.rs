//! The service under comparison: a running program, its ports, and the device that its packets come through.

use std::collections::BTreeSet;

use napkin_kernel::count::latency;
use napkin_kernel::device::{self, Device};
use napkin_kernel::namespace::Namespace;
use napkin_kernel::netlink::Netdev;
use napkin_kernel::process::{Process, ProcessError, Socket, descendants_of};
use napkin_kernel::sysfs;
use rustix::net::SocketType;

use crate::error::CompareError;
use crate::guard::{Condition, Guard};

/// The inode of the initial PID namespace: `PROC_PID_INIT_INO`.
const FIRST_PID_NAMESPACE: u64 = 0xefff_fffc;

/// Most processes of a service, and descriptors of a process, that are read.
const MOST_PROCESSES: usize = 1 << 16;

/// A running service and its device.
#[derive(Debug, Clone)]
pub struct Service {
    /// The process id that was given.
    pub pid: i32,
    /// Its name in `/proc/PID/comm`.
    pub comm: String,
    /// That process and its descendants, at the time of the call.
    pub processes: Vec<i32>,
    /// Listening TCP ports and bound UDP ports.
    pub ports: Vec<u16>,
    /// The inode of the network namespace of the program and the device.
    pub namespace: u32,
    /// The device, as read at the start.
    pub device: Device,
    /// Notes to the reader of the figures.
    pub notes: Vec<String>,
}

impl Service {
    /// Reads the program and the device, both in the calling thread's network namespace.
    ///
    /// # Errors
    /// If either does not exist or cannot be read, or they are in different network namespaces.
    pub fn find(pid: i32, ifname: &str) -> Result<Service, CompareError> {
        let process = Process::open(pid)?;
        let comm = process.comm()?;
        let namespace = netns()?;
        if process.network_namespace()? != u64::from(namespace) {
            return Err(CompareError::OtherNamespace { pid });
        }
        let device = device::read(&mut Netdev::open()?, ifname)?;
        let mut processes = vec![pid];
        processes.extend(descendants_of(&[pid], MOST_PROCESSES).pids);
        let mut ports = BTreeSet::new();
        for (place, pid) in processes.iter().enumerate() {
            match Process::open(*pid).and_then(|process| ports_of(&process)) {
                Ok(found) => ports.extend(found),
                // A child may have ended meanwhile.
                Err(error) if place == 0 => return Err(error.into()),
                Err(_) => {}
            }
        }
        let mut notes = Vec::new();
        if device.napis.iter().all(|napi| napi.irq.is_none()) {
            notes.push(format!(
                "{ifname} has no interrupts, and its softirq runs on the sender's CPU until a \
                 timer, a thread or an application has taken its instances over"
            ));
        }
        if sysfs::devices_with_rps().iter().any(|it| it == ifname) {
            notes.push(format!(
                "{ifname} hands packets to other CPUs (RPS): what waits there while others follow is told too \
                 short"
            ));
        }
        let ports = ports.into_iter().collect();
        let service = Service { pid, comm, processes, ports, namespace, device, notes };
        Ok(service)
    }

    /// Options to time the service's requests, on its ports. The namespace is included, because a child may serve
    /// the same port in another network namespace, which the device does not reach.
    ///
    /// # Errors
    /// If it has no port, or napkin is in a PID namespace of its own.
    pub fn timed(&self) -> Result<latency::Options, CompareError> {
        if self.ports.is_empty() {
            return Err(CompareError::NoPort { pid: self.pid, comm: self.comm.clone() });
        }
        let pids = rustix::fs::stat("/proc/thread-self/ns/pid");
        if pids.is_ok_and(|it| it.st_ino != FIRST_PID_NAMESPACE) {
            return Err(CompareError::PidNamespace { pid: self.pid });
        }
        let (processes, ports) = (self.processes.clone(), self.ports.clone());
        Ok(latency::Options { processes, ports, namespace: Some(self.namespace), one_in: 1 })
    }

    /// A sentence on how many processes and ports are not timed because there are more than
    /// [`latency::Options::MOST`]; `None` if all are timed. It is not part of `notes`, because not every comparison
    /// times requests.
    pub fn not_timed(&self) -> Option<String> {
        not_timed(self.processes.len(), self.ports.len())
    }

    /// Refuses a guard on a rate if not all of the service is timed.
    pub(crate) fn may_guard(&self, guard: &Guard) -> Result<(), CompareError> {
        match self.not_timed() {
            Some(why) if matches!(guard, Guard::Condition(Condition::Rate(_))) => {
                Err(CompareError::Usage(format!("{guard}: {why}; give a percentile or a command")))
            }
            _ => Ok(()),
        }
    }

    /// Starts to time the service's requests.
    ///
    /// # Errors
    /// As for [`Service::timed`], or if the kernel refuses.
    pub fn probe(&self) -> Result<latency::Probe, CompareError> {
        probe(&self.timed()?, &self.device)
    }

    /// The ids of the device's instances.
    pub fn napi_ids(&self) -> Vec<u32> {
        napi_ids(&self.device)
    }
}

impl std::fmt::Display for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}[{}]", self.comm, self.pid)
    }
}

fn not_timed(processes: usize, ports: usize) -> Option<String> {
    let most = latency::Options::MOST;
    let beyond = [(processes, "processes"), (ports, "ports")].into_iter();
    let beyond: Vec<String> = beyond
        .filter(|(all, _)| *all > most)
        .map(|(all, what)| format!("{} of its {all} {what}", all - most))
        .collect();
    let what = beyond.join(" and of ");
    (!what.is_empty())
        .then(|| format!("requests of {what} are not timed: more than {most} cannot be"))
}

/// The inode of the calling thread's network namespace. It has 32 bits, unlike those of file systems.
///
/// # Errors
/// If procfs is not available.
pub(crate) fn netns() -> Result<u32, CompareError> {
    Ok(u32::try_from(Namespace::identity()?.inode).unwrap_or(0))
}

/// The ids of a device's instances.
pub(crate) fn napi_ids(device: &Device) -> Vec<u32> {
    device.napis.iter().map(|napi| napi.id).collect()
}

/// Starts to time requests that come through this device.
pub(crate) fn probe(
    options: &latency::Options,
    device: &Device,
) -> Result<latency::Probe, CompareError> {
    let mut probe = latency::Probe::start(options)?;
    hand_over(&mut probe, device, &napi_ids(device))?;
    Ok(probe)
}

/// Adds the ids of the device's instances to the known ones: a driver that recreates its instances gives them new
/// ids, through which all later requests come. Old ids stay, with their counts. Returns whether there were new
/// ones.
pub(crate) fn follow(
    probe: &mut latency::Probe,
    known: &mut Vec<u32>,
    device: &Device,
) -> Result<bool, CompareError> {
    let new = add(known, &napi_ids(device));
    if new {
        hand_over(probe, device, known)?;
    }
    Ok(new)
}

/// Adds the unknown ids; returns whether there were any.
fn add(known: &mut Vec<u32>, ids: &[u32]) -> bool {
    let new: Vec<u32> = ids.iter().copied().filter(|id| !known.contains(id)).collect();
    known.extend(&new);
    !new.is_empty()
}

fn hand_over(probe: &mut latency::Probe, device: &Device, ids: &[u32]) -> Result<(), CompareError> {
    if sysfs::devices_with_rps().contains(&device.ifname) {
        probe.set_steered(ids)?;
    }
    Ok(())
}

/// The ports on which a process listens, or has a UDP socket bound without a peer.
fn ports_of(process: &Process) -> Result<Vec<u16>, ProcessError> {
    let mut ports = Vec::new();
    for descriptor in process.descriptors(MOST_PROCESSES)?.sockets() {
        let Ok(Some(taken)) = process.take(&descriptor) else { continue };
        let Ok(Some(socket)) = Socket::of(&taken) else { continue };
        let datagrams = socket.kind == SocketType::DGRAM.as_raw() && socket.peer.is_none();
        if socket.listening || datagrams {
            ports.extend(socket.local.map(|local| local.port()).filter(|port| *port != 0));
        }
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_that_are_made_anew_are_known_beside_those_of_before() {
        let mut known = vec![8_193, 8_194];
        assert!(!add(&mut known, &[8_194, 8_193]));
        assert!(add(&mut known, &[8_194, 8_195]));
        assert_eq!(known, [8_193, 8_194, 8_195]);
    }

    #[test]
    fn it_is_said_how_many_processes_and_ports_are_not_timed() {
        assert_eq!(not_timed(128, 128), None);
        assert_eq!(
            not_timed(300, 1).as_deref(),
            Some("requests of 172 of its 300 processes are not timed: more than 128 cannot be")
        );
        let both = not_timed(129, 130).expect("neither");
        assert!(both.contains("1 of its 129 processes and of 2 of its 130 ports"), "{both}");
    }
}
