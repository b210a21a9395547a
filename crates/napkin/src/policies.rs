//! `napkin policies`: the table of all policies, or one in detail.

use napkin_measure::report::text::fill;
use napkin_policy::{FAMILIES, KEYS, Key, NamedPolicy, PRESETS, Policy, Preset, Warning};
use serde_json::{Value, json};

use crate::failure::{Failure, print, print_json, say};
use crate::table;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  napkin policies
      all of them, with what each costs and sets, and all keys
  napkin policies suspend20
      one, with what it costs and its values
  napkin policies hold250
      a member of a family
  napkin policies defer20,hold=50us
      one that is spelled out, with warnings of what has no effect")]
pub(crate) struct Policies {
    /// A policy: a preset, a member of a family, or one spelled out.
    name: Option<String>,
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
}

/// Prints one policy, or the table of all.
pub(crate) fn run(args: &Policies) -> Result<(), Failure> {
    match &args.name {
        Some(name) => one(name, args.json),
        None => all(args.json),
    }
}

/// Prints the warnings of policies that are about to be used, once for each. Presets and members of families are left
/// out: they are as their authors published them, and `napkin policies` explains them.
pub(crate) fn warn(policies: &[NamedPolicy]) {
    warn_of(policies, |_| true);
}

/// As [`warn`], for policies that are set in the kernel only.
pub(crate) fn warn_in_linux(policies: &[NamedPolicy]) {
    warn_of(policies, Warning::concerns_linux);
}

fn warn_of(policies: &[NamedPolicy], concerns: impl Fn(&Warning) -> bool) {
    for (place, NamedPolicy { name, policy }) in policies.iter().enumerate() {
        let known = policies[..place].iter().any(|earlier| earlier.policy == *policy);
        if policy.name().is_some() || known {
            continue;
        }
        for warning in policy.warnings().into_iter().filter(|it| concerns(it)) {
            say(&format!("warning: {name}: {warning}"));
        }
    }
}

/// Reads a policy; its errors suggest the nearest name.
pub(crate) fn policy(text: &str) -> Result<Policy, napkin_policy::PolicyError> {
    text.parse()
}

fn all(json: bool) -> Result<(), Failure> {
    if json {
        let presets = PRESETS.iter().map(|it| {
            let Preset { name, proposal, what, cost, .. } = *it;
            explained(name, proposal, what, cost, &it.policy)
        });
        let families = FAMILIES.iter().map(|it| {
            json!({
                "name": it.pattern,
                "proposal": it.proposal,
                "what": it.what,
                "cost": it.cost,
                "example": it.values(),
            })
        });
        let (presets, families): (Vec<_>, Vec<_>) = (presets.collect(), families.collect());
        return print_json(&json!({ "presets": presets, "families": families }));
    }
    let row = |name: &str, proposal: &str, what: &str, cost: &str, values: &str| {
        // A blank after each comma, so that lines break there.
        let values = if values == "base" { "nothing".into() } else { values.replace(',', ", ") };
        let text = format!("{what}\nCosts: {cost}\nSets: {values}\nBy: {proposal}");
        vec![name.to_owned(), text]
    };
    let presets =
        PRESETS.iter().map(|it| row(it.name, it.proposal, it.what, it.cost, &it.values()));
    let families = FAMILIES.iter().map(|it| {
        row(it.pattern, it.proposal, it.what, it.cost, &format!("with N = 50: {}", it.values()))
    });
    let rows = presets.chain(families).collect();
    let header = ["policy", "what it does, what it costs, what it sets, whose proposal it is"];
    let mut text = table::wrapped_lines(&header, rows);
    let more = "N is a number of microseconds. A name may be followed by keys, as in suspend20,hold=50us; or keys \
                alone spell a policy out:";
    text.push_str(&format!("\n{}\n\n", fill(more, table::width(), "", "")));
    let keys = KEYS.iter().map(|key| vec![key.name.into(), key.takes.to_string(), sets(key)]);
    text.push_str(&table::wrapped(&["key", "takes", "what it sets"], keys.collect()));
    text.push_str("\nnapkin policies NAME shows one with its values.\n");
    print(&text)
}

/// What a key sets, and whether any Linux version has it.
fn sets(key: &Key) -> String {
    format!("{}{}", key.what, if key.is_napkin_only() { "; in no Linux" } else { "" })
}

fn one(text: &str, json: bool) -> Result<(), Failure> {
    let policy: Policy = text
        .parse()
        .map_err(|error: napkin_policy::PolicyError| Failure::Usage(error.to_string()))?;
    // A policy that is spelled out may equal a named one.
    let name = policy.to_string();
    let (proposal, what, cost) = named_explanation(&policy, &name).unwrap_or_else(|| {
        ("yours", "As spelled out below.".to_owned(), "What its parts cost.".to_owned())
    });
    if json {
        return print_json(&explained(&name, proposal, &what, &cost, &policy));
    }
    let mut out = format!("{name}  ({proposal})\n\n{what}\nCosts: {cost}\n\nValues");
    let changed: Vec<_> = KEYS
        .iter()
        .filter(|key| key.value(&policy) != key.value(&Policy::BASE))
        .map(|key| vec![key.name.to_owned(), key.value(&policy).to_string(), sets(key)])
        .collect();
    if changed.is_empty() {
        out.push_str(": every key at its default.\n");
    } else {
        out.push_str(" (every other key at its default):\n");
        out.push_str(&table::wrapped(&["key", "value", "what it sets"], changed));
    }
    for warning in policy.warnings() {
        out.push_str(&format!("\nNote: {warning}.\n"));
    }
    print(&out)
}

/// The proposal, the effect and the cost of a policy, if it has a name.
fn named_explanation(policy: &Policy, name: &str) -> Option<(&'static str, String, String)> {
    if let Some(Preset { proposal, what, cost, .. }) = Preset::find(name) {
        return Some((proposal, (*what).to_owned(), (*cost).to_owned()));
    }
    FAMILIES.iter().find_map(|family| {
        let number = family.member(policy)?;
        Some((family.proposal, numbered(family.what, number), numbered(family.cost, number)))
    })
}

/// A family's text, for the member with this number of microseconds.
fn numbered(text: &str, microseconds: u32) -> String {
    text.replace("N us", &format!("{microseconds} us"))
        .replace("deferN", &format!("defer{microseconds}"))
}

fn explained(name: &str, proposal: &str, what: &str, cost: &str, policy: &Policy) -> Value {
    let values: serde_json::Map<String, Value> = KEYS
        .iter()
        .map(|key| (key.name.to_owned(), key.value(policy).to_string().into()))
        .collect();
    let warnings: Vec<String> = policy.warnings().iter().map(ToString::to_string).collect();
    json!({
        "name": name,
        "proposal": proposal,
        "what": what,
        "cost": cost,
        "spelled_out": policy.spelled_out().to_string(),
        "values": values,
        "warnings": warnings,
    })
}
