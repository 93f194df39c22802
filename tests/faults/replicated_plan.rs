//! The faults of servers that have replicas: a Postgres with a synchronous standby, and three
//! brokers.

use rand::Rng as _;
use rand::rngs::StdRng;

use super::history::Span;
use super::plan::{Kind, Plan, Server};

/// The brokers of a replicated stack, by their numbers.
const BROKERS: std::ops::RangeInclusive<i64> = 1..=3;

/// The kinds of operations on a replicated stack alone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Replicated {
    /// kill -9 of Postgres's primary. After the span its standby is promoted, and gets a standby of
    /// its own in the place of the former primary.
    PostgresFailover,
    /// kill -9 of one broker, which is started again after the span.
    BrokerLost,
    /// An orderly restart of one broker after the other. Each waits until the one before is in
    /// sync.
    BrokersRestarted,
}

impl Replicated {
    const ALL: [Self; 3] = [Self::PostgresFailover, Self::BrokerLost, Self::BrokersRestarted];

    pub const fn server(self) -> Server {
        match self {
            Self::PostgresFailover => Server::Postgres,
            Self::BrokerLost | Self::BrokersRestarted => Server::Kafka,
        }
    }

    /// Returns true when the other servers go on, so that records can flow.
    pub const fn is_partial(self) -> bool {
        matches!(self, Self::BrokerLost | Self::BrokersRestarted)
    }

    /// Returns the shortest and the longest duration, and roughly the time until all replicas are
    /// in sync again, in milliseconds. The controller takes 3 s to notice that a broker is lost.
    pub const fn span(self) -> (u64, u64, u64) {
        match self {
            Self::PostgresFailover => (200, 2000, 10_000),
            Self::BrokerLost => (500, 6000, 12_000),
            Self::BrokersRestarted => (0, 0, 45_000),
        }
    }

    /// Draws the number of a broker.
    pub fn by(self, chance: &mut StdRng) -> i64 {
        if self == Self::BrokerLost { chance.random_range(BROKERS) } else { 0 }
    }

    /// Returns true if an operation may have this number of a broker.
    pub fn takes(self, by: i64) -> bool {
        if self == Self::BrokerLost { BROKERS.contains(&by) } else { by == 0 }
    }
}

impl Kind {
    /// Returns the kinds that each plan of a seed holds for a replicated stack.
    pub fn all_replicated() -> impl Iterator<Item = Self> {
        let own = Replicated::ALL.into_iter().map(Self::Replicated);
        Self::all().filter(|kind| !kind.is_of_single_servers()).chain(own)
    }

    /// Returns the kinds that a whole run holds, by the operations that were carried out.
    pub fn all_of_run(spans: &[Span]) -> Vec<Self> {
        let is_replicated =
            spans.iter().any(|span| matches!(span.operation.kind, Self::Replicated(_)));
        if is_replicated { Self::all_replicated().collect() } else { Self::all().collect() }
    }

    /// Returns true for operations that need one broker, or a Postgres on a small disk. A quota is
    /// that of each broker, so that three of them throttle nobody.
    const fn is_of_single_servers(self) -> bool {
        matches!(
            self,
            Self::DiskFull
                | Self::KafkaStop
                | Self::KafkaKill
                | Self::TopicUnavailable
                | Self::Quota
        )
    }

    /// Returns true when all brokers, or some of them, are away during the operation.
    pub const fn takes_brokers_away(self) -> bool {
        match self {
            Self::Replicated(kind) => kind.is_partial(),
            _ => matches!(self, Self::KafkaStop | Self::KafkaKill),
        }
    }
}

impl Plan {
    /// As [`Plan::new`], for a replicated stack.
    pub fn replicated(seed: u64, seconds: u64) -> Self {
        Self::of_kinds(seed, seconds, &Kind::all_replicated().collect::<Vec<_>>())
    }

    /// Returns true when the plan needs a replicated stack.
    pub fn is_replicated(&self) -> bool {
        self.operations.iter().any(|one| matches!(one.kind, Kind::Replicated(_)))
    }

    /// Returns a kind of the plan that a replicated stack cannot have.
    pub fn kind_of_single_servers(&self) -> Option<Kind> {
        self.operations.iter().map(|one| one.kind).find(|kind| kind.is_of_single_servers())
    }
}
