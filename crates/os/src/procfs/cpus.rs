//! CPU sets in the kernel's formats: lists (`0-3,8`) and masks (`f`, `ff,ffffffff`).
//!
//! User input is parsed by [`crate::sched::CpuList`] instead, which rejects some lists that the kernel accepts.

/// The largest CPU number for which a kernel can be built; it bounds the memory of a parsed set.
const LARGEST: usize = 8_191;

/// Parses a list; `None` if it is malformed. An empty list holds no CPU.
pub fn parse_list(text: &str) -> Option<Vec<usize>> {
    let text = text.trim();
    if text.is_empty() {
        return Some(Vec::new());
    }
    let number = |text: &str| text.trim().parse().ok().filter(|cpu| *cpu <= LARGEST);
    let mut present = vec![false; LARGEST + 1];
    for item in text.split(',') {
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        let (first, last) = (number(first)?, number(last)?);
        present.get_mut(first..=last)?.fill(true);
    }
    Some(
        present
            .iter()
            .enumerate()
            .filter_map(|(cpu, is_present)| is_present.then_some(cpu))
            .collect(),
    )
}

/// Parses a mask: comma-separated groups of hexadecimal digits, the lowest 32 CPUs last.
pub fn parse_mask(text: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for (place, group) in text.trim().rsplit(',').enumerate() {
        // Accept a single group longer than the 8 digits that the kernel writes.
        if group.is_empty() || group.len() > 16 {
            return None;
        }
        let bits = u64::from_str_radix(group, 16).ok()?;
        for bit in (0..64).filter(|bit| bits & (1 << bit) != 0) {
            let cpu = place.checked_mul(32)? + bit;
            if cpu > LARGEST {
                return None;
            }
            cpus.push(cpu);
        }
    }
    cpus.sort_unstable();
    cpus.dedup();
    Some(cpus)
}

/// Formats a mask for the kernel.
pub fn show_mask(cpus: &[usize]) -> String {
    let groups = cpus.iter().max().map_or(1, |largest| largest.min(&LARGEST) / 32 + 1);
    let mut words = vec![0_u32; groups];
    for cpu in cpus {
        if let Some(word) = words.get_mut(cpu / 32) {
            *word |= 1 << (cpu % 32);
        }
    }
    let shown: Vec<String> = words.iter().rev().map(|word| format!("{word:08x}")).collect();
    shown.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lists_are_read_as_the_kernel_writes_them() {
        assert_eq!(parse_list("0-3,8\n"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(parse_list("\n"), Some(vec![]));
        assert_eq!(parse_list("5,2-3,3"), Some(vec![2, 3, 5]));
        for wrong in ["a", "3-1", "0-", "-1", "1,,2", "0-99999", "0-3:1/2"] {
            assert_eq!(parse_list(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn masks_are_read_as_the_kernel_writes_them() {
        assert_eq!(parse_mask("f\n"), Some(vec![0, 1, 2, 3]));
        assert_eq!(parse_mask("00000001,80000000"), Some(vec![31, 32]));
        assert_eq!(parse_mask("0"), Some(vec![]));
        for wrong in ["", "g", "1,,1", "00000000000000001"] {
            assert_eq!(parse_mask(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_mask_has_words_of_32_cpus() {
        let masks = [&[0][..], &[5, 0], &[33, 1], &[]].map(show_mask);
        assert_eq!(masks, ["00000001", "00000021", "00000002,00000002", "00000000"]);
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "[0-9a-fA-F,\\- \\n]{0,60}|\\PC{0,60}") {
            let _ = (parse_list(&text), parse_mask(&text));
        }

        #[test]
        fn a_mask_reads_back(mut cpus in prop::collection::vec(0_usize..=LARGEST, 0..20)) {
            cpus.sort_unstable();
            cpus.dedup();
            prop_assert_eq!(parse_mask(&show_mask(&cpus)), Some(cpus));
        }
    }
}
