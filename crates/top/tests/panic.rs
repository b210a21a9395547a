//! A view that panics gives the terminal back before it says so.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use napkin_top::screen::{self, Options};
use napkin_top::{Sample, Source, SourceError, View};

/// Panics when it is asked again.
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

#[test]
#[ignore = "run by the other test, on a terminal"]
fn on_a_terminal() {
    let options = Options { interval: Duration::from_millis(100), count: None };
    let ended = screen::run(Box::new(Faulty(false)), View::new(), &options);
    println!("then: {}", ended.expect_err("it panicked"));
}

/// A server of its own, by its socket.
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
    let socket = format!("napkin-test-{}-panic.tmux", std::process::id());
    let tmux = Tmux(std::env::temp_dir().join(socket));
    let this = std::env::current_exe().expect("a path");
    let this = this.display();
    let shell = format!(
        "before=$(stty -g); '{this}' --ignored --exact on_a_terminal --nocapture; \
         test \"$before\" = \"$(stty -g)\" && echo as it was; exec sleep 60"
    );
    match tmux.run(&["new-session", "-d", "-x", "100", "-y", "40", "sh", "-c", &shell]) {
        Ok(started) => assert!(started.status.success(), "{started:?}"),
        Err(error) => return eprintln!("skipped: tmux cannot be run: {error}"),
    }
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
