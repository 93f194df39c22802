//! The memory of a body, as it arrives and unpacked, within the limits on all bodies and on those
//! of one caller, and the problem of a body over the limit.

use std::sync::Arc;

use az::SaturatingAs as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::api::callers::MemoryShare;
use crate::api::problems::problem::Problem;
use crate::api::problems::problem_type::ProblemType;
use crate::api::shared::{ApiShared, BODY_MEMORY_SHARE};
use crate::telemetry::CountGuard;

/// The memory that a body takes of the limit. It outlives the parsed body, because the tasks
/// made from the body have as many bytes. The structures that hold many tasks are added on top.
#[derive(Debug)]
pub struct BodyMemory {
    memory: Arc<Semaphore>,
    memory_max: u32,
    permit: Option<OwnedSemaphorePermit>,
    share: MemoryShare,
    /// The bytes of the share that this memory returns when it is dropped.
    share_permit: Option<OwnedSemaphorePermit>,
    /// The bytes of the share that the request has. The packed body has some of them.
    share_held: u32,
    counted: CountGuard,
}

impl BodyMemory {
    /// Returns the memory of a body that has not arrived yet, of a caller with this share.
    pub fn none(shared: &ApiShared, share: MemoryShare) -> Self {
        Self {
            memory: Arc::clone(&shared.body_memory),
            memory_max: shared.body_memory_max,
            permit: None,
            share,
            share_permit: None,
            share_held: 0,
            counted: CountGuard::new(&shared.metrics.body_memory, 0),
        }
    }

    /// Returns the memory of a body that is about to be unpacked. For the caller's share, the
    /// packed and the unpacked one are one body.
    pub fn of_unpacked(shared: &ApiShared, packed: &Self) -> Self {
        Self { share_held: packed.share_held, ..Self::none(shared, packed.share.clone()) }
    }

    /// Takes `bytes` more, but at most the whole memory, and of the caller's share at most the
    /// whole share. A body that could never fit would otherwise be told for ever that the node is
    /// busy.
    pub fn grow(&mut self, bytes: usize) -> Result<(), Problem> {
        let held = self.permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let room = self.memory_max.saturating_as::<usize>().saturating_sub(held);
        let permits = bytes.min(room).saturating_as::<u32>();
        let Some(of_share) = self.share.take(permits, self.share_held) else {
            return Err(Problem::busy(BODY_MEMORY_SHARE));
        };
        let Ok(permit) = Arc::clone(&self.memory).try_acquire_many_owned(permits) else {
            return Err(Problem::busy("body_memory"));
        };
        let share_bytes = of_share.num_permits().saturating_as::<u32>();
        self.share_held = self.share_held.saturating_add(share_bytes);
        add(&mut self.share_permit, of_share);
        add(&mut self.permit, permit);
        self.counted.add(i64::from(permits));
        Ok(())
    }
}

fn add(held: &mut Option<OwnedSemaphorePermit>, more: OwnedSemaphorePermit) {
    match held {
        Some(held) => held.merge(more),
        None => *held = Some(more),
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
