//! `napkin export`: scraped over TCP and over a Unix socket, as a file, and checked by promtool.
#![allow(unreachable_pub, reason = "the shared module is another test's as well")]

mod common;
#[path = "../../compare/tests/harness/mod.rs"]
mod harness;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, ExitStatus, Stdio};

use common::namespace::fresh;
use common::{Served, TempDir, add_veth, command, napkin, text, within};
use harness::Bed;
use napkin_client::Load;
use napkin_kernel::netlink::Route;
use napkin_os::rights::Right;
use napkin_testing::{needs, needs_program, test};
use napkin_workload::linux::pair::DEVICE;
use rustix::process::{Pid, Signal, kill_process};

/// A running `napkin export`, and its line on what it exports and where.
struct Exporting {
    child: Child,
    first_line: String,
}

impl Exporting {
    fn start(args: &[&str]) -> Exporting {
        let mut child = command()
            .arg("export")
            .args(args)
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let mut first_line = String::new();
        let stderr = child.stderr.take().expect("it is piped");
        BufReader::new(stderr).read_line(&mut first_line).expect("text");
        Exporting { child, first_line: first_line.trim_end().to_owned() }
    }

    fn port(&self) -> u16 {
        let address = self.first_line.split("http://127.0.0.1:").nth(1).expect("where it listens");
        address.split('/').next().and_then(|port| port.parse().ok()).expect("a port")
    }

    fn end(&mut self) -> ExitStatus {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM).expect("it is ours");
        within("its end", || self.child.try_wait().expect("our child"))
    }
}

impl Drop for Exporting {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn ask(mut stream: impl Read + Write, headers: &str) -> String {
    let request = format!("GET /metrics HTTP/1.1\r\nHost: napkin\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).expect("it listens");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("text");
    answer
}

fn scrape(port: u16, headers: &str) -> String {
    ask(TcpStream::connect(("127.0.0.1", port)).expect("it listens"), headers)
}

/// The value of a metric, named with its labels.
fn value(answer: &str, series: &str) -> Option<f64> {
    let line = answer.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok())
}

/// An engine on synthetic traffic.
fn engine(place: &TempDir) -> Served {
    let args = ["echo", "--rate", "2000", "--device", "synthetic=defer200"];
    Served::start(&place.socket("a.sock"), &args).expect("it starts")
}

#[test]
fn an_engine_is_scraped_in_either_form_and_its_counts_rise() {
    let place = TempDir::new("export-engine");
    let served = engine(&place);
    let control = served.control.to_str().expect("a plain path");
    let mut exporting = Exporting::start(&["--engine", control, "--listen", "127.0.0.1:0"]);
    assert!(
        exporting.first_line.starts_with("engine a.sock (process "),
        "{}",
        exporting.first_line
    );
    let port = exporting.port();
    let packets = "napkin_packets_total{device=\"syn0\",napi=\"1\"}";
    let first = within("packets", || value(&scrape(port, ""), packets).filter(|it| *it > 0.0));
    within("more packets", || value(&scrape(port, ""), packets).filter(|it| *it > first));
    let answer = scrape(port, "");
    assert!(answer.contains("Content-Type: text/plain; version=0.0.4"), "{answer}");
    assert!(answer.contains("napkin_instance_info{device=\"syn0\",napi=\"1\",policy=\"defer200\""));
    assert!(answer.contains("# TYPE napkin_polls_total counter\n"), "{answer}");
    let open = scrape(port, "Accept: application/openmetrics-text;version=1.0.0\r\n");
    assert!(open.contains("# TYPE napkin_polls counter\n") && open.ends_with("# EOF\n"), "{open}");
    drop(served);
    within("its end", || scrape(port, "").starts_with("HTTP/1.1 503 ").then_some(()));
    assert!(exporting.end().success());
}

#[test]
fn a_unix_socket_is_made_and_goes() {
    let place = TempDir::new("export-unix");
    let served = engine(&place);
    let control = served.control.to_str().expect("a plain path");
    let socket = place.socket("metrics.sock");
    let listen = format!("unix:{}", socket.display());
    let mut exporting = Exporting::start(&["--engine", control, "--listen", &listen]);
    let answer = ask(UnixStream::connect(&socket).expect("it listens"), "");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    let second = napkin(["export", "--engine", control, "--listen", &listen]);
    let stderr = text(&second.stderr);
    assert!(!second.status.success() && stderr.contains("another process does"), "{stderr}");
    assert!(exporting.end().success());
    assert!(!socket.exists());
}

#[test]
fn a_file_is_kept_and_goes() {
    let place = TempDir::new("export-file");
    let served = engine(&place);
    let control = served.control.to_str().expect("a plain path");
    let file = place.socket("napkin.prom");
    let path = file.to_str().expect("a plain path");
    let args = ["--engine", control, "--textfile", path, "--interval", "1s"];
    let mut exporting = Exporting::start(&args);
    let read = || std::fs::read_to_string(&file).ok();
    let first = within("a file", read);
    assert!(first.starts_with("# HELP napkin_build_info "), "{first}");
    within("a newer one", || read().filter(|text| *text != first));
    let second = napkin(["export"].into_iter().chain(args));
    let stderr = text(&second.stderr);
    assert_eq!(second.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("is written by another process"), "{stderr}");
    assert!(read().is_some(), "the first one goes on");
    assert!(exporting.end().success());
    assert!(!file.exists());
}

#[test]
fn a_file_in_another_user_s_directory_is_kept_by_root() {
    let root = rustix::process::geteuid().is_root() && Right::DacOverride.held();
    needs(root, "root, and CAP_DAC_OVERRIDE");
    let place = TempDir::new("export-other");
    let served = engine(&place);
    let control = served.control.to_str().expect("a plain path");
    let directory = place.socket("theirs");
    std::fs::create_dir(&directory).expect("a directory");
    std::os::unix::fs::chown(&directory, Some(65_534), Some(65_534)).expect("we are root");
    let file = directory.join("napkin.prom");
    let path = file.to_str().expect("a plain path");
    let args = ["--engine", control, "--textfile", path, "--interval", "1s"];
    let mut exporting = Exporting::start(&args);
    within("a file", || std::fs::read_to_string(&file).ok());
    assert!(exporting.end().success());
    assert!(!file.exists());
}

#[test]
fn promtool_finds_nothing_to_mend() {
    needs_program("promtool");
    let place = TempDir::new("export-promtool");
    let served = engine(&place);
    let control = served.control.to_str().expect("a plain path");
    check(&text(&napkin(["export", "--once", "--engine", control]).stdout));
}

fn check(metrics: &str) {
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it is installed");
    let mut input = promtool.stdin.take().expect("it is piped");
    input.write_all(metrics.as_bytes()).expect("it reads");
    drop(input);
    let output = promtool.wait_with_output().expect("it ends");
    let printed = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success() && printed.is_empty(), "{printed}\n{metrics}");
}

#[test]
fn the_kernel_s_instances_are_exported_and_no_right_is_left_that_changes_any() {
    needs_program("promtool");
    common::namespace::needs_rights(&[
        Right::NetAdmin,
        Right::SysAdmin,
        Right::Bpf,
        Right::Perfmon,
    ]);
    let lab = fresh();
    let scraped = || {
        add_veth(1);
        let mut route = Route::open().expect("a socket");
        let lo = route.link("lo").expect("a loopback").ifindex;
        route.set_up(lo).expect("a link");
        let args = ["apply", "threaded", "--dev", "va", "--for", "30s"];
        let mut apply = KillOnDrop(command().args(args).spawn().expect("it starts"));
        let answer = within("the policy in force", || {
            let mut exporting = Exporting::start(&["--listen", "127.0.0.1:0"]);
            let status = std::fs::read_to_string(format!("/proc/{}/status", exporting.child.id()));
            let answer = scrape(exporting.port(), "");
            assert!(exporting.end().success());
            let status = status.expect("it runs");
            let effective = status.lines().find(|line| line.starts_with("CapEff:"));
            // CAP_PERFMON is bit 38 and CAP_BPF bit 39.
            assert_eq!(effective, Some("CapEff:\t000000c000000000"));
            answer.contains("policy=\"threaded\"").then_some(answer)
        });
        assert!(answer.contains("napkin_polls_total{device=\"va\",napi="), "{answer}");
        let changed = "napkin_changed_settings{device=\"va\",by=\"napkin\"}";
        assert!(value(&answer, changed).is_some_and(|count| count > 0.0), "{answer}");
        check(answer.split("\r\n\r\n").nth(1).expect("a body"));
        let pid = Pid::from_child(&apply.0);
        kill_process(pid, Signal::TERM).expect("it is ours");
        within("its end", || apply.0.try_wait().expect("our child"));
    };
    lab.run(scraped).expect("the namespace is ours");
}

#[test]
fn requests_are_timed_if_asked_for_in_histograms_and_in_top() {
    needs_program("promtool");
    needs_program("memcached");
    common::namespace::needs_rights(&[
        Right::NetAdmin,
        Right::SysAdmin,
        Right::Bpf,
        Right::Perfmon,
    ]);
    let bed = Bed::new();
    let client = bed.client(Load::Open { per_second: 1_000.0 });
    let look = || {
        let mut exporting = Exporting::start(&["--latency", "--listen", "127.0.0.1:0"]);
        let families = ["ring_wait", "socket_wait", "service", "request"];
        let answer = within("requests that were timed", || {
            let answer = scrape(exporting.port(), "");
            let timed =
                |family: &&str| answer.contains(&format!("napkin_{family}_seconds_count{{"));
            families.iter().all(timed).then_some(answer)
        });
        let instance = format!("{{device=\"{DEVICE}\",napi=\"");
        for family in families {
            let of = |what: &str| {
                let series = format!("napkin_{family}_seconds_{what}{instance}");
                let lines = answer.lines().filter(|line| line.starts_with(&series));
                lines.map(|line| line.rsplit_once(' ').expect("a value").1.to_owned()).collect()
            };
            let buckets: Vec<String> = of("bucket");
            let numbers = buckets.iter().map(|it| it.parse::<u64>().expect("a count"));
            assert!(numbers.is_sorted() && buckets.len() == 20, "{buckets:?}");
            let count: Vec<String> = of("count");
            assert_eq!(buckets.last(), count.first(), "the last is +Inf: {answer}");
            let sum: Vec<String> = of("sum");
            assert!(sum[0].parse::<f64>().expect("seconds") > 0.0, "{sum:?}");
        }
        check(answer.split("\r\n\r\n").nth(1).expect("a body"));
        assert!(exporting.end().success());
        let args = ["top", "--latency", "--batch", "--json", "-n", "1", "--interval", "2s"];
        let top = text(&napkin(args).stdout);
        for part in ["\"ring\":{", "\"socket\":{", "\"service\":{"] {
            assert!(top.contains(part), "{top}");
        }
    };
    bed.pair.server.run(look).expect("entered");
    client.stop().expect("it stops");
}

#[test]
fn who_asks_for_times_without_the_right_is_told_which() {
    let bare = if Right::Bpf.held() {
        needs_program("setpriv");
        "setpriv --bounding-set=-all --inh-caps=-all --ambient-caps=-all"
    } else {
        ""
    };
    for asks in ["export --once --latency", "top --batch -n 1 --latency"] {
        let shell = format!("exec {bare} {} {asks}", env!("CARGO_BIN_EXE_napkin"));
        let output = Command::new("sh").args(["-c", &shell]).output().expect("a shell");
        let stderr = text(&output.stderr);
        assert!(!output.status.success(), "{stderr}");
        assert!(
            stderr.contains("requests cannot be timed: ") && stderr.contains("CAP_BPF"),
            "{stderr}"
        );
    }
}

/// Kills a child on drop, also when the test fails.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_is_opened() {
    let refused = |args: &[&str], why: &str| {
        let output = napkin(["export"].into_iter().chain(args.iter().copied()));
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(why), "{stderr}");
    };
    refused(&["--listen", "localhost"], "'localhost' is no address");
    refused(&["--textfile", "/tmp/a.txt"], "does not end in .prom");
    refused(&["--interval", "5s"], "--textfile");
    refused(&["--textfile", "/tmp/a.prom", "--interval", "10ms"], "at least 1s");
}

napkin_testing::main!();
