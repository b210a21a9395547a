//! The generic netlink family `ethtool`: coalescing, channels, rings and features of a device.
//!
//! The kernel supports these interfaces as far as the driver does: a value that a driver lacks is `None`, and so is
//! the whole result if the driver supports none of it.

use std::collections::BTreeMap;

use rustix::io::Errno;
use serde::Serialize;

use super::attribute::{Attribute, Body, Malformed, attributes};
use super::error::NetlinkError;
use super::generic::Family;

pub(super) const ETHTOOL_MSG_FEATURES_GET: u8 = 11;
pub(super) const ETHTOOL_MSG_FEATURES_SET: u8 = 12;
pub(super) const ETHTOOL_MSG_RINGS_GET: u8 = 15;
pub(super) const ETHTOOL_MSG_CHANNELS_GET: u8 = 17;
pub(super) const ETHTOOL_MSG_COALESCE_GET: u8 = 19;
/// The attribute with the request's header, the first one of every request.
pub(super) const HEADER: u16 = 1;
pub(super) const ETHTOOL_A_HEADER_DEV_NAME: u16 = 2;
pub(super) const ETHTOOL_A_BITSET_BITS: u16 = 3;
pub(super) const ETHTOOL_A_BITSET_BITS_BIT: u16 = 1;
pub(super) const ETHTOOL_A_BITSET_BIT_NAME: u16 = 2;
pub(super) const ETHTOOL_A_BITSET_BIT_VALUE: u16 = 3;
pub(super) const ETHTOOL_A_FEATURES_HW: u16 = 2;
pub(super) const ETHTOOL_A_FEATURES_WANTED: u16 = 3;
pub(super) const ETHTOOL_A_FEATURES_ACTIVE: u16 = 4;
pub(super) const ETHTOOL_A_RINGS_RX_MAX: u16 = 2;
pub(super) const ETHTOOL_A_RINGS_TX_MAX: u16 = 5;
pub(super) const ETHTOOL_A_RINGS_RX: u16 = 6;
pub(super) const ETHTOOL_A_RINGS_TX: u16 = 9;
pub(super) const ETHTOOL_A_CHANNELS_RX_MAX: u16 = 2;
pub(super) const ETHTOOL_A_CHANNELS_TX_MAX: u16 = 3;
pub(super) const ETHTOOL_A_CHANNELS_COMBINED_MAX: u16 = 5;
pub(super) const ETHTOOL_A_CHANNELS_RX_COUNT: u16 = 6;
pub(super) const ETHTOOL_A_CHANNELS_TX_COUNT: u16 = 7;
pub(super) const ETHTOOL_A_CHANNELS_COMBINED_COUNT: u16 = 9;
pub(super) const ETHTOOL_A_COALESCE_RX_USECS: u16 = 2;
pub(super) const ETHTOOL_A_COALESCE_RX_MAX_FRAMES: u16 = 3;
pub(super) const ETHTOOL_A_COALESCE_USE_ADAPTIVE_RX: u16 = 11;

/// Generic receive offload, `ethtool -K DEV gro`: a veth has NAPI instances only with it.
pub const GRO: &[&str] = &["rx-gro"];
/// TCP segmentation by the device, `ethtool -K DEV tso`.
pub const TSO: &[&str] = &[
    "tx-tcp-segmentation",
    "tx-tcp-ecn-segmentation",
    "tx-tcp-mangleid-segmentation",
    "tx-tcp6-segmentation",
];
/// Generic segmentation, `ethtool -K DEV gso`.
pub const GSO: &[&str] = &["tx-generic-segmentation"];

/// Limit of features in one set; the kernel has about 70.
const FEATURES: usize = 1024;

/// Interrupt moderation of a device's receive queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Coalescing {
    /// Microseconds from a packet's arrival to the interrupt.
    pub rx_usecs: Option<u32>,
    /// Packets before an interrupt (`rx-max-frames` in the kernel's specification).
    pub rx_frames: Option<u32>,
    /// Whether the driver or device adapts these values to the traffic.
    pub adaptive_rx: Option<bool>,
}

/// Numbers of queues that a device uses, and their limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Channels {
    /// Receive queues with a separate interrupt.
    pub rx: Option<u32>,
    /// Transmit queues with a separate interrupt.
    pub tx: Option<u32>,
    /// Pairs of queues that share an interrupt.
    pub combined: Option<u32>,
    /// The limit of [`Channels::rx`].
    pub rx_max: Option<u32>,
    /// The limit of [`Channels::tx`].
    pub tx_max: Option<u32>,
    /// The limit of [`Channels::combined`].
    pub combined_max: Option<u32>,
}

/// Sizes of a queue's rings, and their limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Rings {
    /// Entries of the receive ring.
    pub rx: Option<u32>,
    /// Entries of the transmit ring.
    pub tx: Option<u32>,
    /// The limit of [`Rings::rx`].
    pub rx_max: Option<u32>,
    /// The limit of [`Rings::tx`].
    pub tx_max: Option<u32>,
}

/// The family's socket, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Ethtool {
    family: Family,
}

impl Ethtool {
    /// Opens the family.
    ///
    /// # Errors
    /// [`NetlinkError::NoFamily`] before Linux 5.6.
    pub fn open() -> Result<Ethtool, NetlinkError> {
        Family::open("ethtool", "Linux 5.6").map(|family| Ethtool { family })
    }

    /// Reads a device's interrupt moderation; `None` if its driver has none.
    ///
    /// # Errors
    /// [`NetlinkError::NoDevice`] if there is no such device. The other operations have the same error.
    pub fn coalescing(&mut self, ifname: &str) -> Result<Option<Coalescing>, NetlinkError> {
        self.get(ETHTOOL_MSG_COALESCE_GET, "coalesce-get", ifname, coalescing)
    }

    /// Reads a device's numbers of queues; `None` if its driver does not report them.
    pub fn channels(&mut self, ifname: &str) -> Result<Option<Channels>, NetlinkError> {
        self.get(ETHTOOL_MSG_CHANNELS_GET, "channels-get", ifname, channels)
    }

    /// Reads a device's ring sizes; `None` if its driver does not report them.
    pub fn rings(&mut self, ifname: &str) -> Result<Option<Rings>, NetlinkError> {
        self.get(ETHTOOL_MSG_RINGS_GET, "rings-get", ifname, rings)
    }

    /// Reads all features by the kernel's names, and whether each is active.
    pub fn features(&mut self, ifname: &str) -> Result<BTreeMap<String, bool>, NetlinkError> {
        let found = self.get(ETHTOOL_MSG_FEATURES_GET, "features-get", ifname, features)?;
        Ok(found.unwrap_or_default())
    }

    /// Switches features, named as in [`Ethtool::features`] ([`GRO`], [`TSO`] and [`GSO`] are lists of such names),
    /// in one request.
    ///
    /// # Errors
    /// [`NetlinkError::FeatureKept`] for the first feature that is not as requested afterwards; others may have
    /// changed. [`NetlinkError::Refused`] with the kernel's text for a name that it does not know; then nothing has
    /// changed. [`NetlinkError::NoRight`] without `CAP_NET_ADMIN`.
    pub fn set_features(
        &mut self,
        ifname: &str,
        features: &[(&str, bool)],
    ) -> Result<(), NetlinkError> {
        let bit = |body: Body, (name, on): &(&str, bool)| {
            body.nest(ETHTOOL_A_BITSET_BITS_BIT, |body| {
                let body = body.text(ETHTOOL_A_BITSET_BIT_NAME, name);
                if *on { body.flag(ETHTOOL_A_BITSET_BIT_VALUE) } else { body }
            })
        };
        let fill = |body| {
            device(body, ifname).nest(ETHTOOL_A_FEATURES_WANTED, |body| {
                body.nest(ETHTOOL_A_BITSET_BITS, |body| features.iter().fold(body, bit))
            })
        };
        let what = format_args!("features-set of {ifname}");
        self.family
            .ask(what, ETHTOOL_MSG_FEATURES_SET, fill, |_| Ok(None::<()>))
            .map_err(|error| error.of_device(&ifname))?;
        let now = self.features(ifname)?;
        match features.iter().find(|(name, on)| now.get(*name) != Some(on)) {
            None => Ok(()),
            Some((feature, on)) => Err(NetlinkError::FeatureKept {
                ifname: ifname.to_owned(),
                feature: (*feature).to_owned(),
                on: *on,
            }),
        }
    }

    fn get<T>(
        &mut self,
        operation: u8,
        name: &str,
        ifname: &str,
        parse: fn(&[u8]) -> Result<Option<T>, Malformed>,
    ) -> Result<Option<T>, NetlinkError> {
        let what = format_args!("{name} of {ifname}");
        match self.family.ask(what, operation, |body| device(body, ifname), parse) {
            Ok(found) => Ok(found.into_iter().next()),
            Err(NetlinkError::Refused { errno: Errno::OPNOTSUPP, .. }) => Ok(None),
            Err(error) => Err(error.of_device(&ifname)),
        }
    }
}

fn device(body: Body, ifname: &str) -> Body {
    body.nest(HEADER, |body| body.text(ETHTOOL_A_HEADER_DEV_NAME, ifname))
}

pub(super) fn coalescing(list: &[u8]) -> Result<Option<Coalescing>, Malformed> {
    let mut found = Coalescing::default();
    for attribute in attributes(list) {
        let attribute = attribute?;
        match attribute.kind {
            ETHTOOL_A_COALESCE_RX_USECS => found.rx_usecs = Some(attribute.u32()?),
            ETHTOOL_A_COALESCE_RX_MAX_FRAMES => found.rx_frames = Some(attribute.u32()?),
            ETHTOOL_A_COALESCE_USE_ADAPTIVE_RX => found.adaptive_rx = Some(attribute.bool()?),
            _ => {}
        }
    }
    Ok(Some(found))
}

pub(super) fn channels(list: &[u8]) -> Result<Option<Channels>, Malformed> {
    let mut found = Channels::default();
    for attribute in attributes(list) {
        let attribute = attribute?;
        match attribute.kind {
            ETHTOOL_A_CHANNELS_RX_COUNT => found.rx = Some(attribute.u32()?),
            ETHTOOL_A_CHANNELS_TX_COUNT => found.tx = Some(attribute.u32()?),
            ETHTOOL_A_CHANNELS_COMBINED_COUNT => found.combined = Some(attribute.u32()?),
            ETHTOOL_A_CHANNELS_RX_MAX => found.rx_max = Some(attribute.u32()?),
            ETHTOOL_A_CHANNELS_TX_MAX => found.tx_max = Some(attribute.u32()?),
            ETHTOOL_A_CHANNELS_COMBINED_MAX => found.combined_max = Some(attribute.u32()?),
            _ => {}
        }
    }
    Ok(Some(found))
}

pub(super) fn rings(list: &[u8]) -> Result<Option<Rings>, Malformed> {
    let mut found = Rings::default();
    for attribute in attributes(list) {
        let attribute = attribute?;
        match attribute.kind {
            ETHTOOL_A_RINGS_RX => found.rx = Some(attribute.u32()?),
            ETHTOOL_A_RINGS_TX => found.tx = Some(attribute.u32()?),
            ETHTOOL_A_RINGS_RX_MAX => found.rx_max = Some(attribute.u32()?),
            ETHTOOL_A_RINGS_TX_MAX => found.tx_max = Some(attribute.u32()?),
            _ => {}
        }
    }
    Ok(Some(found))
}

pub(super) fn features(list: &[u8]) -> Result<Option<BTreeMap<String, bool>>, Malformed> {
    let mut found = BTreeMap::new();
    for attribute in attributes(list) {
        let attribute = attribute?;
        match attribute.kind {
            // All features of the kernel, whether or not this device can change them.
            ETHTOOL_A_FEATURES_HW => {
                for (name, _) in bits(&attribute)? {
                    found.entry(name).or_insert(false);
                }
            }
            // A set without a mask lists the bits that are on.
            ETHTOOL_A_FEATURES_ACTIVE => {
                found.extend(bits(&attribute)?.into_iter().map(|(name, _)| (name, true)));
            }
            _ => {}
        }
    }
    Ok(Some(found))
}

/// Parses a set into the names and values of its bits.
fn bits(set: &Attribute<'_>) -> Result<Vec<(String, bool)>, Malformed> {
    let mut found = Vec::new();
    for attribute in set.nested() {
        let attribute = attribute?;
        if attribute.kind != ETHTOOL_A_BITSET_BITS {
            continue;
        }
        for bit in attribute.nested() {
            let (mut name, mut value) = (None, false);
            for attribute in bit?.nested() {
                let attribute = attribute?;
                match attribute.kind {
                    ETHTOOL_A_BITSET_BIT_NAME => name = Some(attribute.text()?),
                    ETHTOOL_A_BITSET_BIT_VALUE => value = true,
                    _ => {}
                }
            }
            found.push((name.ok_or(Malformed("a feature has no name"))?, value));
            if found.len() > FEATURES {
                return Err(Malformed("a device has too many features"));
            }
        }
    }
    Ok(found)
}
