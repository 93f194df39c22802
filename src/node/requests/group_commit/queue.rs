//! The room in the queue of the group commit, in tasks and in bytes, and its fair shares.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::shares::{Share, Shares};
use crate::domain::{Monotonic, PrincipalName};
use crate::node::messages::Refusal;
use crate::node::metrics::NodeMetrics;
use crate::telemetry::CountGuard;

/// The unit in which the bytes of the queue are counted: a semaphore counts only up to 2^32.
const BYTES_UNIT: usize = 1024;

/// The limits of the queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueLimits {
    pub tasks_max: usize,
    pub bytes_max: usize,
}

/// Room in the queue, and the share of a request in the gauges.
#[derive(Debug)]
pub struct Room {
    _permits: [OwnedSemaphorePermit; 2],
    _share: Share<PrincipalName>,
    _shown: [CountGuard; 2],
}

/// A request for room.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    pub principal: &'a PrincipalName,
    pub tasks: usize,
    pub bytes: usize,
}

/// The room for tasks that wait to be stored, or are being stored.
#[derive(Clone, Debug)]
pub struct Queue {
    tasks: Arc<Semaphore>,
    tasks_max: usize,
    bytes: Arc<Semaphore>,
    shares: Shares<PrincipalName>,
}

impl Queue {
    pub fn new(limits: QueueLimits) -> Self {
        let bytes = Semaphore::new(limits.bytes_max.div_ceil(BYTES_UNIT));
        Self {
            tasks: Arc::new(Semaphore::new(limits.tasks_max)),
            tasks_max: limits.tasks_max,
            bytes: Arc::new(bytes),
            shares: Shares::new(limits.tasks_max),
        }
    }

    /// Returns true when no task waits to be stored.
    pub fn is_empty(&self) -> bool {
        self.tasks.available_permits() == self.tasks_max
    }

    /// Takes room for a request. The refusal names the reached limit, because each limit is a
    /// setting of its own.
    pub fn room_for(
        &self,
        asked: Asked<'_>,
        metrics: &NodeMetrics,
        now: Monotonic,
    ) -> Result<Room, Refusal> {
        let share = self.shares.take(asked.principal, asked.tasks, now);
        let share = share.ok_or(Refusal::Busy { limit: "submit_queue_share" })?;
        let acquired = try_acquire(&self.tasks, asked.tasks, "submit_queue").and_then(|tasks| {
            let bytes = asked.bytes.div_ceil(BYTES_UNIT);
            Ok([tasks, try_acquire(&self.bytes, bytes, "submit_queue_bytes")?])
        });
        let permits = match acquired {
            Ok(permits) => permits,
            Err(full) => {
                self.shares.lacked_room(asked.principal, now);
                return Err(full);
            }
        };
        let shown =
            |gauge, amount| CountGuard::new(gauge, i64::try_from(amount).unwrap_or(i64::MAX));
        Ok(Room {
            _permits: permits,
            _share: share,
            _shown: [
                shown(&metrics.submit_queue_tasks, asked.tasks),
                shown(&metrics.submit_queue_bytes, asked.bytes),
            ],
        })
    }
}

fn try_acquire(
    semaphore: &Arc<Semaphore>,
    count: usize,
    limit: &'static str,
) -> Result<OwnedSemaphorePermit, Refusal> {
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    Arc::clone(semaphore).try_acquire_many_owned(count).map_err(|_full| Refusal::Busy { limit })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::telemetry::Registry;

    #[test]
    fn the_limit_that_is_reached_is_named() {
        let queue = Queue::new(QueueLimits { tasks_max: 2, bytes_max: 3 * BYTES_UNIT });
        let metrics = NodeMetrics::register(&mut Registry::default());
        let principal = &PrincipalName::anonymous();
        let room_for = |tasks, bytes| {
            queue.room_for(Asked { principal, tasks, bytes }, &metrics, Monotonic::default())
        };
        let full = |limit| Some(Refusal::Busy { limit });
        assert_eq!(room_for(3, 1).err(), full("submit_queue"));
        assert_eq!(room_for(1, 3 * BYTES_UNIT + 1).err(), full("submit_queue_bytes"));
        let held = room_for(1, 2 * BYTES_UNIT + 1);
        assert!(held.is_ok());
        assert_eq!(
            (metrics.submit_queue_tasks.get(), metrics.submit_queue_bytes.get()),
            (1, i64::try_from(2 * BYTES_UNIT + 1).unwrap())
        );
        assert_eq!(room_for(1, 1).err(), full("submit_queue_bytes"));
        assert_eq!(room_for(2, 1).err(), full("submit_queue"));
        drop(held);
        assert_eq!(
            (metrics.submit_queue_tasks.get(), metrics.submit_queue_bytes.get()),
            (0, 0),
            "what is shown is what is held"
        );
        // A refused request has taken no room.
        assert!(room_for(2, 3 * BYTES_UNIT).is_ok());
    }

    #[test]
    fn no_principal_holds_more_than_half_while_others_wait() {
        let queue = Queue::new(QueueLimits { tasks_max: 10, bytes_max: 10 * BYTES_UNIT });
        let metrics = NodeMetrics::register(&mut Registry::default());
        let [flood, other] = ["flood", "other"].map(|name| PrincipalName::new(name).unwrap());
        let at = |seconds: u64| Monotonic::from_start(Duration::from_secs(100 + seconds));
        let ask = |principal: &PrincipalName, tasks, seconds: u64| {
            queue.room_for(Asked { principal, tasks, bytes: 1 }, &metrics, at(seconds))
        };
        let full = |limit| Some(Refusal::Busy { limit });
        let mut held: Vec<Room> = (0..10).map(|_| ask(&flood, 1, 0).unwrap()).collect();
        assert_eq!(ask(&flood, 1, 0).err(), full("submit_queue"), "alone, it has all of it");
        assert_eq!(ask(&other, 1, 0).err(), full("submit_queue"));
        // One task of the flood is stored. Its place is for the other.
        held.pop();
        assert_eq!(ask(&flood, 1, 1).err(), full("submit_queue_share"));
        let own = ask(&other, 1, 1).unwrap();
        held.truncate(4);
        held.push(ask(&flood, 1, 20).unwrap());
        assert_eq!(ask(&flood, 1, 20).err(), full("submit_queue_share"), "while the other is here");
        drop(own);
        held.push(ask(&flood, 1, 20).unwrap());
        held.clear();
        assert!(queue.shares.is_empty() && queue.is_empty());
    }

    #[test]
    fn a_request_beyond_the_half_passes_alone() {
        let queue = Queue::new(QueueLimits { tasks_max: 10, bytes_max: 10 * BYTES_UNIT });
        let metrics = NodeMetrics::register(&mut Registry::default());
        let [one, two] = ["one", "two"].map(|name| PrincipalName::new(name).unwrap());
        let ask = |principal: &PrincipalName, tasks| {
            queue.room_for(Asked { principal, tasks, bytes: 1 }, &metrics, Monotonic::default())
        };
        let _small = ask(&one, 1).unwrap();
        let large = ask(&two, 8);
        assert!(large.is_ok() && ask(&two, 1).is_err());
    }
}
