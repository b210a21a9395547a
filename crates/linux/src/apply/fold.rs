//! Equal changes of several instances, told as one: a device may have 64.

use serde::Serialize;

use crate::place::{Change, Instance};

/// A change with all the instances to which it happens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Folded {
    /// `queues 0-63`, `queue 1`, `device`.
    pub subject: String,
    /// What is set.
    pub what: &'static str,
    /// What it was.
    pub from: String,
    /// What it becomes.
    pub to: String,
}

/// Folds changes, in the order in which the first of each kind comes.
pub fn fold<'a>(changes: impl IntoIterator<Item = &'a Change>) -> Vec<Folded> {
    let mut groups: Vec<(Folded, Vec<Instance>)> = Vec::new();
    for change in changes {
        let (what, from, to) = (change.place.what(), change.from(), change.to());
        let same = groups.iter_mut().find(|(group, instances)| {
            !instances.is_empty()
                && change.place.instance().is_some()
                && (group.what, &group.from, &group.to) == (what, &from, &to)
        });
        match same {
            Some((_, instances)) => instances.extend(change.place.instance().cloned()),
            None => {
                let instances = change.place.instance().cloned().into_iter().collect();
                let subject = change.place.subject();
                groups.push((Folded { subject, what, from, to }, instances));
            }
        }
    }
    let told = |(mut folded, instances): (Folded, Vec<Instance>)| {
        if instances.len() > 1 {
            folded.subject = together(&instances);
        }
        folded
    };
    groups.into_iter().map(told).collect()
}

/// `queues 0-3` if they can be told by their queues alone, otherwise one after the other.
fn together(instances: &[Instance]) -> String {
    let plain =
        |it: &&Instance| it.nth == 0 && !it.rx.is_empty() && (it.tx.is_empty() || it.rx == it.tx);
    if instances.iter().all(|it| plain(&it)) {
        let rx = instances.iter().flat_map(|it| it.rx.clone()).collect();
        return Instance { rx, tx: Vec::new(), nth: 0 }.to_string();
    }
    instances.iter().map(Instance::to_string).collect::<Vec<_>>().join(", ")
}
