//! `/proc/softirqs`: how often each softirq vector ran, and on which CPU.

use std::collections::BTreeMap;
use std::io;

use super::{read_text, table};

/// Ten vectors on eight thousand CPUs have fewer bytes.
const LIMIT: usize = 1 << 20;

/// All vectors.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Softirqs {
    /// The CPUs that there could be, in the order of the counts.
    pub cpus: Vec<usize>,
    /// Runs on each CPU since the start, by the vector's name: `NET_RX`, `TIMER`. The kernel's
    /// counts are of 32 bits and wrap.
    pub vectors: BTreeMap<String, Vec<u64>>,
}

impl Softirqs {
    /// Reads them.
    ///
    /// # Errors
    /// Without procfs.
    pub fn read() -> io::Result<Softirqs> {
        Ok(Softirqs::parse(&read_text("/proc/softirqs", LIMIT)?))
    }

    /// Reads the file's text. Lines that make no sense are left out.
    pub fn parse(text: &str) -> Softirqs {
        let mut lines = text.lines();
        let cpus = table::cpus(lines.next().unwrap_or_default());
        let vectors = lines.filter_map(|line| {
            let row = table::row(line, cpus.len())?;
            Some((row.name.to_owned(), row.counts))
        });
        Softirqs { vectors: vectors.collect(), cpus }
    }

    /// Runs of a vector on one CPU.
    pub fn on(&self, vector: &str, cpu: usize) -> Option<u64> {
        let place = self.cpus.iter().position(|it| *it == cpu)?;
        self.vectors.get(vector)?.get(place).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LINUX_6_18: &str = "                    CPU0       CPU1       
          HI:          0          0
      NET_TX:        901        536
      NET_RX:       5024        750
";

    #[test]
    fn counts_are_by_name_and_cpu() {
        let all = Softirqs::parse(LINUX_6_18);
        assert_eq!(all.on("NET_RX", 0), Some(5024));
        assert_eq!(all.on("NET_TX", 1), Some(536));
        assert_eq!((all.on("NET_RX", 2), all.on("NET", 0)), (None, None));
    }

    #[test]
    fn this_kernel_s_are_read() {
        let all = Softirqs::read().expect("procfs");
        assert!(all.cpus.first().is_some_and(|cpu| all.on("NET_RX", *cpu).is_some()));
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "(CPU[0-9]{0,3}| |\n|NET_RX:|[0-9]{0,25}:?|\\PC){0,80}") {
            let _ = Softirqs::parse(&text);
        }
    }
}
