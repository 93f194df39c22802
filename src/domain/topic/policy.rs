//! Policies of topics: the members that tasks get from them, and pauses.

use std::time::Duration;

use crate::domain::schedule::RevisionCondition;
use crate::domain::{
    Expiry, ExpiryTime, PrincipalId, PrincipalName, Timestamp, TopicName, Tracking,
};

/// Maximum length of the reason of a pause, in bytes.
pub const REASON_BYTES_MAX: usize = 1024;

/// The members of a policy. A task copies them at its submit, so a later change does not alter a
/// stored task.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct TopicPolicy {
    /// For tasks that name no time to run themselves.
    pub tracking: Option<Box<Tracking>>,
    /// How far ahead tasks may be due. The setting of the node is a limit, too.
    pub delay_max: Option<Duration>,
    /// How long after its due time a task that names no expiry is published at the latest.
    pub expire_after: Option<Duration>,
    /// Up to how much later than requested tasks are due.
    pub spread: Option<Duration>,
    /// The most pending tasks. It limits submits softly, as it is compared with counts.
    pub pending_max: Option<u64>,
    /// True: records carry the name of their submitter.
    pub has_submitter_header: bool,
}

impl TopicPolicy {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the wishes of a task that wants `own`. A task that names its time to run takes
    /// nothing from the policy.
    #[must_use]
    pub fn tracking_for(&self, own: Option<Box<Tracking>>) -> Option<Box<Tracking>> {
        own.or_else(|| self.tracking.clone())
    }

    /// Returns the expiry of a task that wants `own`.
    pub fn expiry_for(&self, own: Option<Expiry>) -> Option<Expiry> {
        own.or_else(|| Some(Expiry::new(ExpiryTime::After(self.expire_after?))))
    }

    /// Returns the longest delay of a task, where the node allows `of_node`.
    pub fn delay_max_within(&self, of_node: Duration) -> Duration {
        self.delay_max.map_or(of_node, |delay_max| delay_max.min(of_node))
    }
}

/// A pause that has not ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pause {
    pub since: Timestamp,
    pub reason: Option<String>,
    /// `None` for an anonymous caller.
    pub by: Option<PrincipalName>,
}

/// A topic as it is stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredTopic {
    pub topic: TopicName,
    /// Counts the changes from 1. 0 for a topic that never had a policy or a pause.
    pub revision: u64,
    pub policy: TopicPolicy,
    pub pause: Option<Pause>,
    /// The end of the last pause that has ended.
    pub resumed_at: Option<Timestamp>,
}

impl StoredTopic {
    /// Returns a topic without a policy, which is not paused.
    pub fn plain(topic: TopicName) -> Self {
        Self { topic, revision: 0, policy: TopicPolicy::default(), pause: None, resumed_at: None }
    }

    /// Returns true when the topic has a policy or is paused.
    pub fn has_any(&self) -> bool {
        !self.policy.is_empty() || self.pause.is_some()
    }

    /// Returns the revision for conditions. A topic without a policy and a pause has none.
    pub fn current(&self) -> Option<u64> {
        self.has_any().then_some(self.revision)
    }
}

/// A change of a topic by a caller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TopicChange {
    pub by: Option<PrincipalId>,
    pub condition: RevisionCondition,
    /// `None`: the policy stays as it is.
    pub policy: Option<TopicPolicy>,
    /// `None`: the topic stays paused or not, as it is.
    pub is_paused: Option<bool>,
    /// The reason of a pause.
    pub reason: Option<String>,
}

/// The result of a change of a topic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TopicChanged {
    Changed(StoredTopic),
    /// The topic was so already.
    Unchanged(StoredTopic),
    /// The condition does not allow the current revision. `None`: there is no policy.
    Unmet(Option<u64>),
}

/// The last pause of a topic, for the lateness of its records.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PauseTimes {
    pub paused_since: Option<Timestamp>,
    pub resumed_at: Option<Timestamp>,
}

impl PauseTimes {
    /// Returns the time from which the lateness of a record counts that was published at
    /// `published_at`. A pause does not count. `None`: the topic counts as paused, so that the
    /// lateness says nothing.
    pub fn lateness_from(self, due_at: Timestamp, published_at: Timestamp) -> Option<Timestamp> {
        match (self.paused_since, self.resumed_at) {
            // The record was claimed before the pause, or the end of the pause is not known yet.
            (Some(since), _) if published_at > since => None,
            (_, Some(resumed_at)) if published_at >= resumed_at => Some(due_at.max(resumed_at)),
            _ => Some(due_at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{RetryPolicy, Ttr};

    fn tracking(seconds: u64) -> Box<Tracking> {
        let ttr = Ttr::new(Duration::from_secs(seconds)).unwrap();
        Box::new(Tracking { ttr, retry: RetryPolicy::DEFAULT, dead_topic: None })
    }

    #[test]
    fn a_task_that_names_its_time_to_run_takes_nothing_from_the_policy() {
        let policy = TopicPolicy { tracking: Some(tracking(30)), ..TopicPolicy::default() };
        assert_eq!(policy.tracking_for(None), Some(tracking(30)));
        assert_eq!(policy.tracking_for(Some(tracking(5))), Some(tracking(5)));
        assert_eq!(TopicPolicy::default().tracking_for(None), None);
    }

    #[test]
    fn a_task_that_names_its_expiry_takes_none_from_the_policy() {
        let hour = Duration::from_hours(1);
        let policy = TopicPolicy { expire_after: Some(hour), ..TopicPolicy::default() };
        let of_policy = Expiry::new(ExpiryTime::After(hour));
        let own = Expiry::new(ExpiryTime::At(Timestamp::EPOCH));
        assert_eq!(
            (policy.expiry_for(None), policy.expiry_for(Some(own))),
            (Some(of_policy), Some(own))
        );
        assert_eq!(TopicPolicy::default().expiry_for(None), None);
    }

    #[test]
    fn the_shorter_limit_of_the_delay_counts() {
        let day = Duration::from_secs(86_400);
        let policy = |delay_max| TopicPolicy { delay_max, ..TopicPolicy::default() };
        assert_eq!(policy(None).delay_max_within(day), day);
        assert_eq!(policy(Some(day / 2)).delay_max_within(day), day / 2);
        assert_eq!(policy(Some(day * 2)).delay_max_within(day), day);
    }

    #[test]
    fn a_topic_without_a_policy_and_a_pause_has_no_revision() {
        let plain = StoredTopic::plain(TopicName::new("orders").unwrap());
        assert_eq!((plain.current(), plain.has_any()), (None, false));
        let policy = TopicPolicy { tracking: Some(tracking(1)), ..TopicPolicy::default() };
        let with_policy = StoredTopic { revision: 3, policy, ..plain.clone() };
        assert_eq!(with_policy.current(), Some(3));
        let pause = Pause { since: Timestamp::EPOCH, reason: None, by: None };
        assert_eq!(StoredTopic { revision: 4, pause: Some(pause), ..plain }.current(), Some(4));
    }

    #[test]
    fn lateness_counts_from_the_end_of_a_pause_and_not_while_it_lasts() {
        let at = Timestamp::from_millis;
        let never = PauseTimes::default();
        assert_eq!(never.lateness_from(at(10), at(20)), Some(at(10)));
        let paused = PauseTimes { paused_since: Some(at(100)), resumed_at: None };
        assert_eq!(paused.lateness_from(at(90), at(95)), Some(at(90)));
        assert_eq!(paused.lateness_from(at(90), at(150)), None);
        let resumed = PauseTimes { paused_since: None, resumed_at: Some(at(200)) };
        assert_eq!(resumed.lateness_from(at(90), at(150)), Some(at(90)));
        assert_eq!(resumed.lateness_from(at(90), at(210)), Some(at(200)));
        assert_eq!(resumed.lateness_from(at(205), at(210)), Some(at(205)));
        let again = PauseTimes { paused_since: Some(at(300)), resumed_at: Some(at(200)) };
        assert_eq!(again.lateness_from(at(205), at(210)), Some(at(205)));
        assert_eq!(again.lateness_from(at(290), at(310)), None);
    }
}
