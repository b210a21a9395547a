//! `/proc/net/softnet_stat`: statistics of each CPU's network softirqs. They cover the whole host, whatever the
//! network namespace.

use std::io;

use super::read_text;

/// Limit of the file's size; a line has some 140 bytes.
const LIMIT: usize = 2 << 20;

/// One CPU's counters. They have 32 bits and wrap: take differences with `wrapping_sub`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Softnet {
    /// The CPU's number. Kernels before 5.10 do not write it: their lines are those of the online CPUs in order.
    pub cpu: Option<usize>,
    /// Packets processed by polls of devices and of the CPU's backlog.
    pub processed: u32,
    /// Packets dropped because the backlog was full.
    pub dropped: u32,
    /// Runs of the receive softirq that used up their time or budget, whether or not work was left: the kernel
    /// checks the limits after each poll, before it looks whether its lists are empty.
    pub time_squeeze: u32,
}

impl Softnet {
    /// Reads all CPUs' lines.
    ///
    /// # Errors
    /// Without procfs.
    pub fn read() -> io::Result<Vec<Softnet>> {
        Ok(Softnet::parse(&read_text("/proc/thread-self/net/softnet_stat", LIMIT)?))
    }

    /// Parses the file's text. Malformed lines are skipped.
    pub fn parse(text: &str) -> Vec<Softnet> {
        text.lines().filter_map(line).collect()
    }
}

fn line(text: &str) -> Option<Softnet> {
    let number = |word: Option<&str>| u32::from_str_radix(word?, 16).ok();
    let words: Vec<&str> = text.split_whitespace().take(16).collect();
    let word = |place: usize| words.get(place).copied();
    Some(Softnet {
        processed: number(word(0))?,
        dropped: number(word(1))?,
        time_squeeze: number(word(2))?,
        cpu: number(word(12)).and_then(|cpu| usize::try_from(cpu).ok()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LINUX_6_18: &str = "\
00024736 00000000 00000002 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000
000324a3 00000007 00000000 00000000 00000000 00000000 00000000 00000000 00000000 0000001f 00000000 00000000 00000002 00000000 00000000
";
    const LINUX_4_19: &str = "0002f1a4 00000000 00000003 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000\n";

    #[test]
    fn counts_are_each_cpu_s() {
        let all = Softnet::parse(LINUX_6_18);
        assert_eq!(all.len(), 2);
        assert_eq!((all[0].cpu, all[0].processed, all[0].time_squeeze), (Some(0), 0x24736, 2));
        assert_eq!((all[1].cpu, all[1].dropped), (Some(2), 7));
    }

    #[test]
    fn an_older_kernel_does_not_say_which_cpu() {
        let all = Softnet::parse(LINUX_4_19);
        assert_eq!((all[0].cpu, all[0].time_squeeze), (None, 3));
    }

    #[test]
    fn this_kernel_s_are_read() {
        assert!(!Softnet::read().expect("procfs").is_empty());
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "([0-9a-f]{0,20}| |\n|\\PC){0,60}") {
            let _ = Softnet::parse(&text);
        }
    }
}
