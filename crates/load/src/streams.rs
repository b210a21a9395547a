//! Requests over TCP connections, to an echo service or a memcached.

use std::time::{Duration, Instant};

use napkin_client::{
    Client, ClientError, ClientFigures, ClientWait, Config, Host, Load, RequestKind,
};
use napkin_os::sched::CpuList;

use crate::config::{LoadConfig, Protocol};
use crate::error::LoadError;
use crate::figures::{LoadFigures, known_percentiles};

/// Time between the start and the measurement.
const WARM_UP: Duration = Duration::from_millis(300);
/// Interval at which the client's state is checked.
const LOOK: Duration = Duration::from_millis(50);

fn config(config: &LoadConfig) -> Config {
    let load =
        config.per_second.map_or(Load::Closed, |rate| Load::Open { per_second: rate as f64 });
    let asks = match config.ask {
        Protocol::Memcached => RequestKind::Records,
        _ => RequestKind::Echo(config.bytes),
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

/// Sends requests until the time is over; `sleep` returns whether to stop early. Returns empty figures if it is
/// stopped before the measurement begins.
pub(crate) fn run(
    load: &LoadConfig,
    mut host: impl FnMut() -> Result<Host, LoadError>,
    sleep: &mut dyn FnMut(Duration) -> bool,
) -> Result<LoadFigures, LoadError> {
    let config = config(load);
    if load.ask == Protocol::Memcached {
        let sets = Config { load: Load::Closed, asks: RequestKind::Fill, ..config.clone() };
        let Some(mut client) = connect(&sets, host()?, sleep)? else {
            return Ok(LoadFigures::default());
        };
        // Counts since the client's start, as no window was begun: no record is set twice.
        while client.end_window()?.sets < sets.records as u64 {
            if wait(|| client.is_running(), LOOK, sleep) {
                // A half-filled store is not measured.
                client.stop()?;
                return Ok(LoadFigures::default());
            }
        }
        client.stop()?;
    }
    let Some(mut client) = connect(&config, host()?, sleep)? else {
        return Ok(LoadFigures::default());
    };
    if wait(|| client.is_running(), WARM_UP, sleep) {
        client.stop()?;
        return Ok(LoadFigures::default());
    }
    client.begin_window()?;
    wait(|| client.is_running(), load.time, sleep);
    let client_figures = client.end_window()?;
    client.stop()?;
    Ok(figures(&client_figures))
}

/// Connects a client; `None` if it was stopped before that completed.
fn connect(
    config: &Config,
    host: Host,
    sleep: &mut dyn FnMut(Duration) -> bool,
) -> Result<Option<Client>, LoadError> {
    match Client::embedded_unless(config, host, &mut || sleep(Duration::ZERO)) {
        Err(ClientError::Ended) => Ok(None),
        connected => Ok(Some(connected?)),
    }
}

/// Waits, and returns whether to stop. Returns false early if the client no longer runs; the next call to it
/// returns the reason. A `sleep` may return early, for example after a signal for another thread.
fn wait(runs: impl Fn() -> bool, time: Duration, sleep: &mut dyn FnMut(Duration) -> bool) -> bool {
    // An end beyond the range of the clock means for ever.
    let end = Instant::now().checked_add(time);
    while runs() {
        let left = end.map_or(LOOK, |end| end.saturating_duration_since(Instant::now()));
        if left.is_zero() {
            return false;
        }
        if sleep(left.min(LOOK)) {
            return true;
        }
    }
    false
}

fn figures(client: &ClientFigures) -> LoadFigures {
    // Without a schedule nothing falls due. With one, an unanswered request waits, since TCP loses nothing.
    let unanswered = client.asked_per_s.map_or(0, |_| client.due.saturating_sub(client.requests));
    let seconds = client.wall_ns as f64 / 1e9;
    let asked = client.asked_per_s.map_or(0, |rate| (rate * seconds) as u64);
    let unseen = match client.behind {
        true => asked.saturating_sub(client.due).max(1),
        false => 0,
    };
    LoadFigures {
        signal: None,
        seconds,
        asked_per_s: client.asked_per_s,
        // Without the requests outstanding at the beginning, whose answers are counted in `requests`.
        sent: (client.requests + client.outstanding).saturating_sub(client.carried),
        answered: client.requests,
        // Requests that this thread had not taken were delayed by it, whatever the state of their connection.
        behind: unseen + client.late_here,
        waiting: (client.abandoned + client.backlog).saturating_sub(client.late_here),
        misses: client.misses,
        errors: client.errors.clone(),
        latency_ns: known_percentiles(client.latency_ns, client.due, unanswered, unanswered),
        send_delay_ns: client.send_delay_ns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_as_long_as_it_was_to_be_whatever_ends_a_sleep() {
        let (began, time) = (Instant::now(), Duration::from_millis(20));
        assert!(!wait(|| true, time, &mut |_| false));
        assert!(began.elapsed() >= time);
        assert!(!wait(|| true, Duration::ZERO, &mut |_| panic!("it is over")));
    }

    #[test]
    fn it_ends_when_it_is_told_to_and_when_the_client_is_gone_however_long_it_was_to_be() {
        for time in [Duration::from_secs(3_600), Duration::MAX] {
            let mut slept = 0;
            let mut sleep = |slice: Duration| {
                assert!(slice <= LOOK, "{slice:?}");
                slept += 1;
                slept == 3
            };
            assert!(wait(|| true, time, &mut sleep));
            assert_eq!(slept, 3);
            let left = std::cell::Cell::new(3);
            let runs = || left.replace(left.get() - 1) > 1;
            assert!(!wait(runs, time, &mut |_| false));
            assert_eq!(left.get(), 0);
        }
    }
}
