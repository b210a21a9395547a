//! A setting on the wire: a word as a string, `off` and `on` as booleans, counts and nanoseconds as numbers. The
//! settings are those in the table of a policy's keys.

use napkin_policy::{Key, ValueKind};
use serde_json::Value;

/// Converts a key's value to its form in a request or an answer.
pub fn to_json(key: &Key, value: u64) -> Value {
    match key.takes {
        takes if takes.is_switch() => (value != 0).into(),
        ValueKind::Choice(words) => {
            usize::try_from(value).ok().and_then(|place| words.get(place)).copied().into()
        }
        ValueKind::Count { .. } | ValueKind::Time => value.into(),
    }
}

/// A key's value from an answer; `None` if it is absent, or not valid for the key.
pub fn from_json(key: &Key, value: Option<&Value>) -> Option<u64> {
    match (key.takes, value?) {
        (takes, Value::Bool(on)) if takes.is_switch() => Some(u64::from(*on)),
        (ValueKind::Choice(words), Value::String(word)) => {
            words.iter().position(|it| it == word).map(|place| place as u64)
        }
        (_, value) => value.as_u64().filter(|value| key.check(*value).is_ok()),
    }
}
