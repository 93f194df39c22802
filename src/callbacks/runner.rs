//! Carries out one callback at one node, until it is changed or deleted.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use az::SaturatingAs as _;
use futures_util::future::{BoxFuture, FutureExt as _};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use reqwest::Url;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::limiter::Limiter;
use super::metrics::CallbackMetrics;
use super::sender::{NoAnswer, Sender, ServiceAnswer};
use crate::access::permit::{Finish, Permit, Pop};
use crate::clock;
use crate::domain::task::tracking::REASON_MAX;
use crate::domain::topic::callback::{StoredCallback, TIMEOUT_MIN};
use crate::domain::topic::group::ConsumerGroup;
use crate::domain::{Backoff, Monotonic, Throttle};
use crate::error_chain::chain;
use crate::node::membership::Bulletin;
use crate::node::messages::answers::{ConsumerCall, PopCall, Popped};
use crate::node::messages::{Due, Unavailable};
use crate::node::requests::service::Service;
use crate::telemetry::{CountGuard, Gauge};

/// How long a pop waits for a task. Another one follows.
const WAIT: Duration = Duration::from_secs(20);
/// The first pause after a refused pop. It doubles with each further one, because each makes a
/// Kafka client.
const POP_PAUSE_MIN: Duration = Duration::from_secs(1);
const POP_PAUSE_MAX: Duration = Duration::from_secs(30);
/// The pause after a failed pause of the callback.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Maximum number of attempts to pause the callback.
const PAUSE_ATTEMPTS_MAX: u32 = 30;
/// The pause before an answer about a task is repeated.
const ANSWER_RETRY_PAUSE: Duration = Duration::from_millis(200);
/// How long after its time to run a task is still reported finished. The service has done the
/// work, and would be called again otherwise.
const FINISH_GRACE: Duration = Duration::from_secs(120);
/// Maximum number of tasks of one pop.
const TASKS_MAX: usize = 200;
/// Bytes of records in flight above which no tasks are popped. One pop may add a few MiB.
const BYTES_MAX: i64 = 32 << 20;
/// Divisor of a timeout. An answer that takes longer than the timeout of the callback divided by it
/// counts as a failure for the limiter. A request without an answer in time counts only if it had
/// at least this part of the longest time that its task allows.
const SLOW_DIVISOR: u32 = 2;
/// Minimum time between two log lines about problems of the callback.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

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
    pub state: Arc<RunnerState>,
    /// Cancelled when the callback is deleted, and when the node drains.
    pub ending: CancellationToken,
}

/// The state that the requests of a runner change.
#[derive(Debug, Default)]
pub(super) struct RunnerState {
    /// Bytes of the records whose requests wait for an answer.
    bytes: Gauge,
    /// The revision of the callback whose service has answered 410. Revisions begin at 1.
    gone_revision: AtomicU64,
}

/// A request that has its answer.
#[derive(Debug)]
struct AnsweredRequest {
    answer: ServiceAnswer,
    is_slow: bool,
    /// False for a request that began late in its attempt, and so had little time.
    had_time: bool,
}

/// The health of a service, as one request shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Health {
    Good,
    Bad,
    Unknown,
}

impl AnsweredRequest {
    fn health(&self) -> Health {
        let is_bad = match &self.answer {
            ServiceAnswer::Finished => self.is_slow,
            ServiceAnswer::Gone => false,
            ServiceAnswer::Failed { is_overloaded, .. } => *is_overloaded || self.is_slow,
            ServiceAnswer::Unanswered { reason: NoAnswer::TimedOut(_), .. } if !self.had_time => {
                return Health::Unknown;
            }
            ServiceAnswer::Later { .. } | ServiceAnswer::Unanswered { .. } => true,
        };
        if is_bad { Health::Bad } else { Health::Good }
    }
}

/// Returns true when a request with `timeout` had at least half of the longest time that its task
/// allows: the timeout of the callback, or the time to run if that is shorter.
fn had_time(timeout: Duration, callback_timeout: Duration, ttr: Duration) -> bool {
    timeout >= callback_timeout.min(ttr) / SLOW_DIVISOR
}

type Popping = BoxFuture<'static, Result<Vec<Popped>, Unavailable>>;
/// Gives `None` when the attempt is over before its request.
type Requesting = BoxFuture<'static, Option<AnsweredRequest>>;

impl Runner {
    /// Runs until the callback is deleted or the node drains. Requests in flight get their answers.
    pub async fn run(mut self) {
        let mut limiter = Limiter::new(clock::monotonic());
        let mut requests = FuturesUnordered::new();
        let mut popping: Option<Popping> = None;
        let mut may_pop_at = clock::monotonic();
        let mut backoff = Backoff::new(POP_PAUSE_MIN, POP_PAUSE_MAX);
        let mut throttle = Throttle::new(LOG_INTERVAL);
        let mut nodes = node_count(&self.bulletin.borrow_and_update());
        loop {
            let stored = Arc::new(self.callback.borrow_and_update().clone());
            let callback = &stored.callback;
            if self.bulletin.has_changed().unwrap_or(false) {
                nodes = node_count(&self.bulletin.borrow_and_update());
            }
            limiter.configure(callback.concurrency, callback.max_per_second, nodes);
            let now = clock::monotonic();
            let is_over = self.ending.is_cancelled();
            let url = self.url_of(&stored, &mut throttle);
            let sends = url.is_some() && !is_over && !callback.is_paused && !self.is_gone(&stored);
            let free = limiter.free(requests.len(), now).min(TASKS_MAX);
            let has_room = free > 0 && self.state.bytes.get() < BYTES_MAX;
            if sends && popping.is_none() && has_room && now >= may_pop_at {
                popping = Some(self.pop(free));
            } else if !sends
                && let Some(Ok(tasks)) = popping.take().and_then(|pop| pop.now_or_never())
            {
                // The offsets of these tasks are passed already. A pop that is dropped takes none.
                requests.extend(self.requests(&stored, url.as_ref(), tasks, &mut limiter));
            }
            if is_over && requests.is_empty() {
                return;
            }
            let wake = may_pop_at.max(limiter.next_at());
            tokio::select! {
                popped = next_of(&mut popping) => {
                    popping = None;
                    match popped {
                        Ok(tasks) => {
                            backoff.reset();
                            requests.extend(
                                self.requests(&stored, url.as_ref(), tasks, &mut limiter),
                            );
                        }
                        Err(reason) => {
                            may_pop_at = clock::monotonic().plus(backoff.next_pause());
                            if throttle.lets_through(clock::monotonic()) {
                                tracing::warn!(
                                    topic = %stored.topic, ?reason,
                                    "a callback gets no tasks; retrying"
                                );
                            }
                        }
                    }
                }
                Some(answered) = requests.next(), if !requests.is_empty() => {
                    if let Some(answered) = answered {
                        self.note(&answered, &mut limiter, &mut throttle);
                    }
                }
                changed = self.callback.changed(), if !is_over => match changed {
                    Ok(()) => {
                        may_pop_at = clock::monotonic();
                        backoff.reset();
                    }
                    Err(_deleted) => self.ending.cancel(),
                },
                () = self.ending.cancelled(), if !is_over => {}
                () = clock::sleep(wake.since(now)), if wake > now => {}
            }
        }
    }

    /// Returns the URL, if this node may call it. Another node may: it then gets the tasks.
    fn url_of(&self, stored: &StoredCallback, throttle: &mut Throttle) -> Option<Url> {
        match self.sender.may_call(&stored.callback) {
            Ok(url) => Some(url),
            Err(error) => {
                if throttle.lets_through(clock::monotonic()) {
                    tracing::warn!(
                        topic = %stored.topic, error = chain(&error),
                        "this node may not call the service of a callback"
                    );
                }
                None
            }
        }
    }

    fn is_gone(&self, stored: &StoredCallback) -> bool {
        self.state.gone_revision.load(Ordering::Relaxed) == stored.revision
    }

    fn pop(&self, count_max: usize) -> Popping {
        let (service, permit) = (self.service.clone(), self.permits.0.clone());
        let call = PopCall { group: self.group.clone(), count_max, wait: WAIT };
        // A callback that is deleted or changed takes the tasks of a pop that has begun.
        Box::pin(async move { service.pop(&permit, call, &CancellationToken::new()).await })
    }

    /// Returns the requests of tasks, each at its time. Without a URL there are none, and the tasks
    /// come again by their time to run.
    fn requests(
        &self,
        stored: &Arc<StoredCallback>,
        url: Option<&Url>,
        tasks: Vec<Popped>,
        limiter: &mut Limiter,
    ) -> Vec<Requesting> {
        let now = clock::monotonic();
        let Some(url) = url else { return Vec::new() };
        let request = |task| self.request(stored, url.clone(), task, limiter.reserve(now));
        tasks.into_iter().map(request).collect()
    }

    /// Sends a task at `at`, and answers about it.
    fn request(
        &self,
        stored: &Arc<StoredCallback>,
        url: Url,
        mut task: Popped,
        at: Monotonic,
    ) -> Requesting {
        let (stored, state) = (Arc::clone(stored), Arc::clone(&self.state));
        let (service, permit) = (self.service.clone(), self.permits.1.clone());
        let (sender, metrics) = (Arc::clone(&self.sender), self.metrics.clone());
        Box::pin(async move {
            // The end of the node waits for these.
            let _in_flight = CountGuard::new(&metrics.in_flight, 1);
            let bytes = CountGuard::new(&state.bytes, task.record.bytes().saturating_as());
            clock::sleep(at.since(clock::monotonic())).await;
            let now = service.now();
            let timeout = stored.callback.timeout.min(task.finish_by.since(now));
            if timeout < TIMEOUT_MIN {
                // Nobody would wait for the answer.
                return None;
            }
            metrics.delay.observe(now.since(task.published_at).as_secs_f64());
            let began = clock::monotonic();
            let answer = sender.send((url, &stored.callback), &mut task, timeout).await;
            drop(bytes);
            let slow = stored.callback.timeout / SLOW_DIVISOR;
            let is_slow = clock::monotonic().since(began) > slow;
            metrics.count(name_of(&answer));
            if answer == ServiceAnswer::Gone {
                state.gone_revision.store(stored.revision, Ordering::Relaxed);
            }
            answer_about(&task, &answer, &service, &permit).await;
            if answer == ServiceAnswer::Gone {
                pause(&service, &stored).await;
            }
            let had_time = had_time(timeout, stored.callback.timeout, task.ttr);
            Some(AnsweredRequest { answer, is_slow, had_time })
        })
    }

    /// Tells the limiter how a request went, and logs a failure.
    fn note(&self, request: &AnsweredRequest, limiter: &mut Limiter, throttle: &mut Throttle) {
        let now = clock::monotonic();
        match request.health() {
            Health::Good => limiter.succeeded(),
            Health::Bad => limiter.failed(now),
            Health::Unknown => {}
        }
        let reason = match &request.answer {
            ServiceAnswer::Finished | ServiceAnswer::Gone => None,
            ServiceAnswer::Later { reason, .. } | ServiceAnswer::Failed { reason, .. } => {
                Some(reason)
            }
            ServiceAnswer::Unanswered { cause, .. } => Some(cause),
        };
        if let Some(reason) = reason
            && throttle.lets_through(now)
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
    }
}

/// Pauses the callback of a service that wants no more requests. Without success, this node alone
/// sends none.
async fn pause(service: &Service, stored: &StoredCallback) {
    const REASON: &str = "its service answered 410 Gone";
    for _attempt in 0..PAUSE_ATTEMPTS_MAX {
        match service.pause_callback(stored, REASON).await {
            Ok(true) => {
                tracing::warn!(
                    topic = %stored.topic,
                    "the callback is paused: {REASON}; set it again to go on"
                );
                return;
            }
            // The callback was changed meanwhile, or another request has paused it.
            Ok(false) => return,
            Err(reason) => tracing::debug!(topic = %stored.topic, ?reason, "pause a callback"),
        }
        clock::sleep(RETRY_PAUSE).await;
    }
}

/// Answers about a task as its consumer. Without success, the task comes again by its time to run.
/// A finish is repeated for [`FINISH_GRACE`] beyond it: it holds for later attempts, too.
async fn answer_about(
    task: &Popped,
    answer: &ServiceAnswer,
    service: &Service,
    permit: &Permit<Finish>,
) {
    let fail = |retry, reason: &str| ConsumerCall::Fail {
        attempt: task.attempt,
        retry,
        is_final: false,
        reason: reason.get(..reason.floor_char_boundary(REASON_MAX)).map(Into::into),
    };
    let call = match answer {
        // Any attempt may have done the work.
        ServiceAnswer::Finished => ConsumerCall::Finish { attempt: None },
        ServiceAnswer::Later { after, reason } => fail(Some(Due::After(*after)), reason),
        ServiceAnswer::Gone => fail(None, "the callback answered 410 Gone"),
        ServiceAnswer::Failed { reason, .. } => fail(None, reason),
        ServiceAnswer::Unanswered { reason, .. } => fail(None, &reason.to_string()),
    };
    let grace = if *answer == ServiceAnswer::Finished { FINISH_GRACE } else { Duration::ZERO };
    let until = task.finish_by.plus(grace);
    loop {
        match service.answer_for_callback(permit, task.id, call.clone()).await {
            Ok(_heard) => return,
            Err(reason) if service.now() >= until => {
                tracing::debug!(task = %task.id, ?reason, "answer for a callback");
                return;
            }
            Err(_unavailable) => clock::sleep(ANSWER_RETRY_PAUSE).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);

    fn health(answer: ServiceAnswer, is_slow: bool, had_time: bool) -> Health {
        AnsweredRequest { answer, is_slow, had_time }.health()
    }

    fn unanswered(reason: NoAnswer) -> ServiceAnswer {
        ServiceAnswer::Unanswered { reason, cause: "tried".to_owned() }
    }

    #[test]
    fn a_request_without_an_answer_is_never_a_success() {
        let late = || unanswered(NoAnswer::TimedOut(TIMEOUT));
        assert_eq!(health(late(), true, true), Health::Bad);
        for is_slow in [false, true] {
            assert_eq!(health(late(), is_slow, false), Health::Unknown);
        }
        for reason in [NoAnswer::NoConnection, NoAnswer::ForbiddenAddress, NoAnswer::Invalid] {
            for had_time in [false, true] {
                assert_eq!(health(unanswered(reason), false, had_time), Health::Bad, "{reason}");
            }
        }
    }

    #[test]
    fn an_answer_shows_the_health_of_its_service() {
        let failed = |is_overloaded| ServiceAnswer::Failed { reason: "no".into(), is_overloaded };
        let later = ServiceAnswer::Later { after: Duration::ZERO, reason: "later".to_owned() };
        assert_eq!(health(ServiceAnswer::Finished, false, false), Health::Good);
        assert_eq!(health(ServiceAnswer::Finished, true, true), Health::Bad);
        assert_eq!(health(ServiceAnswer::Gone, true, true), Health::Good);
        assert_eq!(health(later, false, true), Health::Bad);
        assert_eq!(health(failed(false), false, true), Health::Good);
        assert_eq!(health(failed(false), true, true), Health::Bad);
        assert_eq!(health(failed(true), false, true), Health::Bad);
    }

    #[test]
    fn a_time_to_run_below_the_timeout_leaves_a_request_enough_time() {
        let had_time = |timeout: u64, ttr: u64| {
            had_time(Duration::from_secs(timeout), TIMEOUT, Duration::from_secs(ttr))
        };
        assert!(had_time(10, 60) && had_time(5, 60) && !had_time(4, 60));
        // A dead service whose tasks have little time to run fails, too.
        assert!(had_time(4, 4) && had_time(2, 4) && !had_time(1, 4));
    }
}
