//! The interface between an export and the storage behind it.

/// An operation on a range of a store.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// Reads into this buffer.
    Read(Vec<u8>),
    /// Writes these bytes.
    Write(Vec<u8>),
    /// Makes every write that was answered before this began survive a power loss.
    Flush,
    /// Declares so many bytes unused; a store may ignore it.
    Trim(u64),
    /// Makes so many bytes read as zeroes.
    Zero {
        /// Bytes, from the operation's offset on.
        length: u64,
        /// Whether their space may be deallocated.
        hole: bool,
    },
}

/// One operation on a store. The caller has checked that its range lies within the store's size.
#[derive(Debug, PartialEq, Eq)]
pub struct Operation {
    /// The caller's tag, returned on completion.
    pub tag: u64,
    /// Byte offset of its start.
    pub offset: u64,
    /// What to do, or what was done.
    pub action: Action,
}

/// The reason of a failure, as far as the protocol distinguishes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The device failed.
    #[error("input/output error")]
    Io,
    /// No space is left for a write.
    #[error("no space left on the device")]
    NoSpace,
    /// The operation is not permitted.
    #[error("operation not permitted")]
    NotPermitted,
}

/// A completed operation and its result. After a failed read, the buffer's content is undefined.
pub type Ended = (Operation, Result<(), StoreError>);

/// The storage of an export. Each thread has its own handle of the same store: a completed write is visible to
/// reads through all handles, and covered by a flush through any.
///
/// Nothing here blocks. An operation completes at once or later. Operations in flight may complete in any order,
/// and the result of concurrent operations on the same bytes is undefined.
pub trait BlockStore {
    /// Size in bytes.
    fn size(&self) -> u64;

    /// Begins an operation; returns it if it completed at once.
    fn begin(&mut self, operation: Operation) -> Option<Ended>;

    /// Returns the next operation that completed asynchronously.
    fn ended(&mut self) -> Option<Ended> {
        None
    }

    /// Submits the operations that were begun since the last call, as one batch.
    fn submit(&mut self) {}

    /// Drops operations for which `wanted` is false, given their tag, as far as they have not been submitted. Their
    /// connections have closed, possibly many of them, and nothing waits for the results.
    fn forget(&mut self, _wanted: &dyn Fn(u64) -> bool) {}
}
