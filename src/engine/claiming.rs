//! Which ids to claim next.
//!
//! The **front** runs ahead of the clock by the window: everything below it has been claimed, but for what came late. Each tick it claims from the front
//! to now + window, and the slack behind the front once more, for inserts that were slow to commit. It never waits: what is too much for one claim is set
//! aside as a **strip** and claimed in turns with it. A sweep is a strip, too: all that lies behind the front. What was passed by because its topic had as
//! much in flight as it may waits as a strip, until there is room.
//!
//! ```text
//!        oldest leaf                      front - slack   front          now + window
//!             |------------ sweep ---------------|--------|--------------------|
//!                     (every 15 s)                \____ claimed at each tick __/
//! ```
//!
//! A claim is bounded by its range, never by a limit on its rows. The next range of a strip is the last one times target / got; a claim that would be too
//! large takes nothing and says so, and a sixteenth of its range is tried. Ids go on below the millisecond (shard, then random bits), so one crowded millisecond can be
//! divided as well.

use std::collections::VecDeque;
use std::time::Duration;

use uuid::Uuid;

use crate::domain::ids::floor_of;
use crate::domain::{IdRange, Timestamp};

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
pub const OVERDUE_FOR_ALL: Duration = Duration::from_secs(10);
/// More strips than this are not kept: a sweep finds what they held.
const STRIPS_MAX: usize = 64;
/// A range grows or shrinks by at most this factor at a time.
const FACTOR_MAX: u128 = 16;
/// One millisecond of ids.
const MILLISECOND: u128 = 1 << 80;

/// Whose shards a claim takes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// The shards of the loop that claims.
    Mine,
    /// All shards: what is long overdue, or was inserted late by this very node.
    All,
}

/// A claim to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim {
    pub range: IdRange,
    pub scope: Scope,
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

/// A range of ids that is claimed piece by piece.
#[derive(Clone, Copy, Debug)]
struct Strip {
    rest: IdRange,
    /// Width of the next piece.
    step: u128,
    scope: Scope,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Sweep,
    /// Set aside, for it was too much at once or came late.
    Aside,
    /// Passed by before, for a topic that was full.
    Passed,
}

/// What a claim that failed for its values comes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Poison {
    /// A smaller range is tried next.
    Narrowed,
    /// The one row with this id cannot be claimed whatever is tried.
    Row(Uuid),
}

/// The claims of one loop.
#[derive(Debug)]
pub struct Claiming {
    settings: Settings,
    /// All ids below have been claimed or set aside, but for late ones. `None` before the first turn.
    front: Option<Uuid>,
    /// Where the last strip that was cut from the front ends: the slack does not reach behind it, or the crowd there would be met again at each tick.
    cut: Uuid,
    step: u128,
    strips: VecDeque<Strip>,
    /// What was passed by for topics that were full.
    passed: VecDeque<Strip>,
}

impl Claiming {
    pub fn new(settings: Settings) -> Self {
        let step = width_of(settings.window);
        Self { settings, front: None, cut: Uuid::nil(), step, strips: VecDeque::new(), passed: VecDeque::new() }
    }

    /// Starts anew: after a start, or when the shards have changed. A sweep must follow.
    pub fn restart(&mut self) {
        self.front = None;
        self.cut = Uuid::nil();
        self.strips.clear();
        self.passed.clear();
    }

    /// The claim of the front that is due at `now`; `None` when the front is at now + window.
    pub fn next_of_front(&mut self, now: Timestamp) -> Option<Claim> {
        let goal = floor_of(now.plus(self.settings.window));
        // The clock was set back: what lies between is not due for long, and must not count as claimed.
        if self.front.is_some_and(|front| front.as_u128() > goal.as_u128().saturating_add(width_of(self.settings.slack))) {
            self.restart();
        }
        let front = *self.front.get_or_insert(floor_of(now));
        let front = self.leave_behind(front, now);
        if front >= goal {
            return None;
        }
        let to = at_most(front, self.step, goal);
        let range = IdRange { from: self.behind(front), to };
        Some(Claim { range, scope: Scope::Mine, origin: Origin::Front })
    }

    /// The next claim of what was set aside, in turns.
    pub fn next_of_strips(&mut self) -> Option<Claim> {
        let strip = self.strips.front()?;
        let end = self.end_of_leaf(strip.rest.from).min(strip.rest.to);
        let range = IdRange { from: strip.rest.from, to: at_most(strip.rest.from, strip.step, end) };
        Some(Claim { range, scope: strip.scope, origin: Origin::Strip })
    }

    /// The claim committed and took `got` rows.
    pub fn took(&mut self, claim: &Claim, got: u64) {
        let target = self.settings.rows_target;
        match claim.origin {
            Origin::Front => {
                self.step = scaled(self.step, target, got);
                self.front = Some(claim.range.to);
            }
            Origin::Strip => {
                if let Some(mut strip) = self.strips.pop_front() {
                    strip.step = scaled(claim.range.width(), target, got);
                    strip.rest.from = claim.range.to;
                    self.keep(strip);
                }
            }
        }
    }

    /// The claim committed, took `got` rows, and may have passed by those of topics that are full.
    pub fn took_some(&mut self, claim: &Claim, got: u64) {
        let target = self.settings.rows_target;
        match claim.origin {
            Origin::Front => {
                self.pass_by(Strip { rest: claim.range, step: self.step, scope: claim.scope, kind: Kind::Passed });
                // That nothing was there to be taken says nothing about how much is there.
                self.step = if got > 0 { scaled(self.step, target, got) } else { self.step };
                self.front = Some(claim.range.to);
            }
            Origin::Strip => {
                let Some(mut strip) = self.strips.pop_front() else { return };
                if strip.kind == Kind::Passed && got == 0 {
                    // All of it was looked through when it was passed by first.
                    return self.pass_by(strip);
                }
                self.pass_by(Strip { rest: claim.range, step: claim.range.width(), scope: strip.scope, kind: Kind::Passed });
                strip.step = scaled(claim.range.width(), target, got);
                strip.rest.from = claim.range.to;
                self.keep(strip);
            }
        }
    }

    /// No topic is full any more: what was passed by is claimed.
    pub fn there_is_room(&mut self) {
        while let Some(strip) = self.passed.pop_front() {
            self.keep(strip);
        }
    }

    /// True when something was passed by, and there may be room for it soon.
    pub fn waits_for_room(&self) -> bool {
        !self.passed.is_empty()
    }

    /// The claim was too large, and took nothing; nothing lies below `first`, if that is known.
    pub fn was_too_large(&mut self, claim: &Claim, first: Option<Uuid>) {
        let from = first.unwrap_or(claim.range.from).max(claim.range.from);
        match claim.origin {
            Origin::Front => {
                let rest = IdRange { from, ..claim.range };
                self.keep(Strip { rest, step: narrowed(claim.range.width()), scope: Scope::Mine, kind: Kind::Aside });
                self.cut = claim.range.to;
                self.front = Some(claim.range.to);
            }
            Origin::Strip => {
                if let Some(strip) = self.strips.front_mut() {
                    strip.rest.from = from;
                    strip.step = narrowed(claim.range.width());
                }
            }
        }
    }

    /// The claim had to give way, to somebody's lock for example. What it was to take waits behind the rest.
    pub fn gave_way(&mut self, claim: &Claim) {
        match claim.origin {
            Origin::Front => self.was_too_large(claim, None),
            Origin::Strip => {
                if let Some(mut strip) = self.strips.pop_front() {
                    strip.step = narrowed(claim.range.width());
                    self.keep(strip);
                }
            }
        }
    }

    /// The claim failed for the values in it, and took nothing.
    pub fn was_poisoned(&mut self, claim: &Claim) -> Poison {
        if claim.origin == Origin::Strip && claim.range.width() <= 1 {
            if let Some(mut strip) = self.strips.pop_front() {
                strip.rest.from = claim.range.to;
                strip.step = MILLISECOND;
                self.keep(strip);
            }
            return Poison::Row(claim.range.from);
        }
        self.was_too_large(claim, None);
        Poison::Narrowed
    }

    /// True while a sweep is under way: the next one has to wait for its end.
    pub fn is_sweeping(&self) -> bool {
        self.strips.iter().any(|strip| strip.kind == Kind::Sweep)
    }

    /// Looks through all that is behind the front, from the oldest leaf on.
    pub fn sweep(&mut self, oldest: Timestamp, now: Timestamp, scope: Scope) {
        let end = match scope {
            Scope::Mine => self.front.map_or_else(|| floor_of(now), |front| self.behind(front)).min(floor_of(now)),
            Scope::All => floor_of(now.minus(OVERDUE_FOR_ALL)),
        };
        let rest = IdRange { from: floor_of(oldest), to: end };
        self.keep(Strip { rest, step: rest.width(), scope, kind: Kind::Sweep });
    }

    /// Ids that were inserted behind the front by this node: they are claimed at once.
    pub fn came_late(&mut self, ids: IdRange) {
        self.keep(Strip { rest: ids, step: ids.width(), scope: Scope::All, kind: Kind::Aside });
    }

    pub fn strip_count(&self) -> usize {
        self.strips.len() + self.passed.len()
    }

    /// When the front is behind the clock (claims were paused), what lies between is set aside: what is due now comes first.
    fn leave_behind(&mut self, front: Uuid, now: Timestamp) -> Uuid {
        let present = floor_of(now);
        if front.as_u128().saturating_add(width_of(self.settings.slack)) >= present.as_u128() {
            return front;
        }
        let rest = IdRange { from: self.behind(front), to: present };
        self.keep(Strip { rest, step: rest.width(), scope: Scope::Mine, kind: Kind::Aside });
        self.cut = present;
        self.front = Some(present);
        present
    }

    fn keep(&mut self, strip: Strip) {
        if !strip.rest.is_empty() && self.strips.len() < STRIPS_MAX {
            self.strips.push_back(strip);
        }
    }

    fn pass_by(&mut self, strip: Strip) {
        if let Some(last) = self.passed.back_mut()
            && last.scope == strip.scope
            && last.rest.touches(strip.rest)
        {
            last.rest = last.rest.joined(strip.rest);
        } else if self.passed.len() < STRIPS_MAX {
            self.passed.push_back(strip);
        }
    }

    fn behind(&self, front: Uuid) -> Uuid {
        Uuid::from_u128(front.as_u128().saturating_sub(width_of(self.settings.slack))).max(self.cut)
    }

    /// The end of the leaf that holds `id`: leaves begin at multiples of their width.
    fn end_of_leaf(&self, id: Uuid) -> Uuid {
        let leaf = width_of(self.settings.leaf).max(MILLISECOND);
        Uuid::from_u128((id.as_u128() / leaf).saturating_add(1).saturating_mul(leaf))
    }
}

fn width_of(span: Duration) -> u128 {
    span.as_millis().saturating_mul(MILLISECOND)
}

fn at_most(from: Uuid, step: u128, end: Uuid) -> Uuid {
    Uuid::from_u128(from.as_u128().saturating_add(step.max(1))).min(end)
}

/// What is tried after `width` was too much. A crowd of one instant fills a thousandth of its millisecond's ids (the shards come first): by halves, ten looks
/// at all of it would find nothing out.
fn narrowed(width: u128) -> u128 {
    (width / FACTOR_MAX).max(1)
}

/// The width that would have brought `target` rows where `width` brought `got`.
fn scaled(width: u128, target: u64, got: u64) -> u128 {
    // At most 2^107 (a day of ids) times a few thousand: far from the end of 128 bits.
    let wished = width.saturating_mul(u128::from(target)) / u128::from(got.max(1));
    wished.clamp(width / FACTOR_MAX, width.saturating_mul(FACTOR_MAX)).clamp(1, width_of(Duration::from_secs(86_400)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::domain::{Shard, TaskId};

    const SETTINGS: Settings = Settings {
        window: Duration::from_millis(200),
        slack: Duration::from_millis(750),
        leaf: Duration::from_secs(900),
        rows_target: 1000,
    };
    const ROWS_MAX: usize = 4000;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(1_700_000_000_000 + millis)
    }

    fn id(millis: i64, random: u64) -> Uuid {
        TaskId::new(at(millis), Shard::new(7), random).uuid()
    }

    /// What a claim does in Postgres; true when it took something or was refused, so that there may be more.
    fn carry_out(claiming: &mut Claiming, claim: &Claim, table: &mut BTreeSet<Uuid>) -> usize {
        let found: Vec<Uuid> = table.range(claim.range.from..claim.range.to).copied().collect();
        if found.len() > ROWS_MAX {
            claiming.was_too_large(claim, found.first().copied());
            return 0;
        }
        for id in &found {
            table.remove(id);
        }
        claiming.took(claim, u64::try_from(found.len()).unwrap());
        found.len()
    }

    /// One tick: the front until it is there, then at most `turns` strips.
    fn tick(claiming: &mut Claiming, now: Timestamp, table: &mut BTreeSet<Uuid>, turns: usize) {
        while let Some(claim) = claiming.next_of_front(now) {
            assert!(claim.range.to <= floor_of(now.plus(SETTINGS.window)), "no claim reaches past now + window");
            carry_out(claiming, &claim, table);
        }
        for _ in 0..turns {
            let Some(claim) = claiming.next_of_strips() else { return };
            carry_out(claiming, &claim, table);
        }
    }

    #[test]
    fn a_task_is_claimed_a_window_ahead_of_its_due_time() {
        let mut claiming = Claiming::new(SETTINGS);
        let mut table = BTreeSet::from([id(500, 1)]);
        for millis in 0..=300 {
            tick(&mut claiming, at(millis), &mut table, 1);
        }
        assert_eq!(table.len(), 1, "its millisecond is not yet within the window");
        tick(&mut claiming, at(301), &mut table, 1);
        assert!(table.is_empty());
    }

    #[test]
    fn a_crowded_millisecond_is_divided_and_the_front_goes_on() {
        let mut claiming = Claiming::new(SETTINGS);
        let mut table: BTreeSet<Uuid> = (0..100_000_u64).map(|n| id(1_000, n << 45)).collect();
        table.insert(id(1_100, 0));
        for millis in (0..900).step_by(20) {
            tick(&mut claiming, at(millis), &mut table, 0);
        }
        tick(&mut claiming, at(920), &mut table, 0);
        assert_eq!(table.len(), 100_000, "the task behind the crowd has been claimed, the crowd waits");
        tick(&mut claiming, at(940), &mut table, 1_000);
        assert!(table.is_empty(), "and is claimed in turns: {} are left", table.len());
    }

    /// A topic that may have so many tasks in flight, as the claimer sees it.
    struct Bounded {
        in_flight: usize,
        max: usize,
        is_full: bool,
        claims: usize,
    }

    impl Bounded {
        /// A claim when only the ids of `others` belong to topics with room.
        fn carry_out(&mut self, claiming: &mut Claiming, claim: &Claim, table: &mut BTreeSet<Uuid>, others: &BTreeSet<Uuid>) {
            self.claims += 1;
            if !self.is_full {
                self.in_flight += carry_out(claiming, claim, table);
            } else {
                let range = claim.range.from..claim.range.to;
                let found: Vec<Uuid> = table.range(range).filter(|id| others.contains(id)).copied().collect();
                found.iter().for_each(|id| assert!(table.remove(id)));
                claiming.took_some(claim, u64::try_from(found.len()).unwrap());
            }
            self.is_full |= self.in_flight >= self.max;
        }

        /// One tick: so many tasks were published since the last one.
        fn tick(&mut self, claiming: &mut Claiming, now: Timestamp, tables: (&mut BTreeSet<Uuid>, &BTreeSet<Uuid>), done: usize) {
            self.in_flight -= done.min(self.in_flight);
            self.is_full &= self.in_flight > self.max / 4 * 3;
            if claiming.waits_for_room() && !self.is_full {
                claiming.there_is_room();
            }
            while let Some(claim) = claiming.next_of_front(now) {
                self.carry_out(claiming, &claim, tables.0, tables.1);
            }
            for _ in 0..40 {
                let Some(claim) = claiming.next_of_strips() else { return };
                self.carry_out(claiming, &claim, tables.0, tables.1);
            }
        }
    }

    #[test]
    fn what_is_passed_by_for_a_full_topic_is_claimed_as_soon_as_there_is_room_and_others_do_not_wait() {
        let mut claiming = Claiming::new(SETTINGS);
        let mut table: BTreeSet<Uuid> = (0..100_000_u64).map(|n| id(1_000, n << 45)).collect();
        let others: BTreeSet<Uuid> = (0..500).map(|n| id(1_000 + n * 2, 1)).collect();
        table.extend(&others);
        let mut topic = Bounded { in_flight: 0, max: 25_000, is_full: false, claims: 0 };
        let mut tick_count = 0;
        for millis in (0..).step_by(20) {
            let done = if millis < 1_000 { 0 } else { 2_000 };
            topic.tick(&mut claiming, at(millis), (&mut table, &others), done);
            let late = others.iter().take_while(|id| **id < floor_of(at(millis))).filter(|id| table.contains(id)).count();
            assert_eq!(late, 0, "at {millis} ms");
            tick_count += 1;
            if table.is_empty() {
                break;
            }
            assert!(topic.in_flight >= 10_000 || millis < 850, "at {millis} ms only {} are in flight", topic.in_flight);
        }
        assert!(tick_count < 100, "{tick_count} ticks");
        assert!(topic.claims < 700, "{} claims", topic.claims);
        assert!(!claiming.waits_for_room() || topic.is_full);
    }

    #[test]
    fn after_a_pause_what_is_due_now_comes_first() {
        let mut claiming = Claiming::new(SETTINGS);
        let mut table = BTreeSet::new();
        tick(&mut claiming, at(0), &mut table, 1);
        table.extend((0..50_000).map(|n| id(1_000 + n, 0)));
        let claim = claiming.next_of_front(at(60_000)).unwrap();
        assert!(claim.range.from >= floor_of(at(59_000)), "{:?}", claim.range);
        for turn in 0..200 {
            tick(&mut claiming, at(60_000 + turn * 20), &mut table, 4);
        }
        assert!(table.is_empty(), "{} are left", table.len());
    }

    #[test]
    fn a_late_insert_is_found_by_the_slack_or_by_the_sweep() {
        let mut claiming = Claiming::new(SETTINGS);
        let mut table = BTreeSet::new();
        for millis in [0, 500, 1_000] {
            tick(&mut claiming, at(millis), &mut table, 1);
        }
        table.insert(id(600, 1));
        tick(&mut claiming, at(1_020), &mut table, 1);
        assert!(table.is_empty(), "within the slack");
        table.insert(id(100, 1));
        tick(&mut claiming, at(1_040), &mut table, 1);
        assert_eq!(table.len(), 1, "behind the slack");
        claiming.sweep(at(0), at(1_040), Scope::Mine);
        tick(&mut claiming, at(1_060), &mut table, 1);
        assert!(table.is_empty(), "swept");
    }

    #[test]
    fn a_row_that_cannot_be_claimed_is_narrowed_down_and_passed_by() {
        let mut claiming = Claiming::new(SETTINGS);
        let poison = id(1_100, 5);
        let mut table: BTreeSet<Uuid> = (0..1_000).map(|n| id(1_000 + n, 7)).collect();
        claiming.sweep(at(0), at(20_000), Scope::All);
        let mut found = None;
        for _ in 0..1_000 {
            let Some(claim) = claiming.next_of_strips() else { break };
            if claim.range.contains(poison) {
                if let Poison::Row(row) = claiming.was_poisoned(&claim) {
                    found = Some(row);
                }
            } else {
                carry_out(&mut claiming, &claim, &mut table);
            }
        }
        assert_eq!(found, Some(poison));
        assert!(table.is_empty(), "the rest of the shard is claimed: {} are left", table.len());
    }

    #[test]
    fn no_claim_reaches_past_the_end_of_a_leaf() {
        let mut claiming = Claiming::new(SETTINGS);
        claiming.sweep(at(0), at(10_000_000), Scope::All);
        let leaf = width_of(SETTINGS.leaf);
        while let Some(claim) = claiming.next_of_strips() {
            assert_eq!(claim.range.from.as_u128() / leaf, (claim.range.to.as_u128() - 1) / leaf);
            claiming.took(&claim, 0);
        }
    }

    proptest! {
        #[test]
        fn everything_is_claimed_whatever_comes_when(
            inserts in proptest::collection::vec((0_i64..5_000, 0_i64..5_000, any::<u64>()), 1..200),
            tick_millis in 5_i64..400,
        ) {
            // (when it is inserted, when it is due): late ones among them, crowds by chance
            let mut claiming = Claiming::new(SETTINGS);
            let mut table = BTreeSet::new();
            let mut now = 0;
            while now < 12_000 {
                table.extend(inserts.iter().filter(|(when, ..)| (now - tick_millis..now).contains(when)).map(|(when, due, random)| id(*due.max(when), *random)));
                tick(&mut claiming, at(now), &mut table, 3);
                if now % 1_000 < tick_millis {
                    claiming.sweep(at(0), at(now), Scope::Mine);
                }
                now += tick_millis;
            }
            prop_assert!(table.is_empty(), "{} are left", table.len());
        }
    }
}
