//! Tests that a view stops like a job of a shell, does not stop where no process could continue it, and ends
//! by itself after the requested number of whole intervals.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use napkin_testing::{needs_program, test};
use napkin_top::View;
use napkin_top::screen::{self, Options};
use napkin_watch::{Sample, Source, SourceError};

/// A source without instances that counts its samples.
struct Steady(Arc<AtomicU64>);

impl Source for Steady {
    fn title(&self) -> String {
        "a steady source".into()
    }

    fn sample(&mut self) -> Result<Sample, SourceError> {
        let before = self.0.fetch_add(1, Ordering::Relaxed);
        Ok(Sample { at_ns: (before + 1) * 100_000_000, ..Sample::default() })
    }
}

/// The child process that the tests run on a terminal.
fn on_a_terminal() -> bool {
    if std::env::var_os("NAPKIN_TEST_ON_A_TERMINAL").is_none() {
        return false;
    }
    let (interval, count) = match std::env::var_os("NAPKIN_TEST_INTERVALS") {
        None => (100, None),
        // Longer than the first window.
        Some(_) => (400, Some(2)),
    };
    let options = Options { interval: Duration::from_millis(interval), count };
    let samples = Arc::new(AtomicU64::new(0));
    let ended = screen::run(Box::new(Steady(Arc::clone(&samples))), View::new(), &options);
    println!("then: {ended:?}, by {} samples", samples.load(Ordering::Relaxed));
    true
}

/// A tmux server of its own, by its socket.
struct Tmux(PathBuf);

impl Tmux {
    /// Opens a terminal on which a shell runs this program between some commands.
    fn new(name: &str, before: &str, after: &str) -> Tmux {
        needs_program("tmux");
        let socket = format!("napkin-test-{}-{name}.tmux", std::process::id());
        let tmux = Tmux(std::env::temp_dir().join(socket));
        let this = std::env::current_exe().expect("a path");
        let this = this.display();
        let shell = format!("{before} NAPKIN_TEST_ON_A_TERMINAL=1 '{this}'; {after} exec sleep 60");
        let args = ["new-session", "-d", "-x", "100", "-y", "40", "sh", "-c", &shell];
        let started = tmux.run(&args).expect("it is installed");
        assert!(started.status.success(), "{started:?}");
        tmux
    }

    fn run(&self, args: &[&str]) -> std::io::Result<Output> {
        Command::new("tmux").arg("-S").arg(&self.0).args(["-f", "/dev/null"]).args(args).output()
    }

    fn press(&self, key: &str) {
        assert!(self.run(&["send-keys", key]).expect("it runs").status.success());
    }

    /// Waits until a text is on the screen.
    fn shows(&self, what: &str) {
        let start = Instant::now();
        loop {
            let shown = self.run(&["capture-pane", "-p"]).expect("it runs").stdout;
            let shown = String::from_utf8_lossy(&shown).into_owned();
            if shown.contains(what) {
                return;
            }
            assert!(start.elapsed() < Duration::from_secs(30), "no {what:?}: {shown}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let _ = self.run(&["kill-server"]);
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_job_of_a_shell_is_stopped_and_goes_on() {
    let after = "echo stopped $?; read go; fg; echo ended $?;";
    let tmux = Tmux::new("stop-job", "set -m;", after);
    tmux.shows("a steady source");
    tmux.press("C-z");
    // SIGTSTP, as the shell reports it.
    tmux.shows("stopped 148");
    tmux.press("Enter");
    tmux.shows("a steady source");
    tmux.press("q");
    tmux.shows("then: Ok(()), ");
    tmux.shows("ended 0");
}

#[test]
fn where_nobody_could_have_it_go_on_it_does_not_stop() {
    // Without job control all are in the group of the terminal's first process, whose parent is elsewhere.
    let tmux = Tmux::new("stop-orphaned", "", "echo ended $?;");
    tmux.shows("a steady source");
    tmux.press("C-z");
    tmux.press("q");
    tmux.shows("then: Ok(()), ");
    tmux.shows("ended 0");
}

#[test]
fn the_short_look_at_the_beginning_is_none_of_the_intervals_that_were_asked_for() {
    let tmux = Tmux::new("stop-count", "NAPKIN_TEST_INTERVALS=2", "echo ended $?;");
    // The initial sample, the short window's, and two more.
    tmux.shows("then: Ok(()), by 4 samples");
    tmux.shows("ended 0");
}

napkin_testing::main!(on_a_terminal);
