//! 2007: hold in polled mode. A desktop with one CPU flood-pings another host.
//!
//! There are three curves: the baseline, the hold by jiffies that was posted, and a hold by high-resolution time
//! that its author considered next. Three unknowns are fitted to six figures, so the rates are identification;
//! tested are the interrupts, the full CPU, and the dependence on HZ. The flood was published. The paced pings,
//! whose gaps a hold may or may not outlast, are a prediction.

use napkin_machine::profile::Profile;
use napkin_policy::Policy;
use napkin_workload::flood_ping::machine as flood_ping;
use napkin_workload::machine::run::{self, Outcome};

use super::cell::{Cell, Modelled, Unit, number};
use super::experiment::{About, Experiment, Options, ReproduceError, Run, Task};
use super::null::{self, NullModel};
use super::plot::{self, Figure};
use super::published::{self, HoldRow};
use super::verdict::{self, Tolerance, Verdict};
use napkin_measure::report::Measurement;
use napkin_workload::machine::measurement::measurement;

/// Name of the testbed's profile.
pub const PROFILE: &str = "desktop-2007";

/// The figures that the profile was fitted to: mode in the published table, and quantity.
pub const FITTED: [(&str, &str); 3] = [(BASELINE, PACKETS), (BASELINE, CPU), (BY_JIFFIES, PACKETS)];

/// Modes of the published table.
const BASELINE: &str = "baseline_napi";
const BY_JIFFIES: &str = "hold_in_poll_1_2_jiffies";

/// Names of the figures.
const PACKETS: &str = "packets";
const CPU: &str = "CPU";
const INTERRUPTS: &str = "interrupts";

/// Names of the two tables.
const FLOOD: &str = "flood";
const PACED: &str = "paced";

/// Ticks per second of kernels of that time. The published machine's value is not known; 250 is the default.
const HZ: [u32; 3] = [100, 250, 1_000];
const DEFAULT_HZ: u32 = 250;

/// Paced pings per second: the rate to which a flood ping falls back without answers.
const PACE: f64 = 100.0;

/// Virtual seconds of warm-up, of the window, and of a quick window.
const WARM_UP_S: f64 = 0.2;
const WINDOW_S: f64 = 1.0;
const QUICK_S: f64 = 0.3;

/// The condition for leaving polled mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// As soon as there is no work.
    Baseline,
    /// At the first jiffy after two without work.
    Jiffies,
    /// After 100 us without work, by a high-resolution clock.
    Time,
}

impl Mode {
    /// All modes, in the order in which they are shown.
    pub const ALL: [Mode; 3] = [Mode::Baseline, Mode::Jiffies, Mode::Time];

    /// Name in the cells.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Baseline => "baseline",
            Mode::Jiffies => "hold by jiffies",
            Mode::Time => "hold by time",
        }
    }

    fn policy(self, hz: u32) -> Policy {
        match self {
            Mode::Baseline => Policy::BASE,
            Mode::Jiffies => Policy::hold_ticks(hz),
            Mode::Time => Policy::hold(100_000),
        }
    }

    /// Name in the published table.
    fn row(self) -> Option<&'static str> {
        match self {
            Mode::Baseline => Some(BASELINE),
            Mode::Jiffies => Some(BY_JIFFIES),
            Mode::Time => None,
        }
    }
}

/// One run of the table: the parameters that differ between rows, and the host.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    mode: Mode,
    hz: u32,
    paced: bool,
    profile: Profile,
    window_s: f64,
}

/// 2007: a flood ping under hold in polled mode.
#[derive(Debug, Clone, Copy, Default)]
pub struct Hold;

/// Runs one point.
///
/// # Errors
/// If the profile has no ping, or refuses the HZ.
fn outcome(point: &Point, seed: u64) -> Result<Outcome, String> {
    let mut profile = point.profile.clone();
    profile.set("kernel.hz", f64::from(point.hz)).map_err(|error| error.to_string())?;
    let policy = point.mode.policy(point.hz);
    let run = run::Run::for_seconds(&profile, policy, seed, WARM_UP_S, point.window_s);
    flood_ping::run(run, point.paced.then_some(PACE))
}

/// A published figure, by its name.
fn figure(row: &HoldRow, quantity: &str) -> f64 {
    match quantity {
        PACKETS => row.packets_sent_received,
        CPU => row.cpu_load_pct,
        _ => row.netdev_interrupts,
    }
}

/// The fit error of a profile on the figures of [`FITTED`]: the mean absolute logarithm of modelled over published.
/// Infinite if a run fails.
pub fn fit_error(profile: &Profile) -> f64 {
    let Ok(rows) = published::hold() else { return f64::INFINITY };
    let mut sum = 0.0;
    for (name, quantity) in FITTED {
        let row = rows.iter().find(|row| row.mode == name);
        let mode = Mode::ALL.into_iter().find(|mode| mode.row() == Some(name));
        let (Some(row), Some(mode)) = (row, mode) else { return f64::INFINITY };
        let profile = profile.clone();
        let point = Point { mode, hz: DEFAULT_HZ, paced: false, profile, window_s: WINDOW_S };
        let Ok(outcome) = outcome(&point, 1) else { return f64::INFINITY };
        let modelled = if quantity == CPU { outcome.cpu_percent() } else { outcome.achieved_per_s };
        sum += (modelled / figure(row, quantity)).ln().abs();
    }
    sum / FITTED.len() as f64
}

/// A modelled figure, by its name.
fn modelled(figures: &Measurement, quantity: &str) -> f64 {
    let number = match quantity {
        PACKETS => figures.achieved_per_s,
        CPU => figures.cpu.map(|cpu| cpu.busy() * 100.0),
        _ => figures.extra.get("interrupts_per_s").and_then(serde_json::Value::as_f64),
    };
    number.unwrap_or(f64::NAN)
}

fn load(hz: u32) -> String {
    format!("HZ {hz}")
}

/// Checks the effect of a hold in jiffies on pings 10 ms apart, as its rule predicts. Two to three jiffies of 10 ms
/// outlast the gap, so that there are no interrupts. Those of 1 ms do not, so that each ping has one (its answer is
/// found by the poll that its transmission began).
fn moves_with_hz(cells: &[Cell]) -> Verdict {
    let interrupts = |hz: u32| {
        cells
            .iter()
            .find(|cell| {
                cell.table == PACED
                    && cell.config == Mode::Jiffies.name()
                    && cell.quantity == INTERRUPTS
                    && cell.load == load(hz)
            })
            .and_then(Cell::model)
    };
    let (slow, fast) = (interrupts(HZ[0]), interrupts(HZ[2]));
    let value_text = |value: Option<f64>| value.map_or("not modelled".to_owned(), number);
    Verdict {
        what: "hold by jiffies, pings 10 ms apart".to_owned(),
        asked: format!(
            "no interrupts at {} and {} a second at {}, from the rule itself",
            load(HZ[0]),
            number(PACE),
            load(HZ[2])
        ),
        got: format!("{} and {}", value_text(slow), value_text(fast)),
        met: slow.is_some_and(|it| it <= 3.0) && fast.is_some_and(|it| (it - PACE).abs() <= 3.0),
        ..Verdict::default()
    }
}

impl Experiment for Hold {
    type Task = Point;
    type Outcome = Measurement;

    const ABOUT: About = About {
        name: "2007",
        title: "Hold in polled mode (2007): flood ping",
        profile: PROFILE,
        about: "A desktop with one CPU floods another host with pings: the next goes when the answer is there. \
         The published counts are read as being of one second: at the baseline that makes two interrupts a \
         ping, the transmission's and the answer's.\n\n\
         Six figures and three unknowns (the program's path, the other host's time, the way out of \
         idleness): the rates are identification. Tested are the interrupts, the full CPU under the hold, \
         and how the result moves with HZ.",
    };

    fn plan(&self, options: &Options) -> Result<Vec<Task<Point>>, ReproduceError> {
        let profile = options.host(PROFILE)?;
        let window_s = options.virtual_s.unwrap_or(if options.quick { QUICK_S } else { WINDOW_S });
        let mut tasks = Vec::new();
        for paced in [false, true] {
            for hz in HZ {
                for mode in Mode::ALL {
                    let table = if paced { PACED } else { FLOOD };
                    tasks.extend(options.seeds().map(|seed| Task {
                        label: format!("{table}, {} at {}", mode.name(), load(hz)),
                        seed,
                        what: Point { mode, hz, paced, profile: profile.clone(), window_s },
                    }));
                }
            }
        }
        Ok(tasks)
    }

    fn run(&self, task: &Task<Point>) -> Result<Measurement, String> {
        outcome(&task.what, task.seed).map(|outcome| measurement(&outcome))
    }

    fn cells(&self, runs: &[Run<Point, Measurement>]) -> Vec<Cell> {
        let Ok(rows) = published::hold() else { return Vec::new() };
        let mut cells = Vec::new();
        for paced in [false, true] {
            for hz in HZ {
                for mode in Mode::ALL {
                    let of_cell: Vec<_> = runs
                        .iter()
                        .filter(|run| {
                            let what = &run.task.what;
                            (what.mode, what.hz, what.paced) == (mode, hz, paced)
                        })
                        .collect();
                    let published = !paced && hz == DEFAULT_HZ;
                    let row =
                        rows.iter().find(|row| published && Some(row.mode.as_str()) == mode.row());
                    let units =
                        [(PACKETS, Unit::PerS), (CPU, Unit::Percent), (INTERRUPTS, Unit::PerS)];
                    for (quantity, unit) in units {
                        let value = |it: &Measurement| modelled(it, quantity);
                        cells.push(Cell {
                            table: if paced { PACED } else { FLOOD }.to_owned(),
                            load_value: Some(f64::from(hz)),
                            published: row.map(|row| figure(row, quantity)),
                            modelled: Modelled::of_runs(
                                of_cell.iter().copied(),
                                value,
                                "it was not run",
                            ),
                            fitted: row
                                .is_some_and(|row| FITTED.contains(&(row.mode.as_str(), quantity))),
                            ..Cell::new("2007", mode.name(), &load(hz), quantity, unit)
                        });
                    }
                }
            }
        }
        cells
    }

    fn verdicts(&self, cells: &[Cell]) -> Vec<Verdict> {
        let all: Vec<&Cell> = cells.iter().collect();
        let mut verdicts =
            vec![verdict::share_within("predicted", &all, Tolerance::RelativeOr(0.05, 3.0), 1.0)];
        verdicts.extend(null::beats("predicted", &all, NullModel::MeanOfLoad, ""));
        verdicts.push(moves_with_hz(cells));
        verdicts
    }

    fn figures(&self, cells: &[Cell]) -> Vec<Figure> {
        let of = |table: &str| -> Vec<&Cell> {
            cells.iter().filter(|cell| cell.table == table).collect()
        };
        vec![
            plot::lines(
                "CPU of a hundred pings a second by HZ",
                "A hold by jiffies keeps the CPU for as long as its jiffies last; one by time does not care.",
                &of(PACED),
                "HZ",
                CPU,
                false,
            ),
            plot::lines(
                "Packets of a flood by HZ",
                "While packets come faster than any hold ends, HZ does not matter.",
                &of(FLOOD),
                "HZ",
                PACKETS,
                false,
            ),
        ]
    }

    fn notes(&self) -> Vec<String> {
        vec![
            "Fitted: the receive call, the other host's time, and the way from the card to an idle CPU, to \
             the two rates and the baseline's CPU. The price of an interrupt, 22 us, is what the published \
             figures say of themselves."
                .to_owned(),
            "The document does not say which of the hosts ran ping. Here it is the one that was measured."
                .to_owned(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Reproduce, Reproduction};
    use napkin_measure::report::Progress;

    fn reproduce() -> Reproduction {
        let options = Options { quick: true, ..Options::default() };
        Hold.reproduce(&options, Progress::hidden).unwrap()
    }

    #[test]
    fn every_published_figure_has_a_cell_with_a_value() {
        let reproduction = reproduce();
        let judged: Vec<&Cell> = reproduction.cells.iter().filter(|c| c.is_informative()).collect();
        assert_eq!(judged.len(), 6);
        assert_eq!(judged.iter().filter(|cell| cell.fitted).count(), FITTED.len());
        assert!(reproduction.cells.iter().all(|cell| cell.model().is_some()));
    }

    #[test]
    fn a_flood_under_a_hold_has_no_interrupts_and_all_of_the_cpu_at_any_hz() {
        let profile = Profile::named(napkin_workload::schema(), PROFILE).unwrap();
        for hz in HZ {
            for mode in [Mode::Jiffies, Mode::Time] {
                let point =
                    Point { mode, hz, paced: false, profile: profile.clone(), window_s: 0.3 };
                let outcome = outcome(&point, 1).unwrap();
                assert!(outcome.figures["interrupts_per_s"] <= 3.0, "{mode:?}, {hz}");
                assert!(outcome.cpu_percent() > 99.0, "{mode:?}, {hz}");
            }
        }
    }

    #[test]
    fn what_a_hold_by_jiffies_costs_depends_on_hz_and_by_time_it_does_not() {
        let reproduction = reproduce();
        let cpu = |mode: Mode, hz: u32| {
            let cell = reproduction.cells.iter().find(|cell| {
                cell.table == PACED
                    && cell.config == mode.name()
                    && cell.load == load(hz)
                    && cell.quantity == CPU
            });
            cell.and_then(Cell::model).unwrap()
        };
        assert!(cpu(Mode::Jiffies, 100) > 2.0 * cpu(Mode::Jiffies, 1_000));
        assert!((cpu(Mode::Time, 100) - cpu(Mode::Time, 1_000)).abs() < 1.0);
    }
}
