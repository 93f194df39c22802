//! The clock of a dev server, set by tests, and the published records for the tests to read.
//!
//! The clock jumps from one due time to the next, and waits there until the tasks are published and
//! settled. The clock also stops where schedules make runs, until the runs are made. So every task
//! goes out at the due time, in order, with a receipt as proof, and a month takes as long as its
//! tasks.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::broker::Broker;
use crate::api::dev_port::{ClockChange, ClockRequest, ClockState, PublishedRequest, Unpublished};
use crate::app::Handles;
use crate::clock;
use crate::domain::leaves::Rules;
use crate::domain::{ClusterSettings, Timestamp};
use crate::error_chain::chain;
use crate::node::maintenance::{Leaves, Maintenance, MaintenanceMetrics};
use crate::postgres::PostgresError;
use crate::postgres::cluster::dev_database::{DevDatabase, Outlook};
use crate::shutdown::{TaskFailure, Tasks};

/// A task is overdue one step of the clock of ids after its due time.
const PAST: Duration = Duration::from_millis(1);
/// Interval of the looks whether due tasks are settled.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Interval at which the node is asked to look for due tasks again.
const CALL_EVERY: Duration = Duration::from_millis(50);
/// How long a due task may stay unpublished before the clock gives up on it.
const STUCK_MAX: Duration = Duration::from_secs(10);
/// How far ahead of the clock partitions are created: few, because a test waits for them. The node
/// creates the others within a minute.
const AHEAD: Duration = Duration::from_secs(3600);
/// The clock may go on by this much without further partitions.
const COVERED: Duration = Duration::from_secs(1800);
/// The most requests that wait for the end of a change.
const WAITING_MAX: usize = 64;

/// The clock, and the parts of the node that follow.
#[derive(Debug)]
pub struct DevTime {
    database: DevDatabase,
    cluster: ClusterSettings,
    handles: Handles,
    ahead: Duration,
    /// The time for which partitions were created last.
    made_for: Option<Timestamp>,
}

#[derive(Debug, thiserror::Error)]
enum ClockError {
    #[error(transparent)]
    Postgres(#[from] PostgresError),
    #[error(
        "a task that was due at {due_at} is not published after {STUCK_MAX:?}; /v1/cluster and the \
         log say more. The clock stays there"
    )]
    Stuck { due_at: Timestamp },
    #[error(
        "a schedule that was to make its runs at {due_at} has not made them after {STUCK_MAX:?}; \
         the log says more. The clock stays there"
    )]
    NoRuns { due_at: Timestamp },
    #[error("the partitions for {0} are not there")]
    NoPartitions(Timestamp),
    #[error("a reset of the clock has ended the advance")]
    Ended,
}

/// The requests for the clock. A reset waits for no advance: it ends the one that runs, and those
/// that wait.
#[derive(Debug)]
struct ClockQueue {
    requests: mpsc::Receiver<ClockRequest>,
    /// Requests that came during a change.
    waiting: VecDeque<ClockRequest>,
}

impl ClockQueue {
    /// Returns the next request, or `None` when no more can come.
    async fn next(&mut self) -> Option<ClockRequest> {
        match self.waiting.pop_front() {
            Some(request) => Some(request),
            None => self.requests.recv().await,
        }
    }

    /// Waits for the end of `change`, and takes in requests meanwhile.
    async fn during<T>(&mut self, change: impl Future<Output = T>, reset: &CancellationToken) -> T {
        let mut change = pin!(change);
        loop {
            tokio::select! {
                changed = &mut change => return changed,
                Some(request) = self.requests.recv(), if self.waiting.len() < WAITING_MAX => {
                    self.take_in(request, reset);
                }
            }
        }
    }

    /// Takes in a request that came during a change. A reset cancels `reset`, and has the advances
    /// before it refused.
    fn take_in(&mut self, request: ClockRequest, reset: &CancellationToken) {
        if request.change == ClockChange::Reset {
            reset.cancel();
            let (resets, advances): (VecDeque<_>, VecDeque<_>) =
                self.waiting.drain(..).partition(|waiting| waiting.change == ClockChange::Reset);
            self.waiting = resets;
            for ClockRequest { answer, .. } in advances {
                // A caller that has gone away needs no answer.
                answer.send(Err(ClockError::Ended.to_string())).ok();
            }
        }
        self.waiting.push_back(request);
    }
}

impl DevTime {
    pub fn new(database: DevDatabase, cluster: ClusterSettings, handles: Handles) -> Self {
        Self { database, cluster, handles, ahead: Duration::ZERO, made_for: None }
    }

    /// Answers requests, one after the other, until `tasks` stop. A reset ends an advance.
    pub async fn run(
        mut self,
        requests: mpsc::Receiver<ClockRequest>,
        tasks: Tasks,
    ) -> Result<(), TaskFailure> {
        let mut queue = ClockQueue { requests, waiting: VecDeque::new() };
        loop {
            let request = tokio::select! {
                request = queue.next() => request,
                () = tasks.draining.cancelled() => return Ok(()),
            };
            let Some(ClockRequest { change, answer }) = request else { return Ok(()) };
            let reset = CancellationToken::new();
            let changing = queue.during(Box::pin(self.change(change, &reset)), &reset);
            let Some(changed) = tasks.draining.run_until_cancelled(changing).await else {
                return Ok(());
            };
            // A caller that has gone away needs no answer.
            answer.send(changed.map_err(|error| chain(&error))).ok();
        }
    }

    async fn change(
        &mut self,
        change: ClockChange,
        reset: &CancellationToken,
    ) -> Result<ClockState, ClockError> {
        match change {
            ClockChange::Advance(span) => self.advance(span, reset).await?,
            ClockChange::Reset => self.reset().await?,
        }
        let now = self.read_clock().await?.now;
        Ok(ClockState { now, ahead: self.ahead })
    }

    /// Lets `span` pass, or the part of it before a `reset`. The advance ends between two steps of
    /// the clock: the statements of a step that is broken off could take effect after the reset.
    async fn advance(
        &mut self,
        span: Duration,
        reset: &CancellationToken,
    ) -> Result<(), ClockError> {
        let end = self.read_clock().await?.now.plus(span);
        let (mut stands_since, mut called_at) = (clock::monotonic(), None);
        let mut stood_at = None;
        loop {
            if reset.is_cancelled() {
                return Err(ClockError::Ended);
            }
            let Outlook { now, next_due_at, unsettled_due_at, runs_due_at, .. } =
                self.read_clock().await?;
            let due_at = [next_due_at, unsettled_due_at, runs_due_at].into_iter().flatten().min();
            let target = due_at.filter(|due_at| *due_at <= end).map(|due_at| due_at.plus(PAST));
            match target {
                Some(target) if now < target => {
                    self.set(now, target).await?;
                    (stands_since, called_at) = (clock::monotonic(), None);
                }
                Some(_) => {
                    let at = clock::monotonic();
                    if stood_at != due_at {
                        (stood_at, stands_since) = (due_at, at);
                    }
                    if let Some(due_at) = due_at
                        && at.since(stands_since) >= STUCK_MAX
                    {
                        return Err(match runs_due_at == Some(due_at) {
                            true => ClockError::NoRuns { due_at },
                            false => ClockError::Stuck { due_at },
                        });
                    }
                    if called_at.is_none_or(|called_at| at.since(called_at) >= CALL_EVERY) {
                        self.handles.service.wake_loops();
                        called_at = Some(at);
                    }
                    clock::sleep(POLL_INTERVAL).await;
                }
                None if now < end => self.set(now, end).await?,
                None => return Ok(()),
            }
        }
    }

    async fn reset(&mut self) -> Result<(), ClockError> {
        self.ahead = Duration::ZERO;
        self.database.set_ahead(self.ahead).await?;
        let now = self.read_clock().await?.now;
        let leaves = self.make_partitions(now, Duration::ZERO).await?;
        self.handles.leaves.follow(&leaves);
        self.handles.service.wake_loops();
        Ok(())
    }

    /// Sets the clock from `now` to `target`.
    async fn set(&mut self, now: Timestamp, target: Timestamp) -> Result<(), ClockError> {
        let span = target.since(now);
        let is_covered = self.made_for.is_some_and(|made_for| target < made_for.plus(COVERED));
        let leaves = match is_covered {
            true => None,
            false => Some(self.make_partitions(target, span).await?),
        };
        self.ahead += span;
        self.database.set_ahead(self.ahead).await?;
        // The node's clock follows before the node looks.
        self.read_clock().await?;
        // The node learns of the partitions after the jump. Before, a task due in the gap between
        // the present and the target would be sent to a partition that does not exist.
        if let Some(leaves) = leaves {
            self.handles.leaves.follow(&leaves);
        }
        self.handles.service.wake_loops();
        Ok(())
    }

    /// Creates the partitions for `at`, by a session with a clock ahead by `span`: no claim must
    /// meet the new time without partitions. Returns the leaves as seen by that session.
    async fn make_partitions(
        &mut self,
        at: Timestamp,
        span: Duration,
    ) -> Result<Arc<Leaves>, ClockError> {
        let leaves = Arc::new(Leaves::default());
        let rules = Rules { ahead_max: AHEAD, ..Rules::new(&self.cluster) };
        let mut maintenance = Maintenance::new(
            &self.database.ahead_by(span),
            rules,
            Arc::clone(&leaves),
            MaintenanceMetrics::default(),
        );
        if !maintenance.make_all().await? {
            return Err(ClockError::NoPartitions(at));
        }
        self.made_for = Some(at);
        Ok(leaves)
    }

    /// Reads the clock of the database, and tells the node the time.
    async fn read_clock(&mut self) -> Result<Outlook, ClockError> {
        let outlook = self.database.outlook().await?;
        self.handles.clock.take_in(outlook.now, outlook.asked_at);
        Ok(outlook)
    }
}

/// Answers questions for the records of topics until `tasks` stop.
pub async fn show_published(
    broker: Option<Broker>,
    mut requests: mpsc::Receiver<PublishedRequest>,
    tasks: Tasks,
) -> Result<(), TaskFailure> {
    loop {
        let request = tokio::select! {
            request = requests.recv() => request,
            () = tasks.stopping.cancelled() => return Ok(()),
        };
        let Some(PublishedRequest { topic, count_max, answer }) = request else { return Ok(()) };
        let found = match &broker {
            Some(broker) => broker.published(topic.as_str(), count_max),
            None => Err(Unpublished::Unreadable(
                "dev reads the records of its own broker only, not those of --kafka".to_owned(),
            )),
        };
        // A caller that has gone away needs no answer.
        answer.send(found).ok();
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    const DAY: ClockChange = ClockChange::Advance(Duration::from_secs(86_400));
    const HOUR: ClockChange = ClockChange::Advance(Duration::from_secs(3_600));

    fn request(
        change: ClockChange,
    ) -> (ClockRequest, oneshot::Receiver<Result<ClockState, String>>) {
        let (answer, answered) = oneshot::channel();
        (ClockRequest { change, answer }, answered)
    }

    #[tokio::test]
    async fn a_reset_ends_the_advance_that_runs_and_those_before_it() {
        let (sender, requests) = mpsc::channel(3);
        let mut queue = ClockQueue { requests, waiting: VecDeque::new() };
        let (before, answered) = request(DAY);
        let (after, _answered_later) = request(HOUR);
        for request in [before, request(ClockChange::Reset).0, after] {
            sender.send(request).await.unwrap();
        }
        // An advance ends when it sees the reset.
        let reset = CancellationToken::new();
        queue.during(reset.cancelled(), &reset).await;
        let said = answered.await.unwrap().unwrap_err();
        assert_eq!(said, "a reset of the clock has ended the advance");
        assert_eq!(queue.next().await.unwrap().change, ClockChange::Reset);
        assert_eq!(queue.next().await.unwrap().change, HOUR);
        drop(sender);
        assert!(queue.next().await.is_none());
    }

    #[tokio::test]
    async fn a_change_goes_on_while_advances_wait_and_when_no_more_can_come() {
        let (sender, requests) = mpsc::channel(3);
        let mut queue = ClockQueue { requests, waiting: VecDeque::new() };
        sender.send(request(DAY).0).await.unwrap();
        sender.send(request(HOUR).0).await.unwrap();
        let reset = CancellationToken::new();
        let changing = async {
            drop(sender);
            tokio::task::yield_now().await;
            "done"
        };
        assert_eq!(queue.during(changing, &reset).await, "done");
        assert!(!reset.is_cancelled());
        assert_eq!(queue.next().await.unwrap().change, DAY);
        assert_eq!(queue.next().await.unwrap().change, HOUR);
        assert!(queue.next().await.is_none());
    }

    #[test]
    fn a_second_reset_leaves_the_first_one_in_its_place() {
        let (_sender, requests) = mpsc::channel(1);
        let mut queue = ClockQueue { requests, waiting: VecDeque::new() };
        let reset = CancellationToken::new();
        for change in [ClockChange::Reset, DAY, ClockChange::Reset, HOUR] {
            queue.take_in(request(change).0, &reset);
        }
        let left: Vec<ClockChange> = queue.waiting.iter().map(|request| request.change).collect();
        assert_eq!(left, [ClockChange::Reset, ClockChange::Reset, HOUR]);
    }
}
