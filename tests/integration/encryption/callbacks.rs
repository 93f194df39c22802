//! The headers of callbacks are secrets: they are encrypted like records.

use serde_json::json;

use super::reseal::reseal;
use super::{DEADLINE, Keys, MARKER, put, tables_with};
use crate::callbacks::{OK, Service, flags_for, words};
use crate::support::{Api, Cluster, eventually};

async fn set(api: &Api, topic: &str, url: &str) {
    let headers = json!({ "authorization": format!("Bearer {MARKER}"), "x-tenant": "7" });
    let body = json!({ "url": url, "headers": headers });
    let shown = put(api, &format!("/v1/topics/{topic}/callback"), &body).await.json();
    assert_eq!(shown["header_names"], json!(["authorization", "x-tenant"]));
}

/// Submits a task, and waits until the service has finished it.
async fn finish_one(api: &Api, topic: &str) {
    let task = json!({ "topic": topic, "delay": 0, "payload": 1, "ttr": "60s" });
    let id = api.submit(&task).await.id;
    let is_finished = async || api.task(id).await.state == "finished";
    eventually("the service has finished a task", DEADLINE, is_finished).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_headers_of_a_callback_are_encrypted_for_its_url_alone() {
    let cluster = Cluster::start("sealed-callbacks").await;
    let [first, second] = [cluster.topic("first").await, cluster.topic("second").await];
    let service = Service::start(|_request| OK).await;
    let keys = Keys::new("sealed-callbacks", None, &[1]);
    let flags = flags_for(&cluster, &[&service]);
    let mut node = keys.node(&cluster, &words(&flags)).await;
    let api = &node.api().clone();

    // In the clear, and then encrypted in its place.
    set(api, &first, &service.url("/first")).await;
    assert_eq!(tables_with(&cluster, MARKER).await, ["topic_callback"]);
    keys.write(Some(1), &[1], &node).await;
    let (code, counted, said) = reseal(&cluster, keys.path(), &[]).await;
    assert_eq!(code, 0, "{counted} {said}");
    assert!(said.contains("topic_callback: 1 rows read, 1 stored again"), "{said}");
    // Encrypted from the beginning, and then with a new key.
    set(api, &second, &service.url("/second")).await;
    assert_eq!(tables_with(&cluster, MARKER).await, Vec::<String>::new());
    keys.write(Some(2), &[1, 2], &node).await;
    let (code, counted, said) = reseal(&cluster, keys.path(), &[]).await;
    assert_eq!(code, 0, "{counted} {said}");
    assert!(counted.contains("payload key 2: 2 records, current"), "{counted}");
    assert!(counted.contains("no record has payload key 1"), "{counted}");

    for topic in [&first, &second] {
        finish_one(api, topic).await;
    }
    for request in service.seen() {
        assert_eq!(request.headers["authorization"], format!("Bearer {MARKER}"));
        assert_eq!(request.headers["x-tenant"], "7");
    }

    // A node that was killed goes on with them.
    node.kill().await;
    let node = keys.node(&cluster, &words(&flags)).await;
    let api = node.api();
    finish_one(api, &second).await;
    assert_eq!(service.seen().last().unwrap().headers["authorization"], format!("Bearer {MARKER}"));

    // A writer in the table cannot send the headers elsewhere.
    sqlx::query("update topic_callback set url = $1 where topic = $2")
        .bind(service.url("/elsewhere"))
        .bind(&first)
        .execute(&cluster.sql)
        .await
        .unwrap();
    let is_noticed = async || node.log().contains("cannot decrypt the headers of a callback");
    eventually("the node notices it", DEADLINE, is_noticed).await;
    let task = json!({ "topic": first, "delay": 0, "payload": 1, "ttr": "60s" });
    let waiting = api.submit(&task).await.id;
    finish_one(api, &second).await;
    let is_awaiting = async || api.task(waiting).await.state == "awaiting";
    eventually("it waits for its consumer", DEADLINE, is_awaiting).await;
    assert!(service.seen().iter().all(|request| request.path != "/elsewhere"));

    // Without a current key they are stored in the clear again, and are still sent.
    set(api, &first, &service.url("/again")).await;
    keys.write(None, &[1, 2], &node).await;
    let (code, counted, said) = reseal(&cluster, keys.path(), &["--decrypt"]).await;
    assert_eq!(code, 0, "{counted} {said}");
    finish_one(api, &first).await;
    let is_of = |path: &str| service.seen().into_iter().filter(move |one| one.path == path).last();
    let last = is_of("/again").expect("the service was called");
    assert_eq!(last.headers["authorization"], format!("Bearer {MARKER}"));
}
