//! The times at which a connection's requests are due: drawn from a seed, independent of the server (open
//! loop).
//!
//! Times between two requests are generalised Pareto distributed, as mutilate's are. The modelled clients and
//! the real one send at these times.

use crate::rng::Rng;

/// The shape of the distribution of times between two requests of a connection.
const ARRIVAL_SHAPE: f64 = 0.154_971;

/// The endless sequence of a connection's request times.
#[derive(Debug, Clone)]
pub struct Schedule {
    rng: Rng,
    mean: f64,
    start: u64,
    /// Nanoseconds after `start`. Kept as a fraction, so that rounding errors do not add up.
    next: f64,
}

impl Schedule {
    /// Creates a schedule with `mean` nanoseconds between two requests on average.
    ///
    /// The process is stationary, as if it had run for ever before `start`: the time to the first request is
    /// distributed like the time to the next request from a random moment. That is again a generalised Pareto
    /// distribution, the integrated tail of that of the gaps. If the first request came earlier, such as within
    /// the first `mean`, many connections would exceed their rate at the beginning.
    pub fn new(mut rng: Rng, mean: f64, start: u64) -> Schedule {
        let next = rng.pareto(0.0, mean, ARRIVAL_SHAPE / (1.0 - ARRIVAL_SHAPE));
        Schedule { rng, mean, start, next }
    }

    /// The time at which the next request is due, in nanoseconds.
    pub fn due(&self) -> u64 {
        self.start.saturating_add(self.next as u64)
    }

    /// Advances to the following request.
    pub fn advance(&mut self) {
        self.next += self.rng.pareto(0.0, (1.0 - ARRIVAL_SHAPE) * self.mean, ARRIVAL_SHAPE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_their_mean_gap_and_the_spread_of_the_distribution() {
        let mut schedule = Schedule::new(Rng::new(3), 1_000.0, 7);
        let (mut gaps, mut squares, n) = (0.0, 0.0, 200_000);
        for _ in 0..n {
            let before = schedule.next;
            schedule.advance();
            let gap = schedule.next - before;
            gaps += gap;
            squares += gap * gap;
        }
        let (n, mean) = (f64::from(n), gaps / f64::from(n));
        assert!((mean - 1_000.0).abs() < 10.0, "{mean}");
        // Standard deviation: mean / sqrt(1 - 2 * shape).
        let deviation = (squares / n - mean * mean).sqrt();
        let expected = 1_000.0 / (1.0 - 2.0 * ARRIVAL_SHAPE).sqrt();
        assert!((deviation / expected - 1.0).abs() < 0.03, "{deviation}, not {expected}");
    }

    #[test]
    fn many_connections_offer_their_rate_from_the_first_moment_on() {
        let (mut rng, connections, mean) = (Rng::new(4), 20_000, 1_000.0);
        // The requests of all connections in each tenth of a mean gap, over 10 mean gaps.
        let mut tenths = [0u32; 100];
        for _ in 0..connections {
            let mut schedule = Schedule::new(rng.split(), mean, 0);
            while let Some(tenth) = tenths.get_mut(schedule.due() as usize / 100) {
                *tenth += 1;
                schedule.advance();
            }
        }
        // 2000 on average, with a standard deviation of about 50.
        assert!(tenths.iter().all(|tenth| (1_800..2_200).contains(tenth)), "{tenths:?}");
        let first: u32 = tenths[..10].iter().sum();
        assert!((19_400..20_600).contains(&first), "{first} in the first mean gap");
    }

    #[test]
    fn a_seed_is_a_schedule_and_time_does_not_go_back() {
        let times = |seed| {
            let mut schedule = Schedule::new(Rng::new(seed), 50_000.0, 1_000);
            let next = move |_| {
                let due = schedule.due();
                schedule.advance();
                due
            };
            (0..1_000).map(next).collect::<Vec<_>>()
        };
        assert_eq!(times(1), times(1));
        assert_ne!(times(1), times(2));
        assert!(times(1).is_sorted() && times(1)[0] >= 1_000);
    }
}
