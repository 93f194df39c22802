//! The page after an action. A success has an address of its own, and the answer to the form leads
//! there: a reload of the page must not repeat the action.

use maud::{Markup, html};
use serde_json::{Map, Value};

use super::{Action, Fields, Verb, count_of, dead_letters_are};
use crate::console::format::{grouped, is_true, moment, number, text, with_query};
use crate::console::frame::{Page, Reader, Refused, facts, sample, task_path};

/// The members of an answer, or of the task in it, that the page shows.
const SHOWN: [&str; 8] =
    ["redriven", "dropped", "more", "cursor", "in_flight", "id", "due_at", "paused"];

/// What an action has changed.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    action: Action,
    /// The members of the call's answer that the page shows.
    done: Value,
}

impl Outcome {
    pub fn new(action: Action, done: &Value) -> Self {
        let members = SHOWN.iter().filter_map(|name| {
            let member = done.get(*name).or_else(|| done.get("task")?.get(*name))?;
            Some(((*name).to_owned(), member.clone()))
        });
        Self { action, done: Value::Object(members.collect::<Map<String, Value>>()) }
    }

    /// Reads the fields of [`Self::address`].
    pub fn read(fields: &Fields) -> Option<Self> {
        let done: Value = serde_json::from_str(fields.get("done")).ok()?;
        Some(Self { action: Action::read(fields)?, done }).filter(|read| read.done.is_object())
    }

    /// Returns the bytes that the seal of the address is made of.
    pub fn sealed(&self) -> Vec<u8> {
        self.address("").into_bytes()
    }

    /// Returns the address of the page. Without the right seal the page says nothing, because
    /// anybody can write an address that tells of a success.
    pub fn address(&self, seal: &str) -> String {
        let done = self.done.to_string();
        let mut fields = self.action.fields().to_vec();
        fields.extend([("done", done.as_str()), ("seal", seal)]);
        with_query("/console/done", &fields)
    }

    /// Returns the page.
    pub fn page(&self, reader: &Reader) -> Page {
        page(&self.action, &succeeded(&self.action, reader, &self.done))
    }
}

/// Returns the page after an action that was refused.
pub fn refused(action: &Action, refused: &Refused) -> Page {
    page(action, &failed(action, refused))
}

fn page(action: &Action, body: &Markup) -> Page {
    let title = action.verb.title();
    let body = html! {
        h1 { (title) }
        (action.object(None))
        (body)
        (sample(&action.call().curl()))
    };
    Page { section: action.verb.section(), title: title.to_owned(), body, is_live: false }
}

fn succeeded(action: &Action, reader: &Reader, done: &Value) -> Markup {
    let said = match action.verb {
        Verb::Move => "The task is moved to its new due time.".to_owned(),
        Verb::PublishNow => "The task is due now.".to_owned(),
        Verb::Cancel => "The task is cancelled: its record will never be published.".to_owned(),
        Verb::Redrive => "The dead letter is redriven: its task is due now.".to_owned(),
        Verb::Drop => "The dead letter is dropped.".to_owned(),
        Verb::RedriveMany => format!("{} redriven.", dead_letters_are(count_of(done))),
        Verb::DropMany => format!("{} dropped.", dead_letters_are(count_of(done))),
        Verb::Pause => "The schedule is paused.".to_owned(),
        Verb::Resume => "The schedule makes runs again.".to_owned(),
        Verb::Trigger => "A run is made, and due now.".to_owned(),
        Verb::PauseTopic => match number(done, "in_flight") {
            0 => "The topic is paused.".to_owned(),
            1 => "The topic is paused. One claimed task still goes out.".to_owned(),
            count => format!("The topic is paused. {} claimed tasks still go out.", grouped(count)),
        },
        Verb::ResumeTopic => "The topic is published to again.".to_owned(),
    };
    let next = Action { cursor: text(done, "cursor").to_owned(), ..action.clone() };
    html! {
        div.verdict role="status" { strong { (said) } }
        @if matches!(action.verb, Verb::Move | Verb::PublishNow) {
            (facts(&[("Due", moment(text(done, "due_at")))]))
        }
        @if let Some(former) = former_reason(action, done) {
            p {
                "It was paused before"
                @if !former.is_empty() { ", for this reason: " (former) } "."
            }
        }
        @if is_true(done, "more") {
            p { "More are left, or may be." }
            (next.form(reader, "Continue"))
        } @else {
            div.actions {
                @if action.verb == Verb::Trigger {
                    a.button.primary href=(task_path(text(done, "id"))) { "The run" }
                }
                (action.back_link())
            }
        }
    }
}

/// Returns the reason of the pause that goes on, if the topic was paused before: a repeated pause
/// changes nothing.
fn former_reason<'a>(action: &Action, done: &'a Value) -> Option<&'a str> {
    let paused = done.get("paused").filter(|_| action.verb == Verb::PauseTopic)?;
    Some(text(paused, "reason")).filter(|reason| *reason != action.reason)
}

fn failed(action: &Action, refused: &Refused) -> Markup {
    let state = refused.problem.pointer("/task/state").and_then(Value::as_str);
    let kind = text(&refused.problem, "type");
    let is_unknown = ["outcome-unknown", "internal"].iter().any(|slug| kind.ends_with(slug));
    let verdict =
        if is_unknown { "Perhaps done, so look before you repeat it" } else { "Not done" };
    html! {
        div.verdict.bad role="alert" {
            strong { (verdict) ": " (text(&refused.problem, "title")) " (" (refused.status) ")" }
            span { (text(&refused.problem, "detail")) }
            @if let Some(state) = state { span { "The task is " (state) "." } }
        }
        div.actions { (action.back_link()) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    use crate::console::action::tests::reader;

    #[test]
    fn the_page_after_an_action_says_what_came_of_it() {
        let cancel = Action::on_task(Verb::Cancel, "i");
        let problem =
            json!({"title": "too late", "detail": "it is", "task": {"state": "published"}});
        let page = refused(&cancel, &Refused { status: 409, problem }).body.into_string();
        assert!(
            page.contains("Not done: too late (409)") && page.contains("is published"),
            "{page}"
        );
        let many = Action::on_topic(Verb::RedriveMany, "t");
        let page =
            |answer: &Value| Outcome::new(many.clone(), answer).page(&reader()).body.into_string();
        let left = page(&json!({"redriven": 10_000, "more": true, "cursor": "next"}));
        assert!(left.contains("10,000 dead letters are redriven"), "{left}");
        assert!(left.contains(r#"name="cursor" value="next""#), "{left}");
        let one = page(&json!({"redriven": 1}));
        assert!(one.contains("1 dead letter is redriven") && !one.contains("Continue"), "{one}");
    }

    #[test]
    fn the_page_after_a_move_has_both_the_asked_time_and_the_new_one() {
        let action = Action { due: "2h".to_owned(), ..Action::on_task(Verb::Move, "i") };
        let answer = json!({
            "verdict": "moved", "task": {"id": "i", "due_at": "2030-01-31T11:30:00.000Z"},
        });
        let outcome = Outcome::new(action.clone(), &answer);
        assert_eq!(Outcome::read(&fields_of(&outcome.address("proof"))).as_ref(), Some(&outcome));
        let page = outcome.page(&reader()).body.into_string();
        for part in ["is moved", "<dd>2h</dd>", ">2030-01-31 11:30:00.000</time>"] {
            assert!(page.contains(part), "{part} is missing in {page}");
        }
        let too_late = Refused::new(409, "too late", "the task is claimed");
        let page = refused(&action, &too_late).body.into_string();
        assert!(
            page.contains("Not done: too late (409)") && page.contains("<dd>2h</dd>"),
            "{page}"
        );
    }

    #[test]
    fn a_repeated_pause_tells_the_reason_that_stays() {
        let pause =
            Action { reason: "deploy".to_owned(), ..Action::on_topic(Verb::PauseTopic, "t") };
        let page = |reason: Value| {
            let answer = json!({"in_flight": 0, "paused": {"since": "x", "reason": reason}});
            Outcome::new(pause.clone(), &answer).page(&reader()).body.into_string()
        };
        assert!(!page(json!("deploy")).contains("paused before"));
        assert!(page(json!("incident 42")).contains("for this reason: incident 42."));
        assert!(page(Value::Null).contains("It was paused before."));
    }

    #[test]
    fn the_address_of_a_success_is_read_as_it_was_written() {
        let done = json!({"dropped": 3, "more": true, "cursor": "a b", "topic": "not shown"});
        let of_topic = Action {
            due_to: "2030-01-01T00:00:00+01:00".to_owned(),
            ..Action::on_topic(Verb::DropMany, "it's")
        };
        let paused = Action {
            reason: "the shop & its mail".to_owned(),
            ..Action::on_topic(Verb::PauseTopic, "t")
        };
        let on_schedule = Action::on_schedule(Verb::Trigger, "t", " a&b=c");
        for action in [of_topic, paused, on_schedule] {
            let outcome = Outcome::new(action, &done);
            let address = outcome.address("proof");
            assert!(address.starts_with("/console/done?") && address.is_ascii(), "{address}");
            assert!(!address.contains("not%20shown"), "{address}");
            let fields = fields_of(&address);
            assert_eq!(fields.get("seal"), "proof");
            let read = Outcome::read(&fields).unwrap();
            assert_eq!((read.sealed(), &read), (outcome.sealed(), &outcome));
        }
        assert_eq!(Outcome::read(&fields_of("/console/done?action=drop&id=i&done=7")), None);
    }

    fn fields_of(address: &str) -> Fields {
        let (_, query) = address.split_once('?').unwrap();
        let decoded =
            |part| percent_encoding::percent_decode_str(part).decode_utf8().unwrap().into_owned();
        let pairs = query.split('&').map(|pair| pair.split_once('=').unwrap());
        Fields::new(pairs.map(|(name, value)| (decoded(name), decoded(value))).collect())
    }
}
