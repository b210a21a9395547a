//! The list of workloads, and the schema of what their profiles may state.

use std::sync::LazyLock;

use napkin_machine::profile::Schema;

use napkin_measure::conclusion::Rule;

use crate::workload::Workload;
use crate::world::World;

/// Every workload, by year.
pub const WORKLOADS: &[&dyn Workload] = &[
    &crate::flood_ping::FloodPing,
    &crate::udp_sink::UdpSink,
    &crate::tcp_rr::TcpRr,
    &crate::ssd::Ssd,
    &crate::memcached::Memcached,
    &crate::xsk_rr::XskRr,
];

/// Returns the rule of the workload of that name, or the default rule for an unknown name.
pub(crate) fn rule(name: &str) -> Rule {
    find(name).map_or_else(Rule::default, |it| it.rule())
}

/// Returns the schema of profiles: the host's constants, those of every workload, and the oracle's.
pub fn schema() -> &'static Schema {
    static SCHEMA: LazyLock<Schema> = LazyLock::new(|| {
        let scenarios = WORKLOADS.iter().filter_map(|it| it.machine());
        let workloads = scenarios.filter_map(|it| it.constants());
        Schema::with(workloads.chain([crate::oracle::CONSTANTS]))
    });
    &SCHEMA
}

/// The workload of that name.
pub fn find(name: &str) -> Option<&'static dyn Workload> {
    WORKLOADS.iter().find(|it| it.name() == name).copied()
}

/// Joins words with commas, and the last two with `last`.
fn listed(words: &[&str], last: &str) -> String {
    match words {
        [most @ .., one] if !most.is_empty() => format!("{} {last} {one}", most.join(", ")),
        _ => words.concat(),
    }
}

/// All names, for a help text: `flood-ping, udp-sink or xsk-rr`.
pub fn names() -> String {
    let names: Vec<&str> = WORKLOADS.iter().map(|it| it.name()).collect();
    listed(&names, "or")
}

/// Returns the default world of each workload, for a help text.
pub fn default_worlds() -> String {
    let usual = World::Engine;
    let mut text = usual.to_string();
    for (world, _) in World::ALL.into_iter().filter(|(world, _)| *world != usual) {
        let first = |it: &&&dyn Workload| it.worlds().first() == Some(&world);
        let names: Vec<&str> = WORKLOADS.iter().filter(first).map(|it| it.name()).collect();
        if !names.is_empty() {
            text.push_str(&format!("; of {} {world}", listed(&names, "and")));
        }
    }
    text
}

/// Returns the syntax of each workload's loads, for a help text.
pub fn load_forms() -> String {
    let form = |it: &&dyn Workload| Some(format!("{}: {}", it.name(), it.machine()?.form()));
    WORKLOADS.iter().filter_map(form).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setting::Given;

    #[test]
    fn every_workload_has_what_its_worlds_take_and_says_what_it_shows() {
        for workload in WORKLOADS {
            let name = workload.name();
            assert_eq!(find(name).map(|it| it.name()), Some(name));
            assert!(workload.shows().contains("Shows "), "{name}");
            let has = |world| workload.worlds().contains(&world);
            assert_eq!(workload.machine().is_some(), has(World::Machine), "{name}");
            if let Some(scenario) = workload.machine() {
                assert_eq!(scenario.name(), name);
            }
            let given = Given(
                workload
                    .settings()
                    .iter()
                    .filter_map(|it| Some((it.name, vec![it.default?.to_owned()])))
                    .collect(),
            );
            let live = [
                (World::Engine, workload.engine(&[], &given)),
                (World::Linux, workload.linux(&[], &given)),
            ];
            for (world, live) in live {
                let live = live.map(|it| (it.name(), it.world())).ok();
                assert_eq!(live, has(world).then(|| (name, world.name())), "{name}");
            }
            for (world, _) in World::ALL {
                assert_eq!(!workload.policies(world).is_empty(), has(world), "{name} {world}");
            }
            for setting in workload.settings() {
                assert!(setting.worlds.iter().copied().all(has), "{name} {}", setting.name);
                for value in setting.default.iter().flat_map(|it| it.split(',')) {
                    assert_eq!((setting.check)(value), Ok(()), "{name} {}", setting.name);
                }
            }
        }
    }
}
