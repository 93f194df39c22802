//! Lists and counts of the model, and changes to many tasks and to dead letters.

use std::time::Duration;

use az::SaturatingAs as _;

use super::{Model, NOW_MILLIS, lock};
use crate::access::permit::ListPermit;
use crate::domain::{
    Choice, Cursor, List, Page, PendingState, Selection, TaskId, TaskState, TaskView, Timestamp,
    TopicName, ids,
};
use crate::node::messages::{
    BulkDone, BulkSelection, Figure, PendingCounts, Refusal, Shift, Unavailable,
};
use crate::postgres::lists::dead_letters::DeadLetterChange;

impl Model {
    /// Returns the selected tasks in `state`, in due order. The topics `away` and `lost` fail as
    /// they do for a submit.
    fn selected(
        &self,
        selection: &Selection,
        state: TaskState,
    ) -> Result<Vec<TaskView>, Unavailable> {
        let reason = "this topic is for tests of outages".to_owned();
        match selection.topic.as_ref().map(TopicName::as_str) {
            Some("away") => return Err(Unavailable::ServerAway { reason }),
            Some("lost") => return Err(Unavailable::Unknown { reason }),
            _ => {}
        }
        let due = selection.ids();
        let is_meant = |task: &&TaskView| {
            task.state == state
                && due.contains(ids::floor_of(task.due_at()))
                // The model lists scheduled tasks only.
                && selection.state.is_none_or(|state| state == PendingState::Scheduled)
                && selection.choice.as_ref().is_none_or(|choice| is_chosen(choice, task))
                && selection.topic.as_ref().is_none_or(|topic| *topic == task.topic)
                && selection.submitted_by.as_ref().is_none_or(|name| {
                    task.actors.submitted.as_ref().is_some_and(|submitted| submitted.by == *name)
                })
        };
        let mut tasks: Vec<TaskView> = lock(&self.tasks).iter().filter(is_meant).cloned().collect();
        tasks.sort_by_key(|task| task.id);
        Ok(tasks)
    }

    pub async fn list(
        &self,
        list: List,
        selection: &Selection,
        from: Option<Cursor>,
        limit: usize,
    ) -> Result<Page, Unavailable> {
        let state = match list {
            List::Tasks => TaskState::Scheduled,
            List::DeadLetters => TaskState::Dead,
        };
        let mut tasks = self.selected(selection, state)?;
        tasks.retain(|task| from.is_none_or(|from| task.id.uuid() > from.after));
        let has_more = tasks.len() > limit;
        tasks.truncate(limit);
        let next =
            tasks.last().filter(|_last| has_more).map(|last| Cursor { after: last.id.uuid() });
        Ok(Page { tasks, next })
    }

    pub async fn counts(
        &self,
        permit: &ListPermit,
        state: Option<PendingState>,
    ) -> Result<PendingCounts, Unavailable> {
        let topic = permit.grant().map(|grant| grant.topic().clone());
        let selection = Selection { topic, state, ..Selection::default() };
        let mut tasks = self.selected(&selection, TaskState::Scheduled)?;
        tasks.retain(|task| permit.covers(&task.topic));
        let figure =
            |count: usize| Figure { task_count: count.saturating_as::<u64>(), is_exact: true };
        let now = Timestamp::from_millis(NOW_MILLIS);
        let mut topics: Vec<TopicName> = tasks.iter().map(|task| task.topic.clone()).collect();
        topics.sort();
        topics.dedup();
        let of_topic = |topic: &TopicName| tasks.iter().filter(|task| task.topic == *topic).count();
        // The model's time is the beginning of a minute and of a day.
        let slot = |span: Duration, number: u32| {
            let from = now.plus(span * number);
            let is_due = |task: &&TaskView| (from..from.plus(span)).contains(&task.id.due_at());
            (from, figure(tasks.iter().filter(is_due).count()))
        };
        Ok(PendingCounts {
            as_of: now,
            pending: figure(tasks.len()),
            topics: topics.iter().map(|topic| (topic.clone(), figure(of_topic(topic)))).collect(),
            has_more_topics: false,
            minutes: (0..120).map(|number| slot(Duration::from_mins(1), number)).collect(),
            days: (0..30).map(|number| slot(Duration::from_hours(24), number)).collect(),
        })
    }

    fn all(
        &self,
        bulk: &BulkSelection,
        from: TaskState,
        to: TaskState,
    ) -> Result<BulkDone, Unavailable> {
        let tasks = self.selected(&bulk.selection(), from)?;
        for task in tasks.iter().filter(|_task| !bulk.is_dry_run) {
            self.set_state(task.id, to);
        }
        Ok(BulkDone {
            task_count: tasks.len().saturating_as::<u64>(),
            has_more: false,
            searched_to: None,
        })
    }

    pub fn move_all(&self, bulk: &BulkSelection, shift: Shift) -> Result<BulkDone, Unavailable> {
        let selected = self.selected(&bulk.selection(), TaskState::Scheduled)?;
        let is_selected =
            |task: &&mut TaskView| selected.iter().any(|selected| selected.id == task.id);
        if !bulk.is_dry_run {
            let mut tasks = lock(&self.tasks);
            for task in tasks.iter_mut().filter(is_selected) {
                task.moved_to = Some(shift.of(task.due_at()));
            }
        }
        Ok(BulkDone {
            task_count: selected.len().saturating_as::<u64>(),
            has_more: false,
            searched_to: None,
        })
    }

    pub async fn cancel_all(&self, bulk: &BulkSelection) -> Result<BulkDone, Unavailable> {
        self.all(bulk, TaskState::Scheduled, TaskState::Cancelled)
    }

    pub async fn change_all_dead(
        &self,
        change: DeadLetterChange,
        bulk: &BulkSelection,
    ) -> Result<BulkDone, Unavailable> {
        if change == DeadLetterChange::Redrive {
            return self.all(bulk, TaskState::Dead, TaskState::Scheduled);
        }
        let dead = self.selected(&bulk.selection(), TaskState::Dead)?;
        if !bulk.is_dry_run {
            lock(&self.tasks).retain(|task| !dead.iter().any(|dropped| dropped.id == task.id));
        }
        Ok(BulkDone {
            task_count: dead.len().saturating_as::<u64>(),
            has_more: false,
            searched_to: None,
        })
    }

    pub fn check_topic(&self, topic: &TopicName) -> Result<(), Refusal> {
        match self.kafka_has_topic(topic) {
            Some(false) => Err(Refusal::UnknownTopic),
            Some(true) | None => Ok(()),
        }
    }

    pub async fn redrive(
        &self,
        id: TaskId,
        to: Option<&TopicName>,
    ) -> Result<Option<TaskView>, Unavailable> {
        let mut tasks = lock(&self.tasks);
        let task = tasks.iter_mut().find(|task| task.id == id && task.state == TaskState::Dead);
        Ok(task.map(|task| {
            (task.state, task.reason, task.died_at) = (TaskState::Scheduled, None, None);
            task.attempt += 1;
            if let Some(to) = to.filter(|to| **to != task.topic) {
                (task.topic, task.name) = (to.clone(), None);
            }
            task.clone()
        }))
    }

    pub async fn drop_dead(&self, id: TaskId) -> Result<Option<TaskView>, Unavailable> {
        let mut tasks = lock(&self.tasks);
        let index = tasks.iter().position(|task| task.id == id && task.state == TaskState::Dead);
        Ok(index.map(|index| tasks.remove(index)))
    }
}

fn is_chosen(choice: &Choice, task: &TaskView) -> bool {
    let name = task.name.as_deref();
    match choice {
        Choice::Ids(ids) => ids.contains(&task.id),
        Choice::Names(names) => names.iter().any(|one| name == Some(one.as_str())),
        Choice::NamePrefix(prefix) => name.is_some_and(|name| name.starts_with(&**prefix)),
        Choice::Key(key) => task.kept.as_ref().and_then(|kept| kept.key.as_deref()) == Some(&**key),
    }
}
