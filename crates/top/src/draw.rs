//! Draws the view and the rates into a buffer of any size.
//!
//! From top to bottom: the title, the CPUs, the notes, the instances, those values of the selected instance
//! that have no column, and the keys. On a small screen whole parts are left out, never a digit.

use std::time::Duration;

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier, Style};

use crate::column::{Column, GAP, fit};
use crate::text::{UNKNOWN, cut, rate, share, width};
use crate::view::View;
use napkin_watch::{CpuShares, NapiRates, Rates};

/// The contents to draw.
#[derive(Debug, Clone, Copy)]
pub struct Scene<'a> {
    /// The title of the source.
    pub title: &'a str,
    /// The interval between two samples.
    pub interval: Duration,
    /// The rates of the last interval.
    pub rates: &'a Rates,
    /// Why there is no newer sample.
    pub error: Option<&'a str>,
}

const PLAIN: Style = Style::new();
const STRONG: Style = Style::new().add_modifier(Modifier::BOLD);
const FAINT: Style = Style::new().add_modifier(Modifier::DIM);
const BAR: Style = Style::new().add_modifier(Modifier::REVERSED);
/// The name of the sorted column, in the header: bold alone is hard to see there.
const SORTED: Style = Style::new().add_modifier(Modifier::BOLD).remove_modifier(Modifier::REVERSED);
const WARNING: Style = Style::new().fg(Color::Yellow);
const BAD: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);

/// The heights of the parts of a screen, in lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Parts {
    cpus: usize,
    notes: usize,
    details: usize,
    keys: usize,
    rows: usize,
}

/// Draws the whole screen into the buffer.
pub fn draw(scene: &Scene<'_>, view: &mut View, area: Rect, buffer: &mut Buffer) {
    let area = area.intersection(*buffer.area());
    if area.is_empty() {
        return;
    }
    let mut canvas = Canvas { area, line: 0, buffer };
    if view.help.is_some() {
        return draw_help(scene, view, &mut canvas);
    }
    let rates = scene.rates;
    let rows = view.rows(rates);
    let columns = fit(canvas.width(), view.sort, rates, &rows);
    let cpu_lines = cpu_lines(&rates.cpus, canvas.width(), usize::MAX).len();
    let details = match view.selected_among(&rows).and_then(|place| rows.get(place)) {
        Some(napi) => detail(napi, &columns, canvas.width(), (canvas.lines() / 8).min(DETAILS)),
        None => Vec::new(),
    };
    let parts = divide(canvas.lines(), cpu_lines, rates.notes.len(), details.len());

    canvas.text(&head(scene, view, rows.len(), canvas.width()), STRONG);
    if let Some(error) = scene.error {
        canvas.text(&cut(error, canvas.width()), BAD);
    }
    for (place, line) in
        cpu_lines_within(&rates.cpus, canvas.width(), parts.cpus).iter().enumerate()
    {
        canvas.text(line, if place == 0 { FAINT } else { PLAIN });
    }
    for note in notes(&rates.notes, parts.notes) {
        canvas.text(&cut(&note, canvas.width()), WARNING);
    }
    canvas.row(&columns, BAR, |column| {
        let sorted = column == view.sort;
        (column.name().to_owned(), if sorted { SORTED } else { PLAIN })
    });
    // An error takes one of their lines.
    let lines = parts.rows.saturating_sub(usize::from(scene.error.is_some()));
    let (top, selected) = view.settle(&rows, lines);
    for (place, napi) in rows.iter().enumerate().skip(top).take(lines) {
        let base = match selected {
            Some(selected) if selected == place => BAR,
            _ if napi.idle() => FAINT,
            _ => PLAIN,
        };
        canvas.row(&columns, base, |column| (column.cell(napi), style(column, napi)));
    }
    if rows.is_empty() && lines > 0 {
        canvas.text(&cut(nothing(rates, view), canvas.width()), FAINT);
    }
    canvas.line = canvas.lines().saturating_sub(parts.keys + parts.details);
    details.iter().take(parts.details).for_each(|line| canvas.text(line, PLAIN));
    canvas.line = canvas.lines().saturating_sub(parts.keys);
    if parts.keys > 0 {
        let shown = (top, (top + lines).min(rows.len()), rows.len());
        canvas.text(&keys(view, shown, canvas.width()), if view.typing { STRONG } else { FAINT });
    }
}

/// Divides a screen's lines. The instances come first: they get at least one line, below the title and the header.
fn divide(lines: usize, cpus: usize, notes: usize, details: usize) -> Parts {
    let mut left = lines.saturating_sub(3);
    let mut take = |wanted: usize, most: usize, least: usize| {
        let taken = wanted.min(most).min(left);
        let taken = if taken < least { 0 } else { taken };
        left -= taken;
        taken
    };
    let keys = take(1, if lines < 4 { 0 } else { 1 }, 1);
    let details = take(details, lines / 8, 1);
    // At least a line of names and one of numbers.
    let cpus = take(cpus, if lines < 8 { 0 } else { (lines / 6).max(2) }, 2);
    let notes = take(notes, if lines < 10 { 0 } else { (lines / 8).max(1) }, 1);
    Parts { cpus, notes, details, keys, rows: left + usize::from(lines > 2) }
}

/// The first line: the title on the left, the state of the view on the right.
fn head(scene: &Scene<'_>, view: &View, shown: usize, columns: usize) -> String {
    let all = scene.rates.napis.len();
    let mut right = format!("{all} instance{}", if all == 1 { "" } else { "s" });
    if shown < all {
        right += &format!(", {} hidden", all - shown);
    }
    right += &format!("  every {}", interval(scene.interval));
    if view.paused {
        right += "  PAUSED";
    }
    let left = format!("napkin top: {}", scene.title);
    let room = columns.saturating_sub(width(&right) + 2);
    if room < 12 {
        return cut(&left, columns);
    }
    let left = cut(&left, room);
    let space = columns.saturating_sub(width(&left) + width(&right));
    format!("{left}{}{right}", " ".repeat(space))
}

pub(crate) fn interval(interval: Duration) -> String {
    let ms = interval.as_millis();
    if ms.is_multiple_of(1_000) { format!("{}s", ms / 1_000) } else { format!("{ms}ms") }
}

fn nothing(rates: &Rates, view: &View) -> &'static str {
    if rates.napis.is_empty() {
        "no NAPI instance: is a device up? A veth needs `ethtool -K DEV gro on`"
    } else if view.filter.is_empty() {
        "every instance is idle: i shows them"
    } else {
        "no instance is called so: Esc clears the filter"
    }
}

/// The maximum number of lines for the selected instance.
const DETAILS: usize = 3;

const CPU_NAMES: [&str; 6] = ["hard", "soft", "thread", "idle", "steal", "squeeze"];
const CPU_GAP: &str = "  ";

/// Lines with the CPUs' names and values, as many next to each other as fit; at most `most` CPUs.
fn cpu_lines(cpus: &[CpuShares], columns: usize, most: usize) -> Vec<String> {
    if cpus.is_empty() || most == 0 {
        return Vec::new();
    }
    let number = cpus.iter().map(|cpu| cpu.cpu.to_string().len()).max().unwrap_or(0).max(3);
    let cell = |name: &str, values: [String; 6]| {
        let mut cell = format!("{name:>number$}");
        for (column, value) in CPU_NAMES.iter().zip(values) {
            cell += &format!(" {value:>0$}", column.len().max(4));
        }
        cell
    };
    let names = cell("cpu", CPU_NAMES.map(str::to_owned));
    let per_line = ((columns + CPU_GAP.len()) / (names.len() + CPU_GAP.len())).max(1);
    let shown = &cpus[..cpus.len().min(most)];
    let cells: Vec<String> = shown
        .iter()
        .map(|cpu| {
            let parts = [cpu.hard_irq, cpu.softirq, cpu.thread, cpu.idle, cpu.steal].map(share);
            let [hard, soft, thread, idle, steal] = parts;
            cell(
                &cpu.cpu.to_string(),
                [hard, soft, thread, idle, steal, rate(cpu.time_squeezes_per_s)],
            )
        })
        .collect();
    // By columns, as `ls` does: neighbours are below each other.
    let lines = cells.len().div_ceil(per_line);
    let per_line = cells.len().div_ceil(lines);
    let mut text = vec![vec![names; per_line].join(CPU_GAP)];
    for line in 0..lines {
        let of_line: Vec<&str> =
            cells.iter().skip(line).step_by(lines).map(String::as_str).collect();
        text.push(of_line.join(CPU_GAP));
    }
    // Lines that are too long lose whole columns at the end, not digits.
    text.into_iter().map(|line| whole_words(&line, columns)).collect()
}

/// The same on at most `lines` lines. If not all CPUs fit, shows the busiest, and the number of the others.
fn cpu_lines_within(cpus: &[CpuShares], columns: usize, lines: usize) -> Vec<String> {
    if lines < 2 {
        return Vec::new();
    }
    let all = cpu_lines(cpus, columns, cpus.len());
    if all.len() <= lines {
        return all;
    }
    let one = cpu_lines(cpus, usize::MAX / 4, 1).first().map_or(1, String::len);
    let per_line = ((columns + CPU_GAP.len()) / (one + CPU_GAP.len())).max(1);
    // The last line says what is missing, if a line can be spared.
    let (of_cpus, with_rest) = if lines > 2 { (lines - 2, true) } else { (1, false) };
    let most = of_cpus * per_line;
    let busy = |cpu: &CpuShares| 1.0 - cpu.idle.unwrap_or(1.0);
    let mut busiest: Vec<&CpuShares> = cpus.iter().collect();
    busiest.sort_by(|a, b| busy(b).total_cmp(&busy(a)).then(a.cpu.cmp(&b.cpu)));
    let (shown, hidden) = busiest.split_at(most.min(busiest.len()));
    let mut shown: Vec<CpuShares> = shown.iter().map(|cpu| (*cpu).clone()).collect();
    shown.sort_by_key(|cpu| cpu.cpu);
    let mut text = cpu_lines(&shown, columns, most);
    if with_rest {
        let mean = hidden.iter().map(|cpu| busy(cpu)).sum::<f64>() / hidden.len().max(1) as f64;
        let mean = share(Some(mean));
        text.push(cut(&format!("and {} more, {mean} busy on average", hidden.len()), columns));
    }
    text
}

/// Cuts a line to as many whole words as fit.
fn whole_words(line: &str, columns: usize) -> String {
    if line.len() <= columns {
        return line.to_owned();
    }
    let fitting = line.get(..=columns).and_then(|start| start.rfind(' ')).unwrap_or(0);
    line.get(..fitting).unwrap_or_default().to_owned()
}

fn notes(notes: &[String], lines: usize) -> Vec<String> {
    let mut shown: Vec<String> = notes.iter().take(lines).cloned().collect();
    if notes.len() > lines
        && let Some(last) = shown.last_mut()
    {
        *last = format!("(h shows {} more) {last}", notes.len() - lines);
    }
    shown
}

/// The style of a cell: some values are highlighted.
fn style(column: Column, napi: &NapiRates) -> Style {
    let happens = |rate: Option<f64>| rate.is_some_and(|rate| rate > 0.0);
    match column {
        Column::Squeezes if happens(napi.time_squeezes_per_s) => WARNING,
        Column::Full if happens(napi.full_polls_per_s) => WARNING,
        _ => PLAIN,
    }
}

/// Values of an instance that have no column, or are cut in theirs, on at most `lines` lines.
fn detail(napi: &NapiRates, columns: &[(Column, usize)], line: usize, lines: usize) -> Vec<String> {
    let missing = |column: &&Column| {
        let has = columns.iter().find(|(it, _)| it == *column).map(|(_, width)| *width);
        has.is_none_or(|has| width(&column.cell(napi)) > has)
    };
    let cells = Column::ALL
        .iter()
        .filter(missing)
        .map(|column| (column, column.cell(napi)))
        .filter(|(_, cell)| cell != UNKNOWN)
        .map(|(column, cell)| format!("{column} {cell}"))
        .chain(napi.pid.map(|pid| format!("thread-id {pid}")));
    let mut text = vec![format!("{} {}:", napi.ifname, napi.id)];
    for part in cells {
        let full = text.len() == lines;
        match text.last_mut() {
            Some(last) if full || text_fits(last, &part, line) => {
                *last = format!("{last}  {part}");
            }
            _ => text.push(format!("  {part}")),
        }
    }
    text.iter().take(lines).map(|text| cut(text, line)).collect()
}

fn text_fits(text: &str, more: &str, line: usize) -> bool {
    width(text) + 2 + width(more) <= line
}

fn keys(view: &View, shown: (usize, usize, usize), columns: usize) -> String {
    let (first, last, all) = shown;
    let right =
        if last - first < all { format!("{}-{last} of {all}", first + 1) } else { String::new() };
    let left = if view.typing {
        format!("filter: {}_   Enter keeps it, Esc clears it", view.filter)
    } else if view.filter.is_empty() {
        "q quit  h help  p pause  s/S sort  r reverse  / filter  i idle".to_owned()
    } else {
        format!("filter: {}   / changes it, Esc clears it", view.filter)
    };
    let left = cut(&left, columns.saturating_sub(width(&right) + 1));
    let space = columns.saturating_sub(width(&left) + width(&right));
    format!("{left}{}{right}", " ".repeat(space))
}

fn draw_help(scene: &Scene<'_>, view: &mut View, canvas: &mut Canvas<'_>) {
    let mut text: Vec<String> = [
        "q, Ctrl-C      quit",
        "p, space       pause and go on; in a pause nothing is read, but counted still",
        "s, S           sort by the next column, by the one before",
        "r              reverse the order",
        "/              filter: words of device, id, policy or program; Esc clears it",
        "i              hide and show instances on which nothing happens",
        "Ctrl-Z, Ctrl-L stop until told to go on (fg); draw all of it again",
        "arrows, PageUp, PageDown, Home, End    select; Esc selects nothing",
        "",
        "Rates are by the second. A dash is what is not known; also the empty ones of",
        "no polls, and the CPU of no thread. The columns:",
    ]
    .map(str::to_owned)
    .to_vec();
    text.extend(Column::ALL.map(|column| format!("  {:<9}{}", column.name(), column.what())));
    text.push(String::new());
    text.push(
        "CPUs: hard interrupts, softirqs, threads (user and system), idle, stolen by a".into(),
    );
    text.push(
        "hypervisor, and softirq rounds cut short a second. Where not all CPUs fit, the".into(),
    );
    text.push("busiest are shown.".into());
    if !scene.rates.notes.is_empty() {
        text.push(String::new());
        text.push("What could not be known here:".into());
    }
    for note in &scene.rates.notes {
        let mut rest = note.as_str();
        // Long notes continue on the next line, broken at a space if there is one.
        while !rest.is_empty() {
            let room = canvas.width().saturating_sub(2).max(1);
            let end = rest.char_indices().nth(room).map_or(rest.len(), |(end, _)| end);
            let space = rest[..end].rfind(' ').filter(|space| *space > 0 && end < rest.len());
            let end = space.unwrap_or(end);
            text.push(format!("  {}", &rest[..end]));
            rest = rest[end..].trim_start();
        }
    }
    canvas.text("napkin top: help", STRONG);
    let lines = canvas.lines().saturating_sub(2);
    let first = view.settle_help(text.len(), lines);
    for line in text.iter().skip(first).take(lines) {
        canvas.text(&cut(line, canvas.width()), PLAIN);
    }
    let scrolls = if text.len() > lines { "arrows scroll; " } else { "" };
    canvas.text(&cut(&format!("{scrolls}any other key goes back"), canvas.width()), FAINT);
}

/// A buffer that is written line by line, clipped at its edges.
struct Canvas<'a> {
    area: Rect,
    line: usize,
    buffer: &'a mut Buffer,
}

impl Canvas<'_> {
    fn width(&self) -> usize {
        usize::from(self.area.width)
    }

    fn lines(&self) -> usize {
        usize::from(self.area.height)
    }

    /// The next line, unless the screen is full.
    fn next(&mut self) -> Option<u16> {
        let line = u16::try_from(self.line).ok().filter(|line| *line < self.area.height)?;
        self.line += 1;
        Some(self.area.y + line)
    }

    fn text(&mut self, text: &str, style: Style) {
        let Some(y) = self.next() else { return };
        self.buffer.set_stringn(self.area.x, y, text, self.width(), style);
    }

    /// Writes a line of the table: numbers right-aligned, texts left-aligned.
    fn row(
        &mut self,
        columns: &[(Column, usize)],
        base: Style,
        cell: impl Fn(Column) -> (String, Style),
    ) {
        let Some(y) = self.next() else { return };
        let line = Rect { y, height: 1, ..self.area };
        self.buffer.set_style(line, base);
        let mut x = 0;
        for (column, has) in columns {
            let (text, style) = cell(*column);
            let text = if column.is_text() { cut(&text, *has) } else { text };
            let indent = if column.is_text() { 0 } else { has.saturating_sub(width(&text)) };
            let left = u16::try_from(x + indent).ok().filter(|left| *left < self.area.width);
            if let Some(left) = left {
                let room = self.width() - usize::from(left);
                self.buffer.set_stringn(self.area.x + left, y, text, room, base.patch(style));
            }
            x += has + GAP;
        }
    }
}

#[cfg(test)]
mod tests;
