//! The figures of a window: one thread's counts, and the sums over all threads.

use std::collections::BTreeMap;

use napkin_traffic::LogBins;
use serde::{Deserialize, Serialize};

use super::answer::{Fault, Refusal};
use super::config::{ClientWait, Config};
use napkin_measure::{Latency, LatencyNs};

/// The backlog, as a share of a window's due requests, above which a note is given.
const BACKLOG: f64 = 0.001;

/// What can go wrong with a request or a connection; each is counted under its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trouble {
    Refused(Refusal),
    Fault(Fault),
    /// An answer without a request.
    NotAsked,
    /// A value of another size than its record's.
    WrongSize,
    /// The server closed the connection.
    Closed,
    /// The connection was reset, or failed otherwise.
    Failed,
}

impl Trouble {
    const ALL: [Trouble; 14] = [
        Trouble::Refused(Refusal::NotStored),
        Trouble::Refused(Refusal::Error),
        Trouble::Refused(Refusal::ClientError),
        Trouble::Refused(Refusal::ServerError),
        Trouble::Fault(Fault::LongLine),
        Trouble::Fault(Fault::UnknownLine),
        Trouble::Fault(Fault::OtherKey),
        Trouble::Fault(Fault::BadSize),
        Trouble::Fault(Fault::NoLineEnd),
        Trouble::Fault(Fault::OtherReply),
        Trouble::NotAsked,
        Trouble::WrongSize,
        Trouble::Closed,
        Trouble::Failed,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Trouble::Refused(Refusal::NotStored) => "not-stored",
            Trouble::Refused(Refusal::Error) => "error",
            Trouble::Refused(Refusal::ClientError) => "client-error",
            Trouble::Refused(Refusal::ServerError) => "server-error",
            Trouble::Fault(Fault::LongLine) => "long-line",
            Trouble::Fault(Fault::UnknownLine) => "unknown-line",
            Trouble::Fault(Fault::OtherKey) => "other-key",
            Trouble::Fault(Fault::BadSize) => "bad-size",
            Trouble::Fault(Fault::NoLineEnd) => "no-line-end",
            Trouble::Fault(Fault::OtherReply) => "other-reply",
            Trouble::NotAsked => "not-asked",
            Trouble::WrongSize => "wrong-size",
            Trouble::Closed => "closed",
            Trouble::Failed => "failed",
        }
    }

    fn place(self) -> usize {
        Trouble::ALL.iter().position(|it| *it == self).unwrap_or(Trouble::ALL.len() - 1)
    }
}

/// One thread's measurements since the window began. All its memory is allocated at set-up.
#[derive(Debug, Clone, Default)]
pub(super) struct Tally {
    pub(super) latency: Latency,
    /// The latency of the same requests, from their actual sending.
    pub(super) from_sending: Latency,
    pub(super) send_delay: Latency,
    pub(super) counts: Counts,
}

/// One thread's counts since the window began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Counts {
    pub(super) begun: u64,
    pub(super) ended: u64,
    /// Requests that fell due.
    pub(super) due: u64,
    pub(super) late: u64,
    /// Late requests that were taken only at a window's end, long after their time.
    pub(super) late_here: u64,
    pub(super) abandoned: u64,
    pub(super) gets: u64,
    pub(super) sets: u64,
    pub(super) hits: u64,
    pub(super) misses: u64,
    pub(super) reconnects: u64,
    /// Outstanding requests when the window began.
    pub(super) carried: u64,
    errors: [u64; Trouble::ALL.len()],
    /// At the window's end: requests in the backlog, outstanding requests, and how long the oldest of either has
    /// waited, in nanoseconds.
    pub(super) backlog: u64,
    pub(super) outstanding: u64,
    pub(super) longest_wait: u64,
    /// Whether the thread could not even take all due requests.
    pub(super) behind: bool,
}

impl Tally {
    /// Clears all counts and keeps the memory.
    pub(super) fn begin(&mut self, now: u64) {
        self.latency.clear();
        self.from_sending.clear();
        self.send_delay.clear();
        self.counts = Counts { begun: now, ..Counts::default() };
    }
}

impl Counts {
    pub(super) fn count(&mut self, trouble: Trouble) {
        self.errors[trouble.place()] += 1;
    }

    fn wall(&self) -> u64 {
        self.ended.saturating_sub(self.begun)
    }
}

/// How late requests were sent that only the client itself delayed, in nanoseconds: by overshooting sleeps, by
/// wake-ups, and by other requests. It is part of the latency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendDelayNs {
    /// 50 % of the requests took no longer, ns.
    pub p50: u64,
    /// 99th percentile, ns.
    pub p99: u64,
    /// The longest, ns.
    pub max: u64,
}

/// The latency as mutilate would print it, in nanoseconds: from the actual sending of each request, so without the
/// time that it waited for its turn, and with percentiles from bins that are each a tenth wider than the previous
/// one. Published tables contain these figures.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PublishedNs {
    /// The mean, ns.
    pub mean: f64,
    /// 50 % of the requests took no longer, ns.
    pub p50: f64,
    /// 95th percentile, ns.
    pub p95: f64,
    /// 99th percentile, ns.
    pub p99: f64,
}

impl PublishedNs {
    /// From latencies since the sending; `None` if there are none.
    fn of(from_sending: &Latency) -> Option<PublishedNs> {
        let mean = from_sending.summary(0)?.mean?;
        let mut bins = LogBins::default();
        from_sending.buckets().for_each(|(ns, times)| bins.add_many(ns, times));
        let at = |percent| bins.percentile(percent);
        Some(PublishedNs { mean, p50: at(50.0), p95: at(95.0), p99: at(99.0) })
    }
}

/// The figures of a window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClientFigures {
    /// Length of the window, ns; of the longest if threads differ.
    pub wall_ns: u64,
    /// Answers read in the window, refusals included.
    pub requests: u64,
    /// The rate asked for; `None` in the closed loop.
    pub asked_per_s: Option<f64>,
    /// Requests per second that fell due in the window; `None` in the closed loop.
    pub offered_per_s: Option<f64>,
    /// Answers per second.
    pub achieved_per_s: f64,
    /// Latency from the time when a request was due until its answer was read; in the closed loop, from its
    /// sending. It covers requests whose answers were read in the window, sets and refusals included; percentiles
    /// take into account all requests that fell due. `None` if there are none.
    pub latency_ns: Option<LatencyNs>,
    /// The same as mutilate would print it; `None` if there are none.
    pub published_ns: Option<PublishedNs>,
    /// Latencies above 100 s, which are counted as 100 s.
    pub saturated: u64,
    /// Requests that fell due in the window; 0 in the closed loop. Counted from the client's start, they are the
    /// sum of `requests`, `abandoned`, `backlog`, `outstanding`, and those lost with a connection.
    pub due: u64,
    /// Requests that fell due while their connection waited for an answer. The wait is part of their latency.
    pub late: u64,
    /// Those of them that the client itself had not taken before the window ended, although they were due more than
    /// a millisecond earlier. It is unknown whether their connection was busy by then. They are included in
    /// `abandoned` and `backlog`.
    #[serde(default)]
    pub late_here: u64,
    /// Late requests that found the backlog full and were never sent. If there are any, the latencies are too low.
    pub abandoned: u64,
    /// Late requests not yet sent at the end of the window.
    pub backlog: u64,
    /// Requests sent and not answered at the end of the window.
    pub outstanding: u64,
    /// Outstanding requests at the beginning of the window.
    #[serde(default)]
    pub carried: u64,
    /// How long the oldest unanswered request had waited at the end of the window since it was due, ns.
    pub longest_wait_ns: u64,
    /// Answered gets; for a disk, reads.
    pub gets: u64,
    /// Answered sets; for a disk, writes.
    pub sets: u64,
    /// Gets that found their record.
    pub hits: u64,
    /// Gets that found none.
    pub misses: u64,
    /// Connections that were lost and re-established.
    pub reconnects: u64,
    /// Number of each trouble, by name; those that never occurred are omitted.
    pub errors: BTreeMap<String, u64>,
    /// Whether the client could not keep up with its own schedule, and so offered less than asked for.
    pub behind: bool,
    /// How late the client itself was; `None` in the closed loop.
    pub send_delay_ns: Option<SendDelayNs>,
    /// Notes to the reader of the figures.
    pub notes: Vec<String>,
}

impl ClientFigures {
    /// Sums up the threads' counts.
    pub(super) fn of(tallies: &[Box<Tally>], config: &Config, backlog_bound: usize) -> Self {
        let counts = || tallies.iter().map(|tally| &tally.counts);
        let sum = |of: fn(&Counts) -> u64| counts().map(of).sum::<u64>();
        // Each thread's rate is based on its own window, because windows do not begin and end at the same
        // nanosecond.
        let per_s = |of: fn(&Tally) -> u64| {
            let rates = tallies.iter().filter(|tally| tally.counts.wall() != 0);
            rates.map(|tally| of(tally) as f64 * 1e9 / tally.counts.wall() as f64).sum::<f64>()
        };
        let (mut latency, mut delay) = (Latency::new(), Latency::new());
        let mut from_sending = Latency::new();
        for tally in tallies {
            latency.merge(&tally.latency);
            from_sending.merge(&tally.from_sending);
            delay.merge(&tally.send_delay);
        }
        let errors = Trouble::ALL.iter().enumerate().filter_map(|(place, trouble)| {
            let times = counts().map(|counts| counts.errors[place]).sum::<u64>();
            (times != 0).then(|| (trouble.name().to_owned(), times))
        });
        let delay = delay.summary(0);
        let due = sum(|counts| counts.due);
        let mut figures = ClientFigures {
            wall_ns: counts().map(Counts::wall).max().unwrap_or(0),
            requests: latency.count(),
            asked_per_s: config.per_second(),
            offered_per_s: config.per_second().map(|_| per_s(|tally| tally.counts.due)),
            achieved_per_s: per_s(|tally| tally.latency.count()),
            latency_ns: latency.summary(due.saturating_sub(latency.count())),
            published_ns: PublishedNs::of(&from_sending),
            saturated: latency.saturated(),
            due,
            late: sum(|counts| counts.late),
            late_here: sum(|counts| counts.late_here),
            abandoned: sum(|counts| counts.abandoned),
            backlog: sum(|counts| counts.backlog),
            outstanding: sum(|counts| counts.outstanding),
            carried: sum(|counts| counts.carried),
            longest_wait_ns: counts().map(|counts| counts.longest_wait).max().unwrap_or(0),
            gets: sum(|counts| counts.gets),
            sets: sum(|counts| counts.sets),
            hits: sum(|counts| counts.hits),
            misses: sum(|counts| counts.misses),
            reconnects: sum(|counts| counts.reconnects),
            errors: errors.collect(),
            behind: counts().any(|counts| counts.behind),
            send_delay_ns: delay.map(|it| SendDelayNs {
                p50: it.at.p50.unwrap_or(it.max),
                p99: it.at.p99.unwrap_or(it.max),
                max: it.max,
            }),
            notes: Vec::new(),
        };
        figures.notes = figures.notes(config, backlog_bound);
        if figures.behind {
            figures.notes.push(
                "client: it cannot keep up with its own schedule, and offers less than it was \
                 asked to: ask for less, or give it more threads"
                    .to_owned(),
            );
        }
        figures
    }

    fn notes(&self, config: &Config, backlog_bound: usize) -> Vec<String> {
        let us = |ns: u64| ns as f64 / 1000.0;
        let mut notes = Vec::new();
        if config.per_second().is_none() {
            notes.push(
                "client: closed loop: a slow answer holds back the requests after it, so the \
                 percentiles leave out what those would have waited"
                    .to_owned(),
            );
        }
        if let Some(delay) = self.send_delay_ns {
            let how = match config.wait {
                ClientWait::Sleep => "sleeps",
                ClientWait::Spin => "spins",
            };
            notes.push(format!(
                "client: it {how}, and sent {:.1} us (p50), {:.1} us (p99) after the time; the \
                 latency holds that",
                us(delay.p50),
                us(delay.p99)
            ));
        }
        if self.abandoned != 0 {
            notes.push(format!(
                "client: {} requests were never sent, because {backlog_bound} waited on their \
                 connection already: the server is slower than the load, and the latencies are too \
                 low",
                self.abandoned
            ));
        }
        let unanswered = self.backlog + self.outstanding;
        let longest = self.latency_ns.map_or(0, |latency| latency.max);
        // The oldest request of a backlog need not have waited longest: earlier ones were answered as late.
        let owes = self.backlog as f64 > BACKLOG * self.due as f64;
        if unanswered != 0 && (owes || self.longest_wait_ns > longest) {
            notes.push(format!(
                "client: {unanswered} requests had no answer at the window's end, {} of them not even \
                 sent, the oldest for {:.1} us: the latencies are too low",
                self.backlog,
                us(self.longest_wait_ns)
            ));
        }
        if self.saturated != 0 {
            notes.push(format!(
                "client: {} latencies of more than 100 s count as 100 s",
                self.saturated
            ));
        }
        if self.misses != 0 {
            notes.push(format!(
                "client: {} gets found nothing: the store was not filled, or dropped records",
                self.misses
            ));
        }
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Load;

    fn config(load: Load) -> Config {
        Config { load, ..Config::new(([127, 0, 0, 1], 1).into()) }
    }

    fn tally(wall: u64, latencies: &[u64]) -> Box<Tally> {
        let counts = Counts { begun: 100, ended: 100 + wall, ..Counts::default() };
        let mut tally = Tally { counts, ..Tally::default() };
        latencies.iter().for_each(|ns| tally.latency.record(*ns));
        tally.counts.due = latencies.len() as u64 + 1;
        Box::new(tally)
    }

    #[test]
    fn threads_add_up_each_by_its_own_window() {
        let mut slow = tally(2_000_000_000, &[5, 6]);
        slow.counts.count(Trouble::Closed);
        slow.counts.longest_wait = 9;
        slow.counts.outstanding = 1;
        let tallies = [tally(1_000_000_000, &[1, 2, 3]), slow];
        let figures = ClientFigures::of(&tallies, &config(Load::Open { per_second: 9.0 }), 256);
        assert_eq!((figures.requests, figures.wall_ns), (5, 2_000_000_000));
        assert_eq!((figures.achieved_per_s, figures.offered_per_s), (4.0, Some(5.5)));
        assert_eq!(figures.asked_per_s, Some(9.0));
        assert_eq!(figures.errors, BTreeMap::from([("closed".to_owned(), 1)]));
        assert!(figures.notes.iter().any(|note| note.contains("no answer")), "{figures:?}");
    }

    #[test]
    fn nothing_is_no_latency_and_no_rate() {
        let figures = ClientFigures::of(&[tally(0, &[])], &config(Load::Closed), 256);
        assert_eq!((figures.latency_ns, figures.achieved_per_s), (None, 0.0));
        assert_eq!((figures.offered_per_s, figures.send_delay_ns), (None, None));
    }

    #[test]
    fn what_spoils_the_percentiles_is_said() {
        let noted = |spoil: fn(&mut Tally), word: &str| {
            let mut tally = tally(1, &[1]);
            spoil(&mut tally);
            let open = config(Load::Open { per_second: 9.0 });
            let notes = ClientFigures::of(&[tally], &open, 256).notes;
            assert_eq!(notes.len(), 1, "{notes:?}");
            assert!(notes[0].contains(word), "{notes:?}");
        };
        noted(|tally| tally.counts.abandoned = 3, "3 requests were never sent, because 256");
        noted(|tally| tally.counts.misses = 1, "found nothing");
        // The oldest has waited less than the longest answer took.
        noted(
            |tally| tally.counts.backlog = 1,
            "1 requests had no answer at the window's end, 1 of",
        );
        noted(|tally| tally.counts.behind = true, "cannot keep up");
        noted(|tally| tally.send_delay.record(2_000), "it sleeps, and sent 2.0 us (p50)");
        let figures = ClientFigures::of(&[tally(1, &[1])], &config(Load::Closed), 256);
        assert!(figures.notes[0].contains("closed loop"), "{figures:?}");
    }

    #[test]
    fn every_trouble_has_a_name_of_its_own_and_a_window_forgets_the_last() {
        let names: std::collections::BTreeSet<_> =
            Trouble::ALL.iter().map(|it| it.name()).collect();
        assert_eq!(names.len(), Trouble::ALL.len());
        let mut tally = Tally::default();
        Trouble::ALL.iter().for_each(|it| tally.counts.count(*it));
        assert_eq!(tally.counts.errors, [1; Trouble::ALL.len()]);
        tally.latency.record(1);
        tally.begin(7);
        assert_eq!(
            (tally.latency.count(), tally.counts),
            (0, Counts { begun: 7, ..Counts::default() })
        );
    }
}
