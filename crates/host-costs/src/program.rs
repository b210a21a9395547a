//! memcached's own work per request: its user time in a closed loop, divided by the number of requests.

use std::time::Duration;

use napkin_policy::Policy;
use serde_json::Value;

use super::derive::Constant;
use napkin_client::Load;
use napkin_policy::NamedPolicy;
use napkin_workload::error::{BenchError, Stopped};
use napkin_workload::interrupt::Interrupt;
use napkin_workload::memcached::linux::Memcached;
use napkin_workload::partial::Partial;
use napkin_workload::{Options, options::Placement, resumable};

/// Measures for about `time`.
pub(super) fn work(
    placement: Placement,
    time: Duration,
    interrupt: &Interrupt,
) -> Result<Constant, BenchError> {
    let workload = Memcached { loads: vec![Load::Closed], ..Memcached::default() };
    // User time is counted in ticks of 10 ms.
    let window = time.saturating_sub(Duration::from_millis(1_200)).max(Duration::from_millis(400));
    let options = Options {
        policies: NamedPolicy::all(vec![Policy::BASE]),
        repetitions: 1,
        window,
        cpus: vec![placement.queue, placement.other],
        progress: false,
        ..Options::default()
    };
    let report = resumable(&workload, &options, interrupt, &mut Partial::default())
        .map_err(|Stopped { error, .. }| error)?;
    let figures = report.rows.into_iter().next().map(|row| row.figures).unwrap_or_default();
    let user = figures.extra.get("program_user_ns").and_then(Value::as_u64);
    let (Some(user), Some(requests @ 1..)) = (user, figures.packets) else {
        let why = "memcached answered nothing, or its user time could not be read";
        return Err(BenchError::Linux(why.into()));
    };
    const TICK: f64 = 10e6;
    let each = |user: f64| user.max(0.0) / requests as f64;
    let user = user as f64;
    Ok(Constant {
        range: Some((each(user - 2.0 * TICK), each(user + 2.0 * TICK))),
        ..Constant::sourced(
            "memcached.work",
            each(user),
            format!("memcached's user time over {requests} requests of a closed loop"),
        )
    })
}
