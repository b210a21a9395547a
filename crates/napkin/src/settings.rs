//! The options of `napi-set` and `dev-set`: one for each instance key of a policy, from the key table, and the weight,
//! which no policy has.

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use napkin_policy::{INSTANCE_KEYS, Key, Policy, Time, ValueKind};

/// The settings given on the command line; all others stay as they are.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// The keys that were given, each with a value within its limits.
    pub(crate) given: Vec<(&'static Key, u64)>,
    pub(crate) weight: Option<u64>,
}

impl FromArgMatches for Settings {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Settings, clap::Error> {
        let given = |key: &'static Key| {
            let text = matches.get_one::<String>(key.name)?;
            Some(key.read(text).map(|value| (key, value)))
        };
        let given: Result<Vec<_>, _> = INSTANCE_KEYS.iter().filter_map(given).collect();
        let given =
            given.map_err(|error| clap::Error::raw(clap::error::ErrorKind::InvalidValue, error))?;
        Ok(Settings { given, weight: matches.get_one("weight").copied() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Settings::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for Settings {
    fn augment_args(command: Command) -> Command {
        let weight = Arg::new("weight")
            .value_name("N")
            .value_parser(clap::value_parser!(u64))
            .help("Frames that a poll outside busy polling may take, as in 64");
        command.args(INSTANCE_KEYS.iter().map(option)).arg(weight.long("weight"))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Settings::augment_args(command)
    }
}

/// The help of a key's option: what it does, its values, its maximum, and its value in `base`.
fn help(key: &Key) -> String {
    let mut what = key.what.to_owned();
    if let Some(first) = what.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    let takes = match key.takes {
        ValueKind::Choice(_) => String::new(),
        ValueKind::Count { .. } => format!(": {}", key.takes),
        ValueKind::Time => format!(", as in 20us; at most {}", Time(key.takes.max())),
    };
    format!("{what}{takes} (in base: {})", key.value(&Policy::BASE))
}

fn option(key: &'static Key) -> Arg {
    let arg = Arg::new(key.name).long(key.name).help(help(key));
    match key.takes {
        ValueKind::Choice(words) => {
            let name = if key.takes.is_switch() { "on|off" } else { "MODE" };
            arg.value_name(name).value_parser(PossibleValuesParser::new(words))
        }
        ValueKind::Count { .. } => arg.value_name("N").value_parser(read(key)),
        ValueKind::Time => arg.value_name("TIME").value_parser(read(key)),
    }
}

fn read(key: &'static Key) -> impl Fn(&str) -> Result<String, String> + Clone {
    |text: &str| key.read(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_s_help_has_its_limit_an_example_and_its_usual_value() {
        let help = |name| help(Key::find(name).expect(name));
        assert_eq!(
            help("defer-hard-irqs"),
            "Empty polls before interrupts are allowed again: 0 to 2147483647 (in base: 0)"
        );
        assert_eq!(
            help("gro-flush-timeout"),
            "Time from one deferred poll to the next, as in 20us; at most 10s (in base: 0)"
        );
        assert!(help("feedback").ends_with("receivers are full (in base: off)"));
    }
}
