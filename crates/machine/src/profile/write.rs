//! Writes fitted values back into a profile's text.
//!
//! Only the bytes of the values change: comments and layout stay as they are.

use toml_edit::{Item, TableLike, Value};

use super::amount::Amount;
use super::error::{Fault, Problem, ProfileError};
use super::parse::document;
use super::takes::ValueKind;
use super::{Basis, Profile};

impl Profile {
    /// Returns the text that this profile was read from, with the values of its fitted constants replaced by the
    /// present ones. A value keeps its unit if that reads back as exactly the same number; a value that did not
    /// change keeps its spelling.
    ///
    /// # Errors
    ///
    /// [`ProfileError::Invalid`] if the text is not TOML, or lacks a fitted constant, so that it must be another
    /// profile's.
    pub fn write_fitted(&self, original: &str) -> Result<String, ProfileError> {
        let document = document(original).map_err(|fault| ProfileError::Invalid {
            origin: self.origin.clone(),
            faults: vec![fault],
        })?;
        let root = document.as_table();
        let (mut places, mut faults) = (Vec::new(), Vec::new());
        for (key, constant) in self.schema.keys().iter().zip(&self.constants) {
            let Some(constant) = constant else { continue };
            // An unchanged inherited value does not occur in this text.
            let inherited = constant.inherited && !constant.set;
            if inherited || !matches!(constant.basis, Basis::Fitted { .. }) {
                continue;
            }
            let value = table(root.get(key.section))
                .and_then(|section| table(section.get(key.name)))
                .and_then(|fields| fields.get("value"))
                .and_then(Item::as_value);
            let Some((value, span)) = value.and_then(|value| Some((value, value.span()?))) else {
                let problem = Problem::NoValue { takes: key.takes };
                faults.push(Fault { line: None, key: key.path(), problem });
                continue;
            };
            if let Some(text) = self.replacement(key.takes, &constant.amount, value) {
                places.push((span, text));
            }
        }
        if !faults.is_empty() {
            return Err(ProfileError::Invalid { origin: self.origin.clone(), faults });
        }
        // Replace from the end, so that earlier positions stay valid.
        places.sort_by_key(|(span, _)| std::cmp::Reverse(span.start));
        let mut text = original.to_string();
        for (span, value) in places {
            text.replace_range(span, &value);
        }
        Ok(text)
    }

    /// Returns the text of a value that replaces `old`; `None` if `old` has the same value.
    fn replacement(&self, takes: ValueKind, amount: &Amount, old: &Value) -> Option<String> {
        let frequency = self.frequency();
        let value = amount.value(frequency)?;
        let Value::String(old) = old else {
            let before = old.as_float().or_else(|| old.as_integer().map(|whole| whole as f64));
            return (before != Some(value)).then(|| value.to_string());
        };
        if matches!(takes, ValueKind::Choice(_)) {
            let word = takes.show(value);
            return (*old.value() != word).then(|| format!("\"{word}\""));
        }
        match Amount::read(takes, old.value()) {
            Ok(old) if old.value(frequency) == Some(value) => None,
            Ok(old) => Some(format!("\"{}\"", Amount::like(takes, value, old.unit, frequency))),
            Err(_) => Some(format!("\"{}\"", Amount::base(takes, value))),
        }
    }
}

fn table(item: Option<&Item>) -> Option<&dyn TableLike> {
    item.and_then(Item::as_table_like)
}
