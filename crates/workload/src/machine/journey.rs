//! The path of each request from the wire to its answer, for a timeline.
//!
//! A request is a span with a nested span for each stage: `wire` (from the time at which the client says it sent
//! the request), `ring`, `socket`, `application`. An arrow leads from the context that delivered it to the thread
//! that read it. If a program does not answer, or answers on another flow, the path ends with the read. A second
//! request with the same flow and stamp is not followed.

use std::collections::BTreeMap;

use napkin_machine::{Packet, Station};
use napkin_policy::Ns;

/// Upper limit of a request's events in the file.
const EVENTS: usize = 12;

/// Formats a time as microseconds with three decimals.
pub(super) fn us(ns: Ns) -> String {
    format!("{}.{:03}", ns / 1_000, ns % 1_000)
}

/// The times of one request, from sending to answer.
#[derive(Debug, Clone)]
struct Journey {
    flow: u32,
    /// When it was sent, according to the client.
    sent: Ns,
    ring: Ns,
    dropped: Option<Ns>,
    /// The CPU and the time.
    socket: Option<(u16, Ns)>,
    read: Option<(u16, Ns)>,
    answered: Option<Ns>,
}

/// The requests of one run.
#[derive(Debug, Clone, Default)]
pub(super) struct Journeys {
    journeys: Vec<Journey>,
    by_frame: BTreeMap<(u32, Ns), usize>,
}

impl Journeys {
    /// Upper limit of the events that will be written.
    pub(super) fn events(&self) -> usize {
        self.journeys.len() * EVENTS
    }

    /// Whether a frame starts a journey that is not recorded yet.
    pub(super) fn begins(&self, packet: &Packet, station: Station) -> bool {
        station == Station::Ring && !self.by_frame.contains_key(&(packet.flow, packet.stamp))
    }

    pub(super) fn begin(&mut self, packet: &Packet, at: Ns) {
        self.by_frame.insert((packet.flow, packet.stamp), self.journeys.len());
        self.journeys.push(Journey {
            flow: packet.flow,
            sent: packet.stamp.min(at),
            ring: at,
            dropped: None,
            socket: None,
            read: None,
            answered: None,
        });
    }

    /// Records that a frame reached a station; ignored if its journey was not recorded from its start.
    pub(super) fn pass(&mut self, packet: &Packet, at: Ns, station: Station) {
        let Some(&place) = self.by_frame.get(&(packet.flow, packet.stamp)) else { return };
        let journey = &mut self.journeys[place];
        match station {
            Station::Ring => {}
            Station::Dropped => journey.dropped = journey.dropped.or(Some(at)),
            Station::Socket(cpu) => journey.socket = journey.socket.or(Some((cpu, at))),
            Station::Read(cpu) => journey.read = journey.read.or(Some((cpu, at))),
            // The last part of an answer counts.
            Station::Answered if journey.read.is_some() => journey.answered = Some(at),
            Station::Answered => {}
        }
    }

    /// Writes the events from `from` on, each as a JSON object.
    pub(super) fn write(&self, pid: u32, from: Ns, put: &mut impl FnMut(&str)) {
        for (id, journey) in (1..).zip(&self.journeys) {
            journey.write(pid, id, from, put);
        }
    }
}

impl Journey {
    /// Returns the completed stages: name, start and end.
    fn stages(&self) -> Vec<(&'static str, Ns, Ns)> {
        let mut stages = vec![("wire", self.sent, self.ring)];
        let mut add = |name, begin: Option<Ns>, end: Option<Ns>| {
            if let (Some(begin), Some(end)) = (begin, end) {
                stages.push((name, begin, end));
            }
        };
        let (socket, read) = (self.socket.map(|it| it.1), self.read.map(|it| it.1));
        add("ring", Some(self.ring), socket.or(self.dropped));
        add("socket", socket, read);
        add("application", read, self.answered);
        stages
    }

    fn write(&self, pid: u32, id: u32, from: Ns, put: &mut impl FnMut(&str)) {
        let mut span = |phase: &str, name: &str, at: Ns, more: &str| {
            let ts = us(at.max(from));
            put(&format!(
                r#"{{"ph":"{phase}","cat":"request","id2":{{"local":"{id:#x}"}},"pid":{pid},"tid":0,"ts":{ts},"name":"{name}"{more}}}"#
            ));
        };
        let stages: Vec<_> = self.stages().into_iter().filter(|it| it.2 > from).collect();
        let (Some(first), Some(last)) = (stages.first(), stages.last()) else { return };
        let end = match (self.dropped, self.answered) {
            (Some(_), _) => "dropped",
            (None, Some(_)) => "answered",
            (None, None) if self.read.is_some() => "read",
            (None, None) => "still waiting",
        };
        let more = format!(r#","args":{{"flow":{},"end":"{end}"}}"#, self.flow);
        span("b", "request", first.1, &more);
        for (name, begin, end) in &stages {
            span("b", name, *begin, "");
            span("e", name, *end, "");
        }
        span("e", "request", last.2, "");
        let (Some((from_cpu, delivered)), Some((to_cpu, read))) = (self.socket, self.read) else {
            return;
        };
        // 1 ns before the end of the slice, so that the viewer binds the arrow to it.
        for (phase, cpu, at) in [("s", from_cpu, delivered), ("f\",\"bp\":\"e", to_cpu, read)] {
            let ts = us(at.saturating_sub(1).max(from));
            put(&format!(
                r#"{{"ph":"{phase}","cat":"request","id":"{pid}.{id}","pid":{pid},"tid":{cpu},"ts":{ts},"name":"delivered"}}"#
            ));
        }
    }
}
