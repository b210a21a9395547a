//! A block store in memory that allocates pages on the first write.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};

use super::store::{Action, BlockStore, Ended, Operation};

/// Bytes of a page, the unit of locking and allocation.
const PAGE: usize = 64 * 1_024;
/// Pages per group. A group without allocated pages is skipped at once, so that zeroing 4 GiB that were never
/// written, which takes a client 28 bytes to request, checks 256 counters.
const GROUP: usize = 256;
const GROUP_BYTES: u64 = (GROUP * PAGE) as u64;
/// Largest store in bytes. Its page table, which is allocated at the start, then takes 32 MiB.
pub const MEMORY_LIMIT: u64 = 64 << 30;

/// A page; `None` reads as zeroes.
type Page = RwLock<Option<Box<[u8]>>>;

#[derive(Debug)]
struct Group {
    pages: Box<[Page]>,
    /// Number of allocated pages; changed under the lock of the page in question.
    allocated: AtomicUsize,
}

/// A store in memory; clones are handles of the same store. Its data is gone when the process ends, so that a flush
/// does nothing, as on any RAM disk.
#[derive(Debug, Clone)]
pub struct MemoryStore {
    groups: Arc<[Group]>,
    size: u64,
}

/// A size of 0, or above [`MEMORY_LIMIT`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a store in memory has 1 byte to 64 GiB, not {0} bytes")]
pub struct SizeError(pub u64);

impl MemoryStore {
    /// Creates a store of `size` bytes, all of them zero.
    ///
    /// # Errors
    /// See [`SizeError`].
    pub fn new(size: u64) -> Result<MemoryStore, SizeError> {
        if !(1..=MEMORY_LIMIT).contains(&size) {
            return Err(SizeError(size));
        }
        let pages = usize::try_from(size.div_ceil(PAGE as u64)).map_err(|_| SizeError(size))?;
        let group = |first| Group {
            pages: (first..pages.min(first + GROUP)).map(|_| RwLock::new(None)).collect(),
            allocated: AtomicUsize::new(0),
        };
        Ok(MemoryStore { groups: (0..pages).step_by(GROUP).map(group).collect(), size })
    }

    /// Bytes of pages that were written and not freed.
    pub fn allocated(&self) -> u64 {
        self.groups.iter().map(|group| group.allocated.load(Relaxed) as u64 * PAGE as u64).sum()
    }

    /// The pages that a range touches, each with the first and last offset (exclusive) of the range in it.
    fn parts(&self, offset: u64, length: u64) -> impl Iterator<Item = (Place<'_>, usize, usize)> {
        let end = offset.saturating_add(length).min(self.size);
        let mut at = offset;
        std::iter::from_fn(move || {
            let left = end.checked_sub(at).filter(|left| *left > 0)?;
            let page = (at / PAGE as u64) as usize;
            let group = self.groups.get(page / GROUP)?;
            let place = Place { page: group.pages.get(page % GROUP)?, allocated: &group.allocated };
            let from = (at % PAGE as u64) as usize;
            let to = from + left.min((PAGE - from) as u64) as usize;
            at += (to - from) as u64;
            Some((place, from, to))
        })
    }

    fn read(&self, offset: u64, mut into: &mut [u8]) {
        for (place, from, to) in self.parts(offset, into.len() as u64) {
            let Some((part, rest)) = into.split_at_mut_checked(to - from) else { return };
            match place.page.read().unwrap_or_else(PoisonError::into_inner).as_deref() {
                Some(page) => part.copy_from_slice(&page[from..to]),
                None => part.fill(0),
            }
            into = rest;
        }
    }

    fn write(&self, offset: u64, mut bytes: &[u8]) {
        for (place, from, to) in self.parts(offset, bytes.len() as u64) {
            let Some((part, rest)) = bytes.split_at_checked(to - from) else { return };
            let mut page = place.lock();
            let page = page.get_or_insert_with(|| {
                place.allocated.fetch_add(1, Relaxed);
                vec![0; PAGE].into_boxed_slice()
            });
            page[from..to].copy_from_slice(part);
            bytes = rest;
        }
    }

    /// Frees whole pages, even for a request that forbids holes: that flag keeps later writes from failing for lack
    /// of space, and a write here never does.
    fn zero(&self, offset: u64, length: u64) {
        let end = offset.saturating_add(length).min(self.size);
        let mut at = offset;
        while let Some(left) = end.checked_sub(at).filter(|left| *left > 0) {
            let length = left.min(GROUP_BYTES - at % GROUP_BYTES);
            let group = self.groups.get((at / GROUP_BYTES) as usize);
            if group.is_some_and(|group| group.allocated.load(Relaxed) > 0) {
                self.zero_allocated(at, length);
            }
            at += length;
        }
    }

    fn zero_allocated(&self, offset: u64, length: u64) {
        for (place, from, to) in self.parts(offset, length) {
            let mut page = place.lock();
            match page.as_deref_mut() {
                Some(bytes) if to - from < PAGE => bytes[from..to].fill(0),
                Some(_) => {
                    place.allocated.fetch_sub(1, Relaxed);
                    *page = None;
                }
                None => {}
            }
        }
    }
}

/// A page, and its group's count of allocated pages.
struct Place<'a> {
    page: &'a Page,
    allocated: &'a AtomicUsize,
}

impl<'a> Place<'a> {
    fn lock(&self) -> RwLockWriteGuard<'a, Option<Box<[u8]>>> {
        self.page.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BlockStore for MemoryStore {
    fn size(&self) -> u64 {
        self.size
    }

    fn begin(&mut self, mut operation: Operation) -> Option<Ended> {
        let offset = operation.offset;
        match &mut operation.action {
            Action::Read(bytes) => self.read(offset, bytes),
            Action::Write(bytes) => self.write(offset, bytes),
            Action::Trim(length) | Action::Zero { length, .. } => self.zero(offset, *length),
            Action::Flush => {}
        }
        Some((operation, Ok(())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_without_allocated_pages_are_skipped() {
        let mut store = MemoryStore::new(8 << 30).expect("a size");
        let page = |number: u64| number * PAGE as u64;
        store.write(page(7), &[1]);
        store.write(page(100_000), &[1]);
        // A request that touched one of these pages would block for ever.
        let groups = Arc::clone(&store.groups);
        let locks: Vec<_> =
            groups[1..GROUP].iter().flat_map(|it| &it.pages).map(RwLock::write).collect();
        let operation = |length| Operation { tag: 1, offset: 0, action: Action::Trim(length) };
        assert!(store.begin(operation(page(65_536))).is_some());
        assert_eq!(store.allocated(), PAGE as u64, "the first is given back");
        drop(locks);
        assert!(store.begin(operation(8 << 30)).is_some());
        assert_eq!(store.allocated(), 0);
    }
}
