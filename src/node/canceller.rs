//! Cancels commit in groups by natural batching, like submits.

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::metrics::{Metrics, Waiting};
use super::service::Trouble;
use crate::domain::{TaskId, TaskView};
use crate::postgres::Error;
use crate::postgres::cancel;
use crate::shutdown::{Failure, chain};

/// Ids of one statement.
const IDS_MAX: usize = 500;
/// A group that gave way to another transaction is repeated so often.
const TRIES_MAX: usize = 5;

#[derive(Debug)]
struct Request {
    id: TaskId,
    answer: oneshot::Sender<Result<Option<TaskView>, Trouble>>,
}

/// Where cancels enter.
#[derive(Clone, Debug)]
pub struct Canceller {
    sender: mpsc::Sender<Request>,
    metrics: Metrics,
}

impl Canceller {
    /// `queue_max` cancels may wait.
    pub fn new(queue_max: usize, cancels: cancel::Canceller, metrics: Metrics, stopping: CancellationToken) -> (Self, Lane) {
        let (sender, receiver) = mpsc::channel(queue_max.max(1));
        (Self { sender, metrics: metrics.clone() }, Lane { receiver, cancels, metrics, stopping })
    }

    /// Withdraws a task; shows it when this took it out.
    pub async fn cancel(&self, id: TaskId) -> Result<Option<TaskView>, Trouble> {
        let (answer, answered) = oneshot::channel();
        self.sender.try_send(Request { id, answer }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => Trouble::Busy { bound: "cancel_queue" },
            mpsc::error::TrySendError::Closed(_) => Trouble::Draining,
        })?;
        let _waiting = Waiting::new(&self.metrics.cancel_queue, 1);
        answered
            .await
            .unwrap_or_else(|_ended| Err(Trouble::Unknown { reason: "the node stopped while it cancelled the task".to_owned() }))
    }
}

/// The one connection through which tasks are cancelled.
#[derive(Debug)]
pub struct Lane {
    receiver: mpsc::Receiver<Request>,
    cancels: cancel::Canceller,
    metrics: Metrics,
    stopping: CancellationToken,
}

impl Lane {
    pub async fn run(mut self) -> Result<(), Failure> {
        let mut requests = Vec::with_capacity(IDS_MAX);
        loop {
            let count = tokio::select! {
                biased;
                count = self.receiver.recv_many(&mut requests, IDS_MAX) => count,
                () = self.stopping.cancelled() => return Ok(()),
            };
            if count == 0 {
                return Ok(());
            }
            let ids: Vec<TaskId> = requests.iter().map(|request| request.id).collect();
            let (cancelled, outcome) = self.cancel(&ids).await;
            for (request, cancelled) in requests.drain(..).zip(cancelled) {
                let answer = match &outcome {
                    Err(error) if cancelled.is_none() => Err(trouble_of(error)),
                    _ => Ok(cancelled),
                };
                if request.answer.send(answer).is_err() {
                    tracing::debug!("the canceller did not wait for its answer");
                }
            }
        }
    }

    /// Those that are cancelled for certain, also when not all of it was done.
    async fn cancel(&mut self, ids: &[TaskId]) -> (Vec<Option<TaskView>>, Result<(), Error>) {
        let mut cancelled = vec![None; ids.len()];
        let mut tries = 1;
        loop {
            let (now, outcome) = self.cancels.cancel_group(ids).await;
            self.metrics.cancelled.inc_by(u64::try_from(now.iter().flatten().count()).unwrap_or(u64::MAX));
            // A repetition finds nothing any more of what was cancelled before it.
            cancelled.iter_mut().zip(now).filter(|(_, now)| now.is_some()).for_each(|(cancelled, now)| *cancelled = now);
            match outcome {
                Err(error @ Error::GaveWay { .. }) if tries < TRIES_MAX => {
                    tracing::debug!(error = chain(&error), tries, "cancelling a group again");
                    tries += 1;
                }
                outcome => return (cancelled, outcome),
            }
        }
    }
}

fn trouble_of(error: &Error) -> Trouble {
    let reason = chain(error);
    if error.is_unknown() { Trouble::Unknown { reason } } else { Trouble::Unavailable { reason } }
}
