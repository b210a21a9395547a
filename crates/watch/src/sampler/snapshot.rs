//! The result of one sample.

use std::collections::BTreeMap;

use crate::sample::CpuSample;
use napkin_kernel::count::Counts;
use napkin_kernel::count::latency::Parts;
use napkin_kernel::device::NoIrq;
use napkin_kernel::settings::Settings;

/// All values at one time.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Snapshot {
    /// Nanoseconds of the monotonic clock.
    pub at_ns: u64,
    /// The instances of this namespace, by device and ID.
    pub napis: Vec<NapiSnapshot>,
    /// The online CPUs, by number.
    pub cpus: Vec<CpuSample>,
    /// What could not be known, and why.
    pub notes: Vec<String>,
}

/// One instance at one time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NapiSnapshot {
    /// Its device's ifindex.
    pub ifindex: u32,
    /// Its device's name.
    pub ifname: String,
    /// NAPI ID, as the kernel or the engine numbers it.
    pub id: u32,
    /// The receive queues that it polls, if the driver reports them.
    pub rx_queues: Vec<u32>,
    /// The transmit queues that it polls, if the driver reports them.
    pub tx_queues: Vec<u32>,
    /// Its interrupt's number.
    pub irq: Option<u32>,
    /// Its thread's ID.
    pub pid: Option<i32>,
    /// Its settings.
    pub settings: Settings,
    /// The name of the policy in force, or of the nearest one with the differences.
    pub mode: String,
    /// The CPU of its last poll, or the one on which its thread last ran.
    pub cpu: Option<usize>,
    /// Polls, packets and timers since counting began; zeros if it was not polled since.
    pub counts: Option<Counts>,
    /// Its interrupts since the first sample, on all CPUs. An interrupt that several instances share counts for each.
    pub interrupts: Option<u64>,
    /// CPU time of its thread, in nanoseconds.
    pub thread_cpu_ns: Option<u64>,
    /// Durations of the requests timed since the start, by part.
    pub latency: Option<Parts>,
    /// The programs whose sockets it serves, with the most sockets first: `memcached[812]`.
    pub owners: Vec<String>,
}

/// Notes on what is unknown of instances, with the reasons.
pub(super) fn unknown(napis: &[NapiSnapshot], no_irq: &BTreeMap<u32, NoIrq>) -> Vec<String> {
    let mut without: BTreeMap<(Option<&NoIrq>, &str), usize> = BTreeMap::new();
    for napi in napis.iter().filter(|napi| napi.irq.is_none()) {
        let why = no_irq.get(&napi.ifindex);
        // One line for all virtual devices: a host with containers has hundreds.
        let ifname = if why == Some(&NoIrq::Virtual) { "" } else { &napi.ifname };
        *without.entry((why, ifname)).or_default() += 1;
    }
    let mut notes: Vec<String> = without
        .into_iter()
        .map(|((why, ifname), count)| {
            let of = if ifname.is_empty() { String::new() } else { format!(" of {ifname}") };
            let why = why.map_or_else(|| "it is not known which".to_owned(), NoIrq::to_string);
            format!("irq, intr: {}{of} without: {why}", instances(count))
        })
        .collect();
    let queueless = napis.iter().filter(|it| it.rx_queues.is_empty() && it.tx_queues.is_empty());
    match queueless.count() {
        0 => {}
        count => notes
            .push(format!("rx: {} of which the driver does not say the queues", instances(count))),
    }
    notes
}

fn instances(count: usize) -> String {
    format!("{count} instance{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(ifindex: u32, ifname: &str, rx: &[u32], tx: &[u32]) -> NapiSnapshot {
        NapiSnapshot {
            ifindex,
            ifname: ifname.into(),
            id: 513,
            rx_queues: rx.to_vec(),
            tx_queues: tx.to_vec(),
            irq: None,
            pid: None,
            settings: Settings::default(),
            mode: "base".into(),
            cpu: None,
            counts: None,
            interrupts: None,
            latency: None,
            thread_cpu_ns: None,
            owners: Vec::new(),
        }
    }

    #[test]
    fn what_is_not_known_is_said_with_its_reason() {
        let why = BTreeMap::from([
            (2, NoIrq::Virtual),
            (3, NoIrq::Virtual),
            (4, NoIrq::Shared { irq: 38 }),
            (5, NoIrq::Unreported { driver: Some("hv_netvsc".into()) }),
        ]);
        let napis = [
            instance(2, "va", &[0], &[]),
            instance(3, "vb", &[0], &[]),
            instance(4, "eth1", &[0], &[0]),
            instance(4, "eth1", &[], &[1]),
            instance(5, "eth2", &[], &[]),
        ];
        assert_eq!(
            unknown(&napis, &why),
            [
                "irq, intr: 2 instances without: a virtual device has no interrupts",
                "irq, intr: 2 instances of eth1 without: its queues share interrupt 38, which is no \
                 instance's alone",
                "irq, intr: 1 instance of eth2 without: its driver (hv_netvsc) does not tell which \
                 interrupts are its queues'",
                "rx: 1 instance of which the driver does not say the queues",
            ]
        );
        assert_eq!(unknown(&[], &why), Vec::<String>::new());
    }
}
