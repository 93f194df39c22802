//! The notes of a request for its line of the audit trail.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::access::{Action, Caller, CredentialId};
use crate::domain::{PrincipalName, Selection, TaskId, TaskName, TopicName};

/// The notes of one request. The guard notes the caller and every checked right, so a handler
/// cannot forget these. Handlers add the changes. Without an audit trail, nothing is noted.
#[derive(Clone, Debug, Default)]
pub struct Trail(Option<Arc<Mutex<Notes>>>);

/// The facts of a request for its line. No payload, key, header or token is ever part of it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Notes {
    pub caller: Option<(PrincipalName, CredentialId)>,
    /// The changed tasks, by topic. A topic that was only named has none.
    pub topics: BTreeMap<TopicName, u64>,
    /// The task, or the tasks, as the request names them.
    pub id: Option<TaskId>,
    pub name: Option<TaskName>,
    pub selection: Selection,
    /// Tasks changed without a look at their topics.
    pub count_in_all: u64,
    /// The first and the last task that was changed.
    pub changed: Option<(TaskId, TaskId)>,
    /// Tasks that were perhaps changed.
    pub unknown_count: u64,
    /// The first right that was missing, and how many times one was, by topic. `None` stands for
    /// all topics.
    pub missing: Option<Action>,
    pub denied: BTreeMap<Option<TopicName>, u64>,
    pub is_dry_run: bool,
    pub shows_payload: bool,
}

impl Trail {
    /// Makes a trail that takes notes.
    pub fn new() -> Self {
        Self(Some(Arc::default()))
    }

    fn note(&self, note: impl FnOnce(&mut Notes)) {
        if let Some(notes) = &self.0 {
            note(&mut notes.lock());
        }
    }

    /// Returns the notes so far.
    pub fn notes(&self) -> Notes {
        self.0.as_ref().map(|notes| notes.lock().clone()).unwrap_or_default()
    }

    /// Notes who the caller is.
    pub fn identify(&self, caller: &Caller) {
        self.note(|notes| {
            notes.caller = Some((caller.principal.name.clone(), caller.credential));
        });
    }

    /// Notes a topic on which a right was checked and granted.
    pub fn permits(&self, topic: &TopicName) {
        self.note(|notes| {
            notes.topics.entry(topic.clone()).or_default();
        });
    }

    pub fn denies(&self, action: Action, topic: Option<&TopicName>) {
        self.note(|notes| {
            notes.missing.get_or_insert(action);
            *notes.denied.entry(topic.cloned()).or_default() += 1;
        });
    }

    /// Notes the task that the request names by its id.
    pub fn names_id(&self, id: TaskId) {
        self.note(|notes| notes.id = Some(id));
    }

    pub fn names(&self, name: &TaskName) {
        self.note(|notes| notes.name = Some(name.clone()));
    }

    /// Notes a selection of tasks, and whether they are only counted.
    pub fn selects(&self, selection: &Selection, is_dry_run: bool) {
        self.note(|notes| {
            notes.selection = selection.clone();
            notes.is_dry_run = is_dry_run;
        });
    }

    /// Notes that the request changes nothing.
    pub fn only_asks(&self) {
        self.note(|notes| notes.is_dry_run = true);
    }

    /// Notes a changed task.
    pub fn changed(&self, topic: &TopicName, id: TaskId) {
        self.note(|notes| {
            *notes.topics.entry(topic.clone()).or_default() += 1;
            let (first, _last) = notes.changed.unwrap_or((id, id));
            notes.changed = Some((first, id));
        });
    }

    /// Notes how many tasks of a topic were changed.
    pub fn changed_many(&self, topic: &TopicName, count: u64) {
        self.note(|notes| *notes.topics.entry(topic.clone()).or_default() += count);
    }

    /// Notes how many tasks of all topics were changed.
    pub fn changed_in_all(&self, count: u64) {
        self.note(|notes| notes.count_in_all += count);
    }

    /// Notes a task that was perhaps changed.
    pub fn perhaps_changed(&self) {
        self.note(|notes| notes.unknown_count += 1);
    }

    /// Notes that the answer may show keys, headers and payloads of a topic.
    pub fn shows_payload(&self, topic: &TopicName) {
        self.note(|notes| {
            notes.shows_payload = true;
            notes.topics.entry(topic.clone()).or_default();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Shard, Timestamp};

    #[test]
    fn changes_are_counted_by_topic_with_the_first_and_the_last_of_them() {
        let trail = Trail::new();
        let [a, b] = ["a", "b"].map(|name| TopicName::new(name).unwrap());
        let id = |random| TaskId::new(Timestamp::EPOCH, Shard::new(0), random);
        trail.permits(&b);
        trail.changed(&a, id(1));
        trail.changed(&a, id(2));
        trail.changed_many(&a, 3);
        trail.denies(Action::Submit, Some(&b));
        trail.denies(Action::Cancel, Some(&b));
        let notes = trail.notes();
        assert_eq!(notes.topics, BTreeMap::from([(a, 5), (b.clone(), 0)]));
        assert_eq!(notes.changed, Some((id(1), id(2))));
        assert_eq!(notes.missing, Some(Action::Submit));
        assert_eq!(notes.denied, BTreeMap::from([(Some(b), 2)]));
    }

    #[test]
    fn without_an_audit_trail_nothing_is_noted() {
        let trail = Trail::default();
        trail.permits(&TopicName::new("a").unwrap());
        assert_eq!(trail.notes(), Notes::default());
    }
}
