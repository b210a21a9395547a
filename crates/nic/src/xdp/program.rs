//! The XDP program that decides, for each received frame, whether to redirect it to a socket or pass it to the
//! kernel.
//!
//! It redirects to the socket in a map, at the index of the frame's queue. If there is none, the frame is passed on,
//! so that a program that is attached before its sockets are bound, or whose sockets were closed, takes no traffic.
//!
//! With ports it takes only frames to our own addresses, and none with a VLAN tag in the frame: packets that the
//! host forwards, or that belong to a VLAN interface above this one, stay with the kernel, whatever their port.

use std::net::IpAddr;

use napkin_bpf::assemble::Register::{R0, R1, R2, R3, R4, R5, R6};
use napkin_bpf::assemble::Width::{Byte, Half, Word};
use napkin_bpf::assemble::{AssembleError, Assembler, Condition, Helper, Label, Register};

use super::config::Traffic;

/// `XDP_PASS`: the frame goes on to the kernel's stack.
const PASS: i32 = 2;

/// Offsets in `struct xdp_md`.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const RX_QUEUE_INDEX: i16 = 16;

const ETHERNET: i32 = 14;
const IPV4: i32 = 20;
const IPV6: i32 = 40;
const TAG: i32 = 4;

/// A big-endian 16-bit field, as this machine loads it from a frame.
fn wire(number: u16) -> i32 {
    number.to_be().into()
}

/// Assembles the program for `traffic`, redirecting into the map with descriptor `map`.
pub(super) fn redirect(traffic: &Traffic, map: i32) -> Result<Vec<u8>, AssembleError> {
    let mut it = Assembler::new();
    let pass = it.label();
    let to_socket = it.label();
    it.copy(R6, R1); // the context
    if let Traffic::Ports { ports, addresses } = traffic {
        to_ports(&mut it, ports, addresses, to_socket, pass);
    }
    it.place(to_socket);
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
    it.jump_if_registers(R4, Condition::Above, R3, pass);
}

fn load(it: &mut Assembler, width: napkin_bpf::assemble::Width, to: Register, offset: i32) {
    it.load(width, to, R2, offset as i16);
}

/// Continues if the frame has one of these addresses at `offset`, and jumps to `pass` if not. Compares from the
/// end, where the addresses of one network differ, and by 16 bits, since a 32-bit constant would be sign-extended.
fn one_of<const N: usize>(it: &mut Assembler, addresses: &[[u8; N]], offset: i32, pass: Label) {
    let found = it.label();
    for address in addresses {
        let next = it.label();
        for (place, half) in address.chunks_exact(2).enumerate().rev() {
            let half = u16::from_be_bytes([half[0], half[1]]);
            load(it, Half, R4, offset + 2 * place as i32);
            it.jump_if(R4, Condition::NotEqual, wire(half), next);
        }
        it.jump(found);
        it.place(next);
    }
    it.jump(pass);
    it.place(found);
}

/// Jumps to `to_socket` if the frame is UDP or TCP to one of the ports at one of the addresses, and to `pass` if not.
fn to_ports(
    it: &mut Assembler,
    ports: &[u16],
    addresses: &[IpAddr],
    to_socket: Label,
    pass: Label,
) {
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
    it.jump_if(R5, Condition::NotEqual, wire(0x8100), untagged);
    it.add(R2, TAG);
    reaches(it, ETHERNET, pass);
    // VLAN 0 marks a priority tag: such a frame is in no VLAN, for the kernel, too.
    load(it, Half, R5, ETHERNET - TAG);
    it.jump_if(R5, Condition::AnyBit, wire(0x0fff), pass);
    load(it, Half, R5, ETHERNET - 2);
    it.place(untagged);
    // No code for a family without addresses: the verifier refuses unreachable code.
    if !v4.is_empty() {
        it.jump_if(R5, Condition::Equal, wire(0x0800), four);
    }
    if !v6.is_empty() {
        it.jump_if(R5, Condition::Equal, wire(0x86dd), six);
    }
    it.jump(pass);

    if !v4.is_empty() {
        it.place(four);
        reaches(it, ETHERNET + IPV4, pass);
        one_of(it, &v4, ETHERNET + 16, pass);
        // Pass all fragments, the first one too: the others have no ports, and only one side can reassemble them.
        load(it, Half, R5, ETHERNET + 6);
        it.jump_if(R5, Condition::AnyBit, wire(0x3fff), pass);
        load(it, Byte, R5, ETHERNET + 9);
        load(it, Byte, R0, ETHERNET);
        it.and(R0, 0x0f);
        it.shift_left(R0, 2);
        it.jump_if(R0, Condition::LessOrEqual, IPV4 - 1, pass);
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

    // `R2` now points one Ethernet header's length before the transport header.
    it.place(transport);
    it.jump_if(R5, Condition::Equal, libc::IPPROTO_UDP, found);
    it.jump_if(R5, Condition::NotEqual, libc::IPPROTO_TCP, pass);
    it.place(found);
    reaches(it, ETHERNET + 4, pass);
    load(it, Half, R5, ETHERNET + 2);
    for port in ports {
        it.jump_if(R5, Condition::Equal, wire(*port), to_socket);
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
        // Two for each half of the address, and one jump.
        assert_eq!(to(&[7], &["10.0.0.1", "10.0.0.2"]), one + 5);
        let both = to(&[7], &["10.0.0.1", "fd00::1"]);
        assert_eq!(to(&[7], &["10.0.0.1", "fd00::1", "fd00::2"]), both + 17);
        assert!(to(&[7], &["fd00::1"]) < both);
    }
}
