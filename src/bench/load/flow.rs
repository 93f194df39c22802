//! Submits tasks at a rate (open loop), or as fast as the connections allow (closed loop).
//!
//! In an open loop each call starts at its planned time, whether or not earlier calls were
//! answered. The wait for a free connection counts as part of the call (no coordinated omission).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::intake::{LoadConnection, LoadTarget};
use crate::bench::ledger::{Ledger, Planned};
use crate::bench::results::quantiles::Spans;
use crate::clock;
use crate::domain::Monotonic;

/// Interval at which the due calls are released.
const TICK: Duration = Duration::from_millis(1);

/// Calls waiting for a connection. The queue is bounded only by the number of tasks in the run,
/// because an open loop does not slow down when the other side does.
#[derive(Debug)]
struct CallQueue {
    calls: Mutex<VecDeque<PlannedCall>>,
    ready: Semaphore,
}

#[derive(Debug)]
struct PlannedCall {
    tasks: Vec<Planned>,
    released_at: Monotonic,
}

impl CallQueue {
    fn push(&self, call: PlannedCall) {
        self.calls.lock().push_back(call);
        self.ready.add_permits(1);
    }

    /// Returns the next call, or `None` once the queue is closed and empty.
    async fn pop(&self) -> Option<PlannedCall> {
        if let Ok(permit) = self.ready.acquire().await {
            permit.forget();
        }
        self.calls.lock().pop_front()
    }
}

/// Submits the tasks of `next` at a rate. `next` returns the tasks of the due calls, and says when
/// the run is over. Returns the latencies of the answers, measured from the release of the call.
///
/// # Errors
/// Returns an error when a connection cannot be opened.
pub async fn open_loop<I: LoadTarget>(
    intake: &I,
    lane_count: usize,
    ledger: &Arc<Ledger>,
    mut next: impl FnMut(Duration) -> NextStep,
) -> Result<Spans, String> {
    let queue = Arc::new(CallQueue { calls: Mutex::default(), ready: Semaphore::new(0) });
    let mut workers = JoinSet::new();
    for number in 0..lane_count {
        let (mut connection, queue, ledger) =
            (intake.open(number).await?, Arc::clone(&queue), Arc::clone(ledger));
        workers.spawn(async move {
            let mut spans = Spans::default();
            while let Some(call) = queue.pop().await {
                submit(&mut connection, &call.tasks, &ledger).await;
                spans.record(clock::monotonic().since(call.released_at));
            }
            spans
        });
    }
    let started_at = clock::monotonic();
    loop {
        let now = clock::monotonic();
        match next(now.since(started_at)) {
            NextStep::Call(tasks) => queue.push(PlannedCall { tasks, released_at: now }),
            NextStep::Wait => clock::sleep(TICK).await,
            NextStep::Over => break,
        }
    }
    queue.ready.close();
    Ok(together(workers).await)
}

/// The next step of an open loop.
#[derive(Debug)]
pub enum NextStep {
    /// Submit these tasks in one call, now.
    Call(Vec<Planned>),
    /// The next call is not due yet.
    Wait,
    Over,
}

/// Submits the tasks of `next`, call by call on each connection, until `next` returns none. `next`
/// gets the number of the connection.
///
/// # Errors
/// Returns an error when a connection cannot be opened.
pub async fn closed_loop<I: LoadTarget>(
    intake: &I,
    lane_count: usize,
    ledger: &Arc<Ledger>,
    next: impl Fn() -> Option<Vec<Planned>> + Send + Sync + 'static,
) -> Result<Spans, String> {
    let next = Arc::new(next);
    let mut workers = JoinSet::new();
    for number in 0..lane_count {
        let (mut connection, next, ledger) =
            (intake.open(number).await?, Arc::clone(&next), Arc::clone(ledger));
        workers.spawn(async move {
            let mut spans = Spans::default();
            while let Some(tasks) = next() {
                let sent_at = clock::monotonic();
                submit(&mut connection, &tasks, &ledger).await;
                spans.record(clock::monotonic().since(sent_at));
            }
            spans
        });
    }
    Ok(together(workers).await)
}

async fn submit<L: LoadConnection>(connection: &mut L, tasks: &[Planned], ledger: &Ledger) {
    match connection.submit(tasks).await {
        Ok(answer) => ledger.answered(tasks, |index| answer.reply(index), answer.reason()),
        Err(lost) => ledger.unanswered(&lost),
    }
}

async fn together(mut workers: JoinSet<Spans>) -> Spans {
    let mut all = Spans::default();
    while let Some(ended) = workers.join_next().await {
        match ended {
            Ok(spans) => all.add(&spans),
            Err(error) => tracing::error!(%error, "the task of a connection has panicked"),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::load::intake::CallResult;

    struct Slow;

    impl LoadTarget for Slow {
        type Connection = Self;

        async fn open(&self, _number: usize) -> Result<Self, String> {
            Ok(Self)
        }
    }

    impl LoadConnection for Slow {
        async fn submit(&mut self, _tasks: &[Planned]) -> Result<CallResult, String> {
            tokio::time::timeout(Duration::from_millis(20), std::future::pending::<()>())
                .await
                .unwrap_err();
            Ok(CallResult::All)
        }
    }

    #[tokio::test]
    async fn a_call_that_waits_for_a_connection_is_slow_and_not_left_out() {
        let ledger = Arc::new(Ledger::new(1, 0));
        let planned = Arc::clone(&ledger);
        let mut calls = 0;
        // Ten concurrent calls share one connection that takes 20 ms for each. The last call waits
        // for the nine before it.
        let next = move |_elapsed| {
            calls += 1;
            if calls > 10 { NextStep::Over } else { NextStep::Call(vec![planned.plan(0)]) }
        };
        let spans = open_loop(&Slow, 1, &ledger, next).await.unwrap();
        assert_eq!(ledger.snapshot().accepted_count, 10);
        assert!(
            spans.at(1.0) >= 200.0 && spans.at(1.0) - spans.at(0.0) >= 150.0,
            "{:?}",
            spans.quantiles()
        );
    }

    #[tokio::test]
    async fn a_closed_loop_submits_until_there_is_nothing_more() {
        let ledger = Arc::new(Ledger::new(1, 0));
        let planned = Arc::clone(&ledger);
        let left = Mutex::new(7);
        let next = move || {
            let mut left = left.lock();
            *left -= 1;
            (*left >= 0).then(|| vec![planned.plan(0), planned.plan(0)])
        };
        closed_loop(&Slow, 3, &ledger, next).await.unwrap();
        assert_eq!(ledger.snapshot().accepted_count, 14);
    }
}
