//! Deferred ranges of ids: ranges that are claimed later, piece by piece.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use uuid::Uuid;

use crate::domain::{IdRange, TopicName};

/// Maximum number of separate ranges per scope. Beyond it, ranges are joined: the joined range is
/// wider than necessary, but never wrong.
const DEFERRED_RANGES_MAX: usize = 64;

/// After this many pieces of the loop's own shards, one piece of other nodes' shards follows. The
/// owner of those shards is probably sweeping, too, and a second reader scans all dead rows of the
/// first one.
const OTHERS_EVERY: u32 = 64;

/// The shards that a claim takes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// The shards of the claiming loop.
    Mine,
    /// Shards of other nodes, for tasks that are long overdue.
    Others,
    /// All shards: late inserts of the node, and the far table.
    All,
}

/// A range that is claimed piece by piece.
#[derive(Clone, Debug)]
pub(super) struct DeferredRange {
    pub(super) rest: IdRange,
    /// Width of the next piece.
    pub(super) step: u128,
    pub(super) scope: Scope,
    pub(super) kind: Kind,
    /// For skipped tasks: the topics that had reached their limits.
    pub(super) full: BTreeSet<TopicName>,
    /// Topics whose tasks belong to another deferred range.
    pub(super) left_out: BTreeSet<TopicName>,
    /// Before this id, another deferred range leaves out the topics of this hotspot.
    pub(super) looked_past: Uuid,
    /// Postgres time of the slowest piece so far.
    pub(super) slowest: Duration,
    /// Pieces grow no wider before this id: a row before it is locked, or is part of too large a
    /// claim.
    pub(super) narrow_before: Uuid,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Sweep,
    /// Deferred because it was too large for one claim, or was inserted late.
    Deferred,
    /// Skipped before, for topics that had reached their limits.
    Skipped,
}

impl DeferredRange {
    pub(super) fn new(rest: IdRange, step: u128, scope: Scope, kind: Kind) -> Self {
        let (full, left_out) = (BTreeSet::new(), BTreeSet::new());
        Self {
            rest,
            step,
            scope,
            kind,
            full,
            left_out,
            looked_past: Uuid::nil(),
            slowest: Duration::ZERO,
            narrow_before: Uuid::nil(),
        }
    }

    fn take_in(&mut self, other: Self) {
        if other.rest.from < self.rest.from || other.left_out != self.left_out {
            self.looked_past = Uuid::nil();
        }
        self.left_out.retain(|topic| other.left_out.contains(topic));
        self.rest = self.rest.joined(other.rest);
        self.full.extend(other.full);
        self.slowest = self.slowest.max(other.slowest);
        self.narrow_before = Uuid::nil();
        if self.kind != other.kind {
            self.kind = if other.kind == Kind::Sweep || self.kind == Kind::Sweep {
                Kind::Sweep
            } else {
                Kind::Deferred
            };
        }
    }
}

/// Deferred ranges, in the order in which they are claimed.
#[derive(Debug, Default)]
pub(super) struct DeferredRanges {
    deferred_ranges: VecDeque<DeferredRange>,
    /// Number of own pieces since the last piece of other nodes' shards, while there are any of
    /// those.
    since_others: u32,
}

impl DeferredRanges {
    /// Moves the range whose turn it is to the head of the queue.
    pub(super) fn turn(&mut self) {
        if !self.deferred_ranges.iter().any(|deferred| deferred.scope == Scope::Others) {
            self.since_others = 0;
            return;
        }
        let is_for_others = self.since_others >= OTHERS_EVERY;
        let fits = |deferred: &DeferredRange| (deferred.scope == Scope::Others) == is_for_others;
        if let Some(index) = self.deferred_ranges.iter().position(fits) {
            self.deferred_ranges.rotate_left(index);
        }
        let is_of_others =
            self.deferred_ranges.front().is_some_and(|deferred| deferred.scope == Scope::Others);
        self.since_others = if is_of_others { 0 } else { self.since_others.saturating_add(1) };
    }

    /// Returns true when `count` more ranges can be kept apart.
    pub(super) fn has_room_for(&self, count: usize) -> bool {
        self.deferred_ranges.len() + count <= DEFERRED_RANGES_MAX
    }

    pub(super) fn len(&self) -> usize {
        self.deferred_ranges.len()
    }

    /// Forgets ranges that the next sweep of the own shards will cover.
    pub(super) fn restart(&mut self) {
        self.deferred_ranges
            .retain(|deferred| deferred.scope == Scope::All && deferred.kind != Kind::Sweep);
    }

    pub(super) fn has_sweep(&self, scope: Scope) -> bool {
        self.deferred_ranges
            .iter()
            .any(|deferred| deferred.kind == Kind::Sweep && deferred.scope == scope)
    }

    #[cfg(test)]
    pub(super) fn all(&self) -> impl Iterator<Item = &DeferredRange> {
        self.deferred_ranges.iter()
    }

    pub(super) fn first(&self) -> Option<&DeferredRange> {
        self.deferred_ranges.front()
    }

    pub(super) fn first_mut(&mut self) -> Option<&mut DeferredRange> {
        self.deferred_ranges.front_mut()
    }

    pub(super) fn take_first(&mut self) -> Option<DeferredRange> {
        self.deferred_ranges.pop_front()
    }

    pub(super) fn take_all(&mut self) -> VecDeque<DeferredRange> {
        std::mem::take(&mut self.deferred_ranges)
    }

    /// Appends a range to the queue.
    pub(super) fn keep(&mut self, deferred: DeferredRange) {
        if deferred.rest.is_empty() {
            return;
        }
        let is_full = self.deferred_ranges.len() >= DEFERRED_RANGES_MAX;
        match self.deferred_ranges.iter_mut().find(|known| is_full && known.scope == deferred.scope)
        {
            Some(known) => known.take_in(deferred),
            // There are three scopes, so the limit is exceeded by at most two.
            None => self.deferred_ranges.push_back(deferred),
        }
    }

    /// Joins the range with an adjacent one of the same kind that waits for the same topics and
    /// leaves out the same topics. Otherwise appends it.
    pub(super) fn join(&mut self, deferred: DeferredRange) {
        let is_alike = |known: &DeferredRange| {
            (known.scope, known.kind) == (deferred.scope, deferred.kind)
                && known.left_out == deferred.left_out
        };
        let fits = |known: &&mut DeferredRange| {
            is_alike(known) && known.full == deferred.full && known.rest.touches(deferred.rest)
        };
        match self.deferred_ranges.iter_mut().find(fits) {
            Some(known) => known.take_in(deferred),
            None => self.keep(deferred),
        }
    }
}
