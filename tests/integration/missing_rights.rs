//! A right to write to a topic that is missing for a while costs no task; one that stays missing does, as late as a missing topic.

use std::time::Duration;

use rdkafka::mocking::MockCluster;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use serde_json::json;

use crate::support::{Cluster, Node, eventually};

const DEADLINE: Duration = Duration::from_secs(60);
const TOPIC: &str = "orders";
const DENIED: RDKafkaRespErr = RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;

type Mock = MockCluster<'static, rdkafka::producer::DefaultProducerContext>;

/// A broker that refuses the next `refusals` requests that bring records, and says in metadata that all is well.
fn mock(refusals: usize) -> Mock {
    let mock = Mock::new(1).unwrap();
    mock.create_topic(TOPIC, 1, 1).unwrap();
    mock.request_errors(RDKafkaApiKey::Produce, &vec![DENIED; refusals]);
    mock
}

/// It looks at a topic each second.
async fn node(cluster: &Cluster, mock: &Mock, denial_max: &str) -> Node {
    let servers = mock.bootstrap_servers();
    let arguments = ["--database-url", &cluster.database.url, "--cluster", &cluster.name, "--kafka", &servers];
    let more = ["--publish-deadline", "2s", "--topic-denial-max", denial_max];
    let mut node = cluster.spawn_bare(&[arguments.as_slice(), &more].concat());
    node.wait_ready().await;
    node
}

#[tokio::test(flavor = "multi_thread")]
async fn a_right_that_is_missing_for_a_while_makes_no_dead_letter() {
    let (cluster, mock) = (Cluster::start("right-back").await, mock(3));
    let node = node(&cluster, &mock, "1h").await;
    node.api().submit(&json!({ "topic": TOPIC, "delay": "1s", "payload_text": "x" })).await;
    eventually("its topic is parked, and why", DEADLINE, async || {
        let parked = node.api().cluster().await["parked_topics"].clone();
        parked[0]["topic"] == TOPIC && parked[0]["reason"].as_str().is_some_and(|reason| reason.contains("authorization"))
    })
    .await;
    assert!(node.log().contains("may not write to the topic"), "{}", node.log_tail());
    cluster.wait_final(1, DEADLINE).await;
    assert_eq!(cluster.count("select count(*) from dead_letter").await, 0);
    assert_eq!(cluster.count("select count(*) from execlog where state = 'published'").await, 1);
    assert_eq!(cluster.count("select count(*) from execlog where state = 'deferred'").await, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_right_that_stays_missing_makes_dead_letters_as_late_as_a_missing_topic() {
    let (cluster, mock) = (Cluster::start("right-gone").await, mock(1_000));
    let node = node(&cluster, &mock, "6s").await;
    for _ in 0..20 {
        node.api().submit(&json!({ "topic": TOPIC, "delay": "1s", "payload_text": "x" })).await;
    }
    cluster.wait_final(20, DEADLINE).await;
    let late =
        "select count(*) from dead_letter where reason like '%authorization%' and dead_at > punctual_time(id) + interval '6 s'";
    assert_eq!(cluster.count(late).await, 20);
}
