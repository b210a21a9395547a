//! Applications: they wait (epoll or a socket call), read what came, work on it, and sometimes
//! stall.

use napkin_core::*;
use napkin_policy::{ApplicationPolicy, EpollPolicy};

use super::{Any, Frame, Random, Role, World};

/// One application with one socket and one epoll context.
#[derive(Debug)]
pub(crate) struct App {
    /// Whether it uses `epoll_wait`; otherwise receive calls.
    pub(crate) epoll: bool,
    pub(crate) spin: bool,
    pub(crate) policy: ApplicationPolicy,
    /// When it waits again.
    pub(crate) ready_at: Ns,
    /// The instance that last delivered to its socket.
    pub(crate) napi: Option<Id>,
}

impl App {
    pub(crate) fn new(random: &mut Random) -> Self {
        App {
            epoll: !random.once_in(4),
            spin: random.once_in(5),
            policy: ApplicationPolicy {
                socket_busy_poll_usecs: random.pick(&[0, 5, 50]),
                socket_busy_poll_budget: random.pick(&[0, 1, 64]),
                socket_prefer_busy_poll: random.once_in(2),
                ..ApplicationPolicy::default()
            },
            ready_at: random.below(50_000),
            napi: None,
        }
    }
}

pub(crate) fn random_epoll(random: &mut Random) -> EpollPolicy {
    EpollPolicy {
        busy_poll_usecs: random.pick(&[0, 0, 5, 50, 200]),
        busy_poll_budget: random.pick(&[0, 1, 8, 64]),
        prefer_busy_poll: random.once_in(2),
        keep_napi_id: random.once_in(4),
    }
}

impl World<'_> {
    /// Begins an application's next wait.
    pub(super) fn app_goes_on(&mut self, task: usize) -> Result<(), String> {
        let Role::App(app) = self.tasks[task].role else { return Ok(()) };
        if self.draining {
            self.apps[app].ready_at = NEVER;
            self.sockets.borrow_mut()[app].read(u32::MAX);
            if let Some(op) = self.contexts[app].close(self.host, RaisedFrom::Application) {
                self.carry_out(task, op)?;
            }
            return Ok(());
        }
        let timeout = self.random.pick(&[None, Some(0), Some(10_000), Some(100_000)]);
        let this = &self.apps[app];
        let pass = if this.epoll {
            let spin = this.spin;
            Any::Epoll(EpollWait::new(self.host, &self.contexts[app], timeout, spin))
        } else {
            Any::Socket(SocketWait::new(self.host, this.policy, this.napi, timeout))
        };
        self.tasks[task].woken = false;
        self.tasks[task].stack.push(Frame::new(pass));
        Ok(())
    }

    /// Handles the end of a wait: read, work, stall.
    pub(super) fn app_waited(
        &mut self,
        task: usize,
        app: usize,
        events: u32,
    ) -> Result<(), String> {
        let most = self.random.pick(&[1, 8, 64]);
        let (read, drained) = {
            let socket = &mut self.sockets.borrow_mut()[app];
            (if events > 0 { socket.read(most) } else { 0 }, socket.drained())
        };
        let work = Ns::from(read) * self.random.pick(&[50, 500, 5_000]);
        let stall = if self.random.once_in(20) { self.random.below(500_000) } else { 0 };
        self.apps[app].ready_at = self.now + 200 + work + stall;
        // A receiver that has drained has its parked queues polled again.
        for id in self.host.ids() {
            let parked = {
                let device = self.device(id);
                device.pressure == Pressure::Full && device.receivers.contains(&app)
            };
            if read > 0 && drained && parked {
                self.device(id).pressure = Pressure::Room;
                self.watch.activity += 1;
                if let Some(op) = self.host.schedule(id, RaisedFrom::Application) {
                    self.carry_out(task, op)?;
                }
            }
        }
        Ok(())
    }

    /// Follows a delivery: the receivers' contexts follow the instance, and the receivers wake.
    pub(super) fn wake_receivers(&mut self, id: Id) {
        let woken = std::mem::take(&mut self.device(id).woken);
        for app in woken {
            self.contexts[app].follow(id);
            self.apps[app].napi = Some(id);
            let task = self.task(Role::App(app));
            self.tasks[task].woken = true;
        }
    }
}
