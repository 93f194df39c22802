//! Keeps the node's knowledge of policies and pauses up to date. Moves overdue tasks of paused
//! topics out of the leaves, and back after the pause.
//!
//! Every node does so. Each statement is a transaction and takes the rows it finds, so a dying node
//! leaves nothing half-done, and another one goes on.

use std::sync::Arc;
use std::time::Duration;

use az::SaturatingAs as _;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::policies::Seen;
use crate::clock;
use crate::domain::{IdRange, Monotonic, Shard, Timestamp};
use crate::error_chain::chain;
use crate::node::shared::NodeShared;
use crate::postgres::topics::Topics;
use crate::postgres::topics::held::HeldTasks;
use crate::postgres::{PostgresError, PostgresSettings};
use crate::shutdown::TaskFailure;

const INTERVAL: Duration = Duration::from_secs(1);
/// Interval between two looks for tasks to hold.
const HOLD_INTERVAL: Duration = Duration::from_secs(10);
/// Held tasks are looked for after each pause, and as rarely as this otherwise: a statement that
/// began before the end of a pause may hold tasks after it.
const RELEASE_INTERVAL: Duration = Duration::from_secs(600);
/// Time for moving tasks in a turn. Policies are read before and after it.
const TURN_MAX: Duration = Duration::from_secs(1);
/// A statement that holds tasks ends in this time.
const HOLD_MAX: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub struct PolicyKeeper {
    shared: Arc<NodeShared>,
    topics: Topics,
    held: HeldTasks,
    hold_at: Monotonic,
    /// Where the next turn goes on to hold tasks.
    held_to: Option<(Shard, Uuid)>,
    release_at: Monotonic,
    is_release_due: bool,
    /// The last held task that was looked at. `None` while no release is under way.
    released_to: Option<Uuid>,
}

impl PolicyKeeper {
    pub fn new(shared: Arc<NodeShared>, postgres: &PostgresSettings) -> Self {
        let now = clock::monotonic();
        Self {
            shared,
            topics: Topics::new(postgres, 1),
            held: HeldTasks::new(postgres),
            hold_at: now,
            held_to: None,
            release_at: now,
            is_release_due: false,
            released_to: None,
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
            let goes_on = self.released_to.is_some() && !is_failing;
            let pause = if goes_on { Duration::ZERO } else { INTERVAL };
            tokio::select! {
                () = stopping.cancelled() => return Ok(()),
                () = clock::sleep(pause) => {}
            }
        }
    }

    async fn turn(&mut self) -> Result<(), PostgresError> {
        self.shared.policies.begin_look();
        let seen = self.shared.policies.take_in(self.topics.all().await?);
        self.tell(&seen);
        let (now, at) = (self.shared.clock.now(), clock::monotonic());
        let Some(now) = now else { return Ok(()) };
        let is_after_pause =
            seen.resumed_at.is_some_and(|resumed_at| now < resumed_at.plus(HOLD_MAX));
        self.is_release_due |= is_after_pause || !seen.resumed.is_empty() || at >= self.release_at;
        // A failure of one must not keep the other waiting.
        let released = self.release(at).await;
        let held = match seen.paused_count > 0 && clock::monotonic() >= self.hold_at {
            true => self.hold(now).await,
            false => Ok(()),
        };
        if let (Err(_), Err(error)) = (&released, &held) {
            tracing::debug!(error = chain(error), "holding tasks of paused topics failed as well");
        }
        released.and(held)
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

    /// Holds what is overdue for longer than a leaf, shard by shard, until [`TURN_MAX`] is over.
    /// The next turn goes on, after a failure with the next shard.
    async fn hold(&mut self, now: Timestamp) -> Result<(), PostgresError> {
        let begun_at = clock::monotonic();
        self.hold_at = begun_at.plus(HOLD_INTERVAL);
        let place = self.held_to.take();
        let Some(oldest) = self.shared.leaves.oldest() else { return Ok(()) };
        let range = IdRange::of_times(oldest, now.minus(self.shared.cluster.leaf));
        if range.is_empty() {
            return Ok(());
        }
        let shards = self.shared.cluster.shards;
        let (mut shard, mut from) = place.unwrap_or((Shard::new(0), range.from));
        loop {
            let rest = IdRange { from: from.max(range.from), to: range.to };
            let next = shards.all().find(|other| *other > shard);
            let held = match self.held.hold(shard, rest).await {
                Ok(held) => held,
                Err(error) => {
                    self.held_to = next.map(|next| (next, range.from));
                    return Err(error);
                }
            };
            self.shared.metrics.pauses.held.inc_by(held.task_count);
            (shard, from) = match held.last {
                Some(last) => (shard, IdRange::after(last)),
                None => match next {
                    Some(next) => (next, range.from),
                    None => return Ok(()),
                },
            };
            let now = clock::monotonic();
            if now >= begun_at.plus(TURN_MAX) {
                self.held_to = Some((shard, from));
                self.hold_at = now;
                return Ok(());
            }
        }
    }

    /// Releases the held tasks of topics that are not paused, until [`TURN_MAX`] is over. The next
    /// turn goes on, also after a failure. A release that becomes due meanwhile begins afterwards.
    async fn release(&mut self, at: Monotonic) -> Result<(), PostgresError> {
        if self.released_to.is_none() && self.is_release_due {
            self.is_release_due = false;
            self.release_at = at.plus(RELEASE_INTERVAL);
            self.released_to = Some(IdRange::held().from);
        }
        let until = clock::monotonic().plus(TURN_MAX);
        while let Some(last) = self.released_to {
            let released = self.held.release(last).await?;
            self.shared.metrics.pauses.released.inc_by(released.task_count);
            self.shared.claim_late(released.ids);
            self.released_to = released.last;
            if clock::monotonic() >= until {
                break;
            }
        }
        Ok(())
    }
}
