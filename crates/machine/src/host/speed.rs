//! How fast a CPU gets on: CPUs that share a core, or an emulator's clock, slow each other down.

use napkin_core::Ns;

use crate::events::Event;
use crate::host::clock::DrawnTurns;
use crate::machine::Machine;
use napkin_traffic::Rng;

/// A stopped CPU's time for a piece of work, in thousandths of its own: it does not get on.
pub(crate) const STOPPED: u64 = 10_000_000_000;

impl Machine<'_> {
    /// From now on each slice of the shared clock is shorter or longer by up to `spread`, evenly drawn,
    /// and of a thousand times that a CPU touches a device it keeps the clock in `keeps`.
    pub fn draw_turns(&mut self, spread: Ns, keeps: u16, seed: u64) {
        self.clock.drawn = DrawnTurns { spread, keeps, rng: Rng::new(seed) };
    }

    /// A CPU works from now on, or does so no longer.
    #[inline]
    pub(super) fn set_busy(&mut self, cpu: usize, busy: bool) {
        let this = &mut self.cpus[cpu];
        if this.busy == busy {
            return;
        }
        this.busy = busy;
        this.changes_speed();
        if busy {
            self.clock.busy += 1;
        } else {
            self.clock.busy -= 1;
        }
        let processor = &self.config.processor;
        if processor.shared_clock || processor.smt == 2 {
            self.slows_others(cpu, busy);
        }
    }

    /// CPUs that share a core, or a clock, slow each other down.
    #[inline(never)]
    fn slows_others(&mut self, cpu: usize, busy: bool) {
        if self.config.processor.shared_clock {
            self.share_clock(cpu);
        } else if let Some(sibling) = self.sibling(cpu) {
            let both = self.cpus[sibling].busy && busy;
            let dilation = if both { self.config.processor.smt_dilation } else { 1000 };
            self.dilate(sibling, dilation);
            self.dilate(cpu, dilation);
        }
    }

    /// An emulator that runs its CPUs in turn stops the others' work meanwhile; without slices each
    /// that works gets an equal share at every moment.
    fn share_clock(&mut self, changed: usize) {
        if self.config.processor.shared_clock_slice == 0 {
            let dilation = 1000 * u64::from(self.clock.busy.max(1));
            for cpu in 0..self.cpus.len() {
                self.dilate(cpu, dilation);
            }
        } else if self.cpus[changed].busy && self.clock.busy == 1 {
            self.take_turn(changed);
        } else if self.cpus[changed].busy && self.clock.released == self.now {
            // Woken by the device that the other has just touched.
            self.take_turn(changed);
        } else if self.cpus[changed].busy {
            // It waits for its turn; the slice under way is the last that is not divided.
            self.dilate(changed, STOPPED);
            let slice = self.clock.drawn.slice(self.config.processor.shared_clock_slice);
            self.end_slice_at(self.now + slice);
        } else if self.clock.turn == changed {
            self.next_turn();
        }
    }

    /// A slice of the shared clock ends, unless it has ended already.
    pub(crate) fn slice_over(&mut self, slice: u32) {
        if self.clock.slices == slice {
            self.next_turn();
        }
    }

    /// The next CPU that works has the clock.
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
            let slice = self.clock.drawn.slice(self.config.processor.shared_clock_slice);
            self.end_slice_at(self.now + slice);
        }
    }

    fn end_slice_at(&mut self, at: Ns) {
        let generation = self.clock.slices;
        self.events.at(at, Event::Turn { generation });
    }

    /// A CPU touches a device, which ends its slice where an emulator shares its clock.
    pub(crate) fn touch_device(&mut self, cpu: usize) {
        let processor = &self.config.processor;
        let in_turn = processor.shared_clock && processor.shared_clock_slice > 0;
        if in_turn && self.clock.turn == cpu && !self.clock.drawn.keeps() {
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
        self.cpus[cpu].changes_speed();
        if let Some(segment) = self.cpus[cpu].segment {
            self.begin(cpu, segment);
        }
    }
}
