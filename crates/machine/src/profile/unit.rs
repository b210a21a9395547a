//! The units of numbers, and their values in base units.

/// Bytes of a GiB.
pub(super) const GIB: f64 = 1_073_741_824.0;

/// A unit that a number may carry.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Unit {
    /// The symbol; empty for plain numbers.
    pub name: &'static str,
    /// The value of one unit in the base unit of its kind.
    pub scale: Scale,
}

/// The value of a unit.
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

/// Plain numbers: no unit.
pub(super) const PLAIN: &[Unit] = &[fixed("", 1.0)];

/// Units of time; the base is the nanosecond.
pub(super) const TIME: &[Unit] = &[
    fixed("ns", 1.0),
    fixed("us", 1e3),
    fixed("ms", 1e6),
    fixed("s", 1e9),
    Unit { name: "cycles", scale: Scale::Cycle },
];

/// Units of frequency; the base is the hertz.
pub(super) const FREQUENCY: &[Unit] =
    &[fixed("Hz", 1.0), fixed("kHz", 1e3), fixed("MHz", 1e6), fixed("GHz", 1e9)];

/// Units of a link's rate; the base is one bit per second.
pub(super) const RATE: &[Unit] =
    &[fixed("bit/s", 1.0), fixed("kbit/s", 1e3), fixed("Mbit/s", 1e6), fixed("Gbit/s", 1e9)];

/// Units of size; the base is the byte.
pub(super) const SIZE: &[Unit] =
    &[fixed("B", 1.0), fixed("KiB", 1_024.0), fixed("MiB", 1_048_576.0), fixed("GiB", GIB)];
