//! Submits and checks drafts: against the clock, the topic and the limits.

use std::sync::Arc;
use std::time::Duration;

use az::SaturatingAs as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::access::limits::pending::PendingOf;
use crate::clock;
use crate::domain::task::expiry::BYTES_MAX as EXPIRY_BYTES_MAX;
use crate::domain::task::{headers, spread};
use crate::domain::topic::policy::TopicChange;
use crate::domain::{
    Expiry, ExpiryTime, Headers, NewTask, PrincipalId, PrincipalName, Record, TaskName, Timestamp,
    TopicName,
};
use crate::kafka::{LookUpError, TopicCache, TopicFacts};
use crate::node::membership::Bulletin;
use crate::node::messages::permitted::PermittedDraft;
use crate::node::messages::{Accepted, Draft, Due, Refusal, SubmitAnswer};
use crate::node::requests::group_commit::GroupCommit;
use crate::node::requests::group_commit::submission::Submission;
use crate::node::requests::postgres_failures::refusal_of_read;
use crate::node::requests::service::look_up_limit::LookUpLimit;
use crate::node::shared::NodeShared;
use crate::postgres::tasks::names::Names;
use crate::postgres::tasks::submit::{BYTES_MAX, TASKS_MAX};

/// The facts about a topic, or the reason why its drafts are refused.
type Facts = Result<TopicFacts, Refusal>;

/// The facts about the topic of a draft, and whether the draft fits.
type Checked = (Facts, Result<(), Refusal>);

/// The number of a caller, or the reason why its drafts are refused.
type Number = Result<Option<PrincipalId>, Refusal>;

/// A named draft that cannot become a task.
struct Refused {
    /// Index among the drafts.
    index: usize,
    topic: TopicName,
    name: TaskName,
}

/// Turns drafts into stored tasks.
#[derive(Debug)]
pub struct Submitter {
    pub shared: Arc<NodeShared>,
    pub delay_max: Duration,
    pub topics: TopicCache,
    pub look_up_limit: LookUpLimit,
    pub names: Arc<Names>,
    pub group_commit: GroupCommit,
    pub bulletin: watch::Receiver<Bulletin>,
    pub draining: CancellationToken,
}

impl Submitter {
    /// Checks one draft of the caller `by`.
    pub async fn check_one(
        &self,
        by: &PrincipalName,
        draft: Draft,
        arrived_at: Option<Timestamp>,
    ) -> Result<NewTask, Refusal> {
        let arrived_at = self.taken_at(arrived_at)?;
        let facts = self.facts(by, &draft.record.topic).await;
        let (_facts, fits) = self.check_terms(by, &draft, facts).await;
        fits?;
        self.check(self.number_of(by).await?, draft, arrived_at)
    }

    /// Gives a draft of the caller `by` what it has from the policy of its topic.
    pub fn with_policy(&self, by: &PrincipalName, draft: Draft) -> Draft {
        let policies = &self.shared.policies;
        let Draft { mut record, name, due, tracking, expiry, .. } = draft;
        let tracking = policies.tracking_for(&record.topic, tracking);
        let expiry = policies.expiry_for(&record.topic, expiry);
        let spread = policies.spread_of(&record.topic);
        if policies.has_submitter_header(&record.topic) {
            let own = Headers::own([(headers::SUBMITTED_BY, by.as_str().to_owned())]);
            record.headers = record.headers.followed_by(&own);
        }
        Draft { record, name, due, tracking, expiry, spread }
    }

    /// Returns the new due time of a task, for a request that arrived at `arrived_at`. The limit of
    /// the topic's policy applies if `topic` is given.
    pub fn due_at_of(
        &self,
        topic: Option<&TopicName>,
        due: Due,
        arrived_at: Option<Timestamp>,
    ) -> Result<Timestamp, Refusal> {
        let arrived_at = self.taken_at(arrived_at)?;
        let policies = &self.shared.policies;
        let delay_max =
            topic.map_or(self.delay_max, |topic| policies.delay_max_within(topic, self.delay_max));
        due_at_of(due, arrived_at, delay_max)
    }

    /// Stores drafts, and writes the answer to each of them to its place in `answers`, which begin
    /// as [`unanswered`].
    pub async fn admit(
        &self,
        drafts: impl IntoIterator<Item = PermittedDraft>,
        arrived_at: Option<Timestamp>,
        answers: &mut [SubmitAnswer],
    ) {
        let mut topics = Vec::new();
        self.store(drafts, arrived_at, answers, &mut topics).await;
        self.count_refused(&topics, answers);
    }

    /// Counts the answers that certainly mean "not stored", and each for its topic as far as
    /// `topics` has the topic.
    pub fn count_refused<T>(&self, topics: &[TopicName], answers: &[Result<T, Refusal>]) {
        let metrics = &self.shared.metrics;
        metrics.submits_refused.inc_by(refused_count(answers));
        for (topic, answer) in topics.iter().zip(answers) {
            if is_refused(answer) {
                metrics.topics.refused(topic);
            }
        }
    }

    /// Stores drafts of one caller as [`Self::admit`] does. Adds the topic of each to `topics`, if
    /// topics have metrics of their own.
    async fn store(
        &self,
        drafts: impl IntoIterator<Item = PermittedDraft>,
        arrived_at: Option<Timestamp>,
        answers: &mut [SubmitAnswer],
        topics: &mut Vec<TopicName>,
    ) {
        let arrived_at = match self.taken_at(arrived_at) {
            Ok(arrived_at) => arrived_at,
            Err(refusal) => return answers.fill(Err(refusal)),
        };
        let mut submissions = Vec::with_capacity(answers.len());
        let mut refused = Vec::new();
        let mut caller: Option<(PrincipalName, Number)> = None;
        let mut known: Option<(TopicName, Facts)> = None;
        for (index, draft) in drafts.into_iter().enumerate() {
            let (draft, permit) = draft.into_parts();
            let (by, number) = match &caller {
                Some(caller) => caller,
                None => {
                    let by = permit.principal().name.clone();
                    let number = self.number_of(&by).await;
                    &*caller.insert((by, number))
                }
            };
            debug_assert_eq!(*by, permit.principal().name);
            let draft = self.with_policy(by, draft);
            let topic = draft.record.topic.clone();
            if self.shared.metrics.topics.is_on() {
                topics.push(topic.clone());
            }
            let named = draft.name.clone().map(|name| (topic.clone(), name));
            let facts = match known.take() {
                Some((name, facts)) if name == topic => facts,
                _ => self.facts(by, &topic).await,
            };
            let (facts, fits) = self.check_terms(by, &draft, facts).await;
            known = Some((topic, facts));
            let number = fits.and_then(|()| number.clone());
            match number.and_then(|number| self.check(number, draft, arrived_at)) {
                Ok(task) => submissions.push(Submission::new(index, task)),
                Err(refusal) => {
                    refused.extend(named.map(|(topic, name)| Refused { index, topic, name }));
                    answers[index] = Err(refusal);
                }
            }
        }
        let by = caller.map_or_else(PrincipalName::anonymous, |(by, _number)| by);
        while !submissions.is_empty() {
            let rest = submissions.split_off(group_len(&submissions));
            let group = std::mem::replace(&mut submissions, rest);
            for (index, answer) in self.group_commit.enqueue(&by, group).await {
                answers[index] = answer;
            }
        }
        if !refused.is_empty() {
            // The future is on the heap, as below.
            Box::pin(self.recall(&refused, answers)).await;
        }
    }

    /// Answers refused drafts with a known name with the task of that name: an earlier submit with
    /// a lost answer may have been accepted. This runs after the other drafts are stored, because
    /// the name may have been new to one of them.
    async fn recall(&self, refused: &[Refused], answers: &mut [SubmitAnswer]) {
        for (chunk, some) in refused.chunks(TASKS_MAX).enumerate() {
            let names: Vec<(&str, &str)> = some
                .iter()
                .map(|refused| (refused.topic.as_str(), refused.name.as_str()))
                .collect();
            let known = match self.names.known(&names).await {
                Ok(known) => known,
                Err(error) => {
                    // The names may or may not be known, so the drafts are not refused for good.
                    let refusal = refusal_of_read(&error);
                    let unsure = refused.iter().skip(chunk * TASKS_MAX);
                    unsure.for_each(|refused| answers[refused.index] = Err(refusal.clone()));
                    return;
                }
            };
            for (refused, known) in some.iter().zip(known) {
                if let Some(known) = known {
                    answers[refused.index] =
                        Ok(Accepted { id: known.id, state: known.state, is_new: false });
                    self.shared.metrics.names_known.inc();
                }
            }
        }
    }

    /// Returns when a request arrived. Refuses it while the node drains, or the time is not known.
    fn taken_at(&self, arrived_at: Option<Timestamp>) -> Result<Timestamp, Refusal> {
        if self.draining.is_cancelled() {
            return Err(Refusal::Draining);
        }
        arrived_at.ok_or_else(no_time)
    }

    /// Checks a draft against its topic, and against the versions of the nodes.
    async fn check_terms(&self, by: &PrincipalName, draft: &Draft, facts: Facts) -> Checked {
        let (facts, fits) = self.check_against_topic(draft, facts).await;
        let fits = match fits.and_then(|()| self.may_expire(draft)) {
            Ok(()) => self.may_be_tracked(by, draft).await,
            refused => refused,
        };
        (facts, fits)
    }

    /// Makes a task of a draft. Refuses a due time that is too far away.
    fn check(
        &self,
        by: Option<PrincipalId>,
        draft: Draft,
        arrived_at: Timestamp,
    ) -> Result<NewTask, Refusal> {
        let topic = &draft.record.topic;
        self.has_room(topic)?;
        let delay_max = self.shared.policies.delay_max_within(topic, self.delay_max);
        let due_at = due_at_of(draft.due, arrived_at, delay_max)?;
        let random = (rand::random(), rand::random());
        let shards = self.shared.cluster.shards;
        let (record, due_at) =
            with_terms(draft.record, draft.name.as_ref(), (draft.expiry, draft.spread), due_at)?;
        let task = NewTask::new(record, draft.name, due_at, shards, random);
        Ok(NewTask { submitted_by: by, tracking: draft.tracking, ..task })
    }

    /// Checks the pending tasks of a topic against its policy.
    fn has_room(&self, topic: &TopicName) -> Result<(), Refusal> {
        let Some(pending_max) = self.shared.policies.pending_max(topic) else { return Ok(()) };
        let of = PendingOf::Topic(topic);
        match self.shared.pending.reached(of, pending_max, clock::monotonic()) {
            None => Ok(()),
            Some(task_count) => Err(Refusal::TooManyPending { task_count, pending_max }),
        }
    }

    /// Returns why a topic cannot be changed so, if nodes of an older version would not heed it.
    pub fn old_nodes(&self, change: &TopicChange) -> Option<String> {
        let bulletin = self.bulletin.borrow();
        // Older nodes publish the stored terms of such tasks as a header.
        let has_terms = change
            .policy
            .as_ref()
            .is_some_and(|policy| policy.expire_after.is_some() || policy.spread.is_some());
        let (node_count, unknown) = match change.is_paused {
            Some(true) if bulletin.nodes_without_pauses_count > 0 => {
                (bulletin.nodes_without_pauses_count, "paused topics")
            }
            _ if has_terms => (bulletin.nodes_without_expiry_count, "`expire_after` and `spread`"),
            _ => return None,
        };
        (node_count > 0).then(|| {
            format!(
                "{node_count} of the nodes are of an older version, which does not know {unknown}; \
                 change the topic once all nodes are upgraded (GET /v1/cluster shows their \
                 versions)"
            )
        })
    }

    /// Refuses what only nodes of this version do with schedules while older nodes live.
    pub fn knows_overlap(&self) -> Result<(), Refusal> {
        let node_count = self.bulletin.borrow().nodes_without_overlap_count;
        if node_count == 0 {
            return Ok(());
        }
        let reason = format!(
            "{node_count} of the nodes are of an older version, which does not know `overlap`, \
             `spread` and backfills of schedules; repeat once all nodes are upgraded (GET \
             /v1/cluster shows their versions)"
        );
        Err(Refusal::ServerAway { reason })
    }

    /// Checks a draft with an expiry against the versions of the nodes.
    fn may_expire(&self, draft: &Draft) -> Result<(), Refusal> {
        if draft.expiry.is_none() && draft.spread.is_none() {
            return Ok(());
        }
        let node_count = self.bulletin.borrow().nodes_without_expiry_count;
        if node_count > 0 { Err(Refusal::NodesWithoutExpiry { node_count }) } else { Ok(()) }
    }

    /// Checks a draft of a tracked task against the versions of the nodes, and against its dead
    /// topic, if it has one.
    async fn may_be_tracked(&self, by: &PrincipalName, draft: &Draft) -> Result<(), Refusal> {
        let Some(tracking) = &draft.tracking else { return Ok(()) };
        let node_count = self.bulletin.borrow().nodes_without_tracking_count;
        if node_count > 0 {
            return Err(Refusal::NodesWithoutTracking { node_count });
        }
        match &tracking.dead_topic {
            Some(topic) => self.fits_dead_topic(by, draft, topic).await,
            None => Ok(()),
        }
    }

    /// Checks a draft against its dead topic. The record there has more headers.
    async fn fits_dead_topic(
        &self,
        by: &PrincipalName,
        draft: &Draft,
        topic: &TopicName,
    ) -> Result<(), Refusal> {
        let of_dead_topic = |refusal| match refusal {
            Refusal::UnknownTopic | Refusal::TooLarge { .. } | Refusal::NoKey => {
                Refusal::OfDeadTopic(Box::new(refusal))
            }
            other => other,
        };
        // The future is on the heap: few tasks have a dead topic.
        let facts = Box::pin(self.facts(by, topic)).await.map_err(of_dead_topic)?;
        let size = draft.record.size().saturating_add(DEAD_TOPIC_BYTES_MAX);
        fits(draft, size, facts).map_err(of_dead_topic)
    }

    async fn number_of(&self, caller: &PrincipalName) -> Number {
        self.shared.callers.of(caller).await.map_err(refusal_of_read)
    }

    /// Looks a topic up for a caller.
    pub async fn facts(&self, by: &PrincipalName, topic: &TopicName) -> Facts {
        let answer = match self.topics.cached(topic) {
            Some(answer) => answer,
            None => {
                let look_up = self.look_up_limit.take(by);
                let Some(_look_up) = look_up else {
                    return Err(Refusal::Busy { limit: "topic_look_ups_share" });
                };
                // The future is on the heap: it is rarely needed, and would make the future of
                // every submit larger.
                Box::pin(self.topics.look_up(topic)).await
            }
        };
        let facts = answer.map_err(|error| refusal_of_look_up(topic, error))?;
        self.shared.found(topic);
        Ok(facts)
    }

    /// Looks the topic up before its dead letters are redriven: it may exist again although it was
    /// given up.
    pub async fn look_up_topic(&self, by: &PrincipalName, topic: &TopicName) {
        if let Err(refusal) = self.facts(by, topic).await {
            tracing::debug!(%topic, ?refusal, "redriving dead letters anyway");
        }
    }

    /// Checks a draft against its topic. Returns the facts about the topic, too. When a draft does
    /// not fit, Kafka is asked again: a limit may have been raised, and an old one must not refuse
    /// a draft for good.
    pub async fn check_against_topic(&self, draft: &Draft, facts: Facts) -> Checked {
        let facts = match facts {
            Ok(facts) if fits(draft, draft.record.size(), facts).is_ok() => {
                return (Ok(facts), Ok(()));
            }
            Ok(facts) => facts,
            Err(refusal) => return (Err(refusal.clone()), Err(refusal)),
        };
        // The future is on the heap: it is rarely needed, and would make the future of every submit
        // larger.
        Box::pin(self.confirmed_fit(draft, facts)).await
    }

    /// Checks the draft again with its compressed size, and then with fresh limits of the topic.
    async fn confirmed_fit(&self, draft: &Draft, facts: TopicFacts) -> Checked {
        let record = &draft.record;
        if fits(draft, self.topics.size(record, facts).await, facts).is_ok() {
            return (Ok(facts), Ok(()));
        }
        match self
            .topics
            .confirm(&record.topic)
            .await
            .map_err(|error| refusal_of_look_up(&record.topic, error))
        {
            Ok(facts) => (Ok(facts), fits(draft, self.topics.size(record, facts).await, facts)),
            Err(refusal) => (Err(refusal.clone()), Err(refusal)),
        }
    }
}

/// Puts what a task has of spread and expiry into its record. Returns its due time, too.
pub fn with_terms(
    record: Record,
    name: Option<&TaskName>,
    (expiry, spread): (Option<Expiry>, Option<Duration>),
    requested_at: Timestamp,
) -> Result<(Record, Timestamp), Refusal> {
    let expires_at = match expiry.map(|expiry| expiry.time) {
        Some(ExpiryTime::At(at)) => Some(at),
        Some(ExpiryTime::After(_)) | None => None,
    };
    if expires_at.is_some_and(|at| at <= requested_at) {
        return Err(Refusal::ExpiresTooEarly { due_at: requested_at });
    }
    // The spread ends at the expiry that the submitter has named.
    let spread = spread.map(|spread| {
        expires_at.map_or(spread, |expires_at| spread.min(expires_at.since(requested_at)))
    });
    let identity = (name, record.key.as_deref());
    let part = spread.map_or(Duration::ZERO, |spread| {
        spread::part_of(spread, &record.topic, identity, rand::random())
    });
    let headers = match part.is_zero() {
        true => record.headers,
        false => spread::in_front_of(requested_at, &record.headers),
    };
    let headers = expiry.map(|expiry| expiry.in_front_of(&headers)).unwrap_or(headers);
    Ok((Record { headers, ..record }, requested_at.plus(part)))
}

/// Returns the answer for a task that no lane has answered: the node has stopped meanwhile.
pub fn unanswered() -> SubmitAnswer {
    Err(Refusal::Unknown { reason: "the node stopped while storing the task".into() })
}

/// Returns how many of the first `submissions` fit in one group. At least one does.
fn group_len(submissions: &[Submission]) -> usize {
    let mut bytes = 0;
    let fits = |submission: &&Submission| {
        bytes += submission.task.bytes();
        bytes <= BYTES_MAX
    };
    submissions.iter().take(TASKS_MAX).take_while(fits).count().max(1)
}

/// Returns the refusal of a submit while the time is not known.
fn no_time() -> Refusal {
    let reason =
        "Postgres has not answered since this node started, or since its machine was suspended, so \
         the time is unknown"
            .to_owned();
    Refusal::ServerAway { reason }
}

/// Bytes that the headers of a tracked task add to its record at most.
const TRACKING_BYTES_MAX: usize = 128;
/// Bytes that the headers of a dead topic add to a record at most. The longest is the reason.
const DEAD_TOPIC_BYTES_MAX: usize = 2048;

/// Checks a draft of `size` bytes against the limits of its topic.
fn fits(draft: &Draft, size: usize, facts: TopicFacts) -> Result<(), Refusal> {
    let of_tracking = if draft.tracking.is_some() { TRACKING_BYTES_MAX } else { 0 };
    let of_expiry = if draft.expiry.is_some() { EXPIRY_BYTES_MAX } else { 0 };
    let size = size.saturating_add(of_tracking).saturating_add(of_expiry);
    let size_max = facts.record_bytes_max;
    if size > size_max {
        return Err(Refusal::TooLarge { size, size_max });
    }
    if facts.needs_key && draft.record.key.is_none() { Err(Refusal::NoKey) } else { Ok(()) }
}

fn refusal_of_look_up(topic: &TopicName, error: LookUpError) -> Refusal {
    let cannot = |reason| format!("cannot look up the topic {topic}: {reason}");
    match error {
        LookUpError::Unknown => Refusal::UnknownTopic,
        LookUpError::Busy => Refusal::Busy { limit: "topic_look_ups" },
        LookUpError::Denied { reason } => Refusal::TopicDenied { reason: cannot(reason) },
        LookUpError::Unavailable { reason } => Refusal::ServerAway { reason: cannot(reason) },
    }
}

/// Returns the due time of a task whose request arrived at `arrived_at`, an upper bound: a delay is
/// never shorter than requested. The delay is longer by the distance between the limits of the
/// clock, and is rounded up to the next whole millisecond. The maximum delay is counted and rounded
/// in the same way.
fn due_at_of(due: Due, arrived_at: Timestamp, delay_max: Duration) -> Result<Timestamp, Refusal> {
    let due_at = match due {
        Due::At(at) => at,
        Due::After(delay) => arrived_at.plus(delay).ceil_millis(),
    };
    if due_at > arrived_at.plus(delay_max).ceil_millis() {
        Err(Refusal::TooFar { delay_max })
    } else {
        Ok(due_at)
    }
}

/// Returns the number of answers which certainly mean that nothing was stored.
fn refused_count<T>(answers: &[Result<T, Refusal>]) -> u64 {
    let refused = answers.iter().filter(|answer| is_refused(answer));
    refused.count().saturating_as::<u64>()
}

fn is_refused<T>(answer: &Result<T, Refusal>) -> bool {
    !matches!(answer, Ok(_) | Err(Refusal::Unknown { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Headers;
    use crate::domain::task::expiry;

    #[test]
    fn the_longest_delay_is_taken_at_any_microsecond_and_a_longer_one_is_not() {
        let delay_max = Duration::from_secs(1825 * 86_400);
        let longer = delay_max + Duration::from_millis(1);
        for micros in [0, 1, 500, 999] {
            let now = Timestamp::from_millis(1_767_225_600_000).plus(Duration::from_micros(micros));
            let latest = due_at_of(Due::After(delay_max), now, delay_max).unwrap();
            assert!(latest >= now.plus(delay_max) && latest.since(now) < longer, "{micros}");
            assert_eq!(due_at_of(Due::At(latest), now, delay_max).unwrap(), latest, "{micros}");
            for beyond in [Due::After(longer), Due::At(latest.plus(Duration::from_millis(1)))] {
                assert!(
                    matches!(due_at_of(beyond, now, delay_max), Err(Refusal::TooFar { .. })),
                    "{micros}"
                );
            }
        }
    }

    #[test]
    fn a_spread_task_is_only_ever_later_and_before_the_expiry_that_it_names() {
        let at = Timestamp::from_millis(1_896_082_200_000);
        let (hour, minute) = (Duration::from_hours(1), Duration::from_secs(60));
        for number in 0..200 {
            let record = Record {
                topic: TopicName::stored("t"),
                key: Some(number.to_string().into_bytes().into()),
                payload: None,
                headers: Headers::default(),
            };
            let placed = |terms| with_terms(record.clone(), None, terms, at).unwrap();
            let (plain, due_at) = placed((None, None));
            assert_eq!((&plain, due_at), (&record, at));
            let (stored, due_at) = placed((None, Some(hour)));
            assert!(due_at >= at && due_at < at.plus(hour));
            let requested = spread::split(stored.headers.as_bytes()).0;
            assert_eq!(requested, (due_at > at).then_some(at));
            assert_eq!(placed((None, Some(hour))).1, due_at, "the same for each repetition");
            let expiry = Expiry::new(ExpiryTime::At(at.plus(minute)));
            let (stored, due_at) = placed((Some(expiry), Some(hour)));
            assert!(due_at >= at && due_at < at.plus(minute));
            let (stored_expiry, rest) = expiry::split(stored.headers.as_bytes());
            assert_eq!(stored_expiry, Some(expiry));
            assert_eq!(spread::split(rest).0, (due_at > at).then_some(at));
        }
    }

    #[test]
    fn what_is_refused_is_counted_whatever_the_reason_and_what_may_be_stored_is_not() {
        let reason = || "tried".to_owned();
        let refusals = [
            Refusal::UnknownTopic,
            Refusal::TooLarge { size: 2, size_max: 1 },
            Refusal::NoKey,
            Refusal::TooFar { delay_max: Duration::ZERO },
            Refusal::ExpiresTooEarly { due_at: Timestamp::EPOCH },
            Refusal::NodesWithoutExpiry { node_count: 1 },
            Refusal::TooManyPending { task_count: 2, pending_max: 1 },
            Refusal::NodesWithoutTracking { node_count: 1 },
            Refusal::Busy { limit: "submit_queue" },
            Refusal::BadValue { reason: reason() },
            Refusal::Draining,
            Refusal::ServerAway { reason: reason() },
        ];
        let mut answers: Vec<Result<(), Refusal>> = refusals.into_iter().map(Err).collect();
        assert_eq!(refused_count(&answers), 12);
        answers.extend([Ok(()), unanswered().map(drop)]);
        assert_eq!(refused_count(&answers), 12);
    }
}
