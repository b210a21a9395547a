//! The columns of a sweep's file with measured values, and their fields.

use napkin_measure::report::Measurement;
use napkin_measure::report::round::number;
use serde_json::Value;

/// The top-level values of a report in a line, in this order.
const FIGURES: [&str; 11] = [
    "offered_per_s",
    "achieved_per_s",
    "due",
    "unanswered",
    "interrupts",
    "polls",
    "empty_polls",
    "packets",
    "polled_packets",
    "context_switches",
    "window_ns",
];

const LATENCY: [&str; 9] = ["count", "mean", "p5", "p50", "p90", "p95", "p99", "p999", "max"];

const CPU: [&str; 4] = ["work", "poll", "waiting", "asleep"];

const DROPS: [&str; 2] = ["ring_full", "socket_full"];

/// Whether a queue grows, in which case there are no percentiles; and ratios of the counts.
const DERIVED: [&str; 3] = ["grows", "interrupts_per_packet", "context_switches_per_packet"];

/// Further values of a report that are lists, which a line cannot hold.
const LISTS: [&str; 3] = ["per_queue", "per_worker", "serving_cpus"];

/// Returns the columns of a point's values.
pub(super) fn header(figures: &Measurement) -> Vec<String> {
    let of = |prefix: &str, names: &[&str], suffix: &str| {
        names.iter().map(|name| format!("{prefix}{name}{suffix}")).collect::<Vec<_>>()
    };
    let mut header = of("", &FIGURES, "");
    header.push("latency_count".to_owned());
    header.extend(of("latency_", &LATENCY[1..], "_ns"));
    header.extend(of("cpu_", &CPU, ""));
    header.extend(of("drops_", &DROPS, ""));
    let extra = figures.extra.iter().filter(|(name, value)| {
        (value.is_number() || value.is_null()) && !LISTS.contains(&name.as_str())
    });
    header.extend(extra.map(|(name, _)| name.clone()));
    header.extend(of("", &DERIVED, ""));
    header
}

/// Returns the fields of these columns.
pub(super) fn line(columns: &[String], result: Result<Measurement, String>) -> Vec<String> {
    let (json, error) = match result {
        // Every measured value has a JSON form, so this does not fail.
        Ok(figures) => (serde_json::to_value(figures).unwrap_or_default(), String::new()),
        Err(why) => (Value::Null, why),
    };
    let field = |column: &String| -> String {
        if column == "error" {
            return error.clone();
        }
        let value = match column.split_once('_') {
            Some(("latency", name)) => &json["latency_ns"][name.trim_end_matches("_ns")],
            Some(("cpu", name)) => &json["cpu"][name],
            Some(("drops", name)) => &json["drops"][name],
            _ => &json[column.as_str()],
        };
        match value {
            Value::Number(figure) => number(figure),
            Value::Bool(so) => u8::from(*so).to_string(),
            // The report has this field only if it is true.
            Value::Null if column == "grows" && json.is_object() => "0".to_owned(),
            _ => String::new(),
        }
    };
    columns.iter().map(field).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_a_queue_grows_is_told_apart_from_too_few_answers_and_from_no_figures() {
        let fields = |result| line(&["grows", "error"].map(str::to_owned), result);
        let growing = Measurement { grows: true, ..Measurement::default() };
        assert_eq!(fields(Ok(growing)), ["1", ""]);
        assert_eq!(fields(Ok(Measurement::default())), ["0", ""]);
        assert_eq!(fields(Err("why".into())), ["", "why"]);
    }
}
