//! The plan of a run: a list of operations with their times. It is made from a seed, written as
//! text with one operation a line, and read back (`plan_text`).
//!
//! ```text
//! # seed=7 seconds=50
//! 1200 freeze-node node=2 for=4100
//! 3050 delay-kafka node=1 for=2500 by=300
//! ```
//! Times are in milliseconds from the start of the traffic. The unit of `by` depends on the
//! operation: milliseconds of delay or of a node's clock, bytes per second of a quota, parts per
//! million of Postgres's clock, or the number of a broker.

use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{Rng as _, SeedableRng as _};

use super::replicated_plan::Replicated;

/// The nodes of a cluster. A breakable stack has proxies for this many.
pub const NODES: u8 = 3;
/// The node whose wall clock can be stepped.
pub const CLOCK_NODE: u8 = 3;
/// Runs of at least this length leave time for the cluster to recover between operations.
pub const ROOMY_FROM_SECONDS: u64 = 150;
/// The most steps of Postgres's clock in one operation, and how long each may be.
pub const STEPS_MAX: usize = 4;
const STEP_MS: std::ops::RangeInclusive<u16> = 200..=8000;
/// The limit on the sum of all steps of one operation. A node that is cut off from Postgres
/// meanwhile sees them as one step, and follows at once only a step of at most 10 s.
const STEPS_SUM_MAX_MS: u16 = 9000;
/// The bytes that a client may send per second: about a quarter of a node's share of the usual
/// traffic. A lower quota would throttle for minutes, because the backlog meanwhile counts against
/// the quota as well.
const QUOTA_BYTES: std::ops::RangeInclusive<i64> = 3000..=4000;
/// The shortest run in which each kind of operation finds its place.
pub const COMPLETE_FROM_SECONDS: u64 = 40;
/// The most operations of a lap that may fall into an outage of Kafka or Postgres, where they
/// affect no records.
const QUIET_MAX: u32 = 3;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Server {
    Postgres,
    Etcd,
    Kafka,
    /// The database of an application, which has an outbox.
    Shop,
}

/// A fault of a service that is called back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ServiceFault {
    /// The service's connections break, and new ones are refused.
    Down,
    /// The service answers 500 to every request.
    Fails,
    /// The service takes requests, and gives no answer or the first bytes of one.
    Stuck,
}

/// The kinds of operations.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// kill -9 of a node, which is started again after the span.
    KillNode,
    /// SIGSTOP of a node, SIGCONT after the span.
    FreezeNode,
    /// A fast shutdown of Postgres, which ends its sessions, and a start.
    PostgresStop,
    /// Postgres stops at once (SIGQUIT): the next start recovers from the WAL.
    PostgresImmediate,
    /// One backend is killed by SIGKILL: Postgres ends all the others, recovers, and goes on.
    PostgresCrash,
    /// The disk of Postgres's tablespace is full.
    DiskFull,
    KafkaStop,
    /// kill -9 of Kafka.
    KafkaKill,
    /// One topic demands more in-sync replicas than it has.
    TopicUnavailable,
    /// One topic is deleted and created again.
    TopicDeleted,
    /// One topic accepts smaller records only.
    TopicLimit,
    EtcdStop,
    /// kill -9 of etcd.
    EtcdKill,
    /// All keys of etcd are deleted.
    EtcdEmptied,
    /// All leases of etcd are revoked.
    EtcdLeases,
    /// Connections of a node to a server break, and new ones are refused.
    Cut(Server),
    /// Traffic between a node and a server is delayed.
    Delay(Server),
    /// A node's requests arrive at a server, but the server's answers never arrive at the node.
    HalfOpen(Server),
    /// The wall clock of a node is stepped, its monotonic clock is not.
    ClockStep,
    /// Postgres's clock is stepped forward several times, and runs fast or slow in between.
    PostgresClock,
    /// Kafka limits the bytes per second of each client.
    Quota,
    /// An operator pauses a topic, and resumes it.
    Pause,
    /// The auth file is broken, then takes a right away, and then gives it back.
    AuthRewritten,
    /// A fast shutdown of the application's database, and a start.
    ShopStop,
    /// SIGSTOP of all processes of the application's database, SIGCONT after the span.
    ShopFreeze,
    /// The intake topic gets one more partition.
    IntakePartitions,
    /// kill -9 of the node that drains the outbox, after storing rows and before deleting these
    /// rows.
    KillAtStore,
    /// Something is done to the service that is called back.
    Service(ServiceFault),
    /// All callers of `pop` are gone in the middle of their calls, and come back after the span.
    KillCallers,
    /// An operation on servers that have replicas.
    Replicated(Replicated),
    /// Postgres or Kafka took long to answer the runner itself. No plan has it: it is observed.
    Stall(Server),
}

const NAMES: [(Kind, &str); 45] = [
    (Kind::KillNode, "kill-node"),
    (Kind::FreezeNode, "freeze-node"),
    (Kind::PostgresStop, "postgres-stop"),
    (Kind::PostgresImmediate, "postgres-immediate"),
    (Kind::PostgresCrash, "postgres-crash"),
    (Kind::DiskFull, "disk-full"),
    (Kind::KafkaStop, "kafka-stop"),
    (Kind::KafkaKill, "kafka-kill"),
    (Kind::TopicUnavailable, "topic-unavailable"),
    (Kind::TopicDeleted, "topic-deleted"),
    (Kind::TopicLimit, "topic-limit"),
    (Kind::EtcdStop, "etcd-stop"),
    (Kind::EtcdKill, "etcd-kill"),
    (Kind::EtcdEmptied, "etcd-emptied"),
    (Kind::EtcdLeases, "etcd-leases"),
    (Kind::Cut(Server::Postgres), "cut-postgres"),
    (Kind::Cut(Server::Etcd), "cut-etcd"),
    (Kind::Cut(Server::Kafka), "cut-kafka"),
    (Kind::Delay(Server::Postgres), "delay-postgres"),
    (Kind::Delay(Server::Etcd), "delay-etcd"),
    (Kind::Delay(Server::Kafka), "delay-kafka"),
    (Kind::HalfOpen(Server::Postgres), "half-open-postgres"),
    (Kind::HalfOpen(Server::Etcd), "half-open-etcd"),
    (Kind::HalfOpen(Server::Kafka), "half-open-kafka"),
    (Kind::ClockStep, "clock-step"),
    (Kind::PostgresClock, "postgres-clock"),
    (Kind::Quota, "quota"),
    (Kind::Pause, "pause"),
    (Kind::AuthRewritten, "auth-rewritten"),
    (Kind::ShopStop, "shop-stop"),
    (Kind::ShopFreeze, "shop-freeze"),
    (Kind::Cut(Server::Shop), "cut-shop"),
    (Kind::Delay(Server::Shop), "delay-shop"),
    (Kind::HalfOpen(Server::Shop), "half-open-shop"),
    (Kind::IntakePartitions, "intake-partitions"),
    (Kind::KillAtStore, "kill-at-store"),
    (Kind::Service(ServiceFault::Down), "service-down"),
    (Kind::Service(ServiceFault::Fails), "service-500s"),
    (Kind::Service(ServiceFault::Stuck), "service-stuck"),
    (Kind::KillCallers, "kill-callers"),
    (Kind::Replicated(Replicated::PostgresFailover), "postgres-failover"),
    (Kind::Replicated(Replicated::BrokerLost), "broker-lost"),
    (Kind::Replicated(Replicated::BrokersRestarted), "brokers-restarted"),
    (Kind::Stall(Server::Postgres), "stall-postgres"),
    (Kind::Stall(Server::Kafka), "stall-kafka"),
];

/// A resource that an operation has exclusively while it lasts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Resource {
    Node(u8),
    Server(Server),
    Way(Server, u8),
    Topic(Kind),
    Clock,
    PostgresClock,
    Quota,
    AuthFile,
    Intake,
    Drainer,
    Service,
    Callers,
}

/// One operation of a plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operation {
    pub at: u64,
    pub kind: Kind,
    /// The node, for operations on a node or its proxies.
    pub node: u8,
    /// The time from the start of the operation to its undo.
    pub lasts: u64,
    /// Milliseconds of delay of answers, or of a step of a node's clock. Or parts per million by
    /// which Postgres's clock runs fast. Or bytes per second that a client may send to Kafka. Or
    /// the number of a broker.
    pub by: i64,
    /// The forward steps of Postgres's clock in milliseconds, one after another, then zeros.
    pub steps: [u16; STEPS_MAX],
}

/// All parts of a run that depend on its seed and are decided in advance.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    pub seed: u64,
    /// The duration of the traffic.
    pub seconds: u64,
    pub operations: Vec<Operation>,
}

impl Kind {
    /// Returns the kinds that are drawn for the two lanes of a plan. The others have lanes of their
    /// own, or only rounds with authentication or with replicas have them.
    pub fn all() -> impl Iterator<Item = Self> {
        let kinds = NAMES.iter().map(|(kind, _)| *kind);
        let is_special = |kind: &Self| matches!(kind, Self::AuthRewritten | Self::Replicated(_));
        kinds.filter(move |kind| {
            let has_lane = kind.is_of_doors() || kind.is_of_consumers();
            !is_special(kind) && !has_lane && !kind.is_observed()
        })
    }

    /// Returns the kinds that concern consumers without Kafka.
    pub fn of_consumers() -> impl Iterator<Item = Self> {
        NAMES.iter().map(|(kind, _)| *kind).filter(|kind| kind.is_of_consumers())
    }

    /// Returns true for an operation on the service that is called back, or on callers of `pop`.
    pub const fn is_of_consumers(self) -> bool {
        matches!(self, Self::Service(_) | Self::KillCallers)
    }

    /// Returns the kinds that concern the doors beside REST.
    pub fn of_doors() -> impl Iterator<Item = Self> {
        NAMES.iter().map(|(kind, _)| *kind).filter(|kind| kind.is_of_doors())
    }

    /// Returns true for an operation on the outbox, or on the intake topic.
    pub const fn is_of_doors(self) -> bool {
        match self {
            Self::Cut(server) | Self::Delay(server) | Self::HalfOpen(server) => {
                matches!(server, Server::Shop)
            }
            Self::ShopStop | Self::ShopFreeze | Self::IntakePartitions | Self::KillAtStore => true,
            _ => false,
        }
    }

    /// Returns true for what nobody does on purpose.
    pub const fn is_observed(self) -> bool {
        matches!(self, Self::Stall(_))
    }

    pub fn of_name(name: &str) -> Option<Self> {
        NAMES.iter().find(|(_, known)| *known == name).map(|(kind, _)| *kind)
    }

    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(kind, _)| *kind == self).map_or("?", |(_, name)| name)
    }

    /// Returns true when this operation may cause a duplicate record: an acknowledgement is lost, a
    /// settle is undone, or a node seems dead. No other operation may cause one.
    pub const fn may_duplicate(self) -> bool {
        match self {
            Self::KillNode
            | Self::FreezeNode
            | Self::PostgresStop
            | Self::PostgresImmediate
            | Self::PostgresCrash => true,
            Self::KafkaStop
            | Self::KafkaKill
            | Self::TopicUnavailable
            | Self::TopicDeleted
            | Self::TopicLimit => true,
            Self::Cut(server) | Self::Delay(server) | Self::HalfOpen(server) => {
                !matches!(server, Server::Etcd | Server::Shop)
            }
            Self::Replicated(_) => true,
            // A heartbeat that is late makes a node seem dead, too.
            Self::KillAtStore | Self::Stall(_) => true,
            // No record leaves by a door.
            Self::ShopStop | Self::ShopFreeze | Self::IntakePartitions => false,
            Self::DiskFull
            | Self::EtcdStop
            | Self::EtcdKill
            | Self::EtcdEmptied
            | Self::EtcdLeases => false,
            // A slow server is not dead, and no clock decides whether a node lives.
            Self::ClockStep | Self::PostgresClock | Self::Quota => false,
            Self::AuthRewritten | Self::Pause | Self::Service(_) | Self::KillCallers => false,
        }
    }

    /// Returns true when records are slow for a while after the operation. A broker that has just
    /// started is slow. So are records that are sent alone because a record in the same request was
    /// over the topic's limit.
    pub const fn is_slow_afterwards(self) -> bool {
        self.takes_brokers_away() || matches!(self, Self::TopicLimit)
    }

    pub const fn has_node(self) -> bool {
        matches!(
            self,
            Self::KillNode
                | Self::FreezeNode
                | Self::Cut(_)
                | Self::Delay(_)
                | Self::HalfOpen(_)
                | Self::ClockStep
        )
    }

    /// Returns the shortest and the longest duration, and roughly the recovery time of the servers,
    /// all in milliseconds.
    const fn span(self) -> (u64, u64, u64) {
        match self {
            Self::KillNode => (300, 3000, 1500),
            Self::FreezeNode => (500, 5000, 300),
            Self::PostgresStop | Self::PostgresImmediate => (200, 1500, 1200),
            Self::PostgresCrash => (0, 0, 1000),
            // Shorter than the session TTL: a node whose heartbeats alone fail on a full disk must
            // not seem dead.
            Self::DiskFull => (700, 1200, 300),
            Self::KafkaStop => (200, 1000, 5500),
            Self::KafkaKill => (200, 1000, 5500),
            Self::TopicUnavailable => (2000, 6500, 500),
            Self::TopicDeleted => (3000, 6500, 500),
            Self::TopicLimit => (2000, 3500, 500),
            Self::Pause => (1000, 6000, 500),
            Self::EtcdStop | Self::EtcdKill => (300, 3000, 500),
            Self::EtcdEmptied | Self::EtcdLeases => (0, 0, 800),
            Self::Cut(_) | Self::Delay(_) | Self::HalfOpen(_) => (400, 3200, 300),
            Self::ClockStep => (1000, 2500, 200),
            Self::PostgresClock => (1500, 4000, 200),
            // A shorter quota would end before the broker throttles any client.
            Self::Quota => (5000, 8000, 300),
            // Nodes read the file once a second. The right must be gone for a while after that.
            Self::AuthRewritten => (8000, 8000, 1500),
            Self::ShopStop => (200, 1500, 1200),
            Self::ShopFreeze => (500, 4000, 300),
            Self::IntakePartitions => (0, 0, 500),
            Self::KillAtStore => (300, 2000, 2500),
            Self::Service(_) => (2000, 5000, 300),
            Self::KillCallers => (200, 2000, 300),
            Self::Replicated(kind) => kind.span(),
            Self::Stall(_) => (0, 0, 0),
        }
    }
}

impl Operation {
    pub fn resource(&self) -> Resource {
        match self.kind {
            Kind::KillNode | Kind::FreezeNode => Resource::Node(self.node),
            Kind::PostgresStop | Kind::PostgresImmediate | Kind::PostgresCrash | Kind::DiskFull => {
                Resource::Server(Server::Postgres)
            }
            Kind::KafkaStop | Kind::KafkaKill => Resource::Server(Server::Kafka),
            Kind::EtcdStop | Kind::EtcdKill | Kind::EtcdEmptied | Kind::EtcdLeases => {
                Resource::Server(Server::Etcd)
            }
            Kind::TopicUnavailable | Kind::TopicDeleted | Kind::TopicLimit | Kind::Pause => {
                Resource::Topic(self.kind)
            }
            Kind::Cut(server) | Kind::Delay(server) | Kind::HalfOpen(server) => {
                Resource::Way(server, self.node)
            }
            Kind::ClockStep => Resource::Clock,
            Kind::PostgresClock => Resource::PostgresClock,
            Kind::Quota => Resource::Quota,
            Kind::AuthRewritten => Resource::AuthFile,
            Kind::ShopStop | Kind::ShopFreeze => Resource::Server(Server::Shop),
            Kind::Replicated(kind) => Resource::Server(kind.server()),
            Kind::Stall(server) => Resource::Server(server),
            Kind::IntakePartitions => Resource::Intake,
            Kind::KillAtStore => Resource::Drainer,
            Kind::Service(_) => Resource::Service,
            Kind::KillCallers => Resource::Callers,
        }
    }

    /// Returns when the operation should be undone and the servers recovered.
    pub fn over_at(&self) -> u64 {
        self.at + self.lasts + self.kind.span().2
    }

    /// The steps of Postgres's clock.
    pub fn steps(&self) -> impl Iterator<Item = u16> {
        self.steps.into_iter().filter(|step| *step > 0)
    }

    /// Returns true when the cluster may publish no records while it lasts.
    pub fn is_outage(&self) -> bool {
        let is_partial = matches!(self.kind, Kind::Replicated(kind) if kind.is_partial());
        !is_partial && matches!(self.resource(), Resource::Server(Server::Kafka | Server::Postgres))
    }

    /// Returns true when the operation is not yet undone at that time.
    const fn lasts_at(&self, at: u64) -> bool {
        at <= self.at + self.lasts
    }

    pub fn random(kind: Kind, at: u64, is_roomy: bool, chance: &mut StdRng) -> Self {
        let (shortest, longest, _) = kind.span();
        // A full disk must stay shorter than the session's TTL, and the debt of a quota grows with
        // its duration.
        let is_fixed = matches!(kind, Kind::DiskFull | Kind::Quota | Kind::Pause);
        let longest = if is_roomy && !is_fixed { longest * 2 } else { longest };
        let lasts = chance.random_range(shortest..=longest);
        let node = match kind {
            Kind::ClockStep => CLOCK_NODE,
            _ => chance.random_range(1..=NODES),
        };
        let by = match kind {
            Kind::Delay(_) => chance.random_range(50..=800),
            Kind::ClockStep => {
                chance.random_range(1000..=20_000) * if chance.random() { 1 } else { -1 }
            }
            Kind::PostgresClock => {
                chance.random_range(100..=500) * if chance.random() { 1 } else { -1 }
            }
            Kind::Quota => chance.random_range(QUOTA_BYTES),
            Kind::Replicated(kind) => kind.by(chance),
            _ => 0,
        };
        let steps = if kind == Kind::PostgresClock { random_steps(chance) } else { [0; STEPS_MAX] };
        Self { at, kind, node: if kind.has_node() { node } else { 0 }, lasts, by, steps }
    }
}

impl Plan {
    /// Makes a plan with operations of each kind, in an order that the seed decides, and repeats
    /// them while there is time. At most two lanes of operations run at a time, and no two use the
    /// same resource.
    pub fn new(seed: u64, seconds: u64) -> Self {
        Self::of_kinds(seed, seconds, &Kind::all().collect::<Vec<_>>())
    }

    /// As [`Self::new`], with operations of these kinds.
    pub fn of_kinds(seed: u64, seconds: u64, kinds: &[Kind]) -> Self {
        let mut chance = StdRng::seed_from_u64(seed);
        let is_roomy = seconds >= ROOMY_FROM_SECONDS;
        // A short run has no time for a second lap, because it could not finish it.
        let end = seconds.saturating_mul(1000).saturating_sub(if is_roomy { 20_000 } else { 3000 });
        let mut operations: Vec<Operation> = Vec::new();
        let mut lanes = [(1000_u64, None::<Operation>), (1500, None)];
        let mut lap = 0;
        loop {
            let mut deck = kinds.to_vec();
            deck.shuffle(&mut chance);
            // Every second lap has only one lane, so a duplicate in it has one possible cause.
            let lane_count = if is_roomy && lap % 2 == 1 { 1 } else { lanes.len() };
            let mut quiet_left = QUIET_MAX;
            while !deck.is_empty() {
                let (lane, at) = (0..lane_count)
                    .map(|lane| (lane, lanes[lane].0))
                    .min_by_key(|(_, at)| *at)
                    .unwrap_or((0, 0));
                if at >= end && lap > 0 {
                    operations.sort_by_key(|operation| operation.at);
                    return Self { seed, seconds, operations };
                }
                // The operation in the other lane.
                let (until, last) = lanes[1 - lane];
                let other = last.filter(|_| until > at);
                let drawn: Vec<Operation> = deck
                    .iter()
                    .map(|kind| Operation::random(*kind, at, is_roomy, &mut chance))
                    .collect();
                let is_free = |operation: &Operation| {
                    other.is_none_or(|other| other.resource() != operation.resource())
                };
                let Some(index) = drawn.iter().position(is_free) else {
                    lanes[lane] = (at + 500, None);
                    continue;
                };
                let operation = drawn[index];
                // An operation during an outage of Kafka or Postgres may affect no records, so it
                // is drawn once more.
                let is_quiet = other.is_some_and(|other| other.is_outage());
                let silences = other.filter(|other| {
                    operation.is_outage() && !other.is_outage() && other.lasts_at(at)
                });
                if (is_quiet || silences.is_some()) && quiet_left == 0 {
                    // Two lanes waiting for each other's outage would never advance, so this lane
                    // waits for the other.
                    lanes[lane] = (until.max(at + 1), None);
                    continue;
                }
                if is_quiet || silences.is_some() {
                    quiet_left -= 1;
                }
                if !is_quiet {
                    deck.remove(index);
                }
                deck.extend(silences.map(|other| other.kind).filter(|kind| !deck.contains(kind)));
                let gap = if is_roomy {
                    chance.random_range(500..5000)
                } else {
                    chance.random_range(50..250)
                };
                lanes[lane] = (operation.over_at() + gap, Some(operation));
                operations.push(operation);
            }
            lap += 1;
            let meet = lanes.iter().map(|(until, _)| *until).max().unwrap_or_default();
            lanes.iter_mut().for_each(|lane| lane.0 = meet);
            if meet >= end {
                operations.sort_by_key(|operation| operation.at);
                return Self { seed, seconds, operations };
            }
        }
    }
}

/// Returns two or more steps in random order.
fn random_steps(chance: &mut StdRng) -> [u16; STEPS_MAX] {
    let mut steps = [0; STEPS_MAX];
    let count = chance.random_range(2..=STEPS_MAX);
    let (shortest, longest) = STEP_MS.into_inner();
    let mut left = STEPS_SUM_MAX_MS;
    for (step, more) in steps[..count].iter_mut().zip((0..count).rev()) {
        let reserved = (0..more).fold(0, |sum, _| sum + shortest);
        *step = chance.random_range(shortest..=longest.min(left - reserved));
        left -= *step;
    }
    steps[..count].shuffle(chance);
    steps
}
