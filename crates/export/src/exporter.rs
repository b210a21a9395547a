//! Samples on request, but at most once in half a second: more frequent requests get the same sample.

use std::collections::BTreeMap;

use napkin_watch::{CpuSample, Source, SourceError};

use crate::drift::Drift;
use crate::families::{Family, Kind, Series, families};
use crate::format::Format;

/// The time, in nanoseconds, for which a sample is reused.
const MIN_INTERVAL: u64 = 500_000_000;

/// A CPU's idle time goes back a little at times; a CPU whose idle time went back by more nanoseconds than
/// this was offline, and its counters restart.
const MAX_IDLE_DECREASE: u64 = 3_000_000_000;

/// Exports samples of a source.
pub struct Exporter {
    source: Box<dyn Source>,
    drift: Option<Drift>,
    last: Option<(u64, Vec<Family>)>,
    /// The times of each CPU as last exported.
    cpus: BTreeMap<usize, CpuSample>,
}

impl std::fmt::Debug for Exporter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exporter").field("source", &self.source.title()).finish_non_exhaustive()
    }
}

impl Exporter {
    /// Exports a source's instances; with `drift` also the state of settings that napkin has changed.
    pub fn new(source: Box<dyn Source>, drift: Option<Drift>) -> Exporter {
        Exporter { source, drift, last: None, cpus: BTreeMap::new() }
    }

    /// All metrics as text. `now` is in nanoseconds of the monotonic clock.
    ///
    /// # Errors
    /// If the source is gone.
    pub fn text(&mut self, format: Format, now: u64) -> Result<String, SourceError> {
        let fresh = self.last.as_ref().filter(|(at, _)| now.saturating_sub(*at) < MIN_INTERVAL);
        if fresh.is_none() {
            self.last = None;
            self.last = Some((now, self.families()?));
        }
        Ok(format.write(self.last.iter().flat_map(|(_, families)| families)))
    }

    fn families(&mut self) -> Result<Vec<Family>, SourceError> {
        let mut sample = self.source.sample()?;
        for cpu in &mut sample.cpus {
            if let Some(before) = self.cpus.insert(cpu.cpu, cpu.clone()) {
                keep_monotonic(cpu, &before);
                self.cpus.insert(cpu.cpu, cpu.clone());
            }
        }
        let mut all = vec![build()];
        all.extend(families(&sample));
        all.extend(self.drift.as_mut().into_iter().flat_map(Drift::families));
        all.push(Family {
            name: "napkin_notes",
            kind: Kind::Gauge,
            help: "Reasons for which something could not be known; napkin top shows them.",
            series: vec![Series::new(vec![], sample.notes.len() as f64)],
        });
        Ok(all)
    }
}

/// Keeps a CPU's times from falling: a collector takes a falling counter for one that restarted.
fn keep_monotonic(now: &mut CpuSample, before: &CpuSample) {
    if before.idle_ns.saturating_sub(now.idle_ns) > MAX_IDLE_DECREASE {
        return;
    }
    for (now, before) in [
        (&mut now.hard_irq_ns, before.hard_irq_ns),
        (&mut now.softirq_ns, before.softirq_ns),
        (&mut now.thread_ns, before.thread_ns),
        (&mut now.idle_ns, before.idle_ns),
        (&mut now.steal_ns, before.steal_ns),
    ] {
        *now = before.max(*now);
    }
}

fn build() -> Family {
    let labels = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
    Family {
        name: "napkin_build_info",
        kind: Kind::Gauge,
        help: "Always 1: the version that exports.",
        series: vec![Series::new(labels, 1.0)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use napkin_watch::Sample;

    #[test]
    fn a_cpu_s_times_never_fall_but_where_it_was_off() {
        struct Goes(Vec<u64>);
        impl Source for Goes {
            fn title(&self) -> String {
                "a test's".into()
            }

            fn sample(&mut self) -> Result<Sample, SourceError> {
                let cpu = CpuSample { idle_ns: self.0.remove(0), ..CpuSample::default() };
                Ok(Sample { cpus: vec![cpu], ..Sample::default() })
            }
        }
        let seconds = [9_000, 8_999, 9_001, 1].map(|s| s * 1_000_000_000);
        let mut exporter = Exporter::new(Box::new(Goes(seconds.to_vec())), None);
        for (at, expected) in [(0, "9000"), (1, "9000"), (2, "9001"), (3, "1")] {
            let text = exporter.text(Format::Prometheus, at * 1_000_000_000).expect("sampled");
            let line = text.lines().find(|line| line.contains("mode=\"idle\"")).expect("a line");
            assert!(line.ends_with(&format!(" {expected}")), "{line}");
        }
    }
}
