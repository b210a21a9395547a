//! Compares systemd's `CPUAffinity=` of services with a plan.
//!
//! systemd sets `CPUAffinity=` when a service starts, and all its threads inherit it. A plan that moves one
//! of them elsewhere holds until the service restarts. The setting is read from systemd's files, without
//! asking it: from those of the unit and its drop-ins, else of the manager (`system.conf`). `AllowedCPUs=` is
//! a cpuset, which the kernel enforces and a plan respects anyway.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use napkin_os::procfs::{cpus, read_text};
use napkin_os::sched::CpuList;

use super::Placement;
use crate::doctor::Facts;

/// Directories of units, the most important first.
const UNITS: [&str; 4] =
    ["etc/systemd/system", "run/systemd/system", "usr/lib/systemd/system", "lib/systemd/system"];

/// Directories of the manager's own settings, the most important first.
const MANAGER: [&str; 4] = ["etc/systemd", "run/systemd", "usr/lib/systemd", "lib/systemd"];

/// The maximum size of a file in bytes.
const LONGEST: usize = 1 << 20;

/// A `CPUAffinity=` in force.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Affinity {
    cpus: Vec<usize>,
    /// The file with the last line that contributes, and that line's number.
    file: PathBuf,
    line: usize,
}

/// Returns notes on services whose `CPUAffinity=` excludes CPUs that the plan gives to their workers.
pub(super) fn notes(facts: &Facts, placement: &Placement) -> Vec<String> {
    let mut notes = Vec::new();
    for program in &facts.programs {
        let threads: Vec<i32> = program.threads.iter().map(|thread| thread.tid).collect();
        let mut planned: Vec<usize> = placement
            .rows
            .iter()
            .filter(|row| row.workers.iter().any(|worker| threads.contains(&worker.id)))
            .map(|row| row.cpu)
            .collect();
        planned.sort_unstable();
        planned.dedup();
        let who = format!("{}[{}]", program.comm, program.pid);
        let unit = unit_of(program.pid);
        let affinity = unit.as_deref().and_then(|unit| affinity(Path::new("/"), unit));
        notes.extend(affinity.and_then(|it| contradiction(&who, &unit?, &it, &planned)));
    }
    notes
}

/// Returns a note if the affinity excludes CPUs of the plan.
fn contradiction(who: &str, unit: &str, affinity: &Affinity, planned: &[usize]) -> Option<String> {
    let outside: Vec<usize> =
        planned.iter().copied().filter(|cpu| !affinity.cpus.contains(cpu)).collect();
    (!outside.is_empty()).then(|| {
        let (file, line) = (affinity.file.display(), affinity.line);
        let list = |cpus: &[usize]| CpuList(cpus.to_vec()).to_string();
        let affinity_cpus = list(&affinity.cpus);
        let outside_cpus = list(&outside);
        let plural = if outside.len() == 1 { "CPU" } else { "CPUs" };
        format!(
            "{who}: {unit} has CPUAffinity={affinity_cpus} ({file}:{line}), and the plan has threads of it on {plural} \
             {outside_cpus}: the next start of the service puts them back on {affinity_cpus}; plan within (--cpus {affinity_cpus}), \
             or change that line"
        )
    })
}

/// The unit whose control group contains a process.
fn unit_of(pid: i32) -> Option<String> {
    let groups = read_text(format!("/proc/{pid}/cgroup"), LONGEST).ok()?;
    unit_in(&groups)
}

/// Parses `/proc/PID/cgroup`: version 2, or systemd's own hierarchy.
fn unit_in(groups: &str) -> Option<String> {
    let path = groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        matches!(controllers, "" | "name=systemd").then_some(path)
    })?;
    // Processes may be in subgroups of the unit's.
    let unit = path.split('/').rfind(|part| part.ends_with(".service"));
    unit.map(str::to_owned)
}

/// The `CPUAffinity=` of a unit below a root, else the manager's.
fn affinity(root: &Path, unit: &str) -> Option<Affinity> {
    // foo@1.service is an instance of foo@.service, and has drop-ins of both names.
    let template = unit.split_once('@').and_then(|(name, instance)| {
        let (_, kind) = instance.rsplit_once('.')?;
        Some(format!("{name}@.{kind}"))
    });
    let names: Vec<&str> = template.iter().map(String::as_str).chain([unit]).collect();
    let mut files = Vec::new();
    let fragment = names.iter().rev().find_map(|name| first(root, &UNITS, name));
    files.extend(fragment);
    files.extend(drop_ins(root, &UNITS, &names));
    let own = last(&files, "Service");
    own.or_else(|| {
        let mut files: Vec<PathBuf> = first(root, &MANAGER, "system.conf").into_iter().collect();
        files.extend(drop_ins(root, &MANAGER, &["system.conf"]));
        last(&files, "Manager")
    })
}

/// The path of a file in the first directory that has it.
fn first(root: &Path, folders: &[&str], name: &str) -> Option<PathBuf> {
    folders.iter().map(|folder| root.join(folder).join(name)).find(|path| path.exists())
}

/// `NAME.d/*.conf` of all directories, in the order of their names; of equal names, the one from the most
/// important directory.
fn drop_ins(root: &Path, folders: &[&str], names: &[&str]) -> Vec<PathBuf> {
    let mut by_name = BTreeMap::new();
    for folder in folders.iter().rev() {
        for name in names {
            let folder = root.join(folder).join(format!("{name}.d"));
            let files = fs::read_dir(folder).into_iter().flatten().flatten();
            let files = files.map(|it| it.path());
            let files = files.filter(|path| path.extension().is_some_and(|it| it == "conf"));
            by_name.extend(files.filter_map(|path| Some((path.file_name()?.to_owned(), path))));
        }
    }
    by_name.into_values().collect()
}

/// Evaluates the lines of these files in order: each adds to those before, and an empty value resets.
fn last(files: &[PathBuf], section: &str) -> Option<Affinity> {
    let mut found: Option<Affinity> = None;
    for file in files {
        let text = read_text(file, LONGEST).unwrap_or_default();
        let mut in_section = false;
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if let Some(name) = line.strip_prefix('[').and_then(|it| it.strip_suffix(']')) {
                in_section = name == section;
            }
            let Some((key, value)) = line.split_once('=').filter(|_| in_section) else { continue };
            if key.trim() != "CPUAffinity" {
                continue;
            }
            let value = value.split([' ', '\t', ',']).filter(|word| !word.is_empty());
            let value = value.collect::<Vec<_>>().join(",");
            if value.is_empty() {
                found = None;
                continue;
            }
            // `numa` refers to NUMAMask, and is not evaluated.
            let Some(more) = cpus::parse_list(&value) else { continue };
            let before = found.take().map(|it| it.cpus).unwrap_or_default();
            let mut cpus: Vec<usize> = before.into_iter().chain(more).collect();
            cpus.sort_unstable();
            cpus.dedup();
            found = Some(Affinity { cpus, file: file.clone(), line: at + 1 });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use napkin_testing::Folder;

    use super::*;

    /// A root directory with these files.
    struct Root(Folder);

    impl Root {
        fn new(name: &str, files: &[(&str, &str)]) -> Root {
            let root = Root(Folder::new(&format!("affinity-{name}")));
            for (path, text) in files {
                let path = root.0.join(path);
                fs::create_dir_all(path.parent().expect("a folder")).expect("made");
                fs::write(path, text).expect("written");
            }
            root
        }

        fn of(&self, unit: &str) -> Option<(Vec<usize>, String)> {
            let it = affinity(&self.0, unit)?;
            let file = it.file.strip_prefix(&self.0).expect("below").display().to_string();
            Some((it.cpus, format!("{file}:{}", it.line)))
        }
    }

    #[test]
    fn a_unit_s_own_comes_before_the_manager_s_and_its_drop_ins_add_to_it() {
        let root = Root::new(
            "own",
            &[
                ("etc/systemd/system.conf", "[Manager]\n#CPUAffinity=0\nCPUAffinity=0-1\n"),
                ("lib/systemd/system/a.service", "[Service]\nExecStart=/bin/a\n"),
                ("lib/systemd/system/b.service", "[Service]\nCPUAffinity=2 3\n"),
                ("lib/systemd/system/c.service", "[Service]\nCPUAffinity=2\n"),
                ("etc/systemd/system/c.service.d/1.conf", "[Service]\n\nCPUAffinity=4,6-7\n"),
                ("lib/systemd/system/d@.service", "[Service]\nCPUAffinity=1\n"),
                (
                    "etc/systemd/system/d@2.service.d/x.conf",
                    "[Service]\nCPUAffinity=\nCPUAffinity=5\n",
                ),
                ("lib/systemd/system/e.service", "[Install]\nCPUAffinity=9\n"),
            ],
        );
        let affinity = |unit| root.of(unit).expect(unit);
        assert_eq!(affinity("a.service"), (vec![0, 1], "etc/systemd/system.conf:3".into()));
        assert_eq!(affinity("b.service"), (vec![2, 3], "lib/systemd/system/b.service:2".into()));
        let both = (vec![2, 4, 6, 7], "etc/systemd/system/c.service.d/1.conf:3".into());
        assert_eq!(affinity("c.service"), both);
        assert_eq!(affinity("d@1.service"), (vec![1], "lib/systemd/system/d@.service:2".into()));
        let anew = (vec![5], "etc/systemd/system/d@2.service.d/x.conf:3".into());
        assert_eq!(affinity("d@2.service"), anew);
        assert_eq!(affinity("e.service").0, [0, 1], "no setting of a service");
    }

    #[test]
    fn what_the_administrator_has_hides_what_came_with_the_package() {
        let root = Root::new(
            "hides",
            &[
                ("lib/systemd/system/a.service", "[Service]\nCPUAffinity=1\n"),
                ("etc/systemd/system/a.service", "[Service]\nCPUAffinity=2\n"),
                ("lib/systemd/system/a.service.d/p.conf", "[Service]\nCPUAffinity=3\n"),
                ("etc/systemd/system/a.service.d/p.conf", "[Service]\n"),
                ("etc/systemd/system/b.service", "[Service]\n"),
            ],
        );
        assert_eq!(root.of("a.service").expect("it has one").0, [2]);
        assert_eq!(root.of("b.service"), None);
        assert_eq!(root.of("none.service"), None);
    }

    #[test]
    fn a_unit_is_found_by_its_control_group() {
        let of = |groups| unit_in(groups);
        assert_eq!(of("0::/system.slice/web.service\n").as_deref(), Some("web.service"));
        assert_eq!(of("0::/system.slice/web.service/workers\n").as_deref(), Some("web.service"));
        let first = "4:memory:/x\n1:name=systemd:/system.slice/d@1.service\n";
        assert_eq!(of(first).as_deref(), Some("d@1.service"));
        assert_eq!(of("0::/user.slice/session-1.scope\n"), None);
        assert_eq!(of(""), None);
    }

    #[test]
    fn only_cpus_outside_of_it_contradict() {
        let file = PathBuf::from("/etc/systemd/system/web.service");
        let it = Affinity { cpus: vec![0, 1], file, line: 7 };
        assert_eq!(contradiction("web[8]", "web.service", &it, &[0, 1]), None);
        assert_eq!(contradiction("web[8]", "web.service", &it, &[]), None);
        let message = contradiction("web[8]", "web.service", &it, &[1, 3]).expect("one is outside");
        for part in ["web[8]: web.service has CPUAffinity=0-1", "web.service:7)", "on CPU 3:"] {
            assert!(message.contains(part), "{message}");
        }
    }
}
