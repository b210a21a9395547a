//! Facts that are read instead of timed: the kernel's configuration and boot parameters, the number of CPUs, the
//! properties of a device.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use napkin_kernel::netlink::{Ethtool, Netdev, Route};
use napkin_machine::profile::ValueKind;
use napkin_os::procfs::read_text;

use super::derive::{Constant, Missing};
use napkin_workload::error::BenchError;
use napkin_workload::linux::failed;

const LIMIT: usize = 1 << 20;

/// Constants that were read, and keys that could not be.
#[derive(Debug, Default)]
pub(super) struct Facts {
    pub(super) constants: Vec<Constant>,
    pub(super) missing: Vec<Missing>,
}

impl Facts {
    fn read(&mut self, key: &str, value: f64, source: impl Into<String>) {
        self.constants.push(Constant::sourced(key, value, source));
    }

    fn assume(&mut self, key: &str, value: f64, why: impl Into<String>) {
        self.constants.push(Constant::assumed(key, value, why));
    }

    fn note_missing(&mut self, keys: &str, why: impl Into<String>) {
        self.missing.push(Missing { keys: keys.into(), why: why.into() });
    }

    fn word(&mut self, key: &str, word: &str, source: impl Into<String>) {
        if let Some(place) = word_of(key, word) {
            self.read(key, place, source);
        }
    }
}

/// The index of a word among a key's choices.
pub(super) fn word_of(key: &str, word: &str) -> Option<f64> {
    match napkin_workload::schema().key(key)?.takes {
        ValueKind::Choice(words) => {
            words.iter().position(|it| *it == word).map(|place| place as f64)
        }
        _ => None,
    }
}

fn text(path: impl AsRef<Path>) -> Option<String> {
    read_text(path, LIMIT).ok().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// The major and minor number of a release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|it: char| !it.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// The kernel's configuration, and where it was found.
fn configuration(release: &str) -> Option<(String, &'static str)> {
    if let Some(text) = text(format!("/boot/config-{release}")) {
        return Some((text, "/boot/config"));
    }
    let packed = "/proc/config.gz";
    if !Path::new(packed).exists() {
        return None;
    }
    let output = Command::new("gzip").args(["-dc", packed]).stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok().filter(|text| text.contains("CONFIG_"))?;
    Some((text, packed))
}

/// The value of a configuration option.
fn option<'a>(configuration: &'a str, name: &str) -> Option<&'a str> {
    let lines = configuration.lines();
    lines.filter_map(|line| line.split_once('=')).find(|(key, _)| *key == name).map(|it| it.1)
}

/// Facts on the host and its kernel. `period` is the measured period of the tick in nanoseconds, if known.
pub(super) fn host(period: Option<f64>) -> Facts {
    let mut facts = Facts::default();
    processor(&mut facts);
    let release = text("/proc/sys/kernel/osrelease").unwrap_or_default();
    let configuration = configuration(&release);
    let configured = |name: &str| {
        let (text, from) = configuration.as_ref()?;
        Some((option(text, name)?, *from))
    };
    match (configured("CONFIG_HZ").and_then(|(hz, from)| Some((hz.parse().ok()?, from))), period) {
        (Some((hz, from)), _) => facts.read("kernel.hz", hz, format!("{from}: CONFIG_HZ")),
        (None, Some(period)) => {
            let near = |hz: &&f64| (1e9 / **hz / period - 1.0).abs() < 0.05;
            match [100.0, 250.0, 300.0, 1000.0].iter().find(near) {
                Some(hz) => facts.read("kernel.hz", *hz, "the time between two ticks, measured"),
                None => facts.note_missing("kernel.hz", format!("ticks came every {period:.0} ns")),
            }
        }
        (None, None) => facts.note_missing(
            "kernel.hz",
            "neither /boot/config nor /proc/config.gz, and no ticks were recorded",
        ),
    }
    preemption(&mut facts, configured);
    match configured("CONFIG_IRQ_TIME_ACCOUNTING") {
        Some((_, from)) => facts.word("kernel.irq-time", "on", from),
        None => match &configuration {
            Some((_, from)) => facts.word("kernel.irq-time", "off", *from),
            None => {
                facts.note_missing("kernel.irq-time", "no configuration of this kernel to be read");
            }
        },
    }
    rules(&mut facts, &release);
    facts
}

fn processor(facts: &mut Facts) {
    let online = text("/sys/devices/system/cpu/online");
    let counted = online.as_deref().and_then(|list| list.parse::<napkin_os::sched::CpuList>().ok());
    match counted {
        Some(list) => {
            facts.read("processor.cpus", list.0.len() as f64, "/sys/devices/system/cpu/online");
        }
        None => {
            facts.note_missing("processor.cpus", "/sys/devices/system/cpu/online cannot be read");
        }
    }
    let info = text("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = info.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    match field("cpu MHz").and_then(|mhz| mhz.parse::<f64>().ok()).filter(|mhz| *mhz > 0.0) {
        Some(mhz) => facts.read(
            "processor.frequency",
            (mhz * 1e6).round(),
            "/proc/cpuinfo: what the first CPU had at this moment",
        ),
        None => facts.note_missing("processor.frequency", "/proc/cpuinfo has no 'cpu MHz' here"),
    }
    let siblings = text("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list");
    let siblings = siblings.and_then(|list| list.parse::<napkin_os::sched::CpuList>().ok());
    match siblings.map(|list| list.0.len()) {
        Some(smt) => {
            let file = "/sys/devices/system/cpu/cpu0/topology/thread_siblings_list";
            facts.read("processor.smt", smt as f64, file);
            if smt > 1 {
                facts.note_missing(
                    "processor.smt-speed",
                    "needs two threads of one core under load",
                );
            } else {
                facts.read("processor.smt-speed", 1.0, "no siblings");
            }
        }
        None => facts.note_missing("processor.smt, processor.smt-speed", "no topology in /sys"),
    }
}

fn preemption<'a>(facts: &mut Facts, configured: impl Fn(&str) -> Option<(&'a str, &'static str)>) {
    let key = "kernel.preemption";
    // Format: "none voluntary (full) lazy".
    if let Some(models) = text("/sys/kernel/debug/sched/preempt")
        && let Some(chosen) = models.split_once('(').and_then(|it| it.1.split_once(')'))
    {
        return facts.word(key, chosen.0, "/sys/kernel/debug/sched/preempt");
    }
    let line = text("/proc/cmdline").unwrap_or_default();
    let asked = line.split_ascii_whitespace().find_map(|word| word.strip_prefix("preempt="));
    if let Some(asked) = asked.filter(|asked| word_of(key, asked).is_some()) {
        return facts.word(key, asked, "/proc/cmdline");
    }
    let models = [
        ("CONFIG_PREEMPT_NONE", "none"),
        ("CONFIG_PREEMPT_VOLUNTARY", "voluntary"),
        ("CONFIG_PREEMPT_LAZY", "lazy"),
        ("CONFIG_PREEMPT", "full"),
    ];
    for (option, word) in models {
        if let Some(("y", from)) = configured(option) {
            return facts.word(key, word, format!("{from}: {option}"));
        }
    }
    facts.note_missing(
        key,
        "debugfs is not mounted or not for this user, and there is no configuration",
    );
}

/// Facts that follow from the kernel's version.
fn rules(facts: &mut Facts, release: &str) {
    let Some(version) = version(release) else {
        return facts.note_missing(
            "kernel.scheduler and other rules of its version",
            "no release in /proc",
        );
    };
    let of = format!("Linux {release}");
    let scheduler = if version >= (6, 6) { "eevdf" } else { "cfs" };
    facts.word("kernel.scheduler", scheduler, format!("{of}: eevdf since 6.6"));
    let on = |yes: bool| if yes { "on" } else { "off" };
    let inline = !((4, 9)..(6, 5)).contains(&version);
    let once_more = "up to 7.1, and in 6.18 stable to September 2026";
    // The last field: whether the version alone decides it.
    for (key, yes, when, by_version) in [
        ("inline-while-ksoftirqd", inline, "off from 4.9 to 6.4", true),
        ("session-polls-once-more", version < (7, 2), once_more, version != (6, 18)),
        ("prolongs-without-poll", true, "from 6.13 to 7.3 at least", version <= (7, 3)),
        ("hrtick", version >= (7, 1), "since 7.1", true),
        ("stacks-on-bound", ((5, 6)..=(5, 15)).contains(&version), "from 5.6 to 5.15", true),
        ("sync-wake-preempts", version < (6, 19), "up to 6.18", true),
        ("next-buddy", version >= (6, 19), "since 6.19", true),
    ] {
        let (key, why) = (format!("kernel.{key}"), format!("{of}: {when} (docs/races.md)"));
        match word_of(&key, on(yes)) {
            Some(value) if by_version => facts.read(&key, value, why),
            Some(value) => facts.assume(&key, value, why),
            None => {}
        }
    }
    if let Some(slice) =
        text("/sys/kernel/debug/sched/base_slice_ns").and_then(|it| it.parse().ok())
    {
        facts.read("kernel.slice", slice, "/sys/kernel/debug/sched/base_slice_ns");
    } else if version >= (6, 6) {
        let cpus = std::thread::available_parallelism().map_or(1, |it| it.get()).min(8);
        let base = if version >= (6, 15) { 700_000.0 } else { 750_000.0 };
        let why = format!("{of}'s default for {cpus} CPUs; debugfs is not to be read");
        facts.assume("kernel.slice", base * f64::from(1 + cpus.ilog2()), why);
    }
    match text("/proc/sys/net/core/gro_normal_batch").and_then(|it| it.parse().ok()) {
        Some(batch) => facts.read("nic.gro-batch", batch, "sysctl net.core.gro_normal_batch"),
        None => facts.note_missing("nic.gro-batch", "no sysctl net.core.gro_normal_batch"),
    }
}

/// Facts on a veth pair between two namespaces, as `bench --world linux` creates it, with its memcached.
pub(super) fn veth() -> Facts {
    let mut facts = Facts::default();
    let a_veth = "a veth: frames change hands in memory";
    facts.read("nic.queues", 1.0, "the veth that napkin makes has one");
    facts.read("nic.ring", 256.0, "Linux: VETH_RING_SIZE");
    facts.word("nic.order", "deliver-first", "Linux: veth_poll completes, then looks again");
    for key in ["nic.dma", "nic.interrupt-latency", "nic.transmit", "link.latency"] {
        facts.read(key, 0.0, a_veth);
    }
    facts.read("link.rate", 1e12, a_veth);
    facts.read("nic.coalesce-usecs", 0.0, "a veth has no moderation");
    facts.read("nic.coalesce-frames", 0.0, "a veth has no moderation");
    for key in ["nic.coalesce-restarts", "nic.adaptive", "nic.tx-interrupts"] {
        facts.word(key, "off", "a veth has no interrupts");
    }
    facts.word("nic.late-frames", "poll", "Linux: veth_poll looks at its ring once more");
    facts.read("nic.tx-budget", 0.0, "a veth has no transmit completions");
    facts.word("nic.follows-affinity", "off", "a veth has no interrupts");
    facts.word("nic.interrupt-cpu", "sender", "a veth: the sender's softirq polls");
    facts.read(
        "cost.nic-handler",
        0.0,
        "a veth has no interrupt: its sender schedules the instance",
    );
    facts.read("cost.mask", 0.0, "a veth: a flag that the poll leaves set");
    facts.read("cost.unmask", 0.0, "a veth: a store and a look at its ring, in cost.poll");
    facts.read("cost.poll-completion", 0.0, "a veth has no transmit completions");
    facts.read("cost.send-frame", 0.0, "a veth: in cost.send, with the receiver's poll in it");
    let client = "napkin bench memcached --world linux: its client";
    for (key, value) in [
        ("memcached.connections", 32.0),
        ("memcached.client-machines", 1.0),
        ("memcached.client-queues", 1.0),
        ("memcached.client-moderation", 0.0),
        ("memcached.client-slow", 0.0),
        ("memcached.hottest-queue", 0.0),
    ] {
        facts.read(key, value, client);
    }
    facts.word(
        "memcached.client-acks",
        "off",
        format!("{client} acknowledges with its next request"),
    );
    facts
}

/// Facts on a device of this host.
///
/// # Errors
/// If there is no device of this name.
pub(super) fn device(ifname: &str) -> Result<Facts, BenchError> {
    let mut facts = Facts::default();
    let link = Route::open().and_then(|mut route| route.link(ifname)).map_err(failed)?;
    let queues = fs::read_dir(format!("/sys/class/net/{ifname}/queues")).map_err(failed)?;
    let queues = queues
        .filter_map(Result::ok)
        .filter(|it| it.file_name().to_string_lossy().starts_with("rx-"))
        .count();
    facts.read("nic.queues", queues as f64, format!("/sys/class/net/{ifname}/queues"));
    let mut ethtool = Ethtool::open().map_err(failed)?;
    match ethtool.rings(ifname).map_err(failed)?.and_then(|rings| rings.rx) {
        Some(ring) => facts.read("nic.ring", f64::from(ring), format!("ethtool -g {ifname}")),
        None => facts.note_missing("nic.ring", format!("{ifname}'s driver does not say")),
    }
    let coalescing = ethtool.coalescing(ifname).map_err(failed)?.unwrap_or_default();
    let from = format!("ethtool -c {ifname}");
    match coalescing.rx_usecs {
        Some(usecs) => facts.read("nic.coalesce-usecs", f64::from(usecs) * 1e3, &from),
        None => facts.note_missing("nic.coalesce-usecs", format!("{ifname}'s driver does not say")),
    }
    match coalescing.rx_frames {
        Some(frames) => facts.read("nic.coalesce-frames", f64::from(frames), &from),
        None => {
            facts.note_missing("nic.coalesce-frames", format!("{ifname}'s driver does not say"));
        }
    }
    match coalescing.adaptive_rx {
        Some(adapts) => facts.word("nic.adaptive", if adapts { "on" } else { "off" }, &from),
        None => facts.note_missing("nic.adaptive", format!("{ifname}'s driver does not say")),
    }
    let speed = text(format!("/sys/class/net/{ifname}/speed")).and_then(|it| it.parse().ok());
    match speed.filter(|mbit: &f64| *mbit > 0.0) {
        Some(mbit) => {
            facts.read("link.rate", mbit * 1e6, format!("/sys/class/net/{ifname}/speed"));
        }
        None => facts.note_missing("link.rate", format!("{ifname} does not say its speed")),
    }
    let napis = Netdev::open().and_then(|mut it| it.napis(Some(link.ifindex)));
    let napis = napis.map_or(0, |napis| napis.len());
    facts.note_missing(
        "cost.nic-handler, cost.mask, cost.unmask, cost.poll-completion, cost.send-frame, nic.dma, \
         nic.interrupt-latency, nic.transmit, link.latency, nic.order",
        format!(
            "these are {ifname}'s driver's and its card's ({napis} NAPI instances): no load is put on a \
             device that is not napkin's own. cost.poll and cost.poll-frame are a veth's"
        ),
    );
    Ok(facts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_its_two_first_numbers() {
        assert_eq!(version("6.18.44-fc-v657"), Some((6, 18)));
        assert_eq!(version("7.2"), Some((7, 2)));
        assert_eq!(version("none"), None);
    }

    #[test]
    fn a_rule_that_a_version_alone_does_not_tell_is_assumed() {
        let rule = |release: &str, key: &str| {
            let mut facts = Facts::default();
            rules(&mut facts, release);
            let constant = facts.constants.iter().find(|it| it.key == key).expect("a rule");
            (constant.sourced, constant.value)
        };
        let key = "kernel.session-polls-once-more";
        let words = ["6.17.1", "6.18.44", "6.19", "7.2"].map(|release| rule(release, key));
        assert_eq!(words, [(true, 1.0), (false, 1.0), (true, 1.0), (true, 0.0)]);
        let words = ["7.3", "7.4"].map(|release| rule(release, "kernel.prolongs-without-poll"));
        assert_eq!(words, [(true, 1.0), (false, 1.0)]);
    }

    #[test]
    fn an_option_is_what_its_own_line_says() {
        let text = "# CONFIG_HZ_100 is not set\nCONFIG_HZ_250=y\nCONFIG_HZ=250\n";
        assert_eq!(option(text, "CONFIG_HZ"), Some("250"));
        assert_eq!(option(text, "CONFIG_HZ_100"), None);
    }

    #[test]
    fn all_that_is_said_of_a_veth_and_of_this_host_are_keys() {
        let (veth, host) = (veth(), host(Some(4e6)));
        for constant in veth.constants.iter().chain(&host.constants) {
            assert!(napkin_workload::schema().key(&constant.key).is_some(), "{}", constant.key);
        }
        assert!(veth.missing.is_empty());
    }

    #[test]
    fn no_device_of_that_name_is_an_error() {
        assert!(device("nk-none").unwrap_err().to_string().contains("nk-none"));
    }
}
