//! Timelines of small runs, read back as JSON.

use napkin_machine::Kind;
use serde_json::Value;

use super::*;
use crate::machine::plan::Point;
use crate::machine::stand_in::{self, StandIn};

/// Records a run, and returns the time per CPU that the machine itself counted.
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

/// A field in microseconds, converted to nanoseconds.
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
                assert!(ns(pair[0], "ts") + ns(pair[0], "dur") <= ns(pair[1], "ts"), "{pair:?}");
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
        for event in events.iter().filter(|it| it["cat"] == "request" && it["id2"].is_object()) {
            let id = event["id2"]["local"].as_str().unwrap().to_owned();
            by_id.entry(id).or_default().push(event);
        }
        let mut read = 0;
        for events in by_id.values() {
            let names: Vec<_> = events
                .iter()
                .map(|it| format!("{}{}", it["ph"].as_str().unwrap(), it["name"]))
                .collect();
            if events[0]["args"]["end"] == "read" {
                read += 1;
                let stages = ["wire", "ring", "socket"]
                    .map(|it| [format!("b\"{it}\""), format!("e\"{it}\"")]);
                assert_eq!(names[1..names.len() - 1], stages.concat(), "{policy}");
            }
            assert_eq!(
                (&*names[0], names.last().unwrap().as_str()),
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
    let stages = events.iter().filter(|it| it["ph"] == "e").map(|it| it["name"].as_str().unwrap());
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
