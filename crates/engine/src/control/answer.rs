//! Carries out requests, and builds the records of their answers.
//!
//! Attributes that the kernel has keep its names and units; napkin's own stand beside them.

use std::net::IpAddr;

use napkin_core::{Counts, CpuId, NEVER, Owner};
use napkin_nic::QueueCounts;
use napkin_policy::{INSTANCE_KEYS, Policy};
use napkin_stack::FrameOutcome;
use serde_json::{Value, json};

use super::error::{Code, Refusal};
use super::message::{Answer, Record};
use super::request::{Command, Kind};
use super::setting;
use crate::{Engine, NapiInfo};

/// Carries out a request.
pub(super) fn carry_out(engine: &Engine, command: Command) -> Result<Answer, Refusal> {
    let found = |records| Answer { records, ..Answer::default() };
    let done = |warnings| Answer { warnings, ..Answer::default() };
    Ok(match command {
        // The warnings of the whole engine: this verb is requested once, where others are requested every second.
        Command::Devices { ifindex } => {
            Answer { warnings: engine.warnings(), ..found(devices(engine, ifindex)?) }
        }
        Command::Queues { ifindex, kind, id } => found(queues(engine, ifindex, kind, id)?),
        Command::Napis { id, ifindex } => found(napis(engine, id, ifindex)?),
        Command::Stats { ifindex, by_queue } => found(stats(engine, ifindex, by_queue)?),
        Command::SetNapi { id, change } => done(engine.change(id, &change)?),
        Command::SetDevice { ifindex, change } => {
            done(engine.change_device(&device(engine, ifindex)?, &change)?)
        }
    })
}

fn no_device(engine: &Engine, ifindex: u32) -> Refusal {
    let last = engine.devices().len();
    let what = format!("no device has ifindex {ifindex}: give one of 1 to {last} (see dev-get)");
    Refusal::of(Code::NOENT, "ifindex", what)
}

/// The name of a device.
fn device(engine: &Engine, ifindex: u32) -> Result<String, Refusal> {
    let name =
        (ifindex as usize).checked_sub(1).and_then(|place| engine.devices().into_iter().nth(place));
    name.ok_or_else(|| no_device(engine, ifindex))
}

/// The requested device with its number, or every device.
fn chosen(engine: &Engine, ifindex: Option<u32>) -> Result<Vec<(u32, String)>, Refusal> {
    match ifindex {
        Some(ifindex) => Ok(vec![(ifindex, device(engine, ifindex)?)]),
        None => Ok((1..).zip(engine.devices()).collect()),
    }
}

/// Every instance of the requested device, or of all.
fn of_device(engine: &Engine, ifindex: Option<u32>) -> Result<Vec<NapiInfo>, Refusal> {
    if let Some(ifindex) = ifindex {
        device(engine, ifindex)?;
    }
    let wanted = |napi: &NapiInfo| ifindex.is_none_or(|ifindex| napi.ifindex == ifindex);
    Ok(engine.napis().into_iter().filter(wanted).collect())
}

fn record<const N: usize>(fields: [(&str, Value); N]) -> Record {
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn devices(engine: &Engine, ifindex: Option<u32>) -> Result<Vec<Record>, Refusal> {
    let napis = engine.napis();
    let mut records = Vec::new();
    for (ifindex, name) in chosen(engine, ifindex)? {
        let stack = engine.stack(&name)?;
        let addresses = stack.addresses();
        let mac = addresses.mac().map(|byte| format!("{byte:02x}")).join(":");
        let family = |is: fn(&IpAddr) -> bool| {
            let of = addresses.list().iter().filter(|own| is(&own.ip));
            let of: Vec<String> = of.map(|own| format!("{}/{}", own.ip, own.prefix)).collect();
            (!of.is_empty()).then(|| of.join(", "))
        };
        let ids = napis.iter().filter(|napi| napi.ifindex == ifindex).map(|napi| napi.id);
        records.push(record([
            ("ifindex", ifindex.into()),
            ("ifname", name.into()),
            ("mac", mac.into()),
            ("vlan", addresses.vlan().into()),
            ("ipv4", family(IpAddr::is_ipv4).into()),
            ("ipv6", family(IpAddr::is_ipv6).into()),
            ("napi-ids", ids.collect::<Vec<_>>().into()),
        ]));
    }
    Ok(records)
}

fn queues(
    engine: &Engine,
    ifindex: Option<u32>,
    kind: Option<Kind>,
    id: Option<u32>,
) -> Result<Vec<Record>, Refusal> {
    let napis = of_device(engine, ifindex)?;
    let kinds = [Kind::Rx, Kind::Tx].into_iter().filter(|it| kind.is_none_or(|kind| kind == *it));
    let records: Vec<Record> = kinds
        .flat_map(|kind| napis.iter().map(move |napi| (kind, napi)))
        .filter(|(_, napi)| id.is_none_or(|id| napi.queue == id as usize))
        .map(|(kind, napi)| {
            record([
                ("id", napi.queue.into()),
                ("ifindex", napi.ifindex.into()),
                ("type", kind.to_string().into()),
                ("napi-id", napi.id.into()),
                ("gone", napi.gone.into()),
            ])
        })
        .collect();
    match id {
        Some(id) if records.is_empty() => {
            Err(Refusal::of(Code::NOENT, "id", format!("no queue has id {id} (see queue-get)")))
        }
        _ => Ok(records),
    }
}

fn napis(engine: &Engine, id: Option<u32>, ifindex: Option<u32>) -> Result<Vec<Record>, Refusal> {
    let cpus = engine.cpus();
    let Some(id) = id else {
        let napis = of_device(engine, ifindex)?;
        return Ok(napis.iter().map(|napi| napi_record(engine, napi, &cpus)).collect());
    };
    let napi = engine.napi(id)?;
    match ifindex {
        Some(ifindex) if ifindex != napi.ifindex => {
            let what = format!("instance {id} belongs to ifindex {}, not {ifindex}", napi.ifindex);
            Err(Refusal::of(Code::NOENT, "ifindex", what))
        }
        _ => Ok(vec![napi_record(engine, &napi, &cpus)]),
    }
}

fn napi_record(engine: &Engine, napi: &NapiInfo, cpus: &[usize]) -> Record {
    let counts: &Counts = &napi.counts;
    let mut record = record([
        ("ifindex", napi.ifindex.into()),
        ("id", napi.id.into()),
        ("ifname", napi.device.as_str().into()),
        ("queue-id", napi.queue.into()),
        ("cpu", cpus.get(usize::from(napi.cpu)).copied().into()),
        ("weight", napi.weight.into()),
        ("interrupts", counts.interrupts.into()),
        ("polls", counts.all_polls().into()),
        ("empty-polls", counts.all_empty_polls().into()),
        ("packets", counts.packets.into()),
        ("completions", counts.completions.into()),
        ("deferrals", counts.deferrals.into()),
        ("parks", counts.parks.into()),
        ("watchdogs", counts.watchdogs().into()),
        ("handovers", counts.handovers.into()),
        ("line-calls", napi.line_calls.into()),
        ("gone", napi.gone.into()),
    ]);
    let policy = Policy { instance: napi.settings, ..Policy::BASE };
    for key in INSTANCE_KEYS {
        record.insert(key.name.into(), setting::to_json(key, key.get(&policy)));
    }
    for owner in Owner::ALL {
        let polls = counts.polls[owner as usize] + counts.empty_polls[owner as usize];
        record.insert(format!("polls-{}", owner.name()), polls.into());
    }
    // Counted per CPU, over all instances that its softirqs poll.
    if usize::from(napi.cpu) < cpus.len() {
        let squeezes = engine.cpu_counts(CpuId(napi.cpu)).time_squeeze;
        record.insert("time-squeezes".into(), squeezes.into());
    }
    // Absent where there is none, as in the kernel.
    if let Some(pid) = napi.pid {
        record.insert("pid".into(), pid.into());
    }
    if counts.idle_gap_min != NEVER {
        record.insert("idle-gap-min".into(), counts.idle_gap_min.into());
    }
    record
}

fn stats(engine: &Engine, ifindex: Option<u32>, by_queue: bool) -> Result<Vec<Record>, Refusal> {
    let napis = of_device(engine, ifindex)?;
    let mut records = Vec::new();
    for (ifindex, name) in chosen(engine, ifindex)? {
        let of_it = || napis.iter().filter(|napi| napi.ifindex == ifindex);
        let head = |record: &mut Record| {
            record.insert("ifindex".into(), ifindex.into());
            record.insert("ifname".into(), name.as_str().into());
        };
        if by_queue {
            for (kind, napi) in
                [Kind::Rx, Kind::Tx].into_iter().flat_map(|kind| of_it().map(move |it| (kind, it)))
            {
                let mut record = counters(&napi.queue_counts, kind);
                head(&mut record);
                record.insert("queue-type".into(), kind.to_string().into());
                record.insert("queue-id".into(), napi.queue.into());
                records.push(record);
            }
            continue;
        }
        let mut sum = Record::new();
        for napi in of_it() {
            for kind in [Kind::Rx, Kind::Tx] {
                for (name, count) in counters(&napi.queue_counts, kind) {
                    let before = sum.get(&name).and_then(Value::as_u64).unwrap_or(0);
                    sum.insert(name, before.wrapping_add(count.as_u64().unwrap_or(0)).into());
                }
            }
        }
        head(&mut sum);
        sum.insert("stack".into(), fates(engine, &name)?);
        records.push(sum);
    }
    Ok(records)
}

/// One queue's counters of one direction, under the kernel's names where it has them.
fn counters(counts: &QueueCounts, kind: Kind) -> Record {
    match kind {
        Kind::Rx => record([
            ("rx-packets", counts.rx_packets.into()),
            ("rx-bytes", counts.rx_bytes.into()),
            ("rx-alloc-fail", counts.rx_no_buffer.into()),
            ("rx-hw-drops", counts.rx_dropped().into()),
            ("rx-hw-drop-overruns", counts.rx_dropped_ring.into()),
            ("rx-oversized", counts.rx_oversized.into()),
            ("rx-truncated", counts.rx_truncated.into()),
            ("rx-malformed", counts.rx_malformed.into()),
            ("irqs-rx", counts.interrupts_rx.into()),
        ]),
        Kind::Tx => record([
            ("tx-packets", counts.tx_packets.into()),
            ("tx-bytes", counts.tx_bytes.into()),
            ("tx-hw-drops", counts.tx_dropped.into()),
            ("tx-completions", counts.tx_completions.into()),
            ("irqs-tx", counts.interrupts_tx.into()),
        ]),
    }
}

/// The fates of frames in the stack: delivered, answered, learned from, and each drop by its name. While no queue
/// is being polled these add up to `frames`.
fn fates(engine: &Engine, device: &str) -> Result<Value, Refusal> {
    let counters = engine.stack(device)?.counters();
    let mut fates = record([
        ("frames", counters.frames.into()),
        ("delivered", counters.delivered().into()),
        ("answered", counters.answered().into()),
        ("learned", counters.of(FrameOutcome::Learned).into()),
    ]);
    for (name, count) in counters.drops() {
        fates.insert(name.replace('_', "-"), count.into());
    }
    Ok(json!(fates))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::silent;
    use std::collections::BTreeSet;

    /// The kernel's attributes (netdev.yaml) that the answers have.
    const KERNELS: &[(&str, &[&str])] = &[
        ("dev-get", &["ifindex"]),
        ("queue-get", &["id", "ifindex", "type", "napi-id"]),
        (
            "napi-get",
            &[
                "ifindex",
                "id",
                "pid",
                "threaded",
                "defer-hard-irqs",
                "gro-flush-timeout",
                "irq-suspend-timeout",
            ],
        ),
        (
            "qstats-get",
            &[
                "ifindex",
                "queue-type",
                "queue-id",
                "rx-packets",
                "rx-bytes",
                "rx-alloc-fail",
                "rx-hw-drops",
                "rx-hw-drop-overruns",
                "tx-packets",
                "tx-bytes",
                "tx-hw-drops",
            ],
        ),
    ];

    /// The attributes that they have besides; an instance's settings that no Linux has come from the table of keys.
    const OURS: &[(&str, &[&str])] = &[
        ("dev-get", &["ifname", "mac", "vlan", "ipv4", "ipv6", "napi-ids"]),
        ("queue-get", &["gone"]),
        (
            "napi-get",
            &[
                "ifname",
                "queue-id",
                "cpu",
                "weight",
                "interrupts",
                "polls",
                "polls-softirq",
                "polls-ksoftirqd",
                "polls-thread",
                "polls-worker",
                "polls-application",
                "empty-polls",
                "packets",
                "completions",
                "deferrals",
                "parks",
                "watchdogs",
                "handovers",
                "line-calls",
                "time-squeezes",
                "idle-gap-min",
                "gone",
            ],
        ),
        (
            "qstats-get",
            &[
                "ifname",
                "rx-oversized",
                "rx-truncated",
                "rx-malformed",
                "tx-completions",
                "irqs-rx",
                "irqs-tx",
                "stack",
            ],
        ),
    ];

    fn engine() -> Engine {
        Engine::start(silent()).expect("it starts")
    }

    #[test]
    fn no_fate_of_a_frame_is_left_out() {
        let counted = fates(&engine(), "syn0").expect("counters");
        for fate in FrameOutcome::ALL.into_iter().filter(|fate| !fate.is_answer()) {
            assert_eq!(counted[fate.name().replace('_', "-")], 0, "{}", fate.name());
        }
        assert_eq!((&counted["frames"], &counted["answered"]), (&json!(0), &json!(0)));
    }

    #[test]
    fn whatever_an_answer_holds_is_the_kernel_s_or_listed_as_ours() {
        let engine = engine();
        // An instance with every attribute that may be absent.
        let mut napi = engine.napi(1).expect("it is there");
        napi.pid = Some(1);
        napi.counts.idle_gap_min = 1;
        let stats = |by_queue| stats(&engine, None, by_queue).expect("counters");
        let answers = [
            ("dev-get", devices(&engine, None).expect("a device")),
            ("queue-get", queues(&engine, None, None, None).expect("queues")),
            ("napi-get", vec![napi_record(&engine, &napi, &engine.cpus())]),
            ("qstats-get", [stats(false), stats(true)].concat()),
        ];
        assert_eq!(OURS.len(), answers.len());
        for (verb, records) in answers {
            let held: BTreeSet<&str> =
                records.iter().flat_map(|record| record.keys().map(String::as_str)).collect();
            let listed = [KERNELS, OURS].into_iter().flatten().filter(|(of, _)| *of == verb);
            let mut listed: BTreeSet<&str> =
                listed.flat_map(|(_, names)| names.iter().copied()).collect();
            if verb == "napi-get" {
                listed.extend(
                    INSTANCE_KEYS.iter().filter(|key| key.is_napkin_only()).map(|it| it.name),
                );
            }
            assert_eq!(held, listed, "{verb}");
        }
    }
}
