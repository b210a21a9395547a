//! `napkin load` against `napkin serve`, over virtio rings between two processes: no privilege is needed.

mod common;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use common::{Served, TempDir, command, napkin, text};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// A server of `what` at a vhost-user socket, and the device name for a frontend of that socket.
fn serve(place: &TempDir, what: &str) -> (Served, String) {
    let socket = place.socket("nk0.sock");
    let socket = socket.to_str().expect("a plain path");
    let device = format!("vhost:{socket}");
    let served = Served::start(&place.socket("control"), &[what, "--device", &device]);
    (served.expect("it serves"), format!("virtio-user:{socket}"))
}

/// The figures of a run, through /dev/stdout: as with `-`, no text is mixed with them.
fn figures(args: &[&str]) -> Value {
    let output = napkin(["load"].iter().chain(args).chain(&["--json", "/dev/stdout"]).copied());
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice::<Value>(&output.stdout).expect("JSON")["figures"].clone()
}

#[test]
fn datagrams_by_a_schedule_come_back_and_say_when_they_were_due() {
    let place = TempDir::new("load-udp");
    let (_served, device) = serve(&place, "echo");
    let to = ["--device", &device, "--to", "10.99.0.1:7", "--rate", "2k", "--for", "1s"];
    let result = figures(&[&["udp"], &to[..]].concat());
    let count = |name: &str| result[name].as_u64().expect(name);
    // Requests due and not sent are reported: together with those sent they are the schedule's.
    assert_eq!(count("sent") + count("behind"), 2_000, "{result}");
    assert!(count("answered") > 0 && count("answered") <= count("sent"), "{result}");
    assert_eq!(result["latency_ns"]["count"], result["answered"], "{result}");
}

#[test]
fn a_memcached_is_filled_and_then_asked_and_the_next_client_finds_its_ports_free() {
    let place = TempDir::new("load-memcached");
    let (_served, device) = serve(&place, "memcached");
    let to = ["memcached", "--device", &device, "--to", "10.99.0.1:11211", "--for", "300ms"];
    for rate in ["2k", "2k", "max"] {
        let result = figures(&[&to[..], &["--flows", "4", "--rate", rate]].concat());
        let answered = result["answered"].as_u64().expect("a count");
        assert!(answered > 0, "{result}");
        assert_eq!((&result["misses"], &result["errors"]), (&0.into(), &json!({})), "{result}");
        if rate == "max" {
            // At the end as many requests are in flight as at the beginning: one on each connection.
            assert_eq!(result["sent"], result["answered"], "{result}");
        }
    }
}

#[test]
fn what_makes_no_sense_is_told_before_anything_is_opened() {
    let place = TempDir::new("load-wrong");
    let device = format!("virtio-user:{}", place.socket("none").display());
    for (wrong, why) in [
        (["--to", "10.98.0.1:7"], "there are no routers"),
        (["--to", "10.99.0.2:7"], "our own address"),
        (["--to", "10.99.0.1:0"], "port 0"),
        (["--to=10.99.0.1:7", "--for=0s"], "at least 1ns"),
    ] {
        let output = napkin(["load", "udp", "--device", &device].iter().chain(&wrong).copied());
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
        assert!(text(&output.stderr).contains(why), "{wrong:?}: {}", text(&output.stderr));
    }
    for to in ["10.99.0.1", "fd00:99::1:7", "host:7"] {
        let output = napkin(["load", "udp", "--device", &device, "--to", to]);
        assert_eq!(output.status.code(), Some(2), "{to}");
        let stderr = text(&output.stderr);
        assert!(stderr.contains("give ADDRESS:PORT, as in 10.99.0.1:7"), "{to}: {stderr}");
    }
    for (device, why) in [
        ("xdp:lo:0", "give xdp:IF:QUEUE:all"),
        ("synthetic", "a synthetic device has no peer"),
        ("tap:nk0=base", "leave =POLICY out"),
    ] {
        // The device is checked before the address, which may be in another network.
        for to in ["10.99.0.1:7", "192.0.2.1:7"] {
            let output = napkin(["load", "udp", "--device", device, "--to", to]);
            assert_eq!(output.status.code(), Some(2), "{device}");
            assert!(text(&output.stderr).contains(why), "{device}: {}", text(&output.stderr));
        }
    }
}

#[test]
fn more_connections_than_ports_are_refused_before_anything_is_opened() {
    let place = TempDir::new("load-ports");
    let device = format!("virtio-user:{}", place.socket("none").display());
    let to = ["--to", "10.99.0.1:7", "--flows", "16385"];
    let output = napkin(["load", "tcp", "--device", &device].iter().chain(&to).copied());
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("1 to 16384 connections"), "{}", text(&output.stderr));
}

#[test]
fn ctrl_c_while_it_looks_for_the_service_ends_it_and_leaves_no_figures() {
    let place = TempDir::new("load-interrupted");
    let (_served, device) = serve(&place, "sink");
    let json = place.socket("load.json");
    for what in ["udp", "tcp"] {
        let mut load = command();
        load.args(["load", what, "--device", &device, "--to", "10.99.0.77:7", "--json"]).arg(&json);
        let load = load.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = load.spawn().expect("the binary runs");
        let mut stderr_lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        // The device is open, but there is no service behind it.
        let open = stderr_lines.next().expect("a line").expect("a text");
        assert!(open.starts_with("the other side is the backend that listens at "), "{open}");
        let pid = Pid::from_child(&child);
        kill_process(pid, Signal::INT).expect("it is ours");
        let rest: Vec<_> = stderr_lines.map_while(Result::ok).collect();
        assert_eq!(child.wait().expect("it ends").code(), Some(130), "{what}: {rest:?}");
        assert!(!json.exists(), "{what}");
    }
}

/// The frames of a pcap file that napkin wrote, with their times in nanoseconds.
fn frames(path: &Path) -> Vec<(u64, Vec<u8>)> {
    let bytes = std::fs::read(path).expect("it was written");
    let word = |at: usize| {
        let word = bytes.get(at..at + 4).and_then(|bytes| bytes.first_chunk());
        u32::from_ne_bytes(*word.expect("a whole word"))
    };
    let (mut at, mut frames) = (24, Vec::new());
    while at < bytes.len() {
        let length = word(at + 8) as usize;
        let when = u64::from(word(at)) * 1_000_000_000 + u64::from(word(at + 4));
        frames.push((when, bytes[at + 16..at + 16 + length].to_vec()));
        at += 16 + length;
    }
    frames
}

#[test]
fn a_capture_is_sent_again_as_it_was_or_between_other_addresses() {
    let place = TempDir::new("load-pcap");
    let socket = place.socket("nk0.sock");
    let socket = socket.to_str().expect("a plain path");
    let (vhost, device) = (format!("vhost:{socket}"), format!("virtio-user:{socket}"));
    let file = |name: &str| place.socket(name);
    let captured = |name: &str, what: &str| {
        let path = file(name);
        let args = [what, "--device", &vhost, "--capture", path.to_str().expect("plain")];
        Served::start(&place.socket("control"), &args).expect("it serves")
    };
    let first = captured("first.pcap", "echo");
    figures(&["udp", "--device", &device, "--to", "10.99.0.1:7", "--rate", "1k", "--for", "300ms"]);
    drop(first);
    let sent = frames(&file("first.pcap"));
    assert!(sent.len() > 100, "{} frames", sent.len());
    let path = file("first.pcap");
    let pcap = ["--pcap", path.to_str().expect("plain"), "--device", &device];

    // Replay at the file's own times: all frames, in order.
    let second = captured("second.pcap", "sink");
    let result = figures(&pcap);
    assert_eq!(result["sent"], sent.len(), "{result}");
    assert_eq!(result["late_ns"]["count"], sent.len() - 1, "{result}");
    let span = (sent[sent.len() - 1].0 - sent[0].0) as f64 / 1e9;
    assert!(result["seconds"].as_f64().expect("a time") >= span, "{result} of {span} s");
    drop(second);
    let arrived = frames(&file("second.pcap"));
    let mut wanted = sent.iter().map(|(_, frame)| frame).peekable();
    for (_, frame) in &arrived {
        wanted.next_if_eq(&frame);
    }
    assert_eq!(wanted.next(), None, "this one is missing, or out of its order");

    // Replay at a rate, twice, with other addresses.
    let third = captured("third.pcap", "sink");
    let others =
        ["--src-mac", "02:00:00:00:00:07", "--dst-ip", "10.99.0.77", "--src-ip", "10.99.0.66"];
    let result = figures(&[&pcap[..], &others, &["--rate", "20k", "--repeat", "2"]].concat());
    assert_eq!(result["sent"], 2 * sent.len(), "{result}");
    drop(third);
    let arrived = frames(&file("third.pcap"));
    let replies = arrived.iter().filter(|(_, frame)| frame[6..12] == [2, 0, 0, 0, 0, 7]);
    assert_eq!(replies.clone().count(), 2 * sent.len());
    let ip = replies.filter(|(_, frame)| frame[12..14] == [8, 0]);
    assert!(ip.clone().count() > 100);
    for (_, frame) in ip {
        assert_eq!(frame[26..34], [10, 99, 0, 66, 10, 99, 0, 77]);
        let sum: u32 =
            frame[14..34].chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1])).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "the header's checksum");
    }
}

#[test]
fn a_file_that_is_no_capture_is_refused_with_the_byte_before_anything_is_opened() {
    let place = TempDir::new("load-pcap-wrong");
    let device = format!("virtio-user:{}", place.socket("none").display());
    let path = place.socket("wrong.pcap");
    let mut cut = Vec::new();
    for word in [0xa1b2_c3d4u32, 2 | 4 << 16, 0, 0, 65_535, 1, 0, 0, 60, 60, 7] {
        cut.extend(word.to_ne_bytes());
    }
    let refused = |args: &[&str]| {
        let output = napkin(["load", "--device", &device].iter().chain(args).copied());
        assert!(!output.status.success(), "{args:?}");
        (output.status.code(), text(&output.stderr))
    };
    let file = path.to_str().expect("plain");
    for (bytes, why) in [(&b"precious text"[..], "neither pcap nor pcapng"), (&cut, "at byte 24")] {
        std::fs::write(&path, bytes).expect("written");
        let (_, message) = refused(&["--pcap", file]);
        assert!(message.contains(why) && message.contains("wrong.pcap"), "{message}");
    }
    let (_, message) = refused(&["--pcap", "/nonexistent/x.pcap"]);
    assert!(message.contains("No such file"), "{message}");
    for (args, why) in [
        (&["udp", "--pcap", file, "--to", "10.99.0.1:7"][..], "cannot be used with"),
        (&["--to", "10.99.0.1:7"], "<WHAT>"),
        (&["--pcap", file, "--json", file], "would be written over"),
        (&["--pcap", file, "--repeat", "0"], "once or more often"),
        (&["--pcap", file, "--dst-mac", "2:2"], "02:00:00:00:00:01"),
        (&["udp", "--to", "10.99.0.1:7", "--src-ip", "10.99.0.3"], "--pcap"),
    ] {
        let (code, message) = refused(args);
        assert_eq!(code, Some(2), "{args:?}: {message}");
        assert!(message.contains(why), "{args:?}: {message}");
    }
}
