//! Requests over TCP connections: an echo, or a memcached.

use std::time::Duration;

use napkin_client::{Asks, Client, ClientFigures, ClientWait, Config, Host, Load};
use napkin_os::sched::CpuList;

use crate::config::{Ask, LoadConfig};
use crate::error::LoadError;
use crate::figures::LoadFigures;

/// Before the time that is measured.
const WARM_UP: Duration = Duration::from_millis(300);
/// How often the records of a memcached are set before it is asked for them, on average: one in some
/// thousands is then not there.
const TIMES: u64 = 8;

fn config(config: &LoadConfig) -> Config {
    let load =
        config.per_second.map_or(Load::Closed, |rate| Load::Open { per_second: rate as f64 });
    let asks = match config.ask {
        Ask::Memcached => Asks::Records,
        _ => Asks::Echo(config.bytes),
    };
    Config {
        connections: config.flows.into(),
        cpus: CpuList(config.cpu.into_iter().collect()),
        load,
        asks,
        seed: config.seed,
        wait: ClientWait::Spin,
        ..Config::new(config.to)
    }
}

/// Asks until the time is over; `sleep` says whether to stop early.
pub(crate) fn run(
    load: &LoadConfig,
    mut host: impl FnMut() -> Result<Host, LoadError>,
    sleep: &mut dyn FnMut(Duration) -> bool,
) -> Result<LoadFigures, LoadError> {
    let config = config(load);
    if load.ask == Ask::Memcached {
        let sets = Config { load: Load::Closed, update: 1.0, ..config.clone() };
        let mut client = Client::embedded(&sets, host()?)?;
        client.begin_window()?;
        let wanted = TIMES * sets.records as u64;
        while client.end_window()?.sets < wanted {
            if sleep(Duration::from_millis(50)) {
                break;
            }
        }
        client.stop()?;
    }
    let mut client = Client::embedded(&config, host()?)?;
    sleep(WARM_UP);
    client.begin_window()?;
    sleep(load.time);
    let told = client.end_window()?;
    client.stop()?;
    Ok(figures(&told))
}

fn figures(told: &ClientFigures) -> LoadFigures {
    LoadFigures {
        seconds: told.wall_ns as f64 / 1e9,
        asked_per_s: told.asked_per_s,
        sent: told.requests + told.outstanding,
        answered: told.requests,
        behind: told.abandoned + told.backlog,
        misses: told.misses,
        latency_ns: told.latency_ns,
    }
}
