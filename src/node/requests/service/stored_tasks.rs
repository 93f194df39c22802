//! Looks up, moves and cancels stored tasks, by their ids and by their names.

use std::collections::HashMap;
use std::sync::Arc;

use crate::access::Principal;
use crate::access::permit::{Cancel, Move, Permit, Read};
use crate::domain::{
    NewTask, Precondition, PrincipalName, TaskId, TaskName, TaskView, Timestamp, TopicName,
};
use crate::node::messages::permitted::{FoundTopic, TaskPermit};
use crate::node::messages::{CancelVerdict, MoveVerdict, Placed, Refusal, Unavailable};
use crate::node::requests::canceller::Canceller;
use crate::node::requests::connections::principal_turns::{CallKind, PrincipalTurns};
use crate::node::requests::moving::{self, Reads};
use crate::node::requests::postgres_failures::{refusal_of_read, unavailable_of_read};
use crate::node::requests::replacer::Replacer;
use crate::postgres::tasks::look_up::{LookUp, TOPICS_MAX};
use crate::postgres::tasks::names::{NameEntry, Names};
use crate::postgres::tasks::replace::withdraw::Withdrawal;

/// The maximum number of replacements of a task by other requests during a cancel by name.
const CANCELS_OF_NAME_MAX: usize = 10;
/// The same for a move.
const MOVES_OF_NAME_MAX: usize = 10;

/// The tasks that this cluster has stored.
#[derive(Debug)]
pub struct StoredTasks {
    pub canceller: Canceller,
    pub replacer: Replacer,
    pub names: Arc<Names>,
    pub look_up: Arc<LookUp>,
    pub turns: Arc<PrincipalTurns>,
}

impl StoredTasks {
    /// Looks a task up in a turn of the principal. A task at the beginning of a long chain of
    /// replacements takes thousands of reads.
    pub async fn find(&self, by: &Principal, id: TaskId) -> Result<Option<TaskView>, Unavailable> {
        let _turn = self.turns.take(by, CallKind::LookUps).await?;
        self.by_id(id).await
    }

    /// As [`Self::find`], for a change of the task.
    pub async fn find_to_change(
        &self,
        by: &Principal,
        id: TaskId,
    ) -> Result<Option<TaskView>, Refusal> {
        let _turn = self.turns.take(by, CallKind::LookUps).await?;
        self.look_up.task(id).await.map_err(refusal_of_read)
    }

    /// Looks a task up. The caller has a turn of the principal.
    async fn by_id(&self, id: TaskId) -> Result<Option<TaskView>, Unavailable> {
        self.look_up.task(id).await.map_err(unavailable_of_read)
    }

    /// Finds the topics of tasks for the permits of the principal `by`, in the order of their ids.
    pub async fn find_topics(
        &self,
        by: &PrincipalName,
        ids: &[TaskId],
    ) -> Vec<Result<Option<FoundTopic>, Unavailable>> {
        let mut all = Vec::with_capacity(ids.len());
        for some in ids.chunks(TOPICS_MAX) {
            match self.find_some_topics(by, some).await {
                Ok(found) => all.extend(found),
                Err(unavailable) => all.resize(all.len() + some.len(), Err(unavailable)),
            }
        }
        all
    }

    /// Finds topics in one turn of the principal.
    async fn find_some_topics(
        &self,
        by: &PrincipalName,
        ids: &[TaskId],
    ) -> Result<Vec<Result<Option<FoundTopic>, Unavailable>>, Unavailable> {
        let _turn = self.turns.take_by_name(by, CallKind::LookUps).await?;
        let found = self.look_up.topics(ids).await.map_err(unavailable_of_read)?;
        let mut decided = HashMap::new();
        for id in &found.undecided {
            let task = self.by_id(*id).await;
            decided.insert(*id, task.map(|task| task.map(|task| task.topic)));
        }
        let topic_of = |id: &TaskId| match decided.get(id) {
            Some(decided) => decided.clone(),
            None => Ok(found.topics.get(id).cloned()),
        };
        let found_topic =
            |id: &TaskId| topic_of(id).map(|topic| topic.map(|topic| FoundTopic::new(*id, topic)));
        Ok(ids.iter().map(found_topic).collect())
    }

    /// Returns the topic of a task that is to be moved by a caller with all rights.
    pub async fn topic_of(&self, id: TaskId) -> Result<Option<TopicName>, Refusal> {
        let found = self.look_up.task(id).await.map_err(refusal_of_read)?;
        Ok(found.map(|task| task.topic))
    }

    /// Returns the task of a name. An expired name has no task, unless its task is still pending.
    pub async fn by_name(
        &self,
        permit: &Permit<Read>,
        name: &TaskName,
    ) -> Result<Option<TaskView>, Unavailable> {
        let Some(entry) = self.entry(permit.topic(), name).await? else { return Ok(None) };
        let view = self.find(permit.principal(), entry.id).await?;
        Ok(view.filter(|view| !entry.is_expired || view.is_pending()))
    }

    /// Stores a named task in the place of the task that has its name.
    pub async fn put_in_place(
        &self,
        by: &PrincipalName,
        task: NewTask,
        condition: &Precondition,
    ) -> Result<Placed, Refusal> {
        // The future is on the heap, because callers keep it in futures of their own.
        Box::pin(self.replacer.replace(by, task, condition, &self.look_up)).await
    }

    /// Moves a task to another due time, unless it would have expired by then.
    pub async fn move_to(
        &self,
        permit: &TaskPermit<Move>,
        due_at: Timestamp,
    ) -> Result<MoveVerdict, Refusal> {
        let mut reads = Reads::default();
        loop {
            // The future is on the heap, because callers keep it in futures of their own.
            if let Some(task) = Box::pin(self.replacer.reschedule(permit, due_at)).await? {
                return Ok(MoveVerdict::Moved(task));
            }
            let found = self.find_to_change(permit.principal(), permit.id()).await?;
            if let Some(verdict) = MoveVerdict::of_read(found) {
                return Ok(verdict);
            }
            if reads.next_is_last() {
                let reason = "the task is changing its table; nothing was changed".to_owned();
                return Err(Refusal::ServerAway { reason });
            }
            moving::pause().await;
        }
    }

    /// Moves the task of a name, if `condition` allows it. When the task is replaced meanwhile, its
    /// replacement is meant instead.
    pub async fn move_by_name(
        &self,
        permit: &Permit<Move>,
        name: &TaskName,
        condition: &Precondition,
        due_at: Timestamp,
    ) -> Result<MoveVerdict, Refusal> {
        for _try in 0..MOVES_OF_NAME_MAX {
            let entry = self.names.entry(permit.topic(), name).await;
            let read = |id| self.find_to_change(permit.principal(), id);
            let entry = current(entry.map_err(refusal_of_read)?, read).await?;
            let Some(entry) = entry else { return Ok(MoveVerdict::NotFound) };
            if !condition.allows(Some(entry.id)) {
                return Ok(MoveVerdict::Unmet(entry.id));
            }
            // The task of a name is of the topic of the name.
            match self.move_to(&TaskPermit::of_topic(permit, entry.id), due_at).await? {
                MoveVerdict::Replaced(_) => {}
                verdict => return Ok(verdict),
            }
        }
        Err(Refusal::ServerAway {
            reason: "other requests kept replacing the task; nothing was changed".to_owned(),
        })
    }

    /// Cancels a task by its id.
    pub async fn cancel_by_id(
        &self,
        permit: &TaskPermit<Cancel>,
    ) -> Result<CancelVerdict, Unavailable> {
        let mut reads = Reads::default();
        let by = self.replacer.number_of(&permit.principal().name).await?;
        loop {
            if let Some(task) = self.canceller.cancel(permit, by).await? {
                return Ok(CancelVerdict::Cancelled(task));
            }
            let found = self.find(permit.principal(), permit.id()).await?;
            if let Some(verdict) = CancelVerdict::of_read(found) {
                return Ok(verdict);
            }
            if reads.next_is_last() {
                return Err(Unavailable::ServerAway {
                    reason: "the task is being moved; repeat the cancel".to_owned(),
                });
            }
            moving::pause().await;
        }
    }

    /// Cancels the task of a name, if `condition` allows it. When the task is replaced meanwhile,
    /// its replacement is meant instead.
    pub async fn cancel_by_name(
        &self,
        permit: &Permit<Cancel>,
        name: &TaskName,
        condition: &Precondition,
    ) -> Result<CancelVerdict, Unavailable> {
        for _try in 0..CANCELS_OF_NAME_MAX {
            let verdict = if condition.is_none() {
                self.cancel_current(permit, name).await?
            } else {
                // The future is on the heap: it is rarely needed, and would make the future of
                // every cancel larger.
                Box::pin(self.withdraw(permit, name, condition)).await?
            };
            match verdict {
                Some(CancelVerdict::Replaced(_)) => {}
                Some(verdict) => return Ok(verdict),
                None => moving::pause().await,
            }
        }
        Err(Unavailable::ServerAway {
            reason: "other requests kept replacing the task; repeat the cancel".to_owned(),
        })
    }

    /// Cancels the task that a name stands for now.
    async fn cancel_current(
        &self,
        permit: &Permit<Cancel>,
        name: &TaskName,
    ) -> Result<Option<CancelVerdict>, Unavailable> {
        let entry = self.entry(permit.topic(), name).await?;
        let read = |id| self.find(permit.principal(), id);
        let Some(entry) = current(entry, read).await? else {
            return Ok(Some(CancelVerdict::NotFound));
        };
        // The task of a name is of the topic of the name.
        self.cancel_by_id(&TaskPermit::of_topic(permit, entry.id)).await.map(Some)
    }

    /// Cancels the task of a name. The entry is locked meanwhile, so that exactly the task that
    /// `condition` allows is cancelled. `None` means that the task is being moved.
    async fn withdraw(
        &self,
        permit: &Permit<Cancel>,
        name: &TaskName,
        condition: &Precondition,
    ) -> Result<Option<CancelVerdict>, Unavailable> {
        Ok(match self.replacer.withdraw(permit, name, condition).await? {
            Withdrawal::Cancelled(task) => Some(CancelVerdict::Cancelled(*task)),
            Withdrawal::Unmet(entry) => Some(CancelVerdict::Unmet(entry.id)),
            Withdrawal::NotFound => Some(CancelVerdict::NotFound),
            Withdrawal::Gone(entry) => {
                CancelVerdict::of_read(self.find(permit.principal(), entry.id).await?)
            }
        })
    }

    async fn entry(
        &self,
        topic: &TopicName,
        name: &TaskName,
    ) -> Result<Option<NameEntry>, Unavailable> {
        self.names.entry(topic, name).await.map_err(unavailable_of_read)
    }
}

/// Returns the entry if its name has a task. An expired one does only while `read` finds its task
/// pending.
async fn current<E, F: Future<Output = Result<Option<TaskView>, E>>>(
    entry: Option<NameEntry>,
    read: impl FnOnce(TaskId) -> F,
) -> Result<Option<NameEntry>, E> {
    let Some(expired) = entry.filter(|entry| entry.is_expired) else { return Ok(entry) };
    Ok(read(expired.id).await?.filter(TaskView::is_pending).and(entry))
}
