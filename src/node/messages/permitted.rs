//! Requests, each with the proof of the caller's right.

use std::marker::PhantomData;
use std::sync::Arc;

use super::Draft;
use crate::access::permit::{Denied, Permit, Read, Right, Submit};
use crate::access::{Action, Caller, Principal};
use crate::domain::{TaskId, TaskView, TopicName};

/// A draft that the caller may submit. The right was checked on the draft's own topic, and on the
/// dead topic if there is one.
#[derive(Clone, Debug)]
pub struct PermittedDraft {
    draft: Draft,
    permit: Permit<Submit>,
}

impl PermittedDraft {
    pub fn new(caller: &Caller, draft: Draft) -> Result<Self, DeniedDraft> {
        let permit = |topic: &TopicName| {
            let denied = |denied| DeniedDraft { denied, topic: topic.clone() };
            Permit::on(caller, topic).map_err(denied)
        };
        let own = permit(&draft.record.topic)?;
        let tracking = draft.tracking.as_deref();
        if let Some(dead_topic) = tracking.and_then(|tracking| tracking.dead_topic.as_ref()) {
            permit(dead_topic)?;
        }
        Ok(Self { permit: own, draft })
    }

    pub fn draft(&self) -> &Draft {
        &self.draft
    }

    pub fn into_parts(self) -> (Draft, Permit<Submit>) {
        (self.draft, self.permit)
    }
}

/// The missing right to submit a draft, and the topic on which it is missing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeniedDraft {
    pub denied: Denied,
    pub topic: TopicName,
}

/// A task found by id. Nothing is readable before the right on the task's topic is checked: for a
/// caller without the right, the task does not exist.
#[derive(Clone, Debug)]
pub struct FoundTask(TaskView);

impl FoundTask {
    pub(in crate::node) fn new(view: TaskView) -> Self {
        Self(view)
    }

    /// Returns the task, if the caller may read it.
    pub fn show(self, caller: &Caller) -> Result<TaskView, HiddenTask> {
        check::<Read>(caller, &self.0.topic)?;
        Ok(self.0)
    }
}

/// The topic of a task found by id, for a permit. For a caller without the right on the topic, the
/// task does not exist.
#[derive(Clone, Debug)]
pub struct FoundTopic {
    id: TaskId,
    topic: TopicName,
}

impl FoundTopic {
    pub(in crate::node) fn new(id: TaskId, topic: TopicName) -> Self {
        Self { id, topic }
    }

    /// Returns the permit to do `R` to the task, if the caller has the right. The topic of an id
    /// changes only by a redrive to another topic, which needs rights to both.
    pub fn permit<R: Right>(&self, caller: &Caller) -> Result<TaskPermit<R>, HiddenTask> {
        Ok(TaskPermit::of_topic(&check(caller, &self.topic)?, self.id))
    }
}

fn check<R: Right>(caller: &Caller, topic: &TopicName) -> Result<Permit<R>, HiddenTask> {
    let hidden = |Denied(action)| HiddenTask { action, topic: topic.clone() };
    Permit::on(caller, topic).map_err(hidden)
}

/// The missing right on a task that does not exist for the caller. The right is for the audit trail
/// alone: the answer is the same as for an absent task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HiddenTask {
    pub action: Action,
    pub topic: TopicName,
}

/// The proof that a caller may do `R` to the task with an id.
#[derive(Clone, Debug)]
pub struct TaskPermit<R> {
    principal: Arc<Principal>,
    id: TaskId,
    topic: Option<TopicName>,
    right: PhantomData<R>,
}

impl<R: Right> TaskPermit<R> {
    /// Returns the permit of a caller who may do everything to every task, which need not be found
    /// first. A caller of an auth file never gets one: `*` excludes the topics whose names begin
    /// with `_`, and the topic of an unknown id may be one of these.
    pub fn unlimited(caller: &Caller, id: TaskId) -> Option<Self> {
        let principal = caller.principal.clone();
        let is_unlimited = principal.rights.is_everything();
        is_unlimited.then_some(Self { principal, id, topic: None, right: PhantomData })
    }

    /// Returns the permit for a task that is known to be of the topic of `permit`.
    pub(in crate::node) fn of_topic(permit: &Permit<R>, id: TaskId) -> Self {
        let (principal, topic) = (permit.principal().clone(), Some(permit.topic().clone()));
        Self { principal, id, topic, right: PhantomData }
    }

    pub fn id(&self) -> TaskId {
        self.id
    }

    /// Returns the topic of the task. `None` for an unlimited permit.
    pub fn topic(&self) -> Option<&TopicName> {
        self.topic.as_ref()
    }

    /// Returns the caller whose rights were checked.
    pub fn principal(&self) -> &Arc<Principal> {
        &self.principal
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::access::pattern::Pattern;
    use crate::access::permit::Cancel;
    use crate::access::rights::{Rights, Rule};
    use crate::domain::{
        Actors, Headers, Record, RetryPolicy, Shard, TaskState, Timestamp, Tracking, Ttr,
    };
    use crate::node::messages::Due;

    #[test]
    fn a_draft_needs_the_right_on_its_topic_and_on_its_dead_topic() {
        let caller = |topics: &[&str]| {
            let topics = topics.iter().map(|topic| Pattern::new(topic).unwrap()).collect();
            let rule = Rule { actions: vec![Action::Submit], topics };
            Caller::anonymous(Rights::new(&[rule], &[], false))
        };
        let missing = |topics: &[&str], dead_topic: Option<&str>| {
            let record = Record {
                topic: TopicName::new("orders").unwrap(),
                key: None,
                payload: None,
                headers: Headers::default(),
            };
            let tracking = Tracking {
                ttr: Ttr::new(Duration::from_secs(1)).unwrap(),
                retry: RetryPolicy::DEFAULT,
                dead_topic: dead_topic.map(|topic| TopicName::new(topic).unwrap()),
            };
            let tracking = Some(Box::new(tracking));
            let due = Due::After(Duration::ZERO);
            let draft = Draft { record, name: None, due, tracking, expiry: None, spread: None };
            let denied = PermittedDraft::new(&caller(topics), draft).err();
            denied.map(|denied| denied.topic.to_string())
        };
        assert_eq!(missing(&["orders"], None), None);
        assert_eq!(missing(&["orders"], Some("dead")), Some("dead".to_owned()));
        assert_eq!(missing(&["dead"], Some("dead")), Some("orders".to_owned()));
        assert_eq!(missing(&["orders", "dead"], Some("dead")), None);
    }

    fn found(topic: &str) -> FoundTask {
        FoundTask::new(TaskView {
            id: TaskId::new(Timestamp::EPOCH, Shard::new(0), 1),
            topic: TopicName::new(topic).unwrap(),
            name: None,
            state: TaskState::Scheduled,
            replaced_by: None,
            attempt: 1,
            receipt: None,
            kept: None,
            reason: None,
            died_at: None,
            moved_to: None,
            requested_due_at: None,
            expires_at: None,
            actors: Actors::default(),
            tracked: None,
        })
    }

    fn topic_of(task: &FoundTask) -> FoundTopic {
        FoundTopic::new(task.0.id, task.0.topic.clone())
    }

    #[test]
    fn a_found_task_is_shown_and_changed_by_the_rights_on_its_own_topic_alone() {
        let topics = vec![Pattern::new("orders").unwrap()];
        let rule = Rule { actions: vec![Action::Cancel], topics };
        let caller = Caller::anonymous(Rights::new(&[rule], &[], false));
        let own = found("orders");
        let permit = topic_of(&own).permit::<Cancel>(&caller).unwrap();
        assert_eq!((permit.id(), permit.principal()), (own.0.id, &caller.principal));
        assert_eq!(permit.topic(), Some(&own.0.topic), "the policy of the topic applies");
        let hidden = |action, topic| HiddenTask { action, topic: TopicName::new(topic).unwrap() };
        assert_eq!(own.show(&caller).unwrap_err(), hidden(Action::Read, "orders"));
        let other = topic_of(&found("other")).permit::<Cancel>(&caller).unwrap_err();
        assert_eq!(other, hidden(Action::Cancel, "other"));
        assert!(TaskPermit::<Cancel>::unlimited(&caller, permit.id()).is_none());
        let everybody = Caller::anonymous(Rights::everything());
        assert!(TaskPermit::<Cancel>::unlimited(&everybody, permit.id()).is_some());
    }

    /// A permit without a look at the topic would let the caller cancel a task of `_schemas`.
    #[test]
    fn all_actions_on_all_topics_are_no_right_to_a_task_whose_topic_is_unknown() {
        let rule = Rule { actions: Action::IN_RULES.to_vec(), topics: vec![Pattern::All] };
        let caller = Caller::anonymous(Rights::new(&[rule], &[], true));
        let own = found("orders");
        assert!(topic_of(&own).permit::<Cancel>(&caller).is_ok());
        assert!(topic_of(&found("_schemas")).permit::<Cancel>(&caller).is_err());
        assert!(TaskPermit::<Cancel>::unlimited(&caller, own.0.id).is_none());
    }
}
