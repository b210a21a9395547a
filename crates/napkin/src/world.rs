//! The worlds of a bench, and the options of each.
//!
//! An option of another world is refused rather than ignored.

use napkin_workload::{Setting, World};

use crate::common::Common;
use crate::failure::Failure;
use crate::workload::Chosen;

/// The worlds of a command line. Options that none of them has are refused.
pub(crate) fn worlds(chosen: Option<&Chosen>, common: &Common) -> Result<Vec<World>, Failure> {
    let has = chosen.map_or(&[World::Engine][..], |it| it.workload.worlds());
    let worlds = match &common.world[..] {
        [] => vec![has[0]],
        given => given.to_vec(),
    };
    for (place, world) in worlds.iter().enumerate() {
        if worlds[..place].contains(world) {
            return Err(Failure::Usage(format!("--world has {world} twice")));
        }
        if has.contains(world) {
            continue;
        }
        let Some(chosen) = chosen else {
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
    check_options(chosen, common, &worlds)?;
    Ok(worlds)
}

/// Refuses an option that none of the worlds has, and several queues if one of several worlds has a single queue.
fn check_options(
    chosen: Option<&Chosen>,
    common: &Common,
    worlds: &[World],
) -> Result<(), Failure> {
    let modelled = &common.modelled;
    let one_queue = |world: &&World| match world {
        World::Machine => false,
        World::Engine => chosen.is_some_and(|it| !it.workload.queues()),
        World::Linux => true,
    };
    // Rows with several queues must not be set beside rows with one.
    if worlds.len() > 1
        && modelled.queues.is_some_and(|it| it != 1)
        && let Some(world) = worlds.iter().find(one_queue)
    {
        return Err(Failure::Usage(format!(
            "--queues is not for {world}, which has one here: leave {world} out of --world"
        )));
    }
    let option = match chosen {
        _ if worlds.contains(&World::Machine) => None,
        Some(chosen) => modelled.given_beside_load().or_else(|| {
            let have = worlds.contains(&World::Engine) && chosen.workload.queues();
            (modelled.queues.is_some() && !have).then_some("queues")
        }),
        // The short round has loads of its own.
        None => modelled.given(),
    };
    if let Some(option) = option {
        return Err(Failure::Usage(format!(
            "--{option} is for a modelled host: add --world machine"
        )));
    }
    let explicit = chosen.iter().flat_map(|it| &it.explicit);
    let none_has = |it: &&&Setting| !it.worlds.iter().any(|world| worlds.contains(world));
    let Some(setting) = { explicit }.find(none_has) else { return Ok(()) };
    let (engine, name) = (setting.worlds == [World::Engine], setting.name);
    Err(Failure::Usage(match worlds[0] {
        World::Machine if engine => format!(
            "--{name} is for the engine: add --world engine; a modelled workload takes --load and --set (see napkin bench --help)"
        ),
        _ if engine => format!(
            "--{name} is for the engine; in linux a workload takes --load (see napkin bench --help)"
        ),
        _ => {
            let worlds: Vec<&str> = setting.worlds.iter().map(|it| it.name()).collect();
            format!("--{name} is for {}: add --world {}", worlds.join(" and "), worlds[0])
        }
    }))
}
