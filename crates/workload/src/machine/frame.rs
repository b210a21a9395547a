//! The smallest frame, and how many of it a link carries.

use napkin_machine::Config;

/// The length on the wire of the frames that the kernel's generator sends by default, framing
/// included: 60 bytes, checksum, preamble and gap.
pub(crate) const FRAME: u32 = 84;

/// Holds a rate of such frames to what a profile's link carries.
///
/// # Errors
///
/// Which rates there are, if this is none of them.
pub(crate) fn check_rate(per_s: f64, config: &Config) -> Result<(), String> {
    let most = config.link.bits_per_ns * 1e9 / (f64::from(FRAME) * 8.0);
    if per_s > 0.0 && per_s <= most {
        return Ok(());
    }
    Err(format!(
        "{per_s} packets/s cannot be sent; name a rate above 0 and up to {most:.0}, the link's"
    ))
}
