//! The records of a store: their keys and the sizes of their values.
//!
//! They are drawn from the seed, so that filling and querying agree without communication. Sizes follow mutilate's
//! `fb_key` and `fb_value`. Unlike with mutilate, a record keeps its size when it is set again, so that every
//! answer can be verified.

use std::io::Write;

use napkin_traffic::Rng;
use napkin_traffic::sizes::{self, key_size, value_size};

use super::answer::PendingRequest;

/// memcached's limit on the length of a key, in bytes.
pub const LONGEST_KEY: usize = sizes::LONGEST_KEY as usize;

/// Largest value that is drawn, in bytes: half of memcached's default item size limit. Only one draw in some
/// hundred million would be larger.
const LARGEST_VALUE: u32 = 512 * 1024;

/// Most bytes of a request besides key and value.
const AROUND: usize = 64;

/// The keys, and the sizes of the values.
#[derive(Debug)]
pub struct Records {
    keys: Vec<u8>,
    /// Offset of each key, and the end of the last.
    begins: Vec<u32>,
    values: Vec<u32>,
    /// Bytes for values; as long as the largest value.
    filler: Vec<u8>,
}

impl Records {
    /// Draws `records` records from a seed.
    pub fn new(records: usize, seed: u64) -> Records {
        let mut rng = Rng::new(seed);
        let digits = records.saturating_sub(1).max(1).ilog10() as usize + 1;
        let (mut keys, mut begins) = (Vec::with_capacity(records * 37), vec![0]);
        let mut values = Vec::with_capacity(records);
        for record in 0..records {
            let size = (key_size(&mut rng) as usize).max(digits);
            // Keys are numbers, padded with zeros to the drawn size.
            let _ = write!(keys, "{record:0size$}");
            begins.push(keys.len() as u32);
            values.push(value_size(&mut rng, LARGEST_VALUE));
        }
        let largest = values.iter().copied().max().unwrap_or(0) as usize;
        let filler = (0..largest).map(|at| b'a' + (at % 26) as u8).collect();
        Records { keys, begins, values, filler }
    }

    /// Number of records.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// A record's key.
    pub fn key(&self, record: usize) -> &[u8] {
        &self.keys[self.begins[record] as usize..self.begins[record + 1] as usize]
    }

    /// The size of a record's value in bytes.
    pub fn value_size(&self, record: usize) -> u32 {
        self.values[record]
    }

    /// Length of the longest request in bytes, for the size of buffers.
    pub fn longest_request(&self) -> usize {
        self.filler.len() + LONGEST_KEY + AROUND
    }

    /// Appends a get request.
    pub fn put_get(&self, record: usize, to: &mut Vec<u8>) {
        to.extend_from_slice(b"get ");
        to.extend_from_slice(self.key(record));
        to.extend_from_slice(b"\r\n");
    }

    /// Appends a set request, with or without `noreply`.
    pub fn put_set(&self, record: usize, answered: bool, to: &mut Vec<u8>) {
        let size = self.values[record];
        to.extend_from_slice(b"set ");
        to.extend_from_slice(self.key(record));
        // Writing to a `Vec` cannot fail.
        let _ = write!(to, " 0 0 {size}{}\r\n", if answered { "" } else { " noreply" });
        to.extend_from_slice(&self.filler[..size as usize]);
        to.extend_from_slice(b"\r\n");
    }

    /// Describes a request of this record to the parser of the answer.
    pub(super) fn asked(&self, record: usize, set: bool) -> PendingRequest<'_> {
        if set { PendingRequest::Set } else { PendingRequest::Get { key: self.key(record) } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_unlike_each_other_and_within_the_protocol() {
        let records = Records::new(20_000, 13);
        let keys: std::collections::BTreeSet<_> =
            (0..records.len()).map(|record| records.key(record)).collect();
        assert_eq!(keys.len(), 20_000);
        assert!(keys.iter().all(|key| (7..=LONGEST_KEY).contains(&key.len())));
        assert!(keys.iter().all(|key| key.iter().all(u8::is_ascii_digit)));
    }

    #[test]
    fn a_seed_is_a_set_of_records() {
        let all = |seed| {
            let records = Records::new(1_000, seed);
            (records.keys, records.values)
        };
        assert_eq!(all(1), all(1));
        assert_ne!(all(1), all(2));
    }

    #[test]
    fn requests_are_as_the_protocol_has_them_and_fit_their_buffer() {
        let records = Records::new(1_000, 5);
        let record = (0..1_000).find(|record| records.value_size(*record) == 2).expect("18 %");
        let key = std::str::from_utf8(records.key(record)).expect("digits");
        let mut text = Vec::new();
        records.put_get(record, &mut text);
        records.put_set(record, true, &mut text);
        records.put_set(record, false, &mut text);
        let wanted =
            format!("get {key}\r\nset {key} 0 0 2\r\nab\r\nset {key} 0 0 2 noreply\r\nab\r\n");
        assert_eq!(String::from_utf8(text).expect("text"), wanted);
        for record in 0..records.len() {
            let mut one = Vec::new();
            records.put_set(record, false, &mut one);
            assert!(one.len() <= records.longest_request());
        }
    }
}
