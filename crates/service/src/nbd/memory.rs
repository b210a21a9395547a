//! A store in memory: what was never written takes no room.

use std::sync::{Arc, PoisonError, RwLock};

use super::store::{Action, BlockStore, Ended, Operation};

/// Bytes of a page: what one lock is for, and what is taken or given back at a time.
const PAGE: usize = 64 * 1_024;
/// Bytes of the largest store: its table of pages, which is there from the start, takes 32 MiB then.
pub const MEMORY_LIMIT: u64 = 64 << 30;

/// A page; `None` reads as zeroes.
type Page = RwLock<Option<Box<[u8]>>>;

/// A store in memory. Its clones are handles of the same store. What it holds is gone with the
/// process: a flush has nothing to do, as on any RAM disk.
#[derive(Debug, Clone)]
pub struct MemoryStore {
    pages: Arc<[Page]>,
    size: u64,
}

/// A store of no bytes, or of more than [`MEMORY_LIMIT`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a store in memory has 1 byte to 64 GiB, not {0} bytes")]
pub struct SizeError(pub u64);

impl MemoryStore {
    /// A store of `size` bytes, all of them zero.
    ///
    /// # Errors
    /// See [`SizeError`].
    pub fn new(size: u64) -> Result<MemoryStore, SizeError> {
        if !(1..=MEMORY_LIMIT).contains(&size) {
            return Err(SizeError(size));
        }
        let pages = usize::try_from(size.div_ceil(PAGE as u64)).map_err(|_| SizeError(size))?;
        let pages = (0..pages).map(|_| RwLock::new(None)).collect();
        Ok(MemoryStore { pages, size })
    }

    /// Bytes of pages that were written and not given back.
    pub fn held(&self) -> u64 {
        let held = |page: &&Page| page.read().unwrap_or_else(PoisonError::into_inner).is_some();
        self.pages.iter().filter(held).count() as u64 * PAGE as u64
    }

    /// The pages that a range touches, each with the part of it that the range has: from, to.
    fn parts(&self, offset: u64, length: u64) -> impl Iterator<Item = (&Page, usize, usize)> {
        let end = offset.saturating_add(length).min(self.size);
        let mut at = offset;
        std::iter::from_fn(move || {
            let left = end.checked_sub(at).filter(|left| *left > 0)?;
            let page = self.pages.get((at / PAGE as u64) as usize)?;
            let from = (at % PAGE as u64) as usize;
            let to = from + left.min((PAGE - from) as u64) as usize;
            at += (to - from) as u64;
            Some((page, from, to))
        })
    }

    fn read(&self, offset: u64, mut into: &mut [u8]) {
        for (page, from, to) in self.parts(offset, into.len() as u64) {
            let Some((part, rest)) = into.split_at_mut_checked(to - from) else { return };
            match page.read().unwrap_or_else(PoisonError::into_inner).as_deref() {
                Some(page) => part.copy_from_slice(&page[from..to]),
                None => part.fill(0),
            }
            into = rest;
        }
    }

    fn write(&self, offset: u64, mut bytes: &[u8]) {
        for (page, from, to) in self.parts(offset, bytes.len() as u64) {
            let Some((part, rest)) = bytes.split_at_checked(to - from) else { return };
            let mut page = page.write().unwrap_or_else(PoisonError::into_inner);
            let page = page.get_or_insert_with(|| vec![0; PAGE].into_boxed_slice());
            page[from..to].copy_from_slice(part);
            bytes = rest;
        }
    }

    /// Whole pages are given back, also where no hole is to be made: that no room is left cannot
    /// happen to what is written here later.
    fn zero(&self, offset: u64, length: u64) {
        for (page, from, to) in self.parts(offset, length) {
            let mut page = page.write().unwrap_or_else(PoisonError::into_inner);
            match page.as_deref_mut() {
                Some(bytes) if to - from < PAGE => bytes[from..to].fill(0),
                _ => *page = None,
            }
        }
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
