//! Pending tasks of a topic, and the life of one task.

use az::SaturatingAs as _;
use maud::{Markup, html};
use serde_json::Value;

use super::action::{Action, Call, Verb};
use super::format::{
    distance, grouped, is_true, items, moment, moment_from, number, path, span, state, text,
    with_query,
};
use super::frame::{
    Answered, Page, Refused, Section, escaped, facts, nothing, sample, table, task_path,
    unknown_topic,
};
use crate::domain::Timestamp;

/// Tasks on a page.
const LIMIT: &str = "50";
/// Bytes of a payload, or of headers, on the page of a task.
const SHOWN_BYTES_MAX: usize = 16 << 10;

/// The list that a reader asks for.
#[derive(Clone, Copy, Default, Debug)]
pub struct Listed<'a> {
    pub topic: &'a str,
    /// The key of the tasks, or empty. The API takes a key or a prefix of names, with a topic.
    pub key: &'a str,
    /// The beginning of the tasks' names, or empty.
    pub name_prefix: &'a str,
    /// A range of due times, as the API reads them, or empty.
    pub due_from: &'a str,
    pub due_to: &'a str,
    /// The state of the tasks, or empty.
    pub state: &'a str,
    /// The end of the page before, or empty.
    pub cursor: &'a str,
}

impl<'a> Listed<'a> {
    /// Returns the call of the page.
    pub fn call(&self) -> Call {
        let page = [("limit", LIMIT), ("cursor", self.cursor)];
        Call::get(&with_query("/v1/tasks", &[&self.filters()[..], &page[..]].concat()))
    }

    /// Returns the filters by their names, which are the same in the API and in the form.
    const fn filters(&self) -> [(&'static str, &'a str); 6] {
        [
            ("topic", self.topic),
            ("key", self.key),
            ("name_prefix", self.name_prefix),
            ("due_from", self.due_from),
            ("due_to", self.due_to),
            ("state", self.state),
        ]
    }
}

/// Returns the call that looks a task up by its id.
pub fn look_up(id: &str) -> Call {
    Call::get(&path(&["v1", "tasks", id]))
}

/// Returns the call that looks a task up by its topic and name.
pub fn look_up_named(topic: &str, name: &str) -> Call {
    Call::get(&path(&["v1", "topics", topic, "tasks", name]))
}

/// Returns the page with the forms, and with a page of the list. `refused` says why a look-up found
/// nothing.
pub fn list(
    listed: Listed<'_>,
    (name, refused): (&str, Option<&Refused>),
    page: Option<&Answered>,
    now: Option<Timestamp>,
) -> Page {
    let body = html! {
        h1 { "Tasks" }
        @if let Some(refused) = refused { (refused.notice()) }
        (forms(listed, name))
        @match page {
            None => {},
            Some(Ok(page)) => (tasks(listed, page, now)),
            Some(Err(refused)) => (refused.notice()),
        }
        @if page.is_some() { (sample(&listed.call().curl())) }
    };
    Page { section: Section::Tasks, title: "Tasks".to_owned(), body, is_live: false }
}

fn forms(listed: Listed<'_>, name: &str) -> Markup {
    const STATES: [&str; 4] = ["", "scheduled", "awaiting", "retrying"];
    html! {
        form.inline method="get" action=(Section::Tasks.path()) {
            label for="id" { "Id" }
            input #id name="id" size="38" autocomplete="off" spellcheck="false";
            button type="submit" { "Look up" }
        }
        form.fields method="get" action=(Section::Tasks.path()) role="search" {
            (field("Topic", ("topic", listed.topic), ""))
            (field("Name", ("name", name), ""))
            (field("Name begins with", ("name_prefix", listed.name_prefix), ""))
            (field("Key", ("key", listed.key), ""))
            (field("Due from", ("due_from", listed.due_from), "2026-11-26T12:00Z"))
            (field("Due before", ("due_to", listed.due_to), "2026-11-27T00:00Z"))
            div {
                label for="state" { "State" }
                select #state name="state" {
                    @for state in STATES {
                        option value=(state) selected[state == listed.state] {
                            @if state.is_empty() { "any pending" } @else { (state) }
                        }
                    }
                }
            }
            button type="submit" { "Show" }
        }
        p.quiet {
            "With a name: that one task, also a finished one. Without: the pending tasks of the "
            "topic, or of all topics. A search by key or by the beginning of names needs the "
            "topic. Give only one of the two."
        }
    }
}

/// Writes a text field of a form under its label.
fn field(label: &str, (name, value): (&str, &str), placeholder: &str) -> Markup {
    let placeholder = Some(placeholder).filter(|placeholder| !placeholder.is_empty());
    html! {
        div {
            label for=(name) { (label) }
            input id=(name) name=(name) value=(value) placeholder=[placeholder]
                autocomplete="off" spellcheck="false";
        }
    }
}

fn tasks(listed: Listed<'_>, page: &Value, now: Option<Timestamp>) -> Markup {
    let rows = html! {
        @for task in items(page, "tasks") {
            tr {
                td { (moment_from(text(task, "due_at"), now)) }
                td { (text(task, "topic")) }
                td { (or_dash(text(task, "name"))) }
                td { (key_of(task)) }
                td { (state(text(task, "state"))) }
                td.id { a href=(task_path(text(task, "id"))) { code { (text(task, "id")) } } }
            }
        }
    };
    let cursor = text(page, "cursor");
    let pairs = [&listed.filters()[..], &[("cursor", cursor)]].concat();
    html! {
        (unknown_topic(page))
        @if items(page, "tasks").is_empty() {
            p {
                @if cursor.is_empty() { "No more tasks are pending here." }
                @else { "No task in this part of the list; it goes on." }
            }
        } @else {
            (table(
                "Pending tasks, by due time",
                &["Due", "Topic", "Name", "Key", "State", "Id"],
                &rows,
            ))
        }
        (next(Section::Tasks, &pairs))
    }
}

/// Writes the link to the next page, if there is one.
pub fn next(section: Section, pairs: &[(&str, &str)]) -> Markup {
    let has_more = pairs.last().is_some_and(|(_, cursor)| !cursor.is_empty());
    html! {
        @if has_more {
            p { a.button href=(with_query(section.path(), pairs)) { "Next page" } }
        }
    }
}

/// Writes a text, or a dash for none.
pub fn or_dash(text: &str) -> Markup {
    escaped(if text.is_empty() { "–" } else { text })
}

/// Writes the key of a task or of a schedule, as far as the reader may see it.
pub fn key_of(task: &Value) -> Markup {
    let (key, binary) = (text(task, "key"), text(task, "key_base64"));
    html! {
        @if is_true(task, "redacted") { span.quiet { "hidden" } }
        @else if !binary.is_empty() { code { (binary) } " (base64)" }
        @else { (or_dash(key)) }
    }
}

/// Returns the page of one task.
pub fn one(task: &Value, now: Option<Timestamp>) -> Page {
    let id = text(task, "id");
    let heading = [text(task, "name"), id].into_iter().find(|text| !text.is_empty());
    let heading = heading.unwrap_or_default();
    let body = html! {
        h1 { (heading) " " (state(text(task, "state"))) }
        (about(task, now))
        (actions(task))
        h2 { "Its life" }
        (life(task, now))
        (record(task))
        (sample(&look_up(id).curl()))
    };
    Page { section: Section::Tasks, title: heading.to_owned(), body, is_live: false }
}

fn about(task: &Value, now: Option<Timestamp>) -> Markup {
    let topic = text(task, "topic");
    let topic_page = with_query(Section::Tasks.path(), &[("topic", topic)]);
    let mut shown = vec![
        ("Id", html! { code { (text(task, "id")) } }),
        ("Topic", html! { a href=(topic_page) { (topic) } }),
        ("Due", moment_from(text(task, "due_at"), now)),
        ("Key", key_of(task)),
    ];
    if task.get("ttr").is_some() {
        let attempts = format!("{} of {}", number(task, "attempt"), number(task, "attempts_max"));
        shown.push(("Attempt", escaped(&attempts)));
        shown.push(("Time to run", escaped(text(task, "ttr"))));
    }
    let times = [
        ("Requested", "requested_due_at"),
        ("Expires", "expires_at"),
        ("Finish by", "finish_by"),
        ("Next attempt", "retry_at"),
    ];
    for (term, member) in times {
        if !text(task, member).is_empty() {
            shown.push((term, moment_from(text(task, member), now)));
        }
    }
    facts(&shown)
}

fn actions(task: &Value) -> Markup {
    let id = text(task, "id");
    let verbs: &[Verb] = match text(task, "state") {
        "scheduled" => &[Verb::Move, Verb::PublishNow, Verb::Cancel],
        "dead" => &[Verb::Redrive, Verb::Drop],
        _ => &[],
    };
    html! {
        @if !verbs.is_empty() {
            div.actions { @for verb in verbs { (Action::on_task(*verb, id).link()) } }
        }
    }
}

/// An event in the life of a task.
struct Event<'a> {
    /// Empty when it is not known.
    at: &'a str,
    said: Markup,
}

/// Writes the known events in the order of time: first the submit, last the events without a time.
fn life(task: &Value, now: Option<Timestamp>) -> Markup {
    let said = done_by("submitted", text(task, "submitted_by"));
    let submitted = Event { at: text(task, "submitted_at"), said };
    let due_at = text(task, "due_at");
    let is_ahead = Timestamp::of_rfc3339(due_at) > now;
    let said = escaped(if is_ahead { "will be due" } else { "was due" });
    let mut events = vec![Event { at: due_at, said }];
    // The last attempt of a finished task has the same time as the task's end.
    let is_end = |line: &&Value| text(line, "at") == text(task, "finished_at");
    events.extend(items(task, "attempts").iter().filter(|line| !is_end(line)).map(attempt));
    // Each attempt has its own receipt.
    let has_attempts = !items(task, "attempts").is_empty();
    let receipt = task.get("receipt").filter(|receipt| receipt.is_object() && !has_attempts);
    events.extend(receipt.map(published));
    for (at, by, done) in [
        ("finished_at", "finished_by", "finished"),
        ("dropped_at", "dropped_by", "dropped as a dead letter"),
    ] {
        if !text(task, at).is_empty() {
            events.push(Event { at: text(task, at), said: done_by(done, text(task, by)) });
        }
    }
    if !text(task, "died_at").is_empty() {
        let said = html! { "became a dead letter: " (or_dash(text(task, "reason"))) };
        events.push(Event { at: text(task, "died_at"), said });
    }
    if text(task, "state") == "expired" {
        events.push(Event { at: text(task, "expires_at"), said: escaped("expired, unpublished") });
    }
    if text(task, "state") == "cancelled" {
        events.push(Event { at: "", said: done_by("cancelled", text(task, "cancelled_by")) });
    }
    let heir = text(task, "replaced_by");
    if !heir.is_empty() {
        let said = html! { "replaced by " a href=(task_path(heir)) { code { (heir) } } };
        events.push(Event { at: "", said });
    }
    events.sort_by_key(|event| Timestamp::of_rfc3339(event.at).unwrap_or(Timestamp::MAX));
    html! {
        ol.timeline {
            @for event in std::iter::once(&submitted).chain(&events) {
                li {
                    @if !event.at.is_empty() {
                        (moment(event.at))
                        @if let Some(distance) = distance(event.at, now) {
                            span.quiet { (distance) ": " }
                        }
                    }
                    (event.said)
                }
            }
        }
    }
}

fn done_by(done: &str, by: &str) -> Markup {
    html! { (done) @if !by.is_empty() { " by " strong { (by) } } }
}

fn attempt(line: &Value) -> Event<'_> {
    let said = html! {
        "attempt " (number(line, "attempt")) " " (text(line, "outcome"))
        @if let Some(receipt) = line.get("receipt").filter(|receipt| receipt.is_object()) {
            ", " (place(receipt))
        }
        @if !text(line, "reason").is_empty() { ": " (text(line, "reason")) }
    };
    Event { at: text(line, "at"), said }
}

fn published(receipt: &Value) -> Event<'_> {
    let lateness = receipt.get("lateness_ms").and_then(Value::as_i64);
    let said = html! {
        "published, " (place(receipt))
        @if let Some(millis) = lateness {
            @match u64::try_from(millis) {
                Ok(millis) => { ", " (span(millis)) " after its due time" },
                Err(_negative) => { ", by a broker whose clock is behind" },
            }
        }
    };
    Event { at: text(receipt, "published_at"), said }
}

fn place(receipt: &Value) -> Markup {
    html! {
        "partition " (number(receipt, "partition")) ", offset " (number(receipt, "offset"))
    }
}

/// Writes headers and payload, as far as they are kept and the reader may see them.
pub fn record(task: &Value) -> Markup {
    if is_true(task, "redacted") {
        return html! {
            h2 { "Record" }
            p.quiet {
                "You have no right to see key, headers and payload (" code { "read-payload" } ")."
            }
        };
    }
    let headers = task.get("headers").map(pretty);
    let payload = if is_true(task, "tombstone") {
        Some("(none: the record is a tombstone)".to_owned())
    } else {
        let text = |name: &str| task.get(name).and_then(Value::as_str).map(str::to_owned);
        let binary = || text("payload_base64").map(|payload| format!("(base64) {payload}"));
        task.get("payload").map(pretty).or_else(|| text("payload_text")).or_else(binary)
    };
    if headers.is_none() && payload.is_none() {
        return nothing();
    }
    html! {
        h2 { "Record" }
        @for (title, shown) in [("Headers", headers), ("Payload", payload)] {
            @if let Some(shown) = shown { p { (title) } pre tabindex="0" { (beginning(&shown)) } }
        }
    }
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_else(|_never| value.to_string())
}

/// Returns the beginning of a text, and says when there is more.
fn beginning(text: &str) -> String {
    let end = text.floor_char_boundary(SHOWN_BYTES_MAX);
    match text.split_at_checked(end) {
        Some((shown, rest)) if !rest.is_empty() => {
            format!("{shown}\n… and {} bytes more; curl shows them", grouped_len(rest))
        }
        _ => text.to_owned(),
    }
}

fn grouped_len(text: &str) -> String {
    grouped(text.len().saturating_as::<u64>())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const HOSTILE: &str = "<img src=x onerror=alert(1)>";

    fn task() -> Value {
        json!({
            "id": "i", "topic": HOSTILE, "name": HOSTILE, "key": HOSTILE, "state": "dead",
            "due_at": "2030-01-31T09:30:00.000Z", "attempt": 2, "attempts_max": 2, "ttr": "30s",
            "submitted_by": HOSTILE, "submitted_at": "2030-01-31T09:00:00.000Z",
            "headers": {HOSTILE: HOSTILE}, "payload": {HOSTILE: 1}, "reason": HOSTILE,
            "died_at": "2030-01-31T09:40:00.000Z",
            "attempts": [{"attempt": 1, "outcome": "timed_out", "at": "2030-01-31T09:31:00.000Z",
                          "reason": HOSTILE,
                          "receipt": {"partition": 3, "offset": 7}}],
        })
    }

    #[test]
    fn the_life_of_a_task_is_in_order_and_escaped() {
        let now = Timestamp::of_rfc3339("2030-01-31T10:00:00Z");
        let text = one(&task(), now).body.into_string();
        let places: Vec<usize> =
            ["submitted by", "was due", "attempt 1 timed_out, partition 3", "became a dead letter"]
                .map(|said| text.find(said).expect(said))
                .to_vec();
        assert!(places.is_sorted(), "{text}");
        assert!(!text.contains("<img") && text.contains("Redrive this dead letter"), "{text}");
    }

    #[test]
    fn what_the_reader_may_not_see_is_said_to_be_hidden() {
        let task = json!({"id": "i", "topic": "t", "state": "scheduled", "redacted": true});
        let text = one(&task, None).body.into_string();
        assert!(text.contains("hidden") && text.contains("read-payload"), "{text}");
        for verb in ["move", "publish-now", "cancel"] {
            assert!(text.contains(&format!("action={verb}&amp;id=i")), "{verb}: {text}");
        }
    }

    #[test]
    fn a_large_payload_is_shown_in_part() {
        let task = json!({"id": "i", "state": "dead", "payload_text": "é".repeat(10_000)});
        let text = one(&task, None).body.into_string();
        assert!(text.contains("… and 3,616 bytes more") && text.len() < 30_000, "{text}");
    }

    #[test]
    fn a_list_is_escaped_and_goes_on() {
        let page = Ok(json!({"tasks": [task()], "cursor": "next+1"}));
        let listed = Listed { topic: HOSTILE, state: "awaiting", ..Listed::default() };
        let text = list(listed, (HOSTILE, None), Some(&page), None).body.into_string();
        assert!(!text.contains("<img") && text.contains("cursor=next%2B1"), "{text}");
        assert!(text.contains(r#"<option value="awaiting" selected>"#), "{text}");
        assert!(listed.call().path.contains("&state=awaiting&limit=50"));
    }

    #[test]
    fn a_list_of_no_tasks_says_that_the_topic_is_not_known() {
        let page = Ok(json!({"tasks": [], "cursor": null, "topic_known": false}));
        let listed = Listed { topic: "t", ..Listed::default() };
        let text = list(listed, ("", None), Some(&page), None).body.into_string();
        assert!(text.contains("No more tasks") && text.contains("misspelt"), "{text}");
    }

    #[test]
    fn a_search_keeps_its_filters_on_the_next_page() {
        let listed = Listed {
            topic: "t",
            key: " k&1",
            name_prefix: "order-",
            due_from: "2030-01-31T09:30:00+01:00",
            due_to: "2030-02-01T00:00Z",
            state: "scheduled",
            cursor: "",
        };
        let filters = "?topic=t&key=%20k%261&name_prefix=order-\
                       &due_from=2030-01-31T09%3A30%3A00%2B01%3A00&due_to=2030-02-01T00%3A00Z\
                       &state=scheduled";
        assert_eq!(listed.call().path, format!("/v1/tasks{filters}&limit=50"));
        let page = Ok(json!({"tasks": [], "cursor": "next"}));
        let text = list(listed, ("", None), Some(&page), None).body.into_string();
        let next = format!("/console/tasks{filters}&cursor=next").replace('&', "&amp;");
        assert!(text.contains(&next), "{text}");
        for field in [
            r#"id="key" name="key" value=" k&amp;1""#,
            r#"id="name_prefix" name="name_prefix" value="order-""#,
            r#"id="due_to" name="due_to" value="2030-02-01T00:00Z" placeholder="#,
        ] {
            assert!(text.contains(field), "{field} is missing in {text}");
        }
    }
}
