//! Drains an outbox, turn by turn, while this node owns the shard of the outbox's name.

use std::collections::HashSet;
use std::time::Duration;

use az::SaturatingAs as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::metrics::OneOutbox;
use super::waits::{TakenSince, WaitingRows, WaitingTopics};
use crate::clock;
use crate::domain::task::outbox_row::{ClockOffset, OutboxRow};
use crate::domain::{Backoff, Monotonic, Throttle};
use crate::error_chain::chain;
use crate::failpoint::{Failpoint, reach};
use crate::inbound::carrier::{Carried, Carrier, CarrierParts, Stop};
use crate::node::membership::Bulletin;
use crate::postgres::PostgresSettings;
use crate::postgres::inbound::Epoch;
use crate::postgres::outbox::source::OutboxSource;
use crate::postgres::outbox::{VERSION, setup};
use crate::shutdown::TaskFailure;

/// The pause after a turn that found no row. A look costs the user's database about 0.1 ms.
const IDLE_PAUSE: Duration = Duration::from_millis(50);
/// The pause while another node drains the outbox, and the longest one after a failure.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// The first pause after a failure. It doubles with each further one.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// The interval of looks at the assignment while another node owns the outbox.
const ASSIGNMENT_PAUSE: Duration = Duration::from_millis(200);
/// A turn that takes longer leaves its other rows to the next one.
const TURN_MAX: Duration = Duration::from_secs(15);
/// The interval of truncations and counts.
const TIDY_INTERVAL: Duration = Duration::from_secs(5);
/// The interval of looks for entries that a lost answer, or a dead node, has left.
const LEFTOVERS_INTERVAL: Duration = Duration::from_secs(60);
/// The interval of log lines about an outbox that cannot be drained.
const LOG_EVERY: Duration = Duration::from_secs(60);
/// A distance between the clocks that is worth a warning.
const OFFSET_MAX_MICROS: i64 = 1_000_000;

/// The parts of a drainer.
#[derive(Debug)]
pub struct DrainerParts {
    /// The name of the outbox, and of its principal.
    pub name: String,
    /// The user's database.
    pub database: PostgresSettings,
    pub carrier: CarrierParts,
    pub bulletin: watch::Receiver<Bulletin>,
    pub metrics: OneOutbox,
    pub draining: CancellationToken,
}

/// Drains one outbox.
#[derive(Debug)]
pub struct Drainer {
    source: OutboxSource,
    carrier: Carrier,
    bulletin: watch::Receiver<Bulletin>,
    metrics: OneOutbox,
    draining: CancellationToken,
    /// `None` before the first turn, and when the next turn needs a new epoch.
    epoch: Option<Epoch>,
    tidying: Throttle,
    /// Lets looks for leftovers through. A new epoch begins with one.
    leftovers: Throttle,
    /// When the rows were counted last, and the age of the oldest one then. Without a count, when
    /// the first turn has failed.
    counted: Option<(Monotonic, Duration)>,
    waiting: WaitingTopics,
    taken: TakenSince,
    failure_log: Throttle,
    taken_log: Throttle,
    offset_log: Throttle,
}

/// The result of a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Turn {
    /// Rows were read. The next turn does not read the topics of those that wait.
    Drained,
    Empty,
    /// Another session has the lock, as a rule that of another node at work.
    Taken,
    /// All rows that were found wait.
    Waiting,
}

impl Drainer {
    pub fn new(parts: DrainerParts) -> Self {
        Self {
            source: OutboxSource::new(&parts.database),
            carrier: Carrier::new(parts.carrier, parts.name, "outbox"),
            bulletin: parts.bulletin,
            metrics: parts.metrics,
            draining: parts.draining,
            epoch: None,
            tidying: Throttle::new(TIDY_INTERVAL),
            leftovers: Throttle::new(LEFTOVERS_INTERVAL),
            counted: None,
            waiting: WaitingTopics::default(),
            taken: TakenSince::default(),
            failure_log: Throttle::new(LOG_EVERY),
            taken_log: Throttle::new(LOG_EVERY),
            offset_log: Throttle::new(LOG_EVERY),
        }
    }

    /// Drains until the node drains. A failure of a server is waited for.
    pub async fn run(mut self) -> Result<(), TaskFailure> {
        let mut pause = Duration::ZERO;
        let mut backoff = Backoff::new(PAUSE_MIN, PAUSE_MAX);
        loop {
            tokio::select! {
                biased;
                () = self.draining.cancelled() => return Ok(()),
                () = clock::sleep(pause) => {}
            }
            if !self.is_mine() {
                self.leave();
                pause = ASSIGNMENT_PAUSE;
                continue;
            }
            // The future is on the heap, because a turn is large.
            match Box::pin(self.turn()).await {
                Ok(turn) => {
                    backoff.reset();
                    pause = match turn {
                        Turn::Drained => Duration::ZERO,
                        Turn::Empty => IDLE_PAUSE,
                        Turn::Taken | Turn::Waiting => ASSIGNMENT_PAUSE,
                    };
                }
                Err(stop) => {
                    self.stopped(&stop);
                    pause = backoff.next_pause();
                }
            }
        }
    }

    /// Returns true when this node owns the shard of the outbox's name. Two nodes that both believe
    /// it are harmless.
    fn is_mine(&self) -> bool {
        let shards = self.carrier.shared.cluster.shards;
        self.bulletin.borrow().mine.contains(&shards.shard_of_outbox(&self.carrier.name))
    }

    fn leave(&mut self) {
        self.taken.free();
        self.counted = None;
        // After a failure there is no epoch, and the gauges are of the turns before.
        self.metrics.clear();
        if self.epoch.take().is_some() {
            self.source.close();
        }
    }

    /// Gives the rows of a failed turn back.
    fn stopped(&mut self, stop: &Stop) {
        self.source.close();
        if matches!(stop, Stop::NewEpoch { .. }) {
            self.epoch = None;
        }
        self.metrics.failures.inc();
        // Rows may wait, and nobody can count them.
        let now = clock::monotonic();
        let (at, oldest) = *self.counted.get_or_insert((now, Duration::ZERO));
        self.metrics.oldest.set((oldest + now.since(at)).as_secs_f64());
        let (outbox, reason) = (&self.carrier.name, stop.reason());
        if self.failure_log.lets_through(now) {
            tracing::warn!(outbox, reason, "cannot drain an outbox; trying again");
        } else {
            tracing::debug!(outbox, reason, "cannot drain an outbox; trying again");
        }
    }

    async fn turn(&mut self) -> Result<Turn, Stop> {
        let epoch = self.current_epoch().await?;
        let (offset, has_rows) = self.peek().await?;
        self.tidy(epoch).await?;
        if !has_rows {
            self.taken.free();
            return Ok(Turn::Empty);
        }
        let read_at = clock::monotonic();
        let waiting = self.waiting.at(read_at);
        let Some(rows) = self.source.read(&waiting).await? else {
            self.log_taken(read_at).await;
            return Ok(Turn::Taken);
        };
        self.taken.free();
        if rows.is_empty() {
            let turn = if waiting.is_empty() { Turn::Empty } else { Turn::Waiting };
            self.source.give_back().await?;
            return Ok(turn);
        }
        reach(Failpoint::OutboxRead);
        let count = rows.len();
        let (done, waiting) = self.drain(epoch, rows, offset).await?;
        self.waiting.after_turn(&waiting, read_at, clock::monotonic());
        self.log_waiting(&waiting, count.saturating_sub(done));
        Ok(Turn::Drained)
    }

    /// Warns when another session has kept the outbox from this node for too long.
    async fn log_taken(&mut self, now: Monotonic) {
        let Some(span) = self.taken.taken(now) else { return };
        if !self.taken_log.lets_through(now) {
            return;
        }
        let holder = match self.source.holder().await {
            Ok(holder) => holder.unwrap_or_else(|| "gone by now".to_owned()),
            Err(error) => chain(&error),
        };
        tracing::warn!(
            outbox = self.carrier.name,
            holder,
            seconds = span.as_secs(),
            "another session has locked an outbox, and its rows wait; trying again"
        );
    }

    fn log_waiting(&mut self, rows: &WaitingRows, count: usize) {
        let Some((topic, reason)) = rows.first() else { return };
        self.metrics.failures.inc();
        let outbox = &self.carrier.name;
        if self.failure_log.lets_through(clock::monotonic()) {
            tracing::warn!(outbox, topic, count, reason, "rows of an outbox wait; trying again");
        } else {
            tracing::debug!(outbox, topic, count, reason, "rows of an outbox wait; trying again");
        }
    }

    /// Carries rows out, and deletes those that do not wait. Returns their number, and the others.
    async fn drain(
        &mut self,
        epoch: Epoch,
        rows: Vec<OutboxRow>,
        offset: ClockOffset,
    ) -> Result<(usize, WaitingRows), Stop> {
        let keys: Vec<(Uuid, i64)> = rows.iter().map(|row| (row.id, row.seq)).collect();
        let until = clock::monotonic().plus(TURN_MAX);
        let (Carried { stored, rejected, left, held, .. }, waiting) =
            self.carrier.carry_out_rows(epoch, rows, offset, until).await?;
        if !left.is_empty() {
            let (outbox, count) = (&self.carrier.name, left.len());
            tracing::info!(outbox, count, "a turn takes too long; the next one goes on");
        }
        let left: HashSet<i64> = left.into_iter().chain(held).collect();
        let is_done = |seq: i64| !waiting.has(seq) && !left.contains(&seq);
        let (ids, seqs): (Vec<Uuid>, Vec<i64>) =
            keys.into_iter().filter(|(_id, seq)| is_done(*seq)).unzip();
        if seqs.is_empty() {
            self.source.give_back().await?;
            return Ok((0, waiting));
        }
        // Without an answer the rows may be gone, and then their entries are leftovers.
        let deleted = self.source.delete(&seqs, &rejected).await?;
        reach(Failpoint::OutboxDeleted);
        let outbox = &self.carrier.name;
        if deleted < seqs.len().saturating_as::<u64>() {
            tracing::warn!(
                outbox,
                "somebody else deleted rows of an outbox while they were stored"
            );
        }
        if let Some(first) = rejected.first() {
            let (count, status, reason) = (rejected.len(), first.status, &first.reason);
            tracing::warn!(outbox, count, status, reason, "rows of an outbox were rejected");
        }
        self.metrics.stored.inc_by(stored.saturating_as::<u64>());
        self.metrics.rejected.inc_by(rejected.len().saturating_as::<u64>());
        self.carrier.store.forget(epoch, &ids).await?;
        Ok((seqs.len(), waiting))
    }

    /// Returns the epoch of this node. A new one begins before any row is read.
    async fn current_epoch(&mut self) -> Result<Epoch, Stop> {
        if let Some(epoch) = self.epoch {
            return Ok(epoch);
        }
        let (outbox, version) = self.source.installation().await?.map_err(Stop::later)?;
        if version != VERSION {
            return Err(Stop::later(setup::other_version(version)));
        }
        let epoch = self.carrier.store.begin_epoch(outbox, &self.carrier.name).await?;
        tracing::info!(outbox = self.carrier.name, epoch = epoch.number, "draining an outbox");
        self.epoch = Some(epoch);
        self.leftovers.reset();
        Ok(epoch)
    }

    /// Looks for rows, and measures the distance between the clocks.
    async fn peek(&mut self) -> Result<(ClockOffset, bool), Stop> {
        let unknown = || Stop::later("the time of the cluster is unknown");
        let before = self.carrier.shared.clock.now().ok_or_else(unknown)?;
        let peek = self.source.peek().await?;
        let after = self.carrier.shared.clock.at_most().ok_or_else(unknown)?;
        let offset = ClockOffset::measured(peek.now, [before, after]);
        let middle = offset.middle_micros();
        self.metrics.clock_offset.set(seconds_of(middle));
        if middle.abs() > OFFSET_MAX_MICROS && self.offset_log.lets_through(clock::monotonic()) {
            tracing::warn!(
                outbox = self.carrier.name,
                seconds = seconds_of(middle),
                "the clock of the database of an outbox differs from the cluster's; delays in it \
                 count by the cluster's clock"
            );
        }
        Ok((offset, peek.has_rows))
    }

    /// Truncates tables, counts rows, and removes entries of rows that are gone, from time to time.
    async fn tidy(&mut self, epoch: Epoch) -> Result<(), Stop> {
        let now = clock::monotonic();
        if self.leftovers.lets_through(now) {
            match self.forget_leftovers(epoch).await {
                Ok(()) => {}
                // Rows are still to be drained. Leftovers do no harm.
                Err(Stop::Later { reason }) => {
                    tracing::warn!(
                        outbox = self.carrier.name,
                        reason,
                        "cannot remove entries of rows that are gone; trying again later"
                    );
                }
                Err(stop) => return Err(stop),
            }
        }
        if !self.tidying.lets_through(now) {
            return Ok(());
        }
        self.source.truncate_idle().await?;
        let state = self.source.state().await?;
        self.metrics.waiting.set(state.waiting);
        self.metrics.rejected_waiting.set(state.rejected);
        self.metrics.oldest.set(state.oldest.as_secs_f64());
        self.counted = Some((now, state.oldest));
        Ok(())
    }

    async fn forget_leftovers(&mut self, epoch: Epoch) -> Result<(), Stop> {
        // A read changes nothing, also when Postgres does not answer.
        let leftovers = self.carrier.store.leftovers(epoch).await;
        let leftovers = leftovers.map_err(|error| Stop::later(chain(&error)))?;
        if leftovers.is_empty() {
            return Ok(());
        }
        let seqs: Vec<i64> = leftovers.iter().map(|row| row.seq).collect();
        let there = self.source.still_there(&seqs).await?;
        let is_gone = |seq: i64| !there.contains(&seq);
        let gone: Vec<Uuid> =
            leftovers.iter().filter(|row| is_gone(row.seq)).map(|row| row.id).collect();
        if !gone.is_empty() {
            self.carrier.store.forget(epoch, &gone).await?;
        }
        Ok(())
    }
}

fn seconds_of(micros: i64) -> f64 {
    let span = Duration::from_micros(micros.unsigned_abs()).as_secs_f64();
    if micros < 0 { -span } else { span }
}
