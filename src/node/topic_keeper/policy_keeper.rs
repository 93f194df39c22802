//! Keeps the node's knowledge of policies and pauses up to date. Moves overdue tasks of paused
//! topics out of the leaves, and back after the pause.
//!
//! Every node does it. Each statement commits by itself and takes what it finds, so a node that
//! dies leaves nothing half-done, and another one goes on.

use std::sync::Arc;
use std::time::Duration;

use az::SaturatingAs as _;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::policies::Seen;
use crate::clock;
use crate::domain::{IdRange, Monotonic, Timestamp};
use crate::error_chain::chain;
use crate::node::shared::NodeShared;
use crate::postgres::topics::Topics;
use crate::postgres::topics::held::{HeldTasks, held_ids};
use crate::postgres::{PostgresError, PostgresSettings};
use crate::shutdown::TaskFailure;

const INTERVAL: Duration = Duration::from_secs(1);
/// Interval between two looks for tasks to hold.
const HOLD_INTERVAL: Duration = Duration::from_secs(10);
/// Held tasks are looked for after each pause, and as rarely as this otherwise: a statement that
/// began before the end of a pause may hold tasks after it.
const RELEASE_INTERVAL: Duration = Duration::from_secs(600);
/// A statement that holds tasks ends in this time.
const HOLD_MAX: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub struct PolicyKeeper {
    shared: Arc<NodeShared>,
    topics: Topics,
    held: HeldTasks,
    hold_at: Monotonic,
    release_at: Monotonic,
}

impl PolicyKeeper {
    pub fn new(shared: Arc<NodeShared>, postgres: &PostgresSettings) -> Self {
        let now = clock::monotonic();
        Self {
            shared,
            topics: Topics::new(postgres, 1),
            held: HeldTasks::new(postgres),
            hold_at: now,
            release_at: now,
        }
    }

    /// Runs until the node stops.
    pub async fn run(mut self, stopping: CancellationToken) -> Result<(), TaskFailure> {
        let mut is_failing = false;
        loop {
            // A turn may be cut off anywhere, because every statement commits by itself.
            let Some(outcome) = stopping.run_until_cancelled(self.turn()).await else {
                return Ok(());
            };
            if let Err(error) = &outcome
                && !is_failing
            {
                tracing::warn!(
                    error = chain(error),
                    "reading the policies of topics, or moving tasks of paused ones, failed; \
                     retrying"
                );
            }
            is_failing = outcome.is_err();
            tokio::select! {
                () = stopping.cancelled() => return Ok(()),
                () = clock::sleep(INTERVAL) => {}
            }
        }
    }

    async fn turn(&mut self) -> Result<(), PostgresError> {
        let seen = self.shared.policies.take_in(self.topics.all().await?);
        self.tell(&seen);
        let (now, at) = (self.shared.clock.now(), clock::monotonic());
        let Some(now) = now else { return Ok(()) };
        if seen.paused_count > 0 && at >= self.hold_at {
            self.hold_at = at.plus(HOLD_INTERVAL);
            self.hold(now).await?;
        }
        let is_after_pause =
            seen.resumed_at.is_some_and(|resumed_at| now < resumed_at.plus(HOLD_MAX));
        if is_after_pause || !seen.resumed.is_empty() || at >= self.release_at {
            self.release_at = at.plus(RELEASE_INTERVAL);
            self.release().await?;
        }
        Ok(())
    }

    fn tell(&self, seen: &Seen) {
        for topic in &seen.paused {
            tracing::info!(%topic, "the topic is paused; its tasks wait in their table");
        }
        for topic in &seen.resumed {
            tracing::info!(%topic, "the topic is resumed");
        }
        if !seen.resumed.is_empty() {
            self.shared.sweep();
        }
        let metrics = &self.shared.metrics.pauses;
        metrics.topics.set(seen.paused_count.saturating_as());
        let longest =
            seen.paused_since.map_or(Duration::ZERO, |since| self.shared.now().since(since));
        metrics.longest.set(longest.as_secs().saturating_as());
    }

    /// Holds what is overdue for longer than a leaf.
    async fn hold(&mut self, now: Timestamp) -> Result<(), PostgresError> {
        let Some(oldest) = self.shared.leaves.oldest() else { return Ok(()) };
        let range = IdRange::of_times(oldest, now.minus(self.shared.cluster.leaf));
        while !range.is_empty() {
            let (count, has_more) = self.held.hold(range).await?;
            self.shared.metrics.pauses.held.inc_by(count);
            if !has_more {
                break;
            }
        }
        Ok(())
    }

    /// Releases the held tasks of topics that are not paused, in the order of their due times.
    async fn release(&mut self) -> Result<(), PostgresError> {
        let mut after: Option<Uuid> = Some(held_ids().from);
        while let Some(last) = after {
            let released = self.held.release(last).await?;
            self.shared.metrics.pauses.released.inc_by(released.task_count);
            self.shared.look_after(released.ids);
            after = released.last;
        }
        Ok(())
    }
}
