//! Lists of CPUs, and ranges of other numbers, in the form that the kernel and `taskset` use.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// CPUs by number: `2`, `0,2`, `0-3`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CpuList(pub Vec<usize>);

impl FromStr for CpuList {
    type Err = String;

    fn from_str(text: &str) -> Result<CpuList, String> {
        const LARGEST: usize = 1_023;
        let form = || format!("give CPUs as in 0,2 or 0-3, of 0 to {LARGEST}");
        let number = |text: &str| match text.parse::<usize>() {
            Ok(cpu) if cpu <= LARGEST => Ok(cpu),
            _ => Err(form()),
        };
        let mut cpus = Vec::new();
        for item in text.split(',') {
            let (first, last) = item.split_once('-').unwrap_or((item, item));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(form());
            }
            for cpu in first..=last {
                if cpus.contains(&cpu) {
                    return Err(format!("CPU {cpu} is named twice"));
                }
                cpus.push(cpu);
            }
        }
        Ok(CpuList(cpus))
    }
}

impl fmt::Display for CpuList {
    /// Formats the list as the kernel does, in ascending order: `0-3,6`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&ranges(&self.0))
    }
}

/// Formats numbers as ranges, sorted and without duplicates: `513-576,600`. Numbers above `i64::MAX` are left out.
pub fn ranges<N: Copy + TryInto<i64>>(numbers: &[N]) -> String {
    let sorted: BTreeSet<i64> =
        numbers.iter().filter_map(|number| (*number).try_into().ok()).collect();
    let sorted: Vec<i64> = sorted.into_iter().collect();
    let runs = sorted.chunk_by(|one, next| one.checked_add(1) == Some(*next));
    let run = |run: &[i64]| match run {
        [first, .., last] => format!("{first}-{last}"),
        run => run.iter().map(i64::to_string).collect(),
    };
    runs.map(run).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_listed_as_the_kernel_does() {
        let listed = |cpus: &[usize]| CpuList(cpus.to_vec()).to_string();
        assert_eq!(listed(&[3, 1, 2, 0, 6, 8, 9]), "0-3,6,8-9");
        assert_eq!(listed(&[5]), "5");
        assert_eq!(listed(&[]), "");
        assert_eq!(ranges(&[3, 0, 1, 2, 7, 7, u32::MAX]), format!("0-3,7,{}", u32::MAX));
    }

    #[test]
    fn cpus_are_read_as_taskset_reads_them() {
        let cpus = |text: &str| text.parse::<CpuList>().map(|list| list.0);
        assert_eq!(cpus("0,2-4"), Ok(vec![0, 2, 3, 4]));
        for wrong in ["", "a", "3-1", "0,0", "0-9999", "1,"] {
            assert!(cpus(wrong).is_err(), "{wrong}");
        }
    }
}
