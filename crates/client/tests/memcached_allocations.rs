//! A running memcached client allocates nothing: otherwise its latencies would include the allocator's.
//!
//! It is a test binary of its own, because it counts the allocations of the whole process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use napkin_client::{Client, ClientWait, Config, Load, populate};
use napkin_testing::{needs_program, test};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is forwarded to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the caller upholds the contract of `alloc`, which is forwarded unchanged.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `dealloc`, which is forwarded unchanged.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn requests_cost_no_allocation() {
    needs_program("memcached");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address = listener.local_addr().expect("bound");
    drop(listener);
    let mut child = Command::new("memcached")
        .args(["-l", "127.0.0.1", "-p", &address.port().to_string(), "-U", "0", "-u", "nobody"])
        .stderr(Stdio::null())
        .spawn()
        .expect("memcached");
    let begun = Instant::now();
    while TcpStream::connect(address).is_err() && begun.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(10));
    }
    let config = Config { records: 1_000, ..Config::new(address) };
    let filled = populate(&config);
    let open = Load::Open { per_second: 5_000.0 };
    let mut seen = Vec::new();
    for (load, wait) in [
        (open, ClientWait::Sleep),
        (open, ClientWait::Spin),
        (Load::Closed, ClientWait::Sleep),
        // More than one thread can send, so the backlogs fill up.
        (Load::Open { per_second: 5e6 }, ClientWait::Sleep),
    ] {
        let mut client = Client::start(&Config { load, wait, ..config.clone() }).expect("it runs");
        std::thread::sleep(Duration::from_millis(100));
        let before = ALLOCATIONS.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(300));
        let during = ALLOCATIONS.load(Ordering::SeqCst) - before;
        let requests = client.end_window().expect("it runs").requests;
        seen.push((load, requests, during));
    }
    let _ = child.kill();
    let _ = child.wait();
    filled.expect("it has room");
    assert!(ALLOCATIONS.load(Ordering::SeqCst) > 100, "they are counted");
    for (load, requests, during) in seen {
        assert!(requests > 500, "{load:?}: {requests}");
        assert_eq!(during, 0, "{load:?}: {requests} requests");
    }
}

napkin_testing::main!();
