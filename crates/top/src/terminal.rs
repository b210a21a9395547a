//! The terminal: sets raw mode, draws, and restores the original state.
//!
//! A back end of `ratatui-core` that uses only sequences that all current terminals know. The existing back
//! ends read keys and signals in their own ways; here one `poll` has to wait for keys, signals, samples and
//! the loss of the terminal.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, PoisonError};

use ratatui_core::backend::{Backend, ClearType, WindowSize};
use ratatui_core::buffer::Cell;
use ratatui_core::layout::{Position, Size};
use ratatui_core::style::{Color, Modifier, Style};
use rustix::termios::{self, OptionalActions, Termios};

/// Alternate screen, without a cursor, without wrapping at the edge.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J";
const LEAVE: &[u8] = b"\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l";

/// The largest screen that is drawn: bounds memory, whatever size a terminal reports.
const LARGEST: Size = Size { width: 1_024, height: 512 };

/// The assumed size of a terminal that does not report one.
const USUAL: Size = Size { width: 80, height: 24 };

/// The original modes while the terminal is taken. A process has one terminal, and a panic on any thread restores it.
static ORIGINAL_MODES: Mutex<Option<Termios>> = Mutex::new(None);

/// Takes the terminal.
pub(crate) fn enter() -> io::Result<()> {
    let input = rustix::stdio::stdin();
    let found = termios::tcgetattr(input)?;
    let mut raw = found.clone();
    raw.make_raw();
    let mut kept = ORIGINAL_MODES.lock().unwrap_or_else(PoisonError::into_inner);
    termios::tcsetattr(input, OptionalActions::Now, &raw)?;
    // If it was taken already, the modes found first are kept.
    kept.get_or_insert(found);
    drop(kept);
    write_all(ENTER)
}

/// Restores the terminal if it was taken. Errors are ignored: the terminal may be gone.
pub(crate) fn leave() {
    let found = ORIGINAL_MODES.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(found) = found {
        let _ = write_all(LEAVE);
        let _ = termios::tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &found);
    }
}

fn write_all(bytes: &[u8]) -> io::Result<()> {
    // Without the lock of `Stdout`: a panic may come while another function holds it.
    let mut rest = bytes;
    while !rest.is_empty() {
        match rustix::io::write(rustix::stdio::stdout(), rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => rest = rest.get(written..).unwrap_or_default(),
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => wait_writable(rustix::stdio::stdout())?,
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Waits up to a second for a terminal that another program has made non-blocking.
fn wait_writable(output: BorrowedFd<'_>) -> io::Result<()> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let patience = Timespec { tv_sec: 1, tv_nsec: 0 };
    match poll(&mut [PollFd::new(&output, PollFlags::OUT)], Some(&patience)) {
        Ok(0) => Err(io::ErrorKind::TimedOut.into()),
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// A screen that is drawn with escape sequences.
#[derive(Debug)]
pub(crate) struct Screen {
    text: String,
    colour: bool,
}

impl Screen {
    /// Creates a screen with colours, unless `NO_COLOR` is set.
    pub(crate) fn new() -> Screen {
        let colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Screen { text: String::new(), colour }
    }

    fn put<'a>(&mut self, content: impl Iterator<Item = (u16, u16, &'a Cell)>) {
        let (mut at, mut style) = (None, None);
        for (x, y, cell) in content {
            if at != Some((x, y)) {
                let _ = write!(self.text, "\x1b[{};{}H", u32::from(y) + 1, u32::from(x) + 1);
            }
            if style != Some(cell.style()) {
                self.put_style(cell.style());
                style = Some(cell.style());
            }
            self.text.push_str(cell.symbol());
            // After a wide character the cursor position is uncertain.
            at = cell.symbol().is_ascii().then_some((x.saturating_add(1), y));
        }
        self.text.push_str("\x1b[0m");
    }

    fn put_style(&mut self, style: Style) {
        self.text.push_str("\x1b[0");
        for (modifier, number) in [
            (Modifier::BOLD, 1),
            (Modifier::DIM, 2),
            (Modifier::UNDERLINED, 4),
            (Modifier::REVERSED, 7),
        ] {
            if style.add_modifier.contains(modifier) {
                let _ = write!(self.text, ";{number}");
            }
        }
        let colour = match style.fg {
            Some(Color::Red) => 31,
            Some(Color::Green) => 32,
            Some(Color::Yellow) => 33,
            Some(Color::Cyan) => 36,
            _ => 39,
        };
        if self.colour && colour != 39 {
            let _ = write!(self.text, ";{colour}");
        }
        self.text.push('m');
    }
}

/// The terminal's size, within bounds.
fn size_of(output: impl AsFd) -> Size {
    let reported = termios::tcgetwinsize(output).ok();
    let reported =
        reported.map(|reported| Size { width: reported.ws_col, height: reported.ws_row });
    let known = reported.filter(|size| size.width != 0 && size.height != 0).unwrap_or(USUAL);
    Size { width: known.width.min(LARGEST.width), height: known.height.min(LARGEST.height) }
}

impl Backend for Screen {
    type Error = io::Error;

    fn draw<'a, I>(&mut self, content: I) -> io::Result<()>
    where
        I: Iterator<Item = (u16, u16, &'a Cell)>,
    {
        self.put(content);
        Ok(())
    }

    fn hide_cursor(&mut self) -> io::Result<()> {
        self.text.push_str("\x1b[?25l");
        Ok(())
    }

    fn show_cursor(&mut self) -> io::Result<()> {
        self.text.push_str("\x1b[?25h");
        Ok(())
    }

    fn get_cursor_position(&mut self) -> io::Result<Position> {
        // The cursor is hidden, and nothing depends on its position.
        Ok(Position::ORIGIN)
    }

    fn set_cursor_position<P: Into<Position>>(&mut self, position: P) -> io::Result<()> {
        let Position { x, y } = position.into();
        let _ = write!(self.text, "\x1b[{};{}H", u32::from(y) + 1, u32::from(x) + 1);
        Ok(())
    }

    fn clear(&mut self) -> io::Result<()> {
        self.text.push_str("\x1b[0m\x1b[2J");
        Ok(())
    }

    fn clear_region(&mut self, _region: ClearType) -> io::Result<()> {
        self.clear()
    }

    fn size(&self) -> io::Result<Size> {
        Ok(size_of(rustix::stdio::stdout()))
    }

    fn window_size(&mut self) -> io::Result<WindowSize> {
        Ok(WindowSize { columns_rows: self.size()?, pixels: Size::ZERO })
    }

    fn flush(&mut self) -> io::Result<()> {
        let text = std::mem::take(&mut self.text);
        write_all(text.as_bytes())
    }
}

impl Write for Screen {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.push_str(&String::from_utf8_lossy(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Backend::flush(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui_core::buffer::Buffer;
    use ratatui_core::layout::Rect;

    fn drawn(colour: bool, buffer: &Buffer) -> String {
        let empty = Buffer::empty(buffer.area);
        let mut screen = Screen { text: String::new(), colour };
        screen.put(empty.diff(buffer).into_iter());
        screen.text
    }

    #[test]
    fn neighbours_are_written_without_a_move_and_a_style_once() {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 10, 2));
        buffer.set_string(2, 1, "ab", Style::new().fg(Color::Red).add_modifier(Modifier::BOLD));
        assert_eq!(drawn(true, &buffer), "\x1b[2;3H\x1b[0;1;31mab\x1b[0m");
        assert_eq!(drawn(false, &buffer), "\x1b[2;3H\x1b[0;1mab\x1b[0m");
    }

    #[test]
    fn a_wide_character_is_followed_by_a_move() {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 10, 1));
        buffer.set_string(0, 0, "漢a", Style::new());
        assert_eq!(drawn(true, &buffer), "\x1b[1;1H\x1b[0m漢\x1b[1;3Ha\x1b[0m");
    }

    #[test]
    fn what_is_no_terminal_has_the_usual_size() {
        let file = std::fs::File::open("/dev/null").expect("it is always there");
        assert_eq!(size_of(&file), USUAL);
    }
}
