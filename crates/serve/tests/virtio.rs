//! A server behind virtio rings, and a driver in the same process.

use std::time::{Duration, Instant};

use napkin_nic::vhost::{FrontendConfig, Vhost};
use napkin_nic::{PacketQueue, Pool};
use napkin_serve::{ServeConfig, ServeError, Server};

const THEIRS: [u8; 6] = [2, 0, 0, 0, 0, 9];

/// An ARP request: who has 10.99.0.1? Tell 10.99.0.2.
fn question() -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend(THEIRS);
    frame.extend([0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend(THEIRS);
    frame.extend([10, 99, 0, 2, 0, 0, 0, 0, 0, 0, 10, 99, 0, 1]);
    frame
}

#[test]
fn a_server_answers_the_driver_of_its_rings_and_its_socket_is_its_own() {
    let path = std::env::temp_dir().join(format!("napkin-serve-virtio-{}", std::process::id()));
    let device = format!("vhost:{}:2=suspend20", path.display());
    let config = ServeConfig {
        devices: vec![device.parse().expect("a device")],
        control: Some(path.with_extension("control")),
        ..ServeConfig::default()
    };
    let server = Server::start(&config).expect("it starts");
    assert!(server.notes().iter().any(|note| note.contains("may be 10.99.0.2/24")));
    let second = ServeConfig { control: Some(path.with_extension("other")), ..config };
    let refused = Server::start(&second).expect_err("somebody listens there");
    assert!(matches!(refused, ServeError::Vhost(_)) && refused.to_string().contains("is in use"));

    let driver = Vhost::frontend(&FrontendConfig::new(&path), &Pool::new(512)).expect("it can be");
    let mut queue = driver.queues.into_iter().next().expect("one");
    let (wire, mut frames) = (queue.transmitter(), Vec::with_capacity(64));
    let start = Instant::now();
    let answer = loop {
        assert!(start.elapsed() < Duration::from_secs(10), "nobody answers");
        // Until the rings are set up the link is down, and frames sent are lost.
        let _ = wire.send(&question(), 0);
        std::thread::sleep(Duration::from_millis(5));
        queue.poll(64, 0, &mut frames);
        if let Some(answer) = frames.iter().find(|it| it.get(..6) == Some(&THEIRS[..])) {
            break answer.to_vec();
        }
    };
    assert_eq!((&answer[20..22], &answer[28..32]), (&[0, 2][..], &[10, 99, 0, 1][..]));
    server.stop().1.expect("it ends");
    assert!(!path.exists(), "the socket is left");
}

#[test]
fn two_devices_of_one_name_are_refused() {
    let devices = ["vhost:/a/nk.sock", "virtio-user:/b/nk.sock"];
    let devices = devices.map(|it| it.parse().expect("a device")).to_vec();
    let error =
        Server::start(&ServeConfig { devices, ..ServeConfig::default() }).expect_err("one name");
    assert!(error.is_usage() && error.to_string().contains("two devices would be called nk"));
}
