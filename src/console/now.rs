//! The first page: is the cluster well?

use az::SaturatingAs as _;
use maud::{Markup, html};
use serde_json::Value;

use super::action::Call;
use super::format::{grouped, is_true, items, moment, moment_from, number, span, text};
use super::frame::{Answered, Page, Section, escaped, facts, sample, table, topic_links};
use super::rates::{Rates, Sample};
use super::tasks::or_dash;
use crate::domain::Timestamp;

/// The most topics that a list of the cluster has.
const TOPICS_SHOWN_MAX: usize = 100;
/// A backlog whose oldest task is overdue for longer than this many seconds is not normal.
const OVERDUE_SECONDS: u64 = 5;

/// Returns the page. `cluster` is the answer of `GET /v1/cluster`.
pub fn page(cluster: &Answered, metrics: Option<(&Sample, &Rates)>) -> Page {
    let body = html! {
        h1 { "Now" }
        @match cluster {
            Ok(cluster) => {
                (verdict(cluster))
                @if let Some((latest, rates)) = metrics { (figures(cluster, latest, rates)) }
                (unavailable(cluster))
                (paused(cluster))
                (nodes(cluster))
                (sample(&Call::get("/v1/cluster").curl()))
            },
            Err(refused) => {
                (refused.notice())
                p {
                    "This page needs the right " code { "operate" } ". "
                    a href=(Section::Topics.path()) { "Topics" } " and tasks need "
                    code { "read" } "."
                }
            },
        }
    };
    Page { section: Section::Now, title: "Now".to_owned(), body, is_live: true }
}

fn now_of(cluster: &Value) -> Option<Timestamp> {
    Timestamp::of_rfc3339(text(cluster, "now"))
}

/// Returns the reasons for which somebody should look closer.
fn troubles(cluster: &Value) -> Vec<String> {
    let mut troubles = Vec::new();
    for missing in items(cluster, "missing") {
        troubles.push(format!("{}: {}", text(missing, "what"), text(missing, "why")));
    }
    for degraded in items(cluster, "degraded") {
        let (what, why) = (text(degraded, "what"), text(degraded, "why"));
        troubles.push(format!("this node goes on without {what}: {why}"));
    }
    match items(cluster, "unavailable_topics").len() {
        0 => {}
        1 => troubles.push("1 topic takes no records".to_owned()),
        count => troubles.push(format!("{} topics take no records", at_least(count))),
    }
    match items(cluster, "paused_topics").len() {
        0 => {}
        1 => troubles.push("1 topic is paused".to_owned()),
        count => troubles.push(format!("{} topics are paused", at_least(count))),
    }
    let nodes = items(cluster, "nodes");
    // The row of an earlier run stays for an hour, also when a node of its name runs again.
    let runs_again = |name: &str| {
        nodes.iter().any(|node| text(node, "standing") == "assigned" && text(node, "name") == name)
    };
    for node in nodes {
        let (name, standing) = (text(node, "name"), text(node, "standing"));
        if standing == "suspected" || (standing == "dead" && !runs_again(name)) {
            troubles.push(format!("the node {name} is {standing}"));
        }
        if !is_true(node, "has_broker") && standing == "assigned" {
            troubles.push(format!("the node {name} has no connection to Kafka"));
        }
    }
    let owned: usize = nodes.iter().map(|node| items(node, "shards").len()).sum();
    let all = number(cluster, "shard_count");
    if owned.saturating_as::<u64>() != all {
        troubles.push(format!("{owned} of {all} shards have an owner"));
    }
    let oldest = cluster.pointer("/backlog/oldest_due_at").and_then(Value::as_str);
    let oldest = oldest.and_then(Timestamp::of_rfc3339);
    if let Some((oldest, now)) = oldest.zip(now_of(cluster))
        && now.since(oldest).as_secs() > OVERDUE_SECONDS
    {
        troubles.push("tasks are overdue".to_owned());
    }
    if is_true(cluster, "throttled") {
        troubles.push("brokers delay the records of this node because of a quota".to_owned());
    }
    troubles
}

/// Writes the length of a list that ends after [`TOPICS_SHOWN_MAX`].
fn at_least(count: usize) -> String {
    let more = if count >= TOPICS_SHOWN_MAX { " or more" } else { "" };
    format!("{count}{more}")
}

fn verdict(cluster: &Value) -> Markup {
    let (troubles, now) = (troubles(cluster), text(cluster, "now"));
    html! {
        @if troubles.is_empty() {
            div.verdict { strong { "All is well." } span.quiet { "As this node sees it." } }
        } @else {
            div.verdict.bad {
                strong { "Look here:" }
                @for trouble in &troubles { span { (trouble) } }
            }
        }
        @if !now.is_empty() { p.quiet { "As of " (moment(now)) "." } }
    }
}

/// Writes the number of overdue tasks, whose count stops at a limit.
fn overdue_of(backlog: &Value) -> String {
    let more = if is_true(backlog, "exact") { "" } else { "more than " };
    format!("{more}{}", grouped(number(backlog, "count")))
}

fn figures(cluster: &Value, latest: &Sample, rates: &Rates) -> Markup {
    let now = now_of(cluster);
    let backlog = cluster.get("backlog").filter(|backlog| backlog.is_object());
    let overdue = backlog.map_or_else(|| "unknown".to_owned(), overdue_of);
    let oldest = backlog.map(|backlog| text(backlog, "oldest_due_at")).unwrap_or_default();
    let or_none = |quantile: &Option<String>| escaped(quantile.as_deref().unwrap_or("–"));
    let mut shown: Vec<(&str, Markup)> = vec![
        ("Overdue in the cluster", escaped(&overdue)),
        ("Oldest overdue task", moment_from(oldest, now)),
        ("Lateness p50", or_none(&rates.p50)),
        ("Lateness p99", or_none(&rates.p99)),
        ("In flight", escaped(&grouped(latest.in_flight))),
        ("Waiting to be stored", escaped(&grouped(latest.submit_queue))),
    ];
    for (title, rate) in &rates.per_second {
        shown.push((title, html! { (rate) span.quiet { " /s" } }));
    }
    html! {
        h2 { "Figures" }
        (facts(&shown))
        p.quiet {
            @match rates.over {
                Some(over) => {
                    "Rates and lateness are those of this node in the last "
                    (span(over.as_millis().saturating_as::<u64>())) "."
                },
                None => {
                    "The lateness is that of this node since its start. Rates come with the next "
                    "look."
                },
            }
        }
    }
}

fn unavailable(cluster: &Value) -> Markup {
    let topics = items(cluster, "unavailable_topics");
    let rows = html! {
        @for topic in topics {
            tr {
                th scope="row" { (text(topic, "topic")) }
                td { (span(number(topic, "unavailable_ms"))) }
                td {
                    @if is_true(topic, "gone") {
                        "Kafka denies that the topic exists: its tasks become dead letters. "
                    }
                    @let reason = text(topic, "reason");
                    @if reason.is_empty() { "Its records only wait." } @else { (reason) }
                }
                td { (topic_links(text(topic, "topic"))) }
            }
        }
    };
    html! {
        @if !topics.is_empty() {
            h2 { "Unavailable topics" }
            (table("Topics that take no records", &["Topic", "For", "Reason", "Pages"], &rows))
        }
    }
}

fn paused(cluster: &Value) -> Markup {
    let (topics, now) = (items(cluster, "paused_topics"), now_of(cluster));
    let rows = html! {
        @for topic in topics {
            tr {
                th scope="row" { (text(topic, "topic")) }
                td { (moment_from(text(topic, "since"), now)) }
                td { (or_dash(text(topic, "reason"))) }
                td { (or_dash(text(topic, "by"))) }
                td { (topic_links(text(topic, "topic"))) }
            }
        }
    };
    html! {
        @if !topics.is_empty() {
            h2 { "Paused topics" }
            (table("Topics that are paused", &["Topic", "Since", "Reason", "By", "Pages"], &rows))
        }
    }
}

fn nodes(cluster: &Value) -> Markup {
    let (now, own) = (now_of(cluster), text(cluster, "node"));
    let all = number(cluster, "shard_count");
    let rows = html! {
        @for node in items(cluster, "nodes") {
            @let standing = text(node, "standing");
            tr {
                th scope="row" {
                    (text(node, "name"))
                    @if text(node, "id") == own { span.quiet { " (this node)" } }
                }
                td {
                    span class=(if standing == "assigned" { "state good" } else { "state bad" }) {
                        (standing)
                    }
                }
                td.number { (items(node, "shards").len()) " of " (all) }
                td.number { (span(number(node, "heartbeat_age_ms"))) " ago" }
                td { @if is_true(node, "has_broker") { "connected" } @else { "no connection" } }
                td { (text(node, "version")) }
                td { (moment_from(text(node, "started_at"), now)) }
                td { (text(node, "address")) }
            }
        }
    };
    let heads =
        ["Node", "Standing", "Shards", "Heartbeat", "Kafka", "Version", "Started", "Address"];
    html! { h2 { "Nodes" } (table("Nodes of the cluster", &heads, &rows)) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::console::frame::Refused;

    fn cluster() -> Value {
        json!({
            "node": "n1", "now": "2030-01-31T09:30:00Z", "shard_count": 2, "throttled": false,
            "nodes": [{"id": "n1", "name": "<b>one", "standing": "assigned", "has_broker": true,
                       "heartbeat_age_ms": 500, "shards": [1, 2], "version": "0.1.0",
                       "started_at": "2030-01-31T09:00:00Z", "address": "http://a"}],
            "backlog": {"count": 0, "exact": true, "oldest_due_at": null},
            "unavailable_topics": [], "paused_topics": [], "missing": [], "degraded": [],
        })
    }

    #[test]
    fn a_well_cluster_is_called_well_and_another_one_says_why_not() {
        let well = page(&Ok(cluster()), None).body.into_string();
        assert!(well.contains("All is well.") && well.contains("&lt;b&gt;one"), "{well}");
        assert!(well.contains(">2030-01-31 09:30:00</time>."), "the figures have a time: {well}");
        for (pointer, value, wanted) in [
            ("/nodes/0/standing", json!("dead"), "is dead"),
            ("/nodes/0/has_broker", json!(false), "no connection to Kafka"),
            ("/missing", json!([{"what": "kafka", "why": "no route"}]), "kafka: no route"),
            ("/backlog/oldest_due_at", json!("2030-01-31T09:29:50Z"), "tasks are overdue"),
            (
                "/unavailable_topics",
                json!([{"topic": "<i>", "gone": true, "unavailable_ms": 61_000, "reason": "<u>"}]),
                "&lt;u&gt;",
            ),
            ("/throttled", json!(true), "quota"),
            ("/shard_count", json!(64), "2 of 64 shards have an owner"),
            ("/degraded", json!([{"what": "etcd", "why": "away"}]), "goes on without etcd: away"),
            (
                "/paused_topics",
                json!([{"topic": "<i>", "since": "2030-01-31T08:30:00Z", "reason": "<u>"}]),
                "1 topic is paused",
            ),
        ] {
            let mut cluster = cluster();
            *cluster.pointer_mut(pointer).unwrap() = value;
            let text = page(&Ok(cluster), None).body.into_string();
            assert!(!text.contains("All is well.") && text.contains(wanted), "{pointer}: {text}");
        }
    }

    #[test]
    fn a_dead_node_is_no_trouble_once_a_node_of_its_name_runs() {
        let mut cluster = cluster();
        let dead = |name: &str| json!({"id": "n0", "name": name, "standing": "dead"});
        cluster["nodes"].as_array_mut().unwrap().push(dead("<b>one"));
        assert_eq!(troubles(&cluster), [""; 0]);
        cluster["nodes"].as_array_mut().unwrap().push(dead("two"));
        assert_eq!(troubles(&cluster), ["the node two is dead"]);
    }

    #[test]
    fn a_count_of_overdue_tasks_says_when_there_are_more() {
        let overdue = |is_exact: bool| overdue_of(&json!({"count": 10_000, "exact": is_exact}));
        assert_eq!([true, false].map(overdue), ["10,000", "more than 10,000"]);
    }

    #[test]
    fn a_reader_without_the_right_is_told_so() {
        let refused = Err(Refused::new(403, "forbidden", "the right is missing"));
        let text = page(&refused, None).body.into_string();
        assert!(text.contains("the right is missing") && !text.contains("Nodes"), "{text}");
    }
}
