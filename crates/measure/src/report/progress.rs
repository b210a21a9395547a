//! Progress output of a run, on standard error.
//!
//! On a terminal, a single line that is rewritten; otherwise (a log, a pipe, `TERM=dumb`) a plain line at the start
//! of a step, at most one per second. Output happens only at steps, never on a timer: a thread that wakes up to
//! animate a line would disturb the measurement.

use std::fmt;
use std::io::Write;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use napkin_policy::text::{escaped, escaped_lines};

use super::length::length;

/// Minimum time between two plain lines.
const PLAIN_GAP: Duration = Duration::from_secs(1);

/// Progress of a run with a known number of steps. Dropping it removes the line.
#[derive(Debug)]
pub struct Progress {
    shown: Shown,
    total: u64,
    begun: u64,
    /// Of the steps begun, those that an earlier run had completed.
    past: u64,
    /// Share of the remaining work that is done, where steps report their share.
    done: f64,
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
        if let Ok(style) = ProgressStyle::with_template(
            "[{pos}/{len}] {bar:12} ({elapsed} so far{prefix}) {wide_msg}",
        ) {
            bar.set_style(style);
        }
        Progress::of(Shown::Bar(bar), total)
    }

    /// Progress as plain lines to a writer.
    pub fn plain(total: u64, out: Box<dyn Write + Send>) -> Progress {
        Progress::of(Shown::Plain { out, last: None }, total)
    }

    /// No output, for `--quiet`.
    pub fn hidden(total: u64) -> Progress {
        Progress::of(Shown::Nothing, total)
    }

    fn of(shown: Shown, total: u64) -> Progress {
        Progress { shown, total, begun: 0, past: 0, done: 0.0, since: Instant::now() }
    }

    /// Reports that a step has ended, where `jobs` steps run in parallel. After the first, prints an estimate of
    /// the total time.
    pub fn ended(&mut self, name: &str, jobs: NonZeroUsize) {
        let left = self.total.saturating_sub(self.past).max(1);
        self.ended_of(name, jobs, 1.0 / left as f64);
    }

    /// As [`ended`](Self::ended), for a step that makes up `share` of the work of all steps to run.
    pub fn ended_of(&mut self, name: &str, jobs: NonZeroUsize, share: f64) {
        self.ended_at(Instant::now(), name, jobs, share);
    }

    fn ended_at(&mut self, now: Instant, name: &str, jobs: NonZeroUsize, share: f64) {
        let seconds = now.saturating_duration_since(self.since).as_secs_f64();
        let (left, cpus) = (self.total.saturating_sub(self.past), jobs.get());
        if self.begun == self.past && left > cpus as u64 {
            let s = if cpus == 1 { "" } else { "s" };
            let all = length(seconds / share / cpus as f64);
            let first = length(seconds);
            self.print(&format!(
                "{left} runs, the first in {first}: about {all} on {cpus} CPU{s} if all are like it"
            ));
        }
        self.begun += 1;
        self.done += share;
        // On average, the steps still running are half done.
        let done = self.done + share * (cpus - 1) as f64 / 2.0;
        let left = seconds / done * (1.0 - self.done);
        self.show(now, name, self.begun, left);
    }

    /// Skips a step that an earlier run has completed.
    pub fn skip(&mut self) {
        self.begun += 1;
        self.past += 1;
    }

    /// Reports that a step begins, and the previous one has ended.
    pub fn step(&mut self, name: &str) {
        self.step_at(Instant::now(), name);
    }

    fn step_at(&mut self, now: Instant, name: &str) {
        self.begun += 1;
        let ended = self.begun - 1 - self.past;
        let seconds = now.saturating_duration_since(self.since).as_secs_f64();
        let left = self.total.saturating_sub(self.past + ended) as f64;
        self.show(
            now,
            name,
            self.begun - 1,
            if ended > 0 { seconds / ended as f64 * left } else { 0.0 },
        );
    }

    /// Shows a step, the number of steps ended, and the estimated remaining seconds; estimates below a second are
    /// not shown.
    fn show(&mut self, now: Instant, name: &str, ended: u64, left: f64) {
        let name = &escaped(name);
        let left = (left >= 1.0).then(|| format!("about {} left", length(left)));
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
                    // A progress line that cannot be written is no reason to end a run.
                    let left = left.map(|left| format!(" ({left})")).unwrap_or_default();
                    let _ = writeln!(out, "[{}/{}] {name}{left}", self.begun, self.total);
                }
            }
            Shown::Nothing => {}
        }
    }

    /// Prints a permanent line, above the bar if there is one.
    pub fn print(&mut self, line: &str) {
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
    fn the_remaining_time_is_estimated_from_the_steps_of_this_run() {
        let page = Page::default();
        let mut progress = Progress::plain(14, Box::new(page.clone()));
        let start = Instant::now();
        progress.since = start;
        (0..10).for_each(|_| progress.skip());
        for step in 0..4 {
            progress.step_at(start + Duration::from_secs(step * 20), "base");
        }
        let text = "[11/14] base\n[12/14] base (about 1 min left)\n[13/14] base (about 40 s left)\n\
                    [14/14] base (about 20 s left)\n";
        assert_eq!(page.text(), text);
    }

    #[test]
    fn the_remaining_time_is_estimated_by_share_of_the_work() {
        let page = Page::default();
        let mut progress = Progress::plain(5, Box::new(page.clone()));
        let start = Instant::now();
        progress.since = start;
        progress.skip();
        let mut ended = |seconds, share| {
            progress.ended_at(start + Duration::from_secs(seconds), "a", NonZeroUsize::MIN, share);
        };
        ended(60, 0.6);
        ended(80, 0.2);
        let text = "4 runs, the first in 1 min: about 1 min 40 s on 1 CPU if all are like it\n\
                    [2/5] a (about 40 s left)\n[3/5] a (about 20 s left)\n";
        assert_eq!(page.text(), text);
    }

    #[test]
    fn permanent_lines_are_never_skipped() {
        let page = Page::default();
        let mut progress = Progress::plain(1, Box::new(page.clone()));
        progress.print("no real-time priority");
        progress.print("no AF_XDP");
        assert_eq!(page.text(), "no real-time priority\nno AF_XDP\n");
    }

    #[test]
    fn hidden_progress_and_more_steps_than_announced_do_no_harm() {
        let mut progress = Progress::hidden(1);
        progress.step("a");
        progress.step("b");
        progress.print("c");
        assert_eq!(progress.begun, 2);
    }
}
