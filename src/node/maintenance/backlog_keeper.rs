//! Counts the tasks of the cluster for the metrics: pending, overdue and awaiting ones, and dead
//! letters.
//!
//! The owner of shard 0 counts, and the other nodes show 0, so that the sum over all nodes is the
//! count of the cluster. While shards change owners, two nodes may count, or none.
//!
//! Each statement reads a limited number of rows and pages, on connections apart from claims,
//! submits and settles (`postgres/lists/counts.rs`, `postgres/lists/backlog.rs`). An outage is not
//! a failure: the metrics keep the last values, and one metric shows the time of the count.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::COUNTING_SHARD;
use crate::clock;
use crate::domain::{Backlog, Monotonic, Timestamp, TopicName};
use crate::error_chain::chain;
use crate::node::membership::Bulletin;
use crate::node::messages::Figure;
use crate::node::metrics::backlog::BacklogFigures;
use crate::node::metrics::topics::TopicCounts;
use crate::node::shared::NodeShared;
use crate::postgres::PostgresError;
use crate::postgres::lists::backlog::BacklogCounter;
use crate::postgres::lists::counts::TaskCounter;
use crate::shutdown::TaskFailure;

/// Interval between two looks at whether this node counts.
const INTERVAL: Duration = Duration::from_secs(1);
/// Interval between two counts. A slow count makes it longer: counts take at most a twentieth of
/// the time. Index entries of claimed tasks make them slow.
const COUNT_INTERVAL: Duration = Duration::from_secs(15);
const PAUSE_FACTOR: u32 = 20;

/// Counts tasks.
#[derive(Debug)]
pub struct BacklogKeeper {
    pub shared: Arc<NodeShared>,
    pub bulletin: watch::Receiver<Bulletin>,
    pub tasks: Arc<TaskCounter>,
    pub backlog: Arc<BacklogCounter>,
}

impl BacklogKeeper {
    /// Counts until the node drains.
    pub async fn run(self, draining: CancellationToken) -> Result<(), TaskFailure> {
        let (mut next_at, mut is_failing) = (None, false);
        loop {
            // A count may be cut off anywhere, because it changes nothing.
            let turn = Box::pin(self.turn(&mut next_at));
            let Some(outcome) = draining.run_until_cancelled(turn).await else { break };
            if let Err(error) = &outcome
                && !is_failing
            {
                tracing::warn!(error = chain(error), "counting the backlog failed; retrying");
            }
            is_failing = outcome.is_err();
            tokio::select! {
                () = draining.cancelled() => break,
                () = clock::sleep(INTERVAL) => {}
            }
        }
        self.clear();
        Ok(())
    }

    /// Shows zeros: another node counts.
    fn clear(&self) {
        self.shared.metrics.backlog.clear();
        self.shared.metrics.topics.show(TopicCounts::default());
    }

    /// Counts in this node's turn, when the last count is old. `next_at` is `None` until this node
    /// counts.
    async fn turn(&self, next_at: &mut Option<Monotonic>) -> Result<(), PostgresError> {
        if !self.bulletin.borrow().mine.contains(&COUNTING_SHARD) {
            if next_at.take().is_some() {
                self.clear();
            }
            return Ok(());
        }
        let started_at = clock::monotonic();
        if next_at.is_some_and(|at| started_at < at) {
            return Ok(());
        }
        let (clock, leaves) = (&self.shared.clock, &self.shared.leaves);
        let (Some(until), Some(from)) = (clock.now(), leaves.oldest()) else { return Ok(()) };
        let counted = self.count(from, until).await;
        *next_at = Some(started_at.plus(interval_after(clock::monotonic().since(started_at))));
        counted
    }

    /// Counts. Tasks due from `from`, the start of the oldest leaf, to `until` are overdue.
    async fn count(&self, from: Timestamp, until: Timestamp) -> Result<(), PostgresError> {
        let shared = &self.shared;
        let counted = self.tasks.count(rand::random(), None).await?;
        let backlog = self.backlog.count(from, until).await?;
        let awaiting = self.backlog.awaiting().await?;
        let dead_letters = self.backlog.dead_letters().await?;
        let is_running = |topic: &str| !shared.policies.is_paused(&TopicName::stored(topic));
        let overdue = topics_of(counted.overdue_topics(is_running));
        let pending = topics_of(counted.topics(|_topic| true));
        shared.metrics.backlog.show(&BacklogFigures {
            counted_at: counted.as_of,
            pending: Figure { task_count: sum(&pending), is_exact: counted.is_exact },
            overdue: overdue_figure(&backlog, sum(&overdue)),
            oldest_due_at: backlog.oldest_due_at,
            awaiting: Figure { task_count: awaiting.count, is_exact: awaiting.is_exact },
            dead_letters: Figure {
                task_count: sum(&dead_letters.topics),
                is_exact: dead_letters.is_exact,
            },
        });
        shared.metrics.topics.show(TopicCounts {
            pending: &pending,
            overdue: &overdue,
            dead_letters: &dead_letters.topics,
        });
        Ok(())
    }
}

/// Returns the interval between the starts of a count that `took` so long and the next one.
fn interval_after(took: Duration) -> Duration {
    COUNT_INTERVAL.max(took.saturating_mul(PAUSE_FACTOR))
}

fn topics_of(counts: Vec<(String, u64)>) -> Vec<(TopicName, u64)> {
    counts.into_iter().map(|(topic, count)| (TopicName::stored(&topic), count)).collect()
}

fn sum(topics: &[(TopicName, u64)]) -> u64 {
    topics.iter().map(|(_topic, count)| count).sum()
}

/// Returns the number of overdue tasks: the exact one, or beyond the limit of the exact count the
/// `estimate`.
fn overdue_figure(backlog: &Backlog, estimate: u64) -> Figure {
    let task_count =
        if backlog.is_exact { backlog.task_count } else { backlog.task_count.max(estimate) };
    Figure { task_count, is_exact: backlog.is_exact }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_take_at_most_a_twentieth_of_the_time() {
        let after = |millis| interval_after(Duration::from_millis(millis));
        assert_eq!((after(0), after(750)), (COUNT_INTERVAL, COUNT_INTERVAL));
        assert_eq!(after(2_000), Duration::from_secs(40));
    }

    #[test]
    fn an_estimate_counts_beyond_the_limit_of_the_exact_count_and_never_below_it() {
        let figure = |task_count, is_exact, estimate| {
            let backlog = Backlog { task_count, is_exact, oldest_due_at: None };
            let figure = overdue_figure(&backlog, estimate);
            (figure.task_count, figure.is_exact)
        };
        assert_eq!(figure(7, true, 900), (7, true));
        assert_eq!(figure(10_000, false, 45_000), (45_000, false));
        assert_eq!(figure(10_000, false, 3_000), (10_000, false));
    }
}
