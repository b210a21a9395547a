//! What is tried on each card of each kernel. A case begins and ends with the card as it was, as the
//! tests' own reader sees it; what the kernel lacks is refused, in words that say so.

use std::collections::BTreeMap;

use super::guest::{Guest, STATE, Set};

/// What came of a case: what there is to say of it, or what went wrong.
pub(crate) type Outcome = Result<String, String>;

/// One of them.
pub(crate) type Case = (&'static str, fn(&mut Guest, &str) -> Outcome);

pub(crate) const CASES: [Case; 17] = [
    ("show", show),
    ("apply", apply),
    ("threads", threads),
    ("channels", channels),
    ("more channels", more_channels),
    ("link down", link_down),
    ("namespace", namespace),
    ("made anew", made_anew),
    ("disk full", disk_full),
    ("kill -9", killed),
    ("run", run),
    ("attach", attach),
    ("moved epoll", moved),
    ("suspension", suspension),
    ("starvation", starvation),
    ("doctor", doctor),
    ("top", top),
];

/// How many channels a card has, and what tells ethtool so; `None` where it has one for good.
fn ethtool(dev: &str, channels: u32) -> Option<String> {
    match dev {
        "eth0" | "eth3" => Some(format!("ethtool -L {dev} combined {channels}")),
        "va" => Some(format!("ethtool -L va rx {channels} tx {channels}")),
        _ => None,
    }
}

fn channels_of(dev: &str) -> u32 {
    if dev == "eth2" { 1 } else { 4 }
}

impl Guest {
    /// Whether this kernel is of this version or a later one.
    fn is(&self, major: u32, minor: u32) -> bool {
        let mut numbers = self.vm.release.split('.').map(|it| it.parse().unwrap_or(0));
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (major, minor)
    }

    /// These options, where the kernel lists what they act on.
    pub(crate) fn cpus(&self, options: &'static str) -> &'static str {
        if self.is(6, 8) { options } else { "" }
    }

    /// A policy of deferral, with suspension where the kernel has it: since 6.13.
    pub(crate) fn policy(&self) -> &'static str {
        if self.is(6, 13) { "suspend20" } else { "defer20" }
    }

    /// Runs napkin, which succeeds.
    fn succeeds(&mut self, arguments: &str) -> Outcome {
        let answer = self.napkin(arguments);
        match answer.status {
            0 => Ok(answer.text),
            status => Err(format!("napkin {arguments}: exit code {status}: {}", answer.text)),
        }
    }

    /// Runs a command which succeeds.
    fn does(&mut self, command: &str) -> Outcome {
        let answer = self.vm.sh(command);
        match answer.status {
            0 => Ok(answer.text),
            status => Err(format!("{command}: exit code {status}: {}", answer.text)),
        }
    }
}

/// Instances are listed since 6.8; what needs them is refused before, in these words.
fn refused_without_instances(guest: &mut Guest, arguments: &str) -> Outcome {
    let answer = guest.napkin(arguments);
    let says = answer.text.contains("this kernel") && answer.text.contains("Linux 6.");
    match answer.status {
        0 => Err(format!("napkin {arguments} is taken: {}", answer.text)),
        _ if !says => Err(format!("napkin {arguments}: {}", answer.text)),
        _ => Ok("refused: no list of instances before 6.8".into()),
    }
}

fn show(guest: &mut Guest, dev: &str) -> Outcome {
    if !guest.is(6, 8) {
        return refused_without_instances(guest, &format!("show {dev}"));
    }
    let shown = guest.succeeds(&format!("show {dev} --json"))?;
    let shown: serde_json::Value = serde_json::from_str(&shown).map_err(|it| it.to_string())?;
    let said = guest.said(dev);
    let ids: Vec<u64> = said["napis"]
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

/// A policy, and what the reader has to see of it on each instance that receives.
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
    // What each kernel has, by its history.
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

/// Whether these are what is set: of each instance that receives, or of the device before 6.13.
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
        let said =
            refused_without_instances(guest, &format!("apply threaded --dev {dev} --cpus 1,3"))?;
        guest.left(dev, &before)?;
        return Ok(said);
    }
    guest.succeeds(&format!("apply threaded --dev {dev} --cpus 1,3 --rt 4"))?;
    let seen = guest.set(dev);
    if !seen.threads.iter().any(|it| it == "\"1\" \"4\" \"1\"") {
        return Err(format!("no thread is SCHED_FIFO 4 on CPU 1: {seen:?}"));
    }
    let moved = seen.interrupts.iter().filter(|(name, cpus)| before.interrupts[*name] != **cpus);
    let said = format!("{} threads, {} interrupts", seen.threads.len(), moved.count());
    guest.succeeds(&format!("restore --dev {dev}"))?;
    guest.left(dev, &before)?;
    Ok(said)
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
    // virtio places its interrupts itself when channels change: those are not napkin's any more.
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
    // A thread that was kept from before is nobody's special one.
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
    guest.succeeds(&format!("apply {policy} --dev {dev}{}", guest.cpus(" --cpus 2")))?;
    guest.does(&format!(
        "ip netns add away; ip link set {dev} netns away; ip -n away link set {dev} up"
    ))?;
    let told = guest.napkin("restore");
    let napkin = env!("CARGO_BIN_EXE_napkin");
    let there = guest.does(&format!("NAPKIN_STATE={STATE} ip netns exec away {napkin} restore"));
    guest.does(&format!(
        "ip -n away link set {dev} netns 1; ip netns del away; ip link set {dev} up"
    ))?;
    guest.does(&address(dev))?;
    if told.status == 0 || !told.text.contains("another network namespace") {
        return Err(format!("restore where it was says: {}", told.text));
    }
    there?;
    guest.left(dev, &before)?;
    Ok("told, and put back there".into())
}

fn address(dev: &str) -> String {
    let card = dev.trim_start_matches("eth").parse().unwrap_or(9);
    format!("ip addr add 10.9.{card}.1/24 dev {dev} 2> /dev/null; true")
}

/// A veth with the same number in another one's place; a card whose driver was loaded again.
fn made_anew(guest: &mut Guest, dev: &str) -> Outcome {
    let before = guest.set(dev);
    let policy = guest.policy();
    guest.succeeds(&format!("apply {policy} --dev {dev}{}", guest.cpus(" --cpus 2")))?;
    again(guest, dev)?;
    guest.succeeds("restore")?;
    guest.left(dev, &before)?;
    Ok("restore knows that it is another".into())
}

/// Makes a device anew.
pub(crate) fn again(guest: &mut Guest, dev: &str) -> Outcome {
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

fn killed(guest: &mut Guest, dev: &str) -> Outcome {
    let before = guest.set(dev);
    let (policy, napkin) = (guest.policy(), env!("CARGO_BIN_EXE_napkin"));
    for (deaths, fault) in (1..400).step_by(7).enumerate() {
        let apply = format!("{napkin} apply {policy} --dev {dev}{}", guest.cpus(" --cpus 1,3"));
        let applied = guest.vm.sh(&format!("NAPKIN_FAULT={fault} NAPKIN_STATE={STATE} {apply}"));
        guest.succeeds("restore").map_err(|it| format!("after a death at {fault}: {it}"))?;
        guest.left(dev, &before).map_err(|it| format!("after a death at {fault}: {it}"))?;
        if applied.status == 0 {
            return Ok(format!("{deaths} deaths"));
        }
    }
    Err("apply never came to its end".into())
}

/// A server that is told nothing of napkin: it waits by epoll and answers.
const SERVER: &str = r#"
import select, signal, socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("0.0.0.0", 5000))
e = select.epoll(); e.register(s, select.EPOLLIN)
print(e.fileno(), flush=True)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
while True:
    for _ in e.poll(): s.sendto(*s.recvfrom(2048))
"#;

/// The same, whose epoll context gets another descriptor when it is told to.
const MOVES: &str = r#"
import os, select, signal, socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("0.0.0.0", 5000))
e = select.epoll(); e.register(s, select.EPOLLIN)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
signal.signal(signal.SIGUSR1, lambda *_: (os.dup2(e.fileno(), 50), e.close()))
print(e.fileno(), flush=True)
while True: signal.pause()
"#;

/// The same, with a descriptor beside the socket that can always be written to.
const ALWAYS_READY: &str = r#"
import os, select, signal, socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("0.0.0.0", 5000))
e = select.epoll(); e.register(s, select.EPOLLIN)
r, w = os.pipe()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print(e.fileno(), flush=True)
asked = False
while True:
    for fd, _ in e.poll():
        if fd == w: continue
        s.sendto(*s.recvfrom(2048))
        if not asked: e.register(w, select.EPOLLOUT); asked = True
"#;

/// Waits until a file has a line, and gives it.
fn line(guest: &mut Guest, path: &str) -> Result<u64, String> {
    let said = guest.does(&format!(
        "for i in $(seq 300); do [ -s {path} ] && break; sleep 0.1; done; head -1 {path}"
    ))?;
    said.trim().parse().map_err(|_| format!("{path}: {said}"))
}

/// Ends the napkin that was started last, and waits for its end.
const END: &str = "kill -TERM $(cat /run/run.pid)
for i in $(seq 300); do kill -0 $(cat /run/run.pid) 2> /dev/null || break; sleep 0.1; done";

/// What an epoll context has under a policy of suspension.
const PREFERS: [u64; 3] = [0, 64, 1];

/// Waits until an epoll context has this.
fn becomes(guest: &mut Guest, pid: u64, descriptor: u64, wanted: [u64; 3]) -> Result<(), String> {
    let mut seen = [0; 3];
    for _ in 0..100 {
        seen = guest.epoll(pid, descriptor);
        if seen == wanted {
            return Ok(());
        }
        guest.does("sleep 0.1")?;
    }
    Err(format!("the epoll context has {seen:?}, and not {wanted:?}"))
}

fn run(guest: &mut Guest, dev: &str) -> Outcome {
    let before = guest.set(dev);
    let (policy, napkin) = (guest.policy(), env!("CARGO_BIN_EXE_napkin"));
    guest.does(&format!("rm -f /run/server* ; cat > /run/server.py <<'END'\n{SERVER}\nEND"))?;
    guest.does(&format!(
        "NAPKIN_STATE={STATE} {napkin} run --policy {policy} --dev {dev} -- \
         sh -c 'echo $$ > /run/server.pid; exec python3 /run/server.py > /run/server.out' \
         > /run/run.out 2>&1 & echo $! > /run/run.pid"
    ))?;
    let (epoll, pid) = (line(guest, "/run/server.out")?, line(guest, "/run/server.pid")?);
    let known = guest.is(6, 9) && policy == "suspend20";
    if known {
        becomes(guest, pid, epoll, PREFERS)?;
    }
    let during = guest.set(dev);
    guest.does(END)?;
    if during == before {
        let said = guest.does("cat /run/run.out")?;
        return Err(format!("nothing was set: {said}"));
    }
    guest.left(dev, &before)?;
    Ok(if known { "device and epoll" } else { "device" }.into())
}

fn attach(guest: &mut Guest, dev: &str) -> Outcome {
    let before = guest.set(dev);
    let (policy, napkin) = (guest.policy(), env!("CARGO_BIN_EXE_napkin"));
    guest.does(&format!("rm -f /run/server* ; cat > /run/server.py <<'END'\n{SERVER}\nEND"))?;
    guest.does("python3 /run/server.py > /run/server.out & echo $! > /run/server.pid")?;
    let (epoll, pid) = (line(guest, "/run/server.out")?, line(guest, "/run/server.pid")?);
    let known = policy == "suspend20";
    let at_first = if known { guest.epoll(pid, epoll) } else { [0; 3] };
    guest.does(&format!(
        "NAPKIN_STATE={STATE} {napkin} attach {pid} --policy {policy} --dev {dev} \
         > /run/run.out 2>&1 & echo $! > /run/run.pid"
    ))?;
    let mut outcome = Ok(());
    if known {
        outcome = becomes(guest, pid, epoll, PREFERS);
    } else {
        guest.does("sleep 2")?;
    }
    let during = guest.set(dev);
    guest.does(END)?;
    let at_last = if known { guest.epoll(pid, epoll) } else { [0; 3] };
    guest.does(&format!("kill -TERM {pid}"))?;
    let said = guest.does("cat /run/run.out")?;
    outcome.map_err(|it| format!("{it}: {said}"))?;
    if during == before {
        return Err(format!("nothing was set: {said}"));
    }
    if at_first != at_last {
        return Err(format!("the epoll context had {at_first:?}, and has {at_last:?}"));
    }
    guest.left(dev, &before)?;
    Ok(if known { "device and epoll" } else { "device" }.into())
}

fn moved(guest: &mut Guest, dev: &str) -> Outcome {
    let (policy, napkin) = (guest.policy(), env!("CARGO_BIN_EXE_napkin"));
    if policy != "suspend20" {
        return Ok("not before 6.13".into());
    }
    let before = guest.set(dev);
    guest.does(&format!("rm -f /run/server* ; cat > /run/server.py <<'END'\n{MOVES}\nEND"))?;
    guest.does("python3 /run/server.py > /run/server.out & echo $! > /run/server.pid")?;
    let (epoll, pid) = (line(guest, "/run/server.out")?, line(guest, "/run/server.pid")?);
    let at_first = guest.epoll(pid, epoll);
    guest.does(&format!(
        "NAPKIN_STATE={STATE} {napkin} attach {pid} --policy {policy} --dev {dev} \
         > /run/run.out 2>&1 & echo $! > /run/run.pid"
    ))?;
    let became = becomes(guest, pid, epoll, PREFERS);
    guest.does(&format!("kill -USR1 {pid}; sleep 1; {END}"))?;
    let at_last = guest.epoll(pid, 50);
    guest.does(&format!("kill -TERM {pid}"))?;
    became?;
    if at_first != at_last {
        return Err(format!("the epoll context had {at_first:?}, and has {at_last:?}"));
    }
    guest.left(dev, &before)?;
    Ok("put back where it is".into())
}

/// A program that never runs out of events, under suspension.
fn starvation(guest: &mut Guest, dev: &str) -> Outcome {
    if !guest.is(6, 13) {
        return Ok("not before 6.13".into());
    }
    if dev == "va" {
        return Ok("as any, and has no peer here".into());
    }
    let before = guest.set(dev);
    let napkin = format!("NAPKIN_STATE={STATE} {}", env!("CARGO_BIN_EXE_napkin"));
    let mut answered = Vec::new();
    for guard in ["off", "once"] {
        guest.does(&format!(
            "rm -f /run/server*; cat > /run/server.py <<'END'\n{ALWAYS_READY}\nEND"
        ))?;
        guest.does(&format!(
            "{napkin} run --policy suspend20 --guard {guard} --dev {dev} -- \
             sh -c 'exec python3 /run/server.py > /run/server.out' > /run/run.out 2>&1 & \
             echo $! > /run/run.pid"
        ))?;
        line(guest, "/run/server.out")?;
        guest.does("sleep 1")?;
        guest.load(dev);
        answered.push(guest.load(dev));
        guest.does(END)?;
    }
    let said = guest.does("cat /run/run.out")?;
    if answered[1] == 0 {
        return Err(format!("no answers with the guard, which says: {said}"));
    }
    // The emulated igb interrupts under suspension, too, so that it does not always starve.
    if answered[0] == 0 && !said.contains("irq-suspend-timeout") {
        return Err(format!("the guard says nothing: {said}"));
    }
    guest.left(dev, &before)?;
    Ok(format!("{} answers without the guard, {} with it", answered[0], answered[1]))
}

/// Prints how long after being armed each timer of an instance was to run out, in microseconds.
const TIMERS: &str = r#"
import re
for line in open("/sys/kernel/tracing/trace"):
    it = re.search(r" (\d+)\.(\d+): hrtimer_start:.*function=napi_watchdog.* expires=(\d+)", line)
    if it: print(int(it[3]) // 1000 - int(it[1]) * 1000000 - int(it[2]))
"#;

/// What a card did while a load ran.
#[derive(Debug)]
struct Counted {
    answered: u64,
    interrupts: u64,
    /// Timers that were to run out in more than 10 ms: those of a suspension, and of nothing else.
    long_timers: u64,
}

impl Counted {
    fn interrupts_per_answer(&self) -> f64 {
        self.interrupts as f64 / self.answered.max(1) as f64
    }
}

/// Counts from outside of napkin, by tracefs and /proc/interrupts, while a server is under a policy.
fn counted(guest: &mut Guest, dev: &str, command: &str) -> Result<Counted, String> {
    let interrupts = format!(
        "grep -E \"$(ls /sys/class/net/{dev}/device/msi_irqs /sys/class/net/{dev}/device/../msi_irqs \
         2> /dev/null | grep -o '^[0-9]*$' | sed 's/.*/^ *&:/' | paste -sd '|')\" /proc/interrupts |
         awk '{{ for (i = 2; i <= 5; i++) sum += $i }} END {{ print sum }}'"
    );
    guest.does(&format!("rm -f /run/server*; cat > /run/server.py <<'END'\n{SERVER}\nEND"))?;
    guest.does(&format!("cat > /run/timers.py <<'END'\n{TIMERS}\nEND"))?;
    guest.does(&format!("{command} > /run/run.out 2>&1 & echo $! > /run/run.pid"))?;
    line(guest, "/run/server.out")?;
    guest.does(
        "sleep 1; cd /sys/kernel/tracing; echo mono > trace_clock; echo 20000 > buffer_size_kb
         echo 1 > events/timer/hrtimer_start/enable",
    )?;
    let number = |text: String| text.trim().parse::<u64>().map_err(|_| text);
    let first = number(guest.does(&interrupts)?)?;
    let answered = guest.load(dev);
    let last = number(guest.does(&interrupts)?)?;
    guest.does("echo 0 > /sys/kernel/tracing/events/timer/hrtimer_start/enable")?;
    let timers = guest.does("python3 /run/timers.py; echo > /sys/kernel/tracing/trace")?;
    let long = timers.lines().filter(|it| it.parse::<i64>().is_ok_and(|it| it > 10_000)).count();
    guest.does(END)?;
    Ok(Counted { answered, interrupts: last - first, long_timers: long as u64 })
}

fn suspension(guest: &mut Guest, dev: &str) -> Outcome {
    if !guest.is(6, 13) {
        return Ok("not before 6.13".into());
    }
    if dev == "va" {
        return Ok("has no interrupts".into());
    }
    let before = guest.set(dev);
    let napkin = format!("NAPKIN_STATE={STATE} {}", env!("CARGO_BIN_EXE_napkin"));
    let server = "sh -c 'exec python3 /run/server.py > /run/server.out'";
    let base = counted(guest, dev, &format!("exec {server}"))?;
    let run = format!("exec env {napkin} run --policy suspend20 --dev {dev} -- {server}");
    let run = counted(guest, dev, &run)?;
    let attach = format!(
        "python3 /run/server.py > /run/server.out & exec env {napkin} attach $! --policy suspend20 \
         --dev {dev}"
    );
    let attach = counted(guest, dev, &format!("bash -c '{attach}'"))?;
    guest.does("kill -TERM $(pgrep -f '^python3 /run/server.py') 2> /dev/null; true")?;
    let told = format!("{base:?} without, {run:?} by run, {attach:?} by attach");
    if base.answered == 0 || base.long_timers > 0 {
        return Err(format!("without napkin: {told}"));
    }
    for by in [&run, &attach] {
        if by.answered == 0 || by.long_timers == 0 {
            return Err(format!("no suspension: {told}"));
        }
    }
    guest.left(dev, &before)?;
    Ok([base, run, attach]
        .iter()
        .map(|it| format!("{:.2} ({} long timers)", it.interrupts_per_answer(), it.long_timers))
        .collect::<Vec<_>>()
        .join(", "))
}

fn doctor(guest: &mut Guest, dev: &str) -> Outcome {
    if !guest.is(6, 8) {
        return refused_without_instances(guest, "doctor");
    }
    let before = guest.set(dev);
    let answer = guest.napkin(&format!("doctor --dev {dev} --json"));
    let said: serde_json::Value = serde_json::from_str(&answer.text)
        .map_err(|error| format!("exit code {}: {error}: {}", answer.status, answer.text))?;
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    let devices = said["devices"].as_array().ok_or("no devices")?;
    let findings = devices.iter().flat_map(|it| it["findings"].as_array().into_iter().flatten());
    for finding in findings {
        *counts.entry(finding["status"].as_str().unwrap_or("?").to_owned()).or_default() += 1;
    }
    let mut told: Vec<String> =
        counts.iter().map(|(status, count)| format!("{count} {status}")).collect();
    if guest.is(6, 13) {
        told.push(lasting(guest, dev)?);
    }
    guest.left(dev, &before)?;
    Ok(told.join(", "))
}

/// Whether doctor says that settings last, and whether they do. Where nothing keeps them it is the
/// driver's choice whether it makes its instances anew, so that nothing is wrong then.
fn lasting(guest: &mut Guest, dev: &str) -> Outcome {
    guest.succeeds(&format!("apply {} --dev {dev}", guest.policy()))?;
    let card = dev.trim_start_matches("eth").parse().unwrap_or(9);
    if dev == "va" {
        // What is not split when it is sent comes past the instances.
        guest.does("ip netns exec peer ethtool -K vb tso off gso off")?;
    }
    guest.does(&format!("ping -q -i 0.1 -w 5 10.9.{card}.100 > /dev/null & sleep 0.5"))?;
    let answer = guest.napkin(&format!("doctor --dev {dev} --for 3s --json"));
    let said: serde_json::Value = serde_json::from_str(&answer.text)
        .map_err(|error| format!("exit code {}: {error}: {}", answer.status, answer.text))?;
    let findings = said["devices"][0]["findings"].as_array().ok_or("no findings")?;
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
    let said: serde_json::Value = serde_json::from_str(&text).map_err(|it| it.to_string())?;
    let napis = said["napis"].as_array().ok_or("no instances")?;
    let all = |field: &str| napis.iter().filter(|it| it[field].is_number()).count();
    if napis.iter().any(|it| it["ifname"] != dev) || napis.is_empty() {
        return Err(format!("these are not the instances of {dev}: {text}"));
    }
    let counts = ["polls_per_s", "interrupts_per_s"].map(all);
    Ok(format!("{} instances, polls of {}, interrupts of {}", napis.len(), counts[0], counts[1]))
}
