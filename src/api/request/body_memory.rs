//! The memory of a body, as it arrives and unpacked, within the limit on all bodies, and the
//! problem of a body over the limit.

use std::sync::Arc;

use az::SaturatingAs as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::api::problems::problem::Problem;
use crate::api::problems::problem_type::ProblemType;
use crate::api::shared::ApiShared;
use crate::telemetry::CountGuard;

/// The memory that a body takes of the limit. It outlives the parsed body, because the tasks
/// made from the body have as many bytes. The structures that hold many tasks are added on top.
#[derive(Debug)]
pub struct BodyMemory {
    memory: Arc<Semaphore>,
    memory_max: u32,
    permit: Option<OwnedSemaphorePermit>,
    counted: CountGuard,
}

impl BodyMemory {
    pub fn none(shared: &ApiShared) -> Self {
        Self {
            memory: Arc::clone(&shared.body_memory),
            memory_max: shared.body_memory_max,
            permit: None,
            counted: CountGuard::new(&shared.metrics.body_memory, 0),
        }
    }

    /// Takes `bytes` more, but at most the whole memory. A body that could never fit would
    /// otherwise be told for ever that the node is busy.
    pub fn grow(&mut self, bytes: usize) -> Result<(), Problem> {
        let held = self.permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let room = self.memory_max.saturating_as::<usize>().saturating_sub(held);
        let permits = bytes.min(room).saturating_as::<u32>();
        let Ok(permit) = Arc::clone(&self.memory).try_acquire_many_owned(permits) else {
            return Err(Problem::busy("body_memory"));
        };
        match &mut self.permit {
            Some(held) => held.merge(permit),
            None => self.permit = Some(permit),
        }
        self.counted.add(i64::from(permits));
        Ok(())
    }
}

/// Returns the problem for a body over the limit, as it arrives or unpacked.
pub fn too_large(shared: &ApiShared) -> Problem {
    shared.metrics.rejected("body_bytes");
    let detail = format!(
        "a body may have {} bytes at most, compressed and uncompressed; send fewer tasks at a time",
        shared.settings.body_bytes_max
    );
    Problem::new(ProblemType::BodyTooLarge, detail)
}
