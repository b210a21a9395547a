//! Why an instance has no interrupt that is known.

use std::fmt;

use super::Device;
use crate::netlink::Route;
use crate::sysfs::Sysfs;
use napkin_os::procfs::Interrupts;

/// Why an instance has no interrupt that is known.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum NoIrq {
    /// There is no hardware below its device.
    Virtual,
    /// There is one for all queues of its device: the host has no more vectors. It belongs to no
    /// instance alone.
    Shared {
        /// Its number, as in `/proc/interrupts`.
        irq: u32,
    },
    /// The driver does not tell it.
    Untold {
        /// Its name, if that is known.
        driver: Option<String>,
    },
}

impl fmt::Display for NoIrq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoIrq::Virtual => f.write_str("a virtual device has no interrupts"),
            NoIrq::Shared { irq } => {
                write!(f, "its queues share interrupt {irq}, which is no instance's alone")
            }
            NoIrq::Untold { driver: Some(driver) } => {
                write!(f, "its driver ({driver}) does not tell which interrupts are its queues'")
            }
            NoIrq::Untold { driver: None } => {
                f.write_str("its driver does not tell which interrupts are its queues'")
            }
        }
    }
}

impl Device {
    /// Why it has instances without an interrupt; `None` if each has one that is known.
    pub fn why_no_irq(&self) -> Option<NoIrq> {
        self.napis.iter().find(|napi| napi.irq.is_none())?;
        let links = Route::open().and_then(|mut route| route.links()).ok();
        let sysfs = links.and_then(|links| Sysfs::open(&links).ok());
        let hardware = match &sysfs {
            Some(sysfs) => sysfs.hardware(&self.ifname),
            // Where sysfs is another namespace's it cannot be known.
            None => return Some(NoIrq::Untold { driver: self.driver.clone() }),
        };
        let interrupts = Interrupts::read().unwrap_or_default();
        Some(no_irq(self.driver.as_deref(), hardware.as_deref(), &interrupts))
    }
}

fn no_irq(driver: Option<&str>, hardware: Option<&str>, interrupts: &Interrupts) -> NoIrq {
    let Some(hardware) = hardware else { return NoIrq::Virtual };
    if driver == Some("virtio_net") {
        // `vp_find_vqs` in drivers/virtio/virtio_pci_common.c: one vector for all queues, or none.
        let shared = format!("{hardware}-virtqueues");
        let named = |device: &str| device.split(", ").any(|it| it == shared || it == hardware);
        if let Some((irq, _)) = interrupts.irqs.iter().find(|(_, it)| named(&it.device)) {
            return NoIrq::Shared { irq: *irq };
        }
    }
    NoIrq::Untold { driver: driver.map(str::to_owned) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_there_is_no_interrupt_is_said() {
        let why = |driver, hardware, text: &str| {
            no_irq(driver, hardware, &Interrupts::parse(text)).to_string()
        };
        let vectors = "      CPU0\n 37:  1  PCI-MSIX-0000:00:03.0   0-edge      virtio2-config\n \
                       38:  2925  PCI-MSIX-0000:00:03.0   1-edge      virtio2-virtqueues\n";
        let shared = "its queues share interrupt 38, which is no instance's alone";
        assert_eq!(why(Some("virtio_net"), Some("virtio2"), vectors), shared);
        let line = "      CPU0\n 11:  7  IO-APIC  11-fasteoi   uhci_hcd:usb1, virtio2\n";
        let said = why(Some("virtio_net"), Some("virtio2"), line);
        assert!(said.contains("share interrupt 11"), "{said}");
        let other = why(Some("virtio_net"), Some("virtio1"), vectors);
        assert!(other.contains("driver (virtio_net) does not tell"), "{other}");
        assert!(why(Some("igb"), Some("0000:03:00.0"), vectors).contains("(igb) does not tell"));
        assert_eq!(why(Some("veth"), None, vectors), "a virtual device has no interrupts");
    }
}
