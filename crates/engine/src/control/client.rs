//! The client's side of the control socket: one request, one answer.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use napkin_policy::text::escaped;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};
use thiserror::Error;

use super::credentials::Peer;
use super::error::{ControlError, Refusal};
use super::listener::address;
use super::message::{Answer, MAX_ANSWER, Reply, Request, VERSION};
use super::path::{Running, directories, running};

/// How long a client waits for an answer, connecting and asking included.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// The reasons for which there is no answer.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No engine was found.
    #[error(
        "no engine runs that can be controlled from here (looked in {}): start one with `napkin \
         serve`, or name its socket with {option}{}",
        list(looked),
        lines(refused)
    )]
    NoEngine {
        /// The directories that were searched.
        looked: Vec<PathBuf>,
        /// Which of these directories are not trusted, and why.
        refused: Vec<ControlError>,
        /// The option that names a socket, as in `--control`.
        option: &'static str,
    },
    /// More than one was found.
    #[error("several engines run; choose one with {option}:{}", choices(running))]
    SeveralEngines {
        /// The engines that were found.
        running: Vec<Running>,
        /// The option that chooses one, as in `--control`.
        option: &'static str,
    },
    /// No process listens there.
    #[error(
        "no engine is controlled over {path}: nothing listens there; see `napkin serve --help`"
    )]
    NotListening {
        /// The control socket that was tried.
        path: PathBuf,
    },
    /// The socket is another user's.
    #[error("the engine behind {path} is another user's: become that user")]
    Forbidden {
        /// The control socket that was tried.
        path: PathBuf,
    },
    /// A process of another user listens there, whatever the path.
    #[error(
        "the process that listens at {path} is uid {uid}, neither uid {} nor root: nothing was asked; to \
         control an engine of that user's, become that user", rustix::process::geteuid().as_raw()
    )]
    ForeignUser {
        /// The control socket that was tried.
        path: PathBuf,
        /// The user id.
        uid: u32,
    },
    /// The connection broke, or the path does not name a socket.
    #[error("cannot talk to an engine over {path}: {source}")]
    Broken {
        /// The control socket that was tried.
        path: PathBuf,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// The process that listens there is not an engine of this version.
    #[error(
        "the process that listens at {path} is not an engine of this version of napkin: {what}"
    )]
    NotAnEngine {
        /// The control socket that was tried.
        path: PathBuf,
        /// What is wrong with the answer.
        what: String,
    },
    /// The engine refused.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

fn choices(running: &[Running]) -> String {
    let line = |it: &Running| {
        let pid = it.pid.map(|pid| format!("  (process {pid})")).unwrap_or_default();
        format!("\n  {}{pid}", it.path.display())
    };
    running.iter().map(line).collect()
}

fn lines(errors: &[ControlError]) -> String {
    errors.iter().map(|error| format!("\n  {error}")).collect()
}

/// The socket to talk to: the one that was named, or the only one there is.
///
/// `option` is the option by which the caller's user names one, as in `--control PATH`, for the advice in errors.
///
/// # Errors
/// If none was named and there is none, or more than one.
pub fn choose(named: Option<&Path>, option: &'static str) -> Result<PathBuf, ClientError> {
    if let Some(path) = named {
        return Ok(path.to_owned());
    }
    let (mut running, refused) = running();
    match (running.pop(), running.is_empty()) {
        (Some(only), true) => Ok(only.path),
        (Some(last), false) => {
            running.push(last);
            Err(ClientError::SeveralEngines { running, option })
        }
        (None, _) => Err(ClientError::NoEngine { looked: directories(), refused, option }),
    }
}

/// Sends a request to the engine behind a socket. Only processes of root and of this user are trusted. Their
/// warnings and errors are escaped for a terminal; records are returned as they came.
///
/// # Errors
/// If there is no answer within ten seconds, or the request is refused.
pub fn request(path: &Path, request: &Request) -> Result<Answer, ClientError> {
    let deadline = Instant::now() + REPLY_TIMEOUT;
    let (mut stream, peer) = connect(path)?;
    let broken = |source| ClientError::Broken { path: path.to_owned(), source };
    // A refusal may arrive, and the connection be closed, before the client has sent its request.
    let asked = left(deadline)
        .and_then(|left| stream.set_write_timeout(Some(left)))
        .and_then(|()| stream.write_all(&request.line()));
    let line =
        read_line(&mut stream, deadline).map_err(|error| broken(asked.err().unwrap_or(error)))?;
    let wrong = |what: String| ClientError::NotAnEngine { path: path.to_owned(), what };
    let reply: Reply =
        serde_json::from_slice(&line).map_err(|error| wrong(escaped(&error.to_string())))?;
    match reply {
        Reply { version, .. } if version != VERSION => {
            Err(wrong(format!("it speaks version {version}, not {VERSION}")))
        }
        Reply { error: Some(refusal), .. } => Err(refusal.into()),
        Reply { result: Some(records), warnings, .. } => {
            let warnings = warnings.iter().map(|warning| escaped(warning)).collect();
            Ok(Answer { records, warnings, pid: peer.pid })
        }
        _ => Err(wrong("neither a result nor an error".into())),
    }
}

fn connect(path: &Path) -> Result<(UnixStream, Peer), ClientError> {
    let broken = |source| ClientError::Broken { path: path.to_owned(), source };
    let address =
        address(path).map_err(|error| broken(std::io::Error::other(error.to_string())))?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(|errno| broken(errno.into()))?;
    // Also bounds the connect, which waits while the engine has no room for another connection.
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(REPLY_TIMEOUT))
        .map_err(|errno| broken(errno.into()))?;
    rustix::net::connect(&socket, &address).map_err(|errno| match errno {
        Errno::CONNREFUSED | Errno::NOENT => ClientError::NotListening { path: path.to_owned() },
        Errno::ACCESS | Errno::PERM => ClientError::Forbidden { path: path.to_owned() },
        errno => broken(errno.into()),
    })?;
    let peer = Peer::of(&socket).map_err(broken)?;
    if !peer.may_control() {
        return Err(ClientError::ForeignUser { path: path.to_owned(), uid: peer.uid });
    }
    Ok((socket.into(), peer))
}

/// One line, its newline excluded.
fn read_line(stream: &mut UnixStream, deadline: Instant) -> std::io::Result<Vec<u8>> {
    let (mut line, mut chunk) = (Vec::new(), [0; 16_384]);
    loop {
        // A peer that sends byte by byte never runs into the timeout of a single read.
        stream.set_read_timeout(Some(left(deadline)?))?;
        let read = match stream.read(&mut chunk) {
            Ok(0) => return Err(std::io::Error::other("it was closed before the answer")),
            Ok(read) => read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Err(late()),
            Err(error) => return Err(error),
        };
        let chunk = chunk.get(..read).unwrap_or_default();
        let end = chunk.iter().position(|byte| *byte == b'\n');
        line.extend_from_slice(chunk.get(..end.unwrap_or(read)).unwrap_or_default());
        if end.is_some() {
            return Ok(line);
        }
        if line.len() > MAX_ANSWER {
            return Err(std::io::Error::other("the answer does not end"));
        }
    }
}

/// The time left until the deadline; an error if there is none.
fn left(deadline: Instant) -> std::io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(late()) } else { Ok(left) }
}

fn late() -> std::io::Error {
    let what = format!("there was no answer within {} s", REPLY_TIMEOUT.as_secs());
    std::io::Error::new(std::io::ErrorKind::TimedOut, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Verb;

    #[test]
    fn a_path_where_nobody_listens_says_so() {
        let path = std::env::temp_dir().join("napkin-nobody-here.sock");
        let answer = request(&path, &Request::new(Verb::DevGet));
        assert!(matches!(answer, Err(ClientError::NotListening { .. })), "{answer:?}");
    }

    #[test]
    fn whoever_answers_nonsense_is_no_engine() {
        for nonsense in ["HTTP/1.1 400\n", "{\"version\":9}\n", "{\"version\":1}\n"] {
            let (mut local, mut peer) = UnixStream::pair().unwrap();
            peer.write_all(nonsense.as_bytes()).unwrap();
            let line = read_line(&mut local, Instant::now() + REPLY_TIMEOUT).unwrap();
            let reply: Result<Reply, _> = serde_json::from_slice(&line);
            let usable =
                reply.is_ok_and(|reply| reply.version == VERSION && reply.result.is_some());
            assert!(!usable, "{nonsense}");
        }
    }

    #[test]
    fn whoever_has_had_his_time_is_not_read_any_more() {
        let (mut local, mut peer) = UnixStream::pair().unwrap();
        peer.write_all(b"half an ans").unwrap();
        let error = read_line(&mut local, Instant::now()).expect_err("too late");
        assert_eq!(error.to_string(), "there was no answer within 10 s");
        // Bytes that are read do not put off the deadline.
        let soon = Instant::now() + Duration::from_millis(20);
        let error = read_line(&mut local, soon).expect_err("no end of line");
        assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
    }

    #[test]
    fn the_choices_are_listed() {
        let one = |name: &str, pid| Running { path: name.into(), pid };
        let running = vec![one("/run/a", Some(7)), one("/run/b", None)];
        let text = ClientError::SeveralEngines { running, option: "--engine SOCKET" }.to_string();
        assert!(text.ends_with("--engine SOCKET:\n  /run/a  (process 7)\n  /run/b"), "{text}");
    }

    #[test]
    fn the_one_that_was_named_is_taken_unseen() {
        let named = Path::new("/nowhere/a.sock");
        assert_eq!(choose(Some(named), "--control PATH").unwrap(), named);
    }
}
