//! The interface to the bench workloads on the machine: their loads, policies and published testbeds.
//!
//! How a workload is built (host, program, clients) is in its own folder. This trait has only what the command line
//! needs to run any of them: names, defaults, and the syntax of a load, which is one word.

use std::fmt;

use crate::machine::run::{Outcome, Run};
use napkin_machine::profile::{Constants, Profile, ProfileError, ValueKind};
use napkin_policy::text::quoted;
use serde_json::{Map, Value};

use crate::rate::whole_rate;
use crate::waiting::Waiting;

/// A workload in the machine world.
pub trait Scenario: fmt::Debug + Sync {
    /// The name on the command line.
    fn name(&self) -> &'static str;

    /// The profile of the published testbed; for a workload without a publication, the profile that has its
    /// section.
    fn profile(&self) -> &'static str;

    /// The section of constants that it needs in a profile; `None` if the host's constants are enough.
    fn constants(&self) -> Option<Constants> {
        None
    }

    /// Checks that a profile has its section.
    ///
    /// # Errors
    /// [`ProfileError::Invalid`] naming the section if the profile does not have it.
    fn require(&self, profile: &Profile) -> Result<(), ProfileError> {
        self.constants().map_or(Ok(()), |it| profile.require(it.section))
    }

    /// The call in which its application waits. If a policy asks for another one, that part of the policy has no
    /// effect.
    fn waiting(&self) -> Waiting {
        Waiting::AsAsked
    }

    /// The loads of the publication, or some of them.
    fn loads(&self) -> Vec<String>;

    /// The syntax of a load, for errors and the help.
    fn form(&self) -> &'static str;

    /// Parses a load into the workload's own terms, for the report.
    ///
    /// # Errors
    /// A load that is invalid, zero, or more than the profile's link carries.
    fn load(&self, text: &str, profile: &Profile) -> Result<Map<String, Value>, LoadError>;

    /// The load as a number along an axis, in its own unit; `None` for a word.
    fn load_number(&self, text: &str) -> Option<f64> {
        whole_rate(text).map(|rate| rate as f64)
    }

    /// Runs the workload under a load that [`Scenario::load`] has accepted.
    ///
    /// # Errors
    /// If the scenario cannot be built, or the first invariant that was broken.
    fn run(&self, load: &str, run: Run<'_>) -> Result<Outcome, String>;
}

/// Why a load was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The text is not a load of this workload.
    #[error("'{given}' is not a load of this workload: give {form}")]
    Form {
        /// The given text.
        given: String,
        /// The expected form.
        form: &'static str,
    },
    /// The load is zero.
    #[error("a load of 0 sends nothing: give {form}")]
    Zero {
        /// The expected form.
        form: &'static str,
    },
    /// The load exceeds the link's rate.
    #[error(
        "a load of {given} is beyond the wire: {frames:.0} frames of at least {bytes} bytes a second \
         need {needed}, and link.rate of '{profile}' is {rate}; give at most {most:.0}"
    )]
    BeyondWire {
        /// The given text.
        given: String,
        /// The frames per second that it needs.
        frames: f64,
        /// The least bytes of each on the wire.
        bytes: u32,
        /// The link rate that it needs.
        needed: String,
        /// The profile's name.
        profile: String,
        /// The link's rate.
        rate: String,
        /// The frames per second that the link carries.
        most: f64,
    },
}

/// The form of a plain rate.
pub(crate) const RATE_FORM: &str = "a whole number a second above 0, as in 200000, 200k or 1M";

/// The form of a rate that may be unlimited.
pub(crate) const RATE_OR_MAX: &str = "requests a second above 0, as in 200000, 200k or 1M, or max";

/// Bytes of the smallest Ethernet frame on the wire, with preamble and gap.
pub(crate) const LEAST_FRAME: u32 = 84;

/// Parses a rate, and checks it against the link. `bytes` is the least size of one of its frames on the wire.
///
/// # Errors
/// If the text is not a rate, the rate is zero, or it exceeds `link.rate`.
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
        let show = |bits: f64| ValueKind::Rate.show(bits);
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

/// Shows a whole rate without a fraction.
pub(crate) fn whole(rate: f64) -> Value {
    Value::from(rate as u64)
}

/// The largest request, and the largest operation, in bytes.
const LARGEST: u64 = 16 << 20;

/// Parses a size in bytes.
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
