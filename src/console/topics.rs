//! The topics: how many tasks are pending, what is paused and why, what cannot be published.

pub mod callback;

use maud::{Markup, html};
use serde_json::Value;

use super::action::{Action, Call, Verb};
use super::format::{
    figure, grouped, is_true, items, moment, number, path, span, text, with_query,
};
use super::frame::{
    Answered, Page, Section, escaped, facts, sample, table, topic_form, topic_links,
};

/// The path of the counts in the API.
pub const COUNTS: &str = "/v1/tasks/counts";

/// Returns the call for the counts of a topic, or of all topics.
pub fn call(topic: &str) -> Call {
    Call::get(&with_query(COUNTS, &[("topic", topic)]))
}

/// Returns the call for one topic, or for the topics that are paused or have a policy.
pub fn policies_call(topic: &str) -> Call {
    match topic {
        "" => Call::get("/v1/topics?limit=1000"),
        topic => Call::get(&path(&["v1", "topics", topic])),
    }
}

/// Returns the page. `policies` is the answer to [`policies_call`], `rights` that of
/// `GET /v1/whoami`, and `callback` that of [`callback::call`], which only readers with the rights
/// make.
pub fn page(
    topic: &str,
    counts: &Answered,
    policies: &Answered,
    rights: &Answered,
    callback: Option<&Answered>,
) -> Page {
    let body = html! {
        h1 { "Topics" }
        (topic_form(Section::Topics, topic))
        @match policies {
            Ok(one) if !topic.is_empty() => {
                (state(one))
                (callback::shown(topic, callback))
            },
            Ok(some) => (held_back(some)),
            // The counts are usually refused for the same reason.
            Err(refused) if counts.as_ref().err() != Some(refused) => (refused.notice()),
            Err(_) => {},
        }
        @match counts {
            Ok(counts) => (counted(counts)),
            Err(refused) => {
                (refused.notice())
                (readable(rights))
            },
        }
        (sample(&call(topic).curl()))
    };
    Page { section: Section::Topics, title: "Topics".to_owned(), body, is_live: false }
}

/// Writes the state of one topic, and the action that it may need.
fn state(topic: &Value) -> Markup {
    let paused = topic.get("paused").filter(|paused| !paused.is_null());
    let unavailable = topic.get("unavailable").filter(|unavailable| !unavailable.is_null());
    let mut shown = vec![("State", standing(topic))];
    if let Some(paused) = paused {
        shown.push(("Paused since", moment(text(paused, "since"))));
        for (term, member) in [("Paused by", "by"), ("Reason", "reason")] {
            if !text(paused, member).is_empty() {
                shown.push((term, escaped(text(paused, member))));
            }
        }
    }
    if let Some(unavailable) = unavailable {
        shown.push(("Unavailable for", html! { (span(number(unavailable, "unavailable_ms"))) }));
        if !text(unavailable, "reason").is_empty() {
            shown.push(("Cause", escaped(text(unavailable, "reason"))));
        }
    }
    if topic.get("in_flight").is_some_and(Value::is_u64) {
        shown.push(("Claimed", html! { (grouped(number(topic, "in_flight"))) }));
    }
    if let Some(policy) = topic.get("policy").filter(|policy| !policy.is_null()) {
        shown.push(("Policy", html! { code { (policy.to_string()) } }));
    }
    let verb = if paused.is_some() { Verb::ResumeTopic } else { Verb::PauseTopic };
    html! {
        (facts(&shown))
        div.actions { (Action::on_topic(verb, text(topic, "topic")).link()) }
    }
}

fn standing(topic: &Value) -> Markup {
    let is = |member| topic.get(member).is_some_and(|value| !value.is_null());
    html! {
        @if is("paused") { span.state.busy { "paused" } }
        @if is("unavailable") { span.state.bad { "unavailable" } }
        @if !is("paused") && !is("unavailable") { span.state.good { "open" } }
    }
}

/// Writes the topics that are paused or have a policy.
fn held_back(policies: &Value) -> Markup {
    let rows = html! {
        @for topic in items(policies, "topics") {
            @let paused = topic.get("paused").unwrap_or(&Value::Null);
            @let name = text(topic, "topic");
            @if is_named(topic) {
                tr {
                    th scope="row" {
                        a href=(with_query(Section::Topics.path(), &[("topic", name)])) { (name) }
                    }
                    td { (standing(topic)) }
                    td { (moment(text(paused, "since"))) }
                    td { (text(paused, "reason")) }
                }
            }
        }
    };
    html! {
        @if items(policies, "topics").iter().any(is_named) {
            (table(
                "Topics that are paused, unavailable, or have a policy",
                &["Topic", "State", "Paused since", "Reason"],
                &rows,
            ))
        }
        @if policies.get("next_after").is_some_and(|next| !next.is_null()) {
            p { "There are more than 1,000 topics, and these are the first by name. Ask for one." }
        }
    }
}

/// Returns true for a topic that is named besides those with pending tasks.
fn is_named(topic: &Value) -> bool {
    ["paused", "unavailable", "policy"]
        .iter()
        .any(|member| topic.get(member).is_some_and(|value| !value.is_null()))
}

fn counted(counts: &Value) -> Markup {
    let pending = counts.get("pending").unwrap_or(&Value::Null);
    let rows = html! {
        @for topic in items(counts, "topics") {
            tr {
                th scope="row" { (text(topic, "topic")) }
                td.number { (figure(topic)) }
                td { (topic_links(text(topic, "topic"))) }
            }
        }
    };
    let shown =
        [("Pending", html! { (figure(pending)) }), ("As of", moment(text(counts, "as_of")))];
    html! {
        (facts(&shown))
        @if items(counts, "topics").is_empty() {
            p { "No tasks are pending." }
        } @else {
            (table(
                "Topics with pending tasks, the most first",
                &["Topic", "Pending", "Pages"],
                &rows,
            ))
        }
        @if is_true(counts, "more_topics") {
            p.quiet { "Topics with few tasks may be missing: the figures are sampled." }
        }
    }
}

/// Writes the topics that the reader may read, as the auth file names them.
fn readable(rights: &Answered) -> Markup {
    let Ok(rights) = rights else { return html! {} };
    let reads = items(rights, "rights").iter().find(|right| text(right, "action") == "read");
    let topics = reads.map(|right| items(right, "topics")).unwrap_or_default();
    let names = topics.iter().filter_map(Value::as_str);
    html! {
        @if topics.is_empty() {
            p { "You have the right to read no topic." }
        } @else {
            p { "You have the right to read these topics:" }
            ul {
                @for name in names {
                    li {
                        @let target = with_query(Section::Topics.path(), &[("topic", name)]);
                        @if name.ends_with('*') { (name) } @else { a href=(target) { (name) } }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::console::frame::Refused;

    #[test]
    fn a_sampled_figure_says_so() {
        let counts = json!({
            "as_of": "2030-01-31T09:30:00Z", "more_topics": true,
            "pending": {"count": 12_000, "exact": false},
            "topics": [{"topic": "<b>", "count": 11_000, "exact": false}],
        });
        let rights = Ok(Value::Null);
        let none = Ok(json!({"topics": []}));
        let text = page("", &Ok(counts), &none, &rights, None).body.into_string();
        assert!(text.contains("about 11,000") && text.contains("figures are sampled"), "{text}");
        assert!(text.contains("&lt;b&gt;") && text.contains("topic=%3Cb%3E"), "{text}");
    }

    #[test]
    fn a_reader_of_some_topics_finds_them() {
        let rights = json!({"rights": [{"action": "read", "topics": ["orders", "a.*"]}]});
        let refused = Err(Refused::new(403, "forbidden", "name a topic"));
        let text = page("", &refused, &refused, &Ok(rights), None).body.into_string();
        assert!(text.contains(r#"href="/console/topics?topic=orders""#), "{text}");
        assert!(text.contains("<li>a.*</li>") && text.contains("name a topic"), "{text}");
    }

    #[test]
    fn a_topic_that_is_not_known_is_told_once() {
        let unknown = || Err(Refused::new(404, "topic not found", "is it misspelt?"));
        let counts = Ok(json!({"pending": {"count": 0, "exact": true}, "topics": []}));
        for counts in [counts, unknown()] {
            let text = page("t", &counts, &unknown(), &Ok(Value::Null), None).body.into_string();
            assert_eq!(text.matches("is it misspelt?").count(), 1, "{text}");
            assert!(!text.contains("pause-topic"), "{text}");
        }
    }

    #[test]
    fn a_paused_topic_says_why_and_can_be_resumed() {
        let paused = json!({
            "topic": "a<b>", "in_flight": 3, "policy": {"delay_max": "90d"}, "unavailable": null,
            "paused": {"since": "2030-01-31T09:30:00Z", "reason": "<i>", "by": "ops"},
        });
        let refused = || Err(Refused::new(403, "forbidden", "no"));
        let paused_page = page("a<b>", &refused(), &Ok(paused.clone()), &refused(), None);
        let text = paused_page.body.into_string();
        for part in ["paused", "&lt;i&gt;", "ops", "action=resume-topic", "delay_max"] {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
        assert!(!text.contains("<b>") && !text.contains("<i>"), "{text}");
        let listed = Ok(json!({"topics": [paused]}));
        let text = page("", &refused(), &listed, &refused(), None).body.into_string();
        assert!(text.contains("topic=a%3Cb%3E") && text.contains("2030-01-31"), "{text}");
        let open = Ok(json!({"topic": "t", "paused": null, "unavailable": null}));
        let text = page("t", &refused(), &open, &refused(), None).body.into_string();
        assert!(text.contains("action=pause-topic") && text.contains(">open<"), "{text}");
    }

    #[test]
    fn only_the_page_of_one_topic_has_its_callback() {
        let callback = Ok(json!({"topic": "t", "url": "https://a.example.com/jobs"}));
        let open = Ok(json!({"topic": "t", "paused": null, "unavailable": null}));
        let listed = Ok(json!({"topics": []}));
        let counts = Ok(json!({"pending": {"count": 0, "exact": true}, "topics": []}));
        let rights = Ok(Value::Null);
        for (topic, policies, is_shown) in [("t", &open, true), ("", &listed, false)] {
            let page = page(topic, &counts, policies, &rights, Some(&callback));
            let text = page.body.into_string();
            assert_eq!(text.contains("https://a.example.com/jobs"), is_shown, "{text}");
        }
    }
}
