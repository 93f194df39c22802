//! A task on the way from the request into the tables, together with the answer.

use crate::domain::{NewTask, TaskState};
use crate::engine::placing::{Destination, Rule};
use crate::error_chain::chain;
use crate::node::messages::{Accepted, Refusal, SubmitAnswer};
use crate::postgres::PostgresError;

/// A task being submitted. The answer travels along, so no step has to match answers with tasks.
#[derive(Debug)]
pub struct Submission {
    pub task: NewTask,
    /// The number of its draft in the request.
    index: usize,
    /// The destination of the task. Each insert decides it anew.
    pub place: Destination,
    /// `None` until the task is stored or refused.
    pub answer: Option<SubmitAnswer>,
}

impl Submission {
    /// Makes a submission of the draft number `index` of a request.
    pub fn new(index: usize, task: NewTask) -> Self {
        Self { task, index, place: Destination::Near, answer: None }
    }

    /// Answers that the task was stored at its place.
    pub fn accept(&mut self) {
        let state = match self.place {
            Destination::Claimed => TaskState::Claimed,
            Destination::Near | Destination::Far => TaskState::Scheduled,
        };
        self.answer = Some(Ok(Accepted { id: self.task.id, state, is_new: true }));
    }

    pub fn refuse(&mut self, refusal: &Refusal) {
        self.answer = Some(Err(refusal.clone()));
    }

    /// Returns the answer with the number of its draft. A task that no lane has answered has none.
    pub fn into_answer(self) -> Option<(usize, SubmitAnswer)> {
        Some((self.index, self.answer?))
    }
}

/// Writes groups of tasks to the tables.
pub trait WriteGroup {
    /// Writes each task of a group to the place decided for it.
    fn write(
        &mut self,
        group: &mut [&mut Submission],
    ) -> impl Future<Output = Result<(), PostgresError>> + Send;
}

/// Writes a group with decided places. When the claims on insert may have failed, writes the group
/// once more without them: the task tables may accept tasks although the execlog does not.
pub async fn write_with_or_without_claims(
    store: &mut impl WriteGroup,
    group: &mut [&mut Submission],
    rule: Rule,
) -> Result<(), PostgresError> {
    match store.write(group).await {
        Err(error) if may_do_without_claims(&error) && group.iter().any(|one| is_claimed(one)) => {
            tracing::debug!(
                error = chain(&error),
                "cannot claim on insert; inserting without a claim"
            );
            for submission in group.iter_mut() {
                submission.place = rule.table_of(submission.task.id.due_at());
            }
            store.write(group).await
        }
        outcome => outcome,
    }
}

fn is_claimed(submission: &Submission) -> bool {
    submission.place == Destination::Claimed
}

/// Returns true when a claim on insert took no effect and may have caused the error: a lock on the
/// execlog, or a missing partition of it.
pub fn may_do_without_claims(error: &PostgresError) -> bool {
    error.gave_way_to_others() || matches!(error, PostgresError::Refused { .. })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::domain::{Headers, Record, ShardCount, Timestamp, TopicName};
    use crate::postgres::connection::error::Cause;

    fn submission(index: usize, place: Destination) -> Submission {
        let record = Record {
            topic: TopicName::new("t").unwrap(),
            key: None,
            payload: None,
            headers: Headers::default(),
        };
        let task = NewTask::new(record, None, Timestamp::EPOCH, ShardCount::DEFAULT, (0, 1));
        Submission { place, ..Submission::new(index, task) }
    }

    fn gave_way() -> PostgresError {
        PostgresError::GaveWay { what: "store".to_owned(), source: Cause::Fact("a lock") }
    }

    /// A store that fails with the given errors, one for each try, and keeps the places of each
    /// try.
    struct Failing {
        errors: Vec<PostgresError>,
        tries: Vec<Vec<Destination>>,
    }

    impl WriteGroup for Failing {
        async fn write(&mut self, group: &mut [&mut Submission]) -> Result<(), PostgresError> {
            self.tries.push(group.iter().map(|one| one.place).collect());
            self.errors.pop().map_or(Ok(()), Err)
        }
    }

    /// Inserts two tasks. Returns their places at each try, and whether the last try succeeded.
    async fn insert(
        errors: Vec<PostgresError>,
        places: [Destination; 2],
    ) -> (Vec<Vec<Destination>>, bool) {
        let [mut first, mut second] = [submission(0, places[0]), submission(1, places[1])];
        let mut store = Failing { errors, tries: Vec::new() };
        // No leaf is attached, so all tasks that are not claimed are far.
        let rule = Rule::new(Timestamp::EPOCH, Duration::ZERO, Timestamp::EPOCH);
        let group = &mut [&mut first, &mut second];
        let outcome = write_with_or_without_claims(&mut store, group, rule).await;
        (store.tries, outcome.is_ok())
    }

    #[tokio::test]
    async fn a_group_with_claims_is_inserted_again_without_them_and_any_other_once() {
        let mixed = [Destination::Near, Destination::Claimed];
        let without = vec![Destination::Far, Destination::Far];
        let expected = vec![mixed.to_vec(), without];
        assert_eq!(insert(vec![gave_way()], mixed).await, (expected.clone(), true));
        assert_eq!(insert(vec![gave_way(), gave_way()], mixed).await, (expected, false));
        assert_eq!(insert(vec![], mixed).await, (vec![mixed.to_vec()], true));
        let near = [Destination::Near, Destination::Far];
        assert_eq!(insert(vec![gave_way()], near).await, (vec![near.to_vec()], false));
        let unanswered =
            PostgresError::Unanswered { what: "store".to_owned(), source: Cause::Fact("cut") };
        assert_eq!(insert(vec![unanswered], mixed).await, (vec![mixed.to_vec()], false));
    }

    #[test]
    fn an_answer_keeps_the_number_of_its_draft_and_a_task_without_one_has_none() {
        let mut stored = submission(7, Destination::Claimed);
        stored.accept();
        let (index, answer) = stored.into_answer().unwrap();
        assert_eq!((index, answer.unwrap().state), (7, TaskState::Claimed));
        let mut refused = submission(8, Destination::Near);
        refused.refuse(&Refusal::Draining);
        assert_eq!(refused.into_answer(), Some((8, Err(Refusal::Draining))));
        assert_eq!(submission(9, Destination::Near).into_answer(), None);
    }
}
