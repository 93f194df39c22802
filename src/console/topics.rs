//! The topics that have pending tasks.

use maud::{Markup, html};
use serde_json::Value;

use super::action::Call;
use super::format::{figure, is_true, items, moment, text, with_query};
use super::frame::{Answered, Page, Section, facts, sample, table, topic_form, topic_links};

/// The path of the counts in the API.
pub const COUNTS: &str = "/v1/tasks/counts";

/// Returns the call for the counts of a topic, or of all topics.
pub fn call(topic: &str) -> Call {
    Call::get(&with_query(COUNTS, &[("topic", topic)]))
}

/// Returns the page. `rights` is the answer of `GET /v1/whoami`.
pub fn page(topic: &str, counts: &Answered, rights: &Answered) -> Page {
    let body = html! {
        h1 { "Topics" }
        (topic_form(Section::Topics, topic))
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
            (table("Topics with pending tasks, the most first", &["Topic", "Pending", "Pages"], &rows))
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
                        @if name.ends_with('*') { (name) } @else {
                            a href=(with_query(Section::Topics.path(), &[("topic", name)])) { (name) }
                        }
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
        let text = page("", &Ok(counts), &rights).body.into_string();
        assert!(text.contains("about 11,000") && text.contains("figures are sampled"), "{text}");
        assert!(text.contains("&lt;b&gt;") && text.contains("topic=%3Cb%3E"), "{text}");
    }

    #[test]
    fn a_reader_of_some_topics_finds_them() {
        let rights = json!({"rights": [{"action": "read", "topics": ["orders", "a.*"]}]});
        let refused = Err(Refused::new(403, "forbidden", "name a topic"));
        let text = page("", &refused, &Ok(rights)).body.into_string();
        assert!(text.contains(r#"href="/console/topics?topic=orders""#), "{text}");
        assert!(text.contains("<li>a.*</li>") && text.contains("name a topic"), "{text}");
    }
}
