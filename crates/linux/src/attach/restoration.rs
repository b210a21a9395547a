//! Counts the outcomes of restoring a program's settings.

/// Outcomes of putting settings back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Restoration {
    /// Put back.
    pub done: usize,
    /// Not there any more: the descriptor was closed, or the process or thread has ended.
    pub gone: usize,
    /// Changed by the program meanwhile, and left alone.
    pub changed: usize,
    /// Not put back, because of an error.
    pub failed: usize,
}

impl Restoration {
    pub(super) fn add(&mut self, other: Restoration) {
        self.done += other.done;
        self.gone += other.gone;
        self.changed += other.changed;
        self.failed += other.failed;
    }
}
