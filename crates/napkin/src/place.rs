//! `napkin place`.

use std::fmt::Display;
use std::time::Duration;

use napkin_kernel::netlink::Route;
use napkin_kernel::sysfs::Sysfs;
use napkin_kernel::topology::Topology;
use napkin_linux::apply::Linux;
use napkin_linux::attach::{Detail, Lines};
use napkin_linux::doctor::{Request, gather};
use napkin_linux::journal::Store;
use napkin_linux::placement::{Irqbalance, Now, PlaceError, Placement, carry_out, carry_workers};
use napkin_os::sched::{CpuList, ranges};
use serde_json::json;

use crate::failure::{Failure, print, print_json, say};
use crate::table;

/// How long threads are observed: long enough to see each worker of a server in its wait.
const WINDOW: Duration = Duration::from_millis(300);

/// The arguments of `napkin place`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A queue's packets cost least where its interrupt, its thread and the worker
that reads them are on one CPU. This finds a CPU for each queue: of the
device's NUMA node before another, a core of its own before a core's second
CPU (SMT), CPU 0 last, and no CPU that the host keeps isolated (isolcpus),
unless that is where the program may run. What is in a good place stays.

It shows the plan. With --apply it is carried out: each change is journalled,
and napkin restore puts it back. The policy stays as it is. irqbalance, if it
runs, is told over its own socket to leave these interrupts alone, until it is
restarted (permanently: its option --banirq).

A service to which systemd gives other CPUs (CPUAffinity= of its unit, a
drop-in or system.conf) is reported, with file and line: its next start would
undo the plan.

Moving an interrupt needs root (/proc/irq), moving threads CAP_SYS_NICE.

Examples:
  sudo napkin place --dev eth0 --pid $(pidof memcached)
      the plan
  sudo napkin place --dev eth0 --pid $(pidof memcached) --apply
      carried out
  sudo napkin place --dev eth0 --cpus 4-7
      on these CPUs
See also: napkin apply --cpus, napkin attach --pin, napkin doctor")]
pub(crate) struct PlaceArgs {
    /// The device whose queues are to be placed.
    #[arg(long, value_name = "DEV")]
    dev: String,
    /// The program whose threads read the packets. Without it, the programs that own sockets on the device are
    /// shown, and left where they are.
    #[arg(long, value_name = "PID")]
    pid: Option<i32>,
    /// The CPUs to choose from. [default: those on which the program may run, or all]
    #[arg(long, value_name = "LIST")]
    cpus: Option<CpuList>,
    /// Carry out the plan.
    #[arg(long)]
    apply: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &PlaceArgs) -> Result<(), Failure> {
    let request = Request {
        pid: args.pid,
        ifname: Some(args.dev.clone()),
        policy: None,
        window: WINDOW,
        wishes: vec![],
    };
    let facts = gather(&request).map_err(Failure::of)?;
    let facts =
        facts.first().ok_or_else(|| Failure::Failed(format!("there is no {}", args.dev)))?;
    let links = Route::open().and_then(|mut route| route.links()).map_err(Failure::of)?;
    // sysfs has a device under its primary name only, not under an alternative name.
    let ifname = &facts.device.ifname;
    let node = Sysfs::open(&links).ok().and_then(|sysfs| sysfs.numa_node(ifname));
    let within = args.cpus.as_ref().map(|list| list.0.as_slice());
    let placement = Placement::of(facts, &Topology::read(), node, within);
    if placement.rows.is_empty() {
        return Err(match facts.device.why_none() {
            Some(why) => Failure::Failed(format!("there is nothing to place: {why}")),
            None => Failure::of(PlaceError::Nothing { ifname: ifname.clone() }),
        });
    }
    // A closed output does not keep the plan from being carried out.
    let printed = match args.json {
        true => print_json(&json!(placement)),
        false => print(&text(&placement)),
    };
    placement.notes.iter().for_each(|note| say(&format!("note: {note}")));
    let irqbalance = Irqbalance::find();
    if !args.apply {
        if let Some(Irqbalance { pid }) = irqbalance {
            say(&format!(
                "note: irqbalance[{pid}] moves interrupts; --apply tells it to leave these alone"
            ));
        }
        return printed;
    }
    let store = Store::open().map_err(Failure::of)?;
    let mut backend = Linux::open().map_err(Failure::of)?;
    let applied =
        carry_out(&mut backend, &store, facts, &placement, irqbalance).map_err(Failure::of)?;
    let irqs = placement.irqs().len();
    if let Some(Irqbalance { pid }) = irqbalance.filter(|_| irqs > 0) {
        say(&format!("irqbalance[{pid}] leaves {irqs} interrupts alone"));
    }
    say(&format!("{}: {} moved; napkin restore puts it back", args.dev, applied.done.len()));
    if let Some(pid) = args.pid {
        let mut lines = Lines::new(Detail::News);
        let carried = carry_workers(&store, pid, &placement, WINDOW).map_err(Failure::of)?;
        carried.events.iter().filter_map(|event| lines.line(event)).for_each(|line| say(&line));
        let away: Vec<String> = carried.away.iter().map(i32::to_string).collect();
        if !away.is_empty() {
            return Err(Failure::Failed(format!(
                "not on their CPUs: threads {}: see above for those that cannot be moved; a running one is \
                 moved only when it is seen to wait: try again",
                away.join(", ")
            )));
        }
    }
    printed
}

fn text(placement: &Placement) -> String {
    let rows = placement.rows.iter().map(|row| {
        let workers: Vec<String> = row.workers.iter().map(now).collect();
        vec![
            ranges(&row.rx_queues),
            row.napi.to_string(),
            row.irq.as_ref().map_or_else(|| "-".into(), now),
            row.thread.as_ref().map_or_else(|| "-".into(), now),
            if workers.is_empty() { "-".into() } else { workers.join(", ") },
            row.cpu.to_string(),
        ]
    });
    let header = ["rx", "napi", "irq (now on)", "thread (now on)", "workers (now on)", "cpu"];
    let mut text = table::columns(&header, rows.collect());
    if let Some(node) = placement.node {
        text = format!("{} is on NUMA node {node}\n{text}", placement.ifname);
    }
    if placement.done() {
        text += "everything is in its place\n";
    }
    text
}

fn now<N: Display>(now: &Now<N>) -> String {
    if now.cpus.is_empty() {
        return now.id.to_string();
    }
    format!("{} ({})", now.id, CpuList(now.cpus.clone()))
}
