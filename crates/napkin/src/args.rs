//! The command-line arguments: their names, help texts, and the checks of values that need no engine.
//!
//! Limits of settings are not defined here: those of policy keys are in the key table, and the engine checks the
//! weight.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use napkin_os::sched::CpuList;
use napkin_policy::Policy;
use napkin_serve::{DeviceSpec, Faults, Network};

use crate::policies::policy;
use crate::settings::Settings;
use crate::units;

/// Choose, set and measure how packets reach a network service: NAPI in the kernel, in user space, and
/// modelled.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "\
Examples:
  napkin bench
      the proposals' workloads, in about a minute
  napkin policies
      the delivery policies to choose from
  napkin serve echo --device synthetic --for 5s
      an engine on synthetic traffic, without privileges
  sudo napkin serve echo --device tap:nk0 --policy suspend20
      then: ping 10.99.0.1
  napkin napi-get
      the settings of a running engine's instances
  napkin napi-set --id 1 --threaded busy-poll
      change one while traffic flows
  napkin bench memcached --world machine
      a host of 64 CPUs and 100 Gbit/s, in virtual time
  napkin reproduce 2024
      a published table beside the modelled one
  napkin show
      this kernel's NAPI instances and their settings
  sudo napkin run --policy suspend20 --dev eth0 \\
      -- memcached -u memcache -t 4 -N 4
      your program; everything is put back at the end
  sudo napkin compare --dev eth0 --pid 812
      try each policy in turn on a running service
  sudo napkin doctor
      what keeps a mode from being active
  sudo napkin top
      who polls, live"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure workloads under delivery policies, side by side.
    Bench(crate::bench::Bench),
    /// Explain the delivery policies: what each does, what it costs, whose proposal it is.
    Policies(crate::policies::Policies),
    /// Serve echo, sink, memcached or a remote disk (NBD) on devices until interrupted, under a delivery policy;
    /// or on the operating system's sockets.
    Serve(Serve),
    /// Generate load against a service from a packet device of its own (no kernel sockets): UDP, TCP echo or
    /// memcached, open loop or as fast as possible.
    Load(crate::load::Load),
    /// List the devices of a running engine.
    DevGet(DevGet),
    /// List the queues of a running engine, with the instance that polls each.
    QueueGet(QueueGet),
    /// List the NAPI instances of a running engine, with their settings.
    NapiGet(NapiGet),
    /// Change the settings of one NAPI instance while traffic flows.
    NapiSet(NapiSet),
    /// Show the counters of a running engine's devices and queues.
    QstatsGet(QstatsGet),
    /// Change the settings of all instances of a device (the kernel has sysfs for it).
    DevSet(DevSet),
    /// Run the published experiments in virtual time: published beside modelled, cell by cell.
    Reproduce(crate::reproduce::Reproduce),
    /// Run a workload on a modelled host at every point of a cross product of parameters.
    Sweep(crate::sweep::Sweep),
    /// List, show, check, measure and fit the profiles of modelled hosts.
    Profile(crate::profile::ProfileArgs),
    /// Run random machines under random policies and faults, and check every invariant.
    Swarm(crate::swarm::Swarm),
    /// Show the kernel's devices, queues and NAPI instances, with the policy in force.
    Show(crate::show::Show),
    /// Set a device's NAPI instances as a policy says; everything can be put back.
    Apply(crate::apply::Apply),
    /// Put back what napkin has changed in the kernel.
    Restore(crate::restore::Restore),
    /// Show how a device's settings differ from a policy, or from before napkin changed them.
    Diff(crate::diff::Diff),
    /// Write a wish: the policy of a device, which napkin.service keeps in force; check and list wishes.
    Keep(crate::keep::Keep),
    /// Remove a wish, by its name.
    Unkeep(crate::keep::Unkeep),
    /// Keep all wishes in force; run by napkin.service.
    Keeper(crate::keep::KeeperArgs),
    /// Run an unmodified program under a policy.
    Run(crate::launch::Run),
    /// Put a running, unmodified program under a policy.
    Attach(crate::attach::Attach),
    /// Compare policies on a running service: each in turn, put back at the end, with a verdict.
    Compare(crate::compare::Compare),
    /// Check every condition that a mode needs; report what fails and the command that fixes it.
    Doctor(crate::doctor::Doctor),
    /// Find a CPU for each queue of a device: its interrupt, its thread and the worker that reads it.
    Place(crate::place::PlaceArgs),
    /// Watch NAPI instances live: the kernel's, or a running engine's.
    Top(crate::top::Top),
    /// Export NAPI instances as metrics for Prometheus, over HTTP or as a file.
    Export(crate::export::Export),
    /// Print the completion script of a shell.
    Completions(crate::manual::Completions),
    /// Write a manual page for each command.
    Man(crate::manual::Manual),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Service {
    /// Send every datagram back.
    Echo,
    /// Count every datagram and drop it.
    Sink,
    /// memcached over TCP: the text protocol and its meta commands.
    Memcached,
    /// A remote disk over TCP (NBD), in memory, in a file or on a block device.
    Nbd,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each device has a network of its own: the first one that of --address, each
further one the next network. Its application thread (memcached and nbd: one
per queue) waits as the policy says; the engine answers ARP, neighbour
solicitations and ping. Ctrl-C or SIGTERM ends it. Nothing is left behind,
except the address and the VLAN of a TAP device that existed before.

Examples:
  napkin serve echo --device synthetic --rate 50000 --policy threaded
  sudo napkin serve echo --device tap:nk0 --policy suspend20
      then, from the same machine: ping 10.99.0.1, or:
      echo hi | nc -u -w1 10.99.0.1 7
  sudo napkin serve memcached --device tap:nk0 --queues 2 --policy suspend20
      then:
      printf 'set a 0 0 2\\r\\nhi\\r\\nget a\\r\\nquit\\r\\n' | nc 10.99.0.1 11211
  sudo napkin serve memcached --device tap:nk0.100 \\
      --address 10.99.0.1/24,fd00:99::1/64
      in VLAN 100, over IPv4 and IPv6; then, from the same machine:
      ping fd00:99::1
  sudo napkin serve memcached --device xdp:eth0:0-3 --policy suspend20
      on a card's own queues, at the addresses it has; ssh and all else go on
      as before
  sudo napkin serve nbd --device tap:nk0 --file disk.img
      first create it: truncate -s 1G disk.img; then:
      nbdinfo nbd://10.99.0.1, nbdcopy disk2.img nbd://10.99.0.1,
      fio --ioengine=nbd --uri=nbd://10.99.0.1 ...,
      or a disk of this machine: modprobe nbd; nbd-client 10.99.0.1 /dev/nbd0
  sudo napkin serve nbd --device tap:nk0 --size 4G --export scratch
      nbd://10.99.0.1/scratch, in memory: gone with the server
  sudo napkin serve sink --device tap:a=hold --device tap:b=defer20 --cpus 0,1
  napkin serve memcached --device vhost:/run/user/1000/nk0.sock \\
      --policy suspend20
      then the guest of this command has 10.99.0.1 as its neighbour:
      qemu-system-x86_64 -m 1G \\
        -object memory-backend-memfd,id=m,size=1G,share=on \\
        -machine q35,memory-backend=m \\
        -chardev socket,id=c,path=/run/user/1000/nk0.sock,reconnect-ms=1000 \\
        -netdev vhost-user,id=n,chardev=c \\
        -device virtio-net-pci,netdev=n,romfile= ...
  napkin serve memcached --listen 127.0.0.1 --threads 2 --udp
      the same on the operating system's sockets, without privileges
  sudo napkin run --policy suspend20 --dev eth0 \\
      -- napkin serve memcached --listen 0.0.0.0
      and with a policy in the kernel
Control it while it runs: napkin napi-get, napkin napi-set --help

nbd answers a flush, or a write with force unit access, once the data is on
the disk (fdatasync), and other writes once it is in the operating system's
cache, where it survives the server's end, but not a loss of power. Several
connections, also on several queues, see one disk. There is no TLS and no
password: any host that reaches the address can read and write the disk.")]
pub(crate) struct Serve {
    /// The service.
    pub(crate) what: Service,
    /// tap:NAME, xdp:IF:QUEUES, vhost:PATH, virtio-user:PATH or synthetic, followed by =POLICY for a policy of
    /// its own; may be given several times.
    /// tap:NAME.100 is tap:NAME in VLAN 100 (1 to 4094): frames without its tag are dropped, and the
    /// operating system's side is the interface NAME.100. vhost:PATH is the NIC of a virtual machine or of a
    /// DPDK program: napkin listens at the socket PATH (vhost-user) for its driver, and again after it
    /// disconnects. virtio-user:PATH drives the device of the process that listens there. Both paths may be
    /// followed by the number of queues (vhost:PATH:2), that of virtio-user also by :packed and :ring-512, the
    /// kind and size of a ring (default: split, 256). xdp:eth0:0-3 is AF_XDP on four queues of an interface
    /// (without numbers: on its first --queues queues): napkin takes the packets to the service's port, at the
    /// addresses that the interface has at the start, and leaves all others to the kernel; xdp:eth0:0-3:all
    /// takes all packets of these queues, at --address.
    #[arg(long = "device", value_name = "DEVICE", required_unless_present = "listen")]
    pub(crate) devices: Vec<DeviceSpec>,
    /// Serve on the operating system's own sockets instead of devices: at this address of this host, or at
    /// 0.0.0.0 for all of them (:: with IPv6). To set how the kernel delivers, start it by napkin run.
    #[arg(
        long,
        value_name = "ADDRESS",
        conflicts_with_all = ["devices", "policy", "addresses", "queues", "rate", "flows", "capture", "faults"]
    )]
    pub(crate) listen: Option<IpAddr>,
    /// With --listen: threads that share the port (SO_REUSEPORT). Devices have one thread each, or one per queue.
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "devices")]
    pub(crate) threads: u16,
    /// The policy of devices without one of their own (see napkin policies).
    #[arg(long, default_value = "base", value_parser = policy)]
    pub(crate) policy: Policy,
    /// The engine's address on the first device, IPv4 or IPv6; may be given several times, or as a list
    /// (10.99.0.1/24,fd00:99::1/64). On a TAP device the operating system's side gets the next free address
    /// (10.99.0.2, fd00:99::2), and the engine also an IPv6 link-local address, derived from its Ethernet address,
    /// unless one is given.
    #[arg(
        long = "address",
        value_name = "ADDRESS/PREFIX",
        default_value = "10.99.0.1/24",
        value_delimiter = ','
    )]
    pub(crate) addresses: Vec<Network>,
    /// The port of the service. [default: 7 for echo and sink (UDP), 11211 for memcached and 10809 for nbd
    /// (TCP)]
    #[arg(long)]
    pub(crate) port: Option<u16>,
    /// Memory limit of memcached's items, in MiB; pending requests and answers may take as much again, and a
    /// connection that would exceed that is reset (stats: read_buf_oom). [default: 64]
    #[arg(long, value_name = "MIB")]
    pub(crate) memory: Option<usize>,
    /// Serve memcached over UDP as well, by its UDP protocol. Only for networks that drop forged source
    /// addresses: an answer may be thousands of times as long as its request.
    #[arg(long)]
    pub(crate) udp: bool,
    /// Largest item of memcached, in bytes. [default: 1048576]
    #[arg(long, value_name = "BYTES")]
    pub(crate) item_size: Option<usize>,
    /// The file or block device that nbd serves; locked while it is served.
    #[arg(long, value_name = "PATH", conflicts_with = "size")]
    pub(crate) file: Option<PathBuf>,
    /// Size of nbd's disk in memory, as in 512M or 4G: allocated as it is written, lost at the end.
    /// [default: 64M]
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    pub(crate) size: Option<u64>,
    /// The export name of nbd: nbd://10.99.0.1/NAME. The empty name is always accepted.
    #[arg(long, value_name = "NAME")]
    pub(crate) export: Option<String>,
    /// Refuse every write to nbd's disk.
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Queues of each device; each has a NAPI instance.
    #[arg(long, default_value_t = 1)]
    pub(crate) queues: u16,
    /// The CPUs to use, as in 0,2 or 0-3. [default: all that this process may use]
    #[arg(long, value_name = "LIST")]
    pub(crate) cpus: Option<CpuList>,
    /// Datagrams a second of a synthetic device, as in 20000, 20k or 1M; 0 for silence. [default: 10000]
    #[arg(long, value_parser = units::per_second)]
    pub(crate) rate: Option<u32>,
    /// Flows of a synthetic device. [default: 16]
    #[arg(long)]
    pub(crate) flows: Option<u32>,
    /// The control socket. [default: DEVICE.sock in $XDG_RUNTIME_DIR/napkin, /run/napkin (root) or
    /// /tmp/napkin-UID]
    #[arg(long, env = "NAPKIN_CONTROL", value_name = "PATH")]
    pub(crate) control: Option<PathBuf>,
    /// Write every frame, received and sent, to this pcap file (Wireshark, tcpdump -r). This slows the engine down.
    #[arg(long, value_name = "FILE")]
    pub(crate) capture: Option<PathBuf>,
    /// Faults to inject into received and sent frames, to test clients, as in loss=1%,reordering=0.5%: shares
    /// of loss, corruption, truncation, duplication and, for received frames only, reordering.
    #[arg(long, value_name = "FAULT=SHARE%,...", value_parser = faults)]
    pub(crate) faults: Option<Faults>,
    /// End by itself after this time, as in 10s or 5m.
    #[arg(long = "for", value_name = "TIME", value_parser = units::duration)]
    pub(crate) limit: Option<Duration>,
}

/// Parses faults with their shares. A fault given twice is an error: the last share would hold, without a notice.
fn faults(text: &str) -> Result<Faults, String> {
    let names: Vec<&str> = text.split(',').filter_map(|it| Some(it.split_once('=')?.0)).collect();
    match names.iter().enumerate().find(|(place, name)| names[..*place].contains(name)) {
        Some((_, name)) => Err(format!("'{name}' is given twice")),
        None => text.parse(),
    }
}

/// The options that select the engine and the output format.
#[derive(Debug, clap::Args)]
pub(crate) struct Target {
    /// The engine's control socket. [default: that of the only running engine]
    #[arg(long, env = "NAPKIN_CONTROL", value_name = "PATH")]
    pub(crate) control: Option<PathBuf>,
    /// Print JSON, with every attribute; times are in nanoseconds.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Talks to a running napkin engine, not to the kernel.

Examples:
  napkin dev-get
  napkin dev-get --ifindex 1 --json")]
pub(crate) struct DevGet {
    /// Only this device.
    #[arg(long)]
    pub(crate) ifindex: Option<u64>,
    #[command(flatten)]
    pub(crate) target: Target,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Talks to a running napkin engine, not to the kernel.

Example:
  napkin queue-get --ifindex 1 --type rx")]
pub(crate) struct QueueGet {
    /// Only this device.
    #[arg(long)]
    pub(crate) ifindex: Option<u64>,
    /// Only this direction.
    #[arg(long = "type", value_name = "TYPE", value_parser = ["rx", "tx"])]
    pub(crate) kind: Option<String>,
    /// Only this queue.
    #[arg(long)]
    pub(crate) id: Option<u64>,
    #[command(flatten)]
    pub(crate) target: Target,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Talks to a running napkin engine, not to the kernel.

pid is the thread id of a threaded instance, for taskset -pc 2 PID and chrt -f
-p 50 PID. There is no irq: user space has no interrupt numbers. The counts,
weight, and the settings that no Linux has (see napkin policies) are napkin's
own; all others have the kernel's names.

Examples:
  napkin napi-get --id 1
  napkin napi-get --ifindex 1 --counts
  taskset -pc 1 $(napkin napi-get --id 1 --json | jq '.[0].pid')
      of a threaded instance")]
pub(crate) struct NapiGet {
    /// Only this instance.
    #[arg(long)]
    pub(crate) id: Option<u64>,
    /// Only the instances of this device.
    #[arg(long)]
    pub(crate) ifindex: Option<u64>,
    /// Show counters instead of settings.
    #[arg(long)]
    pub(crate) counts: bool,
    #[command(flatten)]
    pub(crate) target: Target,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Talks to a running napkin engine, not to the kernel. A setting that is not
given stays as it is.

Examples:
  napkin napi-set --id 3 --threaded busy-poll
  napkin napi-set --id 1 --defer-hard-irqs 100 --gro-flush-timeout 20us
  napkin napi-set --id 1 --threaded disabled --hold 1ms")]
pub(crate) struct NapiSet {
    /// The instance (see napi-get).
    #[arg(long)]
    pub(crate) id: u64,
    #[command(flatten)]
    pub(crate) settings: Settings,
    #[command(flatten)]
    pub(crate) target: Target,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Talks to a running napkin engine, not to the kernel. A setting that is not
given stays as it is.

This command is napkin's own. The kernel's netdev family sets one instance at a
time; sysfs sets all instances of a device, by the files
/sys/class/net/DEVICE/napi_defer_hard_irqs, gro_flush_timeout and threaded.

Example:
  napkin dev-set --ifindex 1 --threaded enabled")]
pub(crate) struct DevSet {
    /// The device (see dev-get).
    #[arg(long)]
    pub(crate) ifindex: u64,
    #[command(flatten)]
    pub(crate) settings: Settings,
    #[command(flatten)]
    pub(crate) target: Target,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Talks to a running napkin engine, not to the kernel.

Example:
  napkin qstats-get --scope queue --json")]
pub(crate) struct QstatsGet {
    /// Only this device.
    #[arg(long)]
    pub(crate) ifindex: Option<u64>,
    /// Sums of each device, or each queue by itself.
    #[arg(long, value_parser = ["device", "queue"])]
    pub(crate) scope: Option<String>,
    #[command(flatten)]
    pub(crate) target: Target,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_arguments_do_not_contradict_each_other() {
        Args::command().debug_assert();
    }

    #[test]
    fn what_stands_beside_the_options_is_no_wider_than_a_terminal() {
        fn check(command: &clap::Command) {
            let texts = [
                command.get_before_help(),
                command.get_before_long_help(),
                command.get_after_help(),
                command.get_after_long_help(),
            ];
            for text in texts.into_iter().flatten().map(ToString::to_string) {
                for line in text.lines() {
                    assert!(line.chars().count() <= 80, "{}: {line}", command.get_name());
                }
            }
            command.get_subcommands().for_each(check);
        }
        check(&Args::command());
    }
}
