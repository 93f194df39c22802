//! The room in the queue of the intake, in tasks and in bytes.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::node::messages::Refusal;
use crate::node::metrics::NodeMetrics;
use crate::telemetry::CountGuard;

/// The unit in which the bytes of the queue are counted: a semaphore counts only up to 2^32.
const BYTES_UNIT: usize = 1024;

/// The limits of the queue.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub tasks_max: usize,
    pub bytes_max: usize,
}

/// Room in the queue, and the share of a request in the gauges.
#[derive(Debug)]
pub struct Room {
    _permits: [OwnedSemaphorePermit; 2],
    _shown: [CountGuard; 2],
}

/// The room for tasks that wait to be stored, or are being stored.
#[derive(Clone, Debug)]
pub struct Queue {
    tasks: Arc<Semaphore>,
    tasks_max: usize,
    bytes: Arc<Semaphore>,
}

impl Queue {
    pub fn new(limits: Bounds) -> Self {
        let bytes = Semaphore::new(limits.bytes_max.div_ceil(BYTES_UNIT));
        Self {
            tasks: Arc::new(Semaphore::new(limits.tasks_max)),
            tasks_max: limits.tasks_max,
            bytes: Arc::new(bytes),
        }
    }

    /// Returns true when no task waits to be stored.
    pub fn is_empty(&self) -> bool {
        self.tasks.available_permits() == self.tasks_max
    }

    /// Takes room for a request. The refusal names the limit that is reached, because each limit is
    /// a setting of its own.
    pub fn room_for(
        &self,
        task_count: usize,
        bytes: usize,
        metrics: &NodeMetrics,
    ) -> Result<Room, Refusal> {
        let tasks = try_acquire(&self.tasks, task_count, "submit_queue")?;
        let shown =
            |gauge, amount| CountGuard::new(gauge, i64::try_from(amount).unwrap_or(i64::MAX));
        Ok(Room {
            _permits: [
                tasks,
                try_acquire(&self.bytes, bytes.div_ceil(BYTES_UNIT), "submit_queue_bytes")?,
            ],
            _shown: [
                shown(&metrics.submit_queue_tasks, task_count),
                shown(&metrics.submit_queue_bytes, bytes),
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
    use super::*;
    use crate::telemetry::Registry;

    #[test]
    fn the_limit_that_is_reached_is_named() {
        let queue = Queue::new(Bounds { tasks_max: 2, bytes_max: 3 * BYTES_UNIT });
        let metrics = NodeMetrics::register(&mut Registry::default());
        let room_for = |tasks, bytes| queue.room_for(tasks, bytes, &metrics);
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
}
