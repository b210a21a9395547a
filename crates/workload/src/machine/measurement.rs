//! The measured values of a machine run, in the JSON form of the other worlds.
//!
//! `cpu` divides the time of the serving CPUs as in the other worlds: *work* is their used time without empty
//! polls, *poll* those empty polls, *waiting* the time that runnable threads waited for a CPU (at most the
//! remaining time), *asleep* the rest. `interrupts` are those that won their instance, receive and transmit
//! together: a card that interrupts on transmit completion has one line for both, and the model does not separate
//! them. `packets` are the requests that the workload counts as served.
//!
//! Per queue (`per_queue`): `interrupts_per_s` counts all interrupts that arrived, won or missed;
//! `packets_per_poll` covers polls that found packets. Per epoll context, that is per worker (`per_worker`):
//! returns with events, and events per return. `*_us_per_request` is the time of all serving CPUs in that context
//! per served request. The row itself has the means of these values over queues and workers. A quotient with a
//! denominator of 0 is `null`.

use std::collections::BTreeMap;

use crate::machine::run::Outcome;
use napkin_core::{Counts, Owner};
use napkin_machine::{CpuUse, EpollUse, QueueUse, Use};
use napkin_policy::NEVER;
use napkin_traffic::Histogram;
use serde_json::{Map, Value, json};

use napkin_measure::report::Measurement;
use napkin_measure::{CpuSplit, LatencyNs, Percentiles, SplitInputs};

/// Returns all values of a run.
pub fn measurement(outcome: &Outcome) -> Measurement {
    let counts = &outcome.counts;
    let mut napi = Counts { idle_gap_min: NEVER, ..Counts::default() };
    counts.queues.iter().for_each(|queue| napi.add(&queue.napi));
    let of_nic = |get: fn(&QueueUse) -> u64| counts.queues.iter().map(get).sum::<u64>();
    let serving: Vec<&CpuUse> = serving(outcome).collect();
    let (ring, socket) = (of_nic(|it| it.nic.ring_drops), of_nic(|it| it.nic.socket_drops));
    let figures = Measurement {
        offered_per_s: outcome.offered_per_s,
        due: outcome.due,
        unanswered: outcome.unanswered,
        achieved_per_s: Some(outcome.achieved_per_s),
        cpu: split(outcome),
        interrupts: Some(napi.interrupts.saturating_sub(napi.interrupts_missed)),
        polls: Some(napi.all_polls()),
        empty_polls: Some(napi.all_empty_polls()),
        packets: Some(served(outcome).round() as u64),
        drops: BTreeMap::from([("ring_full".to_owned(), ring), ("socket_full".to_owned(), socket)]),
        window_ns: Some(outcome.window),
        polled_packets: Some(of_nic(|it| it.nic.delivered)),
        context_switches: Some(serving.iter().map(|cpu| cpu.switches).sum()),
        extra: extra(outcome, &napi),
        ..Measurement::default()
    };
    let unanswered = figures.unanswered_beside(outcome.latency.count());
    Measurement { latency_ns: latency(&outcome.latency, unanswered), ..figures }
}

/// Requests served in the window.
fn served(outcome: &Outcome) -> f64 {
    outcome.achieved_per_s * seconds(outcome)
}

fn seconds(outcome: &Outcome) -> f64 {
    outcome.window as f64 / 1e9
}

fn serving(outcome: &Outcome) -> impl Iterator<Item = &CpuUse> {
    outcome.serving.iter().filter_map(|cpu| outcome.counts.cpus.get(usize::from(*cpu)))
}

/// Returns the latency summary, given the number of unanswered requests besides these; `None` without any sample.
pub fn latency(histogram: &Histogram, unanswered: u64) -> Option<LatencyNs> {
    let count = histogram.count();
    let quantile = |share| Some(histogram.quantile(share));
    (count > 0).then(|| LatencyNs {
        mean: Some(histogram.mean()),
        at: Percentiles::of_all(count, unanswered, quantile),
        max: histogram.max(),
        count,
        above: None,
    })
}

/// Splits the serving CPUs' time.
fn split(outcome: &Outcome) -> Option<CpuSplit> {
    let sum = |get: fn(&CpuUse) -> u64| serving(outcome).map(get).sum::<u64>();
    CpuSplit::of(SplitInputs {
        wall_ns: outcome.window,
        cpus: outcome.serving.len() as u32,
        cpu_ns: sum(|cpu| cpu.used[1..].iter().sum()),
        poll_ns: sum(|cpu| cpu.empty_poll_time),
        run_delay_ns: sum(|cpu| cpu.waited),
        steal_ns: 0,
    })
}

fn extra(outcome: &Outcome, napi: &Counts) -> Map<String, Value> {
    let counts = &outcome.counts;
    let time = seconds(outcome);
    let queues = &counts.queues;
    let mut extra = Map::new();
    let mut put = |name: &str, value: Value| extra.insert(name.to_owned(), value);
    for (name, count) in [
        ("interrupts_won", napi.interrupts.saturating_sub(napi.interrupts_missed)),
        ("interrupts_missed", napi.interrupts_missed),
        ("deferrals", napi.deferrals),
        ("parks", napi.parks),
        ("watchdogs", napi.watchdogs()),
        ("timer_starts", queues.iter().map(|it| it.nic.timer_starts).sum()),
        ("timer_expiries", queues.iter().map(|it| it.nic.timer_expiries).sum()),
        ("busy_claims", napi.busy_claims),
        ("tx_packets", queues.iter().map(|it| it.nic.sent).sum()),
        ("net_rx_softirqs", counts.cpus.iter().map(|it| it.softirq.net_rx).sum()),
        ("time_squeeze", counts.cpus.iter().map(|it| it.softirq.time_squeeze).sum()),
        ("ksoftirqd_wakes", counts.cpus.iter().map(|it| it.softirq.ksoftirqd_wakes).sum()),
    ] {
        put(name, count.into());
    }
    for owner in Owner::ALL {
        let (name, at) = (owner.name(), owner as usize);
        put(&format!("polls_{name}"), (napi.polls[at] + napi.empty_polls[at]).into());
        put(&format!("empty_polls_{name}"), napi.empty_polls[at].into());
    }
    let delivered = queues.iter().map(|it| it.nic.delivered).sum();
    for (name, value) in queue_rates(napi, delivered, time * queues.len() as f64) {
        put(&name.replace("_per_s", "_per_queue_and_s"), value);
    }
    let epoll = counts.epolls.iter().fold(EpollUse::default(), |sum, it| EpollUse {
        returns: sum.returns + it.returns,
        events: sum.events + it.events,
    });
    if !counts.epolls.is_empty() {
        for (name, value) in worker_rates(&epoll, time * counts.epolls.len() as f64) {
            put(&name.replace("_per_s", "_per_worker_and_s"), value);
        }
    }
    let requests = served(outcome);
    for (name, class) in [
        ("interrupt_us_per_request", Use::Interrupt),
        ("softirq_us_per_request", Use::Softirq),
        ("system_us_per_request", Use::System),
        ("user_us_per_request", Use::User),
    ] {
        let used: u64 = serving(outcome).map(|cpu| cpu.used[class as usize]).sum();
        put(name, quotient(used as f64 / 1e3, requests));
    }
    put("serving_cpus", outcome.serving.clone().into());
    put("model_steps", outcome.steps.into());
    let of_queue = |(index, queue): (usize, &QueueUse)| {
        let rates = queue_rates(&queue.napi, queue.nic.delivered, time).into_iter();
        let rates = rates.map(|(name, value)| (name.to_owned(), value));
        Value::Object([("queue".to_owned(), index.into())].into_iter().chain(rates).collect())
    };
    put("per_queue", queues.iter().enumerate().map(of_queue).collect());
    let of_worker = |(index, worker): (usize, &EpollUse)| {
        let rates = worker_rates(worker, time).into_iter();
        let rates = rates.map(|(name, value)| (name.to_owned(), value));
        Value::Object([("worker".to_owned(), index.into())].into_iter().chain(rates).collect())
    };
    put("per_worker", counts.epolls.iter().enumerate().map(of_worker).collect());
    for (name, value) in &outcome.figures {
        put(name, json!(value));
    }
    extra
}

/// The rates of one queue, per second.
fn queue_rates(napi: &Counts, delivered: u64, time: f64) -> [(&'static str, Value); 4] {
    let full = napi.all_polls() - napi.all_empty_polls();
    [
        ("interrupts_per_s", quotient(napi.interrupts as f64, time)),
        ("polls_per_s", quotient(napi.all_polls() as f64, time)),
        ("empty_polls_per_s", quotient(napi.all_empty_polls() as f64, time)),
        ("packets_per_poll", quotient(delivered as f64, full as f64)),
    ]
}

/// The rates of one worker's waits, per second.
fn worker_rates(epoll: &EpollUse, time: f64) -> [(&'static str, Value); 2] {
    [
        ("epoll_returns_per_s", quotient(epoll.returns as f64, time)),
        ("events_per_return", quotient(epoll.events as f64, epoll.returns as f64)),
    ]
}

/// Divides; `null` if the denominator is 0.
fn quotient(of: f64, by: f64) -> Value {
    if by > 0.0 { json!(of / by) } else { Value::Null }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::stand_in;

    #[test]
    fn the_parts_of_the_cpu_add_up_and_nothing_is_lost() {
        let outcome = stand_in::outcome("base", "20000");
        let figures = measurement(&outcome);
        let cpu = figures.cpu.unwrap();
        assert!((cpu.sum() - 1.0).abs() < 1e-9, "{cpu:?}");
        assert!((cpu.busy() * 100.0 - outcome.cpu_percent()).abs() < 1e-9);
        assert!(figures.packets.unwrap() > 1_000);
        assert_eq!(figures.latency_ns.unwrap().count, outcome.latency.count());
    }

    #[test]
    fn a_run_has_the_figures_of_each_queue_and_worker() {
        let figures = measurement(&stand_in::outcome("base", "20000"));
        let queue = &figures.extra["per_queue"][0];
        for name in ["interrupts_per_s", "polls_per_s", "empty_polls_per_s", "packets_per_poll"] {
            assert!(queue[name].is_f64(), "{name}: {queue}");
        }
        let worker = &figures.extra["per_worker"][0];
        assert!(worker["epoll_returns_per_s"].as_f64().unwrap() > 1_000.0, "{worker}");
        assert!(worker["events_per_return"].as_f64().unwrap() >= 1.0, "{worker}");
        for name in ["softirq", "system", "user", "interrupt"] {
            let value = &figures.extra[&format!("{name}_us_per_request")];
            assert!(value.as_f64().unwrap() >= 0.0, "{name}");
        }
        // The means over one queue are that queue's own values.
        assert_eq!(figures.extra["polls_per_queue_and_s"], queue["polls_per_s"]);
    }

    #[test]
    fn the_time_for_each_request_adds_up_to_what_was_used() {
        let outcome = stand_in::outcome("base", "20000");
        let figures = measurement(&outcome);
        let parts = ["interrupt", "softirq", "system", "user"];
        let each: f64 = parts
            .iter()
            .map(|name| figures.extra[&format!("{name}_us_per_request")].as_f64().unwrap())
            .sum();
        let used = each * served(&outcome) / 1e6;
        let busy = figures.cpu.unwrap().busy() * seconds(&outcome) * outcome.serving.len() as f64;
        assert!((used - busy).abs() < 1e-9 * busy.max(1.0), "{used} {busy}");
    }

    #[test]
    fn a_percentile_is_that_of_all_that_fell_due_and_not_of_the_answered_ones() {
        let mut histogram = Histogram::default();
        (0..9_500).for_each(|i| histogram.add((1 + i % 1_000) * 1_000));
        let [all, answered] = [500, 0].map(|lost| latency(&histogram, lost).unwrap());
        // Up to 500 us there are ten samples per microsecond, above it nine.
        for (got, want) in [(all.at.p50, 500), (all.at.p90, 945), (all.at.p95, 1_000)] {
            let got = got.unwrap();
            assert!(got.abs_diff(want * 1_000) <= 5_000, "{got} for {want} us");
        }
        assert!(answered.at.p50.unwrap() < 480_000, "{answered:?}");
        let bound = all.at.p95.max(answered.at.p99);
        assert_eq!((all.at.p99, all.mean), (bound, answered.mean), "a bound");
        assert_eq!(latency(&Histogram::default(), 500), None);
    }

    #[test]
    fn a_quotient_of_nothing_is_null() {
        assert_eq!(quotient(3.0, 0.0), Value::Null);
        let [returns, events] = worker_rates(&EpollUse::default(), 1.0);
        assert_eq!((returns.1, events.1), (json!(0.0), Value::Null));
    }
}
