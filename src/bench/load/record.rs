//! Makes the contents of records: a key that identifies the run and the task, and a payload that
//! compresses about as well as real ones.

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};

use crate::bench::ledger::written;

/// Size of the pool of random characters in bytes. Payloads are slices of the pool.
const POOL_BYTES: usize = 1 << 18;
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Makes the records of a run, in the same way for every compared program.
#[derive(Clone, Debug)]
pub struct Records {
    pool: String,
    payload_bytes: usize,
}

impl Records {
    /// Makes records whose payloads have `payload_bytes` characters, at most 131072.
    pub fn new(payload_bytes: usize) -> Self {
        let mut random = SmallRng::seed_from_u64(17);
        let pool = (0..POOL_BYTES)
            .map(|_| char::from(ALPHABET[random.random_range(0..ALPHABET.len())]))
            .collect();
        Self { pool, payload_bytes: payload_bytes.min(POOL_BYTES / 2) }
    }

    pub fn key(&self, key: u64) -> [u8; 16] {
        written(key)
    }

    /// Returns a payload of letters, digits, `-` and `_` only, so that JSON needs no escapes.
    pub fn payload(&self, key: u64) -> &str {
        let room = self.pool.len() - self.payload_bytes;
        let spread = key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let start = usize::try_from(spread).unwrap_or(0) % (room + 1);
        &self.pool[start..start + self.payload_bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_have_their_size_and_differ() {
        let records = Records::new(256);
        assert_eq!(records.payload(0).len(), 256);
        assert_ne!(records.payload(1), records.payload(2));
        assert_eq!(records.payload(5), Records::new(256).payload(5));
        assert_eq!(Records::new(0).payload(9), "");
    }
}
