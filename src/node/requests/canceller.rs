//! Cancels commit in groups by natural batching, like submits.

use std::collections::VecDeque;
use std::iter;
use std::ops::Range;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::connections::Kept;
use super::retry_policy::trouble_of;
use crate::clock;
use crate::domain::{TaskId, TaskView};
use crate::error_chain::chain;
use crate::node::messages::Unavailable;
use crate::node::metrics::Metrics;
use crate::postgres::Error;
use crate::postgres::tasks::cancel;
use crate::shutdown::Failure;
use crate::telemetry::Counted;

/// Ids of one statement.
const IDS_MAX: usize = 500;
/// How long one group may take with what gives way to other transactions. A row that somebody has
/// locked is told from its group by halves: nine times, 0.2 s each.
const GROUP_SPAN_MAX: Duration = Duration::from_secs(3);

#[derive(Debug)]
struct Request {
    id: TaskId,
    answer: oneshot::Sender<Result<Option<TaskView>, Unavailable>>,
    _shown: Counted,
}

/// Where cancels enter.
#[derive(Clone, Debug)]
pub struct Canceller {
    sender: mpsc::Sender<Request>,
    metrics: Metrics,
}

impl Canceller {
    /// `queue_max` cancels may wait.
    pub fn new(
        queue_max: usize,
        cancels: cancel::Canceller,
        kept: Kept,
        metrics: Metrics,
        stopping: CancellationToken,
    ) -> (Self, Lane) {
        let (sender, receiver) = mpsc::channel(queue_max.max(1));
        (Self { sender, metrics: metrics.clone() }, Lane { receiver, cancels, kept, metrics, stopping })
    }

    /// Withdraws a task; shows it when this took it out.
    pub async fn cancel(&self, id: TaskId) -> Result<Option<TaskView>, Unavailable> {
        let (answer, answered) = oneshot::channel();
        let _shown = Counted::new(&self.metrics.cancel_queue, 1);
        self.sender.try_send(Request { id, answer, _shown }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => Unavailable::Busy { bound: "cancel_queue" },
            mpsc::error::TrySendError::Closed(_) => Unavailable::Draining,
        })?;
        answered
            .await
            .unwrap_or_else(|_ended| Err(Unavailable::Unknown { reason: "the node stopped while it cancelled the task".to_owned() }))
    }
}

/// The one connection through which tasks are cancelled.
#[derive(Debug)]
pub struct Lane {
    receiver: mpsc::Receiver<Request>,
    cancels: cancel::Canceller,
    /// Of the connection for cancels.
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

    /// An answer for each id. What gave way to another transaction is tried again by halves, so
    /// that one locked row does not hold up the others.
    async fn cancel(&mut self, ids: &[TaskId]) -> Vec<Result<Option<TaskView>, Unavailable>> {
        let mut answers: Vec<Result<Option<TaskView>, Unavailable>> = vec![Ok(None); ids.len()];
        let until = clock::monotonic().plus(GROUP_SPAN_MAX);
        let mut pieces: VecDeque<Range<usize>> = iter::once(0..ids.len()).collect();
        while let Some(piece) = pieces.pop_front() {
            let (cancelled, outcome) = self.cancels.cancel_group(&ids[piece.clone()]).await;
            self.metrics.cancelled.inc_by(u64::try_from(cancelled.iter().flatten().count()).unwrap_or(u64::MAX));
            // What was cancelled is, also when not all of it was done; a repetition does not find
            // it any more.
            for (answer, cancelled) in answers[piece.clone()].iter_mut().zip(cancelled) {
                if cancelled.is_some() {
                    *answer = Ok(cancelled);
                }
            }
            let Err(error) = outcome else { continue };
            let is_late = clock::monotonic() >= until;
            if matches!(error, Error::GaveWay { .. }) && !is_late {
                tracing::debug!(error = chain(&error), ids = piece.len(), "cancelling again, by halves");
                // Behind the others: what is not held up comes first.
                let middle = piece.start + piece.len() / 2;
                pieces.extend([piece.start..middle, middle..piece.end].into_iter().filter(|half| !half.is_empty()));
                continue;
            }
            // When time is up, or Postgres is away, it is so for all that is left.
            for piece in pieces.drain(..).chain([piece]) {
                answers[piece]
                    .iter_mut()
                    .filter(|answer| matches!(answer, Ok(None)))
                    .for_each(|answer| *answer = Err(trouble_of(&error)));
            }
        }
        answers
    }
}
