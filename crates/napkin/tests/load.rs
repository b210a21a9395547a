//! `napkin load` against `napkin serve`, over virtio rings between two processes: no right is needed.

mod common;

use common::{Place, Served, napkin, text};
use serde_json::Value;

/// A server of `what` at a socket of its own, and the socket's name for a frontend.
fn serve(place: &Place, what: &str) -> (Served, String) {
    let socket = place.socket("nk0.sock");
    let socket = socket.to_str().expect("a plain path");
    let device = format!("vhost:{socket}");
    let served = Served::start(&place.socket("control"), &[what, "--device", &device]);
    (served.expect("it serves"), format!("virtio-user:{socket}"))
}

fn figures(args: &[&str]) -> Value {
    let output = napkin(["load"].iter().chain(args).chain(&["--json", "-"]).copied());
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice::<Value>(&output.stdout).expect("JSON")["figures"].clone()
}

#[test]
fn datagrams_by_a_schedule_come_back_and_say_when_they_were_due() {
    let place = Place::new("load-udp");
    let (_served, device) = serve(&place, "echo");
    let to = ["--device", &device, "--to", "10.99.0.1:7", "--rate", "2k", "--for", "1s"];
    let told = figures(&[&["udp"], &to[..]].concat());
    let count = |name: &str| told[name].as_u64().expect(name);
    // What was due and not sent is told: together they are the schedule's.
    assert_eq!(count("sent") + count("behind"), 2_000, "{told}");
    assert!(count("answered") > 0 && count("answered") <= count("sent"), "{told}");
    assert_eq!(told["latency_ns"]["count"], told["answered"], "{told}");
}

#[test]
fn a_memcached_is_filled_and_then_asked_and_the_next_client_finds_its_ports_free() {
    let place = Place::new("load-memcached");
    let (_served, device) = serve(&place, "memcached");
    let to = ["memcached", "--device", &device, "--to", "10.99.0.1:11211", "--rate", "2k"];
    for _ in 0..2 {
        let told = figures(&[&to[..], &["--for", "300ms", "--flows", "4"]].concat());
        let answered = told["answered"].as_u64().expect("a count");
        assert!(answered > 0, "{told}");
        assert!(told["misses"].as_u64().expect("a count") * 100 <= answered, "{told}");
    }
}

#[test]
fn what_makes_no_sense_is_told_before_anything_is_opened() {
    let place = Place::new("load-wrong");
    let device = format!("virtio-user:{}", place.socket("none").display());
    for (wrong, why) in [
        (["--to", "10.98.0.1:7"], "there are no routers"),
        (["--to", "10.99.0.2:7"], "our own address"),
        (["--to", "10.99.0.1:0"], "port 0"),
    ] {
        let output = napkin(["load", "udp", "--device", &device].iter().chain(&wrong).copied());
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
        assert!(text(&output.stderr).contains(why), "{wrong:?}: {}", text(&output.stderr));
    }
    for (device, why) in [
        ("xdp:lo:0", "give xdp:IF:QUEUE:all"),
        ("synthetic", "nobody is behind"),
        ("tap:nk0=base", "leave =POLICY out"),
    ] {
        let output = napkin(["load", "udp", "--device", device, "--to", "10.99.0.1:7"]);
        assert_eq!(output.status.code(), Some(2), "{device}");
        assert!(text(&output.stderr).contains(why), "{device}: {}", text(&output.stderr));
    }
}
