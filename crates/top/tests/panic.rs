//! Tests that a panicking view restores the terminal before it prints its message.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use napkin_testing::{needs_program, test};
use napkin_top::View;
use napkin_top::screen::{self, Options};
use napkin_watch::{Sample, Source, SourceError};

/// A source that panics at its second sample.
struct Faulty(bool);

impl Source for Faulty {
    fn title(&self) -> String {
        "a source with a bug".into()
    }

    fn sample(&mut self) -> Result<Sample, SourceError> {
        assert!(!self.0, "the bug");
        self.0 = true;
        Ok(Sample { at_ns: 1, ..Sample::default() })
    }
}

/// The child process that the test runs on a terminal.
fn on_a_terminal() -> bool {
    if std::env::var_os("NAPKIN_TEST_ON_A_TERMINAL").is_none() {
        return false;
    }
    let options = Options { interval: Duration::from_millis(100), count: None };
    let ended = screen::run(Box::new(Faulty(false)), View::new(), &options);
    println!("then: {}", ended.expect_err("it panicked"));
    true
}

/// A tmux server of its own, by its socket.
struct Tmux(PathBuf);

impl Tmux {
    fn run(&self, args: &[&str]) -> std::io::Result<Output> {
        Command::new("tmux").arg("-S").arg(&self.0).args(["-f", "/dev/null"]).args(args).output()
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let _ = self.run(&["kill-server"]);
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_panic_gives_the_terminal_back() {
    needs_program("tmux");
    let socket = format!("napkin-test-{}-panic.tmux", std::process::id());
    let tmux = Tmux(std::env::temp_dir().join(socket));
    let this = std::env::current_exe().expect("a path");
    let this = this.display();
    let shell = format!(
        "before=$(stty -g); NAPKIN_TEST_ON_A_TERMINAL=1 '{this}'; \
         test \"$before\" = \"$(stty -g)\" && echo as it was; exec sleep 60"
    );
    let started = tmux.run(&["new-session", "-d", "-x", "100", "-y", "40", "sh", "-c", &shell]);
    let started = started.expect("it is installed");
    assert!(started.status.success(), "{started:?}");
    let start = Instant::now();
    loop {
        let shown = tmux.run(&["capture-pane", "-p"]).expect("it runs").stdout;
        let shown = String::from_utf8_lossy(&shown).into_owned();
        if shown.contains("as it was") {
            assert!(shown.contains("the bug"), "{shown}");
            assert!(shown.contains("then: taking samples ended unexpectedly"), "{shown}");
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "{shown}");
        std::thread::sleep(Duration::from_millis(20));
    }
    let flags = ["display-message", "-p", "#{alternate_on} #{cursor_flag} #{wrap_flag}"];
    let flags = tmux.run(&flags).expect("it runs").stdout;
    assert_eq!(String::from_utf8_lossy(&flags).trim(), "0 1 1");
}

napkin_testing::main!(on_a_terminal);
