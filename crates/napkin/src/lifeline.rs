//! Check of policies before they are set: one that can delay the packets of the default route, or of the
//! terminal from which it is set, is refused, and the refusal says what to give.

use napkin_linux::apply::{can_delay, lifelines};
use napkin_policy::Policy;

use crate::failure::Failure;

/// Refuses policies that can delay the packets of a device that the default route or this terminal hangs on.
/// `instead` says what to give.
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
