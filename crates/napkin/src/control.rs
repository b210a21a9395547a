//! The commands that query and change a running engine: the `-get` and `-set` commands.

use napkin_engine::control::{
    Answer, ClientError, Record, Request, Verb, choose, request, setting,
};
use napkin_measure::report::text::time as measured;
use napkin_policy::{INSTANCE_KEYS, Key, Time, ValueKind};
use serde_json::Value;

use crate::args::{DevGet, DevSet, NapiGet, NapiSet, QstatsGet, QueueGet, Target};
use crate::failure::{Failure, print, print_json, say};
use crate::settings::Settings;
use crate::table;

/// The attribute of a device that was removed; a column only if there is such a device.
const GONE: &str = "gone";

/// The only time that is measured, not set.
const IDLE_GAP: &str = "idle-gap-min";

pub(crate) fn dev_get(args: &DevGet) -> Result<(), Failure> {
    let query = Request::new(Verb::DevGet).with("ifindex", args.ifindex);
    show(&args.target, &query, &["ifindex", "ifname", "mac", "vlan", "ipv4", "ipv6", "napi-ids"])
}

pub(crate) fn queue_get(args: &QueueGet) -> Result<(), Failure> {
    let query = Request::new(Verb::QueueGet)
        .with("ifindex", args.ifindex)
        .with("type", args.kind.as_deref())
        .with("id", args.id);
    show(&args.target, &query, &["ifindex", "type", "id", "napi-id", GONE])
}

pub(crate) fn napi_get(args: &NapiGet) -> Result<(), Failure> {
    let query = Request::new(Verb::NapiGet).with("id", args.id).with("ifindex", args.ifindex);
    let names: Vec<&str> = INSTANCE_KEYS.iter().map(|key| key.name).collect();
    let settings = &[&["ifindex", "ifname", "id", "pid"], &names[..], &["weight", GONE]].concat();
    let counts: &[&str] = &[
        "ifindex",
        "ifname",
        "id",
        "cpu",
        "interrupts",
        "polls",
        "empty-polls",
        "packets",
        "deferrals",
        "watchdogs",
        "parks",
        "handovers",
        IDLE_GAP,
    ];
    show(&args.target, &query, if args.counts { counts } else { settings })
}

pub(crate) fn qstats_get(args: &QstatsGet) -> Result<(), Failure> {
    let query = Request::new(Verb::QstatsGet)
        .with("ifindex", args.ifindex)
        .with("scope", args.scope.as_deref());
    let by_queue: &[&str] = &["queue-type", "queue-id"];
    let place = if args.scope.as_deref() == Some("queue") { by_queue } else { &[] };
    let counters: &[&str] = &[
        "rx-packets",
        "rx-bytes",
        "rx-hw-drops",
        "rx-hw-drop-overruns",
        "tx-packets",
        "tx-bytes",
        "tx-hw-drops",
        "stack",
    ];
    show(&args.target, &query, &[&["ifindex", "ifname"], place, counters].concat())
}

pub(crate) fn napi_set(args: &NapiSet) -> Result<(), Failure> {
    let query = Request::new(Verb::NapiSet).with("id", Some(args.id));
    set(&args.target, &with_settings(query, &args.settings)?)
}

pub(crate) fn dev_set(args: &DevSet) -> Result<(), Failure> {
    let query = Request::new(Verb::DevSet).with("ifindex", Some(args.ifindex));
    set(&args.target, &with_settings(query, &args.settings)?)
}

/// Adds the given settings to a request; fails if there are none.
fn with_settings(query: Request, settings: &Settings) -> Result<Request, Failure> {
    if settings.given.is_empty() && settings.weight.is_none() {
        let what = "there is nothing to change: give a setting, as in --threaded busy-poll";
        return Err(Failure::Usage(what.into()));
    }
    let with = |query: Request, (key, value): &(&'static Key, u64)| {
        query.with(key.name, Some(setting::to_json(key, *value)))
    };
    Ok(settings.given.iter().fold(query, with).with("weight", settings.weight))
}

/// Sends a request to the engine and prints the warnings of the answer.
fn ask(target: &Target, query: &Request) -> Result<Vec<Record>, Failure> {
    let answer =
        choose(target.control.as_deref(), "--control PATH").and_then(|path| request(&path, query));
    let Answer { records, warnings, .. } =
        answer.map_err(|error: ClientError| Failure::of(error))?;
    warnings.iter().for_each(|warning| say(&format!("warning: {warning}")));
    Ok(records)
}

fn set(target: &Target, query: &Request) -> Result<(), Failure> {
    let answer = ask(target, query)?;
    if target.json { print_json(&answer.into()) } else { Ok(()) }
}

fn show(target: &Target, query: &Request, columns: &[&str]) -> Result<(), Failure> {
    let records = ask(target, query)?;
    if target.json {
        return print_json(&records.into());
    }
    let is_true = |name: &str| records.iter().any(|it| it.get(name) == Some(&Value::Bool(true)));
    let columns: Vec<&str> =
        columns.iter().copied().filter(|name| *name != GONE || is_true(name)).collect();
    let row = |record: &Record| columns.iter().map(|name| cell(name, record.get(*name))).collect();
    print(&table::columns(&columns, records.iter().map(row).collect()))
}

/// Formats a value for a table; an absent value is a dash.
fn cell(name: &str, value: Option<&Value>) -> String {
    let is_time = || Key::find(name).is_some_and(|key| key.takes == ValueKind::Time);
    match value {
        None | Some(Value::Null) => "-".into(),
        Some(Value::Bool(gone)) if name == GONE => if *gone { "yes" } else { "no" }.into(),
        Some(Value::Bool(on)) => if *on { "on" } else { "off" }.into(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Number(number)) => match number.as_u64() {
            // A setting is shown as it is written on the command line; a measured time, to three digits.
            Some(time) if is_time() => Time(time).to_string(),
            Some(time) if name == IDLE_GAP => measured(time as f64),
            _ => number.to_string(),
        },
        Some(Value::Array(items)) => {
            items.iter().map(|item| cell("", Some(item))).collect::<Vec<_>>().join(" ")
        }
        // Counters by name, without those that are 0.
        Some(Value::Object(fields)) => fields
            .iter()
            .filter(|(_, count)| count.as_u64() != Some(0))
            .map(|(name, count)| format!("{name} {}", cell("", Some(count))))
            .collect::<Vec<_>>()
            .join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_cell_is_for_people() {
        assert_eq!(cell("pid", None), "-");
        assert_eq!(cell("hold", Some(&json!(1_000_000))), "1ms");
        assert_eq!(cell("idle-gap-min", Some(&json!(103_981_881))), "104 ms");
        assert_eq!(cell("weight", Some(&json!(64))), "64");
        assert_eq!(cell("feedback", Some(&json!(true))), "on");
        assert_eq!(cell("gone", Some(&json!(true))), "yes");
        assert_eq!(cell("napi-ids", Some(&json!([1, 2]))), "1 2");
        assert_eq!(cell("stack", Some(&json!({"frames": 2, "no-port": 0}))), "frames 2");
    }
}
