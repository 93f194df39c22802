//! The schedules of a topic, and one schedule with its next runs.

use maud::{Markup, html};
use serde_json::Value;

use super::action::{Action, Call, Verb};
use super::format::{is_true, items, moment_from, number, path, text, with_query};
use super::frame::{Answered, Page, Section, escaped, facts, sample, table, topic_form};
use super::tasks::{key_of, next, or_dash, record};
use crate::domain::Timestamp;

/// Runs on the page of a schedule.
const NEXT_RUNS: &str = "10";

/// Returns the call for a page of the schedules of a topic, from a name on.
pub fn call(topic: &str, after: &str) -> Call {
    Call::get(&with_query(&path(&["v1", "schedules", topic]), &[("after", after)]))
}

/// Returns the call that looks a schedule up.
pub fn look_up(topic: &str, name: &str) -> Call {
    let path = path(&["v1", "schedules", topic, name]);
    Call::get(&with_query(&path, &[("next", NEXT_RUNS)]))
}

/// Returns the page of a topic. There is no answer while the reader has named none.
pub fn list(
    (topic, after): (&str, &str),
    answer: Option<&Answered>,
    now: Option<Timestamp>,
) -> Page {
    let body = html! {
        h1 { "Schedules" }
        (topic_form(Section::Schedules, topic))
        @match answer {
            None => p { "Schedules belong to a topic: name one." },
            Some(Ok(page)) => (listed(topic, page, now)),
            Some(Err(refused)) => (refused.notice()),
        }
        @if answer.is_some() { (sample(&call(topic, after).curl())) }
    };
    Page { section: Section::Schedules, title: "Schedules".to_owned(), body, is_live: false }
}

fn listed(topic: &str, page: &Value, now: Option<Timestamp>) -> Markup {
    let schedules = items(page, "schedules");
    let rows = html! {
        @for schedule in schedules {
            @let name = text(schedule, "name");
            tr {
                th scope="row" { a href=(path(&["console", "schedules", topic, name])) { (name) } }
                td { (recurrence(schedule)) }
                td { (standing(schedule)) }
                td { (moment_from(text(schedule, "next_run_at"), now)) }
                td.number { (number(schedule, "runs_made")) }
                td { (or_dash(text(schedule, "note"))) }
            }
        }
    };
    html! {
        @if schedules.is_empty() {
            p { "This topic has no more schedules." }
        } @else {
            (table(
                "Schedules, by name",
                &["Name", "Runs", "State", "Next run", "Runs made", "Note"],
                &rows,
            ))
        }
        (next(Section::Schedules, &[("topic", topic), ("after", text(page, "next_after"))]))
    }
}

fn standing(schedule: &Value) -> Markup {
    html! {
        @if is_true(schedule, "paused") { span.state.busy { "paused" } }
        @else if text(schedule, "next_run_at").is_empty() { span.state { "ended" } }
        @else { span.state.good { "active" } }
    }
}

fn recurrence(schedule: &Value) -> Markup {
    let (cron, every) = (text(schedule, "cron"), text(schedule, "every"));
    html! {
        @if cron.is_empty() { "every " (every) } @else {
            code { (cron) } " " (text(schedule, "time_zone"))
            @if !text(schedule, "words").is_empty() {
                br; span.quiet { (text(schedule, "words")) }
            }
        }
    }
}

/// Says which of the missed runs are made later, as after a pause.
fn missed(schedule: &Value) -> Option<String> {
    let missed = schedule.get("missed")?;
    let what = match text(missed, "policy") {
        "none" => "none is made",
        "last" => "the last is made",
        "all" => "all are made",
        other => other,
    };
    let within = match text(missed, "within") {
        "" => String::new(),
        within => format!(", if not older than {within}"),
    };
    let most = match number(missed, "count_max") {
        0 => String::new(),
        most => format!(", at most {most}"),
    };
    Some(format!("{what}{within}{most}"))
}

/// Returns the page of one schedule.
pub fn one(schedule: &Value, now: Option<Timestamp>) -> Page {
    let (topic, name) = (text(schedule, "topic"), text(schedule, "name"));
    let topic_page = with_query(Section::Schedules.path(), &[("topic", topic)]);
    let mut shown = vec![
        ("Topic", html! { a href=(topic_page) { (topic) } }),
        ("Runs", recurrence(schedule)),
        ("State", standing(schedule)),
        ("Next run", moment_from(text(schedule, "next_run_at"), now)),
        ("Runs made", html! { (number(schedule, "runs_made")) }),
        ("Key", key_of(schedule)),
        ("Revision", html! { (number(schedule, "revision")) }),
    ];
    shown.extend(missed(schedule).map(|said| ("Missed runs", escaped(&said))));
    for (term, member) in [("Note", "note"), ("Time to run", "ttr")] {
        if !text(schedule, member).is_empty() {
            shown.push((term, escaped(text(schedule, member))));
        }
    }
    let pause = if is_true(schedule, "paused") { Verb::Resume } else { Verb::Pause };
    let body = html! {
        h1 { (name) }
        (facts(&shown))
        div.actions {
            (Action::on_schedule(pause, topic, name).link())
            (Action::on_schedule(Verb::Trigger, topic, name).link())
        }
        h2 { "Next runs" }
        @if items(schedule, "next").is_empty() {
            p { "It has no more runs." }
        } @else {
            ol {
                @for run in items(schedule, "next").iter().filter_map(Value::as_str) {
                    li { (moment_from(run, now)) }
                }
            }
        }
        (record(schedule))
        (sample(&look_up(topic, name).curl()))
    };
    Page { section: Section::Schedules, title: name.to_owned(), body, is_live: false }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schedule(paused: bool) -> Value {
        json!({
            "topic": "t", "name": "a/<b>", "cron": "0 9 * * *", "time_zone": "UTC",
            "words": "at 09:00", "paused": paused, "revision": 3, "runs_made": 7,
            "next_run_at": "2030-01-31T09:00:00.000Z", "next": ["2030-01-31T09:00:00.000Z"],
            "note": "<i>", "payload": "<p>", "missed": {"policy": "last"},
        })
    }

    #[test]
    fn a_schedule_says_what_becomes_of_its_missed_runs() {
        for (policy, said) in [
            (json!({"policy": "none"}), "none is made"),
            (json!({"policy": "last", "within": "2h"}), "the last is made, if not older than 2h"),
            (
                json!({"policy": "all", "within": "1h", "count_max": 100}),
                "all are made, if not older than 1h, at most 100",
            ),
        ] {
            let schedule = json!({ "topic": "t", "name": "n", "missed": policy });
            let text = one(&schedule, None).body.into_string();
            assert!(text.contains(&format!("<dd>{said}</dd>")), "{said}: {text}");
        }
    }

    #[test]
    fn a_paused_schedule_can_be_resumed_and_another_one_paused() {
        for (paused, wanted) in [(true, "action=resume"), (false, "action=pause")] {
            let text = one(&schedule(paused), None).body.into_string();
            assert!(text.contains(wanted) && text.contains("action=trigger"), "{text}");
            assert!(
                !text.contains("<b>") && !text.contains("<i>") && !text.contains("\"<p>"),
                "{text}"
            );
        }
    }

    #[test]
    fn a_list_leads_to_its_schedules() {
        let page = json!({"schedules": [schedule(false)], "next_after": "a/<b>"});
        let text = list(("t", ""), Some(&Ok(page)), None).body.into_string();
        assert!(text.contains(r#"href="/console/schedules/t/a%2F%3Cb%3E""#), "{text}");
        assert!(text.contains("after=a%2F%3Cb%3E") && !text.contains("<b>"), "{text}");
        assert!(list(("", ""), None, None).body.into_string().contains("name one"));
    }
}
