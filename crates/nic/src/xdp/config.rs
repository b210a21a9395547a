//! The configuration of an AF_XDP device, and the checks made before the kernel is called.

use std::net::IpAddr;

use super::error::XdpError;
use super::limits::{MAX_PORTS, MAX_RING, MAX_XDP_ADDRESSES, MAX_XDP_QUEUES};

/// The frames that are taken. All others go on to the kernel unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Traffic {
    /// Every frame of the queues, including ARP and neighbour discovery: the kernel receives nothing there.
    All,
    /// UDP and TCP to these ports of these addresses, without a VLAN tag in the frame. Fragments, ARP, neighbour
    /// discovery and everything else stay with the kernel, so `ssh` keeps working, the kernel answers ARP for the
    /// address, and it still receives the packets that it forwards.
    Ports {
        /// 1 to [`MAX_PORTS`] ports, none of them 0.
        ports: Vec<u16>,
        /// 1 to [`MAX_XDP_ADDRESSES`] addresses, IPv4 or IPv6.
        addresses: Vec<IpAddr>,
    },
}

/// Where the XDP program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Native if the driver supports it, otherwise generic.
    #[default]
    Auto,
    /// In the driver.
    Native,
    /// In the kernel's stack, after the driver: works with any driver, at the cost of an sk_buff per frame.
    Generic,
}

/// What copies a frame's bytes between the NIC and this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Copying {
    /// Zero-copy if the driver supports it, otherwise the kernel copies.
    #[default]
    Auto,
    /// The kernel copies.
    Copy,
    /// The NIC itself (zero-copy); an error if the driver does not support it.
    Zero,
}

/// Busy polling of the queue's kernel NAPI instance, by polls that find the ring empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BusyPoll {
    /// `SO_BUSY_POLL`, in microseconds, at least 1. Calls never wait; the value only enables polling.
    pub usecs: u32,
    /// `SO_BUSY_POLL_BUDGET`: the most frames per call, at least 1.
    pub budget: u16,
    /// `SO_PREFER_BUSY_POLL`: whether interrupts are deferred, within the limits of the interface's
    /// `napi_defer_hard_irqs` and `gro_flush_timeout`. If those are not set, interrupts keep polling the instance
    /// as well.
    pub prefer: bool,
}

impl Default for BusyPoll {
    fn default() -> Self {
        BusyPoll { usecs: 20, budget: 64, prefer: true }
    }
}

/// The configuration of an AF_XDP device: an interface, and which of its queues to open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XdpConfig {
    /// The interface's name.
    pub interface: String,
    /// Numbers of the queues, each once; empty for all of them (the first, if the driver does not report how many).
    pub queues: Vec<u32>,
    /// The frames that are taken.
    pub traffic: Traffic,
    /// Where the XDP program runs.
    pub mode: Mode,
    /// What copies the bytes.
    pub copying: Copying,
    /// Size of the receive ring in frames, a power of two up to [`MAX_RING`].
    pub rx_ring: u32,
    /// Size of the transmit ring in frames, a power of two up to [`MAX_RING`].
    pub tx_ring: u32,
    /// Busy polling of the kernel's NAPI instance, if any.
    pub busy_poll: Option<BusyPoll>,
    /// Whether the interface is promiscuous while a queue is open.
    pub promiscuous: bool,
}

impl XdpConfig {
    /// All traffic of all queues of an interface, in the best mode that it supports.
    pub fn new(interface: &str) -> XdpConfig {
        XdpConfig {
            interface: interface.to_owned(),
            queues: Vec::new(),
            traffic: Traffic::All,
            mode: Mode::Auto,
            copying: Copying::Auto,
            rx_ring: 1024,
            tx_ring: 1024,
            busy_poll: None,
            promiscuous: false,
        }
    }

    /// The number of buffers that a pool needs for one queue, besides those of frames that the application holds.
    pub fn buffers_of_a_queue(&self) -> usize {
        self.rx_ring as usize + self.tx_ring as usize
    }

    pub(super) fn check(&self) -> Result<(), XdpError> {
        for (which, size) in [("receive", self.rx_ring), ("transmit", self.tx_ring)] {
            if !size.is_power_of_two() || size > MAX_RING {
                return Err(XdpError::Ring { which, size });
            }
        }
        if let Traffic::Ports { ports, addresses } = &self.traffic {
            if ports.is_empty() || ports.len() > MAX_PORTS || ports.contains(&0) {
                return Err(XdpError::Ports { given: ports.len() });
            }
            if !(1..=MAX_XDP_ADDRESSES).contains(&addresses.len()) {
                return Err(XdpError::Addresses { given: addresses.len() });
            }
        }
        if self.queues.len() > MAX_XDP_QUEUES {
            return Err(XdpError::TooManyQueues { given: self.queues.len() });
        }
        for (place, queue) in self.queues.iter().enumerate() {
            if self.queues[..place].contains(queue) {
                return Err(XdpError::Twice { queue: *queue });
            }
        }
        if self.mode == Mode::Generic && self.copying == Copying::Zero {
            return Err(XdpError::GenericCopies);
        }
        match self.busy_poll {
            Some(poll) if poll.usecs == 0 || poll.budget == 0 => Err(XdpError::BusyPoll),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn refusal(change: impl FnOnce(&mut XdpConfig)) -> String {
        let mut config = XdpConfig::new("eth0");
        change(&mut config);
        config.check().expect_err("refused").to_string()
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_value_and_what_to_do() {
        XdpConfig::new("eth0").check().expect("the defaults are possible");
        assert!(refusal(|it| it.rx_ring = 1000).contains("1000"));
        assert!(refusal(|it| it.tx_ring = 0).contains("power of two"));
        assert!(refusal(|it| it.rx_ring = 1 << 17).contains("65536"));
        let to = |ports: &[u16], addresses: usize| Traffic::Ports {
            ports: ports.to_vec(),
            addresses: vec![Ipv4Addr::LOCALHOST.into(); addresses],
        };
        assert!(refusal(|it| it.traffic = to(&[], 1)).contains("ports"));
        assert!(refusal(|it| it.traffic = to(&[0], 1)).contains("port"));
        assert!(refusal(|it| it.traffic = to(&[7], 0)).starts_with("0 addresses"));
        assert!(refusal(|it| it.traffic = to(&[7], 9)).starts_with("9 addresses"));
        assert!(refusal(|it| it.queues = vec![1, 0, 1]).contains("queue 1"));
        assert!(
            refusal(|it| (it.mode, it.copying) = (Mode::Generic, Copying::Zero)).contains("native")
        );
        assert!(
            refusal(|it| it.busy_poll = Some(BusyPoll { usecs: 0, ..BusyPoll::default() }))
                .contains("at least 1")
        );
    }
}
