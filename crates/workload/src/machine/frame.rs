//! The smallest frame, and the rate of such frames that a link carries.

use napkin_machine::Config;

/// Bytes on the wire of the frames that the kernel's packet generator sends by default: 60 bytes, and framing
/// (checksum, preamble and gap).
pub(crate) const FRAME: u32 = 84;

/// Checks that a profile's link carries this many such frames per second.
///
/// # Errors
///
/// A message with the valid range.
pub(crate) fn check_rate(per_s: f64, config: &Config) -> Result<(), String> {
    let most = config.link.bits_per_ns * 1e9 / (f64::from(FRAME) * 8.0);
    if per_s > 0.0 && per_s <= most {
        return Ok(());
    }
    Err(format!(
        "{per_s} packets/s cannot be sent; name a rate above 0 and up to {most:.0}, the link's"
    ))
}
