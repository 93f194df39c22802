//! What a node does for its API: the words that pass between them.

pub mod desk;
#[cfg(test)]
pub mod model;

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::domain::{NodeId, Record, Shard, TaskId, TaskName, TaskState, TaskView, Timestamp, TopicName, Verdict};

/// A task as it was asked for: well-formed, but not yet held against the cluster's clock, the topic and the bounds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Draft {
    pub record: Record,
    pub name: Option<TaskName>,
    pub due: Due,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Due {
    At(Timestamp),
    After(Duration),
}

/// A task that is stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Accepted {
    pub id: TaskId,
    /// `Scheduled`, or `Claimed` when it was due within the window; of a known name, what the first task has come to.
    pub state: TaskState,
    /// False when the name was known: this is the first task.
    pub is_new: bool,
}

/// The answer to a replacement. A task that is there is scheduled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Placed {
    /// The name was free, or its task was final.
    Created(TaskId),
    /// The task that the name stood for is cancelled, and this one is in its place.
    Replaced(TaskId),
    /// Nothing was changed: this is the task that can no longer be stopped.
    TooLate(Box<TaskView>),
}

/// Why a draft was not stored. Nothing of it is stored unless it says so.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    UnknownTopic,
    /// Bytes of the record as Kafka counts it, and what the topic takes.
    TooLarge {
        size: usize,
        size_max: usize,
    },
    /// Further ahead than `--delay-max`.
    TooFar {
        delay_max: Duration,
    },
    /// A bound of this node is reached.
    Busy {
        bound: &'static str,
    },
    /// The values were refused by Postgres.
    BadValue {
        reason: String,
    },
    Draining,
    /// A server is away: nothing is stored.
    Unavailable {
        reason: String,
    },
    /// Postgres did not answer: whether the task is stored is unknown.
    Unknown {
        reason: String,
    },
}

/// The answer to a cancel; the task is there unless the verdict is `NotFound`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cancelled {
    pub verdict: Verdict,
    pub task: Option<TaskView>,
}

/// Why a look-up or a cancel has no answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Trouble {
    Busy {
        bound: &'static str,
    },
    Unavailable {
        reason: String,
    },
    /// A cancel whose answer was lost: it may have taken effect; repeat it.
    Unknown {
        reason: String,
    },
    Draining,
}

/// The cluster as this node sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClusterView {
    /// The node that answers.
    pub node: NodeId,
    pub now: Option<Timestamp>,
    pub shard_count: u16,
    pub window: Duration,
    pub horizon: Duration,
    pub nodes: Vec<NodeView>,
    /// Tasks that are overdue and unclaimed, over all shards; counted up to a bound.
    pub backlog: Option<Backlog>,
    /// What this node lacks to be ready.
    pub missing: Vec<Missing>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeView {
    pub id: NodeId,
    pub name: String,
    pub address: String,
    pub version: String,
    pub started_at: Timestamp,
    pub heartbeat_age: Duration,
    pub has_broker: bool,
    /// `assigned`, `joining`, `suspected`, `dead`, `left`.
    pub standing: &'static str,
    pub shards: Vec<Shard>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backlog {
    pub task_count: u64,
    /// True when there are more than were counted.
    pub is_capped: bool,
    pub oldest_due_at: Option<Timestamp>,
}

/// A server that is missing, or a state that keeps the node from being ready.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Missing {
    /// `postgres`, `kafka`, `etcd`, `clock`, `schema`, `draining`.
    pub what: &'static str,
    pub why: String,
}

/// What a node does for its API. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Service {
    backing: Backing,
}

#[derive(Clone, Debug)]
enum Backing {
    Node(Arc<Front>),
    /// Tests of the API need no servers.
    #[cfg(test)]
    Model(Arc<model::Model>),
}

/// The desk opens when the node has found its servers; until then callers are told what is missing.
#[derive(Debug)]
struct Front {
    desk: OnceLock<desk::Desk>,
    starting: Mutex<Vec<Missing>>,
}

impl Front {
    fn open(&self) -> Result<&desk::Desk, String> {
        self.desk.get().ok_or_else(|| {
            let missing: Vec<String> =
                self.missing().into_iter().map(|missing| format!("{}: {}", missing.what, missing.why)).collect();
            format!("the node is starting ({})", missing.join("; "))
        })
    }

    fn missing(&self) -> Vec<Missing> {
        match self.desk.get() {
            Some(desk) => desk.missing(),
            None => self.starting.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }
}

impl Default for Service {
    fn default() -> Self {
        let starting = Missing { what: "postgres", why: "not reached yet".to_owned() };
        Self { backing: Backing::Node(Arc::new(Front { desk: OnceLock::new(), starting: Mutex::new(vec![starting]) })) }
    }
}

impl Service {
    /// Says what the node is waiting for while it starts.
    pub fn waits_for(&self, missing: Vec<Missing>) {
        match &self.backing {
            Backing::Node(front) => *front.starting.lock().unwrap_or_else(PoisonError::into_inner) = missing,
            #[cfg(test)]
            Backing::Model(_) => {}
        }
    }

    /// Opens the service; once.
    pub fn open(&self, desk: desk::Desk) {
        match &self.backing {
            Backing::Node(front) => assert!(front.desk.set(desk).is_ok(), "a node starts once"),
            #[cfg(test)]
            Backing::Model(_) => {}
        }
    }

    #[cfg(test)]
    pub fn of_model(model: Arc<model::Model>) -> Self {
        Self { backing: Backing::Model(model) }
    }

    /// Stores tasks; one answer for each, in order.
    pub async fn submit(&self, drafts: Vec<Draft>) -> Vec<Result<Accepted, Refusal>> {
        match &self.backing {
            Backing::Node(front) => match front.open() {
                Ok(desk) => desk.submit(drafts).await,
                Err(reason) => vec![Err(Refusal::Unavailable { reason }); drafts.len()],
            },
            #[cfg(test)]
            Backing::Model(model) => model.submit(drafts).await,
        }
    }

    /// Withdraws a task.
    pub async fn cancel(&self, id: TaskId) -> Result<Cancelled, Trouble> {
        match &self.backing {
            Backing::Node(front) => match front.open() {
                Ok(desk) => desk.cancel(id).await,
                Err(reason) => Err(Trouble::Unavailable { reason }),
            },
            #[cfg(test)]
            Backing::Model(model) => model.cancel(id).await,
        }
    }

    pub async fn look_up(&self, id: TaskId) -> Result<Option<TaskView>, Trouble> {
        match &self.backing {
            Backing::Node(front) => match front.open() {
                Ok(desk) => desk.look_up(id).await,
                Err(reason) => Err(Trouble::Unavailable { reason }),
            },
            #[cfg(test)]
            Backing::Model(model) => model.look_up(id).await,
        }
    }

    /// Puts a draft with a name in the place of the task that the name stands for.
    pub async fn replace(&self, draft: Draft) -> Result<Placed, Refusal> {
        match &self.backing {
            Backing::Node(front) => match front.open() {
                Ok(desk) => desk.replace(draft).await,
                Err(reason) => Err(Refusal::Unavailable { reason }),
            },
            #[cfg(test)]
            Backing::Model(model) => model.replace(draft).await,
        }
    }

    /// The task that a name stands for.
    pub async fn look_up_named(&self, topic: &TopicName, name: &TaskName) -> Result<Option<TaskView>, Trouble> {
        match &self.backing {
            Backing::Node(front) => match front.open() {
                Ok(desk) => desk.look_up_named(topic, name).await,
                Err(reason) => Err(Trouble::Unavailable { reason }),
            },
            #[cfg(test)]
            Backing::Model(model) => model.look_up_named(topic, name).await,
        }
    }

    /// Withdraws the task that a name stands for.
    pub async fn cancel_named(&self, topic: &TopicName, name: &TaskName) -> Result<Cancelled, Trouble> {
        match &self.backing {
            Backing::Node(front) => match front.open() {
                Ok(desk) => desk.cancel_named(topic, name).await,
                Err(reason) => Err(Trouble::Unavailable { reason }),
            },
            #[cfg(test)]
            Backing::Model(model) => model.cancel_named(topic, name).await,
        }
    }

    /// # Errors
    /// While the node starts: it knows nothing of the cluster yet.
    pub async fn cluster(&self) -> Result<ClusterView, Trouble> {
        match &self.backing {
            Backing::Node(front) => match front.open() {
                Ok(desk) => Ok(desk.cluster().await),
                Err(reason) => Err(Trouble::Unavailable { reason }),
            },
            #[cfg(test)]
            Backing::Model(model) => Ok(model.cluster()),
        }
    }

    /// What keeps the node from being ready; empty when it is.
    pub fn missing(&self) -> Vec<Missing> {
        match &self.backing {
            Backing::Node(front) => front.missing(),
            #[cfg(test)]
            Backing::Model(model) => model.missing(),
        }
    }

    pub fn is_draining(&self) -> bool {
        match &self.backing {
            Backing::Node(front) => front.desk.get().is_some_and(desk::Desk::is_draining),
            #[cfg(test)]
            Backing::Model(model) => model.is_draining(),
        }
    }
}
