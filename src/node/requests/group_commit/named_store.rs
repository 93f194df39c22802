//! Stores named tasks: each name of a topic has one task, the first that was submitted.
//!
//! ```text
//!   insert, on conflict do nothing ──won──▶ new: stored, or claimed, by the same statement
//!       ▲            │ lost
//!       │            ▼
//!       │     read the entry ──there──▶ known: the first task and its state
//!       │            │ gone, or expired and its task final
//!       └────────────┘
//! ```

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::submission::{Submission, WriteGroup, write_with_or_without_claims};
use crate::clock;
use crate::domain::{BatchBuilder, BatchId, IdRange, NewTask, TaskId};
use crate::engine::placing::Destination;
use crate::failpoint::{Failpoint, reach};
use crate::node::messages::{Accepted, Refusal};
use crate::node::requests::placing::{Placer, assign_ids, clamp};
use crate::node::requests::postgres_failures::{refusal_of, refusal_of_read};
use crate::node::shared::NodeShared;
use crate::postgres::PostgresError;
use crate::postgres::tasks::names::Names;
use crate::postgres::tasks::submit_named::{NamedGroup, NamedSubmits};

/// The maximum number of rounds when a name expires just when it is used. More cannot be chance.
const ROUNDS_MAX: usize = 5;
/// The pause between two rounds. The sweep of expired names keeps a thousand of them locked for
/// about so long.
const ROUND_PAUSE: Duration = Duration::from_millis(10);

/// Stores tasks with a name.
#[derive(Debug)]
pub struct NamedStore {
    pub shared: Arc<NodeShared>,
    pub submits: NamedSubmits,
    pub names: Arc<Names>,
}

impl NamedStore {
    /// Stores the tasks whose name is new, and answers all tasks of the group.
    ///
    /// # Errors
    /// When no task has an answer. A later error is the answer only of the tasks that have none
    /// yet: the others are stored.
    pub async fn insert_new(&mut self, group: &mut [&mut Submission]) -> Result<(), PostgresError> {
        let now = self.shared.now();
        group.iter_mut().for_each(|submission| clamp(&mut submission.task, now));
        // Every statement takes the names in the same order: otherwise two groups would wait for
        // each other. Of the tasks with the same name, the first one stays in front.
        group.sort_by(|one, other| key_of(&one.task).cmp(&key_of(&other.task)));
        let mut open: Vec<&mut Submission> = group
            .chunk_by_mut(|one, other| key_of(&one.task) == key_of(&other.task))
            .filter_map(|same| same.first_mut())
            .map(|first| &mut **first)
            .collect();
        let refusal = self.insert_in_rounds(&mut open).await?;
        open.iter_mut().for_each(|submission| submission.refuse(&refusal));
        for same in group.chunk_by_mut(|one, other| key_of(&one.task) == key_of(&other.task)) {
            if let Some((first, repeated)) = same.split_first_mut() {
                repeated.iter_mut().for_each(|submission| answer_like(first, submission));
            }
        }
        Ok(())
    }

    /// Inserts or finds the `open` tasks until each has an answer. Afterwards, `open` holds the
    /// tasks without one, and the returned refusal is for them.
    async fn insert_in_rounds(
        &mut self,
        open: &mut Vec<&mut Submission>,
    ) -> Result<Refusal, PostgresError> {
        let count = open.len();
        for round in 0..ROUNDS_MAX {
            if open.is_empty() {
                break;
            }
            if round > 0 {
                clock::sleep(ROUND_PAUSE).await;
            }
            let outcome = self.round(open).await;
            open.retain(|submission| submission.answer.is_none());
            match outcome {
                Ok(()) => {}
                Err(error) if open.len() == count => return Err(error),
                // Another task has the id of one of these tasks.
                Err(error) if error.is_duplicate_key() => {
                    assign_ids(&self.shared, open.iter_mut().map(|one| &mut one.task));
                }
                // A round that gave way to another transaction is retried.
                Err(error) if error.gave_way_to_others() => {}
                Err(error) => return Ok(refusal_of(&error)),
            }
        }
        Ok(Refusal::ServerAway {
            reason: "other requests kept taking and freeing the name".to_owned(),
        })
    }

    /// Stores the `open` tasks with new names, and looks up the others. A task to retry, or one
    /// whose statement failed, has no answer afterwards.
    async fn round(&mut self, open: &mut [&mut Submission]) -> Result<(), PostgresError> {
        let shared = Arc::clone(&self.shared);
        let placer = Placer::new(&shared, shared.now());
        for submission in open.iter_mut() {
            submission.place = placer.place_of(&submission.task);
        }
        write_with_or_without_claims(self, open, placer.rule()).await?;
        match self.find(open).await {
            Ok(()) => Ok(()),
            Err(error) if error.gave_way_to_others() => Err(error),
            // The tasks that are left lost their names to others, so they are not stored, whether
            // or not the read was answered.
            Err(error) => {
                let refusal = refusal_of_read(&error);
                let left = open.iter_mut().filter(|submission| submission.answer.is_none());
                left.for_each(|submission| submission.refuse(&refusal));
                Ok(())
            }
        }
    }

    /// Puts claimed tasks on the wheel, and has tasks that are due soon claimed now.
    async fn take_on(
        &self,
        group: &[&mut Submission],
        won: &HashSet<TaskId>,
        batch: Option<BatchId>,
    ) {
        let winners = |wanted: Destination| -> Vec<&NewTask> {
            let is_one = |one: &&&mut Submission| one.place == wanted && won.contains(&one.task.id);
            group.iter().filter(is_one).map(|submission| &submission.task).collect()
        };
        self.shared
            .claim_late(IdRange::spanning(winners(Destination::Near).iter().map(|task| task.id)));
        let Some(batch) = batch else { return };
        // The tasks are in the order of the statement's arrays.
        let claimed = winners(Destination::Claimed);
        if claimed.is_empty() {
            self.shared.in_flight.forget(batch);
        } else {
            self.shared
                .take_in_on_insert(BatchBuilder::of_new_tasks(batch, claimed.into_iter()))
                .await;
        }
    }

    /// Answers the tasks that are not stored and whose name is known.
    async fn find(&self, open: &mut [&mut Submission]) -> Result<(), PostgresError> {
        let mut lost: Vec<&mut &mut Submission> =
            open.iter_mut().filter(|submission| submission.answer.is_none()).collect();
        if lost.is_empty() {
            return Ok(());
        }
        let wanted: Vec<(&str, &str)> = lost.iter().map(|one| key_of(&one.task)).collect();
        let known = self.names.known(&wanted).await?;
        for (submission, known) in lost.iter_mut().zip(known) {
            let Some(known) = known else { continue };
            let is_new = known.id == submission.task.id;
            submission.answer = Some(Ok(Accepted { id: known.id, state: known.state, is_new }));
            self.shared.metrics.names_known.inc();
        }
        Ok(())
    }
}

impl WriteGroup for NamedStore {
    /// Writes and answers each task with a new name.
    async fn write(&mut self, group: &mut [&mut Submission]) -> Result<(), PostgresError> {
        let shared = &self.shared;
        let tasks: Vec<&NewTask> = group.iter().map(|submission| &submission.task).collect();
        let is_claimed = are_at(group, Destination::Claimed);
        let batch = is_claimed
            .contains(&true)
            .then(|| BatchId::new(shared.now(), rand::random(), rand::random()));
        if let Some(batch) = batch {
            shared.in_flight.ask_for(batch);
        }
        let began_at = clock::monotonic();
        let rows = NamedGroup {
            tasks: &tasks,
            is_far: &are_at(group, Destination::Far),
            is_claimed: &is_claimed,
            batch,
        };
        let (won, stamp) = match self.submits.store(&rows).await {
            Ok(answer) => answer,
            Err(error) => {
                if let Some(batch) = batch {
                    shared.in_flight.forget(batch);
                }
                return Err(error);
            }
        };
        reach(Failpoint::InsertCommitted);
        shared.group_stored(group.len(), won.len(), stamp, began_at);
        self.take_on(group, &won, batch).await;
        for submission in group.iter_mut().filter(|one| won.contains(&one.task.id)) {
            submission.accept();
        }
        Ok(())
    }
}

fn key_of(task: &NewTask) -> (&str, &str) {
    (task.record.topic.as_str(), task.name.as_ref().map_or("", |name| name.as_str()))
}

fn are_at(group: &[&mut Submission], wanted: Destination) -> Vec<bool> {
    group.iter().map(|submission| submission.place == wanted).collect()
}

/// Answers a task whose name an earlier task of the group has, too.
fn answer_like(first: &Submission, repeated: &mut Submission) {
    repeated.answer = match &first.answer {
        Some(Ok(accepted)) => Some(Ok(Accepted { is_new: false, ..accepted.clone() })),
        answer => answer.clone(),
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Headers, Record, ShardCount, TaskName, Timestamp, TopicName};

    fn submission(index: usize, name: &str) -> Submission {
        let record = Record {
            topic: TopicName::new("t").unwrap(),
            key: None,
            payload: None,
            headers: Headers::default(),
        };
        let name = Some(TaskName::new(name).unwrap());
        let random = (0, rand::random());
        let task = NewTask::new(record, name, Timestamp::EPOCH, ShardCount::DEFAULT, random);
        Submission::new(index, task)
    }

    #[test]
    fn a_name_repeated_within_a_group_is_answered_as_the_first_one_but_not_as_new() {
        let [mut first, mut repeated] = [submission(0, "a"), submission(1, "a")];
        first.accept();
        answer_like(&first, &mut repeated);
        let [first, repeated] = [first, repeated].map(|one| one.answer.unwrap().unwrap());
        assert!(first.is_new && !repeated.is_new);
        assert_eq!(first.id, repeated.id);
        let [mut first, mut repeated] = [submission(0, "b"), submission(1, "b")];
        first.refuse(&Refusal::Draining);
        answer_like(&first, &mut repeated);
        assert_eq!(repeated.answer, Some(Err(Refusal::Draining)));
    }
}
