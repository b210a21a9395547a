//! The speed of CPUs: those that share a core, or an emulator's clock, slow each other down.

use napkin_core::Ns;

use crate::events::Event;
use crate::host::clock::TurnVariation;
use crate::machine::Machine;
use napkin_traffic::Rng;

/// Dilation of a stopped CPU, which makes practically no progress.
pub(crate) const STOPPED: u64 = 10_000_000_000;

impl Machine<'_> {
    /// Makes each slice of the shared clock shorter or longer by up to `spread` nanoseconds, uniformly drawn; a CPU
    /// that touches a device keeps the clock in `keeps` of a thousand cases.
    pub fn randomize_shared_clock(&mut self, spread: Ns, keeps: u16, seed: u64) {
        self.clock.variation = TurnVariation { spread, keeps, rng: Rng::new(seed) };
    }

    /// Marks a CPU as busy or not.
    #[inline]
    pub(super) fn set_busy(&mut self, cpu: usize, busy: bool) {
        let this = &mut self.cpus[cpu];
        if this.busy == busy {
            return;
        }
        this.busy = busy;
        this.update_full_speed();
        if busy {
            self.clock.busy += 1;
        } else {
            self.clock.busy -= 1;
        }
        let processor = &self.config.processor;
        if processor.shared_clock || processor.smt == 2 {
            self.update_shared_speed(cpu, busy);
        }
    }

    /// Adjusts the speed of the CPUs that share a core or the clock with a CPU.
    #[inline(never)]
    fn update_shared_speed(&mut self, cpu: usize, busy: bool) {
        if self.config.processor.shared_clock {
            self.share_clock(cpu);
        } else if let Some(sibling) = self.sibling(cpu) {
            let both = self.cpus[sibling].busy && busy;
            let dilation = if both { self.config.processor.smt_dilation } else { 1000 };
            self.dilate(sibling, dilation);
            self.dilate(cpu, dilation);
        }
    }

    /// Shares the clock among the busy CPUs of an emulator: one runs at a time and stops the others; without slices
    /// all run at once, each with an equal share of the speed.
    fn share_clock(&mut self, changed: usize) {
        if self.config.processor.shared_clock_slice == 0 {
            let dilation = 1000 * u64::from(self.clock.busy.max(1));
            for cpu in 0..self.cpus.len() {
                self.dilate(cpu, dilation);
            }
        } else if self.cpus[changed].busy && self.clock.busy == 1 {
            self.take_turn(changed);
        } else if self.cpus[changed].busy && self.clock.released == self.now {
            // It was woken by the device that the other CPU has just touched.
            self.take_turn(changed);
        } else if self.cpus[changed].busy {
            // It waits for its turn. The CPU that had the clock alone gets one more slice.
            self.dilate(changed, STOPPED);
            let slice = self.clock.variation.slice(self.config.processor.shared_clock_slice);
            self.end_slice_at(self.now + slice);
        } else if self.clock.turn == changed {
            self.next_turn();
        }
    }

    /// Ends a slice of the shared clock, unless the event is stale.
    pub(crate) fn shared_slice_ends(&mut self, slice: u32) {
        if self.clock.slices == slice {
            self.next_turn();
        }
    }

    /// Gives the clock to the next busy CPU.
    fn next_turn(&mut self) {
        let cpus = self.cpus.len();
        let after = (1..=cpus).map(|step| (self.clock.turn + step) % cpus);
        if let Some(next) = after.into_iter().find(|&cpu| self.cpus[cpu].busy) {
            self.take_turn(next);
        }
    }

    fn take_turn(&mut self, turn: usize) {
        self.clock.turn = turn;
        self.clock.slices = self.clock.slices.wrapping_add(1);
        for cpu in 0..self.cpus.len() {
            self.dilate(cpu, if cpu == turn { 1000 } else { STOPPED });
        }
        if self.clock.busy > 1 {
            let slice = self.clock.variation.slice(self.config.processor.shared_clock_slice);
            self.end_slice_at(self.now + slice);
        }
    }

    fn end_slice_at(&mut self, at: Ns) {
        let generation = self.clock.slices;
        self.events.schedule(at, Event::SharedSliceEnd { generation });
    }

    /// Ends the CPU's slice, if CPUs share the clock in turns: it touches a device.
    pub(crate) fn touch_device(&mut self, cpu: usize) {
        let processor = &self.config.processor;
        let in_turn = processor.shared_clock && processor.shared_clock_slice > 0;
        if in_turn && self.clock.turn == cpu && !self.clock.variation.keeps() {
            self.clock.released = self.now;
            self.next_turn();
        }
    }

    fn dilate(&mut self, cpu: usize, dilation: u64) {
        if self.cpus[cpu].dilation == dilation {
            return;
        }
        self.catch_up(cpu);
        self.account(cpu);
        self.cpus[cpu].dilation = dilation;
        self.cpus[cpu].update_full_speed();
        if let Some(segment) = self.cpus[cpu].segment {
            self.begin(cpu, segment);
        }
    }
}
