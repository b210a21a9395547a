//! What became of putting a program's settings back, counted.

/// What became of putting everything back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Restoration {
    /// As they were.
    pub done: usize,
    /// Closed meanwhile, or their process has ended.
    pub gone: usize,
    /// Changed meanwhile, and left so.
    pub changed: usize,
    /// Still as they were set.
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
