//! Numbers, times and addresses, as the pages write them.

use std::time::Duration;

use az::SaturatingAs as _;
use maud::{Markup, html};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use crate::domain::Timestamp;
use crate::domain::text::estimate;

pub use crate::domain::text::grouped;

/// The characters that an address may have as they are: letters, digits and `-._~`.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Returns a path of these segments, each percent-encoded.
pub fn path(segments: &[&str]) -> String {
    let mut path = String::new();
    for segment in segments {
        path.push('/');
        path.extend(utf8_percent_encode(segment, ESCAPED));
    }
    path
}

/// Returns `path` with a query of the pairs that have a value.
pub fn with_query(path: &str, pairs: &[(&str, &str)]) -> String {
    let mut address = path.to_owned();
    let given = pairs.iter().filter(|(_, value)| !value.is_empty());
    for (index, (name, value)) in given.enumerate() {
        address.push(if index == 0 { '?' } else { '&' });
        address.push_str(name);
        address.push('=');
        address.extend(utf8_percent_encode(value, ESCAPED));
    }
    address
}

/// Returns a text member of an object, or an empty text.
pub fn text<'a>(object: &'a Value, name: &str) -> &'a str {
    object.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// Returns a number of an object, or zero.
pub fn number(object: &Value, name: &str) -> u64 {
    object.get(name).and_then(Value::as_u64).unwrap_or_default()
}

/// Returns true when a member of an object is `true`.
pub fn is_true(object: &Value, name: &str) -> bool {
    object.get(name).and_then(Value::as_bool).unwrap_or_default()
}

/// Returns the items of an array in an object.
pub fn items<'a>(object: &'a Value, name: &str) -> &'a [Value] {
    object.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// Returns a figure of the API: its count, and `about` in front when it is sampled.
pub fn figure(figure: &Value) -> String {
    estimate(number(figure, "count"), is_true(figure, "exact"))
}

/// Returns a span of milliseconds with its two largest units.
pub fn span(millis: u64) -> String {
    match millis {
        ..1_000 => format!("{millis} ms"),
        1_000..10_000 => format!("{}.{} s", millis / 1_000, millis % 1_000 / 100),
        10_000..60_000 => format!("{} s", millis / 1_000),
        60_000..3_600_000 => two((millis / 60_000, "min"), (millis / 1_000 % 60, "s")),
        3_600_000..86_400_000 => two((millis / 3_600_000, "h"), (millis / 60_000 % 60, "min")),
        _ => two((millis / 86_400_000, "d"), (millis / 3_600_000 % 24, "h")),
    }
}

fn two((large, of_large): (u64, &str), (small, of_small): (u64, &str)) -> String {
    match small {
        0 => format!("{large} {of_large}"),
        _ => format!("{large} {of_large} {small} {of_small}"),
    }
}

/// Returns the distance of a time of the API from `now`: `in 5 min`, `3.2 s ago`.
pub fn distance(at: &str, now: Option<Timestamp>) -> Option<String> {
    let (at, now) = (Timestamp::of_rfc3339(at)?, now?);
    let millis = |span: Duration| span.as_millis().saturating_as::<u64>();
    Some(match at > now {
        true => format!("in {}", span(millis(at.since(now)))),
        false => format!("{} ago", span(millis(now.since(at)))),
    })
}

/// Writes a time of the API, in UTC.
pub fn moment(at: &str) -> Markup {
    let shown = at.trim_end_matches('Z').replacen('T', " ", 1);
    html! { @if at.is_empty() { "–" } @else { time datetime=(at) { (shown) } } }
}

/// Writes a time of the API with its distance from `now`.
pub fn moment_from(at: &str, now: Option<Timestamp>) -> Markup {
    html! {
        (moment(at))
        @if let Some(distance) = distance(at, now) { " " span.quiet { "(" (distance) ")" } }
    }
}

/// Writes the state of a task. Its word says it; the color only helps.
pub fn state(state: &str) -> Markup {
    let class = match state {
        "dead" | "expired" => "state bad",
        "published" | "finished" => "state good",
        "retrying" | "awaiting" | "claimed" => "state busy",
        _ => "state",
    };
    html! { span class=(class) { (state) } }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn figures_and_spans_are_short() {
        let spans = [7, 1_250, 59_000, 61_000, 3_600_000, 90_000_000].map(span);
        assert_eq!(spans, ["7 ms", "1.2 s", "59 s", "1 min 1 s", "1 h", "1 d 1 h"]);
        assert_eq!(figure(&json!({"count": 12_000, "exact": false})), "about 12,000");
    }

    #[test]
    fn a_time_has_its_distance_from_now() {
        let now = Timestamp::of_rfc3339("2030-01-31T09:30:00Z");
        assert_eq!(distance("2030-01-31T09:35:00.000Z", now).unwrap(), "in 5 min");
        assert_eq!(distance("2030-01-31T09:29:59.500Z", now).unwrap(), "500 ms ago");
        assert_eq!(distance("2030-01-31T09:29:59.500Z", None), None);
        let shown = moment_from("2030-01-31T09:29:59.500Z", now).into_string();
        assert!(shown.contains(">2030-01-31 09:29:59.500</time>"), "{shown}");
    }

    #[test]
    fn addresses_are_encoded() {
        assert_eq!(path(&["console", "a/b", "c d?"]), "/console/a%2Fb/c%20d%3F");
        let address = with_query("/console/tasks", &[("topic", "a&b"), ("cursor", "")]);
        assert_eq!(address, "/console/tasks?topic=a%26b");
    }
}
