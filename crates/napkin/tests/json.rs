//! Checks that docs/json.md has every field that `--json` prints, for the commands that change nothing and need no
//! privilege.

mod common;

use std::collections::BTreeSet;

use serde_json::{Deserializer, Value};

use common::{napkin, text};

const DOC: &str = include_str!("../../../docs/json.md");

/// Objects whose fields are data: keys of a policy, constants, counters, loads.
const DATA: [&str; 8] =
    ["values", "constants", "differs", "drops", "errors", "client_errors", "load", "set"];

/// Collects the names of all fields of a value, except those that are data.
fn fields(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Array(all) => all.iter().for_each(|it| fields(it, found)),
        Value::Object(all) => {
            for (name, it) in all {
                found.insert(name.clone());
                if !DATA.contains(&name.as_str()) {
                    fields(it, found);
                }
            }
        }
        _ => {}
    }
}

/// The fields that a command prints and the document does not name.
fn unnamed(command: &str) -> Vec<String> {
    let output = napkin(command.split_whitespace());
    let printed = text(&output.stdout);
    let documents: Result<Vec<Value>, _> = Deserializer::from_str(&printed).into_iter().collect();
    let documents = documents.unwrap_or_else(|error| panic!("{command}: {error}: {printed}"));
    assert!(!documents.is_empty(), "{command}: {}", text(&output.stderr));
    let mut found = BTreeSet::new();
    documents.iter().for_each(|it| fields(it, &mut found));
    assert!(!found.is_empty(), "{command} printed {printed}");
    // A field is named in backquotes, alone or at the end of a path, or by a pattern for several fields.
    let named = |name: &String| {
        DOC.contains(&format!("`{name}`"))
            || DOC.contains(&format!(".{name}`"))
            || suffixes(name).any(|(owner, suffix)| DOC.contains(owner) && DOC.contains(&suffix))
    };
    let unnamed = found.into_iter().filter(|name| !named(name));
    unnamed.map(|name| format!("{command}: {name}")).collect()
}

/// `polls_softirq` is documented as `polls_WHO`, with `softirq` among the values of WHO.
fn suffixes(name: &str) -> impl Iterator<Item = (&'static str, String)> {
    ["polls_WHO", "empty_polls_WHO", "full_polls_WHO", "packets_WHO"].into_iter().filter_map(
        |owner| {
            let who = name.strip_prefix(owner.strip_suffix("WHO")?)?;
            Some((owner, format!("`{who}`")))
        },
    )
}

#[test]
fn every_field_that_is_printed_stands_in_the_document() {
    let commands = [
        "policies --json",
        "policies suspend20 --json",
        "profile show epyc-7662 --json",
        "show --json",
        "doctor --list --json",
        "bench memcached --world machine --policy base --policy suspend20 --load 200000 \
         --repetitions 2 --window 10ms --json -",
        "bench udp-sink --world machine --policy base --policy hold50 --repetitions 1 --window 10ms --json -",
        "bench flood-ping --world machine --policy base --repetitions 1 --window 10ms --json -",
        "bench tcp-rr --world machine --policy base --repetitions 1 --window 10ms --json -",
        "bench xsk-rr --world machine --policy base --repetitions 1 --window 10ms --json -",
        "reproduce 2018 --quick --json -",
    ];
    let unnamed: Vec<_> = commands.into_iter().flat_map(unnamed).collect();
    assert!(unnamed.is_empty(), "{unnamed:#?}");
}
