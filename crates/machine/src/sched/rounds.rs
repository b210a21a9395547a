//! Where rounds of a thread's loop begin, and where the polls in them begin and end.

use crate::machine::Machine;
use crate::sched::id::ThreadId;

impl Machine<'_> {
    /// A thread begins a poll.
    #[inline]
    pub(crate) fn poll_begins(&mut self, cpu: usize, me: ThreadId) {
        let round = &mut self.threads[me.0 as usize].round;
        self.cpus[cpu].in_vain(round.poll_ends());
        round.polling = true;
    }

    /// What a thread does from here on is no part of its last poll.
    #[inline]
    pub(crate) fn poll_ends(&mut self, cpu: usize, me: ThreadId) {
        self.cpus[cpu].in_vain(self.threads[me.0 as usize].round.poll_ends());
    }

    /// A thread has done something of use without a frame or an event, as sending is.
    pub fn achieved(&mut self, me: ThreadId) {
        self.threads[me.0 as usize].round.found();
    }

    /// A program begins another round of its loop: all that the last one took is poll if nothing was
    /// found in it. A call that waits does so by itself; a program that looks at memory says so.
    pub fn next_round(&mut self, me: ThreadId) {
        let thread = &mut self.threads[me.0 as usize];
        let cpu = &mut self.cpus[usize::from(thread.cpu)];
        let round = &mut thread.round;
        cpu.in_vain(round.poll_ends());
        let outside = std::mem::take(&mut round.outside);
        if !std::mem::take(&mut round.found) {
            cpu.in_vain(outside);
        }
    }
}
