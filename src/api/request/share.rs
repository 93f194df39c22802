//! What a body takes of the memory for bodies, as it comes and as it is unpacked, and what is said
//! when it is too much.

use tokio::sync::SemaphorePermit;

use crate::api::problems::problem::Problem;
use crate::api::problems::problem_type::ProblemType;
use crate::api::shared::Shared;
use crate::telemetry::Counted;

/// What a body takes of the bound on memory. Held on to after the body is parsed and dropped: the
/// bytes of the tasks that were made of it are as many. What they are kept in comes on top, where
/// there are many.
#[derive(Debug)]
pub struct Share<'a> {
    shared: &'a Shared,
    permit: Option<SemaphorePermit<'a>>,
    counted: Counted,
}

impl<'a> Share<'a> {
    pub fn none(shared: &'a Shared) -> Self {
        Self { shared, permit: None, counted: Counted::new(&shared.metrics.body_memory, 0) }
    }

    /// Takes so much more; all that there is at most, so that nobody is told for ever that others
    /// are busy.
    pub fn grow(&mut self, bytes: usize) -> Result<(), Problem> {
        let held = self.permit.as_ref().map_or(0, SemaphorePermit::num_permits);
        let room = usize::try_from(self.shared.body_memory_max).unwrap_or(usize::MAX).saturating_sub(held);
        let permits = u32::try_from(bytes.min(room)).unwrap_or(u32::MAX);
        let Ok(permit) = self.shared.body_memory.try_acquire_many(permits) else {
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

/// A body over the bound, as it comes or unpacked.
pub fn too_large(shared: &Shared) -> Problem {
    shared.metrics.rejected("body_bytes");
    let detail = format!(
        "a body has at most {} bytes, also when it is unpacked; send fewer tasks at a time",
        shared.settings.body_bytes_max
    );
    Problem::new(ProblemType::BodyTooLarge, detail)
}
