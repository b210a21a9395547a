//! A thread's waiting state: what it waits on, and what its last wait found.

/// A thread's waiting state.
#[derive(Debug, Default)]
pub(crate) struct Wait {
    epoll: Option<u32>,
    /// The socket of a thread that receives without epoll.
    socket: Option<u32>,
    max_events: u32,
    found: u32,
    /// Whether a signal is pending: the present wait, or the next one, ends with `EINTR`.
    signalled: bool,
}

impl Wait {
    /// Returns the index of the epoll context that the thread waits on.
    #[inline]
    pub(crate) fn epoll(&self) -> Option<u32> {
        self.epoll
    }

    /// Returns the socket on which it receives without epoll.
    #[inline]
    pub(crate) fn socket(&self) -> Option<u32> {
        self.socket
    }

    /// Whether the thread waits on an epoll context or a socket.
    pub(crate) fn on_any(&self) -> bool {
        self.epoll.or(self.socket).is_some()
    }

    /// Sets the epoll context to wait on.
    pub(super) fn watch(&mut self, epoll: u32) {
        self.epoll = Some(epoll);
    }

    /// Sets the socket to receive on.
    pub(super) fn own(&mut self, socket: u32) {
        self.socket = Some(socket);
    }

    /// Removes the epoll context to wait on, and returns it.
    pub(crate) fn leave_epoll(&mut self) -> Option<u32> {
        self.epoll.take()
    }

    /// Begins an `epoll_wait` for at most `max_events` events.
    #[inline]
    pub(crate) fn begin_epoll(&mut self, max_events: u32) {
        self.max_events = max_events;
    }

    /// Returns the `maxevents` of the present `epoll_wait`.
    #[inline]
    pub(crate) fn max_events(&self) -> u32 {
        self.max_events
    }

    /// Makes a signal pending.
    pub(crate) fn signal(&mut self) {
        self.signalled = true;
    }

    /// Whether a signal is pending.
    #[inline]
    pub(crate) fn signalled(&self) -> bool {
        self.signalled
    }

    /// Takes the pending signal. Returns whether there was one.
    #[inline]
    pub(crate) fn take_signal(&mut self) -> bool {
        std::mem::take(&mut self.signalled)
    }

    /// Ends a wait that found so many events or frames.
    #[inline]
    pub(crate) fn end(&mut self, found: u32) {
        self.found = found;
    }

    /// Returns the events or frames that the last wait found.
    #[inline]
    pub(crate) fn found(&self) -> u32 {
        self.found
    }
}
