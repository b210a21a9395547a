//! Tests with several processes that open the device, in turn or at once, and are killed or not: nothing is left of
//! any, and a low limit of locked memory is reported.

use std::io::{BufRead, BufReader, ErrorKind};
use std::net::UdpSocket;
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use napkin_nic::xdp::{Mode, Traffic, Xdp, XdpConfig, XdpError};
use napkin_nic::{PacketQueue, Pool};
use napkin_os::rights::{Right, keep_only};
use napkin_testing::{KillOnDrop, test};
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::lab::{Engine, Lab, OURS, checked, numbered, open, small};

/// In a child process: opens the device, reports that, and keeps it until killed; or, with little memory to lock,
/// prints the error.
pub(crate) fn child() -> bool {
    let Some(what) = std::env::var_os("NAPKIN_XDP_CHILD") else { return false };
    if what == "memlock" {
        let little = Rlimit { current: Some(64 << 10), maximum: Some(64 << 10) };
        setrlimit(Resource::Memlock, little).expect("it may be less");
        // Without CAP_IPC_LOCK, which lifts the limit.
        keep_only(&[Right::NetAdmin, Right::NetRaw, Right::Bpf]).expect("rights can be given up");
    }
    let device = Xdp::open(&small(Traffic::All), &Pool::new(512));
    println!("{}", device.as_ref().err().map_or("ready".to_owned(), ToString::to_string));
    if device.is_ok() {
        std::thread::sleep(Duration::from_secs(60));
    }
    true
}

/// Starts a process that opens the device, and returns its report. A child of this thread is in the same network
/// namespace.
fn another(what: &str) -> (KillOnDrop, String) {
    let other = Command::new(std::env::current_exe().expect("this program"))
        .env("NAPKIN_XDP_CHILD", what)
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    let (mut other, mut first_line) = (KillOnDrop(other), String::new());
    let out = other.0.stdout.take().expect("piped");
    BufReader::new(out).read_line(&mut first_line).expect("it speaks");
    (other, first_line.trim().to_owned())
}

/// Opens the device as soon as the kernel has closed the sockets of an ended process, which it does in the
/// background.
fn opened_again(config: &XdpConfig) -> Xdp {
    let reopened = (0..500).find_map(|_| {
        let reopened = open(config, &Pool::new(512)).ok();
        if reopened.is_none() {
            std::thread::sleep(Duration::from_millis(10));
        }
        reopened
    });
    reopened.expect("nothing was left")
}

#[test]
fn two_on_one_device_is_a_clear_error_and_a_kill_leaves_no_program() {
    let lab = Lab::new(1);
    for round in 0..3 {
        let (other, first_line) = another("ready");
        assert_eq!(first_line, "ready", "round {round}");
        match open(&small(Traffic::All), &Pool::new(512)) {
            Err(error @ XdpError::Attached { .. }) => {
                assert!(error.to_string().contains("another napkin"), "{error}");
            }
            other => panic!("{other:?}"),
        }
        drop(other);
        drop(opened_again(&small(Traffic::All)));
    }
    // The kernel receives the interface's traffic again.
    let kernels = UdpSocket::bind((OURS, 7)).expect("the address is there");
    kernels.set_read_timeout(Some(Duration::from_millis(100))).expect("it may");
    let client = lab.socket();
    let mut read = [0; 8];
    let attached = (0..100).any(|_| {
        client.send_to(b"you", (OURS, 7)).expect("sent");
        match kernels.recv_from(&mut read) {
            Ok(_) => true,
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut));
                false
            }
        }
    });
    assert!(attached, "no program takes it");
}

/// The ids of the BPF programs and maps that a process holds.
fn programs_and_maps(process: u32) -> [Vec<u32>; 2] {
    let mut found = [Vec::new(), Vec::new()];
    for file in std::fs::read_dir(format!("/proc/{process}/fdinfo")).expect("it lives") {
        // The file may have been closed meanwhile.
        let Ok(info) = std::fs::read_to_string(file.expect("a name").path()) else { continue };
        for (kind, list) in ["prog_id:", "map_id:"].iter().zip(&mut found) {
            let number: Option<u32> =
                info.lines().find_map(|line| line.strip_prefix(*kind)?.trim().parse().ok());
            list.extend(number);
        }
    }
    found
}

/// Whether the kernel still has a program or map with this id.
fn is_there(program: bool, number: u32) -> bool {
    // BPF_PROG_GET_FD_BY_ID and BPF_MAP_GET_FD_BY_ID.
    let command = if program { 13 } else { 14 };
    let attributes = [number, 0, 0];
    // SAFETY: both commands read three 4-byte numbers, which live until the call returns.
    let file = unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_ptr(), 12) };
    if file < 0 {
        let error = std::io::Error::last_os_error();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        return false;
    }
    // SAFETY: the call has returned a new descriptor.
    drop(unsafe { OwnedFd::from_raw_fd(file as i32) });
    true
}

/// The device is opened and closed, or killed, again and again under continuous traffic: each instance finds
/// frames, and nothing is left of any. `NAPKIN_XDP_LIVES=1000` runs that many.
#[test]
fn a_device_may_be_restarted_and_killed_under_traffic_and_nothing_is_left() {
    let lab = Lab::new(1);
    let lives = std::env::var("NAPKIN_XDP_LIVES").ok().and_then(|it| it.parse().ok()).unwrap_or(8);
    let peer = lab.peer_device();
    let (wire, ends) = (peer.queue.transmitter(), Arc::new(AtomicBool::new(false)));
    let ending = Arc::clone(&ends);
    let traffic = std::thread::spawn(move || {
        let mut bytes = [0; 2048];
        for number in 0.. {
            if ending.load(Relaxed) {
                return;
            }
            let length = numbered(number, &mut bytes);
            // Half of the time there is no receiver.
            let _ = wire.send(&bytes[..length], 0);
            std::thread::sleep(Duration::from_micros(50));
        }
    });
    for life in 0..lives {
        let mode = if life % 4 < 2 { Mode::Auto } else { Mode::Generic };
        if life % 2 == 0 {
            let mut xdp = opened_again(&XdpConfig { mode, ..small(Traffic::All) });
            let mut engine = Engine::new(xdp.queues.remove(0));
            let kept = engine.next(|frame| frame[12..14] == [0x88, 0xb5]);
            // A frame outlives its queue, and keeps its memory alive.
            drop(engine);
            assert!(checked(&kept).is_some(), "life {life}");
        } else {
            let other = loop {
                let (mut other, first_line) = another("ready");
                if first_line == "ready" {
                    break other;
                }
                // The queue of a process that has just ended may still be in use.
                other.0.wait().expect("ended");
                assert!(
                    first_line.contains("in use") || first_line.contains("attached"),
                    "{first_line}"
                );
            };
            let [programs, maps] = programs_and_maps(other.0.id());
            assert!(!programs.is_empty() || !maps.is_empty(), "it has a map, at least");
            drop(other);
            left(life, &programs, &maps);
        }
    }
    ends.store(true, Relaxed);
    traffic.join().expect("ends");
    drop(opened_again(&small(Traffic::All)));
}

/// Waits until none of these programs and maps exists.
fn left(life: u32, programs: &[u32], maps: &[u32]) {
    for (program, numbers) in [(true, programs), (false, maps)] {
        for number in numbers {
            let gone = (0..1_000).any(|_| {
                let gone = !is_there(program, *number);
                if !gone {
                    std::thread::sleep(Duration::from_millis(10));
                }
                gone
            });
            assert!(gone, "life {life} has left {number}, program: {program}");
        }
    }
}

#[test]
fn too_little_memory_that_may_be_locked_is_told_with_how_much_it_takes() {
    let _lab = Lab::new(1);
    let (mut other, first_line) = another("memlock");
    other.0.wait().expect("ended");
    // 512 buffers of 2 KiB each.
    assert!(
        first_line.contains("take 1024 KiB") && first_line.contains("may lock 64 KiB"),
        "{first_line}"
    );
    assert!(
        first_line.contains("ulimit -l 1024") && first_line.contains("CAP_IPC_LOCK"),
        "{first_line}"
    );
    // The failed attempt has attached nothing.
    drop(open(&small(Traffic::All), &Pool::new(512)).expect("a device"));
}
