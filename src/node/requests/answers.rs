//! Takes the answers of consumers about tracked tasks, in groups by group commit, like cancels.
//! `steps` are those that answers by the other ways in take, too.

pub mod queue;
pub mod steps;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use self::queue::{AnswerQueue, AnswerRequest, Holder, Reply};
use super::connections::KeptConnection;
use super::connections::principal_turns::PrincipalTurns;
use super::moving;
use super::pieces::{AfterFailure, Pieces};
use super::postgres_failures::{unavailable_of, unavailable_of_read};
use crate::clock;
use crate::domain::{Monotonic, PrincipalName, TaskId, Timestamp};
use crate::error_chain::chain;
use crate::node::messages::Unavailable;
use crate::node::messages::answers::{ConsumerCall, Heard, Target};
use crate::node::shared::NodeShared;
use crate::postgres::tasks::answers::{AnswerCall, AnswerStore, GROUP_MAX};
use crate::postgres::tasks::look_up::LookUp;
use crate::postgres::tasks::names::Names;
use crate::shutdown::TaskFailure;

/// A call that finds its task between two places in each of its rounds is told so. The model of the
/// protocol needs three rounds.
const ROUNDS_MAX: usize = 3;
/// How long a group may retry while it gives way to other transactions.
const GROUP_SPAN_MAX: Duration = Duration::from_secs(3);

/// Time between the beginnings of two groups. An answer after a pause does not wait, and answers at
/// a steady rate share their transactions.
const GATHER: Duration = Duration::from_millis(3);
/// Maximum number of calls about one task that wait for each other. A group has one of them.
const CALLS_OF_TASK_MAX: usize = 16;
/// Maximum number of calls that the lane has, with those that it has held back.
const RECEIVED_MAX: usize = 2 * GROUP_MAX;
/// A group of this many calls does not wait for more.
const GATHERED_ENOUGH: usize = 32;

/// Maximum number of look-ups for the calls of a request. A call that changes nothing is answered
/// by one.
const LOOK_UPS_AT_ONCE: usize = 16;

/// The entrance for answers.
#[derive(Debug)]
pub struct Answers {
    shared: Arc<NodeShared>,
    names: Arc<Names>,
    look_up: Arc<LookUp>,
    queue: AnswerQueue,
    turns: Arc<PrincipalTurns>,
}

impl Answers {
    /// Look-ups take the turns of their principals.
    pub fn new(
        shared: &Arc<NodeShared>,
        names: &Arc<Names>,
        (look_up, turns): (&Arc<LookUp>, &Arc<PrincipalTurns>),
        queue: AnswerQueue,
    ) -> Self {
        let (shared, names, look_up) = (Arc::clone(shared), Arc::clone(names), Arc::clone(look_up));
        Self { shared, names, look_up, queue, turns: Arc::clone(turns) }
    }

    /// Takes answers. The results are in their order. Each call counts against the share of
    /// `holder` in the queue. Without a `holder`, the share is that of its own principal.
    pub async fn take(
        &self,
        calls: Vec<(Target, ConsumerCall)>,
        holder: Option<Holder>,
    ) -> Vec<Result<Heard, Unavailable>> {
        let targets: Vec<&Target> = calls.iter().map(|(target, _call)| target).collect();
        let ids = match steps::ids_of(&self.names, &self.look_up, &targets).await {
            Ok(ids) => ids,
            Err(unavailable) => return vec![Err(unavailable); calls.len()],
        };
        let Some(arrived_at) = self.shared.clock.arrival() else {
            let reason = "the cluster's clock is not known yet".to_owned();
            return vec![Err(Unavailable::ServerAway { reason }); calls.len()];
        };
        let is_many = calls.len() > 1;
        let mut waiting = Vec::with_capacity(calls.len());
        for ((target, call), id) in calls.into_iter().zip(ids) {
            let of_principal = || Holder::Principal(target.principal().clone());
            let holder = holder.clone().unwrap_or_else(of_principal);
            waiting.push(self.begin((target, call), (id, arrived_at), holder).await);
        }
        let ending = waiting.into_iter().map(async |begun| {
            let mut result = match begun {
                Begun::Done(result) => result,
                Begun::Waits(waiting) => self.end(waiting).await,
            };
            // Thousands of records of a megabyte would exhaust the memory.
            if let Ok(Heard::Tracked(_, view) | Heard::NotTracked(view)) = &mut result
                && is_many
            {
                view.forget_payload();
            }
            result
        });
        stream::iter(ending).buffered(LOOK_UPS_AT_ONCE).collect().await
    }

    async fn begin(
        &self,
        (target, call): (Target, ConsumerCall),
        (id, arrived_at): (Option<TaskId>, Timestamp),
        holder: Holder,
    ) -> Begun {
        let Some(first) = id else { return Begun::Done(Ok(Heard::NotFound)) };
        let by = target.principal().clone();
        let principal = match self.shared.callers.of(&by).await {
            Ok(principal) => principal,
            Err(error) => return Begun::Done(Err(unavailable_of_read(&error))),
        };
        let topic = target.topic().cloned();
        let call = AnswerCall { principal, topic, ..steps::call_of(first, call, arrived_at) };
        match self.queue.put(&holder, call.clone(), clock::monotonic()) {
            Ok(replied) => Begun::Waits(Waiting { call, by, holder, replied }),
            Err(unavailable) => Begun::Done(Err(unavailable)),
        }
    }

    /// Waits for the result of a call. A task that is between two places is asked about again.
    async fn end(&self, waiting: Waiting) -> Result<Heard, Unavailable> {
        let Waiting { call, by, holder, mut replied } = waiting;
        for round in 1..=ROUNDS_MAX {
            let answered = replied.await.unwrap_or_else(|_ended| {
                Err(Unavailable::Unknown {
                    reason: "the node stopped while taking the answer".to_owned(),
                })
            })?;
            let turns = Some(self.turns.as_ref());
            if let Some(heard) = steps::heard(&self.look_up, turns, (&call, &by), answered).await? {
                return Ok(heard);
            }
            if round == ROUNDS_MAX {
                break;
            }
            moving::pause().await;
            replied = self.queue.put(&holder, call.clone(), clock::monotonic())?;
        }
        Err(Unavailable::ServerAway {
            reason: "the task is being moved; nothing was changed; repeat the call".to_owned(),
        })
    }
}

/// A call that waits for its group.
struct Waiting {
    call: AnswerCall,
    by: PrincipalName,
    holder: Holder,
    replied: oneshot::Receiver<Reply>,
}

enum Begun {
    Done(Result<Heard, Unavailable>),
    Waits(Waiting),
}

/// The one connection over which answers are taken.
#[derive(Debug)]
pub struct AnswerLane {
    receiver: mpsc::Receiver<AnswerRequest>,
    store: AnswerStore,
    /// Keeps the connection for answers open.
    kept: KeptConnection,
    shared: Arc<NodeShared>,
    stopping: CancellationToken,
    /// Calls that wait for a later group.
    held_back: Vec<AnswerRequest>,
}

impl AnswerLane {
    /// Makes a lane, and the queue in which `queue_max` answers may wait for it.
    pub fn new(
        queue_max: usize,
        store: AnswerStore,
        kept: KeptConnection,
        shared: Arc<NodeShared>,
        stopping: CancellationToken,
    ) -> (AnswerQueue, Self) {
        let waiting = shared.metrics.tracked.answer_queue.clone();
        let (queue, receiver) = AnswerQueue::new(queue_max, waiting);
        let held_back = Vec::new();
        (queue, Self { receiver, store, kept, shared, stopping, held_back })
    }

    pub async fn run(mut self) -> Result<(), TaskFailure> {
        let mut requests = Vec::with_capacity(GROUP_MAX);
        let mut next_from = clock::monotonic();
        loop {
            requests.append(&mut self.held_back);
            // Calls that were held back keep no other waiting.
            self.receive(&mut requests);
            if requests.is_empty() {
                let count = tokio::select! {
                    biased;
                    () = self.kept.due() => {
                        self.kept.show(self.store.keep_open().await);
                        continue;
                    }
                    count = self.receiver.recv_many(&mut requests, GROUP_MAX) => count,
                    () = self.stopping.cancelled() => return Ok(()),
                };
                if count == 0 {
                    return Ok(());
                }
            }
            self.gather(&mut requests, next_from).await;
            next_from = clock::monotonic().plus(GATHER);
            self.hold_back(&mut requests);
            self.commit(&mut requests).await;
        }
    }

    /// Takes the calls that wait in the queue, without waiting for more.
    fn receive(&mut self, requests: &mut Vec<AnswerRequest>) {
        while requests.len() < RECEIVED_MAX {
            let Ok(request) = self.receiver.try_recv() else { return };
            requests.push(request);
        }
    }

    /// Leaves a group of calls about different tasks. The others wait for the next group.
    fn hold_back(&mut self, requests: &mut Vec<AnswerRequest>) {
        let mut counts: HashMap<TaskId, usize> = HashMap::with_capacity(requests.len());
        for request in std::mem::take(requests) {
            let count = counts.entry(request.call.first).or_default();
            *count = count.saturating_add(1);
            match *count {
                1 if requests.len() < GROUP_MAX => requests.push(request),
                1..=CALLS_OF_TASK_MAX => self.held_back.push(request),
                _ => reply(request, Err(Unavailable::Busy { limit: "calls_of_task" })),
            }
        }
    }

    /// Waits for more calls until the next group may begin.
    async fn gather(&mut self, requests: &mut Vec<AnswerRequest>, next_from: Monotonic) {
        let wait = next_from.since(clock::monotonic());
        if wait.is_zero() || requests.len() >= GATHERED_ENOUGH {
            return;
        }
        clock::sleep(wait).await;
        self.receive(requests);
    }

    /// Takes the calls of a group, and answers them. A group that gave way to another transaction,
    /// or has damaged data, is retried by halves, so one locked or damaged row does not hold up the
    /// others.
    async fn commit(&mut self, requests: &mut Vec<AnswerRequest>) {
        let calls: Vec<AnswerCall> = requests.iter().map(|request| request.call.clone()).collect();
        let mut pieces = Pieces::new(calls.len(), clock::monotonic().plus(GROUP_SPAN_MAX));
        let (mut answers, mut failed) = (HashMap::new(), Vec::new());
        let mut stopped = None;
        while let Some(piece) = pieces.take() {
            let terms = steps::terms(&self.shared);
            let Err(error) = self.store.take(&calls[piece.clone()], terms, &mut answers).await
            else {
                continue;
            };
            let after = pieces.fail(&piece, &error, clock::monotonic());
            if after == AfterFailure::Retried {
                // Calls without an answer have changed nothing.
                continue;
            }
            failed.push((piece, unavailable_of(&error)));
            if after == AfterFailure::AllFailed {
                stopped = Some(chain(&error));
                break;
            }
        }
        for (place, request) in requests.drain(..).enumerate() {
            let answered = answers.remove(&request.call.first);
            steps::observe(&self.shared, &request.call, answered.as_ref());
            let failure = failed.iter().find(|(piece, _)| piece.contains(&place));
            let answer = match (answered, failure, &stopped) {
                (Some(answered), _, _) => Ok(Some(answered)),
                (None, Some((_, unavailable)), _) => Err(unavailable.clone()),
                // A piece that was not tried, or that gave way, has changed nothing.
                (None, None, Some(reason)) => {
                    Err(Unavailable::ServerAway { reason: reason.clone() })
                }
                (None, None, None) => Ok(None),
            };
            reply(request, answer);
        }
    }
}

fn reply(request: AnswerRequest, answer: Reply) {
    if request.reply.send(answer).is_err() {
        tracing::debug!("the caller of an answer did not wait for the result");
    }
}
