//! Tasks with the same key and due time leave in the order of their submits. Ids that are taken are
//! drawn again.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Api, Cluster, Consumer, now_ms};

const DEADLINE: Duration = Duration::from_secs(120);

fn task(topic: &str, key: &str, due_at: i64, number: usize) -> Value {
    json!({ "topic": topic, "key": key, "due_at": due_at, "payload": number })
}

fn named(topic: &str, key: &str, due_at: i64, number: usize) -> Value {
    json!({
        "topic": topic,
        "key": key,
        "due_at": due_at,
        "payload": number,
        "name": format!("{key} {number}"),
    })
}

/// One after the other; every third one has a name.
async fn submit_in_turn(api: &Api, topic: &str, key: &str, due_at: i64, count: usize) {
    for number in 0..count {
        let task = if number % 3 == 2 {
            named(topic, key, due_at, number)
        } else {
            task(topic, key, due_at, number)
        };
        api.submit(&task).await;
    }
}

/// Returns the numbers of a key's records, in the order of the partition.
async fn numbers(consumer: &Consumer, key: &str, count: usize) -> Vec<usize> {
    let is_of_key =
        |record: &&crate::support::Record| record.key.as_deref() == Some(key.as_bytes());
    let records = consumer
        .wait_for(&format!("{count} records of {key}"), DEADLINE, |records| {
            records.iter().filter(is_of_key).count() >= count
        })
        .await;
    let mut records: Vec<_> = records.iter().filter(is_of_key).collect();
    records.sort_by_key(|record| (record.partition, record.offset));
    records
        .iter()
        .map(|record| serde_json::from_slice(record.payload.as_deref().unwrap()).unwrap())
        .collect()
}

fn inversions(numbers: &[usize]) -> usize {
    numbers.windows(2).filter(|pair| pair[0] > pair[1]).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_of_one_key_that_are_due_at_the_same_time_leave_in_the_order_of_their_submits() {
    let cluster = Cluster::start("ties").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let consumer = cluster.consumer(&topic);
    let api = node.api();
    api.learn(&topic).await;
    let due_at = now_ms() + 20_000;
    // In several requests, with and without names, beside one bulk of names and others, and all at
    // the same time as other keys.
    let bulk: Vec<Value> = (0..1_000)
        .map(|number| {
            if number % 2 == 0 {
                task(&topic, "bulk", due_at, number)
            } else {
                named(&topic, "bulk", due_at, number)
            }
        })
        .collect();
    let far: Vec<Value> = (0..1_500)
        .map(|number| task(&topic, &format!("key {}", number % 50), due_at, number))
        .collect();
    tokio::join!(
        submit_in_turn(api, &topic, "single", due_at, 200),
        api.submit_all(&bulk),
        api.submit_all(&far)
    );
    assert!(now_ms() < due_at, "this machine was too slow for the test");
    // Overdue, and within the window: claimed on insert.
    submit_in_turn(api, &topic, "overdue", due_at - 3_600_000, 60).await;
    let soon_at = now_ms() + 150;
    let soon: Vec<Value> = (0..300).map(|number| task(&topic, "soon", soon_at, number)).collect();
    api.submit_all(&soon).await;
    for (key, count) in
        [("single", 200), ("bulk", 1_000), ("overdue", 60), ("soon", 300), ("key 7", 30)]
    {
        let numbers = numbers(&consumer, key, count).await;
        assert_eq!((numbers.len(), inversions(&numbers)), (count, 0), "{key}: {numbers:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn submits_through_two_nodes_in_turn_keep_their_order_as_far_as_the_nodes_know_the_time() {
    let cluster = Cluster::start("turns").await;
    let topic = cluster.topic("orders").await;
    let (first, second) = tokio::join!(cluster.node(), cluster.node());
    let consumer = cluster.consumer(&topic);
    let due_at = now_ms() + 20_000;
    for number in 0..200 {
        let node = [&first, &second][number % 2];
        node.api().submit(&task(&topic, "turns", due_at, number)).await;
    }
    assert!(now_ms() < due_at, "this machine was too slow for the test");
    let numbers = numbers(&consumer, "turns", 200).await;
    // By chance, half of them would be in order. A node on a busy machine may know the time only
    // within some milliseconds.
    assert!(inversions(&numbers) <= 10, "{} inversions: {numbers:?}", inversions(&numbers));
}

/// Refuses the first row inserted into a table, as if another task had the id.
async fn refuse_once(cluster: &Cluster, table: &str) {
    let text = format!(
        "create sequence if not exists rows_of_{table};
        select setval('rows_of_{table}', 1, false);
        create or replace function refuse_first_of_{table}() returns trigger language plpgsql as $$
          begin
            if nextval('rows_of_{table}') = 1 then
              raise exception 'an id is taken' using errcode = 'unique_violation';
            end if;
            return new;
          end $$;
        create or replace trigger refuse_first before insert on {table}
          for each row execute function refuse_first_of_{table}()"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(text)).execute(&cluster.sql).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_that_another_task_has_is_drawn_anew_and_is_nobodys_error() {
    let cluster = Cluster::start("ids").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let (api, due_at) = (node.api(), now_ms() + 3_600_000);
    for (table, due_at) in [("task", due_at), ("task_far", due_at + 7 * 86_400_000)] {
        refuse_once(&cluster, table).await;
        api.submit(&task(&topic, "one", due_at, 0)).await;
        refuse_once(&cluster, table).await;
        api.submit(&named(&topic, table, due_at, 0)).await;
        refuse_once(&cluster, table).await;
        let both: Vec<Value> = (1..50).map(|number| task(&topic, "one", due_at, number)).collect();
        api.submit_all(&both).await;
        refuse_once(&cluster, table).await;
        let path = format!("/v1/topics/{topic}/tasks/{table}%200");
        let put = json!({ "due_at": due_at, "payload": 1 }).to_string();
        let answer = api
            .send(reqwest::Method::PUT, &path, Some(("application/json", put.into_bytes())))
            .await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        let refused: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(format!(
            "select last_value from rows_of_{table}"
        )))
        .fetch_one(&cluster.sql)
        .await
        .unwrap();
        assert_eq!(refused, 2, "the first row of the PUT was refused");
    }
    assert_eq!(cluster.count("select count(*) from task").await, 51);
    assert_eq!(cluster.count("select count(*) from task_far").await, 51);
}
