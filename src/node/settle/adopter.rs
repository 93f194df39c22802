//! Takes care of batches without a publisher: own batches from claims without an answer, and
//! batches of dead nodes.
//!
//! Every second, and when a member leaves, the node asks Postgres for its own unsettled batches,
//! and compares the answer with the registry:
//!
//! - Unknown in two successive checks: the claim committed although the answer was lost. The batch
//!   is loaded and published.
//! - Settled a moment ago: a crash of Postgres undid the settle. The settle is repeated.
//!
//! Then the node adopts and loads batches without a living owner, as far as there is room.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use az::SaturatingAs as _;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::settler::Undone;
use crate::clock;
use crate::domain::{BatchId, Monotonic, Throttle};
use crate::engine::batch_registry::Suspects;
use crate::engine::look_back::{LookBack, OwnFloor};
use crate::error_chain::chain;
use crate::failpoint::{Failpoint, reach};
use crate::node::membership::{Bulletin, LoopProgress};
use crate::node::publish::publisher::Publisher;
use crate::node::shared::NodeShared;
use crate::postgres::PostgresError;
use crate::postgres::tasks::adopt::{Adoptions, BATCHES_MAX};
use crate::postgres::unsettled::SharedUnsettledFloor;
use crate::shutdown::TaskFailure;

const INTERVAL: Duration = Duration::from_secs(1);
/// Pause after a failed look, so that a fence that cannot be lifted does not cause a storm of
/// queries.
const RETRY: Duration = Duration::from_millis(200);
/// Minimum time between two log lines about batches that cannot be loaded, unless a reason is new.
const LOG_EVERY: Duration = Duration::from_secs(60);
/// Time limit of a look back in one turn. A longer one continues in the next turn, so that lifting
/// the fence and adopting need not wait for it.
const LOOK_BACK_SPAN_MAX: Duration = Duration::from_secs(1);

/// The parts of an adopter.
#[derive(Debug)]
pub struct AdopterParts {
    pub adoptions: Adoptions,
    pub shared: Arc<NodeShared>,
    pub publisher: Arc<Publisher>,
    pub undone: Arc<Undone>,
    /// Notified when a member has left or died: look at once.
    pub adopt_now: Arc<Notify>,
    pub stopping: CancellationToken,
    pub bulletin: watch::Receiver<Bulletin>,
    pub progress: LoopProgress,
    pub unsettled_floor: SharedUnsettledFloor,
}

#[derive(Debug)]
pub struct Adopter {
    adoptions: Adoptions,
    shared: Arc<NodeShared>,
    publisher: Arc<Publisher>,
    undone: Arc<Undone>,
    adopt_now: Arc<Notify>,
    stopping: CancellationToken,
    bulletin: watch::Receiver<Bulletin>,
    progress: LoopProgress,
    suspects: Suspects,
    /// Batches that were adopted or found, and are not loaded yet.
    to_load: Vec<BatchId>,
    /// Own batches whose last load failed, with the reason, or found nothing. Each check finds them
    /// again, but the first one alone counts them.
    unloadable: HashMap<BatchId, Option<String>>,
    unloadable_log: Throttle,
    /// Batches that were given up, and are not freed yet.
    to_free: Vec<BatchId>,
    past: LookBack,
    own_floor: OwnFloor,
    unsettled_floor: SharedUnsettledFloor,
}

impl Adopter {
    pub fn new(parts: AdopterParts) -> Self {
        Self {
            adoptions: parts.adoptions,
            shared: parts.shared,
            publisher: parts.publisher,
            undone: parts.undone,
            adopt_now: parts.adopt_now,
            stopping: parts.stopping,
            bulletin: parts.bulletin,
            progress: parts.progress,
            suspects: Suspects::default(),
            to_load: Vec::new(),
            unloadable: HashMap::new(),
            unloadable_log: Throttle::new(LOG_EVERY),
            to_free: Vec::new(),
            past: LookBack::default(),
            own_floor: OwnFloor::default(),
            unsettled_floor: parts.unsettled_floor,
        }
    }

    /// Runs until the node stops.
    pub async fn run(mut self) -> Result<(), TaskFailure> {
        let mut is_failing = false;
        loop {
            tokio::select! {
                () = self.stopping.cancelled() => return Ok(()),
                () = self.adopt_now.notified() => {}
                () = self.shared.fence.until_fenced() => {}
                () = clock::sleep(INTERVAL) => {}
            }
            let done = self.turn().await;
            // While Postgres is away its clock may be set back, so that nothing is known.
            self.unsettled_floor.set(done.is_ok().then(|| self.past.durable_from()).flatten());
            match done {
                Ok(()) => {
                    is_failing = false;
                    self.progress.adopter_succeeded();
                }
                Err(error) => {
                    self.progress
                        .adopter_failed(&error, self.shared.fence.fenced_generation().is_some());
                    if !is_failing {
                        tracing::warn!(
                            error = chain(&error),
                            "looking for batches to adopt failed; retrying"
                        );
                    }
                    is_failing = true;
                    clock::sleep(RETRY).await;
                }
            }
        }
    }

    async fn turn(&mut self) -> Result<(), PostgresError> {
        self.free_all().await?;
        let fenced = self.shared.fence.fenced_generation();
        if fenced.is_some() {
            self.shared.in_flight.mark_in_doubt();
        }
        // A heartbeat commits synchronously, so every settle answered before the heartbeat was sent
        // is durable, unless Postgres crashed in between. A settle undone by such a crash is part
        // of the answer to a question after the heartbeat.
        let durable_until = self.bulletin.borrow().heartbeat_sent_at;
        if let Some(now) = self.shared.clock.now() {
            self.own_floor.note(now);
            self.past.note(now);
        }
        // A batch that a crash of Postgres made unsettled again may be older than all that were
        // unsettled before.
        let known = self.shared.in_flight.oldest_known();
        let own_from =
            self.past.from().map_or(self.own_floor.get(), |past| past.max(self.own_floor.get()));
        let own_from = known.map_or(own_from, |known| known.min(own_from));
        let asked_at = clock::monotonic();
        let own = self.adoptions.own_unsettled(own_from).await?;
        if let Some(generation) = fenced {
            self.clear_up(&own, asked_at, generation);
        }
        let comparison = self.shared.in_flight.compare(&own, asked_at);
        if let Some(durable_until) = durable_until {
            let undone: HashSet<BatchId> =
                comparison.undone.iter().map(|(batch, _)| *batch).collect();
            self.shared.in_flight.durable_until(durable_until, &undone);
        }
        if !comparison.undone.is_empty() {
            tracing::warn!(
                batches = comparison.undone.len(),
                "a crash of Postgres undid settles; repeating them"
            );
        }
        // A later check finds the settles that are left, so the inbox is filled only when the
        // settler has emptied it.
        if self.undone.is_empty() {
            for (batch, settlement) in comparison.undone {
                tracing::debug!(%batch, "the settle of this batch was undone");
                self.undone.put(settlement);
            }
        }
        self.unloadable.retain(|batch, _reason| own.contains(batch));
        let mut found = self.suspects.take_in(comparison.unknown);
        found.retain(|batch| !self.to_load.contains(batch));
        let new_count = found.iter().filter(|batch| !self.unloadable.contains_key(*batch)).count();
        if new_count > 0 {
            tracing::info!(
                batches = new_count,
                "found batches of this node whose claims got no answer"
            );
            self.shared.metrics.recovered.inc_by(new_count.saturating_as::<u64>());
        }
        self.to_load.extend(found);
        if self.past.from().is_none() {
            self.look_back().await;
        }
        if self.shared.fence.may_adopt()
            && self.to_load.is_empty()
            && self.shared.in_flight.has_room()
            && let Some(from) = self.past.from()
        {
            let from = known.map_or(from, |known| known.min(from));
            // The answer of the adoption may be lost.
            self.own_floor.lower(from);
            let adopted = self.adoptions.adopt(from).await?;
            if !adopted.is_empty() {
                reach(Failpoint::BatchAdopted);
                adopted.iter().for_each(|batch| self.shared.in_flight.adopted(*batch));
                tracing::info!(batches = adopted.len(), "adopted");
                self.shared.metrics.adopted.inc_by(adopted.len().saturating_as::<u64>());
                if adopted.len() == BATCHES_MAX.saturating_as::<usize>() {
                    self.adopt_now.notify_one();
                }
            }
            self.to_load.extend(adopted);
        }
        self.load().await?;
        // The look back comes last because it may take long. The previous result is a lower bound,
        // so no batch is missed.
        self.look_back().await;
        if let Some(now) = self.shared.clock.now() {
            let age = self.past.age(now).as_secs().saturating_as::<i64>();
            self.shared.metrics.oldest_unsettled.set(age);
        }
        Ok(())
    }

    /// Finds out how old the oldest unsettled batch is. Until the answer is known, and when there
    /// is none, the previous result counts.
    async fn look_back(&mut self) {
        let began_at = clock::monotonic();
        // A claim whose commit waits for a standby or a disk is not visible yet. The commit of an
        // answered heartbeat has waited behind all earlier ones.
        let heard_at = self.bulletin.borrow().heartbeat_sent_at;
        let (Some(now), Some(heard_at)) = (self.shared.clock.now(), heard_at) else { return };
        let now = now.minus(began_at.since(heard_at));
        if self.past.is_due(began_at) {
            match self.adoptions.oldest().await {
                Ok(oldest) => self.past.begin(oldest, now),
                Err(error) => {
                    return tracing::warn!(
                        error = chain(&error),
                        "looking for the oldest batch failed; retrying"
                    );
                }
            }
        }
        while let Some(slice) = self.past.slice(clock::monotonic()) {
            // A slice that the server gives up on is tried again in smaller slices. The smallest
            // slice gets nearly all the time that a statement may take.
            let patience = if slice.is_narrowest { Duration::MAX } else { LOOK_BACK_SPAN_MAX };
            match self.adoptions.oldest_unsettled(slice.ids, patience).await {
                Ok(oldest) => self.past.answered(oldest, clock::monotonic()),
                Err(error @ PostgresError::GaveWay { .. }) => {
                    self.past.was_too_wide();
                    return tracing::debug!(
                        error = chain(&error),
                        "looking for the oldest unsettled batch failed; retrying with a smaller \
                         range"
                    );
                }
                Err(error) => {
                    if matches!(error, PostgresError::Unanswered { .. }) {
                        self.past.was_too_wide();
                    }
                    return tracing::warn!(
                        error = chain(&error),
                        "looking for the oldest unsettled batch failed; retrying"
                    );
                }
            }
            if clock::monotonic().since(began_at) >= LOOK_BACK_SPAN_MAX {
                return;
            }
        }
    }

    /// Lifts the fence: the node was out of touch for longer than a heartbeat vouches for, and
    /// gives up the batches that are no longer its own.
    fn clear_up(&self, own: &[BatchId], asked_at: Monotonic, generation: u64) {
        let lost = self.shared.in_flight.give_up_lost(own, asked_at);
        if !lost.is_empty() {
            tracing::warn!(
                batches = lost.len(),
                "other nodes have adopted batches of this node; dropping them"
            );
            self.purge();
        }
        self.shared.fence.lift(generation);
    }

    fn purge(&self) {
        if let Err(error) = self.publisher.purge() {
            tracing::error!(
                error = chain(&error),
                "cannot empty the producer; its records may be published twice"
            );
        }
    }

    /// Frees all batches when no broker answers this node while other nodes have contact: the
    /// others publish them.
    async fn free_all(&mut self) -> Result<(), PostgresError> {
        if !self.bulletin.borrow().is_cut_off {
            // This node has contact again. A batch that was not freed in time still belongs to this
            // node, and the next check publishes it. Freeing it now could come just before its
            // settle, and another node would publish it again.
            self.to_free.clear();
            return Ok(());
        }
        let given_up = self.shared.in_flight.give_up_all();
        if !given_up.is_empty() {
            self.purge();
        }
        self.to_free.extend(given_up);
        if !self.to_free.is_empty() {
            let freed = self.adoptions.free(&self.to_free).await?;
            tracing::warn!(batches = freed.len(), "batches were released for other nodes to adopt");
            self.to_free.clear();
        }
        Ok(())
    }

    async fn load(&mut self) -> Result<(), PostgresError> {
        while self.shared.in_flight.has_room() {
            let Some(batch) = self.to_load.pop() else { return Ok(()) };
            if !self.shared.in_flight.ask_for(batch) {
                continue;
            }
            match self.adoptions.load(batch).await {
                Ok(Some((loaded, paused))) => {
                    reach(Failpoint::BatchLoaded);
                    self.unloadable.remove(&batch);
                    self.shared.take_in_loaded(loaded, paused).await;
                }
                // The batch was settled or adopted meanwhile, or its payload is being detached. The
                // next check decides.
                Ok(None) => {
                    self.shared.in_flight.forget(batch);
                    self.unloadable.insert(batch, None);
                }
                Err(error) if error.is_away() => {
                    self.shared.in_flight.forget(batch);
                    self.to_load.push(batch);
                    return Err(error);
                }
                // One unreadable batch must not hold up the others. The batch stays unsettled and
                // owned by this node, for the next check to find.
                Err(error) => {
                    self.shared.in_flight.forget(batch);
                    self.note_unloadable(batch, chain(&error));
                }
            }
        }
        Ok(())
    }

    /// Logs why a batch cannot be loaded: at once if the reason is new for the batch, otherwise at
    /// most one line a minute for all batches.
    fn note_unloadable(&mut self, batch: BatchId, reason: String) {
        let before = self.unloadable.insert(batch, Some(reason.clone())).flatten();
        let is_new = before.as_ref() != Some(&reason);
        if self.unloadable_log.lets_through(clock::monotonic()) || is_new {
            tracing::error!(
                %batch, error = reason,
                "cannot load a batch; its tasks are not published"
            );
        }
    }
}
