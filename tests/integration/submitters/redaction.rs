//! Callers without `read-payload` do not come to see records by other ways.

use reqwest::Method;
use serde_json::json;

use crate::support::Cluster;
use crate::tokens::AuthFile;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neither_a_trigger_nor_a_dead_topic_shows_records_to_a_caller_who_may_not_read_them() {
    let cluster = Cluster::start("redaction").await;
    let (topic, own) = (cluster.topic("orders").await, cluster.topic("own").await);
    let file = AuthFile::new(
        "redaction",
        "version = 1\n[anonymous]\n\
         allow = [ { actions = ['submit', 'read', 'schedule', 'operate'], topics = ['*'] } ]\n",
    );
    let node = cluster.node_with(&["--auth-file", file.path()]).await;
    let api = node.api();
    let path = format!("/v1/schedules/{topic}/nightly");
    let schedule = json!({ "cron": "0 0 1 1 *", "time_zone": "UTC", "key": "k", "payload": 1 });
    let stored = api.send_with(Method::PUT, &path, &[], Some(schedule)).await;
    assert_eq!(stored.status, 201, "{}", stored.text);
    let triggered = api.post(&format!("{path}/trigger"), "").await;
    assert_eq!(triggered.status, 201, "{}", triggered.text);
    let task = triggered.json();
    assert_eq!((&task["redacted"], task.get("key")), (&json!(true), None), "{task}");

    let path = format!("/v1/topics/{topic}/policy");
    let policy = json!({ "ttr": "1s", "retry": { "attempts_max": 1, "dead_topic": own } });
    let refused = api.send_with(Method::PUT, &path, &[], Some(policy)).await;
    assert_eq!((refused.status, &refused.json()["action"]), (403, &json!("read-payload")));
}
