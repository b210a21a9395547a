//! The errors of control: refusals for a peer, with the kernel's code and a sentence; and the errors of opening the
//! socket.

use std::path::PathBuf;

use napkin_policy::text::escaped;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::EngineError;

/// A code of the operating system, by name and number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code {
    /// `EINVAL` and so on.
    pub name: &'static str,
    /// Its number, positive, as in `errno(3)`.
    pub number: i32,
}

impl Code {
    /// A malformed request, or a value of the wrong kind.
    pub const INVAL: Code = Code { name: "EINVAL", number: libc::EINVAL };
    /// No such device, queue or instance.
    pub const NOENT: Code = Code { name: "ENOENT", number: libc::ENOENT };
    /// A value out of its limits.
    pub const RANGE: Code = Code { name: "ERANGE", number: libc::ERANGE };
    /// Another user's process.
    pub const PERM: Code = Code { name: "EPERM", number: libc::EPERM };
    /// A verb that does not exist.
    pub const OPNOTSUPP: Code = Code { name: "EOPNOTSUPP", number: libc::EOPNOTSUPP };
    /// A line that is too long.
    pub const MSGSIZE: Code = Code { name: "EMSGSIZE", number: libc::EMSGSIZE };
    /// The engine is stopping.
    pub const SHUTDOWN: Code = Code { name: "ESHUTDOWN", number: libc::ESHUTDOWN };
    /// The operating system refused a descriptor or a thread.
    pub const AGAIN: Code = Code { name: "EAGAIN", number: libc::EAGAIN };
}

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Error)]
#[error("{} ({})", escaped(message), escaped(code))]
pub struct Refusal {
    /// The code's name.
    pub code: String,
    /// The code's number.
    pub errno: i32,
    /// The attribute at fault, if one is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attribute: Option<String>,
    /// What was wrong, with which value, and what to do.
    pub message: String,
}

impl Refusal {
    pub(super) fn new(code: Code, message: impl Into<String>) -> Refusal {
        let code_name = code.name.to_owned();
        Refusal { code: code_name, errno: code.number, attribute: None, message: message.into() }
    }

    pub(super) fn of(code: Code, attribute: &str, message: impl Into<String>) -> Refusal {
        Refusal { attribute: Some(attribute.to_owned()), ..Refusal::new(code, message) }
    }
}

impl From<EngineError> for Refusal {
    fn from(error: EngineError) -> Refusal {
        let message = error.to_string();
        match error {
            EngineError::NoNapi { .. } => Refusal::of(Code::NOENT, "id", message),
            EngineError::NoDevice(_) => Refusal::of(Code::NOENT, "ifindex", message),
            EngineError::Setting(_) => Refusal::new(Code::RANGE, message),
            EngineError::Stopping => Refusal::new(Code::SHUTDOWN, message),
            EngineError::Os { .. } => Refusal::new(Code::AGAIN, message),
            _ => Refusal::new(Code::INVAL, message),
        }
    }
}

/// Why the control socket cannot be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ControlError {
    /// An engine listens there already.
    #[error(
        "an engine{} is controlled over {path} already: end it, or give this one a socket of its \
         own with --control PATH", owner(*pid)
    )]
    InUse {
        /// The control socket's path.
        path: PathBuf,
        /// The process, if the operating system says which.
        pid: Option<i32>,
    },
    /// The path exists and is not a stream socket.
    #[error("{path} exists and is no stream socket: remove it, or choose another path")]
    NotASocket {
        /// The control socket's path.
        path: PathBuf,
    },
    /// A path that is too long for a socket.
    #[error("{path} is too long for a socket: a path has at most 107 bytes")]
    TooLong {
        /// The path that was given.
        path: PathBuf,
    },
    /// A directory that others may write to, or that is another user's.
    #[error(
        "{path} cannot hold control sockets: it is {found}; a directory of uid {us} with mode 0700 \
         can"
    )]
    Unsafe {
        /// The control socket's path.
        path: PathBuf,
        /// Its type, owner and mode.
        found: String,
        /// The user that this process runs as.
        us: u32,
    },
    /// Another process keeps the directory locked.
    #[error("{path} is locked by another process: choose another directory")]
    Locked {
        /// The control socket's path.
        path: PathBuf,
    },
    /// The operating system refused.
    #[error("cannot {action} {path}: {source}")]
    System {
        /// What was tried, as the end of "cannot".
        action: &'static str,
        /// The socket or the file beside it.
        path: PathBuf,
        /// The operating system's answer.
        source: std::io::Error,
    },
}

impl ControlError {
    pub(super) fn system(
        action: &'static str,
        path: &std::path::Path,
        source: impl Into<std::io::Error>,
    ) -> ControlError {
        ControlError::System { action, path: path.to_owned(), source: source.into() }
    }
}

fn owner(pid: Option<i32>) -> String {
    pid.map(|pid| format!(" (process {pid})")).unwrap_or_default()
}
