//! Where a run is, on standard error.
//!
//! On a terminal one line that is rewritten; otherwise (a log, a pipe, `TERM=dumb`) a plain line as
//! a step begins, at most one a second. It is redrawn only when a step begins, never by a timer: a
//! thread that wakes up to animate a line would disturb what is measured.

use std::fmt;
use std::io::Write;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use napkin_core::text::{escaped, escaped_lines};

use super::length::length;

/// Least time between two plain lines.
const PLAIN_GAP: Duration = Duration::from_secs(1);

/// The progress of a run of a known number of steps. Dropping it takes the line away.
#[derive(Debug)]
pub struct Progress {
    shown: Shown,
    total: u64,
    begun: u64,
    /// Of those that have begun, the ones that an earlier run had done.
    past: u64,
    since: Instant,
}

enum Shown {
    Bar(ProgressBar),
    Plain { out: Box<dyn Write + Send>, last: Option<Instant> },
    Nothing,
}

impl Progress {
    /// Progress on standard error, as a bar if that is a terminal.
    pub fn new(total: u64) -> Progress {
        let bar = ProgressBar::new(total);
        if bar.is_hidden() {
            return Progress::plain(total, Box::new(std::io::stderr()));
        }
        if let Ok(style) =
            ProgressStyle::with_template("[{pos}/{len}] {bar:24} {msg} ({elapsed} so far{prefix})")
        {
            bar.set_style(style);
        }
        Progress::of(Shown::Bar(bar), total)
    }

    /// Plain lines to a writer.
    pub fn plain(total: u64, out: Box<dyn Write + Send>) -> Progress {
        Progress::of(Shown::Plain { out, last: None }, total)
    }

    /// Shows nothing, for `--quiet`.
    pub fn hidden(total: u64) -> Progress {
        Progress::of(Shown::Nothing, total)
    }

    fn of(shown: Shown, total: u64) -> Progress {
        Progress { shown, total, begun: 0, past: 0, since: Instant::now() }
    }

    /// A step has ended, of several that are taken at a time by so many `jobs`. After the first the time
    /// that all of them will take is said.
    pub fn ended(&mut self, name: &str, jobs: NonZeroUsize) {
        let left = self.total.saturating_sub(self.past);
        if self.begun == self.past && left > jobs.get() as u64 {
            let one = self.since.elapsed().as_secs_f64();
            let (cpus, s) = (jobs.get(), if jobs.get() == 1 { "" } else { "s" });
            let all = length(one * left as f64 / cpus as f64);
            let first = length(one);
            self.say(&format!(
                "{left} runs, the first in {first}: about {all} on {cpus} CPU{s} if all are like it"
            ));
        }
        self.begun += 1;
        self.show(Instant::now(), name, self.begun);
    }

    /// A step needs not be taken: an earlier run has done it.
    pub fn past(&mut self) {
        self.begun += 1;
        self.past += 1;
    }

    /// A step begins, and the one before it has ended.
    pub fn step(&mut self, name: &str) {
        self.step_at(Instant::now(), name);
    }

    fn step_at(&mut self, now: Instant, name: &str) {
        self.begun += 1;
        self.show(now, name, self.begun - 1);
    }

    fn show(&mut self, now: Instant, name: &str, ended: u64) {
        let name = &escaped(name);
        let left = self.left(now, ended).map(|left| format!("about {left} left"));
        match &mut self.shown {
            Shown::Bar(bar) => {
                bar.set_message(name.to_owned());
                bar.set_prefix(left.map(|left| format!(", {left}")).unwrap_or_default());
                bar.set_position(ended);
            }
            Shown::Plain { out, last } => {
                let due = last.is_none_or(|last| now.saturating_duration_since(last) >= PLAIN_GAP);
                if due {
                    *last = Some(now);
                    // A progress line that nobody can read is no reason to end a run.
                    let left = left.map(|left| format!(" ({left})")).unwrap_or_default();
                    let _ = writeln!(out, "[{}/{}] {name}{left}", self.begun, self.total);
                }
            }
            Shown::Nothing => {}
        }
    }

    /// What the steps that are left will take if they are like those that ended; nothing below a second.
    fn left(&self, now: Instant, ended: u64) -> Option<String> {
        let ended = ended.saturating_sub(self.past);
        let left = self.total.saturating_sub(self.past + ended);
        let one = now.saturating_duration_since(self.since).as_secs_f64() / ended as f64;
        let seconds = one * left as f64;
        (ended > 0 && seconds >= 1.0).then(|| length(seconds))
    }

    /// Prints a line that stays, above the bar if there is one.
    pub fn say(&mut self, line: &str) {
        let line = &escaped_lines(line);
        match &mut self.shown {
            Shown::Bar(bar) => bar.println(line),
            Shown::Plain { out, .. } => {
                let _ = writeln!(out, "{line}");
            }
            Shown::Nothing => {}
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Shown::Bar(bar) = &self.shown {
            bar.finish_and_clear();
        }
    }
}

impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Shown::Bar(_) => "Bar",
            Shown::Plain { .. } => "Plain",
            Shown::Nothing => "Nothing",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Page(Arc<Mutex<Vec<u8>>>);

    impl Write for Page {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Page {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    #[test]
    fn plain_lines_come_at_most_once_a_second_and_count_what_they_skipped() {
        let page = Page::default();
        let mut progress = Progress::plain(3, Box::new(page.clone()));
        let start = Instant::now();
        progress.step_at(start, "softirq at 10k/s");
        progress.step_at(start + Duration::from_millis(999), "threaded at 10k/s");
        progress.step_at(start + Duration::from_millis(1000), "hold at 10k/s");
        assert_eq!(page.text(), "[1/3] softirq at 10k/s\n[3/3] hold at 10k/s\n");
    }

    #[test]
    fn the_time_that_is_left_is_told_from_the_steps_of_this_run() {
        let page = Page::default();
        let mut progress = Progress::plain(14, Box::new(page.clone()));
        let start = Instant::now();
        progress.since = start;
        (0..10).for_each(|_| progress.past());
        for step in 0..4 {
            progress.step_at(start + Duration::from_secs(step * 20), "base");
        }
        let text = "[11/14] base\n[12/14] base (about 1 min left)\n[13/14] base (about 40 s left)\n\
                    [14/14] base (about 20 s left)\n";
        assert_eq!(page.text(), text);
    }

    #[test]
    fn what_is_said_is_never_skipped() {
        let page = Page::default();
        let mut progress = Progress::plain(1, Box::new(page.clone()));
        progress.say("no real-time priority");
        progress.say("no AF_XDP");
        assert_eq!(page.text(), "no real-time priority\nno AF_XDP\n");
    }

    #[test]
    fn hidden_progress_and_more_steps_than_announced_do_no_harm() {
        let mut progress = Progress::hidden(1);
        progress.step("a");
        progress.step("b");
        progress.say("c");
        assert_eq!(progress.begun, 2);
    }
}
