//! `napkin apply`.

use std::time::Duration;

use napkin_kernel::{Device, shell};
use napkin_linux::apply::{
    self as kernel, Applied, ApplyError, Backend, DeviceRestored, Ended, Linux, Neighbours,
    Options, Plan, Request, Target, Temporary,
};
use napkin_linux::journal::Store;
use napkin_linux::place::Change;
use napkin_os::sched::CpuList;
use napkin_os::signals::Signals;
use napkin_policy::{Policy, Time};
use serde_json::{Value, json};

use crate::failure::{Failure, print, print_json, say};
use crate::guard::{self, Guard};
use crate::{policies, restore, table, units};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Only the device's part of a policy is set here: who polls each NAPI instance, deferral, timeouts.
The program's part (epoll, sockets) is set by napkin run and napkin attach, which suspend20,
napibusy, fullbusy and busypoll need.

Each change is written to a journal with the old value before it is made, so everything can be put
back: by napkin restore, also after a crash; by itself with --for; and a reboot undoes all of it.
Several applies one after the other are put back to what was before the first. Applying what is so
already writes nothing. What somebody else changed meanwhile is told of, not overwritten.

Under a policy that suspends interrupts a program can starve its queue. --for watches for that, as
run and attach do (--guard; napkin attach --help says how it comes); without --for nobody does.

The journal is in $NAPKIN_STATE, else in /run/napkin (root) or $XDG_RUNTIME_DIR/napkin.
Changing a device takes CAP_NET_ADMIN; --dry-run takes nothing.

Examples:
  napkin apply suspend20 --dev eth0 --dry-run       what would be changed
  sudo napkin apply defer20 --dev eth0 --for 10m    and back by itself, or on Ctrl-C
  sudo napkin apply threaded --dev eth0 --cpus 2-5 --rt 10
      queue 0's interrupt and thread on CPU 2, queue 1's on CPU 3 ..., all SCHED_FIFO 10
  sudo napkin apply napibusy --dev eth0 --queue 3   only the instance of receive queue 3
  sudo napkin restore --dev eth0                    put it back
See also: napkin policies, napkin show, napkin diff")]
pub(crate) struct Apply {
    /// The policy: a preset, a member of a family, or one spelled out (see napkin policies).
    #[arg(value_parser = policy)]
    policy: Policy,
    /// The device whose instances are set, as in `ip link`.
    #[arg(long, value_name = "DEV")]
    dev: String,
    /// Only the NAPI instance that polls this receive queue.
    #[arg(long, value_name = "N")]
    queue: Option<u32>,
    /// Also the NAPI instances that poll transmit queues alone; they are left as they are otherwise.
    #[arg(long, conflicts_with = "queue")]
    tx: bool,
    /// The interrupt and the thread of queue i go to the i-th of these CPUs, round and round.
    #[arg(long, value_name = "LIST")]
    cpus: Option<CpuList>,
    /// Real-time priority (SCHED_FIFO) of the NAPI threads, 1 to 99.
    #[arg(long, value_name = "PRIO")]
    rt: Option<u8>,
    /// Temporary it for this time, as in 10m, then put back what was before; also on Ctrl-C or SIGTERM.
    #[arg(long = "for", value_name = "TIME", value_parser = units::duration)]
    limit: Option<Duration>,
    /// With --for: what to do when a program starves a queue: when each of its waits finds something
    /// else that is ready, nobody polls the queue, and nothing is received any more.
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = Guard::Once)]
    guard: Guard,
    /// Also change what somebody else has changed since napkin did.
    #[arg(long)]
    force: bool,
    /// Only say what would be changed.
    #[arg(long)]
    dry_run: bool,
    /// Print JSON; times are in nanoseconds. With --for: one document at each end.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Apply) -> Result<(), Failure> {
    policies::warn(&[args.policy]);
    let cpus = args.cpus.clone().unwrap_or_default().0;
    let options = Options { queue: args.queue, transmit: args.tx, cpus, rt: args.rt };
    let mut backend = Linux::open().map_err(Failure::of)?;
    if args.dry_run {
        let at = backend.look(Target::Name(&args.dev)).map_err(Failure::of)?;
        let plan =
            kernel::plan(&args.policy, &at, backend.kernel(), &options).map_err(Failure::of)?;
        let neighbours = kernel::neighbours(&args.policy, &at.device, args.queue, &[]);
        warn(&plan, &at.device, neighbours.as_ref());
        return print_plan(args, &plan, &plan.changes, neighbours.as_ref());
    }
    let store = Store::open().map_err(|error| match backend.may_change() {
        // The right is what is missing first.
        Err(right) => Failure::of(ApplyError::NoRight { ifname: args.dev.clone(), right }),
        Ok(()) => Failure::of(error),
    })?;
    let request =
        Request { policy: &args.policy, ifname: &args.dev, options: &options, force: args.force };
    let Some(limit) = args.limit else {
        let applied = kernel::apply(&mut backend, &store, &request).map_err(Failure::of)?;
        if args.policy.suspends() {
            guard::unwatched();
        }
        return told_applied(args, &applied);
    };
    // Before anything is changed, so that no signal ends this in between.
    let signals = Signals::block_ends().map_err(Failure::of)?;
    let hold = Temporary::apply(backend, &store, &request).map_err(Failure::of)?;
    // A reader that has gone is no reason to end early.
    let told = told_applied(args, hold.applied());
    let suspends = args.policy.suspends();
    let guard = if suspends { args.guard.start(Some(&hold), true, false) } else { None };
    let time = Time(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX));
    say(&format!("{}: held for {time}; Ctrl-C puts it back", args.dev));
    if let Ended::Signal(signal) = hold.wait(&signals, limit) {
        say(&format!("{}: ended by signal {signal}", args.dev));
    }
    drop(guard);
    let restored = hold.restore().map_err(Failure::of)?;
    ended(args, &restored)?;
    told
}

fn ended(args: &Apply, restored: &DeviceRestored) -> Result<(), Failure> {
    if args.json {
        print_json(&json!({ "restored": restored }))?;
    } else {
        restore::device(restored, false)?;
    }
    if restored.is_complete() { Ok(()) } else { Err(Failure::Exit(1)) }
}

fn told_applied(args: &Apply, applied: &Applied) -> Result<(), Failure> {
    let device = &applied.before.device;
    let neighbours = kernel::neighbours(&args.policy, device, args.queue, &[]);
    warn(&applied.plan, device, neighbours.as_ref());
    print_plan(args, &applied.plan, &applied.done, neighbours.as_ref())
}

fn warn(plan: &Plan, device: &Device, neighbours: Option<&Neighbours>) {
    for warning in &plan.warnings {
        say(&format!("warning: {}: {warning}", plan.policy));
    }
    if plan.nothing_to_place {
        let why = device.why_no_irq().map_or_else(String::new, |why| format!("{why}, and "));
        say(&format!(
            "warning: {}: --cpus places nothing: {why}{} has no threads",
            plan.ifname, plan.policy
        ));
    }
    if plan.transmit_left > 0 {
        say(&format!(
            "note: {}: {} instances only transmit, and are left as they are; --tx sets them, too",
            plan.ifname, plan.transmit_left
        ));
    }
    if let Some(neighbours) = neighbours {
        say(&format!("warning: {neighbours}"));
    }
}

fn print_plan(
    args: &Apply,
    plan: &Plan,
    changes: &[Change],
    neighbours: Option<&Neighbours>,
) -> Result<(), Failure> {
    if args.json {
        let mut value = serde_json::to_value(plan).map_err(Failure::of)?;
        if let Value::Object(fields) = &mut value {
            fields.insert("changes".into(), json!(changes));
            fields.insert("neighbours".into(), json!(neighbours));
            fields.insert("dry-run".into(), json!(args.dry_run));
        }
        return print_json(&value);
    }
    let Plan { ifname, policy, .. } = plan;
    if changes.is_empty() {
        return print(&format!("{ifname}: {policy} already; nothing was changed\n"));
    }
    let mut text = changed(ifname, changes);
    text.push_str(&match (args.dry_run, args.limit) {
        (true, _) => "nothing was changed (--dry-run)\n".to_owned(),
        (false, None) => {
            format!("put it back with: napkin restore {}\n", shell::dev(ifname))
        }
        (false, Some(_)) => String::new(),
    });
    print(&text)
}

/// Changes as a table.
pub(crate) fn changed(ifname: &str, changes: &[Change]) -> String {
    let rows = kernel::fold(changes)
        .into_iter()
        .map(|it| vec![ifname.to_owned(), it.subject, it.what.to_owned(), it.from, it.to]);
    table::columns(&["dev", "instance", "setting", "from", "to"], rows.collect())
}

/// Reads a policy; its errors suggest the nearest name.
pub(crate) fn policy(text: &str) -> Result<Policy, napkin_policy::PolicyError> {
    text.parse()
}
