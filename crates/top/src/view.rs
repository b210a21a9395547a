//! The state of the view: sort order, filter, pause, selection and scroll position.
//!
//! Keys change it, and it selects the rates to show. It is independent of terminal and clock.

use crate::column::Column;
use crate::key::Key;
use napkin_watch::{NapiRates, Rates};

/// The maximum length of a typed filter, in characters.
const LONGEST_FILTER: usize = 64;

/// What the caller has to do after a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Draw the screen again.
    Draw,
    /// Draw again, whatever the terminal shows.
    Redraw,
    /// Begin or end a pause, and draw again.
    Pause,
    /// Stop until continued, as by Ctrl-Z.
    Stop,
    /// End the program.
    Quit,
}

/// The state of a view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// The column to sort by.
    pub sort: Column,
    /// Whether the order is descending.
    pub descending: bool,
    /// Words, each of which has to occur in an instance's device, ID, policy or owners.
    pub filter: String,
    /// Whether the filter is being typed.
    pub typing: bool,
    /// Whether the display is paused.
    pub paused: bool,
    /// Whether idle instances are shown.
    pub idle: bool,
    /// The first line of the help shown, while it is open.
    pub help: Option<usize>,
    /// The selected instance: its device and ID.
    pub selected: Option<(String, u32)>,
    /// The last row of the selected instance.
    place: usize,
    /// The first row on the screen.
    top: usize,
    /// The number of rows on the screen.
    page: usize,
}

impl View {
    /// Creates a view of all instances, the busiest first.
    pub fn new() -> View {
        View {
            sort: Column::Packets,
            descending: Column::Packets.descends(),
            filter: String::new(),
            typing: false,
            paused: false,
            idle: true,
            help: None,
            selected: None,
            place: 0,
            top: 0,
            page: 1,
        }
    }

    /// Sorts by a column, in its default direction.
    #[must_use]
    pub fn sorted(mut self, column: Column) -> View {
        self.sort_by(column);
        self
    }

    /// Sets a filter of any length: a shortened one would show more than was asked for.
    #[must_use]
    pub fn filtered(mut self, filter: &str) -> View {
        self.filter = napkin_policy::text::escaped(filter);
        self
    }

    /// The instances to show, in order.
    pub fn rows<'a>(&self, rates: &'a Rates) -> Vec<&'a NapiRates> {
        let words: Vec<String> = self.filter.split_whitespace().map(str::to_lowercase).collect();
        let mut rows: Vec<&NapiRates> = rates
            .napis
            .iter()
            .filter(|napi| self.idle || !napi.idle())
            .filter(|napi| matches(napi, &words))
            .collect();
        // A fixed order between equal values.
        rows.sort_by(|a, b| {
            let by_column = self.sort.compare(a, b, self.descending);
            by_column.then_with(|| (&a.ifname, a.id).cmp(&(&b.ifname, b.id)))
        });
        rows
    }

    /// Handles a key.
    pub fn key(&mut self, key: Key, rates: &Rates) -> Action {
        match key {
            Key::Interrupt => return Action::Quit,
            Key::Suspend => return Action::Stop,
            Key::Redraw => return Action::Redraw,
            _ => {}
        }
        if self.help.is_some() {
            return self.key_in_help(key);
        }
        match key {
            Key::Up => self.move_selection(rates, |place, _| place.saturating_sub(1)),
            Key::Down => self.move_selection(rates, |place, _| place + 1),
            Key::PageUp => self.move_selection(rates, usize::saturating_sub),
            Key::PageDown => self.move_selection(rates, |place, page| place + page),
            Key::Home => self.move_selection(rates, |_, _| 0),
            Key::End => self.move_selection(rates, |_, _| usize::MAX),
            _ if self.typing => self.type_filter(key),
            Key::Escape if self.filter.is_empty() => self.selected = None,
            Key::Escape | Key::Erase => self.filter.clear(),
            Key::Char('q') => return Action::Quit,
            Key::Char('p' | ' ') => {
                self.paused = !self.paused;
                return Action::Pause;
            }
            Key::Char('s') => self.sort_by(self.next_column(1)),
            Key::Char('S') => self.sort_by(self.next_column(Column::ALL.len() - 1)),
            Key::Char('r') => self.descending = !self.descending,
            Key::Char('i') => self.idle = !self.idle,
            Key::Char('/') => self.typing = true,
            Key::Char('h' | '?') => self.help = Some(0),
            _ => {}
        }
        Action::Draw
    }

    fn key_in_help(&mut self, key: Key) -> Action {
        let first = self.help.unwrap_or(0);
        self.help = match key {
            Key::Up => Some(first.saturating_sub(1)),
            Key::Down => Some(first.saturating_add(1)),
            Key::PageUp => Some(first.saturating_sub(self.page)),
            Key::PageDown => Some(first.saturating_add(self.page)),
            Key::Home => Some(0),
            Key::End => Some(usize::MAX),
            _ => None,
        };
        Action::Draw
    }

    fn type_filter(&mut self, key: Key) {
        match key {
            Key::Enter => self.typing = false,
            Key::Escape => {
                self.typing = false;
                self.filter.clear();
            }
            Key::Erase => self.filter.clear(),
            Key::Backspace => {
                self.filter.pop();
            }
            Key::Char(c) if self.filter.chars().count() < LONGEST_FILTER => self.filter.push(c),
            _ => {}
        }
    }

    fn sort_by(&mut self, column: Column) {
        self.sort = column;
        self.descending = column.descends();
    }

    fn next_column(&self, steps: usize) -> Column {
        let place = Column::ALL.iter().position(|column| *column == self.sort).unwrap_or(0);
        Column::ALL[(place + steps) % Column::ALL.len()]
    }

    /// Moves the selection; the first key selects the row at the top of the screen.
    fn move_selection(&mut self, rates: &Rates, to: fn(usize, usize) -> usize) {
        let rows = self.rows(rates);
        let Some(last) = rows.len().checked_sub(1) else { return };
        let place = match &self.selected {
            Some(selected) => to(find(&rows, selected).unwrap_or(self.place), self.page),
            None => match to(self.top, self.page) {
                usize::MAX => last,
                _ => self.top,
            },
        };
        self.place = place.min(last);
        self.selected = rows.get(self.place).map(|napi| (napi.ifname.clone(), napi.id));
    }

    /// Returns the first row to show on `lines` lines, and the selected row. If the selected instance has
    /// gone, the selection moves to the one in its place.
    pub(crate) fn settle(&mut self, rows: &[&NapiRates], lines: usize) -> (usize, Option<usize>) {
        self.page = lines.max(1);
        if rows.is_empty() {
            self.top = 0;
            return (0, None);
        }
        let selected = self.selected_among(rows);
        if let Some(place) = selected {
            self.place = place;
            self.selected = rows.get(place).map(|napi| (napi.ifname.clone(), napi.id));
            self.top = self.top.clamp((place + 1).saturating_sub(self.page), place);
        }
        self.top = self.top.min(rows.len().saturating_sub(self.page));
        (self.top, selected)
    }

    /// The row of the selected instance, or the row in its place if that has gone.
    pub(crate) fn selected_among(&self, rows: &[&NapiRates]) -> Option<usize> {
        let (selected, last) = (self.selected.as_ref()?, rows.len().checked_sub(1)?);
        Some(find(rows, selected).unwrap_or(self.place.min(last)))
    }

    /// The first line to show of a help of `all` lines on a screen of `lines`.
    pub(crate) fn settle_help(&mut self, all: usize, lines: usize) -> usize {
        self.page = lines.max(1);
        let first = self.help.unwrap_or(0).min(all.saturating_sub(lines));
        self.help = Some(first);
        first
    }
}

impl Default for View {
    fn default() -> View {
        View::new()
    }
}

fn find(rows: &[&NapiRates], selected: &(String, u32)) -> Option<usize> {
    rows.iter().position(|napi| napi.id == selected.1 && napi.ifname == selected.0)
}

fn matches(napi: &NapiRates, words: &[String]) -> bool {
    if words.is_empty() {
        return true;
    }
    let all = format!("{} {} {} {}", napi.ifname, napi.id, napi.policy, napi.owners.join(" "));
    let all = all.to_lowercase();
    words.iter().all(|word| all.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(count: u32) -> Rates {
        let napi = |id: u32| NapiRates {
            ifname: if id.is_multiple_of(2) { "eth0" } else { "eth1" }.into(),
            id,
            policy: if id < 3 { "suspend20" } else { "base" }.into(),
            owners: if id == 1 { vec!["memcached[812]".into()] } else { Vec::new() },
            packets_per_s: Some(f64::from(count - id)),
            polls_per_s: Some(0.0),
            ..NapiRates::default()
        };
        Rates { window_ns: Some(1), napis: (1..=count).map(napi).collect(), ..Rates::default() }
    }

    fn ids(view: &View, rates: &Rates) -> Vec<u32> {
        view.rows(rates).iter().map(|napi| napi.id).collect()
    }

    fn press(view: &mut View, rates: &Rates, keys: &str) {
        for c in keys.chars() {
            view.key(Key::Char(c), rates);
        }
    }

    #[test]
    fn the_busiest_come_first_and_every_column_can_be_sorted_by() {
        let (rates, mut view) = (rates(4), View::new());
        assert_eq!(ids(&view, &rates), [1, 2, 3, 4]);
        press(&mut view, &rates, "r");
        assert_eq!(ids(&view, &rates), [4, 3, 2, 1]);
        for _ in Column::ALL {
            press(&mut view, &rates, "s");
        }
        assert_eq!((view.sort, view.descending), (Column::Packets, true));
        press(&mut view, &rates, "SSSS");
        assert_eq!((view.sort, view.descending), (Column::Napi, false));
        press(&mut view, &rates, "S");
        assert_eq!(ids(&view, &rates), [2, 4, 1, 3], "by device, then by id");
    }

    #[test]
    fn a_filter_is_typed_and_every_word_has_to_be_there() {
        let (rates, mut view) = (rates(4), View::new());
        press(&mut view, &rates, "/eth0");
        assert_eq!(ids(&view, &rates), [2, 4], "while it is typed");
        press(&mut view, &rates, " SUSP");
        assert_eq!(ids(&view, &rates), [2]);
        assert_eq!(view.sort, Column::Packets, "s is a letter here");
        view.key(Key::Backspace, &rates);
        view.key(Key::Enter, &rates);
        press(&mut view, &rates, "s");
        assert_eq!((view.filter.as_str(), view.sort), ("eth0 SUS", Column::Interrupts));
        view.key(Key::Escape, &rates);
        assert_eq!(ids(&view, &rates).len(), 4);
        press(&mut view, &rates, "/memcached");
        assert_eq!(ids(&view, &rates), [1]);
        view.key(Key::Escape, &rates);
        assert!(!view.typing && view.filter.is_empty());
        press(&mut view, &rates, "/");
        press(&mut view, &rates, &"x".repeat(1_000));
        assert_eq!(view.filter.len(), LONGEST_FILTER);
    }

    #[test]
    fn idle_instances_are_hidden_on_demand() {
        let (rates, mut view) = (rates(4), View::new());
        press(&mut view, &rates, "i");
        assert_eq!(ids(&view, &rates), [1, 2, 3], "the fourth has no packets and no polls");
        press(&mut view, &rates, "i");
        assert_eq!(ids(&view, &rates).len(), 4);
    }

    #[test]
    fn the_screen_follows_the_selection() {
        let (rates, mut view) = (rates(100), View::new());
        let settle = |view: &mut View| view.settle(&view.rows(&rates), 10);
        assert_eq!(settle(&mut view), (0, None));
        view.key(Key::Down, &rates);
        assert_eq!(settle(&mut view), (0, Some(0)), "the first key selects what is at the top");
        for _ in 0..12 {
            view.key(Key::Down, &rates);
        }
        assert_eq!(settle(&mut view), (3, Some(12)));
        view.key(Key::PageUp, &rates);
        assert_eq!(settle(&mut view), (2, Some(2)));
        view.key(Key::End, &rates);
        assert_eq!(settle(&mut view), (90, Some(99)));
        view.key(Key::Down, &rates);
        assert_eq!(settle(&mut view), (90, Some(99)));
        view.key(Key::PageUp, &rates);
        view.key(Key::Up, &rates);
        assert_eq!(settle(&mut view), (88, Some(88)));
        view.key(Key::Home, &rates);
        view.key(Key::Up, &rates);
        assert_eq!(settle(&mut view), (0, Some(0)));
        view.key(Key::Escape, &rates);
        view.key(Key::End, &rates);
        assert_eq!(settle(&mut view), (90, Some(99)), "also as the first key");
    }

    #[test]
    fn the_selection_is_of_an_instance_and_not_of_a_line() {
        let (rates, mut view) = (rates(9), View::new());
        view.key(Key::Down, &rates);
        view.key(Key::Down, &rates);
        assert_eq!(view.selected, Some(("eth0".into(), 2)));
        press(&mut view, &rates, "r");
        assert_eq!(view.settle(&view.clone().rows(&rates), 9), (0, Some(7)));
        // It goes: the next one in its place is selected.
        let fewer = Rates { napis: rates.napis[2..].to_vec(), ..rates.clone() };
        assert_eq!(view.settle(&view.clone().rows(&fewer), 9), (0, Some(6)));
        assert_eq!(view.selected, Some(("eth1".into(), 3)));
        let none = Rates::default();
        assert_eq!(view.settle(&[], 9), (0, None));
        assert_eq!(view.key(Key::Down, &none), Action::Draw);
    }

    #[test]
    fn help_is_scrolled_closed_and_left() {
        let (rates, mut view) = (rates(1), View::new());
        press(&mut view, &rates, "h");
        view.key(Key::End, &rates);
        assert_eq!(view.settle_help(30, 20), 10);
        view.key(Key::Up, &rates);
        assert_eq!(view.settle_help(30, 20), 9);
        press(&mut view, &rates, "s");
        assert_eq!((view.help, view.sort), (None, Column::Packets));
        press(&mut view, &rates, "?");
        assert_eq!(view.key(Key::Char('q'), &rates), Action::Draw, "as any other key");
        assert_eq!(view.help, None);
    }

    #[test]
    fn a_filter_that_was_given_is_whole_however_long() {
        let longest = "e".repeat(LONGEST_FILTER);
        let mut rates = rates(2);
        rates.napis[0].owners = vec![format!("{longest}-one")];
        rates.napis[1].owners = vec![format!("{longest}-two")];
        assert_eq!(ids(&View::new().filtered(&format!("{longest}-two")), &rates), [2]);
    }

    #[test]
    fn ctrl_c_ends_it_also_while_typing() {
        let (rates, mut view) = (rates(1), View::new());
        press(&mut view, &rates, "/q");
        assert_eq!(view.filter, "q");
        assert_eq!(view.key(Key::Interrupt, &rates), Action::Quit);
        view.key(Key::Enter, &rates);
        assert_eq!(view.key(Key::Char(' '), &rates), Action::Pause);
        assert!(view.paused);
    }
}
