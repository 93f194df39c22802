//! A lane: one connection through which queued tasks are stored in groups.

use std::sync::Arc;
use std::time::Duration;

use az::SaturatingAs as _;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::named_store::NamedStore;
use super::plain_store::PlainStore;
use super::queue::Room;
use super::submission::Submission;
use crate::clock;
use crate::error_chain::chain;
use crate::node::messages::{Refusal, SubmitAnswer};
use crate::node::metrics::NodeMetrics;
use crate::node::requests::connections::KeptConnection;
use crate::node::requests::pieces::Pieces;
use crate::node::requests::placing::assign_ids;
use crate::node::requests::postgres_failures::{Tries, refusal_of};
use crate::node::shared::NodeShared;
use crate::postgres::PostgresError;
use crate::postgres::tasks::submit::{BYTES_MAX, TASKS_MAX};
use crate::shutdown::TaskFailure;

/// How long one group may wait for the locks of others. A locked name is separated from its group
/// by halves: ten times, 0.2 s each.
const GROUP_SPAN_MAX: Duration = Duration::from_secs(3);

/// The tasks of one request: at most [`TASKS_MAX`].
#[derive(Debug)]
pub struct Request {
    pub submissions: Vec<Submission>,
    pub bytes: usize,
    /// Takes the answers, each with the number of its draft.
    pub reply: oneshot::Sender<Vec<(usize, SubmitAnswer)>>,
    /// The room is given back when the request has been answered, even if no caller waits for the
    /// answer any more.
    pub room: Room,
}

impl Request {
    /// Sends the answers to the caller, and gives the room back.
    fn send_answers(self, metrics: &NodeMetrics) {
        let answers: Vec<(usize, SubmitAnswer)> =
            self.submissions.into_iter().filter_map(Submission::into_answer).collect();
        let is_unknown =
            |answer: &&(usize, SubmitAnswer)| matches!(answer.1, Err(Refusal::Unknown { .. }));
        let unknown_count = answers.iter().filter(is_unknown).count();
        if unknown_count > 0 {
            metrics.submit_unknown.inc_by(unknown_count.saturating_as::<u64>());
        }
        if self.reply.send(answers).is_err() {
            tracing::debug!("the caller of a submit did not wait for the answer");
        }
        drop(self.room);
    }
}

/// One connection through which tasks are stored.
#[derive(Debug)]
pub struct Lane {
    pub(super) store: Store,
    /// Keeps the store's connection open.
    pub(super) kept: KeptConnection,
    pub(super) shared: Arc<NodeShared>,
    pub(super) receiver: mpsc::Receiver<Request>,
    /// A request that was taken from the queue, but did not fit in the previous group.
    pub(super) next: Option<Request>,
    pub(super) stopping: CancellationToken,
}

/// The way in which a lane stores tasks.
#[derive(Debug)]
pub enum Store {
    Plain(Box<PlainStore>),
    Named(Box<NamedStore>),
}

impl Store {
    async fn keep_open(&mut self) -> Result<(), PostgresError> {
        match self {
            Self::Plain(store) => store.submits.keep_open().await,
            Self::Named(store) => store.submits.keep_open().await,
        }
    }
}

impl Lane {
    /// Runs until the node stops.
    pub async fn run(mut self) -> Result<(), TaskFailure> {
        loop {
            let first = match self.next.take() {
                Some(next) => next,
                None => tokio::select! {
                    biased;
                    () = self.kept.due() => {
                        self.kept.show(self.store.keep_open().await);
                        continue;
                    }
                    request = self.receiver.recv() => match request {
                        Some(request) => request,
                        None => return Ok(()),
                    },
                    () = self.stopping.cancelled() => return Ok(()),
                },
            };
            let (mut requests, count) = self.gather(first);
            let mut group = Vec::with_capacity(count);
            for request in &mut requests {
                group.extend(&mut request.submissions);
            }
            self.commit(&mut group).await;
            // The room is given back only now, because tasks that are being stored count as
            // waiting.
            for request in requests {
                request.send_answers(&self.shared.metrics);
            }
        }
    }

    /// Gathers all queued requests, up to the limits of a group. Returns the number of their tasks,
    /// too.
    fn gather(&mut self, first: Request) -> (Vec<Request>, usize) {
        let (mut bytes, mut count) = (first.bytes, first.submissions.len());
        let mut requests = vec![first];
        while count < TASKS_MAX {
            let Ok(request) = self.receiver.try_recv() else { break };
            let more = request.submissions.len();
            if count + more > TASKS_MAX || bytes + request.bytes > BYTES_MAX {
                self.next = Some(request);
                break;
            }
            bytes += request.bytes;
            count += more;
            requests.push(request);
        }
        (requests, count)
    }

    /// Stores or refuses all tasks of a group. A group is stored by halves when values are refused,
    /// or when another transaction has a lock that one of them needs: one task does not fail the
    /// others.
    async fn commit(&mut self, group: &mut [&mut Submission]) {
        let mut pieces = Pieces::new(group.len(), clock::monotonic().plus(GROUP_SPAN_MAX));
        while let Some(piece) = pieces.take() {
            let Err(error) = self.attempt(&mut group[piece.clone()]).await else { continue };
            let is_late = error.is_lock_conflict() && pieces.is_late(clock::monotonic());
            if piece.len() > 1 && is_of_some(&error) && !is_late {
                pieces.halve(piece);
                continue;
            }
            let refusal = refusal_of(&error);
            group[piece].iter_mut().for_each(|submission| submission.refuse(&refusal));
            // When time is up, or Postgres is away or slow, the pieces that are left are not tried,
            // and nothing of them is stored.
            let is_over = is_late || error.is_away() || error.is_slow();
            let untried = Refusal::ServerAway { reason: chain(&error) };
            while is_over && let Some(piece) = pieces.take() {
                group[piece].iter_mut().for_each(|submission| submission.refuse(&untried));
            }
        }
    }

    /// Stores all tasks of a piece, or none. A piece that gave way to another transaction is
    /// retried, unless it can be divided.
    async fn attempt(&mut self, piece: &mut [&mut Submission]) -> Result<(), PostgresError> {
        let mut tries = Tries::default();
        loop {
            let outcome = match &mut self.store {
                Store::Plain(store) => store.insert(piece).await,
                Store::Named(store) => store.insert_new(piece).await,
            };
            match outcome {
                Err(error) if tries.draws_again(&error) => {
                    tracing::debug!(
                        error = chain(&error),
                        "another task has the id of one of these tasks; retrying with new ids"
                    );
                    assign_ids(&self.shared, piece.iter_mut().map(|one| &mut one.task));
                }
                Err(error) if piece.len() > 1 && error.is_lock_conflict() => return Err(error),
                Err(error) if tries.again(&error) => {}
                outcome => return outcome,
            }
        }
    }
}

/// Returns true for an error that some tasks of a group may have caused, and not the others.
fn is_of_some(error: &PostgresError) -> bool {
    matches!(error, PostgresError::BadValue { .. }) || error.is_lock_conflict()
}
