//! The check of a policy before it is set on a lifeline: a device with the default route, or with this terminal's own
//! connection. A policy that can delay packets there is refused, with a hint at the option that allows it.

use napkin_linux::apply::{can_delay, lifelines};
use napkin_policy::Policy;

use crate::failure::Failure;

/// Refuses policies that can delay packets, if the device carries the default route or this terminal's own
/// connection. `instead` names the options that the error suggests.
pub(crate) fn check<'a>(
    ifname: &str,
    policies: impl IntoIterator<Item = (&'a str, &'a Policy)>,
    instead: &str,
) -> Result<(), Failure> {
    let Some((name, _)) = policies.into_iter().find(|(_, policy)| can_delay(policy)) else {
        return Ok(());
    };
    match lifelines(ifname).map_err(Failure::of)?.first() {
        None => Ok(()),
        Some(first) => Err(Failure::Usage(format!(
            "{ifname} carries {first}, and {name} can delay its packets: give {instead}, or --yes"
        ))),
    }
}
