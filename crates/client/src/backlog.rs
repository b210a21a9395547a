//! The backlog of a connection: the due times of requests that fell due while it waited for an answer.
//!
//! Each connection has a ring buffer; all of them are in one allocation made at set-up. A ring is bounded, because
//! with a server slower than its load the backlog would grow for ever: the caller counts requests that do not fit,
//! and never sends them.

/// Approximate number of entries of all rings together.
const TOTAL: usize = 1 << 20;
/// Minimum and maximum number of entries of one ring.
const EACH: (usize, usize) = (256, 1 << 16);

/// The rings of one thread's connections.
#[derive(Debug)]
pub(super) struct Backlog {
    due: Box<[u64]>,
    /// Entries of one ring.
    each: usize,
    rings: Box<[Ring]>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Ring {
    first: usize,
    len: usize,
}

impl Backlog {
    /// Rings for `here` connections of a client that has `all` in total.
    pub(super) fn new(connections: usize, all: usize) -> Backlog {
        let each = bound(all);
        Backlog {
            due: vec![0; connections * each].into(),
            each,
            rings: vec![Ring::default(); connections].into(),
        }
    }

    /// Appends a request; returns whether there was room.
    pub(super) fn push(&mut self, connection: usize, due: u64) -> bool {
        let ring = &mut self.rings[connection];
        if ring.len == self.each {
            return false;
        }
        self.due[connection * self.each + (ring.first + ring.len) % self.each] = due;
        ring.len += 1;
        true
    }

    /// Removes and returns the due time of the oldest request.
    pub(super) fn pop(&mut self, connection: usize) -> Option<u64> {
        let due = self.first(connection)?;
        let ring = &mut self.rings[connection];
        ring.first = (ring.first + 1) % self.each;
        ring.len -= 1;
        Some(due)
    }

    /// The due time of the oldest request.
    pub(super) fn first(&self, connection: usize) -> Option<u64> {
        let ring = self.rings[connection];
        (ring.len != 0).then(|| self.due[connection * self.each + ring.first])
    }

    /// Number of requests in all rings.
    pub(super) fn len(&self) -> u64 {
        self.rings.iter().map(|ring| ring.len as u64).sum()
    }
}

/// Capacity of each ring if there are this many connections.
pub(super) fn bound(connections: usize) -> usize {
    (TOTAL / connections.max(1)).clamp(EACH.0, EACH.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_leaves_in_order_and_what_has_no_room_is_refused() {
        let mut backlog = Backlog::new(2, 1 << 20);
        assert_eq!(backlog.each, EACH.0);
        for round in 0..3u64 {
            (0..256).for_each(|i| assert!(backlog.push(1, round * 1_000 + i)));
            assert!(!backlog.push(1, 9), "it is full");
            assert_eq!(
                (backlog.len(), backlog.first(0)),
                (256, None),
                "and its neighbour is empty"
            );
            // Drains the ring, so that it starts at another place in each round.
            let out: Vec<_> = std::iter::from_fn(|| backlog.pop(1)).collect();
            assert_eq!(out, (0..256).map(|i| round * 1_000 + i).collect::<Vec<_>>());
            assert!(backlog.push(1, 5) && backlog.pop(1) == Some(5));
        }
    }

    #[test]
    fn few_connections_may_owe_more_each() {
        assert_eq!([bound(1), bound(100), bound(28_000)], [65_536, 10_485, 256]);
    }
}
