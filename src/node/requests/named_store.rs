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

use super::placing::{Place, Sorter, clamp, may_do_without_claim, put_in_order};
use super::retry_policy::refusal_of;
use crate::clock;
use crate::domain::{BatchBuilder, BatchId, IdRange, NewTask, TaskId, TaskState};
use crate::error_chain::chain;
use crate::failpoint::{Failpoint, reach};
use crate::node::messages::{Accepted, Refusal};
use crate::node::shared::Shared;
use crate::postgres::Error;
use crate::postgres::tasks::names::Names;
use crate::postgres::tasks::submit_named::{Group, NamedSubmits};

/// The maximum number of rounds when a name expires just when it is used. More cannot be chance.
const ROUNDS_MAX: usize = 5;
/// The pause between two rounds. The sweep of expired names keeps a thousand of them locked for
/// about so long.
const ROUND_PAUSE: Duration = Duration::from_millis(10);

/// Stores tasks that have a name.
#[derive(Debug)]
pub struct NamedStore {
    pub shared: Arc<Shared>,
    pub submits: NamedSubmits,
    pub names: Arc<Names>,
}

impl NamedStore {
    /// Stores the tasks whose name is new, and returns an answer for each of `tasks`, in order.
    ///
    /// # Errors
    /// When none of them has an answer. A later error is the answer only of the tasks that have
    /// none yet: the others are stored.
    pub async fn store(
        &mut self,
        tasks: &mut [NewTask],
    ) -> Result<Vec<Result<Accepted, Refusal>>, Error> {
        clamp(tasks, self.shared.now());
        let leaders = leaders(tasks);
        // Every statement takes the names in the same order: otherwise two groups would wait for
        // each other.
        let mut open: Vec<usize> =
            (0..tasks.len()).filter(|index| leaders[*index] == *index).collect();
        open.sort_unstable_by_key(|index| key_of(&tasks[*index]));
        let mut answers: Vec<Option<Accepted>> = vec![None; tasks.len()];
        let mut refusal = Refusal::ServerAway {
            reason: "the name was taken and freed again and again".to_owned(),
        };
        for round in 0..ROUNDS_MAX {
            if open.is_empty() {
                break;
            }
            if round > 0 {
                clock::sleep(ROUND_PAUSE).await;
            }
            if let Err(error) = self.round(tasks, &mut open, &mut answers).await {
                if answers.iter().all(Option::is_none) {
                    return Err(error);
                }
                refusal = refusal_of(&error);
                // Another task has the id of one of these tasks.
                if error.is_of_an_id() {
                    for index in &open {
                        put_in_order(&self.shared, [&mut tasks[*index]]);
                    }
                    continue;
                }
                // A round that gave way to another transaction is retried.
                if matches!(error, Error::GaveWay { .. }) {
                    continue;
                }
                if matches!(refusal, Refusal::Unknown { .. }) {
                    let count = leaders.iter().filter(|leader| answers[**leader].is_none()).count();
                    self.shared
                        .metrics
                        .submit_unknown
                        .inc_by(u64::try_from(count).unwrap_or(u64::MAX));
                }
                break;
            }
        }
        Ok((0..tasks.len())
            .map(|index| answer_of(index, &leaders, &answers).ok_or_else(|| refusal.clone()))
            .collect())
    }

    /// Stores the `open` tasks whose name is new, and looks up the others. Afterwards, `open` holds
    /// the tasks that must be retried, or that failed.
    async fn round(
        &mut self,
        tasks: &[NewTask],
        open: &mut Vec<usize>,
        answers: &mut [Option<Accepted>],
    ) -> Result<(), Error> {
        let group: Vec<&NewTask> = open.iter().map(|index| &tasks[*index]).collect();
        let stored = self.insert(&group).await?;
        let mut lost = Vec::new();
        for (&index, state) in open.iter().zip(stored) {
            match state {
                Some(state) => {
                    answers[index] = Some(Accepted { id: tasks[index].id, state, is_new: true })
                }
                None => lost.push(index),
            }
        }
        *open = lost;
        self.find(tasks, open, answers).await
    }

    /// Stores or claims the tasks whose name is new, and returns their states. A task whose name is
    /// taken gets `None`.
    async fn insert(&mut self, tasks: &[&NewTask]) -> Result<Vec<Option<TaskState>>, Error> {
        let shared = Arc::clone(&self.shared);
        let sorter = Sorter::new(&shared, shared.now());
        let placed = |sorter: Sorter<'_>| -> Vec<Place> {
            tasks.iter().map(|task| sorter.place_of(task)).collect()
        };
        let places = placed(sorter);
        let has_claims = places.contains(&Place::Claimed);
        match self.insert_placed(tasks, places).await {
            Err(error) if may_do_without_claim(&error) && has_claims => {
                tracing::debug!(error = chain(&error), "not claimed as they are inserted");
                self.insert_placed(tasks, placed(sorter.without_claims())).await
            }
            stored => stored,
        }
    }

    async fn insert_placed(
        &mut self,
        tasks: &[&NewTask],
        places: Vec<Place>,
    ) -> Result<Vec<Option<TaskState>>, Error> {
        let shared = &self.shared;
        let now = shared.now();
        let batch = places
            .contains(&Place::Claimed)
            .then(|| BatchId::new(now, rand::random(), rand::random()));
        if let Some(batch) = batch {
            shared.in_flight.ask_for(batch);
        }
        let began_at = clock::monotonic();
        let group = Group {
            tasks,
            is_far: &of_place(&places, Place::Far),
            is_claimed: &of_place(&places, Place::Claimed),
            batch,
        };
        let (won, stamp) = match self.submits.store(&group).await {
            Ok(answer) => answer,
            Err(error) => {
                if let Some(batch) = batch {
                    shared.in_flight.forget(batch);
                }
                return Err(error);
            }
        };
        reach(Failpoint::InsertCommitted);
        shared.group_stored(tasks.len(), won.len(), stamp, began_at);
        self.take_on(tasks, &places, &won, batch).await;
        let state =
            |place| if place == Place::Claimed { TaskState::Claimed } else { TaskState::Scheduled };
        Ok(tasks
            .iter()
            .zip(places)
            .map(|(task, place)| won.contains(&task.id).then(|| state(place)))
            .collect())
    }

    /// Puts claimed tasks on the wheel, and has tasks that are due soon claimed now.
    async fn take_on(
        &self,
        tasks: &[&NewTask],
        places: &[Place],
        won: &HashSet<TaskId>,
        batch: Option<BatchId>,
    ) {
        let winners = |wanted: Place| -> Vec<&NewTask> {
            let each = tasks
                .iter()
                .zip(places)
                .filter(|(task, place)| **place == wanted && won.contains(&task.id));
            each.map(|(task, _)| *task).collect()
        };
        self.shared.look_after(IdRange::spanning(winners(Place::Near).iter().map(|task| task.id)));
        let Some(batch) = batch else { return };
        // The tasks are in the order of the statement's arrays.
        let claimed = winners(Place::Claimed);
        if claimed.is_empty() {
            self.shared.in_flight.forget(batch);
        } else {
            self.shared
                .take_in_on_insert(BatchBuilder::of_new_tasks(batch, claimed.into_iter()))
                .await;
        }
    }

    /// Answers the `lost` tasks whose name is known, and leaves the others in `lost`.
    async fn find(
        &self,
        tasks: &[NewTask],
        lost: &mut Vec<usize>,
        answers: &mut [Option<Accepted>],
    ) -> Result<(), Error> {
        if lost.is_empty() {
            return Ok(());
        }
        let wanted: Vec<(&str, &str)> = lost.iter().map(|index| key_of(&tasks[*index])).collect();
        let known = self.names.known(&wanted).await?;
        let mut again = Vec::new();
        for (&index, known) in lost.iter().zip(known) {
            match known {
                Some(known) => {
                    let is_new = known.id == tasks[index].id;
                    answers[index] = Some(Accepted { id: known.id, state: known.state, is_new });
                    self.shared.metrics.names_known.inc();
                }
                None => again.push(index),
            }
        }
        *lost = again;
        Ok(())
    }
}

fn key_of(task: &NewTask) -> (&str, &str) {
    (task.record.topic.as_str(), task.name.as_ref().map_or("", |name| name.as_str()))
}

/// Returns, for each task, the first task with the same name.
fn leaders(tasks: &[NewTask]) -> Vec<usize> {
    let mut firsts = std::collections::HashMap::with_capacity(tasks.len());
    tasks
        .iter()
        .enumerate()
        .map(|(index, task)| *firsts.entry(key_of(task)).or_insert(index))
        .collect()
}

fn of_place(places: &[Place], wanted: Place) -> Vec<bool> {
    places.iter().map(|place| *place == wanted).collect()
}

fn answer_of(index: usize, leaders: &[usize], answers: &[Option<Accepted>]) -> Option<Accepted> {
    let leader = leaders[index];
    let is_repeated = leader != index;
    answers[leader]
        .clone()
        .map(|accepted| Accepted { is_new: accepted.is_new && !is_repeated, ..accepted })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Headers, Record, ShardCount, TaskName, Timestamp, TopicName};

    fn task(topic: &str, name: &str) -> NewTask {
        let record = Record {
            topic: TopicName::new(topic).unwrap(),
            key: None,
            payload: None,
            headers: Headers::default(),
        };
        let name = Some(TaskName::new(name).unwrap());
        NewTask::new(record, name, Timestamp::EPOCH, ShardCount::DEFAULT, (0, rand::random()))
    }

    #[test]
    fn a_name_repeated_within_a_group_is_stored_once_and_answered_alike() {
        let tasks =
            [task("t", "a"), task("t", "b"), task("t", "a"), task("u", "a"), task("t", "a")];
        let leaders = leaders(&tasks);
        assert_eq!(leaders, [0, 1, 0, 3, 0]);
        let first = Accepted { id: tasks[0].id, state: TaskState::Scheduled, is_new: true };
        let answers = [Some(first.clone()), None, None, None, None];
        assert_eq!(answer_of(0, &leaders, &answers), Some(first.clone()));
        assert_eq!(answer_of(4, &leaders, &answers), Some(Accepted { is_new: false, ..first }));
        assert_eq!(answer_of(1, &leaders, &answers), None);
    }
}
