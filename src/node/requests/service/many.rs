//! The calls of the service for many tasks, for dead letters, and for tasks that are found by their
//! ids.

use std::time::Duration;

use super::Service;
use crate::access::Caller;
use crate::access::permit::{
    BulkPermit, CancelManyPermit, Drop, Grant, Move, Permit, Redrive, Submit,
};
use crate::domain::{
    Headers, PrincipalName, Record, TaskId, TaskState, TaskView, Timestamp, TopicName,
};
use crate::node::messages::permitted::{FoundTask, FoundTopic, TaskPermit};
use crate::node::messages::{
    BulkDone, BulkRange, BulkSelection, Draft, Due, Refusal, Shift, Unavailable,
};
use crate::node::requests::bulk::DeadLetterRight;
use crate::postgres::lists::dead_letters::DeadLetterChange;

impl Service {
    /// Finds a task by id, for `caller`. Only the rights on the task's topic let anything be told.
    pub async fn find(
        &self,
        caller: &Caller,
        id: TaskId,
    ) -> Result<Option<FoundTask>, Unavailable> {
        answer_by_model!(self, model => Ok(model.look_up(id).await?.map(FoundTask::new)));
        Ok(self.opened()?.stored.find(&caller.principal, id).await?.map(FoundTask::new))
    }

    /// Finds the topics of tasks for the permits of `caller`, in the order of their ids. Only the
    /// rights on a topic let anything be told.
    pub async fn find_topics(
        &self,
        caller: &Caller,
        ids: &[TaskId],
    ) -> Vec<Result<Option<FoundTopic>, Unavailable>> {
        answer_by_model!(self, model => {
            let found = ids.iter().zip(model.topics_of(ids));
            found.map(|(id, topic)| Ok(topic.map(|topic| FoundTopic::new(*id, topic)))).collect()
        });
        match self.opened() {
            Ok(parts) => parts.stored.find_topics(&caller.principal.name, ids).await,
            Err(starting) => vec![Err(starting.into()); ids.len()],
        }
    }

    /// As [`Self::find_topics`], for one task.
    pub async fn find_topic(
        &self,
        caller: &Caller,
        id: TaskId,
    ) -> Result<Option<FoundTopic>, Unavailable> {
        let none = || Err(Unavailable::ServerAway { reason: "the task was not sought".to_owned() });
        self.find_topics(caller, &[id]).await.pop().unwrap_or_else(none)
    }

    // The futures of the calls for many tasks and for dead letters are on the heap, because callers
    // keep them in futures of their own.

    /// Cancels all selected tasks, up to a limit: those of a topic, of a submitter, or of both.
    pub async fn cancel_all(
        &self,
        permit: &CancelManyPermit,
        submitted_by: Option<PrincipalName>,
        range: BulkRange,
    ) -> Result<BulkDone, Unavailable> {
        let bulk = &BulkSelection::to_cancel(permit, submitted_by, range);
        answer_by_model!(self, model => model.cancel_all(bulk).await);
        let parts = self.opened()?.takes_changes()?;
        let done = Box::pin(parts.bulks.cancel_all(permit, bulk)).await;
        log_bulk("tasks", "cancelled", bulk, &done);
        done
    }

    /// Returns the due time of tasks of the topic of `grant`, for a request that arrived at
    /// `arrived_at`, unless it is too far ahead.
    pub fn due_at(
        &self,
        grant: &Grant,
        due: Due,
        arrived_at: Option<Timestamp>,
    ) -> Result<Timestamp, Refusal> {
        answer_by_model!(self, model => model.due_at(due));
        self.opened()?.submitter.due_at_of(Some(grant.topic()), due, arrived_at)
    }

    /// Moves all selected tasks of a topic, up to a limit.
    pub async fn move_all(
        &self,
        permit: &BulkPermit<Move>,
        range: BulkRange,
        shift: Shift,
    ) -> Result<BulkDone, Unavailable> {
        let bulk = &BulkSelection::new(permit, range);
        answer_by_model!(self, model => model.move_all(bulk, shift));
        let parts = self.opened()?.takes_changes()?;
        let done = Box::pin(parts.bulks.move_all(bulk, shift)).await;
        log_bulk("tasks", "moved", bulk, &done);
        done
    }

    /// Redrives or drops all selected dead letters, up to a limit. The permit says which.
    pub async fn change_all_dead<R: DeadLetterRight>(
        &self,
        permit: &BulkPermit<R>,
        range: BulkRange,
        to: Option<&Permit<Submit>>,
    ) -> Result<BulkDone, Unavailable> {
        let bulk = &BulkSelection::new(permit, range);
        answer_by_model!(self, model => model.change_all_dead(R::CHANGE, bulk).await);
        let parts = self.opened()?.takes_changes()?;
        let what = match R::CHANGE {
            DeadLetterChange::Redrive => {
                parts.submitter.look_up_topic(&permit.principal().name, permit.topic()).await;
                "redriven"
            }
            DeadLetterChange::Drop => "dropped",
        };
        let topics = (permit.topic(), to.map(|to| to.topic()));
        let done = Box::pin(parts.bulks.change_all_dead(R::CHANGE, topics, bulk)).await;
        log_bulk("dead letters", what, bulk, &done);
        done
    }

    /// Checks that tasks can be redriven to a topic. The record of one dead letter (`id`) must fit
    /// there, as in a submit.
    pub async fn check_topic(
        &self,
        to: &Permit<Submit>,
        id: Option<TaskId>,
    ) -> Result<(), Refusal> {
        answer_by_model!(self, model => model.check_topic(to.topic()));
        let parts = self.opened()?;
        let facts = parts.submitter.facts(&to.principal().name, to.topic()).await?;
        let Some(id) = id else { return Ok(()) };
        let found = parts.stored.find_to_change(to.principal(), id).await?;
        let dead_topic = found.as_ref().and_then(|task| {
            let tracked = task.tracked.as_ref()?;
            tracked.tracking.dead_topic.as_ref()
        });
        if dead_topic == Some(to.topic()) {
            let reason = "this is the dead topic of the task, whose consumer would get the dead \
                          record again; name another topic";
            return Err(Refusal::BadValue { reason: reason.to_owned() });
        }
        // The redrive says what is wrong with any other task.
        match found.and_then(|task| draft_of(task, to.topic())) {
            Some(draft) => parts.submitter.check_against_topic(&draft, Ok(facts)).await.1,
            None => Ok(()),
        }
    }

    /// Redrives a dead letter: its task is due now. With `to`, it goes to another topic. Returns
    /// `None` when there is no such dead letter.
    pub async fn redrive(
        &self,
        permit: &TaskPermit<Redrive>,
        to: Option<&Permit<Submit>>,
    ) -> Result<Option<TaskView>, Unavailable> {
        let id = permit.id();
        let to = to.map(|to| to.topic());
        answer_by_model!(self, model => model.redrive(id, to).await);
        let parts = self.opened()?.takes_changes()?;
        if let Some(task) = parts.stored.find(permit.principal(), id).await? {
            parts.submitter.look_up_topic(&permit.principal().name, &task.topic).await;
        }
        let task = Box::pin(parts.bulks.redrive(permit, to)).await?;
        if task.is_some() {
            let principal = &permit.principal().name;
            tracing::info!(%id, %principal, "a dead letter was redriven");
        }
        Ok(task)
    }

    /// Drops a dead letter, and returns it. Returns `None` when there is no such dead letter.
    pub async fn drop_dead(
        &self,
        permit: &TaskPermit<Drop>,
    ) -> Result<Option<TaskView>, Unavailable> {
        let id = permit.id();
        answer_by_model!(self, model => model.drop_dead(id).await);
        let parts = self.opened()?.takes_changes()?;
        let task = Box::pin(parts.bulks.drop_dead(permit)).await?;
        if task.is_some() {
            let principal = &permit.principal().name;
            tracing::info!(%id, %principal, "a dead letter was dropped");
        }
        Ok(task)
    }
}

/// Returns a draft for the topic `to` with the record of a dead letter. `None` for other tasks, and
/// for records that this node cannot open.
fn draft_of(task: TaskView, to: &TopicName) -> Option<Draft> {
    let kept = task.kept.filter(|_kept| task.state == TaskState::Dead)?;
    Some(Draft {
        record: Record {
            topic: to.clone(),
            key: kept.key.map(Vec::into_boxed_slice),
            payload: kept.payload.map(Vec::into_boxed_slice),
            headers: Headers::stored(Some(kept.headers)),
        },
        name: None,
        due: Due::After(Duration::ZERO),
        tracking: task.tracked.map(|tracked| Box::new(tracked.tracking)),
        expiry: None,
        spread: None,
    })
}

/// Logs a call for many tasks or dead letters, because it is an act of an operator. `change` is the
/// participle: `cancelled`.
fn log_bulk(
    objects: &str,
    change: &str,
    bulk: &BulkSelection,
    done: &Result<BulkDone, Unavailable>,
) {
    // Milliseconds since the epoch, as a request may give them.
    let [due_from_ms, due_to_ms] =
        [bulk.due_from, bulk.due_to].map(|time| time.map(Timestamp::as_millis));
    let (topic, principal) = (bulk.topic_or_all(), &bulk.principal().name);
    let submitted_by = bulk.submitted_by().map(PrincipalName::as_str);
    match done {
        _ if bulk.is_dry_run => {}
        Ok(BulkDone { task_count, has_more, .. }) => {
            tracing::info!(
                %principal,
                topic,
                submitted_by,
                due_from_ms,
                due_to_ms,
                task_count,
                has_more,
                "many {objects} were {change}"
            );
        }
        Err(unavailable) => {
            tracing::info!(
                %principal,
                topic,
                submitted_by,
                due_from_ms,
                due_to_ms,
                ?unavailable,
                "many {objects} were to be {change}"
            )
        }
    }
}
