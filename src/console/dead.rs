//! Dead letters, and the reasons for which they are dead.

use std::collections::BTreeMap;

use maud::{Markup, html};
use serde_json::Value;

use super::action::{Action, Call, Verb};
use super::format::{items, moment, text, with_query};
use super::frame::{Answered, Page, Section, sample, table, task_path, topic_form, unknown_topic};
use super::tasks::{key_of, next, or_dash};

/// Dead letters on a page. Their reasons are grouped, so there are more than of tasks.
const LIMIT: &str = "200";

/// Returns the call for a page of the dead letters of a topic, or of all topics.
pub fn call(topic: &str, cursor: &str) -> Call {
    Call::get(&with_query("/v1/dead", &[("topic", topic), ("limit", LIMIT), ("cursor", cursor)]))
}

/// Returns the page.
pub fn page(topic: &str, cursor: &str, answer: &Answered) -> Page {
    let body = html! {
        h1 { "Dead letters" }
        (topic_form(Section::Dead, topic))
        @match answer {
            Ok(page) => (listed(topic, page)),
            Err(refused) => (refused.notice()),
        }
        (sample(&call(topic, cursor).curl()))
    };
    Page { section: Section::Dead, title: "Dead letters".to_owned(), body, is_live: false }
}

fn listed(topic: &str, page: &Value) -> Markup {
    let dead = items(page, "tasks");
    let cursor = text(page, "cursor");
    let rows = html! {
        @for task in dead {
            tr {
                td { (moment(text(task, "died_at"))) }
                td { (text(task, "topic")) }
                td { (or_dash(text(task, "name"))) }
                td { (key_of(task)) }
                td { (or_dash(text(task, "reason"))) }
                td.id { a href=(task_path(text(task, "id"))) { code { (text(task, "id")) } } }
            }
        }
    };
    html! {
        (unknown_topic(page))
        @if dead.is_empty() {
            p {
                @if cursor.is_empty() { "There are no dead letters here." }
                @else { "The list goes on." }
            }
        } @else {
            (reasons(dead, !cursor.is_empty()))
            @if topic.is_empty() {
                p.quiet { "Show one topic to redrive or drop all of its dead letters." }
            } @else {
                div.actions {
                    (Action::on_topic(Verb::RedriveMany, topic).link())
                    (Action::on_topic(Verb::DropMany, topic).link())
                }
            }
            h2 { "Dead letters" }
            (table("By due time", &["Died", "Topic", "Name", "Key", "Reason", "Id"], &rows))
        }
        (next(Section::Dead, &[("topic", topic), ("cursor", cursor)]))
    }
}

/// Writes the reasons of this page with their numbers, the most frequent first.
fn reasons(dead: &[Value], has_more: bool) -> Markup {
    let mut counts: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for task in dead {
        *counts.entry((text(task, "topic"), text(task, "reason"))).or_default() += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let rows = html! {
        @for ((topic, reason), count) in &counts {
            tr {
                td.number { (count) }
                td { a href=(with_query(Section::Dead.path(), &[("topic", topic)])) { (topic) } }
                td { (or_dash(reason)) }
            }
        }
    };
    let caption =
        if has_more { "Of the dead letters on this page" } else { "Of all dead letters here" };
    html! { h2 { "Reasons" } (table(caption, &["Number", "Topic", "Reason"], &rows)) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn reasons_are_grouped_and_escaped() {
        let dead = |reason: &str| json!({"topic": "t", "reason": reason, "id": "i", "died_at": ""});
        let page = json!({"tasks": [dead("b"), dead("<u>"), dead("<u>")], "cursor": null});
        let text = super::page("t", "", &Ok(page)).body.into_string();
        let (most, one) = (text.find("&lt;u&gt;").unwrap(), text.find("<td>b</td>").unwrap());
        assert!(most < one && text.contains(r#"<td class="number">2</td>"#), "{text}");
        assert!(
            !text.contains("<u>") && text.contains("action=redrive-many&amp;topic=t"),
            "{text}"
        );
        assert!(!text.contains("Next page") && !text.contains("misspelt"), "{text}");
    }

    #[test]
    fn a_list_of_no_dead_letters_says_that_the_topic_is_not_known() {
        let page = json!({"tasks": [], "cursor": null, "topic_known": false});
        let text = super::page("t", "", &Ok(page)).body.into_string();
        assert!(text.contains("no dead letters") && text.contains("misspelt"), "{text}");
    }
}
