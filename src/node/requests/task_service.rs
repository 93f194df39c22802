//! The task service of a node: it checks drafts against the clock, the topic and the limits, and
//! stores, cancels and looks up tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::bulk::Bulks;
use super::canceller::Canceller;
use super::connections::Connections;
use super::intake::Intake;
use super::lists::Lists;
use super::replacer::Replacer;
use super::retry_policy::{refusal_of_look, trouble_of_look};
use crate::clock;
use crate::domain::{
    Backlog, Cursor, List, NewTask, Page, Precondition, Selection, TaskId, TaskName, TaskState,
    TaskView, Timestamp, TopicName,
};
use crate::engine::topics::{OpenBreaker, Pace};
use crate::error_chain::chain;
use crate::kafka::{self, LookUpError, TopicFacts};
use crate::node::membership::Bulletin;
use crate::node::messages::{
    Accepted, Bulk, BulkDone, ClusterView, Counts, Draft, Due, NodeView, NotReady, Placed, Refusal,
    Requirement, UNAVAILABLE_SHOWN_MAX, Unavailable, UnavailableTopic, Verdict,
};
use crate::node::shared::Shared;
use crate::postgres::lists::backlog::BacklogCounter;
use crate::postgres::lists::dead_letters::Change;
use crate::postgres::tasks::look_up::LookUp;
use crate::postgres::tasks::names::{Entry, Names};
use crate::postgres::tasks::replace::withdraw::Withdrawal;
use crate::postgres::tasks::submit::{BYTES_MAX, TASKS_MAX};

/// The pause between looks at a task that is being moved.
const MOVING: Duration = Duration::from_millis(5);
/// The number of looks at a task that was neither cancelled nor found: it is being moved from one
/// table to another.
const LOOKS_MAX: usize = 3;
/// The maximum number of times that other requests may replace the task of a name while it is
/// cancelled by that name.
const CANCELS_OF_NAME_MAX: usize = 10;

/// How long an answer that found no task waits to learn whether its topic exists. A submit waits as
/// long.
const TOPIC_ASIDE_MAX: Duration = Duration::from_secs(3);

/// The facts about a topic, or the reason why its drafts are refused.
type Facts = Result<TopicFacts, Refusal>;

/// A draft with a name that cannot become a task.
struct Refused {
    /// Index among the drafts.
    index: usize,
    topic: TopicName,
    name: TaskName,
}

/// The parts of the task service.
#[derive(Debug)]
pub struct TaskService {
    pub shared: Arc<Shared>,
    pub delay_max: Duration,
    pub intake: Intake,
    pub canceller: Canceller,
    pub replacer: Replacer,
    pub names: Arc<Names>,
    pub look_up: Arc<LookUp>,
    pub lists: Lists,
    pub bulks: Bulks,
    pub backlog: BacklogCounter,
    pub topics: kafka::Topics,
    pub connections: Connections,
    pub bulletin: watch::Receiver<Bulletin>,
    pub draining: CancellationToken,
    pub has_seen_etcd: AtomicBool,
}

impl TaskService {
    /// Returns the time from which the `delay` of a request that arrives now counts.
    pub fn arrival(&self) -> Option<Timestamp> {
        self.shared.clock.arrival()
    }

    /// Stores drafts. The answers are in their order.
    pub async fn submit(
        &self,
        drafts: Vec<Draft>,
        arrived_at: Option<Timestamp>,
    ) -> Vec<Result<Accepted, Refusal>> {
        let answers = self.submit_all(drafts, arrived_at).await;
        self.shared.metrics.submits_refused.inc_by(refused_count(&answers));
        answers
    }

    async fn submit_all(
        &self,
        drafts: Vec<Draft>,
        arrived_at: Option<Timestamp>,
    ) -> Vec<Result<Accepted, Refusal>> {
        let count = drafts.len();
        if self.is_draining() {
            return vec![Err(Refusal::Draining); count];
        }
        let Some(arrived_at) = arrived_at else { return vec![Err(no_time()); count] };
        let mut results = Vec::with_capacity(count);
        let mut tasks = Vec::with_capacity(count);
        let mut refused = Vec::new();
        let mut known: Option<(TopicName, Facts)> = None;
        for draft in drafts {
            let topic = draft.record.topic.clone();
            let named = draft.name.clone().map(|name| (topic.clone(), name));
            let facts = match known.take() {
                Some((name, facts)) if name == topic => facts,
                _ => self.facts(&topic).await,
            };
            let (facts, fits) = self.held_against(&draft, facts).await;
            known = Some((topic, facts));
            match fits.and_then(|()| self.check(draft, arrived_at)) {
                Ok(task) => {
                    results.push(None);
                    tasks.push(task);
                }
                Err(refusal) => {
                    refused.extend(named.map(|(topic, name)| Refused {
                        index: results.len(),
                        topic,
                        name,
                    }));
                    results.push(Some(Err(refusal)));
                }
            }
        }
        let mut stored = self.store(tasks).await.into_iter();
        let mut answers: Vec<Result<Accepted, Refusal>> = results
            .into_iter()
            .map(|refusal| {
                refusal.or_else(|| stored.next()).unwrap_or_else(|| Err(Refusal::lost()))
            })
            .collect();
        if !refused.is_empty() {
            // The future is on the heap, as below.
            Box::pin(self.recall(&refused, &mut answers)).await;
        }
        answers
    }

    /// Answers refused drafts whose name is known with the task of that name: an earlier submit
    /// whose answer was lost may have been accepted. This runs after the others are stored, because
    /// the name may have been new to one of them.
    async fn recall(&self, refused: &[Refused], answers: &mut [Result<Accepted, Refusal>]) {
        for (chunk, some) in refused.chunks(TASKS_MAX).enumerate() {
            let names: Vec<(&str, &str)> = some
                .iter()
                .map(|refused| (refused.topic.as_str(), refused.name.as_str()))
                .collect();
            let known = match self.names.known(&names).await {
                Ok(known) => known,
                Err(error) => {
                    // The names may or may not be known, so the drafts are not refused for good.
                    let refusal = refusal_of_look(&error);
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

    /// Checks a draft against the clock.
    fn check(&self, draft: Draft, arrived_at: Timestamp) -> Result<NewTask, Refusal> {
        let due_at = due_at_of(draft.due, arrived_at, self.delay_max)?;
        let random = (rand::random(), rand::random());
        Ok(NewTask::new(draft.record, draft.name, due_at, self.shared.cluster.shards, random))
    }

    async fn facts(&self, topic: &TopicName) -> Result<TopicFacts, Refusal> {
        let facts =
            self.topics.look_up(topic).await.map_err(|error| refusal_of_look_up(topic, error))?;
        self.shared.found(topic);
        Ok(facts)
    }

    /// Looks the topic up before its dead letters are redriven: it may exist again although it was
    /// given up.
    async fn look_for(&self, topic: &TopicName) {
        if let Err(refusal) = self.facts(topic).await {
            tracing::debug!(%topic, ?refusal, "dead letters are put back for it");
        }
    }

    /// Checks a draft against its topic. Returns the facts about the topic, too. When a draft does
    /// not fit, Kafka is asked again: a limit may have been raised, and an old one must not refuse
    /// a draft for good.
    async fn held_against(&self, draft: &Draft, facts: Facts) -> (Facts, Result<(), Refusal>) {
        let facts = match facts {
            Ok(facts) if fits(draft, draft.record.size(), facts).is_ok() => {
                return (Ok(facts), Ok(()));
            }
            Ok(facts) => facts,
            Err(refusal) => return (Err(refusal.clone()), Err(refusal)),
        };
        // The future is on the heap: it is rarely needed, and would make the future of every submit
        // larger.
        Box::pin(self.held_again(draft, facts)).await
    }

    async fn held_again(&self, draft: &Draft, facts: TopicFacts) -> (Facts, Result<(), Refusal>) {
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

    /// Hands tasks to the intake in pieces that fit a group.
    async fn store(&self, tasks: Vec<NewTask>) -> Vec<Result<Accepted, Refusal>> {
        let mut results = Vec::with_capacity(tasks.len());
        let mut piece = Vec::new();
        let mut bytes = 0;
        for task in tasks {
            if !piece.is_empty() && (piece.len() == TASKS_MAX || bytes + task.bytes() > BYTES_MAX) {
                results.extend(self.intake.store(std::mem::take(&mut piece)).await);
                bytes = 0;
            }
            bytes += task.bytes();
            piece.push(task);
        }
        if !piece.is_empty() {
            results.extend(self.intake.store(piece).await);
        }
        results
    }

    /// Replaces the task of a name by a draft with that name, if `condition` allows it.
    pub async fn replace(
        &self,
        draft: Draft,
        condition: &Precondition,
        arrived_at: Option<Timestamp>,
    ) -> Result<Placed, Refusal> {
        let answer = self.replace_one(draft, condition, arrived_at).await;
        self.shared.metrics.submits_refused.inc_by(refused_count(std::slice::from_ref(&answer)));
        answer
    }

    async fn replace_one(
        &self,
        draft: Draft,
        condition: &Precondition,
        arrived_at: Option<Timestamp>,
    ) -> Result<Placed, Refusal> {
        if self.is_draining() {
            return Err(Refusal::Draining);
        }
        let arrived_at = arrived_at.ok_or_else(no_time)?;
        let facts = self.facts(&draft.record.topic).await;
        let (_facts, fits) = self.held_against(&draft, facts).await;
        fits?;
        let task = self.check(draft, arrived_at)?;
        // The future is on the heap, because callers keep it in futures of their own.
        Box::pin(self.replacer.replace(task, condition, &self.look_up)).await
    }

    /// Returns the task of a name. An expired name has no task, unless its task is still pending.
    pub async fn look_up_named(
        &self,
        topic: &TopicName,
        name: &TaskName,
    ) -> Result<Option<TaskView>, Unavailable> {
        let Some(entry) = self.entry(topic, name).await? else { return Ok(None) };
        let view = self.look_up(entry.id).await?;
        Ok(view.filter(|view| !entry.is_expired || is_pending(view)))
    }

    fn takes_changes(&self) -> Result<(), Unavailable> {
        if self.is_draining() { Err(Unavailable::Draining) } else { Ok(()) }
    }

    /// Cancels the task of a name, if `condition` allows it. When the task is replaced meanwhile,
    /// its replacement is meant instead.
    pub async fn cancel_named(
        &self,
        topic: &TopicName,
        name: &TaskName,
        condition: &Precondition,
    ) -> Result<Verdict, Unavailable> {
        self.takes_changes()?;
        for _try in 0..CANCELS_OF_NAME_MAX {
            let verdict = if condition.is_none() {
                self.cancel_of_name(topic, name).await?
            } else {
                // The future is on the heap: it is rarely needed, and would make the future of
                // every cancel larger.
                Box::pin(self.withdraw(topic, name, condition)).await?
            };
            match verdict {
                Some(Verdict::Replaced(_)) => {}
                Some(verdict) => return Ok(verdict),
                None => clock::sleep(MOVING).await,
            }
        }
        Err(Unavailable::ServerAway {
            reason: "others were replacing the task all the time; repeat the cancel".to_owned(),
        })
    }

    async fn cancel_of_name(
        &self,
        topic: &TopicName,
        name: &TaskName,
    ) -> Result<Option<Verdict>, Unavailable> {
        let Some(entry) = self.entry(topic, name).await? else {
            return Ok(Some(Verdict::NotFound));
        };
        if entry.is_expired && !self.look_up(entry.id).await?.as_ref().is_some_and(is_pending) {
            return Ok(Some(Verdict::NotFound));
        }
        self.cancel(entry.id).await.map(Some)
    }

    /// Cancels the task of a name. The entry is locked meanwhile, so that exactly the task that
    /// `condition` allows is cancelled. `None` means that the task is being moved.
    async fn withdraw(
        &self,
        topic: &TopicName,
        name: &TaskName,
        condition: &Precondition,
    ) -> Result<Option<Verdict>, Unavailable> {
        Ok(match self.replacer.withdraw(topic, name, condition).await? {
            Withdrawal::Cancelled(task) => Some(Verdict::Cancelled(*task)),
            Withdrawal::Unmet(entry) => Some(Verdict::Unmet(entry.id)),
            Withdrawal::NotFound => Some(Verdict::NotFound),
            Withdrawal::Gone(entry) => Verdict::of_look(self.look_up(entry.id).await?),
        })
    }

    async fn entry(
        &self,
        topic: &TopicName,
        name: &TaskName,
    ) -> Result<Option<Entry>, Unavailable> {
        self.names.entry(topic, name).await.map_err(|error| trouble_of_look(&error))
    }

    /// Cancels a task.
    pub async fn cancel(&self, id: TaskId) -> Result<Verdict, Unavailable> {
        self.takes_changes()?;
        for _look in 0..LOOKS_MAX {
            if let Some(task) = self.canceller.cancel(id).await? {
                return Ok(Verdict::Cancelled(task));
            }
            match Verdict::of_look(self.look_up(id).await?) {
                Some(verdict) => return Ok(verdict),
                None => clock::sleep(MOVING).await,
            }
        }
        Err(Unavailable::ServerAway {
            reason: "the task is being moved; repeat the cancel".to_owned(),
        })
    }

    pub async fn look_up(&self, id: TaskId) -> Result<Option<TaskView>, Unavailable> {
        self.look_up.task(id).await.map_err(|error| trouble_of_look(&error))
    }

    pub async fn list(
        &self,
        list: List,
        selection: &Selection,
        from: Option<Cursor>,
        limit: usize,
    ) -> Result<Page, Unavailable> {
        self.lists.list(list, selection, from, limit).await
    }

    pub async fn counts(&self, topic: Option<&TopicName>) -> Result<Counts, Unavailable> {
        self.lists.counts(topic).await
    }

    /// Serves [`super::service::Service::knows_topic`]. Kafka is asked first, and for a short time
    /// only, because the question is an aside of another answer.
    pub async fn knows_topic(&self, topic: &TopicName, searched: Option<List>) -> Option<bool> {
        match tokio::time::timeout(TOPIC_ASIDE_MAX, self.topics.look_up(topic)).await {
            Ok(Ok(_facts)) => Some(true),
            Ok(Err(LookUpError::Unknown)) => Box::pin(self.lists.have_topic(topic, searched)).await,
            Ok(Err(
                LookUpError::Denied { .. } | LookUpError::Unavailable { .. } | LookUpError::Busy,
            ))
            | Err(_) => None,
        }
    }

    // The futures of the following calls are on the heap, because callers keep them in futures of
    // their own.

    pub async fn cancel_all(&self, bulk: &Bulk) -> Result<BulkDone, Unavailable> {
        self.takes_changes()?;
        let done = Box::pin(self.bulks.cancel_all(bulk)).await;
        tell_of_bulk("cancelled", bulk, &done);
        done
    }

    pub async fn redrive_all(&self, bulk: &Bulk) -> Result<BulkDone, Unavailable> {
        self.takes_changes()?;
        self.look_for(&bulk.topic).await;
        let done = Box::pin(self.bulks.change_all_dead(Change::Redrive, bulk)).await;
        tell_of_bulk("put back", bulk, &done);
        done
    }

    pub async fn drop_all_dead(&self, bulk: &Bulk) -> Result<BulkDone, Unavailable> {
        self.takes_changes()?;
        let done = Box::pin(self.bulks.change_all_dead(Change::Drop, bulk)).await;
        tell_of_bulk("dropped as dead letters", bulk, &done);
        done
    }

    pub async fn redrive(&self, id: TaskId) -> Result<Option<TaskView>, Unavailable> {
        self.takes_changes()?;
        if let Some(task) = self.look_up(id).await? {
            self.look_for(&task.topic).await;
        }
        let task = Box::pin(self.bulks.redrive(id)).await?;
        if task.is_some() {
            tracing::info!(%id, "a dead letter was put back");
        }
        Ok(task)
    }

    pub async fn drop_dead(&self, id: TaskId) -> Result<Option<TaskView>, Unavailable> {
        self.takes_changes()?;
        let task = Box::pin(self.bulks.drop_dead(id)).await?;
        if task.is_some() {
            tracing::info!(%id, "a dead letter was dropped");
        }
        Ok(task)
    }

    async fn overdue(&self, now: Option<Timestamp>) -> Option<Backlog> {
        match self.backlog.count(self.shared.leaves.oldest()?, now?).await {
            Ok(backlog) => Some(backlog),
            Err(error) => {
                tracing::debug!(error = chain(&error), "count the overdue tasks");
                None
            }
        }
    }

    pub async fn cluster(&self) -> ClusterView {
        let now = self.shared.clock.now();
        let backlog = self.overdue(now).await;
        ClusterView {
            node: self.shared.node,
            now,
            shard_count: self.shared.cluster.shards.get(),
            window: self.shared.cluster.window,
            horizon: self.shared.cluster.horizon,
            leaf: self.shared.cluster.leaf,
            nodes: self.nodes(),
            backlog,
            unavailable_topics: self.unavailable_topics(),
            is_throttled: self.shared.in_flight.topics().pace() == Pace::Throttled,
            missing: self.missing(),
        }
    }

    fn unavailable_topics(&self) -> Vec<UnavailableTopic> {
        let now = clock::monotonic();
        let topics = self.shared.in_flight.topics();
        let shown = |open: OpenBreaker<'_>| UnavailableTopic {
            topic: open.topic.clone(),
            is_gone: open.is_gone,
            unavailable_for: now.since(open.since),
            reason: open.reason.map(String::from),
        };
        topics.open().into_iter().take(UNAVAILABLE_SHOWN_MAX).map(shown).collect()
    }

    /// Returns the nodes as of this node's last heartbeat, with ages as of now.
    fn nodes(&self) -> Vec<NodeView> {
        let bulletin = self.bulletin.borrow();
        let passed = bulletin
            .heartbeat_sent_at
            .map_or(Duration::ZERO, |sent_at| clock::monotonic().since(sent_at));
        let mut nodes = bulletin.nodes.clone();
        for node in &mut nodes {
            node.heartbeat_age += passed;
        }
        nodes
    }

    /// Returns the requirements that the node lacks to be ready. The list is empty when the node is
    /// ready.
    pub fn missing(&self) -> Vec<NotReady> {
        let bulletin = self.bulletin.borrow().clone();
        // Once etcd has been reached, its absence stops nothing and the node stays ready. Before
        // the first heartbeat, etcd has not been checked.
        if bulletin.heartbeat_sent_at.is_some()
            && !bulletin.missing.iter().any(|missing| missing.what == Requirement::Etcd)
        {
            self.has_seen_etcd.store(true, Ordering::Relaxed);
        }
        let counts = |what: Requirement| {
            what != Requirement::Etcd || !self.has_seen_etcd.load(Ordering::Relaxed)
        };
        // The membership knows why there is no heartbeat. The fence knows only that there is none.
        let mut missing: Vec<NotReady> =
            bulletin.missing.into_iter().filter(|missing| counts(missing.what)).collect();
        for more in self.shared.fence.missing() {
            if !missing.iter().any(|known| known.what == more.what) {
                missing.push(more);
            }
        }
        // Without Postgres no connection can be opened, and the list says so already.
        if !missing.iter().any(|known| known.what == Requirement::Postgres) {
            missing.extend(self.connections.missing());
        }
        missing
    }

    pub fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }
}

/// Returns the refusal of a submit while the time is not known.
fn no_time() -> Refusal {
    let reason =
        "Postgres has not told the time since this node began, or since its machine was suspended"
            .to_owned();
    Refusal::ServerAway { reason }
}

/// Checks a draft of `size` bytes against the limits of its topic.
fn fits(draft: &Draft, size: usize, facts: TopicFacts) -> Result<(), Refusal> {
    let size_max = facts.record_bytes_max;
    if size > size_max {
        return Err(Refusal::TooLarge { size, size_max });
    }
    if facts.needs_key && draft.record.key.is_none() { Err(Refusal::NoKey) } else { Ok(()) }
}

fn refusal_of_look_up(topic: &TopicName, error: LookUpError) -> Refusal {
    match error {
        LookUpError::Unknown => Refusal::UnknownTopic,
        LookUpError::Busy => Refusal::Busy { bound: "topic_look_ups" },
        LookUpError::Denied { reason } | LookUpError::Unavailable { reason } => {
            Refusal::ServerAway { reason: format!("look up topic {topic}: {reason}") }
        }
    }
}

/// Returns the due time of a task whose request arrived at `arrived_at`, an upper bound: a delay is
/// never shorter than requested. The delay is longer by the distance between the bounds of the
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

/// Logs a call for many tasks, because it is an act of an operator.
fn tell_of_bulk(what: &str, bulk: &Bulk, done: &Result<BulkDone, Unavailable>) {
    // Milliseconds since the epoch, as a request may give them.
    let [due_from_ms, due_to_ms] =
        [bulk.due_from, bulk.due_to].map(|time| time.map(Timestamp::as_millis));
    let topic = &bulk.topic;
    match done {
        _ if bulk.is_dry_run => {}
        Ok(BulkDone { task_count, has_more, .. }) => {
            tracing::info!(%topic, due_from_ms, due_to_ms, task_count, has_more, "many tasks were {what}");
        }
        Err(trouble) => {
            tracing::info!(%topic, due_from_ms, due_to_ms, ?trouble, "many tasks were to be {what}")
        }
    }
}

fn is_pending(view: &TaskView) -> bool {
    matches!(view.state, TaskState::Scheduled | TaskState::Claimed)
}

/// Returns the number of answers which certainly mean that nothing was stored.
fn refused_count<T>(answers: &[Result<T, Refusal>]) -> u64 {
    let is_refused =
        |answer: &&Result<T, Refusal>| !matches!(answer, Ok(_) | Err(Refusal::Unknown { .. }));
    u64::try_from(answers.iter().filter(is_refused).count()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn what_is_refused_is_counted_whatever_the_reason_and_what_may_be_stored_is_not() {
        let reason = || "tried".to_owned();
        let refusals = [
            Refusal::UnknownTopic,
            Refusal::TooLarge { size: 2, size_max: 1 },
            Refusal::NoKey,
            Refusal::TooFar { delay_max: Duration::ZERO },
            Refusal::Busy { bound: "submit_queue" },
            Refusal::BadValue { reason: reason() },
            Refusal::Draining,
            Refusal::ServerAway { reason: reason() },
        ];
        let mut answers: Vec<Result<(), Refusal>> = refusals.into_iter().map(Err).collect();
        assert_eq!(refused_count(&answers), 8);
        answers.extend([Ok(()), Err(Refusal::Unknown { reason: reason() })]);
        assert_eq!(refused_count(&answers), 8);
    }
}
