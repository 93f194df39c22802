//! Handler of `GET /v1/cluster`: the cluster, as the answering node sees it.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use az::SaturatingAs as _;
use serde::Serialize;

use crate::api::access::guard::Guard;
use crate::api::json::answers::{self, DisplayJson};
use crate::api::json::times::Rfc3339;
use crate::api::json::topics::PauseJson;
use crate::api::problems::problem::{NotReadyJson, Problem};
use crate::api::request::query;
use crate::api::shared::ApiShared;
use crate::domain::{Backlog, NodeId, TopicName};
use crate::node::messages::{ClusterView, NodeView, UnavailableTopic};

#[derive(Serialize)]
struct ClusterJson<'a> {
    node: DisplayJson<NodeId>,
    /// The cluster's clock; null until Postgres has answered.
    now: Option<Rfc3339>,
    shard_count: u16,
    window_ms: u64,
    horizon_ms: u64,
    leaf_ms: u64,
    nodes: Vec<NodeJson<'a>>,
    /// Null until the first count.
    backlog: Option<BacklogJson>,
    unavailable_topics: Vec<UnavailableTopicJson<'a>>,
    throttled: bool,
    paused_topics: Vec<PausedTopicJson<'a>>,
    /// The reasons why the answering node is not ready.
    missing: Vec<NotReadyJson<'a>>,
    /// What the answering node lacks, and goes on without.
    degraded: Vec<NotReadyJson<'a>>,
}

#[derive(Serialize)]
struct PausedTopicJson<'a> {
    topic: &'a str,
    #[serde(flatten)]
    pause: PauseJson<'a>,
}

#[derive(Serialize)]
struct UnavailableTopicJson<'a> {
    topic: &'a str,
    gone: bool,
    unavailable_ms: u64,
    /// Null while the topic's records only wait.
    reason: Option<&'a str>,
}

#[derive(Serialize)]
struct NodeJson<'a> {
    id: DisplayJson<NodeId>,
    name: &'a str,
    address: &'a str,
    version: &'a str,
    started_at: Rfc3339,
    heartbeat_age_ms: u64,
    has_broker: bool,
    standing: &'static str,
    shards: Vec<u16>,
}

/// Tasks that are overdue and unclaimed.
#[derive(Serialize)]
struct BacklogJson {
    count: u64,
    exact: bool,
    oldest_due_at: Option<Rfc3339>,
}

pub async fn show(
    State(shared): State<Arc<ApiShared>>,
    guard: Guard,
    uri: Uri,
) -> Result<Response, Problem> {
    let deadline = shared.deadline();
    query::refuse(&uri)?;
    let permit = guard.operate_permit()?;
    let asking = shared.service.cluster(&permit);
    let view = shared.ask(&guard, deadline, asking, Problem::unavailable).await?;
    Ok(answers::json(StatusCode::OK, &json_of(&view, |topic| guard.reads(topic))))
}

/// `reads` tells whether the caller has the right `read` on a topic.
fn json_of(view: &ClusterView, reads: impl Fn(&TopicName) -> bool) -> ClusterJson<'_> {
    ClusterJson {
        node: DisplayJson(view.node),
        now: view.now.map(Rfc3339),
        shard_count: view.shard_count,
        window_ms: millis_of(view.window),
        horizon_ms: millis_of(view.horizon),
        leaf_ms: millis_of(view.leaf),
        nodes: view.nodes.iter().map(node_of).collect(),
        backlog: view.backlog.as_ref().map(backlog_of),
        unavailable_topics: view.unavailable_topics.iter().map(unavailable_topic).collect(),
        throttled: view.is_throttled,
        paused_topics: view
            .paused_topics
            .iter()
            .map(|(topic, pause)| PausedTopicJson {
                topic: topic.as_str(),
                pause: PauseJson::shown(pause, reads(topic)),
            })
            .collect(),
        missing: view.missing.iter().map(NotReadyJson::of).collect(),
        degraded: view.degraded.iter().map(NotReadyJson::of).collect(),
    }
}

fn unavailable_topic(topic: &UnavailableTopic) -> UnavailableTopicJson<'_> {
    UnavailableTopicJson {
        topic: topic.topic.as_str(),
        gone: topic.is_gone,
        unavailable_ms: millis_of(topic.unavailable_for),
        reason: topic.reason.as_deref(),
    }
}

fn node_of(node: &NodeView) -> NodeJson<'_> {
    NodeJson {
        id: DisplayJson(node.id),
        name: &node.name,
        address: &node.address,
        version: &node.version,
        started_at: Rfc3339(node.started_at),
        heartbeat_age_ms: millis_of(node.heartbeat_age),
        has_broker: node.has_broker,
        standing: node.standing,
        shards: node.shards.iter().map(|shard| shard.number()).collect(),
    }
}

fn backlog_of(backlog: &Backlog) -> BacklogJson {
    BacklogJson {
        count: backlog.task_count,
        exact: backlog.is_exact,
        oldest_due_at: backlog.oldest_due_at.map(Rfc3339),
    }
}

fn millis_of(span: Duration) -> u64 {
    span.as_millis().saturating_as::<u64>()
}
