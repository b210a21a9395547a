//! A wish that stays in force while its card goes through everything that resets settings.

use super::cases::{Outcome, channels_of, ethtool, recreate};
use super::guest::{Guest, STATE};

/// The directory of the guest's wishes.
const ETC: &str = "/run/wishes";

impl Guest {
    /// Runs napkin on the guest's wishes; it must succeed.
    fn wishes(&mut self, arguments: &str) -> Outcome {
        let napkin = env!("CARGO_BIN_EXE_napkin");
        self.does(&format!("NAPKIN_STATE={STATE} NAPKIN_ETC={ETC} {napkin} {arguments}"))
    }

    /// Runs a command on the card, and waits until its wish is in force again. Returns the time until then, in
    /// milliseconds.
    fn held_after(&mut self, what: &str) -> Result<u64, String> {
        let napkin = env!("CARGO_BIN_EXE_napkin");
        let list = format!("NAPKIN_STATE={STATE} NAPKIN_ETC={ETC} {napkin} keep --list");
        let text = self
            .does(&format!(
                "{what}\nbegun=$(date +%s%N)\n\
                 for try in $(seq 200); do {list} > /run/list 2>&1 && break; sleep 0.05; done\n\
                 echo $(( ($(date +%s%N) - begun) / 1000000 )); {list} > /run/list 2>&1"
            ))
            .map_err(|why| format!("not held again after `{what}`: {why}; {}", self.log()))?;
        let last = text.lines().last().unwrap_or_default();
        last.parse().map_err(|_| format!("`{what}` says {text}"))
    }

    /// The keeper's log, and the list with the state of its wish.
    fn log(&mut self) -> String {
        self.vm.sh("cat /run/list /run/keeper.log").text
    }

    /// The number of the keeper's voluntary context switches.
    fn sleeps(&mut self) -> Outcome {
        self.does("awk '/^voluntary_ctxt/ {print $2}' /proc/$(cat /run/keeper.pid)/status")
    }
}

pub(crate) fn kept(guest: &mut Guest, dev: &str) -> Outcome {
    let before = guest.set(dev);
    let policy = guest.policy();
    guest.does(&format!("rm -rf {ETC}; mkdir -m 755 {ETC}"))?;
    let cpus = guest.cpus(" --cpus 1,3");
    guest.wishes(&format!("keep {policy} --dev {dev}{cpus} --name w --yes"))?;
    guest.does(&format!(
        "NAPKIN_STATE={STATE} NAPKIN_ETC={ETC} {} keeper --look never > /run/keeper.log 2>&1 \
         < /dev/null & echo $! > /run/keeper.pid",
        env!("CARGO_BIN_EXE_napkin")
    ))?;
    let held = hold(guest, dev, &before.interrupts);
    let ended = guest.does(
        "kill $(cat /run/keeper.pid)\n\
         for try in $(seq 100); do kill -0 $(cat /run/keeper.pid) 2> /dev/null || exit 0; sleep 0.1; done\n\
         exit 1",
    );
    let log = guest.log();
    let held = held?;
    ended.map_err(|why| format!("it does not end: {why}; {log}"))?;
    guest.left(dev, &before).map_err(|why| format!("{why}; {log}"))?;
    Ok(held)
}

/// irqbalance distributes all interrupts, again and again. The held ones stay, and the keeper logs each move.
fn fight_irqbalance(guest: &mut Guest) -> Outcome {
    if guest.vm.sh("command -v irqbalance").status != 0 {
        return Ok("no irqbalance here".into());
    }
    let moved = "grep -c 'set again: irq-cpus' /run/keeper.log";
    // irqbalance moves the interrupts that no wish holds as well: save them, to restore them below.
    guest.does(
        "for it in /proc/irq/*/smp_affinity_list; do echo $it $(cat $it); done > /run/affinities",
    )?;
    let before: u32 = guest.does(moved)?.parse().unwrap_or(0);
    let run = "mkdir -p /run/irqbalance; irqbalance --foreground --interval 1 > /run/irqbalance.log 2>&1 & \
               echo $! > /run/irqbalance.pid";
    guest.does(run)?;
    let seen = guest.does(&format!(
        "for try in $(seq 100); do test $({moved}) -gt {before} && exit 0; sleep 0.2; done; \
         cat /run/irqbalance.log; exit 1"
    ));
    let held = guest.held_after("true");
    // If all CPUs share a cache, irqbalance distributes once and exits by itself.
    guest.does("kill $(cat /run/irqbalance.pid) 2> /dev/null; true")?;
    guest.does(
        "while read -r it cpus; do echo $cpus > $it; done < /run/affinities 2> /dev/null; true",
    )?;
    seen.map_err(|why| format!("irqbalance moved nothing: {why}; {}", guest.log()))?;
    let after: u32 = guest.does(moved)?.parse().unwrap_or(0);
    Ok(format!("irqbalance {} ({} moved back)", held?, after - before))
}

fn hold(
    guest: &mut Guest,
    dev: &str,
    interrupts: &std::collections::BTreeMap<String, String>,
) -> Outcome {
    let mut times = vec![format!("start {}", guest.held_after("true")?)];
    let placed = guest.set(dev).interrupts;
    let moved = placed.iter().find(|(name, cpus)| interrupts.get(*name) != Some(*cpus));
    if let Some((name, _)) = moved {
        let number = format!(
            "$(awk '$NF == \"{name}\" {{sub(\":\", \"\", $1); print $1}}' /proc/interrupts)"
        );
        let move_it = format!("echo 0,2 > /proc/irq/{number}/smp_affinity_list");
        times.push(format!("interrupt {}", guest.held_after(&move_it)?));
        if !guest.log().contains("set again: irq-cpus") {
            return Err(format!("nobody saw the interrupt moved: {}", guest.log()));
        }
    }
    if dev == "eth0" && moved.is_some() {
        times.push(fight_irqbalance(guest)?);
    }
    let write = format!("echo 3 > /sys/class/net/{dev}/napi_defer_hard_irqs");
    times.push(format!("sysfs {}", guest.held_after(&write)?));
    let down = format!("ip link set {dev} down; ip link set {dev} up");
    times.push(format!("down and up {}", guest.held_after(&down)?));
    for channels in [2, channels_of(dev)] {
        if let Some(command) = ethtool(dev, channels) {
            times.push(format!("{channels} channels {}", guest.held_after(&command)?));
        }
    }
    recreate(guest, dev)?;
    times.push(format!("made anew {}", guest.held_after("true")?));
    // The keeper may still be handling the last event.
    for _ in 0..5 {
        let sleeps = guest.sleeps()?;
        guest.does("sleep 3")?;
        if guest.sleeps()? == sleeps {
            return Ok(format!("in force again, in ms: {}; then asleep", times.join(", ")));
        }
    }
    Err(format!("it does not sleep: {}", guest.log()))
}
