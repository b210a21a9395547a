//! The service time of a flash device, common to all worlds, from the constants of the profile of the document's
//! hosts.

use napkin_machine::profile::Profile;
use napkin_policy::Ns;
use napkin_traffic::Rng;

/// A flash device whose queue is never full, as the distribution of its service times.
#[derive(Debug, Clone, Copy)]
pub(super) struct Device {
    /// Median time for a request of the experiment's size, in nanoseconds.
    median: f64,
    spread: f64,
    slow_share: f64,
    slow: f64,
}

impl Device {
    /// Returns a profile's device for requests of so many bytes.
    pub(super) fn new(profile: &Profile, bytes: u32) -> Self {
        let root = libm::sqrt(f64::from(bytes) / 1024.0);
        Device {
            median: profile.get("ssd.device") + profile.get("ssd.device-root") * root,
            spread: profile.ratio("ssd.device-spread"),
            slow_share: profile.ratio("ssd.slow-share"),
            slow: profile.get("ssd.slow"),
        }
    }

    /// Draws the time of one request.
    pub(super) fn time(&self, rng: &mut Rng) -> Ns {
        let body = self.median * libm::exp(self.spread * rng.normal());
        let slow = rng.unit() < self.slow_share;
        (body + if slow { rng.exponential(self.slow) } else { 0.0 }) as Ns
    }
}
