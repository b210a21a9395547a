//! Executes each step that the core asks for.

use napkin_core::*;

use super::{Any, EventKind, Frame, HardIrq, Role, World};

/// How a task goes on after a step.
enum After {
    Did(Did),
    Asleep(Ns),
    Nested(CpuId),
    Ended,
}

impl<'a> World<'a> {
    /// Advances one task by one half-step.
    pub(super) fn advance(&mut self, task: usize) -> Result<(), String> {
        self.tasks[task].asleep = None;
        if let Role::Irq(cpu) = self.tasks[task].role {
            let slot = usize::from(cpu.0);
            let idle = self.tasks[task].stack.is_empty();
            match self.hard_work(task) {
                Some(hard) if idle || self.random.once_in(2) => return self.interrupt(task, &hard),
                _ if idle => {
                    self.raised[slot] = false;
                    let competition = self.random.once_in(2);
                    let softirq = Softirq::new(self.host, cpu, Context::Interrupt { competition });
                    self.tasks[task].stack.push(Frame::new(Any::Softirq(softirq, cpu)));
                    return Ok(());
                }
                _ => {}
            }
        }
        match self.tasks[task].stack.last() {
            None => self.app_goes_on(task),
            Some(frame) if frame.pending.is_some() => self.execute(task),
            Some(_) => self.decide(task),
        }
    }

    /// A hard interrupt: taking it and the handler's first step are one half-step.
    fn interrupt(&mut self, task: usize, hard: &HardIrq) -> Result<(), String> {
        let Role::Irq(cpu) = self.tasks[task].role else { return Ok(()) };
        self.watch.activity += 1;
        match *hard {
            HardIrq::Line(id) => {
                self.device(id).line = false;
                let pass = Any::Interrupt(Interrupt::new(self.host, id));
                self.tasks[task].stack.push(Frame::new(pass));
                self.decide(task)
            }
            HardIrq::Timer => {
                let slot = usize::from(cpu.0);
                self.timers[slot] = NEVER;
                for id in self.host.ids().filter(|&id| self.host.instance(id).cpu() == cpu) {
                    if let Some(op) = self.host.timer(id, cpu, self.now) {
                        self.note(task, EventKind::Next(op));
                        self.carry_out(task, op)?;
                    }
                }
                self.timers[slot] = self.timers[slot].min(self.host.next_deadline(cpu));
                Ok(())
            }
        }
    }

    /// The first half-step: the core decides.
    fn decide(&mut self, task: usize) -> Result<(), String> {
        let Some(mut frame) = self.tasks[task].stack.pop() else { return Ok(()) };
        let before = self.before(&frame);
        let op = frame.pass.next(self.now, frame.did);
        frame.pending = Some(op);
        self.note(task, EventKind::Next(op));
        let checked = self.decided(&mut frame, before, op);
        self.tasks[task].stack.push(frame);
        checked
    }

    /// The second half-step: the world takes the decided step.
    fn execute(&mut self, task: usize) -> Result<(), String> {
        let Some(mut frame) = self.tasks[task].stack.pop() else { return Ok(()) };
        let Some(op) = frame.pending.take() else { return Ok(()) };
        if let Op::Poll { id, .. } | Op::Deliver(id) | Op::Mask(id) | Op::Unmask(id) = op {
            self.alone(id, op)?;
        }
        let after = match op {
            Op::Poll { id, budget } => {
                let work = frame.pass.queue().poll(budget, self.now);
                self.polled(&mut frame, id, budget, work)?;
                After::Did(Did::Polled(work))
            }
            Op::Deliver(id) => {
                let pressure = frame.pass.queue().deliver(self.now);
                self.wake_receivers(id);
                After::Did(Did::Delivered(pressure))
            }
            Op::Mask(_) => {
                frame.pass.queue().mask();
                After::Did(Did::Ok)
            }
            Op::Unmask(_) => {
                let waits = frame.pass.queue().unmask(self.now);
                self.watch.activity += u64::from(waits);
                After::Did(Did::Unmasked(waits))
            }
            Op::Look => After::Did(self.look(task, &mut frame)),
            Op::Sleep(until) => self.sleep(task, until),
            Op::RunHere(cpu) => After::Nested(cpu),
            Op::Done => After::Ended,
            other => {
                self.carry_out(task, other)?;
                After::Did(Did::Ok)
            }
        };
        match after {
            After::Did(Did::Ok) if self.random.once_in(16) => frame.did = Did::Resched,
            After::Did(did) => frame.did = did,
            After::Asleep(until) => {
                frame.did = self.signal_or_ok(task);
                self.tasks[task].asleep = Some(until);
            }
            After::Nested(_) => frame.did = Did::Ok,
            After::Ended => return self.ended(task, frame),
        }
        self.note(task, EventKind::Did(frame.did));
        self.tasks[task].stack.push(frame);
        if let After::Nested(cpu) = after {
            self.run_here(task, cpu);
        }
        Ok(())
    }

    fn run_here(&mut self, task: usize, cpu: CpuId) {
        let pass = Any::Softirq(Softirq::new(self.host, cpu, Context::Application), cpu);
        self.tasks[task].stack.push(Frame::new(pass));
    }

    /// Takes the steps that need no pass, also for control calls.
    pub(super) fn carry_out(&mut self, task: usize, op: Op) -> Result<(), String> {
        match op {
            Op::Arm { id, at } => {
                let slot = usize::from(self.host.instance(id).cpu().0);
                self.timers[slot] = self.timers[slot].min(at);
            }
            Op::Wake(who) => self.wake(who),
            Op::Raise(cpu) => self.raised[usize::from(cpu.0)] = true,
            Op::RunHere(cpu) => self.run_here(task, cpu),
            Op::Vector(..) | Op::Resched | Op::Yield | Op::Pause => {}
            other => return Err(format!("{other:?} where nothing is owned")),
        }
        Ok(())
    }

    fn wake(&mut self, who: Task) {
        let task = match who {
            Task::Napi(id) => {
                let task = self.task(Role::Napi(id));
                if self.tasks[task].stack.is_empty() {
                    self.restart(task);
                }
                task
            }
            Task::Ksoftirqd(cpu) => self.task(Role::Ksoftirqd(cpu)),
            Task::Worker => {
                let sleeper = (0..self.tasks.len()).find(|&task| {
                    let task = &self.tasks[task];
                    task.role == Role::Worker && task.asleep.is_some() && !task.woken
                });
                match sleeper {
                    Some(task) => task,
                    None => {
                        self.worker_tokens = (self.worker_tokens + 1).min(self.tasks.len());
                        return;
                    }
                }
            }
        };
        self.tasks[task].woken = true;
    }

    fn sleep(&mut self, task: usize, until: Ns) -> After {
        let woken = std::mem::take(&mut self.tasks[task].woken);
        let ready = match self.tasks[task].role {
            Role::App(app) => self.draining || self.sockets.borrow()[app].frames > 0,
            Role::Worker if self.worker_tokens > 0 => {
                self.worker_tokens -= 1;
                true
            }
            _ => false,
        };
        if woken || ready || until <= self.now {
            return After::Did(self.signal_or_ok(task));
        }
        After::Asleep(until)
    }

    /// A sleep of an application may end by a signal, and does once the world winds down.
    fn signal_or_ok(&mut self, task: usize) -> Did {
        let app = matches!(self.tasks[task].role, Role::App(_));
        if app && (self.draining || self.random.once_in(10)) { Did::Interrupted } else { Did::Ok }
    }

    fn look(&mut self, task: usize, frame: &mut Frame<'a>) -> Did {
        let Role::App(app) = self.tasks[task].role else { return Did::Events(0) };
        let frames = self.sockets.borrow()[app].frames;
        frame.looked_in_vain = frames == 0;
        if self.draining || self.random.once_in(30) {
            frame.looked_in_vain = false;
            return Did::Interrupted;
        }
        if frames == 0 && self.random.once_in(16) {
            return Did::Resched;
        }
        Did::Events(frames)
    }

    fn ended(&mut self, task: usize, frame: Frame<'a>) -> Result<(), String> {
        self.note(task, EventKind::Did(Did::Ok));
        match (self.tasks[task].role, frame.pass) {
            (Role::Napi(id), Any::Kthread(_)) => {
                let state = self.host.instance(id).state();
                if state.has(state::THREADED | state::SCHED_THREADED) {
                    self.restart(task);
                }
                Ok(())
            }
            (Role::App(app), Any::Epoll(wait)) => self.app_waited(task, app, wait.events()),
            (Role::App(app), Any::Socket(wait)) => self.app_waited(task, app, wait.frames()),
            (Role::Control(id), Any::Disable(_)) => {
                self.watch.disabling[usize::from(id.0)] = None;
                let state = self.host.instance(id).state();
                let device = self.device(id);
                if !state.disabled() || !device.masked {
                    return Err(format!("{id:?} is not disabled and masked: {state:?}"));
                }
                drop(device);
                // An application that suspends it at this moment arms a timer in vain: it is disabled.
                let instance = self.host.instance(id);
                if instance.deadline() != NEVER && instance.suspending_contexts() == 0 {
                    return Err(format!("{id:?} is disabled with a timer"));
                }
                self.enable_to_drain(id);
                Ok(())
            }
            (Role::Control(id), _) => {
                self.enable_to_drain(id);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn enable_to_drain(&mut self, id: Id) {
        if self.draining {
            self.enable(id);
        }
    }

    /// Drops a context between two steps, as if it had panicked there; the world then runs every CPU's softirqs
    /// once and restarts its loops.
    pub(super) fn abandon(&mut self, task: usize) -> Result<(), String> {
        let Some(frame) = self.tasks[task].stack.pop() else { return Ok(()) };
        self.act_note(format!("abandon {:?} at {:?}", self.tasks[task].role, frame.pending));
        let owed =
            frame.pending.filter(|op| matches!(op, Op::Wake(_) | Op::Raise(_) | Op::Arm { .. }));
        drop(frame);
        self.tasks[task].asleep = None;
        if let Some(op) = owed {
            self.carry_out(task, op)?;
        }
        self.restart(task);
        match self.tasks[task].role {
            Role::App(app) => {
                while self.tasks[task].stack.pop().is_some() {}
                if let Some(op) = self.contexts[app].close(self.host, RaisedFrom::Thread) {
                    self.carry_out(task, op)?;
                }
                self.apps[app].ready_at = self.now + 20_000;
            }
            Role::Control(id) => self.watch.disabling[usize::from(id.0)] = None,
            _ => {}
        }
        self.raised.fill(true);
        self.watch.activity += 1;
        self.watch.wrong.fill(0);
        Ok(())
    }
}
