//! Settles batches whose outcomes are all known, as many per statement as are ready.

use std::sync::Arc;
use std::time::Duration;

use az::SaturatingAs as _;
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::engine::batch_registry::Effect;
use crate::error_chain::chain;
use crate::failpoint::{Failpoint, reach};
use crate::node::in_flight::batches::InFlightBatch;
use crate::node::in_flight::inbox::Inbox;
use crate::node::membership::LoopProgress;
use crate::node::publish::publisher::Reports;
use crate::node::shared::NodeShared;
use crate::postgres::PostgresError;
use crate::postgres::tasks::settle::{SettleTerms, Settled, Settlement, Settles};
use crate::shutdown::TaskFailure;

/// Maximum number of batches per statement, and the approximate maximum of tasks.
const BATCHES_MAX: usize = 64;
const TASKS_MAX: usize = 20_000;
/// The pause before a failed settle is retried.
const RETRY: Duration = Duration::from_millis(200);
/// Time from the first complete batch to the statement that settles it and the batches completed
/// since. Tasks that are claimed on insert come in hundreds of small batches a second.
const GATHER: Duration = Duration::from_millis(10);

/// Settles to repeat because a crash of Postgres undid them.
pub type Undone = Inbox<Arc<Settlement>>;

/// A batch whose outcomes wait to be written.
#[derive(Debug)]
struct Waiting {
    held: Arc<InFlightBatch>,
    settlement: Arc<Settlement>,
    /// A settle of the batch got no answer, so it may have taken effect.
    is_in_doubt: bool,
}

/// The parts of a settler.
#[derive(Debug)]
pub struct SettlerParts {
    pub settles: Settles,
    pub shared: Arc<NodeShared>,
    pub reports: Arc<Reports>,
    pub undone: Arc<Undone>,
    pub progress: LoopProgress,
    pub stopping: CancellationToken,
}

#[derive(Debug)]
pub struct Settler {
    settles: Settles,
    shared: Arc<NodeShared>,
    reports: Arc<Reports>,
    undone: Arc<Undone>,
    progress: LoopProgress,
    stopping: CancellationToken,
    /// Maximum number of batches in the next statement: one, after a failure that one of the
    /// batches may have caused.
    batches_max: usize,
    /// True when the last settle failed, so that a series of failures is logged once.
    is_failing: bool,
}

impl Settler {
    pub fn new(parts: SettlerParts) -> Self {
        let SettlerParts { settles, shared, reports, undone, progress, stopping } = parts;
        Self {
            settles,
            shared,
            reports,
            undone,
            progress,
            stopping,
            batches_max: BATCHES_MAX,
            is_failing: false,
        }
    }

    /// Runs until the node stops. Other nodes adopt the batches that are unsettled then.
    pub async fn run(mut self) -> Result<(), TaskFailure> {
        let mut waiting: Vec<Waiting> = Vec::new();
        loop {
            if waiting.is_empty() {
                tokio::select! {
                    () = self.stopping.cancelled() => return Ok(()),
                    () = self.reports.completed.arrival() => {}
                    () = self.undone.arrival() => {}
                }
            }
            if waiting.is_empty() && !self.stopping.is_cancelled() {
                clock::sleep(GATHER).await;
            }
            self.settle_again().await;
            waiting.extend(self.reports.completed.take().into_iter().map(|held| {
                let settlement = self.settlement_of(&held);
                Waiting { held, settlement, is_in_doubt: false }
            }));
            if !self.settle_some(&mut waiting).await {
                tokio::select! {
                    () = self.stopping.cancelled() => return Ok(()),
                    () = clock::sleep(RETRY) => {}
                }
            }
        }
    }

    /// Settles the first batches of `waiting`. Returns false when the statement failed and must be
    /// tried again.
    async fn settle_some(&mut self, waiting: &mut Vec<Waiting>) -> bool {
        // Outcomes of a batch that another node has adopted meanwhile are not written, even if the
        // batch belongs to this node again. It will be found and published once more.
        for void in waiting.extract_if(.., |one| one.held.is_void()) {
            self.shared.metrics.settled_by_others.inc();
            self.shared.in_flight.let_go(&void.held);
        }
        let mut task_count = 0;
        let count = waiting
            .iter()
            .take(self.batches_max)
            .take_while(|one| {
                let fits = task_count < TASKS_MAX;
                task_count += one.settlement.task_count();
                fits
            })
            .count();
        if count == 0 {
            return true;
        }
        let group: Vec<&Settlement> =
            waiting[..count].iter().map(|one| one.settlement.as_ref()).collect();
        let began_at = clock::monotonic();
        reach(Failpoint::SettleReady);
        let (Settled { batches: settled, rows, timed_out, exhausted }, outcome) =
            self.settles.settle(&group, self.terms()).await;
        self.shared.claim_late(rows);
        self.shared.metrics.tracked.timed_out.inc_by(timed_out);
        self.shared.metrics.tracked.exhausted.inc_by(exhausted);
        let is_done = outcome.is_ok();
        if is_done {
            reach(Failpoint::SettleAnswered);
        }
        // Every statement commits by itself, so settled batches stay settled when a later statement
        // fails. If no statement failed, a batch that is missing in `settled` was adopted by
        // another node while this one was thought dead, or was settled by an earlier statement
        // whose answer was lost.
        let taken: Vec<_> = waiting.drain(..count).collect();
        let (over, mut left): (Vec<_>, Vec<_>) =
            taken.into_iter().partition(|one| is_done || settled.contains(&one.held.batch.id));
        for Waiting { held, settlement, is_in_doubt } in over {
            let effect = Effect::of(settled.contains(&held.batch.id), is_in_doubt);
            if effect == Effect::Certain {
                self.shared.metrics.settled.inc_by(settlement.task_count().saturating_as());
                // After an outage of Postgres, follow-ups may be overdue when they are stored.
                self.shared.claim_late(settlement.follow_up_ids());
            } else {
                self.shared.metrics.settled_by_others.inc();
                tracing::debug!(batch = %held.batch.id, "the batch was already settled or adopted");
            }
            self.shared.in_flight.settled(&held, settlement, effect, clock::monotonic());
        }
        if outcome.as_ref().is_err_and(PostgresError::is_unknown) {
            left.iter_mut().for_each(|one| one.is_in_doubt = true);
        }
        waiting.splice(..0, left);
        match outcome {
            Ok(()) => {
                self.progress.settle_succeeded();
                self.batches_max = (self.batches_max * 2).min(BATCHES_MAX);
                self.shared
                    .metrics
                    .settle_duration
                    .observe(clock::monotonic().since(began_at).as_secs_f64());
                if count > settled.len() {
                    tracing::info!(
                        batches = count - settled.len(),
                        "batches were already settled, or adopted by others"
                    );
                }
                if waiting.is_empty() && std::mem::take(&mut self.is_failing) {
                    tracing::info!("all waiting batches are settled");
                }
            }
            Err(error) => self.failed(&error, count, waiting),
        }
        is_done
    }

    /// Handles a failure to settle `count` batches. The unsettled ones are at the head of `waiting`
    /// again.
    fn failed(&mut self, error: &PostgresError, count: usize, waiting: &mut [Waiting]) {
        self.shared.metrics.settle_failures.inc();
        self.progress.settle_failed(error);
        if !error.is_away() {
            // One settlement that cannot be written must not hold up the others: settle one at a
            // time, and move this one behind the others.
            if let ([first, ..], 1) = (&mut *waiting, count) {
                first.settlement = self.settlement_of(&first.held);
                waiting.rotate_left(1);
            }
            self.batches_max = 1;
        } else if error.is_unknown() {
            // The group may have been too much for one deadline.
            self.batches_max = (count / 2).max(1);
        }
        if !std::mem::replace(&mut self.is_failing, true) {
            tracing::warn!(error = chain(error), batches = count, "settle failed; retrying");
        }
    }

    fn terms(&self) -> SettleTerms {
        SettleTerms {
            leaves_end: self.shared.leaves.end().unwrap_or_default(),
            now: self.shared.now(),
            window: self.shared.cluster.window,
        }
    }

    fn settlement_of(&self, held: &InFlightBatch) -> Arc<Settlement> {
        Arc::new(held.settlement(self.shared.now()))
    }

    async fn settle_again(&mut self) {
        let undone = self.undone.take();
        for mut settlement in undone {
            Arc::make_mut(&mut settlement).put_off_until(self.shared.now());
            let (settled, outcome) =
                self.settles.settle(&[settlement.as_ref()], self.terms()).await;
            self.shared.claim_late(settled.rows);
            if settled.batches.contains(&settlement.batch) {
                self.shared.claim_late(settlement.follow_up_ids());
            }
            match outcome {
                Ok(()) => self.shared.in_flight.settled_again(settlement.batch, clock::monotonic()),
                // The next check sees the batch unsettled again, like all others that are left when
                // Postgres is away.
                Err(error) => {
                    tracing::warn!(
                        error = chain(&error), batch = %settlement.batch,
                        "a repeated settle failed"
                    );
                    if error.is_away() {
                        break;
                    }
                }
            }
        }
    }
}
