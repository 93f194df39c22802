//! A service without servers, for tests of the API: tasks live in memory and are never published.
//! The answer depends on the topic.
//!
//! | topic | answer |
//! |---|---|
//! | `no-such-topic` | unknown topic |
//! | `unsearched` | unknown topic; a search for its tasks does not reach its end |
//! | `gone` | stored; Kafka has no such topic any more |
//! | `small` | takes records up to 1000 bytes |
//! | `compacted` | takes no record without a key |
//! | `bad` | refused by Postgres |
//! | `full`, `away`, `lost`, `leaving` | busy, unavailable, unknown, draining |
//! | `unseen` | Kafka cannot be asked about it |
//! | `panic` | a bug |
//! | `slow` | no answer, ever |
//! | `waiting` | a pop waits until the rights of its caller change |
//! | `unanswered` | stored; the outcome of a move is unknown |
//! | `published`, `claimed`, `dead` | published, claimed, or a dead letter, at once |
//! | `tracked` | a tracked task awaits its consumer at once |
//! | others | stored |

mod lists;
mod schedules;
mod topics;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;

use crate::domain::task::expiry;
use crate::domain::task::feedback::{self, Call, Effect, FIRST_IN_FLIGHT, Follow, Place};
use crate::domain::topic::policy::Pause;
use crate::domain::{
    Actors, AttemptEvent, AttemptLine, Finished, Headers, Kept, NewTask, NodeId, Precondition,
    Receipt, Record, Shard, ShardCount, Submitted, TaskId, TaskName, TaskState, TaskView,
    Timestamp, TopicName, TrackedView,
};
use crate::node::messages::answers::{ConsumerCall, Heard, Target};
use crate::node::messages::answers::{PopCall, Popped};
use crate::node::messages::permitted::PermittedDraft;
use crate::node::messages::{
    Accepted, CancelVerdict, ClusterView, Draft, Due, MoveVerdict, NodeView, NotReady, Placed,
    Refusal, Requirement, SubmitAnswer, Unavailable, UnavailableTopic,
};
use crate::node::requests::service::submitter::with_terms;

pub use self::schedules::{NOW_MILLIS, SCHEDULES_MAX};
const DELAY_MAX: Duration = Duration::from_secs(5 * 365 * 86_400);
const SIZE_MAX: usize = 1000;

#[derive(Debug, Default)]
pub struct Model {
    tasks: Mutex<Vec<TaskView>>,
    names: Mutex<HashMap<(String, String), TaskId>>,
    pub schedules: schedules::Schedules,
    pub topics: topics::Topics,
    random: AtomicU64,
    pub is_draining: AtomicBool,
    /// The calls that asked for the topics of tasks.
    pub topic_calls: AtomicU64,
}

impl Model {
    pub fn arrival(&self) -> Option<Timestamp> {
        Some(Timestamp::from_millis(NOW_MILLIS))
    }

    pub async fn submit(&self, draft: PermittedDraft) -> SubmitAnswer {
        let (draft, permit) = draft.into_parts();
        if draft.record.topic.as_str() == "slow" {
            std::future::pending::<()>().await;
        }
        let answer = self.submit_one(draft)?;
        let by = permit.principal().name.clone();
        if answer.is_new && !by.is_anonymous() {
            let at = Timestamp::from_millis(NOW_MILLIS);
            let mut tasks = lock(&self.tasks);
            let stored = tasks.iter_mut().filter(|task| task.id == answer.id);
            stored.for_each(|task| {
                task.actors.submitted = Some(Submitted { by: by.clone(), at });
            });
        }
        Ok(answer)
    }

    pub async fn submit_many<T>(&self, drafts: Vec<(T, PermittedDraft)>) -> Vec<(T, SubmitAnswer)> {
        let mut answers = Vec::new();
        for (context, draft) in drafts {
            answers.push((context, self.submit(draft).await));
        }
        answers
    }

    fn submit_one(&self, draft: Draft) -> SubmitAnswer {
        let reason = "tried".to_owned();
        match draft.record.topic.as_str() {
            "no-such-topic" | "unsearched" => return Err(Refusal::UnknownTopic),
            "small" if draft.record.size() > SIZE_MAX => {
                return Err(Refusal::TooLarge { size: draft.record.size(), size_max: SIZE_MAX });
            }
            "compacted" if draft.record.key.is_none() => return Err(Refusal::NoKey),
            "bad" => return Err(Refusal::BadValue { reason }),
            "full" => return Err(Refusal::Busy { limit: "submit_queue" }),
            "away" => return Err(Refusal::ServerAway { reason }),
            "lost" => return Err(Refusal::Unknown { reason: reason.into() }),
            "leaving" => return Err(Refusal::Draining),
            topic => assert!(topic != "panic", "this topic is for a test of panics"),
        }
        let now = Timestamp::from_millis(NOW_MILLIS);
        let due_at = match draft.due {
            Due::At(at) => at.max(now),
            Due::After(span) => now.plus(span),
        };
        if due_at.since(now) > DELAY_MAX {
            return Err(Refusal::TooFar { delay_max: DELAY_MAX });
        }
        let name =
            draft.name.as_ref().map(|name| (draft.record.topic.to_string(), name.to_string()));
        if let Some(id) = name.as_ref().and_then(|name| lock(&self.names).get(name).copied()) {
            return Ok(Accepted { id, state: TaskState::Scheduled, is_new: false });
        }
        let random = self.random.fetch_add(1, Ordering::Relaxed);
        let shards =
            ShardCount::new(64).map_err(|error| Refusal::BadValue { reason: error.to_string() })?;
        let terms = (draft.expiry, draft.spread);
        let (record, due_at) = with_terms(draft.record, draft.name.as_ref(), terms, due_at)?;
        let task = NewTask {
            tracking: draft.tracking,
            ..NewTask::new(record, draft.name, due_at, shards, (random, random))
        };
        let (id, view) = (task.id, view_of(task));
        let state = view.state;
        lock(&self.tasks).push(view);
        if let Some(name) = name {
            lock(&self.names).insert(name, id);
        }
        Ok(Accepted { id, state, is_new: true })
    }

    pub async fn replace(&self, draft: Draft, condition: &Precondition) -> Result<Placed, Refusal> {
        let former = draft.name.as_ref().and_then(|name| self.named(&draft.record.topic, name));
        if !condition.allows(former) {
            return Ok(Placed::Unmet(former));
        }
        let former = lock(&self.tasks).iter().find(|task| Some(task.id) == former).cloned();
        let is_pending = former.as_ref().is_some_and(|task| task.state == TaskState::Scheduled);
        let due_at = match draft.due {
            Due::At(at) => at,
            Due::After(delay) => Timestamp::from_millis(NOW_MILLIS).plus(delay),
        };
        let is_unmet = |former: &&TaskView| {
            condition.when.is_some_and(|when| !when.allows(due_at, former.due_at()))
        };
        if is_pending && let Some(former) = former.as_ref().filter(is_unmet) {
            return Ok(Placed::Unmet(Some(former.id)));
        }
        if let Some(task) = former.filter(|task| {
            matches!(task.state, TaskState::Claimed | TaskState::Awaiting | TaskState::Retrying)
        }) {
            return Ok(Placed::TooLate(Box::new(task)));
        }
        let key =
            draft.name.as_ref().map(|name| (draft.record.topic.to_string(), name.to_string()));
        let old = key.and_then(|key| lock(&self.names).remove_entry(&key));
        match self.submit_one(draft) {
            Ok(accepted) if is_pending => {
                if let Some((_, id)) = old {
                    self.set_state(id, TaskState::Cancelled);
                    self.set_replaced_by(id, accepted.id);
                }
                Ok(Placed::Replaced(accepted.id))
            }
            Ok(accepted) => Ok(Placed::Created(accepted.id)),
            Err(refusal) => {
                lock(&self.names).extend(old);
                Err(refusal)
            }
        }
    }

    fn named(&self, topic: &TopicName, name: &TaskName) -> Option<TaskId> {
        lock(&self.names).get(&(topic.to_string(), name.to_string())).copied()
    }

    fn set_state(&self, id: TaskId, state: TaskState) {
        lock(&self.tasks)
            .iter_mut()
            .filter(|task| task.id == id)
            .for_each(|task| task.state = state);
    }

    /// Sets the last replacement, also for the tasks that `id` had replaced: each shows the last
    /// one.
    fn set_replaced_by(&self, id: TaskId, last: TaskId) {
        let is_before = |task: &&mut TaskView| task.id == id || task.replaced_by == Some(id);
        lock(&self.tasks)
            .iter_mut()
            .filter(is_before)
            .for_each(|task| task.replaced_by = Some(last));
    }

    pub async fn look_up_named(
        &self,
        topic: &TopicName,
        name: &TaskName,
    ) -> Result<Option<TaskView>, Unavailable> {
        match self.named(topic, name) {
            Some(id) => self.look_up(id).await,
            None => Ok(None),
        }
    }

    pub async fn cancel_named(
        &self,
        topic: &TopicName,
        name: &TaskName,
        condition: &Precondition,
    ) -> Result<CancelVerdict, Unavailable> {
        match self.named(topic, name) {
            Some(id) if !condition.allows(Some(id)) => Ok(CancelVerdict::Unmet(id)),
            Some(id) => self.cancel(id).await,
            None => Ok(CancelVerdict::NotFound),
        }
    }

    /// Moves a task. A move of a task of the topic `unanswered` has no answer.
    pub fn move_to(&self, id: TaskId, due: Due) -> Result<MoveVerdict, Refusal> {
        let (now, due_at) = (Timestamp::from_millis(NOW_MILLIS), self.due_at(due)?);
        let mut tasks = lock(&self.tasks);
        let Some(task) = tasks.iter_mut().find(|task| task.id == id) else {
            return Ok(MoveVerdict::NotFound);
        };
        if task.topic.as_str() == "unanswered" {
            return Err(Refusal::Unknown { reason: "this topic is for tests of outages".into() });
        }
        if task.state == TaskState::Scheduled {
            task.moved_to = Some(due_at.max(now));
            return Ok(MoveVerdict::Moved(Box::new(task.clone())));
        }
        MoveVerdict::of_read(Some(task.clone()))
            .ok_or_else(|| Refusal::ServerAway { reason: "never in a model".to_owned() })
    }

    pub fn move_named(
        &self,
        topic: &TopicName,
        name: &TaskName,
        condition: &Precondition,
        due: Due,
    ) -> Result<MoveVerdict, Refusal> {
        match self.named(topic, name) {
            Some(id) if !condition.allows(Some(id)) => Ok(MoveVerdict::Unmet(id)),
            Some(id) => self.move_to(id, due),
            None => Ok(MoveVerdict::NotFound),
        }
    }

    pub async fn cancel(&self, id: TaskId) -> Result<CancelVerdict, Unavailable> {
        let mut tasks = lock(&self.tasks);
        let Some(task) = tasks.iter_mut().find(|task| task.id == id) else {
            return Ok(CancelVerdict::NotFound);
        };
        if task.state == TaskState::Scheduled {
            task.state = TaskState::Cancelled;
        }
        CancelVerdict::of_read(Some(task.clone()))
            .ok_or_else(|| Unavailable::ServerAway { reason: "never in a model".to_owned() })
    }

    /// Takes the answers of consumers. A task of the topic `tracked` is awaiting its first attempt
    /// of two.
    pub fn answer(&self, calls: Vec<(Target, ConsumerCall)>) -> Vec<Result<Heard, Unavailable>> {
        let reason = || "this topic is for tests of outages".to_owned();
        let answer = |(target, call)| match &target {
            Target::Name(permit, _) if permit.topic().as_str() == "full" => {
                Err(Unavailable::Busy { limit: "answer_queue" })
            }
            Target::Name(permit, _) if permit.topic().as_str() == "away" => {
                Err(Unavailable::ServerAway { reason: reason() })
            }
            Target::Name(permit, _) if permit.topic().as_str() == "lost" => {
                Err(Unavailable::Unknown { reason: reason() })
            }
            Target::Name(permit, name) => {
                Ok(self.answer_one(self.named(permit.topic(), name), call))
            }
            Target::Id(permit) => Ok(self.answer_one(Some(permit.id()), call)),
        };
        calls.into_iter().map(answer).collect()
    }

    /// Gives the first attempt of each task of the topic. `waiting` has none.
    pub async fn pop(
        &self,
        topic: &TopicName,
        call: PopCall,
        ending: &CancellationToken,
    ) -> Result<Vec<Popped>, Unavailable> {
        match topic.as_str() {
            "full" => return Err(Unavailable::Busy { limit: "pops_waiting" }),
            "waiting" => {
                ending.cancelled().await;
                return Ok(Vec::new());
            }
            _ => {}
        }
        let tasks = lock(&self.tasks);
        let popped = tasks.iter().filter(|task| task.topic == *topic).zip(0..).map(popped_of);
        Ok(popped.take(call.count_max).collect())
    }

    fn answer_one(&self, id: Option<TaskId>, call: ConsumerCall) -> Heard {
        let mut tasks = lock(&self.tasks);
        let Some(task) = tasks.iter_mut().find(|task| Some(task.id) == id) else {
            return Heard::NotFound;
        };
        let Some(tracked) = task.tracked.as_mut() else {
            return Heard::NotTracked(Box::new(task.clone()));
        };
        let note = match task.state {
            TaskState::Finished => Some(feedback::Note::Finished),
            TaskState::Retrying => Some(feedback::Note::Failed),
            _ => None,
        };
        let follow = Follow { attempt: tracked.attempt, note, ..FIRST_IN_FLIGHT };
        let (call, reason) = match call {
            ConsumerCall::Finish { attempt } => (Call::Finish { attempt }, None),
            ConsumerCall::Fail { attempt, is_final, reason, .. } => {
                (Call::Fail { attempt, is_final }, reason.map(String::from))
            }
            ConsumerCall::Extend { attempt, .. } => (Call::Extend { attempt }, None),
        };
        let (verdict, effect) = follow.hear(call, Place::Pending, tracked.attempts_max);
        let now = Timestamp::from_millis(NOW_MILLIS);
        match effect {
            Effect::End => {
                task.state = TaskState::Finished;
                tracked.finished = Some(Finished { at: now, by: None, in_flight: false });
                tracked.finish_by = None;
            }
            Effect::Replace { note: Some(_), .. } => {
                task.state = TaskState::Retrying;
                tracked.next_at = Some(now.plus(Duration::from_secs(1)));
                let (attempt, event) = (tracked.attempt, AttemptEvent::Failed);
                tracked.attempts.push(AttemptLine {
                    attempt,
                    event,
                    at: now,
                    receipt: None,
                    reason,
                });
                tracked.finish_by = None;
            }
            Effect::Replace { note: None, .. } => {
                tracked.finish_by = Some(now.plus(Duration::from_secs(60)));
            }
            Effect::Nothing | Effect::Mark | Effect::Note { .. } => {}
        }
        Heard::Tracked(verdict, Box::new(task.clone()))
    }

    pub async fn look_up(&self, id: TaskId) -> Result<Option<TaskView>, Unavailable> {
        Ok(lock(&self.tasks).iter().find(|task| task.id == id).cloned())
    }

    pub fn topics_of(&self, ids: &[TaskId]) -> Vec<Option<TopicName>> {
        self.topic_calls.fetch_add(1, Ordering::Relaxed);
        let tasks = lock(&self.tasks);
        let task_of = |id: &TaskId| tasks.iter().find(|task| task.id == *id);
        ids.iter().map(|id| task_of(id).map(|task| task.topic.clone())).collect()
    }

    pub fn knows_topic(&self, topic: &TopicName) -> Option<bool> {
        match self.kafka_has_topic(topic)? {
            false if topic.as_str() == "unsearched" => None,
            false => Some(lock(&self.tasks).iter().any(|task| task.topic == *topic)),
            true => Some(true),
        }
    }

    pub fn kafka_has_topic(&self, topic: &TopicName) -> Option<bool> {
        match topic.as_str() {
            "no-such-topic" | "unsearched" | "gone" => Some(false),
            "unseen" => None,
            _ => Some(true),
        }
    }

    /// Returns a due time, unless it is too far ahead.
    pub fn due_at(&self, due: Due) -> Result<Timestamp, Refusal> {
        let now = Timestamp::from_millis(NOW_MILLIS);
        let due_at = match due {
            Due::At(at) => at,
            Due::After(delay) => now.plus(delay),
        };
        if due_at.since(now) > DELAY_MAX {
            return Err(Refusal::TooFar { delay_max: DELAY_MAX });
        }
        Ok(due_at)
    }

    pub fn cluster(&self) -> ClusterView {
        let now = Timestamp::from_millis(NOW_MILLIS);
        let node = NodeView {
            id: NodeId::new(now, 0, 1),
            name: "model".to_owned(),
            address: "http://127.0.0.1:7070".to_owned(),
            version: "0".to_owned(),
            started_at: now,
            heartbeat_age: Duration::from_millis(250),
            has_broker: true,
            standing: "assigned",
            shards: (0..4).map(Shard::new).collect(),
        };
        ClusterView {
            node: node.id,
            now: Some(now),
            shard_count: 4,
            window: Duration::from_millis(200),
            horizon: Duration::from_secs(3 * 86_400),
            leaf: Duration::from_secs(900),
            nodes: vec![node],
            backlog: None,
            unavailable_topics: vec![UnavailableTopic {
                topic: TopicName::stored("away"),
                is_gone: false,
                unavailable_for: Duration::from_secs(12),
                reason: Some("Broker: Not enough in-sync replicas".to_owned()),
            }],
            is_throttled: false,
            paused_topics: vec![(
                TopicName::stored("held"),
                Pause { since: now, reason: Some("the consumer is repaired".to_owned()), by: None },
            )],
            missing: self.missing(),
            degraded: vec![NotReady {
                what: Requirement::Etcd,
                why: "no usable answer".to_owned(),
            }],
        }
    }

    pub fn missing(&self) -> Vec<NotReady> {
        let draining =
            NotReady { what: Requirement::Draining, why: "the node is shutting down".to_owned() };
        if self.is_draining() { vec![draining] } else { Vec::new() }
    }

    pub fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Relaxed)
    }
}

fn view_of(task: NewTask) -> TaskView {
    let receipt = Receipt {
        partition: 1,
        offset: 2,
        published_at: task.id.due_at().plus(Duration::from_millis(3)),
    };
    let state = match task.record.topic.as_str() {
        "published" => TaskState::Published,
        "claimed" => TaskState::Claimed,
        "dead" => TaskState::Dead,
        "tracked" => TaskState::Awaiting,
        _ => TaskState::Scheduled,
    };
    let is_awaiting = state == TaskState::Awaiting;
    let tracked = task.tracking.map(|tracking| {
        Box::new(TrackedView {
            attempt: u16::from(is_awaiting),
            attempts_max: tracking.first_row().attempts_max(),
            finish_by: is_awaiting
                .then(|| Timestamp::from_millis(NOW_MILLIS).plus(tracking.ttr.as_duration())),
            tracking: *tracking,
            next_at: None,
            finished: None,
            attempts: Vec::new(),
        })
    });
    let (expiry, own) = expiry::split(task.record.headers.as_bytes());
    let (headers, expires_at) = (own.to_vec(), expiry.map(|expiry| expiry.at(task.id.due_at())));
    let kept = Kept {
        key: task.record.key.map(Vec::from),
        payload: task.record.payload.map(Vec::from),
        headers,
    };
    TaskView {
        id: task.id,
        topic: task.record.topic,
        name: task.name.map(|name| name.to_string()),
        state,
        replaced_by: None,
        attempt: 1,
        receipt: (state == TaskState::Published).then_some(receipt),
        kept: Some(kept),
        reason: (state == TaskState::Dead).then(|| "tried".to_owned()),
        died_at: (state == TaskState::Dead).then_some(Timestamp::from_millis(NOW_MILLIS)),
        moved_to: None,
        requested_due_at: None,
        expires_at,
        actors: Actors::default(),
        tracked,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

fn popped_of((task, offset): (&TaskView, i64)) -> Popped {
    let nothing = Kept { key: None, payload: None, headers: Vec::new() };
    let kept = task.kept.clone().unwrap_or(nothing);
    let now = Timestamp::from_millis(NOW_MILLIS);
    Popped {
        id: task.id,
        attempt: 1,
        attempts_max: 2,
        due_at: task.id.due_at(),
        finish_by: now.plus(DELAY_MAX),
        ttr: DELAY_MAX,
        partition: 0,
        offset,
        published_at: now,
        record: Record {
            topic: task.topic.clone(),
            key: kept.key.map(Vec::into_boxed_slice),
            payload: kept.payload.map(Vec::into_boxed_slice),
            headers: Headers::stored(Some(kept.headers)),
        },
    }
}
