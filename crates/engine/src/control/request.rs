//! Parses a request: its verb, its attributes, and what is wrong with them.
//!
//! An unknown name is refused, with the nearest known name: a misspelt setting that was ignored would be worse than
//! an error.

use std::fmt;

use napkin_policy::text::quoted;
use napkin_policy::{INSTANCE_KEYS, Key, ValueKind, nearest};
use serde_json::{Map, Value};

use super::error::{Code, Refusal};
use super::message::VERSION;
use super::verb::{Verb, settings};
use crate::NapiChange;

/// A direction of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Receive, as `NETDEV_QUEUE_TYPE_RX`.
    Rx,
    /// Transmit, as `NETDEV_QUEUE_TYPE_TX`.
    Tx,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Rx => "rx",
            Kind::Tx => "tx",
        })
    }
}

/// A valid request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Command {
    Devices { ifindex: Option<u32> },
    Queues { ifindex: Option<u32>, kind: Option<Kind>, id: Option<u32> },
    Napis { id: Option<u32>, ifindex: Option<u32> },
    Stats { ifindex: Option<u32>, by_queue: bool },
    SetNapi { id: u32, change: NapiChange },
    SetDevice { ifindex: u32, change: NapiChange },
}

/// The reason why a line is not a valid request. After a malformed line the connection is closed; a client whose
/// request was refused may send another.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ParseError {
    Malformed(Refusal),
    Refused(Refusal),
}

/// Parses one line.
pub(super) fn read(line: &[u8]) -> Result<Command, ParseError> {
    let malformed = |what: String| ParseError::Malformed(Refusal::new(Code::INVAL, what));
    let value = serde_json::from_slice::<Value>(line)
        .map_err(|error| malformed(format!("the line is no JSON: {error}")))?;
    let Value::Object(mut fields) = value else {
        return Err(malformed("the line is no JSON object".into()));
    };
    match fields.remove("version") {
        Some(version) if version.as_u64() == Some(VERSION) => {}
        _ => return Err(malformed(format!("this is protocol version {VERSION}: say so"))),
    }
    let Some(Value::String(name)) = fields.remove("verb") else {
        return Err(malformed("the request has no verb".into()));
    };
    let attributes = match fields.remove("attributes") {
        None => Map::new(),
        Some(Value::Object(attributes)) => attributes,
        Some(_) => return Err(malformed("attributes are a JSON object".into())),
    };
    if let Some((field, _)) = fields.iter().next() {
        return Err(malformed(format!(
            "a request has version, verb and attributes, and no '{}'",
            quoted(field)
        )));
    }
    let Some(verb) = Verb::ALL.into_iter().find(|verb| verb.name() == name) else {
        let names = Verb::ALL.map(Verb::name);
        let message = format!("no verb is called '{}'{}", quoted(&name), instead(&name, &names));
        return Err(ParseError::Refused(Refusal::new(Code::OPNOTSUPP, message)));
    };
    command(verb, &attributes).map_err(ParseError::Refused)
}

fn command(verb: Verb, attributes: &Map<String, Value>) -> Result<Command, Refusal> {
    let takes = verb.takes();
    if let Some(name) = attributes.keys().find(|name| !takes.contains(&name.as_str())) {
        let what = format!("{} takes no attribute '{}'", verb.name(), quoted(name));
        return Err(Refusal::of(Code::INVAL, name, what + &instead(name, &takes)));
    }
    let taken = Attributes(attributes);
    let ifindex = taken.number("ifindex", 1, u64::from(u32::MAX))?.map(|it| it as u32);
    let id = taken.number("id", 0, u64::from(u32::MAX))?.map(|it| it as u32);
    Ok(match verb {
        Verb::DevGet => Command::Devices { ifindex },
        Verb::QueueGet => {
            let kind = taken.word("type", &["rx", "tx"])?;
            Command::Queues { ifindex, kind: kind.map(|it| [Kind::Rx, Kind::Tx][it]), id }
        }
        Verb::NapiGet => Command::Napis { id, ifindex },
        Verb::QstatsGet => {
            let by_queue = taken.word("scope", &["device", "queue"])? == Some(1);
            Command::Stats { ifindex, by_queue }
        }
        Verb::NapiSet => {
            let id = id.ok_or_else(|| missing(verb, "id", "napi-get"))?;
            Command::SetNapi { id, change: taken.change(verb)? }
        }
        Verb::DevSet => {
            let ifindex = ifindex.ok_or_else(|| missing(verb, "ifindex", "dev-get"))?;
            Command::SetDevice { ifindex, change: taken.change(verb)? }
        }
    })
}

fn missing(verb: Verb, name: &str, see: &str) -> Refusal {
    let what = format!("{} needs the attribute {name} (see {see})", verb.name());
    Refusal::of(Code::INVAL, name, what)
}

struct Attributes<'a>(&'a Map<String, Value>);

impl Attributes<'_> {
    fn number(&self, name: &str, min: u64, max: u64) -> Result<Option<u64>, Refusal> {
        let Some(value) = self.0.get(name) else { return Ok(None) };
        // A number that is too large for the type is out of range like any other.
        let Value::Number(number) = value else {
            return Err(Refusal::of(Code::INVAL, name, format!("{name} is a number")));
        };
        match number.as_u64() {
            Some(number) if (min..=max).contains(&number) => Ok(Some(number)),
            _ => {
                let what = format!("{name} {number} is out of range: give {min} to {max}");
                Err(Refusal::of(Code::RANGE, name, what))
            }
        }
    }

    /// The index of a word among `words`.
    fn word(&self, name: &str, words: &[&str]) -> Result<Option<usize>, Refusal> {
        let Some(value) = self.0.get(name) else { return Ok(None) };
        let Value::String(word) = value else {
            let what = format!("{name} is a word: one of {}", words.join(", "));
            return Err(Refusal::of(Code::INVAL, name, what));
        };
        let place = words.iter().position(|it| it == word);
        let what = || format!("{name} cannot be '{}'{}", quoted(word), instead(word, words));
        place.map(Some).ok_or_else(|| Refusal::of(Code::INVAL, name, what()))
    }

    fn switch(&self, name: &str) -> Result<Option<u64>, Refusal> {
        match self.0.get(name) {
            None => Ok(None),
            Some(Value::Bool(on)) => Ok(Some(u64::from(*on))),
            Some(_) => Err(Refusal::of(Code::INVAL, name, format!("{name} is true or false"))),
        }
    }

    fn setting(&self, key: &Key) -> Result<Option<u64>, Refusal> {
        match key.takes {
            takes if takes.is_switch() => self.switch(key.name),
            // By number, as on the kernel's netlink, or by name.
            ValueKind::Choice(words) if !self.0.get(key.name).is_some_and(Value::is_number) => {
                Ok(self.word(key.name, words)?.map(|place| place as u64))
            }
            ValueKind::Choice(_) => self.number(key.name, 0, key.takes.max()),
            ValueKind::Count { .. } | ValueKind::Time => self.number(key.name, 0, u64::MAX),
        }
    }

    fn change(&self, verb: Verb) -> Result<NapiChange, Refusal> {
        let range =
            |name, error: &dyn fmt::Display| Refusal::of(Code::RANGE, name, error.to_string());
        let mut change = NapiChange::default();
        for key in INSTANCE_KEYS {
            if let Some(value) = self.setting(key)? {
                change = change.with(key.name, value).map_err(|error| range(key.name, &error))?;
            }
        }
        if let Some(weight) = self.number("weight", 1, u64::from(u16::MAX))? {
            change = change.with_weight(weight as u16).map_err(|error| range("weight", &error))?;
        }
        if change.is_empty() {
            let what = format!("{} changes nothing: give a setting: ", verb.name());
            return Err(Refusal::new(Code::INVAL, what + &settings().join(", ")));
        }
        Ok(change)
    }
}

fn instead(word: &str, known: &[&str]) -> String {
    match nearest(word, known.iter().copied()) {
        Some(nearest) => format!("; did you mean '{nearest}'?"),
        None => format!(": give {}", known.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use napkin_policy::Threaded;

    fn change(settings: &[(&str, u64)]) -> NapiChange {
        let with = |change: NapiChange, (name, value): &(&str, u64)| change.with(name, *value);
        settings.iter().try_fold(NapiChange::default(), with).expect("settings")
    }

    fn refused(verb: &str, attributes: &str) -> (String, String) {
        let line = format!(r#"{{"version":1,"verb":"{verb}","attributes":{attributes}}}"#);
        match read(line.as_bytes()) {
            Err(ParseError::Refused(refusal)) => (refusal.code, refusal.message),
            other => panic!("{other:?}"),
        }
    }

    fn refusal(verb: &str, attributes: &str) -> String {
        let (code, message) = refused(verb, attributes);
        format!("{code}: {message}")
    }

    #[test]
    fn a_request_is_read() {
        let line = br#"{"version":1,"verb":"napi-set","attributes":{"id":3,"threaded":"busy-poll","hold":5}}"#;
        let change = change(&[("threaded", Threaded::BusyPoll as u64), ("hold", 5)]);
        assert_eq!(read(line), Ok(Command::SetNapi { id: 3, change }));
        let line = br#"{"version":1,"verb":"napi-get"}"#;
        assert_eq!(read(line), Ok(Command::Napis { id: None, ifindex: None }));
    }

    #[test]
    fn modes_have_the_kernel_s_names_and_numbers() {
        for (number, name) in Threaded::NAMES.into_iter().enumerate() {
            let threaded = Threaded::named(name).expect("its own name");
            assert_eq!(threaded as usize, number);
            assert_eq!(threaded.name(), name);
            let line = format!(
                r#"{{"version":1,"verb":"dev-set","attributes":{{"ifindex":1,"threaded":{number}}}}}"#
            );
            let change = change(&[("threaded", threaded as u64)]);
            assert_eq!(read(line.as_bytes()), Ok(Command::SetDevice { ifindex: 1, change }));
        }
    }

    #[test]
    fn what_is_misspelt_is_refused_with_the_nearest_name() {
        assert_eq!(
            refusal("napi-set", r#"{"id":1,"thraeded":"enabled"}"#),
            "EINVAL: napi-set takes no attribute 'thraeded'; did you mean 'threaded'?"
        );
        assert_eq!(
            refusal("napi-set", r#"{"id":1,"threaded":"busypoll"}"#),
            "EINVAL: threaded cannot be 'busypoll'; did you mean 'busy-poll'?"
        );
        assert_eq!(
            refusal("napi-gte", "{}"),
            "EOPNOTSUPP: no verb is called 'napi-gte'; did you mean 'napi-get'?"
        );
        assert_eq!(
            refusal("napi-get", r#"{"pid":1}"#),
            "EINVAL: napi-get takes no attribute 'pid'; did you mean 'id'?"
        );
    }

    #[test]
    fn limits_are_the_kernel_s_and_are_named() {
        assert_eq!(
            refusal("napi-set", r#"{"id":1,"defer-hard-irqs":2147483648}"#),
            "ERANGE: defer-hard-irqs=2147483648: at most 2147483647 is allowed"
        );
        assert_eq!(
            refusal("napi-set", r#"{"id":1,"hold":100000000000}"#),
            "ERANGE: hold=100s: at most 10s is allowed"
        );
        assert_eq!(
            refusal("napi-set", r#"{"id":1,"threaded":4}"#),
            "ERANGE: threaded 4 is out of range: give 0 to 3"
        );
        assert_eq!(refusal("dev-get", r#"{"ifindex":0}"#).split(':').next(), Some("ERANGE"));
        assert_eq!(refusal("napi-set", r#"{"id":1,"hold":-1}"#).split(':').next(), Some("ERANGE"));
        assert_eq!(
            refusal("napi-set", r#"{"id":1,"weight":1e99}"#).split(':').next(),
            Some("ERANGE")
        );
        assert_eq!(refusal("napi-set", r#"{"id":1,"hold":"5us"}"#), "EINVAL: hold is a number");
    }

    #[test]
    fn a_set_names_its_target_and_changes_something() {
        let (code, message) = refused("napi-set", r#"{"threaded":"enabled"}"#);
        assert_eq!((code.as_str(), message.contains("id")), ("EINVAL", true));
        assert!(refusal("napi-set", r#"{"id":1}"#).starts_with("EINVAL: napi-set changes nothing"));
    }

    #[test]
    fn what_is_no_request_is_malformed() {
        for line in [
            &b""[..],
            b"\xff\xfe",
            b"[]",
            b"{}",
            br#"{"version":2,"verb":"dev-get"}"#,
            br#"{"version":1}"#,
            br#"{"version":1,"verb":"dev-get","attributes":[]}"#,
            br#"{"version":1,"verb":"dev-get","more":1}"#,
            "[".repeat(4_096).as_bytes(),
        ] {
            assert!(matches!(read(line), Err(ParseError::Malformed(_))), "{line:?}");
        }
    }
}
