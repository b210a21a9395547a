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
    let peer = lab.peer_device();
    let mut xdp = open(&small(Traffic::All), &Pool::new(512)).expect("a device");
    let mut engine = Engine::new(xdp.queues.remove(0));
    let wire = peer.queue.transmitter();
    let mut bytes = [0; 2048];
    let mut route = Route::open().expect("netlink");
    let mut arrives = |number: u64, engine: &mut Engine| {
        let length = numbered(number, &mut bytes);
        wire.send(&bytes[..length], 0).expect("room");
        assert_eq!(engine.next(|frame| checked(frame) == Some(number))[12..14], [0x88, 0xb5]);
    };
    arrives(1, &mut engine);
    route.set_down(lab.ifindex).expect("down");
    let mut none = Vec::with_capacity(64);
    engine.queue.poll(64, 0, &mut none);
    let _ = engine.queue.transmitter().send(&[0; 60], 0);
    assert!(!engine.queue.gone() && !engine.queue.unmask(0));
    route.set_up(lab.ifindex).expect("up");
    arrives(2, &mut engine);
    let mtu = |mtu: &str| {
        let ip = Command::new("ip").args(["link", "set", DEVICE, "mtu", mtu]).status();
        assert!(ip.expect("ip runs").success());
    };
    mtu("900");
    arrives(3, &mut engine);
    mtu("1500");
    arrives(4, &mut engine);
    engine.unmask();
    while engine.sleeps(0) {
        engine.queue.poll(64, 0, &mut none);
        engine.unmask();
    }
    route.delete(lab.ifindex).expect("away");
    // A sleeping owner is woken, and sees that the device is gone.
    assert!(engine.sleeps(10_000), "the news came");
    none.clear();
    engine.queue.poll(64, 0, &mut none);
    assert!(engine.queue.gone() && engine.queue.counters().gone());
    assert_eq!(engine.queue.transmitter().send(&[0; 60], 0), Err(SendError::Down));
}

#[test]
fn busy_polling_brings_the_frames_or_is_said_to_do_nothing_and_then_interrupts_bring_them() {
    let lab = Lab::new(1);
    let mut ethtool = Ethtool::open().expect("netlink");
    let on: Vec<_> = GRO.iter().map(|name| (*name, true)).collect();
    ethtool.set_features(DEVICE, &on).expect("a veth has GRO");
    let peer = lab.peer_device();
    let config = XdpConfig { busy_poll: Some(BusyPoll::default()), ..small(Traffic::All) };
    let mut xdp = open(&config, &Pool::new(512)).expect("a device");
    let mut engine = Engine::new(xdp.queues.remove(0));
    let wire = peer.queue.transmitter();
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
        engine.next(|frame| checked(frame) == Some(number));
    }
    // Linux polls the NAPI instance of a copying socket only up to 6.12.
    let verdict = engine.queue.busy_polling().expect("it was asked for").get();
    match verdict {
        BusyPolling::Honoured => {}
        BusyPolling::NoNapi => assert!(verdict.to_string().contains("no NAPI")),
        other => panic!("{other:?}"),
    }
}
