//! The command line: arguments in, tables out. What is done is in the other crates.
//!
//! Exit codes: 0 for success, 2 for a command that makes no sense, 1 for whatever else fails.

mod args;
mod bench;
mod control;
mod failure;
mod policies;
mod serve;
mod table;
mod units;

use std::process::ExitCode;

use args::{Args, Command};
use clap::Parser;

fn main() -> ExitCode {
    let result = match Args::parse().command {
        Command::Bench(args) => bench::bench(&args),
        Command::Policies(args) => policies::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::DevGet(args) => control::dev_get(&args),
        Command::QueueGet(args) => control::queue_get(&args),
        Command::NapiGet(args) => control::napi_get(&args),
        Command::NapiSet(args) => control::napi_set(&args),
        Command::QstatsGet(args) => control::qstats_get(&args),
        Command::DevSet(args) => control::dev_set(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
