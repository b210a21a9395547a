//! A sweep: its size, its estimated time, and its run.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use napkin_machine::profile::{Problem, Profile, ProfileError};
use napkin_policy::{Ns, Policy, PolicyError, Warning};

use super::axis::{Axis, Parameter};
use super::columns;
use super::error::SweepError;
use super::identity::Identity;
use super::shard::{Fnv, Shard, hash};
use super::sheet::{Sheet, SheetError};
use crate::interrupt::{Interrupt, Interrupted};
use crate::machine::plan::{MAX_VIRTUAL_TIME, PlanError, Point};
use crate::machine::scenario::Scenario;
use crate::machine::{measurement, pool};
use napkin_measure::report::{Measurement, length};

/// A sweep of one workload.
#[derive(Debug, Clone)]
pub struct Sweep<'a> {
    /// The workload of every point.
    pub scenario: &'a dyn Scenario,
    /// The host, before a point's own constants.
    pub profile: Profile,
    /// The policy of the points if it is not varied.
    pub policy: String,
    /// The load of the points if it is not varied.
    pub load: String,
    /// The seed of the points if it is not varied.
    pub seed: u64,
    /// Virtual time before the window.
    pub warm_up: Ns,
    /// The measured virtual time.
    pub window: Ns,
    /// The varied parameters; the last one changes fastest.
    pub axes: Vec<Axis>,
    /// The shard to run; `None` for all points.
    pub shard: Option<Shard>,
    /// The program's version, with the commit if it is known. Results of two versions are not mixed.
    pub version: String,
    /// Upper limit of the points; for a shard, of the average shard.
    pub limit: u64,
    /// Number of threads; `None` for one per CPU.
    pub jobs: Option<NonZeroUsize>,
}

/// Progress of a sweep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The size and the estimated time, sent when only the first point has run.
    Size {
        /// A sentence for the user.
        text: String,
        /// The points still to be run.
        left: u64,
    },
    /// A point has finished; its parameters.
    Point(String),
}

/// The counts of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// All points, or those of the shard.
    pub points: u64,
    /// The points that the file had already.
    pub resumed: u64,
    /// All points in the file that have an error instead of values.
    pub failed: u64,
    /// The points that are missing because the sweep was interrupted.
    pub left: u64,
}

/// The draw number that stands for the profile without a draw.
const NOT_DRAWN: &str = "0";

/// The parameters of a point.
struct Settings {
    /// Including the varied keys.
    policy: String,
    load: String,
    seed: String,
    /// 0 for the profile without a draw.
    draw: String,
    /// `SECTION.NAME=VALUE`, as written.
    constants: Vec<String>,
}

impl Sweep<'_> {
    /// The number of points of the whole cross product.
    pub fn points(&self) -> u128 {
        self.axes.iter().map(Axis::len).fold(1, u128::saturating_mul)
    }

    /// Refuses an invalid sweep before anything runs. Values of different parameters that conflict (more queues
    /// than CPUs) are failures of their points.
    ///
    /// # Errors
    /// The first problem.
    pub fn check(&self) -> Result<(), SweepError> {
        self.scenario.require(&self.profile)?;
        if self.axes.is_empty() || self.axes.iter().any(Axis::is_empty) {
            return Err(SweepError::Nothing);
        }
        let virtual_time = self.window.saturating_add(self.warm_up);
        if self.window == 0 || virtual_time > MAX_VIRTUAL_TIME {
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

    /// Returns warnings that apply whatever the other values of a point are.
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
                // If the link's rate is varied, it may carry more than this profile's.
                if !self.varies(Parameter::Constant("link", "rate")) {
                    self.scenario.load(text, &self.profile)?;
                }
            }
            Parameter::Seed | Parameter::Draw => {}
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

    /// Returns the identity of this sweep.
    fn identity(&self, points: u64) -> Identity {
        let mut hash = Fnv::default();
        hash.add(&self.version);
        hash.add(self.scenario.name());
        hash.add(self.profile.name());
        for constant in self.profile.constants() {
            hash.add(&constant.key.path());
            hash.add(&format!("{:?}", constant.value));
        }
        // A draw depends on the ranges of all constants.
        let drawn = self.axes.iter().any(|axis| axis.to_string().starts_with("draw="));
        for range in self.profile.uncertain().filter(|_| drawn) {
            hash.add(&range.key.path());
            hash.add(&format!("{:?} to {:?}", range.low, range.high));
        }
        for number in [self.warm_up, self.window] {
            hash.add(&number.to_string());
        }
        let settings = format!("{:016x}", hash.0);
        for text in [&self.policy, &self.load, &self.seed.to_string()] {
            hash.add(text);
        }
        for axis in &self.axes {
            hash.add(&axis.to_string());
        }
        Identity {
            sweep: format!("{:016x}", hash.0),
            points,
            settings,
            version: self.version.clone(),
            shard: self.shard,
            naming: self.naming(),
        }
    }

    /// Returns the parameters of a point.
    fn settings(&self, point: u64) -> Settings {
        let mut settings = Settings {
            policy: self.policy.clone(),
            load: self.load.clone(),
            seed: self.seed.to_string(),
            draw: NOT_DRAWN.to_owned(),
            constants: Vec::new(),
        };
        let mut keys = String::new();
        for (axis, value) in self.axes.iter().zip(self.values(point)) {
            match axis.parameter {
                Parameter::Policy => settings.policy = value,
                Parameter::PolicyKey(key) => keys.push_str(&format!(",{key}={value}")),
                Parameter::Load => settings.load = value,
                Parameter::Seed => settings.seed = value,
                Parameter::Draw => settings.draw = value,
                Parameter::Constant(section, name) => {
                    settings.constants.push(format!("{section}.{name}={value}"));
                }
            }
        }
        settings.policy.push_str(&keys);
        settings
    }

    /// Returns the points to run: all, or those of the shard.
    fn points_to_run(&self, points: u64, interrupt: &Interrupt) -> Result<Vec<u64>, Interrupted> {
        let Some(shard) = self.shard else { return Ok((0..points).collect()) };
        let mut policies = BTreeMap::new();
        let mut constants = BTreeMap::new();
        let mut mine = Vec::new();
        for point in 0..points {
            if point % 65_536 == 0 {
                interrupt.check()?;
            }
            let Settings { policy, load, seed, draw, constants: set } = self.settings(point);
            let policy = &*policies.entry(policy).or_insert_with_key(|policy| {
                // An invalid policy yields no values, but its points still need a shard.
                policy.parse().map_or_else(|_| policy.clone(), |policy: Policy| policy.to_string())
            });
            let mut changed = Vec::new();
            for setting in set {
                let text =
                    constants.entry(setting).or_insert_with_key(|setting| self.changed(setting));
                changed.extend(text.clone());
            }
            if draw != NOT_DRAWN {
                changed.push(format!("draw={draw}"));
            }
            changed.sort();
            let texts = [self.scenario.name(), policy, &load, &seed];
            if shard.holds(hash(texts.into_iter().chain(changed.iter().map(String::as_str)))) {
                mine.push(point);
            }
        }
        Ok(mine)
    }

    /// Returns a varied constant with its value in base units; `None` if the profile has the same value.
    fn changed(&self, setting: &str) -> Option<String> {
        let path = setting.split_once('=').map_or(setting, |(path, _)| path);
        let mut profile = self.profile.clone();
        if profile.set_text(setting).is_err() {
            return Some(setting.to_owned());
        }
        let (before, now) = (self.profile.get(path), profile.get(path));
        (before != now).then(|| format!("{path}={now}"))
    }

    /// Returns the place of the point with these identifying columns ([`Sweep::naming`]), if it is in this sweep.
    fn place(&self, values: &[String]) -> Option<u64> {
        let naming = self.naming();
        let mut point = 0_u128;
        for axis in &self.axes {
            let column = naming.iter().position(|name| *name == axis.parameter.to_string())?;
            point = point * axis.len() + axis.place(values.get(column)?)?;
        }
        let point = u64::try_from(point).ok()?;
        (self.naming_values(point) == values).then_some(point)
    }

    /// Runs a point.
    fn measurement(&self, point: u64) -> Result<Measurement, String> {
        let Settings { policy, load, seed, draw, constants } = self.settings(point);
        let seed = seed.parse().map_err(|_| "no seed".to_owned())?;
        let policy: Policy = policy.parse().map_err(|error: PolicyError| error.to_string())?;
        let mut profile = self.profile.clone();
        if draw != NOT_DRAWN {
            let draw = draw.parse().map_err(|_| "no draw".to_owned())?;
            profile = profile.drawn(draw).map_err(|error| error.to_string())?;
        }
        // A varied constant has the requested value, even in a draw.
        profile
            .set_texts(constants.iter().map(String::as_str))
            .map_err(|error| error.to_string())?;
        self.scenario.load(&load, &profile).map_err(|error| error.to_string())?;
        let (scenario, warm_up, window) = (self.scenario, self.warm_up, self.window);
        let point =
            Point { scenario, profile: &profile, policy, load: &load, seed, warm_up, window };
        let outcome = point.run(None)?;
        let mut figures = measurement::measurement(&outcome);
        figures.derive();
        Ok(figures)
    }

    /// Returns the names of the columns that identify a point.
    fn naming(&self) -> Vec<String> {
        let fixed = ["workload", "profile", "policy", "load", "seed"].map(str::to_owned);
        let axes = self.axes.iter().map(|axis| axis.parameter.to_string());
        let axes = axes.filter(|name| !fixed.contains(name)).collect::<Vec<_>>();
        fixed.into_iter().chain(axes).collect()
    }

    fn naming_values(&self, point: u64) -> Vec<String> {
        let values = self.values(point);
        let of = |parameter: Parameter, or: String| {
            let place = self.axes.iter().position(|axis| axis.parameter == parameter);
            place.map_or(or, |place| values[place].clone())
        };
        let mut fields = vec![
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

    /// Runs all points that the file does not have yet. On an interrupt, the points in progress are abandoned.
    /// `emit` receives the size first.
    ///
    /// # Errors
    /// Any error of [`Sweep::check`] and of the file, and too many points.
    pub fn run(
        &self,
        path: &Path,
        resume: bool,
        interrupt: &Interrupt,
        mut emit: impl FnMut(Event),
    ) -> Result<Totals, SweepError> {
        self.check()?;
        let points = self.points();
        let shards = self.shard.map_or(1, Shard::count);
        if points > u128::from(self.limit) * u128::from(shards) {
            // Run one point, so that the error message has an estimate.
            let start = Instant::now();
            let _ = self.run_single(0, interrupt);
            interrupt.check()?;
            let size = self.size(points, points / u128::from(shards), start.elapsed());
            return Err(SweepError::TooMany { size, limit: self.limit });
        }
        let all = points as u64;
        let mine = self.points_to_run(all, interrupt)?;
        let identity = self.identity(all);
        let place = |values: &[String]| self.place(values);
        let mut sheet = Sheet::open(path, &identity, resume, place)?;
        let missing: Vec<u64> =
            mine.iter().copied().filter(|point| !sheet.done.contains(point)).collect();
        sheet.expect(&missing);
        let (points, left) = (mine.len() as u64, missing.len() as u64);
        let mut totals = Totals { points, resumed: points - left, failed: sheet.failed, left };
        let naming = identity.header();
        // The columns are known from the first point that yields values.
        let first_columns = |mut points: &mut dyn Iterator<Item = u64>| {
            let with_figures = |point| self.run_single(point, interrupt)?.ok();
            let mut found = Iterator::find_map(&mut points, with_figures);
            found.take().map_or_else(Vec::new, |figures| columns::header(&figures))
        };
        let header = |figures: Vec<String>| {
            let error = ["error".to_owned()];
            naming.iter().cloned().chain(figures).chain(error).collect::<Vec<_>>()
        };
        let Some((first, rest)) = missing.split_first() else {
            if sheet.header.is_empty() {
                // The shard has no points.
                sheet.head(header(first_columns(&mut (0..all))), &identity)?;
            }
            let shard = self.shard.map(|it| format!(" of shard {it}")).unwrap_or_default();
            emit(Event::Size { text: format!("all {points} points{shard} are there"), left: 0 });
            sheet.sort()?;
            return Ok(totals);
        };
        let start = Instant::now();
        let Some(found) = self.run_single(*first, interrupt) else { return Ok(totals) };
        let text = self.size(u128::from(all), u128::from(left), start.elapsed());
        emit(Event::Size { text, left });
        let figures = match &found {
            Ok(figures) => columns::header(figures),
            Err(_) if !sheet.header.is_empty() => Vec::new(),
            Err(_) => first_columns(&mut rest.iter().copied().chain(0..all)),
        };
        if interrupt.check().is_err() {
            // The columns may still be unknown.
            return Ok(totals);
        }
        if sheet.header.is_empty() || !figures.is_empty() {
            sheet.head(header(figures), &identity)?;
        }
        let names: Vec<String> = sheet.header[naming.len()..].to_vec();
        let mut write = |point: u64, result: Result<Measurement, String>| {
            totals.failed += u64::from(result.is_err());
            totals.left -= 1;
            let values = self.naming_values(point);
            let name = values[2..].join(" ");
            let mut fields = identity.fields(point, &values);
            fields.extend(columns::line(&names, result));
            sheet.point(point, &fields)?;
            emit(Event::Point(name));
            Ok::<_, SheetError>(())
        };
        write(*first, found)?;
        let mut stopped = None;
        pool::run_each(
            pool::jobs(self.jobs),
            0..rest.len() as u64,
            interrupt,
            |place| self.measurement(rest[place as usize]),
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

    /// Runs a single point; `None` if it was abandoned.
    fn run_single(&self, point: u64, interrupt: &Interrupt) -> Option<Result<Measurement, String>> {
        let mut found = None;
        let one = |_| self.measurement(point);
        pool::run_each(NonZeroUsize::MIN, 0..1, interrupt, one, |_, result| {
            found = Some(result.and_then(|result| result));
            ControlFlow::Continue(())
        });
        found
    }

    /// Formats `6 points (2 policy x 3 load), shard 1/2; 4 are left; one takes 20 ms, so about 80 ms on 1 CPU`.
    fn size(&self, points: u128, left: u128, one: Duration) -> String {
        let axes: Vec<String> =
            self.axes.iter().map(|axis| format!("{} {}", axis.len(), axis.parameter)).collect();
        let jobs = pool::jobs(self.jobs).get();
        let seconds = one.as_secs_f64() * left as f64 / jobs as f64;
        let shard = self.shard.map(|it| format!(", shard {it}")).unwrap_or_default();
        let rest = if left < points { format!("{shard}; {left} are left") } else { shard };
        format!(
            "{points} points ({}){rest}; one takes {}, so about {} on {jobs} CPU{}",
            axes.join(" x "),
            length(one.as_secs_f64()),
            length(seconds),
            if jobs == 1 { "" } else { "s" },
        )
    }
}

#[cfg(test)]
pub(super) mod tests;
