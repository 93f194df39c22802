//! Which ids to claim next.
//!
//! The **front** runs ahead of the clock by the window: everything below it has been claimed, but for what came late. Each tick it claims from the front
//! to now + window, and the slack behind the front once more, for inserts that were slow to commit. It never waits: what is too much for one claim is set
//! aside as a **strip** and claimed in turns with it. A sweep is a strip, too: all that lies behind the front. What was passed by because its topic had as
//! much in flight as it may waits as a strip, until there is room. A strip that holds a crowd is looked past: another one goes through the rest of it and
//! leaves the crowd's topics out, so that a handful of tasks of other topics do not wait for it.
//!
//! ```text
//!        oldest leaf                      front - slack   front          now + window
//!             |------------ sweep ---------------|--------|--------------------|
//!                     (every 15 s)                \____ claimed at each tick __/
//! ```
//!
//! A claim is bounded by its range, never by a limit on its rows. The next range of a strip is the last one times target / got; a claim that would be too
//! large takes nothing and says so, and a sixteenth of its range is tried. A piece that took long, for dead rows for example, is followed by a smaller one, and
//! the next sweep comes to the same place with small ones. Ids go on below the millisecond (shard, then random bits), so one crowded millisecond can be divided
//! as well; and ranges are measured so that what is due at one instant lies evenly ([`ruler`]).

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

/// How claims are sized.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How far ahead of its due time a task is claimed.
    pub window: Duration,
    /// How far behind the front a tick looks again: longer than an insert takes to commit. 0.5 to 1 s; more costs 0.65 ms per 1000 dead entries.
    pub slack: Duration,
    /// Width of a leaf: no claim reaches past the end of one, so that the ids of a batch lie close together.
    pub leaf: Duration,
    /// Rows that a claim aims at.
    pub rows_target: u64,
}

/// Tasks overdue by more than this are taken by any node, whoever owns their shard.
const OVERDUE_FOR_ALL: Duration = Duration::from_secs(10);
/// A claim that takes Postgres longer for its rows, or for those that it leaves where they are, is followed by a smaller one: the front waits for it.
const SPENT_MAX: Duration = Duration::from_millis(50);
/// A disk that stalls now and then must not divide the sweeps without end.
const SWEEP_MIN: Duration = Duration::from_secs(1);
/// Before that, pieces grow as they will: days of what is parked are not to be walked through by the second.
const RECENT: Duration = Duration::from_secs(3600);
/// A range grows or shrinks by at most this factor at a time, but for the first look past a crowd.
const FACTOR_MAX: u128 = 16;
/// A strip is looked past when this many claims and more are still to come of it, and it is so dense that a millisecond of it is a claim of its own: a backlog of
/// minutes is no crowd.
const CROWD_CLAIMS: u64 = 8;
/// Tasks of a crowd that are first looked past at once: 25 to 50 ms, if they are small and in memory. Smaller pieces would read the same pages again and again.
const LOOK: u64 = 50_000;
/// A range no wider is passed by when it has to give way: of what is due at one instant it holds a 256th.
const LOCKED: u128 = MILLISECOND / 256;

/// A claim to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Claim {
    pub range: IdRange,
    pub scope: Scope,
    /// Topics whose tasks another strip comes to: they stay where they are.
    pub left_out: BTreeSet<TopicName>,
    origin: Origin,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Origin {
    Front,
    Strip,
}

impl Claim {
    /// True for the claims that go with the clock; the others take what is behind it.
    pub fn is_front(&self) -> bool {
        self.origin == Origin::Front
    }
}

/// What a claim that committed has come to.
#[derive(Clone, Debug, Default)]
pub struct Taken {
    pub got: u64,
    /// Postgres's time for it, without the commit.
    pub spent: Duration,
    /// Topics that had as much in flight as they may: their tasks were passed by.
    pub full: BTreeSet<TopicName>,
    /// Topics that most of it was of: see [`crowding`].
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

/// The topics that a crowd is of, from how many of some tasks each has: those with an eighth and more, if they have half of the tasks together. None, when there
/// are many topics and all of them small: to look past a few of them would help nobody.
fn crowding<'a>(counts: impl Iterator<Item = (&'a TopicName, u64)> + Clone) -> BTreeSet<TopicName> {
    let total: u64 = counts.clone().map(|(_, count)| count).sum();
    let large = counts.filter(|(_, count)| count.saturating_mul(8) >= total);
    let together: u64 = large.clone().map(|(_, count)| count).sum();
    if together.saturating_mul(2) < total { BTreeSet::new() } else { large.map(|(topic, _)| topic.clone()).collect() }
}

/// What a claim that failed for its values comes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Poison {
    /// A smaller range is tried next.
    Narrowed,
    /// The one row with this id cannot be claimed whatever is tried.
    Row(Uuid),
    /// Not even what there is can be told.
    Unreadable,
}

/// The claims of one loop.
#[derive(Debug)]
pub struct Claiming {
    settings: Settings,
    rulers: Rulers,
    /// All ids below have been claimed or set aside, but for late ones. `None` before the first turn.
    front: Option<Uuid>,
    /// Where the last strip that was cut from the front ends: the slack does not reach behind it, or the crowd there would be met again at each tick.
    cut: Uuid,
    step: u128,
    strips: Strips,
    /// What was passed by for topics that were full.
    passed: Strips,
    /// Width of the pieces of the last sweep.
    sweep_step: u128,
    /// No piece of the last hour of a sweep is wider. Pieces grow where nothing is; where an old snapshot keeps the dead rows of minutes, one that has grown would
    /// hold up the front for seconds.
    sweep_max: u128,
}

impl Claiming {
    /// `all` are the shards of the cluster: what each scope has until [`Self::restart`] tells.
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

    /// Starts anew: after a start, or when the shards have changed. A sweep must follow. What was set aside of all shards is kept.
    pub fn restart(&mut self, mine: &[Shard], others: &[Shard]) {
        self.rulers.mine = Ruler::new(mine.iter().copied());
        self.rulers.others = Ruler::new(others.iter().copied());
        self.front = None;
        self.cut = Uuid::nil();
        self.strips.restart();
        self.passed.restart();
    }

    /// The claim of the front that is due at `now`; `None` when the front is at now + window.
    pub fn next_of_front(&mut self, now: Timestamp) -> Option<Claim> {
        let goal = floor_of(now.plus(self.settings.window));
        // The clock was set back: what lies between is not due for long, and must not count as claimed.
        if self.front.is_some_and(|front| front.as_u128() > goal.as_u128().saturating_add(width_of(self.settings.slack))) {
            *self = Self::measured(self.settings, self.rulers.clone());
        }
        let front = *self.front.get_or_insert(floor_of(now));
        let front = self.leave_behind(front, now);
        if front >= goal {
            return None;
        }
        // The front goes by milliseconds: it would wait for a crowd that it takes piece by piece.
        let end = self.rulers.mine.above(front, self.step);
        let to = floor_of(TaskId::from_uuid(end).due_at()).max(end_of(front, MILLISECOND)).min(goal);
        let range = IdRange { from: self.behind(front), to };
        Some(Claim { range, scope: Scope::Mine, left_out: BTreeSet::new(), origin: Origin::Front })
    }

    /// The next claim of what was set aside, in turns; what is left of it in the shards of others comes last.
    pub fn next_of_strips(&mut self) -> Option<Claim> {
        self.strips.turn();
        let strip = self.strips.first()?;
        let end = self.end_of_leaf(strip.rest.from).min(strip.rest.to);
        let to = self.rulers.of(strip.scope).above(strip.rest.from, strip.step).min(end);
        let range = IdRange { from: strip.rest.from, to };
        Some(Claim { range, scope: strip.scope, left_out: strip.left_out.clone(), origin: Origin::Strip })
    }

    /// The claim committed.
    pub fn took(&mut self, claim: &Claim, taken: &Taken) {
        match claim.origin {
            Origin::Front => {
                self.pass_by(claim, taken);
                if !taken.full.is_empty() {
                    // It is remembered: the slack need not walk through it at each tick.
                    self.cut = claim.range.to;
                }
                // What a claim takes for the slack behind it does not get less with a smaller step: the front must still arrive.
                let least = width_of(self.settings.window) / FACTOR_MAX;
                let wished = self.by_rows(self.step, taken).min(self.by_time(self.step, taken).max(least));
                self.step = wished.max(MILLISECOND);
                self.front = Some(claim.range.to);
            }
            Origin::Strip => {
                let Some(mut strip) = self.strips.take_first() else { return };
                if strip.kind == Kind::Passed && taken.got == 0 && strip.full.is_subset(&taken.full) {
                    // All of it was looked through when it was passed by, for the same topics.
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

    /// What is not of a crowd's topics does not wait for it: a strip of its own goes through what is still to come and leaves those topics out. The last piece, so
    /// wide, tells how much that is.
    fn look_past(&mut self, strip: &mut Strip, width: u128, taken: &Taken) {
        let rest = IdRange { from: strip.rest.from.max(strip.looked_past), to: strip.rest.to };
        let rest_width = self.rulers.of(strip.scope).width(rest.from, rest.to);
        let expected = rest_width.saturating_mul(u128::from(taken.got)) / width.max(1);
        let target = u128::from(self.settings.rows_target);
        let is_dense = u128::from(taken.got).saturating_mul(MILLISECOND) >= target.saturating_mul(width);
        let is_crowd = strip.kind == Kind::Aside && is_dense && expected >= target.saturating_mul(u128::from(CROWD_CLAIMS));
        // Where strips must be joined, the look would be lost.
        if !is_crowd || taken.crowding.is_empty() || !self.strips.has_room_for(2) {
            return;
        }
        strip.looked_past = rest.to;
        let step = width.saturating_mul(u128::from(LOOK)) / u128::from(taken.got.max(1));
        let beside = Strip::new(rest, step, strip.scope, Kind::Aside);
        let left_out = strip.left_out.union(&taken.crowding).cloned().collect();
        self.strips.join(Strip { left_out, ..beside });
    }

    /// A piece of a sweep that took long for next to nothing has met dead rows: no piece of the last hour is wider from then on than a sixteenth of it. A sweep all
    /// of whose pieces were quick lets those of the next one be twice as wide.
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

    /// What the next piece of a sweep may be, `rest` of which is still to come.
    fn bounded(&self, step: u128, rest: IdRange) -> u128 {
        if rest.width() <= width_of(RECENT) { step.min(self.sweep_max) } else { step }
    }

    /// The topics that are `full` now: what was passed by for any other is claimed.
    pub fn there_is_room(&mut self, full: &BTreeSet<TopicName>) {
        for strip in self.passed.take_all() {
            let is_waiting = strip.full.is_subset(full);
            if is_waiting { self.passed.keep(strip) } else { self.strips.keep(strip) }
        }
    }

    /// Ranges that wait for room of a topic.
    pub fn passed_count(&self) -> usize {
        self.passed.len()
    }

    /// The claim was too large, and took nothing; nothing lies below `first`, if that is known. A range without a width holds nothing that we have named: it is
    /// passed by.
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
                        // To be refused costs as much as to be served here: not to be tried again at once.
                        strip.narrow_before = claim.range.to;
                    }
                }
            }
        }
    }

    /// Somewhere from `from` on is a crowd. What lies beside it is on time: only the crowd itself is set aside, to the millisecond.
    fn narrow_front(&mut self, claim: &Claim, from: Uuid) {
        let front = self.front.unwrap_or(from);
        let width = self.rulers.mine.width(from, claim.range.to);
        if from < front {
            self.set_aside(IdRange { from, to: front });
        } else if width > MILLISECOND {
            self.front = Some(from);
            self.step = narrowed(width).max(MILLISECOND);
        } else {
            // All of its millisecond, so that it is joined with a crowd in the one before and is claimed after that.
            self.set_aside(IdRange { from: floor_of(TaskId::from_uuid(from).due_at()), ..claim.range });
            self.front = Some(claim.range.to);
        }
    }

    fn set_aside(&mut self, range: IdRange) {
        let step = narrowed(self.rulers.mine.width(range.from, range.to));
        self.strips.join(Strip::new(range, step, Scope::Mine, Kind::Aside));
        self.cut = range.to;
    }

    /// The claim had to give way, to somebody's lock for example. What it was to take waits behind the rest; what is narrowed down to the lock is left to the
    /// next sweep, for a lock may last.
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

    /// The claim failed for the values in it, and took nothing; `first` is the lowest id there, nothing when none can be read: then the range is left to the
    /// next sweep, for an id that no row has must not be taken for a row.
    pub fn was_poisoned(&mut self, claim: &Claim, first: Option<Uuid>) -> Poison {
        if claim.origin == Origin::Front {
            self.gave_way(claim);
            return Poison::Narrowed;
        }
        let is_row = claim.range.width() <= 1;
        if first.is_some() && !is_row {
            self.was_too_large(claim, first);
            if let Some(strip) = self.strips.first_mut() {
                // What succeeds before it says nothing of what is there.
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

    /// True while a sweep of these shards is under way: the next one has to wait for its end.
    pub fn is_sweeping(&self, scope: Scope) -> bool {
        self.strips.has_sweep(scope)
    }

    /// Looks through all that is behind the front, from the oldest leaf on.
    pub fn sweep(&mut self, oldest: Timestamp, now: Timestamp, scope: Scope) {
        let end = match scope {
            Scope::Mine => {
                // The front begins here even if there is no room for its first claim yet: what becomes due until then lies behind it.
                let front = *self.front.get_or_insert(floor_of(now));
                self.behind(front).min(floor_of(now.plus(self.settings.window)))
            }
            Scope::Others => floor_of(now.minus(OVERDUE_FOR_ALL)),
            Scope::All => floor_of(now),
        };
        let rest = IdRange { from: floor_of(oldest), to: end };
        self.strips.keep(Strip::new(rest, self.bounded(self.sweep_step, rest), scope, Kind::Sweep));
    }

    /// Ids that were inserted behind the front by this node: they are claimed at once, as far as they are due within the window. To the rest the front comes.
    pub fn came_late(&mut self, ids: IdRange, now: Timestamp) {
        let due = IdRange { to: ids.to.min(floor_of(now.plus(self.settings.window))), ..ids };
        if !due.is_empty() {
            self.strips.keep(Strip::new(due, self.rulers.all.width(due.from, due.to), Scope::All, Kind::Aside));
        }
    }

    /// Ranges that were set aside and are claimed in turns.
    pub fn strip_count(&self) -> usize {
        self.strips.len()
    }

    /// When the front is behind the clock (claims were paused), what lies between is set aside: what is due now comes first.
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

    /// Remembers what a claim has left for topics that are full.
    fn pass_by(&mut self, claim: &Claim, taken: &Taken) {
        let full: BTreeSet<TopicName> = taken.full.difference(&claim.left_out).cloned().collect();
        if !full.is_empty() {
            let strip = Strip::new(claim.range, self.width(claim), claim.scope, Kind::Passed);
            self.passed.join(Strip { full, left_out: claim.left_out.clone(), ..strip });
        }
    }

    /// The width that would have brought as many rows as a claim aims at.
    fn by_rows(&self, width: u128, taken: &Taken) -> u128 {
        scaled(width, self.settings.rows_target, taken.got)
    }

    /// The width that would have taken the time that a claim may take.
    fn by_time(&self, width: u128, taken: &Taken) -> u128 {
        let micros = |span: Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        scaled(width, micros(SPENT_MAX), micros(taken.spent))
    }

    fn behind(&self, front: Uuid) -> Uuid {
        Uuid::from_u128(front.as_u128().saturating_sub(width_of(self.settings.slack))).max(self.cut)
    }

    /// The end of the leaf that holds `id`: leaves begin at multiples of their width.
    fn end_of_leaf(&self, id: Uuid) -> Uuid {
        end_of(id, width_of(self.settings.leaf).max(MILLISECOND))
    }

    fn width(&self, claim: &Claim) -> u128 {
        self.rulers.of(claim.scope).width(claim.range.from, claim.range.to)
    }
}

/// What the tasks of each scope are measured by.
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

/// The end of the multiple of `width` that holds `id`.
fn end_of(id: Uuid, width: u128) -> Uuid {
    Uuid::from_u128((id.as_u128() / width).saturating_add(1).saturating_mul(width))
}

fn width_of(span: Duration) -> u128 {
    span.as_millis().saturating_mul(MILLISECOND)
}

/// What is tried after `width` was too much: by halves, it would take many looks from a leaf to a millisecond.
fn narrowed(width: u128) -> u128 {
    (width / FACTOR_MAX).max(1)
}

/// The width that would have brought `target` rows where `width` brought `got`.
fn scaled(width: u128, target: u64, got: u64) -> u128 {
    // At most 2^107 (a day of ids) times a few thousand: far from the end of 128 bits.
    let wished = width.saturating_mul(u128::from(target)) / u128::from(got.max(1));
    wished.clamp(width / FACTOR_MAX, width.saturating_mul(FACTOR_MAX)).clamp(1, width_of(Duration::from_secs(86_400)))
}
