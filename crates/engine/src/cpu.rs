//! One CPU of the engine: the descriptors of its interrupt thread, the parker of its ksoftirqd, and the application
//! threads that want it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::event::epoll;
use rustix::io;

use crate::kick::Kick;
use crate::line::{KICK, TIMER};
use crate::os::{Alarm, Event};
use crate::parker::Parker;
use crate::timer::Timer;

#[derive(Debug)]
pub(crate) struct EngineCpu {
    /// The operating system's number.
    pub(crate) os: usize,
    pub(crate) epoll: Arc<OwnedFd>,
    pub(crate) timer: Timer,
    kick: Kick,
    pub(crate) ksoftirqd: Parker,
    /// Number of application threads that said they run here and do not sleep in the engine.
    wanting: AtomicI32,
}

impl EngineCpu {
    pub(crate) fn new(os: usize) -> io::Result<EngineCpu> {
        let fd = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let kick = Kick::new(Event::new()?);
        let timer = Timer::new(Alarm::new()?);
        // Edge-triggered: each write, and each expiry, is one event, and nothing has to be read.
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&fd, kick.event().as_fd(), epoll::EventData::new_u64(KICK), edge)?;
        epoll::add(&fd, timer.alarm().as_fd(), epoll::EventData::new_u64(TIMER), edge)?;
        Ok(EngineCpu {
            os,
            epoll: Arc::new(fd),
            timer,
            kick,
            ksoftirqd: Parker::default(),
            wanting: AtomicI32::new(0),
        })
    }

    /// Wakes the interrupt thread, to look at everything.
    pub(crate) fn kick(&self) {
        self.kick.kick();
    }

    /// The interrupt thread has woken, and will look at everything.
    pub(crate) fn kick_seen(&self) {
        self.kick.seen();
    }

    /// Adds to the number of application threads that want this CPU; negative if they sleep or go.
    pub(crate) fn want(&self, threads: i32) {
        self.wanting.fetch_add(threads, Ordering::Relaxed);
    }

    /// Whether an application thread wants this CPU.
    pub(crate) fn wanted(&self) -> bool {
        self.wanting.load(Ordering::Relaxed) > 0
    }
}
