use std::fs;

use super::*;
use crate::interrupt::Interrupt;
use crate::sweep::run::tests::{Folder, sweep};
use napkin_measure::report::page_check::check;

fn provenance() -> Provenance {
    Provenance {
        date: "2026-11-22T17:00:00Z".to_owned(),
        version: "napkin 1".to_owned(),
        command: "napkin sweep plot a.csv".to_owned(),
    }
}

fn swept(test: &str, vary: &[&str]) -> Folder {
    let folder = Folder::new(test);
    sweep(vary).run(&folder.file(), false, &Interrupt::default(), |_| ()).unwrap();
    folder
}

fn plot(folder: &Folder, x: &str, y: &str, by: &[&str]) -> Result<String, String> {
    let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let y = y.split(',').collect::<Vec<_>>();
    let plot = SweepPlot { x: x.to_owned(), y: list(&y), by: list(by) };
    plot.page(&folder.file(), &provenance()).map_err(|error| error.to_string())
}

#[test]
fn each_policy_is_a_line_over_the_loads_with_the_range_of_its_seeds() {
    let folder = swept("plot", &["policy=base,suspend20", "load=20000,5000", "seed=1..3"]);
    let page = plot(&folder, "load", "p50,cpu_work", &["policy"]).unwrap();
    check(&page);
    assert!(page.contains("<h1>napkin sweep: stand-in on "), "{page}");
    assert_eq!(page.matches("<figure>").count(), 2);
    for words in [
        "latency_p50, us, over load",
        "cpu_work, over load",
        ">suspend20<",
        "Median of up to 3 seeds",
    ] {
        assert!(page.contains(words), "{words}");
    }
    assert!(page.contains("12 of 12 points</td>") && page.contains("figures by"), "{page}");
    let table = Table::read(&folder.file()).unwrap();
    let columns = Columns::of(table).unwrap();
    let (x, y) = (columns.parameter("--x", "load").unwrap(), columns.figure("p50").unwrap());
    let by = [columns.parameter("--by", "policy").unwrap()];
    let lines = columns.lines(x, y, &by);
    assert_eq!(lines.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(), ["base", "suspend20"]);
    let spots: Vec<&str> = lines[0].spots.iter().map(|spot| spot.x.as_str()).collect();
    assert_eq!(spots, ["5000", "20000"], "rising, however they were swept");
    let spot = &lines[1].spots[1];
    let of = |seed: &str| {
        let row = columns.rows.iter().find(|row| {
            let at = |name: &str| &row[columns.header.iter().position(|it| it == name).unwrap()];
            at("policy") == "suspend20" && at("load") == "20000" && at("seed") == seed
        });
        row.unwrap()[y].parse::<f64>().unwrap() / 1e3
    };
    let mut all = ["1", "2", "3"].map(of);
    all.sort_by(f64::total_cmp);
    assert_eq!(spot.median(), Some(all[1]));
    assert_eq!(spot.interval(), Some((all[0], all[2])));
}

#[test]
fn a_column_that_is_none_is_refused_with_those_that_there_are() {
    let folder = swept("plot-columns", &["load=5000,20000"]);
    let refusal = |x: &str, y: &str, by: &str| plot(&folder, x, y, &[by]).unwrap_err();
    let wrong = refusal("lod", "p99", "policy");
    assert!(wrong.starts_with("--x lod: ") && wrong.contains("did you mean 'load'?"), "{wrong}");
    assert!(wrong.ends_with("it is one of: workload, profile, policy, load, seed"), "{wrong}");
    let wrong = refusal("load", "p98", "policy");
    assert!(wrong.starts_with("--y p98: ") && wrong.contains("latency_p99_ns, "), "{wrong}");
    assert!(!wrong.contains("policy,") && !wrong.ends_with("error"), "{wrong}");
    assert!(refusal("load", "p99", "latency_p99_ns").starts_with("--by latency_p99_ns: "));
    assert!(refusal("load", "load", "policy").starts_with("--y load: "), "no figure");
}

#[test]
fn points_that_differ_in_more_are_not_thrown_together() {
    let folder = swept("plot-differ", &["load=5000,20000", "cost.poll=400ns,2us", "hold=0,20us"]);
    let error = plot(&folder, "load", "p99", &["policy"]).unwrap_err();
    assert!(error.contains("differ in cost.poll and hold, too"), "{error}");
    assert!(error.contains("--by policy,cost.poll,hold"), "{error}");
    let page = plot(&folder, "cost.poll", "p99", &["load", "hold"]).unwrap();
    check(&page);
    assert!(page.contains("cost.poll, us") && page.contains("load 5000, hold 20us"), "{page}");
}

#[test]
fn a_point_without_a_figure_is_a_gap_that_says_why() {
    let folder = swept("plot-gap", &["nic.queues=2,4", "processor.cpus=2,4"]);
    let page = plot(&folder, "nic.queues", "p50", &["processor.cpus"]).unwrap();
    check(&page);
    assert!(page.contains("No figure:<ul><li>base, 5000, 1, 4, 2: "), "{page}");
    // A sheet of an unfinished sweep.
    let text = fs::read_to_string(folder.file()).unwrap();
    let lines: Vec<&str> = text.lines().take(3).collect();
    fs::write(folder.file(), lines.join("\n") + "\n").unwrap();
    let page = plot(&folder, "nic.queues", "p50", &["processor.cpus"]).unwrap();
    assert!(page.contains("2 of 4 points: the sweep has not finished"), "{page}");
    fs::write(folder.file(), format!("{}\n", lines[0])).unwrap();
    assert!(plot(&folder, "load", "p50", &[]).unwrap_err().contains("has no point"));
}

#[test]
fn a_percentile_that_one_repetition_does_not_tell_is_a_gap_that_says_how_many_do_not() {
    let folder = swept("plot-untold", &["load=5000,20000", "seed=1..3"]);
    let mut table = Table::read(&folder.file()).unwrap();
    let column = |table: &Table, name: &str| table.column(name).unwrap();
    let (load, seed) = (column(&table, "load"), column(&table, "seed"));
    let lost = ["latency_p50_ns", "latency_mean_ns"].map(|name| column(&table, name));
    for row in table.rows.iter_mut().filter(|row| &row[load] == "20000" && &row[seed] == "2") {
        let fields = row.iter().enumerate();
        *row = fields.map(|(at, field)| if lost.contains(&at) { "" } else { field }).collect();
    }
    let columns = Columns::of(table).unwrap();
    let [p50, mean] = lost;
    let medians = |y: usize| -> Vec<Option<f64>> {
        columns.lines(load, y, &[])[0].spots.iter().map(Spot::median).collect()
    };
    assert!(matches!(medians(p50)[..], [Some(_), None]), "not the median of the other two");
    assert!(matches!(medians(mean)[..], [Some(_), Some(_)]));
    let figure = columns.draw(load, p50, &columns.lines(load, p50, &[]));
    let why = "load 20000: 1 of 3 repetitions do not tell it: too few answers, requests without one, or a \
               queue that grows";
    assert_eq!(figure.gaps, [why]);
    let figure = columns.draw(load, mean, &columns.lines(load, mean, &[]));
    assert_eq!(figure.gaps, ["base, 20000, 2"]);

    // A failed point does not affect the others.
    let mut table = Table::read(&folder.file()).unwrap();
    let error = column(&table, "error");
    for row in table.rows.iter_mut().filter(|row| &row[load] == "20000" && &row[seed] == "2") {
        let fields = row.iter().enumerate().map(|(at, field)| match at {
            at if at == p50 => "",
            at if at == error => "no such draw",
            _ => field,
        });
        *row = fields.collect();
    }
    let columns = Columns::of(table).unwrap();
    let lines = columns.lines(load, p50, &[]);
    assert!(lines[0].spots.iter().all(|spot| spot.median().is_some()));
    assert_eq!(columns.draw(load, p50, &lines).gaps, ["base, 20000, 2: no such draw"]);
}

#[test]
fn a_load_is_the_number_that_its_workload_takes_it_for() {
    let folder = swept("plot-loads", &["load=5000,20000"]);
    let at = |workload: &str, load: &str| {
        let mut table = Table::read(&folder.file()).unwrap();
        let [its_workload, its_load] = ["workload", "load"].map(|it| table.column(it).unwrap());
        let fields = table.rows[0].iter().enumerate().map(|(at, field)| match at {
            at if at == its_workload => workload,
            at if at == its_load => load,
            _ => field,
        });
        table.rows[0] = fields.collect();
        let columns = Columns::of(table).unwrap();
        let spot = Spot { x: load.to_owned(), ..Spot::default() };
        columns.quantity(its_load, &spot)
    };
    assert_eq!(at("memcached", "200k"), Some((200e3, "")));
    assert_eq!(at("memcached", "max"), None);
    for load in ["5K", "5KB", "5120"] {
        assert_eq!(at("tcp-rr", load), Some((5120.0, "")), "{load}");
    }
    assert_eq!(at("tcp-rr", "1M"), Some((1_048_576.0, "")));
}

#[test]
fn values_of_a_parameter_are_numbers_where_they_can_be() {
    assert_eq!(quantity("load", "max"), None);
    assert_eq!(quantity("load", "12.5"), Some((12.5, "")));
    assert_eq!(quantity("gro-flush-timeout", "20us"), Some((20.0, "us")));
    assert_eq!(quantity("gro-flush-timeout", "0"), Some((0.0, "")));
    assert_eq!(quantity("cost.poll", "400 ns"), Some((0.4, "us")));
    assert_eq!(quantity("cost.poll", "300 cycles"), None);
    assert_eq!(quantity("link.rate", "100Gbit/s"), Some((100e9, "bit/s")));
    assert_eq!(quantity("policy", "base"), None);
}
