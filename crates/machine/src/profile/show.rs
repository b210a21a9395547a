//! Writes a whole profile as the text of a file that depends on no other.

use toml_edit::Value;

use super::amount::Amount;
use super::takes::ValueKind;
use super::{Basis, Profile};

impl Profile {
    /// Returns the profile as TOML: each of its constants, inherited ones included, with its present value.
    /// [`Profile::parse`] reads the same values from it. Defaults are omitted unless they were changed.
    pub fn to_toml(&self) -> String {
        let mut out = format!("name = {}\nabout = {}\n", text(&self.name), text(&self.about));
        for section in self.schema.sections().iter().filter(|section| self.has(section.name)) {
            out.push_str(&format!("\n# {}\n[{}]\n", section.what, section.name));
            for (key, constant) in self.schema.keys().iter().zip(&self.constants) {
                let Some(constant) = constant.as_ref().filter(|_| key.section == section.name)
                else {
                    continue;
                };
                let value = |amount: &Amount| amount_text(key.takes, amount);
                let range = |(low, high): (&Amount, &Amount)| {
                    format!(", range = [{}, {}]", value(low), value(high))
                };
                let basis = match &constant.basis {
                    Basis::Default if !constant.set => continue,
                    Basis::Default => "source = \"set by hand\"".to_owned(),
                    Basis::Source { what, range: bounds } => {
                        let bounds = bounds.as_ref().map(|(low, high)| range((low, high)));
                        format!("source = {}{}", text(what), bounds.unwrap_or_default())
                    }
                    Basis::Fitted { low, high } => format!("fitted = true{}", range((low, high))),
                    Basis::Assumed { why, range: bounds } => {
                        let bounds = bounds.as_ref().map(|(low, high)| range((low, high)));
                        format!("assumed = {}{}", text(why), bounds.unwrap_or_default())
                    }
                };
                let note = constant.note.as_ref().map(|note| format!(", note = {}", text(note)));
                let from = self.based_on.as_ref().filter(|_| constant.inherited);
                let from = from.map(|base| format!(" # inherited from {base}"));
                out.push_str(&format!(
                    "{} = {{ value = {}, {basis}{} }}{}\n",
                    key.name,
                    value(&constant.amount),
                    note.unwrap_or_default(),
                    from.unwrap_or_default()
                ));
            }
        }
        out
    }
}

/// Quotes a text for TOML.
pub(super) fn text(text: &str) -> String {
    Value::from(text).to_string()
}

/// Formats an amount as in a file: quoted with its unit, or a plain number.
fn amount_text(takes: ValueKind, amount: &Amount) -> String {
    match takes {
        ValueKind::Choice(_) => text(&takes.show(amount.number)),
        ValueKind::Count { .. } | ValueKind::Ratio { .. } => amount.number.to_string(),
        _ => text(&amount.to_string()),
    }
}
