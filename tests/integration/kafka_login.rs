//! Nodes that log in to Kafka with tokens (OAUTHBEARER).

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;

use crate::intake_topics::Intake;
use crate::support::stack::Secure;
use crate::support::token_server::{CLIENT, SECRET, TokenServer};
use crate::support::{Cluster, Node, OwnStack, Wishes, eventually};

const DEADLINE: Duration = Duration::from_secs(90);
const WARNED: &str = "cannot get a token for the login to Kafka";
const LOST: &str = "not ready any more";
const MISSING: &str = "punctual_kafka_token_missing";

/// Writes the properties of a login with tokens.
fn write(folder: &Path, secure: &Secure, server: &TokenServer, secret: &str) -> PathBuf {
    let properties = [
        ("security.protocol", "SASL_SSL"),
        ("ssl.ca.location", &secure.ca),
        ("sasl.mechanism", "OAUTHBEARER"),
        ("sasl.oauthbearer.method", "oidc"),
        ("sasl.oauthbearer.token.endpoint.url", &server.url()),
        ("sasl.oauthbearer.client.id", CLIENT),
        ("sasl.oauthbearer.client.secret", secret),
        ("https.ca.location", &secure.ca),
    ];
    let file = folder.join("kafka.properties");
    let lines = properties.map(|(name, value)| format!("{name}={value}"));
    std::fs::write(&file, lines.join("\n")).unwrap();
    file
}

/// Starts a node that reaches Kafka with tokens alone.
fn spawn(cluster: &Cluster, secure: &Secure, file: &Path, more: &[&str]) -> Node {
    let mut words = vec!["--database-url", &cluster.database.url, "--cluster", &cluster.name];
    words.extend(["--kafka", &secure.kafka_oauth]);
    words.extend(["--kafka-properties-file", file.to_str().unwrap()]);
    words.extend(more);
    cluster.spawn_bare(&words)
}

async fn is_not_ready_because(node: &Node, reason: &str) -> bool {
    let answer = node.api().get("/readyz").await;
    answer.status == 503
        && answer.text.contains("\"what\":\"kafka\"")
        && answer.text.contains(reason)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_logs_in_with_tokens_and_goes_on_with_one_while_their_server_is_away() {
    let own = OwnStack::start_secure("kafka-login").await;
    let secure = own.secure.clone().unwrap();
    let mut server = TokenServer::start(&secure, Duration::from_secs(20)).await;
    let wishes = Wishes { has_etcd: false, ..Wishes::default() };
    let cluster = Cluster::at(&own.stack, "kafka-login", wishes).await;
    let intake = Intake::open(&cluster).await;
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let rejected = cluster.consumer(&intake.rejected_topic());
    let file = write(cluster.folder(), &secure, &server, SECRET);
    let mut node = spawn(&cluster, &secure, &file, &["--intake-topic", &intake.topic]);
    node.wait_ready().await;
    let submit = async |count: usize| {
        let task = json!({ "topic": topic, "delay": 0, "payload": count });
        node.api().submit_all(&[task]).await;
        consumer.wait_count(count, DEADLINE).await;
    };
    submit(1).await;
    // The readers and writers of intake topics log in, too.
    let soon = [("punctual-topic", topic.as_str()), ("punctual-delay", "1s")];
    intake.append(0, Some("2"), None, &soon).await;
    intake.append(1, Some("no topic"), None, &[]).await;
    consumer.wait_count(2, DEADLINE).await;
    rejected.wait_count(1, DEADLINE).await;

    // A connection ends with its token. Its client has another one by then.
    let losses = "punctual_kafka_contact_losses_total";
    let (issued_count, lost_count) = (server.issued_count(), node.api().metric(losses).await);
    eventually("all tokens are renewed", DEADLINE, async || {
        server.issued_count() >= 2 * issued_count
    })
    .await;
    submit(3).await;
    assert_eq!(node.api().metric(losses).await, lost_count, "{}", node.log_tail());
    assert_eq!(node.api().metric(MISSING).await, 0.0);

    server.go_away();
    submit(4).await;
    eventually("the missing token is seen", DEADLINE, async || {
        node.api().metric(MISSING).await == 1.0
    })
    .await;
    eventually("the tokens run out", DEADLINE, async || {
        is_not_ready_because(&node, "no token for the login to Kafka: ").await
            && is_not_ready_because(&node, &server.url()).await
    })
    .await;
    eventually("the log says so", DEADLINE, async || node.log().contains(LOST)).await;
    let log = node.log();
    let [warned, lost] = [WARNED, LOST]
        .map(|text| log.find(text).unwrap_or_else(|| panic!("{text}: {}", node.log_tail())));
    assert!(warned < lost, "the log says so while the tokens last: {}", node.log_tail());

    server.come_back().await;
    eventually("the node is ready again", DEADLINE, async || node.api().is_ready().await).await;
    submit(5).await;
    assert_eq!(node.api().metric(MISSING).await, 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_with_a_wrong_secret_is_refused_with_the_reason_of_the_server() {
    let own = OwnStack::start_secure("kafka-secret").await;
    let secure = own.secure.clone().unwrap();
    let server = TokenServer::start(&secure, Duration::from_secs(20)).await;
    let wishes = Wishes { has_etcd: false, ..Wishes::default() };
    let cluster = Cluster::at(&own.stack, "kafka-secret", wishes).await;
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let file = write(cluster.folder(), &secure, &server, "wrong-horse");
    let mut node = spawn(&cluster, &secure, &file, &[]);
    node.wait_listening().await;
    eventually("it says why it cannot log in", DEADLINE, async || {
        is_not_ready_because(&node, "no token for the login to Kafka: ").await
            && is_not_ready_because(&node, "invalid_client").await
    })
    .await;
    let log = node.log();
    assert!(log.contains("cannot get a token") && log.contains("invalid_client"), "{log}");

    // The right secret is read without a restart.
    write(cluster.folder(), &secure, &server, SECRET);
    eventually("the node is ready", DEADLINE, async || node.api().is_ready().await).await;
    node.api().submit_all(&[json!({ "topic": topic, "delay": 0, "payload": 1 })]).await;
    consumer.wait_count(1, DEADLINE).await;

    // A server that never answers does not hold up the end of a node.
    server.fall_silent();
    eventually("it is asked for a token", DEADLINE, async || server.unanswered_count() > 0).await;
    node.terminate();
    let status = node.wait_exit(DEADLINE).await;
    assert!(status.success(), "{status}: {}", node.log_tail());
    for secret in ["wrong-horse", SECRET] {
        assert!(!node.log().contains(secret), "{}", node.log_tail());
    }
}
