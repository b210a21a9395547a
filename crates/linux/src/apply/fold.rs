//! Groups equal changes of several instances for display: a device may have 64.

use serde::Serialize;

use crate::place::{Change, Instance};

/// A change, with all the instances that it applies to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Folded {
    /// `queues 0-63`, `queue 1`, `device`.
    pub subject: String,
    /// The name of the setting.
    pub what: &'static str,
    /// The previous value.
    pub from: String,
    /// The new value.
    pub to: String,
}

/// Groups changes, in the order in which the first of each group comes.
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
    let finish = |(mut folded, instances): (Folded, Vec<Instance>)| {
        if instances.len() > 1 {
            folded.subject = join_subjects(&instances);
        }
        folded
    };
    groups.into_iter().map(finish).collect()
}

/// Formats as `queues 0-3` if the receive queues identify the instances, otherwise as a list.
fn join_subjects(instances: &[Instance]) -> String {
    let plain =
        |it: &&Instance| it.nth == 0 && !it.rx.is_empty() && (it.tx.is_empty() || it.rx == it.tx);
    if instances.iter().all(|it| plain(&it)) {
        let rx = instances.iter().flat_map(|it| it.rx.clone()).collect();
        return Instance { rx, tx: Vec::new(), nth: 0 }.to_string();
    }
    instances.iter().map(Instance::to_string).collect::<Vec<_>>().join(", ")
}
