//! Measured values and notes from the client and the serving CPUs, common to every world with a real service.

use napkin_client::ClientFigures;
use napkin_measure::report::{Measurement, Repetition, Row};
use napkin_measure::window::WindowUsage;
use serde_json::{Value, json};

use crate::options::Placement;
use crate::serving::set_ratio;

/// The note for a closed loop.
pub(crate) const CLOSED_LOOP_NOTE: &str =
    "max is a closed loop: its percentiles leave out what a held-back request would have waited";

/// Returns notes about problems of the client that distort a row's values.
pub(crate) fn client_notes(row: &Row) -> Vec<String> {
    let count = |name: &str| row.figures.extra.get(name).and_then(Value::as_u64).unwrap_or(0);
    let behind =
        |it: &Repetition| it.figures.extra.get("client_behind").is_some_and(|it| *it == true);
    let mut notes = Vec::new();
    if count("abandoned") != 0 {
        notes.push(format!(
            "{} requests were never sent, as too many waited on their connection already",
            count("abandoned")
        ));
    }
    if row.repetitions.iter().any(behind) {
        notes.push(
            "the client could not keep up with its own schedule, and offered less than it was asked to"
                .to_owned(),
        );
    }
    if count("misses") != 0 {
        notes.push(format!("{} gets found nothing", count("misses")));
    }
    notes
}

/// Adds the client's results: rates, latency, and the requests that were due.
pub(crate) fn add_answers(figures: &mut Measurement, results: &ClientFigures) {
    if let (Some(asked), Some(offered)) = (results.asked_per_s, results.offered_per_s) {
        figures.set_due(results.due, results.requests);
        // Each thread reports its rate over its own window.
        figures.offered_per_s = Some(offered);
        figures.extra.insert("asked_per_s".to_owned(), asked.into());
    }
    figures.achieved_per_s = Some(results.achieved_per_s);
    figures.latency_ns = results.latency_ns;
    figures.packets = Some(results.requests);
    let empty = figures.empty_polls.unwrap_or(0);
    let found = figures.polls.unwrap_or(0).saturating_sub(empty);
    let packets = figures.polled_packets.unwrap_or(0);
    set_ratio(&mut figures.extra, "packets_per_poll", packets, found);
}

/// Adds the share of the serving CPUs' time that the traffic used, including the kernel's part.
pub(crate) fn add_cpu_shares(figures: &mut Measurement, usage: &WindowUsage, placement: Placement) {
    // On a shared CPU the client's time is in the same sums.
    if placement.shared() {
        return;
    }
    let (busy, all) = (usage.busy_ns(), usage.wall_ns.saturating_mul(usage.of_cpus));
    set_ratio(&mut figures.extra, "server_busy", busy, all);
    set_ratio(&mut figures.extra, "server_softirq", usage.cpus.softirq_ns, all);
    if let Some(requests) = figures.packets.filter(|it| *it != 0) {
        figures.extra.insert("cpu_ns_per_request".to_owned(), Value::from(busy / requests));
    }
}

/// Adds the client's counts of a key-value store's operations.
pub(crate) fn add_store_counts(figures: &mut Measurement, results: &ClientFigures) {
    let counts = [("gets", results.gets), ("sets", results.sets), ("misses", results.misses)];
    figures.extra.extend(counts.map(|(name, count)| (name.to_owned(), count.into())));
}

/// Adds everything that the client measured.
pub(crate) fn add_client_results(figures: &mut Measurement, results: &ClientFigures) {
    add_answers(figures, results);
    let mut put = |name: &str, value: Value| figures.extra.insert(name.to_owned(), value);
    put("late", results.late.into());
    put("abandoned", results.abandoned.into());
    put("outstanding", results.outstanding.into());
    put("client_behind", results.behind.into());
    put("backlog", results.backlog.into());
    put("reconnects", results.reconnects.into());
    put("client_errors", json!(results.errors));
    put("client_notes", json!(results.notes));
    if let Some(published) = results.published_ns {
        put("published_mean_ns", published.mean.into());
        put("published_p50_ns", published.p50.into());
        put("published_p95_ns", published.p95.into());
        put("published_p99_ns", published.p99.into());
    }
    if let Some(delay) = results.send_delay_ns {
        put("client_send_delay_p50_ns", delay.p50.into());
        put("client_send_delay_p99_ns", delay.p99.into());
    }
}
