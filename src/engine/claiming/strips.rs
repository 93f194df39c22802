//! Ranges of ids that were set aside.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use uuid::Uuid;

use crate::domain::{IdRange, TopicName};

/// More are not kept apart: ranges are joined then. The range from the one's beginning to the other's end is wider than need be, never wrong.
const STRIPS_MAX: usize = 64;

/// After so many pieces of one's own comes one of the others' shards: their owner is likely at it too, and who comes second reads through all that the first
/// has taken.
const OTHERS_EVERY: u32 = 64;

/// Whose shards a claim takes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// The shards of the loop that claims.
    Mine,
    /// The shards that are not this node's: what is long overdue there.
    Others,
    /// All shards: what was inserted late by this very node, and the far table.
    All,
}

/// A range that is claimed piece by piece.
#[derive(Clone, Debug)]
pub(super) struct Strip {
    pub(super) rest: IdRange,
    /// Width of the next piece.
    pub(super) step: u128,
    pub(super) scope: Scope,
    pub(super) kind: Kind,
    /// Of what was passed by: the topics that were full then.
    pub(super) full: BTreeSet<TopicName>,
    /// Topics whose tasks are another strip's.
    pub(super) left_out: BTreeSet<TopicName>,
    /// Before this, another strip leaves out the topics that this one is a crowd of.
    pub(super) looked_past: Uuid,
    /// Postgres's time for the slowest piece so far.
    pub(super) slowest: Duration,
    /// Somewhere before this is a row that somebody has locked, or too much beside a crowd: pieces grow no wider until they are there.
    pub(super) narrow_before: Uuid,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Sweep,
    /// Set aside, for it was too much at once or came late.
    Aside,
    /// Passed by before, for topics that were full.
    Passed,
}

impl Strip {
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
            self.kind = if other.kind == Kind::Sweep || self.kind == Kind::Sweep { Kind::Sweep } else { Kind::Aside };
        }
    }
}

/// Strips in the order in which they are claimed.
#[derive(Debug, Default)]
pub(super) struct Strips {
    strips: VecDeque<Strip>,
    /// Pieces of one's own since there is anything of the others' shards, and since the last one of those.
    since_others: u32,
}

impl Strips {
    /// Brings the strip whose turn it is to the front.
    pub(super) fn turn(&mut self) {
        if !self.strips.iter().any(|strip| strip.scope == Scope::Others) {
            self.since_others = 0;
            return;
        }
        let is_for_others = self.since_others >= OTHERS_EVERY;
        let fits = |strip: &Strip| (strip.scope == Scope::Others) == is_for_others;
        if let Some(index) = self.strips.iter().position(fits) {
            self.strips.rotate_left(index);
        }
        let is_of_others = self.strips.front().is_some_and(|strip| strip.scope == Scope::Others);
        self.since_others = if is_of_others { 0 } else { self.since_others.saturating_add(1) };
    }

    /// True when so many more are kept apart.
    pub(super) fn has_room_for(&self, count: usize) -> bool {
        self.strips.len() + count <= STRIPS_MAX
    }

    pub(super) fn len(&self) -> usize {
        self.strips.len()
    }

    /// Forgets what a sweep of one's shards will come to again.
    pub(super) fn restart(&mut self) {
        self.strips.retain(|strip| strip.scope == Scope::All && strip.kind != Kind::Sweep);
    }

    pub(super) fn has_sweep(&self, scope: Scope) -> bool {
        self.strips.iter().any(|strip| strip.kind == Kind::Sweep && strip.scope == scope)
    }

    #[cfg(test)]
    pub(super) fn all(&self) -> impl Iterator<Item = &Strip> {
        self.strips.iter()
    }

    pub(super) fn first(&self) -> Option<&Strip> {
        self.strips.front()
    }

    pub(super) fn first_mut(&mut self) -> Option<&mut Strip> {
        self.strips.front_mut()
    }

    pub(super) fn take_first(&mut self) -> Option<Strip> {
        self.strips.pop_front()
    }

    pub(super) fn take_all(&mut self) -> VecDeque<Strip> {
        std::mem::take(&mut self.strips)
    }

    /// Puts a strip behind the others.
    pub(super) fn keep(&mut self, strip: Strip) {
        if strip.rest.is_empty() {
            return;
        }
        let is_full = self.strips.len() >= STRIPS_MAX;
        match self.strips.iter_mut().find(|known| is_full && known.scope == strip.scope) {
            Some(known) => known.take_in(strip),
            // There are three scopes: two more than the bound at most.
            None => self.strips.push_back(strip),
        }
    }

    /// Joins a strip with one of its kind that it touches and that waits for the same topics and leaves out the same; else it comes behind the others.
    pub(super) fn join(&mut self, strip: Strip) {
        let is_alike = |known: &Strip| (known.scope, known.kind) == (strip.scope, strip.kind) && known.left_out == strip.left_out;
        let fits = |known: &&mut Strip| is_alike(known) && known.full == strip.full && known.rest.touches(strip.rest);
        match self.strips.iter_mut().find(fits) {
            Some(known) => known.take_in(strip),
            None => self.keep(strip),
        }
    }
}
