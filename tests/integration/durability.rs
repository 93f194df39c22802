//! Changes that were answered are on disk, whatever the `synchronous_commit` of the database or the
//! role.

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::Method;
use serde_json::json;

use crate::support::{Cluster, eventually};

const DEADLINE: Duration = Duration::from_secs(120);

/// Notes the commit mode of each statement that changes a table of the cluster.
const WATCH: &str = "create table seen (what text, commits text, primary key (what, commits));
create function note_commit() returns trigger language plpgsql as $$ begin
  insert into seen values (lower(tg_op) || ' ' || tg_table_name,
    current_setting('synchronous_commit')) on conflict do nothing;
  return null;
end $$;
do $$ declare name text; begin
  foreach name in array '{task, task_far, task_name, execlog_batch,
    execlog_payload, execlog_cancelled, heartbeat}'::text[] loop
    execute format('create trigger note_commit after insert or update or delete on %I
      for each statement execute function note_commit()', name);
  end loop;
end $$;";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_commit_but_that_of_a_settle_waits_for_the_disk() {
    let cluster = Cluster::start("durable").await;
    let database = &cluster.database.name;
    for statement in [&format!("alter database \"{database}\" set synchronous_commit = off"), WATCH]
    {
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement.to_owned()))
            .execute(&cluster.sql)
            .await
            .unwrap();
    }
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let (api, consumer) = (node.api(), cluster.consumer(&topic));
    // A claim on insert, a claim at the watermark, a far task, a name with a replacement, a cancel,
    // and a bulk cancel.
    for delay in ["0ms", "1500ms", "8760h", "1h", "2h"] {
        let task =
            api.submit(&json!({ "topic": topic, "delay": delay, "payload_text": "x" })).await;
        if delay == "1h" {
            assert_eq!(api.verdict(task.id).await, "cancelled");
        }
    }
    for (delay, status) in [("1h", 201), ("2h", 200)] {
        let task = json!({ "delay": delay, "payload_text": "x" }).to_string().into_bytes();
        let answer = api
            .send(
                Method::PUT,
                &format!("/v1/topics/{topic}/tasks/n"),
                Some(("application/json", task)),
            )
            .await;
        assert_eq!(answer.status, status, "{}", answer.text);
    }
    consumer.wait_count(2, DEADLINE).await;
    let answer = api.post("/v1/tasks/cancel", json!({ "topic": topic }).to_string()).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    eventually("both are settled", DEADLINE, async || {
        cluster.count("select count(*) from execlog where state = 'published'").await == 2
    })
    .await;

    let seen: Vec<(String, String)> =
        sqlx::query_as("select what, commits from seen").fetch_all(&cluster.sql).await.unwrap();
    let mut commits: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (what, how) in &seen {
        commits.entry(what).or_default().push(how);
    }
    for what in [
        "insert task",
        "delete task",
        "insert task_far",
        "delete task_far",
        "insert task_name",
        "update task_name",
        "insert execlog_batch",
        "insert execlog_payload",
        "insert execlog_cancelled",
        "update heartbeat",
    ] {
        assert_eq!(
            commits.get(what).map(Vec::as_slice),
            Some(["on"].as_slice()),
            "{what}: {commits:?}"
        );
    }
    // An adoption waits for the disk, too, here one that found no batches.
    assert!(
        commits["update execlog_batch"].contains(&"off"),
        "a settle waits for nobody: {commits:?}"
    );
}
