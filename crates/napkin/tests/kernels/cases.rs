//! The cases that run on each card of each kernel. A case begins and ends with the card in its original state, as
//! the tests' own reader sees it. A feature that the kernel lacks must be refused with an error that says so.

use std::collections::BTreeMap;
use std::time::Instant;

use super::guest::{Guest, STATE, Set};
use super::kept::kept;
use super::programs::{attach, moved, pin, rings, run, starvation, suspension, vlan};
use super::xdp::xdp;

/// The result of a case: a remark, or the failure.
pub(crate) type Outcome = Result<String, String>;

/// A case: its name and function.
pub(crate) type Case = (&'static str, fn(&mut Guest, &str) -> Outcome);

pub(crate) const CASES: [Case; 23] = [
    ("show", show),
    ("shared interrupt", shared_interrupt),
    ("apply", apply),
    ("threads", threads),
    ("channels", channels),
    ("more channels", more_channels),
    ("link down", link_down),
    ("namespace", namespace),
    ("made anew", recreated),
    ("disk full", disk_full),
    ("kill -9", killed),
    ("kept", kept),
    ("run", run),
    ("pin", pin),
    ("attach", attach),
    ("moved epoll", moved),
    ("suspension", suspension),
    ("starvation", starvation),
    ("doctor", doctor),
    ("top", top),
    ("vlan", vlan),
    ("rings", rings),
    ("xdp", xdp),
];

/// The ethtool command that sets a card's number of channels; `None` if the card always has one.
pub(crate) fn ethtool(dev: &str, channels: u32) -> Option<String> {
    match dev {
        "eth0" | "eth3" => Some(format!("ethtool -L {dev} combined {channels}")),
        "va" => Some(format!("ethtool -L va rx {channels} tx {channels}")),
        _ => None,
    }
}

pub(crate) fn channels_of(dev: &str) -> u32 {
    if dev == "eth2" { 1 } else { 4 }
}

impl Guest {
    /// Whether this kernel is of this version or a later one.
    pub(crate) fn is(&self, major: u32, minor: u32) -> bool {
        let mut numbers = self.vm.release.split('.').map(|it| it.parse().unwrap_or(0));
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (major, minor)
    }

    /// These options if the kernel lists NAPI instances (since 6.8), which they act on, else none.
    pub(crate) fn cpus(&self, options: &'static str) -> &'static str {
        if self.is(6, 8) { options } else { "" }
    }

    /// A policy with deferral, and with suspension if the kernel has it (since 6.13).
    pub(crate) fn policy(&self) -> &'static str {
        if self.is(6, 13) { "suspend20" } else { "defer20" }
    }

    /// Runs napkin, which must succeed.
    pub(crate) fn succeeds(&mut self, arguments: &str) -> Outcome {
        let answer = self.napkin(arguments);
        match answer.status {
            0 => Ok(answer.text),
            status => Err(format!("napkin {arguments}: exit code {status}: {}", answer.text)),
        }
    }

    /// Runs a command, which must succeed.
    pub(crate) fn does(&mut self, command: &str) -> Outcome {
        let answer = self.vm.sh(command);
        match answer.status {
            0 => Ok(answer.text),
            status => Err(format!("{command}: exit code {status}: {}", answer.text)),
        }
    }
}

/// Linux lists NAPI instances since 6.8. On older kernels, commands that need them are refused with an error that
/// says so.
fn refused_without_instances(guest: &mut Guest, arguments: &str) -> Outcome {
    let answer = guest.napkin(arguments);
    let as_expected = answer.text.contains("this kernel") && answer.text.contains("Linux 6.");
    match answer.status {
        0 => Err(format!("napkin {arguments} is taken: {}", answer.text)),
        _ if !as_expected => Err(format!("napkin {arguments}: {}", answer.text)),
        _ => Ok("refused: no list of instances before 6.8".into()),
    }
}

fn show(guest: &mut Guest, dev: &str) -> Outcome {
    if !guest.is(6, 8) {
        return refused_without_instances(guest, &format!("show {dev}"));
    }
    let shown = guest.succeeds(&format!("show {dev} --json"))?;
    let shown: serde_json::Value = serde_json::from_str(&shown).map_err(|it| it.to_string())?;
    let state = guest.device_state(dev);
    let ids: Vec<u64> = state["napis"]
        .as_object()
        .map(|napis| napis.keys().filter_map(|id| id.parse().ok()).collect())
        .unwrap_or_default();
    let text = shown.to_string();
    for id in &ids {
        if !text.contains(&format!("\"id\":{id}")) {
            return Err(format!("instance {id} is not shown: {text}"));
        }
    }
    Ok(format!("{} instances", ids.len()))
}

/// A card whose queues share one interrupt, as virtio does with too few vectors, is shown with that one.
fn shared_interrupt(guest: &mut Guest, dev: &str) -> Outcome {
    if dev != "eth0" || !guest.is(6, 8) {
        return Ok("not this card's".into());
    }
    guest.does(
        "grep -q \"$(basename $(readlink /sys/class/net/eth1/device))-virtqueues\" /proc/interrupts",
    )?;
    let mut output = guest.succeeds("show eth1")?;
    let policy = guest.policy();
    output += &guest.napkin(&format!("doctor --dev eth1 --policy {policy}")).text;
    output += &guest.succeeds("top --batch --count 1 --filter eth1")?;
    if !output.contains("eth1 without: its queues share interrupt") {
        return Err(format!("its queues share one: {output}"));
    }
    let before = guest.set("eth1");
    guest.succeeds(&format!("apply {policy} --dev eth1 --cpus 1"))?;
    guest.succeeds("restore")?;
    guest.left("eth1", &before)?;
    Ok("one for all queues".into())
}

/// Policies with the settings that the reader must see on each receiving instance.
const POLICIES: [(&str, [u64; 4]); 7] = [
    ("base", [0, 0, 0, 0]),
    ("defer20", [100, 20_000, 0, 0]),
    ("defer200", [100, 200_000, 0, 0]),
    ("suspend20", [100, 20_000, 20_000_000, 0]),
    ("threaded", [0, 0, 0, 1]),
    ("threaded-busy-poll", [100, 15_000, 0, 2]),
    ("threaded=enabled,defer-hard-irqs=7,gro-flush-timeout=33us", [7, 33_000, 0, 1]),
];

fn apply(guest: &mut Guest, dev: &str) -> Outcome {
    let before = guest.set(dev);
    let (mut set, mut refused) = (Vec::new(), Vec::new());
    for (policy, values) in POLICIES {
        let answer = guest.napkin(&format!("apply {policy} --dev {dev}"));
        if answer.status != 0 {
            if !answer.text.contains("lacks") || !answer.text.contains("this kernel") {
                return Err(format!("{policy} is refused in these words: {}", answer.text));
            }
            guest.left(dev, &before).map_err(|it| format!("{policy}, refused: {it}"))?;
            refused.push(policy);
            continue;
        }
        let seen = guest.set(dev);
        if let Err(it) = in_force(&seen, values) {
            return Err(format!("{policy}: {it}: {seen:?}"));
        }
        guest.succeeds(&format!("diff {policy} --dev {dev}"))?;
        guest.succeeds(&format!("restore --dev {dev}"))?;
        guest.left(dev, &before).map_err(|it| format!("{policy}: {it}"))?;
        set.push(policy);
    }
    // By the kernel version that introduced it.
    let lacks = |policy: &str| match policy {
        "suspend20" => !guest.is(6, 13),
        "threaded-busy-poll" => !guest.is(6, 19),
        _ => false,
    };
    if let Some(wrong) = POLICIES.iter().find(|(it, _)| lacks(it) != refused.contains(it)) {
        return Err(format!("{} is refused or taken, and ought not", wrong.0));
    }
    Ok(format!("{} set, {} refused", set.len(), refused.len()))
}

/// Checks the settings of each receiving instance, or, before 6.13, of the device.
fn in_force(set: &Set, values: [u64; 4]) -> Result<(), String> {
    let names = ["defer", "gro", "suspend", "threaded"];
    for (polls, instance) in &set.instances {
        let transmits_only = polls.contains("tx") && !polls.contains("rx");
        let values = if transmits_only { [0; 4] } else { values };
        for (name, value) in names.iter().zip(values) {
            match instance.get(*name) {
                Some(seen) if *seen != value => {
                    return Err(format!("{name} of {polls} is {seen}, and not {value}"));
                }
                _ => {}
            }
        }
    }
    if set.instances.values().all(|instance| instance.len() < 3) {
        let files = [("napi_defer_hard_irqs", values[0]), ("gro_flush_timeout", values[1])];
        for (name, value) in files {
            if set.device[name].as_str() != Some(value.to_string().as_str()) {
                return Err(format!("{name} is {}, and not {value}", set.device[name]));
            }
        }
    }
    Ok(())
}

fn threads(guest: &mut Guest, dev: &str) -> Outcome {
    let before = guest.set(dev);
    if !guest.is(6, 8) {
        let summary =
            refused_without_instances(guest, &format!("apply threaded --dev {dev} --cpus 1,3"))?;
        guest.left(dev, &before)?;
        return Ok(summary);
    }
    guest.succeeds(&format!("apply threaded --dev {dev} --cpus 1,3 --rt 4"))?;
    let seen = guest.set(dev);
    if !seen.threads.iter().any(|it| it == "\"1\" \"4\" \"1\"") {
        return Err(format!("no thread is SCHED_FIFO 4 on CPU 1: {seen:?}"));
    }
    let moved = seen.interrupts.iter().filter(|(name, cpus)| before.interrupts[*name] != **cpus);
    let summary = format!("{} threads, {} interrupts", seen.threads.len(), moved.count());
    guest.succeeds(&format!("restore --dev {dev}"))?;
    guest.left(dev, &before)?;
    Ok(summary)
}

fn channels(guest: &mut Guest, dev: &str) -> Outcome {
    let all = channels_of(dev);
    let Some(few) = ethtool(dev, 2) else { return Ok("has one".into()) };
    let before = guest.set(dev);
    let policy = guest.policy();
    guest.succeeds(&format!("apply {policy} --dev {dev}{}", guest.cpus(" --cpus 1,3")))?;
    guest.does(&few)?;
    let first = guest.napkin("restore");
    guest.does(&ethtool(dev, all).expect("it has some"))?;
    let second = guest.napkin("restore");
    if second.status != 0 {
        return Err(format!("restore, then restore: {} and {}", first.text, second.text));
    }
    guest.left(dev, &before)?;
    Ok(format!("4, 2, restore ({}), 4, restore", first.status))
}

fn more_channels(guest: &mut Guest, dev: &str) -> Outcome {
    let all = channels_of(dev);
    let Some(few) = ethtool(dev, 1) else { return Ok("has one".into()) };
    let before = guest.set(dev);
    guest.does(&few)?;
    let policy = guest.policy();
    // virtio sets the affinity of its interrupts when channels change: napkin does not restore those.
    guest.succeeds(&format!("apply {policy} --dev {dev}"))?;
    guest.does(&ethtool(dev, all).expect("it has some"))?;
    guest.succeeds("restore")?;
    guest.left(dev, &before)?;
    Ok("1, apply, 4, restore".into())
}

fn link_down(guest: &mut Guest, dev: &str) -> Outcome {
    let before = guest.set(dev);
    let policy = guest.policy();
    let mut kept = String::new();
    for apply in [
        format!("{policy}{}", guest.cpus(" --cpus 2")),
        format!("threaded{}", guest.cpus(" --cpus 1 --rt 4")),
    ] {
        guest.succeeds(&format!("apply {apply} --dev {dev}"))?;
        let applied = guest.set(dev);
        guest.does(&format!("ip link set {dev} down; ip link set {dev} up"))?;
        if kept.is_empty() {
            let same = guest.set(dev).instances == applied.instances;
            kept = if same { "values stay" } else { "values go" }.into();
        }
        guest.succeeds("restore")?;
        guest.left(dev, &before).map_err(|it| format!("{apply}: {it}"))?;
    }
    // A thread that the kernel keeps from before must have default scheduling.
    guest.does(&format!("echo 1 > /sys/class/net/{dev}/threaded"))?;
    let threads = guest.set(dev).threads;
    guest.does(&format!("echo 0 > /sys/class/net/{dev}/threaded"))?;
    if !threads.is_empty() {
        return Err(format!("threads have kept {threads:?}"));
    }
    guest.left(dev, &before)?;
    Ok(kept)
}

fn namespace(guest: &mut Guest, dev: &str) -> Outcome {
    let before = guest.set(dev);
    let policy = guest.policy();
    let napkin =
        format!("NAPKIN_STATE={STATE} ip netns exec away {}", env!("CARGO_BIN_EXE_napkin"));
    let commands =
        format!("ip netns add away; ip link set {dev} netns away; ip -n away link set {dev} up");
    let back = format!(
        "ip -n away link set {dev} netns 1; ip netns del away; ip link set {dev} up; {}",
        address(dev)
    );
    guest.succeeds(&format!("apply {policy} --dev {dev}{}", guest.cpus(" --cpus 2")))?;
    guest.does(&commands)?;
    let elsewhere = guest.napkin("restore");
    let restored = guest.does(&format!("{napkin} restore"));
    guest.does(&back)?;
    if elsewhere.status == 0 || !elsewhere.text.contains("another network namespace") {
        return Err(format!("restore where it was says: {}", elsewhere.text));
    }
    restored?;
    guest.left(dev, &before)?;
    // Apply in both namespaces, there and back: all changes are napkin's own.
    guest.succeeds(&format!("apply {policy} --dev {dev}"))?;
    guest.does(&commands)?;
    let changed = guest.does(&format!("{napkin} apply defer200 --dev {dev}"));
    guest.does(&back)?;
    changed?;
    guest.succeeds(&format!("apply {policy} --dev {dev}"))?;
    guest.succeeds("restore")?;
    guest.left(dev, &before)?;
    Ok("told, and put back there; and after a change at each place".into())
}

fn address(dev: &str) -> String {
    let card = dev.trim_start_matches("eth").parse().unwrap_or(9);
    format!("ip addr add 10.9.{card}.1/24 dev {dev} 2> /dev/null; true")
}

/// A veth replaced by another with the same ifindex; a card whose driver was reloaded.
fn recreated(guest: &mut Guest, dev: &str) -> Outcome {
    let before = guest.set(dev);
    let policy = guest.policy();
    guest.succeeds(&format!("apply {policy} --dev {dev}{}", guest.cpus(" --cpus 2")))?;
    recreate(guest, dev)?;
    guest.succeeds("restore")?;
    guest.left(dev, &before)?;
    Ok("restore knows that it is another".into())
}

/// Creates a device again.
pub(crate) fn recreate(guest: &mut Guest, dev: &str) -> Outcome {
    if dev == "va" {
        let index = guest.does("cat /sys/class/net/va/ifindex")?;
        guest.does("ip link del va")?;
        guest.veth(index.parse().ok());
        return Ok(String::new());
    }
    let driver =
        guest.does(&format!("basename $(readlink /sys/class/net/{dev}/device/driver/module)"))?;
    guest.does(&format!("rmmod {driver} && modprobe {driver}"))?;
    let cards = if dev == "eth0" { vec!["eth0", "eth1"] } else { vec![dev] };
    for card in cards {
        guest.does(&format!("{}; ip link set {card} up", address(card)))?;
    }
    Ok(String::new())
}

fn disk_full(guest: &mut Guest, dev: &str) -> Outcome {
    let before = guest.set(dev);
    let policy = guest.policy();
    let fill = format!("cat /dev/zero > {STATE}/filled 2> /dev/null; true");
    let empty = format!("rm -f {STATE}/filled");
    guest.does(&fill)?;
    let refused = guest.napkin(&format!("apply {policy} --dev {dev}"));
    let so = guest.set(dev);
    guest.does(&empty)?;
    if refused.status == 0 || !refused.text.contains("No space left") || so != before {
        return Err(format!("apply with a full disk: {} {}", refused.status, refused.text));
    }
    guest.napkin("restore");
    guest.left(dev, &before)?;
    guest.succeeds(&format!("apply {policy} --dev {dev}{}", guest.cpus(" --cpus 2")))?;
    guest.does(&fill)?;
    let restored = guest.napkin("restore");
    let so = guest.set(dev);
    guest.does(&empty)?;
    if so != before {
        return Err(format!("restore with a full disk: {} {}", restored.status, restored.text));
    }
    guest.succeeds("restore")?;
    guest.left(dev, &before)?;
    Ok("refused, and put back".into())
}

/// Kills apply repeatedly, each time later, until one completes. A build with debug assertions dies at its fault
/// points; one without is killed at tenths of its run time.
fn killed(guest: &mut Guest, dev: &str) -> Outcome {
    let before = guest.set(dev);
    let (policy, napkin) = (guest.policy(), env!("CARGO_BIN_EXE_napkin"));
    let cpus = guest.cpus(" --cpus 1,3");
    let apply = format!("NAPKIN_STATE={STATE} {napkin} apply {policy} --dev {dev}{cpus}");
    let deadly: Vec<String> = if cfg!(debug_assertions) {
        (1..400).step_by(7).map(|fault| format!("NAPKIN_FAULT={fault} {apply}")).collect()
    } else {
        // The shorter of two runs: after a delayed run the steps would be too long to hit the next one.
        let mut shorter = f64::INFINITY;
        for _ in 0..2 {
            let began = Instant::now();
            guest.does(&apply)?;
            shorter = shorter.min(began.elapsed().as_secs_f64());
            guest.succeeds("restore")?;
        }
        let tenth = shorter / 10.0;
        let after = |it: u32| format!("timeout -s KILL {:.3} env {apply}", tenth * f64::from(it));
        (1..=100).map(after).collect()
    };
    for (deaths, command) in deadly.iter().enumerate() {
        let applied = guest.vm.sh(command);
        guest.succeeds("restore").map_err(|it| format!("after {command}: {it}"))?;
        guest.left(dev, &before).map_err(|it| format!("after {command}: {it}"))?;
        if applied.status == 0 {
            return match deaths {
                0 => Err("it never died".into()),
                _ => Ok(format!("{deaths} deaths")),
            };
        }
    }
    Err("apply never came to its end".into())
}

fn doctor(guest: &mut Guest, dev: &str) -> Outcome {
    if !guest.is(6, 8) {
        return refused_without_instances(guest, "doctor");
    }
    let before = guest.set(dev);
    let answer = guest.napkin(&format!("doctor --dev {dev} --json"));
    let json: serde_json::Value = serde_json::from_str(&answer.text)
        .map_err(|error| format!("exit code {}: {error}: {}", answer.status, answer.text))?;
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    let devices = json["devices"].as_array().ok_or("no devices")?;
    let findings = devices.iter().flat_map(|it| it["findings"].as_array().into_iter().flatten());
    for finding in findings {
        *counts.entry(finding["status"].as_str().unwrap_or("?").to_owned()).or_default() += 1;
    }
    let mut results: Vec<String> =
        counts.iter().map(|(status, count)| format!("{count} {status}")).collect();
    if guest.is(6, 13) {
        results.push(lasting(guest, dev)?);
    }
    guest.left(dev, &before)?;
    Ok(results.join(", "))
}

/// Compares doctor's statement on whether settings last with what happens. If the kernel does not keep settings, it
/// depends on the driver whether it creates its instances again, so that either outcome is right.
fn lasting(guest: &mut Guest, dev: &str) -> Outcome {
    guest.succeeds(&format!("apply {} --dev {dev}", guest.policy()))?;
    let card = dev.trim_start_matches("eth").parse().unwrap_or(9);
    if dev == "va" {
        // Packets that the sender has not segmented bypass the instances.
        guest.does("ip netns exec peer ethtool -K vb tso off gso off")?;
    }
    guest.does(&format!("ping -q -i 0.1 10.9.{card}.100 > /dev/null & echo $! > /run/ping.pid"))?;
    let answer = guest.napkin(&format!("doctor --dev {dev} --for 3s --json"));
    guest.does("kill $(cat /run/ping.pid)")?;
    let json: serde_json::Value = serde_json::from_str(&answer.text)
        .map_err(|error| format!("exit code {}: {error}: {}", answer.status, answer.text))?;
    let findings = json["devices"][0]["findings"].as_array().ok_or("no findings")?;
    let finding = findings.iter().find(|it| it["check"] == "lasting").ok_or("not told")?;
    let applied = guest.set(dev);
    guest.does(&format!("ip link set {dev} down; ip link set {dev} up"))?;
    let stay = guest.set(dev).instances == applied.instances;
    guest.succeeds("restore")?;
    match (finding["status"].as_str(), stay) {
        (Some("ok"), true) => Ok("kept, and they stay".into()),
        (Some("advice"), true) => Ok("not kept, and not made anew".into()),
        (Some("advice"), false) => Ok("not kept, and they go".into()),
        _ => Err(format!("values stay: {stay}, and doctor says {finding}")),
    }
}

fn top(guest: &mut Guest, dev: &str) -> Outcome {
    if !guest.is(6, 8) {
        return refused_without_instances(guest, "top --batch --count 1");
    }
    let text = guest.succeeds(&format!("top --batch --json --count 1 --filter {dev}"))?;
    let json: serde_json::Value = serde_json::from_str(&text).map_err(|it| it.to_string())?;
    let napis = json["napis"].as_array().ok_or("no instances")?;
    let all = |field: &str| napis.iter().filter(|it| it[field].is_number()).count();
    if napis.iter().any(|it| it["ifname"] != dev) || napis.is_empty() {
        return Err(format!("these are not the instances of {dev}: {text}"));
    }
    let counts = ["polls_per_s", "interrupts_per_s"].map(all);
    Ok(format!("{} instances, polls of {}, interrupts of {}", napis.len(), counts[0], counts[1]))
}
