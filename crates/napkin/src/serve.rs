//! `napkin serve`: options in, lines out.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use napkin_os::writable;
use napkin_policy::NamedPolicy;
use napkin_serve::{
    Datagrams, DeviceKind, Event, Export, Limits, Listen, ServeConfig, ServiceKind, Store,
    run as serve,
};

use crate::args::{Serve, Service};
use crate::failure::{Failure, say};
use crate::policies::warn;

pub(crate) fn run(args: &Serve) -> Result<(), Failure> {
    if let Some((option, service)) = misplaced(args) {
        return Err(Failure::Usage(format!("{option} is for {service}: leave it out")));
    }
    let synthetic = args.devices.iter().any(|device| device.kind == DeviceKind::Synthetic);
    let of_synthetic = [("--rate", args.rate.is_some()), ("--flows", args.flows.is_some())];
    if let Some((option, _)) = of_synthetic.into_iter().find(|(_, given)| *given && !synthetic) {
        let why = format!("{option} is for a synthetic device, and none is given: leave it out");
        return Err(Failure::Usage(why));
    }
    let what = match args.what {
        Service::Echo => ServiceKind::Datagrams(Datagrams::Echo),
        Service::Sink => ServiceKind::Datagrams(Datagrams::Sink),
        Service::Memcached => ServiceKind::Memcached(Limits {
            memory: args.memory.unwrap_or(64).saturating_mul(1 << 20),
            item: args.item_size.unwrap_or(1 << 20),
        }),
        Service::Nbd => ServiceKind::Disk(Export {
            name: args.export.clone().unwrap_or_default(),
            read_only: args.read_only,
            store: match &args.file {
                Some(path) => Store::File(path.clone()),
                None => Store::Memory(args.size.unwrap_or(64 << 20)),
            },
        }),
    };
    let usual = ServeConfig::default();
    let config = ServeConfig {
        port: args.port.unwrap_or(what.usual_port()),
        what,
        listen: args.listen.map(|address| Listen { address, threads: args.threads }),
        devices: args.devices.clone(),
        policy: args.policy,
        networks: args.addresses.clone(),
        udp: args.udp,
        queues: args.queues,
        cpus: args.cpus.clone().unwrap_or_default().0,
        rate: args.rate.unwrap_or(usual.rate),
        flows: args.flows.unwrap_or(usual.flows),
        control: args.control.clone(),
        capture: args.capture.clone(),
        faults: args.faults.unwrap_or_default(),
    };
    let policies = config.devices.iter().map(|device| device.policy.unwrap_or(config.policy));
    warn(&NamedPolicy::all(policies));
    let terminal = io::stderr().is_terminal();
    let result = serve(&config, args.limit, &mut |event| match event {
        Event::Started(server) => {
            server.warnings().iter().for_each(|warning| print_line(&format!("warning: {warning}")));
            server.notes().iter().for_each(|note| print_line(note));
        }
        Event::Status(_) if !writable(io::stderr(), Duration::ZERO) => {}
        // Overwrites the last status; with line wrap off, it is cut at the terminal's edge.
        Event::Status(status) if terminal => {
            let _ = write!(io::stderr(), "\r\x1b[?7l{status}\x1b[K\x1b[?7h");
        }
        Event::Status(status) => say(&status.to_string()),
        Event::Served(totals) => {
            if terminal {
                // Begin a new line below the status.
                print_line("");
            }
            print_line(&format!("served: {totals}"));
        }
        Event::DeviceRemoved(_) | Event::Problem(_) => {
            if terminal {
                // Begin a new line below the status.
                print_line("");
            }
            match event {
                Event::DeviceRemoved(device) => {
                    print_line(&format!(
                        "device {device} has gone: another program removed it; the others go on"
                    ));
                }
                Event::Problem(trouble) => print_line(trouble),
                _ => {}
            }
        }
    });
    let failure = match result {
        Ok(_) => return Ok(()),
        Err(error) if error.is_usage() => Failure::Usage(error.to_string()),
        Err(error) => Failure::of(error),
    };
    // The program that ended it waits for its exit and may read no more: do not block.
    Err(failure.print_by(print_line))
}

/// Prints a line to standard error, unless that blocks for 1 s. The calling thread also takes the signals: blocked on
/// a full pipe it could not be ended.
fn print_line(line: &str) {
    if writable(io::stderr(), Duration::from_secs(1)) {
        say(line);
    }
}

/// The first given option that belongs to another service, with the name of that service.
fn misplaced(args: &Serve) -> Option<(&'static str, &'static str)> {
    let options = [
        ("--memory", args.memory.is_some(), Service::Memcached),
        ("--item-size", args.item_size.is_some(), Service::Memcached),
        ("--file", args.file.is_some(), Service::Nbd),
        ("--size", args.size.is_some(), Service::Nbd),
        ("--export", args.export.is_some(), Service::Nbd),
        ("--read-only", args.read_only, Service::Nbd),
    ];
    let (option, _, of) = options.into_iter().find(|(_, given, of)| *given && *of != args.what)?;
    Some((option, if of == Service::Nbd { "nbd" } else { "memcached" }))
}
