//! The decisions of the product's own code. The model has no rules of its own: it calls
//! `punctual::engine` and `punctual::domain`, and keeps the answers, because there are millions of
//! calls.

use std::collections::{BTreeSet, HashMap};
use std::sync::Mutex;
use std::time::Duration;

use punctual::domain::leaves::{Parent, Rules};
use punctual::domain::{
    ClusterSettings, IdRange, Monotonic, NodeId, Shard, ShardCount, TaskId, Timestamp,
};
use punctual::engine::assignment::assign;
use punctual::engine::claiming::{ClaimSettings, Claiming, Scope, Taken};
use punctual::engine::expiry::{Turn, turn_of};
use punctual::engine::failure::retry_delay;
use punctual::engine::liveness::fencing::FencingRule;
use punctual::engine::liveness::{EtcdView, Liveness, Sign};
use punctual::engine::placing::{Destination, Rule};

use super::state::{Heart, IDENTITIES, Leaf, TASKS};

pub const TTL: Duration = Duration::from_secs(3);
const LEAF: Duration = Duration::from_secs(900);
/// The beginning of the leaf in which the tasks are due. Any multiple of its width would do.
pub const EPOCH: Timestamp = Timestamp::from_micros(1_795_252_500_000_000);

/// The times of a scope, relative to the beginning of the leaf.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// The moments of the model, in milliseconds.
    pub ticks: &'static [i64],
    /// The due time of each task, in milliseconds.
    pub due: [i64; TASKS],
    /// The tick when the leaf is created. Tasks due in it are far tasks before that.
    pub leaf_at: u8,
    /// The expiry of all tasks, in milliseconds.
    pub expires_at: Option<i64>,
}

/// The ids that one claim takes at one tick.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClaimKind {
    pub tick: u8,
    pub is_far: bool,
    /// True for a claim on all shards, false for the node's own.
    pub is_for_all: bool,
    /// The range of ids, relative to the first moment of the leaf, so it can also be sent to
    /// Postgres for another date.
    pub range: (i128, i128),
    /// The due times within the range.
    pub dues: u16,
}

/// A node's knowledge of another node: the heartbeat with its age, and whether etcd has the key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Other {
    pub identity: u8,
    pub heart: Heart,
    pub age: u8,
    pub has_key: bool,
}

/// A node's decisions about the others.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Standing {
    pub declare_dead: Vec<u8>,
    /// The shards of the tasks belonging to the node.
    pub mine: u8,
}

type Seen = (u8, bool, [Option<Other>; IDENTITIES]);

#[derive(Debug)]
pub struct Decisions {
    pub times: Times,
    /// All due times: first those of the tasks, then those of the follow-ups deferred at each tick,
    /// then the ticks.
    pub dues: Vec<Timestamp>,
    pub claims: Vec<ClaimKind>,
    movable: Vec<u16>,
    is_past: Vec<bool>,
    in_leaf: u16,
    vouched: [bool; 4],
    standings: Mutex<HashMap<Seen, Standing>>,
}

impl Decisions {
    pub fn new(times: Times) -> Self {
        let mut dues: Vec<Timestamp> = times.due.iter().map(|ms| at(*ms)).collect();
        let last = times.ticks.len() - 1;
        for (tick, ms) in times.ticks.iter().enumerate() {
            // There is no later tick than the last one to wait for.
            let delay = if tick == last { Duration::ZERO } else { retry_delay(1, 0) };
            dues.push(at(*ms).plus(delay));
        }
        dues.extend(times.ticks.iter().map(|ms| at(*ms)));
        let rules = Rules::new(&ClusterSettings {
            leaf: LEAF,
            horizon: LEAF * 2,
            ..ClusterSettings::DEFAULT
        });
        let is_past =
            |ms: &i64| !rules.past(Parent::Task, &BTreeSet::from([EPOCH]), at(*ms)).is_empty();
        let mask = |range: IdRange| {
            (0..dues.len())
                .filter(|due| range.contains(TaskId::new(dues[*due], Shard::new(0), 1).uuid()))
                .fold(0, |all, due| all | 1 << due)
        };
        let attached = |tick: usize| {
            let leaves = (-2..8)
                .map(|n| at(n * 900_000))
                .filter(|leaf| tick >= usize::from(times.leaf_at) || *leaf < EPOCH);
            leaves.collect::<BTreeSet<_>>()
        };
        let movable = (0..times.ticks.len()).map(|tick| {
            let now = at(times.ticks[tick]);
            mask(IdRange::of_times(now, rules.end_of_run(Parent::Task, &attached(tick), now)))
        });
        let claims = (0..times.ticks.len())
            .flat_map(|tick| claims_at(tick, at(times.ticks[tick]), &mask))
            .collect();
        let rule = FencingRule::new(TTL);
        Self {
            movable: movable.collect(),
            claims,
            is_past: times.ticks.iter().map(is_past).collect(),
            in_leaf: mask(IdRange::of_times(EPOCH, EPOCH.plus(LEAF))),
            vouched: [0, 1, 2, 3]
                .map(|age| rule.vouches(Some(moment(END - age_of(age))), moment(END))),
            standings: Mutex::default(),
            times,
            dues,
        }
    }

    /// Returns the due time of a follow-up deferred at `tick`.
    pub fn due_of_follow_up(&self, tick: u8) -> u8 {
        u8::try_from(TASKS).unwrap() + tick
    }

    /// A follow-up that is overdue is due now.
    pub fn due_at_least(&self, due: u8, tick: u8) -> u8 {
        let id = TaskId::new(self.dues[usize::from(due)], Shard::new(0), 1);
        let now = at(self.times.ticks[usize::from(tick)]);
        let ticks = u8::try_from(self.times.ticks.len()).unwrap();
        if id.due_at_least(now) == id { due } else { self.due_of_follow_up(tick) + ticks }
    }

    pub fn is_due(&self, due: u8, tick: u8) -> bool {
        self.dues[usize::from(due)] <= at(self.times.ticks[usize::from(tick)])
    }

    /// Returns what is to be done at `tick` with a task whose turn has come.
    pub fn turn_of(&self, tick: u8, is_maybe_sent: bool) -> Turn {
        let now = at(self.times.ticks[usize::from(tick)]);
        self.times
            .expires_at
            .map_or(Turn::Publish, |expires_at| turn_of(at(expires_at), now, is_maybe_sent))
    }

    pub fn movable(&self, tick: u8) -> u16 {
        self.movable[usize::from(tick)]
    }

    pub fn is_in_leaf(&self, due: u8) -> bool {
        self.in_leaf >> due & 1 == 1
    }

    pub fn is_leaf_past(&self, tick: u8) -> bool {
        self.is_past[usize::from(tick)]
    }

    pub fn vouches(&self, age: u8) -> bool {
        self.vouched[usize::from(age)]
    }

    pub fn place(&self, task: usize, tick: u8, may_claim: bool) -> Destination {
        let now = at(self.times.ticks[usize::from(tick)]);
        let end = if tick >= self.times.leaf_at { EPOCH.plus(LEAF * 4) } else { EPOCH };
        Rule::new(now, ClusterSettings::DEFAULT.window, end).place_of(self.dues[task], || may_claim)
    }

    /// Returns the decisions of `identity` about the others.
    pub fn standing(
        &self,
        identity: u8,
        is_etcd_away: bool,
        others: [Option<Other>; IDENTITIES],
    ) -> Standing {
        let seen = (identity, is_etcd_away, others);
        self.standings
            .lock()
            .unwrap()
            .entry(seen)
            .or_insert_with(|| decide(identity, is_etcd_away, &others))
            .clone()
    }
}

fn at(ms: i64) -> Timestamp {
    Timestamp::from_millis(EPOCH.as_millis() + ms)
}

fn moment(span: Duration) -> Monotonic {
    Monotonic::from_start(span)
}

/// Returns all claims that a loop can make at `now`, whatever the loop remembers: claims at the
/// watermark, sweeps of its own shards, claims of long overdue tasks of other shards, and claims of
/// the far table. The long overdue claims cover all shards here, more than a node covers.
fn claims_at(tick: usize, now: Timestamp, mask: &impl Fn(IdRange) -> u16) -> Vec<ClaimKind> {
    let settings = ClaimSettings {
        window: ClusterSettings::DEFAULT.window,
        slack: Duration::from_millis(750),
        leaf: LEAF,
        rows_target: 1000,
    };
    let oldest = at(-60_000);
    let shards: Vec<Shard> = ClusterSettings::DEFAULT.shards.all().collect();
    let fresh = || Claiming::new(settings, &shards);
    let mut claims = Vec::new();
    let mut add = |range: IdRange, scope: Scope, is_far: bool| {
        let offset = |id: uuid::Uuid| {
            i128::try_from(id.as_u128()).unwrap()
                - i128::try_from(IdRange::of_times(EPOCH, EPOCH).from.as_u128()).unwrap()
        };
        let kind = ClaimKind {
            tick: u8::try_from(tick).unwrap(),
            is_far,
            is_for_all: scope != Scope::Mine,
            range: (offset(range.from), offset(range.to)),
            dues: mask(range),
        };
        let is_known = |other: &ClaimKind| {
            (other.is_far, other.is_for_all, other.dues)
                == (kind.is_far, kind.is_for_all, kind.dues)
        };
        if kind.dues != 0 && !claims.iter().any(is_known) {
            claims.push(kind);
        }
    };
    let mut watermark = fresh();
    while let Some(claim) = watermark.next_at_watermark(now) {
        add(claim.range, claim.scope, false);
        watermark.took(&claim, &Taken { got: 1, ..Taken::default() });
    }
    for (mut sweeping, scope, is_far) in [
        (watermark, Scope::Mine, false),
        (fresh(), Scope::Others, false),
        (fresh(), Scope::All, true),
    ] {
        sweeping.sweep(oldest, now, scope);
        while let Some(claim) = sweeping.next_deferred() {
            add(claim.range, claim.scope, is_far);
            sweeping.took(&claim, &Taken { got: 1, ..Taken::default() });
        }
    }
    claims
}

/// The end of the observations.
const END: Duration = Duration::from_secs(20);

fn age_of(age: u8) -> Duration {
    Duration::from_millis([0, 2_750, 3_500, 9_500][usize::from(age)])
}

fn node_id(identity: u8) -> NodeId {
    NodeId::new(EPOCH, 0, u64::from(identity) + 1)
}

/// Reads the others' heartbeats every 0.5 s, as a node does, and decides from these observations.
fn decide(identity: u8, is_etcd_away: bool, others: &[Option<Other>]) -> Standing {
    let mut liveness = Liveness::new(TTL);
    for half_second in 0..=40 {
        let now = Duration::from_millis(half_second * 500);
        let sign = |other: &Other| {
            let last_beat = END - age_of(other.age);
            let counter = i64::try_from(now.min(last_beat).as_millis()).unwrap();
            let is_dead = other.heart == Heart::Dead;
            (
                node_id(other.identity),
                Sign { counter, has_left: false, is_dead, can_publish: true, has_broker: true },
            )
        };
        liveness.take_in(
            others.iter().flatten().filter(|other| other.heart != Heart::None).map(sign),
            moment(now),
            moment(now),
        );
    }
    let members = || {
        others
            .iter()
            .flatten()
            .filter(|other| other.has_key)
            .map(|other| node_id(other.identity))
            .collect()
    };
    let view = if is_etcd_away { EtcdView::Away } else { EtcdView::Known(members()) };
    let decision = liveness.decide(&view);
    let nodes = liveness.assignable(&decision, Some((node_id(identity), true)));
    let owners = assign(ShardCount::new(2).unwrap(), &nodes);
    let number = |node: NodeId| (0..9).find(|identity| node_id(*identity) == node).unwrap();
    Standing {
        declare_dead: decision.declare_dead.iter().map(|declare| number(declare.node)).collect(),
        mine: owners
            .iter()
            .enumerate()
            .filter(|(_, owner)| **owner == node_id(identity))
            .fold(0, |all, (shard, _)| all | 1 << shard),
    }
}

/// Returns true when statements on the whole table see the rows of a leaf in this state.
pub fn is_visible(leaf: Leaf) -> bool {
    leaf == Leaf::Attached
}
