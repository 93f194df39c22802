//! Callers of `pop`, each with one connection. They finish what they get.

use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::Deliveries;
use crate::bench::load::http::Http;
use crate::bench::load::intake::CallResult;
use crate::bench::load::outcome::{Outcome, finish_all};
use crate::bench::load::rest::{RestTarget, json, told};
use crate::bench::run::now;
use crate::clock;
use crate::domain::TopicName;

/// Time that a call waits for a task. The pollers end within it.
const WAIT: Duration = Duration::from_secs(2);
/// Pause after a failed call.
const RETRY_AFTER: Duration = Duration::from_millis(200);

/// Pollers that share a group.
#[derive(Clone, Debug)]
pub struct PollersPlan {
    pub topic: TopicName,
    pub group: String,
    pub pollers: usize,
    /// The most tasks of an answer.
    pub max: u16,
}

#[derive(Serialize)]
struct Pop<'a> {
    group: &'a str,
    wait: String,
    max: u16,
}

#[derive(Deserialize)]
struct Popped {
    tasks: Vec<PoppedTask>,
}

#[derive(Deserialize)]
struct PoppedTask {
    id: String,
    attempt: u16,
    published_at: String,
    key: Option<String>,
}

/// Starts the pollers. Each ends when `ending` is cancelled, with the reason of its first failed
/// call.
///
/// # Errors
/// Returns the reason as text when a URL of a node is wrong.
pub fn start(
    plan: &PollersPlan,
    rest: &RestTarget,
    deliveries: &Arc<Deliveries>,
    ending: &CancellationToken,
) -> Result<JoinSet<Option<String>>, String> {
    let mut pollers = JoinSet::new();
    for number in 0..plan.pollers {
        let http = rest.connection(number)?;
        let (plan, deliveries, ending) = (plan.clone(), Arc::clone(deliveries), ending.clone());
        pollers.spawn(async move { poll(http, &plan, &deliveries, &ending).await });
    }
    Ok(pollers)
}

async fn poll(
    mut http: Http,
    plan: &PollersPlan,
    deliveries: &Deliveries,
    ending: &CancellationToken,
) -> Option<String> {
    let mut first_failure = None;
    while !ending.is_cancelled() {
        if let Err(reason) = poll_once(&mut http, plan, deliveries).await {
            first_failure.get_or_insert(reason);
            clock::sleep(RETRY_AFTER).await;
        }
    }
    first_failure
}

async fn poll_once(
    http: &mut Http,
    plan: &PollersPlan,
    deliveries: &Deliveries,
) -> Result<(), String> {
    let wait = format!("{}ms", WAIT.as_millis());
    let body = json(&Pop { group: &plan.group, wait, max: plan.max })?;
    let answer = http.call(Method::POST, &format!("/v1/topics/{}/pop", plan.topic), body).await?;
    let (at, got_at) = (now(), clock::monotonic());
    if answer.status != 200 {
        return Err(told(&answer));
    }
    let Popped { tasks } = serde_json::from_slice(&answer.body)
        .map_err(|error| format!("an answer of pop: {error}"))?;
    for task in &tasks {
        let appended_at: jiff::Timestamp = (task.published_at.parse())
            .map_err(|error| format!("published_at {}: {error}", task.published_at))?;
        let key = task.key.as_deref().unwrap_or_default();
        deliveries.delivered(key.as_bytes(), appended_at.as_millisecond(), at);
    }
    if tasks.is_empty() {
        return Ok(());
    }
    let outcomes: Vec<Outcome<'_>> =
        tasks.iter().map(|task| Outcome::finish(&task.id, task.attempt)).collect();
    let are_all = matches!(finish_all(http, outcomes).await?, CallResult::All);
    deliveries.finished(are_all, clock::monotonic().since(got_at));
    Ok(())
}
