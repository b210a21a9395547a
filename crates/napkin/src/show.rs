//! `napkin show`: the kernel's devices, their instances and the policies in force, as tables.

use napkin_kernel::device::show_class;
use napkin_kernel::{Setting, Settings};
use napkin_linux::show::{self, DeviceReport, Group, Report};
use napkin_measure::report::text::fill;
use napkin_os::sched::{CpuList, ranges};

use crate::failure::{Failure, print, print_json};
use crate::table;

/// Longest line, in characters. If the table is wider, the programs get lines of their own below it.
const WIDTH: usize = 80;

/// Programs named in a cell of the table, and in a line below it.
const IN_CELL: usize = 1;
const IN_LINE: usize = 6;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A NAPI instance is what the kernel polls when packets have come: usually one
for each queue of a device. Its id (napi) changes whenever the driver creates
it again.
  rx, tx   the queues that it polls
  irq      its interrupt, and the CPUs to which that may go
  thread   the id of its thread, the CPUs on which that may run, and its class
  policy   its settings by name (see napkin policies), derived from the
           instance and from its programs' epoll contexts; a * means that
           differences or notes are listed below
  owners   the programs whose sockets received from it last
A column without any value is left out, and a dash is an absent value. Notes
say what could not be seen, and which capability that needs.
Shown are the devices of this network namespace; ip netns exec NAME napkin show
looks into another one.

Examples:
  napkin show               every device
  napkin show eth0          one, with its settings, or why it has no instance
  napkin show eth0 --all    each of many instances, where equal ones are a line
  napkin show --json | jq '.devices[].napis[] | {id, policy: .policy.name}'
Then: napkin apply suspend20 --dev eth0, and napkin doctor --dev eth0")]
pub(crate) struct Show {
    /// Only this device.
    pub(crate) device: Option<String>,
    /// Print JSON, with everything; times are in nanoseconds, but busy polling's, which are the kernel's microseconds.
    #[arg(long)]
    pub(crate) json: bool,
    /// Show each instance on a line of its own, however many there are.
    #[arg(long)]
    pub(crate) all: bool,
}

pub(crate) fn run(args: &Show) -> Result<(), Failure> {
    let report = show::gather(args.device.as_deref()).map_err(Failure::of)?;
    if args.json {
        return print_json(&serde_json::to_value(&report).map_err(Failure::of)?);
    }
    print(&text(&report, args.device.is_some(), args.all))
}

/// The tables; `one` if a single device was asked for.
fn text(report: &Report, one: bool, all: bool) -> String {
    let lines: Vec<Line<'_>> = report
        .devices
        .iter()
        .flat_map(|device| {
            let groups = show::fold(device, all);
            groups.into_iter().map(move |group| Line { device, group })
        })
        .collect();
    let mut sections = Vec::new();
    if !lines.is_empty() {
        sections.push(instances(&lines));
        sections.push(settings(&lines, report, one));
    }
    sections.push(without_instances(report, one));
    let notes = report.notes.iter().map(|note| wrapped(&format!("Note: {note}."), ""));
    sections.push(notes.collect());
    sections.retain(|section| !section.is_empty());
    sections.join("\n")
}

/// A line of the first table.
struct Line<'a> {
    device: &'a DeviceReport,
    group: Group<'a>,
}

impl Line<'_> {
    fn policy(&self) -> String {
        let policy = &self.group.napis[0].policy;
        let mark = if policy.exact() && policy.notes.is_empty() { "" } else { "*" };
        format!("{}{mark}", policy.name)
    }

    /// `va, napi 513-576`.
    fn place(&self) -> String {
        format!("{}, napi {}", self.device.ifname, ranges(&self.group.ids()))
    }

    fn owners(&self, most: usize) -> String {
        let owners = self.group.owners();
        let named = owners.iter().take(most);
        let mut named: Vec<String> =
            named.map(|it| format!("{}[{}]", it.owner.comm, it.owner.pid)).collect();
        match owners.len().saturating_sub(most) {
            0 => {}
            more => named.push(format!("+{more}")),
        }
        named.join(" ")
    }
}

/// The table of instances. A column without any value is left out.
fn instances(lines: &[Line<'_>]) -> String {
    let cpus = |cpus: Option<Vec<usize>>| cpus.map(|cpus| CpuList(cpus).to_string());
    let tx = lines.iter().any(|line| !line.group.tx_queues().is_empty());
    let irq = lines.iter().any(|line| !line.group.irqs().is_empty());
    let thread = lines.iter().any(|line| !line.group.pids().is_empty());
    let owned = lines.iter().any(|line| !line.group.owners().is_empty());
    let draw = |owners: bool| {
        let mut header = vec!["dev", "napi", "rx"];
        let rows = lines.iter().map(|line| {
            let group = &line.group;
            let mut row =
                vec![line.device.ifname.clone(), ranges(&group.ids()), ranges(&group.rx_queues())];
            if tx {
                row.push(ranges(&group.tx_queues()));
            }
            if irq {
                row.extend([ranges(&group.irqs()), cpus(group.irq_cpus()).unwrap_or_default()]);
            }
            if thread {
                row.push(ranges(&group.pids()));
                row.push(cpus(group.thread_cpus()).unwrap_or_default());
                row.push(group.thread_class().map(show_class).unwrap_or_default());
            }
            row.push(line.policy());
            if owners {
                row.push(line.owners(IN_CELL));
            }
            row.into_iter().map(or_dash).collect()
        });
        let rows: Vec<Vec<String>> = rows.collect();
        if tx {
            header.push("tx");
        }
        if irq {
            header.extend(["irq", "cpus"]);
        }
        if thread {
            header.extend(["thread", "cpus", "class"]);
        }
        header.push("policy");
        if owners {
            header.push("owners");
        }
        table::columns(&header, rows)
    };
    if !owned {
        return draw(false);
    }
    let whole = draw(true);
    if whole.lines().all(|line| line.chars().count() <= WIDTH) {
        return whole;
    }
    let mut text = draw(false);
    text.push_str("\nOwners:\n");
    for line in lines.iter().filter(|line| !line.group.owners().is_empty()) {
        text.push_str(&format!("  {}: {}\n", line.place(), line.owners(IN_LINE)));
    }
    text
}

/// A device's name and some of its instances.
type Place<'a> = (&'a str, Vec<u32>);

/// The settings and notes below the table. Instances with equal texts share an entry.
fn settings(lines: &[Line<'_>], report: &Report, one: bool) -> String {
    let mut entries: Vec<(Vec<Place<'_>>, String)> = Vec::new();
    for line in lines {
        let policy = &line.group.napis[0].policy;
        let set = spelled_out(&line.group.napis[0].napi.settings);
        if set.is_empty() && policy.notes.is_empty() {
            continue;
        }
        let mut text = format!("{policy}\n");
        // The name of a policy implies its settings: spell them out for a single device, or if they differ.
        if !set.is_empty() && (one || !policy.exact()) {
            text.push_str(&format!("    {set}\n"));
        }
        for note in &policy.notes {
            text.push_str(&wrapped(&format!("{note}."), "    "));
        }
        let plain = policy.exact() && policy.notes.is_empty();
        if plain && !one {
            continue;
        }
        let place = (line.device.ifname.as_str(), line.group.ids());
        match entries.iter_mut().find(|(_, known)| *known == text) {
            Some((places, _)) => match places.iter_mut().find(|(ifname, _)| *ifname == place.0) {
                Some((_, ids)) => ids.extend(place.1),
                None => places.push(place),
            },
            None => entries.push((vec![place], text)),
        }
    }
    let mut text = String::new();
    for (places, what) in entries {
        const PLACES: usize = 3;
        let more = match places.len().saturating_sub(PLACES) {
            0 => String::new(),
            more => format!("; and {more} more devices"),
        };
        let named = places.iter().take(PLACES);
        let named = named.map(|(ifname, ids)| format!("{ifname}, napi {}", ranges(ids)));
        text.push_str(&format!("{}{more}: {what}", named.collect::<Vec<_>>().join("; ")));
    }
    let mut policies = report.devices.iter().filter_map(|device| device.policy.as_deref());
    if text.is_empty() && policies.all(|policy| policy == "base") {
        return "Nothing is set: every instance is at base (interrupt, then softirq).\n".into();
    }
    text
}

/// Devices without an instance: all in one line, or the reason if a single device was asked for.
fn without_instances(report: &Report, one: bool) -> String {
    let none: Vec<&DeviceReport> =
        report.devices.iter().filter(|device| device.napis.is_empty()).collect();
    if none.is_empty() {
        return String::new();
    }
    if one {
        let why = none.iter().filter_map(|device| device.why_none.as_deref());
        return why.map(|why| wrapped(&format!("{why}."), "")).collect();
    }
    let named: Vec<String> = none
        .iter()
        .map(|device| match (device.up, device.driver.as_deref()) {
            (false, _) => format!("{} (down)", device.ifname),
            (true, Some(driver)) => format!("{} ({driver})", device.ifname),
            (true, None) => device.ifname.clone(),
        })
        .collect();
    let text = format!("Without a NAPI instance: {}.", named.join(", "));
    wrapped(&format!("{text} napkin show DEV says why."), "")
}

/// The settings that are not 0, as a policy writes them.
fn spelled_out(settings: &Settings) -> String {
    let set = Setting::ALL.into_iter().filter_map(|setting| {
        let value = settings.get(setting).filter(|value| *value != 0)?;
        Some(format!("{setting}={}", setting.show(value)))
    });
    set.collect::<Vec<_>>().join(", ")
}

/// Wraps a text at [`WIDTH`], each line after a margin.
fn wrapped(text: &str, margin: &str) -> String {
    fill(text, WIDTH, margin, margin) + "\n"
}

fn or_dash(text: String) -> String {
    if text.is_empty() { "-".into() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use napkin_kernel::process::Owner;
    use napkin_kernel::{Device, Napi};
    use napkin_linux::show::{Program, Programs};
    use napkin_policy::Policy;

    /// Eight threaded instances with interrupts, and three programs with long names on each.
    fn busy() -> Report {
        let policy: Policy = "threaded".parse().expect("a preset");
        let napis = (0..8).map(|queue: u32| Napi {
            id: 8_193 + queue,
            rx_queues: vec![queue],
            tx_queues: vec![queue],
            irq: Some(120 + queue),
            irq_cpus: Some(vec![queue as usize]),
            pid: Some(2_345 + queue as i32),
            thread_cpus: Some(vec![queue as usize]),
            thread_class: Some(napkin_os::sched::Class::Fifo(50)),
            settings: Settings::of(&policy.instance),
        });
        let device = Device {
            ifindex: 2,
            ifname: "enp129s0f0np0".into(),
            driver: Some("mlx5_core".into()),
            up: true,
            napis: napis.collect(),
        };
        let program = |pid| Program {
            owner: Owner { pid, comm: "memcached-large".into(), sockets: 1 },
            epolls: vec![],
            socket_busy_poll_usecs: vec![],
        };
        let mut programs = Programs::default();
        for napi in &device.napis {
            let owners = (0..3).map(|place| program(napi.pid.unwrap_or(0) + 100 * place));
            programs.by_napi_id.insert(napi.id, owners.collect());
        }
        show::report(vec![device], &programs)
    }

    #[test]
    fn a_full_table_fits_as_its_programs_get_lines_of_their_own() {
        let shown = text(&busy(), false, false);
        for line in shown.lines() {
            assert!(line.chars().count() <= WIDTH + 20, "{line}");
        }
        let table = shown.lines().take_while(|line| !line.is_empty());
        for line in table {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
        assert!(shown.contains("Owners:\n  enp129s0f0np0, napi 8193: memcached-large["), "{shown}");
    }

    #[test]
    fn long_texts_break_between_words() {
        let text = "word ".repeat(40);
        let lines = wrapped(text.trim(), "    ");
        assert!(lines.lines().all(|line| line.len() <= WIDTH && line.starts_with("    word")));
        assert_eq!(lines.split_whitespace().count(), 40);
        assert_eq!(wrapped("", ""), "\n");
    }
}
