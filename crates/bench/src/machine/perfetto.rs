//! Timelines in the Chrome trace format, for <https://ui.perfetto.dev>.
//!
//! One process for each run that was recorded. Its threads are the CPUs: a slice is a context (`irq`,
//! `softirq`, or the thread that ran), its category what the time counted as, with the polls that ended
//! in it and how many frames each of them took. Counters show each queue's depth, and 1 while its
//! interrupt is masked; spans show when a queue was suspended or held, and each request's way from the
//! wire to its answer; instants show interrupts, timers and wake-ups. Times are microseconds of virtual
//! time.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::rc::Rc;

use napkin_core::Ns;
use napkin_machine::{Mark, Packet, Station, Trace, Use};
use thiserror::Error;

use super::journey::Journeys;

/// The most events that one file may hold, about 100 MB: more than that the viewer cannot open.
pub const MOST_EVENTS: usize = 1_000_000;

/// The window of a timeline unless another is asked for.
pub const WINDOW: Ns = 20_000_000;

/// A timeline does not fit.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "a timeline of {window_us} us of {name} has more than its {most} events (a file holds {MOST_EVENTS}); \
     {fits_us} us would fit: give --trace-window {fits_us}us, or fewer policies and loads"
)]
pub struct TraceError {
    name: String,
    window_us: u64,
    most: usize,
    fits_us: u64,
}

/// What a CPU was at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Slice {
    cpu: u16,
    name: u32,
    class: Use,
    from: Ns,
    to: Ns,
    /// Polls that ended in it.
    polls: u32,
    /// What those took that took any, the first few.
    batches: Batches,
}

/// The frames of the first polls that took any.
type Batches = [u16; 8];

/// What an instant or a counter is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Depth { queue: u16, frames: usize },
    Masked { queue: u16, masked: bool },
    Interrupt { queue: u16 },
    Softirq,
    Armed { queue: u16, deadline: Ns },
    Expired { queue: u16 },
    Wake { name: u32 },
}

/// A time in which a queue was something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span {
    queue: u16,
    what: &'static str,
    from: Ns,
    to: Ns,
}

const SUSPENDED: &str = "suspended";
const HELD: &str = "held";

/// What was recorded of one run.
#[derive(Debug, Clone, Default)]
pub struct Timeline {
    name: String,
    from: Ns,
    until: Ns,
    most: usize,
    names: Vec<String>,
    by_name: BTreeMap<String, u32>,
    slices: Vec<Slice>,
    /// By CPU: its last slice, which may grow.
    last: Vec<Option<usize>>,
    moments: Vec<(u16, Ns, What)>,
    masked: Vec<Option<bool>>,
    spans: Vec<Span>,
    /// Since when, of those that have not ended.
    open: BTreeMap<(u16, &'static str), Ns>,
    journeys: Journeys,
    full_at: Option<Ns>,
}

/// Writes a timeline while a machine runs.
#[derive(Debug)]
pub struct Recorder(Rc<RefCell<Timeline>>);

impl Recorder {
    /// A recorder of a run's virtual time from `from` to `until`, of at most so many events.
    pub fn new(name: &str, from: Ns, until: Ns, most: usize) -> Recorder {
        Recorder(Rc::new(RefCell::new(Timeline::new(name, from, until, most))))
    }

    /// What it writes to; complete when the machine is gone.
    pub fn timeline(&self) -> Rc<RefCell<Timeline>> {
        Rc::clone(&self.0)
    }
}

impl Trace for Recorder {
    fn ran(&mut self, cpu: u16, what: &str, class: Use, from: Ns, to: Ns) {
        self.0.borrow_mut().ran(cpu, what, class, from, to);
    }

    fn depth(&mut self, queue: u16, at: Ns, frames: usize) {
        self.0.borrow_mut().moment(0, at, What::Depth { queue, frames });
    }

    fn masked(&mut self, queue: u16, at: Ns, masked: bool) {
        let mut timeline = self.0.borrow_mut();
        let place = usize::from(queue);
        if timeline.masked.len() <= place {
            timeline.masked.resize(place + 1, None);
        }
        if timeline.masked[place].replace(masked) != Some(masked) {
            timeline.moment(0, at, What::Masked { queue, masked });
        }
        if !masked {
            timeline.span(queue, HELD, at, false);
        }
    }

    fn polled(&mut self, cpu: u16, _: u16, at: Ns, frames: u16) {
        self.0.borrow_mut().polled(cpu, at, frames);
    }

    fn passed(&mut self, packet: &Packet, at: Ns, station: Station) {
        let mut timeline = self.0.borrow_mut();
        if timeline.journeys.begins(packet, station) {
            if (timeline.from..timeline.until).contains(&at) && timeline.fits(at) {
                timeline.journeys.begin(packet, at);
            }
        } else if at < timeline.until {
            timeline.journeys.pass(packet, at, station);
        }
    }

    fn suspended(&mut self, queue: u16, at: Ns, suspended: bool) {
        self.0.borrow_mut().span(queue, SUSPENDED, at, suspended);
    }

    fn held(&mut self, queue: u16, at: Ns, held: bool) {
        self.0.borrow_mut().span(queue, HELD, at, held);
    }

    fn mark(&mut self, cpu: u16, at: Ns, mark: Mark<'_>) {
        let mut timeline = self.0.borrow_mut();
        let what = match mark {
            Mark::Interrupt(queue) => What::Interrupt { queue },
            Mark::Softirq => What::Softirq,
            Mark::TimerArmed(queue, deadline) => What::Armed { queue, deadline },
            Mark::TimerExpired(queue) => What::Expired { queue },
            Mark::Wake(name) => What::Wake { name: timeline.intern(name) },
        };
        timeline.moment(cpu, at, what);
    }
}

impl Timeline {
    /// An empty one.
    pub fn new(name: &str, from: Ns, until: Ns, most: usize) -> Timeline {
        Timeline { name: name.to_owned(), from, until, most, ..Timeline::default() }
    }

    fn intern(&mut self, name: &str) -> u32 {
        if let Some(place) = self.by_name.get(name) {
            return *place;
        }
        let place = self.names.len() as u32;
        self.names.push(name.to_owned());
        self.by_name.insert(name.to_owned(), place);
        place
    }

    /// Whether another event fits; notes when it first did not.
    fn fits(&mut self, at: Ns) -> bool {
        if self.slices.len() + self.moments.len() + 2 * self.spans.len() + self.journeys.events()
            < self.most
        {
            return true;
        }
        self.full_at.get_or_insert(at);
        false
    }

    fn ran(&mut self, cpu: u16, what: &str, class: Use, from: Ns, to: Ns) {
        let (from, to) = (from.max(self.from), to.min(self.until));
        if from >= to {
            return;
        }
        let name = self.intern(what);
        let place = usize::from(cpu);
        if self.last.len() <= place {
            self.last.resize(place + 1, None);
        }
        if let Some(last) = self.last[place].and_then(|last| self.slices.get_mut(last))
            && (last.to, last.name, last.class) == (from, name, class)
        {
            last.to = to;
            return;
        }
        if self.fits(from) {
            self.last[place] = Some(self.slices.len());
            let (polls, batches) = (0, Batches::default());
            self.slices.push(Slice { cpu, name, class, from, to, polls, batches });
        }
    }

    /// A poll has ended: it belongs to what its CPU was at until now.
    fn polled(&mut self, cpu: u16, at: Ns, frames: u16) {
        let last = self.last.get(usize::from(cpu)).copied().flatten();
        let Some(slice) = last.and_then(|last| self.slices.get_mut(last)) else { return };
        if slice.to != at {
            return;
        }
        slice.polls += 1;
        if frames > 0
            && let Some(free) = slice.batches.iter_mut().find(|it| **it == 0)
        {
            *free = frames;
        }
    }

    /// A queue is something from now on, or is it no more.
    fn span(&mut self, queue: u16, what: &'static str, at: Ns, begins: bool) {
        if begins {
            self.open.entry((queue, what)).or_insert(at);
        } else if let Some(since) = self.open.remove(&(queue, what)) {
            let (from, to) = (since.max(self.from), at.min(self.until));
            if from < to && self.fits(at) {
                self.spans.push(Span { queue, what, from, to });
            }
        }
    }

    fn moment(&mut self, cpu: u16, at: Ns, what: What) {
        if (self.from..self.until).contains(&at) && self.fits(at) {
            self.moments.push((cpu, at, what));
        }
    }

    /// The nanoseconds that a CPU's slices add up to.
    pub fn busy(&self, cpu: u16) -> Ns {
        self.slices.iter().filter(|it| it.cpu == cpu).map(|it| it.to - it.from).sum()
    }

    /// Whether everything found its place.
    ///
    /// # Errors
    /// If not, with the window that would.
    pub fn check(&self) -> Result<(), TraceError> {
        let Some(full) = self.full_at else { return Ok(()) };
        Err(TraceError {
            name: self.name.clone(),
            window_us: (self.until - self.from) / 1_000,
            most: self.most,
            // A tenth less, since the runs under other policies may have more.
            fits_us: ((full - self.from) * 9 / 10 / 1_000).max(1),
        })
    }
}

/// The text of a file with these timelines.
pub fn json(timelines: &[Timeline]) -> String {
    let mut text = String::from("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n");
    let mut first = true;
    for (pid, timeline) in (1..).zip(timelines) {
        timeline.write(pid, &mut |event| {
            if !std::mem::take(&mut first) {
                text.push_str(",\n");
            }
            text.push_str(event);
        });
    }
    text.push_str("\n]}\n");
    text
}

/// Microseconds with the nanoseconds behind the point.
pub(super) fn us(ns: Ns) -> String {
    format!("{}.{:03}", ns / 1_000, ns % 1_000)
}

/// What a slice's time counted as.
fn category(class: Use) -> &'static str {
    match class {
        Use::Idle => "idle",
        Use::Interrupt => "interrupt",
        Use::Softirq => "softirq",
        Use::System => "system",
        Use::User => "user",
    }
}

impl Timeline {
    /// Gives each event as a JSON object.
    fn write(&self, pid: u32, put: &mut impl FnMut(&str)) {
        let mut event = String::new();
        let mut say = |arguments: std::fmt::Arguments<'_>| {
            event.clear();
            // Writing to a string cannot fail.
            let _ = event.write_fmt(arguments);
            put(&event);
        };
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let names: Vec<String> = self.names.iter().map(|name| quoted(name)).collect();
        let name = quoted(&self.name);
        say(format_args!(
            r#"{{"ph":"M","pid":{pid},"name":"process_name","args":{{"name":{name}}}}}"#
        ));
        let cpus = self.slices.iter().map(|it| it.cpu).chain(self.moments.iter().map(|it| it.0));
        for cpu in cpus.collect::<BTreeSet<_>>() {
            say(format_args!(
                r#"{{"ph":"M","pid":{pid},"tid":{cpu},"name":"thread_name","args":{{"name":"CPU {cpu}"}}}}"#
            ));
            say(format_args!(
                r#"{{"ph":"M","pid":{pid},"tid":{cpu},"name":"thread_sort_index","args":{{"sort_index":{cpu}}}}}"#
            ));
        }
        for Slice { cpu, name, class, from, to, polls, batches } in &self.slices {
            let arguments = match polls {
                0 => String::new(),
                _ => {
                    let batches: Vec<_> = batches.iter().filter(|it| **it > 0).collect();
                    format!(r#","args":{{"polls":{polls},"batches":{batches:?}}}"#)
                }
            };
            say(format_args!(
                r#"{{"ph":"X","pid":{pid},"tid":{cpu},"ts":{},"dur":{},"name":{},"cat":"{}"{arguments}}}"#,
                us(*from),
                us(to - from),
                names[*name as usize],
                category(*class),
            ));
        }
        let unended = self.open.iter().filter(|(_, since)| **since < self.until).map(
            |(&(queue, what), since)| Span {
                queue,
                what,
                from: *since.max(&self.from),
                to: self.until,
            },
        );
        for Span { queue, what, from, to } in self.spans.iter().copied().chain(unended) {
            for (phase, at) in [("b", from), ("e", to)] {
                say(format_args!(
                    r#"{{"ph":"{phase}","cat":"{what}","id2":{{"local":"{queue:#x}"}},"pid":{pid},"tid":0,"ts":{},"name":"queue {queue} {what}"}}"#,
                    us(at),
                ));
            }
        }
        for (cpu, at, what) in &self.moments {
            let ts = us(*at);
            let counter = |queue: u16, of: &str, value: usize| {
                format!(
                    r#"{{"ph":"C","pid":{pid},"ts":{ts},"name":"queue {queue} {of}","args":{{"{of}":{value}}}}}"#
                )
            };
            let instant = |name: &str, more: &str| {
                format!(
                    r#"{{"ph":"i","s":"t","pid":{pid},"tid":{cpu},"ts":{ts},"name":{name}{more}}}"#
                )
            };
            let named = |name: &str, queue: u16| instant(&quoted(&format!("{name} {queue}")), "");
            let line = match what {
                What::Depth { queue, frames } => counter(*queue, "depth", *frames),
                What::Masked { queue, masked } => counter(*queue, "masked", usize::from(*masked)),
                What::Interrupt { queue } => named("interrupt of queue", *queue),
                What::Softirq => instant("\"softirq\"", ""),
                What::Armed { queue, deadline } => instant(
                    &quoted(&format!("timer armed, queue {queue}")),
                    &format!(r#","args":{{"deadline_us":{}}}"#, us(*deadline)),
                ),
                What::Expired { queue } => named("timer expired, queue", *queue),
                What::Wake { name } => {
                    let who = &self.names[*name as usize];
                    instant(&quoted(&format!("wake {who}")), "")
                }
            };
            say(format_args!("{line}"));
        }
        self.journeys.write(pid, self.from, put);
    }
}

#[cfg(test)]
mod tests {
    use napkin_machine::Kind;
    use serde_json::Value;

    use super::*;
    use crate::machine::plan::Point;
    use crate::machine::stand_in::{self, StandIn};

    /// A recorded run, and the time by CPU that the machine itself counted.
    fn recorded(policy: &str, most: usize) -> (Timeline, Vec<Ns>) {
        let profile = stand_in::profile();
        let (warm_up, window) = (5_000_000, 20_000_000);
        let policy = policy.parse().unwrap();
        let point = Point {
            scenario: &StandIn,
            profile: &profile,
            policy,
            load: "20000",
            seed: 3,
            warm_up,
            window,
        };
        let recorder = Recorder::new("it \"runs\"", warm_up, warm_up + window, most);
        let timeline = recorder.timeline();
        let outcome = point.run(Some(Box::new(recorder))).unwrap();
        let busy = outcome.counts.cpus.iter().map(|cpu| cpu.used[1..].iter().sum()).collect();
        (timeline.take(), busy)
    }

    fn events(timeline: &Timeline) -> Vec<Value> {
        let text = json(std::slice::from_ref(timeline));
        let parsed: Value = serde_json::from_str(&text).expect("JSON");
        parsed["traceEvents"].as_array().expect("events").clone()
    }

    /// Nanoseconds of a field in microseconds.
    fn ns(event: &Value, field: &str) -> u64 {
        (event[field].as_f64().unwrap() * 1e3).round() as u64
    }

    #[test]
    fn the_slices_of_a_cpu_add_up_to_its_counted_time_and_never_overlap() {
        for policy in ["base", "threaded", "suspend20", "threaded-busy-poll"] {
            let (timeline, busy) = recorded(policy, MOST_EVENTS);
            let events = events(&timeline);
            for (cpu, busy) in busy.iter().enumerate() {
                let slices: Vec<_> =
                    events.iter().filter(|it| it["ph"] == "X" && it["tid"] == cpu).collect();
                let sum: u64 = slices.iter().map(|it| ns(it, "dur")).sum();
                assert_eq!(sum, *busy, "{policy}, CPU {cpu}");
                assert_eq!(timeline.busy(cpu as u16), *busy);
                for pair in slices.windows(2) {
                    assert!(
                        ns(pair[0], "ts") + ns(pair[0], "dur") <= ns(pair[1], "ts"),
                        "{pair:?}"
                    );
                }
            }
            assert!(busy[0] > 0, "{policy}");
        }
    }

    #[test]
    fn contexts_queues_masks_timers_and_wake_ups_are_all_shown() {
        let (timeline, _) = recorded("suspend20", MOST_EVENTS);
        let events = events(&timeline);
        let has = |phase: &str, name: &str| {
            events.iter().any(|it| {
                it["ph"] == phase && it["name"].as_str().is_some_and(|it| it.starts_with(name))
            })
        };
        for (phase, name) in [
            ("M", "process_name"),
            ("M", "thread_name"),
            ("X", "irq"),
            ("X", "softirq"),
            ("X", "sink"),
            ("C", "queue 0 depth"),
            ("C", "queue 0 masked"),
            ("i", "timer armed, queue 0"),
            ("i", "timer expired, queue 0"),
            ("i", "wake sink"),
        ] {
            assert!(has(phase, name), "{phase} {name}");
        }
        let process = events.iter().find(|it| it["name"] == "process_name").unwrap();
        assert_eq!(process["args"]["name"], "it \"runs\"", "names are quoted");
        let times = events.iter().filter(|it| it["ph"] != "M").map(|it| ns(it, "ts"));
        assert!(times.clone().min() >= Some(5_000_000) && times.max() < Some(25_000_000));
    }

    #[test]
    fn a_request_is_followed_from_the_wire_to_its_reader() {
        for policy in ["base", "threaded", "suspend20"] {
            let (timeline, _) = recorded(policy, MOST_EVENTS);
            let events = events(&timeline);
            let mut by_id: BTreeMap<String, Vec<&Value>> = BTreeMap::new();
            for event in events.iter().filter(|it| it["cat"] == "request" && it["id2"].is_object())
            {
                let id = event["id2"]["local"].as_str().unwrap().to_owned();
                by_id.entry(id).or_default().push(event);
            }
            let mut read = 0;
            for events in by_id.values() {
                let said: Vec<_> = events
                    .iter()
                    .map(|it| format!("{}{}", it["ph"].as_str().unwrap(), it["name"]))
                    .collect();
                if events[0]["args"]["end"] == "read" {
                    read += 1;
                    let stages = ["wire", "ring", "socket"]
                        .map(|it| [format!("b\"{it}\""), format!("e\"{it}\"")]);
                    assert_eq!(said[1..said.len() - 1], stages.concat(), "{policy}");
                }
                assert_eq!(
                    (&*said[0], said.last().unwrap().as_str()),
                    ("b\"request\"", "e\"request\"")
                );
                for pair in events[1..events.len() - 1].windows(2) {
                    assert!(ns(pair[0], "ts") <= ns(pair[1], "ts"), "{policy}: {pair:?}");
                    if pair[0]["ph"] == "e" {
                        assert_eq!(
                            pair[0]["ts"], pair[1]["ts"],
                            "{policy}: a stage begins where one ended"
                        );
                    }
                }
            }
            assert!((350..450).contains(&read), "{policy}: {read} of some 400 in 20 ms");
        }
    }

    #[test]
    fn an_answer_ends_a_request_and_a_full_ring_drops_it() {
        let mut recorder = Recorder::new("x", 100, 1_000, MOST_EVENTS);
        let request = |stamp| Packet::new(7, Kind::Data, 64, 0, stamp);
        for (stamp, at, station) in [
            (90, 110, Station::Ring),
            (90, 120, Station::Socket(0)),
            (90, 150, Station::Read(1)),
            (90, 170, Station::Answered),
            (95, 200, Station::Ring),
            (95, 210, Station::Dropped),
            (80, 90, Station::Ring),
        ] {
            recorder.passed(&request(stamp), at, station);
        }
        let events = events(&recorder.timeline().borrow());
        let requests: Vec<_> = events
            .iter()
            .filter(|it| it["ph"] == "b" && it["name"] == "request")
            .map(|it| (it["ts"].as_f64().unwrap(), it["args"]["end"].as_str().unwrap()))
            .collect();
        assert_eq!(requests, [(0.1, "answered"), (0.1, "dropped")], "one began before the window");
        let stages =
            events.iter().filter(|it| it["ph"] == "e").map(|it| it["name"].as_str().unwrap());
        assert_eq!(
            stages.collect::<Vec<_>>(),
            ["wire", "ring", "socket", "application", "request", "wire", "ring", "request"]
        );
        let arrow: Vec<_> = events.iter().filter(|it| it["ph"] == "s" || it["ph"] == "f").collect();
        assert_eq!(arrow.len(), 2);
        assert_eq!((&arrow[0]["tid"], &arrow[1]["tid"]), (&0.into(), &1.into()));
        assert_eq!(arrow[0]["id"], arrow[1]["id"]);
    }

    #[test]
    fn suspension_and_hold_are_spans_within_the_window() {
        for (policy, name) in [("suspend200", "queue 0 suspended"), ("hold50", "queue 0 held")] {
            let (timeline, _) = recorded(policy, MOST_EVENTS);
            let events = events(&timeline);
            let of = |phase: &str| -> Vec<u64> {
                let of = events.iter().filter(|it| it["ph"] == phase && it["name"] == name);
                of.map(|it| ns(it, "ts")).collect()
            };
            let (begins, ends) = (of("b"), of("e"));
            assert!(begins.len() > 3 && begins.len() == ends.len(), "{policy}: {begins:?}");
            for (begin, end) in begins.iter().zip(&ends) {
                assert!(begin < end && *begin >= 5_000_000 && *end <= 25_000_000, "{policy}");
            }
        }
        let (timeline, _) = recorded("base", MOST_EVENTS);
        assert!(timeline.spans.is_empty() && timeline.open.is_empty());
    }

    #[test]
    fn slices_have_the_polls_that_ended_in_them_with_their_batches() {
        let mut recorder = Recorder::new("x", 0, 1_000, 10);
        recorder.ran(0, "softirq", Use::Softirq, 0, 10);
        recorder.polled(0, 0, 10, 64);
        recorder.ran(0, "softirq", Use::Softirq, 10, 30);
        recorder.polled(0, 0, 30, 0);
        recorder.ran(0, "sink", Use::User, 30, 40);
        recorder.polled(0, 0, 99, 5);
        let slices = events(&recorder.timeline().borrow());
        let slices: Vec<_> = slices.iter().filter(|it| it["ph"] == "X").collect();
        assert_eq!(slices[0]["args"], serde_json::json!({"polls": 2, "batches": [64]}));
        assert!(slices[1]["args"].is_null(), "a poll that ended in no slice");

        let (timeline, _) = recorded("base", MOST_EVENTS);
        let softirqs = events(&timeline);
        let mut softirqs = softirqs.iter().filter(|it| it["ph"] == "X" && it["name"] == "softirq");
        assert!(softirqs.any(|it| it["args"]["batches"][0].as_u64() > Some(0)));
    }

    #[test]
    fn a_mask_is_shown_when_it_changes() {
        let mut recorder = Recorder::new("x", 0, 100, 10);
        for (at, masked) in [(0, false), (10, true), (11, true), (20, false)] {
            recorder.masked(0, at, masked);
        }
        let values: Vec<_> = events(&recorder.timeline().borrow())
            .iter()
            .filter(|it| it["ph"] == "C")
            .map(|it| it["args"]["masked"].clone())
            .collect();
        assert_eq!(values, [0, 1, 0]);
    }

    #[test]
    fn a_timeline_that_does_not_fit_says_which_window_would() {
        let (timeline, _) = recorded("base", 500);
        let error = timeline.check().unwrap_err();
        assert!(error.fits_us < 20_000 && error.fits_us > 0, "{error}");
        assert!(error.to_string().contains("a timeline of 20000 us"), "{error}");
        assert!(error.to_string().contains(&format!("--trace-window {}us", error.fits_us)));
        let (whole, _) = recorded("base", MOST_EVENTS);
        assert!(whole.check().is_ok());
    }
}
