//! Ownership of the places in the instance table, from one reading to the next.
//!
//! The histograms at a place are not reset when another instance takes it over.

use std::collections::BTreeMap;

use super::histogram::Parts;

/// The owner of each place at its last reading, by the index in the instance table.
#[derive(Debug, Default)]
pub(super) struct Owners(BTreeMap<u32, Owner>);

#[derive(Debug)]
struct Owner {
    id: u32,
    /// What earlier owners had counted at the place when this owner was first seen.
    before: Option<Parts>,
    /// The total count at the place at the last reading.
    last: Parts,
}

impl Owners {
    /// Returns the part of a place's counts that belongs to its present owner. What its predecessor counted after
    /// the last reading cannot be separated and is included.
    pub(super) fn own(&mut self, place: u32, id: u32, counted: Parts) -> Parts {
        let before = match self.0.remove(&place) {
            Some(owner) if owner.id == id => owner.before,
            Some(owner) => Some(owner.last),
            None => None,
        };
        let own = before.as_ref().map_or_else(|| counted.clone(), |before| counted.since(before));
        self.0.insert(place, Owner { id, before, last: counted });
        own
    }
}

#[cfg(test)]
mod tests {
    use super::super::Part;
    use super::super::histogram::Histogram;
    use super::*;

    #[test]
    fn who_takes_a_place_over_begins_at_0() {
        let counted = |times| {
            let of = |_| Histogram::of([times].into_iter());
            Parts { histograms: Part::ALL.map(of) }
        };
        let mut owners = Owners::default();
        let mut own = |place, id, times| owners.own(place, id, counted(times));
        assert_eq!(own(1, 256, 5), counted(5), "the first had it from the beginning");
        assert_eq!(own(1, 256, 7), counted(7));
        assert_eq!(own(1, 512, 7), counted(0));
        assert_eq!(own(1, 512, 10), counted(3));
        assert_eq!(own(2, 257, 4), counted(4), "each place is another's");
        assert_eq!(own(1, 256, 11), counted(1), "it comes back as another");
    }
}
