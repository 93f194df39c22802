//! Counts pending tasks for the limits on them (`pending_max`), whenever submits ask for it. A
//! cluster without such limits counts nothing.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::access::limits::pending::{COUNT_EVERY, IDLE_COUNT_EVERY, PendingCount, PendingFigures};
use crate::clock;
use crate::domain::{Throttle, TopicName};
use crate::error_chain::chain;
use crate::node::metrics::NodeMetrics;
use crate::postgres::PostgresError;
use crate::postgres::lists::counts::TaskCounter;
use crate::shutdown::TaskFailure;

/// Counts at most once in [`COUNT_EVERY`], and after the first time once in [`IDLE_COUNT_EVERY`].
#[derive(Debug)]
pub struct PendingCounter {
    pub figures: Arc<PendingFigures>,
    /// The API counts with the same counter, because a count locks many leaves.
    pub counter: Arc<TaskCounter>,
    pub metrics: NodeMetrics,
}

impl PendingCounter {
    /// Runs until the node stops. A failed count is no failure: the next submit asks again.
    pub async fn run(self, stopping: CancellationToken) -> Result<(), TaskFailure> {
        let mut failure_log = Throttle::new(COUNT_EVERY * 6);
        loop {
            let is_wanted = self.figures.wanted().any();
            tokio::select! {
                () = stopping.cancelled() => return Ok(()),
                () = self.figures.asked() => {}
                () = clock::sleep(IDLE_COUNT_EVERY - COUNT_EVERY), if is_wanted => {}
            }
            if let Some(Err(error)) = stopping.run_until_cancelled(self.count()).await {
                self.metrics.pending_count_failures.inc();
                if failure_log.lets_through(clock::monotonic()) {
                    tracing::warn!(
                        error = chain(&error),
                        "counting pending tasks failed; two minutes after the last count, \
                         `pending_max` limits no submits on this node"
                    );
                }
            }
            tokio::select! {
                () = stopping.cancelled() => return Ok(()),
                () = clock::sleep(COUNT_EVERY) => {}
            }
        }
    }

    async fn count(&self) -> Result<(), PostgresError> {
        let wanted = self.figures.wanted();
        if wanted.topics {
            let at = clock::monotonic();
            let counted = self.counter.count(rand::random(), None).await?;
            let by_topic = counted.topics(|_| true).into_iter();
            let task_counts = by_topic.map(|(topic, count)| (TopicName::stored(&topic), count));
            let (task_counts, is_exact) = (task_counts.collect(), counted.is_exact);
            self.figures.take_topics(PendingCount { task_counts, is_exact, at });
        }
        if wanted.principals {
            let at = clock::monotonic();
            let (task_counts, is_exact) = self.counter.count_by_submitter(rand::random()).await?;
            self.figures.take_principals(PendingCount { task_counts, is_exact, at });
        }
        Ok(())
    }
}
