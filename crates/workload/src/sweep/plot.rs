//! A page with a sweep's results: one quantity over one parameter, with a line for each value of another.
//!
//! Points that differ only in seed and draw are repetitions: the plot shows their median, and the range from the
//! least to the greatest. If one repetition lacks a latency percentile, the point is not drawn, because the missing
//! value would usually be the largest. Points that differ in any other parameter are never combined.

use std::path::{Path, PathBuf};

use csv::StringRecord;
use napkin_machine::profile::{Scale, ValueKind};
use napkin_policy::nearest;
use napkin_policy::text::quoted;
use thiserror::Error;

use super::identity::{LEADING, SHARD};
use super::sheet::{self, SheetError};
use super::table::Table;
use crate::machine::scenario::Scenario;
use napkin_measure::interleave::median;
use napkin_measure::report::Provenance;
use napkin_measure::report::page::{self, escape};
use napkin_measure::report::plot::axis::number;
use napkin_measure::report::plot::{At, Axis, Figure, Lines, Plot, Point, Series, Source, names};

/// An axis is logarithmic if the largest value is at least this many times the smallest.
const LOG_RATIO: f64 = 20.0;

/// Why a plot was refused.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PlotError {
    /// The file is not a sweep's, or cannot be read.
    #[error(transparent)]
    Sheet(#[from] SheetError),
    /// The file has a header only.
    #[error("{} has no point", .0.display())]
    Empty(PathBuf),
    /// The file has no such column.
    #[error(
        "{option} {name}: {} has no such column{}; it is one of: {columns}", path.display(),
        nearest.as_ref().map_or(String::new(), |it| format!("; did you mean '{it}'?"))
    )]
    Column {
        /// `--x`, `--y` or `--by`.
        option: &'static str,
        /// The requested column.
        name: String,
        /// The sweep's file.
        path: PathBuf,
        /// The nearest column name.
        nearest: Option<String>,
        /// All columns.
        columns: String,
    },
    /// Another parameter differs as well.
    #[error(
        "the points differ in {differ}, too, and would be thrown together: add it to --by, as in \
         --by {by}, or sweep it alone"
    )]
    Differ {
        /// The columns that differ and are neither `--x` nor in `--by`.
        differ: String,
        /// The `--by` option that includes them.
        by: String,
    },
}

/// The axes of the plots.
#[derive(Debug, Clone)]
pub struct SweepPlot {
    /// The parameter along the axis: `load`.
    pub x: String,
    /// The quantities, with a plot each: `latency_p99_ns`, or `p99` for short.
    pub y: Vec<String>,
    /// The parameters whose combinations of values have a line each.
    pub by: Vec<String>,
}

impl SweepPlot {
    /// Returns the page for a file.
    ///
    /// # Errors
    /// If the file cannot be read or is not a sweep's, if it lacks a column, or if its points differ in further
    /// parameters.
    pub fn page(&self, path: &Path, provenance: &Provenance) -> Result<String, PlotError> {
        let sheet = Columns::of(Table::read(path)?)?;
        let x = sheet.parameter("--x", &self.x)?;
        let by = (self.by.iter().filter(|name| **name != self.x))
            .map(|name| sheet.parameter("--by", name))
            .collect::<Result<Vec<_>, _>>()?;
        let y = self.y.iter().map(|name| sheet.figure(name)).collect::<Result<Vec<_>, _>>()?;
        sheet.check(x, &by)?;
        let mut body = page::facts(&sheet.facts(provenance));
        for y in y {
            let lines = sheet.lines(x, y, &by);
            body.push_str(&page::figure(&sheet.draw(x, y, &lines)));
            body.push_str(&sheet.table(x, y, &lines));
        }
        let title = format!(
            "napkin sweep: {} on {}",
            sheet.common_value("workload"),
            sheet.common_value("profile")
        );
        Ok(page::whole(&title, &body))
    }
}

/// A line of a plot.
struct Line {
    name: String,
    spots: Vec<Spot>,
}

/// A point of a line.
#[derive(Default)]
struct Spot {
    /// The text in the file.
    x: String,
    /// The values of the repetitions that have one; empty if a percentile is missing in any.
    values: Vec<f64>,
    repetitions: usize,
    /// The repetitions that ran but have no value.
    missing: usize,
}

impl Spot {
    fn interval(&self) -> Option<(f64, f64)> {
        let low = self.values.iter().copied().min_by(f64::total_cmp)?;
        let high = self.values.iter().copied().max_by(f64::total_cmp)?;
        (self.values.len() > 1).then_some((low, high))
    }

    fn median(&self) -> Option<f64> {
        median(self.values.iter().copied())
    }
}

/// The rows of a file, and the roles of its columns.
struct Columns {
    path: PathBuf,
    header: Vec<String>,
    /// By place of the point.
    rows: Vec<StringRecord>,
    /// The columns that identify a point by its parameters.
    naming: std::ops::Range<usize>,
    /// The workload, which converts its loads into numbers.
    scenario: Option<&'static dyn Scenario>,
}

impl Columns {
    fn of(table: Table) -> Result<Columns, PlotError> {
        let Table { path, header, mut rows } = table;
        if rows.is_empty() {
            return Err(PlotError::Empty(path));
        }
        let mut points = Vec::new();
        for (index, row) in rows.iter().enumerate() {
            points.push(sheet::point(&path, index + 2, row)?);
        }
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_by_key(|row| points[*row]);
        rows = order.into_iter().map(|row| rows[row].clone()).collect();
        let begin = LEADING.len() + usize::from(header.iter().any(|name| name == SHARD));
        // The measured values begin with the offered rate.
        let end = header.iter().position(|name| name == "offered_per_s").unwrap_or(header.len());
        let workload = header.iter().position(|name| name == "workload");
        let workload = workload.and_then(|at| crate::find(&rows[0][at]));
        let scenario = workload.and_then(|it| it.machine());
        Ok(Columns { path, header, rows, naming: begin..end.max(begin), scenario })
    }

    fn column(
        &self,
        option: &'static str,
        name: &str,
        short: &[String],
        columns: std::ops::Range<usize>,
    ) -> Result<usize, PlotError> {
        let all = &self.header[columns.clone()];
        let found = short.iter().find_map(|name| all.iter().position(|it| it == name));
        found.map(|place| columns.start + place).ok_or_else(|| PlotError::Column {
            option,
            name: quoted(name),
            path: self.path.clone(),
            nearest: nearest(name, all.iter().map(String::as_str)).map(str::to_owned),
            columns: all.join(", "),
        })
    }

    fn parameter(&self, option: &'static str, name: &str) -> Result<usize, PlotError> {
        self.column(option, name, &[name.to_owned()], self.naming.clone())
    }

    fn figure(&self, name: &str) -> Result<usize, PlotError> {
        // Reports write `p99.9`, columns `p999`.
        let plain = name.replace('.', "");
        let short = [
            name.to_owned(),
            format!("latency_{plain}_ns"),
            format!("cpu_{plain}"),
            format!("drops_{plain}"),
        ];
        let error =
            self.header.len() - usize::from(self.header.last().is_some_and(|it| it == "error"));
        self.column("--y", name, &short, self.naming.end..error)
    }

    /// Refuses to combine points that differ in further parameters.
    fn check(&self, x: usize, by: &[usize]) -> Result<(), PlotError> {
        let more = |column: &usize| {
            let other = *column != x
                && !by.contains(column)
                && !["seed", "draw"].contains(&self.header[*column].as_str());
            other && self.rows.iter().any(|row| row[*column] != self.rows[0][*column])
        };
        let differ: Vec<usize> = self.naming.clone().filter(more).collect();
        if differ.is_empty() {
            return Ok(());
        }
        let join = |columns: &mut dyn Iterator<Item = &usize>, comma: &str| {
            columns.map(|it| self.header[*it].as_str()).collect::<Vec<_>>().join(comma)
        };
        let differ_names = join(&mut differ.iter(), " and ");
        Err(PlotError::Differ {
            differ: differ_names,
            by: join(&mut by.iter().chain(&differ), ","),
        })
    }

    /// Returns the value of a column if it is the same in all rows, otherwise an empty text.
    fn common_value(&self, name: &str) -> String {
        let Some(column) = self.header.iter().position(|it| it == name) else {
            return String::new();
        };
        let first = &self.rows[0][column];
        let same = self.rows.iter().all(|row| &row[column] == first);
        if same { first.to_owned() } else { String::new() }
    }

    fn facts(&self, provenance: &Provenance) -> Vec<(&'static str, String)> {
        let mut facts = provenance.facts();
        let (shown, all) = (self.rows.len().to_string(), self.common_value("points"));
        let shard = self.common_value(SHARD);
        let part = match (shown == all, shard.is_empty()) {
            (true, _) => String::new(),
            (false, true) => ": the sweep has not finished".to_owned(),
            (false, false) => format!(": shard {shard} alone"),
        };
        facts.push(("file", format!("{}, {shown} of {all} points{part}", self.path.display())));
        facts.push(("figures by", self.common_value("version")));
        let fixed = self.naming.clone().skip(2).filter_map(|column| {
            let name = &self.header[column];
            let value = self.common_value(name);
            (!value.is_empty()).then(|| format!("{name} {value}"))
        });
        let fixed = fixed.collect::<Vec<_>>().join(", ");
        if !fixed.is_empty() {
            facts.push(("at all points", fixed));
        }
        facts
    }

    fn lines(&self, x: usize, y: usize, by: &[usize]) -> Vec<Line> {
        let name = |row: &StringRecord| {
            let parts = by.iter().map(|column| {
                let plain = self.header[*column] == "policy";
                let value = &row[*column];
                if plain { value.to_owned() } else { format!("{} {value}", self.header[*column]) }
            });
            parts.collect::<Vec<_>>().join(", ")
        };
        let scale = self.unit(y).1;
        let mut lines: Vec<Line> = Vec::new();
        for row in &self.rows {
            let name = name(row);
            let place = lines.iter().position(|line| line.name == name).unwrap_or_else(|| {
                lines.push(Line { name, spots: Vec::new() });
                lines.len() - 1
            });
            let spots = &mut lines[place].spots;
            let place = spots.iter().position(|spot| spot.x == row[x]).unwrap_or_else(|| {
                spots.push(Spot { x: row[x].to_owned(), ..Spot::default() });
                spots.len() - 1
            });
            let (spot, value) = (&mut spots[place], row[y].parse::<f64>());
            let value = value.ok().filter(|it| it.is_finite());
            spot.repetitions += 1;
            spot.missing += usize::from(value.is_none() && self.failed(row).is_none());
            spot.values.extend(value.map(|value| value / scale));
        }
        if self.is_percentile(y) {
            let spots = lines.iter_mut().flat_map(|line| &mut line.spots);
            spots.filter(|spot| spot.missing > 0).for_each(|spot| spot.values.clear());
        }
        let key = |spot: &Spot| self.quantity(x, spot).map_or(f64::INFINITY, |it| it.0);
        for line in &mut lines {
            // Words come after the numbers, in the order of the file.
            line.spots.sort_by(|one, other| key(one).total_cmp(&key(other)));
        }
        lines
    }

    /// Whether this is a latency percentile, of which a missing value would usually be the largest.
    fn is_percentile(&self, y: usize) -> bool {
        self.header[y].starts_with("latency_p")
    }

    /// Returns the title of a quantity, and the divisor of its values.
    fn unit(&self, y: usize) -> (String, f64) {
        let name = &self.header[y];
        match name.strip_suffix("_ns") {
            Some(name) => (format!("{name}, us"), 1e3),
            None => (name.clone(), 1.0),
        }
    }

    /// Returns a spot's position along the axis as a number with its unit; `None` for a word.
    fn quantity(&self, x: usize, spot: &Spot) -> Option<(f64, &'static str)> {
        let parameter = &self.header[x];
        let load = self.scenario.filter(|_| parameter == "load");
        match load.and_then(|scenario| scenario.load_number(&spot.x)) {
            Some(load) => Some((load, "")),
            None => quantity(parameter, &spot.x),
        }
    }

    fn draw(&self, x: usize, y: usize, lines: &[Line]) -> Figure {
        let parameter = &self.header[x];
        let spots = || lines.iter().flat_map(|line| &line.spots);
        let numbers: Vec<f64> =
            spots().filter_map(|spot| Some(self.quantity(x, spot)?.0)).collect();
        let named = spots().filter(|spot| self.quantity(x, spot).is_none());
        let named: Vec<String> =
            names(named.map(|spot| spot.x.as_str())).into_iter().map(str::to_owned).collect();
        // A time of 0 has no unit.
        let mut units = spots().filter_map(|spot| Some(self.quantity(x, spot)?.1));
        let unit = units.find(|unit| !unit.is_empty()).unwrap_or("");
        let comma = if unit.is_empty() { "" } else { ", " };
        let series = lines.iter().enumerate().map(|(style, line)| {
            let point = |spot: &Spot| Point {
                x: match self.quantity(x, spot) {
                    Some((number, _)) => At::Number(number),
                    None => At::Name(named.iter().position(|name| *name == spot.x).unwrap_or(0)),
                },
                y: spot.median(),
                interval: spot.interval(),
            };
            let points = line.spots.iter().map(point).collect();
            Series { name: line.name.clone(), style, source: Source::Run, points }
        });
        let (title, _) = self.unit(y);
        let values: Vec<f64> = spots().filter_map(Spot::median).collect();
        let plot = Plot::Lines(Lines {
            x: Axis { label: format!("{parameter}{comma}{unit}"), log: needs_log_axis(&numbers) },
            y: Axis { label: title.clone(), log: needs_log_axis(&values) },
            series: series.collect(),
            named: named.clone(),
        });
        let most = spots().map(|spot| spot.values.len()).max().unwrap_or(0);
        let caption = match most {
            0 | 1 => String::new(),
            most => format!(
                "Median of up to {most} {}; the thin line goes from the least to the most.",
                self.repetitions()
            ),
        };
        let gaps = self.gaps(x, y, lines);
        Figure { title: format!("{title}, over {parameter}"), caption, plot, gaps }
    }

    /// Returns the name of what distinguishes the repetitions of one spot.
    fn repetitions(&self) -> &'static str {
        let differs = |name: &str| {
            let column = self.header.iter().position(|it| it == name);
            column.is_some_and(|at| self.rows.iter().any(|row| row[at] != self.rows[0][at]))
        };
        match (differs("seed"), differs("draw")) {
            (true, true) => "seeds and draws",
            (false, true) => "draws",
            _ => "seeds",
        }
    }

    /// Returns the error of a point that failed.
    fn failed<'a>(&self, row: &'a StringRecord) -> Option<&'a str> {
        let error = self.header.iter().position(|name| name == "error")?;
        Some(&row[error]).filter(|why| !why.is_empty())
    }

    /// Lists the points without this quantity, with the reasons.
    fn gaps(&self, x: usize, y: usize, lines: &[Line]) -> Vec<String> {
        let whole = self.is_percentile(y);
        let without = self.rows.iter().filter(|row| row[y].parse::<f64>().is_err());
        let gap = |row: &StringRecord| {
            let point = self.naming.clone().skip(2).map(|column| &row[column]);
            let point = point.collect::<Vec<_>>().join(", ");
            match self.failed(row) {
                Some(why) => Some(format!("{point}: {why}")),
                // Listed below, together with the others of its spot.
                None if whole => None,
                None if row[y].is_empty() => Some(point),
                None => Some(format!("{point}: {}", &row[y])),
            }
        };
        let mut gaps: Vec<String> = without.filter_map(gap).collect();
        for line in lines.iter().filter(|_| whole) {
            let comma = if line.name.is_empty() { "" } else { ", " };
            gaps.extend(line.spots.iter().filter(|spot| spot.missing > 0).map(|spot| {
                format!(
                    "{}{comma}{} {}: {} of {} repetitions do not tell it: too few answers, requests without \
                     one, or a queue that grows",
                    line.name, self.header[x], spot.x, spot.missing, spot.repetitions
                )
            }));
        }
        gaps
    }

    /// Returns the same values as a table.
    fn table(&self, x: usize, y: usize, lines: &[Line]) -> String {
        let columns = names(lines.iter().flat_map(|line| &line.spots).map(|spot| spot.x.as_str()));
        let heads: String =
            columns.iter().map(|name| format!("<th>{}</th>", escape(name))).collect();
        let row = |line: &Line| {
            let cell = |name: &&str| {
                let spot = line.spots.iter().find(|spot| spot.x == **name);
                let text = spot.and_then(|spot| {
                    let range = spot.interval().filter(|(low, high)| low < high);
                    let range = range.map_or(String::new(), |(low, high)| {
                        format!(" [{}..{}]", number(low), number(high))
                    });
                    Some(format!("{}{range}", number(spot.median()?)))
                });
                format!("<td>{}</td>", text.unwrap_or_else(|| "-".to_owned()))
            };
            let cells: String = columns.iter().map(cell).collect();
            format!(
                "<tr><th class=\"name\" scope=\"row\">{}</th>{cells}</tr>\n",
                escape(&line.name)
            )
        };
        let rows: String = lines.iter().map(row).collect();
        format!(
            "<div class=\"wide\"><table>\n<caption>{}</caption>\n<tr><th class=\"name\">{}</th>{heads}</tr>\n\
             {rows}</table></div>\n",
            escape(&self.unit(y).0),
            escape(&self.header[x])
        )
    }
}

/// Whether the values span so wide a range that only a logarithmic axis shows the small ones.
fn needs_log_axis(values: &[f64]) -> bool {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(0.0, f64::max);
    values.len() > 1 && least > 0.0 && most >= LOG_RATIO * least
}

/// Parses a parameter's value as a number with its unit (times in us); `None` for a word.
fn quantity(parameter: &str, text: &str) -> Option<(f64, &'static str)> {
    let key = crate::schema().key(parameter);
    // Other than constants, only times have a unit.
    let units = key.map_or(ValueKind::Time { min: 0.0 }, |key| key.takes).units();
    let text = text.trim();
    let digits = text.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(text.len());
    let (value, unit) = (text[..digits].parse::<f64>().ok()?, text[digits..].trim());
    if unit.is_empty() {
        return Some((value, ""));
    }
    let base = units.first()?.name;
    let Scale::Fixed(scale) = units.iter().find(|known| known.name == unit)?.scale else {
        return None;
    };
    Some(if base == "ns" { (value * scale / 1e3, "us") } else { (value * scale, base) })
}

#[cfg(test)]
mod tests;
