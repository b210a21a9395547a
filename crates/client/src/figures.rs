//! What a window of a client showed: one thread's counts, and the sum of all threads' as figures.

use std::collections::BTreeMap;

use napkin_traffic::LogBins;
use serde::{Deserialize, Serialize};

use super::answer::{Fault, Refusal};
use super::config::{ClientWait, Config};
use napkin_measure::{Latency, LatencyNs};

/// A backlog of more than this share of a window's requests is told.
const BACKLOG: f64 = 0.001;

/// What can go wrong with one request or connection, by the name under which it is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trouble {
    Refused(Refusal),
    Fault(Fault),
    /// An answer that nobody asked for.
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

/// What one thread measured since the window began. All its memory is taken at set-up.
#[derive(Debug, Clone, Default)]
pub(super) struct Tally {
    pub(super) latency: Latency,
    /// The same requests', from their sending.
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
    /// Late ones that only a window's end has found, long after their time.
    pub(super) late_here: u64,
    pub(super) abandoned: u64,
    pub(super) gets: u64,
    pub(super) sets: u64,
    pub(super) hits: u64,
    pub(super) misses: u64,
    pub(super) reconnects: u64,
    /// On their way when it began.
    pub(super) carried: u64,
    errors: [u64; Trouble::ALL.len()],
    /// At the window's end: requests in the backlog, on their way, and how long the oldest of both
    /// has waited.
    pub(super) backlog: u64,
    pub(super) outstanding: u64,
    pub(super) longest_wait: u64,
    /// The thread had more requests due than it could even look at.
    pub(super) behind: bool,
}

impl Tally {
    /// Forgets everything and keeps the memory.
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

/// How long after their time requests were sent that nothing but the client itself held back, in
/// nanoseconds: its sleeps' overshoot, its wake-ups, and other requests that it was busy with. It is
/// part of the latency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendDelayNs {
    /// 50 % of the requests took no longer, ns.
    pub p50: u64,
    /// 99th percentile, ns.
    pub p99: u64,
    /// The longest, ns.
    pub max: u64,
}

/// What mutilate would print of the same answers, in nanoseconds: from the moment at which each
/// request was really sent, so without its wait for its turn, and its percentiles out of bins each a
/// tenth wider than the last. A published table has these.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PublishedNs {
    /// Their mean, ns.
    pub mean: f64,
    /// 50 % of the requests took no longer, ns.
    pub p50: f64,
    /// 95th percentile, ns.
    pub p95: f64,
    /// 99th percentile, ns.
    pub p99: f64,
}

impl PublishedNs {
    /// Of latencies from the sending; `None` without any.
    fn of(from_sending: &Latency) -> Option<PublishedNs> {
        let mean = from_sending.summary(0)?.mean?;
        let mut bins = LogBins::default();
        from_sending.buckets().for_each(|(ns, times)| bins.add_many(ns, times));
        let at = |percent| bins.percentile(percent);
        Some(PublishedNs { mean, p50: at(50.0), p95: at(95.0), p99: at(99.0) })
    }
}

/// What a window showed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClientFigures {
    /// Its length (of the thread whose window was the longest).
    pub wall_ns: u64,
    /// Answers read in it, refusals among them.
    pub requests: u64,
    /// The rate that was asked for; `None` without a schedule.
    pub asked_per_s: Option<f64>,
    /// Requests a second that fell due in it; `None` without a schedule.
    pub offered_per_s: Option<f64>,
    /// Answers a second.
    pub achieved_per_s: f64,
    /// From the time when a request was due until its answer was read; without a schedule from its
    /// sending. Of requests whose answers were read in the window, sets and refusals among them; its
    /// percentiles are those of all that fell due. `None` without any.
    pub latency_ns: Option<LatencyNs>,
    /// What mutilate would print of them; `None` without any.
    pub published_ns: Option<PublishedNs>,
    /// Latencies of more than 100 s, which are counted as that.
    pub saturated: u64,
    /// Requests that fell due in it; 0 without a schedule. Counted from the client's start, these are
    /// `requests`, `abandoned`, `backlog`, `outstanding` and those that a lost connection took along.
    pub due: u64,
    /// Requests that fell due while their connection waited for an answer. They are charged for it.
    pub late: u64,
    /// Those of them that the client itself had not looked at when the window ended, though they were due more than
    /// a millisecond before: whether their connection waited for an answer by then nobody knows. They are among
    /// `abandoned` and `backlog`.
    #[serde(default)]
    pub late_here: u64,
    /// Late requests that found a full backlog, and were never sent: where there are any, the
    /// latencies are too low.
    pub abandoned: u64,
    /// Late requests not yet sent at the end of the window.
    pub backlog: u64,
    /// Requests sent and not answered at the end of the window.
    pub outstanding: u64,
    /// The same at its beginning.
    #[serde(default)]
    pub carried: u64,
    /// How long the oldest request without an answer had waited then, from when it was due.
    pub longest_wait_ns: u64,
    /// Gets that were answered; of a disk reads.
    pub gets: u64,
    /// Sets that were answered; of a disk writes.
    pub sets: u64,
    /// Gets that found their record.
    pub hits: u64,
    /// Gets that found none.
    pub misses: u64,
    /// Connections that were lost and made again.
    pub reconnects: u64,
    /// What went wrong, by name; what never did is left out.
    pub errors: BTreeMap<String, u64>,
    /// The client could not keep up with its own schedule, and offered less than it was asked to.
    pub behind: bool,
    /// How late the client itself was; `None` without a schedule.
    pub send_delay_ns: Option<SendDelayNs>,
    /// What a reader of these figures should know.
    pub notes: Vec<String>,
}

impl ClientFigures {
    /// Adds up what the threads counted.
    pub(super) fn of(tallies: &[Box<Tally>], config: &Config, backlog_bound: usize) -> Self {
        let counts = || tallies.iter().map(|tally| &tally.counts);
        let sum = |of: fn(&Counts) -> u64| counts().map(of).sum::<u64>();
        // Each thread's by its own window: they do not begin and end at the same nanosecond.
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
        figures.notes = figures.to_be_said(config, backlog_bound);
        if figures.behind {
            figures.notes.push(
                "client: it cannot keep up with its own schedule, and offers less than it was \
                 asked to: ask for less, or give it more threads"
                    .to_owned(),
            );
        }
        figures
    }

    fn to_be_said(&self, config: &Config, backlog_bound: usize) -> Vec<String> {
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
        // Of a backlog the oldest need not have waited longest: those before it were answered as late.
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
        let said = |spoil: fn(&mut Tally), word: &str| {
            let mut tally = tally(1, &[1]);
            spoil(&mut tally);
            let open = config(Load::Open { per_second: 9.0 });
            let notes = ClientFigures::of(&[tally], &open, 256).notes;
            assert_eq!(notes.len(), 1, "{notes:?}");
            assert!(notes[0].contains(word), "{notes:?}");
        };
        said(|tally| tally.counts.abandoned = 3, "3 requests were never sent, because 256");
        said(|tally| tally.counts.misses = 1, "found nothing");
        // The oldest has waited for less than the longest answer took.
        said(
            |tally| tally.counts.backlog = 1,
            "1 requests had no answer at the window's end, 1 of",
        );
        said(|tally| tally.counts.behind = true, "cannot keep up");
        said(|tally| tally.send_delay.record(2_000), "it sleeps, and sent 2.0 us (p50)");
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
