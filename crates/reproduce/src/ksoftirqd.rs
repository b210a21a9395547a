//! 2018: network softirqs to ksoftirqd. A generator floods a blocking UDP sink whose CPU also takes the interrupt.
//!
//! Three curves over the offered rate: the kernel of that time, the proposal as posted, and the proposal as meant,
//! for which nothing was published.

use napkin_machine::profile::Profile;
use napkin_policy::Policy;
use napkin_workload::machine::run::{self, Outcome};
use napkin_workload::udp_sink::machine as udp_sink;

use super::cell::{Cell, Modelled, Unit};
use super::experiment::{About, Experiment, Options, ReproduceError, Run, Task};
use super::null::{self, NullModel};
use super::plot::{self, Figure};
use super::published::{self, KsoftirqdRow};
use super::verdict::{self, Verdict};
use napkin_measure::report::Measurement;
use napkin_workload::machine::measurement::measurement;

/// Name of the testbed's profile.
pub const PROFILE: &str = "qemu-2018";

/// Offered rates that the profile was fitted to, in both columns: one on the falling branch, one at the minimum,
/// the first of the recovery, and the highest.
pub const FITTED: [f64; 4] = [16_000.0, 22_000.0, 25_000.0, 100_000.0];

/// Virtual seconds of warm-up, of the window, and of a quick window.
const WARM_UP_S: f64 = 0.2;
const WINDOW_S: f64 = 1.0;
const QUICK_S: f64 = 0.3;

/// Name of the figure.
const DELIVERED: &str = "delivered";

/// One kernel of the published plot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Curve {
    /// The unpatched kernel, Linux 4.15-rc4.
    Master,
    /// The proposal with the softirq mask as posted.
    AsPosted,
    /// The proposal with the softirq mask that was meant.
    AsMeant,
}

impl Curve {
    /// All curves, in the order in which they are shown.
    pub const ALL: [Curve; 3] = [Curve::Master, Curve::AsPosted, Curve::AsMeant];

    /// Name in the cells.
    pub fn name(self) -> &'static str {
        match self {
            Curve::Master => "master",
            Curve::AsPosted => "RFC as posted",
            Curve::AsMeant => "RFC as meant",
        }
    }

    fn policy(self) -> Policy {
        match self {
            Curve::Master => Policy::BASE_6_4,
            Curve::AsPosted => Policy::KSOFTIRQD_AS_POSTED,
            Curve::AsMeant => Policy::KSOFTIRQD,
        }
    }

    fn published(self, row: &KsoftirqdRow) -> Option<f64> {
        match self {
            Curve::Master => Some(row.dest_pps_master_4_15_rc4),
            Curve::AsPosted => Some(row.dest_pps_rfc),
            Curve::AsMeant => None,
        }
    }
}

/// One run of the table: the parameters that differ between rows, and the host.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    curve: Curve,
    offered_per_s: f64,
    profile: Profile,
    window_s: f64,
}

/// 2018: a UDP sink with network softirqs deferred to ksoftirqd.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ksoftirqd;

/// Runs one point.
///
/// # Errors
/// If the profile has no sink, or its link cannot carry the rate.
fn outcome(point: &Point, seed: u64) -> Result<Outcome, String> {
    let policy = point.curve.policy();
    let run = run::Run::for_seconds(&point.profile, policy, seed, WARM_UP_S, point.window_s);
    udp_sink::run(run, point.offered_per_s)
}

/// The fit error of a profile on the rows of [`FITTED`]: the mean absolute logarithm of modelled over published,
/// over both columns. Infinite if a run fails.
pub fn fit_error(profile: &Profile) -> f64 {
    let Ok(rows) = published::ksoftirqd() else { return f64::INFINITY };
    let rows = rows.iter().filter(|row| FITTED.contains(&row.source_pps));
    let (mut sum, mut figures) = (0.0, 0.0);
    for row in rows {
        for curve in Curve::ALL {
            let Some(published) = curve.published(row) else { continue };
            let point = Point {
                curve,
                offered_per_s: row.source_pps,
                profile: profile.clone(),
                window_s: WINDOW_S,
            };
            sum += match outcome(&point, 1) {
                Ok(outcome) => (outcome.achieved_per_s / published).ln().abs(),
                Err(_) => f64::INFINITY,
            };
            figures += 1.0;
        }
    }
    sum / figures
}

fn load(per_s: f64) -> String {
    format!("{per_s:.0}/s")
}

impl Experiment for Ksoftirqd {
    type Task = Point;
    type Outcome = Measurement;

    const ABOUT: About = About {
        name: "2018",
        title: "Network softirqs to ksoftirqd (2018): a flooded UDP sink",
        profile: PROFILE,
        about: "pktgen in one virtual machine sends at a fixed rate to a blocking UDP sink in another, whose one \
         CPU also has the interrupt of its virtio card; the sink prints what it receives. Published was a \
         single run, and its author doubts it.\n\n\
         The posted mask means the vectors HI and TIMER: network softirqs still run inline, and each tick's \
         TIMER leaves the whole pending set to ksoftirqd. As meant is a prediction: the network vectors \
         alone, and only while another thread wants the CPU.",
    };

    fn plan(&self, options: &Options) -> Result<Vec<Task<Point>>, ReproduceError> {
        let profile = options.host(PROFILE)?;
        let window_s = options.virtual_s.unwrap_or(if options.quick { QUICK_S } else { WINDOW_S });
        let mut tasks = Vec::new();
        for row in published::ksoftirqd()? {
            for curve in Curve::ALL {
                tasks.extend(options.seeds().map(|seed| Task {
                    label: format!("{} at {}", curve.name(), load(row.source_pps)),
                    seed,
                    what: Point {
                        curve,
                        offered_per_s: row.source_pps,
                        profile: profile.clone(),
                        window_s,
                    },
                }));
            }
        }
        Ok(tasks)
    }

    fn run(&self, task: &Task<Point>) -> Result<Measurement, String> {
        outcome(&task.what, task.seed).map(|outcome| measurement(&outcome))
    }

    fn cells(&self, runs: &[Run<Point, Measurement>]) -> Vec<Cell> {
        let Ok(rows) = published::ksoftirqd() else { return Vec::new() };
        let mut cells = Vec::new();
        for curve in Curve::ALL {
            for row in &rows {
                let of_cell = runs.iter().filter(|run| {
                    run.task.what.curve == curve && run.task.what.offered_per_s == row.source_pps
                });
                let delivered = |it: &Measurement| it.achieved_per_s.unwrap_or(f64::NAN);
                let published = curve.published(row);
                cells.push(Cell {
                    load_value: Some(row.source_pps),
                    published,
                    modelled: Modelled::of_runs(of_cell, delivered, "it was not run"),
                    fitted: published.is_some() && FITTED.contains(&row.source_pps),
                    ..Cell::new("2018", curve.name(), &load(row.source_pps), DELIVERED, Unit::PerS)
                });
            }
        }
        cells
    }

    fn verdicts(&self, cells: &[Cell]) -> Vec<Verdict> {
        let of = |curve: Curve| -> Vec<&Cell> {
            cells.iter().filter(|cell| cell.config == curve.name()).collect()
        };
        let (master, posted) = (of(Curve::Master), of(Curve::AsPosted));
        let mut verdicts = vec![verdict::median_error("master", &master, 0.12)];
        for (what, curve) in [("master", &master), ("RFC as posted", &posted)] {
            verdicts.push(verdict::collapse_points(what, curve, 2_000.0));
            verdicts.extend(null::beats(what, curve, NullModel::MeanOfConfig, ""));
            verdicts.extend(null::beats(what, curve, NullModel::NextLowerLoad, ""));
        }
        verdicts
    }

    fn figures(&self, cells: &[Cell]) -> Vec<Figure> {
        let cells: Vec<&Cell> = cells.iter().collect();
        vec![plot::lines(
            "Delivered against offered: the livelock curve",
            "While each packet has an interrupt of its own on top of the application, more offered is less \
             delivered. Where ksoftirqd takes over, the scheduler divides the CPU.",
            &cells,
            "offered packets/s",
            DELIVERED,
            false,
        )]
    }

    fn notes(&self) -> Vec<String> {
        vec![
            "Fitted: the receive call, the entry of an interrupt, the completion of a poll, a frame in a batch, \
             and the sender's jitter, to both columns at 16000, 22000, 25000 and 100000/s."
                .to_owned(),
            "The scheduler's granularities are those of tuned's virtual-guest profile, which Fedora is \
             assumed to apply in a guest; the document does not say. With the kernel's own, ksoftirqd takes \
             the CPU as soon as it wakes, batches stay short, the RFC as posted collapses as master does, and \
             neither recovers."
                .to_owned(),
            "Not explained: the losses of up to 4 % from 9000/s on, where the CPU is not yet full; the model \
             loses nothing there. Above, it does not follow master's hump at 13000 and 14000/s, and recovers \
             1000 to 2000/s early."
                .to_owned(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Reproduce;
    use napkin_measure::report::Progress;

    fn delivered(curve: Curve, offered_per_s: f64) -> f64 {
        let profile = Profile::named(napkin_workload::schema(), PROFILE).unwrap();
        let point = Point { curve, offered_per_s, profile, window_s: 0.5 };
        outcome(&point, 1).unwrap().achieved_per_s
    }

    #[test]
    fn below_saturation_every_kernel_delivers_all() {
        for curve in Curve::ALL {
            let got = delivered(curve, 7_000.0);
            assert!((got - 7_000.0).abs() < 30.0, "{curve:?}: {got}");
        }
    }

    #[test]
    fn master_falls_under_load_and_recovers_under_more() {
        let [peak, foot, back] =
            [12_000.0, 21_000.0, 30_000.0].map(|offered| delivered(Curve::Master, offered));
        assert!(foot < peak / 2.0, "{peak} then {foot}");
        assert!(back > 2.0 * foot, "{foot} then {back}");
    }

    #[test]
    fn as_meant_the_curve_never_falls_far_and_as_posted_it_is_between() {
        let [master, posted, meant] = Curve::ALL.map(|curve| delivered(curve, 22_000.0));
        assert!(master < posted && posted < meant, "{master}, {posted}, {meant}");
        assert!(meant > 0.98 * 22_000.0, "{meant}");
    }

    #[test]
    fn the_same_seed_gives_the_same_curve() {
        let options = Options { quick: true, virtual_s: Some(0.05), ..Options::default() };
        let run = || Ksoftirqd.reproduce(&options, Progress::hidden).unwrap();
        let (one, two) = (run(), run());
        assert_eq!(serde_json::to_string(&one).unwrap(), serde_json::to_string(&two).unwrap());
        assert_eq!(one.cells.len(), 72);
        assert!(one.runs.iter().all(|run| run.failed.is_none()));
    }

    #[test]
    fn a_profile_without_a_sink_costs_its_cells_and_says_why() {
        let profile = Profile::named(napkin_workload::schema(), "emulator-7.2").unwrap();
        let point = Point { curve: Curve::Master, offered_per_s: 1.0, profile, window_s: 0.1 };
        assert!(outcome(&point, 1).unwrap_err().contains("udp-sink"));
    }
}
