//! The room in the queue of the group commit, in tasks and in bytes, and its fair shares.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::shares::{Share, Shares};
use crate::domain::{Monotonic, PrincipalName};
use crate::node::messages::Refusal;
use crate::node::metrics::NodeMetrics;
use crate::telemetry::CountGuard;

/// The unit in which the bytes of the queue are counted: a semaphore counts only up to 2^32. Each
/// request takes at least one.
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
    _of_limits: [RoomOfLimit; 2],
    _shown: [CountGuard; 2],
}

/// Room of one limit. It is free again before its principal may take more.
#[derive(Debug)]
struct RoomOfLimit {
    _permit: OwnedSemaphorePermit,
    _share: Share<PrincipalName>,
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
    tasks: QueueLimit,
    bytes: QueueLimit,
}

/// One limit of the queue. A principal may reach it alone, but has a half of it beside others.
#[derive(Clone, Debug)]
struct QueueLimit {
    units_max: usize,
    free: Arc<Semaphore>,
    shares: Shares<PrincipalName>,
    /// The name of the limit in refusals.
    name: &'static str,
    /// The name of the half in refusals.
    share_name: &'static str,
}

impl QueueLimit {
    fn new(units_max: usize, name: &'static str, share_name: &'static str) -> Self {
        let free = Arc::new(Semaphore::new(units_max));
        Self { units_max, free, shares: Shares::new(units_max), name, share_name }
    }

    fn take(
        &self,
        principal: &PrincipalName,
        units: usize,
        now: Monotonic,
    ) -> Result<RoomOfLimit, Refusal> {
        let share = self.shares.take(principal, units, now);
        let share = share.ok_or(Refusal::Busy { limit: self.share_name })?;
        let permits = u32::try_from(units).unwrap_or(u32::MAX);
        match Arc::clone(&self.free).try_acquire_many_owned(permits) {
            Ok(permit) => Ok(RoomOfLimit { _permit: permit, _share: share }),
            // The refused request has its share until this function returns.
            Err(_full) => {
                self.shares.lacked_room(principal, now);
                Err(Refusal::Busy { limit: self.name })
            }
        }
    }

    fn is_unused(&self) -> bool {
        self.free.available_permits() == self.units_max
    }
}

impl Queue {
    pub fn new(limits: QueueLimits) -> Self {
        let units_max = limits.bytes_max.div_ceil(BYTES_UNIT);
        Self {
            tasks: QueueLimit::new(limits.tasks_max, "submit_queue", "submit_queue_share"),
            bytes: QueueLimit::new(units_max, "submit_queue_bytes", "submit_queue_bytes_share"),
        }
    }

    /// Returns true when no task waits to be stored.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_unused()
    }

    /// Takes room for a request. The refusal names the reached limit, because each limit is a
    /// setting of its own.
    pub fn room_for(
        &self,
        asked: Asked<'_>,
        metrics: &NodeMetrics,
        now: Monotonic,
    ) -> Result<Room, Refusal> {
        let tasks = self.tasks.take(asked.principal, asked.tasks, now)?;
        let units = asked.bytes.div_ceil(BYTES_UNIT).max(1);
        let bytes = self.bytes.take(asked.principal, units, now)?;
        let shown =
            |gauge, amount| CountGuard::new(gauge, i64::try_from(amount).unwrap_or(i64::MAX));
        Ok(Room {
            _of_limits: [tasks, bytes],
            _shown: [
                shown(&metrics.submit_queue_tasks, asked.tasks),
                shown(&metrics.submit_queue_bytes, asked.bytes),
            ],
        })
    }
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

    /// Fills a queue with ten requests of one principal, of `asked` tasks and bytes each. Then
    /// another principal comes. The limit has the names `full` and `share`.
    fn fill(limits: QueueLimits, asked: (usize, usize), full: &'static str, share: &'static str) {
        let queue = Queue::new(limits);
        let metrics = NodeMetrics::register(&mut Registry::default());
        let [flood, other] = ["flood", "other"].map(|name| PrincipalName::new(name).unwrap());
        let at = |seconds: u64| Monotonic::from_start(Duration::from_secs(100 + seconds));
        let ask = |principal: &PrincipalName, seconds: u64| {
            let (tasks, bytes) = asked;
            queue.room_for(Asked { principal, tasks, bytes }, &metrics, at(seconds))
        };
        let busy = |limit| Some(Refusal::Busy { limit });
        let mut held: Vec<Room> = (0..10).map(|_| ask(&flood, 0).unwrap()).collect();
        assert_eq!(ask(&flood, 0).err(), busy(full), "alone, it has all of it");
        assert_eq!(ask(&other, 0).err(), busy(full));
        // One request of the flood is stored. Its place is for the other.
        held.pop();
        assert_eq!(ask(&flood, 1).err(), busy(share));
        let own = ask(&other, 1).unwrap();
        held.truncate(4);
        held.push(ask(&flood, 20).unwrap());
        assert_eq!(ask(&flood, 20).err(), busy(share), "while the other is here");
        drop(own);
        held.push(ask(&flood, 20).unwrap());
        held.clear();
        assert!(queue.tasks.shares.is_empty() && queue.bytes.shares.is_empty());
        assert!(queue.is_empty() && queue.bytes.is_unused());
    }

    #[test]
    fn no_principal_holds_more_than_half_of_the_tasks_while_others_wait() {
        let limits = QueueLimits { tasks_max: 10, bytes_max: 1000 * BYTES_UNIT };
        fill(limits, (1, 1), "submit_queue", "submit_queue_share");
    }

    #[test]
    fn no_principal_holds_more_than_half_of_the_bytes_while_others_wait() {
        let limits = QueueLimits { tasks_max: 1000, bytes_max: 100 * BYTES_UNIT };
        let few_large = (1, 10 * BYTES_UNIT);
        fill(limits, few_large, "submit_queue_bytes", "submit_queue_bytes_share");
    }

    #[test]
    fn a_request_beyond_the_half_passes_alone() {
        let metrics = NodeMetrics::register(&mut Registry::default());
        let [one, two] = ["one", "two"].map(|name| PrincipalName::new(name).unwrap());
        for (large, share) in
            [((8, 1), "submit_queue_share"), ((1, 8 * BYTES_UNIT), "submit_queue_bytes_share")]
        {
            let queue = Queue::new(QueueLimits { tasks_max: 10, bytes_max: 10 * BYTES_UNIT });
            let ask = |principal: &PrincipalName, (tasks, bytes): (usize, usize)| {
                let asked = Asked { principal, tasks, bytes };
                queue.room_for(asked, &metrics, Monotonic::default())
            };
            let _small = ask(&one, (1, 1)).unwrap();
            let _large = ask(&two, large).unwrap();
            assert_eq!(ask(&two, (1, 1)).err(), Some(Refusal::Busy { limit: share }));
        }
    }
}
