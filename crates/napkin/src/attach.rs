//! `napkin attach`, and the options and helpers that it shares with `napkin run`.

use std::time::Duration;

use napkin_linux::apply::{ApplyError, DeviceRestored, NOT_STOPPED, Options, Temporary};
use napkin_linux::attach::{Detail, Ended, Event, Lines, Restoration};
use napkin_linux::guard::can_starve;
use napkin_linux::journal::{Found, Store};
use napkin_linux::session::{Left, Session, Setup};
use napkin_linux::support::Warning;
use napkin_os::sched::CpuList;
use napkin_os::signals::Signals;
use napkin_policy::{NamedPolicy, Policy};

use crate::failure::{Failure, say};
use crate::guard::{self, Guard};
use crate::policies::policy;
use crate::{policies, units};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Sets a policy's epoll parameters (and its socket options, if it has any) on a
running, unmodified program and its descendants, from outside, also on what
they open later, until napkin is interrupted. Then everything is put back, and
the exit code is 0, or 1 if something could not be set or put back. napkin also
ends when the last of the processes has ended, or after --for. Processes of
other users need CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH.

New epoll contexts are looked for every 10 ms for a second after a start or a
change, then every 250 ms; with at most 10 % of a CPU in the first second, and
2 % later.

Each change is written to a journal before it is made: after a crash napkin
restore puts it back.

Under a policy that suspends interrupts a program starves its queue for as
long as each of its waits finds another descriptor ready, such as a socket
registered for EPOLLOUT without EPOLLET: the queue is not polled any more.
--guard watches for that (CAP_BPF and CAP_PERFMON): once the queue was not
polled for its irq-suspend-timeout and 40 ms more (0.08 s in all with the
presets), the guard sets that timeout to 0 and names the program, its thread,
and what is always ready. It cannot do so on a device that another napkin
holds, and says so at the start; there the keeper watches, for the programs of
a wish's unit (napkin keep ... --unit).

Examples:
  napkin attach $(pidof memcached) --policy suspend20 --dev eth0
      the device and the program, until Ctrl-C
  napkin attach 812 --policy suspend20
      the program only, if the device is set already
  napkin attach 812 --policy suspend20 --dev eth0 --cpus 2-5 --pin
      with each waiting thread on the CPU that polls its packets
  napkin attach 812 --policy napibusy --for 10m
  napkin attach 812 --policy suspend20 --once
      set what is open now and exit; then: napkin restore
Then: napkin doctor 812, which says whether the mode is active")]
pub(crate) struct Attach {
    /// The program, with its descendants.
    #[arg(value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pid: i32,
    #[command(flatten)]
    options: SessionArgs,
    /// Put everything back after this time.
    #[arg(long = "for", value_name = "TIME", value_parser = units::duration)]
    limit: Option<Duration>,
    /// Set what is open now and exit; `napkin restore` puts it back.
    #[arg(long, conflicts_with_all = ["limit", "dev"])]
    once: bool,
}

/// How long `--once` looks for waiting threads to pin.
const PIN_FOR: Duration = Duration::from_millis(300);

/// The options that `attach` and `run` share: what to set, and how much to print.
#[derive(Debug, clap::Args)]
pub(crate) struct SessionArgs {
    /// The policy: a preset, a member of a family, or one spelled out; see `napkin policies`.
    #[arg(long, value_name = "POLICY", value_parser = policy)]
    pub(crate) policy: Policy,
    /// First apply the policy's device part to this device; put it back at the end.
    #[arg(long, value_name = "DEV")]
    pub(crate) dev: Option<String>,
    /// Only the instance that polls this receive queue.
    #[arg(long, value_name = "N", requires = "dev")]
    pub(crate) queue: Option<u32>,
    /// The CPUs of the device's interrupts and threads: queue i goes to the i-th of them.
    #[arg(long, value_name = "CPUS", requires = "dev")]
    pub(crate) cpus: Option<CpuList>,
    /// Move each thread that waits for the packets of one instance to the CPU that polls the instance.
    #[arg(long)]
    pub(crate) pin: bool,
    /// What to do when the program starves its queue: if each of its waits finds another descriptor ready,
    /// the queue is not polled, and receives nothing.
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = Guard::Once)]
    pub(crate) guard: Guard,
    /// Print only failures.
    #[arg(long, short, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Also print what was set already, and which programs started and ended.
    #[arg(long, short)]
    pub(crate) verbose: bool,
}

pub(crate) fn run(args: &Attach) -> Result<(), Failure> {
    let options = &args.options;
    // Signals are blocked before the first change.
    let signals = match args.once {
        true => Signals::block_termination(),
        false => Signals::block_termination_and_stop(),
    };
    let signals = signals.map_err(Failure::of)?;
    let mut session = options.begin(Some(args.pid))?;
    let mut lines = Lines::new(options.detail());
    let mut on_event = |event: &Event| lines.line(event).iter().for_each(|line| say(line));
    if args.once {
        let left = session.leave(options.pin.then_some(PIN_FOR), &mut on_event);
        return options.report_left(&left);
    }
    options.watch(&mut session);
    let ended = session.keep(args.limit, &signals, &mut on_event, &mut || say(NOT_STOPPED));
    let end = session.end(&mut on_event);
    if ended != Ended::Processes {
        options.note(&restored(&end.program));
        if has_journal(args.pid) {
            options
                .note("what another napkin set in this process stays: napkin restore puts it back");
        }
    }
    let device = check_device_restored(end.device);
    if end.program.failed > 0 {
        return Err(Failure::Failed("not everything was put back: try napkin restore".into()));
    }
    device.and(check_all_set(end.unset))
}

/// Fails if something could not be set in `unset` processes.
pub(crate) fn check_all_set(unset: usize) -> Result<(), Failure> {
    match unset {
        0 => Ok(()),
        1 => Err(Failure::Failed("not everything was set: see above for the process".into())),
        more => {
            Err(Failure::Failed(format!("not everything was set in {more} processes: see above")))
        }
    }
}

/// Fails if not everything was put back on the device.
pub(crate) fn check_device_restored(
    restored: Option<Result<DeviceRestored, ApplyError>>,
) -> Result<(), Failure> {
    let Some(restored) = restored.transpose().map_err(Failure::of)? else { return Ok(()) };
    if restored.is_complete() {
        return Ok(());
    }
    Err(Failure::Failed(format!(
        "not everything was put back: {}; napkin restore tries again",
        restored.words().join("; ")
    )))
}

/// Whether the journal still has changes of this process.
fn has_journal(pid: i32) -> bool {
    let found = Store::open().and_then(|store| store.survey()).unwrap_or_default();
    found.iter().any(|it| match it {
        Found::Process(journal) => journal.process().0 == pid && !journal.is_elsewhere(),
        _ => false,
    })
}

impl SessionArgs {
    /// Begins a session with this program, or, without a pid, with one to be started. Prints a line for each part of
    /// the policy that will not be set.
    pub(crate) fn begin(&self, pid: Option<i32>) -> Result<Session, Failure> {
        policies::warn_in_linux(&NamedPolicy::all([self.policy]));
        let cpus = self.cpus.clone().unwrap_or_default().0;
        let options = Options { queue: self.queue, cpus, ..Options::default() };
        let device = self.dev.as_deref().map(|ifname| (ifname, options));
        let setup = Setup { policy: &self.policy, device, pin: self.pin };
        let mut warn = |warning: &Warning, has_program_part| match warning {
            Warning::DeviceNotSet => self.note_device(has_program_part),
            warning => self.note(&format!("warning: {warning}")),
        };
        let session = Session::begin(&setup, pid, &mut warn).map_err(Failure::of)?;
        if self.verbose
            && let Some(applied) = session.device().map(Temporary::applied)
        {
            let changes = applied.done.iter().filter(|it| it.is_change()).count();
            let ifname = &applied.before.device.ifname;
            say(&format!("{ifname}: {}, {changes} settings changed", self.policy));
        }
        Ok(session)
    }

    /// Notes that no device is set as the policy's device part says.
    fn note_device(&self, has_program_part: bool) {
        let policy = &self.policy;
        let effect = if has_program_part {
            "so that its program part alone has little effect"
        } else {
            "and it sets nothing in the program"
        };
        self.note(&format!(
            "note: no device is set as {policy} says, {effect}: add --dev DEV, or napkin apply \
             {policy} --dev DEV"
        ));
    }

    /// Starts the session's starvation guard, if the policy can starve a queue. On failure the guard prints why.
    pub(crate) fn watch(&self, session: &mut Session) {
        if self.can_starve() {
            session.watch(self.guard.start(session.device(), false, self.quiet));
        }
    }

    /// Whether the policy can starve a queue; true if the instances cannot be listed, which the guard then reports.
    fn can_starve(&self) -> bool {
        can_starve(&self.policy).unwrap_or(true)
    }

    /// Reports what `--once` has set and left in force.
    fn report_left(&self, left: &Left) -> Result<(), Failure> {
        check_all_set(left.unset)?;
        self.note(if left.set {
            "left in force: napkin restore puts it back"
        } else {
            "nothing was to be set"
        });
        if self.can_starve() && !self.quiet {
            guard::unwatched();
        }
        if left.always_ran.is_empty() {
            return Ok(());
        }
        let running: Vec<String> = left.always_ran.iter().map(i32::to_string).collect();
        Err(Failure::Failed(format!(
            "not pinned, as they ran all the time: threads {}",
            running.join(", ")
        )))
    }

    pub(crate) fn detail(&self) -> Detail {
        match (self.quiet, self.verbose) {
            (true, _) => Detail::Quiet,
            (_, true) => Detail::Everything,
            _ => Detail::News,
        }
    }

    /// Prints a line that is not a failure, unless `--quiet`.
    pub(crate) fn note(&self, line: &str) {
        if !self.quiet {
            say(line);
        }
    }
}

fn restored(restoration: &Restoration) -> String {
    if *restoration == Restoration::default() {
        return "nothing was to be put back".into();
    }
    let Restoration { done, gone, changed, failed } = restoration;
    let mut text = format!("put back: {done}");
    for (count, what) in [
        (gone, "gone with their process or descriptor"),
        (changed, "left as other programs set them"),
        (failed, "failed"),
    ] {
        if *count > 0 {
            text.push_str(&format!(", {count} {what}"));
        }
    }
    text
}
