//! The header `Idempotency-Key`: the name of a task that has none in its body.
//!
//! The draft (draft-ietf-httpapi-idempotency-key-header) writes the key as a string of RFC 8941, in
//! quotes. Most clients send it without quotes. Both forms are accepted.

use axum::http::{HeaderMap, HeaderName};

use crate::api::problems::problem::Problem;
use crate::api::problems::problem_type::ProblemType;
use crate::domain::TaskName;
use crate::node::messages::Draft;

const HEADER: HeaderName = HeaderName::from_static(FIELD);
const FIELD: &str = "idempotency-key";

/// Returns the key of a request as a task name.
pub fn key_of(headers: &HeaderMap) -> Result<Option<TaskName>, Problem> {
    let mut given = headers.get_all(HEADER).iter();
    let Some(value) = given.next() else { return Ok(None) };
    if given.next().is_some() {
        return Err(Problem::new(
            ProblemType::DuplicateField,
            "the header Idempotency-Key is given twice",
        )
        .at(FIELD));
    }
    let text = std::str::from_utf8(value.as_bytes())
        .map_err(|_error| Problem::invalid(FIELD, "the key is not UTF-8"))?;
    let text = text.trim();
    let key =
        if text.starts_with('"') { unquoted(text).ok_or_else(no_string)? } else { text.to_owned() };
    let name = TaskName::new(&key);
    name.map(Some).map_err(|error| {
        Problem::invalid(FIELD, format!("the key becomes the name of the task: {error}"))
    })
}

fn no_string() -> Problem {
    let detail = "a key in quotes must be a string of RFC 8941: printable ASCII, with \\\" and \
                  \\\\ for \" and \\, and nothing after the closing quote. A key without quotes is \
                  used as given";
    Problem::invalid(FIELD, detail)
}

/// Returns the content of a string of RFC 8941.
fn unquoted(text: &str) -> Option<String> {
    let inner = text.strip_prefix('"')?.strip_suffix('"')?;
    let mut content = String::with_capacity(inner.len());
    let mut characters = inner.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => {
                content.push(characters.next().filter(|escaped| matches!(escaped, '"' | '\\'))?)
            }
            '"' => return None,
            ' '..='~' => content.push(character),
            _ => return None,
        }
    }
    Some(content)
}

/// Uses the key as the name of a draft that has none.
pub fn name(draft: Draft, key: Option<TaskName>) -> Result<Draft, Problem> {
    match (&draft.name, key) {
        (_, None) => Ok(draft),
        (None, key) => Ok(Draft { name: key, ..draft }),
        (Some(name), Some(key)) if *name == key => Ok(draft),
        (Some(_), Some(_)) => {
            let detail = "the header Idempotency-Key and the name in the body differ: give only \
                          one of them, or the same twice";
            Err(Problem::new(ProblemType::ConflictingFields, detail).at(FIELD))
        }
    }
}

/// Refuses a key that would be ignored; `reason` names the alternative.
pub fn refuse(headers: &HeaderMap, reason: &'static str) -> Result<(), Problem> {
    if headers.contains_key(HEADER) { Err(Problem::invalid(FIELD, reason)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn read(values: &[&[u8]]) -> Result<Option<String>, ProblemType> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(HEADER, HeaderValue::from_bytes(value).unwrap());
        }
        let key = key_of(&headers).map_err(|problem| problem.kind())?;
        Ok(key.map(|key| key.to_string()))
    }

    #[test]
    fn a_key_is_taken_bare_and_in_quotes() {
        assert_eq!(read(&[]), Ok(None));
        for (written, key) in [
            ("8e03978e-40d5-43dd-bc93-6894a57f9324", "8e03978e-40d5-43dd-bc93-6894a57f9324"),
            ("\"8e03978e\"", "8e03978e"),
            (r#""a \"b\" \\c""#, r#"a "b" \c"#),
            (" a b ", "a b"),
            ("ä\"", "ä\""),
            ("\" \"", " "),
        ] {
            assert_eq!(read(&[written.as_bytes()]), Ok(Some(key.to_owned())), "{written}");
        }
        assert!(read(&["k".repeat(255).as_bytes()]).is_ok());
    }

    #[test]
    fn what_can_be_no_name_is_refused() {
        let long = "k".repeat(256);
        for wrong in [
            "",
            "\"\"",
            "\"",
            "\"a",
            "\"a\"b\"",
            "\"a\\b\"",
            "\"a\\\"",
            "\"a\";q=1",
            "\"ä\"",
            &long,
        ] {
            assert_eq!(read(&[wrong.as_bytes()]), Err(ProblemType::InvalidValue), "{wrong}");
        }
        assert_eq!(read(&[b"\xff"]), Err(ProblemType::InvalidValue));
        assert_eq!(read(&[b"a", b"a"]), Err(ProblemType::DuplicateField));
    }
}
