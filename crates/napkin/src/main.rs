//! The command line: arguments in, tables out. The work is done in the other crates.
//!
//! Exit codes: 0 for success, 2 for a command line that makes no sense, 130 after a Ctrl-C that cuts a measurement
//! short (143 after SIGTERM, 129 after SIGHUP), 1 for any other failure; apply, diff, doctor, keep and run have
//! further ones, which their help lists.

mod apply;
mod args;
mod attach;
mod attempt;
mod bench;
mod common;
mod compare;
mod control;
mod diff;
mod doctor;
mod export;
mod failure;
mod guard;
mod host_costs;
mod keep;
mod launch;
mod lifeline;
mod load;
mod machine;
mod manual;
mod modelled;
mod outputs;
mod place;
mod policies;
mod profile;
mod reproduce;
mod restore;
mod serve;
mod settings;
mod show;
mod swarm;
mod sweep;
mod table;
mod top;
mod units;
mod workload;
mod world;

use std::process::ExitCode;

use args::{Args, Command};
use clap::{CommandFactory, FromArgMatches};

/// The commit that the program is built from, if known.
const COMMIT: Option<&str> = option_env!("NAPKIN_COMMIT");

fn main() -> ExitCode {
    let matches = Args::command().get_matches();
    let args = Args::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let result = match args.command {
        Command::Bench(args) => bench::bench(&args),
        Command::Policies(args) => policies::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Load(args) => load::load(&args),
        Command::DevGet(args) => control::dev_get(&args),
        Command::QueueGet(args) => control::queue_get(&args),
        Command::NapiGet(args) => control::napi_get(&args),
        Command::NapiSet(args) => control::napi_set(&args),
        Command::QstatsGet(args) => control::qstats_get(&args),
        Command::DevSet(args) => control::dev_set(&args),
        Command::Reproduce(args) => reproduce::run(&args),
        Command::Sweep(args) => sweep::run(&args),
        Command::Profile(args) => profile::run(&args),
        Command::Swarm(args) => swarm::run(&args),
        Command::Show(args) => show::run(&args),
        Command::Apply(args) => apply::run(&args),
        Command::Restore(args) => restore::run(&args),
        Command::Diff(args) => diff::run(&args),
        Command::Keep(args) => keep::run(&args),
        Command::Unkeep(args) => keep::unkeep(&args),
        Command::Keeper(args) => keep::keeper_run(&args),
        Command::Run(args) => launch::run(&args),
        Command::Attach(args) => attach::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Place(args) => place::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Completions(args) => manual::completions(&args, Args::command()),
        Command::Man(args) => manual::man(&args, Args::command()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
