use std::fs;
use std::path::PathBuf;

use super::*;
use crate::machine::stand_in::{self, StandIn};

pub(crate) struct Folder(pub(crate) napkin_testing::Folder);

impl Folder {
    pub(crate) fn new(test: &str) -> Folder {
        Folder(napkin_testing::Folder::new(&format!("sweep-{test}")))
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.0.join("sweep.csv")
    }
}

pub(crate) fn sweep(vary: &[&str]) -> Sweep<'static> {
    Sweep {
        scenario: &StandIn,
        profile: stand_in::profile(),
        policy: "base".to_owned(),
        load: "5000".to_owned(),
        seed: 1,
        warm_up: 1_000_000,
        window: 10_000_000,
        axes: Axis::parse_all(vary.iter().copied()).unwrap(),
        shard: None,
        version: "napkin 1".to_owned(),
        limit: 1_000,
        jobs: NonZeroUsize::new(3),
    }
}

pub(crate) const VARY: &[&str] = &[
    "policy=base,suspend20",
    "gro-flush-timeout=20us,50us",
    "load=5000,20000",
    "cost.poll=400ns,2us",
    "seed=1..2",
];

fn run(sweep: &Sweep<'_>, path: &Path, resume: bool) -> Result<Totals, SweepError> {
    sweep.run(path, resume, &Interrupt::default(), |_| ())
}

#[test]
fn every_point_of_the_product_is_a_line_in_its_order() {
    let folder = Folder::new("all");
    let sweep = sweep(VARY);
    assert_eq!(sweep.points(), 32);
    let totals = run(&sweep, &folder.file(), false).unwrap();
    assert_eq!(totals, Totals { points: 32, resumed: 0, failed: 0, left: 0 });
    let mut reader = csv::Reader::from_path(folder.file()).unwrap();
    let header = reader.headers().unwrap().clone();
    let column = |name: &str| header.iter().position(|it| it == name).expect(name);
    let rows: Vec<_> = reader.records().map(Result::unwrap).collect();
    let of = |row: usize, name: &str| rows[row][column(name)].to_owned();
    assert_eq!((of(0, "policy"), of(31, "policy")), ("base".into(), "suspend20".into()));
    assert_eq!((of(0, "seed"), of(1, "seed")), ("1".into(), "2".into()));
    assert_eq!((of(1, "cost.poll"), of(2, "cost.poll")), ("400ns".into(), "2us".into()));
    for row in 0..32 {
        assert_eq!(of(row, "point"), row.to_string());
        // Fifty answers or more determine a median, but not a p99.
        assert_eq!(of(row, "latency_p99_ns"), "");
        let interrupts = "interrupts_per_packet";
        for name in [
            "latency_p50_ns",
            "due",
            "unanswered",
            "cpu_work",
            "softirq_us_per_request",
            interrupts,
        ] {
            assert!(of(row, name).parse::<f64>().is_ok(), "{name} of {row}");
        }
        assert_eq!(of(row, "error"), "");
        assert_eq!(of(row, "grows"), "0");
    }
    // More expensive polls use more CPU time: the constant reaches the machine.
    let cpu = |row| of(row, "cpu_work").parse::<f64>().unwrap();
    assert!(cpu(2) > cpu(0));
}

#[test]
fn a_killed_sweep_goes_on_and_ends_with_the_same_bytes() {
    let folder = Folder::new("resume");
    let sweep = sweep(VARY);
    run(&sweep, &folder.file(), false).unwrap();
    let whole = fs::read(folder.file()).unwrap();
    for part in [1, whole.len() / 3, whole.len() - 1] {
        fs::write(folder.file(), &whole[..part]).unwrap();
        let totals = run(&sweep, &folder.file(), true).unwrap();
        assert_eq!(totals.points, 32);
        assert!(totals.resumed < 32, "{part}");
        assert_eq!(fs::read(folder.file()).unwrap(), whole, "killed after {part} bytes");
    }
    let one = Sweep { jobs: NonZeroUsize::new(1), ..sweep.clone() };
    assert_eq!(run(&one, &folder.file(), true).unwrap().resumed, 32, "nothing is left to do");
    let other = Sweep { window: 11_000_000, ..sweep };
    let error = run(&other, &folder.file(), true).unwrap_err();
    assert!(error.to_string().contains("holds another sweep"), "{error}");
}

#[test]
fn the_size_and_the_time_are_told_first() {
    let folder = Folder::new("size");
    let mut events = Vec::new();
    let never = Interrupt::default();
    let sweep = sweep(&["load=5000,20000"]);
    sweep.run(&folder.file(), false, &never, |event| events.push(event)).unwrap();
    let Event::Size { text, left: 2 } = &events[0] else { panic!("{events:?}") };
    assert!(text.starts_with("2 points (2 load); one takes "), "{text}");
    assert_eq!(events.len(), 3, "and then each point");
}

#[test]
fn a_sweep_of_nothing_or_of_billions_is_refused() {
    let folder = Folder::new("billions");
    let nothing = run(&sweep(&[]), &folder.file(), false).unwrap_err();
    assert!(nothing.to_string().contains("a sweep of nothing"), "{nothing}");
    let huge = sweep(&["seed=1..5000000000", "load=5000,20000"]);
    let error = run(&huge, &folder.file(), false).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("10000000000 points (5000000000 seed x 2 load)"), "{text}");
    assert!(text.contains("so about") && text.contains("--limit 1000"), "{text}");
    assert!(error.is_usage() && !folder.file().exists());
    let all = sweep(&["seed=0..18446744073709551615", "load=5000,20000"]);
    assert_eq!(all.points(), 1 << 65);
}

#[test]
fn values_that_make_no_sense_are_refused_before_anything_runs() {
    let folder = Folder::new("wrong");
    for (vary, message) in [
        ("policy=bse", "did you mean 'base'"),
        ("gro-flush-timeout=banana", "gro-flush-timeout"),
        ("load=0", "a load of 0"),
        ("load=4000000000000", "link.rate"),
        ("cost.poll=-1ns", "cost.poll"),
        ("cost.poll=1 GHz", "cost.poll"),
    ] {
        let error = run(&sweep(&[vary]), &folder.file(), false).unwrap_err();
        assert!(error.to_string().contains(message), "{vary}: {error}");
        assert!(error.is_usage() && !folder.file().exists());
    }
}

#[test]
fn a_point_that_cannot_be_is_a_line_that_says_why() {
    let folder = Folder::new("point");
    let sweep = sweep(&["nic.queues=2,4", "processor.cpus=2,4"]);
    let totals = run(&sweep, &folder.file(), false).unwrap();
    assert_eq!((totals.points, totals.failed), (4, 1));
    let text = fs::read_to_string(folder.file()).unwrap();
    let line = text.lines().nth(3).unwrap();
    assert!(line.contains("4 queues") || line.contains("nic.queues"), "{line}");
}

#[test]
fn each_point_is_in_one_shard_and_more_values_or_parameters_move_none() {
    // The identifying values of each point, and its shard, from a run of each of four shards.
    let of = |vary: &[&str], names: &[&str]| -> BTreeMap<Vec<String>, u64> {
        let whole = sweep(vary);
        let naming = whole.naming();
        let points = whole.points() as u64;
        let mut shards = BTreeMap::new();
        for number in 1..=4 {
            let part = Sweep { shard: format!("{number}/4").parse().ok(), ..whole.clone() };
            for point in part.points_to_run(points, &Interrupt::default()).unwrap() {
                let named = naming.iter().zip(whole.naming_values(point));
                let named = named.filter(|(name, _)| names.contains(&name.as_str()));
                let mut named: Vec<_> =
                    named.map(|(name, value)| format!("{name} {value}")).collect();
                named.sort();
                let twice = shards.insert(named, number);
                assert!(twice.is_none() || vary.len() > VARY.len());
            }
        }
        assert!((1..=4).all(|number| shards.values().any(|it| *it == number)));
        shards
    };
    let names = ["policy", "gro-flush-timeout", "load", "cost.poll", "seed"];
    let before = of(VARY, &names);
    assert_eq!(before.len(), 32);
    let values = [
        "seed=1..9",
        "cost.poll=1us,400ns,2us",
        "load=100,5000,20000",
        "gro-flush-timeout=20us,50us,70us",
        "policy=threaded,base,suspend20",
    ];
    let grown = of(&values, &names);
    assert_eq!(grown.len(), 9 * 81);
    // A constant set to the profile's own value yields the old points.
    let profile = stand_in::profile();
    let ring = format!("nic.ring={}", profile.count("nic.ring"));
    let more = of(&[VARY, &[ring.as_str()]].concat(), &names);
    for (point, shard) in &before {
        assert_eq!(grown[point], *shard, "{point:?}");
        assert_eq!(more[point], *shard, "{point:?}");
    }
}

#[test]
fn a_shard_is_gone_on_with_and_its_points_alone_are_run() {
    let folder = Folder::new("shard");
    let part = Sweep { shard: "2/3".parse().ok(), ..sweep(VARY) };
    let mut text = String::new();
    let totals = part
        .run(&folder.file(), false, &Interrupt::default(), |event| {
            if let Event::Size { text: size, .. } = event {
                text = size;
            }
        })
        .unwrap();
    assert!(totals.points > 0 && totals.points < 32, "{totals:?}");
    assert!(text.contains(&format!(", shard 2/3; {} are left; ", totals.points)), "{text}");
    let whole = fs::read(folder.file()).unwrap();
    fs::write(folder.file(), &whole[..whole.len() / 2]).unwrap();
    assert!(run(&part, &folder.file(), true).unwrap().resumed > 0);
    assert_eq!(fs::read(folder.file()).unwrap(), whole);
    for shard in [None, "1/3".parse().ok(), "2/4".parse().ok()] {
        let error = run(&Sweep { shard, ..part.clone() }, &folder.file(), true).unwrap_err();
        assert!(error.to_string().contains("holds another sweep"), "{error}");
    }
    // The limit applies to the points that this process runs.
    let few = Sweep { limit: 11, ..part.clone() };
    assert_eq!(run(&few, &folder.file(), true).unwrap().left, 0);
    let fewer = Sweep { limit: 10, ..part };
    assert!(matches!(run(&fewer, &folder.file(), true), Err(SweepError::TooMany { .. })));
}

#[test]
fn a_sweep_with_more_values_goes_on_with_the_points_that_are_there() {
    let folder = Folder::new("grown");
    for shard in [None, "1/2".parse().ok()] {
        let less = Sweep { shard, ..sweep(&["policy=base", "seed=1..8"]) };
        let more = Sweep { shard, ..sweep(&["policy=suspend20,base", "seed=0..9"]) };
        let _ = fs::remove_file(folder.file());
        run(&more, &folder.file(), false).unwrap();
        let whole = fs::read(folder.file()).unwrap();
        fs::remove_file(folder.file()).unwrap();
        let points = run(&less, &folder.file(), false).unwrap().points;
        let totals = run(&more, &folder.file(), true).unwrap();
        assert!(points > 0 && totals.resumed == points && totals.points > points, "{totals:?}");
        assert_eq!(fs::read(folder.file()).unwrap(), whole);
        // Not in the other direction: points would be lost.
        assert!(run(&less, &folder.file(), true).is_err());
        assert_eq!(fs::read(folder.file()).unwrap(), whole);
    }
}

#[test]
fn a_draw_changes_the_figures_and_draw_0_is_the_profile_as_it_is() {
    let all = sweep(&["draw=0..2"]);
    let of = |point| serde_json::to_string(&all.measurement(point).unwrap()).unwrap();
    let plain = serde_json::to_string(&sweep(&["seed=1"]).measurement(0).unwrap()).unwrap();
    assert_eq!(of(0), plain);
    assert_ne!(of(1), plain);
    assert_ne!(of(1), of(2));
    assert_eq!(all.naming_values(2)[5], "2");
}
