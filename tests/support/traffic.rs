//! Tasks submitted at a steady rate while a test does something else.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::api::{Api, Task};
use super::ledger::{Ledger, SERIAL_HEADER};
use super::wait::now_ms;

const TICK: Duration = Duration::from_millis(40);

/// Submits until stopped, to any node that answers.
#[derive(Debug)]
pub struct Traffic {
    stopping: CancellationToken,
    running: JoinHandle<()>,
}

/// The tasks to submit.
#[derive(Clone, Debug)]
pub struct Plan {
    pub topic: String,
    pub tasks_per_second: usize,
    /// How far ahead tasks are due, in milliseconds.
    pub ahead: Range<i64>,
}

impl Traffic {
    pub fn start(plan: Plan, ledger: &Arc<Ledger>, nodes: &[Api]) -> Self {
        let stopping = CancellationToken::new();
        let running =
            tokio::spawn(submit(plan, Arc::clone(ledger), nodes.to_vec(), stopping.clone()));
        Self { stopping, running }
    }

    /// Stops submitting. Returns when all requests in progress have been answered.
    pub async fn stop(self) {
        self.stopping.cancel();
        self.running.await.expect("the traffic goes on until it is stopped");
    }
}

async fn submit(plan: Plan, ledger: Arc<Ledger>, nodes: Vec<Api>, stopping: CancellationToken) {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    let per_tick = (plan.tasks_per_second * 40).div_ceil(1000);
    let mut serial = 0_u64;
    let mut turn = 0_usize;
    while stopping.run_until_cancelled(ticks.tick()).await.is_some() {
        let tasks: Vec<Value> = (0..per_tick).map(|_| task(&plan, &mut serial)).collect();
        // A node that is down has stored no tasks, so the next one gets the same tasks.
        for _ in 0..nodes.len() {
            turn += 1;
            if submit_once(&nodes[turn % nodes.len()], &tasks, &ledger).await {
                break;
            }
        }
    }
}

fn task(plan: &Plan, serial: &mut u64) -> Value {
    *serial += 1;
    let due_at = now_ms() + rand::random_range(plan.ahead.clone());
    let text = format!("{} {serial}", plan.topic);
    json!({
        "topic": plan.topic,
        "due_at": due_at,
        "payload_text": text,
        "key": (*serial % 500).to_string(),
        "headers": { SERIAL_HEADER: text },
    })
}

/// Returns false when the node has certainly stored no tasks.
async fn submit_once(node: &Api, tasks: &[Value], ledger: &Ledger) -> bool {
    let body = json!({ "tasks": tasks }).to_string().into_bytes();
    let answer =
        node.try_send(Method::POST, "/v1/tasks/batch", Some(("application/json", body))).await;
    let results = match answer {
        Ok(answer) if answer.status == 200 => answer.json()["results"].as_array().unwrap().clone(),
        Ok(answer) => {
            assert!(matches!(answer.status, 429 | 503), "{}: {}", answer.status, answer.text);
            assert!(
                answer.header("retry-after").is_some(),
                "{} says when to try again",
                answer.status
            );
            Vec::new()
        }
        Err(error) if error.is_connect() => return false,
        Err(_lost) => Vec::new(),
    };
    for (index, submitted) in tasks.iter().enumerate() {
        let result = results.get(index).filter(|result| result["status"] == 201);
        match result {
            Some(result) => {
                ledger.accept(
                    &Task::new(result["task"].clone()),
                    submitted["payload_text"].as_str().map(str::as_bytes),
                );
            }
            None => ledger
                .lose_sight_of(submitted["headers"][SERIAL_HEADER].as_str().unwrap().to_owned()),
        }
    }
    true
}
