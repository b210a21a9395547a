//! Parses the file of a wish, and collects all mistakes with their lines.

use std::fmt;
use std::path::{Path, PathBuf};

use napkin_os::sched::CpuList;
use napkin_policy::text::{escaped, quoted};
use napkin_policy::{Policy, nearest};
use toml_edit::{Document, Item, TableLike, Value};

use crate::device_match::Match;
use crate::unit::Unit;
use crate::wish::Wish;

/// The keys of a file, and of its section `[match]`.
const KEYS: [&str; 7] = ["policy", "queues", "cpus", "rt", "unit", "pin", "match"];
const MATCH: [&str; 3] = ["name", "driver", "mac"];

/// The maximum length of a value's text in bytes.
const LONGEST: usize = 512;

/// The maximum number of queues of a wish.
const QUEUES: usize = 1_024;

/// A mistake in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// The line, from 1; 0 for the file as a whole.
    pub line: usize,
    /// What is wrong, and what would be right.
    pub why: String,
}

/// An invalid file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadFile {
    /// Its path, or that of the directory if nothing in it is held.
    pub file: PathBuf,
    /// The mistakes: at least one.
    pub mistakes: Vec<Mistake>,
}

impl BadFile {
    /// Creates the error for a file that is invalid as a whole.
    pub(crate) fn whole(file: &Path, why: impl Into<String>) -> BadFile {
        let mistakes = vec![Mistake { line: 0, why: why.into() }];
        BadFile { file: file.to_owned(), mistakes }
    }
}

impl fmt::Display for BadFile {
    /// One line for each mistake: `/etc/napkin/web.toml:3: what is wrong`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = escaped(&self.file.display().to_string());
        let lines = self.mistakes.iter().map(|Mistake { line, why }| match line {
            0 => format!("{file}: {why}"),
            line => format!("{file}:{line}: {why}"),
        });
        f.write_str(&lines.collect::<Vec<_>>().join("\n"))
    }
}

impl Wish {
    /// Parses the text of a file.
    ///
    /// # Errors
    /// All mistakes: text that is not TOML, unknown keys, values of another type or out of range, an invalid
    /// or missing policy, or nothing to match devices by.
    pub fn parse(file: &Path, text: &str) -> Result<Wish, BadFile> {
        let bad = |mistakes| BadFile { file: file.to_owned(), mistakes };
        let name = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        if !Wish::is_name(name) {
            return Err(BadFile::whole(
                file,
                "its name cannot be a wish's: letters, digits, ._-@, no dot first, at most 64 bytes",
            ));
        }
        let document = Document::parse(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            let why = escaped(error.message()).chars().take(LONGEST).collect();
            bad(vec![Mistake { line: line(text, at), why }])
        })?;
        let mut reader = Reader { text, mistakes: Vec::new() };
        let wish = reader.wish(document.as_table(), name, file);
        match wish {
            Some(wish) if reader.mistakes.is_empty() => Ok(wish),
            _ => {
                reader.mistakes.sort_by_key(|mistake| mistake.line);
                Err(bad(reader.mistakes))
            }
        }
    }
}

/// The line, from 1, of the byte at offset `at`.
fn line(text: &str, at: usize) -> usize {
    1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count()
}

struct Reader<'a> {
    text: &'a str,
    mistakes: Vec<Mistake>,
}

impl Reader<'_> {
    fn mistake(&mut self, line: usize, why: impl Into<String>) {
        self.mistakes.push(Mistake { line, why: why.into() });
    }

    /// The line of a key of a table.
    fn line_of(&self, table: &dyn TableLike, name: &str) -> usize {
        let (key, item) = (table.key(name), table.get(name));
        let span = key.and_then(|key| key.span()).or_else(|| item.and_then(Item::span));
        span.map_or(1, |span| line(self.text, span.start))
    }

    fn unknown(&mut self, table: &dyn TableLike, known: &[&'static str], section: &str) {
        for (key, _) in table.iter() {
            if known.contains(&key) {
                continue;
            }
            let line = self.line_of(table, key);
            let guess = nearest(key, known.iter().copied())
                .map_or_else(|| format!("there is {}", known.join(", ")), |it| format!("{it}?"));
            self.mistake(line, format!("unknown key {}{section}: {guess}", quoted(key)));
        }
    }

    /// Returns the line and text of a key; records a mistake if its value is not a text.
    fn text(&mut self, table: &dyn TableLike, key: &str, form: &str) -> Option<(usize, String)> {
        let item = table.get(key)?;
        let line = self.line_of(table, key);
        match item.as_value() {
            Some(Value::String(text)) if text.value().len() <= LONGEST => {
                Some((line, text.value().clone()))
            }
            Some(Value::String(_)) => {
                self.mistake(line, format!("{key} is longer than {LONGEST} bytes"));
                None
            }
            _ => {
                self.mistake(
                    line,
                    format!("{key} takes a text, as in {key} = {form}, not {}", item.type_name()),
                );
                None
            }
        }
    }

    fn wish(&mut self, root: &dyn TableLike, name: &str, file: &Path) -> Option<Wish> {
        self.unknown(root, &KEYS, "");
        let policy = self.policy(root);
        let queues = self.queues(root);
        let cpus = self.cpus(root);
        let rt = self.rt(root);
        let unit = self.unit(root);
        let pin = self.pin(root);
        let device = self.device(root);
        let (line, policy) = policy?;
        let (name, file, device) = (name.to_owned(), file.to_owned(), device?);
        Some(Wish { name, file, policy, line, device, queues, cpus, rt, unit, pin })
    }

    fn policy(&mut self, root: &dyn TableLike) -> Option<(usize, Policy)> {
        if root.get("policy").is_none() {
            self.mistake(
                1,
                "no policy is named: policy = \"suspend20\" (napkin policies lists them)",
            );
        }
        let (line, text) = self.text(root, "policy", "\"suspend20\"")?;
        match text.parse() {
            Ok(policy) => Some((line, policy)),
            Err(error) => {
                self.mistake(line, escaped(&error.to_string()));
                None
            }
        }
    }

    fn queues(&mut self, root: &dyn TableLike) -> Option<Vec<u32>> {
        let (line, text) = self.text(root, "queues", "\"0-3\"")?;
        match text.parse::<CpuList>() {
            Ok(CpuList(queues)) if queues.len() <= QUEUES => {
                let mut queues: Vec<u32> =
                    queues.into_iter().filter_map(|queue| u32::try_from(queue).ok()).collect();
                queues.sort_unstable();
                Some(queues)
            }
            _ => {
                let text = quoted(&text);
                self.mistake(
                    line,
                    format!("queues takes receive queues by index, as in \"0-3\" or \"0,2\", each once, not {text}"),
                );
                None
            }
        }
    }

    fn cpus(&mut self, root: &dyn TableLike) -> Vec<usize> {
        let Some((line, text)) = self.text(root, "cpus", "\"2-5\"") else { return Vec::new() };
        match text.parse::<CpuList>() {
            Ok(CpuList(cpus)) => cpus,
            Err(why) => {
                self.mistake(line, format!("cpus is {}: {why}", quoted(&text)));
                Vec::new()
            }
        }
    }

    fn rt(&mut self, root: &dyn TableLike) -> Option<u8> {
        let item = root.get("rt")?;
        let line = self.line_of(root, "rt");
        let number = item.as_value().and_then(Value::as_integer);
        let priority =
            number.and_then(|it| u8::try_from(it).ok()).filter(|it| (1..=99).contains(it));
        if priority.is_none() {
            let given = number.map_or_else(|| item.type_name().to_owned(), |it| it.to_string());
            self.mistake(
                line,
                format!("rt takes a priority of 1 to 99, as in rt = 10, not {given}"),
            );
        }
        priority
    }

    fn unit(&mut self, root: &dyn TableLike) -> Option<Unit> {
        let (line, text) = self.text(root, "unit", "\"memcached.service\"")?;
        let unit = Unit::read(&text);
        if unit.is_none() {
            let text = quoted(&text);
            self.mistake(
                line,
                format!(
                    "unit takes a unit's name, as in \"memcached.service\", or the path of its control \
                     group, as in \"/work.slice/memcached.service\", not {text}"
                ),
            );
        }
        unit
    }

    fn pin(&mut self, root: &dyn TableLike) -> bool {
        let Some(item) = root.get("pin") else { return false };
        let line = self.line_of(root, "pin");
        let pin = item.as_value().and_then(Value::as_bool);
        if pin.is_none() {
            self.mistake(line, format!("pin takes true or false, not {}", item.type_name()));
        } else if root.get("unit").is_none() {
            self.mistake(
                line,
                "pin is for the programs of a unit: name it, as in unit = \"web.service\"",
            );
        }
        pin.unwrap_or(false)
    }

    fn device(&mut self, root: &dyn TableLike) -> Option<Match> {
        const FORM: &str =
            "say which devices are meant: [match], with name = \"eth0\", driver or mac";
        let Some(item) = root.get("match") else {
            self.mistake(1, FORM);
            return None;
        };
        let line = self.line_of(root, "match");
        let Some(table) = item.as_table_like() else {
            self.mistake(line, format!("match is a section, not {}: {FORM}", item.type_name()));
            return None;
        };
        self.unknown(table, &MATCH, " in [match]");
        let before = self.mistakes.len();
        let name = self.text(table, "name", "\"eth0\"");
        let driver = self.text(table, "driver", "\"igb\"");
        let mac = self.text(table, "mac", "\"52:54:00:12:34:56\"");
        let mut device = Match { name: None, driver: None, mac: None };
        for (what, given, into) in
            [("name", name, &mut device.name), ("driver", driver, &mut device.driver)]
        {
            let Some((line, text)) = given else { continue };
            if text.is_empty() || text.contains(|c: char| c.is_control() || c == '/') {
                self.mistake(line, format!("no device has the {what} {}", quoted(&text)));
            }
            *into = Some(text);
        }
        if let Some((line, text)) = mac {
            device.mac = Match::read_mac(&text);
            if device.mac.is_none() {
                let text = quoted(&text);
                self.mistake(
                    line,
                    format!("mac takes an address as in \"52:54:00:12:34:56\", not {text}"),
                );
            }
        }
        if device == Match::default() && self.mistakes.len() == before {
            self.mistake(line, FORM);
        }
        Some(device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Result<Wish, Vec<(usize, String)>> {
        Wish::parse(Path::new("/etc/napkin/web.toml"), text)
            .map_err(|bad| bad.mistakes.into_iter().map(|it| (it.line, it.why)).collect())
    }

    #[test]
    fn a_wish_says_policy_queues_cpus_and_which_device() {
        let text = "policy = \"suspend20\"\nqueues = \"0-1,3\"\ncpus = \"5,4\"\n[match]\nname = \"eth*\"\n";
        let wish = parse(text).expect("a wish");
        assert_eq!(wish.name, "web");
        assert_eq!(wish.policy, "suspend20".parse().expect("a policy"));
        assert_eq!(wish.queues.as_deref(), Some(&[0, 1, 3][..]));
        assert_eq!(wish.cpus, [5, 4], "in their order");
        assert_eq!(wish.place(), "/etc/napkin/web.toml:1");
        assert_eq!(wish.sentence(), "suspend20 for eth*, queues 0-1,3, on CPUs 5,4");
        let options: Vec<_> = wish.options().into_iter().map(|it| it.queue).collect();
        assert_eq!(options, [Some(0), Some(1), Some(3)]);
    }

    #[test]
    fn every_mistake_is_said_with_its_line() {
        let text = "polcy = \"suspend20\"\nqueues = [0]\ncpus = \"2-\"\nrt = 100\n\n[match]\nnam = \"eth0\"\nmac = \"12\"\n";
        let mistakes = parse(text).expect_err("mistakes");
        let lines: Vec<usize> = mistakes.iter().map(|it| it.0).collect();
        assert_eq!(lines, [1, 1, 2, 3, 4, 7, 8], "{mistakes:?}");
        assert!(mistakes.iter().any(|it| it.1 == "unknown key polcy: policy?"), "{mistakes:?}");
        let errors =
            parse("policy = \"suspnd20\"\n[match]\nname = \"a\"\n").expect_err("no policy");
        assert!(errors[0].0 == 1 && errors[0].1.contains("suspend20"), "{errors:?}");
        let errors = parse("policy = 3\n[match]\nname = \"a\"\n").expect_err("a number");
        assert_eq!(errors[0].1, "policy takes a text, as in policy = \"suspend20\", not integer");
        let errors = parse("policy = \"base\"\n").expect_err("nothing to match");
        assert!(errors[0].1.contains("which devices"), "{errors:?}");
        let errors = parse("policy = \"base\"\n[match]\n").expect_err("nothing to match");
        assert_eq!(errors[0].0, 2, "{errors:?}");
        let errors = parse("policy = \"base\"\n\nqueues = ").expect_err("no TOML");
        assert_eq!(errors[0].0, 3, "{errors:?}");
        let twice = parse("policy = \"base\"\npolicy = \"base\"\n").expect_err("twice");
        assert_eq!(twice[0].0, 2, "{twice:?}");
    }

    #[test]
    fn what_is_written_is_read_again() {
        let device = Match {
            name: Some("eth\"0".into()),
            driver: Some("igb".into()),
            mac: Some([2, 0, 0, 0, 0, 1]),
        };
        let wish = Wish {
            name: "web".into(),
            file: "/etc/napkin/web.toml".into(),
            policy: "suspend20,gro-flush-timeout=50us".parse().expect("a policy"),
            line: 2,
            device,
            queues: Some(vec![0, 1, 5]),
            cpus: vec![4, 5, 6, 3, 0, 1],
            rt: Some(7),
            unit: Unit::read("a.service"),
            pin: true,
        };
        assert_eq!(parse(&wish.to_text()), Ok(wish));
    }

    #[test]
    fn who_is_pinned_is_a_program_of_a_unit() {
        let read = |lines: &str| {
            let text = format!("policy = \"base\"\n{lines}\n[match]\nname = \"eth0\"\n");
            parse(&text).map(|wish| wish.pin).map_err(|it| it[0].1.clone())
        };
        assert_eq!(read("unit = \"a.service\""), Ok(false));
        assert_eq!(read("unit = \"a.service\"\npin = true"), Ok(true));
        assert!(read("pin = true").expect_err("alone").contains("of a unit"));
        assert!(
            read("unit = \"a.service\"\npin = 1").expect_err("a number").contains("true or false")
        );
    }

    proptest! {
        #[test]
        fn any_text_is_a_wish_or_has_mistakes(text in "\\PC{0,200}") {
            if let Err(mistakes) = parse(&text) {
                prop_assert!(!mistakes.is_empty());
            }
        }

        #[test]
        fn any_keys_and_values_are_a_wish_or_have_mistakes(
            lines in prop::collection::vec(
                ("(policy|queues|cpus|rt|match|name|x)", "(\"[a-z0-9,=-]{0,9}\"|[0-9]{1,20}|\\[\\]|\\{\\}|true)"),
                0..6,
            ),
            section in prop::bool::ANY,
        ) {
            let mut text: String = lines.iter().map(|(key, value)| format!("{key} = {value}\n")).collect();
            if section {
                text.push_str("[match]\nname = \"a\"\n");
            }
            match parse(&text) {
                Ok(wish) => prop_assert_eq!(parse(&wish.to_text()).map(|it| it.policy), Ok(wish.policy)),
                Err(mistakes) => {
                    let lines = text.lines().count();
                    prop_assert!(mistakes.iter().all(|it| (1..=lines.max(1)).contains(&it.0)));
                }
            }
        }
    }
}
