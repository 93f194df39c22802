//! A box for what may not wait: whoever puts something in never blocks, and whoever empties it takes all at once.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Its bound is that of what is put in: what is in flight (tasks that are published again, batches that are complete), topics whose state has changed, ranges
/// of ids that were inserted late.
#[derive(Debug)]
pub struct Mailbox<T> {
    letters: Mutex<Vec<T>>,
    arrived: Notify,
}

impl<T> Default for Mailbox<T> {
    fn default() -> Self {
        Self { letters: Mutex::default(), arrived: Notify::new() }
    }
}

impl<T> Mailbox<T> {
    pub fn put(&self, letter: T) {
        self.lock().push(letter);
        self.arrived.notify_one();
    }

    /// Puts a letter in unless `count_max` are there.
    pub fn put_unless_full(&self, letter: T, count_max: usize) {
        let mut letters = self.lock();
        if letters.len() < count_max {
            letters.push(letter);
            self.arrived.notify_one();
        }
    }

    /// All that is there; maybe nothing.
    pub fn take(&self) -> Vec<T> {
        std::mem::take(&mut *self.lock())
    }

    /// Waits until something is there. Cancel-safe: nothing is taken.
    pub async fn arrival(&self) {
        while self.is_empty() {
            self.arrived.notified().await;
        }
    }

    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<T>> {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
