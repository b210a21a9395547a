//! A client of irqbalance's socket, which makes it leave interrupts alone.
//!
//! The command lasts until irqbalance restarts. Its option `--banirq` or a policy script lasts longer.
//! irqbalance answers root only.

use std::io::{self, IoSlice, Read};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

use napkin_os::procfs::Threads;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, UCred, sendmsg};
use rustix::process::{getgid, getpid, getuid};

/// How long to wait for an answer. It comes between two rounds, which take a moment.
const PATIENCE: Duration = Duration::from_secs(5);

/// The maximum size of an answer in bytes; irqbalance takes no longer command.
const LONGEST: usize = 16 * 1_024;

/// A running irqbalance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Irqbalance {
    /// Its process ID.
    pub pid: i32,
}

impl Irqbalance {
    /// Finds the running irqbalance.
    pub fn find() -> Option<Irqbalance> {
        Threads::find().irqbalance.map(|pid| Irqbalance { pid })
    }

    /// Makes it leave these interrupts alone, in addition to those that it leaves alone already, which are returned.
    ///
    /// # Errors
    /// If it does not answer, or not to this user.
    pub fn ban(self, irqs: &[u32]) -> io::Result<Vec<u32>> {
        let before = banned(&self.ask("setup")?);
        let mut all = before.clone();
        all.extend(irqs);
        all.sort_unstable();
        all.dedup();
        let taken = self.leave_alone(&all).and_then(|()| {
            let banned_irqs = banned(&self.ask("setup")?);
            match irqs.iter().all(|irq| banned_irqs.contains(irq)) {
                true => Ok(before.clone()),
                false => Err(io::Error::other("it did not take the command")),
            }
        });
        if taken.is_err() {
            // Best effort: it may not answer.
            let _ = self.leave_alone(&before);
        }
        taken
    }

    /// Makes it leave exactly these interrupts alone; replaces any earlier command.
    ///
    /// # Errors
    /// If it does not answer, or not to this user.
    pub fn leave_alone(self, irqs: &[u32]) -> io::Result<()> {
        self.ask(&ban_command(irqs)).map(drop)
    }

    /// Sends a command and reads the answer, if there is one.
    fn ask(self, command: &str) -> io::Result<String> {
        if command.len() >= LONGEST {
            return Err(io::Error::other("there are too many interrupts for a command of its"));
        }
        let mut stream = self.connect()?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        // irqbalance trusts only credentials that the kernel has verified (`SCM_CREDENTIALS`).
        let me = UCred { pid: getpid(), uid: getuid(), gid: getgid() };
        let mut room = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
        let mut with = SendAncillaryBuffer::new(&mut room);
        with.push(SendAncillaryMessage::ScmCredentials(me));
        let bytes = [IoSlice::new(command.as_bytes())];
        sendmsg(stream.as_fd(), &bytes, &mut with, SendFlags::NOSIGNAL)?;
        stream.shutdown(Shutdown::Write)?;
        let mut answer = String::new();
        Read::by_ref(&mut stream).take(LONGEST as u64).read_to_string(&mut answer)?;
        Ok(answer)
    }

    /// Connects under `/run`, or, if irqbalance could not create a socket there, in the abstract namespace.
    fn connect(self) -> io::Result<UnixStream> {
        let name = format!("irqbalance{}.sock", self.pid);
        let path = PathBuf::from("/run/irqbalance").join(&name);
        UnixStream::connect(path).or_else(|error| {
            let address = SocketAddr::from_abstract_name(&name)?;
            UnixStream::connect_addr(&address).map_err(|_| error)
        })
    }
}

/// The command that replaces the list of banned interrupts.
fn ban_command(irqs: &[u32]) -> String {
    let list: Vec<String> = irqs.iter().map(u32::to_string).collect();
    let list = if list.is_empty() { "NONE".to_owned() } else { list.join(" ") };
    format!("settings ban irqs {list}")
}

/// Parses the banned interrupts from an answer to `setup`: `IRQ 24 LOAD ...`, each.
fn banned(setup: &str) -> Vec<u32> {
    let words: Vec<&str> = setup.split_whitespace().collect();
    let irqs = words.windows(2).filter(|pair| pair[0] == "IRQ");
    irqs.filter_map(|pair| pair[1].parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_alone_is_read_from_its_answer() {
        let setup =
            "SLEEP 10 IRQ 24 LOAD 0 DIFF 0 CLASS 1 IRQ 38 LOAD 7 DIFF 1 CLASS 5 BANNED 00000000";
        assert_eq!(banned(setup), [24, 38]);
        assert!(banned("SLEEP 10 BANNED 00000000").is_empty());
        assert!(banned("IRQ").is_empty() && banned("IRQ x").is_empty());
    }

    #[test]
    fn a_list_that_was_empty_can_be_had_again() {
        assert_eq!(ban_command(&[24, 38]), "settings ban irqs 24 38");
        assert_eq!(ban_command(&[]), "settings ban irqs NONE");
    }
}
