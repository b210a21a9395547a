//! Virtio devices over vhost-user: the syntax of the option, and opening the queues.

use std::fmt;
use std::path::PathBuf;

use napkin_nic::Pool;
use napkin_nic::vhost::{FrontendConfig, MAX_RING, MAX_VHOST_QUEUES, Vhost, VhostError};

/// Default number of entries of a frontend's rings.
const RING: u16 = 256;

/// Our side of the rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// We listen, and are the NIC of the driver that connects: a virtual machine, DPDK's `virtio_user`.
    Backend,
    /// We connect, and drive the device of the backend that listens: DPDK's `net_vhost`, another napkin.
    Frontend,
}

/// A virtio device: `vhost:PATH[:QUEUES]`, `virtio-user:PATH[:QUEUES][:packed][:ring-N]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Virtio {
    /// Our side of the socket.
    pub side: Side,
    /// Path of the vhost-user socket.
    pub path: PathBuf,
    /// Pairs of rings; `None` for the common number of queues.
    pub queues: Option<u16>,
    /// Whether a frontend uses packed rings. A backend accepts what its driver chooses.
    pub packed: bool,
    /// Entries of each ring of a frontend, a power of two.
    pub ring: u16,
}

impl Virtio {
    /// Parses the text after `vhost:` or `virtio-user:`. A path may contain colons if the part after the last one
    /// is not an option.
    pub(super) fn parse(side: Side, text: &str) -> Result<Virtio, String> {
        let mut this =
            Virtio { side, path: PathBuf::new(), queues: None, packed: false, ring: RING };
        let mut rest = text;
        while let Some((before, last)) = rest.rsplit_once(':') {
            let number = |text: &str| text.parse::<u16>().ok();
            if !last.is_empty() && last.bytes().all(|it| it.is_ascii_digit()) {
                let queues = number(last).filter(|it| (1..=MAX_VHOST_QUEUES).contains(it));
                this.queues = Some(queues.ok_or_else(|| {
                    format!("{this} has 1 to {MAX_VHOST_QUEUES} queues, not {last}")
                })?);
            } else if last == "packed" || last.starts_with("ring-") {
                if side == Side::Backend {
                    return Err(format!(
                        "{last} is for virtio-user: the driver of a vhost device makes the rings"
                    ));
                }
                match last.strip_prefix("ring-") {
                    None => this.packed = true,
                    Some(size) => {
                        let ring = number(size).filter(|it| it.is_power_of_two());
                        let ring = ring.filter(|it| (16..=MAX_RING).contains(it));
                        this.ring = ring.ok_or_else(|| {
                            format!(
                                "a ring has 16 to {MAX_RING} entries, a power of two, not {size}"
                            )
                        })?;
                    }
                }
            } else {
                break;
            }
            rest = before;
        }
        if rest.is_empty() {
            return Err(format!("{this} has the path of a socket, as in {this}:/run/nk0.sock"));
        }
        this.path = rest.into();
        Ok(this)
    }

    /// The device's name: that of its socket without the extension, truncated, and with unusual characters
    /// replaced.
    pub(super) fn name(&self) -> String {
        /// Longest name of an interface in bytes.
        const LONGEST: usize = 15;
        let stem = self.path.file_stem().unwrap_or(self.path.as_os_str());
        let harmless =
            |it: char| if it.is_ascii_alphanumeric() || "._-".contains(it) { it } else { '-' };
        stem.to_string_lossy().chars().take(LONGEST).map(harmless).collect()
    }

    /// Starts to listen, or to connect.
    pub(super) fn open(&self, queues: u16, pool: &Pool) -> Result<Vhost, VhostError> {
        match self.side {
            Side::Backend => Vhost::backend(&self.path, queues, pool),
            Side::Frontend => {
                let Virtio { packed, ring, .. } = *self;
                let config = FrontendConfig { path: self.path.clone(), queues, packed, ring };
                Vhost::frontend(&config, pool)
            }
        }
    }

    /// A description of the peer, as part of a sentence.
    pub(super) fn other(&self) -> String {
        let path = self.path.display();
        match self.side {
            Side::Backend => format!("the driver that connects to {path}"),
            Side::Frontend => format!("the backend that listens at {path}"),
        }
    }
}

impl fmt::Display for Virtio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.side {
            Side::Backend => "vhost",
            Side::Frontend => "virtio-user",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_its_socket_and_what_stands_behind_it() {
        let parse = |text| Virtio::parse(Side::Frontend, text).expect(text);
        let device = parse("/run/a.sock:2:packed:ring-1024");
        assert_eq!((device.path.to_str(), device.name().as_str()), (Some("/run/a.sock"), "a"));
        assert_eq!((device.queues, device.packed, device.ring), (Some(2), true, 1_024));
        assert_eq!(parse("/run/vhost user/the first guest's.sock").name(), "the-first-guest");
        let device = parse("/run/a:b");
        assert_eq!((device.path.to_str(), device.queues), (Some("/run/a:b"), None));
        for (wrong, why) in [
            ("", "has the path of a socket"),
            (":2", "has the path of a socket"),
            ("a:0", "1 to 64 queues, not 0"),
            ("a:65", "1 to 64 queues, not 65"),
            ("a:ring-100", "a power of two, not 100"),
            ("a:ring-", "a power of two, not "),
        ] {
            let error = Virtio::parse(Side::Frontend, wrong).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        let error = Virtio::parse(Side::Backend, "a:packed").unwrap_err();
        assert!(error.contains("the driver of a vhost device makes the rings"), "{error}");
    }
}
