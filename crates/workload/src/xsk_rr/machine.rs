//! The model of xsk_rr over AF_XDP (2025).

mod constants;
mod load;
mod program;
mod scenario;

use crate::machine::run::{Outcome, Run};
use napkin_machine::profile::{Constants, Profile};
use napkin_policy::text::quoted;
use napkin_policy::{MILLISECOND, Ns, Time};
use serde_json::{Map, Value};

use crate::machine::scenario::{LEAST_FRAME, LoadError, Scenario, field, rate_of, whole};

pub use scenario::{Pace, RoundTrips, run};

/// 2025: xsk_rr over AF_XDP.
#[derive(Debug)]
pub(crate) struct XskRr;

/// The form of a pace.
const PACE: &str = "frames a second, and after a colon for how long the application is busy with \
                    each, as in 12000 or 60000:2us";

/// Longest delay after a reply.
const LONGEST_DELAY: Ns = 1_000 * MILLISECOND;

impl XskRr {
    fn pace(text: &str, profile: &Profile) -> Result<Pace, LoadError> {
        let (rate, delay) = text.split_once(':').unwrap_or((text, "0ns"));
        let rate = rate_of(rate, profile, LEAST_FRAME, PACE)?;
        let delay = delay.parse().ok().map(|Time(delay)| delay).filter(|it| *it <= LONGEST_DELAY);
        let delay = delay.ok_or_else(|| LoadError::Form { given: quoted(text), form: PACE })?;
        Ok(Pace { period: (1e9 / rate) as Ns, delay })
    }
}

impl Scenario for XskRr {
    fn name(&self) -> &'static str {
        "xsk-rr"
    }

    fn profile(&self) -> &'static str {
        "xsk-2025"
    }

    fn constants(&self) -> Option<Constants> {
        Some(constants::CONSTANTS)
    }

    fn loads(&self) -> Vec<String> {
        Vec::from(["12000", "32000:30us", "125000:6us"].map(str::to_owned))
    }

    fn form(&self) -> &'static str {
        PACE
    }

    fn load(&self, text: &str, profile: &Profile) -> Result<Map<String, Value>, LoadError> {
        let pace = Self::pace(text, profile)?;
        let rate = text.split(':').next().unwrap_or(text);
        let mut load = field("frames_per_s", whole(rate_of(rate, profile, LEAST_FRAME, PACE)?));
        load.insert("delay_ns".to_owned(), pace.delay.into());
        Ok(load)
    }

    fn run(&self, load: &str, run: Run<'_>) -> Result<Outcome, String> {
        let pace = Self::pace(load, run.profile).map_err(|error| error.to_string())?;
        scenario::run(run, pace).map(|ran| ran.outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_may_have_a_delay() {
        let pace =
            |text| XskRr::pace(text, &Profile::named(crate::schema(), "emulator-7.2").unwrap());
        assert_eq!(pace("12000").unwrap(), Pace { period: 83_333, delay: 0 });
        assert_eq!(pace("125000:6us").unwrap().delay, 6_000);
        for wrong in ["12000:", "12000:6", "12000:6m", "12000:2000ms", ":6us"] {
            assert!(pace(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_a_thread_repeats_in_vain_takes_time() {
        let mut profile = Profile::named(crate::schema(), "xsk-2025").unwrap();
        let free = profile.set_text("xsk-rr.look=0ns").unwrap_err().to_string();
        assert!(free.contains("at least 1 ns"), "{free}");
        assert!(profile.set_text("xsk-rr.look=1ns").is_ok());
    }
}
