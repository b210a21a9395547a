//! What the client tells of a service, in figures and in words: the same in every world that has a real one.

use napkin_client::ClientFigures;
use napkin_measure::report::{Figures, Repetition, Row};
use serde_json::{Value, json};

use crate::embedded::answered;

/// A closed loop's note.
pub(crate) const CLOSED: &str =
    "max is a closed loop: its percentiles leave out what a held-back request would have waited";

/// What of the client's own trouble makes a row's figures untrue.
pub(crate) fn of_the_client(row: &Row) -> Vec<String> {
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

/// Enters what the client saw of a store.
pub(crate) fn of_a_store(figures: &mut Figures, served: &ClientFigures) {
    let counts = [("gets", served.gets), ("sets", served.sets), ("misses", served.misses)];
    figures.extra.extend(counts.map(|(name, count)| (name.to_owned(), count.into())));
}

/// Enters what the client saw.
pub(crate) fn merge(figures: &mut Figures, served: &ClientFigures) {
    answered(figures, served);
    let mut put = |name: &str, value: Value| figures.extra.insert(name.to_owned(), value);
    put("late", served.late.into());
    put("abandoned", served.abandoned.into());
    put("outstanding", served.outstanding.into());
    put("client_behind", served.behind.into());
    put("backlog", served.backlog.into());
    put("reconnects", served.reconnects.into());
    put("client_errors", json!(served.errors));
    put("client_notes", json!(served.notes));
    if let Some(published) = served.published_ns {
        put("published_mean_ns", published.mean.into());
        put("published_p50_ns", published.p50.into());
        put("published_p95_ns", published.p95.into());
        put("published_p99_ns", published.p99.into());
    }
    if let Some(delay) = served.send_delay_ns {
        put("client_send_delay_p50_ns", delay.p50.into());
        put("client_send_delay_p99_ns", delay.p99.into());
    }
}
