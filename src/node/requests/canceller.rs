//! Commits cancels in groups by group commit, like submits.

use std::collections::VecDeque;
use std::iter;
use std::ops::Range;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::connections::Kept;
use super::retry_policy::unavailable_of;
use crate::clock;
use crate::domain::{TaskId, TaskView};
use crate::error_chain::chain;
use crate::node::messages::Unavailable;
use crate::node::metrics::Metrics;
use crate::postgres::Error;
use crate::postgres::tasks::cancel;
use crate::shutdown::Failure;
use crate::telemetry::Counted;

/// The maximum number of ids in one statement.
const IDS_MAX: usize = 500;
/// How long one group may retry when it gives way to other transactions. A locked row is separated
/// from its group by halves: nine times, 0.2 s each.
const GROUP_SPAN_MAX: Duration = Duration::from_secs(3);

#[derive(Debug)]
struct Request {
    id: TaskId,
    answer: oneshot::Sender<Result<Option<TaskView>, Unavailable>>,
    _shown: Counted,
}

/// The entrance for cancels.
#[derive(Clone, Debug)]
pub struct Canceller {
    sender: mpsc::Sender<Request>,
    metrics: Metrics,
}

impl Canceller {
    /// Makes a canceller in whose queue `queue_max` cancels may wait.
    pub fn new(
        queue_max: usize,
        cancels: cancel::Canceller,
        kept: Kept,
        metrics: Metrics,
        stopping: CancellationToken,
    ) -> (Self, Lane) {
        let (sender, receiver) = mpsc::channel(queue_max.max(1));
        (
            Self { sender, metrics: metrics.clone() },
            Lane { receiver, cancels, kept, metrics, stopping },
        )
    }

    /// Cancels a task. Returns the task when this call removed it.
    pub async fn cancel(&self, id: TaskId) -> Result<Option<TaskView>, Unavailable> {
        let (answer, answered) = oneshot::channel();
        let _shown = Counted::new(&self.metrics.cancel_queue, 1);
        self.sender.try_send(Request { id, answer, _shown }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => Unavailable::Busy { bound: "cancel_queue" },
            mpsc::error::TrySendError::Closed(_) => Unavailable::Draining,
        })?;
        answered.await.unwrap_or_else(|_ended| {
            Err(Unavailable::Unknown {
                reason: "the node stopped while it cancelled the task".to_owned(),
            })
        })
    }
}

/// The one connection through which tasks are cancelled.
#[derive(Debug)]
pub struct Lane {
    receiver: mpsc::Receiver<Request>,
    cancels: cancel::Canceller,
    /// Keeps the connection for cancels open.
    kept: Kept,
    metrics: Metrics,
    stopping: CancellationToken,
}

impl Lane {
    pub async fn run(mut self) -> Result<(), Failure> {
        let mut requests = Vec::with_capacity(IDS_MAX);
        loop {
            let count = tokio::select! {
                biased;
                () = self.kept.due() => {
                    self.kept.show(self.cancels.keep_open().await);
                    continue;
                }
                count = self.receiver.recv_many(&mut requests, IDS_MAX) => count,
                () = self.stopping.cancelled() => return Ok(()),
            };
            if count == 0 {
                return Ok(());
            }
            let ids: Vec<TaskId> = requests.iter().map(|request| request.id).collect();
            let answers = self.cancel(&ids).await;
            for (request, answer) in requests.drain(..).zip(answers) {
                if request.answer.send(answer).is_err() {
                    tracing::debug!("the canceller did not wait for its answer");
                }
            }
        }
    }

    /// Cancels tasks, and returns an answer for each id. A group that gave way to another
    /// transaction is retried by halves, so that one locked row does not hold up the others.
    async fn cancel(&mut self, ids: &[TaskId]) -> Vec<Result<Option<TaskView>, Unavailable>> {
        let mut answers: Vec<Result<Option<TaskView>, Unavailable>> = vec![Ok(None); ids.len()];
        let until = clock::monotonic().plus(GROUP_SPAN_MAX);
        let mut pieces: VecDeque<Range<usize>> = iter::once(0..ids.len()).collect();
        while let Some(piece) = pieces.pop_front() {
            let (cancelled, outcome) = self.cancels.cancel_group(&ids[piece.clone()]).await;
            self.metrics
                .cancelled
                .inc_by(u64::try_from(cancelled.iter().flatten().count()).unwrap_or(u64::MAX));
            // Tasks that were cancelled are reported even when the rest failed: a repetition would
            // not find them any more.
            for (answer, cancelled) in answers[piece.clone()].iter_mut().zip(cancelled) {
                if cancelled.is_some() {
                    *answer = Ok(cancelled);
                }
            }
            let Err(error) = outcome else { continue };
            let is_late = clock::monotonic() >= until;
            if matches!(error, Error::GaveWay { .. }) && !is_late {
                tracing::debug!(
                    error = chain(&error),
                    ids = piece.len(),
                    "cancelling again, by halves"
                );
                // The halves go behind the other pieces, which are not held up and come first.
                let middle = piece.start + piece.len() / 2;
                pieces.extend(
                    [piece.start..middle, middle..piece.end]
                        .into_iter()
                        .filter(|half| !half.is_empty()),
                );
                continue;
            }
            // When time is up, or Postgres is away, this applies to all pieces that are left.
            for piece in pieces.drain(..).chain([piece]) {
                answers[piece]
                    .iter_mut()
                    .filter(|answer| matches!(answer, Ok(None)))
                    .for_each(|answer| *answer = Err(unavailable_of(&error)));
            }
        }
        answers
    }
}
