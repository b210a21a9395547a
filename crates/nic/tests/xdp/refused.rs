//! Tests of configurations that are refused before anything is changed.

use std::os::fd::OwnedFd;

use napkin_kernel::netlink::Route;
use napkin_nic::Pool;
use napkin_nic::xdp::{Copying, Traffic, Xdp, XdpConfig, XdpError};
use napkin_os::rights::{Right, keep_only};
use napkin_testing::test;
use rustix::net::xdp::{SocketAddrXdp, SocketAddrXdpFlags, XdpUmemReg, XdpUmemRegFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};

use crate::lab::{Lab, open, small};

/// A socket of another program that is bound to the queue, without an XDP program.
fn stranger(ifindex: u32) -> OwnedFd {
    let socket = socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)
        .expect("a socket");
    let memory = Box::leak(Box::new(Page([0; 16 << 10])));
    let umem = XdpUmemReg {
        addr: memory.0.as_ptr().expose_provenance() as u64,
        len: memory.0.len() as u64,
        chunk_size: 2048,
        headroom: 0,
        flags: XdpUmemRegFlags::empty(),
        tx_metadata_len: 0,
    };
    sockopt::set_xdp_umem_reg(&socket, umem).expect("memory");
    sockopt::set_xdp_umem_fill_ring_size(&socket, 8).expect("a ring");
    sockopt::set_xdp_umem_completion_ring_size(&socket, 8).expect("a ring");
    sockopt::set_xdp_rx_ring_size(&socket, 8).expect("a ring");
    let address = SocketAddrXdp::new(SocketAddrXdpFlags::XDP_COPY, ifindex, 0);
    rustix::net::bind(&socket, &address).expect("nobody has the queue");
    socket
}

/// Page-aligned memory, as the kernel requires.
#[repr(align(4096))]
struct Page([u8; 16 << 10]);

#[test]
fn a_queue_that_another_program_has_is_a_clear_error_and_the_next_one_is_free() {
    let lab = Lab::new(2);
    let taken = stranger(lab.ifindex);
    let config = |queue| XdpConfig { queues: vec![queue], ..small(Traffic::All) };
    match open(&config(0), &Pool::new(512)) {
        Err(error @ XdpError::QueueInUse { .. }) => {
            let message = error.to_string();
            assert!(message.contains("queue 0 of nk-xdp is in use"), "{message}");
        }
        other => panic!("{other:?}"),
    }
    drop(open(&config(1), &Pool::new(512)).expect("nobody has it"));
    drop(taken);
}

#[test]
fn what_is_not_there_or_not_allowed_is_said_before_anything_is_changed() {
    let lab = Lab::new(1);
    let pool = Pool::new(512);
    let refusal = |change: &dyn Fn(&mut XdpConfig)| {
        let mut config = small(Traffic::All);
        change(&mut config);
        open(&config, &pool).expect_err("refused").to_string()
    };
    assert!(refusal(&|it| it.interface = "nk-none".into()).contains("no interface nk-none"));
    assert!(refusal(&|it| it.interface = "a-name-far-too-long".into()).contains("no interface"));
    assert!(refusal(&|it| it.interface = "lo".into()).contains("not an Ethernet"));
    assert!(refusal(&|it| it.queues = vec![5]).contains("no queue 5: it receives and sends on 1"));
    assert!(refusal(&|it| it.rx_ring = 100).contains("power of two"));
    assert!(refusal(&|it| it.rx_ring = 1024).contains("1088 buffers"));
    assert!(refusal(&|it| it.copying = Copying::Zero).contains("(veth) has no zero-copy"));
    let mut route = Route::open().expect("netlink");
    route.set_down(lab.ifindex).expect("down");
    assert!(refusal(&|_| {}).contains("is down: bring it up"));
    route.set_up(lab.ifindex).expect("up");
    // After all these errors nothing is attached, and nothing is in use.
    drop(open(&small(Traffic::All), &pool).expect("a device"));
    for (kept, missing) in [
        (&[Right::NetRaw, Right::Bpf][..], "CAP_NET_ADMIN"),
        (&[Right::NetAdmin, Right::Bpf], "CAP_NET_RAW"),
        (&[Right::NetAdmin, Right::NetRaw], "CAP_BPF"),
    ] {
        let pool = Pool::new(512);
        let refused = std::thread::spawn(move || {
            keep_only(kept).expect("rights can be given up");
            Xdp::open(&small(Traffic::All), &pool).expect_err("refused").to_string()
        });
        let refused = refused.join().expect("ends");
        assert!(refused.contains(missing), "{refused}");
    }
}
