//! `napkin serve nbd` on a TAP device, with clients that know nothing of napkin.

mod client;
#[path = "../common/mod.rs"]
mod common;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use client::*;
use common::namespace::needs_rights;
use common::{Served, TIMEOUT, TempDir, text, within};
use napkin_os::rights::Right;
use napkin_testing::{needs, needs_program, test};
use rustix::process::Signal;

/// A server and its address.
struct Server {
    served: Served,
    at: SocketAddr,
    place: TempDir,
}

/// Skips the test unless a server on a TAP device is possible.
fn needs_a_device() {
    needs_rights(&[Right::NetAdmin]);
    needs(std::fs::exists("/dev/net/tun").is_ok_and(|it| it), "/dev/net/tun");
}

/// Starts a server on a file of 64 MiB, or with `--size` in memory; `n` is unique in this process.
fn serve(n: u8, policy: &str, more: &[&str]) -> Server {
    needs_a_device();
    let place = TempDir::new(&format!("nbd{n}"));
    let disk = std::fs::File::create(place.socket("disk")).expect("a file");
    disk.set_len(64 << 20).expect("a size");
    let (served, at) = start(n, policy, more, &place);
    Server { served, at, place }
}

fn start(n: u8, policy: &str, more: &[&str], place: &TempDir) -> (Served, SocketAddr) {
    start_on(&place.socket("disk"), n, policy, more, place)
}

/// As [`start`], on this file or device.
fn start_on(
    disk: &Path,
    n: u8,
    policy: &str,
    more: &[&str],
    place: &TempDir,
) -> (Served, SocketAddr) {
    let id = std::process::id();
    let server_address = Ipv4Addr::new(198, 18, (id % 250) as u8, 1 + 4 * n);
    let (device, address) =
        (format!("tap:nkn{}x{n}", id % 100_000), format!("{server_address}/30"));
    let file = ["--file", disk.to_str().expect("a plain path")];
    let file = if more.contains(&"--size") { &[][..] } else { &file };
    let args = ["nbd", "--device", &device, "--address", &address, "--policy", policy];
    let served = Served::start(&place.socket("a.sock"), &[&args, file, more].concat());
    if let Err(message) = &served {
        needs(!message.contains("io_uring"), "io_uring");
    }
    (served.expect("it starts"), (server_address, 10_809).into())
}

impl Server {
    fn uri(&self) -> String {
        format!("nbd://{}", self.at)
    }

    /// Connects and completes the handshake.
    fn connect(&self) -> Client {
        let stream = TcpStream::connect_timeout(&self.at, TIMEOUT).expect("it answers");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        stream.set_nodelay(true).expect("an option");
        let mut client = Client(stream);
        assert_eq!(client.take(18), *b"NBDMAGICIHAVEOPT\x00\x03");
        // No zeroes; the default export.
        client.send(&[&3u32.to_be_bytes()[..], b"IHAVEOPT", &[0, 0, 0, 1, 0, 0, 0, 0]].concat());
        client.take(10);
        client
    }
}

/// Pseudorandom bytes.
fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mix = |place: u64| (place ^ seed.wrapping_mul(0x9e37_79b9)).wrapping_mul(0x2545_f491_4f6c);
    (0..length as u64).map(|place| (mix(place) >> 24) as u8).collect()
}

/// Runs a program, which must succeed, and returns its output.
#[track_caller]
fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().expect("it is installed");
    let printed = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {printed}");
    printed
}

#[test]
fn nbdinfo_is_told_what_the_export_can() {
    needs_program("nbdinfo");
    let server = serve(0, "base", &["--export", "scratch"]);
    let uri = format!("{}/scratch", server.uri());
    for printed in [run("nbdinfo", &[&uri]), run("nbdinfo", &["--list", &server.uri()])] {
        for line in [
            "newstyle-fixed without TLS, using structured packets",
            "export=\"scratch\"",
            "export-size: 67108864 (64M)",
            "is_read_only: false",
            "can_flush: true",
            "can_fua: true",
            "can_multi_conn: true",
            "can_trim: true",
            "can_zero: true",
            "block_size_maximum: 33554432",
        ] {
            assert!(printed.contains(line), "{line} in {printed}");
        }
    }
    let output = Command::new("nbdinfo").arg(format!("{}/other", server.uri())).output();
    assert!(!output.expect("it runs").status.success(), "there is no such export");
}

#[test]
fn nbdcopy_copies_both_ways_under_every_kind_of_policy() {
    needs_program("nbdcopy");
    let bytes = pattern(1, 20_000_001);
    for (n, (policy, memory)) in (1..).zip([
        ("base", false),
        ("suspend20", false),
        ("fullbusy", false),
        ("threaded", false),
        ("defer20", true),
    ]) {
        let more: &[&str] = if memory { &["--size", "64M"] } else { &[] };
        let mut server = serve(n, policy, &[&["--queues", "2"], more].concat());
        let path = |name: &str| server.place.socket(name).to_str().expect("plain").to_owned();
        let (source, back) = (path("there"), path("back"));
        std::fs::write(&source, &bytes).expect("a file");
        run("nbdcopy", &["--flush", &source, &server.uri()]);
        // Request sizes that differ from the sizes of the server's pieces.
        for size in ["32768", "1048576", "33554432"] {
            let uri = server.uri();
            run("nbdcopy", &["--request-size", size, "--no-extents", &uri, &back]);
            let copied = std::fs::read(&back).expect("a file");
            assert!(copied.len() == 64 << 20 && copied.starts_with(&bytes), "{policy} {size}");
        }
        server.served.signal(Signal::TERM);
        assert!(server.served.end().success(), "{policy}");
        if !memory {
            let disk = std::fs::read(server.place.socket("disk")).expect("the file");
            assert!(disk.starts_with(&bytes), "{policy}: the file itself");
        }
    }
}

#[test]
fn fio_verifies_what_it_has_written() {
    needs_program("fio");
    for (n, (policy, sizes)) in (6..).zip([("base", "512-64k"), ("suspend20", "4k-1m")]) {
        let server = serve(n, policy, &["--queues", "2"]);
        let (uri, sizes) = (format!("--uri={}", server.uri()), format!("--bsrange={sizes}"));
        let printed = run(
            "fio",
            &[
                "--name=verify",
                "--ioengine=nbd",
                &uri,
                "--rw=randrw",
                &sizes,
                "--size=16M",
                "--iodepth=16",
                "--verify=crc32c",
                "--verify_fatal=1",
                "--fsync=50",
                // Otherwise fio leaves a state file in the current directory.
                "--verify_state_save=0",
            ],
        );
        assert!(printed.contains("err= 0"), "{printed}");
    }
}

#[test]
fn what_was_flushed_survives_a_kill() {
    let mut server = serve(8, "suspend20", &["--queues", "2"]);
    for round in 0..3u64 {
        let (flushed, forced) = (pattern(round, 3_000_000), pattern(round + 100, 300_000));
        let mut client = server.connect();
        client.write(0, 1_001, &flushed);
        client.ask(FLUSH, 0, 0, 0, b"");
        client.write(FUA, 40_000_000, &forced);
        // Kill the server in the middle of another write.
        client.send(&request(WRITE, 0, 50_000_000, 1_000_000));
        client.send(&[1; 500_000]);
        server.served.signal(Signal::KILL);
        assert!(!server.served.end().success());
        (server.served, server.at) = start(8, "suspend20", &["--queues", "2"], &server.place);
        let mut client = server.connect();
        assert!(client.read(1_001, flushed.len()) == flushed, "what was flushed");
        assert!(client.read(40_000_000, forced.len()) == forced, "what was forced");
    }
}

/// A block device on a file, until it is dropped.
struct Loop(PathBuf);

impl Loop {
    fn on(file: &Path) -> Loop {
        needs_program("losetup");
        needs_rights(&[Right::SysAdmin]);
        let made = Command::new("losetup").args(["--find", "--show"]).arg(file).output();
        let made = made.expect("it runs");
        needs(made.status.success(), "loop devices");
        Loop(text(&made.stdout).trim().into())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

/// The file of the loop device has what a loss of power would leave: data written to the device and not flushed is in
/// the page cache.
#[test]
fn what_was_flushed_to_a_block_device_would_survive_the_loss_of_power() {
    needs_program("nbdinfo");
    let place = TempDir::new("nbd-loop");
    let below = std::fs::File::create_new(place.socket("below")).expect("a file");
    below.set_len(64 << 20).expect("a size");
    let device = Loop::on(&place.socket("below"));
    let below = std::fs::File::open(place.socket("below")).expect("it is there");
    let lies = |at: u64, bytes: &[u8]| {
        let mut bytes_below = vec![0; bytes.len()];
        below.read_exact_at(&mut bytes_below, at).expect("it has that size");
        bytes_below == bytes
    };
    let (served, at) = start_on(&device.0, 13, "suspend20", &["--queues", "2"], &place);
    let uri = format!("nbd://{at}");
    assert_eq!(run("nbdinfo", &["--size", &uri]).trim(), (64 << 20).to_string());
    let server = Server { served, at, place };
    let mut client = server.connect();
    let (written, forced) = (pattern(1, 300_000), pattern(2, 300_000));
    // Several tries, as the kernel may write back at any time by itself.
    let waits = (0..10).any(|round| {
        client.write(0, round << 20, &written);
        let waits = !lies(round << 20, &written);
        client.ask(FLUSH, 0, 0, 0, b"");
        assert!(lies(round << 20, &written), "it was flushed");
        waits
    });
    assert!(waits, "what is not flushed is not there either: this shows nothing");
    client.write(FUA, 20_000_001, &forced);
    assert!(lies(20_000_001, &forced), "it was forced");
    client.ask(WRITE_ZEROES, FUA, 20_000_001, 300_000, b"");
    assert!(lies(20_000_001, &[0; 300_000]), "the zeroes were forced");
    let second = common::napkin([
        "serve",
        "nbd",
        "--device",
        "tap:nkz",
        "--file",
        &device.0.to_string_lossy(),
    ]);
    let error = text(&second.stderr);
    assert!(error.contains("another program has it"), "{error}");
    drop(server);
}

#[test]
fn connections_on_all_queues_see_one_disk() {
    for (n, more) in (9..).zip([&["--queues", "4"][..], &["--queues", "4", "--size", "1M"]]) {
        let server = serve(n, "base", more);
        let mut clients: Vec<Client> = (0..16).map(|_| server.connect()).collect();
        for (turn, client) in clients.iter_mut().enumerate() {
            client.write(0, turn as u64 * 1_000, &[turn as u8; 1_000]);
        }
        clients.reverse();
        let all: Vec<u8> = (0..16_000).map(|place| (place / 1_000) as u8).collect();
        for client in &mut clients {
            assert!(client.read(0, 16_000) == all);
        }
    }
}

#[test]
fn who_reads_nothing_dribbles_or_dies_harms_nobody_else() {
    let mut server = serve(11, "base", &[]);
    let mut other = server.connect();
    other.write(0, 0, &pattern(5, 100_000));
    // A client that sends requests and never reads: it is blocked.
    let mut greedy = server.connect();
    greedy.0.set_write_timeout(Some(Duration::from_millis(200))).expect("a timeout");
    let ask = request(READ, 0, 0, 32 << 20).repeat(1_000);
    while greedy.0.write_all(&ask).is_ok() {}
    // A client that sends each byte in a segment of its own.
    let mut slow = server.connect();
    for byte in [&request(WRITE, FUA, 200_000, 50)[..], &[9; 50]].concat() {
        slow.send(&[byte]);
    }
    assert_eq!(slow.take(16)[..8], *b"\x67\x44\x66\x98\0\0\0\0");
    // Clients that close in the middle of a header, of a payload, and of an answer.
    server.connect().send(&request(WRITE, 0, 0, 10)[..20]);
    let mut gone = server.connect();
    gone.send(&[&request(WRITE, 0, 300_000, 10_000_000)[..], &[1; 5_000]].concat());
    drop(gone);
    let mut deaf = server.connect();
    deaf.send(&request(READ, 0, 0, 32 << 20));
    deaf.take(1_000);
    drop(deaf);
    // A client of another protocol.
    let mut stranger = server.connect();
    stranger.send(b"GET / HTTP/1.1\r\n\r\n");
    assert_eq!(stranger.0.read(&mut [0; 9]).expect("its end"), 0);
    assert!(other.read(0, 100_000) == pattern(5, 100_000));
    assert_eq!(other.read(200_000, 50), [9; 50]);
    let memory = std::fs::read_to_string(format!("/proc/{}/status", server.served.pid()));
    let memory = memory.expect("it runs");
    let held = memory.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a line");
    let held: u64 = held.trim().trim_end_matches(" kB").parse().expect("kilobytes");
    assert!(held < 200_000, "{held} kB for a few connections");
    drop(greedy);
    server.served.signal(Signal::TERM);
    assert!(server.served.end().success());
}

#[test]
fn a_block_device_has_its_own_size_and_takes_zeroes_and_trims_anywhere() {
    needs_a_device();
    let place = TempDir::new("nbd-block");
    // A multiple of the sector size, with an incomplete page at the end.
    let size = (8u64 << 20) + 512;
    std::fs::File::create(place.socket("below")).expect("a file").set_len(size).expect("a size");
    let device = Loop::on(&place.socket("below"));
    let (served, at) = start_on(&device.0, 12, "base", &[], &place);
    let server = Server { served, at, place };
    let mut client = server.connect();
    client.write(FUA, 8 << 20, &[7; 512]);
    assert_eq!(client.read(8 << 20, 512), [7; 512]);
    client.send(&[&request(WRITE, 0, 8 << 20, 513)[..], &[7; 513]].concat());
    assert_eq!(client.take(16)[4..8], 28u32.to_be_bytes(), "no room beyond the end");
    // In whole blocks and across them; trimmed ranges may read as anything.
    let mut expected = pattern(1, 1_000_003);
    client.write(0, 4_097, &expected);
    client.ask(WRITE_ZEROES, FUA, 4_097, 100_000, b"");
    client.ask(WRITE_ZEROES, NO_HOLE | FUA, 131_072, 65_536, b"");
    client.ask(TRIM, 0, 524_288, 65_536, b"");
    expected[..100_000].fill(0);
    expected[131_072 - 4_097..131_072 - 4_097 + 65_536].fill(0);
    for (at, length) in [(4_097, 524_288 - 4_097), (524_288 + 65_536, 300_000)] {
        let wanted = &expected[at - 4_097..at - 4_097 + length];
        assert!(client.read(at as u64, length) == wanted, "{length} at {at}");
    }
    drop(server);
}

#[test]
fn who_has_a_block_device_open_is_told() {
    needs_a_device();
    let place = TempDir::new("nbd-open");
    std::fs::File::create(place.socket("below")).expect("a file").set_len(1 << 20).expect("a size");
    let device = Loop::on(&place.socket("below"));
    let opened = std::fs::File::open(&device.0).expect("it opens");
    let (mut served, _) = start_on(&device.0, 16, "base", &[], &place);
    let warned = format!("{} is open in {} (", device.0.display(), std::process::id());
    assert!(served.log().contains(&warned), "{}", served.log());
    served.signal(Signal::TERM);
    assert!(served.end().success());
    drop(opened);
    let (served, _) = start_on(&device.0, 16, "base", &["--read-only"], &place);
    assert!(!served.log().contains("is open in"), "{}", served.log());
    drop(served);
}

#[test]
fn qemu_reads_writes_compares_and_discards() {
    needs_program("qemu-io");
    needs_program("qemu-img");
    let server = serve(14, "suspend20", &["--queues", "2"]);
    let uri = server.uri();
    let commands = [
        "write -P 0xab 1M 3M",
        "flush",
        "read -P 0xab 1M 3M",
        "write -z 2M 512k",
        "read -P 0 2M 512k",
        "discard 1M 64k",
        "aio_write -P 1 8M 1M",
        "aio_write -P 2 12M 1M",
        "aio_flush",
        "read -P 1 8M 1M",
        "read -P 2 12M 1M",
    ];
    let args: Vec<&str> = commands.iter().flat_map(|it| ["-c", it]).collect();
    let printed = run("qemu-io", &[&["-f", "raw"], &args[..], &[&uri]].concat());
    assert!(!printed.contains("verification failed"), "{printed}");
    let path = |name: &str| server.place.socket(name).to_str().expect("plain").to_owned();
    let (source, back) = (path("there"), path("back"));
    std::fs::write(&source, [pattern(3, 5_000_000), vec![0; (64 << 20) - 5_000_000]].concat())
        .expect("a file");
    run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", &source, &uri]);
    let printed = run("qemu-img", &["compare", "-f", "raw", "-F", "raw", &source, &uri]);
    assert!(printed.contains("identical"), "{printed}");
    run("qemu-img", &["convert", "-f", "raw", "-O", "raw", &uri, &back]);
    assert!(std::fs::read(&source).expect("a file") == std::fs::read(&back).expect("a file"));
}

#[test]
fn clients_that_die_in_the_middle_leave_nothing_behind() {
    let server = serve(15, "base", &["--queues", "2"]);
    let proc = format!("/proc/{}", server.served.pid());
    let open = || {
        let fds = std::fs::read_dir(format!("{proc}/fd")).expect("it runs").flatten();
        let links = fds.filter_map(|fd| std::fs::read_link(fd.path()).ok());
        // Not those in /proc: the server's status keeps one per thread, and the kernel adds threads for its disk.
        links.filter(|link| !link.starts_with("/proc")).count()
    };
    let held = || {
        let status = std::fs::read_to_string(format!("{proc}/status")).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("kilobytes")
    };
    let die = |times: u64| {
        for turn in 0..times {
            // Close in a read that is partly answered, in a write, and in a write after reads whose answers are not
            // taken, so that disk, buffers and segments are all in use.
            let (mut deaf, mut gone, mut both) =
                (server.connect(), server.connect(), server.connect());
            deaf.send(&request(READ, 0, turn * 4_096, 32 << 20));
            deaf.take(1_000);
            gone.send(&[&request(WRITE, FUA, 0, 3_000_000)[..], &[1; 600_000]].concat());
            both.send(&request(READ, 0, 0, 1 << 20).repeat(20));
            both.send(&[&request(WRITE, 0, 9_000, 100_000)[..], &[2; 50_000]].concat());
        }
    };
    die(20);
    let (files, before) = (open(), held());
    die(100);
    // Their requests may still be under way.
    within("the memory of those that died is given back", || {
        (held() < before + 16_384).then_some(())
    });
    assert_eq!(open(), files, "no descriptor is left");
    let mut client = server.connect();
    client.write(FUA, 5_000_000, b"alive");
    assert_eq!(client.read(5_000_000, 5), b"alive");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let place = TempDir::new("nbd-refused");
    let nothing = place.socket("nothing");
    let nothing = nothing.to_str().expect("plain");
    for (args, code, part) in [
        (&["--device", "synthetic"][..], 2, "nbd needs TCP: give --device tap:NAME"),
        (&["--device", "tap:nkz", "--size", "0"], 2, "1 byte to 64 GiB, not 0 bytes"),
        (&["--device", "tap:nkz", "--size", "65G"], 2, "64 GiB"),
        (&["--device", "tap:nkz", "--size", "1 GB"], 2, "as in 512M"),
        (&["--device", "tap:nkz", "--size", "1M", "--file", nothing], 2, "cannot be used with"),
        (&["--device", "tap:nkz", "--file", nothing], 1, "make one: truncate -s 1G"),
        (&["--device", "tap:nkz", "--file", "/dev/null"], 1, "neither a file nor a block device"),
        (&["--device", "tap:nkz", "--export", &"n".repeat(5_000)], 2, "at most 4096 bytes"),
    ] {
        let args = [&["serve", "nbd"], args].concat();
        let output = common::napkin(args.iter().copied());
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {error}");
        assert!(error.contains(part), "{args:?}: {error}");
    }
    assert!(!Path::new(nothing).exists());
}

napkin_testing::main!();
