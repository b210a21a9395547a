//! The kernel's settings below an AF_XDP device are restored, also if the server fails to start. Ignored without
//! CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_SYS_ADMIN.

#[path = "../../kernel/tests/harness/namespace.rs"]
mod namespace;

use std::path::{Path, PathBuf};
use std::process::Command;

use napkin_kernel::netlink::{Ethtool, GRO, Route, VethConfig};
use napkin_linux::journal::{Found, Store};
use napkin_os::rights::Right;
use napkin_serve::{ServeConfig, ServeError, Server};
use napkin_testing::{ignore, test};

use namespace::{fresh, needs_rights};

const CHILD: &str = "NAPKIN_SERVE_XDP";

/// Starts a server with a deferral on these CPUs; its journal and control socket are in a directory.
fn start(directory: &Path, cpus: Vec<usize>) -> Result<Server, ServeError> {
    let config = ServeConfig {
        devices: vec!["xdp:nk-server:0=defer20".parse().expect("a device")],
        control: Some(directory.join("control")),
        cpus,
        ..ServeConfig::default()
    };
    Server::start(&config)
}

/// The test's child process; its environment names the directory of the journal.
fn child() -> bool {
    let Some(directory) = std::env::var_os(CHILD).map(PathBuf::from) else { return false };
    let server = start(&directory, Vec::new()).expect("it starts");
    println!("{}", server.notes().join("\n"));
    server.stop().1.expect("it ends");
    // The device has been opened by the time the engine finds that there is no such CPU.
    println!("{}", start(&directory, vec![1_023]).expect_err("there is no such CPU"));
    let changes = |found| match found {
        Found::Device(journal) => journal.records().len(),
        Found::Empty { .. } => 0,
        other => panic!("{other:?}"),
    };
    let left = Store::open().expect("a place").survey().expect("a list");
    println!("changes that were not put back: {}", left.into_iter().map(changes).sum::<usize>());
    true
}

#[test]
fn the_deferral_is_restored_while_the_device_is_open_even_if_the_engine_does_not_start() {
    needs_rights(&[Right::NetRaw, Right::Bpf]);
    fresh().enter_thread().expect("it is entered");
    let veth = VethConfig {
        name: "nk-server",
        peer: "nk-client",
        peer_namespace: None,
        rx_queues: 1,
        tx_queues: 1,
    };
    let mut route = Route::open().expect("netlink");
    let ifindex = route.add_veth(&veth).unwrap_or_else(|error| ignore(error));
    route.add_address(ifindex, [198_u8, 18, 0, 1], 24).expect("an address");
    route.set_up(ifindex).expect("up");
    // Without GRO, the NAPI instance is deleted with the program, and its settings with it.
    let off: Vec<_> = GRO.iter().map(|name| (*name, false)).collect();
    Ethtool::open().expect("netlink").set_features("nk-server", &off).expect("a veth has GRO");

    let directory = std::env::temp_dir().join(format!("napkin-serve-xdp-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let output = Command::new(std::env::current_exe().expect("this program"))
        .envs([(CHILD, directory.clone()), ("NAPKIN_STATE", directory.join("state"))])
        .output()
        .expect("started");
    std::fs::remove_dir_all(&directory).expect("it is ours");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{output:?}");
    if !text.contains("interrupts are deferred until the end") {
        ignore(format_args!("this kernel defers nothing below: {text}"));
    }
    assert!(text.contains("CPU 1023"), "{text}");
    assert!(text.contains("changes that were not put back: 0"), "{text}");
}

napkin_testing::main!(child);
