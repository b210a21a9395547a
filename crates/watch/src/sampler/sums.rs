//! Sums of the kernel's 32-bit counters that do not wrap.

use std::collections::BTreeMap;

use napkin_os::procfs::counter_increase;

/// The last value of each counter, and its increase since it was first read.
#[derive(Debug)]
pub(super) struct Sums<K>(BTreeMap<K, (u32, u64)>);

impl<K> Default for Sums<K> {
    fn default() -> Sums<K> {
        Sums(BTreeMap::new())
    }
}

impl<K: Ord> Sums<K> {
    /// Adds a reading.
    pub(super) fn step(&mut self, key: K, now: u32) {
        let (last, sum) = self.0.entry(key).or_insert((now, 0));
        *sum = sum.saturating_add(counter_increase(now, *last).into());
        *last = now;
    }

    /// The increase of one counter; `None` if it was never read.
    pub(super) fn get(&self, key: &K) -> Option<u64> {
        self.0.get(key).map(|(_, sum)| *sum)
    }

    /// The increase of a range of counters; `None` if none was read.
    pub(super) fn total(&self, keys: std::ops::RangeInclusive<K>) -> Option<u64> {
        self.0.range(keys).map(|(_, (_, sum))| *sum).reduce(u64::saturating_add)
    }

    /// Forgets counters that are no longer wanted.
    pub(super) fn retain(&mut self, wanted: impl Fn(&K) -> bool) {
        self.0.retain(|key, _| wanted(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_begins_at_nothing_and_goes_on_when_the_kernel_s_count_wraps() {
        let mut sums = Sums::default();
        for value in [u32::MAX - 1, u32::MAX, 4] {
            sums.step((44, 3), value);
        }
        assert_eq!(sums.get(&(44, 3)), Some(6), "what was before the first look is not ours");
        sums.step((44, 9), 1_000_000_000);
        sums.step((44, 9), 1_000_000_002);
        sums.step((45, 0), 7);
        assert_eq!(sums.total((44, 0)..=(44, usize::MAX)), Some(8), "of each CPU its own");
        assert_eq!((sums.total((46, 0)..=(46, 9)), sums.get(&(44, 1))), (None, None));
    }

    #[test]
    fn a_count_that_was_made_anew_begins_at_nothing() {
        let mut sums = Sums::default();
        for value in [1_000, 1_010, 3] {
            sums.step(44, value);
        }
        assert_eq!(sums.get(&44), Some(13));
        sums.retain(|irq| *irq != 44);
        assert_eq!(sums.get(&44), None);
    }
}
