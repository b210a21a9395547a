//! Keeps the programs of a unit under a wish's policy while they run.
//!
//! The unit's control group reports its first process. Nothing reports what a process opens later, so it is
//! scanned, as `napkin attach` does; without a process nothing is scanned.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use napkin_kernel::process::Process;
use napkin_linux::apply::restore_leftovers;
use napkin_linux::attach::{Attachment, Detail, Event, Lines, Plan, PlanError, cpus_by_napi};
use napkin_linux::journal::{ProcessJournals, Store};
use napkin_os::procfs::thread::ThreadStat;
use napkin_policy::Policy;

use crate::unit::{Unit, processes};
use crate::wish::Wish;

/// The delay until a control group is read again, if all listed processes ended before they could be set.
const RETRY: Duration = Duration::from_secs(1);

/// The programs of one wish's unit.
#[derive(Debug)]
pub(crate) struct Programs {
    /// The wish's name.
    name: String,
    unit: Unit,
    policy: Policy,
    group: PathBuf,
    pin: bool,
    plan: Plan,
    store: Store,
    /// `None` while there is no process.
    attachment: Option<Attachment<ProcessJournals>>,
    lines: Lines,
    next: Option<Instant>,
    /// Why threads that should be pinned are not.
    unpinned: Option<String>,
    /// Processes that cannot be set, by ID and start time (IDs are reused), with the reason.
    failing: BTreeMap<(i32, Option<u64>), String>,
}

impl Programs {
    /// Creates the state for a wish with a unit, whose control group is `group`.
    pub(crate) fn new(
        wish: &Wish,
        unit: &Unit,
        group: PathBuf,
        store: &Store,
    ) -> Result<Programs, PlanError> {
        Ok(Programs {
            name: wish.name.clone(),
            unit: unit.clone(),
            policy: wish.policy,
            group,
            pin: wish.pin,
            plan: Plan::of(&wish.policy)?,
            store: store.clone(),
            attachment: None,
            lines: Lines::new(Detail::News),
            next: None,
            unpinned: None,
            failing: BTreeMap::new(),
        })
    }

    /// Whether this state matches the wish.
    pub(crate) fn are_for(&self, wish: &Wish) -> bool {
        self.name == wish.name
            && self.policy == wish.policy
            && self.pin == wish.pin
            && wish.unit.as_ref() == Some(&self.unit)
    }

    /// The wish's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The unit.
    pub(crate) fn unit(&self) -> &Unit {
        &self.unit
    }

    /// The control group's directory.
    pub(crate) fn group(&self) -> &Path {
        &self.group
    }

    /// The time of the next scan; `None` to wait for an event.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.next
    }

    /// Whether any of the programs runs.
    pub(crate) fn run(&self) -> bool {
        self.attachment.is_some()
    }

    /// Why processes cannot be set or their threads pinned, a sentence for each reason.
    pub(crate) fn failing(&self) -> impl Iterator<Item = String> {
        let all = self.unpinned.iter().chain(self.failing.values());
        all.map(|why| format!("{} ({}): {why}", self.name, self.unit))
    }

    /// Scans the unit's processes, and sets whatever differs from the wish. `look_again`: also retries those that
    /// could not be set before, as a lack of resources may be over. Failures are not reported here;
    /// [`failing`](Programs::failing) returns them.
    pub(crate) fn look(&mut self, look_again: bool, emit: &mut dyn FnMut(String)) {
        let pids = processes(&self.group);
        self.failing.retain(|key, _| pids.contains(&key.0) && started(key.0) == key.1);
        if pids.is_empty() && self.attachment.is_none() {
            self.next = None;
            self.unpinned = None;
            return;
        }
        let new = self.attachment.is_none();
        let attachment = self.attachment.get_or_insert_with(|| {
            let journals = ProcessJournals::new(self.store.clone());
            let mut attachment = Attachment::new(self.plan.clone(), journals);
            attachment.raise_open_files();
            attachment
        });
        if self.pin && (new || look_again && self.unpinned.is_some()) {
            self.unpinned = match cpus_by_napi() {
                Ok(cpus) => {
                    attachment.pin_with(cpus);
                    None
                }
                Err(error) => Some(format!("not pinned: {error}")),
            };
        }
        for pid in pids {
            if attachment.contains(pid) {
                continue;
            }
            let key = (pid, started(pid));
            let before = self.failing.get(&key);
            if before.is_some() && !look_again {
                continue;
            }
            // A killed keeper's settings would be taken for the program's own.
            if let Ok(process) = Process::open(pid) {
                let left = restore_leftovers(&self.store, pid, process.start_time());
                // At a retry the same is restored again; it was reported the first time.
                if !left.changes.is_empty() && before.is_none() {
                    let what =
                        format!("what an earlier napkin left in process {pid} is put back first");
                    emit(format!("{} ({}): {what}", self.name, self.unit));
                }
                for why in left.left.iter().filter(|_| before.is_none()) {
                    emit(format!("{} ({}): {why}", self.name, self.unit));
                }
            }
            match attachment.add(pid).map_err(|error| (error.is_gone(), error.to_string())) {
                Err((false, why)) => {
                    self.failing.insert(key, why);
                }
                _ => {
                    self.failing.remove(&key);
                }
            }
        }
        let look = attachment.scan();
        let lines: Vec<String> = look.events.iter().filter_map(|it| self.lines.line(it)).collect();
        lines.into_iter().for_each(|line| emit(format!("{} ({}): {line}", self.name, self.unit)));
        if attachment.processes() == 0 {
            self.attachment = None;
            // A program that started after the list was read, from one that has ended meanwhile: the group
            // was never empty, so no event reports it.
            let pids = processes(&self.group);
            let new = pids.iter().any(|pid| !self.failing.contains_key(&(*pid, started(*pid))));
            self.next = new.then(|| Instant::now() + RETRY);
        } else {
            self.next = Some(Instant::now() + look.wait);
        }
    }

    /// Puts everything back in the running processes; returns whether that succeeded.
    pub(crate) fn restore(mut self, emit: &mut dyn FnMut(String)) -> bool {
        let Some(mut attachment) = self.attachment.take() else { return true };
        let (restoration, events) = attachment.restore();
        let failed: Vec<String> =
            events.iter().filter_map(|it: &Event| self.lines.line(it)).collect();
        failed.into_iter().for_each(&mut *emit);
        emit(format!(
            "{} ({}): {} settings of programs put back",
            self.name, self.unit, restoration.done
        ));
        restoration.failed == 0
    }
}

/// The start time of a process, in ticks since boot; `None` if it has ended.
fn started(pid: i32) -> Option<u64> {
    ThreadStat::of_process(pid).map(|stat| stat.start_ticks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use napkin_kernel::namespace::Identity;
    use std::fs;

    #[test]
    fn a_group_is_looked_at_again_while_a_process_is_in_it_that_was_not_tried() {
        let directory = std::env::temp_dir().join(format!("napkin-group-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("made");
        let text = "policy = \"suspend20\"\nunit = \"a.service\"\n[match]\nname = \"eth0\"\n";
        let wish = Wish::parse(Path::new("/etc/napkin/a.toml"), text).expect("a wish");
        let unit = wish.unit.clone().expect("it has one");
        let namespace = Identity { cookie: Some(1), inode: 1 };
        let store = Store::at(directory.join("state"), "this boot".into(), namespace);
        let mut programs =
            Programs::new(&wish, &unit, directory.clone(), &store).expect("it has a plan");
        let mut lines = Vec::new();
        let mut emit = |line: String| lines.push(line);

        programs.look(true, &mut emit);
        assert_eq!(programs.next(), None, "nobody is there");
        // An ID that no process has: it is listed, and cannot be opened.
        let list = directory.join("cgroup.procs");
        fs::write(&list, format!("{}\n", i32::MAX)).expect("written");
        programs.look(true, &mut emit);
        assert!(programs.next().is_some() && !programs.run());
        // A process that cannot be set is retried not each second, but with everything else.
        programs.failing.insert((i32::MAX, None), "no descriptor".into());
        programs.look(false, &mut emit);
        assert_eq!((programs.next(), programs.failing().count()), (None, 1));
        programs.look(true, &mut emit);
        assert_eq!(programs.failing().count(), 0, "tried again");
        // The ID belonged to another process.
        programs.failing.insert((i32::MAX, Some(7)), "no right".into());
        programs.look(false, &mut emit);
        assert!(programs.next().is_some() && programs.failing().count() == 0);
        programs.unpinned = Some("not pinned: no answer".into());
        let failing: Vec<String> = programs.failing().collect();
        assert_eq!(failing, ["a (a.service): not pinned: no answer"]);
        fs::write(&list, "").expect("written");
        programs.look(false, &mut emit);
        assert_eq!(programs.next(), None, "they have ended");
        assert_eq!(programs.failing().count(), 0, "there is nothing to pin");
        assert_eq!(lines, [""; 0]);
        let _ = fs::remove_dir_all(directory);
    }
}
