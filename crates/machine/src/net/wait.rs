//! What a thread waits on, an epoll context or a socket, and what its last wait found.

/// What a thread waits on, and what its last wait found.
#[derive(Debug, Default)]
pub(crate) struct Wait {
    epoll: Option<u32>,
    /// For a thread that receives without epoll.
    socket: Option<u32>,
    max_events: u32,
    found: u32,
    /// A signal is pending: the wait under way, or the next one, ends with `EINTR`.
    signalled: bool,
}

impl Wait {
    /// The epoll context that the thread waits on, by its place.
    #[inline]
    pub(crate) fn epoll(&self) -> Option<u32> {
        self.epoll
    }

    /// The socket on which it receives without epoll.
    #[inline]
    pub(crate) fn socket(&self) -> Option<u32> {
        self.socket
    }

    /// Whether the thread waits on anything.
    pub(crate) fn on_any(&self) -> bool {
        self.epoll.or(self.socket).is_some()
    }

    /// Waits on an epoll context from now on.
    pub(super) fn watch(&mut self, epoll: u32) {
        self.epoll = Some(epoll);
    }

    /// Receives on a socket from now on.
    pub(super) fn own(&mut self, socket: u32) {
        self.socket = Some(socket);
    }

    /// Waits on its epoll context no longer. Returns which that was.
    pub(crate) fn leave_epoll(&mut self) -> Option<u32> {
        self.epoll.take()
    }

    /// An `epoll_wait` for so many events at most begins (`maxevents`).
    #[inline]
    pub(crate) fn begin_epoll(&mut self, max_events: u32) {
        self.max_events = max_events;
    }

    /// The most events that the `epoll_wait` under way takes.
    #[inline]
    pub(crate) fn max_events(&self) -> u32 {
        self.max_events
    }

    /// A signal comes.
    pub(crate) fn signal(&mut self) {
        self.signalled = true;
    }

    /// Whether a signal is pending.
    #[inline]
    pub(crate) fn signalled(&self) -> bool {
        self.signalled
    }

    /// Takes the pending signal, if there is one.
    #[inline]
    pub(crate) fn take_signal(&mut self) -> bool {
        std::mem::take(&mut self.signalled)
    }

    /// A wait ends with so many events or frames.
    #[inline]
    pub(crate) fn end(&mut self, found: u32) {
        self.found = found;
    }

    /// Events or frames that the last wait found.
    #[inline]
    pub(crate) fn found(&self) -> u32 {
        self.found
    }
}
