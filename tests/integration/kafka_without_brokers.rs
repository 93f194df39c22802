//! Clients of a broker that lists no brokers, as a starting broker may do. librdkafka then forgets
//! all that it knew, and never connects again (its issue 5301).

use std::time::Duration;

use punctual::domain::TopicName;
use punctual::domain::topic::group::ConsumerGroup;
use punctual::kafka::{EndsClient, GroupMember, IntakeReader, KafkaSettings, Stall};

use crate::kafka_support::settings;
use crate::support::eventually;
use crate::support::stub_broker::StubBroker;

/// A client without answers is replaced after up to 20 s (decision 0014).
const DEADLINE: Duration = Duration::from_secs(90);

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_have_forgotten_all_brokers_are_replaced() {
    let topic = TopicName::new("orders").unwrap();
    let broker = StubBroker::start(topic.as_str()).await;
    // A client that only waits asks for no brokers before the next refresh.
    let refresh = ("topic.metadata.refresh.interval.ms", "1000");
    let settings = settings(&broker.address.to_string(), &[refresh]);
    let ends_client = EndsClient::new(&settings);
    let asks = async || ends_client.ask(&topic, Vec::new()).await.is_ok();
    let group = ConsumerGroup::new("workers").unwrap();
    let own = KafkaSettings { client_id: "member".to_owned(), ..settings.clone() };
    let member = GroupMember::join(&own, &topic, &group).unwrap();
    let mut reader = IntakeReader::new(&settings, &topic).unwrap();
    eventually("the broker answers all clients", DEADLINE, async || {
        asks().await && reader.probe().await.is_ok() && broker.has_told("member")
    })
    .await;

    broker.restart_without_brokers();
    eventually("a question gets no answer", DEADLINE, async || !asks().await).await;
    let stalled = member.stalled(&ends_client);
    let found = tokio::time::timeout(DEADLINE, async {
        tokio::select! {
            stall = stalled => stall,
            record = member.next() => panic!("no record is there: {record:?}"),
        }
    });
    assert_eq!(found.await, Ok(Stall::Brokers));
    eventually("the reader of an intake is outdated", DEADLINE, async || {
        reader.serve();
        // There may still be an answer to another client.
        drop(reader.probe().await);
        reader.is_outdated(&settings)
    })
    .await;
    broker.list_itself();
    eventually("another client asks", DEADLINE, asks).await;
}
