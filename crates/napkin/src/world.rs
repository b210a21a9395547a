//! In which world a bench runs, and which options each world has.
//!
//! An option of another world is refused rather than ignored. What a world is, is in the crates.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use napkin_workload::World;

use crate::bench::Bench;
use crate::failure::Failure;

/// Reads a world's name.
pub(crate) fn parser() -> impl TypedValueParser<Value = World> {
    let name = |(world, what): &(World, &'static str)| PossibleValue::new(world.name()).help(*what);
    let read = |text: String| {
        let named = World::ALL.into_iter().find(|(world, _)| world.name() == text);
        named.map(|(world, _)| world).ok_or("a world that is listed is one")
    };
    PossibleValuesParser::new(World::ALL.iter().map(name)).try_map(read)
}

/// The world that a call means; options of the other ones are refused.
pub(crate) fn world(args: &Bench) -> Result<World, Failure> {
    let has = args.workload.as_ref().map_or(&[World::Engine][..], |it| it.workload.worlds());
    let world = args.common.world.unwrap_or(has[0]);
    if !has.contains(&world) {
        let Some(chosen) = &args.workload else {
            let text = format!("name a workload: napkin bench flood-ping --world {world}");
            return Err(Failure::Usage(text));
        };
        let name = chosen.workload.name();
        let worlds: Vec<&str> = has.iter().map(|it| it.name()).collect();
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
    let explicit = args.workload.iter().flat_map(|it| &it.explicit);
    let Some(setting) = explicit.into_iter().find(|it| it.world != world) else {
        return Ok(world);
    };
    Err(Failure::Usage(match (setting.world, world) {
        (World::Engine, World::Machine) => format!(
            "--{} is for the engine; a modelled workload takes --load and --set (see napkin bench --help)",
            setting.name
        ),
        (World::Engine, _) => format!(
            "--{} is for the engine; in linux a workload takes --load (see napkin bench --help)",
            setting.name
        ),
        (other, _) => format!("--{} is for {other}: add --world {other}", setting.name),
    }))
}
