//! `--guard` of `run`, `attach` and `apply`.

use clap::ValueEnum;
use napkin_linux::apply::Temporary;
use napkin_linux::guard::{self, Again, Event, EventKind, Options};
use napkin_linux::journal::Store;

use crate::failure::say;

/// What is done about a queue that starves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Guard {
    /// Set its irq-suspend-timeout to 0 until napkin ends.
    Once,
    /// The same, but for 10 s; then try suspension again. After each further time, for twice as long.
    Again,
    /// Do nothing: the queue receives nothing for as long as the program starves it.
    Off,
}

impl Guard {
    /// Starts the starvation guard, unless it is `off`. Prints why if it cannot start.
    pub(crate) fn start(
        self,
        device: Option<&Temporary>,
        only: bool,
        quiet: bool,
    ) -> Option<guard::Guard> {
        let again = match self {
            Guard::Off => return None,
            Guard::Once => Again::Never,
            Guard::Again => Again::BACKOFF,
        };
        let held = device.map(|device| device.applied().before.device.ifindex);
        let options = Options { only: held.filter(|_| only), held, again };
        let on_event = move |event: &Event| {
            if !(quiet && matches!(event.kind, EventKind::Again { .. })) {
                say(&event.to_string());
            }
        };
        let store = Store::open().map_err(|error| error.to_string());
        let started = store.and_then(|store| {
            let started = guard::Guard::start(options, &store, Box::new(on_event));
            started.map_err(|error| error.to_string())
        });
        match started {
            Ok(guard) => {
                for (ifname, holder) in guard.held_by_others().iter().filter(|_| !quiet) {
                    say(&format!(
                        "note: {ifname} is held by {holder}, and no other process can end a suspension there; \
                         napkin's keeper does so for the programs of a wish's unit (napkin keep ... --unit)"
                    ));
                }
                Some(guard)
            }
            Err(why) => {
                if !quiet {
                    say(&format!("note: starved queues are not watched for: {why}"));
                }
                None
            }
        }
    }
}

/// Notes that a policy that can starve a queue stays in force without a guard.
pub(crate) fn unwatched() {
    say(
        "note: starved queues are not watched for once napkin has ended: a program that always finds \
         something else ready leaves its queue unpolled; napkin run, attach and apply --for watch",
    );
}

/// The same note, for a wish that names no unit.
pub(crate) fn unwatched_wish() {
    say(
        "note: starved queues are not watched for: a program that always finds something else ready leaves \
         its queue unpolled; the keeper watches where the wish names the program's unit (--unit), and \
         napkin run and attach can end no suspension on a device that it holds",
    );
}

/// A value of `apply --guard`.
#[derive(Debug, Clone)]
pub(crate) enum Guards {
    /// What is done about a queue that starves.
    Starving(Guard),
    /// What must stay true while the policy is in force.
    Canary(napkin_compare::Guard),
}

impl std::str::FromStr for Guards {
    type Err = napkin_compare::GuardError;

    fn from_str(text: &str) -> Result<Guards, napkin_compare::GuardError> {
        match <Guard as ValueEnum>::from_str(text, false) {
            Ok(guard) => Ok(Guards::Starving(guard)),
            Err(_) => text.parse().map(Guards::Canary),
        }
    }
}
