//! A store in memory that answers with the delay of a flash device.
//!
//! A large request arrives in pieces. The device's time is drawn once per request: with the first piece of a read,
//! and with the last piece of a write, when all its data has arrived. The other pieces are served at once.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use napkin_os::clock;
use napkin_policy::{NEVER, Ns};
use napkin_service::nbd::{Action, BlockStore, Ended, MemoryStore, Operation};
use napkin_traffic::Rng;
use rustix::io;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use super::device::Device;

/// One thread's handle of the store. Its timer expires when an operation finishes.
#[derive(Debug)]
pub(super) struct Flash {
    memory: MemoryStore,
    device: Device,
    /// Size of a request in bytes; requests are aligned to it.
    bytes: u64,
    rng: Rng,
    /// When each operation in progress finishes, and its index in `operations`.
    ends: BinaryHeap<Reverse<(Ns, usize)>>,
    operations: Vec<Option<Operation>>,
    free: Vec<usize>,
    timer: Arc<OwnedFd>,
    /// The expiry time that the timer was last set to.
    armed: Ns,
}

impl Flash {
    /// Returns a handle for requests of so many bytes.
    ///
    /// # Errors
    /// If the operating system cannot create a timer.
    pub(super) fn new(
        memory: MemoryStore,
        device: Device,
        bytes: u32,
        seed: u64,
    ) -> io::Result<Flash> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?;
        Ok(Flash {
            memory,
            device,
            bytes: bytes.into(),
            rng: Rng::new(seed),
            ends: BinaryHeap::new(),
            operations: Vec::new(),
            free: Vec::new(),
            timer: Arc::new(timer),
            armed: NEVER,
        })
    }

    /// Returns the timer, which expires when an operation finishes that [`ended`](BlockStore::ended) will return.
    pub(super) fn timer(&self) -> &Arc<OwnedFd> {
        &self.timer
    }

    /// Whether an operation is the piece of its request for which the device's time is drawn.
    fn counts(&self, operation: &Operation) -> bool {
        match &operation.action {
            Action::Read(_) => operation.offset.is_multiple_of(self.bytes),
            Action::Write(bytes) => {
                (operation.offset + bytes.len() as u64).is_multiple_of(self.bytes)
            }
            Action::Flush | Action::Trim(_) | Action::Zero { .. } => false,
        }
    }
}

impl BlockStore for Flash {
    fn size(&self) -> u64 {
        self.memory.size()
    }

    fn begin(&mut self, operation: Operation) -> Option<Ended> {
        if !self.counts(&operation) {
            return self.memory.begin(operation);
        }
        let at = clock::now() + self.device.time(&mut self.rng);
        let number = self.free.pop().unwrap_or_else(|| {
            self.operations.push(None);
            self.operations.len() - 1
        });
        self.operations[number] = Some(operation);
        self.ends.push(Reverse((at, number)));
        None
    }

    fn ended(&mut self) -> Option<Ended> {
        let Reverse((at, number)) = *self.ends.peek()?;
        if at > clock::now() {
            return None;
        }
        self.ends.pop();
        // Another operation may finish at the same time, for which the timer has expired already: it must be set
        // again.
        self.armed = NEVER;
        self.free.push(number);
        let operation = self.operations.get_mut(number)?.take()?;
        self.memory.begin(operation)
    }

    fn submit(&mut self) {
        let Some(Reverse((next, _))) = self.ends.peek() else { return };
        if *next == self.armed {
            return;
        }
        self.armed = *next;
        let zero = clock::timespec(0);
        let at = Itimerspec { it_interval: zero, it_value: clock::timespec(*next) };
        // A valid monotonic time is never refused, and a past one expires at once.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use napkin_machine::profile::Profile;

    fn flash(bytes: u32) -> Flash {
        let profile = Profile::named(crate::schema(), "xeon-56").expect("a profile");
        let memory = MemoryStore::new(1 << 20).expect("a size");
        Flash::new(memory, Device::new(&profile, bytes), bytes, 1).expect("a timer")
    }

    fn operation(tag: u64, offset: u64, action: Action) -> Operation {
        Operation { tag, offset, action }
    }

    /// Waits for the timer, and returns the operation that finished.
    fn wait(flash: &mut Flash) -> Ended {
        loop {
            flash.submit();
            io::read(&*flash.timer, &mut [0; 8]).expect("it expires");
            if let Some(ended) = flash.ended() {
                return ended;
            }
        }
    }

    #[test]
    fn a_request_ends_later_and_has_done_what_it_was_to_do() {
        let mut flash = flash(4_096);
        let write = operation(1, 8_192, Action::Write(vec![7; 4_096]));
        assert_eq!(flash.begin(write), None);
        assert_eq!(flash.ended(), None, "no device is as fast as this");
        assert_eq!(wait(&mut flash).0.tag, 1);
        assert_eq!(flash.begin(operation(2, 8_192, Action::Read(vec![0; 4_096]))), None);
        let (read, result) = wait(&mut flash);
        assert_eq!((read.action, result), (Action::Read(vec![7; 4_096]), Ok(())));
        assert_eq!(flash.ended(), None);
        assert!(flash.begin(operation(3, 0, Action::Flush)).is_some(), "nothing is cached");
    }

    #[test]
    fn of_a_request_in_pieces_the_device_s_time_is_taken_once() {
        let mut flash = flash(512 * 1_024);
        let piece = 256 * 1_024u64;
        let read = |flash: &mut Flash, at| {
            flash.begin(operation(0, at, Action::Read(vec![0; piece as usize]))).is_none()
        };
        let write = |flash: &mut Flash, at| {
            flash.begin(operation(0, at, Action::Write(vec![0; piece as usize]))).is_none()
        };
        let waits = [read(&mut flash, 0), read(&mut flash, piece)];
        assert_eq!(waits, [true, false], "the first of a read");
        let waits = [write(&mut flash, 2 * piece), write(&mut flash, 3 * piece)];
        assert_eq!(waits, [false, true], "the last of a write");
    }

    #[test]
    fn two_that_end_at_one_time_are_each_told() {
        let mut flash = flash(4_096);
        (0..2).for_each(|tag| {
            flash.begin(operation(tag, 0, Action::Read(vec![0; 4_096])));
        });
        let at = clock::now();
        flash.ends = [0, 1].map(|number| Reverse((at, number))).into();
        assert_eq!([wait(&mut flash).0.tag, wait(&mut flash).0.tag], [0, 1]);
    }

    #[test]
    fn whatever_ends_first_is_told_first_and_all_are_told() {
        let mut flash = flash(4_096);
        for tag in 0..200 {
            flash.begin(operation(tag, 4_096 * tag, Action::Read(vec![0; 4_096])));
        }
        let mut tags: Vec<u64> = (0..200).map(|_| wait(&mut flash).0.tag).collect();
        assert!(!tags.is_sorted(), "they differ by more than the order in which they began");
        tags.sort();
        assert!(tags.into_iter().eq(0..200));
        assert_eq!(flash.operations.len(), 200);
        flash.begin(operation(0, 0, Action::Read(vec![0; 4_096])));
        assert_eq!(flash.operations.len(), 200, "places are used again");
    }
}
