//! The cluster for people.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use serde::Deserialize;

use super::figures::grouped;
use super::table::Table;
use crate::client::answer::{Ending, NodeAnswer};
use crate::client::task::printable;
use crate::domain::time::duration::spelled;

/// The cluster from an answer, as far as it is shown.
#[derive(Deserialize, Debug)]
struct Cluster {
    node: String,
    now: Option<String>,
    shard_count: u16,
    nodes: Vec<Node>,
    backlog: Option<Backlog>,
    unavailable_topics: Vec<UnavailableTopic>,
    throttled: bool,
    /// Nodes of earlier versions tell neither these nor what they go on without.
    #[serde(default)]
    paused_topics: Vec<PausedTopic>,
    missing: Vec<Missing>,
    #[serde(default)]
    degraded: Vec<Missing>,
}

#[derive(Deserialize, Debug)]
struct Node {
    id: String,
    name: String,
    address: String,
    version: String,
    started_at: String,
    heartbeat_age_ms: u64,
    has_broker: bool,
    standing: String,
    shards: Vec<u16>,
}

#[derive(Deserialize, Debug)]
struct Backlog {
    count: u64,
    exact: bool,
    oldest_due_at: Option<String>,
}

#[derive(Deserialize, Debug)]
struct UnavailableTopic {
    topic: String,
    gone: bool,
    unavailable_ms: u64,
    reason: Option<String>,
}

#[derive(Deserialize, Debug)]
struct PausedTopic {
    topic: String,
    since: String,
    reason: Option<String>,
    by: Option<String>,
}

#[derive(Deserialize, Debug)]
struct Missing {
    what: String,
    why: String,
}

impl Cluster {
    /// Returns the number of shards that have an owner.
    fn owned(&self) -> usize {
        self.nodes.iter().map(|node| node.shards.len()).sum()
    }

    /// Returns the number of nodes in each standing.
    fn standings(&self) -> String {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for node in &self.nodes {
            *counts.entry(&node.standing).or_default() += 1;
        }
        let counts: Vec<String> =
            counts.iter().map(|(standing, count)| format!("{count} {standing}")).collect();
        counts.join(", ")
    }

    fn overdue(&self) -> String {
        match &self.backlog {
            None => "unknown".to_owned(),
            Some(Backlog { count: 0, .. }) => "none".to_owned(),
            Some(Backlog { count, exact, oldest_due_at }) => {
                let more = if *exact { "" } else { "more than " };
                let oldest = oldest_due_at.as_deref().unwrap_or("an unknown time");
                format!("{more}{}, the oldest due at {oldest}", grouped(*count))
            }
        }
    }
}

impl UnavailableTopic {
    /// Returns why Kafka takes no records, and the end of the tasks of a topic that is gone.
    fn reason(&self) -> String {
        let reason = match (&self.reason, self.gone) {
            (Some(reason), _) => reason.as_str(),
            (None, true) => "the topic does not exist",
            (None, false) => "its records wait",
        };
        let end = if self.gone { "; its due tasks become dead letters" } else { "" };
        format!("{reason}{end}")
    }
}

impl PausedTopic {
    fn described(&self) -> String {
        let by = self.by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default();
        let reason = self.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        format!("{} since {}{by}{reason}", self.topic, self.since)
    }
}

/// Describes the cluster in a few lines.
pub fn status(answer: &NodeAnswer) -> Result<String, Ending> {
    let cluster: Cluster = answer.read()?;
    let mut lines = String::new();
    let mut line = |name: &str, value: &str| {
        // A write to a string cannot fail.
        writeln!(lines, "{name:<13}{}", printable(value).replace('\n', " ")).ok();
    };
    let asked = cluster.nodes.iter().find(|node| node.id == cluster.node);
    line("node", asked.map_or(&cluster.node, |node| &node.name));
    line("now", cluster.now.as_deref().unwrap_or("unknown"));
    if cluster.missing.is_empty() {
        line("ready", "yes");
    }
    for Missing { what, why } in &cluster.missing {
        line("not ready", &format!("{what}: {why}"));
    }
    for Missing { what, why } in &cluster.degraded {
        line("goes on", &format!("without {what}: {why}"));
    }
    line("nodes", &cluster.standings());
    line("shards", &format!("{} of {} owned", cluster.owned(), cluster.shard_count));
    line("overdue", &cluster.overdue());
    if cluster.throttled {
        line("throttled", "Kafka holds the records of this node back by a quota");
    }
    for topic in &cluster.unavailable_topics {
        line("unavailable", &format!("{}: {}", topic.topic, topic.reason()));
    }
    for topic in &cluster.paused_topics {
        line("paused", &topic.described());
    }
    Ok(lines)
}

/// Lists the nodes.
pub fn nodes(answer: &NodeAnswer) -> Result<String, Ending> {
    let cluster: Cluster = answer.read()?;
    let rows: Vec<[String; 8]> = cluster
        .nodes
        .into_iter()
        .map(|node| {
            let shards = node.shards.len().to_string();
            let heartbeat = spelled(Duration::from_millis(node.heartbeat_age_ms));
            let kafka = if node.has_broker { "yes" } else { "no" }.to_owned();
            let Node { name, standing, version, started_at, address, .. } = node;
            [name, standing, shards, heartbeat, kafka, version, started_at, address]
        })
        .collect();
    let heads =
        ["NAME", "STANDING", "SHARDS", "HEARTBEAT", "KAFKA", "VERSION", "STARTED", "ADDRESS"];
    Ok(Table::new(heads).rows(&rows))
}

/// Lists the unavailable topics.
pub fn topics(answer: &NodeAnswer) -> Result<String, Ending> {
    let cluster: Cluster = answer.read()?;
    if cluster.unavailable_topics.is_empty() {
        return Ok("no topic is unavailable\n".to_owned());
    }
    let rows: Vec<[String; 3]> = cluster
        .unavailable_topics
        .iter()
        .map(|topic| {
            let span = spelled(Duration::from_millis(topic.unavailable_ms));
            [topic.topic.clone(), span, topic.reason()]
        })
        .collect();
    Ok(Table::new(["TOPIC", "UNAVAILABLE", "REASON"]).rows(&rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(text: &str) -> NodeAnswer {
        NodeAnswer { status: 200, retry_after: None, has_token: false, text: text.to_owned() }
    }

    const WELL: &str = r#"{"node":"A","now":"N","shard_count":2,"window_ms":200,"horizon_ms":1,
        "leaf_ms":1,"nodes":[{"id":"A","name":"node-1","address":"http://a","version":"0.1.0",
        "started_at":"S","heartbeat_age_ms":120,"has_broker":true,"standing":"assigned",
        "shards":[0,1]}],"backlog":{"count":0,"exact":true,"oldest_due_at":null},
        "unavailable_topics":[],"throttled":false,"missing":[]}"#;

    const UNWELL: &str = r#"{"node":"A","now":null,"shard_count":64,"window_ms":200,
        "horizon_ms":1,"leaf_ms":1,"nodes":[{"id":"B","name":"b\u001b[2J","address":"http://b",
        "version":"0.1.0","started_at":"S","heartbeat_age_ms":9000,"has_broker":false,
        "standing":"suspected","shards":[1]}],
        "backlog":{"count":10000,"exact":false,"oldest_due_at":"D"},
        "unavailable_topics":[{"topic":"orders","gone":false,"unavailable_ms":6000,"reason":"R"},
        {"topic":"bills","gone":true,"unavailable_ms":1,"reason":null},
        {"topic":"old","gone":true,"unavailable_ms":1,"reason":"R"}],"throttled":true,
        "paused_topics":[{"topic":"mail","since":"T","reason":"R","by":"ann"},
        {"topic":"sms","since":"T","reason":null}],
        "missing":[{"what":"kafka","why":"refused"}],
        "degraded":[{"what":"etcd","why":"no answer"}]}"#;

    #[test]
    fn a_cluster_that_is_well_says_so() {
        let status = status(&answer(WELL)).unwrap();
        for line in [
            "node         node-1",
            "ready        yes",
            "nodes        1 assigned",
            "overdue      none",
        ] {
            assert!(status.lines().any(|found| found == line), "{line}: {status}");
        }
        assert!(status.contains("2 of 2 owned") && !status.contains("unavailable"), "{status}");
        assert_eq!(topics(&answer(WELL)).unwrap(), "no topic is unavailable\n");
    }

    #[test]
    fn what_is_wrong_is_named_with_its_reason() {
        let status = status(&answer(UNWELL)).unwrap();
        for line in [
            "node         A",
            "not ready    kafka: refused",
            "nodes        1 suspected",
            "shards       1 of 64 owned",
            "overdue      more than 10,000, the oldest due at D",
            "throttled    Kafka holds the records of this node back by a quota",
            "unavailable  orders: R",
            "unavailable  bills: the topic does not exist; its due tasks become dead letters",
            "unavailable  old: R; its due tasks become dead letters",
            "paused       mail since T by ann: R",
            "paused       sms since T",
            "goes on      without etcd: no answer",
        ] {
            assert!(status.lines().any(|found| found == line), "{line}: {status}");
        }
        let nodes = nodes(&answer(UNWELL)).unwrap();
        assert!(nodes.contains("suspected  1       9s         no"), "{nodes}");
        assert!(!nodes.contains('\u{1b}'), "{nodes}");
        let topics = topics(&answer(UNWELL)).unwrap();
        assert!(topics.contains("orders  6s           R\n"), "{topics}");
    }
}
