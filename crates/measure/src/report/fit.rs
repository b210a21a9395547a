//! What of a table has its place on a line, and what is said of the rest.

/// Blanks between two columns.
pub const GAP: usize = 2;

/// The part of a line that a name may take: longer ones are shown as a sign, and explained below.
const NAME_PART: usize = 4;

/// Those of the columns that fit on a line of `width` characters, for columns and their widths in the order in which
/// they get their place.
pub fn fit<T>(by_rank: impl IntoIterator<Item = (T, usize)>, width: usize) -> Vec<T> {
    let (mut used, mut chosen) = (0, Vec::new());
    for (column, its_width) in by_rank {
        used += its_width + if chosen.is_empty() { 0 } else { GAP };
        // The first has its place in any case: it names the row.
        if used > width && !chosen.is_empty() {
            break;
        }
        chosen.push(column);
    }
    chosen
}

/// What stands below a table for the columns that do not fit; nothing if all do.
pub fn left_out(names: &[String]) -> Option<String> {
    let named = names.join(", ");
    (!names.is_empty()).then(|| {
        format!("not on this line: {named}; a wider terminal has them, --json FILE has all")
    })
}

/// Short signs in the place of names that would take too much of a line.
#[derive(Debug)]
pub struct Signs {
    longest: usize,
    /// Which signs there are, and what each stands for.
    signs: Vec<(String, String)>,
}

impl Signs {
    /// For a line of `width` characters.
    pub fn new(width: usize) -> Signs {
        Signs { longest: width / NAME_PART, signs: Vec::new() }
    }

    /// The sign for a name that is too long, which means that; `None` of one that is not.
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

    /// A line for each sign: what it stands for.
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
        let mut signs = Signs::new(20);
        assert_eq!(signs.of("base", "base"), None);
        for _ in 0..2 {
            assert_eq!(signs.of("suspend20", "suspend20").as_deref(), Some("[1]"));
        }
        assert_eq!(signs.of("suspend20", "another").as_deref(), Some("[2]"));
        assert_eq!(signs.lines().collect::<Vec<_>>(), ["[1]: suspend20", "[2]: another"]);
    }
}
