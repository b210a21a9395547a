//! Address resolution: ARP and IPv6 neighbour discovery.
//!
//! Solicitations and advertisements are verified as RFC 4861, 7.1 requires: a hop limit of 255, which no host
//! beyond the link can produce, the checksum, the code, and the lengths of all options. Router advertisements and
//! redirects are ignored: there are no routes.

use std::net::{IpAddr, Ipv6Addr};

use smoltcp::wire::{ArpOperation, ArpPacket, ArpRepr, EthernetAddress};

use super::packet::Packet;
use super::{Received, can_send, is_host};
use crate::address::solicited;
use crate::{Addresses, FrameOutcome};

/// Bytes of a solicitation or an advertisement behind the IPv6 header, with one option.
pub(crate) const NDISC: usize = OPTIONS + 8;

/// Offset of the options of a solicitation or an advertisement.
const OPTIONS: usize = 24;

/// The source and the target link-layer address option.
const SOURCE: u8 = 1;
const TARGET: u8 = 2;

pub(super) fn arp(bytes: &[u8], us: &Addresses) -> Result<Received, FrameOutcome> {
    let packet = ArpPacket::new_checked(bytes).map_err(|_| FrameOutcome::Truncated)?;
    // With the length right, this fails only for other hardware or protocol types.
    let ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr: mac,
        source_protocol_addr: source,
        target_hardware_addr: target_mac,
        target_protocol_addr: target,
    } = ArpRepr::parse(&packet).map_err(|_| FrameOutcome::UnknownProtocol)?
    else {
        return Err(FrameOutcome::UnknownProtocol);
    };
    let (ip, target) = (IpAddr::V4(source), IpAddr::V4(target));
    // An announcement: a host that appears, or takes over an address, requests or answers for itself (RFC 5227, 3).
    let announced = ip == target;
    if !announced && !us.is_ours(target) {
        return Err(FrameOutcome::NotForUs);
    }
    if !is_host(mac) {
        return Err(FrameOutcome::BadHeader);
    }
    // A probe (RFC 5227): asks from 0.0.0.0 whether the address is in use.
    let probe = !announced && source.is_unspecified() && operation == ArpOperation::Request;
    if !probe && !can_send(ip, us) {
        return Err(FrameOutcome::BadSource);
    }
    let mac = mac.0;
    match operation {
        ArpOperation::Request | ArpOperation::Reply if announced => {
            Ok(Received::AddressClaim { mac, ip, overrides: true, update_only: true })
        }
        ArpOperation::Request => {
            Ok(Received::AddressQuery { mac, ip, target, states_source: true })
        }
        ArpOperation::Reply if target_mac.0 == us.mac() => {
            Ok(Received::AddressClaim { mac, ip, overrides: true, update_only: false })
        }
        ArpOperation::Reply => Err(FrameOutcome::NotForUs),
        ArpOperation::Unknown(_) => Err(FrameOutcome::UnknownProtocol),
    }
}

/// A neighbour solicitation; `from` is the frame's source.
pub(super) fn solicitation(
    packet: &Packet<'_>,
    us: &Addresses,
    hops: u8,
    from: [u8; 6],
) -> Result<Received, FrameOutcome> {
    let target = target(packet, hops)?;
    let mac = address_in(packet, SOURCE)?;
    let (ip, target) = (packet.source, IpAddr::V6(target));
    if ip.is_unspecified() {
        // A duplicate address probe: it carries no link-layer address and goes to the solicited-node group.
        let group = matches!(target, IpAddr::V6(it) if packet.destination == solicited(it));
        if mac.is_some() || !group {
            return Err(FrameOutcome::BadHeader);
        }
    }
    if !us.is_ours(target) {
        return Err(FrameOutcome::NotForUs);
    }
    let states_source = mac.is_some();
    Ok(Received::AddressQuery { mac: mac.unwrap_or(from), ip, target, states_source })
}

/// A neighbour advertisement.
pub(super) fn advertisement(
    packet: &Packet<'_>,
    us: &Addresses,
    hops: u8,
) -> Result<Received, FrameOutcome> {
    const SOLICITED: u8 = 0x40;
    const OVERRIDE: u8 = 0x20;
    let target = IpAddr::V6(target(packet, hops)?);
    let mac = address_in(packet, TARGET)?;
    let flags = packet.payload[4];
    // A solicited advertisement is never sent to a group.
    if !packet.for_us && flags & SOLICITED != 0 {
        return Err(FrameOutcome::BadHeader);
    }
    // This includes our own address claimed by another host.
    if !can_send(target, us) {
        return Err(FrameOutcome::BadSource);
    }
    // Without the option there is nothing to learn; a host whose address is known already may omit it.
    let mac = mac.ok_or(FrameOutcome::UnknownProtocol)?;
    Ok(Received::AddressClaim {
        mac,
        ip: target,
        overrides: flags & OVERRIDE != 0,
        update_only: true,
    })
}

/// The target address of a solicitation or an advertisement.
fn target(packet: &Packet<'_>, hops: u8) -> Result<Ipv6Addr, FrameOutcome> {
    let target = packet.payload.get(8..OPTIONS).ok_or(FrameOutcome::BadLength)?;
    let target = <[u8; 16]>::try_from(target).map_err(|_| FrameOutcome::BadLength)?;
    let target = Ipv6Addr::from_octets(target);
    if hops != 255 || packet.payload[1] != 0 || target.is_multicast() {
        return Err(FrameOutcome::BadHeader);
    }
    Ok(target)
}

/// The Ethernet address in the first option of this kind.
fn address_in(packet: &Packet<'_>, kind: u8) -> Result<Option<[u8; 6]>, FrameOutcome> {
    let mut options = &packet.payload[OPTIONS..];
    let mut found = None;
    while let [own, units, ..] = *options {
        let length = usize::from(units) * 8;
        let option =
            options.get(..length).filter(|it| !it.is_empty()).ok_or(FrameOutcome::BadLength)?;
        if own == kind && found.is_none() {
            let mac = <[u8; 6]>::try_from(&option[2..]).map_err(|_| FrameOutcome::BadLength)?;
            if !is_host(EthernetAddress(mac)) {
                return Err(FrameOutcome::BadHeader);
            }
            found = Some(mac);
        }
        options = &options[length..];
    }
    if options.is_empty() { Ok(found) } else { Err(FrameOutcome::BadLength) }
}
