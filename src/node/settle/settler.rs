//! Settles batches all of whose outcomes are known, as many at a time as have come together.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::engine::books::Effect;
use crate::error_chain::chain;
use crate::failpoint::{Point, reach};
use crate::node::in_flight::batches::Held;
use crate::node::in_flight::inbox::Mailbox;
use crate::node::membership::Progress;
use crate::node::publish::publisher::Reports;
use crate::node::shared::Shared;
use crate::postgres::Error;
use crate::postgres::tasks::settle::{Settlement, Settles};
use crate::shutdown::Failure;

/// At most so many batches, and about so many tasks, are settled by one statement.
const BATCHES_MAX: usize = 64;
const TASKS_MAX: usize = 20_000;
const RETRY: Duration = Duration::from_millis(200);
/// From the first batch that is complete to the statement that settles it and what has come since. Tasks that are claimed as they are inserted come in
/// hundreds of small batches a second.
const GATHER: Duration = Duration::from_millis(10);

/// Settles that are to be repeated: a crash of Postgres undid them.
pub type Undone = Mailbox<Arc<Settlement>>;

/// A batch whose outcomes wait to be written.
#[derive(Debug)]
struct Waiting {
    held: Arc<Held>,
    settlement: Arc<Settlement>,
    /// A settle of it had no answer: it may have taken effect.
    is_in_doubt: bool,
}

/// What a settler is made of.
#[derive(Debug)]
pub struct Parts {
    pub settles: Settles,
    pub shared: Arc<Shared>,
    pub reports: Arc<Reports>,
    pub undone: Arc<Undone>,
    pub progress: Progress,
    pub stopping: CancellationToken,
}

#[derive(Debug)]
pub struct Settler {
    settles: Settles,
    shared: Arc<Shared>,
    reports: Arc<Reports>,
    undone: Arc<Undone>,
    progress: Progress,
    stopping: CancellationToken,
    /// How many batches the next statement may settle: one, after a failure that may be due to one of them.
    batches_max: usize,
    /// The last settle failed: said once.
    is_failing: bool,
}

impl Settler {
    pub fn new(parts: Parts) -> Self {
        let Parts { settles, shared, reports, undone, progress, stopping } = parts;
        Self { settles, shared, reports, undone, progress, stopping, batches_max: BATCHES_MAX, is_failing: false }
    }

    /// Runs until the node stops. What is not settled then is adopted by others.
    pub async fn run(mut self) -> Result<(), Failure> {
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

    /// Settles the first of `waiting`; false when that did not go through, and is to be tried again.
    async fn settle_some(&mut self, waiting: &mut Vec<Waiting>) -> bool {
        // Of what others have adopted meanwhile nothing is written, should it be this node's again: it is found then, and published once more.
        for void in waiting.extract_if(.., |one| one.held.is_void()) {
            self.shared.metrics.settled_by_others.inc();
            self.shared.holdings.let_go(&void.held);
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
        let group: Vec<&Settlement> = waiting[..count].iter().map(|one| one.settlement.as_ref()).collect();
        let began_at = clock::monotonic();
        reach(Point::SettleReady);
        let (settled, outcome) = self.settles.settle(&group).await;
        let is_done = outcome.is_ok();
        if is_done {
            reach(Point::SettleAnswered);
        }
        // Each statement commits by itself: what is settled is settled, also when a later one failed. When none did, another node adopted what is not among
        // `settled` while this one was thought dead, or an earlier settle took effect whose answer was lost.
        let taken: Vec<_> = waiting.drain(..count).collect();
        let (over, mut left): (Vec<_>, Vec<_>) =
            taken.into_iter().partition(|one| is_done || settled.contains(&one.held.batch.id));
        for Waiting { held, settlement, is_in_doubt } in over {
            let effect = Effect::of(settled.contains(&held.batch.id), is_in_doubt);
            if effect == Effect::Certain {
                self.shared.metrics.settled.inc_by(as_u64(settlement.task_count()));
                // After an outage of Postgres they may be stored when they are long due.
                self.shared.look_after(settlement.follow_up_ids());
            } else {
                self.shared.metrics.settled_by_others.inc();
                tracing::debug!(batch = %held.batch.id, "the batch was settled or adopted before");
            }
            self.shared.holdings.settled(&held, settlement, effect, clock::monotonic());
        }
        if outcome.as_ref().is_err_and(Error::is_unknown) {
            left.iter_mut().for_each(|one| one.is_in_doubt = true);
        }
        waiting.splice(..0, left);
        match outcome {
            Ok(()) => {
                self.progress.settle_succeeded();
                self.batches_max = (self.batches_max * 2).min(BATCHES_MAX);
                self.shared.metrics.settle_duration.observe(clock::monotonic().since(began_at).as_secs_f64());
                if count > settled.len() {
                    tracing::info!(batches = count - settled.len(), "settled or adopted before, by others or unnoticed");
                }
                if waiting.is_empty() && std::mem::take(&mut self.is_failing) {
                    tracing::info!("all that waited is settled");
                }
            }
            Err(error) => self.failed(&error, count, waiting),
        }
        is_done
    }

    /// `count` batches were to be settled, and those that are not are the first of `waiting` again.
    fn failed(&mut self, error: &Error, count: usize, waiting: &mut [Waiting]) {
        self.shared.metrics.settle_failures.inc();
        self.progress.settle_failed(error);
        if !error.is_away() {
            // One settlement that cannot be written must not hold up the others: settle one by one, and let it wait behind them.
            if let ([first, ..], 1) = (&mut *waiting, count) {
                first.settlement = self.settlement_of(&first.held);
                waiting.rotate_left(1);
            }
            self.batches_max = 1;
        }
        if !std::mem::replace(&mut self.is_failing, true) {
            tracing::warn!(error = chain(error), batches = count, "settle failed; it will be repeated");
        }
    }

    fn settlement_of(&self, held: &Held) -> Arc<Settlement> {
        Arc::new(held.settlement(self.shared.now()))
    }

    async fn settle_again(&mut self) {
        let undone = self.undone.take();
        for mut settlement in undone {
            Arc::make_mut(&mut settlement).put_off_until(self.shared.now());
            let (settled, outcome) = self.settles.settle(&[settlement.as_ref()]).await;
            if settled.contains(&settlement.batch) {
                self.shared.look_after(settlement.follow_up_ids());
            }
            match outcome {
                Ok(()) => self.shared.holdings.settled_again(settlement.batch, clock::monotonic()),
                // The next check sees it unsettled again, and so it does all that are left when Postgres is away.
                Err(error) => {
                    tracing::warn!(error = chain(&error), batch = %settlement.batch, "repeated settle failed");
                    if error.is_away() {
                        break;
                    }
                }
            }
        }
    }
}

fn as_u64(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}
