//! The bench workloads as the machine has them: their loads, policies and published testbeds.
//!
//! How one is built (host, program, clients) is in the workload's own folder. Here is only what the command
//! line needs to run any of them: names, defaults, and the form of a load, which is one word.

use std::fmt;

use crate::machine::run::{Outcome, Run};
use napkin_machine::profile::{Constants, Profile, ProfileError, Takes};
use napkin_policy::text::quoted;
use serde_json::{Map, Value};

use crate::rate::whole_rate;
use crate::waiting::Waiting;

/// A workload in this world.
pub trait Scenario: fmt::Debug + Sync {
    /// Its name on the command line.
    fn name(&self) -> &'static str;

    /// The profile of the published testbed; of a workload that was not published the one that its section
    /// is in.
    fn profile(&self) -> &'static str;

    /// The constants of its own, which a profile needs for it; `None` where the host's are enough.
    fn constants(&self) -> Option<Constants> {
        None
    }

    /// Demands its section of a profile.
    ///
    /// # Errors
    /// [`ProfileError::Invalid`] naming the section if the profile does not have it.
    fn require(&self, profile: &Profile) -> Result<(), ProfileError> {
        self.constants().map_or(Ok(()), |it| profile.require(it.section))
    }

    /// In what its application waits: where that is not what a policy says, a part of the policy takes no
    /// part.
    fn waiting(&self) -> Waiting {
        Waiting::AsAsked
    }

    /// The loads of the publication, or some of them.
    fn loads(&self) -> Vec<String>;

    /// How a load is written, as errors and the help say it.
    fn form(&self) -> &'static str;

    /// A load in the workload's own terms, for the report.
    ///
    /// # Errors
    /// A load that is none, is zero, or does not fit through the profile's link.
    fn load(&self, text: &str, profile: &Profile) -> Result<Map<String, Value>, LoadError>;

    /// A load as a number along an axis, in the unit of its own; `None` of a word.
    fn load_number(&self, text: &str) -> Option<f64> {
        whole_rate(text).map(|rate| rate as f64)
    }

    /// Runs it under a load that [`Scenario::load`] has let through.
    ///
    /// # Errors
    /// Whatever keeps the scenario from being built, or the first invariant that did not hold.
    fn run(&self, load: &str, run: Run<'_>) -> Result<Outcome, String>;
}

/// What is wrong with a load.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// Not a load of this workload.
    #[error("'{given}' is not a load of this workload: give {form}")]
    Form {
        /// What was given.
        given: String,
        /// What it may be.
        form: &'static str,
    },
    /// Nothing would be sent.
    #[error("a load of 0 sends nothing: give {form}")]
    Zero {
        /// What it may be.
        form: &'static str,
    },
    /// More than the link carries.
    #[error(
        "a load of {given} is beyond the wire: {frames:.0} frames of at least {bytes} bytes a second \
         need {needed}, and link.rate of '{profile}' is {rate}; give at most {most:.0}"
    )]
    BeyondWire {
        /// What was given.
        given: String,
        /// Frames a second that it means.
        frames: f64,
        /// Bytes of each on the wire.
        bytes: u32,
        /// The rate that it needs.
        needed: String,
        /// The profile whose link it is.
        profile: String,
        /// The link's rate.
        rate: String,
        /// Frames a second that the link carries.
        most: f64,
    },
}

/// The form of a plain rate.
pub(crate) const RATE_FORM: &str = "a whole number a second above 0, as in 200000, 200k or 1M";

/// The form of a rate that may be unlimited.
pub(crate) const RATE_OR_MAX: &str = "requests a second above 0, as in 200000, 200k or 1M, or max";

/// Bytes that the smallest Ethernet frame takes on the wire, with preamble and gap.
pub(crate) const LEAST_FRAME: u32 = 84;

/// Reads a rate and holds it to the link, given the least that one of its frames takes there.
///
/// # Errors
/// A text that is no rate, a rate of zero, and one beyond `link.rate`.
pub fn per_second(text: &str, profile: &Profile, bytes: u32) -> Result<f64, LoadError> {
    rate_of(text, profile, bytes, RATE_FORM)
}

pub(crate) fn rate_of(
    text: &str,
    profile: &Profile,
    bytes: u32,
    form: &'static str,
) -> Result<f64, LoadError> {
    let no_load = || LoadError::Form { given: quoted(text), form };
    let rate = whole_rate(text).ok_or_else(no_load)?;
    if rate == 0 {
        return Err(LoadError::Zero { form });
    }
    let link = profile.get("link.rate");
    let most = link / 8.0 / f64::from(bytes);
    if rate as f64 > most {
        let show = |bits: f64| Takes::Rate.show(bits);
        return Err(LoadError::BeyondWire {
            given: quoted(text),
            frames: rate as f64,
            bytes,
            needed: show(rate as f64 * 8.0 * f64::from(bytes)),
            profile: profile.name().to_owned(),
            rate: show(link),
            most: most.floor(),
        });
    }
    Ok(rate as f64)
}

pub(crate) fn field(name: &str, value: impl Into<Value>) -> Map<String, Value> {
    Map::from_iter([(name.to_owned(), value.into())])
}

/// Whole rates are shown without a fraction.
pub(crate) fn whole(rate: f64) -> Value {
    Value::from(rate as u64)
}

/// The largest request, and the largest operation.
const LARGEST: u64 = 16 << 20;

/// Reads a size in bytes.
pub(crate) fn size(text: &str, form: &'static str) -> Result<u32, LoadError> {
    let number = text.trim().trim_end_matches(['B', 'b']);
    let (digits, scale) = match number.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1 << 10),
        None => number.strip_suffix('M').map_or((number, 1), |digits| (digits, 1 << 20)),
    };
    let bytes = digits.parse::<u64>().ok().and_then(|bytes| bytes.checked_mul(scale));
    match bytes {
        Some(0) => Err(LoadError::Zero { form }),
        Some(bytes) if bytes <= LARGEST => Ok(bytes as u32),
        _ => Err(LoadError::Form { given: quoted(text), form }),
    }
}

#[cfg(test)]
mod tests;
