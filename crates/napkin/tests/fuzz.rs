//! Fuzzing of the control socket: arbitrary input must not change anything.

mod common;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{Served, TIMEOUT, TempDir};
use napkin_engine::control::{CLIENT_TIMEOUT, MAX_CLIENTS};

/// xorshift: the same bytes every time.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }
}

fn connect(served: &Served) -> UnixStream {
    let stream = UnixStream::connect(&served.control).expect("it listens");
    stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    stream.set_write_timeout(Some(TIMEOUT)).expect("a timeout");
    stream
}

/// Sends bytes and reads until the other side closes.
fn answer_to(served: &Served, bytes: &[u8]) -> String {
    let mut stream = connect(served);
    // The server may close the connection in the middle.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}"),
    }
    String::from_utf8(answer).expect("text")
}

fn memory(served: &Served) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", served.pid())).expect("alive");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[test]
fn nothing_that_is_written_hurts() {
    let place = TempDir::new("fuzz");
    let args = ["echo", "--device", "synthetic", "--rate", "1000"];
    let mut served = Served::start(&place.socket("a.sock"), &args).expect("it starts");
    served.napi();
    let before = memory(&served);
    let mut random = Random(0x6e61_706b_696e);

    // Random bytes of many lengths, with and without a line end.
    for round in 0..300 {
        let length = random.next() as usize % 9_000;
        let mut bytes = random.bytes(length);
        if round % 2 == 0 {
            bytes.push(b'\n');
        }
        answer_to(&served, &bytes);
    }
    // Lines too long, by one byte and by far.
    for length in [4_097, 1 << 20] {
        let answer = answer_to(&served, &vec![b' '; length]);
        assert!(answer.contains("EMSGSIZE"), "{answer}");
    }
    // A line of the maximum length is accepted.
    let mut longest = br#"{"version":1,"verb":"dev-get"}"#.to_vec();
    longest.resize(4_096, b' ');
    longest.push(b'\n');
    assert!(answer_to(&served, &longest).contains("syn0"));
    // A malformed request is answered and closes the connection; a refused one does not close it.
    let answer = answer_to(&served, b"{]\n{\"version\":1,\"verb\":\"dev-get\"}\n");
    assert_eq!((answer.lines().count(), answer.contains("EINVAL")), (1, true), "{answer}");
    let answer = answer_to(
        &served,
        b"{\"version\":1,\"verb\":\"x\"}\n{\"version\":1,\"verb\":\"dev-get\"}\n",
    );
    assert_eq!((answer.lines().count(), answer.contains("syn0")), (2, true), "{answer}");
    // An incomplete line has no answer.
    assert_eq!(answer_to(&served, br#"{"version":1,"ve"#), "");
    // A valid request with some bytes changed.
    let sound = br#"{"version":1,"verb":"napi-set","attributes":{"id":1,"hold":5,"weight":64}}"#;
    for _ in 0..300 {
        let mut bytes = sound.to_vec();
        for _ in 0..=random.next() % 3 {
            let at = random.next() as usize % bytes.len();
            bytes[at] = random.next() as u8;
        }
        bytes.push(b'\n');
        answer_to(&served, &bytes);
    }
    // Deep nesting, and many requests at once.
    answer_to(&served, &[&b"[".repeat(4_000)[..], b"\n"].concat());
    let many = b"{\"version\":1,\"verb\":\"napi-get\"}\n".repeat(500);
    assert_eq!(answer_to(&served, &many).lines().count(), 500);

    let grown = memory(&served).saturating_sub(before);
    assert!(grown < 16 << 10, "{grown} kB");
    assert_eq!(served.napi()["id"], 1);
    assert!(!served.log().contains("panicked"), "{}", served.log());
    served.signal(rustix::process::Signal::TERM);
    assert!(served.end().success());
}

#[test]
fn silent_and_slow_peers_hold_nothing() {
    let place = TempDir::new("silent");
    let args = ["echo", "--device", "synthetic", "--rate", "1000"];
    let mut served = Served::start(&place.socket("a.sock"), &args).expect("it starts");
    // More silent clients than allowed: the next one waits until the others time out.
    let silent: Vec<_> = (0..40).map(|_| connect(&served)).collect();
    assert_eq!(served.napi()["id"], 1);
    for mut stream in silent {
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).expect("closed");
        assert!(rest.is_empty());
    }
    // A client that sends a byte now and then is closed all the same.
    let mut slow = connect(&served);
    common::within("the slow one is given up", || {
        std::thread::sleep(Duration::from_millis(200));
        slow.write_all(b" ").is_err().then_some(())
    });
    // So is a client that sends requests and never reads.
    let mut deaf = connect(&served);
    let asks = b"{\"version\":1,\"verb\":\"napi-get\"}\n".repeat(100);
    common::within("the deaf one is given up", || deaf.write_all(&asks).is_err().then_some(()));
    // The server ends at once, whatever the number of clients.
    let idle: Vec<_> = (0..10).map(|_| connect(&served)).collect();
    served.signal(rustix::process::Signal::TERM);
    assert!(served.end().success());
    drop(idle);
    assert!(!served.control.exists());
}

#[test]
fn peers_that_ask_and_ask_keep_nobody_out() {
    let place = TempDir::new("busy");
    let args = ["echo", "--device", "synthetic", "--rate", "1000"];
    let served = Served::start(&place.socket("a.sock"), &args).expect("it starts");
    let over = AtomicBool::new(false);
    let (closed, in_time) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        // As many clients as allowed, each well within the timeout, if the host is fast enough.
        for _ in 0..MAX_CLIENTS {
            let mut last = Instant::now();
            let mut stream = connect(&served);
            let (over, closed, in_time) = (&over, &closed, &in_time);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let before = std::mem::replace(&mut last, Instant::now());
                    let asked = stream.write_all(b"{\"version\":1,\"verb\":\"dev-get\"}\n");
                    let answered = asked.and_then(|()| stream.read(&mut [0; 4_096]));
                    if !matches!(answered, Ok(1..)) {
                        // A client that was silent for longer may have been closed for that.
                        let early = before.elapsed() < CLIENT_TIMEOUT / 2;
                        in_time.fetch_add(usize::from(early), Ordering::Relaxed);
                        closed.fetch_add(1, Ordering::Relaxed);
                        return;
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
        }
        let all = (0..3).map(|_| served.ask(&["napi-get"])).collect::<Vec<_>>();
        // A client that was closed in favour of the new ones notices at its next request.
        common::within("one of them is closed", || {
            (closed.load(Ordering::Relaxed) > 0).then_some(())
        });
        let for_others = in_time.load(Ordering::Relaxed);
        over.store(true, Ordering::Relaxed);
        for output in all {
            assert!(output.status.success(), "{}", common::text(&output.stderr));
        }
        assert!(for_others <= 3, "{for_others} were closed for three");
    });
}
