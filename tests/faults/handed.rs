//! Rule 23: consumers without Kafka get what is in the topic, and nothing twice without a cause.

use std::collections::HashMap;

use uuid::Uuid;

use super::history::{Arrival, Span};
use super::oracle::{Case, Rule};

/// A fault has an effect until this long after its end: sessions of consumer groups expire, and
/// offsets of the last second are read again.
const EFFECT_MS: i64 = 30_000;

/// An attempt that a consumer without Kafka has got.
#[derive(Clone, Copy, Debug)]
pub struct Handed {
    pub at: i64,
    pub topic: usize,
    pub id: Uuid,
    pub attempt: u16,
    pub way: Way,
}

/// How the consumer got it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Way {
    /// `pop` says which record it is.
    Pop {
        partition: i32,
        offset: i64,
    },
    Callback,
}

impl Case<'_> {
    pub(super) fn check_handed(&mut self) {
        let mut found = Vec::new();
        let mut first: HashMap<(Uuid, u16, Way), i64> = HashMap::new();
        for handed in &self.history.handed {
            let records = self.tasks.get(&handed.id).map_or(&[][..], |task| &task.records);
            let of_attempt = |record: &&&Arrival| {
                record.topic == handed.topic && record.attempt == Some(handed.attempt)
            };
            let is_place = |record: &&Arrival| match handed.way {
                Way::Pop { partition, offset } => {
                    (partition, offset) == (record.partition, record.offset)
                }
                Way::Callback => true,
            };
            if !records.iter().filter(of_attempt).any(|record| is_place(&record)) {
                found.push((handed.id, format!("not in its topic, and handed out: {handed:?}")));
            }
            let before = *first.entry((handed.id, handed.attempt, handed.way)).or_insert(handed.at);
            // The service also gets the second record of an attempt.
            let is_one = records.iter().filter(of_attempt).count() == 1;
            if before < handed.at && is_one && !self.is_disturbed(before, handed.at) {
                found.push((handed.id, format!("handed out at {before}, and again: {handed:?}")));
            }
        }
        for (id, what) in found {
            self.add(Rule::WrongDelivery, Some(id), what);
        }
    }

    /// Returns true if an operation may have had an effect in this time.
    fn is_disturbed(&self, from: i64, to: i64) -> bool {
        let is_near = |span: &Span| span.begin <= to && span.end + EFFECT_MS >= from;
        self.history.spans.iter().any(is_near)
    }
}
