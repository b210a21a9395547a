//! `napkin apply`.

use std::time::{Duration, Instant};

use napkin_compare::{Canary, CompareError, End};
use napkin_kernel::device::NoIrqs;
use napkin_kernel::{Device, shell};
use napkin_linux::apply::{
    self as kernel, Applied, ApplyError, Backend, DeviceRestored, Ended, Linux, NOT_STOPPED,
    Neighbours, Options, Plan, Request, Target, Temporary,
};
use napkin_linux::journal::Store;
use napkin_linux::place::Change;
use napkin_measure::report::text;
use napkin_os::sched::CpuList;
use napkin_os::signals::Signals;
use napkin_policy::{NamedPolicy, Policy, Time};
use serde_json::{Value, json};

use crate::failure::{Failure, print, print_failure, print_json, say};
use crate::guard::{self, Guard, Guards};
use crate::policies::{self, policy};
use crate::table::changed;
use crate::{lifeline, restore, units};

#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "\
Only the device's part of a policy is set here: who polls each NAPI instance,
deferral, timeouts. The program's part (epoll, sockets) is set by napkin run
and napkin attach, which suspend20, napibusy, fullbusy and busypoll need.

Each change is written to a journal with the old value before it is made, so
everything can be put back: by napkin restore, also after a crash; by itself
with --for; and a reboot undoes all of it. After several applies restore goes
back to the state before the first. A setting that has its value already is
not written; one that another program changed meanwhile is reported, not
overwritten.

Under a policy that suspends interrupts a program can starve its queue. With
--for napkin watches for that, as run and attach do (--guard; napkin attach
--help explains it); without --for it does not.

A guard that is a CONDITION or a CMD makes this a canary: the policy is put in
force, watched for a time, and put back within a second if the guard breaks;
the exit code is then 3. If the guard holds the policy stays (with --for it is
put back at the end). A guard that was never judged (too few requests in one
second, too short a time) has not held: the policy is put back, with exit code
3. A signal puts it back as well, with exit code 128 and the signal's number
(Ctrl-C: 130). Guards are those of napkin compare:
  p99<2x, p99.9<500us     latency of the server's own part of requests that
                          come through the device, against a multiple of that
                          in the two seconds before the change (which must
                          have ten requests beyond it: 1000 in all for p99),
                          or against a time; any percentile
  rate>0.9x, rate>5000    answers a second
  anything else           a command, run again and again: it breaks the guard
                          by an exit code other than 0, or by not ending for
                          10 s; one that runs at the end is waited for
The first two kinds time requests (CAP_BPF and CAP_PERFMON), and break as well
if the service answers no request, or none through the device, for half a
second. Ctrl-Z is ignored while napkin watches.

The journal is in $NAPKIN_STATE, else in /run/napkin (root) or
$XDG_RUNTIME_DIR/napkin. Changing a device needs CAP_NET_ADMIN; --dry-run
needs no privilege.

Examples:
  napkin apply suspend20 --dev eth0 --dry-run
      what would be changed
  sudo napkin apply defer20 --dev eth0 --for 10m
      put back after 10 minutes, or on Ctrl-C
  sudo napkin apply defer200 --dev eth0 --guard 'p99<2x'
      watched for a minute; then the policy stays
  sudo napkin apply defer200 --dev eth0 \\
      --guard 'curl -fsm1 localhost/healthz >/dev/null' --watch 10m
  sudo napkin apply threaded --dev eth0 --cpus 2-5 --rt 10
      queue 0's interrupt and thread on CPU 2, queue 1's on CPU 3 ..., all
      SCHED_FIFO 10
  sudo napkin apply napibusy --dev eth0 --queue 3
      only the instance of receive queue 3
  sudo napkin restore --dev eth0
      put it back
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
    /// Also set the NAPI instances that poll transmit queues only, which are left alone otherwise.
    #[arg(long, conflicts_with = "queue")]
    tx: bool,
    /// The CPUs of interrupts and threads: those of queue i go to the i-th CPU of the list, and past its end
    /// to the first again.
    #[arg(long, value_name = "LIST")]
    cpus: Option<CpuList>,
    /// Real-time priority (SCHED_FIFO) of the NAPI threads, 1 to 99.
    #[arg(long, value_name = "PRIO", value_parser = units::priority)]
    rt: Option<u8>,
    /// Keep the policy in force for this time, as in 10m, then put everything back; also on Ctrl-C or SIGTERM.
    #[arg(long = "for", value_name = "TIME", value_parser = units::duration)]
    limit: Option<Duration>,
    /// Two guards share this option, each given at most once: the canary (a CONDITION or a CMD), and the
    /// action on starved queues (once, again or off).
    /// If the CONDITION, as 'p99<2x', does not hold, or the CMD fails, the policy is put back at once.
    /// once (the default), again or off is what to do, with --for or --watch, when a program starves a queue:
    /// if each of its waits finds another descriptor ready, the queue is not polled, and receives nothing.
    #[arg(long, value_name = "CONDITION|CMD|WHEN")]
    guard: Vec<Guards>,
    /// How long the canary watches before the policy stays. [default: 1m]
    #[arg(long, value_name = "TIME", value_parser = units::duration, conflicts_with_all = ["limit", "dry_run"])]
    watch: Option<Duration>,
    /// The running program, with its descendants, whose requests a CONDITION judges. [default: all that serve in
    /// this network namespace]
    #[arg(long, value_name = "PID", requires = "guard", value_parser = clap::value_parser!(i32).range(1..))]
    pid: Option<i32>,
    /// Also change settings that another program has changed since napkin did.
    #[arg(long)]
    force: bool,
    /// Allow a policy that can delay packets, without --for and without a guard, on a device that carries the
    /// default route or this terminal's own connection.
    #[arg(long)]
    yes: bool,
    /// Only say what would be changed.
    #[arg(long)]
    dry_run: bool,
    /// Print JSON; times are in nanoseconds. One document when the policy is applied; with --for or a canary
    /// another one at the end, unless the guard held and the policy stays, or an error ended it. In the second,
    /// guard is the reason if the guard ended the policy, else null; unchanged is true if nothing had been changed.
    #[arg(long)]
    json: bool,
}

/// The default of `--watch`: how long a canary watches before the policy stays.
const WATCH: Duration = Duration::from_secs(60);

/// The exit code of a policy that was put back because its guard broke, or was never judged.
const BROKEN: u8 = 3;

pub(crate) fn run(args: &Apply) -> Result<(), Failure> {
    let guards = args.guards()?;
    policies::warn_in_linux(&NamedPolicy::all([args.policy]));
    let cpus = args.cpus.clone().unwrap_or_default().0;
    let options =
        Options { queue: args.queue, transmit: args.tx, cpus, rt: args.rt, ..Options::default() };
    let mut backend = Linux::open().map_err(Failure::of)?;
    if args.dry_run {
        return dry_run(args, &mut backend, &options);
    }
    if args.limit.is_none() && guards.1.is_none() && !args.yes {
        let policy = args.policy.to_string();
        lifeline::check(
            &args.dev,
            [(&*policy, &args.policy)],
            "a --guard, as 'p99<3x', or --for TIME",
        )?;
    }
    let store = Store::open().map_err(|error| match backend.may_change() {
        // A missing capability is the more useful error.
        Err(right) => Failure::of(ApplyError::NoRight { ifname: args.dev.clone(), right }),
        Ok(()) => Failure::of(error),
    })?;
    let request =
        Request { policy: &args.policy, ifname: &args.dev, options: &options, force: args.force };
    let limit = args.limit.or_else(|| guards.1.as_ref().map(|_| args.watch.unwrap_or(WATCH)));
    // Reads every process, which takes time: done before the change, so that the watch is not delayed. If the
    // device cannot be read, `apply` below reports the error.
    let at = backend.look(Target::Name(&args.dev)).ok();
    let neighbours =
        at.and_then(|at| kernel::neighbours(&args.policy, &at.device, args.queue, &[]));
    match limit {
        Some(limit) => watched(args, backend, &store, &request, guards, limit, neighbours),
        None => {
            let applied = kernel::apply(&mut backend, &store, &request).map_err(Failure::of)?;
            if args.policy.suspends() {
                guard::unwatched();
            }
            print_applied(args, &applied, neighbours.as_ref())
        }
    }
}

fn dry_run(args: &Apply, backend: &mut Linux, options: &Options) -> Result<(), Failure> {
    let at = backend.look(Target::Name(&args.dev)).map_err(Failure::of)?;
    let plan = kernel::plan(&args.policy, &at, backend.kernel(), options).map_err(Failure::of)?;
    let neighbours = kernel::neighbours(&args.policy, &at.device, args.queue, &[]);
    warn(&plan, &at.device, neighbours.as_ref());
    print_plan(args, &plan, &plan.changes, neighbours.as_ref())
}

/// Applies the policy, watches it for `limit`, and puts it back, unless it is to stay and the guard held.
fn watched(
    args: &Apply,
    backend: Linux,
    store: &Store,
    request: &Request<'_>,
    guards: (Guard, Option<napkin_compare::Guard>),
    limit: Duration,
    neighbours: Option<Neighbours>,
) -> Result<(), Failure> {
    let stays = args.limit.is_none();
    // Signals are blocked before the first change, so that none ends the process in between.
    let signals = Signals::block_termination_and_stop().map_err(Failure::of)?;
    let mut canary = guards.1.map(|guard| args.canary(guard)).transpose()?;
    let began = Instant::now();
    let hold = Temporary::apply(backend, store, request).map_err(Failure::of)?;
    let suspends = args.policy.suspends();
    let guard = if suspends { guards.0.start(Some(&hold), true, false) } else { None };
    let time = Time(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX));
    let then = if stays { "watched" } else { "held" };
    let (thread_args, applied) = (args.clone(), hold.applied().clone());
    // Printed by a thread of its own: a closed or blocked output must neither end nor delay the watch.
    let printing = std::thread::Builder::new().name("tell".into()).spawn(move || {
        let printed = print_applied(&thread_args, &applied, neighbours.as_ref());
        say(&format!("{}: {then} for {time}; Ctrl-C puts it back", thread_args.dev));
        printed
    });
    let printing = printing.map_err(Failure::of)?;
    let printed = || printing.join().unwrap_or(Err(Failure::Closed));
    let end = match &mut canary {
        Some(canary) => {
            // The guard has ended the suspension of the queue. Once napkin has ended, no guard would.
            let starved = || guard.as_ref().is_some_and(napkin_linux::guard::Guard::starved);
            let harm = || starved().then(|| "a queue starved under it".to_owned());
            let mut line = |line: &str| say(&format!("{}: {line}", args.dev));
            let policy = args.policy.to_string();
            canary.watch(&policy, &signals, limit, &harm, &mut line).map_err(Failure::of)
        }
        None => Ok(wait(&hold, &signals, limit, &args.dev)),
    };
    drop(guard);
    if stays && matches!(end, Ok(End::Held)) {
        hold.leave();
        let printed = printed();
        say(&format!("{}: the guard held for {time}, and the policy stays", args.dev));
        if suspends {
            guard::unwatched();
        }
        return printed;
    }
    let unchanged = hold.applied().done.is_empty();
    // Restore before anything is printed.
    let restored = hold.restore().map_err(Failure::of);
    // A device that is gone, or was not restored completely, is not unchanged.
    let unchanged = unchanged && restored.as_ref().is_ok_and(|it| it.is_complete() && !it.gone);
    let took = text::time(began.elapsed().as_nanos() as f64);
    let printed = printed();
    let mut why = None;
    let exit = match end {
        Err(failure) => {
            // A failure to restore takes precedence; the failure before it is printed.
            if let (Err(_), Failure::Failed(why)) = (&restored, &failure) {
                say(&format!("{}: {why}", args.dev));
            }
            return restored.and(Err(failure));
        }
        Ok(End::Held) => None,
        Ok(End::Signal(signal)) => {
            say(&format!("{}: ended by signal {signal}", args.dev));
            // The policy was to stay and does not: 128 and the signal's number.
            stays.then(|| u8::try_from(signal).map_or(1, |signal| signal.saturating_add(128)))
        }
        Ok(End::Broken(broke)) => {
            args.report_guard("the guard broke", &broke, &took, unchanged, &restored);
            why = Some(broke);
            Some(BROKEN)
        }
        Ok(End::Unjudged(missing)) => {
            args.report_guard("the guard was never judged", &missing, &took, unchanged, &restored);
            why = Some(format!("never judged: {missing}"));
            Some(BROKEN)
        }
    };
    let restored = restored?;
    match (exit, print_end(args, &restored, why.as_deref(), unchanged)) {
        // An incomplete restoration takes precedence.
        (_, Err(Failure::Exit(code))) => Err(Failure::Exit(code)),
        (Some(code), shown) => {
            print_failure(shown);
            Err(Failure::Exit(code))
        }
        (None, shown) => shown.and(printed),
    }
}

/// Waits until `limit` is over or a signal ends it. SIGTSTP does not: a stopped napkin could not keep the time.
fn wait(hold: &Temporary, signals: &Signals, limit: Duration, dev: &str) -> End {
    let (began, mut noted) = (Instant::now(), false);
    loop {
        match hold.wait(signals, limit.saturating_sub(began.elapsed())) {
            Ended::Signal(Signals::STOP) if noted => {}
            Ended::Signal(Signals::STOP) => {
                noted = true;
                say(&format!("{dev}: {NOT_STOPPED}"));
            }
            Ended::Signal(signal) => return End::Signal(signal),
            Ended::Time => return End::Held,
        }
    }
}

impl Apply {
    /// The starvation guard (`once` unless given) and the canary, from the values of `--guard`.
    fn guards(&self) -> Result<(Guard, Option<napkin_compare::Guard>), Failure> {
        let twice = |what| {
            Failure::Usage(format!("--guard is given twice for {what}: give each kind once"))
        };
        let (mut starving, mut own) = (None, None);
        for guard in &self.guard {
            let repeated = match guard {
                Guards::Starving(guard) => {
                    starving.replace(*guard).map(|_| "starved queues (once, again, off)")
                }
                Guards::Canary(guard) => own.replace(guard.clone()).map(|_| "the canary"),
            };
            if let Some(what) = repeated {
                return Err(twice(what));
            }
        }
        if own.is_none() && (self.watch.is_some() || self.pid.is_some()) {
            let why =
                "--watch and --pid are for a guard that is a canary: give --guard CONDITION or CMD";
            return Err(Failure::Usage(why.into()));
        }
        if matches!(own, Some(napkin_compare::Guard::Command(_))) && self.pid.is_some() {
            let why = "--pid is for a guard that is a CONDITION: a CMD does not judge requests";
            return Err(Failure::Usage(why.into()));
        }
        if starving.is_some() && own.is_none() && self.limit.is_none() {
            let why =
                "--guard once, again or off needs a time for which napkin watches: give --for TIME";
            return Err(Failure::Usage(why.into()));
        }
        Ok((starving.unwrap_or(Guard::Once), own))
    }

    /// Reports that the guard ended the policy: `what` happened, `why`, and after how long. `unchanged`: all settings
    /// were in force before, so nothing was changed; whether they still are was not checked.
    fn report_guard(
        &self,
        what: &str,
        why: &str,
        took: &str,
        unchanged: bool,
        restored: &Result<DeviceRestored, Failure>,
    ) {
        let Apply { dev, policy, .. } = self;
        say(&match restored {
            Err(_) => format!("{dev}: {what} and {policy} cannot be put back, after {took}: {why}"),
            Ok(restored) if unchanged => {
                // Changes that an earlier napkin has made, as the journal says.
                let known = match restored.kept {
                    0 => String::new(),
                    kept => {
                        let settings = if kept == 1 { "setting" } else { "settings" };
                        let restore = format!("napkin restore {}", shell::dev(dev));
                        format!("; the journal has {kept} {settings} of {dev}: {restore}")
                    }
                };
                format!(
                    "{dev}: {what}, after {took}: {why}; nothing had been changed for {policy}, so nothing is put \
                     back{known}"
                )
            }
            Ok(_) => format!("{dev}: {what} and {policy} is put back, after {took}: {why}"),
        });
    }

    /// Starts the canary and prints its reference, which is measured before anything is changed.
    fn canary(&self, guard: napkin_compare::Guard) -> Result<Canary, Failure> {
        let canary = Canary::begin(guard, &self.dev, self.pid).map_err(|error| match error {
            CompareError::Usage(why) => Failure::Usage(why),
            error => Failure::of(error),
        })?;
        if let Some(why) = canary.not_timed() {
            say(&format!("note: {why}"));
        }
        if let Some((count, rate)) = canary.reference() {
            say(&format!(
                "{}: before the change {rate:.0} answers a second, {count} requests timed",
                self.dev
            ));
        }
        Ok(canary)
    }
}

/// Prints what was put back; in JSON also the guard's reason, if it ended the policy. `unchanged`: nothing had been
/// changed.
fn print_end(
    args: &Apply,
    restored: &DeviceRestored,
    guard: Option<&str>,
    unchanged: bool,
) -> Result<(), Failure> {
    let shown = match args.json {
        true => {
            print_json(&json!({ "restored": restored, "guard": guard, "unchanged": unchanged }))
        }
        // The line with the guard's reason says already that nothing is put back.
        false if unchanged && guard.is_some() => Ok(()),
        false => restore::device(restored, false),
    };
    if restored.is_complete() {
        return shown;
    }
    print_failure(shown);
    Err(Failure::Exit(1))
}

fn print_applied(
    args: &Apply,
    applied: &Applied,
    neighbours: Option<&Neighbours>,
) -> Result<(), Failure> {
    warn(&applied.plan, &applied.before.device, neighbours);
    let done: Vec<Change> = applied.done.iter().filter(|it| it.is_change()).cloned().collect();
    print_plan(args, &applied.plan, &done, neighbours)
}

fn warn(plan: &Plan, device: &Device, neighbours: Option<&Neighbours>) {
    for warning in &plan.warnings {
        say(&format!("warning: {}: {warning}", plan.policy));
    }
    if plan.nothing_to_place {
        let why = NoIrqs::default().of(device);
        let why = why.map_or_else(String::new, |why| format!("{why}, and "));
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
