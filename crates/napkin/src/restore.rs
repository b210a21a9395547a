//! `napkin restore`.

use napkin_linux::apply::{
    DeviceRestored, Linux, OtherJournal, ProcessRestored, Restoration, RestoreOptions, restore,
};
use napkin_linux::journal::{Store, Subject};
use serde_json::json;

use crate::failure::{Failure, print, print_failure, print_json, say};
use crate::table::changed;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Puts back what napkin apply, run and attach have changed and not put back
themselves: what each setting was before napkin first changed it, as the
journal says. It works after a crash and after kill -9, and can itself be
interrupted and started again.

What another program changed after napkin is reported and left alone, and
stays in the journal: --force puts it back too, --forget leaves it for good. A
device that another napkin holds (apply --for, run --dev, the keeper) is left
to that one.

Exit code: 0 if all is as it was, 1 if something is left.

Examples:
  napkin restore --dry-run        what would be put back
  sudo napkin restore             everything in this network namespace
  sudo napkin restore --dev eth0
  sudo napkin restore --forget    put back what can be, and forget the rest")]
pub(crate) struct Restore {
    /// Only this device; without, every device of this network namespace, and every process.
    #[arg(long, value_name = "DEV")]
    dev: Option<String>,
    /// Also put back what another program has changed since.
    #[arg(long)]
    force: bool,
    /// Forget what could not be put back.
    #[arg(long)]
    forget: bool,
    /// Only say what would be put back.
    #[arg(long)]
    dry_run: bool,
    /// Print JSON; times are in nanoseconds.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Restore) -> Result<(), Failure> {
    let store = Store::open().map_err(Failure::of)?;
    let mut backend = Linux::open().map_err(Failure::of)?;
    let options = RestoreOptions {
        ifname: args.dev.clone(),
        force: args.force,
        forget: args.forget,
        dry_run: args.dry_run,
    };
    let restoration = restore(&mut backend, &store, &options).map_err(Failure::of)?;
    let shown = match args.json {
        true => {
            let mut value = json!(restoration);
            value["dry-run"] = args.dry_run.into();
            print_json(&value)
        }
        false => print_restored(&restoration, &store, args),
    };
    if restoration.is_complete() {
        return shown;
    }
    print_failure(shown);
    Err(Failure::Exit(1))
}

fn print_restored(restoration: &Restoration, store: &Store, args: &Restore) -> Result<(), Failure> {
    for found in &restoration.also {
        print_other(found, args.dry_run);
    }
    // A closed output must not hide what is left.
    let mut printed = Ok(());
    for restored in &restoration.devices {
        printed = printed.and(device(restored, args.dry_run));
    }
    for restored in &restoration.processes {
        printed = printed.and(process(restored, args.dry_run));
    }
    if restoration.is_empty() {
        printed = printed.and(print("nothing to put back: the journal is empty\n"));
        note_unread(store);
    }
    if args.dry_run {
        printed = printed.and(print("nothing was changed (--dry-run)\n"));
    }
    printed
}

/// Notes that root's journal was not read, if so: this user's journal does not have root's changes.
pub(crate) fn note_unread(store: &Store) {
    if let Some(root_s) = store.other_root_directory() {
        say(&format!(
            "note: that is the journal in {}; root's, in {}, was not read",
            store.directory().display(),
            root_s.display()
        ));
    }
}

/// Prints what was put back on a device, and what was not.
pub(crate) fn device(restored: &DeviceRestored, dry_run: bool) -> Result<(), Failure> {
    let DeviceRestored { ifname, .. } = restored;
    // A closed output must not hide what could not be put back.
    let printed = if restored.gone {
        print(&format!("{ifname}: the device is gone, and what was changed with it\n"))
    } else if !restored.changes.is_empty() {
        print(&changed(ifname, &restored.changes))
    } else if restored.is_complete() && !restored.left() {
        print(&format!("{ifname}: everything is as it was\n"))
    } else {
        Ok(())
    };
    restored.words().iter().for_each(|why| say(why));
    if restored.left() && !dry_run {
        let what = match restored.forgotten {
            true => "that is forgotten (--forget)",
            false => {
                "restore --force also puts back what another program has changed, --forget gives up \
                 what is left"
            }
        };
        say(&format!("{ifname}: {what}"));
    }
    printed
}

fn process(restored: &ProcessRestored, dry_run: bool) -> Result<(), Failure> {
    let ProcessRestored { pid, changes, gone, left, forgotten } = restored;
    let verb = if dry_run { "would be put back" } else { "put back" };
    let mut printed = Ok(());
    for change in changes {
        printed = printed.and(print(&format!("process {pid}: {verb}: {change}\n")));
    }
    if *gone > 0 {
        let with = "with the process or its descriptors";
        printed = printed.and(print(&format!("process {pid}: {gone} gone {with}\n")));
    }
    let end = if *forgotten { " (forgotten)" } else { "" };
    for why in left {
        say(&format!("{why}{end}"));
    }
    printed
}

fn print_other(other: &OtherJournal, dry_run: bool) {
    let dropped = if dry_run { "would be dropped" } else { "dropped" };
    let name = |subject: &Subject| match subject {
        Subject::Device { ifname, .. } => ifname.clone(),
        Subject::Process { pid, .. } => format!("process {pid}"),
    };
    say(&match other {
        OtherJournal::OtherBoot { subject } => {
            format!("{}: changed before the last boot, which undid it: {dropped}", name(subject))
        }
        OtherJournal::NamespaceGone { subject, namespace } => format!(
            "{}: changed in network namespace {namespace}, which is gone: {dropped}; if it was a \
             physical device, it is back in the first namespace as it was set (napkin show)",
            name(subject)
        ),
        OtherJournal::OtherNamespace { subject, namespace, path } => format!(
            "{}: changed in another network namespace, {namespace}: left alone; restore from within \
             it, or remove {}",
            name(subject),
            path.display()
        ),
        OtherJournal::Unreadable { why, forgotten: true, .. } => format!("given up: {why}"),
        OtherJournal::Unreadable { why, .. } => why.clone(),
        _ => return,
    });
}
