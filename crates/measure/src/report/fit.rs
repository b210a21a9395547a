//! Fits table columns onto a line, and abbreviates long names.

/// Blanks between two columns.
pub const GAP: usize = 2;

/// Divisor of the line width for the longest name; longer ones are replaced by a sign and explained below.
const NAME_PART: usize = 4;

/// Selects the columns that fit on a line of `width` characters, given columns and widths by importance.
pub fn fit<T>(by_rank: impl IntoIterator<Item = (T, usize)>, width: usize) -> Vec<T> {
    let (mut used, mut chosen) = (0, Vec::new());
    for (column, its_width) in by_rank {
        used += its_width + if chosen.is_empty() { 0 } else { GAP };
        // The first column is always included, because it names the row.
        if used > width && !chosen.is_empty() {
            break;
        }
        chosen.push(column);
    }
    chosen
}

/// The note below a table about columns that do not fit; `None` if all do.
pub fn omitted_note(names: &[String]) -> Option<String> {
    let named = names.join(", ");
    (!names.is_empty()).then(|| {
        format!("not on this line: {named}; a wider terminal has them, --json FILE has all")
    })
}

/// Short signs that replace names which would take too much of a line.
#[derive(Debug)]
pub struct Abbreviations {
    longest: usize,
    /// Signs and their meanings.
    signs: Vec<(String, String)>,
}

impl Abbreviations {
    /// For lines of `width` characters.
    pub fn new(width: usize) -> Abbreviations {
        Abbreviations { longest: width / NAME_PART, signs: Vec::new() }
    }

    /// The sign for a name that is too long, with the meaning to explain; `None` if the name is short enough.
    pub fn of(&mut self, name: &str, meaning: &str) -> Option<String> {
        if name.chars().count() <= self.longest {
            return None;
        }
        let known = self.signs.iter().find(|(_, known)| known == meaning);
        Some(known.map(|(sign, _)| sign.clone()).unwrap_or_else(|| {
            let sign = format!("[{}]", self.signs.len() + 1);
            self.signs.push((sign.clone(), meaning.to_owned()));
            sign
        }))
    }

    /// One line per sign with its meaning.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        self.signs.iter().map(|(sign, meaning)| format!("{sign}: {meaning}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_have_their_place_in_their_order_until_one_has_none() {
        let columns = [('a', 10), ('b', 5), ('c', 30), ('d', 1)];
        assert_eq!(
            fit(columns, 19),
            ['a', 'b'],
            "a less important one is not put before a more important one"
        );
        assert_eq!(fit(columns, 49), ['a', 'b', 'c']);
        assert_eq!(fit(columns, 52), ['a', 'b', 'c', 'd']);
        assert_eq!(fit(columns, 1), ['a'], "it names the row");
    }

    #[test]
    fn a_long_name_is_one_sign_however_often_it_comes() {
        let mut signs = Abbreviations::new(20);
        assert_eq!(signs.of("base", "base"), None);
        for _ in 0..2 {
            assert_eq!(signs.of("suspend20", "suspend20").as_deref(), Some("[1]"));
        }
        assert_eq!(signs.of("suspend20", "another").as_deref(), Some("[2]"));
        assert_eq!(signs.lines().collect::<Vec<_>>(), ["[1]: suspend20", "[2]: another"]);
    }
}
