//! Rule 23: consumers without Kafka get what is in the topic, and nothing twice without a cause.

use std::collections::HashMap;

use uuid::Uuid;

use super::history::{Arrival, Span};
use super::oracle::{Case, Rule};
use super::plan::{Kind, Server};

/// A fault has an effect until this long after its end: a session of a consumer group expires, and
/// its partitions are read again from the last committed offsets.
const EFFECT_MS: i64 = 30_000;

/// An attempt that was delivered to a consumer without Kafka.
#[derive(Clone, Copy, Debug)]
pub struct Delivered {
    pub at: i64,
    pub topic: usize,
    pub id: Uuid,
    pub attempt: u16,
    pub payload_hash: u64,
    pub route: Route,
}

/// How it was delivered.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Route {
    /// `pop` says which record it is.
    Pop {
        partition: i32,
        offset: i64,
    },
    Callback,
}

impl Delivered {
    fn is(&self, record: &Arrival) -> bool {
        let is_place = match self.route {
            Route::Pop { partition, offset } => {
                (partition, offset) == (record.partition, record.offset)
            }
            Route::Callback => true,
        };
        is_place
            && record.topic == self.topic
            && record.attempt == Some(self.attempt)
            && record.payload_hash == Some(self.payload_hash)
    }
}

impl Case<'_> {
    pub(super) fn check_deliveries(&mut self) {
        let mut found = Vec::new();
        let mut times: HashMap<(Uuid, u16, Route), Vec<i64>> = HashMap::new();
        for delivered in &self.history.delivered {
            let Delivered { at, id, attempt, route, .. } = *delivered;
            if !self.records_of(id).iter().any(|record| delivered.is(record)) {
                found.push((id, format!("not in its topic, and delivered: {delivered:?}")));
            }
            times.entry((id, attempt, route)).or_default().push(at);
        }
        for ((id, attempt, route), mut times) in times {
            times.sort_unstable();
            // A callback does not say which record of its attempt it is.
            let of_attempt = |record: &&&Arrival| record.attempt == Some(attempt);
            let record_count = match route {
                Route::Pop { .. } => 1,
                Route::Callback => self.records_of(id).iter().filter(of_attempt).count(),
            };
            let mut again = times.windows(2).skip(record_count.max(1) - 1);
            if let Some(pair) = again.find(|pair| !self.is_disturbed(pair[0], pair[1])) {
                found.push((id, format!("attempt {attempt} by {route:?} twice: {pair:?}")));
            }
        }
        for (id, what) in found {
            self.add(Rule::WrongDelivery, Some(id), what);
        }
    }

    fn records_of(&self, id: Uuid) -> &[&Arrival] {
        self.tasks.get(&id).map_or(&[], |task| &task.records)
    }

    /// Returns true if an operation in this time, or before it, may have taken a partition from its
    /// node, or kept the node from committing its offsets. A wall clock that is stepped back holds
    /// up the waits of librdkafka by as much, and heartbeats of its consumers among them
    /// (confluentinc/librdkafka#2145).
    fn is_disturbed(&self, from: i64, to: i64) -> bool {
        let is_near = |span: &&Span| span.begin <= to && span.end + EFFECT_MS >= from;
        let touches = |span: &Span| {
            matches!(
                span.operation.kind,
                Kind::KillNode
                    | Kind::KillAtStore
                    | Kind::FreezeNode
                    | Kind::ClockStep
                    | Kind::KafkaStop
                    | Kind::KafkaKill
                    | Kind::Cut(Server::Kafka)
                    | Kind::Delay(Server::Kafka)
                    | Kind::HalfOpen(Server::Kafka)
                    | Kind::Quota
                    | Kind::Stall(_)
            )
        };
        self.history.spans.iter().filter(is_near).any(touches)
    }
}
