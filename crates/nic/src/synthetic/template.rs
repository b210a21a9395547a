//! The contents of a synthetic source's frames, which the caller supplies.

use napkin_policy::Ns;

/// Writes the frames of a synthetic source. The queue decides when a frame of which flow arrives; the template
/// decides its bytes.
pub trait Template: Send {
    /// Writes frame `seq` of the queue, which belongs to `flow`, to `buf` and returns its length. Sequence numbers
    /// count all arrivals, so that dropped frames leave gaps. `buf` has [`FRAME_CAPACITY`](crate::FRAME_CAPACITY)
    /// bytes and may hold an older frame. A frame with a length beyond that, or shorter than an Ethernet header, is
    /// dropped and counted as oversized or truncated.
    fn fill(&mut self, flow: u32, seq: u64, buf: &mut [u8]) -> usize;

    /// As [`fill`](Self::fill), for templates that write the intended arrival time into the frame.
    fn fill_at(&mut self, flow: u32, seq: u64, arrived: Ns, buf: &mut [u8]) -> usize {
        let _ = arrived;
        self.fill(flow, seq, buf)
    }
}

impl<F: FnMut(u32, u64, &mut [u8]) -> usize + Send> Template for F {
    fn fill(&mut self, flow: u32, seq: u64, buf: &mut [u8]) -> usize {
        self(flow, seq, buf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closure_is_a_template_that_does_not_care_for_the_time() {
        let mut template = |flow: u32, seq: u64, buf: &mut [u8]| {
            buf[0] = flow as u8 + seq as u8;
            14
        };
        let mut buf = [0; 14];
        assert_eq!(template.fill_at(2, 3, 99, &mut buf), 14);
        assert_eq!(buf[0], 5);
    }
}
