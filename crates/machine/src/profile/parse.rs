//! Parses a profile's text.
//!
//! It uses `toml_edit` rather than `toml`. Both are one project with one parser, but `toml` gives the positions of
//! values only through serde types, and then stops at the first mistake. The document of `toml_edit` has the position
//! of every key and value, so that all mistakes are found, each with its line, and a fitted value can be replaced in
//! place (`write.rs`). If the text is not TOML at all, only the first mistake is reported.

use napkin_policy::nearest;
use napkin_policy::text::quoted;
use toml_edit::{Document, Item, TableLike, Value};

use super::amount::Amount;
use super::check::{self, Part};
use super::error::{Fault, Problem, ProfileError};
use super::key::{Key, Section};
use super::schema::Schema;
use super::takes::ValueKind;
use super::{Basis, Constant, Profile};

/// The fields of a constant.
const FIELDS: [&str; 6] = ["value", "source", "fitted", "assumed", "range", "note"];

/// Longest accepted text of a profile, in bytes.
pub(super) const MAX_BYTES: usize = 1 << 20;

impl Profile {
    /// Reads a profile with the sections and keys of `schema`. Errors name the text by `origin`: a file's name, or
    /// that of a built-in profile.
    ///
    /// # Errors
    ///
    /// [`ProfileError::Invalid`] with every fault and its line: text that is not TOML; sections, keys and fields that
    /// do not exist or are missing; values that are not a number, lack their unit, have one of another kind or are
    /// beyond their limits; a constant without exactly one of `source`, `fitted` and `assumed`; more queues than
    /// CPUs; and a `based-on` that is not a built-in profile.
    pub fn parse(
        schema: &'static Schema,
        text: &str,
        origin: &str,
    ) -> Result<Profile, ProfileError> {
        let mut reader = Reader::new(schema, text);
        let (name, about) = match document(text) {
            Ok(document) => reader.root(document.as_table()),
            Err(fault) => {
                reader.faults.push(fault);
                Default::default()
            }
        };
        let Reader { base, constants, places, mut faults, .. } = reader;
        for (place, part, problem) in check::problems(schema, &constants) {
            let (Some(key), Some((value, range))) = (schema.keys().get(place), places.get(place))
            else {
                continue;
            };
            let (line, field) = match part {
                Part::Value => (*value, ""),
                Part::Range => (*range, ".range"),
            };
            faults.push(Fault { line: Some(line), key: key.path() + field, problem });
        }
        if faults.is_empty() {
            let based_on = base.map(|base| base.name);
            let origin = origin.to_string();
            return Ok(Profile { schema, name, about, origin, based_on, constants });
        }
        faults.sort_by_key(|fault| fault.line);
        Err(ProfileError::Invalid { origin: origin.to_string(), faults })
    }
}

/// Parses the text as TOML, or returns the one fault that it has.
pub(super) fn document(text: &str) -> Result<Document<&str>, Fault> {
    let fault = |at, message: &str| Fault {
        line: Some(line(text, at)),
        key: String::new(),
        problem: Problem::Syntax(message.chars().filter(|c| !c.is_control()).take(200).collect()),
    };
    if text.len() > MAX_BYTES {
        return Err(fault(0, "longer than 1 MiB"));
    }
    Document::parse(text)
        .map_err(|error| fault(error.span().map_or(0, |span| span.start), error.message()))
}

/// Returns the line, from 1, of the byte at `at`.
fn line(text: &str, at: usize) -> usize {
    1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count()
}

/// The state of the parser.
struct Reader<'a> {
    schema: &'static Schema,
    text: &'a str,
    /// Offset of each line but the first.
    starts: Vec<usize>,
    /// The profile that this one is based on.
    base: Option<Profile>,
    /// In the order of the schema's keys.
    constants: Vec<Option<Constant>>,
    /// The lines of each constant's value and range, in the same order.
    places: Vec<(usize, usize)>,
    faults: Vec<Fault>,
}

impl<'a> Reader<'a> {
    fn new(schema: &'static Schema, text: &'a str) -> Reader<'a> {
        let bytes = text.bytes().enumerate();
        Reader {
            schema,
            text,
            starts: bytes.filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1).collect(),
            base: None,
            constants: vec![None; schema.keys().len()],
            places: vec![(1, 1); schema.keys().len()],
            faults: Vec::new(),
        }
    }

    fn fault(&mut self, line: usize, key: impl Into<String>, problem: Problem) {
        self.faults.push(Fault { line: Some(line), key: key.into(), problem });
    }

    /// Returns the line of a key in a table.
    fn line_of(&self, table: &dyn TableLike, name: &str) -> usize {
        let (key, item) = (table.key(name), table.get(name));
        let span = key.and_then(|key| key.span()).or_else(|| item.and_then(Item::span));
        span.map_or(1, |span| 1 + self.starts.partition_point(|start| *start <= span.start))
    }

    /// Returns the text of an item, for errors.
    fn given(&self, item: Option<std::ops::Range<usize>>) -> String {
        quoted(item.and_then(|span| self.text.get(span)).unwrap_or_default())
    }

    /// Reads the whole text. Returns the profile's name and description.
    fn root(&mut self, root: &dyn TableLike) -> (String, String) {
        let missing = self.faults.len();
        self.base(root);
        let no_base = self.faults.len() > missing;
        for (name, item) in root.iter() {
            let line = self.line_of(root, name);
            if matches!(name, "name" | "about" | "based-on") {
                continue;
            }
            let Some(section) = self.schema.section(name) else {
                if self.schema.ignores_unknown() {
                    continue;
                }
                let known: Vec<_> = self.schema.sections().iter().map(|it| it.name).collect();
                let names = known.iter().copied().chain(["name", "about", "based-on"]);
                let problem = Problem::UnknownSection { nearest: nearest(name, names), known };
                self.fault(line, quoted(name), problem);
                continue;
            };
            match item.as_table_like() {
                Some(table) => self.section(section, table, line),
                None => self.fault(line, section.name, Problem::NotASection),
            }
        }
        for section in self.schema.sections().iter().filter(|section| section.required) {
            // With an unknown base, sections are not reported as missing: the base might have had them.
            if !root.contains_key(section.name) && self.base.is_none() && !no_base {
                self.fault(1, section.name, Problem::MissingSection);
            }
        }
        (self.root_text(root, "name"), self.root_text(root, "about"))
    }

    /// Copies the constants of the profile that this one is based on, if any.
    fn base(&mut self, root: &dyn TableLike) {
        let Some(item) = root.get("based-on") else { return };
        let line = self.line_of(root, "based-on");
        let Some(name) = self.text_field(root, "based-on", "based-on", item) else { return };
        let Ok(base) = Profile::named(self.schema, &name) else {
            let problem = Problem::UnknownBase {
                given: quoted(&name),
                nearest: nearest(&name, Profile::names()),
                known: Profile::names().collect(),
            };
            return self.fault(line, "based-on", problem);
        };
        self.constants.clone_from(&base.constants);
        self.constants.iter_mut().flatten().for_each(|constant| constant.inherited = true);
        self.places.fill((line, line));
        self.base = Some(base);
    }

    /// Reads one of the texts above the sections.
    fn root_text(&mut self, root: &dyn TableLike, name: &str) -> String {
        match root.get(name) {
            None => {
                self.fault(1, name, Problem::MissingText);
                String::new()
            }
            Some(item) => self.text_field(root, name, name, item).unwrap_or_default(),
        }
    }

    /// Reads a text that must not be empty; `path` is its name in errors.
    fn text_field(
        &mut self,
        table: &dyn TableLike,
        name: &str,
        path: &str,
        item: &Item,
    ) -> Option<String> {
        match item.as_str() {
            Some(text) if !text.trim().is_empty() => Some(text.to_string()),
            _ => {
                self.fault(self.line_of(table, name), path, Problem::NotText);
                None
            }
        }
    }

    /// Reads a section that starts on `line`.
    fn section(&mut self, section: &Section, table: &dyn TableLike, line: usize) {
        for (name, _) in table.iter() {
            let path = format!("{}.{name}", section.name);
            if self.schema.key(&path).is_none() {
                let line = self.line_of(table, name);
                self.fault(
                    line,
                    quoted(&path),
                    Problem::UnknownKey { nearest: similar(self.schema, &path) },
                );
            }
        }
        let keys = self.schema.keys().iter().enumerate();
        for (place, key) in keys.filter(|(_, key)| key.section == section.name) {
            let constant = match (table.get(key.name), key.default) {
                (Some(item), _) => {
                    let line = self.line_of(table, key.name);
                    self.constant(place, key, item, line)
                }
                // Keep the constant of the base.
                (None, _) if self.constants.get(place).is_some_and(Option::is_some) => continue,
                (None, Some(default)) => Some(Constant {
                    amount: Amount::base(key.takes, default),
                    basis: Basis::Default,
                    note: None,
                    set: false,
                    inherited: false,
                }),
                (None, None) => {
                    self.fault(line, key.path(), Problem::MissingKey { takes: key.takes });
                    None
                }
            };
            if let Some(slot) = self.constants.get_mut(place) {
                *slot = constant;
            }
        }
    }

    /// Reads one constant, which starts on `line`. Returns `None` if it is unusable; the reason is then among the
    /// faults.
    fn constant(&mut self, place: usize, key: &Key, item: &Item, line: usize) -> Option<Constant> {
        let path = key.path();
        let Some(table) = item.as_table_like() else {
            self.fault(line, path, Problem::NotAConstant);
            return None;
        };
        for (field, _) in table.iter().filter(|(field, _)| !FIELDS.contains(field)) {
            let problem = Problem::UnknownField { nearest: nearest(field, FIELDS) };
            self.fault(self.line_of(table, field), format!("{path}.{}", quoted(field)), problem);
        }
        let note = table.get("note").and_then(|item| {
            let path = format!("{path}.note");
            self.text_field(table, "note", &path, item)
        });
        let basis = self.basis(key, &path, table, line);
        let amount = match table.get("value") {
            None => {
                self.fault(line, path, Problem::NoValue { takes: key.takes });
                None
            }
            Some(item) => {
                let [at, range] = ["value", "range"].map(|field| self.line_of(table, field));
                if let Some(places) = self.places.get_mut(place) {
                    *places = (at, range);
                }
                match self.amount(key.takes, item.as_value()) {
                    Ok(amount) => Some(amount),
                    Err(problem) => {
                        self.fault(at, path, problem);
                        None
                    }
                }
            }
        };
        Some(Constant { amount: amount?, basis: basis?, note, set: false, inherited: false })
    }

    /// Reads the origin of a value: exactly one of `source`, `fitted` and `assumed`.
    fn basis(
        &mut self,
        key: &Key,
        path: &str,
        table: &dyn TableLike,
        line: usize,
    ) -> Option<Basis> {
        let given: Vec<(&str, &Item)> = ["source", "fitted", "assumed"]
            .into_iter()
            .filter_map(|name| Some((name, table.get(name)?)))
            .collect();
        let [(name, item)] = given[..] else {
            let problem = if given.is_empty() { Problem::NoBasis } else { Problem::TwoBases };
            self.fault(line, path, problem);
            return None;
        };
        let range = table.get("range");
        let place = format!("{path}.range");
        match name {
            "fitted" => {
                if item.as_bool() != Some(true) {
                    let line = self.line_of(table, "fitted");
                    self.fault(line, format!("{path}.fitted"), Problem::NotTrue);
                }
                let Some(range) = range else {
                    self.fault(line, path, Problem::NoRange);
                    return None;
                };
                let at = self.line_of(table, "range");
                let (low, high) = self.range(key.takes, &place, range, at)?;
                Some(Basis::Fitted { low, high })
            }
            _ => {
                let words = self.text_field(table, name, &format!("{path}.{name}"), item)?;
                let range = match range {
                    None => None,
                    Some(range) => {
                        let at = self.line_of(table, "range");
                        Some(self.range(key.takes, &place, range, at)?)
                    }
                };
                Some(match name {
                    "assumed" => Basis::Assumed { why: words, range },
                    _ => Basis::Source { what: words, range },
                })
            }
        }
    }

    /// Reads the bounds of a constant.
    fn range(
        &mut self,
        takes: ValueKind,
        path: &str,
        item: &Item,
        line: usize,
    ) -> Option<(Amount, Amount)> {
        let ends: Vec<&Value> =
            item.as_array().map(|ends| ends.iter().collect()).unwrap_or_default();
        let [low, high] = ends[..] else {
            self.fault(line, path, Problem::NotARange);
            return None;
        };
        let [low, high] = [low, high].map(|end| match self.amount(takes, Some(end)) {
            Ok(amount) => Some(amount),
            Err(problem) => {
                self.fault(line, path, problem);
                None
            }
        });
        Some((low?, high?))
    }

    /// Reads a value. Only plain numbers may be written without quotes.
    fn amount(&self, takes: ValueKind, value: Option<&Value>) -> Result<Amount, Problem> {
        let given = || self.given(value.and_then(Value::span));
        let number = match value {
            Some(Value::String(text)) => return Amount::read(takes, text.value()),
            Some(Value::Integer(number)) => *number.value() as f64,
            Some(Value::Float(number)) => *number.value(),
            _ => return Err(not_a_value(takes, given())),
        };
        match takes {
            ValueKind::Count { .. } | ValueKind::Ratio { .. } => Ok(Amount::base(takes, number)),
            ValueKind::Choice(_) => Err(not_a_value(takes, given())),
            _ => Err(Problem::NoUnit { given: given(), takes }),
        }
    }
}

fn not_a_value(takes: ValueKind, given: String) -> Problem {
    match takes {
        ValueKind::Choice(words) => Problem::NotAChoice { given, words, nearest: None },
        _ => Problem::NotANumber { given, takes },
    }
}

/// Returns the full name of the key that was probably meant: one of the same name in another section, or the most
/// similar.
pub(super) fn similar(schema: &Schema, path: &str) -> Option<String> {
    let name = path.split_once('.').map_or(path, |(_, name)| name);
    if let Some(key) = schema.keys().iter().find(|key| key.name == name) {
        return Some(key.path());
    }
    let paths: Vec<String> = schema.keys().iter().map(Key::path).collect();
    nearest(path, paths.iter().map(String::as_str)).map(str::to_string)
}
