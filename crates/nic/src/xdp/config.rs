//! What an AF_XDP device is opened with, and what of it is refused before the kernel is asked.

use std::net::IpAddr;

use super::error::XdpError;
use super::limits::{MAX_PORTS, MAX_RING, MAX_XDP_ADDRESSES, MAX_XDP_QUEUES};

/// Which frames are taken. All others go on to the kernel as if nobody were here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Traffic {
    /// Every frame of the queues, ARP and neighbour discovery too: the kernel receives nothing there.
    All,
    /// UDP and TCP to these ports of these addresses, in no VLAN that the frame itself tells of. Fragments, ARP, neighbour discovery and
    /// everything else stay the kernel's, so `ssh` goes on, the kernel answers for the address, and what
    /// it forwards it still receives.
    Ports {
        /// 1 to [`MAX_PORTS`] ports, none of them 0.
        ports: Vec<u16>,
        /// 1 to [`MAX_XDP_ADDRESSES`] addresses, IPv4 or IPv6.
        addresses: Vec<IpAddr>,
    },
}

/// Where the program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// In the driver if it can, otherwise behind it.
    #[default]
    Auto,
    /// In the driver.
    Native,
    /// Behind the driver, in the kernel's stack: works with any, and costs a kernel's packet buffer.
    Generic,
}

/// Who moves a frame's bytes between the card and this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Copying {
    /// The card itself where the driver can, otherwise the kernel copies.
    #[default]
    Auto,
    /// The kernel copies.
    Copy,
    /// The card itself: zero-copy, or an error.
    Zero,
}

/// The kernel's NAPI below is polled by us, from an empty ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BusyPoll {
    /// `SO_BUSY_POLL`: microseconds, at least 1. A call never waits; it says that calls may poll.
    pub usecs: u32,
    /// `SO_BUSY_POLL_BUDGET`: frames that a call takes at most, at least 1.
    pub budget: u16,
    /// `SO_PREFER_BUSY_POLL`: not by its interrupts as well. These are put off, as far as the interface's
    /// `napi_defer_hard_irqs` and `gro_flush_timeout` are set; without them it is both.
    pub prefer: bool,
}

impl Default for BusyPoll {
    fn default() -> Self {
        BusyPoll { usecs: 20, budget: 64, prefer: true }
    }
}

/// An AF_XDP device: an interface, and those of its queues that are ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XdpConfig {
    /// The interface's name.
    pub interface: String,
    /// Its queues, each once; none means all that it receives on.
    pub queues: Vec<u32>,
    /// What is taken.
    pub traffic: Traffic,
    /// Where the program runs.
    pub mode: Mode,
    /// Who moves the bytes.
    pub copying: Copying,
    /// Frames of the ring of received ones, a power of two up to [`MAX_RING`].
    pub rx_ring: u32,
    /// Frames that may be on their way out, a power of two up to [`MAX_RING`].
    pub tx_ring: u32,
    /// Whether the kernel's NAPI is polled from here.
    pub busy_poll: Option<BusyPoll>,
    /// Whether the card takes frames to any Ethernet address, and not to its own alone, for as long as there is
    /// a queue.
    pub promiscuous: bool,
}

impl XdpConfig {
    /// All traffic of all queues of an interface, in whatever mode it has.
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

    /// Buffers that a pool needs for one queue, beside those that are in the application's hands.
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

    fn told(change: impl FnOnce(&mut XdpConfig)) -> String {
        let mut config = XdpConfig::new("eth0");
        change(&mut config);
        config.check().expect_err("refused").to_string()
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_value_and_what_to_do() {
        XdpConfig::new("eth0").check().expect("the defaults are possible");
        assert!(told(|it| it.rx_ring = 1000).contains("1000"));
        assert!(told(|it| it.tx_ring = 0).contains("power of two"));
        assert!(told(|it| it.rx_ring = 1 << 17).contains("65536"));
        let to = |ports: &[u16], addresses: usize| Traffic::Ports {
            ports: ports.to_vec(),
            addresses: vec![Ipv4Addr::LOCALHOST.into(); addresses],
        };
        assert!(told(|it| it.traffic = to(&[], 1)).contains("ports"));
        assert!(told(|it| it.traffic = to(&[0], 1)).contains("port"));
        assert!(told(|it| it.traffic = to(&[7], 0)).starts_with("0 addresses"));
        assert!(told(|it| it.traffic = to(&[7], 9)).starts_with("9 addresses"));
        assert!(told(|it| it.queues = vec![1, 0, 1]).contains("queue 1"));
        assert!(
            told(|it| (it.mode, it.copying) = (Mode::Generic, Copying::Zero)).contains("native")
        );
        assert!(
            told(|it| it.busy_poll = Some(BusyPoll { usecs: 0, ..BusyPoll::default() }))
                .contains("at least 1")
        );
    }
}
