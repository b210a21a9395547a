//! Timelines in the Chrome trace format, for <https://ui.perfetto.dev>.
//!
//! Each recorded run is a process; its threads are the CPUs. A slice is a context (`irq`, `softirq`, or the running
//! thread). Its category is what the time is accounted as; its arguments are the polls that ended in it and their
//! frames. Counters show each queue's depth, and 1 while its interrupt is masked. Spans show when a queue was
//! suspended or held, and each request's path from the wire to its answer. Instants show interrupts, timers and
//! wake-ups. Times are microseconds of virtual time.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::rc::Rc;

use napkin_machine::{Mark, Packet, Station, Trace, Use};
use napkin_policy::Ns;
use thiserror::Error;

use super::journey::{Journeys, us};

/// Upper limit of the events in one file, about 100 MB: the viewer cannot open larger files.
pub const MOST_EVENTS: usize = 1_000_000;

/// The default window of a timeline.
pub const WINDOW: Ns = 20_000_000;

/// The timeline exceeds the limit of events.
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

/// A period of one CPU in one context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Slice {
    cpu: u16,
    name: u32,
    class: Use,
    from: Ns,
    to: Ns,
    /// Polls that ended in it.
    polls: u32,
    /// The frames that its first non-empty polls took.
    batches: Batches,
}

/// The frames of the first non-empty polls; 0 marks a free place.
type Batches = [u16; 8];

/// The subject of an instant or a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sample {
    Depth { queue: u16, frames: usize },
    Masked { queue: u16, masked: bool },
    Interrupt { queue: u16 },
    Softirq,
    Armed { queue: u16, deadline: Ns },
    Expired { queue: u16 },
    Wake { name: u32 },
}

/// A period during which a queue was in a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span {
    queue: u16,
    what: &'static str,
    from: Ns,
    to: Ns,
}

const SUSPENDED: &str = "suspended";
const HELD: &str = "held";

/// The recording of one run.
#[derive(Debug, Clone, Default)]
pub struct Timeline {
    name: String,
    from: Ns,
    until: Ns,
    most: usize,
    names: Vec<String>,
    by_name: BTreeMap<String, u32>,
    slices: Vec<Slice>,
    /// By CPU: the index of its last slice, which may still grow.
    last: Vec<Option<usize>>,
    moments: Vec<(u16, Ns, Sample)>,
    masked: Vec<Option<bool>>,
    spans: Vec<Span>,
    /// Start times of the spans that have not ended.
    open: BTreeMap<(u16, &'static str), Ns>,
    journeys: Journeys,
    full_at: Option<Ns>,
}

/// Records a timeline while a machine runs.
#[derive(Debug)]
pub struct Recorder(Rc<RefCell<Timeline>>);

impl Recorder {
    /// Returns a recorder of a run's virtual time from `from` to `until`, of at most `most` events.
    pub fn new(name: &str, from: Ns, until: Ns, most: usize) -> Recorder {
        Recorder(Rc::new(RefCell::new(Timeline::new(name, from, until, most))))
    }

    /// Returns the timeline under construction; it is complete when the machine has been dropped.
    pub fn timeline(&self) -> Rc<RefCell<Timeline>> {
        Rc::clone(&self.0)
    }
}

impl Trace for Recorder {
    fn ran(&mut self, cpu: u16, what: &str, class: Use, from: Ns, to: Ns) {
        self.0.borrow_mut().ran(cpu, what, class, from, to);
    }

    fn depth(&mut self, queue: u16, at: Ns, frames: usize) {
        self.0.borrow_mut().moment(0, at, Sample::Depth { queue, frames });
    }

    fn masked(&mut self, queue: u16, at: Ns, masked: bool) {
        let mut timeline = self.0.borrow_mut();
        let place = usize::from(queue);
        if timeline.masked.len() <= place {
            timeline.masked.resize(place + 1, None);
        }
        if timeline.masked[place].replace(masked) != Some(masked) {
            timeline.moment(0, at, Sample::Masked { queue, masked });
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
            Mark::Interrupt(queue) => Sample::Interrupt { queue },
            Mark::Softirq => Sample::Softirq,
            Mark::TimerArmed(queue, deadline) => Sample::Armed { queue, deadline },
            Mark::TimerExpired(queue) => Sample::Expired { queue },
            Mark::Wake(name) => Sample::Wake { name: timeline.intern(name) },
        };
        timeline.moment(cpu, at, what);
    }
}

impl Timeline {
    /// Returns an empty timeline.
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

    /// Whether another event fits; records the time of the first one that does not.
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

    /// Adds a poll to the slice of its CPU that ends now.
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

    /// Begins or ends a state of a queue.
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

    fn moment(&mut self, cpu: u16, at: Ns, what: Sample) {
        if (self.from..self.until).contains(&at) && self.fits(at) {
            self.moments.push((cpu, at, what));
        }
    }

    /// Returns the sum of a CPU's slices in nanoseconds.
    pub fn busy(&self, cpu: u16) -> Ns {
        self.slices.iter().filter(|it| it.cpu == cpu).map(|it| it.to - it.from).sum()
    }

    /// Checks that every event was recorded.
    ///
    /// # Errors
    /// If not, an error with the window that would fit.
    pub fn check(&self) -> Result<(), TraceError> {
        let Some(full) = self.full_at else { return Ok(()) };
        Err(TraceError {
            name: self.name.clone(),
            window_us: (self.until - self.from) / 1_000,
            most: self.most,
            // A tenth less, because runs under other policies may have more events.
            fits_us: ((full - self.from) * 9 / 10 / 1_000).max(1),
        })
    }
}

/// Returns the text of a file with these timelines.
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

/// The name of what a slice's time is accounted as.
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
    /// Writes each event as a JSON object.
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
                Sample::Depth { queue, frames } => counter(*queue, "depth", *frames),
                Sample::Masked { queue, masked } => counter(*queue, "masked", usize::from(*masked)),
                Sample::Interrupt { queue } => named("interrupt of queue", *queue),
                Sample::Softirq => instant("\"softirq\"", ""),
                Sample::Armed { queue, deadline } => instant(
                    &quoted(&format!("timer armed, queue {queue}")),
                    &format!(r#","args":{{"deadline_us":{}}}"#, us(*deadline)),
                ),
                Sample::Expired { queue } => named("timer expired, queue", *queue),
                Sample::Wake { name } => {
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
mod tests;
