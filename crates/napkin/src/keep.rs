//! `napkin keep`, `unkeep` and `keeper`.

use std::path::PathBuf;
use std::time::Duration;

use napkin_keep::{
    BadFile, Directory, Event, Keeper, Match, Options, Standing, State, Survey, Unit, Wish,
};
use napkin_linux::journal::{Holder, Store};
use napkin_os::sched::CpuList;
use napkin_os::signals::Signals;
use napkin_policy::{NamedPolicy, Policy};
use serde_json::json;

use crate::failure::{self, Failure, print, print_json, say};
use crate::policies::policy;
use crate::{guard, policies, table, units};

/// How long `keep` waits for the keeper to put a new wish in force, before it reports the wish as not held.
const KEEPER_TIMEOUT: Duration = Duration::from_secs(3);

/// The ids of the arguments that define a wish, which --list and --check exclude.
const WISH_ARGUMENTS: [&str; 11] =
    ["policy", "dev", "driver", "mac", "queues", "cpus", "rt", "unit", "pin", "name", "yes"];

/// Arguments of `keep`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Writes a wish: a file NAME.toml in /etc/napkin ($NAPKIN_ETC). napkin.service
(napkin keeper) holds it: it is applied at boot, and again when a link comes
or is set up, a driver is loaded again, channels are changed (ethtool -L), or
another program sets something else (irqbalance moves an interrupt). It is put
back by napkin unkeep, and all of it when the service is stopped.

Devices are matched by name (* and ? are wildcards), driver, or MAC address:
all that are given must match. Queues are receive queues by index. One queue
has one wish: of two, the later in the order of the files is not held, and both
are named. What this kernel or device cannot do is reported, and the rest is
held. If a CPU of cpus is offline, its queues' interrupts and threads go back
to where they were, and the rest of the wish is held.

A file may be written by hand as well:
  policy = \"suspend20\"
  queues = \"0-3\"          without: all
  cpus = \"2-5\"            queue i's interrupt and thread on the i-th; without:
                          they stay
  rt = 10                 SCHED_FIFO priority of the threads
  unit = \"web.service\"    whose programs are set, too
  pin = true              and their threads moved to where their packets are
                          polled
  [match]
  name = \"eth*\"           and, or instead: driver = \"igb\",
                          mac = \"52:54:00:12:34:56\"
It must belong to root and be writable by root only. --check validates it
before a deployment.

Without --yes these are refused, and nothing is written: a policy that delays
packets, for a device that carries the default route or this terminal's own
connection; a wish of which a part cannot be held now on a device that exists;
and a wish that would keep another one from being held. With --yes the wish is
written; the parts that are refused are reported, with exit code 1.

Exit code of --check: 0 if all can be held here, 1 if something cannot, 2 if a
file is wrong or that is unknown.
Exit code of --list: 0 if each is in force, 1 if one is not, 2 if a file is
wrong or that is unknown.

Examples:
  sudo napkin keep suspend20 --dev eth0 --cpus 2-5
      written to /etc/napkin/eth0.toml
  sudo napkin keep defer20 --driver igb --queues 0-3 --name cards
  napkin keep --list
      each wish, and whether it is in force now
  napkin keep --check new/*.toml
      before they are copied to /etc/napkin
  sudo napkin unkeep eth0
  sudo napkin keep suspend20 --dev eth0 --unit memcached.service
  systemctl enable --now napkin
      the service; systemctl status napkin says what it holds")]
pub(crate) struct Keep {
    /// The policy: a preset, a member of a family, or one spelled out (see napkin policies).
    #[arg(value_parser = policy, required_unless_present_any = ["check", "list"])]
    policy: Option<Policy>,
    /// Devices of this name; * and ? are wildcards.
    #[arg(long, value_name = "DEV")]
    dev: Option<String>,
    /// Devices of this driver, as ethtool -i names it.
    #[arg(long)]
    driver: Option<String>,
    /// The device of this MAC address.
    #[arg(long, value_parser = mac)]
    mac: Option<[u8; 6]>,
    /// Only the NAPI instances that poll these receive queues, as in 0-3.
    #[arg(long, value_name = "LIST", value_parser = queues)]
    queues: Option<CpuList>,
    /// The CPUs of interrupts and threads: those of queue i go to the i-th CPU of the list, and past its end
    /// to the first again.
    #[arg(long, value_name = "LIST")]
    cpus: Option<CpuList>,
    /// Real-time priority (SCHED_FIFO) of the NAPI threads, 1 to 99.
    #[arg(long, value_name = "PRIO", value_parser = units::priority)]
    rt: Option<u8>,
    /// Also set the programs of this unit, as napkin attach does, from when they start until they end:
    /// memcached.service, or the path of a control group, /work.slice/memcached.service. napkin.service needs more
    /// rights for that: see napkin keeper --help (programs.conf).
    #[arg(long, value_parser = unit)]
    unit: Option<Unit>,
    /// Also move each thread of these programs that waits for the packets of one instance to the CPU that polls
    /// the instance.
    #[arg(long, requires = "unit")]
    pin: bool,
    /// The wish's name, for unkeep. [default: what its devices are matched by]
    #[arg(long)]
    name: Option<String>,
    /// Write the wish even if the device carries the default route or this terminal's own connection, or if a
    /// part of the wish, or another wish because of it, cannot be held here now.
    #[arg(long)]
    yes: bool,
    /// Check these files, or all of /etc/napkin if none is given, and write nothing.
    #[arg(long, value_name = "FILE", num_args = 0.., conflicts_with = "list", conflicts_with_all = WISH_ARGUMENTS)]
    check: Option<Vec<PathBuf>>,
    /// List all wishes, and whether each is in force now.
    #[arg(long, conflicts_with_all = WISH_ARGUMENTS)]
    list: bool,
    /// With --list or --check: print JSON.
    #[arg(long)]
    json: bool,
}

/// Arguments of `unkeep`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Removes the wish's file. napkin.service, if it runs, then puts back what it
had set for it.

Example:
  sudo napkin unkeep eth0")]
pub(crate) struct Unkeep {
    /// The wish's name (napkin keep --list).
    name: String,
}

/// Arguments of `keeper`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
What napkin.service runs: holds the wishes of /etc/napkin ($NAPKIN_ETC) until
SIGTERM or Ctrl-C, and then puts everything back. SIGHUP makes it read them
again; a change of the directory is noticed without.

It sleeps until it is notified of a change: netlink's notices of links, of
ethtool's settings and of devices; a write to an interrupt's smp_affinity or
to a device's files in sysfs; a change of the wishes. A setting changed by
another netlink client (ynl ... napi-set), a thread moved by taskset, or a CPU
that comes back is not notified: the periodic check (--look) finds it. What the
kernel refuses of a wish is reported, and tried again at that check, at SIGHUP,
and when a wish or the device's instances change.

Each change is written to the journal before it is made: after kill -9 the
next keeper continues, or napkin restore puts everything back. While it holds a
device no other napkin changes it. Programs of a wish's unit are set from when
they start until they end, as napkin attach does: what they open later is
looked for every 250 ms, and a guard watches for queues that they starve: it
ends their suspension for 10 s, then for twice as long each further time, up to
10 minutes.
Without such a wish, or while none of them runs, it sleeps.

It needs CAP_NET_ADMIN, and CAP_SYS_NICE to place threads; for programs of
units CAP_SYS_PTRACE, CAP_BPF and CAP_PERFMON, and CAP_DAC_READ_SEARCH for
those of other users: programs.conf (packaging/napkin.service.d, or
/usr/share/napkin/napkin.service.d) gives them to the unit, copied to
/etc/systemd/system/napkin.service.d.

Exit code: 0 after a signal, if all was put back; 1 if something is left, or
it cannot start.

Example:
  sudo napkin keeper --look never")]
pub(crate) struct KeeperArgs {
    /// Check everything at this interval, also without a notification; or never.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = look)]
    look: Look,
}

/// The value of `--look`: the interval, or `None` for never.
#[derive(Debug, Clone, Copy)]
struct Look(Option<Duration>);

fn look(text: &str) -> Result<Look, String> {
    if text == "never" {
        return Ok(Look(None));
    }
    let time = units::within(Duration::from_secs(1)..=Duration::MAX)(text);
    time.map(|time| Look(Some(time))).map_err(|error| format!("{error}, or never"))
}

fn mac(text: &str) -> Result<[u8; 6], String> {
    Match::read_mac(text).ok_or_else(|| "give an address as in 52:54:00:12:34:56".into())
}

fn queues(text: &str) -> Result<CpuList, String> {
    let form = "give queues, each once, as in 0,2 or 0-3, of 0 to 1023";
    text.parse().map_err(|_| form.into())
}

fn unit(text: &str) -> Result<Unit, String> {
    let form = "give a unit's name, memcached.service, or its group's path, /work.slice/a.service";
    Unit::read(text).ok_or_else(|| form.into())
}

pub(crate) fn run(args: &Keep) -> Result<(), Failure> {
    match (&args.check, args.list, args.policy) {
        (Some(files), _, _) => check(files, args.json),
        (None, true, _) => list(args.json),
        (None, false, Some(_)) if args.json => {
            Err(Failure::Usage("--json is for --list and --check".into()))
        }
        (None, false, Some(policy)) => write(args, policy),
        (None, false, None) => Err(Failure::Usage("name the policy".into())),
    }
}

fn write(args: &Keep, policy: Policy) -> Result<(), Failure> {
    let device = Match { name: args.dev.clone(), driver: args.driver.clone(), mac: args.mac };
    if device == Match::default() {
        return Err(Failure::Usage("say for which devices: --dev, --driver or --mac".into()));
    }
    policies::warn_in_linux(&NamedPolicy::all([policy]));
    let directory = Directory::here();
    let name = args.name.clone().unwrap_or_else(|| Wish::default_name(&device));
    let wish = Wish {
        file: directory.file(&name),
        name,
        policy,
        line: 0,
        device,
        queues: args.queues.clone().map(|CpuList(list)| {
            list.into_iter().filter_map(|queue| u32::try_from(queue).ok()).collect()
        }),
        cpus: args.cpus.clone().unwrap_or_default().0,
        rt: args.rt,
        unit: args.unit.clone(),
        pin: args.pin,
    };
    for warning in wish.check().map_err(Failure::of)? {
        say(&format!("warning: {policy}: {warning}"));
    }
    let risks = if args.yes { Vec::new() } else { wish.risks().map_err(Failure::of)? };
    if let Some((ifname, carries)) = risks.first() {
        return Err(Failure::Failed(format!(
            "{ifname} carries {carries}, which {policy} can delay: nothing was written; --yes writes it \
             all the same"
        )));
    }
    let refused = Refused::look(&directory, &wish).unwrap_or_else(|why| {
        // Not an error: the wish may be for another host.
        say(&format!("note: whether the wish can be held here is unknown: {why}"));
        Refused::default()
    });
    refused.check(args.yes)?;
    let before = directory.write(&wish).map_err(Failure::of)?;
    let replaced = if before { " (in place of what it said)" } else { "" };
    let outcome = print(&format!("{}: {}{replaced}\n", wish.file.display(), wish.sentence()));
    check_read(&directory, &wish)?;
    outcome?;
    if policy.suspends() && wish.unit.is_none() {
        guard::unwatched_wish();
    }
    match keeper() {
        Some(holder) => {
            match Survey::of(&directory, &wish.name, KEEPER_TIMEOUT).map_err(Failure::of)? {
                Some(standing) => print_standing(&standing, &holder),
                None => check_read(&directory, &wish),
            }
        }
        None => {
            refused.own.iter().for_each(|why| say(&format!("refused: {why}")));
            let printed = print(
                "no keeper runs here, so nothing is set yet: systemctl enable --now napkin, or napkin keeper\n",
            );
            failure::exit_with(u8::from(!refused.own.is_empty()), printed)
        }
    }
}

/// What would be refused on this host now if a wish were written.
#[derive(Debug, Default)]
struct Refused {
    /// Parts of the wish itself.
    own: Vec<String>,
    /// Other wishes that would be refused for a new reason, each with that reason.
    others: Vec<String>,
}

impl Refused {
    fn look(directory: &Directory, wish: &Wish) -> Result<Refused, String> {
        let found = directory.read().map_err(|error| error.to_string())?;
        let survey = |found| Survey::take(found).map_err(|error| error.to_string());
        let before = survey(found.clone())?;
        let then = survey(found.with(wish.clone()))?;
        let is_refused = |it: &&Standing| it.state() == State::Refused;
        let mut refused = Refused::default();
        for standing in then.standings.iter().filter(is_refused) {
            let other = &standing.wish;
            if other.file == wish.file {
                refused.own = standing.refused();
            } else {
                // A wish of which a part is refused already may lose more: compare the reasons.
                let had = before.standings.iter().find(|it| it.wish == *other);
                let had = had.map(Standing::refused).unwrap_or_default();
                let mut why = standing.refused();
                why.retain(|it| !had.contains(it));
                if !why.is_empty() {
                    let (name, place, why) = (&other.name, other.place(), why.join("; "));
                    let line = format!("the wish {name} ({place}) would be refused: {why}");
                    refused.others.push(line);
                }
            }
        }
        Ok(refused)
    }

    /// Fails if anything would be refused. With --yes it only warns of the other wishes.
    fn check(&self, yes: bool) -> Result<(), Failure> {
        if yes {
            self.others.iter().for_each(|why| say(&format!("warning: {why}")));
            return Ok(());
        }
        let all: Vec<&str> = self.own.iter().chain(&self.others).map(String::as_str).collect();
        if all.is_empty() {
            return Ok(());
        }
        Err(Failure::Failed(format!(
            "nothing was written, as the wish cannot be held here: {}; --yes writes it all the same",
            all.join("; ")
        )))
    }
}

/// Fails if a wish that was written is not among those that are read.
fn check_read(directory: &Directory, wish: &Wish) -> Result<(), Failure> {
    let found = directory.read().map_err(Failure::of)?;
    if found.wishes.iter().any(|it| it.name == wish.name) {
        return Ok(());
    }
    let about = |bad: &&BadFile| bad.file == wish.file || bad.file == directory.path();
    let mut why: Vec<String> = found.bad.iter().filter(about).map(BadFile::to_string).collect();
    if why.is_empty() {
        why.push("it does not exist any more".into());
    }
    let file = wish.file.display();
    Err(Failure::Failed(format!("{file} was written and is not held: {}", why.join("\n"))))
}

fn print_standing(standing: &Standing, holder: &Holder) -> Result<(), Failure> {
    let state = standing.state();
    let printed = match (state, &standing.wish.unit) {
        (State::Held, None) => print("in force\n"),
        (State::Held, Some(_)) => print("in force on the device\n"),
        (State::Refused, _) => print("refused, all of it or a part:\n"),
        (State::NotHeld, _) => print(&format!("held by {holder}, as far as it can be:\n")),
    };
    if state != State::Held {
        standing.why().iter().for_each(|why| say(why));
    }
    let programs = standing.programs(Some(holder.pid));
    programs.iter().for_each(|note| say(&format!("note: {note}")));
    failure::exit_with(u8::from(state == State::Refused), printed)
}

/// The keeper that holds the wishes here, if one is visible.
fn keeper() -> Option<Holder> {
    Store::open().ok().and_then(|store| store.keeper())
}

fn check(files: &[PathBuf], as_json: bool) -> Result<(), Failure> {
    let found = if files.is_empty() {
        Directory::here().read().map_err(Failure::unanswered)?
    } else {
        Directory::read_files(files)
    };
    let survey = Survey::take(found).map_err(Failure::unanswered)?;
    report(&survey, as_json, |standing| standing.can_be_held())
}

fn list(as_json: bool) -> Result<(), Failure> {
    let found = Directory::here().read().map_err(Failure::unanswered)?;
    let survey = Survey::take(found).map_err(Failure::unanswered)?;
    let reported = report(&survey, as_json, |standing| standing.state() == State::Held);
    if !as_json {
        say(&match keeper() {
            Some(holder) => format!("held by {holder}"),
            None => "no keeper is seen here (systemctl status napkin)".to_owned(),
        });
    }
    reported
}

/// Prints the wishes and the bad files. Exit code 2 with a bad file, 1 if `fine` is false of a wish.
fn report(survey: &Survey, as_json: bool, fine: impl Fn(&Standing) -> bool) -> Result<(), Failure> {
    let keeper = keeper().map(|holder| holder.pid);
    let printed = if as_json {
        let wishes = survey.standings.iter().map(|standing| {
            json!({
                "name": standing.wish.name,
                "file": standing.wish.file,
                "policy": standing.wish.policy.to_string(),
                "match": standing.wish.device.to_string(),
                "queues": standing.wish.queues,
                "cpus": standing.wish.cpus,
                "rt": standing.wish.rt,
                "unit": standing.wish.unit.as_ref().map(ToString::to_string),
                "pin": standing.wish.pin,
                "state": standing.state(),
                "why": standing.why(),
                "programs": standing.programs(keeper),
                "devices": standing.devices,
            })
        });
        let bad = survey.bad.iter().map(|bad| {
            let mistakes = bad.mistakes.iter().map(|it| json!({"line": it.line, "why": it.why}));
            json!({"file": bad.file, "mistakes": mistakes.collect::<Vec<_>>()})
        });
        print_json(&json!({
            "wishes": wishes.collect::<Vec<_>>(),
            "bad": bad.collect::<Vec<_>>(),
        }))
    } else {
        let rows = survey.standings.iter().map(|standing| {
            let Standing { wish, .. } = standing;
            let why = [standing.why(), standing.programs(keeper)].concat().join("; ");
            vec![wish.name.clone(), wish.sentence(), standing.state().name().into(), why]
        });
        let rows: Vec<Vec<String>> = rows.collect();
        let printed = if !rows.is_empty() {
            print(&table::wrapped(&["name", "wish", "state", "why"], rows))
        } else if survey.bad.is_empty() {
            print("no wishes\n")
        } else {
            Ok(())
        };
        survey.bad.iter().for_each(|bad| say(&bad.to_string()));
        printed
    };
    let code = match survey.bad.is_empty() {
        false => 2,
        true => u8::from(!survey.standings.iter().all(fine)),
    };
    failure::exit_with_answer(code, printed)
}

pub(crate) fn unkeep(args: &Unkeep) -> Result<(), Failure> {
    let directory = Directory::here();
    directory.remove(&args.name).map_err(Failure::of)?;
    print(&format!("{}: removed\n", directory.file(&args.name).display()))?;
    match keeper() {
        Some(holder) => print(&format!("what it had set is put back by {holder}\n")),
        None => print("no keeper runs here; napkin restore puts back what one may have left\n"),
    }
}

pub(crate) fn keeper_run(args: &KeeperArgs) -> Result<(), Failure> {
    // Signals are blocked before the first change, so that none ends the process in between.
    let signals = Signals::block_termination_and_stop().map_err(Failure::of)?;
    let options = Options { directory: Directory::here(), look: args.look.0 };
    let keeper = Keeper::start(options).map_err(Failure::of)?;
    let complete =
        keeper.run(&signals, &mut |event: &Event| say(&event.to_string())).map_err(Failure::of)?;
    if complete { Ok(()) } else { Err(Failure::Exit(1)) }
}
