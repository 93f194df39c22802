//! Commits cancels in groups by group commit, like submits.

use std::time::Duration;

use az::SaturatingAs as _;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::connections::KeptConnection;
use super::pieces::{AfterFailure, Pieces};
use super::postgres_failures::unavailable_of;
use crate::access::permit::Cancel;
use crate::clock;
use crate::domain::{PrincipalId, TaskView};
use crate::error_chain::chain;
use crate::node::messages::Unavailable;
use crate::node::messages::permitted::TaskPermit;
use crate::node::metrics::NodeMetrics;
use crate::postgres::PostgresError;
use crate::postgres::tasks::cancel::Cancels;
use crate::shutdown::TaskFailure;
use crate::telemetry::CountGuard;

/// The maximum number of ids in one statement.
const IDS_MAX: usize = 500;
/// How long one group may retry when it gives way to other transactions. A locked row is separated
/// from its group by halves: nine times, 0.2 s each.
const GROUP_SPAN_MAX: Duration = Duration::from_secs(3);

#[derive(Debug)]
struct CancelRequest {
    permit: TaskPermit<Cancel>,
    by: Option<PrincipalId>,
    /// The task when this request removed it. `Ok(None)` also while nothing is known.
    answer: Result<Option<TaskView>, Unavailable>,
    reply: oneshot::Sender<Result<Option<TaskView>, Unavailable>>,
    _shown: CountGuard,
}

/// The entrance for cancels.
#[derive(Clone, Debug)]
pub struct Canceller {
    sender: mpsc::Sender<CancelRequest>,
    metrics: NodeMetrics,
}

impl Canceller {
    /// Makes a canceller in whose queue `queue_max` cancels may wait.
    pub fn new(
        queue_max: usize,
        cancels: Cancels,
        kept: KeptConnection,
        metrics: NodeMetrics,
        stopping: CancellationToken,
    ) -> (Self, CancelLane) {
        let (sender, receiver) = mpsc::channel(queue_max.max(1));
        (
            Self { sender, metrics: metrics.clone() },
            CancelLane { receiver, cancels, kept, metrics, stopping },
        )
    }

    /// Cancels a task. Returns the task when this call removed it. `by` is the number of the
    /// caller.
    pub async fn cancel(
        &self,
        permit: &TaskPermit<Cancel>,
        by: Option<PrincipalId>,
    ) -> Result<Option<TaskView>, Unavailable> {
        let (reply, replied) = oneshot::channel();
        let _shown = CountGuard::new(&self.metrics.cancel_queue, 1);
        let (permit, answer) = (permit.clone(), Ok(None));
        let request = CancelRequest { permit, by, answer, reply, _shown };
        self.sender.try_send(request).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => Unavailable::Busy { limit: "cancel_queue" },
            mpsc::error::TrySendError::Closed(_) => Unavailable::Draining,
        })?;
        replied.await.unwrap_or_else(|_ended| {
            Err(Unavailable::Unknown {
                reason: "the node stopped while cancelling the task".to_owned(),
            })
        })
    }
}

/// The one connection through which tasks are cancelled.
#[derive(Debug)]
pub struct CancelLane {
    receiver: mpsc::Receiver<CancelRequest>,
    cancels: Cancels,
    /// Keeps the connection for cancels open.
    kept: KeptConnection,
    metrics: NodeMetrics,
    stopping: CancellationToken,
}

impl CancelLane {
    pub async fn run(mut self) -> Result<(), TaskFailure> {
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
            self.commit(&mut requests).await;
            for request in requests.drain(..) {
                if request.reply.send(request.answer).is_err() {
                    tracing::debug!("the caller of a cancel did not wait for the answer");
                }
            }
        }
    }

    /// Cancels the tasks of a group, and answers each request. A group that gave way to another
    /// transaction, or has damaged data, is retried by halves: one locked or damaged row neither
    /// holds up nor fails the others.
    async fn commit(&mut self, requests: &mut [CancelRequest]) {
        let mut pieces = Pieces::new(requests.len(), clock::monotonic().plus(GROUP_SPAN_MAX));
        while let Some(piece) = pieces.take() {
            let Err(error) = self.attempt(&mut requests[piece.clone()]).await else { continue };
            let after = pieces.fail(&piece, &error, clock::monotonic());
            if after == AfterFailure::Retried {
                tracing::debug!(
                    error = chain(&error),
                    ids = piece.len(),
                    "retrying the cancels in two halves"
                );
                continue;
            }
            fail(&mut requests[piece], &unavailable_of(&error));
            // A piece that is not tried has cancelled nothing.
            let untried = Unavailable::ServerAway { reason: chain(&error) };
            while after == AfterFailure::AllFailed
                && let Some(piece) = pieces.take()
            {
                fail(&mut requests[piece], &untried);
            }
        }
    }

    /// Cancels the tasks of a piece. Cancelled tasks are answered even when the rest failed: a
    /// repetition would not find them any more.
    async fn attempt(&mut self, piece: &mut [CancelRequest]) -> Result<(), PostgresError> {
        let ids: Vec<_> = piece.iter().map(|request| (request.permit.id(), request.by)).collect();
        let (cancelled, outcome) = self.cancels.cancel_group(&ids).await;
        let count = cancelled.iter().flatten().count();
        self.metrics.cancelled.inc_by(count.saturating_as::<u64>());
        for (request, cancelled) in piece.iter_mut().zip(cancelled) {
            if cancelled.is_some() {
                request.answer = Ok(cancelled);
            }
        }
        outcome
    }
}

/// Answers the requests whose tasks were not cancelled.
fn fail(piece: &mut [CancelRequest], unavailable: &Unavailable) {
    for request in piece.iter_mut().filter(|request| matches!(request.answer, Ok(None))) {
        request.answer = Err(unavailable.clone());
    }
}
