//! Rules 23 and 24: consumers without Kafka get what is in the topic, and nothing twice without a
//! cause. A service that is broken makes no other one wait.

use std::collections::HashMap;

use uuid::Uuid;

use super::history::{Arrival, PROMPT, Span};
use super::lateness;
use super::oracle::{Case, Rule};
use super::plan::{Kind, Server, ServiceFault};

/// A fault has an effect until this long after its end: a session of a consumer group expires, and
/// its partitions are read again from the last committed offsets.
const EFFECT_MS: i64 = 30_000;

/// The longest time until a request is sent to a service that nothing is done to, on a machine that
/// also does other work.
const PROMPT_MAX_MS: i64 = 5000;
/// A service is certainly down from so long after the operation has begun to as long before it has
/// ended.
const DOWN_MARGIN_MS: i64 = 500;

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

    /// Rule 24: the tasks of a service that nothing is done to reach it on time. Operations on the
    /// other service, or on callers of `pop`, are no reasons.
    pub(super) fn check_prompt(&mut self) {
        let mut reached: HashMap<Uuid, i64> = HashMap::new();
        for delivered in self.history.delivered.iter().filter(|one| one.topic == PROMPT) {
            let at = reached.entry(delivered.id).or_insert(delivered.at);
            *at = delivered.at.min(*at);
        }
        let mut appended: HashMap<Uuid, i64> = HashMap::new();
        for record in self.history.records.iter().filter(|record| record.topic == PROMPT) {
            let at = appended.entry(record.id).or_insert(record.at);
            *at = record.at.min(*at);
        }
        for (id, from) in appended {
            let to = reached.get(&id).copied().unwrap_or(self.history.ended_at);
            let unexplained = lateness::not_called(&self.history.spans, (from, to));
            if unexplained > PROMPT_MAX_MS {
                let what = format!(
                    "in its topic at {from}, and with its service at {to}: nothing explains \
                     {unexplained} ms of it"
                );
                self.add(Rule::Late, Some(id), what);
            }
        }
    }

    /// Rule 10 for consumers without Kafka: each fault was done, and had an effect.
    pub(super) fn check_faults_of_consumers(&mut self, is_whole: bool) {
        if self.history.delivered.is_empty() {
            return;
        }
        let called = |from: i64, to: i64| {
            let of_service = |one: &&Delivered| {
                one.route == Route::Callback && one.topic != PROMPT && (from..to).contains(&one.at)
            };
            self.history.delivered.iter().filter(of_service).count()
        };
        let spans = |wanted: Kind| {
            self.history.spans.iter().filter(move |span| span.operation.kind == wanted)
        };
        let mut found = Vec::new();
        if is_whole {
            let missing = Kind::of_consumers().filter(|kind| spans(*kind).next().is_none());
            found.extend(missing.map(|kind| format!("{} was not done", kind.name())));
        }
        let is_up =
            |span: &Span| called(span.begin + DOWN_MARGIN_MS, span.end - DOWN_MARGIN_MS) > 0;
        if spans(Kind::Service(ServiceFault::Down)).any(is_up) {
            found.push("a service that was down has got a request".to_owned());
        }
        // During outages of Kafka there are no requests, so one operation alone may meet none.
        let mut answering = [ServiceFault::Fails, ServiceFault::Stuck]
            .into_iter()
            .flat_map(|fault| spans(Kind::Service(fault)));
        if is_whole && answering.all(|span| called(span.begin, span.end) == 0) {
            found.push("no request has met a service that fails or is stuck".to_owned());
        }
        for what in found {
            self.add(Rule::Uncovered, None, what);
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
            let kind = span.operation.kind;
            kind.takes_brokers_away()
                || matches!(
                    kind,
                    Kind::KillNode
                        | Kind::KillAtStore
                        | Kind::FreezeNode
                        | Kind::ClockStep
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
