//! A sweep: its size, what it will take, and the run of it.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use napkin_core::policy::{PolicyError, Warning};
use napkin_core::{Ns, Policy};
use napkin_machine::profile::{Problem, Profile, ProfileError};
use serde_json::Value;
use thiserror::Error;

use super::axis::{Axis, Parameter};
use super::sheet::{LEADING, Sheet, SheetError};
use crate::interrupt::{Interrupt, Interrupted};
use crate::machine::plan::{LONGEST, PlanError, Point};
use crate::machine::scenario::{LoadError, Scenario};
use crate::machine::{figures, pool};
use crate::report::round::number;
use crate::report::{Figures, length};

/// A sweep of one workload.
#[derive(Debug, Clone)]
pub struct Sweep<'a> {
    /// The workload.
    pub scenario: &'a dyn Scenario,
    /// The host, before a point changes it.
    pub profile: Profile,
    /// The policy of a point that names none.
    pub policy: String,
    /// The load of a point that names none.
    pub load: String,
    /// The seed of a point that names none.
    pub seed: u64,
    /// Virtual time before the window.
    pub warm_up: Ns,
    /// The measured virtual time.
    pub window: Ns,
    /// What is varied; the last one changes fastest.
    pub axes: Vec<Axis>,
    /// Most points that are run without asking for more.
    pub limit: u64,
    /// Runs at a time; `None` for as many as there are CPUs.
    pub jobs: Option<NonZeroUsize>,
}

/// Why a sweep did not take place, or stopped.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SweepError {
    /// Nothing is varied.
    #[error("a sweep of nothing: give at least one --vary NAME=VALUE,VALUE")]
    Nothing,
    /// More points than allowed.
    #[error("{size}: that is more than --limit {limit}; vary less, or raise the limit")]
    TooMany {
        /// What was asked for, with what it would take.
        size: String,
        /// What is allowed.
        limit: u64,
    },
    /// A policy that is none.
    #[error("--vary policy: {0}")]
    Policy(#[from] PolicyError),
    /// A load that is none.
    #[error("--vary load: {0}")]
    Load(#[from] LoadError),
    /// A constant that cannot have that value, or a profile that is not for this workload.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// A window that makes no sense.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The file.
    #[error(transparent)]
    Sheet(#[from] SheetError),
    /// It was asked to end before it knew what it would take.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

impl SweepError {
    /// Whether what was asked makes no sense, rather than went wrong.
    pub fn is_usage(&self) -> bool {
        !matches!(self, SweepError::Sheet(SheetError::Io { .. } | SheetError::Write(_)))
    }

    /// Whether whoever read standard output has had enough.
    pub fn is_closed(&self) -> bool {
        matches!(self, SweepError::Sheet(SheetError::Io { source, .. })
            if source.kind() == std::io::ErrorKind::BrokenPipe)
    }
}

/// What is told while a sweep runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// How large it is, and what it will take; before anything but its first point is run.
    Size {
        /// For a person.
        text: String,
        /// Points that are still to be run.
        left: u64,
    },
    /// A point has ended; what it was.
    Point(String),
}

/// What a sweep came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// All points.
    pub points: u64,
    /// Those that were there already.
    pub resumed: u64,
    /// Those that were run now and have no figures; their line says why.
    pub failed: u64,
    /// Those that are not there, because the sweep was interrupted.
    pub left: u64,
}

/// The figures of a report that a line has, in this order.
const FIGURES: [&str; 9] = [
    "offered_per_s",
    "achieved_per_s",
    "interrupts",
    "polls",
    "empty_polls",
    "packets",
    "polled_packets",
    "context_switches",
    "window_ns",
];

const LATENCY: [&str; 9] = ["count", "mean", "p5", "p50", "p90", "p95", "p99", "p999", "max"];

const CPU: [&str; 4] = ["work", "poll", "waiting", "asleep"];

const DROPS: [&str; 2] = ["ring_full", "socket_full"];

/// Which further figures of a report are lists, and no columns.
const LISTS: [&str; 3] = ["per_queue", "per_worker", "serving_cpus"];

impl Sweep<'_> {
    /// Points in all.
    pub fn points(&self) -> u128 {
        self.axes.iter().map(Axis::len).fold(1, u128::saturating_mul)
    }

    /// Refuses what makes no sense, before anything runs. Values of different parameters that do
    /// not fit each other (queues beyond CPUs) are their points' own failure.
    ///
    /// # Errors
    /// What is wrong first.
    pub fn check(&self) -> Result<(), SweepError> {
        self.profile.require(self.scenario.section())?;
        if self.axes.is_empty() || self.axes.iter().any(Axis::is_empty) {
            return Err(SweepError::Nothing);
        }
        let virtual_time = self.window.saturating_add(self.warm_up);
        if self.window == 0 || virtual_time > LONGEST {
            return Err(PlanError::Window(virtual_time).into());
        }
        self.policy.parse::<Policy>()?;
        for axis in &self.axes {
            for text in axis.texts() {
                self.check_value(axis.parameter, text)?;
            }
        }
        if !self.varies(Parameter::Load) {
            self.scenario.load(&self.load, &self.profile)?;
        }
        Ok(())
    }

    /// What cannot be meant, whatever the other values of a point are.
    pub fn warnings(&self) -> Vec<Warning> {
        let mut policies = vec![self.policy.clone()];
        for axis in &self.axes {
            match axis.parameter {
                Parameter::Policy => policies.extend(axis.texts().map(str::to_owned)),
                Parameter::PolicyKey(key) => {
                    policies.extend(axis.texts().map(|value| format!("base,{key}={value}")));
                }
                _ => {}
            }
        }
        let policies = policies.iter().filter_map(|policy| policy.parse::<Policy>().ok());
        let warnings = policies.flat_map(|policy| policy.warnings());
        warnings.filter(|it| matches!(it, Warning::BelowMicrosecond { .. })).collect()
    }

    fn varies(&self, parameter: Parameter) -> bool {
        self.axes.iter().any(|axis| axis.parameter == parameter)
    }

    fn check_value(&self, parameter: Parameter, text: &str) -> Result<(), SweepError> {
        match parameter {
            Parameter::Policy => {
                text.parse::<Policy>()?;
            }
            Parameter::PolicyKey(key) => {
                format!("base,{key}={text}").parse::<Policy>()?;
            }
            Parameter::Load => {
                // A link that is varied may carry more than this one.
                if !self.varies(Parameter::Constant("link", "rate")) {
                    self.scenario.load(text, &self.profile)?;
                }
            }
            Parameter::Seed => {}
            Parameter::Constant(section, name) => {
                let mut profile = self.profile.clone();
                let set = profile.set_text(&format!("{section}.{name}={text}"));
                let alone = |error: &ProfileError| {
                    let together = |it: &Problem| matches!(it, Problem::QueuesBeyondCpus { .. });
                    error.faults().iter().any(|fault| !together(&fault.problem))
                        || error.faults().is_empty()
                };
                if let Err(error) = set
                    && alone(&error)
                {
                    return Err(error.into());
                }
            }
        }
        Ok(())
    }

    /// The values of a point, one for each axis.
    fn values(&self, point: u64) -> Vec<String> {
        let mut rest = u128::from(point);
        let mut values: Vec<String> = Vec::new();
        for axis in self.axes.iter().rev() {
            values.push(axis.value(rest % axis.len()).unwrap_or_default());
            rest /= axis.len();
        }
        values.reverse();
        values
    }

    /// What tells this sweep from any other: sixteen digits that depend on all that its figures
    /// depend on.
    pub fn identity(&self) -> String {
        let mut hash = Fnv::default();
        hash.add(env!("CARGO_PKG_VERSION"));
        hash.add(self.scenario.name());
        hash.add(self.profile.name());
        for constant in self.profile.constants() {
            hash.add(&constant.key.path());
            hash.add(&format!("{:?}", constant.value));
        }
        for text in [&self.policy, &self.load] {
            hash.add(text);
        }
        for number in [self.seed, self.warm_up, self.window] {
            hash.add(&number.to_string());
        }
        for axis in &self.axes {
            hash.add(&axis.to_string());
        }
        format!("{:016x}", hash.0)
    }

    /// Runs a point.
    fn figures(&self, point: u64) -> Result<Figures, String> {
        let (mut policy, mut keys) = (self.policy.clone(), String::new());
        let (mut load, mut seed) = (self.load.clone(), self.seed);
        let mut constants = Vec::new();
        for (axis, value) in self.axes.iter().zip(self.values(point)) {
            match axis.parameter {
                Parameter::Policy => policy = value,
                Parameter::PolicyKey(key) => keys.push_str(&format!(",{key}={value}")),
                Parameter::Load => load = value,
                Parameter::Seed => seed = value.parse().map_err(|_| "no seed".to_owned())?,
                Parameter::Constant(section, name) => {
                    constants.push(format!("{section}.{name}={value}"));
                }
            }
        }
        policy.push_str(&keys);
        let policy: Policy = policy.parse().map_err(|error: PolicyError| error.to_string())?;
        let mut profile = self.profile.clone();
        profile
            .set_texts(constants.iter().map(String::as_str))
            .map_err(|error| error.to_string())?;
        self.scenario.load(&load, &profile).map_err(|error| error.to_string())?;
        let (scenario, warm_up, window) = (self.scenario, self.warm_up, self.window);
        let point =
            Point { scenario, profile: &profile, policy, load: &load, seed, warm_up, window };
        point.run(None).map(|outcome| figures::figures(&outcome))
    }

    /// The names of the columns that say which point a line is.
    fn naming(&self) -> Vec<String> {
        let fixed = ["workload", "profile", "policy", "load", "seed"].map(str::to_owned);
        let axes = self.axes.iter().map(|axis| axis.parameter.to_string());
        let axes = axes.filter(|name| !fixed.contains(name)).collect::<Vec<_>>();
        LEADING.iter().map(|it| (*it).to_owned()).chain(fixed).chain(axes).collect()
    }

    fn named(&self, identity: &str, point: u64) -> Vec<String> {
        let values = self.values(point);
        let of = |parameter: Parameter, or: String| {
            let place = self.axes.iter().position(|axis| axis.parameter == parameter);
            place.map_or(or, |place| values[place].clone())
        };
        let mut fields = vec![
            identity.to_owned(),
            point.to_string(),
            self.scenario.name().to_owned(),
            self.profile.name().to_owned(),
            of(Parameter::Policy, self.policy.clone()),
            of(Parameter::Load, self.load.clone()),
            of(Parameter::Seed, self.seed.to_string()),
        ];
        let fixed = [Parameter::Policy, Parameter::Load, Parameter::Seed];
        let others = self.axes.iter().zip(&values);
        let others = others.filter(|(axis, _)| !fixed.contains(&axis.parameter));
        fields.extend(others.map(|(_, value)| value.clone()));
        fields
    }

    /// Runs all points that the file does not have yet, or until it is interrupted: then the points under
    /// way are given up. `tell` hears of the size first.
    ///
    /// # Errors
    /// Those of [`Sweep::check`], too many points, and what is wrong with the file.
    pub fn run(
        &self,
        path: &Path,
        resume: bool,
        interrupt: &Interrupt,
        mut tell: impl FnMut(Event),
    ) -> Result<Totals, SweepError> {
        self.check()?;
        let points = self.points();
        if points > u128::from(self.limit) {
            // What it would take is worth knowing before one asks for more.
            let start = Instant::now();
            let _ = self.alone(0, interrupt);
            interrupt.check()?;
            let size = self.size(points, points, start.elapsed());
            return Err(SweepError::TooMany { size, limit: self.limit });
        }
        let points = points as u64;
        let identity = self.identity();
        let mut sheet = Sheet::open(path, &identity, resume)?;
        let missing: Vec<u64> = (0..points).filter(|it| !sheet.done.contains(it)).collect();
        let left = missing.len() as u64;
        let mut totals = Totals { points, resumed: points - left, failed: 0, left };
        let Some((first, rest)) = missing.split_first() else {
            tell(Event::Size { text: format!("all {points} points are there"), left: 0 });
            sheet.sort()?;
            return Ok(totals);
        };
        let start = Instant::now();
        let Some(found) = self.alone(*first, interrupt) else { return Ok(totals) };
        let left = missing.len() as u128;
        let text = self.size(u128::from(points), left, start.elapsed());
        tell(Event::Size { text, left: missing.len() as u64 });
        let figures = match &found {
            Ok(figures) => figures_header(figures),
            Err(_) if !sheet.header.is_empty() => Vec::new(),
            // A point with figures says which columns there are.
            Err(_) => rest
                .iter()
                .take(64)
                .find_map(|point| self.alone(*point, interrupt)?.ok())
                .map_or_else(Vec::new, |figures| figures_header(&figures)),
        };
        let naming = self.naming();
        if sheet.header.is_empty() || !figures.is_empty() {
            let error = ["error".to_owned()];
            let header = naming.iter().cloned().chain(figures).chain(error).collect();
            sheet.head(header, &identity)?;
        }
        let columns: Vec<String> = sheet.header[naming.len()..].to_vec();
        let mut write = |point: u64, result: Result<Figures, String>| {
            totals.failed += u64::from(result.is_err());
            totals.left -= 1;
            let mut fields = self.named(&identity, point);
            let name = fields[4..].join(" ");
            fields.extend(line(&columns, result));
            sheet.point(point, &fields)?;
            tell(Event::Point(name));
            Ok::<_, SheetError>(())
        };
        write(*first, found)?;
        let mut stopped = None;
        pool::each(
            pool::jobs(self.jobs),
            0..rest.len() as u64,
            interrupt,
            |place| self.figures(rest[place as usize]),
            |place, result| {
                let result = result.and_then(|result| result);
                match write(rest[place as usize], result) {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(error) => {
                        stopped.get_or_insert(error);
                        ControlFlow::Break(())
                    }
                }
            },
        );
        if let Some(error) = stopped {
            return Err(error.into());
        }
        sheet.sort()?;
        Ok(totals)
    }

    /// Runs a point by itself; `None` if it was given up.
    fn alone(&self, point: u64, interrupt: &Interrupt) -> Option<Result<Figures, String>> {
        let mut found = None;
        let one = |_| self.figures(point);
        pool::each(NonZeroUsize::MIN, 0..1, interrupt, one, |_, result| {
            found = Some(result.and_then(|result| result));
            ControlFlow::Continue(())
        });
        found
    }

    /// `6 points (2 policy x 3 load); 4 are left; one takes 20 ms: about 80 ms on 1 CPU`.
    fn size(&self, points: u128, left: u128, one: Duration) -> String {
        let axes: Vec<String> =
            self.axes.iter().map(|axis| format!("{} {}", axis.len(), axis.parameter)).collect();
        let jobs = pool::jobs(self.jobs).get();
        let seconds = one.as_secs_f64() * left as f64 / jobs as f64;
        let rest = if left < points { format!("; {left} are left") } else { String::new() };
        format!(
            "{points} points ({}){rest}; one takes {}, so about {} on {jobs} CPU{}",
            axes.join(" x "),
            length(one.as_secs_f64()),
            length(seconds),
            if jobs == 1 { "" } else { "s" },
        )
    }
}

/// The columns of a point's figures.
fn figures_header(figures: &Figures) -> Vec<String> {
    let of = |prefix: &str, names: &[&str], suffix: &str| {
        names.iter().map(|name| format!("{prefix}{name}{suffix}")).collect::<Vec<_>>()
    };
    let mut header = of("", &FIGURES, "");
    header.push("latency_count".to_owned());
    header.extend(of("latency_", &LATENCY[1..], "_ns"));
    header.extend(of("cpu_", &CPU, ""));
    header.extend(of("drops_", &DROPS, ""));
    let extra = figures.extra.iter().filter(|(name, value)| {
        (value.is_number() || value.is_null()) && !LISTS.contains(&name.as_str())
    });
    header.extend(extra.map(|(name, _)| name.clone()));
    header
}

/// The fields under these columns.
fn line(columns: &[String], result: Result<Figures, String>) -> Vec<String> {
    let (json, error) = match result {
        // A figure has no form that JSON lacks.
        Ok(figures) => (serde_json::to_value(figures).unwrap_or_default(), String::new()),
        Err(why) => (Value::Null, why),
    };
    let field = |column: &String| -> String {
        if column == "error" {
            return error.clone();
        }
        let value = match column.split_once('_') {
            Some(("latency", name)) => &json["latency_ns"][name.trim_end_matches("_ns")],
            Some(("cpu", name)) => &json["cpu"][name],
            Some(("drops", name)) => &json["drops"][name],
            _ => &json[column.as_str()],
        };
        match value {
            Value::Number(figure) => number(figure),
            _ => String::new(),
        }
    };
    columns.iter().map(field).collect()
}

/// Fowler, Noll and Vo's hash, which every program can compute.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Fnv(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn add(&mut self, text: &str) {
        // The 0 keeps two texts apart.
        for byte in text.bytes().chain([0]) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests;
