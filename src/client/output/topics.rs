//! Topics for people.

use std::fmt::Write as _;

use serde::Deserialize;
use serde_json::Value;

use super::print::shell_word;
use super::table::Table;
use crate::client::answer::{Ending, NodeAnswer};
use crate::client::task::{one_line, printable};

/// A topic from an answer. The members that every topic has are required.
#[derive(Deserialize, Debug)]
struct Topic {
    topic: String,
    revision: u64,
    policy: Option<Value>,
    paused: Option<Pause>,
    pending: Option<Count>,
    in_flight: Option<u64>,
    unavailable: Option<Unavailable>,
}

#[derive(Deserialize, Debug)]
struct Pause {
    since: String,
    reason: Option<String>,
    by: Option<String>,
}

#[derive(Deserialize, Debug)]
struct Count {
    count: u64,
    exact: bool,
}

#[derive(Deserialize, Debug)]
struct Unavailable {
    unavailable_ms: u64,
    reason: Option<String>,
}

impl Topic {
    fn pending(&self) -> String {
        match &self.pending {
            Some(Count { count, exact: true }) => count.to_string(),
            Some(Count { count, exact: false }) => format!("about {count}"),
            None => String::new(),
        }
    }

    /// Returns whether its tasks are published, in short.
    fn state(&self) -> String {
        match (&self.paused, &self.unavailable) {
            (Some(pause), _) => format!("paused since {}", pause.since),
            (None, Some(_)) => "unavailable".to_owned(),
            (None, None) => "open".to_owned(),
        }
    }

    fn policy(&self) -> String {
        self.policy.as_ref().map(Value::to_string).unwrap_or_default()
    }
}

/// Describes a topic.
pub fn shown(answer: &NodeAnswer) -> Result<String, Ending> {
    let topic: Topic = answer.read()?;
    let mut lines = String::new();
    let mut line = |name: &str, value: &str| {
        // A write to a string cannot fail.
        writeln!(lines, "{name:<12}{}", printable(value).replace('\n', " ")).ok();
    };
    line("topic", &topic.topic);
    line("state", &topic.state());
    if let Some(Pause { reason, by, .. }) = &topic.paused {
        line("reason", reason.as_deref().unwrap_or("none given"));
        if let Some(by) = by {
            line("paused by", by);
        }
    }
    if let Some(Unavailable { unavailable_ms, reason }) = &topic.unavailable {
        let reason = reason.as_deref().unwrap_or("its records wait");
        line("unavailable", &format!("for {} s: {reason}", unavailable_ms / 1000));
    }
    if topic.pending.is_some() {
        line("pending", &topic.pending());
    }
    if let Some(in_flight) = topic.in_flight {
        let still = if topic.paused.is_some() { " (claimed before the pause)" } else { "" };
        line("in flight", &format!("{in_flight}{still}"));
    }
    if topic.policy.is_some() {
        line("policy", &topic.policy());
    }
    line("revision", &topic.revision.to_string());
    Ok(lines)
}

#[derive(Deserialize, Debug)]
struct Callback {
    topic: String,
    revision: u64,
    url: String,
    header_names: Vec<String>,
    timeout: String,
    concurrency: u64,
    max_per_second: Option<u64>,
    paused: bool,
    pause_reason: Option<String>,
}

/// Describes the callback of a topic.
pub fn callback(answer: &NodeAnswer) -> Result<String, Ending> {
    let callback: Callback = answer.read()?;
    let mut lines = String::new();
    let mut line = |name: &str, value: &str| {
        // A write to a string cannot fail.
        writeln!(lines, "{name:<16}{}", printable(value).replace('\n', " ")).ok();
    };
    line("topic", &callback.topic);
    line("url", &callback.url);
    line("state", if callback.paused { "paused" } else { "open" });
    if let Some(reason) = &callback.pause_reason {
        line("reason", reason);
    }
    if !callback.header_names.is_empty() {
        line("headers", &callback.header_names.join(", "));
    }
    line("timeout", &callback.timeout);
    line("concurrency", &callback.concurrency.to_string());
    if let Some(most) = callback.max_per_second {
        line("max per second", &most.to_string());
    }
    line("revision", &callback.revision.to_string());
    Ok(lines)
}

/// Describes a callback that was ended.
pub fn callback_ended(answer: &NodeAnswer) -> Result<String, Ending> {
    let callback: Callback = answer.read()?;
    Ok(format!("{}  callback ended", one_line(&callback.topic)))
}

#[derive(Deserialize, Debug)]
struct Page {
    topics: Vec<Topic>,
    next_after: Option<String>,
}

/// Describes a page of topics, and says how to go on.
pub fn listed(answer: &NodeAnswer) -> Result<String, Ending> {
    let page: Page = answer.read()?;
    if page.topics.is_empty() && page.next_after.is_none() {
        return Ok("no topics".to_owned());
    }
    let rows: Vec<[String; 4]> = page
        .topics
        .into_iter()
        .map(|one| [one.topic.clone(), one.state(), one.pending(), one.policy()])
        .collect();
    let mut text = Table::new(["TOPIC", "STATE", "PENDING", "POLICY"]).rows(&rows);
    if let Some(after) = page.next_after {
        writeln!(text, "there are more: --after {}", shell_word(&after)).ok();
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(text: &str) -> NodeAnswer {
        NodeAnswer { status: 200, retry_after: None, has_token: false, text: text.to_owned() }
    }

    const PAUSED: &str = r#"{"topic":"t","revision":3,"policy":{"ttr":"30s"},
        "paused":{"since":"S","reason":"poison","by":"ops"},"in_flight":2,"unavailable":null}"#;
    const PLAIN: &str = r#"{"topic":"u","revision":0,"policy":null,"paused":null,
        "pending":{"count":7,"exact":false},"unavailable":null}"#;

    #[test]
    fn a_paused_topic_is_shown_with_its_reason_and_what_still_goes_out() {
        let shown = shown(&answer(PAUSED)).unwrap();
        for part in ["paused since S", "poison", "ops", "2 (claimed before", r#"{"ttr":"30s"}"#] {
            assert!(shown.contains(part), "{shown}");
        }
    }

    #[test]
    fn a_list_says_what_is_paused_and_how_to_go_on() {
        let text = format!(r#"{{"topics":[{PAUSED},{PLAIN}],"next_after":"u"}}"#);
        let listed = listed(&answer(&text)).unwrap();
        for part in ["paused since S", "open", "about 7"] {
            assert!(listed.contains(part), "{listed}");
        }
        assert!(listed.ends_with("--after u\n"), "{listed}");
    }

    #[test]
    fn an_empty_list_says_so() {
        let empty = answer(r#"{"topics":[],"next_after":null}"#);
        assert_eq!(listed(&empty).unwrap(), "no topics");
    }

    const CALLBACK: &str = r#"{"topic":"t","revision":4,"url":"https://jobs.example.com/a",
        "header_names":["authorization"],"timeout":"10s","concurrency":50,
        "max_per_second":7,"paused":true,"pause_reason":"the service answered 410"}"#;

    #[test]
    fn a_callback_that_has_ended_is_not_shown_as_one_that_is_there() {
        assert_eq!(callback_ended(&answer(CALLBACK)).unwrap(), "t  callback ended");
    }

    #[test]
    fn a_callback_says_why_it_is_paused() {
        let text = callback(&answer(CALLBACK)).unwrap();
        for line in [
            "state           paused",
            "reason          the service answered 410",
            "max per second  7",
            "headers         authorization",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }
}
