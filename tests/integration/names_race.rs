//! Names under a race: many clients replace and cancel the same names.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::json;
use uuid::Uuid;

use crate::names::ByName as _;
use crate::support::api::Task;
use crate::support::{Answer, Api, Cluster, now_ms};

const DEADLINE: Duration = Duration::from_secs(120);
const CLIENTS: usize = 32;
const NAMES: usize = 100;
/// How long the race lasts; on a busy machine until enough came about, too, and at most as long as
/// the second says.
const RACE: Duration = Duration::from_secs(8);
const RACE_MAX: Duration = Duration::from_secs(90);
/// Results without which there was no race: records, and each verdict.
const RECORDS_MIN: usize = 2000;
const VERDICTS_MIN: usize = 200;

/// The answers to the clients.
#[derive(Debug, Default)]
struct Told {
    accepted: HashMap<Uuid, i64>,
    replaced_count: usize,
    put_too_late: usize,
    cancelled: HashSet<Uuid>,
    cancel_too_late: HashSet<Uuid>,
    not_found: usize,
}

impl Told {
    fn verdicts(&self) -> [usize; 4] {
        [self.replaced_count, self.put_too_late, self.cancelled.len(), self.cancel_too_late.len()]
    }

    /// Tasks that were neither replaced nor cancelled must become records.
    fn is_enough(&self) -> bool {
        let gone = self.replaced_count + self.cancelled.len();
        self.accepted.len() >= gone + RECORDS_MIN
            && self.verdicts().iter().all(|count| *count >= VERDICTS_MIN)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_all_that_is_put_under_a_name_each_is_published_once_or_cancelled() {
    let cluster = Cluster::start("race").await;
    let topic = cluster.topic("orders").await;
    let (first, second) = tokio::join!(cluster.node(), cluster.node());
    let consumer = cluster.consumer(&topic);
    let told = Arc::new(Mutex::new(Told::default()));
    let began = Instant::now();
    let clients = (0..CLIENTS).map(|number| {
        let api = if number % 2 == 0 { first.api().clone() } else { second.api().clone() };
        tokio::spawn(race(api, topic.clone(), Arc::clone(&told), began))
    });
    for client in clients.collect::<Vec<_>>() {
        client.await.unwrap();
    }
    let took = began.elapsed();
    let told = Arc::into_inner(told).unwrap().into_inner().unwrap();
    cluster.wait_final(told.accepted.len(), DEADLINE).await;
    let lines = cluster.execlog().await;
    let finals: HashMap<Uuid, &str> = lines
        .iter()
        .filter(|line| line.is_final())
        .map(|line| (line.id, line.state.as_str()))
        .collect();
    assert_eq!(
        lines.iter().filter(|line| line.is_final()).count(),
        finals.len(),
        "one final line for each task"
    );
    assert_eq!(
        finals.keys().collect::<HashSet<_>>(),
        told.accepted.keys().collect::<HashSet<_>>(),
        "nobody else's tasks"
    );
    let cancelled: HashSet<Uuid> =
        finals.iter().filter(|(_, state)| **state == "cancelled").map(|(id, _)| *id).collect();
    let published: HashSet<Uuid> =
        finals.iter().filter(|(_, state)| **state == "published").map(|(id, _)| *id).collect();
    assert_eq!(cancelled.len() + published.len(), finals.len());
    let records = consumer.wait_count(published.len(), DEADLINE).await;
    assert_eq!(records.len(), published.len(), "one record for each");
    assert_eq!(records.iter().map(|record| record.task_id()).collect::<HashSet<_>>(), published);
    for record in &records {
        assert!(record.timestamp >= told.accepted[&record.task_id()], "early: {record:?}");
    }
    // The answers are true: each replacement and each cancel removed one task, and nothing else
    // did.
    assert!(told.cancelled.is_subset(&cancelled), "said to be cancelled");
    assert!(told.cancel_too_late.is_subset(&published), "said to be too late");
    let by_put = cancelled.difference(&told.cancelled).count();
    eprintln!(
        "accepted {} in {} s, records {}, replaced {}, put too late {}, cancelled {}, cancel too \
         late {}, not found {}",
        told.accepted.len(),
        took.as_secs(),
        records.len(),
        told.replaced_count,
        told.put_too_late,
        told.cancelled.len(),
        told.cancel_too_late.len(),
        told.not_found
    );
    assert!(
        by_put <= told.replaced_count && told.replaced_count <= cancelled.len(),
        "{by_put} of {}",
        told.replaced_count
    );
    assert_eq!(
        cluster.count("select count(*) from task_name").await,
        i64::try_from(NAMES).unwrap()
    );
    let (record_count, verdicts) = (records.len(), told.verdicts());
    assert!(record_count >= RECORDS_MIN, "no race: {record_count} records in {RACE_MAX:?}");
    assert!(verdicts.iter().all(|count| *count >= VERDICTS_MIN), "too one-sided: {verdicts:?}");
}

/// The node had no time, and says that nothing was done.
fn is_without_effect(answer: &Answer) -> bool {
    answer.status == 503 && answer.json()["type"] != "urn:punctual:problem:outcome-unknown"
}

async fn race(api: Api, topic: String, told: Arc<Mutex<Told>>, began: Instant) {
    let mut last = 0;
    while began.elapsed() < RACE
        || (began.elapsed() < RACE_MAX && !told.lock().unwrap().is_enough())
    {
        let is_put = rand::random_range(0..4) < 3;
        // A cancel is for a random name, or for the name of the last PUT, which may still be
        // pending.
        let number = if is_put || rand::random_range(0..3) == 0 {
            rand::random_range(0..NAMES)
        } else {
            last
        };
        last = number;
        let name = format!("n{number}");
        if !is_put {
            let answer = api.by_name(Method::DELETE, &topic, &name, None).await;
            if is_without_effect(&answer) {
                continue;
            }
            let task = answer.json()["task"]["id"].as_str().map(|id| id.parse().unwrap());
            let mut told = told.lock().unwrap();
            match answer.verdict().as_str() {
                "cancelled" => drop(told.cancelled.insert(task.unwrap())),
                "too_late" => drop(told.cancel_too_late.insert(task.unwrap())),
                "not_found" => told.not_found += 1,
                other => panic!(
                    "a cancel by name is about the task that the name stands for now: {other}"
                ),
            }
        } else {
            // Mostly within the window, so many tasks are claimed before the next request for their
            // name. Otherwise nearly all would be replaced.
            let ahead = if rand::random_range(0..3) > 0 {
                rand::random_range(50..100)
            } else {
                rand::random_range(250..500)
            };
            let due_at = now_ms() + ahead;
            let answer =
                api.put(&topic, &name, json!({ "due_at": due_at, "payload_text": "x" })).await;
            if is_without_effect(&answer) {
                continue;
            }
            let mut told = told.lock().unwrap();
            match answer.status {
                201 | 200 => {
                    let task = Task::new(answer.json());
                    told.accepted.insert(task.id, task.due_at);
                    told.replaced_count += usize::from(answer.status == 200);
                }
                409 => told.put_too_late += 1,
                other => panic!("{other}: {}", answer.text),
            }
        }
    }
}
