//! The reason why an instance's interrupt is unknown.

use std::cell::OnceCell;
use std::fmt;

use super::Device;
use crate::netlink::Route;
use crate::sysfs::Sysfs;
use napkin_os::procfs::Interrupts;

/// The reason why an instance's interrupt is unknown.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum NoIrq {
    /// The device is not backed by hardware.
    Virtual,
    /// One interrupt serves all queues of the device, because the host has no more vectors. It belongs to no single
    /// instance.
    Shared {
        /// The number of the interrupt, as in `/proc/interrupts`.
        irq: u32,
    },
    /// The driver does not report it.
    Unreported {
        /// The driver's name, if known.
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
            NoIrq::Unreported { driver: Some(driver) } => {
                write!(f, "its driver ({driver}) does not tell which interrupts are its queues'")
            }
            NoIrq::Unreported { driver: None } => {
                f.write_str("its driver does not tell which interrupts are its queues'")
            }
        }
    }
}

/// Finds the reasons for several devices, reading sysfs and `/proc/interrupts` only once.
#[derive(Debug, Default)]
pub struct NoIrqs {
    /// The inner `None`: sysfs is not available, or shows another namespace.
    sysfs: OnceCell<Option<Sysfs>>,
    interrupts: OnceCell<Interrupts>,
}

impl NoIrqs {
    /// Returns why a device has instances without a known interrupt; `None` if all are known.
    pub fn of(&self, device: &Device) -> Option<NoIrq> {
        device.napis.iter().find(|napi| napi.irq.is_none())?;
        let open = || {
            let links = Route::open().and_then(|mut route| route.links()).ok()?;
            Sysfs::open(&links).ok()
        };
        let driver = device.driver.as_deref();
        let Some(sysfs) = self.sysfs.get_or_init(open) else {
            // Without sysfs the reason cannot be found out.
            return Some(NoIrq::Unreported { driver: driver.map(str::to_owned) });
        };
        let interrupts = || self.interrupts.get_or_init(|| Interrupts::read().unwrap_or_default());
        Some(no_irq(driver, sysfs.hardware(&device.ifname).as_deref(), interrupts))
    }
}

fn no_irq<'a>(
    driver: Option<&str>,
    hardware: Option<&str>,
    interrupts: impl FnOnce() -> &'a Interrupts,
) -> NoIrq {
    let Some(hardware) = hardware else { return NoIrq::Virtual };
    if driver == Some("virtio_net") {
        // `vp_find_vqs` in drivers/virtio/virtio_pci_common.c: one vector for all queues, or none.
        let shared = format!("{hardware}-virtqueues");
        let named = |device: &str| device.split(", ").any(|it| it == shared || it == hardware);
        if let Some((irq, _)) = interrupts().irqs.iter().find(|(_, it)| named(&it.device)) {
            return NoIrq::Shared { irq: *irq };
        }
    }
    NoIrq::Unreported { driver: driver.map(str::to_owned) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_there_is_no_interrupt_is_said() {
        let why = |driver, hardware, text: &str| {
            let interrupts = Interrupts::parse(text);
            no_irq(driver, hardware, || &interrupts).to_string()
        };
        let vectors = "      CPU0\n 37:  1  PCI-MSIX-0000:00:03.0   0-edge      virtio2-config\n \
                       38:  2925  PCI-MSIX-0000:00:03.0   1-edge      virtio2-virtqueues\n";
        let shared = "its queues share interrupt 38, which is no instance's alone";
        assert_eq!(why(Some("virtio_net"), Some("virtio2"), vectors), shared);
        let line = "      CPU0\n 11:  7  IO-APIC  11-fasteoi   uhci_hcd:usb1, virtio2\n";
        let message = why(Some("virtio_net"), Some("virtio2"), line);
        assert!(message.contains("share interrupt 11"), "{message}");
        let other = why(Some("virtio_net"), Some("virtio1"), vectors);
        assert!(other.contains("driver (virtio_net) does not tell"), "{other}");
        assert!(why(Some("igb"), Some("0000:03:00.0"), vectors).contains("(igb) does not tell"));
        assert_eq!(why(Some("veth"), None, vectors), "a virtual device has no interrupts");
    }
}
