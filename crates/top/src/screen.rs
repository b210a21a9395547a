//! The live view on a terminal: runs until `q`, a signal, or the loss of the terminal.
//!
//! A separate thread takes the samples, so that a source that does not answer blocks neither keys nor the
//! end. Between two samples everything sleeps.

use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use napkin_policy::text::escaped;
use ratatui_core::terminal::Terminal;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use thiserror::Error;

use crate::draw::{Scene, draw};
use crate::key::{Key, Keys};
use crate::signals::{Request, Signals};
use crate::terminal::{Screen, enter, leave};
use crate::view::{Action, View};
use napkin_watch::{Meter, Rates, Sample, Source, SourceError};

/// The shortest interval: below it, watching costs more than what is watched.
pub const SHORTEST: Duration = Duration::from_millis(100);

/// The maximum length of the first window, so that something is shown soon. A first window shorter than the
/// interval does not count towards [`Options::count`].
const FIRST: Duration = Duration::from_millis(300);

/// How long an escape waits for the rest of a key.
const ESCAPE: Duration = Duration::from_millis(25);

/// Why the view could not start, or ended.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ScreenError {
    /// Input or output is not a terminal.
    #[error("{what} is no terminal: --batch prints tables, --batch --json prints JSON")]
    NoTerminal {
        /// Which of the two.
        what: &'static str,
    },
    /// The source failed.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A system call failed.
    #[error("cannot use the terminal: {0}")]
    System(#[from] io::Error),
    /// The sampling thread panicked, and has printed its message.
    #[error("taking samples ended unexpectedly")]
    Ended,
}

/// Options of the view.
#[derive(Debug, Clone)]
pub struct Options {
    /// The interval between two samples, at least [`SHORTEST`].
    pub interval: Duration,
    /// The number of windows of that length after which to end.
    pub count: Option<u64>,
}

/// Shows a source until the user quits.
///
/// # Errors
/// If there is no terminal, or the source fails at the start. If it fails later, the view shows the error and
/// keeps trying.
pub fn run(
    mut source: Box<dyn Source + Send>,
    view: View,
    options: &Options,
) -> Result<(), ScreenError> {
    for (is, what) in
        [(io::stdin().is_terminal(), "the input"), (io::stdout().is_terminal(), "the output")]
    {
        if !is {
            return Err(ScreenError::NoTerminal { what });
        }
    }
    let first = source.sample()?;
    // Before any thread is created, as threads inherit the blocked signals.
    let signals = Signals::open()?;
    let sampler = Sampler::start(source)?;
    let _guard = TerminalGuard::take()?;
    let terminal = Terminal::new(Screen::new())?;
    let mut live = Live {
        terminal,
        sampler,
        view,
        interval: options.interval.max(SHORTEST),
        left: options.count,
        meter: Meter::default(),
        rates: Rates::default(),
        title: String::new(),
        error: None,
        resuming: false,
        short: options.interval > FIRST,
        due: None,
    };
    live.first(first);
    match live.watch(&signals) {
        // Closing the terminal is a way to quit.
        Err(ScreenError::System(error)) if lost(&error) => Ok(()),
        result => result,
    }
}

fn lost(error: &io::Error) -> bool {
    let gone = [Errno::IO, Errno::PIPE, Errno::NXIO, Errno::BADF];
    error.raw_os_error().is_some_and(|raw| gone.iter().any(|it| it.raw_os_error() == raw))
}

/// Owns the terminal until dropped; a panic restores it before its message is printed.
struct TerminalGuard;

impl TerminalGuard {
    fn take() -> io::Result<TerminalGuard> {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            leave();
            before(info);
        }));
        // From here on the terminal is restored, even if `enter` fails half way.
        let guard = TerminalGuard;
        enter()?;
        Ok(guard)
    }
}

impl Drop for TerminalGuard {
    fn drop(&mut self) {
        // The hook may stay: it does nothing while the terminal is not taken.
        leave();
    }
}

struct Live {
    terminal: Terminal<Screen>,
    sampler: Sampler,
    view: View,
    interval: Duration,
    left: Option<u64>,
    meter: Meter,
    rates: Rates,
    title: String,
    error: Option<String>,
    /// After a pause the next sample only starts a window.
    resuming: bool,
    /// The window is the first, and too short to be counted.
    short: bool,
    /// When to request the next sample; `None` while one is pending.
    due: Option<Instant>,
}

impl Live {
    fn first(&mut self, sample: Sample) {
        self.rates = self.meter.take(sample);
        self.title = self.sampler.title.clone();
        self.due = Some(Instant::now() + self.interval.min(FIRST));
    }

    fn watch(&mut self, signals: &Signals) -> Result<(), ScreenError> {
        let mut keys = Keys::default();
        self.draw()?;
        loop {
            let timeout = match (keys.waits(), self.due) {
                (true, _) => Some(ESCAPE),
                (false, Some(due)) if !self.view.paused => {
                    Some(due.saturating_duration_since(Instant::now()))
                }
                _ => None,
            };
            let input = rustix::stdio::stdin();
            let mut fds = [
                PollFd::new(&input, PollFlags::IN),
                PollFd::new(signals, PollFlags::IN),
                PollFd::new(&self.sampler.ready, PollFlags::IN),
            ];
            let timespec = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
            let woken = match poll(&mut fds, timespec.as_ref()) {
                Ok(woken) => woken,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(io::Error::from(errno).into()),
            };
            let [input, signal, sample] = fds.map(|fd| fd.revents());
            if signal.contains(PollFlags::IN) {
                match signals.take_request() {
                    Some(Request::End) => return Ok(()),
                    Some(Request::Stop) => self.stop(signals)?,
                    Some(Request::Resumed) => self.resume()?,
                    Some(Request::Draw) => self.draw()?,
                    None => {}
                }
            }
            if !input.is_empty() {
                let Some(pressed) = read_keys(&mut keys)? else { return Ok(()) };
                if self.press(pressed, signals)? {
                    return Ok(());
                }
            } else if woken == 0 && keys.waits() {
                let pressed = keys.end();
                if self.press(pressed, signals)? {
                    return Ok(());
                }
            }
            if sample.contains(PollFlags::IN) && self.take()? {
                return Ok(());
            }
            if !self.view.paused && self.due.is_some_and(|due| due <= Instant::now()) {
                self.due = None;
                self.sampler.ask()?;
            }
        }
    }

    /// Handles keys; returns whether to quit.
    fn press(&mut self, keys: Vec<Key>, signals: &Signals) -> Result<bool, ScreenError> {
        if keys.is_empty() {
            return Ok(false);
        }
        for key in keys {
            match self.view.key(key, &self.rates) {
                Action::Quit => return Ok(true),
                Action::Stop => self.stop(signals)?,
                Action::Redraw => self.terminal.clear()?,
                Action::Pause if !self.view.paused => {
                    self.resuming = true;
                    self.due = self.due.map(|_| Instant::now());
                }
                Action::Pause | Action::Draw => {}
            }
        }
        self.draw()?;
        Ok(false)
    }

    /// Takes a sample from the sampler; returns whether to end.
    fn take(&mut self) -> Result<bool, ScreenError> {
        let Some((title, sample)) = self.sampler.found()? else { return Ok(false) };
        self.title = title;
        self.due = Some(Instant::now() + self.interval);
        let short = std::mem::take(&mut self.short);
        match sample {
            Err(error) => self.error = Some(escaped(&error.to_string())),
            // While paused, the shown rates stay.
            Ok(_) if self.view.paused => return Ok(false),
            Ok(sample) if std::mem::take(&mut self.resuming) => {
                self.error = None;
                self.meter.restart(sample);
                return Ok(false);
            }
            Ok(sample) => {
                self.error = None;
                self.rates = self.meter.take(sample);
                self.left = self.left.map(|left| left.saturating_sub(u64::from(!short)));
            }
        }
        self.draw()?;
        Ok(self.left == Some(0))
    }

    /// Restores the terminal, stops the process group, and takes the terminal again when continued.
    fn stop(&mut self, signals: &Signals) -> Result<(), ScreenError> {
        leave();
        signals.stop()?;
        self.resume()
    }

    /// Takes the terminal again after a stop, whichever process caused it.
    fn resume(&mut self) -> Result<(), ScreenError> {
        enter()?;
        self.resuming = true;
        self.terminal.clear()?;
        self.draw()
    }

    fn draw(&mut self) -> Result<(), ScreenError> {
        let scene = Scene {
            title: &self.title,
            interval: self.interval,
            rates: &self.rates,
            error: self.error.as_deref(),
        };
        let view = &mut self.view;
        self.terminal.draw(|frame| {
            let area = frame.area();
            draw(&scene, view, area, frame.buffer_mut());
        })?;
        Ok(())
    }
}

/// Reads the pressed keys; `None` if the terminal is gone.
fn read_keys(keys: &mut Keys) -> Result<Option<Vec<Key>>, ScreenError> {
    let mut bytes = [0; 1_024];
    match rustix::io::read(rustix::stdio::stdin(), &mut bytes) {
        Ok(0) => Ok(None),
        Ok(read) => Ok(Some(keys.read(bytes.get(..read).unwrap_or_default()))),
        Err(Errno::INTR | Errno::AGAIN) => Ok(Some(Vec::new())),
        Err(errno) => Err(io::Error::from(errno).into()),
    }
}

type Found = (String, Result<Sample, SourceError>);

/// The thread that takes samples, one for each request.
struct Sampler {
    title: String,
    asks: Sender<()>,
    answers: Receiver<Found>,
    /// Readable once there is an answer, or the thread has ended.
    ready: Arc<OwnedFd>,
}

/// Signals `ready` when dropped, also if the thread panics.
struct Notifier(Arc<OwnedFd>);

impl Notifier {
    fn notify(&self) {
        // The write fails only if the counter would overflow; it is readable then anyway.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }
}

impl Drop for Notifier {
    fn drop(&mut self) {
        self.notify();
    }
}

impl Sampler {
    fn start(mut source: Box<dyn Source + Send>) -> io::Result<Sampler> {
        let title = source.title();
        let ready = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let notifier = Notifier(Arc::clone(&ready));
        let (asks, asked) = mpsc::channel();
        let (answer, answers) = mpsc::channel();
        // Not joined at the end, which a source that does not answer would block.
        std::thread::Builder::new().name("sampler".into()).spawn(move || {
            let notifier = notifier;
            // Dropped before the bell, so that the woken receiver finds the channel closed.
            let answer = answer;
            while asked.recv().is_ok() {
                let sample = source.sample();
                if answer.send((source.title(), sample)).is_err() {
                    break;
                }
                notifier.notify();
            }
        })?;
        Ok(Sampler { title, asks, answers, ready })
    }

    fn ask(&self) -> Result<(), ScreenError> {
        self.asks.send(()).map_err(|_| ScreenError::Ended)
    }

    fn found(&self) -> Result<Option<Found>, ScreenError> {
        let _ = rustix::io::read(self.ready.as_fd(), &mut [0; 8]);
        match self.answers.try_recv() {
            Ok(found) => Ok(Some(found)),
            Err(mpsc::TryRecvError::Empty) => Ok(None),
            Err(mpsc::TryRecvError::Disconnected) => Err(ScreenError::Ended),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fails(u32);

    impl Source for Fails {
        fn title(&self) -> String {
            format!("after {}", self.0)
        }

        fn sample(&mut self) -> Result<Sample, SourceError> {
            self.0 += 1;
            match self.0 {
                1 => Ok(Sample { at_ns: 1, ..Sample::default() }),
                2 => Err(SourceError("gone".into())),
                _ => panic!("a source with a bug"),
            }
        }
    }

    fn wait(sampler: &Sampler) {
        let mut fds = [PollFd::new(&sampler.ready, PollFlags::IN)];
        poll(&mut fds, None).expect("it rings");
    }

    #[test]
    fn a_sampler_answers_when_asked_and_says_when_it_has_ended() {
        let sampler = Sampler::start(Box::new(Fails(0))).expect("a thread");
        assert_eq!(sampler.title, "after 0");
        assert!(sampler.found().expect("it runs").is_none());
        sampler.ask().expect("it runs");
        wait(&sampler);
        let (title, sample) = sampler.found().expect("it runs").expect("an answer");
        assert_eq!((title.as_str(), sample.expect("counts").at_ns), ("after 1", 1));
        sampler.ask().expect("it runs");
        wait(&sampler);
        assert!(sampler.found().expect("it runs").expect("an answer").1.is_err());
        sampler.ask().expect("it runs");
        wait(&sampler);
        assert!(matches!(sampler.found(), Err(ScreenError::Ended)));
    }

    #[test]
    fn a_closed_terminal_is_no_failure_and_a_full_disk_is() {
        let error = |errno: Errno| io::Error::from(errno);
        assert!(lost(&error(Errno::IO)) && lost(&error(Errno::PIPE)));
        assert!(!lost(&error(Errno::NOSPC)));
    }
}
