//! Makes calls of the same kind take turns: those of one principal, or those about one name.
//!
//! A few connections serve all callers, first come, first served. Without turns, the calls of one
//! principal could fill the queue for them, or calls about one name could hold all of them while
//! they wait for one locked row.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How long a call waits for its turn. It equals the deadline of a replacement.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// The turns of calls. Calls with different keys do not wait for each other.
#[derive(Debug)]
pub struct Turns<K: Clone + Eq + Hash> {
    at_once: usize,
    wait_max: Duration,
    /// The semaphores of the calls in progress or waiting. Other keys have no entry.
    semaphores: Mutex<HashMap<K, Arc<Semaphore>>>,
}

/// A call that waits for its turn, or has it. The turn ends when this value is dropped.
#[derive(Debug)]
pub struct Turn<'a, K: Clone + Eq + Hash> {
    turns: &'a Turns<K>,
    key: K,
    semaphore: Arc<Semaphore>,
    permit: Option<OwnedSemaphorePermit>,
}

impl<K: Clone + Eq + Hash> Turns<K> {
    /// Allows at most `at_once` calls with the same key at a time.
    pub fn new(at_once: usize) -> Self {
        Self { at_once, wait_max: WAIT_MAX, semaphores: Mutex::default() }
    }

    /// Waits for a turn. Returns `None` after 5 s.
    pub async fn take(&self, key: &K) -> Option<Turn<'_, K>> {
        self.take_of(key, self.at_once).await
    }

    /// As [`Self::take`], for a key of which `at_once` calls are allowed at a time.
    pub async fn take_of(&self, key: &K, at_once: usize) -> Option<Turn<'_, K>> {
        let semaphore = {
            let mut semaphores = self.semaphores.lock();
            let new = || Arc::new(Semaphore::new(at_once));
            Arc::clone(semaphores.entry(key.clone()).or_insert_with(new))
        };
        let mut turn = Turn { turns: self, key: key.clone(), semaphore, permit: None };
        let waiting = Arc::clone(&turn.semaphore).acquire_owned();
        turn.permit = Some(tokio::time::timeout(self.wait_max, waiting).await.ok()?.ok()?);
        Some(turn)
    }
}

impl<K: Clone + Eq + Hash> Drop for Turn<'_, K> {
    fn drop(&mut self) {
        drop(self.permit.take());
        let mut semaphores = self.turns.semaphores.lock();
        // One is in the map and one in this turn, so no other call uses it.
        if Arc::strong_count(&self.semaphore) == 2 {
            semaphores.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn calls_with_one_key_take_turns_and_others_do_not_wait() {
        let turns = Turns::new(2);
        let first = turns.take(&"ann").await.unwrap();
        let second = turns.take(&"ann").await.unwrap();
        let mut third = Box::pin(turns.take(&"ann"));
        assert!(third.as_mut().now_or_never().is_none());
        assert!(turns.take(&"bob").now_or_never().flatten().is_some());
        drop(first);
        let third = third.await.unwrap();
        assert_eq!(turns.semaphores.lock().len(), 1);
        drop((second, third));
        assert!(turns.semaphores.lock().is_empty());
    }

    #[tokio::test]
    async fn a_call_that_gives_up_leaves_no_trace() {
        let turns = Turns { wait_max: Duration::from_millis(1), ..Turns::new(1) };
        let held = turns.take(&"ann").await.unwrap();
        assert!(turns.take(&"ann").await.is_none(), "after the longest wait");
        let mut dropped = Box::pin(turns.take(&"ann"));
        assert!(dropped.as_mut().now_or_never().is_none());
        drop(dropped);
        drop(held);
        assert!(turns.semaphores.lock().is_empty());
    }
}
