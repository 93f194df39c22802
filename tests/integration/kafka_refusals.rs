//! Errors that a real broker gives only with a special setup, from librdkafka's mock cluster.

#![expect(clippy::unwrap_used, reason = "these are tests")]

use std::time::Duration;

use punctual::domain::{Failure, TopicName};
use punctual::kafka::{DeliveryFailure, DeliveryOutcome, Mode, SendError};
use rdkafka::mocking::MockCluster;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

use crate::kafka_support::{Edge, Is as _, plain_batch, settings, stamp};

type Mock = MockCluster<'static, rdkafka::producer::DefaultProducerContext>;

fn mock(topic: &TopicName) -> Mock {
    let mock = Mock::new(1).unwrap();
    mock.create_topic(topic.as_str(), 1, 1).unwrap();
    mock
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_we_may_not_write_to_condemns_no_record_at_once() {
    let topic = TopicName::new("forbidden").unwrap();
    let mock = mock(&topic);
    let mut edge = Edge::new(&settings(&mock.bootstrap_servers(), &[]), Mode::Together);
    assert_eq!(edge.producer.preload(vec![topic.clone()], Duration::from_secs(30)).await, 1);
    // The first attempt may have been appended: its acknowledgement was lost.
    mock.request_errors(
        RDKafkaApiKey::Produce,
        &[
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT,
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED,
        ],
    );
    // One record: once the error is known, the next record would be refused at the handover.
    edge.send(&plain_batch(&topic, 1, 10));
    let outcomes = edge.outcomes(1).await;
    assert!(
        outcomes.values().all(|outcome| outcome.is(Failure::Forbidden) && outcome.is_maybe_sent()),
        "{outcomes:?}"
    );
    assert_eq!(edge.producer.fatal(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_broker_cannot_take_at_present_is_tried_until_it_can() {
    let topic = TopicName::new("flapping").unwrap();
    let mock = mock(&topic);
    let mut edge = Edge::new(&settings(&mock.bootstrap_servers(), &[]), Mode::Together);
    edge.producer.preload(vec![topic.clone()], Duration::from_secs(30)).await;
    mock.request_errors(
        RDKafkaApiKey::Produce,
        &[
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__TRANSPORT,
        ],
    );
    edge.send(&plain_batch(&topic, 3, 10));
    let outcomes = edge.outcomes(3).await;
    assert!(
        outcomes.values().all(|outcome| matches!(outcome, DeliveryOutcome::Acknowledged(_))),
        "{outcomes:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_producer_that_may_not_be_idempotent_is_finished_and_its_records_are_not_sent() {
    let topic = TopicName::new("fatal").unwrap();
    let mock = mock(&topic);
    mock.request_errors(
        RDKafkaApiKey::InitProducerId,
        &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED],
    );
    let mut edge = Edge::new(&settings(&mock.bootstrap_servers(), &[]), Mode::Together);
    let batch = plain_batch(&topic, 1, 10);
    match edge.producer.send(0, topic.as_str(), &batch.task(0), stamp()) {
        Ok(()) => {
            let outcome = edge.outcomes(1).await[&0];
            assert!(
                !matches!(outcome, DeliveryOutcome::Acknowledged(_))
                    && !outcome.is(Failure::RefusedForGood),
                "{outcome:?}"
            );
        }
        Err(error) => assert!(
            matches!(error, SendError::Failed(DeliveryFailure { failure: Failure::NotSent, .. })),
            "{error:?}"
        ),
    }
    assert!(edge.producer.fatal().is_some());
    let refused = edge.producer.send(1, topic.as_str(), &batch.task(0), stamp());
    assert!(
        matches!(
            refused,
            Err(SendError::Failed(DeliveryFailure { failure: Failure::NotSent, .. }))
        ),
        "{refused:?}"
    );
}
