//! Sizes of memcached's keys and values: mutilate's `fb_key` and `fb_value` (github.com/leverich/mutilate,
//! Generator.cc), which are taken from B. Atikoglu et al., "Workload Analysis of a Large-Scale Key-Value
//! Store", SIGMETRICS 2012.
//!
//! Used by the modelled clients and the real one.

use crate::rng::Rng;

/// The length of the longest key that memcached accepts, in bytes.
pub const LONGEST_KEY: u32 = 250;

/// The length of the shortest key, in bytes.
const SHORTEST_KEY: f64 = 7.0;

/// Keys: generalised extreme values (location, scale, shape).
const KEY: (f64, f64, f64) = (30.7984, 8.20449, 0.078_688);

/// The shares of the values of 0 to 14 B (`createFacebookValue`); all others come from [`VALUE`].
const SMALL_VALUES: [f64; 15] = [
    0.00536, 0.00047, 0.17820, 0.09239, 0.00018, 0.02740, 0.00065, 0.00606, 0.00023, 0.00837,
    0.00837, 0.08989, 0.00092, 0.00326, 0.01980,
];

/// The other values: generalised Pareto (location, scale, shape).
const VALUE: (f64, f64, f64) = (15.0, 214.476, 0.348_238);

/// The size of a key in bytes: 7 to [`LONGEST_KEY`], 36.2 on average.
pub fn key_size(rng: &mut Rng) -> u32 {
    let (location, scale, shape) = KEY;
    let size = rng.extreme(location, scale, shape).round();
    size.clamp(SHORTEST_KEY, f64::from(LONGEST_KEY)) as u32
}

/// The size of a value in bytes, at most `largest`; 194 on average if `largest` is far above that.
pub fn value_size(rng: &mut Rng, largest: u32) -> u32 {
    let mut left = rng.unit();
    for (size, share) in SMALL_VALUES.iter().enumerate() {
        if left < *share {
            return size as u32;
        }
        left -= share;
    }
    let (location, scale, shape) = VALUE;
    rng.pareto(location, scale, shape).min(f64::from(largest)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean(of: impl Iterator<Item = u32>) -> f64 {
        let (sum, count) = of.fold((0.0, 0.0), |(sum, count), x| (sum + f64::from(x), count + 1.0));
        sum / count
    }

    #[test]
    fn sizes_have_the_published_means() {
        let mut rng = Rng::new(11);
        let keys = mean((0..400_000).map(|_| key_size(&mut rng)));
        assert!((keys - 36.2).abs() < 0.1, "{keys}");
        // The mean is 194; its standard error here is below 1.
        let values = mean((0..400_000).map(|_| value_size(&mut rng, 512 * 1024)));
        assert!((values - 194.0).abs() < 3.0, "{values}");
    }

    #[test]
    fn small_values_have_their_shares() {
        let mut rng = Rng::new(12);
        let values: Vec<_> = (0..400_000).map(|_| value_size(&mut rng, 1_400)).collect();
        let share = |of: &dyn Fn(u32) -> bool| {
            values.iter().filter(|value| of(**value)).count() as f64 / values.len() as f64
        };
        for (size, expected) in (0..).zip(SMALL_VALUES) {
            let found = share(&|value| value == size);
            assert!((found - expected).abs() < 0.002, "{size} B: {found}, not {expected}");
        }
        assert!((share(&|value| value < 15) - 0.441_55).abs() < 0.003);
        assert!(values.iter().all(|value| *value <= 1_400));
    }
}
