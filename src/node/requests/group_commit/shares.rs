//! The fair shares of a queue.
//!
//! One holder, such as a principal, may fill the queue while nobody else needs it. Once another one
//! holds room, or was refused within the last seconds for lack of it, each may hold at most half of
//! the items.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::domain::Monotonic;

/// How long the queue stays shared after a holder within its half was refused. A refused caller
/// comes again within this time.
const SHARED_FOR: Duration = Duration::from_secs(10);

/// The shares of all holders. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Shares<K: Clone + Eq + Hash> {
    half: usize,
    held: Arc<Mutex<Held<K>>>,
}

/// The items of each holder in the queue. A holder without items has no entry.
#[derive(Debug)]
struct Held<K> {
    counts: HashMap<K, usize>,
    shared_until: Monotonic,
}

/// The items of a request among those of its holder, until the value is dropped.
#[derive(Debug)]
pub struct Share<K: Clone + Eq + Hash> {
    held: Arc<Mutex<Held<K>>>,
    holder: K,
    count: usize,
}

impl<K: Eq + Hash> Held<K> {
    /// Returns the items of a holder, and whether others have some, too.
    fn of(&self, holder: &K) -> (usize, bool) {
        let own = self.counts.get(holder).copied().unwrap_or_default();
        (own, self.counts.len() > usize::from(own > 0))
    }
}

impl<K: Clone + Eq + Hash> Shares<K> {
    /// Makes the shares of a queue of `items_max` items.
    pub fn new(items_max: usize) -> Self {
        let held = Held { counts: HashMap::new(), shared_until: Monotonic::default() };
        Self { half: items_max / 2, held: Arc::new(Mutex::new(held)) }
    }

    /// Takes a share for a request of `count` items. Returns `None` when its holder would have more
    /// than half of the queue while others need it. A request larger than the half alone passes
    /// when its holder has nothing else in the queue.
    pub fn take(&self, holder: &K, count: usize, now: Monotonic) -> Option<Share<K>> {
        let mut held = self.held.lock();
        let (own, has_others) = held.of(holder);
        let is_shared = has_others || now < held.shared_until;
        let with_asked = own.saturating_add(count);
        if is_shared && own > 0 && with_asked > self.half {
            return None;
        }
        held.counts.insert(holder.clone(), with_asked);
        Some(Share { held: Arc::clone(&self.held), holder: holder.clone(), count })
    }

    /// Notes that the queue has no room for a request, whose share is taken already. The queue is
    /// shared for a while if the holder is within its half.
    pub fn lacked_room(&self, holder: &K, now: Monotonic) {
        let mut held = self.held.lock();
        let (own, has_others) = held.of(holder);
        if has_others && own <= self.half {
            held.shared_until = now.plus(SHARED_FOR);
        }
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.held.lock().counts.is_empty()
    }
}

impl<K: Clone + Eq + Hash> Drop for Share<K> {
    fn drop(&mut self) {
        let mut held = self.held.lock();
        if let Some(count) = held.counts.get_mut(&self.holder) {
            *count = count.saturating_sub(self.count);
            if *count == 0 {
                held.counts.remove(&self.holder);
            }
        }
    }
}
