//! Writes profiles that state what was measured on a host and inherit the rest from a built-in one.

use napkin_policy::text::quoted;
use thiserror::Error;

use super::key::Key;
use super::schema::Schema;
use super::show::text;
use super::takes::ValueKind;
use super::{Profile, ProfileError};

/// A constant of a [`Draft`].
#[derive(Debug, Clone, PartialEq)]
pub struct DraftConstant {
    /// The key, as in `cost.poll`.
    pub key: String,
    /// The value in the base unit of the key; for a choice the index of the word.
    pub value: f64,
    /// Whether it was read or measured on the host, rather than assumed.
    pub sourced: bool,
    /// The source, or the reason for the assumption.
    pub why: String,
    /// The bounds within which it is known, in the base unit.
    pub range: Option<(f64, f64)>,
}

/// The contents of a profile to be written.
#[derive(Debug, Clone, PartialEq)]
pub struct Draft {
    /// The profile's name, which is also that of its file.
    pub name: String,
    /// A description of the testbed.
    pub about: String,
    /// The built-in profile that supplies every constant not stated here.
    pub based_on: String,
    /// Lines for the head of the file, written as comments.
    pub comments: Vec<String>,
    /// The constants that it states, in any order.
    pub constants: Vec<DraftConstant>,
}

/// The reason why a draft gives no valid profile.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DraftError {
    /// A key does not exist.
    #[error("no key is called '{0}'")]
    Key(String),
    /// A key is stated twice.
    #[error("'{0}' is stated twice")]
    Twice(String),
    /// The resulting profile is invalid.
    #[error(transparent)]
    Profile(#[from] ProfileError),
}

impl Draft {
    /// Returns the text of the file, which [`Profile::parse`] accepts with the same schema. Times are rounded to a
    /// tenth of a nanosecond, ratios to four decimal places and all else to whole numbers; a range is widened to
    /// contain its value.
    ///
    /// # Errors
    /// If a key does not exist or is stated twice, or if the profile would be refused.
    pub fn to_toml(&self, schema: &'static Schema) -> Result<String, DraftError> {
        let mut placed = Vec::new();
        for constant in &self.constants {
            let place = schema.place(&constant.key);
            let place = place.ok_or_else(|| DraftError::Key(quoted(&constant.key)))?;
            if placed.iter().any(|(other, _)| *other == place) {
                return Err(DraftError::Twice(constant.key.clone()));
            }
            placed.push((place, constant));
        }
        placed.sort_by_key(|(place, _)| *place);
        let mut out = String::new();
        for comment in &self.comments {
            out.push_str(&format!("# {}\n", comment.replace(['\n', '\r'], " ")));
        }
        out.push_str(&format!(
            "name = {}\nabout = {}\nbased-on = {}\n",
            text(&self.name),
            text(&self.about),
            text(&self.based_on)
        ));
        for section in schema.sections() {
            let of_section =
                placed.iter().filter_map(|(place, it)| Some((schema.keys().get(*place)?, *it)));
            let mut lines = of_section.filter(|(key, _)| key.section == section.name).peekable();
            if lines.peek().is_none() {
                continue;
            }
            out.push_str(&format!("\n# {}\n[{}]\n", section.what, section.name));
            for (key, constant) in lines {
                out.push_str(&line(key, constant));
            }
        }
        Profile::parse(schema, &out, &format!("{}.toml", self.name))?;
        Ok(out)
    }
}

fn line(key: &Key, constant: &DraftConstant) -> String {
    let takes = key.takes;
    let value = rounded(takes, constant.value);
    let basis = if constant.sourced { "source" } else { "assumed" };
    let range = constant.range.map(|(low, high)| {
        let (low, high) = (rounded(takes, low).min(value), rounded(takes, high).max(value));
        let (least, most) = takes.limits();
        (low.max(least), high.min(most))
    });
    let range = range
        .map(|(low, high)| format!(", range = [{}, {}]", amount(takes, low), amount(takes, high)));
    format!(
        "{} = {{ value = {}, {basis} = {}{} }}\n",
        key.name,
        amount(takes, value),
        text(&constant.why),
        range.unwrap_or_default()
    )
}

fn rounded(takes: ValueKind, value: f64) -> f64 {
    match takes {
        ValueKind::Ratio { .. } => libm::round(value * 1e4) / 1e4,
        ValueKind::Time { .. } => libm::round(value * 10.0) / 10.0,
        _ => libm::round(value),
    }
}

/// Formats a value as in a file.
fn amount(takes: ValueKind, value: f64) -> String {
    match takes {
        ValueKind::Choice(_) => text(&takes.show(value)),
        ValueKind::Count { .. } | ValueKind::Ratio { .. } => value.to_string(),
        _ => text(&takes.show(value)),
    }
}
