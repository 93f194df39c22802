//! An inbox for items that must not wait: a sender never blocks, and the receiver takes all items
//! at once.

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

/// The inbox is bounded by its items: tasks and batches in flight, topics whose state has changed,
/// ranges of late inserts.
#[derive(Debug)]
pub struct Inbox<T> {
    items: Mutex<Vec<T>>,
    arrived: Notify,
}

impl<T> Default for Inbox<T> {
    fn default() -> Self {
        Self { items: Mutex::default(), arrived: Notify::new() }
    }
}

impl<T> Inbox<T> {
    pub fn put(&self, item: T) {
        self.lock().push(item);
        self.arrived.notify_one();
    }

    /// Adds an item. When `count_max` items are waiting, joins it to the last one.
    pub fn put_or_join(&self, item: T, count_max: usize, join: impl FnOnce(&T, T) -> T) {
        let mut items = self.lock();
        if items.len() < count_max {
            items.push(item);
        } else if let Some(last) = items.last_mut() {
            *last = join(last, item);
        }
        self.arrived.notify_one();
    }

    /// Takes all items. There may be none.
    pub fn take(&self) -> Vec<T> {
        std::mem::take(&mut *self.lock())
    }

    /// Waits until there is an item. Cancel-safe: no item is taken.
    pub async fn arrival(&self) {
        while self.is_empty() {
            self.arrived.notified().await;
        }
    }

    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<T>> {
        self.items.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_for_a_full_inbox_is_joined_to_the_last_one() {
        let inbox = Inbox::default();
        for number in [1, 2, 4, 8] {
            inbox.put_or_join(number, 2, |last, number| last + number);
        }
        assert_eq!(inbox.take(), [1, 2 + 4 + 8]);
        assert!(inbox.is_empty());
    }
}
