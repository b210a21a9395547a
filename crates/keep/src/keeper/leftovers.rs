//! Finds what an earlier napkin left changed, which a keeper reports at its start.

use napkin_kernel::process::Process;
use napkin_kernel::shell;
use napkin_linux::apply::{Backend, Linux, Target};
use napkin_linux::journal::{Found, Store};
use napkin_linux::process_change::ProcessChange;

/// Describes what an earlier napkin has changed in this network namespace and no process holds: a sentence
/// for each device and each process. It may be from a killed keeper, for a wish that no longer exists, or a
/// permanent `apply`; the journal does not tell these apart. `is_left` returns, for the ifindex and identity
/// of a device that no process holds, whether it is here, and the keeper is not only waiting until it is up.
pub(super) fn leftovers(
    store: &Store,
    is_left: &mut dyn FnMut(u32, Option<u64>) -> bool,
) -> Vec<String> {
    let found = match store.survey() {
        Ok(found) => found,
        Err(error) => return vec![error.to_string()],
    };
    let left = |found: Found| {
        let (what, restore) = match found {
            Found::Device(journal) => {
                let (ifindex, identity) = (journal.ifindex(), journal.identity());
                let held = store.holder(ifindex, identity).is_some();
                if held || journal.records().is_empty() || !is_left(ifindex, identity) {
                    return None;
                }
                (journal.ifname().to_owned(), format!(" {}", shell::dev(journal.ifname())))
            }
            Found::Process(journal) => {
                let (pid, start_time) = journal.process();
                let held = store.process_holder(pid, start_time).is_some();
                let gone = journal.is_elsewhere() || Process::reopen(pid, start_time).is_err();
                // The journal also records what a program had set itself, which is no change.
                let changed = |record: &Vec<ProcessChange>| {
                    record.first().is_some_and(ProcessChange::is_change)
                };
                if held || gone || !journal.records().iter().any(changed) {
                    return None;
                }
                (format!("process {pid}"), String::new())
            }
            _ => return None,
        };
        Some(format!(
            "{what}: what an earlier napkin has changed was not put back, and no napkin holds it: napkin \
             restore{restore} puts it back"
        ))
    };
    found.into_iter().filter_map(left).collect()
}

/// Whether the device with this ifindex is up; `None` if it is not here, or is known to be another one.
pub(super) fn is_up(backend: &mut Linux, ifindex: u32, identity: Option<u64>) -> Option<bool> {
    let at = backend.look(Target::Index(ifindex)).ok()?;
    let same = identity.zip(at.identity).is_none_or(|(left, present)| left == present);
    same.then_some(at.device.up)
}

#[cfg(test)]
mod tests {
    use super::*;
    use napkin_kernel::namespace::Identity;
    use napkin_kernel::settings::Setting;
    use napkin_linux::place::{Place, Spot, Value};

    #[test]
    fn what_a_killed_keeper_has_left_is_told_of_unless_somebody_holds_it() {
        let directory = std::env::temp_dir().join(format!("napkin-left-{}", std::process::id()));
        let namespace = Identity { cookie: Some(1), inode: 1 };
        let store = Store::at(directory.clone(), "this boot".into(), namespace);
        let left = |is_left: bool| leftovers(&store, &mut |_, _| is_left);
        assert_eq!(left(true), [""; 0]);
        let spot = Spot { place: Place::Device(Setting::GroFlushTimeout), napi_id: None };
        let mut journal = store.device(7, "va", Some(700)).expect("readable");
        let [old, new] = [0, 20_000].map(Value::Number);
        journal.before(&spot, &old, &new).expect("written");
        assert_eq!(left(false), [""; 0], "it is gone, or waited for");
        let messages =
            leftovers(&store, &mut |ifindex, identity| (ifindex, identity) == (7, Some(700)));
        assert!(
            matches!(&messages[..], [it] if it.contains("napkin restore --dev va")),
            "{messages:?}"
        );
        let lock = store.lock(7, "va", Some(700)).expect("nobody has it");
        assert_eq!(left(true), [""; 0]);
        drop(lock);
        let _ = std::fs::remove_dir_all(directory);
    }
}
