//! The passwords of a node at its servers change while it runs.

use std::time::Duration;

use serde_json::json;

use crate::support::{Cluster, OwnStack, Wishes, eventually};

const DEADLINE: Duration = Duration::from_secs(90);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_of_kafka_changes_without_a_restart() {
    let own = OwnStack::start_secure("kafka-password").await;
    let secure = own.secure.clone().unwrap();
    let wishes = Wishes { has_etcd: false, ..Wishes::default() };
    let cluster = Cluster::at(&own.stack, "kafka-password", wishes).await;
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let file = cluster.folder().join("kafka.properties");
    let write = |password: &str| {
        let properties = [
            ("security.protocol", "SASL_SSL"),
            ("sasl.mechanism", "SCRAM-SHA-256"),
            ("sasl.username", "punctual"),
            ("sasl.password", password),
            ("ssl.ca.location", &secure.ca),
        ];
        let lines = properties.map(|(name, value)| format!("{name}={value}"));
        std::fs::write(&file, lines.join("\n")).unwrap();
    };
    write("punctual");
    let mut words = vec!["--database-url", &cluster.database.url];
    words.extend(["--kafka", &secure.kafka_sasl_ssl, "--cluster", &cluster.name]);
    words.extend(["--kafka-properties-file", file.to_str().unwrap()]);
    let mut node = cluster.spawn_bare(&words);
    node.wait_ready().await;
    let submit = async |count: usize| {
        let task = json!({ "topic": topic, "delay": 0, "payload": count });
        node.api().submit_all(&[task]).await;
        consumer.wait_count(count, DEADLINE).await;
    };
    submit(1).await;
    // The connections live on with the old password. The idle producers are made anew.
    own.kafka_password("hunter2").await;
    submit(2).await;
    write("hunter2");
    eventually("the new password is read", DEADLINE, async || {
        let log = node.log();
        log.contains("read the changed credentials") && log.contains("its properties changed")
    })
    .await;
    submit(3).await;
    // Afterwards all clients log in with it.
    own.stop("kafka").await;
    own.start_again("kafka").await;
    submit(4).await;
    assert!(node.api().metric("punctual_kafka_producers_replaced_total").await > 0.0);
    assert!(!node.log().contains("hunter2"), "{}", node.log_tail());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_of_postgres_changes_without_a_restart() {
    let own = OwnStack::start_secure("password").await;
    let secure = own.secure.clone().unwrap();
    let wishes = Wishes { has_etcd: false, ..Wishes::default() };
    let cluster = Cluster::at(&own.stack, "password", wishes).await;
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let (_, place) = secure.database_url.split_once('@').unwrap();
    let (address, query) = (place.split('/').next().unwrap(), place.split_once('?').unwrap().1);
    let file = cluster.folder().join("database-url");
    let write = |password: &str| {
        let database = &cluster.database.name;
        let url = format!("postgres://rotating:{password}@{address}/{database}?{query}");
        std::fs::write(&file, url).unwrap();
    };
    let sql = async |text: &'static str| sqlx::raw_sql(text).execute(&cluster.sql).await.unwrap();
    sql("create role rotating superuser login password 'first'").await;
    write("first");
    let mut words = vec!["--database-url-file", file.to_str().unwrap()];
    words.extend(["--kafka", &cluster.stack.kafka, "--cluster", &cluster.name]);
    let mut node = cluster.spawn_bare(&words);
    node.wait_ready().await;
    let submit = async |count: usize| {
        let task = json!({ "topic": topic, "delay": 0, "payload": count });
        eventually("a task is accepted", DEADLINE, async || {
            node.api().post("/v1/tasks", task.to_string()).await.status == 201
        })
        .await;
        consumer.wait_count(count, DEADLINE).await;
    };
    submit(1).await;

    // A file of another database, or with nonsense, changes nothing.
    let failures = "punctual_credentials_reload_failures_total";
    std::fs::write(&file, "postgres://rotating:first@elsewhere/punctual").unwrap();
    eventually("it is refused", DEADLINE, async || node.api().metric(failures).await > 0.0).await;
    submit(2).await;

    sql("alter role rotating password 'second'").await;
    write("second");
    eventually("the new password is read", DEADLINE, async || {
        node.log().contains("read the changed credentials")
    })
    .await;
    sql("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'rotating'").await;
    submit(3).await;
    eventually("the node is ready", DEADLINE, async || {
        node.api().get("/readyz").await.status == 200
    })
    .await;
    for secret in ["first@", "second@"] {
        assert!(!node.log().contains(secret), "{}", node.log_tail());
    }
}
