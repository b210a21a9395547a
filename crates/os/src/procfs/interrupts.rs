//! `/proc/interrupts`: the count of each interrupt on each CPU.

use std::collections::BTreeMap;
use std::io;

use super::{read_text, table};

/// Limit of the file's size: enough for a thousand CPUs and five thousand interrupts.
const LIMIT: usize = 64 << 20;

/// All numbered interrupts. The processor's own (`NMI`, `LOC` ...) are left out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Interrupts {
    /// The online CPUs, in the order of the counts.
    pub cpus: Vec<usize>,
    /// The interrupts by number, the first column of the file.
    pub irqs: BTreeMap<u32, Interrupt>,
}

/// An interrupt: its counts by CPU and its name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Interrupt {
    /// Occurrences since the interrupt was set up, on each of [`Interrupts::cpus`].
    pub counts: Vec<u64>,
    /// The names that drivers gave to their handlers: `eth0-TxRx-0`, `virtio2-input.0`. The names of a shared line
    /// are separated by commas.
    pub device: String,
}

impl Interrupts {
    /// Reads `/proc/interrupts`.
    ///
    /// # Errors
    /// Without procfs.
    pub fn read() -> io::Result<Interrupts> {
        Ok(Interrupts::parse(&read_text("/proc/interrupts", LIMIT)?))
    }

    /// Parses the file's text. Malformed lines are skipped.
    pub fn parse(text: &str) -> Interrupts {
        let mut lines = text.lines();
        let cpus = table::cpus(lines.next().unwrap_or_default());
        let irqs = lines.filter_map(|line| {
            let row = table::row(line, cpus.len())?;
            let irq = row.name.parse().ok()?;
            Some((irq, Interrupt { counts: row.counts, device: device(row.rest) }))
        });
        Interrupts { irqs: irqs.collect(), cpus }
    }

    /// Returns an interrupt by its number.
    pub fn get(&self, irq: u32) -> Option<&Interrupt> {
        self.irqs.get(&irq)
    }

    /// Returns an interrupt's count on each online CPU. The kernel's counters have 32 bits and wrap.
    pub fn by_cpu(&self, irq: u32) -> impl Iterator<Item = (usize, u32)> {
        let counts = self.get(irq).map_or(&[][..], |interrupt| &interrupt.counts);
        self.cpus.iter().zip(counts).map(|(cpu, count)| (*cpu, *count as u32))
    }

    /// Returns an interrupt's count on one CPU; `None` if the CPU is offline or the interrupt is unknown.
    pub fn on(&self, irq: u32, cpu: usize) -> Option<u64> {
        let place = self.cpus.iter().position(|it| *it == cpu)?;
        self.irqs.get(&irq)?.counts.get(place).copied()
    }
}

/// Increase of a 32-bit interrupt counter, across a wrap. More than half the range means that the counter was
/// reset: then it is `now`.
pub fn counter_increase(now: u32, then: u32) -> u32 {
    let step = now.wrapping_sub(then);
    if step > u32::MAX / 2 { now } else { step }
}

/// Returns the drivers' names in a description: the words after the controller, its hardware number and the trigger
/// type. Not every kernel writes all of those.
fn device(description: &str) -> String {
    let mut words = description.split_whitespace().peekable();
    words.next();
    // `5-edge`, `16-fasteoi`, `27 Level`, `-event`.
    let controller_s = |word: &&str| {
        let (number, trigger) = word.split_once('-').unwrap_or((word, ""));
        let numbered = number.bytes().all(|byte| byte.is_ascii_digit());
        matches!(*word, "Level" | "Edge" | "None")
            || numbered && matches!(trigger, "" | "edge" | "level" | "fasteoi" | "event")
    };
    while words.next_if(controller_s).is_some() {}
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LINUX_6_18: &str = "           CPU0       CPU1       CPU2       CPU3       
 24:          1          0          0          0  IO-APIC   5-edge      ACPI:Ged
 38:          0          0          0       4832 PCI-MSIX-0000:00:03.0   1-edge      virtio2-input.0
NMI:          0          0          0          0   Non-maskable interrupts
ERR:          0
";

    /// CPU 1 is offline; a controller without a number, a shared line, one of an ARM and one of Xen.
    const OTHERS: &str = "            CPU0       CPU2
   8:          5          1   IO-APIC-edge      rtc0
  16:         10         20   IO-APIC   16-fasteoi   ehci_hcd:usb1, eth0
  27:          7          9     GICv3  27 Level     arch_timer
  76:        100        200   xen-dyn    -event     eth0-q0-tx
 131:          3          4   IR-PCI-MSI 1572865-edge      mlx5_comp0@pci:0000:03:00.0
";

    #[test]
    fn counts_are_by_number_and_cpu() {
        let all = Interrupts::parse(LINUX_6_18);
        assert_eq!(all.cpus, [0, 1, 2, 3]);
        assert_eq!(all.irqs.keys().copied().collect::<Vec<_>>(), [24, 38]);
        assert_eq!(all.on(38, 3), Some(4832));
        assert_eq!(all.on(38, 0), Some(0));
        assert_eq!(all.on(38, 9), None);
        assert_eq!(all.by_cpu(38).map(|(_, count)| count).sum::<u32>(), 4832);
        assert_eq!(all.get(38).map(|irq| irq.device.as_str()), Some("virtio2-input.0"));
    }

    #[test]
    fn a_cpu_that_is_off_has_no_column() {
        let all = Interrupts::parse(OTHERS);
        assert_eq!((all.on(16, 2), all.on(16, 1)), (Some(20), None));
        let devices: Vec<_> = all.irqs.values().map(|irq| irq.device.as_str()).collect();
        assert_eq!(
            devices,
            [
                "rtc0",
                "ehci_hcd:usb1, eth0",
                "arch_timer",
                "eth0-q0-tx",
                "mlx5_comp0@pci:0000:03:00.0"
            ]
        );
    }

    #[test]
    fn this_kernel_s_are_read() {
        let all = Interrupts::read().expect("procfs");
        assert!(!all.cpus.is_empty());
        assert!(all.irqs.values().all(|irq| irq.counts.len() <= all.cpus.len()));
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "(CPU[0-9]{0,30}| |\n|[0-9]{0,25}:?|\\PC){0,80}") {
            let _ = Interrupts::parse(&text);
        }

        #[test]
        fn a_file_that_is_cut_is_read_as_far_as_it_goes(end in 0..LINUX_6_18.len()) {
            if let Some(text) = LINUX_6_18.get(..end) {
                prop_assert!(Interrupts::parse(text).irqs.len() <= 2);
            }
        }
    }
}
