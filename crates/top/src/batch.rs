//! Output for scripts and files: a table, or a line of JSON, for every window.

use std::io::{self, ErrorKind, Write};
use std::time::{Duration, Instant};

use napkin_policy::text::{escaped_json, escaped_lines};
use serde::Serialize;
use thiserror::Error;

use crate::column::Column;
use crate::screen::{Options, SHORTEST};
use crate::text::{rate, share, width};
use crate::view::View;
use napkin_watch::{CpuShares, Meter, Rates, Source, SourceError};

/// Why the output ended early.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BatchError {
    /// The source is gone.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The output cannot be written, for another reason than that its reader has gone.
    #[error("cannot write: {0}")]
    Output(io::Error),
}

/// One window as JSON: the title and the rates.
#[derive(Debug, Serialize)]
struct Line<'a> {
    watched: &'a str,
    #[serde(flatten)]
    rates: &'a Rates,
}

/// Prints `options.count` windows, or until the reader closes the output, which is no error. The view selects
/// and sorts the instances.
///
/// # Errors
/// If the source is gone, or the output cannot be written.
pub fn run(
    source: &mut dyn Source,
    view: &View,
    options: &Options,
    json: bool,
    out: &mut dyn Write,
) -> Result<(), BatchError> {
    let interval = options.interval.max(SHORTEST);
    let mut meter = Meter::default();
    meter.restart(source.sample()?);
    let mut due = Instant::now();
    let mut printed = 0;
    while options.count.is_none_or(|count| printed < count) {
        // Each window starts when the previous one was due, so that printing does not lengthen it. After a
        // stop, missed windows are skipped.
        due = (due + interval).max(Instant::now());
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let rates = chosen(view, meter.take(source.sample()?));
        let text =
            if json { line(&source.title(), &rates) } else { table(&source.title(), &rates) };
        let text = if json { escaped_json(&text) } else { escaped_lines(&text) };
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            Err(error) => return Err(BatchError::Output(error)),
        }
        printed += 1;
    }
    Ok(())
}

/// The instances that the view shows, in its order.
fn chosen(view: &View, rates: Rates) -> Rates {
    let napis = view.rows(&rates).into_iter().cloned().collect();
    Rates { napis, ..rates }
}

/// Formats one line of JSON.
fn line(watched: &str, rates: &Rates) -> String {
    // Serialising numbers, strings and lists cannot fail.
    let mut text = serde_json::to_string(&Line { watched, rates }).unwrap_or_default();
    text.push('\n');
    text
}

/// Formats all columns at their full width, followed by an empty line.
fn table(watched: &str, rates: &Rates) -> String {
    let window = Duration::from_nanos(rates.window_ns.unwrap_or(0));
    let all = rates.napis.len();
    let mut text = format!("{watched}: {all} instances in {:.2} s\n", window.as_secs_f64());
    let rows: Vec<Vec<String>> = [Column::ALL.map(|it| it.name().to_owned()).to_vec()]
        .into_iter()
        .chain(rates.napis.iter().map(|napi| Column::ALL.map(|it| it.cell(napi)).to_vec()))
        .collect();
    let names = Column::ALL.map(Column::is_text);
    if all > 0 {
        text += &aligned(&rows, &names);
    }
    if !rates.cpus.is_empty() {
        let names = ["cpu", "hard", "soft", "thread", "idle", "steal", "squeeze"];
        let rows: Vec<Vec<String>> = [names.map(str::to_owned).to_vec()]
            .into_iter()
            .chain(rates.cpus.iter().map(cpu))
            .collect();
        text += &aligned(&rows, &[false; 7]);
    }
    for note in &rates.notes {
        text += &format!("note: {note}\n");
    }
    text.push('\n');
    text
}

fn cpu(cpu: &CpuShares) -> Vec<String> {
    let parts = [cpu.hard_irq, cpu.softirq, cpu.thread, cpu.idle, cpu.steal];
    [cpu.cpu.to_string()]
        .into_iter()
        .chain(parts.map(share))
        .chain([rate(cpu.time_squeezes_per_s)])
        .collect()
}

fn aligned(rows: &[Vec<String>], names: &[bool]) -> String {
    let widths: Vec<usize> = (0..names.len())
        .map(|place| rows.iter().filter_map(|row| row.get(place)).map(|it| width(it)).max())
        .map(|widest| widest.unwrap_or(0))
        .collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for ((cell, has), is_name) in row.iter().zip(&widths).zip(names) {
            let space = " ".repeat(has.saturating_sub(width(cell)));
            let (before, behind) =
                if *is_name { ("", space.as_str()) } else { (space.as_str(), "") };
            line += &format!("{before}{cell}{behind}  ");
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use napkin_watch::{CpuSample, NapiSample, Polls, Sample};

    /// Counts a thousand packets at each sample, and is gone after some.
    struct Steady {
        asked: u64,
        ends: u64,
    }

    impl Source for Steady {
        fn title(&self) -> String {
            "a test".into()
        }

        fn sample(&mut self) -> Result<Sample, SourceError> {
            self.asked += 1;
            if self.asked > self.ends {
                return Err(SourceError("it has gone".into()));
            }
            let napi = |id: u32| NapiSample {
                ifname: "eth0".into(),
                id,
                mode: "base".into(),
                packets: Some(self.asked * 1_000 * u64::from(id)),
                polls: Some(Polls { softirq: self.asked, ..Polls::default() }),
                ..NapiSample::default()
            };
            let cpu = CpuSample { idle_ns: self.asked * 1_000, ..CpuSample::default() };
            Ok(Sample {
                at_ns: self.asked * 1_000_000_000,
                process: None,
                napis: vec![napi(1), napi(2)],
                cpus: vec![cpu],
                notes: vec!["no interrupts: a test has none".into()],
            })
        }
    }

    fn printed(json: bool, count: Option<u64>, ends: u64) -> (String, Result<(), BatchError>) {
        let options = Options { interval: SHORTEST, count };
        let mut out = Vec::new();
        let mut source = Steady { asked: 0, ends };
        let result = run(&mut source, &View::new(), &options, json, &mut out);
        (String::from_utf8(out).expect("text"), result)
    }

    #[test]
    fn a_table_a_window_with_every_column_and_every_reason() {
        let (text, result) = printed(false, Some(2), 9);
        result.expect("nothing is wrong");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "a test: 2 instances in 1.00 s");
        for column in Column::ALL {
            assert!(lines[1].split_whitespace().any(|name| name == column.name()), "{column}");
        }
        let first: Vec<&str> = lines[2].split_whitespace().collect();
        assert_eq!(first[..8], ["eth0", "2", "-", "-", "-", "2000", "-", "1.0"]);
        assert_eq!(lines[4].split_whitespace().next(), Some("cpu"));
        assert_eq!(lines[6], "note: no interrupts: a test has none");
        assert_eq!((lines[7], lines.len()), ("", 16));
    }

    #[test]
    fn json_is_one_object_a_line_and_what_is_not_known_is_null() {
        let (text, result) = printed(true, Some(2), 9);
        result.expect("nothing is wrong");
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert_eq!(lines.len(), 2);
        for line in lines {
            assert_eq!(line["watched"], "a test");
            assert_eq!(line["window_ns"], 1_000_000_000);
            assert_eq!(line["napis"][0]["packets_per_s"], 2_000.0);
            assert_eq!(line["napis"][1]["id"], 1);
            assert!(line["napis"][0]["interrupts_per_s"].is_null());
            assert_eq!(line["cpus"][0]["idle"], 1.0);
        }
    }

    #[test]
    fn a_source_that_goes_is_an_error_after_what_was_printed() {
        let (text, result) = printed(true, None, 3);
        assert_eq!(result.expect_err("it went").to_string(), "it has gone");
        assert_eq!(text.lines().count(), 2);
    }

    /// An output whose writes fail.
    struct Closed(ErrorKind);

    impl Write for Closed {
        fn write(&mut self, _bytes: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_broken_pipe_is_the_end_and_a_full_disk_an_error() {
        let options = Options { interval: SHORTEST, count: None };
        let to = |kind| {
            let mut source = Steady { asked: 0, ends: 9 };
            run(&mut source, &View::new(), &options, false, &mut Closed(kind))
        };
        to(ErrorKind::BrokenPipe).expect("no error");
        assert!(matches!(to(ErrorKind::StorageFull), Err(BatchError::Output(_))));
    }
}
