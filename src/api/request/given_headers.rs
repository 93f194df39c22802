//! Headers of a task in JSON: an object of names, in their order.
//!
//! ```text
//! "a": "text"                  the text in UTF-8
//! "a": {"base64": "/w=="}      these bytes
//! "a": null                    a null value, which Kafka allows
//! "a": ["1", null, ..]         the name several times, each with one of the above
//! ```

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::value::RawValue;

use super::fields::{members, object, values};
use super::trace::RequestTrace;
use crate::api::json::values::{kind_of, shown, string_of, unlike};
use crate::api::problems::problem::Problem;
use crate::api::problems::problem_type::ProblemType;
use crate::domain::Headers;
use crate::domain::task::headers::{COUNT_MAX, HeadersError, TRACEPARENT, TRACESTATE};

type Value<'a> = Option<Cow<'a, [u8]>>;
type Given<'a> = Vec<(Cow<'a, str>, Value<'a>)>;

const VALUE: &str = "a string, null, or {\"base64\": \"..\"}";

/// Reads the headers of a task. Adds the trace of the request if the task has none.
pub fn read(value: Option<&RawValue>, trace: Option<&RequestTrace>) -> Result<Headers, Problem> {
    let mut headers = value.map_or(Ok(Vec::new()), given)?;
    let has = |headers: &Given<'_>, wanted: &str| {
        headers.iter().any(|(name, _)| name.eq_ignore_ascii_case(wanted))
    };
    let trace = trace.filter(|trace| {
        let has_room = headers.len() < COUNT_MAX || !trace.is_ours();
        has_room && !has(&headers, TRACEPARENT)
    });
    if let Some(trace) = trace {
        if headers.len() == COUNT_MAX {
            let detail = format!(
                "a task may have {COUNT_MAX} headers at most, and the traceparent of the request \
                 is one more"
            );
            return Err(Problem::invalid("headers", detail));
        }
        let parent = Cow::Borrowed(trace.parent().as_bytes());
        headers.push((Cow::Borrowed(TRACEPARENT), Some(parent)));
        if let Some(state) = trace.state()
            && headers.len() < COUNT_MAX
            && !has(&headers, TRACESTATE)
        {
            headers.push((Cow::Borrowed(TRACESTATE), Some(Cow::Borrowed(state.as_bytes()))));
        }
    }
    // After a failure the headers are checked one by one, to name the wrong one. A refusal may cost
    // more than a success.
    let encoded =
        Headers::new(headers.iter().map(|(name, value)| (name.as_ref(), value.as_deref())))
            .map_err(|error| {
                let wrong = headers.iter().find(|(name, value)| {
                    Headers::new([(name.as_ref(), value.as_deref())]).is_err()
                });
                let field = wrong.map_or_else(|| "headers".to_owned(), |(name, _)| path_of(name));
                Problem::invalid(field, error.to_string())
            })?;
    Ok(match trace {
        Some(trace) => encoded.followed_by(&trace.own_headers()),
        None => encoded,
    })
}

fn given(value: &RawValue) -> Result<Given<'_>, Problem> {
    let too_many = || Problem::invalid("headers", HeadersError::TooMany.to_string());
    let given = object(value.get()).map_err(|problem| problem.at("headers"))?;
    if given.count > COUNT_MAX {
        return Err(too_many());
    }
    let mut headers: Given<'_> = Vec::with_capacity(given.pairs.len() + 1);
    for (name, value) in given.pairs {
        if headers.iter().any(|(known, _)| *known == name) {
            let detail = "the header is given twice; to repeat it, give a list of values";
            return Err(Problem::new(ProblemType::DuplicateField, detail).at(path_of(&name)));
        }
        if kind_of(value.get()) == "an array" {
            add_each(&mut headers, name, value)?;
        } else {
            let value = value_of(value).map_err(|problem| problem.within(&path_of(&name)))?;
            headers.push((name, value));
        }
        if headers.len() > COUNT_MAX {
            return Err(too_many());
        }
    }
    Ok(headers)
}

/// Adds a header for each value of a list. Stops at one more than the limit.
fn add_each<'a>(
    headers: &mut Given<'a>,
    name: Cow<'a, str>,
    list: &'a RawValue,
) -> Result<(), Problem> {
    let list = values(list).map_err(|problem| problem.at(path_of(&name)))?;
    if list.count == 0 {
        return Err(Problem::invalid(
            path_of(&name),
            "the list is empty; leave out the header if it has no value",
        ));
    }
    for (index, value) in list.items.into_iter().enumerate() {
        if headers.len() > COUNT_MAX {
            break;
        }
        let value = value_of(value)
            .map_err(|problem| problem.within(&format!("{}[{index}]", path_of(&name))))?;
        headers.push((name.clone(), value));
    }
    Ok(())
}

fn value_of(value: &RawValue) -> Result<Value<'_>, Problem> {
    let wrong = |detail: String| Problem::new(ProblemType::InvalidValue, detail);
    match kind_of(value.get()) {
        "null" => Ok(None),
        "a string" => string_of(value).map_err(wrong).map(|text| match text {
            Cow::Borrowed(text) => Some(Cow::Borrowed(text.as_bytes())),
            Cow::Owned(text) => Some(Cow::Owned(text.into_bytes())),
        }),
        "an object" => {
            let [Some(base64)] = members(value.get(), &["base64"])? else {
                return Err(wrong(format!("this is an object without base64; expected {VALUE}")));
            };
            let text = string_of(base64).map_err(wrong)?;
            let bytes = STANDARD.decode(text.as_bytes());
            let bytes = bytes.map_err(|error| {
                wrong(format!("this is not base64 (RFC 4648, section 4, with padding): {error}"))
            })?;
            Ok(Some(Cow::Owned(bytes)))
        }
        _ => Err(wrong(unlike(value.get(), VALUE))),
    }
}

/// Returns the path of a header within a task.
fn path_of(name: &str) -> String {
    let is_plain = !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
    if is_plain {
        format!("headers.{}", shown(name))
    } else {
        format!("headers[{:?}]", shown(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::task::headers;

    fn parsed(json: &str) -> Result<Headers, Problem> {
        read(Some(serde_json::from_str(json).unwrap()), None)
    }

    fn pairs(headers: &Headers) -> Vec<(String, Option<Vec<u8>>)> {
        headers::decode(headers.as_bytes())
            .map(|(name, value)| (name.to_owned(), value.map(<[u8]>::to_vec)))
            .collect()
    }

    #[test]
    fn headers_keep_their_order_and_are_whatever_kafka_has() {
        let headers = parsed(concat!(
            r#"{"b":"1","a":"\u00e4","n":null,"x":{"base64":"/w=="},"r":["1",null,"#,
            r#"{"base64":""},"2"]}"#,
        ))
        .unwrap();
        let wanted: [(&str, Option<&[u8]>); 8] = [
            ("b", Some(b"1")),
            ("a", Some("ä".as_bytes())),
            ("n", None),
            ("x", Some(b"\xff")),
            ("r", Some(b"1")),
            ("r", None),
            ("r", Some(b"")),
            ("r", Some(b"2")),
        ];
        assert_eq!(
            pairs(&headers),
            wanted.map(|(name, value)| (name.to_owned(), value.map(<[u8]>::to_vec)))
        );
    }

    #[test]
    fn values_that_are_none_are_refused_and_named() {
        for (json, field, reason) in [
            (r#"{"a":1}"#, "headers.a", "a number"),
            (r#"{"a":true}"#, "headers.a", "expected a string, null"),
            (r#"{"a":[]}"#, "headers.a", "empty"),
            (r#"{"a":["1",2]}"#, "headers.a[1]", "a number"),
            (r#"{"a":[["1"]]}"#, "headers.a[0]", "an array"),
            (r#"{"a":{}}"#, "headers.a", "without base64"),
            (r#"{"a":{"base64":null}}"#, "headers.a", "null"),
            (r#"{"a":{"base64":"_w=="}}"#, "headers.a", "not base64"),
            (
                r#"{"a b":[{"base64":"YQ==","text":"a"}]}"#,
                "headers[\"a b\"][0].text",
                "no such field",
            ),
            (r#"{"punctual-x":null}"#, "headers.punctual-x", "reserved"),
            (r#"{"Punctual-x":["1"]}"#, "headers.Punctual-x", "reserved"),
            (r#"{"a":"1","a":"2"}"#, "headers.a", "a list"),
            (r#"["a"]"#, "headers", "an array"),
        ] {
            let problem = format!("{:?}", parsed(json).unwrap_err());
            assert!(
                problem.contains(&format!("field: Some({field:?})")) && problem.contains(reason),
                "{json}: {problem}"
            );
        }
    }

    #[test]
    fn each_value_of_a_list_counts() {
        let list = |count: usize| format!(r#"{{"a":"1","b":[{}]}}"#, vec!["null"; count].join(","));
        assert_eq!(pairs(&parsed(&list(COUNT_MAX - 1)).unwrap()).len(), COUNT_MAX);
        for count in [COUNT_MAX, 1_000_000] {
            assert!(parsed(&list(count)).is_err(), "{count}");
        }
    }
}
