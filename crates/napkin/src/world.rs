//! In which world a bench runs, and which options each world has.
//!
//! An option of another world is refused rather than ignored. What a world is, is in the crates.

use clap::parser::ValueSource;
use clap::{ArgMatches, ValueEnum};

use crate::bench::{Bench, Which};
use crate::failure::Failure;

/// Where a workload runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum World {
    /// Real threads and real packets, on this machine.
    Engine,
    /// A model in virtual time.
    Machine,
    /// The kernel's own NAPI, under programs of the operating system.
    Linux,
}

/// Options of single workloads that only the engine has.
const ENGINE_ONLY: [&str; 8] =
    ["device", "offered", "corner", "application", "delivery", "consume", "rate", "delay"];

/// Options of single workloads that only linux has.
const LINUX_ONLY: [&str; 1] = ["connections"];

/// The world that a call means; options of the other ones are refused.
pub(crate) fn world(args: &Bench, matches: Option<&ArgMatches>) -> Result<World, Failure> {
    let has = args.workload.as_ref().map_or(&[World::Engine][..], Which::worlds);
    let world = args.common.world.unwrap_or(has[0]);
    if !has.contains(&world) {
        let Some(which) = &args.workload else {
            let name = spelled(world);
            let text = format!("name a workload: napkin bench flood-ping --world {name}");
            return Err(Failure::Usage(text));
        };
        let (name, worlds) = (which.name(), has.iter().copied().map(spelled).collect::<Vec<_>>());
        let text = format!(
            "{name} runs in {} only: napkin bench {name} --world {}",
            worlds.join(" and "),
            worlds[0]
        );
        return Err(Failure::Usage(text));
    }
    let modelled = &args.common.modelled;
    let foreign = match world {
        World::Engine => modelled.given(),
        World::Machine => None,
        World::Linux => modelled.given_beside_load(),
    };
    if let Some(option) = foreign {
        return Err(Failure::Usage(format!(
            "--{option} is for a modelled host: add --world machine"
        )));
    }
    let linux_only: &[&str] = if world == World::Machine { &LINUX_ONLY } else { &[] };
    let engine_only: &[&str] = if world == World::Engine { &[] } else { &ENGINE_ONLY };
    let chosen = matches.and_then(ArgMatches::subcommand).map(|(_, chosen)| chosen);
    let given = |option: &&&str| {
        let ids = chosen.filter(|chosen| chosen.try_contains_id(option).is_ok());
        let source = ids.and_then(|chosen| chosen.value_source(option));
        source == Some(ValueSource::CommandLine)
    };
    if let Some(option) = engine_only.iter().find(given) {
        let instead = match world {
            World::Machine => "a modelled workload takes --load and --set",
            _ => "in linux a workload takes --load",
        };
        return Err(Failure::Usage(format!(
            "--{option} is for the engine; {instead} (see napkin bench --help)"
        )));
    }
    match linux_only.iter().find(given) {
        Some(option) => Err(Failure::Usage(format!("--{option} is for linux: add --world linux"))),
        None => Ok(world),
    }
}

/// A world as it is named on the command line.
fn spelled(world: World) -> &'static str {
    match world {
        World::Engine => "engine",
        World::Machine => "machine",
        World::Linux => "linux",
    }
}
