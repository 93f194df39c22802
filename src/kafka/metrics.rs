//! Metrics of the records to Kafka.

use super::delivery::DeliveryOutcome;
use crate::domain::Failure;
use crate::telemetry::{Counter, Family, Gauge, Registry};

type Labels = [(&'static str, &'static str); 1];

#[derive(Clone, Debug)]
pub struct KafkaMetrics {
    pub(super) replaced: Counter,
    pub(super) sent: Counter,
    pub(super) queue_full: Counter,
    pub(super) outcomes: DeliveryOutcomes,
    pub(super) has_contact: Gauge,
    pub(super) contact_losses: Counter,
    pub(super) token_is_missing: Gauge,
    pub(super) look_ups: LookUps,
    pub(super) topics_known: Gauge,
}

/// One counter per outcome. A counter is found without a lock or a hash, because each record is
/// counted.
#[derive(Clone, Debug)]
pub(super) struct DeliveryOutcomes {
    acknowledged: Counter,
    not_sent: Counter,
    unknown: Counter,
    batch_refused: Counter,
    refused: Counter,
    unavailable: Counter,
    forbidden: Counter,
}

#[derive(Clone, Debug)]
pub(super) struct LookUps {
    pub(super) found: Counter,
    pub(super) unknown: Counter,
    pub(super) denied: Counter,
    pub(super) unavailable: Counter,
    pub(super) busy: Counter,
}

impl KafkaMetrics {
    /// Counts a producer replaced by another one.
    pub fn producer_replaced(&self) {
        self.replaced.inc();
    }

    pub fn register(registry: &mut Registry) -> Self {
        let outcomes: Family<Labels, Counter> = Family::default();
        let look_ups: Family<Labels, Counter> = Family::default();
        let (replaced, sent, queue_full, contact_losses): (Counter, Counter, Counter, Counter) =
            Default::default();
        let (has_contact, topics_known, token_is_missing): (Gauge, Gauge, Gauge) =
            Default::default();
        let help = "Kafka producers that were replaced by another one";
        registry.register("punctual_kafka_producers_replaced", help, replaced.clone());
        let help = "Records handed to a Kafka producer; each ends as one of punctual_kafka_reports";
        registry.register("punctual_kafka_sent_records", help, sent.clone());
        let help = "Outcomes of records handed to a Kafka producer: acknowledged, not_sent, \
                    unknown (may be in the topic), batch_refused (to be sent alone), refused (for \
                    good), unavailable (the topic takes none now), forbidden (this node may not \
                    write to it)";
        registry.register("punctual_kafka_reports", help, outcomes.clone());
        let help = "Records that a Kafka producer refused because its queue was full";
        registry.register("punctual_kafka_queue_full", help, queue_full.clone());
        let help = "1 while a Kafka broker acknowledges records or answers probes; else 0";
        registry.register("punctual_kafka_contact", help, has_contact.clone());
        let help = "Times that the contact to all Kafka brokers was lost";
        registry.register("punctual_kafka_contact_losses", help, contact_losses.clone());
        let help = "1 while the node cannot get a token for its login to Kafka; else 0";
        registry.register("punctual_kafka_token_missing", help, token_is_missing.clone());
        let help = "Look-ups of topics in Kafka (not in the cache), by outcome: found, unknown, \
                    denied, unavailable, busy (the queue was full)";
        registry.register("punctual_kafka_topic_look_ups", help, look_ups.clone());
        let help = "Topics in the cache of look-ups";
        registry.register("punctual_kafka_topics_known", help, topics_known.clone());
        Self {
            replaced,
            sent,
            queue_full,
            outcomes: DeliveryOutcomes::of(&outcomes),
            has_contact,
            contact_losses,
            token_is_missing,
            look_ups: LookUps::of(&look_ups),
            topics_known,
        }
    }
}

impl DeliveryOutcomes {
    fn of(family: &Family<Labels, Counter>) -> Self {
        let counter = |outcome| family.get_or_create(&[("outcome", outcome)]).clone();
        Self {
            acknowledged: counter("acknowledged"),
            not_sent: counter("not_sent"),
            unknown: counter("unknown"),
            batch_refused: counter("batch_refused"),
            refused: counter("refused"),
            unavailable: counter("unavailable"),
            forbidden: counter("forbidden"),
        }
    }

    pub(super) fn count(&self, outcome: &DeliveryOutcome) {
        let counter = match outcome {
            DeliveryOutcome::Acknowledged(_) => &self.acknowledged,
            DeliveryOutcome::Failed(failed) => match failed.failure {
                Failure::NotSent => &self.not_sent,
                Failure::Unknown => &self.unknown,
                Failure::BatchRefused => &self.batch_refused,
                Failure::RefusedForGood => &self.refused,
                Failure::Unavailable => &self.unavailable,
                Failure::Forbidden => &self.forbidden,
            },
        };
        counter.inc();
    }
}

impl LookUps {
    fn of(family: &Family<Labels, Counter>) -> Self {
        let counter = |outcome| family.get_or_create(&[("outcome", outcome)]).clone();
        Self {
            found: counter("found"),
            unknown: counter("unknown"),
            denied: counter("denied"),
            unavailable: counter("unavailable"),
            busy: counter("busy"),
        }
    }
}
