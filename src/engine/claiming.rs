//! Decides which ids to claim next.
//!
//! The **watermark** runs ahead of the clock by the window: everything due before the watermark has
//! been claimed, except late inserts. At each tick the loop claims from the watermark to now +
//! window. The loop also claims the slack behind the watermark once more, for inserts with a slow
//! commit. The watermark never waits. A range too large for one claim becomes a **deferred range**,
//! claimed piece by piece, in turns with the watermark. A sweep is a deferred range, too, over
//! everything behind the watermark. Tasks skipped at the in-flight limit of their topic wait in a
//! deferred range until there is room. Claims look past a deferred range with a **hotspot** (one
//! millisecond with more tasks than one claim takes): a second deferred range covers the rest and
//! leaves out the topics of the hotspot, so a few tasks of other topics do not wait for the
//! hotspot.
//!
//! ```text
//!        oldest leaf                 watermark - slack   watermark        now + window
//!             |------------ sweep ---------------|--------|--------------------|
//!                     (every 15 to 60 s)          \____ claimed at each tick __/
//! ```
//!
//! A claim is limited by its range of ids, never by a number of rows. The width of the next piece
//! of a deferred range is the width of the last piece times target / rows found. A claim that would
//! be too large takes nothing and says so; the next claim then tries a sixteenth of the range.
//! After a slow piece (for example with many dead rows) the next piece is smaller, and the next
//! sweep uses small pieces at the same place. Within a millisecond, ids are ordered by shard, then
//! by their low bits, so a claim can also split one hot millisecond. The [`ruler`] measures widths
//! so that the tasks of one instant are spread evenly.

mod deferred_ranges;
mod ruler;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::time::Duration;

use az::SaturatingAs as _;
use uuid::Uuid;

pub use self::deferred_ranges::Scope;
use self::deferred_ranges::{DeferredRange, DeferredRanges, Kind};
use self::ruler::{MILLISECOND, Ruler};
use crate::domain::ids::floor_of;
use crate::domain::{Batch, IdRange, Shard, TaskId, Timestamp, TopicName};

/// The parameters of claim sizes.
#[derive(Clone, Copy, Debug)]
pub struct ClaimSettings {
    /// How far ahead of its due time a task is claimed.
    pub window: Duration,
    /// How far behind the watermark each tick looks again. The slack must be longer than an insert
    /// takes to commit: 0.5 to 1 s. More costs 0.65 ms per 1,000 dead index entries.
    pub slack: Duration,
    /// Width of a leaf. No claim crosses the end of a leaf, so the ids of a batch lie close
    /// together.
    pub leaf: Duration,
    /// The number of rows that a claim aims at.
    pub rows_target: u64,
}

/// Any node may claim tasks overdue by more than this, whoever owns the shard.
const OVERDUE_FOR_ALL: Duration = Duration::from_secs(10);
/// A claim that takes Postgres longer is followed by a smaller one: the loop claims nothing at the
/// watermark meanwhile. Claimed and skipped rows count.
const SPENT_MAX: Duration = Duration::from_millis(50);
/// Minimum width of sweep pieces. Without it, a disk that stalls now and then would shrink the
/// pieces again and again.
const SWEEP_MIN: Duration = Duration::from_secs(1);
/// Sweep pieces older than this grow without a limit: a sweep should not walk through days of tasks
/// of an unavailable topic second by second.
const RECENT: Duration = Duration::from_secs(3600);
/// A range grows or shrinks by at most this factor at a time, except for the first look past a
/// hotspot.
const FACTOR_MAX: u128 = 16;
/// A deferred range is looked past when at least this many of its claims are still to come and one
/// millisecond fills a claim. A backlog of minutes is not a hotspot.
const HOTSPOT_CLAIMS: u64 = 8;
/// Number of hotspot tasks to look past at first: 25 to 50 ms of Postgres time, when they are small
/// and in memory. Smaller pieces would read the same pages again and again.
const LOOK: u64 = 50_000;
/// A range of at most this width is skipped when the claim gives way to a lock: 1/256 of the tasks
/// due at one instant.
const LOCKED: u128 = MILLISECOND / 256;

/// A claim to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Claim {
    pub range: IdRange,
    pub scope: Scope,
    /// Topics with tasks in another deferred range: the claim leaves these tasks in place.
    pub left_out: BTreeSet<TopicName>,
    origin: Origin,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Origin {
    Watermark,
    DeferredRange,
}

impl Claim {
    /// Returns true for claims at the watermark. Other claims take tasks behind it.
    pub fn is_at_watermark(&self) -> bool {
        self.origin == Origin::Watermark
    }
}

/// The result of a committed claim.
#[derive(Clone, Debug, Default)]
pub struct Taken {
    pub got: u64,
    /// Postgres time for the claim, without the commit.
    pub spent: Duration,
    /// Topics at their in-flight limit: the claim skipped their tasks.
    pub full: BTreeSet<TopicName>,
    /// Topics that make up most of the claim, see [`hotspot_topics`].
    pub hotspot_topics: BTreeSet<TopicName>,
}

impl Taken {
    pub fn of(batch: &Batch, spent: Duration, full: BTreeSet<TopicName>) -> Self {
        let mut counts = vec![0; batch.topics().len()];
        batch.tasks().for_each(|task| counts[usize::from(task.topic)] += 1);
        let hotspot_topics = hotspot_topics(batch.topics().iter().zip(counts));
        Self { got: batch.len().saturating_as::<u64>(), spent, full, hotspot_topics }
    }
}

/// Returns the topics that make up a hotspot, from the number of tasks of each topic: the topics
/// with at least an eighth of the tasks, if these topics have at least half of the tasks together.
/// Returns none when all topics are small, because looking past a few of them would not help.
fn hotspot_topics<'a>(
    counts: impl Iterator<Item = (&'a TopicName, u64)> + Clone,
) -> BTreeSet<TopicName> {
    let total: u64 = counts.clone().map(|(_, count)| count).sum();
    let large = counts.filter(|(_, count)| count.saturating_mul(8) >= total);
    let together: u64 = large.clone().map(|(_, count)| count).sum();
    if together.saturating_mul(2) < total {
        BTreeSet::new()
    } else {
        large.map(|(topic, _)| topic.clone()).collect()
    }
}

/// The next step after a claim that failed because of a value in a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Narrowing {
    /// Try a smaller range next.
    Smaller,
    /// The row with this id cannot be claimed.
    Row(Uuid),
    /// Not even the ids in the range can be read.
    Unreadable,
}

/// The claims of one claim loop.
#[derive(Debug)]
pub struct Claiming {
    settings: ClaimSettings,
    rulers: Rulers,
    /// All ids below have been claimed or deferred, except late inserts. `None` before the first
    /// turn.
    watermark: Option<Uuid>,
    /// End of the last range deferred at the watermark. The slack does not reach behind it, because
    /// it would meet the hotspot there again at each tick.
    cut: Uuid,
    step: u128,
    deferred_ranges: DeferredRanges,
    /// Ranges with skipped tasks of topics at their limits.
    skipped: DeferredRanges,
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
    pub fn new(settings: ClaimSettings, all: &[Shard]) -> Self {
        let ruler = || Ruler::new(all.iter().copied());
        Self::measured(settings, Rulers { mine: ruler(), others: ruler(), all: ruler() })
    }

    fn measured(settings: ClaimSettings, rulers: Rulers) -> Self {
        let step = width_of(settings.window);
        let (deferred_ranges, skipped) = (DeferredRanges::default(), DeferredRanges::default());
        let leaf = width_of(settings.leaf);
        Self {
            settings,
            rulers,
            watermark: None,
            cut: Uuid::nil(),
            step,
            deferred_ranges,
            skipped,
            sweep_step: leaf,
            sweep_max: leaf,
        }
    }

    /// Starts again after a start of the node or a change of its shards. The caller must sweep
    /// next. Deferred ranges over all shards are kept.
    pub fn restart(&mut self, mine: &[Shard], others: &[Shard]) {
        self.rulers.mine = Ruler::new(mine.iter().copied());
        self.rulers.others = Ruler::new(others.iter().copied());
        self.watermark = None;
        self.cut = Uuid::nil();
        self.deferred_ranges.restart();
        self.skipped.restart();
    }

    /// Returns the next claim at the watermark, or `None` when the watermark has reached now +
    /// window.
    pub fn next_at_watermark(&mut self, now: Timestamp) -> Option<Claim> {
        let goal = floor_of(now.plus(self.settings.window));
        // The clock was set back. Tasks between the new time and the watermark are not due for
        // long, so they must not count as claimed.
        if self.watermark.is_some_and(|watermark| {
            watermark.as_u128() > goal.as_u128().saturating_add(width_of(self.settings.slack))
        }) {
            *self = Self::measured(self.settings, self.rulers.clone());
        }
        let watermark = *self.watermark.get_or_insert(floor_of(now));
        let watermark = self.leave_behind(watermark, now);
        if watermark >= goal {
            return None;
        }
        // The watermark advances by whole milliseconds: otherwise it would wait for a hotspot that
        // is claimed piece by piece.
        let end = self.rulers.mine.above(watermark, self.step);
        let to =
            floor_of(TaskId::from_uuid(end).due_at()).max(end_of(watermark, MILLISECOND)).min(goal);
        let range = IdRange { from: self.behind(watermark), to };
        Some(Claim {
            range,
            scope: Scope::Mine,
            left_out: BTreeSet::new(),
            origin: Origin::Watermark,
        })
    }

    /// Returns the next claim of a deferred range. Ranges take turns; ranges of other nodes' shards
    /// come last.
    pub fn next_deferred(&mut self) -> Option<Claim> {
        self.deferred_ranges.turn();
        let deferred = self.deferred_ranges.first()?;
        let end = self.end_of_leaf(deferred.rest.from).min(deferred.rest.to);
        let to = self.rulers.of(deferred.scope).above(deferred.rest.from, deferred.step).min(end);
        let range = IdRange { from: deferred.rest.from, to };
        Some(Claim {
            range,
            scope: deferred.scope,
            left_out: deferred.left_out.clone(),
            origin: Origin::DeferredRange,
        })
    }

    /// Records a claim that committed.
    pub fn took(&mut self, claim: &Claim, taken: &Taken) {
        match claim.origin {
            Origin::Watermark => {
                self.skip_full_topics(claim, taken);
                if !taken.full.is_empty() {
                    // The skipped range is remembered, so the slack need not scan it at each tick.
                    self.cut = claim.range.to;
                }
                // A smaller step does not reduce the cost of the slack behind it, and the watermark
                // must still reach the goal.
                let least = width_of(self.settings.window) / FACTOR_MAX;
                let wished =
                    self.by_rows(self.step, taken).min(self.by_time(self.step, taken).max(least));
                self.step = wished.max(MILLISECOND);
                self.watermark = Some(claim.range.to);
            }
            Origin::DeferredRange => {
                let Some(mut deferred) = self.deferred_ranges.take_first() else { return };
                if deferred.kind == Kind::Skipped
                    && taken.got == 0
                    && deferred.full.is_subset(&taken.full)
                {
                    // The whole range was scanned when it was skipped, for the same topics.
                    return self.skipped.join(deferred);
                }
                self.skip_full_topics(claim, taken);
                let width = self.width(claim);
                let wished = self.by_rows(width, taken).min(self.by_time(width, taken));
                deferred.step = if claim.range.to < deferred.narrow_before {
                    wished.min(width)
                } else {
                    wished
                };
                deferred.rest.from = claim.range.to;
                if deferred.kind == Kind::Sweep {
                    self.limit_sweep(&mut deferred, width, taken);
                }
                self.look_past(&mut deferred, width, taken);
                self.deferred_ranges.keep(deferred);
            }
        }
    }

    /// Looks past a hotspot: a new deferred range covers the rest and leaves out the topics of the
    /// hotspot. The density of the last piece (its rows over its `width`) tells how many tasks are
    /// left.
    fn look_past(&mut self, deferred: &mut DeferredRange, width: u128, taken: &Taken) {
        let rest =
            IdRange { from: deferred.rest.from.max(deferred.looked_past), to: deferred.rest.to };
        let rest_width = self.rulers.of(deferred.scope).width(rest.from, rest.to);
        let expected = rest_width.saturating_mul(u128::from(taken.got)) / width.max(1);
        let target = u128::from(self.settings.rows_target);
        let is_dense =
            u128::from(taken.got).saturating_mul(MILLISECOND) >= target.saturating_mul(width);
        let is_hotspot = deferred.kind == Kind::Deferred
            && is_dense
            && expected >= target.saturating_mul(u128::from(HOTSPOT_CLAIMS));
        // When deferred ranges have to be joined, the new one would be lost.
        if !is_hotspot || taken.hotspot_topics.is_empty() || !self.deferred_ranges.has_room_for(2) {
            return;
        }
        deferred.looked_past = rest.to;
        let step = width.saturating_mul(u128::from(LOOK)) / u128::from(taken.got.max(1));
        let beside = DeferredRange::new(rest, step, deferred.scope, Kind::Deferred);
        let left_out = deferred.left_out.union(&taken.hotspot_topics).cloned().collect();
        self.deferred_ranges.join(DeferredRange { left_out, ..beside });
    }

    /// Adapts the maximum width of sweep pieces. A piece that was slow and found almost nothing has
    /// met dead rows: later pieces of the last hour are at most a sixteenth as wide. A sweep
    /// without a slow piece doubles the maximum for the next sweep.
    fn limit_sweep(&mut self, deferred: &mut DeferredRange, width: u128, taken: &Taken) {
        deferred.slowest = deferred.slowest.max(taken.spent);
        if taken.spent > SPENT_MAX && taken.got < self.settings.rows_target / 16 {
            self.sweep_max = self.sweep_max.min(narrowed(width)).max(width_of(SWEEP_MIN));
        } else if deferred.rest.is_empty() && deferred.slowest < SPENT_MAX / 2 {
            self.sweep_max = self.sweep_max.saturating_mul(2).min(width_of(self.settings.leaf));
        }
        deferred.step = self.bounded(deferred.step, deferred.rest);
        self.sweep_step = deferred.step;
    }

    /// Limits the width of the next sweep piece, where `rest` is the range that is left.
    fn bounded(&self, step: u128, rest: IdRange) -> u128 {
        if rest.width() <= width_of(RECENT) { step.min(self.sweep_max) } else { step }
    }

    /// Releases skipped ranges for claiming, except those waiting only for topics in `full`.
    pub fn there_is_room(&mut self, full: &BTreeSet<TopicName>) {
        for deferred in self.skipped.take_all() {
            let is_waiting = deferred.full.is_subset(full);
            if is_waiting {
                self.skipped.keep(deferred)
            } else {
                self.deferred_ranges.keep(deferred)
            }
        }
    }

    /// The number of ranges waiting for room of a topic.
    pub fn skipped_count(&self) -> usize {
        self.skipped.len()
    }

    /// Records that the claim was too large and took nothing. `first` is the lowest id in the
    /// range, if known. A range of width zero holds no id made by Punctual, so it is skipped.
    pub fn was_too_large(&mut self, claim: &Claim, first: Option<Uuid>) {
        let from = first.unwrap_or(claim.range.from).max(claim.range.from);
        match claim.origin {
            Origin::Watermark => self.narrow_at_watermark(claim, from),
            Origin::DeferredRange => {
                let width = self.width(claim);
                if let Some(deferred) = self.deferred_ranges.first_mut() {
                    deferred.rest.from = if width == 0 { claim.range.to } else { from };
                    deferred.step = narrowed(width);
                    if !deferred.left_out.is_empty() {
                        // A refused claim costs as much as a successful one here, so the next
                        // pieces stay narrow.
                        deferred.narrow_before = claim.range.to;
                    }
                }
            }
        }
    }

    /// Narrows the claim at the watermark when a hotspot lies somewhere from `from` on. Tasks
    /// beside the hotspot stay on time: only the hotspot itself is deferred, to the millisecond.
    fn narrow_at_watermark(&mut self, claim: &Claim, from: Uuid) {
        let watermark = self.watermark.unwrap_or(from);
        let width = self.rulers.mine.width(from, claim.range.to);
        if from < watermark {
            self.defer(IdRange { from, to: watermark });
        } else if width > MILLISECOND {
            self.watermark = Some(from);
            self.step = narrowed(width).max(MILLISECOND);
        } else {
            // The whole millisecond is deferred, so it is joined with a hotspot in the millisecond
            // before and is claimed after it.
            self.defer(IdRange { from: floor_of(TaskId::from_uuid(from).due_at()), ..claim.range });
            self.watermark = Some(claim.range.to);
        }
    }

    fn defer(&mut self, range: IdRange) {
        let step = narrowed(self.rulers.mine.width(range.from, range.to));
        self.deferred_ranges.join(DeferredRange::new(range, step, Scope::Mine, Kind::Deferred));
        self.cut = range.to;
    }

    /// Records that the claim gave way, for example to a lock. The range waits behind the others. A
    /// range narrowed down to the lock is left to the next sweep, because a lock may last.
    pub fn gave_way(&mut self, claim: &Claim) {
        match claim.origin {
            Origin::Watermark => {
                self.defer(claim.range);
                self.watermark = Some(claim.range.to);
            }
            Origin::DeferredRange => {
                let width = self.width(claim);
                if let Some(mut deferred) = self.deferred_ranges.take_first() {
                    if width <= LOCKED {
                        deferred.rest.from = claim.range.to;
                        deferred.step = MILLISECOND;
                    } else {
                        deferred.step = narrowed(width);
                        deferred.narrow_before = claim.range.to;
                    }
                    deferred.slowest = SPENT_MAX;
                    self.deferred_ranges.keep(deferred);
                }
            }
        }
    }

    /// Records that the claim failed because of a value in a row and took nothing. `first` is the
    /// lowest id in the range, or `None` when no id can be read. In that case the range is left to
    /// the next sweep, because an id without a row must not be mistaken for a row.
    pub fn failed_on_a_row(&mut self, claim: &Claim, first: Option<Uuid>) -> Narrowing {
        if claim.origin == Origin::Watermark {
            self.gave_way(claim);
            return Narrowing::Smaller;
        }
        let is_row = claim.range.width() <= 1;
        if first.is_some() && !is_row {
            self.was_too_large(claim, first);
            if let Some(deferred) = self.deferred_ranges.first_mut() {
                // A claim that succeeds before the bad row says nothing about the row.
                deferred.narrow_before = claim.range.to;
            }
            return Narrowing::Smaller;
        }
        if let Some(mut deferred) = self.deferred_ranges.take_first() {
            deferred.rest.from = claim.range.to;
            deferred.step = MILLISECOND;
            self.deferred_ranges.keep(deferred);
        }
        first.map_or(Narrowing::Unreadable, Narrowing::Row)
    }

    /// Returns true while a sweep of these shards is running. The next sweep waits until it ends.
    pub fn is_sweeping(&self, scope: Scope) -> bool {
        self.deferred_ranges.has_sweep(scope)
    }

    /// Starts a sweep: a scan of everything behind the watermark, from the oldest leaf on.
    pub fn sweep(&mut self, oldest: Timestamp, now: Timestamp, scope: Scope) {
        let end = match scope {
            Scope::Mine => {
                // The watermark starts here, even when there is no room for the first claim yet:
                // tasks that become due until then lie behind it.
                let watermark = *self.watermark.get_or_insert(floor_of(now));
                self.behind(watermark).min(floor_of(now.plus(self.settings.window)))
            }
            Scope::Others => floor_of(now.minus(OVERDUE_FOR_ALL)),
            Scope::All => floor_of(now),
        };
        let rest = IdRange { from: floor_of(oldest), to: end };
        self.deferred_ranges.keep(DeferredRange::new(
            rest,
            self.bounded(self.sweep_step, rest),
            scope,
            Kind::Sweep,
        ));
    }

    /// Claims ids at once that the node inserted behind the watermark, as far as they are due
    /// within the window. The watermark will reach the others.
    pub fn inserted_late(&mut self, ids: IdRange, now: Timestamp) {
        let due = IdRange { to: ids.to.min(floor_of(now.plus(self.settings.window))), ..ids };
        if !due.is_empty() {
            self.deferred_ranges.keep(DeferredRange::new(
                due,
                self.rulers.all.width(due.from, due.to),
                Scope::All,
                Kind::Deferred,
            ));
        }
    }

    /// The number of deferred ranges.
    pub fn deferred_count(&self) -> usize {
        self.deferred_ranges.len()
    }

    /// Moves the watermark to the present when it is behind the clock because claims were paused.
    /// The range in between is deferred, so tasks due now come first.
    fn leave_behind(&mut self, watermark: Uuid, now: Timestamp) -> Uuid {
        let present = floor_of(now);
        if watermark.as_u128().saturating_add(width_of(self.settings.slack)) >= present.as_u128() {
            return watermark;
        }
        let rest = IdRange { from: self.behind(watermark), to: present };
        self.deferred_ranges.keep(DeferredRange::new(
            rest,
            self.rulers.mine.width(rest.from, rest.to),
            Scope::Mine,
            Kind::Deferred,
        ));
        self.cut = present;
        self.watermark = Some(present);
        present
    }

    /// Remembers skipped tasks of topics at their limits.
    fn skip_full_topics(&mut self, claim: &Claim, taken: &Taken) {
        let full: BTreeSet<TopicName> = taken.full.difference(&claim.left_out).cloned().collect();
        if !full.is_empty() {
            let deferred =
                DeferredRange::new(claim.range, self.width(claim), claim.scope, Kind::Skipped);
            self.skipped.join(DeferredRange { full, left_out: claim.left_out.clone(), ..deferred });
        }
    }

    /// Returns the width that would have found the target number of rows.
    fn by_rows(&self, width: u128, taken: &Taken) -> u128 {
        scaled(width, self.settings.rows_target, taken.got)
    }

    /// Returns the width that would have taken exactly the time limit of a claim.
    fn by_time(&self, width: u128, taken: &Taken) -> u128 {
        let micros = |span: Duration| span.as_micros().saturating_as::<u64>();
        scaled(width, micros(SPENT_MAX), micros(taken.spent))
    }

    fn behind(&self, watermark: Uuid) -> Uuid {
        Uuid::from_u128(watermark.as_u128().saturating_sub(width_of(self.settings.slack)))
            .max(self.cut)
    }

    /// Returns the end of the leaf containing `id`. Leaves begin at multiples of their width.
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

/// Returns the end of the multiple of `width` containing `id`.
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
    wished
        .clamp(width / FACTOR_MAX, width.saturating_mul(FACTOR_MAX))
        .clamp(1, width_of(Duration::from_secs(86_400)))
}
