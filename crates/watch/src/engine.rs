//! A source for a running engine, over its control socket: `napi-get` for each sample, and `dev-get` once,
//! for the engine's warnings.
//!
//! An engine's threads are threads of its process, so `/proc` has their CPU time. The engine does not report
//! its CPU and application settings: only the instance's part of a policy is named.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use napkin_engine::control::{Answer, Record, Request, Verb, choose, request, setting};
use napkin_os::clock;
use napkin_os::procfs::{CpuTimes, Softnet, Time, thread};
use napkin_policy::{FAMILIES, INSTANCE_KEYS, PRESETS, Policy};
use serde_json::Value;

use crate::sample::plain;
use crate::sample::{
    CpuSample, LONGEST_NAME, NapiSample, Polls, Sample, Source, SourceError, Squeezes,
};

/// User space has no interrupt numbers, and an engine counts neither full polls nor suspensions.
const NEVER_KNOWN: &str = "irq, full, suspend: an engine does not know them";

/// Samples an engine through its control socket.
#[derive(Debug)]
pub struct EngineSource {
    path: PathBuf,
    /// The process ID and name; they change when the engine is restarted.
    process: Option<(i32, String)>,
    /// The engine's warnings, as of the last `dev-get`.
    warnings: Vec<String>,
    /// Whether `dev-get` was answered since the engine last failed to answer.
    identified: bool,
}

impl EngineSource {
    /// Opens the engine behind a socket; without one, the only running engine.
    ///
    /// # Errors
    /// If there is no engine, or more than one, or it does not answer.
    pub fn open(named: Option<&Path>) -> Result<EngineSource, SourceError> {
        let path =
            choose(named, "--engine SOCKET").map_err(|error| SourceError(error.to_string()))?;
        let mut source =
            EngineSource { path, process: None, warnings: Vec::new(), identified: false };
        source.identify()?;
        Ok(source)
    }

    /// Queries its process ID and warnings.
    fn identify(&mut self) -> Result<(), SourceError> {
        let answer = request(&self.path, &Request::new(Verb::DevGet));
        let answer = answer.map_err(|error| SourceError(error.to_string()))?;
        self.warnings = answer.warnings.iter().map(|text| plain(text, 512)).collect();
        self.process = answer.pid.map(|pid| {
            let comm = thread::comm(pid).unwrap_or_else(|| "?".into());
            (pid, plain(&comm, LONGEST_NAME))
        });
        self.identified = true;
        Ok(())
    }
}

impl Source for EngineSource {
    fn title(&self) -> String {
        let name = self.path.file_name().unwrap_or(self.path.as_os_str()).to_string_lossy();
        let name = plain(&name, LONGEST_NAME);
        match &self.process {
            Some((pid, _)) => format!("engine {name} (process {pid})"),
            None => format!("engine {name}"),
        }
    }

    fn sample(&mut self) -> Result<Sample, SourceError> {
        let answer = request(&self.path, &Request::new(Verb::NapiGet));
        let at_ns = clock::now();
        let answer = answer.inspect_err(|_| self.identified = false);
        let Answer { records, pid, .. } = answer.map_err(|error| SourceError(error.to_string()))?;
        // Another process than before may have answered.
        if !self.identified || self.process.as_ref().map(|(pid, _)| *pid) != pid {
            self.identify()?;
        }
        let mut notes = vec![NEVER_KNOWN.to_owned()];
        notes.extend(self.warnings.iter().cloned());
        let cpus = cpus(&mut notes);
        let napis: Vec<NapiSample> =
            records.iter().map(|record| napi(record, self.process.as_ref())).collect();
        if napis.iter().any(|napi| napi.polls.is_none()) {
            notes
                .push("polls: this engine does not say who polled; it is of another napkin".into());
        }
        if napis.iter().any(|napi| napi.pid.is_some() && napi.thread_cpu_ns.is_none()) {
            let what = "thread CPU: /proc shows this engine's threads to its user and to root only";
            notes.push(what.into());
        }
        Ok(Sample { at_ns, process: pid, napis, cpus, notes })
    }
}

fn number(record: &Record, name: &str) -> Option<u64> {
    record.get(name).and_then(Value::as_u64)
}

fn small<T: TryFrom<u64>>(record: &Record, name: &str) -> Option<T> {
    number(record, name).and_then(|number| T::try_from(number).ok())
}

fn text<'a>(record: &'a Record, name: &str) -> &'a str {
    record.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn napi(record: &Record, process: Option<&(i32, String)>) -> NapiSample {
    let pid: Option<i32> = small(record, "pid");
    let gone = record.get("gone") == Some(&Value::Bool(true));
    NapiSample {
        ifname: plain(text(record, "ifname"), LONGEST_NAME),
        id: small(record, "id").unwrap_or(0),
        rx_queues: small(record, "queue-id").into_iter().collect(),
        // User space has no interrupt numbers.
        irq: None,
        cpu: small(record, "cpu"),
        mode: if gone { "device gone".into() } else { mode(record) },
        packets: number(record, "packets"),
        polls: polls(record),
        interrupts: number(record, "interrupts"),
        full_polls: None,
        deferrals: number(record, "deferrals"),
        watchdogs: number(record, "watchdogs"),
        suspensions: None,
        time_squeezes: number(record, "time-squeezes").map_or(Squeezes::Unknown, Squeezes::Counted),
        pid,
        thread_cpu_ns: pid
            .zip(process)
            .and_then(|(tid, (pid, _))| Time::read(*pid, tid))
            .map(|time| time.run_ns),
        latency: None,
        owners: process.map(|(pid, comm)| format!("{comm}[{pid}]")).into_iter().collect(),
    }
}

/// Polls in ksoftirqd count as softirq polls; a worker's count as thread polls.
fn polls(record: &Record) -> Option<Polls> {
    let sum = |first, second| Some(number(record, first)?.saturating_add(number(record, second)?));
    Some(Polls {
        softirq: sum("polls-softirq", "polls-ksoftirqd")?,
        thread: sum("polls-thread", "polls-worker")?,
        application: number(record, "polls-application")?,
        empty: number(record, "empty-polls")?,
    })
}

/// The name of the first policy with these instance settings; without one, the settings.
fn mode(record: &Record) -> String {
    let mut alone = Policy::BASE;
    for key in INSTANCE_KEYS {
        if let Some(value) = setting::from_json(key, record.get(key.name)) {
            key.set(&mut alone, value);
        }
    }
    let instance = alone.instance;
    let preset = || PRESETS.iter().find(|preset| preset.policy.instance == instance);
    let member = || {
        let microseconds = u32::try_from(instance.gro_flush_timeout / 1_000).ok()?;
        let member = |family: &napkin_policy::Family| family.policy(microseconds);
        FAMILIES.iter().filter_map(member).find(|policy| policy.instance == instance)?.name()
    };
    alone
        .name()
        .or_else(|| preset().map(|preset| preset.name.to_owned()))
        .or_else(member)
        .unwrap_or_else(|| alone.to_string())
}

/// The kernel's times and time squeezes of each CPU; empty, with a note, without procfs.
fn cpus(notes: &mut Vec<String>) -> Vec<CpuSample> {
    let times = CpuTimes::read().unwrap_or_else(|error| {
        notes.push(format!("CPUs: /proc/stat cannot be read: {error}"));
        BTreeMap::new()
    });
    // The lines are for the online CPUs; before Linux 5.10 they were not numbered.
    let softnet = Softnet::read().unwrap_or_default();
    let squeezes = |cpu: usize| {
        let of_it = softnet.iter().find(|line| line.cpu == Some(cpu));
        of_it.map(|line| u64::from(line.time_squeeze))
    };
    times.iter().map(|(&cpu, times)| CpuSample::of(cpu, times, squeezes(cpu))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn record(value: &Value) -> Record {
        value.as_object().expect("an object").clone()
    }

    #[test]
    fn an_instance_is_taken_over_under_its_own_names() {
        let record = record(&json!({
            "ifname": "syn0", "id": 3, "queue-id": 2, "cpu": 1, "threaded": "disabled",
            "defer-hard-irqs": 100, "gro-flush-timeout": 20_000, "irq-suspend-timeout": 20_000_000,
            "hold": 0, "feedback": false, "packets": 10, "interrupts": 2, "deferrals": 4,
            "watchdogs": 5, "time-squeezes": 6, "polls-softirq": 1, "polls-ksoftirqd": 2,
            "polls-thread": 3, "polls-worker": 4, "polls-application": 5, "empty-polls": 7,
        }));
        let napi = napi(&record, Some(&(12, "napkin".into())));
        assert_eq!((napi.ifname.as_str(), napi.id, napi.cpu), ("syn0", 3, Some(1)));
        assert_eq!((napi.rx_queues, napi.irq), (vec![2], None));
        assert_eq!(napi.mode, "suspend20");
        assert_eq!(napi.polls, Some(Polls { softirq: 3, thread: 7, application: 5, empty: 7 }));
        assert_eq!((napi.packets, napi.interrupts), (Some(10), Some(2)));
        assert_eq!(
            (napi.deferrals, napi.watchdogs, napi.time_squeezes),
            (Some(4), Some(5), Squeezes::Counted(6))
        );
        assert_eq!((napi.pid, napi.full_polls), (None, None));
        assert_eq!(napi.owners, ["napkin[12]"]);
    }

    #[test]
    fn the_mode_is_named_by_the_instance_alone() {
        for (settings, name) in [
            (json!({}), "base"),
            (json!({"threaded": "enabled"}), "threaded"),
            (json!({"threaded": "busy-poll"}), "threaded=busy-poll"),
            (json!({"threaded": "workqueue"}), "workqueue"),
            (json!({"defer-hard-irqs": 100, "gro-flush-timeout": 200_000}), "defer200"),
            (json!({"hold": 100_000}), "hold"),
            (json!({"hold": 250_000}), "hold250"),
            (json!({"defer-hard-irqs": 7}), "defer-hard-irqs=7"),
        ] {
            assert_eq!(mode(&record(&settings)), name, "{settings}");
        }
        let suspend50 = json!({"defer-hard-irqs": 100, "gro-flush-timeout": 50_000,
            "irq-suspend-timeout": 20_000_000});
        assert_eq!(mode(&record(&suspend50)), "suspend50");
    }

    #[test]
    fn an_engine_that_has_gone_is_an_error_with_its_name() {
        let nobody = std::env::temp_dir().join("napkin-top-nobody.sock");
        let error = EngineSource::open(Some(&nobody)).expect_err("there is none");
        assert!(error.to_string().contains("nothing listens there"), "{error}");
    }

    fn anything() -> impl Strategy<Value = Value> {
        prop_oneof![
            Just(Value::Null),
            any::<u64>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<bool>().prop_map(Value::from),
            ".{0,100}".prop_map(Value::from),
            Just(json!([1, {"a": 2}])),
        ]
    }

    proptest! {
        #[test]
        fn whatever_an_engine_answers_is_taken_without_harm(
            values in prop::collection::vec(anything(), 26),
        ) {
            let names = [
                "ifname", "id", "queue-id", "cpu", "threaded", "defer-hard-irqs",
                "gro-flush-timeout", "irq-suspend-timeout", "hold", "feedback", "packets",
                "interrupts", "deferrals", "watchdogs", "time-squeezes", "polls-softirq",
                "polls-ksoftirqd", "polls-thread", "polls-worker", "polls-application",
                "empty-polls", "gone", "pid", "weight", "polls", "ifindex",
            ];
            let record: Record =
                names.iter().map(|name| (*name).to_owned()).zip(values).collect();
            let napi = napi(&record, Some(&(i32::MAX, "gone".into())));
            prop_assert!(napi.ifname.chars().count() <= LONGEST_NAME);
            prop_assert!(!napi.ifname.chars().any(char::is_control));
        }
    }
}
