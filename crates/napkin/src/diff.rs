//! `napkin diff`.

use napkin_linux::apply::{Backend, Difference, Linux, Options, Target, difference, plan};
use napkin_linux::journal::Store;
use napkin_policy::Policy;
use serde_json::json;

use crate::failure::{Failure, exit_with_answer, print, print_json};
use crate::policies::policy;
use crate::table;
use crate::table::changed;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
With a policy: the changes that napkin apply would make. Without: the settings
that differ from their values before napkin changed them, and which of them
another program has set since.

Exit code, as for diff(1): 0 if nothing differs, 1 if something does, 2 if that
is unknown. No privilege is needed, but only the user who made changes can read
their journal: if nothing differs and root has one that was not read, the exit
code is 2.

Examples:
  napkin diff suspend20 --dev eth0    is it in force?
  sudo napkin diff --dev eth0         what has napkin changed?")]
pub(crate) struct Diff {
    /// The policy to compare with. [default: the device as it was before napkin changed it]
    #[arg(value_parser = policy)]
    policy: Option<Policy>,
    /// The device to look at, as in `ip link`.
    #[arg(long, value_name = "DEV")]
    dev: String,
    /// Print JSON; times are in nanoseconds.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Diff) -> Result<(), Failure> {
    let (differs, printed) = match &args.policy {
        Some(policy) => from_policy(args, policy)?,
        None => from_before(args)?,
    };
    exit_with_answer(differs.into(), printed)
}

/// Whether something differs, and the result of printing the differences.
type Answer = (bool, Result<(), Failure>);

fn from_policy(args: &Diff, policy: &Policy) -> Result<Answer, Failure> {
    let mut backend = Linux::open().map_err(Failure::unanswered)?;
    let at = backend.look(Target::Name(&args.dev)).map_err(Failure::unanswered)?;
    let plan =
        plan(policy, &at, backend.kernel(), &Options::default()).map_err(Failure::unanswered)?;
    let differs = !plan.changes.is_empty();
    let printed = if args.json {
        print_json(&json!(plan))
    } else if differs {
        print(&changed(&args.dev, &plan.changes))
    } else {
        print(&format!("{}: {policy}, as far as the device goes\n", args.dev))
    };
    Ok((differs, printed))
}

fn from_before(args: &Diff) -> Result<Answer, Failure> {
    let store = Store::open().map_err(Failure::unanswered)?;
    let mut backend = Linux::open().map_err(Failure::unanswered)?;
    let different = difference(&mut backend, &store, &args.dev).map_err(Failure::unanswered)?;
    // With NAPKIN_STATE set, the question is about that journal only.
    let named = std::env::var_os("NAPKIN_STATE").is_some_and(|it| !it.is_empty());
    if let (true, false, Some(root_s)) = (different.is_empty(), named, store.other_root_directory())
    {
        return Err(Failure::unanswered(format!(
            "{}: nothing differs by the journal in {}, and root's, in {}, was not read: run as root",
            args.dev,
            store.directory().display(),
            root_s.display()
        )));
    }
    let printed = if args.json {
        print_json(&json!(different))
    } else if different.is_empty() {
        print(&format!("{}: as it was before napkin\n", args.dev))
    } else {
        let rows = different.iter().map(|it| row(&args.dev, it)).collect();
        print(&table::columns(&["dev", "instance", "setting", "before", "now", "set by"], rows))
    };
    Ok((!different.is_empty(), printed))
}

fn row(ifname: &str, difference: &Difference) -> Vec<String> {
    let Difference { place, before, set, now, foreign } = difference;
    let now = now.as_ref().map_or_else(|| "not there".into(), |now| place.show(now));
    let by = if *foreign {
        format!("another program; napkin had set {}", place.show(set))
    } else {
        "napkin".into()
    };
    vec![ifname.into(), place.subject(), place.what().into(), place.show(before), now, by]
}
