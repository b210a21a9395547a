//! Names and answers from other programs: sockets of other users are not trusted, and no name acts on a terminal.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use common::{TempDir, napkin, text};
use napkin_kernel::namespace::{Namespace, NamespaceError};
use napkin_kernel::netlink::{Route, VethConfig};
use napkin_testing::{ignore, needs, test};
use rustix::process::{Uid, geteuid};
use rustix::thread::set_thread_res_uid;

/// Clears the screen, sets a colour (by a C1 control), and reverses the text direction.
const EVIL: &str = "\u{1b}[2Je\u{9b}31m\u{202e}";

/// A fake engine that speaks the control protocol and counts its clients.
fn fake_engine(listener: UnixListener) -> Arc<AtomicU32> {
    let asked = Arc::new(AtomicU32::new(0));
    let heard = Arc::clone(&asked);
    // The thread ends with the test program.
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let _ = answer(stream, &heard);
        }
    });
    asked
}

fn answer(mut stream: UnixStream, heard: &AtomicU32) -> std::io::Result<()> {
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line)?;
    if line.is_empty() {
        return Ok(());
    }
    heard.fetch_add(1, Ordering::Relaxed);
    let reply = match line.contains("napi-set") {
        true => serde_json::json!({"version": 1, "error": {
            "code": EVIL, "errno": 1, "message": format!("no{EVIL}\nerror: none at all")}}),
        false => serde_json::json!({"version": 1, "warnings": [format!("beware{EVIL}\nof me")],
            "result": [{"ifindex": 1, "id": 1, "ifname": format!("{EVIL}\neth0"), "mac": EVIL,
                "threaded": EVIL, "napi-ids": [EVIL]}]}),
    };
    writeln!(stream, "{reply}")
}

/// The output of a command, which must contain the name and no control character.
fn harmless(output: &Output) -> String {
    let printed = text(&output.stdout) + &text(&output.stderr);
    let acts = |c: &char| c.is_control() && *c != '\n' || *c == '\u{202e}';
    assert_eq!(printed.chars().find(acts), None, "{printed:?}");
    assert!(printed.contains("[2Je"), "{printed}");
    printed
}

#[test]
fn what_a_server_says_of_itself_is_shown_and_not_obeyed() {
    let place = TempDir::new("fake");
    let path = place.socket("fake.sock");
    fake_engine(UnixListener::bind(&path).expect("a socket"));
    let control = path.to_str().expect("a plain path");
    let ask = |args: &[&str]| napkin(args.iter().copied().chain(["--control", control]));

    let table = harmless(&ask(&["dev-get"]));
    assert!(table.contains("warning: beware\\u{1b}[2Je\\u{9b}31m\\u{202e}\\nof me\n"), "{table}");
    assert!(!table.lines().any(|line| line.starts_with("eth0")), "{table}");
    harmless(&ask(&["napi-get"]));
    let refused = harmless(&ask(&["napi-set", "--id", "1", "--hold", "1ms"]));
    assert!(!refused.contains("\nerror: none"), "{refused}");
    harmless(&napkin([
        "top",
        "--batch",
        "--count",
        "1",
        "--interval",
        "100ms",
        "--engine",
        control,
    ]));

    let json = ask(&["napi-get", "--json"]);
    assert!(harmless(&json).contains("\\u001b[2Je\\u009b31m\\u202e"));
    let values: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(values[0]["mac"], EVIL, "the value is as it came");
}

#[test]
fn a_stranger_is_not_asked() {
    needs(geteuid().is_root(), "root, who alone can be somebody else");
    let place = TempDir::new("stranger");
    let path = place.socket("a.sock");
    let listener = {
        // Changes the uid of this thread only; it is set back below.
        let become_user = |uid| set_thread_res_uid(None::<Uid>, Uid::from_raw(uid), None::<Uid>);
        let everybody = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(&place.0, everybody).expect("it is ours");
        become_user(65_534).expect("root may");
        let listener = UnixListener::bind(&path);
        become_user(0).expect("it was before");
        listener.expect("a socket")
    };
    let asked = fake_engine(listener);
    for command in [&["dev-get", "--control"][..], &["top", "--batch", "--engine"]] {
        let output = napkin(command.iter().copied().chain([path.to_str().expect("a path")]));
        let stderr = text(&output.stderr);
        assert!(
            stderr.contains("is uid 65534, neither uid 0 nor root: nothing was asked"),
            "{stderr}"
        );
        assert_eq!(output.status.code(), Some(1));
    }
    assert_eq!(asked.load(Ordering::Relaxed), 0);
}

#[test]
fn a_directory_that_others_may_write_to_is_not_looked_through() {
    let runtime = TempDir::new("runtime");
    let directory = runtime.0.join("napkin");
    let look = |mode| {
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::DirBuilder::new().mode(0o700).create(&directory).expect("a directory");
        let listener = UnixListener::bind(directory.join("a.sock")).expect("a socket");
        let asked = fake_engine(listener);
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&directory, permissions).expect("it is ours");
        let output = dev_get(&runtime.0);
        (text(&output.stderr), asked.load(Ordering::Relaxed))
    };
    let (message, asked) = look(0o777);
    assert_eq!(asked, 0, "{message}");
    // Unless another engine, unrelated to this test, runs on the host.
    if message.contains("no engine runs") {
        let uid = geteuid().as_raw();
        let why = format!("it is a directory, of uid {uid}, with mode 0777; a directory of uid");
        assert!(message.contains(&why), "{message}");
    }
    let (message, asked) = look(0o700);
    assert!(asked == 1 || message.contains("several engines run"), "{message}");
}

fn dev_get(runtime: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_napkin"));
    command.arg("dev-get").env_remove("NAPKIN_CONTROL").env("XDG_RUNTIME_DIR", runtime);
    command.output().expect("the binary runs")
}

#[test]
fn a_program_may_be_called_anything() {
    let place = TempDir::new("comm");
    // The kernel keeps 15 bytes of the link's name. A link, not a copy: a process that another test forks meanwhile
    // inherits the descriptor that writes the copy, and exec would fail with ETXTBSY.
    let program = place.0.join("\u{1b}[2Je\u{9b}\u{202e}\nx");
    std::os::unix::fs::symlink("/bin/sleep", &program).expect("its directory is ours");
    let mut child = Command::new(&program).arg("60").spawn().expect("it runs");
    let output = napkin(["doctor", &child.id().to_string(), "--for", "10ms"]);
    child.kill().expect("it is ours");
    child.wait().expect("it is ours");
    assert!(harmless(&output).contains("\\u{1b}[2Je\\u{9b}\\u{202e}\\nx"));
}

#[test]
fn an_interface_may_be_called_nearly_anything() {
    let namespace = match Namespace::new() {
        Ok(namespace) => namespace,
        Err(NamespaceError::NoRight { right, .. }) => ignore(format_args!("needs {right}")),
        Err(error) => panic!("{error}"),
    };
    let inside = || {
        let config =
            VethConfig { name: EVIL, peer: "vb", peer_namespace: None, rx_queues: 1, tx_queues: 1 };
        Route::open().expect("a socket").add_veth(&config).expect("a pair");
        let state = TempDir::new("interface");
        for args in [
            &["show"][..],
            &["show", "--json"],
            &["show", EVIL],
            &["doctor", "--dev", EVIL, "--for", "10ms"],
            &["diff", "--dev", EVIL, "suspend20"],
        ] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_napkin"));
            command.args(args).env("NAPKIN_STATE", &state.0);
            harmless(&command.output().expect("the binary runs"));
        }
    };
    namespace.run(inside).expect("entered");
}

napkin_testing::main!();
