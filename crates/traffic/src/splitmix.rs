//! A small random number generator whose streams never change.
//!
//! Experiments are repeated from a seed years later, so the generator must not change: SplitMix64 (Steele, Lea
//! and Flood, 2014), implemented here because a library may improve its algorithms. Not for cryptographic use.

/// The generator's increment: the odd constant nearest to 2^64 divided by the golden ratio.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A stream of pseudo-random numbers, fixed by its seed for ever.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitMix {
    state: u64,
}

impl SplitMix {
    /// The stream of `seed`.
    pub fn new(seed: u64) -> SplitMix {
        SplitMix { state: seed }
    }

    /// Stream number `stream` of `seed`: streams of one seed are independent of each other.
    pub fn stream(seed: u64, stream: u64) -> SplitMix {
        // The stream's number is scrambled first: otherwise stream n + 1 would be stream n shifted by one step.
        SplitMix { state: mix(seed ^ mix(stream.wrapping_mul(STEP).wrapping_add(1))) }
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(STEP);
        mix(self.state)
    }

    /// The next number in `[0, 1)`, with 53 bits.
    pub fn unit(&mut self) -> f64 {
        // Both factors are exact: 53 bits fit an f64.
        (self.bits() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// The next number in `0..n`; 0 if `n` is 0. The bias is below `n / 2^64`.
    pub fn below(&mut self, n: u64) -> u64 {
        scale(self.bits(), n)
    }
}

/// Number `index` of the stream of `seed`, computed without the preceding ones.
pub fn at(seed: u64, index: u64) -> u64 {
    mix(seed.wrapping_add(index.wrapping_add(1).wrapping_mul(STEP)))
}

/// Scales 64 random bits to `0..n`.
#[inline]
pub fn scale(bits: u64, n: u64) -> u64 {
    ((u128::from(bits) * u128::from(n)) >> 64) as u64
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_of_a_seed_is_the_published_one() {
        // The first outputs for the seed 1234567, as printed by the reference implementation.
        let mut rng = SplitMix::new(1_234_567);
        assert_eq!(rng.bits(), 6_457_827_717_110_365_317);
        assert_eq!(rng.bits(), 3_203_168_211_198_807_973);
        assert_eq!(rng.bits(), 9_817_491_932_198_370_423);
    }

    #[test]
    fn random_access_agrees_with_the_stream() {
        let mut rng = SplitMix::new(99);
        for index in 0..100 {
            assert_eq!(rng.bits(), at(99, index));
        }
    }

    #[test]
    fn streams_of_one_seed_differ_and_are_not_shifted_copies() {
        let mut zero = SplitMix::stream(7, 0);
        let mut one = SplitMix::stream(7, 1);
        let zero: Vec<u64> = (0..64).map(|_| zero.bits()).collect();
        let one: Vec<u64> = (0..64).map(|_| one.bits()).collect();
        assert!(zero.iter().all(|bits| !one.contains(bits)));
    }

    #[test]
    fn numbers_stay_within_their_bounds() {
        let mut rng = SplitMix::new(1);
        for n in 1..1000 {
            assert!(rng.below(n) < n);
            let unit = rng.unit();
            assert!((0.0..1.0).contains(&unit));
        }
        assert_eq!(rng.below(0), 0);
    }
}
