//! Tests of changes to the interface, and to the kernel's NAPI instance below it, while a device is open.

use std::process::Command;

use napkin_kernel::netlink::{Ethtool, GRO, Netdev, Route};
use napkin_kernel::settings::Setting;
use napkin_nic::xdp::{BusyPoll, BusyPolling, Traffic, XdpConfig};
use napkin_nic::{PacketQueue, Pool, SendError};
use napkin_testing::{ignore, test};

use crate::lab::{DEVICE, Engine, Lab, checked, numbered, open, small};

#[test]
fn an_interface_that_goes_down_comes_up_changes_its_mtu_and_goes_is_survived_and_said() {
    let lab = Lab::new(1);
    let there = lab.peer_device();
    let mut xdp = open(&small(Traffic::All), &Pool::new(512)).expect("a device");
    let mut ours = Engine::new(xdp.queues.remove(0));
    let wire = there.queue.transmitter();
    let mut bytes = [0; 2048];
    let mut route = Route::open().expect("netlink");
    let mut arrives = |number: u64, ours: &mut Engine| {
        let length = numbered(number, &mut bytes);
        wire.send(&bytes[..length], 0).expect("room");
        assert_eq!(ours.next(|frame| checked(frame) == Some(number))[12..14], [0x88, 0xb5]);
    };
    arrives(1, &mut ours);
    route.set_down(lab.ifindex).expect("down");
    let mut none = Vec::with_capacity(64);
    ours.queue.poll(64, 0, &mut none);
    let _ = ours.queue.transmitter().send(&[0; 60], 0);
    assert!(!ours.queue.gone() && !ours.queue.unmask(0));
    route.set_up(lab.ifindex).expect("up");
    arrives(2, &mut ours);
    let mtu = |mtu: &str| {
        let ip = Command::new("ip").args(["link", "set", DEVICE, "mtu", mtu]).status();
        assert!(ip.expect("ip runs").success());
    };
    mtu("900");
    arrives(3, &mut ours);
    mtu("1500");
    arrives(4, &mut ours);
    ours.unmask();
    while ours.sleeps(0) {
        ours.queue.poll(64, 0, &mut none);
        ours.unmask();
    }
    route.delete(lab.ifindex).expect("away");
    // A sleeping owner is woken, and sees that the device is gone.
    assert!(ours.sleeps(10_000), "the news came");
    none.clear();
    ours.queue.poll(64, 0, &mut none);
    assert!(ours.queue.gone() && ours.queue.counters().gone());
    assert_eq!(ours.queue.transmitter().send(&[0; 60], 0), Err(SendError::Down));
}

#[test]
fn busy_polling_brings_the_frames_or_is_said_to_do_nothing_and_then_interrupts_bring_them() {
    let lab = Lab::new(1);
    let mut ethtool = Ethtool::open().expect("netlink");
    let on: Vec<_> = GRO.iter().map(|name| (*name, true)).collect();
    ethtool.set_features(DEVICE, &on).expect("a veth has GRO");
    let there = lab.peer_device();
    let config = XdpConfig { busy_poll: Some(BusyPoll::default()), ..small(Traffic::All) };
    let mut xdp = open(&config, &Pool::new(512)).expect("a device");
    let mut ours = Engine::new(xdp.queues.remove(0));
    let wire = there.queue.transmitter();
    let mut netdev = Netdev::open().expect("netlink");
    let napis = netdev.napis(Some(lab.ifindex)).expect("its instances");
    let Some(napi) = napis.first() else { ignore("this kernel lists no NAPI instances") };
    for (setting, value) in [(Setting::DeferHardIrqs, 100), (Setting::GroFlushTimeout, 1_000_000)] {
        if let Err(error) = netdev.set_napi(napi.id, setting, value) {
            ignore(format_args!("a NAPI instance's own settings cannot be changed: {error}"));
        }
    }
    let mut bytes = [0; 2048];
    for number in 0..1_000 {
        let length = numbered(number, &mut bytes);
        wire.send(&bytes[..length], 0).expect("room");
        ours.next(|frame| checked(frame) == Some(number));
    }
    // Linux polls the NAPI instance of a copying socket only up to 6.12.
    let verdict = ours.queue.busy_polling().expect("it was asked for").get();
    match verdict {
        BusyPolling::Honoured => {}
        BusyPolling::NoNapi => assert!(verdict.to_string().contains("no NAPI")),
        other => panic!("{other:?}"),
    }
}
