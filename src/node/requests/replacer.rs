//! Replaces tasks by name: a pending task is cancelled and another one takes its place. Moves tasks
//! to another due time: the task itself goes on. A claimed task stays.

use std::sync::Arc;

use super::connections::principal_turns::{CallKind, NamedTurn, NoTurn, PrincipalTurns};
use super::moving::{self, Reads};
use super::placing::{Placer, assign_ids, clamp};
use super::postgres_failures::{Tries, refusal_of, refusal_of_read, retrying, unavailable_of_read};
use crate::access::permit::{Cancel, Move, Permit};
use crate::domain::{
    IdRange, NewTask, Precondition, PrincipalId, PrincipalName, TaskId, TaskName, TaskState,
    TaskView, Timestamp, TopicName,
};
use crate::engine::placing::Destination;
use crate::error_chain::chain;
use crate::node::messages::permitted::TaskPermit;
use crate::node::messages::{Placed, Refusal, Unavailable};
use crate::node::shared::NodeShared;
use crate::postgres::PostgresError;
use crate::postgres::connection::turns::{Turn, Turns};
use crate::postgres::tasks::look_up::LookUp;
use crate::postgres::tasks::names::NameEntry;
use crate::postgres::tasks::replace::reschedule::{NewPlace, Rescheduling};
use crate::postgres::tasks::replace::withdraw::Withdrawal;
use crate::postgres::tasks::replace::{Replacement, Replaces};

/// The maximum number of tries when other requests replace the same name, or the call gives way to
/// them.
const TRIES_MAX: usize = 10;
/// Maximum number of changes of one name or task at a time. Each locks the same row, and would hold
/// a connection while it waits for the one before.
const CHANGES_OF_TASK_MAX: usize = 1;

/// Replaces tasks by their names.
#[derive(Debug)]
pub struct Replacer {
    shared: Arc<NodeShared>,
    replaces: Arc<Replaces>,
    turns_of_task: Turns<Changed>,
    turns: Arc<PrincipalTurns>,
}

/// The name or task that a request changes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Changed {
    Name(TopicName, TaskName),
    Task(TaskId),
}

/// The turns of a change: of its task, and of its principal.
type ChangeTurns<'a> = (Turn<'a, Changed>, NamedTurn<'a>);

/// The reads of a name's task that was not found where it could be removed.
#[derive(Debug, Default)]
pub struct NameReads {
    /// The row of a final task, whose entry the next try takes.
    pub over: Option<TaskId>,
    reads: Reads,
}

impl Replacer {
    pub fn new(
        shared: &Arc<NodeShared>,
        replaces: Arc<Replaces>,
        turns: &Arc<PrincipalTurns>,
    ) -> Self {
        Self {
            shared: Arc::clone(shared),
            replaces,
            turns_of_task: Turns::new(CHANGES_OF_TASK_MAX),
            turns: Arc::clone(turns),
        }
    }

    /// Replaces the task of a name by the given task, unless too late, or ruled out by `condition`.
    pub async fn replace(
        &self,
        by: &PrincipalName,
        mut task: NewTask,
        condition: &Precondition,
        look_up: &LookUp,
    ) -> Result<Placed, Refusal> {
        let changed = match &task.name {
            Some(name) => Changed::Name(task.record.topic.clone(), name.clone()),
            None => Changed::Task(task.id),
        };
        let mut reads = NameReads::default();
        assign_ids(&self.shared, [&mut task]);
        for _try in 0..TRIES_MAX {
            let turns = self.turns(&changed, by).await?;
            clamp(&mut task, self.shared.now());
            let tried = self.try_replace(&task, reads.over, condition).await;
            drop(turns);
            match tried {
                Ok(Replacement::Created) => return Ok(Placed::Created(task.id)),
                Ok(Replacement::Replaced) => return Ok(Placed::Replaced(task.id)),
                Ok(Replacement::Overtaken) => {}
                Ok(Replacement::Unmet(current)) => return Ok(Placed::Unmet(current)),
                Ok(Replacement::Gone(entry)) => {
                    if let Some(task) = reads.too_late(entry, look_up).await? {
                        return Ok(Placed::TooLate(task));
                    }
                }
                Err(error) if error.is_duplicate_key() => assign_ids(&self.shared, [&mut task]),
                Err(error) if error.gave_way_to_others() => {
                    tracing::debug!(error = chain(&error), "retrying a replacement")
                }
                Err(error) => return Err(refusal_of(&error)),
            }
        }
        Err(Refusal::ServerAway {
            reason: "other requests kept replacing the task; nothing was changed".to_owned(),
        })
    }

    /// Moves a task to another due time. Returns `None` when that was not possible: a look-up tells
    /// why. Refuses a time at which the task has expired.
    pub async fn reschedule(
        &self,
        permit: &TaskPermit<Move>,
        due_at: Timestamp,
    ) -> Result<Option<Box<TaskView>>, Refusal> {
        let id = permit.id();
        let _turns = self.turns(&Changed::Task(id), &permit.principal().name).await?;
        let mut tries = Tries::default();
        let mut gone: Option<TaskId> = None;
        for _try in 0..TRIES_MAX {
            match self.replaces.reschedule(id, None, place_of(&self.shared, due_at)).await {
                Ok(Rescheduling::Moved { row, view }) => {
                    moved(&self.shared, row);
                    return Ok(Some(view));
                }
                // The task may be another row by now, moved by another request.
                Ok(Rescheduling::Gone { row }) if gone != Some(row) => gone = Some(row),
                Ok(Rescheduling::Gone { .. }) => return Ok(None),
                Ok(Rescheduling::WouldExpire { due_at }) => {
                    return Err(Refusal::ExpiresTooEarly { due_at });
                }
                Err(error) if tries.again_with_new_id(&error) => {}
                Err(error) => return Err(refusal_of(&error)),
            }
        }
        Err(Refusal::ServerAway {
            reason: "other requests kept moving the task; nothing was changed".to_owned(),
        })
    }

    /// Cancels the task of a name, if `condition` allows it.
    pub async fn withdraw(
        &self,
        permit: &Permit<Cancel>,
        name: &TaskName,
        condition: &Precondition,
    ) -> Result<Withdrawal, Unavailable> {
        let by = self.number_of(&permit.principal().name).await?;
        let changed = Changed::Name(permit.topic().clone(), name.clone());
        let _turns = self.turns(&changed, &permit.principal().name).await?;
        let withdraw = || self.replaces.withdraw(permit.topic(), name, condition, by);
        let done = retrying(withdraw).await?;
        if matches!(done, Withdrawal::Cancelled(_)) {
            self.shared.metrics.cancelled.inc();
        }
        Ok(done)
    }

    /// Returns the number under which a caller is stored.
    pub async fn number_of(
        &self,
        caller: &PrincipalName,
    ) -> Result<Option<PrincipalId>, Unavailable> {
        self.shared.callers.of(caller).await.map_err(unavailable_of_read)
    }

    /// Waits for the turn among the changes of the same task first, so that changes which wait for
    /// it take no turns of their principal. Fails with the limit that is reached.
    async fn turns(
        &self,
        changed: &Changed,
        by: &PrincipalName,
    ) -> Result<ChangeTurns<'_>, NoTurn> {
        let of_task = self.turns_of_task.take(changed).await.ok_or(NoTurn("changes_of_task"))?;
        let of_principal = self.turns.take_by_name(by, CallKind::Changes).await?;
        Ok((of_task, of_principal))
    }

    async fn try_replace(
        &self,
        task: &NewTask,
        over: Option<TaskId>,
        condition: &Precondition,
    ) -> Result<Replacement, PostgresError> {
        let is_far =
            Placer::new(&self.shared, self.shared.now()).table_of(task) == Destination::Far;
        let replacement = self.replaces.replace(task, is_far, over, condition).await?;
        if matches!(replacement, Replacement::Created | Replacement::Replaced) {
            placed(&self.shared, task, is_far, replacement == Replacement::Replaced);
        }
        Ok(replacement)
    }
}

/// Returns the place of a row that is moved now. An overdue task is due now, because a leaf of the
/// past may be retired already.
pub fn place_of(shared: &NodeShared, due_at: Timestamp) -> NewPlace {
    let now = shared.now();
    let due_at = due_at.max(now.floor_millis());
    NewPlace {
        due_at,
        is_far: Placer::new(shared, now).rule().table_of(due_at) == Destination::Far,
        position: shared.submit_order.next(now, due_at, rand::random()),
        random: rand::random(),
    }
}

/// Counts a task that was placed under its name, and has it claimed at once if it is due soon.
pub fn placed(shared: &NodeShared, task: &NewTask, is_far: bool, replaces: bool) {
    shared.metrics.submitted.inc();
    if replaces {
        shared.metrics.replaced.inc();
    }
    shared.claim_late(IdRange::spanning((!is_far).then_some(task.id)));
}

/// Counts a moved task, and has it claimed at once if it is due soon.
pub fn moved(shared: &NodeShared, row: TaskId) {
    shared.metrics.moved.inc();
    shared.claim_late(IdRange::spanning([row]));
}

impl NameReads {
    /// Reads the task of an entry. Returns the task if it is too late to replace it. Otherwise the
    /// next try may succeed: the task is final, or it was being moved, and a pause is over.
    pub async fn too_late(
        &mut self,
        entry: NameEntry,
        look_up: &LookUp,
    ) -> Result<Option<Box<TaskView>>, Refusal> {
        let is_last = self.reads.next_is_last();
        let view = look_up.task(entry.id).await.map_err(refusal_of_read)?;
        let Some(view) = view else {
            // No trace of the task is left: it has been final for longer than receipts are kept.
            self.over = Some(entry.row);
            return Ok(None);
        };
        match view.state {
            TaskState::Finished if view.is_in_flight() => return Ok(Some(Box::new(view))),
            TaskState::Published
            | TaskState::Finished
            | TaskState::Cancelled
            | TaskState::Dead
            | TaskState::Expired => self.over = Some(entry.row),
            TaskState::Scheduled if !is_last => moving::pause().await,
            TaskState::Scheduled
            | TaskState::Claimed
            | TaskState::Awaiting
            | TaskState::Retrying => return Ok(Some(Box::new(view))),
        }
        Ok(None)
    }
}
