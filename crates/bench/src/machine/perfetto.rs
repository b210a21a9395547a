//! Timelines in the Chrome trace format, for <https://ui.perfetto.dev>.
//!
//! One process for each run that was recorded. Its threads are the CPUs: a slice is a context (`irq`,
//! `softirq`, or the thread that ran), its category what the time counted as. Counters show each
//! queue's depth, and 1 while its interrupt is masked; instants show interrupts, timers and
//! wake-ups. Times are microseconds of virtual time.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::rc::Rc;

use napkin_core::Ns;
use napkin_machine::{Mark, Trace, Use};
use thiserror::Error;

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
}

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
        if self.slices.len() + self.moments.len() < self.most {
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
            self.slices.push(Slice { cpu, name, class, from, to });
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
fn us(ns: Ns) -> String {
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
        for cpu in cpus.collect::<std::collections::BTreeSet<_>>() {
            say(format_args!(
                r#"{{"ph":"M","pid":{pid},"tid":{cpu},"name":"thread_name","args":{{"name":"CPU {cpu}"}}}}"#
            ));
            say(format_args!(
                r#"{{"ph":"M","pid":{pid},"tid":{cpu},"name":"thread_sort_index","args":{{"sort_index":{cpu}}}}}"#
            ));
        }
        for Slice { cpu, name, class, from, to } in &self.slices {
            say(format_args!(
                r#"{{"ph":"X","pid":{pid},"tid":{cpu},"ts":{},"dur":{},"name":{},"cat":"{}"}}"#,
                us(*from),
                us(to - from),
                names[*name as usize],
                category(*class),
            ));
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
    }
}

#[cfg(test)]
mod tests {
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
