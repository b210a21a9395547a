//! Samples when asked, but not again within half a second: whoever asks more often gets the same.

use napkin_watch::{Source, SourceError};

use crate::drift::Drift;
use crate::families::{Family, Kind, Series, families};
use crate::format::Format;

/// Nanoseconds for which a sample is given again.
const FRESH: u64 = 500_000_000;

/// What is exported.
pub struct Exporter {
    source: Box<dyn Source>,
    drift: Option<Drift>,
    last: Option<(u64, Vec<Family>)>,
}

impl std::fmt::Debug for Exporter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exporter").field("source", &self.source.title()).finish_non_exhaustive()
    }
}

impl Exporter {
    /// Exports a source's instances; with `drift` what napkin has changed of the kernel, too.
    pub fn new(source: Box<dyn Source>, drift: Option<Drift>) -> Exporter {
        Exporter { source, drift, last: None }
    }

    /// Everything as text. `now` is of the monotonic clock, in nanoseconds.
    ///
    /// # Errors
    /// If what is watched has gone.
    pub fn text(&mut self, format: Format, now: u64) -> Result<String, SourceError> {
        let fresh = self.last.as_ref().filter(|(at, _)| now.saturating_sub(*at) < FRESH);
        if fresh.is_none() {
            self.last = None;
            self.last = Some((now, self.families()?));
        }
        Ok(format.write(self.last.iter().flat_map(|(_, families)| families)))
    }

    fn families(&mut self) -> Result<Vec<Family>, SourceError> {
        let sample = self.source.sample()?;
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

fn build() -> Family {
    let labels = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
    Family {
        name: "napkin_build_info",
        kind: Kind::Gauge,
        help: "Always 1: the version that exports.",
        series: vec![Series::new(labels, 1.0)],
    }
}
