//! 2024: IRQ suspension. memcached under mutilate, 11 policies at 6 loads.
//!
//! Each cell is computed like the published figure: from mutilate's timestamps on one of seven client machines,
//! with bins of 10 % for percentiles. The percentile relative to the intended send time is given as well. Counts
//! that were neither published nor fitted (interrupts, polls, packets per poll, returns of epoll, time per request
//! by context) are in the JSON of the runs.

mod figures;
mod regime;
mod row;

use napkin_machine::profile::Profile;
use napkin_policy::Policy;
use napkin_workload::machine::run::{self, Outcome};
use napkin_workload::memcached::machine::{self as memcached, Rate};
use serde_json::Value;

use self::figures::{COUNTS, PublishedFigures, QUANTITIES};
use self::regime::{Regime, by_timer, exempt_reason};
use self::row::{ACHIEVED, CPU, MEAN, P95, P99, rate};
use super::cell::{Cell, Modelled, Unit};
use super::experiment::{About, Experiment, Options, ReproduceError, Run, Task};
use super::null::{self, NullModel};
use super::plot::{self, Figure};
use super::published::{self, IrqSuspendRow, TargetQps};
use super::verdict::{self, Guess, Tolerance, Verdict};
use napkin_measure::report::Measurement;
use napkin_workload::machine::measurement::measurement;

/// Name of the testbed's profile.
pub const PROFILE: &str = "epyc-7662";

/// The rows that the profile is fitted to: a policy, and a rate (0 is MAX). They cover four policies at low load,
/// at medium load and saturated: without interrupts, with interrupts, and with the shortest and the longest timer;
/// and one row on either side of the knee. The other seven policies are pure prediction.
///
/// The rows were chosen, and the machine frozen, before `napkin profile fit` ran, once. It started from an earlier
/// manual fit that had used all rows, so it is blind to the other rows only as far as its starting point is.
pub const FITTED: [(&str, f64); 14] = [
    ("fullbusy", 200_000.0),
    ("fullbusy", 600_000.0),
    ("fullbusy", 1_000_000.0),
    ("fullbusy", 0.0),
    ("base", 200_000.0),
    ("base", 600_000.0),
    ("base", 800_000.0),
    ("base", 0.0),
    ("defer10", 200_000.0),
    ("defer10", 600_000.0),
    ("defer10", 0.0),
    ("defer200", 200_000.0),
    ("defer200", 600_000.0),
    ("defer200", 0.0),
];

/// Virtual seconds of warm-up, of the window, and of a quick window.
const WARM_UP_S: f64 = 0.5;
const WINDOW_S: f64 = 1.0;
const QUICK_S: f64 = 0.2;

/// Virtual seconds of a run of a fit.
const FIT_S: f64 = 0.2;

/// Approximate rate, in requests per second, of a server under MAX.
const MOST: f64 = 1.1e6;

/// One run of the table: the parameters that differ between rows, and the host.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    config: String,
    target: TargetQps,
    profile: Profile,
    warm_up_s: f64,
    window_s: f64,
}

/// 2024: memcached under IRQ suspension and under the policies that it is compared with.
#[derive(Debug, Clone, Copy, Default)]
pub struct Suspend;

/// Runs one point.
///
/// # Errors
/// If the policy is unknown, or the profile does not describe memcached.
fn outcome(point: &Point, seed: u64) -> Result<Outcome, String> {
    // The document's names are those of the presets.
    let policy: Policy = point.config.parse().map_err(|error| format!("{error}"))?;
    let rate = match point.target {
        TargetQps::PerS(rate) => Rate::PerS(rate),
        TargetQps::Max => Rate::Max,
    };
    let Point { profile, warm_up_s, window_s, .. } = point;
    let run = run::Run::for_seconds(profile, policy, seed, *warm_up_s, *window_s);
    memcached::run(run, memcached::Setup::published(rate))
}

/// The fit error of a profile on the rows of [`FITTED`]: the mean over the rows of the absolute logarithms of
/// modelled over published for rate (times ten), mean latency and p95, plus the error of CPU in units of ten
/// points. Infinite if a run fails.
pub fn fit_error(profile: &Profile) -> f64 {
    let Ok(rows) = published::irq_suspend() else { return f64::INFINITY };
    let (mut sum, mut count) = (0.0, 0.0);
    for row in rows.into_iter().filter(is_fitted) {
        let point = Point {
            config: row.config.clone(),
            target: row.target_qps,
            profile: profile.clone(),
            warm_up_s: FIT_S / 2.0,
            window_s: FIT_S,
        };
        let Ok(outcome) = outcome(&point, 1) else { return f64::INFINITY };
        let modelled = PublishedFigures::of(&outcome);
        let log = |modelled: f64, published: f64| (modelled / published).ln().abs();
        sum += 10.0 * log(modelled.achieved_per_s, row.achieved_qps_mean)
            + log(modelled.mean_us, row.avg_lat_us_median)
            + log(modelled.p95_us, row.p95_lat_us_median)
            + (modelled.cpu_percent - row.cpu_util_pct_mean).abs() / 10.0;
        count += 1.0;
    }
    sum / count
}

fn is_fitted(row: &IrqSuspendRow) -> bool {
    let rate = rate(row.target_qps).unwrap_or(0.0);
    FITTED.contains(&(row.config.as_str(), rate))
}

fn load(target: TargetQps) -> String {
    rate(target).map_or("MAX".to_owned(), |rate| format!("{:.0}K", rate / 1e3))
}

impl Experiment for Suspend {
    type Task = Point;
    type Outcome = Measurement;

    const ABOUT: About = About {
        name: "2024",
        title: "IRQ suspension (2024): memcached under mutilate",
        profile: PROFILE,
        about: "Eight workers of memcached, each on the CPU of its receive queue, serve 4480 connections of seven \
         client machines, each with one request outstanding at most. Up to 1000K a second the requests are \
         drawn in time whatever the server does; at MAX each connection sends as soon as it has an answer.\n\n\
         Latency is the first client's alone, stamped when a request is really sent: a late one is not \
         charged for its lateness. Percentiles are interpolated in bins about 10 % wide. The true value is \
         that from the time when the request was meant to be sent. At MAX the mean is the number of \
         connections divided by the rate, and says nothing more than that.\n\n\
         CPU is the share of the eight CPUs' time that is not idle. Published are means and medians of ten \
         runs of 30 seconds.",
    };

    fn plan(&self, options: &Options) -> Result<Vec<Task<Point>>, ReproduceError> {
        let profile = options.host(PROFILE)?;
        let window_s = options.virtual_s.unwrap_or(if options.quick { QUICK_S } else { WINDOW_S });
        let mut rows = published::irq_suspend()?;
        // The longest first: those with the most requests.
        rows.sort_by(|a, b| b.achieved_qps_mean.total_cmp(&a.achieved_qps_mean));
        let tasks = rows.into_iter().flat_map(|row| {
            let point = Point {
                config: row.config,
                target: row.target_qps,
                profile: profile.clone(),
                warm_up_s: WARM_UP_S.min(window_s),
                window_s,
            };
            let label = format!("{} at {}", point.config, load(point.target));
            options.seeds().map(move |seed| Task {
                label: label.clone(),
                seed,
                what: point.clone(),
            })
        });
        Ok(tasks.collect())
    }

    fn work(&self, task: &Task<Point>) -> f64 {
        // Proportional to the number of requests; no server answers many more than the highest rate.
        rate(task.what.target).unwrap_or(MOST)
    }

    fn run(&self, task: &Task<Point>) -> Result<Measurement, String> {
        outcome(&task.what, task.seed).map(|outcome| measurement(&outcome))
    }

    fn cells(&self, runs: &[Run<Point, Measurement>]) -> Vec<Cell> {
        let Ok(rows) = published::irq_suspend() else { return Vec::new() };
        let (mut cells, mut counts) = (Vec::new(), Vec::new());
        for row in &rows {
            let of_row = |run: &&Run<Point, Measurement>| {
                run.task.what.config == row.config && run.task.what.target == row.target_qps
            };
            let outcomes: Result<Vec<&Measurement>, &String> =
                runs.iter().filter(of_row).map(|run| run.outcome.as_ref()).collect();
            let modelled = |get: &dyn Fn(&Measurement) -> f64| match &outcomes {
                Ok(all) => {
                    let values: Vec<f64> = all.iter().map(|figures| get(figures)).collect();
                    Modelled::of(&values, "it was not run")
                }
                Err(why) => Modelled::absent(why),
            };
            // If a run failed, the row has no figures, and its queue does not count as growing.
            let grows = outcomes.as_ref().is_ok_and(|all| {
                2 * all.iter().filter(|figures| figures.queue_grows()).count() > all.len()
            });
            let cell = |quantity, unit| Cell {
                load_value: rate(row.target_qps),
                ..Cell::new("2024", &row.config, &load(row.target_qps), quantity, unit)
            };
            for (name, unit, published, published_tool, promised) in QUANTITIES {
                let of = |get: fn(&PublishedFigures) -> f64| {
                    modelled(&|it| get(&PublishedFigures::from(it)))
                };
                let true_value = promised.filter(|_| !grows).and_then(|get| of(get).estimate());
                let why = exempt_reason(row, name);
                cells.push(Cell {
                    published: Some(published(row)),
                    modelled: of(published_tool),
                    true_value: true_value.map(|it| it.value),
                    true_grows: grows && promised.is_some(),
                    fitted: is_fitted(row),
                    exempt: why.is_some(),
                    note: why.map(str::to_owned),
                    ..cell(name, unit)
                });
            }
            for (name, key) in COUNTS {
                let value = |it: &Measurement| it.extra.get(key).and_then(Value::as_f64);
                counts.push(Cell {
                    table: "counts, which nobody published".to_owned(),
                    modelled: modelled(&|it| value(it).unwrap_or(f64::NAN)),
                    ..cell(name, Unit::Count)
                });
            }
        }
        cells.extend(counts);
        cells
    }

    fn verdicts(&self, cells: &[Cell]) -> Vec<Verdict> {
        let of = |quantity: &str| -> Vec<&Cell> {
            cells.iter().filter(|cell| cell.quantity == quantity).collect()
        };
        let top: Vec<&Cell> = of(ACHIEVED)
            .into_iter()
            .filter(|cell| ["1000K", "MAX"].contains(&cell.load.as_str()))
            .collect();
        let mut verdicts = vec![
            verdict::share_within(
                "achieved rate at 1000K and MAX",
                &top,
                Tolerance::Relative(0.04),
                1.0,
            ),
            verdict::share_within("CPU", &of(CPU), Tolerance::Absolute(6.0), 0.9),
        ];
        verdicts.extend(null::beats(CPU, &of(CPU), NullModel::NextLowerLoad, ""));
        verdicts.extend(null::beats(CPU, &of(CPU), NullModel::Neighbours, ""));
        let guess: Guess<'_> = ("the timer's value alone", &by_timer);
        let Ok(rows) = published::irq_suspend() else { return verdicts };
        for regime in Regime::ALL {
            let named = |what: &str| format!("{}: {what}", regime.words());
            let within = |quantity: &str| -> Vec<&Cell> {
                let of_regime = |cell: &&Cell| {
                    rows.iter().any(|row| {
                        row.config == cell.config
                            && load(row.target_qps) == cell.load
                            && Regime::of(row) == regime
                    })
                };
                of(quantity).into_iter().filter(of_regime).collect()
            };
            for quantity in [MEAN, P95, P99] {
                let cells = within(quantity);
                if cells.iter().any(|cell| cell.is_judged()) {
                    verdicts.push(verdict::median_error(&named(quantity), &cells, 0.15));
                }
            }
            let pairs = named("p99 of pairs of policies at one load");
            verdicts.push(verdict::pair_order(&pairs, &within(P99), 0.15, 0.9, Some(guess)));
        }
        for quantity in [MEAN, P95, P99] {
            for model in [NullModel::MeanOfLoad, NullModel::NextLowerLoad, NullModel::Neighbours] {
                verdicts.extend(null::beats(quantity, &of(quantity), model, ""));
            }
        }
        verdicts
    }

    fn figures(&self, cells: &[Cell]) -> Vec<Figure> {
        let cells: Vec<&Cell> = cells.iter().collect();
        let line = |title: &str, caption: &str, quantity: &str, log: bool| {
            plot::lines(title, caption, &cells, "requests/s", quantity, log)
        };
        vec![
            line(
                "99th percentile against load",
                "Suspension stays with the policy that never sleeps up to a million requests a second, where \
                 interrupts and timers alone have left it far behind.",
                P99,
                true,
            ),
            line("Mean latency against load", "As the clients stamp it.", MEAN, true),
            line(
                "CPU against load",
                "What a policy costs while there is little to do is the other half of the choice.",
                CPU,
                false,
            ),
        ]
    }

    fn notes(&self) -> Vec<String> {
        vec![
            format!(
                "Fitted to {} of the 66 rows; the profile says which constants. The rows were named and the \
                 mechanisms frozen before the fit ran, once; but it began where an earlier one by hand had \
                 ended, which knew all rows: the others are a blind prediction only as far as that start is.",
                FITTED.len()
            ),
            "The measured kernel lost a timer that fired while the queue was owned (race R2 of races.md); \
             napkin keeps it. The rows are not corrected for that."
                .to_owned(),
            "The document does not say how evenly the connections were spread over the queues: the fullest \
             one has 5.6 % more than the mean, in every row and run. Hashing 4480 connections over eight \
             queues gives about 6 % on average."
                .to_owned(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Reproduce;
    use napkin_measure::report::Progress;
    use napkin_measure::{LatencyNs, Percentiles};

    fn figures_of(config: &str, target: TargetQps) -> PublishedFigures {
        let profile = Profile::named(napkin_workload::schema(), PROFILE).unwrap();
        let config = config.to_owned();
        let point = Point { config, target, profile, warm_up_s: 0.05, window_s: 0.1 };
        PublishedFigures::of(&outcome(&point, 1).unwrap())
    }

    #[test]
    fn fewer_rows_were_fitted_than_a_quarter_and_all_of_them_exist() {
        let rows = published::irq_suspend().unwrap();
        let fitted = rows.iter().filter(|row| is_fitted(row)).count();
        assert_eq!(fitted, FITTED.len());
        assert!(fitted * 4 <= rows.len());
    }

    #[test]
    fn figures_that_no_constant_moves_are_shown_and_not_judged() {
        let cells = Suspend.cells(&[]);
        let cells: Vec<&Cell> = cells.iter().filter(|cell| cell.published.is_some()).collect();
        assert_eq!((cells.len(), cells.iter().filter(|cell| cell.exempt).count()), (330, 71));
        assert!(cells.iter().all(|cell| cell.exempt == cell.note.is_some()));
    }

    #[test]
    fn up_to_600_k_the_timer_s_value_alone_orders_every_pair() {
        let low = ["200K", "400K", "600K"];
        // As if the guess were the model.
        let mut cells = Suspend.cells(&[]);
        cells.retain(|cell| cell.quantity == P99 && low.contains(&cell.load.as_str()));
        for cell in &mut cells {
            cell.modelled = Modelled::of(&[by_timer(cell).min(1e6)], "");
            cell.fitted = false;
        }
        let all: Vec<&Cell> = cells.iter().collect();
        let verdict =
            verdict::pair_order("p99", &all, 0.15, 1.0, Some(("the timer's value", &by_timer)));
        let want = "; of the 117 that the timer's value orders as well, 117, and it 117";
        assert!(verdict.got.ends_with(want), "{verdict:?}");
    }

    #[test]
    fn where_a_queue_grows_there_is_no_true_latency_and_the_published_one_stays() {
        let profile = Profile::named(napkin_workload::schema(), PROFILE).unwrap();
        let what = Point {
            config: "base".to_owned(),
            target: TargetQps::PerS(1e6),
            profile,
            warm_up_s: 0.05,
            window_s: 0.1,
        };
        let figures = |due: u64| {
            let mut figures =
                Measurement { window_ns: Some(100_000_000), ..Measurement::default() };
            figures.set_due(due, 95_000);
            let latency = LatencyNs {
                mean: Some(4e7),
                at: Percentiles::each(|_| Some(90_000_000)),
                max: 100_000_000,
                count: 95_000,
                above: None,
            };
            figures.latency_ns = Some(latency);
            figures.extra.insert("published_p99_ns".to_owned(), 5e6.into());
            figures
        };
        let p99 = |due: u64| {
            let task = Task { label: String::new(), seed: 1, what: what.clone() };
            let run = Run { task, outcome: Ok(figures(due)) };
            let of =
                |cell: &Cell| cell.quantity == P99 && cell.config == "base" && cell.load == "1000K";
            Suspend.cells(&[run]).into_iter().find(of).unwrap()
        };
        let [grows, calm] = [100_000, 95_100].map(p99);
        assert_eq!((grows.true_grows, grows.true_value, grows.model()), (true, None, Some(5e3)));
        assert_eq!((calm.true_grows, calm.true_value, calm.model()), (false, Some(9e4), Some(5e3)));
    }

    #[test]
    fn the_table_has_twelve_rows_at_the_knee() {
        let rows = published::irq_suspend().unwrap();
        let of = |regime| rows.iter().filter(|row| Regime::of(row) == regime).count();
        assert_eq!(Regime::ALL.map(of), [43, 12, 11]);
    }

    #[test]
    fn at_max_the_mean_latency_is_little_s_law() {
        let figures = figures_of("suspend20", TargetQps::Max);
        let little = 4480.0 / figures.achieved_per_s * 1e6;
        assert!((figures.mean_us / little - 1.0).abs() < 0.05, "{} and {little}", figures.mean_us);
    }

    #[test]
    fn suspension_answers_more_than_interrupts_and_costs_less_than_spinning() {
        let [base, suspend] =
            ["base", "suspend20"].map(|config| figures_of(config, TargetQps::Max).achieved_per_s);
        assert!(suspend > base * 1.1, "{suspend} and {base}");
        let [busy, suspend] = ["fullbusy", "suspend20"]
            .map(|config| figures_of(config, TargetQps::PerS(200e3)).cpu_percent);
        assert!(busy > 99.0 && suspend < 40.0, "{busy} and {suspend}");
    }

    #[test]
    fn every_published_figure_has_a_cell_and_the_same_seed_the_same_cells() {
        let options = Options { quick: true, virtual_s: Some(0.002), ..Options::default() };
        let run = || Suspend.reproduce(&options, Progress::hidden).unwrap();
        let (one, two) = (run(), run());
        assert_eq!(one.cells.len(), 66 * (QUANTITIES.len() + COUNTS.len()));
        assert_eq!(serde_json::to_string(&one).unwrap(), serde_json::to_string(&two).unwrap());
    }
}
