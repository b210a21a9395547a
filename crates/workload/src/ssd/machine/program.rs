//! A block service: threads with an epoll context each, which read requests, pass them to a storage device, and
//! answer when the device has finished.

use napkin_core::Ns;
use napkin_machine::{Act, Kind, Machine, Packet, Program, ThreadId};

use crate::machine::requests::{Found, Requests};
use crate::machine::stream::{BURST, copying, packets};
use crate::ssd::device::Device;
use napkin_machine::profile::Profile;
use napkin_traffic::Rng;

/// Bytes of a request or an answer without data.
pub(super) const HEADER: u32 = 64;

/// The tag's bit for a write request, which carries its data.
pub(super) const WRITES: u64 = 1 << 63;

/// The shift of the tag's field with the number of packets of the message that follow.
pub(super) const MORE: u32 = 40;

/// Returns the number of packets that follow, from a packet's tag.
pub(super) fn more(tag: u64) -> u64 {
    (tag & !WRITES) >> MORE
}

#[derive(Debug, Clone, Copy)]
enum At {
    Reading,
    /// The request is with the device.
    Submitted {
        packet: Packet,
    },
    /// The device has finished the request.
    Finished {
        packet: Packet,
    },
    Answered {
        packet: Packet,
    },
}

/// One thread of the service.
#[derive(Debug)]
pub(super) struct Ssd {
    /// Half of the work on a request: one half before the device's time, one after it.
    half: Ns,
    /// Bytes of an operation's data.
    bytes: u32,
    device: Device,
    rng: Rng,
    requests: Requests,
    at: At,
}

impl Ssd {
    /// Returns a thread that serves operations of so many bytes.
    pub(super) fn new(profile: &Profile, bytes: u32, rng: Rng) -> Self {
        let work = profile.time("ssd.work") + copying(profile.time("ssd.work-kib"), bytes);
        let device = Device::new(profile, bytes);
        let requests = Requests::default();
        Ssd { half: work / 2, bytes, device, rng, requests, at: At::Reading }
    }

    fn begin(&mut self, found: Found) -> Act {
        let (at, act) = match found {
            Ok(packet) if packet.bytes == 0 => (At::Finished { packet }, Act::User(self.half)),
            Ok(packet) => (At::Submitted { packet }, Act::User(self.half)),
            Err(act) => (At::Reading, act),
        };
        self.at = at;
        act
    }

    fn read(&mut self, machine: &mut Machine<'_>, me: ThreadId) -> Act {
        let found = self.requests.read(machine, me);
        self.begin(found)
    }

    /// Returns the size of a request's answer in bytes.
    fn answer(&self, packet: &Packet) -> u32 {
        if packet.tag & WRITES == 0 { self.bytes } else { HEADER }
    }
}

impl Program for Ssd {
    fn resume(&mut self, machine: &mut Machine<'_>, me: ThreadId) -> Act {
        let cost = machine.config().cost;
        match self.at {
            At::Reading => {
                let found = self.requests.next(machine, me, more);
                self.begin(found)
            }
            At::Submitted { packet } => {
                let at = machine.now() + self.device.time(&mut self.rng);
                machine.client_timer(at, packet.tag & !WRITES);
                self.read(machine, me)
            }
            At::Finished { packet } => {
                self.at = At::Answered { packet };
                let bytes = self.answer(&packet);
                let frames = Ns::from(bytes.div_ceil(BURST));
                // The device's pages are sent without copying.
                Act::Kernel(cost.send + frames * cost.send_frame)
            }
            At::Answered { packet } => {
                let queue = machine.queue_of(packet.flow);
                packets(self.answer(&packet), |bytes, more| {
                    let tag = (packet.tag & !WRITES) | more << MORE;
                    let answer = Packet::new(packet.flow, Kind::Data, bytes, tag, packet.stamp);
                    machine.transmit(queue, answer);
                });
                self.read(machine, me)
            }
        }
    }
}
