//! The program that decides, for each received frame, whether it is ours or the kernel's.
//!
//! It redirects to the socket that stands in a map at the number of the frame's queue. A queue of
//! which nobody has the socket passes its frames on, so that a program that is attached before its
//! sockets are bound, or whose sockets were closed, takes nothing from anybody.
//!
//! By port it takes what goes to our own addresses alone, and nothing that is in a VLAN, where the card leaves the tag in the frame: what the host
//! forwards, and what an interface above this one is for, are the kernel's, whatever their port.

use std::net::IpAddr;

use napkin_bpf::assemble::Register::{R0, R1, R2, R3, R4, R5, R6};
use napkin_bpf::assemble::Width::{Byte, Half, Word};
use napkin_bpf::assemble::{AssembleError, Assembler, Helper, Label, Register, When};

use super::config::Traffic;

/// `XDP_PASS`: the frame goes on to the kernel's stack.
const PASS: i32 = 2;

/// Where `struct xdp_md` has what is read of it.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const RX_QUEUE_INDEX: i16 = 16;

const ETHERNET: i32 = 14;
const IPV4: i32 = 20;
const IPV6: i32 = 40;
const TAG: i32 = 4;

/// A number of two bytes as it is read from a frame on this machine.
fn wire(number: u16) -> i32 {
    number.to_be().into()
}

/// Assembles the program for this traffic, redirecting into the map of that descriptor.
pub(super) fn redirect(traffic: &Traffic, map: i32) -> Result<Vec<u8>, AssembleError> {
    let mut it = Assembler::new();
    let pass = it.label();
    let ours = it.label();
    it.copy(R6, R1); // the context
    if let Traffic::Ports { ports, addresses } = traffic {
        to_ports(&mut it, ports, addresses, ours, pass);
    }
    it.place(ours);
    it.load(Word, R2, R6, RX_QUEUE_INDEX);
    it.set_map(R1, map);
    it.set(R3, PASS);
    it.call(Helper::RedirectMap);
    it.exit();
    if matches!(traffic, Traffic::Ports { .. }) {
        it.place(pass);
        it.set(R0, PASS);
        it.exit();
    }
    it.finish()
}

/// Jumps to `pass` unless the frame has `bytes` bytes from where `R2` points.
fn reaches(it: &mut Assembler, bytes: i32, pass: Label) {
    it.copy(R4, R2);
    it.add(R4, bytes);
    it.jump_if_registers(R4, When::Above, R3, pass);
}

fn load(it: &mut Assembler, width: napkin_bpf::assemble::Width, to: Register, offset: i32) {
    it.load(width, to, R2, offset as i16);
}

/// Goes on if the frame has one of these addresses at `offset`, and to `pass` if not. From the end on, where
/// the addresses of one network differ; by halves, since a constant of four bytes would have a sign.
fn one_of<const N: usize>(it: &mut Assembler, addresses: &[[u8; N]], offset: i32, pass: Label) {
    let found = it.label();
    for address in addresses {
        let next = it.label();
        for (place, half) in address.chunks_exact(2).enumerate().rev() {
            let half = u16::from_be_bytes([half[0], half[1]]);
            load(it, Half, R4, offset + 2 * place as i32);
            it.jump_if(R4, When::NotEqual, wire(half), next);
        }
        it.jump(found);
        it.place(next);
    }
    it.jump(pass);
    it.place(found);
}

/// Looks for UDP or TCP to one of the ports at one of the addresses: goes to `ours` or to `pass`.
fn to_ports(it: &mut Assembler, ports: &[u16], addresses: &[IpAddr], ours: Label, pass: Label) {
    let v4 = addresses.iter().filter_map(|ip| match ip {
        IpAddr::V4(ip) => Some(ip.octets()),
        IpAddr::V6(_) => None,
    });
    let v6 = addresses.iter().filter_map(|ip| match ip {
        IpAddr::V4(_) => None,
        IpAddr::V6(ip) => Some(ip.octets()),
    });
    let (v4, v6): (Vec<_>, Vec<_>) = (v4.collect(), v6.collect());
    let (untagged, four, six, transport) = (it.label(), it.label(), it.label(), it.label());
    let found = it.label();
    it.load(Word, R2, R6, DATA);
    it.load(Word, R3, R6, DATA_END);
    reaches(it, ETHERNET, pass);
    load(it, Half, R5, ETHERNET - 2);
    it.jump_if(R5, When::NotEqual, wire(0x8100), untagged);
    it.add(R2, TAG);
    reaches(it, ETHERNET, pass);
    // A tag of VLAN 0 only says a priority, to us as to the kernel.
    load(it, Half, R5, ETHERNET - TAG);
    it.jump_if(R5, When::AnyBit, wire(0x0fff), pass);
    load(it, Half, R5, ETHERNET - 2);
    it.place(untagged);
    // Of a family without an address there is no code: the verifier refuses what nothing leads to.
    if !v4.is_empty() {
        it.jump_if(R5, When::Equal, wire(0x0800), four);
    }
    if !v6.is_empty() {
        it.jump_if(R5, When::Equal, wire(0x86dd), six);
    }
    it.jump(pass);

    if !v4.is_empty() {
        it.place(four);
        reaches(it, ETHERNET + IPV4, pass);
        one_of(it, &v4, ETHERNET + 16, pass);
        // A fragment, the first too: the others have no ports, and only one side can put them together.
        load(it, Half, R5, ETHERNET + 6);
        it.jump_if(R5, When::AnyBit, wire(0x3fff), pass);
        load(it, Byte, R5, ETHERNET + 9);
        load(it, Byte, R0, ETHERNET);
        it.and(R0, 0x0f);
        it.shift_left(R0, 2);
        it.jump_if(R0, When::LessOrEqual, IPV4 - 1, pass);
        it.add_register(R2, R0);
        it.jump(transport);
    }
    if !v6.is_empty() {
        it.place(six);
        reaches(it, ETHERNET + IPV6, pass);
        one_of(it, &v6, ETHERNET + 24, pass);
        load(it, Byte, R5, ETHERNET + 6);
        it.add(R2, IPV6);
    }

    // `R2` is now as far before the transport's header as an Ethernet header is long.
    it.place(transport);
    it.jump_if(R5, When::Equal, libc::IPPROTO_UDP, found);
    it.jump_if(R5, When::NotEqual, libc::IPPROTO_TCP, pass);
    it.place(found);
    reaches(it, ETHERNET + 4, pass);
    load(it, Half, R5, ETHERNET + 2);
    for port in ports {
        it.jump_if(R5, When::Equal, wire(*port), ours);
    }
    it.jump(pass);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_traffic_takes_a_handful_of_instructions_and_each_port_and_address_a_few_more() {
        let length = |traffic: &Traffic| redirect(traffic, 3).expect("it assembles").len() / 8;
        assert_eq!(length(&Traffic::All), 7);
        let to = |ports: &[u16], addresses: &[&str]| {
            let addresses = addresses.iter().map(|ip| ip.parse().expect("an address")).collect();
            length(&Traffic::Ports { ports: ports.to_vec(), addresses })
        };
        let one = to(&[7], &["10.0.0.1"]);
        assert!(one < 64);
        assert_eq!(to(&[7, 9], &["10.0.0.1"]), one + 1);
        // Two of each half, and one that leaves.
        assert_eq!(to(&[7], &["10.0.0.1", "10.0.0.2"]), one + 5);
        let both = to(&[7], &["10.0.0.1", "fd00::1"]);
        assert_eq!(to(&[7], &["10.0.0.1", "fd00::1", "fd00::2"]), both + 17);
        assert!(to(&[7], &["fd00::1"]) < both);
    }
}
