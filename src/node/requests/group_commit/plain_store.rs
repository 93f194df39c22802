//! Stores tasks without a name.

use std::sync::Arc;

use super::submission::{Submission, WriteGroup, write_with_or_without_claims};
use crate::clock;
use crate::domain::{BatchBuilder, BatchId, IdRange};
use crate::engine::placing::Destination;
use crate::failpoint::{Failpoint, reach};
use crate::node::requests::placing::{Placer, clamp};
use crate::node::shared::NodeShared;
use crate::postgres::PostgresError;
use crate::postgres::tasks::submit::{Group, Submits};

/// Stores tasks with no name.
#[derive(Debug)]
pub struct PlainStore {
    pub shared: Arc<NodeShared>,
    pub submits: Submits,
}

impl PlainStore {
    /// Stores and answers all tasks of the group, or none.
    pub async fn insert(&mut self, group: &mut [&mut Submission]) -> Result<(), PostgresError> {
        let shared = Arc::clone(&self.shared);
        let now = shared.now();
        let placer = Placer::new(&shared, now);
        for submission in group.iter_mut() {
            clamp(&mut submission.task, now);
            submission.place = placer.place_of(&submission.task);
        }
        write_with_or_without_claims(self, group, placer.rule()).await
    }
}

impl WriteGroup for PlainStore {
    async fn write(&mut self, group: &mut [&mut Submission]) -> Result<(), PostgresError> {
        let shared = &self.shared;
        let mut rows = Group::default();
        let mut claimed = Vec::new();
        for submission in group.iter() {
            match submission.place {
                Destination::Claimed => claimed.push(&submission.task),
                Destination::Near => rows.near.push(&submission.task),
                Destination::Far => rows.far.push(&submission.task),
            }
        }
        let batch = (!claimed.is_empty()).then(|| {
            let id = BatchId::new(shared.now(), rand::random(), rand::random());
            BatchBuilder::of_new_tasks(id, claimed.iter().copied())
        });
        if let Some(batch) = &batch {
            shared.in_flight.ask_for(batch.id);
            rows.claimed = Some((batch.id, claimed));
        }
        let began_at = clock::monotonic();
        let stamp = match self.submits.store(&rows).await {
            Ok(stamp) => stamp,
            Err(error) => {
                if let Some(batch) = batch {
                    shared.in_flight.forget(batch.id);
                }
                return Err(error);
            }
        };
        reach(Failpoint::InsertCommitted);
        shared.group_stored(group.len(), group.len(), stamp, began_at);
        shared.claim_late(IdRange::spanning(rows.near.iter().map(|task| task.id)));
        if let Some(batch) = batch {
            shared.take_in_on_insert(batch).await;
        }
        for submission in group {
            submission.accept();
        }
        Ok(())
    }
}
