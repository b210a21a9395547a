//! A part of a sweep that one of several processes runs.
//!
//! A hash of a point's own settings, not its place, selects its shard. So adding a value or a parameter does not
//! move points that have already been run. [`Shard::holds`] defines the hashed texts.

use std::fmt;
use std::str::FromStr;

use napkin_policy::text::quoted;
use thiserror::Error;

/// A shard's number, counted from 1, and the number of shards: `3/64`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    number: u64,
    count: u64,
}

/// The text is not a shard.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("'{0}' is no shard: give K/N with K from 1 to N, as in 3/64")]
pub struct ShardError(String);

impl Shard {
    /// The number of shards.
    pub fn count(self) -> u64 {
        self.count
    }

    /// The number of this shard, from 1.
    pub fn number(self) -> u64 {
        self.number
    }

    /// Whether a point is in this shard: its hash modulo the number of shards is the shard's number minus one.
    ///
    /// The hash is the result of `hash` in this file over the following texts, in this order: the workload's name;
    /// the policy with the varied keys, as `napkin policies` names it; the load as written; the seed; then, sorted
    /// by name, `NAME=VALUE` for each varied constant whose value differs from the profile's, with the value in
    /// base units (ns, Hz, bit/s, bytes), and for the draw if it is not 0. The other values of a parameter, the
    /// order of the parameters, the window, the profile and the version have no influence.
    pub fn holds(self, hash: u64) -> bool {
        hash % self.count == self.number - 1
    }
}

impl FromStr for Shard {
    type Err = ShardError;

    fn from_str(text: &str) -> Result<Shard, ShardError> {
        let number = |text: &str| text.trim().parse::<u64>().ok();
        let parts = text.split_once('/');
        match parts.and_then(|(k, n)| Some((number(k)?, number(n)?))) {
            Some((number, count)) if (1..=count).contains(&number) => Ok(Shard { number, count }),
            _ => Err(ShardError(quoted(text))),
        }
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.count)
    }
}

/// Returns the 64-bit FNV-1a hash of some texts, each followed by a zero byte, with the finalizer of MurmurHash3.
/// Without the finalizer, the low bits, which select the shard, would depend only on the low bits of the
/// characters.
pub(super) fn hash<'a>(texts: impl IntoIterator<Item = &'a str>) -> u64 {
    let mut fnv = Fnv::default();
    texts.into_iter().for_each(|text| fnv.add(text));
    let mut hash = fnv.0;
    for factor in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53] {
        hash = (hash ^ (hash >> 33)).wrapping_mul(factor);
    }
    hash ^ (hash >> 33)
}

/// The Fowler-Noll-Vo hash (FNV-1a), which is easy to compute in any language.
pub(super) struct Fnv(pub(super) u64);

impl Default for Fnv {
    fn default() -> Self {
        Fnv(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    pub(super) fn add(&mut self, text: &str) {
        // The 0 separates the texts.
        for byte in text.bytes().chain([0]) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_is_one_of_so_many_counted_from_one() {
        let shard: Shard = "3/64".parse().unwrap();
        assert_eq!((shard.number(), shard.count(), shard.to_string()), (3, 64, "3/64".to_owned()));
        for wrong in ["", "3", "0/4", "5/4", "1/0", "-1/4", "1/4/2", "a/b"] {
            let error = wrong.parse::<Shard>().unwrap_err().to_string();
            assert!(error.contains("K from 1 to N"), "{wrong}: {error}");
        }
    }

    #[test]
    fn the_hash_is_the_same_in_every_build() {
        // Computed independently of this program (docs/sweeps.md has the lines of Python).
        assert_eq!(hash(["memcached", "suspend20", "200k", "1"]), 0xc743_76f0_cbbd_f693);
    }

    #[test]
    fn the_shards_of_a_regular_product_are_of_similar_size() {
        let mut sizes = [0_u32; 64];
        for policy in ["base", "defer20", "suspend20", "napibusy"] {
            for load in (1..=16).map(|it| format!("{}", it * 100_000)) {
                for seed in (1..=100).map(|it: u32| it.to_string()) {
                    sizes[(hash(["memcached", policy, &load, &seed]) % 64) as usize] += 1;
                }
            }
        }
        // 100 each on average, with a standard deviation of ten.
        assert!(sizes.iter().all(|size| (60..=140).contains(size)), "{sizes:?}");
    }
}
