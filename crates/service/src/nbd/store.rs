//! What an export's bytes are kept in.

/// What is to be done with a range of a store.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// Fill these bytes.
    Read(Vec<u8>),
    /// Write these bytes.
    Write(Vec<u8>),
    /// Make what was written, and was answered before this began, outlast the loss of power.
    Flush,
    /// So many bytes are no longer needed; a store may do nothing.
    Trim(u64),
    /// Make so many bytes read as zeroes.
    Zero {
        /// Bytes, from the offset on.
        length: u64,
        /// Whether the room that they take may be given back.
        hole: bool,
    },
}

/// One operation on a store. Its range lies within the store's size: whoever begins it has looked.
#[derive(Debug, PartialEq, Eq)]
pub struct Operation {
    /// Told to whoever began it when it ends.
    pub tag: u64,
    /// The byte at which it begins.
    pub offset: u64,
    /// What is to be done, or was.
    pub action: Action,
}

/// Why an operation failed, as the protocol has words for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The device could not.
    #[error("input/output error")]
    Io,
    /// No room is left for what is written.
    #[error("no space left on the device")]
    NoSpace,
    /// It must not.
    #[error("operation not permitted")]
    NotPermitted,
}

/// An operation that has ended, and how. Of a read that failed, the bytes mean nothing.
pub type Ended = (Operation, Result<(), StoreError>);

/// Where an export's bytes are. Each thread has a handle of its own; all see one store: what was
/// answered to one is read by all, and flushed by a flush of any.
///
/// Nothing here blocks. An operation ends at once, or later; those that are under way may end in any
/// order, and what two of them do to the same bytes at one time is not defined.
pub trait BlockStore {
    /// Bytes of it.
    fn size(&self) -> u64;

    /// Begins an operation, and gives it back if it has ended already.
    fn begin(&mut self, operation: Operation) -> Option<Ended>;

    /// The next operation that began earlier and has ended.
    fn ended(&mut self) -> Option<Ended> {
        None
    }

    /// Hands those that began to whoever carries them out: called once after several.
    fn submit(&mut self) {}

    /// Lets go of operations that nobody waits for any more (`wanted` says of a tag whether somebody does),
    /// as far as they have not been handed over. Their connections have gone, and may have been many: what
    /// is kept here is kept for nobody.
    fn forget(&mut self, _wanted: &dyn Fn(u64) -> bool) {}
}
