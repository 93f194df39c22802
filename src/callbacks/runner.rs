//! Carries out one callback at one node, until it is changed or deleted.

use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::metrics::CallbackMetrics;
use super::pace::Pace;
use super::sender::{Sender, ServiceAnswer};
use crate::access::permit::{Finish, Permit, Pop};
use crate::clock;
use crate::domain::task::tracking::REASON_MAX;
use crate::domain::topic::callback::StoredCallback;
use crate::domain::topic::group::ConsumerGroup;
use crate::domain::{Monotonic, Throttle};
use crate::node::membership::Bulletin;
use crate::node::messages::answers::{ConsumerCall, PopCall, Popped};
use crate::node::messages::{Due, Unavailable};
use crate::node::requests::service::Service;
use crate::telemetry::CountGuard;

/// How long a pop waits for a task. Another one follows.
const WAIT: Duration = Duration::from_secs(20);
/// The pause after a pop that was refused.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);
/// The pause before an answer about a task is given again.
const ANSWER_AGAIN: Duration = Duration::from_millis(200);
/// A pause is tried so often, with [`REFUSED_PAUSE`] in between.
const PAUSE_TRIES_MAX: u32 = 30;
/// The most tasks of one pop.
const TASKS_MAX: usize = 200;
/// No tasks are popped while the requests have so many bytes. One pop may add a few MiB.
const BYTES_MAX: usize = 32 << 20;
/// A service that needs more than this part of its timeout is in trouble.
const SLOW_PART: u32 = 2;
/// Minimum time between two log lines about a failing service.
const SAY_EVERY: Duration = Duration::from_secs(60);

/// The parts of a runner.
#[derive(Debug)]
pub(super) struct Runner {
    pub callback: watch::Receiver<StoredCallback>,
    pub service: Service,
    pub sender: Arc<Sender>,
    pub permits: (Permit<Pop>, Permit<Finish>),
    pub group: ConsumerGroup,
    pub bulletin: watch::Receiver<Bulletin>,
    pub metrics: CallbackMetrics,
    /// The bytes of the records whose requests have no answer yet.
    pub bytes: Arc<AtomicUsize>,
    /// Cancelled when the callback is deleted, and when the node drains.
    pub ending: CancellationToken,
}

/// A request that has its answer.
#[derive(Debug)]
struct Ended {
    answer: ServiceAnswer,
    is_slow: bool,
    had_time: bool,
    revision: u64,
}

type Popping = BoxFuture<'static, Result<Vec<Popped>, Unavailable>>;

impl Runner {
    /// Runs until the callback is deleted or the node drains. Requests that are under way get their
    /// answers.
    pub async fn run(mut self) {
        let mut pace = Pace::new(clock::monotonic());
        let mut requests = FuturesUnordered::new();
        let mut popping: Option<Popping> = None;
        let mut may_pop_at = clock::monotonic();
        let mut says = Throttle::new(SAY_EVERY);
        let mut nodes = node_count(&self.bulletin.borrow_and_update());
        // The revision whose service wants no more requests.
        let mut gone = None;
        loop {
            let stored = Arc::new(self.callback.borrow_and_update().clone());
            let callback = &stored.callback;
            if self.bulletin.has_changed().unwrap_or(false) {
                nodes = node_count(&self.bulletin.borrow_and_update());
            }
            pace.limit(callback.concurrency, callback.max_per_second, nodes);
            let now = clock::monotonic();
            let bytes = self.bytes.load(Ordering::Relaxed);
            let free = pace.free(requests.len(), now).min(TASKS_MAX);
            let is_over = self.ending.is_cancelled();
            let is_refused = self.is_refused(&stored, &mut says);
            if callback.is_paused || is_over || is_refused || gone == Some(stored.revision) {
                // An answer that is there already has passed its records. All others stay.
                if let Some(Ok(tasks)) = popping.take().and_then(|pop| pop.now_or_never()) {
                    for task in tasks {
                        requests.push(self.request(&stored, task, pace.take(now)));
                    }
                }
            } else if popping.is_none() && free > 0 && bytes < BYTES_MAX && now >= may_pop_at {
                popping = Some(self.pop(free));
            }
            if is_over && requests.is_empty() {
                return;
            }
            let wake = may_pop_at.max(pace.next_at());
            tokio::select! {
                popped = next_of(&mut popping) => {
                    popping = None;
                    let now = clock::monotonic();
                    match popped {
                        Ok(tasks) => {
                            for task in tasks {
                                requests.push(self.request(&stored, task, pace.take(now)));
                            }
                        }
                        Err(reason) => {
                            if says.lets_through(now) {
                                tracing::warn!(
                                    topic = %stored.topic, ?reason,
                                    "no tasks for a callback; trying again"
                                );
                            }
                            may_pop_at = now.plus(REFUSED_PAUSE);
                        }
                    }
                }
                Some(ended) = requests.next(), if !requests.is_empty() => {
                    if let Some(ended) = ended {
                        if ended.answer == ServiceAnswer::Gone {
                            gone = Some(ended.revision);
                        }
                        self.judge(&ended, &mut pace, &mut says);
                    }
                }
                changed = self.callback.changed(), if !is_over => if changed.is_err() {
                    self.ending.cancel();
                },
                () = self.ending.cancelled(), if !is_over => {}
                () = clock::sleep(wake.since(now)), if wake > now => {}
            }
        }
    }

    /// Returns true for a URL that this node may not call. Another node may: it gets the tasks.
    fn is_refused(&self, stored: &StoredCallback, says: &mut Throttle) -> bool {
        let Err(error) = self.sender.may_call(&stored.callback) else { return false };
        if says.lets_through(clock::monotonic()) {
            let reason = error.to_string();
            tracing::warn!(topic = %stored.topic, reason, "this node may not call the service");
        }
        true
    }

    fn pop(&self, count_max: usize) -> Popping {
        let (service, permit) = (self.service.clone(), self.permits.0.clone());
        let call = PopCall { group: self.group.clone(), count_max, wait: WAIT };
        Box::pin(async move { service.pop_for_callback(&permit, call).await })
    }

    /// Sends a task at `at`, and answers about it. Returns `None` when its time is over before.
    fn request(
        &self,
        stored: &Arc<StoredCallback>,
        mut task: Popped,
        at: Monotonic,
    ) -> impl Future<Output = Option<Ended>> + use<> {
        let (stored, service, permit) =
            (Arc::clone(stored), self.service.clone(), self.permits.1.clone());
        let (sender, metrics) = (Arc::clone(&self.sender), self.metrics.clone());
        let bytes = Arc::clone(&self.bytes);
        async move {
            // The end of the node waits for it.
            let _in_flight = CountGuard::new(&metrics.in_flight, 1);
            let size = task.record.bytes();
            bytes.fetch_add(size, Ordering::Relaxed);
            clock::sleep(at.since(clock::monotonic())).await;
            let timeout = stored.callback.timeout.min(task.finish_by.since(clock::wall()));
            if timeout.is_zero() {
                bytes.fetch_sub(size, Ordering::Relaxed);
                return None;
            }
            metrics.delay.observe(clock::wall().since(task.published_at).as_secs_f64());
            let began = clock::monotonic();
            let answer = sender.send(&stored.callback, &mut task, timeout).await;
            bytes.fetch_sub(size, Ordering::Relaxed);
            let is_slow = clock::monotonic().since(began) > stored.callback.timeout / SLOW_PART;
            // A service that had little time until the end of the attempt is not to blame.
            let had_time = timeout > stored.callback.timeout / SLOW_PART;
            metrics.count(name_of(&answer));
            if answer == ServiceAnswer::Gone {
                pause(&service, &stored).await;
            }
            tell(&service, &permit, &task, &answer).await;
            Some(Ended { answer, is_slow, had_time, revision: stored.revision })
        }
    }

    fn judge(&self, ended: &Ended, pace: &mut Pace, says: &mut Throttle) {
        let now = clock::monotonic();
        let (is_trouble, reason) = match &ended.answer {
            ServiceAnswer::Finished => (ended.is_slow, None),
            ServiceAnswer::Gone => (false, None),
            ServiceAnswer::Later { reason, .. } | ServiceAnswer::Refused { reason } => {
                (true, Some(reason))
            }
            ServiceAnswer::Unanswered { reason } => (ended.had_time, Some(reason)),
            ServiceAnswer::Failed { reason, is_overloaded } => {
                (*is_overloaded || ended.is_slow, Some(reason))
            }
        };
        if is_trouble {
            pace.is_in_trouble(now);
        } else {
            pace.goes_well();
        }
        if let Some(reason) = reason
            && says.lets_through(now)
        {
            let topic = &self.callback.borrow().topic;
            tracing::warn!(
                %topic, reason,
                "a callback did not finish a task (logged once a minute at most; the metric counts \
                 all)"
            );
        }
    }
}

/// Returns the number of nodes that have shards.
fn node_count(bulletin: &Bulletin) -> usize {
    bulletin.owners.iter().collect::<HashSet<_>>().len()
}

/// Waits for tasks, forever without a pop.
async fn next_of(popping: &mut Option<Popping>) -> Result<Vec<Popped>, Unavailable> {
    match popping {
        Some(popping) => popping.await,
        None => std::future::pending().await,
    }
}

fn name_of(answer: &ServiceAnswer) -> &'static str {
    match answer {
        ServiceAnswer::Finished => "finished",
        ServiceAnswer::Later { .. } => "later",
        ServiceAnswer::Gone => "gone",
        ServiceAnswer::Failed { .. } => "failed",
        ServiceAnswer::Unanswered { .. } => "unanswered",
        ServiceAnswer::Refused { .. } => "refused",
    }
}

/// Pauses the callback of a service that wants no more requests. This node sends none in any case.
async fn pause(service: &Service, stored: &StoredCallback) {
    const REASON: &str = "its service answered 410 Gone";
    for _try in 0..PAUSE_TRIES_MAX {
        match service.pause_callback(stored, REASON).await {
            Ok(true) => {
                tracing::warn!(
                    topic = %stored.topic,
                    "the callback is paused: {REASON}; set it again to go on"
                );
                return;
            }
            // It was changed meanwhile, or another request has paused it.
            Ok(false) => return,
            Err(reason) => tracing::debug!(topic = %stored.topic, ?reason, "pause a callback"),
        }
        clock::sleep(REFUSED_PAUSE).await;
    }
}

/// Answers about a task as its consumer. Without success its time to run ends, and it comes again.
async fn tell(service: &Service, permit: &Permit<Finish>, task: &Popped, answer: &ServiceAnswer) {
    let failed = |retry, reason: &str| ConsumerCall::Fail {
        attempt: task.attempt,
        retry,
        is_final: false,
        reason: Some(truncated(reason).into()),
    };
    let call = match answer {
        // Done is done, whichever attempt has done it.
        ServiceAnswer::Finished => ConsumerCall::Finish { attempt: None },
        ServiceAnswer::Later { after, reason } => failed(Some(Due::After(*after)), reason),
        ServiceAnswer::Gone => failed(None, "the callback answered 410 Gone"),
        ServiceAnswer::Failed { reason, .. }
        | ServiceAnswer::Unanswered { reason }
        | ServiceAnswer::Refused { reason } => failed(None, reason),
    };
    loop {
        match service.answer_for_callback(permit, task.id, call.clone()).await {
            Ok(_heard) => return,
            Err(reason) if clock::wall() >= task.finish_by => {
                tracing::debug!(task = %task.id, ?reason, "answer for a callback");
                return;
            }
            Err(_unavailable) => clock::sleep(ANSWER_AGAIN).await,
        }
    }
}

fn truncated(reason: &str) -> &str {
    reason.get(..reason.floor_char_boundary(REASON_MAX)).unwrap_or_default()
}
