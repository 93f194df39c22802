//! The membership loop: heartbeat, look, decide, publish, wait.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use az::SaturatingAs as _;
use thiserror::Error;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::board::{Board, BoardFindings};
use super::fencing::FencingSource;
use super::progress::{STILL_MAX, Wedged};
use super::settings::{MembershipParts, MembershipSettings};
use crate::clock;
use crate::domain::{Monotonic, NodeId, Throttle};
use crate::engine::liveness::alone::{Alone, Finding};
use crate::engine::liveness::broker::CutOff;
use crate::engine::liveness::fencing::FencingRule;
use crate::engine::liveness::streak::{Failing, FailureCause};
use crate::engine::liveness::{Decision, DeclareDead, EtcdView, Liveness, Sign, Standing};
use crate::error_chain::chain;
use crate::node::messages::{NotReady, Requirement};
use crate::postgres::cluster::heartbeat::{Beat, HeartbeatAnswer, HeartbeatRow, Heartbeats};
use crate::shutdown::TaskFailure;
use crate::{etcd, postgres::PostgresError};

/// A warning is logged when the wall clock differs more than this from the cluster's clock.
const OFFSET_MAX_SECONDS: f64 = 1.0;
/// The minimum pause between two turns, however much there is to do.
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// The interval at which a lasting condition is logged again.
const LOG_EVERY: Duration = Duration::from_secs(30);

#[derive(Debug, Error)]
pub enum MembershipError {
    #[error(
        "node {name} ({address}, {node}) already runs on this database; to run several nodes, give \
         each of them --etcd"
    )]
    NotAlone { node: NodeId, name: String, address: String },
}

/// The channels that the loop feeds.
pub(super) struct Outputs {
    pub board: Board,
    pub fencing: FencingSource,
    pub adopt_now: Arc<Notify>,
    pub leave: mpsc::Receiver<oneshot::Sender<bool>>,
}

pub(super) struct MembershipKeeper {
    settings: MembershipSettings,
    parts: MembershipParts,
    out: Outputs,
    heartbeats: Heartbeats,
    liveness: Liveness,
    cut_off: CutOff,
    /// The state of a node without etcd.
    alone: Option<Alone>,
    /// The node waits for another node without etcd, and writes no heartbeats yet.
    is_waiting: bool,
    waits_for: Option<NodeId>,
    must_look_again: bool,
    counter: i64,
    /// The last heartbeat that succeeded, and when it was sent.
    last: Option<(Beat, Monotonic)>,
    is_cut_off: bool,
    has_left: bool,
    /// The number of failures in a row. `failure` is the reason of the last one.
    failures: u32,
    /// The time of the first of these failures, if Postgres was away then.
    away_since: Option<Monotonic>,
    failure: String,
    is_wedged: bool,
    /// The last look for a wedged part.
    looked_at: Monotonic,
    /// The last look was left out, because the process may have stood still.
    is_excused: bool,
    /// Throttles the log line that claims fail.
    failing_log: Throttle,
    is_offset: bool,
}

/// When a heartbeat was sent, and when its answer arrived.
#[derive(Clone, Copy)]
struct HeartbeatExchange {
    sent_at: Monotonic,
    arrived_at: Monotonic,
}

impl MembershipKeeper {
    pub(super) fn new(settings: MembershipSettings, parts: MembershipParts, out: Outputs) -> Self {
        let ttl = settings.ttl;
        parts.metrics.cluster_shards.set(i64::from(settings.shards.get()));
        parts.metrics.heartbeat_age_max.set(FencingRule::new(ttl).span().as_secs_f64());
        let alone = parts.etcd.is_none().then(|| Alone::new(settings.node, ttl));
        Self {
            heartbeats: Heartbeats::new(&parts.postgres, ttl),
            liveness: Liveness::new(ttl),
            cut_off: CutOff::new(ttl),
            is_waiting: alone.is_some(),
            waits_for: None,
            must_look_again: false,
            alone,
            counter: 0,
            last: None,
            is_cut_off: false,
            has_left: false,
            failures: 0,
            away_since: None,
            failure: String::new(),
            is_wedged: false,
            looked_at: clock::monotonic(),
            is_excused: false,
            failing_log: Throttle::new(LOG_EVERY),
            is_offset: false,
            settings,
            parts,
            out,
        }
    }

    /// Runs until `stopping`. Fails only when the node must not run beside another one.
    pub(super) async fn run(mut self, stopping: CancellationToken) -> Result<(), TaskFailure> {
        let mut leaver: Option<oneshot::Sender<bool>> = None;
        // The missing requirements are known before the first heartbeat.
        self.show_state(clock::monotonic());
        loop {
            let began_at = clock::monotonic();
            self.turn().await?;
            if let Some(leaver) = leaver.take()
                && leaver.send(self.last.as_ref().is_none_or(|(beat, _)| beat.has_left)).is_err()
            {
                tracing::debug!("the caller that asked this node to leave did not wait");
            }
            let pause = self.pause(began_at, clock::monotonic());
            tokio::select! {
                () = stopping.cancelled() => return Ok(()),
                Some(done) = self.out.leave.recv() => {
                    self.has_left = true;
                    leaver = Some(done);
                }
                // A member came or went: read the heartbeats now.
                () = changed(self.parts.etcd.as_mut().map(|(_, view)| view)) => {}
                () = clock::sleep(pause) => {}
            }
        }
    }

    /// Performs one heartbeat and its consequences.
    async fn turn(&mut self) -> Result<(), MembershipError> {
        if self.is_standing_still() {
            self.liveness.read_failed();
        } else {
            match self.exchange().await {
                Ok((answer, at)) => {
                    self.succeeded();
                    self.take_in(&answer, at).await?;
                }
                Err(error) => self.failed(&error),
            }
        }
        let now = clock::monotonic();
        self.keep_session(now);
        self.show_state(now);
        Ok(())
    }

    /// Returns true while this node is wedged. It then writes no heartbeats, and other nodes take
    /// over.
    fn is_standing_still(&mut self) -> bool {
        let now = clock::monotonic();
        let pause = now.since(std::mem::replace(&mut self.looked_at, now));
        // Perhaps the whole process stood still. The claim loops get a turn to show that they run.
        self.is_excused = pause >= STILL_MAX / 2 && !self.is_excused;
        if self.is_excused {
            return self.is_wedged;
        }
        let wedged = self.parts.progress.wedged(now);
        if wedged.is_some() != self.is_wedged {
            match wedged {
                Some(Wedged::ClaimLoop(claim_loop)) => tracing::error!(
                    claim_loop,
                    "a claim loop is stuck; no heartbeats until it runs again, so that other nodes \
                     take over"
                ),
                Some(Wedged::Adopter) => tracing::error!(
                    "this node cannot find out which batches it owns, and publishes nothing; no \
                     heartbeats until it can, so that other nodes take over"
                ),
                None => tracing::info!("heartbeats resume"),
            }
        }
        self.is_wedged = wedged.is_some();
        self.is_wedged
    }

    /// Returns false before the claim loops turn. Also returns false while claims, settles or the
    /// care of batches fail here but may succeed on other nodes.
    fn may_claim(&self) -> bool {
        let (progress, now) = (&self.parts.progress, clock::monotonic());
        let failing =
            [progress.failing(now), progress.failing_adopter(now), progress.failing_settles(now)];
        progress.has_begun()
            && failing.iter().flatten().all(|failing| failing.cause != FailureCause::Unclear)
    }

    /// Logs repeatedly that claims fail, while they do. Returns the reason why the node is not
    /// ready.
    fn failing_claims(&mut self, now: Monotonic) -> Option<NotReady> {
        let Some(failing) = self.parts.progress.failing(now) else {
            if self.failing_log.reset() {
                tracing::info!("claims succeed again");
            }
            return None;
        };
        let for_s = now.since(failing.since).as_secs();
        let hint = match failing.cause {
            FailureCause::Lock => "; a lock is in the way, see pg_locks and pg_stat_activity",
            FailureCause::Full => "; the disk of Postgres is full",
            FailureCause::Unclear | FailureCause::Slow => "",
        };
        if self.failing_log.lets_through(now) {
            tracing::warn!(for_s, why = failing.why, "all claims fail{hint}");
        }
        Some(NotReady {
            what: Requirement::Claims,
            why: format!("all claims have failed for {for_s} s: {}{hint}", failing.why),
        })
    }

    /// Reads the clock, then writes the heartbeat of the node and reads the others. While the node
    /// waits to be alone, it only reads.
    async fn exchange(&mut self) -> Result<(HeartbeatAnswer, HeartbeatExchange), PostgresError> {
        let asked_at = clock::monotonic();
        let stamp = self.heartbeats.stamp().await?;
        self.parts.clock.take_in(stamp, asked_at);
        if let Some(since) = self.away_since.take() {
            self.parts.progress.forgive(since);
        }
        let sent_at = clock::monotonic();
        let answer = if self.is_waiting {
            self.heartbeats.read(self.settings.node).await?
        } else {
            self.beat(sent_at).await?
        };
        let arrived_at = clock::monotonic();
        self.parts.metrics.heartbeat_duration.observe(arrived_at.since(sent_at).as_secs_f64());
        Ok((answer, HeartbeatExchange { sent_at, arrived_at }))
    }

    async fn beat(&mut self, sent_at: Monotonic) -> Result<HeartbeatAnswer, PostgresError> {
        let contact = (self.parts.broker)();
        let is_cut_off = self.cut_off.take_in(contact, self.liveness.others_have_broker(), sent_at);
        if is_cut_off != self.is_cut_off {
            self.is_cut_off = is_cut_off;
            let words = if is_cut_off {
                "no Kafka broker answers this node, but others have contact: this node leaves"
            } else {
                "a Kafka broker answers again: this node joins"
            };
            tracing::warn!("{words} the assignment");
        }
        self.counter += 1;
        let beat = Beat {
            node: self.settings.node,
            name: self.settings.name.clone(),
            address: self.settings.address.clone(),
            version: self.settings.version.clone(),
            counter: self.counter,
            has_broker: contact.has_broker,
            can_publish: contact.has_broker
                && !is_cut_off
                && self.parts.clock.is_steady()
                && self.may_claim(),
            has_left: self.has_left,
        };
        let answer = self.heartbeats.beat(&beat).await?;
        if self.out.fencing.renew(sent_at, answer.is_revived, clock::monotonic()) {
            self.parts.metrics.fenced.inc();
            tracing::warn!(
                was_declared_dead = answer.is_revived,
                "this node was without a heartbeat for too long; it checks which batches it still \
                 owns before it publishes more"
            );
        }
        self.last = Some((beat, sent_at));
        Ok(answer)
    }

    async fn take_in(
        &mut self,
        answer: &HeartbeatAnswer,
        at: HeartbeatExchange,
    ) -> Result<(), MembershipError> {
        self.liveness.take_in(answer.rows.iter().map(sign), at.sent_at, at.arrived_at);
        let decision = self.decide(answer).await;
        let nodes = self.assignable(answer, &decision, at)?;
        let metrics = &self.parts.metrics;
        metrics.members.set(nodes.len().saturating_as());
        metrics.suspected.set(
            decision
                .standings
                .values()
                .filter(|one| **one == Standing::Suspected)
                .count()
                .saturating_as(),
        );
        let mine = self.out.board.show(&BoardFindings {
            answer,
            decision: &decision,
            members: self.members().unwrap_or_default(),
            nodes,
            last: self.last.as_ref(),
            is_cut_off: self.is_cut_off,
        });
        self.parts.metrics.shards_owned.set(mine.saturating_as());
        Ok(())
    }

    /// Decides which nodes live, and declares the others dead in Postgres.
    async fn decide(&mut self, answer: &HeartbeatAnswer) -> Decision {
        let etcd = self.etcd_view();
        let mut decision = self.liveness.decide(&etcd);
        let mut must_adopt = decision.adopt;
        for DeclareDead { node, counter } in std::mem::take(&mut decision.declare_dead) {
            match self.heartbeats.declare_dead(node, counter).await {
                Ok(true) => {
                    self.liveness.declared_dead(node);
                    must_adopt = true;
                    self.parts.metrics.declared_dead.inc();
                    let name = answer
                        .rows
                        .iter()
                        .find(|row| row.node == node)
                        .map(|row| row.name.as_str());
                    tracing::warn!(%node, name, "declared a node dead: its heartbeat stands still");
                }
                // Another node was quicker, or the heartbeat has changed since. The next read
                // tells, and follows at once.
                Ok(false) => {
                    self.liveness.spare(node);
                    self.must_look_again = true;
                }
                // The heartbeats that were read stay valid. The declaration is retried with the
                // next ones.
                Err(error) => {
                    tracing::warn!(
                        %node, error = chain(&error),
                        "cannot declare a node dead; retrying"
                    );
                }
            }
        }
        if must_adopt {
            self.out.adopt_now.notify_one();
        }
        decision
    }

    /// Returns the nodes sharing the shards: none while this node waits for another node without
    /// etcd.
    fn assignable(
        &mut self,
        answer: &HeartbeatAnswer,
        decision: &Decision,
        at: HeartbeatExchange,
    ) -> Result<Vec<NodeId>, MembershipError> {
        let own = self
            .last
            .as_ref()
            .filter(|(beat, _)| !beat.has_left)
            .map(|(beat, _)| (beat.node, beat.can_publish));
        let Some(alone) = &mut self.alone else {
            return Ok(self.liveness.assignable(decision, own));
        };
        let observed_since = self.liveness.observed_since().unwrap_or(at.arrived_at);
        match alone.take_in(decision, observed_since, answer.is_revived, at.arrived_at) {
            Finding::Alone => {
                self.is_waiting = false;
                self.waits_for = None;
            }
            Finding::NotAlone { other } if !self.has_left => {
                let row = answer.rows.iter().find(|row| row.node == other);
                let (name, address) =
                    row.map(|row| (row.name.clone(), row.address.clone())).unwrap_or_default();
                return Err(MembershipError::NotAlone { node: other, name, address });
            }
            Finding::Wait { other } if self.waits_for != Some(other) => {
                self.waits_for = Some(other);
                let patience = self.settings.ttl * 2;
                tracing::warn!(
                    %other, ?patience,
                    "without --etcd only one node may run; waiting to see whether another one is \
                     alive"
                );
            }
            Finding::NotAlone { .. } | Finding::Wait { .. } => {}
        }
        // The first heartbeat comes before the first shard.
        Ok(own.map(|(node, _)| node).into_iter().collect())
    }

    /// Ends the session of a node that is cut off from Postgres, so the other nodes need not wait
    /// for three TTL.
    fn keep_session(&self, now: Monotonic) {
        let Some((session, _)) = &self.parts.etcd else { return };
        match &self.last {
            Some((beat, sent_at)) if !self.has_left && now.since(*sent_at) < self.settings.ttl => {
                session.announce(etcd::Member {
                    name: beat.name.clone(),
                    address: beat.address.clone(),
                    version: beat.version.clone(),
                    started_at: self.settings.started_at.as_millis(),
                    can_publish: beat.can_publish,
                });
            }
            _ => session.end(),
        }
    }

    fn show_state(&mut self, now: Monotonic) {
        if let Some((_, sent_at)) = &self.last {
            self.parts.metrics.heartbeat_age.set(now.since(*sent_at).as_secs_f64());
        }
        self.parts.metrics.show_steps(self.parts.clock.step_counts());
        self.parts.metrics.show_primary_changes(self.parts.postgres.primary_changes().get());
        self.show_offset();
        let mut missing = Vec::new();
        if self.last.is_none() || self.failures > 0 {
            let (what, why) = match self.waits_for {
                _ if self.failures > 0 => (Requirement::Postgres, self.failure.clone()),
                Some(other) => {
                    let why = format!(
                        "without --etcd only one node may run, and node {other} may still be \
                         alive; waiting for its heartbeat to expire"
                    );
                    (Requirement::Heartbeat, why)
                }
                None => (Requirement::Heartbeat, "no heartbeat was written yet".to_owned()),
            };
            missing.push(NotReady { what, why });
        }
        // Without Postgres claims fail as well, and the log says so already.
        if self.failures == 0 {
            missing.extend(self.failing_claims(now));
            let progress = &self.parts.progress;
            let of_batches = [
                ("looked up", progress.failing_adopter(now)),
                ("settled", progress.failing_settles(now)),
            ];
            missing.extend(of_batches.into_iter().filter_map(|(deed, failing)| {
                let Failing { since, why, .. } = failing?;
                let why = format!(
                    "batches could not be {deed} for {} s: {why}",
                    now.since(since).as_secs()
                );
                Some(NotReady { what: Requirement::Batches, why })
            }));
        }
        if let Some((_, view)) = &self.parts.etcd
            && let etcd::View::Away { since } = *view.borrow()
        {
            missing.push(NotReady {
                what: Requirement::Etcd,
                why: format!(
                    "no usable answer for {} s; the log has the reason",
                    now.since(since).as_secs()
                ),
            });
        }
        if !self.parts.clock.is_steady() {
            missing.push(NotReady {
                what: Requirement::Clock,
                why: "the clock of Postgres is unknown, or was set within the last minute"
                    .to_owned(),
            });
        }
        self.out.board.show_missing(missing);
    }

    #[expect(
        clippy::as_conversions,
        reason = "microseconds of an offset become a float for people; a rounding error is of no \
                  matter"
    )]
    fn show_offset(&mut self) {
        let Some(cluster) = self.parts.clock.now() else { return };
        let seconds = clock::wall().micros_after(cluster) as f64 / 1e6;
        self.parts.metrics.clock_offset.set(seconds);
        let is_offset = seconds.abs() > OFFSET_MAX_SECONDS;
        if is_offset && !self.is_offset {
            tracing::warn!(
                seconds,
                "this machine's wall clock differs from the cluster's clock, which is Postgres's; \
                 due times follow Postgres"
            );
        }
        self.is_offset = is_offset;
    }

    fn succeeded(&mut self) {
        if self.failures > 0 {
            tracing::info!(failures = self.failures, "heartbeats reach Postgres again");
            self.failures = 0;
            self.failure.clear();
        }
    }

    fn failed(&mut self, error: &PostgresError) {
        self.liveness.read_failed();
        self.parts.metrics.heartbeat_failures.inc();
        self.failure = chain(error);
        if self.failures == 0 {
            tracing::warn!(
                error = self.failure,
                "heartbeats do not reach Postgres; shards keep their owners"
            );
            self.away_since = error.is_away().then(clock::monotonic);
        }
        self.failures = self.failures.saturating_add(1);
    }

    /// Returns the pause until the next turn: a sixth of a TTL after the last one began, or earlier
    /// when a node may be stale. After a failure the pause is short, because the fence comes
    /// closer.
    fn pause(&mut self, began_at: Monotonic, now: Monotonic) -> Duration {
        let ttl = self.settings.ttl;
        if self.failures > 0 {
            return (PAUSE_MIN * (1 << self.failures.min(8))).min(ttl / 3);
        }
        if std::mem::take(&mut self.must_look_again) || (self.last.is_none() && !self.is_waiting) {
            return PAUSE_MIN;
        }
        let next_at = began_at.plus(ttl / 6);
        let check_at = self.liveness.next_check_at().unwrap_or(next_at);
        next_at.min(check_at).since(now).max(PAUSE_MIN)
    }

    fn etcd_view(&self) -> EtcdView {
        match (&self.parts.etcd, self.members()) {
            // Without etcd no node has a key: one TTL is enough.
            (None, _) => EtcdView::Known([].into()),
            (Some(_), None) => EtcdView::Away,
            (Some(_), Some(members)) => EtcdView::Known(members.into_keys().collect()),
        }
    }

    fn members(&self) -> Option<BTreeMap<NodeId, etcd::Member>> {
        match &*self.parts.etcd.as_ref()?.1.borrow() {
            etcd::View::Away { .. } => None,
            etcd::View::Members(members) => Some(members.clone()),
        }
    }
}

async fn changed(view: Option<&mut watch::Receiver<etcd::View>>) {
    let has_changed = match view {
        Some(view) => view.changed().await.is_ok(),
        None => false,
    };
    if !has_changed {
        std::future::pending::<()>().await;
    }
}

fn sign(row: &HeartbeatRow) -> (NodeId, Sign) {
    let sign = Sign {
        counter: row.counter,
        has_left: row.has_left,
        is_dead: row.is_dead,
        can_publish: row.can_publish,
        has_broker: row.has_broker,
    };
    (row.node, sign)
}
