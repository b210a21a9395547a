//! `napkin profile`: lists, shows, checks, measures and fits the profiles of modelled hosts.

use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use napkin_machine::profile::{Key, Origin, Profile, StatedConstant};
use napkin_measure::report::file;
use napkin_reproduce::all::{ALL, find};
use napkin_workload::machine::fit::{Options, fit};
use serde_json::{Value, json};

use crate::failure::{Failure, print, print_json, say};
use crate::host_costs;
use crate::outputs::check;
use crate::{table, units};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A profile is a TOML file with the constants of one host: its CPUs, kernel,
NIC, link, and what each step of delivery costs. Each constant has a unit and
a source, or the range in which it was fitted, or the reason why it is
assumed. docs/profiles.md tells how to write one; with based-on = \"epyc-7662\"
it states only what differs.

Examples:
  napkin profile list
  napkin profile show epyc-7662
  napkin profile show epyc-7662 --toml > mine.toml
  napkin profile check mine.toml
  sudo napkin profile measure --out mine.toml
  napkin profile fit qemu-2018 --experiment 2018 --out qemu-2018.toml")]
pub(crate) struct ProfileArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List the profiles that come with napkin.
    List,
    /// Show a profile's constants, each with its source.
    Show {
        /// A profile's name or a TOML file.
        #[arg(value_name = "NAME|FILE")]
        name: String,
        /// Print JSON; values are in base units (ns, Hz, bit/s, bytes).
        #[arg(long)]
        json: bool,
        /// Print a TOML file with all constants, those of the profile that it is based on included.
        #[arg(long, conflicts_with = "json")]
        toml: bool,
    },
    /// Report all errors of a profile, with key and line, and the constants that it merely inherits from the
    /// profile that it is based on.
    Check {
        /// A profile's name or a TOML file.
        #[arg(value_name = "NAME|FILE")]
        name: String,
    },
    /// Measure what this host's own kernel costs, and write it as a profile.
    Measure(host_costs::Measure),
    /// Fit the fitted constants again, to the rows that an experiment names for that.
    Fit {
        /// A profile's name or a TOML file.
        #[arg(value_name = "NAME|FILE")]
        name: String,
        /// The experiment to fit to. [default: the one whose testbed the profile is]
        #[arg(long, value_name = "EXPERIMENT")]
        experiment: Option<String>,
        /// Write the profile with the values found to this file. [default: standard output]
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// The maximum number of evaluations of the error, each of which runs the experiment's rows.
        #[arg(long, value_name = "N", default_value_t = 400)]
        evaluations: usize,
        /// Evaluations at a time. [default: as many as there are CPUs]
        #[arg(long, value_name = "N", value_parser = units::jobs)]
        jobs: Option<NonZeroUsize>,
        /// Show no progress.
        #[arg(long)]
        quiet: bool,
    },
}

pub(crate) fn run(args: &ProfileArgs) -> Result<(), Failure> {
    match &args.what {
        What::List => list(),
        What::Show { name, toml: true, .. } => print(&load(name)?.to_toml()),
        What::Show { name, json, .. } => show(&load(name)?, *json),
        What::Check { name } => check_one(name),
        What::Measure(args) => host_costs::run(args),
        What::Fit { name, experiment, out, evaluations, jobs, quiet } => {
            let options = Options { evaluations: *evaluations, jobs: *jobs };
            find_constants(name, experiment.as_deref(), out.as_deref(), options, *quiet)
        }
    }
}

fn load(name: &str) -> Result<Profile, Failure> {
    Profile::load(napkin_workload::schema(), name)
        .map_err(|error| Failure::Usage(error.to_string()))
}

fn list() -> Result<(), Failure> {
    let mut rows = Vec::new();
    for name in Profile::names() {
        let profile = Profile::named(napkin_workload::schema(), name).map_err(Failure::of)?;
        let used: Vec<&str> =
            ALL.iter().filter(|known| known.profile == name).map(|known| known.name).collect();
        rows.push(vec![
            name.to_owned(),
            profile.count("processor.cpus").to_string(),
            profile.count("nic.queues").to_string(),
            used.join(" "),
            profile.about().to_owned(),
        ]);
    }
    print(&table::wrapped(&["profile", "CPUs", "queues", "experiment", "what it describes"], rows))
}

fn origin_text(constant: &StatedConstant<'_>) -> String {
    let within = |range: &RangeInclusive<f64>| {
        let show = |end: &f64| constant.key.takes.show(*end);
        format!("{} to {}", show(range.start()), show(range.end()))
    };
    let origin = match &constant.origin {
        Origin::Source { what, range: None } => (*what).to_owned(),
        Origin::Source { what, range: Some(range) } => format!("within {}: {what}", within(range)),
        Origin::Fitted(range) => format!("fitted within {}", within(range)),
        Origin::Assumed { why, range: None } => format!("assumed: {why}"),
        Origin::Assumed { why, range: Some(range) } => {
            format!("assumed within {}: {why}", within(range))
        }
        Origin::Default => "the key's default".to_owned(),
    };
    let origin = match constant.note {
        Some(note) => format!("{origin} ({note})"),
        None => origin,
    };
    if constant.inherited { format!("inherited; there: {origin}") } else { origin }
}

fn show(profile: &Profile, json: bool) -> Result<(), Failure> {
    if json {
        let constants: serde_json::Map<String, Value> = profile
            .constants()
            .map(|constant| {
                let value = json!({
                    "value": constant.value,
                    "text": constant.key.takes.show(constant.value),
                    "fitted": matches!(constant.origin, Origin::Fitted(_)),
                    "assumed": matches!(constant.origin, Origin::Assumed { .. }),
                    "inherited": constant.inherited,
                    "from": origin_text(&constant),
                    "what": constant.key.what,
                });
                (constant.key.path(), value)
            })
            .collect();
        let (name, about) = (profile.name(), profile.about());
        let based_on = profile.based_on();
        return print_json(&json!({
            "name": name, "about": about, "based-on": based_on, "constants": constants
        }));
    }
    let rows = profile.constants().map(|constant| {
        let value = constant.key.takes.show(constant.value);
        vec![constant.key.path(), value, constant.key.what.to_owned(), origin_text(&constant)]
    });
    let header = ["constant", "value", "what it is", "from"];
    let based = profile.based_on().map(|base| format!(" (based on {base})")).unwrap_or_default();
    let table = table::wrapped(&header, rows.collect());
    print(&format!("{}: {}{based}\n\n{table}", profile.name(), profile.about()))
}

fn check_one(name: &str) -> Result<(), Failure> {
    let profile = Profile::load(napkin_workload::schema(), name).map_err(Failure::of)?;
    let (all, fitted) = (profile.constants().count(), profile.fitted().count());
    let assumed = profile.constants().filter(|it| matches!(it.origin, Origin::Assumed { .. }));
    let mut text = format!(
        "{}: nothing is wrong; {all} constants, {fitted} of them fitted and {} assumed\n",
        profile.name(),
        assumed.count()
    );
    let at_bounds: Vec<String> = profile.at_bounds().map(|key| key.path()).collect();
    if !at_bounds.is_empty() {
        text += &format!("at an end of the range of their fit: {}\n", at_bounds.join(", "));
    }
    if let Some(base) = profile.based_on() {
        let inherited: Vec<&Key> =
            profile.constants().filter(|it| it.inherited).map(|it| it.key).collect();
        text += &format!(
            "based on {base}: {} of the constants its own, {} merely inherited (not stated for this host):\n",
            all - inherited.len(),
            inherited.len()
        );
        for section in profile.schema().sections() {
            let names = inherited.iter().filter(|key| key.section == section.name);
            let names: Vec<&str> = names.map(|key| key.name).collect();
            if !names.is_empty() {
                text += &format!("  {}: {}\n", section.name, names.join(", "));
            }
        }
    }
    print(&text)
}

fn find_constants(
    name: &str,
    experiment: Option<&str>,
    out: Option<&Path>,
    options: Options,
    quiet: bool,
) -> Result<(), Failure> {
    let profile = load(name)?;
    let known = match experiment {
        Some(asked) => find(asked),
        None => ALL.iter().find(|known| known.profile == profile.name()),
    };
    let Some(known) = known else {
        let names: Vec<&str> = ALL.iter().map(|known| known.name).collect();
        return Err(Failure::Usage(format!(
            "no experiment to fit '{}' to: give --experiment with one of {}",
            profile.name(),
            names.join(", ")
        )));
    };
    if profile.fitted_here().count() == 0 {
        let text = format!("'{}' has no fitted constant: there is nothing to find", profile.name());
        return Err(Failure::Usage(text));
    }
    check(out)?;
    let original = match Profile::built_in_text(name) {
        Some(text) => text.to_owned(),
        None => std::fs::read_to_string(name)
            .map_err(|error| Failure::of(format!("{name}: {error}")))?,
    };
    let fitted = fit(&profile, &known.fit_error, options, |round| {
        if !quiet {
            let step = round.step * 100.0;
            say(&format!(
                "{} evaluations: error {:.5}, step {step:.1} % of each range",
                round.evaluations, round.error
            ));
        }
    })
    .map_err(Failure::of)?;
    let rows = fitted.constants.iter();
    let rows = rows.map(|(key, before, after)| vec![key.clone(), before.clone(), after.clone()]);
    let table = table::columns(&["constant", "before", "after"], rows.collect());
    let heading = format!(
        "{} fitted to the rows that {} names: error {:.5} before, {:.5} after {} evaluations\n{table}",
        profile.name(),
        known.name,
        fitted.before,
        fitted.after,
        fitted.evaluations
    );
    let text = fitted.profile.write_fitted(&original).map_err(Failure::of)?;
    match out {
        Some(path) => {
            file::write(path, &text).map_err(Failure::of)?;
            if file::is_stream(path) {
                say(heading.trim_end());
                return Ok(());
            }
            print(&heading)
        }
        None => {
            say(heading.trim_end());
            print(&text)
        }
    }
}
