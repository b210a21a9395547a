//! All threads of a machine, by their [`ThreadId`].

use std::ops::{Index, IndexMut};

use crate::sched::id::ThreadId;
use crate::sched::thread::Thread;

/// The threads of the kernel and of the applications, in the order in which they were added.
#[derive(Debug, Default)]
pub(crate) struct Threads<'a>(Vec<Thread<'a>>);

impl<'a> Threads<'a> {
    /// Adds a thread. Returns its id.
    pub(crate) fn add(&mut self, thread: Thread<'a>) -> ThreadId {
        self.0.push(thread);
        ThreadId(self.0.len() as u32 - 1)
    }

    /// Returns all threads, in order of id.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Thread<'a>> {
        self.0.iter()
    }
}

impl<'a> Index<ThreadId> for Threads<'a> {
    type Output = Thread<'a>;

    #[inline(always)]
    fn index(&self, id: ThreadId) -> &Thread<'a> {
        &self.0[id.0 as usize]
    }
}

impl<'a> IndexMut<ThreadId> for Threads<'a> {
    #[inline(always)]
    fn index_mut(&mut self, id: ThreadId) -> &mut Thread<'a> {
        &mut self.0[id.0 as usize]
    }
}
