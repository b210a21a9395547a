//! Control actions on a running world: settings, modes, disable and enable, queues replaced, contexts closed, CPUs
//! changed, other vectors raised.

use napkin_core::*;
use napkin_policy::{CpuPolicy, InstancePolicy, NetSoftirq, Policy, Threaded};

use super::app::random_epoll;
use super::{Any, Frame, Port, Random, Role, World};

/// Any instance policy; the times are short so that a run sees many of them pass.
pub(crate) fn random_policy(random: &mut Random) -> InstancePolicy {
    let modes = [Threaded::Disabled, Threaded::Enabled, Threaded::BusyPoll, Threaded::Workqueue];
    let mode = if random.once_in(2) { Threaded::Disabled } else { random.pick(&modes) };
    InstancePolicy {
        threaded: mode,
        defer_hard_irqs: random.pick(&[0, 1, 2, 5, 100]),
        gro_flush_timeout: random.pick(&[0, 1_000, 5_000, 20_000, 50_000]),
        irq_suspend_timeout: random.pick(&[0, 0, 20_000, 200_000, 1_000_000, 20_000_000]),
        hold: random.pick(&[0, 0, 0, 5_000, 50_000]),
        hold_tick: random.pick(&[0, 0, 7_000, 40_000]),
        feedback: random.once_in(4),
    }
}

fn random_cpu(random: &mut Random) -> (CpuPolicy, Limits) {
    let places = [NetSoftirq::Inline, NetSoftirq::Ksoftirqd, NetSoftirq::KsoftirqdAsPosted];
    let policy =
        CpuPolicy { net_softirq: random.pick(&places), inline_while_ksoftirqd: random.once_in(2) };
    let limits = Limits {
        budget: random.pick(&[1, 64, 300, 300]),
        budget_time: random.pick(&[1_000, 20_000, 2 * MILLISECOND]),
        dispatch_time: random.pick(&[1_000, 50_000, 2 * MILLISECOND]),
        dispatch_passes: random.pick(&[1, 3, 10]),
    };
    (policy, limits)
}

impl World<'_> {
    /// Performs one action at random.
    pub(super) fn act(&mut self) -> Result<(), String> {
        let id = Id(self.random.below(u64::from(self.plan.instances)) as u16);
        let cpu = CpuId(self.random.below(u64::from(self.plan.cpus)) as u16);
        let app = self.random.index(self.plan.apps);
        let control = self.task(Role::Control(id));
        let free = self.tasks[control].stack.is_empty();
        match self.random.below(14) {
            0..=3 => {
                let policy = random_policy(&mut self.random);
                self.set(id, &policy);
            }
            4 => {
                if let Some(op) = self.host.set_cpu(id, cpu) {
                    self.carry_out(control, op)?;
                }
                self.act_note(format!("{id:?} moves to {cpu:?}"));
            }
            5 => {
                let (policy, limits) = random_cpu(&mut self.random);
                self.host.cpu(cpu).set_policy(policy);
                self.host.cpu(cpu).set_limits(limits);
                self.act_note(format!("{cpu:?}: {policy:?} {limits:?}"));
            }
            6 | 7 if free => {
                if self.host.instance(id).state().disabled() {
                    self.enable(id);
                } else {
                    self.disable(id);
                }
            }
            8 if free => {
                let pass = Any::TxPoll(TxPoll::new(self.host, id));
                self.tasks[control].stack.push(Frame::new(pass));
            }
            9 => {
                let params = random_epoll(&mut self.random);
                self.contexts[app].set(params);
                self.act_note(format!("app {app}: {params:?}"));
            }
            10 => self.close(app)?,
            11 => {
                let vector = self.random.pick(&[Vector::Timer, Vector::Tasklet, Vector::Rcu]);
                let from = self.random.pick(&[RaisedFrom::Interrupt, RaisedFrom::Thread]);
                // Another vector leads to another pass over all that is pending.
                self.watch.activity += 1;
                if let Some(op) = self.host.raise_vectors(cpu, vector.bit(), from) {
                    self.carry_out(control, op)?;
                }
            }
            12 => {
                let weight = self.random.pick(&[1, 8, 64, 64]);
                self.host.set_weight(id, weight).map_err(|e| e.to_string())?;
                let allowed = !self.random.once_in(4);
                self.host.allow_busy_poll(id, allowed);
                let order = self.random.pick(&[Order::DeliverFirst, Order::UnmaskFirst]);
                self.host.set_order(id, order);
                self.act_note(format!("{id:?}: weight {weight}, busy poll {allowed}, {order:?}"));
            }
            13 if self.plan.abandons => {
                let task = self.random.index(self.tasks.len());
                self.abandon(task)?;
            }
            _ => {
                self.watch.activity += 1;
                if let Some(op) = self.host.schedule(id, RaisedFrom::Thread) {
                    self.carry_out(control, op)?;
                }
            }
        }
        Ok(())
    }

    /// Changes the settings as an administrator would: the thread exists before the mode needs it, and is woken
    /// afterwards, so that it can end.
    fn set(&mut self, id: Id, policy: &InstancePolicy) {
        let task = self.task(Role::Napi(id));
        if self.tasks[task].stack.is_empty() {
            self.restart(task);
        }
        self.host.set(id, policy).expect("the policy is within its limits");
        self.tasks[task].woken = true;
        self.watch.wrong[usize::from(id.0)] = 0;
        self.act_note(format!("{id:?}: {policy:?}"));
    }

    pub(super) fn enable(&mut self, id: Id) {
        // A re-created device brings its own queue.
        let port = Port(std::rc::Rc::clone(&self.devices[usize::from(id.0)]));
        if self.host.change_queue(id, |queue| *queue = port).is_err() {
            return;
        }
        let control = self.task(Role::Control(id));
        if let Ok(enable) = Enable::new(self.host, id) {
            self.act_note(format!("enable {id:?}"));
            self.tasks[control].stack.push(Frame::new(Any::Enable(enable)));
        }
    }

    fn disable(&mut self, id: Id) {
        let control = self.task(Role::Control(id));
        if let Ok(disable) = Disable::new(self.host, id) {
            self.act_note(format!("disable {id:?}"));
            self.watch.disabling[usize::from(id.0)] = Some(0);
            self.tasks[control].stack.push(Frame::new(Any::Disable(disable)));
        }
    }

    /// Closes an application's context (while no wait of it is under way) and uses it as a new one from then on.
    fn close(&mut self, app: usize) -> Result<(), String> {
        let task = self.task(Role::App(app));
        if !self.tasks[task].stack.is_empty() {
            return Ok(());
        }
        self.act_note(format!("app {app} closes its context"));
        self.watch.activity += 1;
        if let Some(op) = self.contexts[app].close(self.host, RaisedFrom::Application) {
            self.carry_out(task, op)?;
        }
        Ok(())
    }

    /// Stops arrivals, puts every instance in service under the base policy, ends every wait and closes every
    /// context.
    pub(super) fn drain(&mut self) {
        self.draining = true;
        self.act_note("drain".into());
        for cpu in 0..self.plan.cpus {
            self.host.cpu(CpuId(cpu)).set_policy(CpuPolicy::default());
            self.host.cpu(CpuId(cpu)).set_limits(Limits::default());
        }
        for id in self.host.ids() {
            self.set(id, &Policy::BASE.instance);
            if self.tasks[self.task(Role::Control(id))].stack.is_empty() {
                self.enable(id);
            }
        }
        for task in 0..self.tasks.len() {
            if let Role::App(_) = self.tasks[task].role {
                self.tasks[task].woken = true;
            }
        }
    }
}
