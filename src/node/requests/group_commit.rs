//! Group commit of submits: whenever the one connection is free, it takes all queued tasks. No
//! timer gathers them. This stores 28 k single submits/s from 64 callers, against 16 k with two
//! connections and 6 to 9 k with a timer of 1 to 2 ms.
//!
//! Tasks with a name have a lane and a connection of their own, so the other tasks do not pay for
//! them.
//!
//! ```text
//! GroupCommit::enqueue ──▶ queue ──▶ Lane::commit ──┬──▶ PlainStore::insert
//!                                                   └──▶ NamedStore::insert_new
//! ```

pub mod lane;
pub mod named_store;
mod plain_store;
pub mod queue;
pub mod shares;
pub mod submission;

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use self::lane::{Lane, Request, Store};
use self::named_store::NamedStore;
use self::plain_store::PlainStore;
use self::queue::{Asked, Queue, QueueLimits};
use self::submission::Submission;
use super::connections::Connections;
use super::placing::assign_ids;
use crate::clock;
use crate::domain::PrincipalName;
use crate::node::messages::{Refusal, SubmitAnswer};
use crate::node::shared::NodeShared;
use crate::postgres::tasks::submit::Submits;

/// The entrance for tasks.
#[derive(Clone, Debug)]
pub struct GroupCommit {
    plain: mpsc::Sender<Request>,
    named: mpsc::Sender<Request>,
    queue: Queue,
    shared: Arc<NodeShared>,
}

/// The parts from which lanes are made.
#[derive(Debug)]
pub struct GroupCommitParts {
    pub shared: Arc<NodeShared>,
    pub submits: Submits,
    pub named: NamedStore,
    pub connections: Connections,
    pub stopping: CancellationToken,
}

impl GroupCommit {
    /// Makes the entrance, and the lanes that store its tasks.
    pub fn new(limits: QueueLimits, parts: GroupCommitParts) -> (Self, [Lane; 2]) {
        let (plain, plain_receiver) = mpsc::channel(limits.tasks_max.max(1));
        let (named, named_receiver) = mpsc::channel(limits.tasks_max.max(1));
        let GroupCommitParts { shared, submits, named: named_store, connections, stopping } = parts;
        let plain_store = PlainStore { shared: Arc::clone(&shared), submits };
        let lane = |receiver, store| Lane {
            store,
            kept: connections.keep(),
            shared: Arc::clone(&shared),
            receiver,
            next: None,
            stopping: stopping.clone(),
        };
        let lanes = [
            lane(plain_receiver, Store::Plain(Box::new(plain_store))),
            lane(named_receiver, Store::Named(Box::new(named_store))),
        ];
        (Self { plain, named, queue: Queue::new(limits), shared }, lanes)
    }

    /// Returns true when no task waits to be stored.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Gives tasks of one principal to the lanes, at most
    /// [`TASKS_MAX`](crate::postgres::tasks::submit::TASKS_MAX). Returns the answers, each with the
    /// number of its draft. A task has no answer when the node stopped while it stored the task.
    pub async fn enqueue(
        &self,
        principal: &PrincipalName,
        mut submissions: Vec<Submission>,
    ) -> Vec<(usize, SubmitAnswer)> {
        assign_ids(&self.shared, submissions.iter_mut().map(|submission| &mut submission.task));
        let is_named = |submission: &Submission| submission.task.name.is_some();
        if !submissions.iter().any(is_named) {
            return self.wait_in(principal, &self.plain, submissions).await;
        }
        if submissions.iter().all(is_named) {
            return self.wait_in(principal, &self.named, submissions).await;
        }
        let (named, plain) = submissions.into_iter().partition(is_named);
        let (mut answers, others) = tokio::join!(
            self.wait_in(principal, &self.plain, plain),
            self.wait_in(principal, &self.named, named)
        );
        answers.extend(others);
        answers
    }

    async fn wait_in(
        &self,
        principal: &PrincipalName,
        lane: &mpsc::Sender<Request>,
        submissions: Vec<Submission>,
    ) -> Vec<(usize, SubmitAnswer)> {
        let bytes = submissions.iter().map(|submission| submission.task.bytes()).sum();
        let asked = Asked { principal, tasks: submissions.len(), bytes };
        let now = clock::monotonic();
        let room = match self.queue.room_for(asked, &self.shared.metrics, now) {
            Ok(room) => room,
            Err(full) => return refused(submissions, &full),
        };
        let (reply, replied) = oneshot::channel();
        match lane.try_send(Request { submissions, bytes, reply, room }) {
            // The lane answers every request, unless it ends in the middle of one.
            Ok(()) => replied.await.unwrap_or_default(),
            Err(unsent) => refused(unsent.into_inner().submissions, &Refusal::Draining),
        }
    }
}

fn refused(submissions: Vec<Submission>, refusal: &Refusal) -> Vec<(usize, SubmitAnswer)> {
    let refuse = |mut submission: Submission| {
        submission.refuse(refusal);
        submission.into_answer()
    };
    submissions.into_iter().filter_map(refuse).collect()
}
