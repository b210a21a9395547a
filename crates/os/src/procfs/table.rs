//! The table format of `/proc/interrupts` and `/proc/softirqs`: a header line of CPUs, then lines of a name, a
//! count for each CPU, and a description.

/// A line: its name without the colon, its counts in the order of the CPUs, and its description.
pub(super) struct Row<'a> {
    pub(super) name: &'a str,
    pub(super) counts: Vec<u64>,
    pub(super) rest: &'a str,
}

/// Parses the CPUs of the header line, in its order. `/proc/interrupts` leaves out CPUs that are offline.
pub(super) fn cpus(header: &str) -> Vec<usize> {
    header.split_whitespace().map_while(|word| word.strip_prefix("CPU")?.parse().ok()).collect()
}

/// Parses a line, which may have fewer counts than there are CPUs (`ERR:` has one).
pub(super) fn row(line: &str, cpus: usize) -> Option<Row<'_>> {
    let (name, mut rest) = line.split_once(':')?;
    let mut counts = Vec::new();
    while counts.len() < cpus {
        let text = rest.trim_start();
        let end = text.find(char::is_whitespace).unwrap_or(text.len());
        let (word, after) = text.split_at(end);
        let Ok(count) = word.parse() else { break };
        counts.push(count);
        rest = after;
    }
    Some(Row { name: name.trim(), counts, rest: rest.trim() })
}
