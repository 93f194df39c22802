//! Decides which ids to claim next.
//!
//! The **watermark** runs ahead of the clock by the window: everything due before it has been
//! claimed, except late inserts. At each tick the loop claims from the watermark to now + window.
//! It also claims the slack behind the watermark once more, for inserts that were slow to commit.
//! The watermark never waits. A range that is too large for one claim becomes a **deferred range**,
//! which is claimed piece by piece, in turns with the watermark. A sweep is a deferred range, too:
//! it covers everything behind the watermark. Tasks that were skipped because their topic had
//! reached its in-flight limit wait in a deferred range until there is room. A deferred range that
//! holds a **hotspot** (one millisecond with more tasks than one claim takes) is looked past: a
//! second deferred range covers the rest of it and leaves out the topics of the hotspot, so that a
//! few tasks of other topics do not wait for the hotspot.
//!
//! ```text
//!        oldest leaf                 watermark - slack   watermark        now + window
//!             |------------ sweep ---------------|--------|--------------------|
//!                     (every 15 s)                \____ claimed at each tick __/
//! ```
//!
//! A claim is bounded by its range of ids, never by a limit on its rows. The next piece of a
//! deferred range is the last piece times target / rows found. A claim that would be too large
//! takes nothing and says so; the next claim then tries a sixteenth of that range. After a slow
//! piece (one with many dead rows, for example) the next piece is smaller, and the next sweep uses
//! small pieces at the same place. Ids continue below the millisecond (shard, then the low bits),
//! so a claim can also split one crowded millisecond. Widths are measured so that the tasks of one
//! instant are spread evenly ([`ruler`]).

mod ruler;
mod strips;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::time::Duration;

use uuid::Uuid;

use self::ruler::{MILLISECOND, Ruler};
pub use self::strips::Scope;
use self::strips::{Kind, Strip, Strips};
use crate::domain::ids::floor_of;
use crate::domain::{Batch, IdRange, Shard, TaskId, Timestamp, TopicName};

/// The parameters of claim sizes.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How far ahead of its due time a task is claimed.
    pub window: Duration,
    /// How far behind the watermark each tick looks again. The slack must be longer than an insert
    /// takes to commit: 0.5 to 1 s. More costs 0.65 ms per 1,000 dead index entries.
    pub slack: Duration,
    /// Width of a leaf. No claim crosses the end of a leaf, so that the ids of a batch lie close
    /// together.
    pub leaf: Duration,
    /// The number of rows that a claim aims at.
    pub rows_target: u64,
}

/// Any node may claim tasks that are overdue by more than this, whoever owns their shard.
const OVERDUE_FOR_ALL: Duration = Duration::from_secs(10);
/// A claim that takes Postgres longer than this is followed by a smaller one, because the watermark
/// waits for it. The time counts rows that were claimed and rows that were skipped.
const SPENT_MAX: Duration = Duration::from_millis(50);
/// Minimum width of sweep pieces: a disk that stalls now and then must not shrink them without end.
const SWEEP_MIN: Duration = Duration::from_secs(1);
/// Sweep pieces older than this grow without a limit: a sweep should not walk through days of tasks
/// of an unavailable topic second by second.
const RECENT: Duration = Duration::from_secs(3600);
/// A range grows or shrinks by at most this factor at a time, except for the first look past a
/// hotspot.
const FACTOR_MAX: u128 = 16;
/// A deferred range is looked past when at least this many claims of it are still to come and it is
/// so dense that one millisecond fills a claim. A backlog of minutes is not a hotspot.
const CROWD_CLAIMS: u64 = 8;
/// Number of hotspot tasks to look past at first: 25 to 50 ms of Postgres time, when they are small
/// and in memory. Smaller pieces would read the same pages again and again.
const LOOK: u64 = 50_000;
/// A range of at most this width is skipped when its claim gives way to a lock. It holds 1/256 of
/// the tasks that are due at one instant.
const LOCKED: u128 = MILLISECOND / 256;

/// A claim to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Claim {
    pub range: IdRange,
    pub scope: Scope,
    /// Topics whose tasks belong to another deferred range: this claim leaves them in place.
    pub left_out: BTreeSet<TopicName>,
    origin: Origin,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Origin {
    Front,
    Strip,
}

impl Claim {
    /// Returns true for claims at the watermark. Other claims take tasks behind it.
    pub fn is_front(&self) -> bool {
        self.origin == Origin::Front
    }
}

/// The result of a committed claim.
#[derive(Clone, Debug, Default)]
pub struct Taken {
    pub got: u64,
    /// Postgres time for the claim, without the commit.
    pub spent: Duration,
    /// Topics that had reached their in-flight limit: the claim skipped their tasks.
    pub full: BTreeSet<TopicName>,
    /// Topics that make up most of the claim, see [`crowding`].
    pub crowding: BTreeSet<TopicName>,
}

impl Taken {
    pub fn of(batch: &Batch, spent: Duration, full: BTreeSet<TopicName>) -> Self {
        let mut counts = vec![0; batch.topics().len()];
        batch.tasks().for_each(|task| counts[usize::from(task.topic)] += 1);
        let crowding = crowding(batch.topics().iter().zip(counts));
        Self { got: u64::try_from(batch.len()).unwrap_or(u64::MAX), spent, full, crowding }
    }
}

/// Returns the topics that make up a hotspot, from the number of tasks of each topic: the topics
/// with at least an eighth of the tasks, if these topics have at least half of the tasks together.
/// Returns none when all topics are small, because looking past a few of them would not help.
fn crowding<'a>(counts: impl Iterator<Item = (&'a TopicName, u64)> + Clone) -> BTreeSet<TopicName> {
    let total: u64 = counts.clone().map(|(_, count)| count).sum();
    let large = counts.filter(|(_, count)| count.saturating_mul(8) >= total);
    let together: u64 = large.clone().map(|(_, count)| count).sum();
    if together.saturating_mul(2) < total { BTreeSet::new() } else { large.map(|(topic, _)| topic.clone()).collect() }
}

/// The next step after a claim that failed because of a value in a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Poison {
    /// Try a smaller range next.
    Narrowed,
    /// The row with this id cannot be claimed.
    Row(Uuid),
    /// Not even the ids in the range can be read.
    Unreadable,
}

/// The claims of one claim loop.
#[derive(Debug)]
pub struct Claiming {
    settings: Settings,
    rulers: Rulers,
    /// All ids below have been claimed or deferred, except late inserts. `None` before the first
    /// turn.
    front: Option<Uuid>,
    /// End of the last range that was deferred at the watermark. The slack does not reach behind
    /// it, because it would meet the hotspot there again at each tick.
    cut: Uuid,
    step: u128,
    strips: Strips,
    /// Ranges with tasks that were skipped because their topics had reached their limits.
    passed: Strips,
    /// Width of the pieces of the last sweep.
    sweep_step: u128,
    /// Maximum width of sweep pieces within the last hour. Pieces grow where there are no rows.
    /// Where an old snapshot keeps minutes of dead rows, a piece that has grown would delay the
    /// watermark by seconds.
    sweep_max: u128,
}

impl Claiming {
    /// `all` are the shards of the cluster. Every scope covers all of them until [`Self::restart`]
    /// assigns them.
    pub fn new(settings: Settings, all: &[Shard]) -> Self {
        let ruler = || Ruler::new(all.iter().copied());
        Self::measured(settings, Rulers { mine: ruler(), others: ruler(), all: ruler() })
    }

    fn measured(settings: Settings, rulers: Rulers) -> Self {
        let step = width_of(settings.window);
        let (strips, passed) = (Strips::default(), Strips::default());
        let leaf = width_of(settings.leaf);
        Self { settings, rulers, front: None, cut: Uuid::nil(), step, strips, passed, sweep_step: leaf, sweep_max: leaf }
    }

    /// Starts again after a start of the node or a change of its shards. The caller must sweep
    /// next. Deferred ranges over all shards are kept.
    pub fn restart(&mut self, mine: &[Shard], others: &[Shard]) {
        self.rulers.mine = Ruler::new(mine.iter().copied());
        self.rulers.others = Ruler::new(others.iter().copied());
        self.front = None;
        self.cut = Uuid::nil();
        self.strips.restart();
        self.passed.restart();
    }

    /// Returns the next claim at the watermark, or `None` when the watermark has reached now +
    /// window.
    pub fn next_of_front(&mut self, now: Timestamp) -> Option<Claim> {
        let goal = floor_of(now.plus(self.settings.window));
        // The clock was set back. Tasks between the new time and the watermark are not due for
        // long, so they must not count as claimed.
        if self.front.is_some_and(|front| front.as_u128() > goal.as_u128().saturating_add(width_of(self.settings.slack))) {
            *self = Self::measured(self.settings, self.rulers.clone());
        }
        let front = *self.front.get_or_insert(floor_of(now));
        let front = self.leave_behind(front, now);
        if front >= goal {
            return None;
        }
        // The watermark advances by whole milliseconds: otherwise it would wait for a hotspot that
        // is claimed piece by piece.
        let end = self.rulers.mine.above(front, self.step);
        let to = floor_of(TaskId::from_uuid(end).due_at()).max(end_of(front, MILLISECOND)).min(goal);
        let range = IdRange { from: self.behind(front), to };
        Some(Claim { range, scope: Scope::Mine, left_out: BTreeSet::new(), origin: Origin::Front })
    }

    /// Returns the next claim of a deferred range. Ranges take turns; ranges of other nodes' shards
    /// come last.
    pub fn next_of_strips(&mut self) -> Option<Claim> {
        self.strips.turn();
        let strip = self.strips.first()?;
        let end = self.end_of_leaf(strip.rest.from).min(strip.rest.to);
        let to = self.rulers.of(strip.scope).above(strip.rest.from, strip.step).min(end);
        let range = IdRange { from: strip.rest.from, to };
        Some(Claim { range, scope: strip.scope, left_out: strip.left_out.clone(), origin: Origin::Strip })
    }

    /// Records a claim that committed.
    pub fn took(&mut self, claim: &Claim, taken: &Taken) {
        match claim.origin {
            Origin::Front => {
                self.pass_by(claim, taken);
                if !taken.full.is_empty() {
                    // The skipped range is remembered, so the slack need not scan it at each tick.
                    self.cut = claim.range.to;
                }
                // A smaller step does not reduce the time that the slack behind it costs, and the
                // watermark must still reach its goal.
                let least = width_of(self.settings.window) / FACTOR_MAX;
                let wished = self.by_rows(self.step, taken).min(self.by_time(self.step, taken).max(least));
                self.step = wished.max(MILLISECOND);
                self.front = Some(claim.range.to);
            }
            Origin::Strip => {
                let Some(mut strip) = self.strips.take_first() else { return };
                if strip.kind == Kind::Passed && taken.got == 0 && strip.full.is_subset(&taken.full) {
                    // The whole range was scanned when it was skipped, for the same topics.
                    return self.passed.join(strip);
                }
                self.pass_by(claim, taken);
                let width = self.width(claim);
                let wished = self.by_rows(width, taken).min(self.by_time(width, taken));
                strip.step = if claim.range.to < strip.narrow_before { wished.min(width) } else { wished };
                strip.rest.from = claim.range.to;
                if strip.kind == Kind::Sweep {
                    self.bound_sweep(&mut strip, width, taken);
                }
                self.look_past(&mut strip, width, taken);
                self.strips.keep(strip);
            }
        }
    }

    /// Looks past a hotspot: a new deferred range covers the rest and leaves out the topics of the
    /// hotspot. The density of the last piece (its rows over its `width`) tells how many tasks are
    /// left.
    fn look_past(&mut self, strip: &mut Strip, width: u128, taken: &Taken) {
        let rest = IdRange { from: strip.rest.from.max(strip.looked_past), to: strip.rest.to };
        let rest_width = self.rulers.of(strip.scope).width(rest.from, rest.to);
        let expected = rest_width.saturating_mul(u128::from(taken.got)) / width.max(1);
        let target = u128::from(self.settings.rows_target);
        let is_dense = u128::from(taken.got).saturating_mul(MILLISECOND) >= target.saturating_mul(width);
        let is_crowd = strip.kind == Kind::Aside && is_dense && expected >= target.saturating_mul(u128::from(CROWD_CLAIMS));
        // When deferred ranges have to be joined, the new one would be lost.
        if !is_crowd || taken.crowding.is_empty() || !self.strips.has_room_for(2) {
            return;
        }
        strip.looked_past = rest.to;
        let step = width.saturating_mul(u128::from(LOOK)) / u128::from(taken.got.max(1));
        let beside = Strip::new(rest, step, strip.scope, Kind::Aside);
        let left_out = strip.left_out.union(&taken.crowding).cloned().collect();
        self.strips.join(Strip { left_out, ..beside });
    }

    /// Adapts the maximum width of sweep pieces. A piece that was slow and found almost nothing has
    /// met dead rows: later pieces of the last hour are at most a sixteenth as wide. A sweep
    /// without a slow piece doubles the maximum for the next sweep.
    fn bound_sweep(&mut self, strip: &mut Strip, width: u128, taken: &Taken) {
        strip.slowest = strip.slowest.max(taken.spent);
        if taken.spent > SPENT_MAX && taken.got < self.settings.rows_target / 16 {
            self.sweep_max = self.sweep_max.min(narrowed(width)).max(width_of(SWEEP_MIN));
        } else if strip.rest.is_empty() && strip.slowest < SPENT_MAX / 2 {
            self.sweep_max = self.sweep_max.saturating_mul(2).min(width_of(self.settings.leaf));
        }
        strip.step = self.bounded(strip.step, strip.rest);
        self.sweep_step = strip.step;
    }

    /// Limits the width of the next sweep piece, where `rest` is the range that is left.
    fn bounded(&self, step: u128, rest: IdRange) -> u128 {
        if rest.width() <= width_of(RECENT) { step.min(self.sweep_max) } else { step }
    }

    /// Releases skipped ranges for claiming, except those that wait only for topics in `full`.
    pub fn there_is_room(&mut self, full: &BTreeSet<TopicName>) {
        for strip in self.passed.take_all() {
            let is_waiting = strip.full.is_subset(full);
            if is_waiting { self.passed.keep(strip) } else { self.strips.keep(strip) }
        }
    }

    /// The number of ranges that wait for room of a topic.
    pub fn passed_count(&self) -> usize {
        self.passed.len()
    }

    /// Records that the claim was too large and took nothing. `first` is the lowest id in the
    /// range, if it is known. A range of width zero holds no id that Punctual made, so it is
    /// skipped.
    pub fn was_too_large(&mut self, claim: &Claim, first: Option<Uuid>) {
        let from = first.unwrap_or(claim.range.from).max(claim.range.from);
        match claim.origin {
            Origin::Front => self.narrow_front(claim, from),
            Origin::Strip => {
                let width = self.width(claim);
                if let Some(strip) = self.strips.first_mut() {
                    strip.rest.from = if width == 0 { claim.range.to } else { from };
                    strip.step = narrowed(width);
                    if !strip.left_out.is_empty() {
                        // A refused claim costs as much as a successful one here, so the next
                        // pieces stay narrow.
                        strip.narrow_before = claim.range.to;
                    }
                }
            }
        }
    }

    /// Narrows the claim at the watermark when a hotspot lies somewhere from `from` on. Tasks
    /// beside the hotspot stay on time: only the hotspot itself is deferred, to the millisecond.
    fn narrow_front(&mut self, claim: &Claim, from: Uuid) {
        let front = self.front.unwrap_or(from);
        let width = self.rulers.mine.width(from, claim.range.to);
        if from < front {
            self.set_aside(IdRange { from, to: front });
        } else if width > MILLISECOND {
            self.front = Some(from);
            self.step = narrowed(width).max(MILLISECOND);
        } else {
            // The whole millisecond is deferred, so that it is joined with a hotspot in the
            // millisecond before and is claimed after it.
            self.set_aside(IdRange { from: floor_of(TaskId::from_uuid(from).due_at()), ..claim.range });
            self.front = Some(claim.range.to);
        }
    }

    fn set_aside(&mut self, range: IdRange) {
        let step = narrowed(self.rulers.mine.width(range.from, range.to));
        self.strips.join(Strip::new(range, step, Scope::Mine, Kind::Aside));
        self.cut = range.to;
    }

    /// Records that the claim gave way, for example to a lock. Its range waits behind the others. A
    /// range that has been narrowed down to the lock is left to the next sweep, because a lock may
    /// last.
    pub fn gave_way(&mut self, claim: &Claim) {
        match claim.origin {
            Origin::Front => {
                self.set_aside(claim.range);
                self.front = Some(claim.range.to);
            }
            Origin::Strip => {
                let width = self.width(claim);
                if let Some(mut strip) = self.strips.take_first() {
                    if width <= LOCKED {
                        strip.rest.from = claim.range.to;
                        strip.step = MILLISECOND;
                    } else {
                        strip.step = narrowed(width);
                        strip.narrow_before = claim.range.to;
                    }
                    strip.slowest = SPENT_MAX;
                    self.strips.keep(strip);
                }
            }
        }
    }

    /// Records that the claim failed because of a value in a row and took nothing. `first` is the
    /// lowest id in the range, or `None` when no id can be read. In that case the range is left to
    /// the next sweep, because an id without a row must not be mistaken for a row.
    pub fn was_poisoned(&mut self, claim: &Claim, first: Option<Uuid>) -> Poison {
        if claim.origin == Origin::Front {
            self.gave_way(claim);
            return Poison::Narrowed;
        }
        let is_row = claim.range.width() <= 1;
        if first.is_some() && !is_row {
            self.was_too_large(claim, first);
            if let Some(strip) = self.strips.first_mut() {
                // A claim that succeeds before the bad row says nothing about the row.
                strip.narrow_before = claim.range.to;
            }
            return Poison::Narrowed;
        }
        if let Some(mut strip) = self.strips.take_first() {
            strip.rest.from = claim.range.to;
            strip.step = MILLISECOND;
            self.strips.keep(strip);
        }
        first.map_or(Poison::Unreadable, Poison::Row)
    }

    /// Returns true while a sweep of these shards is running. The next sweep waits until it ends.
    pub fn is_sweeping(&self, scope: Scope) -> bool {
        self.strips.has_sweep(scope)
    }

    /// Starts a sweep: a scan of everything behind the watermark, from the oldest leaf on.
    pub fn sweep(&mut self, oldest: Timestamp, now: Timestamp, scope: Scope) {
        let end = match scope {
            Scope::Mine => {
                // The watermark starts here, even when there is no room for its first claim yet:
                // tasks that become due until then lie behind it.
                let front = *self.front.get_or_insert(floor_of(now));
                self.behind(front).min(floor_of(now.plus(self.settings.window)))
            }
            Scope::Others => floor_of(now.minus(OVERDUE_FOR_ALL)),
            Scope::All => floor_of(now),
        };
        let rest = IdRange { from: floor_of(oldest), to: end };
        self.strips.keep(Strip::new(rest, self.bounded(self.sweep_step, rest), scope, Kind::Sweep));
    }

    /// Claims ids at once that this node inserted behind the watermark, as far as they are due
    /// within the window. The watermark will reach the others.
    pub fn came_late(&mut self, ids: IdRange, now: Timestamp) {
        let due = IdRange { to: ids.to.min(floor_of(now.plus(self.settings.window))), ..ids };
        if !due.is_empty() {
            self.strips.keep(Strip::new(due, self.rulers.all.width(due.from, due.to), Scope::All, Kind::Aside));
        }
    }

    /// The number of deferred ranges.
    pub fn strip_count(&self) -> usize {
        self.strips.len()
    }

    /// Moves the watermark to the present when it is behind the clock because claims were paused.
    /// The range in between is deferred, so that tasks due now come first.
    fn leave_behind(&mut self, front: Uuid, now: Timestamp) -> Uuid {
        let present = floor_of(now);
        if front.as_u128().saturating_add(width_of(self.settings.slack)) >= present.as_u128() {
            return front;
        }
        let rest = IdRange { from: self.behind(front), to: present };
        self.strips.keep(Strip::new(rest, self.rulers.mine.width(rest.from, rest.to), Scope::Mine, Kind::Aside));
        self.cut = present;
        self.front = Some(present);
        present
    }

    /// Remembers tasks that a claim skipped because their topics had reached their limits.
    fn pass_by(&mut self, claim: &Claim, taken: &Taken) {
        let full: BTreeSet<TopicName> = taken.full.difference(&claim.left_out).cloned().collect();
        if !full.is_empty() {
            let strip = Strip::new(claim.range, self.width(claim), claim.scope, Kind::Passed);
            self.passed.join(Strip { full, left_out: claim.left_out.clone(), ..strip });
        }
    }

    /// Returns the width that would have found the target number of rows.
    fn by_rows(&self, width: u128, taken: &Taken) -> u128 {
        scaled(width, self.settings.rows_target, taken.got)
    }

    /// Returns the width that would have taken exactly the time limit of a claim.
    fn by_time(&self, width: u128, taken: &Taken) -> u128 {
        let micros = |span: Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        scaled(width, micros(SPENT_MAX), micros(taken.spent))
    }

    fn behind(&self, front: Uuid) -> Uuid {
        Uuid::from_u128(front.as_u128().saturating_sub(width_of(self.settings.slack))).max(self.cut)
    }

    /// Returns the end of the leaf that contains `id`. Leaves begin at multiples of their width.
    fn end_of_leaf(&self, id: Uuid) -> Uuid {
        end_of(id, width_of(self.settings.leaf).max(MILLISECOND))
    }

    fn width(&self, claim: &Claim) -> u128 {
        self.rulers.of(claim.scope).width(claim.range.from, claim.range.to)
    }
}

/// The rulers that measure the ids of each scope.
#[derive(Clone, Debug)]
struct Rulers {
    mine: Ruler,
    others: Ruler,
    all: Ruler,
}

impl Rulers {
    fn of(&self, scope: Scope) -> &Ruler {
        match scope {
            Scope::Mine => &self.mine,
            Scope::Others => &self.others,
            Scope::All => &self.all,
        }
    }
}

/// Returns the end of the multiple of `width` that contains `id`.
fn end_of(id: Uuid, width: u128) -> Uuid {
    Uuid::from_u128((id.as_u128() / width).saturating_add(1).saturating_mul(width))
}

fn width_of(span: Duration) -> u128 {
    span.as_millis().saturating_mul(MILLISECOND)
}

/// Returns the width to try after `width` was too much. Halving would need many steps from a leaf
/// down to a millisecond.
fn narrowed(width: u128) -> u128 {
    (width / FACTOR_MAX).max(1)
}

/// Returns the width that would have found `target` rows where `width` found `got`.
fn scaled(width: u128, target: u64, got: u64) -> u128 {
    // At most 2^107 (a day of ids) times a few thousand: far below 2^128.
    let wished = width.saturating_mul(u128::from(target)) / u128::from(got.max(1));
    wished.clamp(width / FACTOR_MAX, width.saturating_mul(FACTOR_MAX)).clamp(1, width_of(Duration::from_secs(86_400)))
}
