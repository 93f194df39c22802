//! The callback of a topic: the service that nodes call for each tracked task.

use maud::{Markup, html};
use serde_json::Value;

use crate::console::action::Call;
use crate::console::format::{grouped, is_true, items, number, path, text};
use crate::console::frame::{Answered, escaped, facts};

/// The status of the answer about a topic without a callback.
const NOT_FOUND: u16 = 404;

/// Returns the call that looks the callback of a topic up.
pub fn call(topic: &str) -> Call {
    Call::get(&path(&["v1", "topics", topic, "callback"]))
}

/// Writes the callback of a topic. There is no answer for a reader without the rights.
pub fn shown(topic: &str, answer: Option<&Answered>) -> Markup {
    html! {
        @match answer {
            None => p.quiet {
                "Readers with the rights " code { "callback" } " and " code { "read-payload" }
                " on the topic also see its callback."
            },
            Some(Ok(callback)) => {
                h2 { "Callback" }
                (state(callback))
                @if is_true(callback, "paused") { (how_to_resume(topic)) }
            },
            Some(Err(refused)) if refused.status == NOT_FOUND => {},
            Some(Err(refused)) => {
                h2 { "Callback" }
                (refused.notice())
            },
        }
    }
}

fn state(callback: &Value) -> Markup {
    let url = text(callback, "url");
    let mut shown = vec![
        (
            "State",
            html! {
                @if is_true(callback, "paused") { span.state.busy { "paused" } }
                @else { span.state.good { "open" } }
            },
        ),
        (
            "URL",
            html! {
                code { (without_secrets(url)) }
                @if url.contains('?') { " " span.quiet { "with a query" } }
            },
        ),
        ("Requests at a time", html! { (grouped(number(callback, "concurrency"))) }),
        ("Timeout", escaped(text(callback, "timeout"))),
    ];
    if !text(callback, "pause_reason").is_empty() {
        shown.insert(1, ("Reason", escaped(text(callback, "pause_reason"))));
    }
    let most = number(callback, "max_per_second");
    if most > 0 {
        shown.push(("Requests per second", html! { (grouped(most)) }));
    }
    let names: Vec<&str> =
        items(callback, "header_names").iter().filter_map(Value::as_str).collect();
    if !names.is_empty() {
        shown.push(("Headers", html! { (names.join(", ")) }));
    }
    shown.push(("Revision", html! { (number(callback, "revision")) }));
    facts(&shown)
}

/// Names the call that resumes a callback. A PUT stores the callback as a whole, and nobody is
/// shown the values of its headers. So a form on the page would lose them.
fn how_to_resume(topic: &str) -> Markup {
    html! {
        div.notice role="note" {
            p { "Nothing is sent to the service. The time to run of its tasks goes on." }
            p {
                "To resume it, set the whole callback again, with the values of its headers: "
                code { "PUT " (call(topic).path) } ", or "
                code { "punctual topic callback " (topic) " FILE" } "."
            }
        }
    }
}

/// Returns a URL without user, password, query and fragment.
fn without_secrets(url: &str) -> String {
    let plain = url.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = plain.split_once("://") else { return plain.to_owned() };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = authority.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{host}{path}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::console::frame::Refused;

    #[test]
    fn a_url_is_shown_without_its_secrets() {
        for (url, wanted) in [
            ("https://a.example.com/jobs?token=secret#x", "https://a.example.com/jobs"),
            ("https://user:secret@a.example.com:8443/x@y", "https://a.example.com:8443/x@y"),
            ("https://a.example.com", "https://a.example.com"),
            ("https://a.example.com?token=secret", "https://a.example.com"),
        ] {
            assert_eq!(without_secrets(url), wanted);
        }
    }

    #[test]
    fn a_paused_callback_says_why_and_how_it_is_resumed() {
        let callback = |paused: bool| {
            json!({
                "topic": "t", "revision": 2, "url": "https://a.example.com/<b>?key=secret",
                "header_names": ["authorization"], "timeout": "10s", "concurrency": 1_000,
                "paused": paused, "pause_reason": paused.then_some("the service <i> answered 410"),
            })
        };
        let text = shown("t", Some(&Ok(callback(true)))).into_string();
        for part in [
            "https://a.example.com/&lt;b&gt;</code>",
            "with a query",
            ">paused<",
            "&lt;i&gt;",
            "authorization",
            "PUT /v1/topics/t/callback",
            "punctual topic callback t FILE",
            "1,000",
        ] {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
        assert!(!text.contains("secret") && !text.contains("/console/confirm"), "{text}");
        let text = shown("t", Some(&Ok(callback(false)))).into_string();
        assert!(text.contains(">open<") && !text.contains("PUT "), "{text}");
    }

    #[test]
    fn a_topic_without_a_callback_shows_none() {
        let refused = |status| Err(Refused::new(status, "no answer", "why"));
        assert_eq!(shown("t", Some(&refused(404))).into_string(), "");
        assert!(shown("t", Some(&refused(503))).into_string().contains("why"));
        let text = shown("t", None).into_string();
        assert!(text.contains("read-payload") && !text.contains("<h2>"), "{text}");
    }
}
