//! The units that numbers carry, and what one of each is worth.

/// Bytes of a GiB.
pub(super) const GIB: f64 = 1_073_741_824.0;

/// A unit that a number may carry.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Unit {
    /// As it is written; empty for plain numbers.
    pub name: &'static str,
    /// What one of it is in the base unit of its kind.
    pub scale: Scale,
}

/// What a unit is worth.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scale {
    /// This many of the base unit.
    Fixed(f64),
    /// One period of the processor's clock.
    Cycle,
}

const fn fixed(name: &'static str, scale: f64) -> Unit {
    Unit { name, scale: Scale::Fixed(scale) }
}

/// Of plain numbers: none.
pub(super) const PLAIN: &[Unit] = &[fixed("", 1.0)];

/// Units of time; nanoseconds are the base.
pub(super) const TIME: &[Unit] = &[
    fixed("ns", 1.0),
    fixed("us", 1e3),
    fixed("ms", 1e6),
    fixed("s", 1e9),
    Unit { name: "cycles", scale: Scale::Cycle },
];

/// Units of frequency, in hertz.
pub(super) const FREQUENCY: &[Unit] =
    &[fixed("Hz", 1.0), fixed("kHz", 1e3), fixed("MHz", 1e6), fixed("GHz", 1e9)];

/// Units of a link's rate.
pub(super) const RATE: &[Unit] =
    &[fixed("bit/s", 1.0), fixed("kbit/s", 1e3), fixed("Mbit/s", 1e6), fixed("Gbit/s", 1e9)];

/// Units of size, in bytes.
pub(super) const SIZE: &[Unit] =
    &[fixed("B", 1.0), fixed("KiB", 1_024.0), fixed("MiB", 1_048_576.0), fixed("GiB", GIB)];
