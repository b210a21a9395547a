//! The workloads of `napkin-workload` as subcommands, with their settings as options.

use clap::builder::{PossibleValue, PossibleValuesParser, ValueParser};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches, Subcommand};
use napkin_workload::{Given, Setting, WORKLOADS, Workload, World, find};

/// The chosen workload with its settings.
#[derive(Debug, Clone)]
pub(crate) struct Chosen {
    pub(crate) workload: &'static dyn Workload,
    pub(crate) given: Given,
    /// The settings given on the command line, without defaults.
    pub(crate) explicit: Vec<&'static Setting>,
}

impl FromArgMatches for Chosen {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Chosen, clap::Error> {
        let none = || clap::Error::new(clap::error::ErrorKind::MissingSubcommand);
        let (name, matches) = matches.subcommand().ok_or_else(none)?;
        let workload = find(name).ok_or_else(none)?;
        let (mut given, mut explicit) = (Given::default(), Vec::new());
        for setting in workload.settings() {
            if matches.value_source(setting.name) == Some(ValueSource::CommandLine) {
                explicit.push(setting);
            }
            if setting.value.is_none() {
                if matches.get_flag(setting.name) {
                    given.0.insert(setting.name, Vec::new());
                }
            } else if let Some(values) = matches.get_many::<String>(setting.name) {
                given.0.insert(setting.name, values.cloned().collect());
            }
        }
        Ok(Chosen { workload, given, explicit })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Chosen::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Subcommand for Chosen {
    fn augment_subcommands(command: Command) -> Command {
        command.subcommands(WORKLOADS.iter().map(|it| subcommand(*it)))
    }

    fn augment_subcommands_for_update(command: Command) -> Command {
        Chosen::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        find(name).is_some()
    }
}

fn subcommand(workload: &'static dyn Workload) -> Command {
    let about = workload.about();
    Command::new(workload.name())
        .about(about)
        .long_about(format!("{about}\n\nWithout --policy: {}.", default_policies(workload)))
        .args(workload.settings().iter().map(option))
}

/// The default policies of a workload: those of its default world, then those of each world that has others.
fn default_policies(workload: &dyn Workload) -> String {
    let of = |world: &World| {
        let policies = workload.policies(*world);
        policies.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    };
    let (first, others) = workload.worlds().split_first().expect("a world");
    let mut policies = of(first);
    for world in others.iter().filter(|world| of(world) != of(first)) {
        policies.push_str(&format!("; in {world} {}", of(world)));
    }
    policies
}

fn option(setting: &'static Setting) -> Arg {
    let arg = Arg::new(setting.name).long(setting.name).help(setting.help);
    let arg = match setting.value {
        None => arg.action(ArgAction::SetTrue),
        Some(value) => arg.value_name(value).value_parser(parser(setting)),
    };
    let arg = match setting.list {
        true => arg.action(ArgAction::Append).value_delimiter(','),
        false => arg,
    };
    let arg = arg.conflicts_with_all(setting.conflicts);
    let arg = match setting.requires {
        Some(other) => arg.requires(other),
        None => arg,
    };
    match setting.default {
        Some(default) => arg.default_value(default),
        None => arg,
    }
}

fn parser(setting: &'static Setting) -> ValueParser {
    if setting.choices.is_empty() {
        let read = |text: &str| (setting.check)(text).map(|()| text.to_owned());
        return ValueParser::from(read);
    }
    let choices = setting.choices.iter().map(|(name, help)| PossibleValue::new(*name).help(*help));
    PossibleValuesParser::new(choices).into()
}
