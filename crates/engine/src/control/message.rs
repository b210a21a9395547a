//! The messages on the control socket: one line each way.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::error::Refusal;
use super::verb::Verb;

/// The protocol's version. A request of another one is refused.
pub const VERSION: u64 = 1;

/// The longest request, in bytes, its newline excluded.
pub const MAX_LINE: usize = 4_096;

/// The longest answer that a client takes, in bytes: room for tens of thousands of instances.
pub const MAX_ANSWER: usize = 64 << 20;

/// One entry of an answer: attributes by name.
pub type Record = Map<String, Value>;

/// A request, as a client writes it. The server parses it by hand, in order to report exactly what is wrong.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Request {
    version: u64,
    verb: &'static str,
    attributes: Record,
}

impl Request {
    /// A request without attributes; of a get, for everything there is.
    pub fn new(verb: Verb) -> Request {
        Request { version: VERSION, verb: verb.name(), attributes: Record::new() }
    }

    /// Adds an attribute; `None` leaves it out.
    #[must_use]
    pub fn with(mut self, name: &str, value: Option<impl Into<Value>>) -> Request {
        if let Some(value) = value {
            self.attributes.insert(name.to_owned(), value.into());
        }
        self
    }

    /// The line, its newline included.
    pub(super) fn line(&self) -> Vec<u8> {
        line(self)
    }
}

/// The answer to a request that was carried out.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Answer {
    /// The requested records; empty after a set.
    pub records: Vec<Record>,
    /// Sentences about what was done, or is in force, and may not have the effect it seems to have.
    pub warnings: Vec<String>,
    /// The process that answered, which is another after the engine was restarted; `None` if it is not visible in
    /// this pid namespace.
    pub pid: Option<i32>,
}

/// An answer's line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// The server's version.
    pub version: u64,
    /// The requested records; empty after a set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Vec<Record>>,
    /// Warnings that belong to the result, as sentences; absent if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Why it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Refusal>,
}

impl Reply {
    pub(super) fn line(result: Result<Answer, Refusal>) -> Vec<u8> {
        let (result, warnings, error) = match result {
            Ok(Answer { records, warnings, .. }) => (Some(records), warnings, None),
            Err(refusal) => (None, Vec::new(), Some(refusal)),
        };
        line(&Reply { version: VERSION, result, warnings, error })
    }
}

fn line(message: &impl Serialize) -> Vec<u8> {
    // Strings, numbers and maps with string keys always serialise.
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_one_line_and_names_only_what_was_given() {
        let request = Request::new(Verb::NapiSet).with("id", Some(3)).with("hold", None::<u64>);
        let expected = r#"{"version":1,"verb":"napi-set","attributes":{"id":3}}"#;
        assert_eq!(String::from_utf8(request.line()).unwrap(), format!("{expected}\n"));
    }

    #[test]
    fn an_answer_has_a_result_or_an_error() {
        let done = Reply::line(Ok(Answer::default()));
        assert_eq!(done, b"{\"version\":1,\"result\":[]}\n");
        let warnings = vec!["but".to_owned()];
        let warned = Reply::line(Ok(Answer { warnings, ..Answer::default() }));
        assert_eq!(warned, b"{\"version\":1,\"result\":[],\"warnings\":[\"but\"]}\n");
        let refused = Reply::line(Err(Refusal::new(crate::control::Code::INVAL, "no")));
        let reply: Reply = serde_json::from_slice(&refused).unwrap();
        assert_eq!((reply.result, reply.error.unwrap().message.as_str()), (None, "no"));
    }
}
