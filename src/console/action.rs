//! The calls of the REST API that change something, each with a page that asks first.

pub mod outcome;
mod verb;

use std::collections::BTreeMap;

use maud::{Markup, html};
use serde_json::{Value, json};

use super::format::{grouped, is_true, number, path, with_query};
use super::frame::{
    Answered, Page, Reader, Section, csrf, escaped, facts, nothing, sample, task_path,
};
use crate::domain::Timestamp;
use crate::domain::topic::policy::REASON_BYTES_MAX;

pub use self::verb::Verb;

/// A call of the REST API.
#[derive(Clone, PartialEq, Debug)]
pub struct Call {
    pub method: &'static str,
    /// Percent-encoded, perhaps with a query.
    pub path: String,
    pub body: Option<Value>,
}

impl Call {
    /// Makes a call that reads.
    pub fn get(path: &str) -> Self {
        Self { method: "GET", path: path.to_owned(), body: None }
    }

    /// Writes the call for bash or zsh. The token stays in its file, because others can see the
    /// arguments of a program. Without the variables, the shell calls a node on this machine,
    /// without a token.
    pub fn curl(&self) -> String {
        let mut text = String::from("curl");
        if self.method != "GET" {
            text.push_str(" -X ");
            text.push_str(self.method);
        }
        // The path is percent-encoded, so that it has no character with a meaning for the shell.
        text.push_str(" \"${PUNCTUAL_URL:-http://127.0.0.1:7070}");
        text.push_str(&self.path);
        text.push_str(
            r#"" \
  -H @<(sed 's/^/authorization: Bearer /' "${PUNCTUAL_TOKEN_FILE:-/dev/null}")"#,
        );
        if let Some(body) = &self.body {
            let body = body.to_string().replace('\'', r"'\''");
            text.push_str(" \\\n  -H 'content-type: application/json' -d '");
            text.push_str(&body);
            text.push('\'');
        }
        text
    }
}

/// The fields of a form, or of a query.
#[derive(Clone, Debug, Default)]
pub struct Fields(BTreeMap<String, String>);

impl Fields {
    pub fn new(pairs: Vec<(String, String)>) -> Self {
        Self(pairs.into_iter().collect())
    }

    /// Returns the value of a field without white space around it, or an empty text.
    pub fn get(&self, name: &str) -> &str {
        self.exact(name).trim()
    }

    /// Returns the value of a field as it is. Names may begin or end with white space.
    pub fn exact(&self, name: &str) -> &str {
        self.0.get(name).map(String::as_str).unwrap_or_default()
    }
}

/// An action on a task, on a topic, on its dead letters, or on a schedule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Action {
    pub verb: Verb,
    /// The id of a task, or empty.
    id: String,
    topic: String,
    /// The name of a schedule, or empty.
    name: String,
    /// A range of due times of dead letters, as the API reads them, or empty.
    due_from: String,
    due_to: String,
    /// The other topic to which dead letters go, or empty.
    to_topic: String,
    /// The place where an earlier call has ended, or empty.
    cursor: String,
    /// The new due time of a task, or its delay from now on, or empty.
    due: String,
    /// The reason for the pause of a topic, or empty.
    reason: String,
}

impl Action {
    /// Reads an action from a form or a query, without the fields that its call does not use.
    pub fn read(fields: &Fields) -> Option<Self> {
        let verb = Verb::ALL.into_iter().find(|verb| verb.name() == fields.get("action"))?;
        let used = |field, value: &str| {
            let is_used = verb.fields().contains(&field);
            if is_used { value.to_owned() } else { String::new() }
        };
        let name = used("name", fields.exact("name"));
        let [id, topic, due_from, due_to, to_topic, cursor, due, reason] =
            ["id", "topic", "due_from", "due_to", "to_topic", "cursor", "due", "reason"]
                .map(|field| used(field, fields.get(field)));
        Some(Self { verb, id, topic, name, due_from, due_to, to_topic, cursor, due, reason })
    }

    /// Makes an action on one task.
    pub fn on_task(verb: Verb, id: &str) -> Self {
        Self { id: id.to_owned(), ..Self::nowhere(verb) }
    }

    /// Makes an action on a topic, or on its dead letters.
    pub fn on_topic(verb: Verb, topic: &str) -> Self {
        Self { topic: topic.to_owned(), ..Self::nowhere(verb) }
    }

    /// Makes an action on a schedule.
    pub fn on_schedule(verb: Verb, topic: &str, name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::on_topic(verb, topic) }
    }

    fn nowhere(verb: Verb) -> Self {
        let none = String::new;
        Self {
            verb,
            id: none(),
            topic: none(),
            name: none(),
            due_from: none(),
            due_to: none(),
            to_topic: none(),
            cursor: none(),
            due: none(),
            reason: none(),
        }
    }

    fn fields(&self) -> [(&'static str, &str); 10] {
        [
            ("action", self.verb.name()),
            ("id", &self.id),
            ("topic", &self.topic),
            ("name", &self.name),
            ("due_from", &self.due_from),
            ("due_to", &self.due_to),
            ("to_topic", &self.to_topic),
            ("cursor", &self.cursor),
            ("due", &self.due),
            ("reason", &self.reason),
        ]
    }

    /// Returns false while the action lacks a value that its call needs.
    fn is_complete(&self) -> bool {
        self.verb != Verb::Move || !self.due.is_empty()
    }

    /// Returns the call of the API.
    pub fn call(&self) -> Call {
        let of_task = || path(&["v1", "tasks", &self.id]);
        let of_dead = |verb| path(&["v1", "dead", &self.id, verb]);
        let of_schedule = |verb| path(&["v1", "schedules", &self.topic, &self.name, verb]);
        let of_topic = |verb| path(&["v1", "topics", &self.topic, verb]);
        let (method, path, body) = match self.verb {
            Verb::Move => ("PATCH", of_task(), body_of(self.due_member(), &self.due)),
            Verb::PublishNow => ("PATCH", of_task(), body_of("delay", "0s")),
            Verb::Cancel => ("DELETE", of_task(), None),
            Verb::Redrive => ("POST", of_dead("redrive"), body_of("to_topic", &self.to_topic)),
            Verb::Drop => ("DELETE", path(&["v1", "dead", &self.id]), None),
            Verb::RedriveMany => ("POST", path(&["v1", "dead", "redrive"]), Some(self.body(false))),
            Verb::DropMany => ("POST", path(&["v1", "dead", "drop"]), Some(self.body(false))),
            Verb::Pause => ("POST", of_schedule("pause"), None),
            Verb::Resume => ("POST", of_schedule("resume"), None),
            Verb::Trigger => ("POST", of_schedule("trigger"), None),
            Verb::PauseTopic => ("POST", of_topic("pause"), body_of("reason", &self.reason)),
            Verb::ResumeTopic => ("POST", of_topic("resume"), None),
        };
        Call { method, path, body }
    }

    /// Returns the call that only counts, for an action on many dead letters.
    pub fn dry_run(&self) -> Option<Call> {
        let is_of_many = matches!(self.verb, Verb::RedriveMany | Verb::DropMany);
        is_of_many.then(|| Call { body: Some(self.body(true)), ..self.call() })
    }

    /// Returns the member of the body for the new due time. A time begins with a digit and has
    /// hyphens in its date. No valid delay has both.
    fn due_member(&self) -> &'static str {
        let is_time =
            self.due.starts_with(|first: char| first.is_ascii_digit()) && self.due.contains('-');
        if is_time { "due_at" } else { "delay" }
    }

    fn body(&self, is_dry_run: bool) -> Value {
        let mut body = json!({ "topic": self.topic });
        let given = [
            ("due_from", &self.due_from),
            ("due_to", &self.due_to),
            ("to_topic", &self.to_topic),
            ("cursor", &self.cursor),
        ];
        for (name, value) in given.into_iter().filter(|(_, value)| !value.is_empty()) {
            body[name] = json!(value);
        }
        if is_dry_run {
            body["dry_run"] = json!(true);
        }
        body
    }

    /// Ends the open range of a drop at `now`. Letters that were due before, and die after the
    /// count, are still dropped.
    #[must_use]
    pub fn until(mut self, now: Timestamp) -> Self {
        if self.verb == Verb::DropMany && self.due_to.is_empty() {
            self.due_to = now.ceil_millis().to_string();
        }
        self
    }

    /// Writes the link to the page that asks first.
    pub fn link(&self) -> Markup {
        let target = with_query("/console/confirm", &self.fields());
        html! { a.button href=(target) { (self.verb.title()) } }
    }

    /// Writes the object of the action. `asked_for` is a field that the page shows elsewhere.
    fn object(&self, asked_for: Option<&str>) -> Markup {
        let fields = self.fields();
        let given = fields.iter().filter(|(name, value)| {
            !value.is_empty() && asked_for.is_none_or(|asked_for| asked_for != *name)
        });
        let shown = given.filter_map(|(name, value)| Some((term_of(name)?, escaped(value))));
        facts(&shown.collect::<Vec<_>>())
    }

    /// Returns the page that the action leads back to.
    fn back(&self) -> String {
        match self.verb {
            Verb::Move | Verb::PublishNow | Verb::Cancel | Verb::Redrive | Verb::Drop => {
                task_path(&self.id)
            }
            Verb::RedriveMany | Verb::DropMany => {
                with_query(Section::Dead.path(), &[("topic", &self.topic)])
            }
            Verb::Pause | Verb::Resume | Verb::Trigger => {
                path(&["console", "schedules", &self.topic, &self.name])
            }
            Verb::PauseTopic | Verb::ResumeTopic => {
                with_query(Section::Topics.path(), &[("topic", &self.topic)])
            }
        }
    }

    fn form(&self, reader: &Reader, label: &str) -> Markup {
        let class = if self.verb.is_destructive() { "danger" } else { "primary" };
        let (fields, asked_for) = (self.fields(), self.verb.asked_for());
        let is_hidden = |(name, value): &&(&str, &str)| {
            !value.is_empty() && asked_for.is_none_or(|asked_for| asked_for != *name)
        };
        let hidden = fields.iter().filter(is_hidden);
        html! {
            form method="post" action="/console/act" {
                (csrf(reader))
                @for (name, value) in hidden {
                    input type="hidden" name=(name) value=(value);
                }
                @if asked_for.is_some() { div.inline { (self.input()) } }
                div.actions {
                    button.(class) type="submit" { (label) }
                    (self.back_link())
                }
            }
        }
    }

    /// Writes the field that the reader may fill in.
    fn input(&self) -> Markup {
        match self.verb {
            Verb::Move => due_input(self),
            Verb::Redrive => target_input(self),
            Verb::PauseTopic => reason_input(self),
            _ => nothing(),
        }
    }

    fn back_link(&self) -> Markup {
        html! { a.button href=(self.back()) { "Back" } }
    }
}

/// Returns what people call a field. The page shows no others.
fn term_of(field: &str) -> Option<&'static str> {
    match field {
        "id" => Some("Task"),
        "topic" => Some("Topic"),
        "name" => Some("Schedule"),
        "due_from" => Some("Due from"),
        "due_to" => Some("Due before"),
        "to_topic" => Some("To topic"),
        "due" => Some("New due time"),
        "reason" => Some("Reason"),
        _ => None,
    }
}

/// Returns a body with one member, or no body for an empty value.
fn body_of(name: &str, value: &str) -> Option<Value> {
    (!value.is_empty()).then(|| json!({ name: value }))
}

/// Returns the page that asks before an action. `counted` is the answer of its dry run.
pub fn confirm(action: &Action, reader: &Reader, counted: Option<&Answered>) -> Page {
    let title = action.verb.title();
    let counts = match counted {
        None => nothing(),
        Some(Err(refused)) => refused.notice(),
        Some(Ok(done)) => html! {
            p {
                @if is_true(done, "more") {
                    strong { (grouped(count_of(done))) } " or more dead letters are meant now."
                } @else {
                    strong { (dead_letters_are(count_of(done))) } " meant now."
                }
            }
        },
    };
    let can_go_on = counted.is_none_or(|counted| counted.is_ok());
    let body = html! {
        h1 { (title) "?" }
        (action.object(action.verb.asked_for()))
        @if action.dry_run().is_some() { (range_form(action)) }
        (counts)
        p { (action.verb.consequence()) }
        @if can_go_on { (action.form(reader, title)) }
        @else { div.actions { (action.back_link()) } }
        @if action.is_complete() { (sample(&action.call().curl())) }
    };
    Page { section: action.verb.section(), title: title.to_owned(), body, is_live: false }
}

/// Writes the form that changes the range of due times. A change counts again.
fn range_form(action: &Action) -> Markup {
    html! {
        form.inline method="get" action="/console/confirm" {
            input type="hidden" name="action" value=(action.verb.name());
            input type="hidden" name="topic" value=(action.topic);
            label for="due_from" { "Due from" }
            input #due_from name="due_from" value=(action.due_from)
                placeholder="2026-11-26T12:00:00Z";
            label for="due_to" { "before" }
            input #due_to name="due_to" value=(action.due_to) placeholder="2026-11-27T00:00:00Z";
            @if action.verb == Verb::RedriveMany { (target_input(action)) }
            button type="submit" { "Count again" }
        }
    }
}

fn target_input(action: &Action) -> Markup {
    html! {
        label for="to_topic" { "to another topic" }
        input #to_topic name="to_topic" value=(action.to_topic) placeholder="the same topic";
    }
}

fn due_input(action: &Action) -> Markup {
    html! {
        label for="due" { "New due time" }
        input #due name="due" value=(action.due) required autocomplete="off" spellcheck="false"
            size="30" placeholder="2026-11-26T12:00:00Z, or 2h";
    }
}

/// Writes the field for a reason, whose limit in bytes the API checks.
fn reason_input(action: &Action) -> Markup {
    html! {
        label for="reason" { "Reason" }
        input #reason name="reason" value=(action.reason) maxlength=(REASON_BYTES_MAX)
            size="40" autocomplete="off" placeholder="optional, for people";
    }
}

/// Returns the number of changed dead letters, whose member has the name of the change.
fn count_of(done: &Value) -> u64 {
    number(done, "redriven").max(number(done, "dropped"))
}

/// Writes a number of dead letters as the subject of a sentence.
fn dead_letters_are(count: u64) -> String {
    match count {
        1 => "1 dead letter is".to_owned(),
        count => format!("{} dead letters are", grouped(count)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::console::frame::Refused;

    pub fn reader() -> Reader {
        Reader { name: None, has_session: false, has_now: true, csrf: "seal".to_owned() }
    }

    fn read(pairs: &[(&str, &str)]) -> Option<Action> {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Action::read(&Fields::new(pairs.iter().map(own).collect()))
    }

    #[test]
    fn each_action_is_the_call_that_it_names() {
        for (pairs, method, path) in [
            (&[("action", "move"), ("id", "i"), ("due", "2h")][..], "PATCH", "/v1/tasks/i"),
            (&[("action", "publish-now"), ("id", "i")], "PATCH", "/v1/tasks/i"),
            (&[("action", "cancel"), ("id", "i")], "DELETE", "/v1/tasks/i"),
            (&[("action", "redrive"), ("id", "i")], "POST", "/v1/dead/i/redrive"),
            (&[("action", "drop"), ("id", "../x")], "DELETE", "/v1/dead/..%2Fx"),
            (&[("action", "redrive-many"), ("topic", "t")], "POST", "/v1/dead/redrive"),
            (&[("action", "drop-many"), ("topic", "t")], "POST", "/v1/dead/drop"),
            (
                &[("action", "pause"), ("topic", "t"), ("name", "a/b")],
                "POST",
                "/v1/schedules/t/a%2Fb/pause",
            ),
            (
                &[("action", "resume"), ("topic", "t"), ("name", "n")],
                "POST",
                "/v1/schedules/t/n/resume",
            ),
            (
                &[("action", "trigger"), ("topic", "t"), ("name", "n")],
                "POST",
                "/v1/schedules/t/n/trigger",
            ),
            (
                &[("action", "pause"), ("topic", "t"), ("name", " n")],
                "POST",
                "/v1/schedules/t/%20n/pause",
            ),
            (&[("action", "pause-topic"), ("topic", "a/b")], "POST", "/v1/topics/a%2Fb/pause"),
            (&[("action", "resume-topic"), ("topic", "t")], "POST", "/v1/topics/t/resume"),
        ] {
            let call = read(pairs).unwrap().call();
            assert_eq!((call.method, call.path.as_str()), (method, path));
        }
        assert_eq!(read(&[("action", "submit")]), None);
        assert_eq!(Verb::ALL.len(), 12, "each of them has its line above");
    }

    #[test]
    fn many_dead_letters_are_counted_before_they_are_changed() {
        let pairs =
            [("action", "drop-many"), ("topic", "it's"), ("due_to", "2030-01-01T00:00:00Z")];
        let action = read(&pairs).unwrap();
        let body = json!({"topic": "it's", "due_to": "2030-01-01T00:00:00Z"});
        assert_eq!(action.call().body, Some(body));
        assert_eq!(action.dry_run().unwrap().body.unwrap()["dry_run"], true);
        assert!(
            action
                .call()
                .curl()
                .contains(r#"-d '{"due_to":"2030-01-01T00:00:00Z","topic":"it'\''s"}'"#)
        );
        assert_eq!(Action::on_task(Verb::Drop, "i").dry_run(), None);
        let refused = Err(Refused::new(403, "forbidden", "the right is missing"));
        let page = confirm(&action, &reader(), Some(&refused)).body.into_string();
        assert!(!page.contains("/console/act"), "what may not be counted is not offered: {page}");
    }

    #[test]
    fn a_drop_of_many_ends_at_the_time_of_its_count() {
        let now = Timestamp::of_rfc3339("2030-01-31T09:30:00.123Z").unwrap();
        for (verb, given, wanted) in [
            ("drop-many", "", "2030-01-31T09:30:00.123Z"),
            ("drop-many", "2030-01-01T00:00:00Z", "2030-01-01T00:00:00Z"),
            ("redrive-many", "", ""),
        ] {
            let action = read(&[("action", verb), ("topic", "t"), ("due_to", given)]).unwrap();
            assert_eq!(action.until(now).due_to, wanted, "{verb}");
        }
    }

    #[test]
    fn dead_letters_go_to_another_topic() {
        for (pairs, body) in [
            ([("action", "redrive"), ("id", "i")], json!({ "to_topic": "other" })),
            (
                [("action", "redrive-many"), ("topic", "t")],
                json!({ "topic": "t", "to_topic": "other" }),
            ),
        ] {
            let action = read(&[&pairs[..], &[("to_topic", "other")]].concat()).unwrap();
            assert_eq!(action.call().body, Some(body));
            let counted = Ok(json!({ "redriven": 1 }));
            let counted = action.dry_run().map(|_call| &counted);
            let page = confirm(&action, &reader(), counted).body.into_string();
            for part in [r#"name="to_topic" value="other""#, r#"id="to_topic""#] {
                assert!(page.contains(part), "{part} is missing in {page}");
            }
        }
        let drop = read(&[("action", "drop-many"), ("topic", "t"), ("to_topic", "x")]).unwrap();
        assert_eq!(drop.call().body, Some(json!({ "topic": "t" })));
    }

    #[test]
    fn a_task_moves_to_a_time_or_by_a_delay() {
        for (due, member) in [
            ("2030-01-31T09:30:00+01:00", "due_at"),
            ("2030-01-31T09:30[Europe/Berlin]", "due_at"),
            (" 1h 30m ", "delay"),
            ("PT30M", "delay"),
            ("-5m", "delay"),
            ("PT-5M", "delay"),
        ] {
            let action = read(&[("action", "move"), ("id", "i"), ("due", due)]).unwrap();
            let due = due.trim();
            assert_eq!(action.call().body, Some(json!({ member: due })));
            let page = confirm(&action, &reader(), None).body.into_string();
            let given = format!(r#"name="due" value="{due}""#);
            for part in [given.as_str(), "-X PATCH", "/console/act"] {
                assert!(page.contains(part), "{part} is missing in {page}");
            }
            assert_eq!(page.matches(r#"name="due""#).count(), 1, "the field is there once: {page}");
        }
        let now = Action::on_task(Verb::PublishNow, "i").call();
        assert_eq!(now.body, Some(json!({ "delay": "0s" })));
    }

    #[test]
    fn a_move_asks_for_the_due_time_that_it_sends() {
        let page = confirm(&Action::on_task(Verb::Move, "i"), &reader(), None).body.into_string();
        let (_, form) = page.split_once("/console/act").unwrap();
        for part in [r#"id="due""#, "required", r#"name="id" value="i""#] {
            assert!(form.contains(part), "{part} is missing in {form}");
        }
        assert!(form.contains(r#"href="/console/tasks/i""#) && !page.contains("curl"), "{page}");
    }

    #[test]
    fn an_action_has_only_the_fields_of_its_call() {
        let all = ["id", "topic", "name", "due_from", "due_to", "to_topic", "cursor", "due"];
        for verb in Verb::ALL {
            let mut pairs = vec![("action", verb.name()), ("reason", "x-reason")];
            pairs.extend(all.map(|field| (field, "x-value")));
            let action = read(&pairs).unwrap();
            let given = action.fields().into_iter().filter(|(_, value)| value.starts_with("x-"));
            let mut given: Vec<&str> = given.map(|(name, _)| name).collect();
            let mut wanted = verb.fields().to_vec();
            given.sort_unstable();
            wanted.sort_unstable();
            assert_eq!(given, wanted, "{verb:?}");
        }
    }

    #[test]
    fn a_topic_is_paused_for_a_reason_or_for_none() {
        let pause = [("action", "pause-topic"), ("topic", "t")];
        let silent = read(&pause).unwrap();
        assert_eq!(silent.call().body, None);
        let page = confirm(&silent, &reader(), None).body.into_string();
        assert!(page.contains(r#"id="reason""#) && !page.contains("<dt>Reason</dt>"), "{page}");
        let told = read(&[&pause[..], &[("reason", " it's <b> ")]].concat()).unwrap();
        assert_eq!(told.call().body, Some(json!({ "reason": "it's <b>" })));
        let page = confirm(&told, &reader(), None).body.into_string();
        assert!(page.contains(r#"value="it's &lt;b&gt;""#), "{page}");
        assert_eq!(page.matches(r#"name="reason""#).count(), 1, "the field is there once: {page}");
    }

    #[test]
    fn the_page_that_asks_sends_the_action_and_its_seal() {
        let action = Action::on_schedule(Verb::Trigger, "t", "\"><b>");
        let page = confirm(&action, &reader(), None).body.into_string();
        for part in [r#"name="csrf" value="seal""#, r#"name="action" value="trigger""#] {
            assert!(page.contains(part), "{part} is missing in {page}");
        }
        assert!(page.contains("{PUNCTUAL_TOKEN_FILE:-") && !page.contains("<b>"), "{page}");
    }
}
