//! Random histories: actions of users and drivers, and a full disk, between an apply and the last restore.

use std::sync::atomic::{AtomicU64, Ordering};

use super::cases::{Outcome, recreate};
use super::guest::{CARDS, Guest, STATE};

/// Random numbers by splitmix64.
struct Dice(u64);

impl Dice {
    fn below(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % sides as u64).expect("below a usize")
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
}

fn from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|it| it.parse().ok()).unwrap_or(default)
}

/// The seeds that all machines share; each takes the next one when it is free.
pub(crate) struct Seeds {
    next: AtomicU64,
    end: u64,
}

impl Seeds {
    /// The seeds that the environment asks for.
    pub(crate) fn asked() -> Seeds {
        let first = from_environment("NAPKIN_SEED", 1);
        Seeds { next: first.into(), end: first + from_environment("NAPKIN_HISTORIES", 0) }
    }

    fn take(&self) -> Option<u64> {
        let seed = self.next.fetch_add(1, Ordering::Relaxed);
        (seed < self.end).then_some(seed)
    }
}

/// Runs histories until no seed is left.
pub(crate) fn many(guest: &mut Guest, version: &str, seeds: &Seeds) {
    while let Some(seed) = seeds.take() {
        if let Err(what) =
            super::attempt(guest, version, || Guest::boot(version), |guest| one(guest, seed))
        {
            panic!("NAPKIN_SEED={seed} NAPKIN_HISTORIES=1 goes through it again:\n{what}");
        }
        println!("history {seed} left nothing");
    }
}

/// Runs one history. Fails with its events if something is left.
fn one(guest: &mut Guest, seed: u64) -> Outcome {
    let mut dice = Dice(seed);
    let (dev, _) = dice.of(&CARDS);
    let before = guest.set(dev);
    let mut events = vec![format!("on {dev}:")];
    let mut away = false;
    for _ in 0..3 + dice.below(8) {
        let command = event(guest, &mut dice, dev, &mut away);
        if command == "made anew" {
            events.push(command);
            recreate(guest, dev)?;
            continue;
        }
        let answer = guest.vm.sh(&command);
        events.push(format!("{command}\n    exit code {}: {}", answer.status, answer.text));
    }
    let placed_anew = dev == "eth0" && events.iter().any(|it| it.starts_with("ethtool"));
    // Undo all other changes, so that only napkin's are left to restore.
    let mut end = vec![format!("rm -f {STATE}/filled")];
    if away {
        end.push(format!("ip -n away link set {dev} netns 1; ip netns del away"));
    }
    end.extend(channels(dev, 4));
    end.push(format!("ip link set {dev} up"));
    for command in end {
        let answer = guest.vm.sh(&command);
        events.push(format!("{command}\n    exit code {}: {}", answer.status, answer.text));
    }
    let restored = guest.napkin("restore");
    events.push(format!("restore\n    exit code {}: {}", restored.status, restored.text));
    // virtio sets the affinity of its interrupts when channels change, which overwrites napkin's. napkin reports
    // these and leaves them alone: they are back at the driver's own values.
    let mut alone = restored.text.lines().filter(|line| line.contains("left alone"));
    if restored.status != 0 && dev == "eth0" && alone.all(|it| it.contains("irq-cpus")) {
        let forgotten = guest.napkin("restore --forget");
        events.push(format!("restore --forget\n    {}", forgotten.text));
    }
    if placed_anew {
        // If virtio chose the CPU that napkin had set, napkin restored virtio's choice for fewer channels: have
        // virtio choose again.
        guest.vm.sh("ethtool -L eth0 combined 3; ethtool -L eth0 combined 4");
    }
    let left = guest.left(dev, &before);
    left.map(|()| String::new()).map_err(|what| format!("{}\n{what}", events.join("\n  ")))
}

/// A command that is killed at one of its fault points, or, in a build without them, some time after its start.
fn dies(point: usize, command: &str) -> String {
    match cfg!(debug_assertions) {
        true => format!("NAPKIN_FAULT={} {command}", 1 + point),
        false => format!("timeout -s KILL 0.{:02} env {command}", 1 + point),
    }
}

fn channels(dev: &str, count: usize) -> Option<String> {
    match dev {
        "eth2" => None,
        "va" => Some(format!("ethtool -L va rx {count} tx {count}")),
        dev => Some(format!("ethtool -L {dev} combined {count}")),
    }
}

/// The next random event, as a shell command.
fn event(guest: &mut Guest, dice: &mut Dice, dev: &str, away: &mut bool) -> String {
    let napkin = |away: bool| {
        let inside = if away { "ip netns exec away " } else { "" };
        format!("NAPKIN_STATE={STATE} {inside}{}", env!("CARGO_BIN_EXE_napkin"))
    };
    let policy = dice.of(&[guest.policy(), "defer200", "threaded", "base"]);
    let cpus = guest.cpus(dice.of(&["", " --cpus 1,3", " --cpus 2", " --tx"]));
    let rt = if policy == "threaded" { guest.cpus(dice.of(&["", " --rt 4"])) } else { "" };
    let apply_at = |away| format!("{} apply {policy} --dev {dev}{cpus}{rt}", napkin(away));
    let (napkin, apply) = (napkin(*away), apply_at(*away));
    match dice.below(13) {
        0..=2 => apply,
        3 => dies(dice.below(60), &apply),
        4 => format!("{apply} --for 200ms"),
        5 => format!("timeout -s KILL 0.{} env {apply} --for 5s", 1 + dice.below(4)),
        6 => format!("{napkin} restore"),
        7 => dies(dice.below(40), &format!("{napkin} restore")),
        8 if !*away => channels(dev, 1 + dice.below(4)).unwrap_or(apply),
        9 => {
            let ip = if *away { "ip -n away" } else { "ip" };
            format!("{ip} link set {dev} down; {ip} link set {dev} up")
        }
        10 | 11 => {
            let moved = if *away {
                format!(
                    "ip -n away link set {dev} netns 1; ip netns del away; ip link set {dev} up"
                )
            } else {
                format!(
                    "ip netns add away; ip link set {dev} netns away; ip -n away link set {dev} up"
                )
            };
            *away = !*away;
            let change = if dice.below(2) == 0 { apply_at(*away) } else { "true".into() };
            format!("{moved}; {change}")
        }
        12 if !*away && dice.below(2) == 0 => "made anew".into(),
        _ => dice
            .of(&[
                "cat /dev/zero > /run/state/filled 2> /dev/null; true",
                "rm -f /run/state/filled",
            ])
            .into(),
    }
}
