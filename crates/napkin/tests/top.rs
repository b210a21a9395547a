//! `napkin top` on a real terminal and in a pipe, against an engine on synthetic traffic.

mod common;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use common::namespace::needs_rights;
use common::{Served, TempDir, napkin, text, within};
use napkin_os::rights::Right;
use napkin_testing::{needs_program, test};
use rustix::process::{Pid, Signal, kill_process};

/// Two devices with two instances each.
const ENGINE: &[&str] = &[
    "echo",
    "--queues",
    "2",
    "--rate",
    "2000",
    "--device",
    "synthetic=defer200",
    "--device",
    "synthetic=threaded",
];

/// A tmux terminal with a shell that runs `napkin top` and prints the state in which it leaves the terminal.
struct Terminal {
    /// The socket of the tmux server, which tmux does not remove; it is removed with the directory.
    server: PathBuf,
    pid: PathBuf,
}

impl Terminal {
    fn open(place: &TempDir, control: &Path, columns: u32, lines: u32, more: &str) -> Terminal {
        let args = format!("--engine {} {more}", control.display());
        Terminal::showing(place, columns, lines, &args)
    }

    fn showing(place: &TempDir, columns: u32, lines: u32, args: &str) -> Terminal {
        needs_program("tmux");
        // A new name for each: a tmux server that was ended keeps its socket for a moment.
        static OPENED: AtomicU32 = AtomicU32::new(0);
        let number = OPENED.fetch_add(1, Ordering::Relaxed);
        let server = place.0.join(format!("tmux-{number}"));
        let terminal = Terminal { server, pid: place.0.join("pid") };
        let binary = env!("CARGO_BIN_EXE_napkin");
        let shell = format!(
            "echo before; stty -g > '{0}/before'; \
             sh -c 'echo $$ > {0}/pid; exec {binary} top --interval 200ms {args}'; \
             echo ended $?; stty -g > '{0}/after'; \
             cmp '{0}/before' '{0}/after' && echo as it was; exec sleep 60",
            place.0.display(),
        );
        let size = [columns.to_string(), lines.to_string()];
        let args = ["new-session", "-d", "-x", &size[0], "-y", &size[1], "sh", "-c", &shell];
        let started = terminal.tmux(&args).expect("it is installed");
        assert!(started.status.success(), "{}", text(&started.stderr));
        terminal
    }

    fn tmux(&self, args: &[&str]) -> std::io::Result<Output> {
        Command::new("tmux")
            .arg("-S")
            .arg(&self.server)
            .args(["-f", "/dev/null"])
            .args(args)
            .output()
    }

    fn screen(&self) -> String {
        text(&self.tmux(&["capture-pane", "-p"]).expect("it runs").stdout)
    }

    fn press(&self, key: &str) {
        assert!(self.tmux(&["send-keys", key]).expect("it runs").status.success());
    }

    /// Waits until `so` is true of the screen, and returns the screen.
    fn shows(&self, what: &str, so: impl Fn(&str) -> bool) -> String {
        within(what, || {
            let screen = self.screen();
            let is_so = so(&screen);
            if !is_so && std::env::var_os("NAPKIN_TEST_SCREENS").is_some() {
                eprintln!("{screen}");
            }
            is_so.then_some(screen)
        })
    }

    fn napkin(&self) -> Pid {
        within("its pid", || {
            let pid = std::fs::read_to_string(&self.pid).ok()?.trim().parse().ok()?;
            Pid::from_raw(pid)
        })
    }

    /// Checks that the terminal is restored and that napkin exited with this code.
    fn check_restored(&self, code: i32) {
        let screen = self.shows("its end", |screen| screen.contains("as it was"));
        assert!(screen.contains("before") && screen.contains(&format!("ended {code}")), "{screen}");
        let flags = ["display-message", "-p", "#{alternate_on} #{cursor_flag} #{wrap_flag}"];
        let flags = self.tmux(&flags).expect("it runs").stdout;
        assert_eq!(text(&flags).trim(), "0 1 1", "no alternate screen, a cursor, wrapping");
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.tmux(&["kill-server"]);
    }
}

fn engine(place: &TempDir, args: &[&str]) -> Served {
    Served::start(&place.socket("a.sock"), args).expect("it starts")
}

/// The lines of instances.
fn rows(screen: &str) -> Vec<&str> {
    // The detail of the selected instance begins with its name as well.
    let of_table =
        |line: &&str| line.split_whitespace().nth(1).is_some_and(|id| !id.ends_with(':'));
    screen.lines().filter(|line| line.starts_with("syn")).filter(of_table).collect()
}

/// Whether each line has a packet count above 0.
fn counts(screen: &str) -> bool {
    let packets =
        |row: &&str| row.split_whitespace().nth(2).is_some_and(|it| it != "-" && it != "0");
    !rows(screen).is_empty() && rows(screen).iter().all(packets)
}

#[test]
fn somebody_looks_sorts_filters_pauses_and_leaves() {
    let place = TempDir::new("top-keys");
    let served = engine(&place, ENGINE);
    let terminal = Terminal::open(&place, &served.control, 80, 24, "");
    let screen = terminal.shows("rates", |screen| rows(screen).len() == 4 && counts(screen));
    assert!(screen.starts_with("napkin top: engine a.sock (process "), "{screen}");
    assert!(screen.lines().next().is_some_and(|line| line.ends_with("4 instances  every 200ms")));
    assert!(screen.contains(" defer200 ") && screen.contains(" threaded "), "{screen}");
    assert!(screen.contains(&format!("napkin[{}]", served.pid())), "{screen}");

    // Sort by id: back from the packets column, past those that come before it.
    terminal.press("SSSS");
    let ids = |screen: &str| -> Vec<String> {
        let id = |row: &str| row.split_whitespace().nth(1).map(str::to_owned);
        rows(screen).into_iter().filter_map(id).collect()
    };
    terminal.shows("the order", |screen| ids(screen) == ["1", "2", "3", "4"]);
    terminal.press("r");
    terminal.shows("the order", |screen| ids(screen) == ["4", "3", "2", "1"]);

    terminal.press("/");
    terminal.press("syn1");
    terminal
        .shows("a filter", |screen| ids(screen) == ["4", "3"] && screen.contains("filter: syn1_"));
    terminal.press("Enter");
    terminal.shows("a filter", |screen| screen.contains("4 instances, 2 hidden"));
    terminal.press("Escape");
    terminal.shows("no filter", |screen| rows(screen).len() == 4);

    terminal.press("Down");
    terminal.shows("the selected", |screen| screen.contains("syn1 4:  rx 1"));
    terminal.press("p");
    terminal
        .shows("a pause", |screen| screen.lines().next().is_some_and(|it| it.ends_with("PAUSED")));
    terminal.press("p");
    terminal.shows("no pause", |screen| !screen.contains("PAUSED"));

    terminal.press("h");
    terminal.shows("help", |screen| screen.starts_with("napkin top: help"));
    terminal.press("x");
    terminal.shows("no help", |screen| rows(screen).len() == 4);
    terminal.press("q");
    terminal.check_restored(0);
}

#[test]
fn a_signal_ends_it_and_the_terminal_is_given_back() {
    let place = TempDir::new("top-signal");
    let served = engine(&place, ENGINE);
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let terminal = Terminal::open(&place, &served.control, 80, 24, "");
        terminal.shows("rates", counts);
        kill_process(terminal.napkin(), signal).expect("it is ours");
        terminal.check_restored(0);
        std::fs::remove_file(&terminal.pid).expect("it is ours");
    }
}

#[test]
fn a_signal_gives_the_terminal_back_while_a_thread_times_requests() {
    needs_rights(&[Right::Bpf, Right::Perfmon]);
    let place = TempDir::new("top-latency");
    let terminal = Terminal::showing(&place, 80, 24, "--latency");
    terminal.shows("the view", |screen| screen.starts_with("napkin top"));
    kill_process(terminal.napkin(), Signal::TERM).expect("it is ours");
    terminal.check_restored(0);
}

#[test]
fn it_ends_with_its_terminal() {
    let place = TempDir::new("top-closed");
    let served = engine(&place, ENGINE);
    let terminal = Terminal::open(&place, &served.control, 80, 24, "");
    terminal.shows("rates", counts);
    let process = format!("/proc/{}", terminal.napkin().as_raw_nonzero());
    assert!(Path::new(&process).exists());
    assert!(terminal.tmux(&["kill-server"]).expect("it runs").status.success());
    within("its end", || (!Path::new(&process).exists()).then_some(()));
}

#[test]
fn a_wider_terminal_shows_every_column_and_a_tiny_one_what_it_can() {
    let place = TempDir::new("top-size");
    let served =
        engine(&place, &["echo", "--queues", "40", "--rate", "20000", "--device", "synthetic"]);
    let terminal = Terminal::open(&place, &served.control, 80, 24, "");
    terminal.shows("rates", |screen| screen.contains(" of 40"));
    let resize = |columns: &str, lines: &str| {
        let sized = terminal.tmux(&["resize-window", "-x", columns, "-y", lines]).expect("it runs");
        assert!(sized.status.success(), "{}", text(&sized.stderr));
    };
    resize("200", "60");
    terminal.shows("every column", |screen| {
        let names = screen.lines().find(|line| line.starts_with("dev ")).unwrap_or_default();
        ["softirq", "thread", "wdog", "squeeze", "full", "irq"].iter().all(|it| names.contains(it))
    });
    resize("12", "3");
    terminal.shows("little", |screen| screen.contains("napkin top"));
    terminal.press("q");
    resize("80", "24");
    terminal.check_restored(0);
}

#[test]
fn an_engine_that_ends_is_said_and_one_that_comes_again_is_watched() {
    let place = TempDir::new("top-gone");
    let served = engine(&place, ENGINE);
    let terminal = Terminal::open(&place, &served.control, 80, 24, "");
    terminal.shows("rates", counts);
    drop(served);
    terminal.shows("why", |screen| screen.contains("no engine is controlled over"));
    let restarted = engine(&place, ENGINE);
    let process = format!("(process {})", restarted.pid());
    terminal.shows("the new one", |screen| screen.contains(&process) && counts(screen));
    terminal.press("q");
    terminal.check_restored(0);
}

#[test]
fn it_stops_only_where_a_shell_can_have_it_go_on() {
    let place = TempDir::new("top-stop");
    let served = engine(&place, ENGINE);
    let terminal = Terminal::open(&place, &served.control, 80, 24, "-n 1000000");
    terminal.shows("rates", counts);
    // Without job control nothing could continue it, so it does not stop. napkin-top tests it under a shell's job
    // control.
    terminal.press("C-z");
    terminal.shows("rates", counts);
    terminal.press("C-c");
    terminal.check_restored(0);
}

#[test]
fn json_has_a_line_an_interval() {
    let place = TempDir::new("top-json");
    let served = engine(&place, ENGINE);
    let control = served.control.to_str().expect("a plain path");
    let args = ["top", "--engine", control, "--batch", "--json", "-n", "3", "--interval", "100ms"];
    let output = napkin(args.into_iter().chain(["--filter", "syn1"]));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lines: Vec<serde_json::Value> = text(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(lines.len(), 3);
    for line in &lines {
        assert!(line["window_ns"].as_u64().is_some_and(|window| window > 0));
        let napis = line["napis"].as_array().expect("instances");
        assert!(napis.len() == 2 && napis.iter().all(|napi| napi["ifname"] == "syn1"), "{line}");
        assert!(
            napis.iter().all(|napi| napi["softirq_polls_per_s"] == 0.0),
            "threads poll: {line}"
        );
        assert!(napis.iter().all(|napi| napi["pid"].is_number() && napi["irq"].is_null()));
        assert!(!line["cpus"].as_array().expect("CPUs").is_empty());
    }
    let seen = |line: &serde_json::Value| line["napis"][0]["packets_per_s"].as_f64() > Some(0.0);
    assert!(lines.iter().any(seen), "{lines:?}");
}

#[test]
fn a_reader_that_has_had_enough_is_no_failure() {
    let place = TempDir::new("top-pipe");
    let served = engine(&place, ENGINE);
    let mut child = Command::new(env!("CARGO_BIN_EXE_napkin"))
        .args(["top", "--batch", "--interval", "100ms", "--engine"])
        .arg(&served.control)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut first = String::new();
    BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut first).expect("a line");
    assert!(first.starts_with("engine a.sock (process "), "{first}");
    let status = within("its end", || child.try_wait().expect("our child"));
    assert!(status.success(), "{status}");
}

/// The output of `napkin top` in a namespace with a veth, started by the command `with`.
fn on_a_veth(with: &str) -> serde_json::Value {
    let shell = format!(
        "ip link add va type veth peer name vb && ip link set va up && ip link set vb up && \
         ethtool -K va gro on && \
         exec {with} {} top --batch --json -n 1 --interval 300ms",
        env!("CARGO_BIN_EXE_napkin"),
    );
    let output = Command::new("unshare").args(["-n", "sh", "-c", &shell]).output();
    let output = output.expect("it is installed");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let line = text(&output.stdout);
    serde_json::from_str(line.trim()).expect("one line of JSON")
}

#[test]
fn the_kernel_s_instances_are_counted_and_without_the_right_said_to_be_not() {
    needs_rights(&[Right::SysAdmin, Right::NetAdmin, Right::Bpf, Right::Perfmon]);
    for program in ["unshare", "ip", "ethtool", "setpriv"] {
        needs_program(program);
    }
    let counted = on_a_veth("");
    assert!(counted["watched"].as_str().is_some_and(|it| it.starts_with("Linux ")), "{counted}");
    let napi = &counted["napis"][0];
    assert_eq!((&napi["ifname"], &napi["policy"]), (&"va".into(), &"base".into()), "{counted}");
    assert!(napi["polls_per_s"].is_number() && napi["irq"].is_null(), "{counted}");

    let bare = "setpriv --bounding-set=-all --inh-caps=-all";
    let uncounted = on_a_veth(bare);
    let napi = &uncounted["napis"][0];
    assert_eq!(napi["ifname"], "va", "{uncounted}");
    assert!(napi["polls_per_s"].is_null() && napi["packets_per_s"].is_null(), "{uncounted}");
    assert!(uncounted["notes"].to_string().contains("CAP_BPF"), "{uncounted}");
}

#[test]
fn what_makes_no_sense_is_refused_with_what_would() {
    for (args, part) in [
        (&["--interval", "50ms"][..], "100ms"),
        (&["--sort", "speed"], "thr-cpu"),
        (&["--json"], "--batch"),
        (&["--batch", "-n", "0"], "1.."),
    ] {
        let output = napkin(["top"].into_iter().chain(args.iter().copied()));
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).contains(part), "{args:?}: {}", text(&output.stderr));
    }
    let place = TempDir::new("top-nobody");
    let nobody = place.socket("nobody.sock");
    let output = napkin(["top", "--batch", "--engine", nobody.to_str().expect("a plain path")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("nothing listens there"), "{}", text(&output.stderr));
    let served = engine(&place, ENGINE);
    let output = napkin(["top", "--engine", served.control.to_str().expect("a plain path")]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--batch"), "{}", text(&output.stderr));
}

napkin_testing::main!();
