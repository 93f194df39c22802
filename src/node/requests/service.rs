//! The service that a node offers to its API.

#[cfg(test)]
pub mod model;

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::task_service::TaskService;
use crate::domain::{
    Cursor, List, Page, Precondition, Selection, TaskId, TaskName, TaskView, Timestamp, TopicName,
};
use crate::node::messages::{
    Accepted, Bulk, BulkDone, ClusterView, Counts, Draft, NotReady, Placed, Refusal, Requirement,
    Unavailable, Verdict,
};

/// The service that a node offers to its API. Cheap to clone.
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

/// The task service opens when the node has found its servers. Until then, callers get the missing
/// requirements.
#[derive(Debug)]
struct Front {
    task_service: OnceLock<TaskService>,
    starting: Mutex<Vec<NotReady>>,
}

impl Front {
    fn open(&self) -> Result<&TaskService, String> {
        self.task_service.get().ok_or_else(|| {
            let missing: Vec<String> =
                self.missing().into_iter().map(|missing| missing.to_string()).collect();
            format!("the node is starting ({})", missing.join("; "))
        })
    }

    fn missing(&self) -> Vec<NotReady> {
        match self.task_service.get() {
            Some(task_service) => task_service.missing(),
            None => self.starting.lock().clone(),
        }
    }
}

/// Asks the task service, or returns an `Unavailable` while it is not open yet. Tests of the API
/// ask the model.
macro_rules! ask {
    ($self:ident.$method:ident($($argument:expr),*), $refusal:ident) => {
        match &$self.backing {
            Backing::Node(front) => match front.open() {
                Ok(task_service) => task_service.$method($($argument),*).await,
                Err(reason) => Err($refusal::ServerAway { reason }),
            },
            #[cfg(test)]
            Backing::Model(model) => model.$method($($argument),*).await,
        }
    };
}

impl Default for Service {
    fn default() -> Self {
        let starting = NotReady { what: Requirement::Postgres, why: "not reached yet".to_owned() };
        Self {
            backing: Backing::Node(Arc::new(Front {
                task_service: OnceLock::new(),
                starting: Mutex::new(vec![starting]),
            })),
        }
    }
}

impl Service {
    /// Shows the requirements for which the node waits while it starts.
    pub fn waits_for(&self, missing: Vec<NotReady>) {
        match &self.backing {
            Backing::Node(front) => *front.starting.lock() = missing,
            #[cfg(test)]
            Backing::Model(_) => {}
        }
    }

    /// Opens the service. Only one call is allowed.
    pub fn open(&self, task_service: TaskService) {
        match &self.backing {
            Backing::Node(front) => {
                assert!(front.task_service.set(task_service).is_ok(), "a node starts once")
            }
            #[cfg(test)]
            Backing::Model(_) => {}
        }
    }

    #[cfg(test)]
    pub fn of_model(model: Arc<model::Model>) -> Self {
        Self { backing: Backing::Model(model) }
    }

    /// Returns the upper bound of the cluster's clock for a request that arrives now: its `delay`
    /// counts from this time. Returns `None` while the time is not known.
    pub fn arrival(&self) -> Option<Timestamp> {
        match &self.backing {
            Backing::Node(front) => front.task_service.get()?.arrival(),
            #[cfg(test)]
            Backing::Model(model) => model.arrival(),
        }
    }

    /// Stores tasks of a request that arrived at `arrived_at`. Returns an answer for each task, in
    /// order.
    pub async fn submit(
        &self,
        drafts: Vec<Draft>,
        arrived_at: Option<Timestamp>,
    ) -> Vec<Result<Accepted, Refusal>> {
        match &self.backing {
            Backing::Node(front) => match front.open() {
                Ok(task_service) => task_service.submit(drafts, arrived_at).await,
                Err(reason) => vec![Err(Refusal::ServerAway { reason }); drafts.len()],
            },
            #[cfg(test)]
            Backing::Model(model) => model.submit(drafts).await,
        }
    }

    /// Cancels a task.
    pub async fn cancel(&self, id: TaskId) -> Result<Verdict, Unavailable> {
        ask!(self.cancel(id), Unavailable)
    }

    pub async fn look_up(&self, id: TaskId) -> Result<Option<TaskView>, Unavailable> {
        ask!(self.look_up(id), Unavailable)
    }

    /// Replaces the task of a name by a draft with that name, if `condition` allows it.
    pub async fn replace(
        &self,
        draft: Draft,
        condition: &Precondition,
        arrived_at: Option<Timestamp>,
    ) -> Result<Placed, Refusal> {
        ask!(self.replace(draft, condition, arrived_at), Refusal)
    }

    /// Returns the task of a name.
    pub async fn look_up_named(
        &self,
        topic: &TopicName,
        name: &TaskName,
    ) -> Result<Option<TaskView>, Unavailable> {
        ask!(self.look_up_named(topic, name), Unavailable)
    }

    /// Cancels the task of a name, if `condition` allows it.
    pub async fn cancel_named(
        &self,
        topic: &TopicName,
        name: &TaskName,
        condition: &Precondition,
    ) -> Result<Verdict, Unavailable> {
        ask!(self.cancel_named(topic, name, condition), Unavailable)
    }

    /// Lists at most `limit` pending tasks, or dead letters, in the order of their due times.
    /// `from` is the end of the previous page.
    pub async fn list(
        &self,
        list: List,
        selection: &Selection,
        from: Option<Cursor>,
        limit: usize,
    ) -> Result<Page, Unavailable> {
        ask!(self.list(list, selection, from, limit), Unavailable)
    }

    /// Returns the number of pending tasks, of one topic or of all.
    pub async fn counts(&self, topic: Option<&TopicName>) -> Result<Counts, Unavailable> {
        ask!(self.counts(topic), Unavailable)
    }

    /// Returns whether a topic exists for which a request has found no task: Kafka has it, or tasks
    /// or dead letters are for it. `None` means that this cannot be told now. `searched` is a list
    /// that was searched for the topic without any other filter, and has none.
    pub async fn knows_topic(&self, topic: &TopicName, searched: Option<List>) -> Option<bool> {
        match &self.backing {
            Backing::Node(front) => front.open().ok()?.knows_topic(topic, searched).await,
            #[cfg(test)]
            Backing::Model(model) => model.knows_topic(topic),
        }
    }

    /// Cancels all selected tasks, up to a limit.
    pub async fn cancel_all(&self, bulk: &Bulk) -> Result<BulkDone, Unavailable> {
        ask!(self.cancel_all(bulk), Unavailable)
    }

    /// Redrives a dead letter: its task is due now. Returns `None` when there is no such dead
    /// letter.
    pub async fn redrive(&self, id: TaskId) -> Result<Option<TaskView>, Unavailable> {
        ask!(self.redrive(id), Unavailable)
    }

    /// Redrives all selected dead letters, up to a limit.
    pub async fn redrive_all(&self, bulk: &Bulk) -> Result<BulkDone, Unavailable> {
        ask!(self.redrive_all(bulk), Unavailable)
    }

    /// Drops all selected dead letters, up to a limit.
    pub async fn drop_all_dead(&self, bulk: &Bulk) -> Result<BulkDone, Unavailable> {
        ask!(self.drop_all_dead(bulk), Unavailable)
    }

    /// Drops a dead letter, and returns it. Returns `None` when there is no such dead letter.
    pub async fn drop_dead(&self, id: TaskId) -> Result<Option<TaskView>, Unavailable> {
        ask!(self.drop_dead(id), Unavailable)
    }

    /// Returns the cluster as this node sees it.
    ///
    /// # Errors
    /// While the node starts: it knows nothing of the cluster yet.
    pub async fn cluster(&self) -> Result<ClusterView, Unavailable> {
        match &self.backing {
            Backing::Node(front) => match front.open() {
                Ok(task_service) => Ok(task_service.cluster().await),
                Err(reason) => Err(Unavailable::ServerAway { reason }),
            },
            #[cfg(test)]
            Backing::Model(model) => Ok(model.cluster()),
        }
    }

    /// Returns the requirements that the node lacks to be ready. The list is empty when the node is
    /// ready.
    pub fn missing(&self) -> Vec<NotReady> {
        match &self.backing {
            Backing::Node(front) => front.missing(),
            #[cfg(test)]
            Backing::Model(model) => model.missing(),
        }
    }

    pub fn is_draining(&self) -> bool {
        match &self.backing {
            Backing::Node(front) => front.task_service.get().is_some_and(TaskService::is_draining),
            #[cfg(test)]
            Backing::Model(model) => model.is_draining(),
        }
    }
}
