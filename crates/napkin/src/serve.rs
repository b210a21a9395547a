//! `napkin serve`: options in, lines out.

use std::io::{self, IsTerminal, Write};

use napkin_bench::serve::{Event, ServeConfig, What, run as serve};
use napkin_core::Policy;
use napkin_core::policy::Preset;

use crate::args::{Serve, Service};
use crate::failure::{Failure, say};

pub(crate) fn run(args: &Serve) -> Result<(), Failure> {
    let config = ServeConfig {
        what: match args.what {
            Service::Echo => What::Echo,
            Service::Sink => What::Sink,
        },
        devices: args.devices.clone(),
        policy: args.policy,
        network: args.address,
        port: args.port,
        queues: args.queues,
        cpus: args.cpus.clone().unwrap_or_default().0,
        rate: args.rate,
        flows: args.flows,
        control: args.control.clone(),
    };
    warn(&config);
    let terminal = io::stderr().is_terminal();
    let result = serve(&config, args.limit, &mut |event| match event {
        Event::Started(server) => {
            server.warnings().iter().for_each(|warning| say(&format!("warning: {warning}")));
            server.notes().iter().for_each(|note| say(note));
        }
        // Cut off at the edge instead of wrapped, and over the line before.
        Event::Status(status) if terminal => {
            let _ = write!(io::stderr(), "\r\x1b[?7l{status}\x1b[K\x1b[?7h");
        }
        Event::Status(status) => say(&status.to_string()),
    });
    if terminal {
        say("");
    }
    match result {
        Ok(totals) => {
            say(&format!("served: {totals}"));
            Ok(())
        }
        Err(error) if error.is_usage() => Err(Failure::Usage(error.to_string())),
        Err(error) => Err(Failure::of(error)),
    }
}

/// Says what a policy will not do, once for each that is in use. A named preset is as its authors
/// published it, and explained by `napkin policies`.
fn warn(config: &ServeConfig) {
    let mut told: Vec<Policy> = Vec::new();
    for device in &config.devices {
        let policy = device.policy.unwrap_or(config.policy);
        if told.contains(&policy) || Preset::find(&policy.to_string()).is_some() {
            continue;
        }
        told.push(policy);
        for warning in policy.warnings() {
            say(&format!("warning: {policy}: {warning}"));
        }
    }
}
