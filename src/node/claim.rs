//! The claim loops. Each loop claims from its part of the node's shards, by the rules of
//! [`crate::engine::claiming`].

use std::sync::Arc;
use std::time::Duration;

use az::SaturatingAs as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::in_flight::batches::Past;
use super::membership::{Bulletin, LoopProgress, cause_of};
use super::shared::NodeShared;
use crate::clock;
use crate::domain::ids::floor_of;
use crate::domain::{Backoff, Batch, BatchId, IdRange, Shard, Timestamp};
use crate::engine::claiming::{Claim, ClaimSettings, Claiming, Narrowing, Scope, Taken};
use crate::engine::sweeping::Sweeping;
use crate::error_chain::chain;
use crate::failpoint::{Failpoint, reach};
use crate::postgres::PostgresError;
use crate::postgres::tasks::claim::{
    ClaimAnswer, ClaimRequest, Claimed, Claims, Source, smallints,
};
use crate::shutdown::TaskFailure;

/// Pauses after failed claims, from the first to the longest.
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(1);
/// Maximum number of quarantined ids that claims skip. More of them mean another fault.
const QUARANTINE_MAX: usize = 1_000;

/// How often the claim loops look.
#[derive(Clone, Copy, Debug)]
pub struct ClaimPace {
    /// While many tasks are due.
    pub tick: Duration,
    /// While few tasks are due. A claim and the settle of its batch cost Postgres the same for one
    /// task as for fifty.
    pub tick_calm: Duration,
    /// While no task is near. The window leaves time for it.
    pub tick_idle: Duration,
    pub loop_count: usize,
}

/// A claim of this many tasks is worth its cost. After a smaller one, the next claim waits longer.
const ROWS_CALM: u32 = 250;

impl ClaimPace {
    /// Returns the time from the beginning of a look that took `got` tasks to the beginning of the
    /// next.
    fn after(&self, got: u64) -> Duration {
        let got = got.max(1).saturating_as::<u32>();
        let stretched = self.tick_calm.saturating_mul(ROWS_CALM) / got;
        stretched.min(self.tick_calm).max(self.tick)
    }
}

/// One claim loop.
#[derive(Debug)]
pub struct Claimer {
    index: usize,
    pace: ClaimPace,
    shared: Arc<NodeShared>,
    bulletin: watch::Receiver<Bulletin>,
    progress: LoopProgress,
    draining: CancellationToken,
    claims: Claims,
    claiming: Claiming,
    /// Claims from `task_far`. It only has deferred ranges.
    far: Claiming,
    /// The shards of the node.
    shards: Vec<Shard>,
    /// The shards of this loop.
    mine: Vec<i16>,
    /// Shards of other nodes: the first loop claims long-overdue tasks there. Other loops of this
    /// node sweep the node's own shards, and a second reader would scan all dead rows that the
    /// first one left.
    others: Vec<i16>,
    all: Vec<i16>,
    sweeping: Sweeping,
    sweeping_others: Sweeping,
    /// The last turn at the watermark found nothing, so the next claim is preceded by a look.
    is_idle: bool,
    backoff: Backoff,
    /// This loop's part of the gauges: deferred ranges, and those waiting for room.
    shown: [i64; 2],
}

/// The parts of a loop that are its own.
#[derive(Debug)]
pub struct ClaimParts {
    pub pace: ClaimPace,
    pub settings: ClaimSettings,
    pub bulletin: watch::Receiver<Bulletin>,
    pub progress: LoopProgress,
    pub draining: CancellationToken,
    pub claims: Claims,
}

impl Claimer {
    pub fn new(index: usize, shared: Arc<NodeShared>, parts: ClaimParts) -> Self {
        let cluster_shards: Vec<Shard> = shared.cluster.shards.all().collect();
        let all = smallints(&cluster_shards);
        Self {
            index,
            pace: parts.pace,
            bulletin: parts.bulletin,
            progress: parts.progress,
            draining: parts.draining,
            claims: parts.claims,
            claiming: Claiming::new(parts.settings, &cluster_shards),
            far: Claiming::new(parts.settings, &cluster_shards),
            shards: Vec::new(),
            mine: Vec::new(),
            others: if index == 0 { all.clone() } else { Vec::new() },
            all,
            sweeping: Sweeping::default(),
            sweeping_others: Sweeping::default(),
            is_idle: false,
            backoff: Backoff::new(RETRY_MIN, RETRY_MAX),
            shown: [0; 2],
            shared,
        }
    }

    /// Claims until the node drains.
    pub async fn run(mut self) -> Result<(), TaskFailure> {
        let mut sweeps = self.shared.calls.sweep.subscribe();
        let _running = self.progress.begin(self.index);
        let mut wait = self.pace.tick;
        let mut began_at = clock::monotonic();
        loop {
            let takes_late = self.index == 0 && !self.backoff.is_failing() && self.now().is_some();
            tokio::select! {
                () = self.draining.cancelled() => return Ok(()),
                // While a topic is unavailable or there is no room, every insert sends a wake-up. A
                // turn for each would make as many claims as there are inserts. Wake-ups do not
                // shorten the pause after a failure, either.
                () = self.shared.calls.late.arrival(), if takes_late => {
                    let since = clock::monotonic().since(began_at);
                    clock::sleep(self.pace.tick.saturating_sub(since)).await;
                }
                changed = sweeps.changed() => {
                    changed?;
                    self.ask_for_sweeps();
                }
                () = clock::sleep(wait) => {}
            }
            self.progress.tick(self.index);
            self.take_in_shards();
            began_at = clock::monotonic();
            wait = match self.turn().await {
                Ok(next) => {
                    self.backoff.reset();
                    match next {
                        NextTurn::Now => Duration::ZERO,
                        NextTurn::Soon => {
                            self.pace.tick.saturating_sub(clock::monotonic().since(began_at))
                        }
                        NextTurn::Tick { got } => {
                            self.pace.after(got).saturating_sub(clock::monotonic().since(began_at))
                        }
                        NextTurn::Idle => self.pace.tick_idle,
                    }
                }
                Err(error) => self.back_off(&error),
            };
        }
    }

    fn note_success(&self, has_taken: bool) {
        if let Some(mut streak) = self.progress.streak(self.index) {
            streak.claimed(has_taken, !self.mine.is_empty(), clock::monotonic());
        }
    }

    fn note_failure(&self, error: &PostgresError) {
        if let Some(mut streak) = self.progress.streak(self.index) {
            streak.failed(chain(error), cause_of(error), clock::monotonic());
        }
    }

    fn back_off(&mut self, error: &PostgresError) -> Duration {
        self.shared.metrics.claim_failures.inc();
        self.note_failure(error);
        if !self.backoff.is_failing() {
            tracing::warn!(error = chain(error), "a claim failed; retrying");
        }
        self.backoff.next_pause()
    }

    /// Takes this loop's part of the node's shards: every n-th of them. The first loop also gets
    /// all shards of other nodes.
    fn take_in_shards(&mut self) {
        {
            let bulletin = self.bulletin.borrow_and_update();
            if bulletin.mine == self.shards {
                return;
            }
            self.shards.clone_from(&bulletin.mine);
        }
        let mine: Vec<Shard> =
            self.shards.iter().skip(self.index).step_by(self.pace.loop_count).copied().collect();
        let is_others =
            |shard: &Shard| self.index == 0 && self.shards.binary_search(shard).is_err();
        let others: Vec<Shard> = self.shared.cluster.shards.all().filter(is_others).collect();
        (self.mine, self.others) = (smallints(&mine), smallints(&others));
        self.claiming.restart(&mine, &others);
        self.show();
        self.ask_for_sweeps();
    }

    /// Returns the cluster's time while claims are allowed.
    fn now(&self) -> Option<Timestamp> {
        self.shared.clock.now().filter(|_| self.shared.fence.may_claim())
    }

    fn ask_for_sweeps(&mut self) {
        self.sweeping.ask();
        self.sweeping_others.ask();
    }

    /// Runs one turn: claims at the watermark up to now + window, then some of the deferred ranges.
    async fn turn(&mut self) -> Result<NextTurn, PostgresError> {
        let Some(now) = self.now() else { return Ok(NextTurn::Idle) };
        if self.index == 0 {
            for ids in self.shared.calls.late.take() {
                self.claiming.inserted_late(ids, now);
            }
        }
        if self.mine.is_empty()
            && self
                .progress
                .streak(self.index)
                .is_some_and(|streak| streak.is_to_try(clock::monotonic()))
        {
            // The loop lost the shards because claims failed. The next successful claim, such as
            // this empty one, brings them back.
            self.claim_nothing(now).await?;
        }
        if self.mine.is_empty() && self.index > 0 {
            return Ok(NextTurn::Idle);
        }
        if self.claiming.skipped_count() + self.far.skipped_count() > 0 {
            let full = self.shared.in_flight.topics().full();
            self.claiming.there_is_room(&full);
            self.far.there_is_room(&full);
        }
        let mut got = 0;
        while self.shared.in_flight.has_room() && !self.mine.is_empty() {
            let Some(claim) = self.claiming.next_at_watermark(now) else { break };
            got += self.claim(Source::Task, &claim, now).await?;
        }
        self.is_idle = got == 0;
        self.plan_sweep(now).await?;
        let is_busy = self.claim_deferred(now).await?;
        let waits_for_room = self.claiming.skipped_count() + self.far.skipped_count() > 0;
        Ok(match (is_busy, got) {
            (true, _) => NextTurn::Now,
            (false, 0) if !waits_for_room => NextTurn::Idle,
            (false, _) if waits_for_room => NextTurn::Soon,
            (false, got) => NextTurn::Tick { got },
        })
    }

    /// Claims deferred ranges until the next tick is due. Returns true when there is more, and room
    /// for it.
    async fn claim_deferred(&mut self, now: Timestamp) -> Result<bool, PostgresError> {
        let began_at = clock::monotonic();
        while clock::monotonic().since(began_at) < self.pace.tick {
            if !self.shared.in_flight.has_room_behind_the_watermark() {
                return Ok(false);
            }
            let (near, far) = (self.claiming.next_deferred(), self.far.next_deferred());
            if near.is_none() && far.is_none() {
                return Ok(false);
            }
            for (source, claim) in [(Source::Task, near), (Source::Far, far)] {
                if let Some(claim) = claim {
                    self.claim(source, &claim, now).await?;
                }
            }
        }
        Ok(true)
    }

    /// Updates the gauges. They are sums over all loops: each loop adds its own part.
    fn show(&mut self) {
        let deferred_ranges = self.claiming.deferred_count() + self.far.deferred_count();
        let skipped = self.claiming.skipped_count() + self.far.skipped_count();
        let now = [deferred_ranges, skipped].map(|count| count.saturating_as::<i64>());
        let metrics = &self.shared.metrics;
        for (gauge, (now, shown)) in [&metrics.deferred_ranges, &metrics.skipped_ranges]
            .into_iter()
            .zip(now.into_iter().zip(&mut self.shown))
        {
            gauge.inc_by(now - std::mem::replace(shown, now));
        }
    }

    /// Starts a sweep of this loop's shards. The first loop also sweeps the shards of other nodes
    /// for long-overdue tasks.
    async fn plan_sweep(&mut self, now: Timestamp) -> Result<(), PostgresError> {
        self.show();
        let Some(oldest) = self.shared.leaves.oldest() else { return Ok(()) };
        let at = clock::monotonic();
        if self.sweeping_others.is_due(at, self.claiming.is_sweeping(Scope::Others))
            && !self.others.is_empty()
        {
            self.claiming.sweep(oldest, now, Scope::Others);
            self.sweeping_others.began(at);
        }
        if self.sweeping.is_due(at, self.claiming.is_sweeping(Scope::Mine)) {
            self.sweeping.began(at);
            if !self.mine.is_empty() {
                self.claiming.sweep(oldest, now, Scope::Mine);
            }
            if self.index == 0
                && let Err(error) = self.read_quarantine_and_far(now).await
            {
                self.sweeping.ask();
                return Err(error);
            }
        }
        Ok(())
    }

    /// Reads the quarantine and finds due tasks in the far table. The watermark does not wait for a
    /// lock on one of them: the next sweep looks again.
    async fn read_quarantine_and_far(&mut self, now: Timestamp) -> Result<(), PostgresError> {
        for looked in [self.load_quarantine().await, self.plan_far(now).await] {
            match looked {
                Err(error) if error.is_lock_conflict() => {
                    tracing::warn!(
                        error = chain(&error),
                        "a search for due tasks gave way to another transaction; the next sweep \
                         repeats it"
                    );
                    self.shared.metrics.claim_failures.inc();
                }
                looked => looked?,
            }
        }
        Ok(())
    }

    /// Finds due tasks in `task_far`, which no node was there to move in time.
    async fn plan_far(&mut self, now: Timestamp) -> Result<(), PostgresError> {
        if self.far.deferred_count() > 0 {
            return Ok(());
        }
        if let Some(oldest) = self.claims.oldest_far(now).await? {
            self.far.sweep(oldest, now, Scope::All);
        }
        Ok(())
    }

    async fn load_quarantine(&mut self) -> Result<(), PostgresError> {
        let ids = self.claims.quarantined(QUARANTINE_MAX).await?;
        self.shared.metrics.in_quarantine.set(ids.len().saturating_as::<i64>());
        self.shared.calls.set_quarantined(ids);
        Ok(())
    }

    /// Makes one claim and returns the number of tasks that it took.
    async fn claim(
        &mut self,
        source: Source,
        claim: &Claim,
        now: Timestamp,
    ) -> Result<u64, PostgresError> {
        let batch = BatchId::new(now, rand::random(), rand::random());
        let (left_out, full) = {
            let topics = self.shared.in_flight.topics();
            let skipped = topics.left_out().into_iter().chain(claim.left_out.iter().cloned());
            (skipped.collect::<Vec<_>>(), topics.full())
        };
        let quarantined = self.shared.calls.quarantined();
        let shards = match claim.scope {
            Scope::Mine => &self.mine,
            Scope::Others => &self.others,
            Scope::All => &self.all,
        };
        let request = ClaimRequest {
            left_out: &left_out,
            quarantined: &quarantined,
            is_beside_a_hotspot: !claim.left_out.is_empty(),
            ..ClaimRequest::of_all(batch, self.shared.node, shards, claim.range)
        };
        let may_be_idle = std::mem::take(&mut self.is_idle);
        if may_be_idle && claim.is_at_watermark() && self.claims.is_empty(request).await? {
            self.note_success(false);
            self.claiming.took(claim, &Taken { full, ..Taken::default() });
            return Ok(0);
        }
        self.shared.in_flight.ask_for(batch);
        let began_at = clock::monotonic();
        let answer = self.claims.claim(source, request).await;
        // A loop waiting for a slow disk is not wedged.
        self.progress.tick(self.index);
        let (claimed, spent) = match answer {
            Ok(ClaimAnswer { claimed, now, spent }) => {
                self.shared.clock.take_in(now, began_at);
                self.note_success(matches!(claimed, Claimed::Batch(_)));
                (claimed, spent)
            }
            Err(error) => {
                self.shared.in_flight.forget(batch);
                let first = match error.is_bad_data() {
                    true => readable(self.claims.lowest(source, request).await)?,
                    false => None,
                };
                return self.failed(source, claim, first, error).await;
            }
        };
        match claimed {
            Claimed::Batch(batch) => {
                reach(Failpoint::ClaimCommitted);
                self.shared
                    .metrics
                    .claim_duration
                    .observe(clock::monotonic().since(began_at).as_secs_f64());
                let taken = Taken::of(&batch, spent, full);
                self.claiming_of(source).took(claim, &taken);
                self.take_in(batch, claim).await;
                Ok(taken.got)
            }
            Claimed::Nothing => {
                self.shared.in_flight.forget(batch);
                self.claiming_of(source).took(claim, &Taken { spent, full, ..Taken::default() });
                Ok(0)
            }
            Claimed::TooLarge { first } => {
                self.shared.in_flight.forget(batch);
                self.shared.metrics.claims_too_large.inc();
                self.claiming_of(source).was_too_large(claim, first);
                Ok(0)
            }
        }
    }

    async fn claim_nothing(&mut self, now: Timestamp) -> Result<(), PostgresError> {
        let range = IdRange { from: floor_of(now), to: floor_of(now) };
        let batch = BatchId::new(now, rand::random(), rand::random());
        let request = ClaimRequest::of_all(batch, self.shared.node, &self.all, range);
        self.claims.claim(Source::Task, request).await?;
        self.note_success(false);
        Ok(())
    }

    async fn take_in(&mut self, batch: Batch, claim: &Claim) {
        let count = batch.len().saturating_as::<u64>();
        self.shared.metrics.claimed.inc_by(count);
        if let Some(now) = self.shared.clock.now().filter(|_| claim.is_at_watermark()) {
            let after_due = batch.tasks().filter(|task| task.id.due_at() < now).count();
            self.shared.metrics.claimed_after_due.inc_by(after_due.saturating_as::<u64>());
        }
        self.shared.take_in(batch, Past::Fresh).await;
    }

    /// Handles a failed claim. A claim that failed because of a value in a row is narrowed down, to
    /// one row if necessary; any other is tried again. `first` is the lowest readable id of the
    /// range.
    async fn failed(
        &mut self,
        source: Source,
        claim: &Claim,
        first: Option<Uuid>,
        error: PostgresError,
    ) -> Result<u64, PostgresError> {
        if matches!(error, PostgresError::GaveWay { .. }) {
            tracing::debug!(
                error = chain(&error), range = ?claim.range,
                "a claim gave way to another transaction"
            );
            self.shared.metrics.claim_failures.inc();
            self.note_failure(&error);
            self.claiming_of(source).gave_way(claim);
            return Ok(0);
        }
        if !error.is_bad_data() {
            // A claim that missed the deadline must not be repeated unchanged, nor before all
            // others.
            if matches!(error, PostgresError::Unanswered { .. }) && !claim.is_at_watermark() {
                self.claiming_of(source).gave_way(claim);
            }
            return Err(error);
        }
        let reason = chain(&error);
        match self.claiming_of(source).failed_on_a_row(claim, first) {
            Narrowing::Smaller => {
                tracing::warn!(
                    error = reason, range = ?claim.range,
                    "a claim fails because of a task in its range; narrowing the range"
                )
            }
            Narrowing::Unreadable => {
                self.shared.metrics.claim_failures.inc();
                tracing::error!(
                    error = reason, range = ?claim.range,
                    "cannot read a range of ids; skipping it until the next sweep"
                )
            }
            Narrowing::Row(id) => {
                tracing::error!(
                    task = %id, error = reason,
                    "cannot claim this task; it is in quarantine now"
                );
                self.shared.metrics.quarantined.inc();
                self.claims.quarantine(id, &reason).await?;
                self.load_quarantine().await?;
            }
        }
        Ok(0)
    }

    fn claiming_of(&mut self, source: Source) -> &mut Claiming {
        match source {
            Source::Task => &mut self.claiming,
            Source::Far => &mut self.far,
        }
    }
}

/// Returns `None` when not even an id can be read.
fn readable(answer: Result<Option<Uuid>, PostgresError>) -> Result<Option<Uuid>, PostgresError> {
    match answer {
        Err(error) if error.is_bad_data() => Ok(None),
        other => other,
    }
}

/// When the loop takes its next turn.
#[derive(Clone, Copy, Debug)]
enum NextTurn {
    Now,
    /// At the next tick, when there may be room.
    Soon,
    /// After a pause longer the fewer tasks were found.
    Tick {
        got: u64,
    },
    Idle,
}
