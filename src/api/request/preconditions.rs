//! The preconditions `If-Match` and `If-None-Match` of changes (RFC 9110, 13.1).
//!
//! The tag of a task is its id in quotes. The tag names the task, not its state, so it works for
//! preconditions but not for caches. A GET ignores preconditions, and is never answered 304.

use axum::http::header::{IF_MATCH, IF_NONE_MATCH};
use axum::http::{HeaderMap, HeaderName, HeaderValue};

use crate::api::json::values::shown;
use crate::api::problems::problem::Problem;
use crate::domain::{Precondition, TaskId, TaskSet};

/// The right form of a header with tags.
const RIGHT: &str =
    "expected *, or a list of ids in quotes, such as \"01934b2e-7d3c-8017-9f2b-6a1c0e4d5b7f\"";

/// Reads the preconditions of a request that changes the task of its path.
pub fn of(headers: &HeaderMap) -> Result<Precondition, Problem> {
    Ok(Precondition {
        must_be: tags_of(headers, IF_MATCH, false)?,
        must_not_be: tags_of(headers, IF_NONE_MATCH, true)?,
        when: None,
    })
}

/// Refuses preconditions on a change without a task in the path. Callers rely on preconditions, so
/// none is ignored.
pub fn refuse(headers: &HeaderMap) -> Result<(), Problem> {
    let Some(given) = [IF_MATCH, IF_NONE_MATCH].into_iter().find(|name| headers.contains_key(name))
    else {
        return Ok(());
    };
    let detail = "nothing was done: preconditions are only for a PUT, PATCH or DELETE of one task";
    Err(Problem::invalid(String::from(given.as_str()), detail))
}

/// Checks the preconditions against the task whose id is in the path.
pub fn check(condition: &Precondition, id: TaskId) -> Result<(), Problem> {
    if condition.allows(Some(id)) { Ok(()) } else { Err(Problem::unmet_by_id(id)) }
}

/// Returns the tasks that a header names. Tags that are not task ids match nothing. A weak tag
/// counts only in `If-None-Match`.
fn tags_of(
    headers: &HeaderMap,
    name: HeaderName,
    takes_weak: bool,
) -> Result<Option<TaskSet>, Problem> {
    let mut values = headers.get_all(&name).iter().peekable();
    if values.peek().is_none() {
        return Ok(None);
    }
    let wrong = |value: &HeaderValue| {
        let value = String::from_utf8_lossy(value.as_bytes());
        Problem::invalid(
            String::from(name.as_str()),
            format!("nothing was done: {} is not a list of tags; {RIGHT}", shown(&value)),
        )
    };
    let mut tasks = Vec::new();
    let mut is_any = false;
    let mut tag_count = 0_usize;
    for value in values {
        let mut rest = value.as_bytes().trim_ascii();
        if rest == b"*" && tag_count == 0 && !is_any {
            is_any = true;
            continue;
        }
        while !rest.is_empty() {
            if let Some(after) = rest.strip_prefix(b",") {
                rest = after.trim_ascii_start();
                continue;
            }
            let (tag, after) =
                first_tag(rest).filter(|_tag| !is_any).ok_or_else(|| wrong(value))?;
            tag_count += 1;
            if takes_weak || !tag.is_weak {
                tasks.extend(tag.task);
            }
            rest = after;
        }
    }
    match headers.get(&name) {
        Some(value) if !is_any && tag_count == 0 => Err(wrong(value)),
        _ if is_any => Ok(Some(TaskSet::Any)),
        _ => Ok(Some(TaskSet::These(tasks))),
    }
}

struct EntityTag {
    is_weak: bool,
    /// `None` for a tag that is not a task's.
    task: Option<TaskId>,
}

/// Returns the first tag of a list, and the text after it: empty, or beginning with a comma.
fn first_tag(text: &[u8]) -> Option<(EntityTag, &[u8])> {
    let (is_weak, quoted) = text.strip_prefix(b"W/").map_or((false, text), |quoted| (true, quoted));
    let opaque = quoted.strip_prefix(b"\"")?;
    let length = opaque.iter().position(|byte| *byte == b'"')?;
    let (opaque, after) = (opaque.get(..length)?, opaque.get(length + 1..)?.trim_ascii_start());
    let is_right = opaque.iter().all(|byte| matches!(byte, b'!' | b'#'..=b'~' | 0x80..));
    if !is_right || !(after.is_empty() || after.starts_with(b",")) {
        return None;
    }
    // Tags are compared byte by byte, so only the spelling of our answers counts.
    let id: Option<TaskId> = std::str::from_utf8(opaque).ok().and_then(|text| text.parse().ok());
    let task =
        id.filter(|id| id.uuid().hyphenated().encode_lower(&mut [0; 36]).as_bytes() == opaque);
    Some((EntityTag { is_weak, task }, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "01b9774e-55c0-8003-8000-000000000007";
    const OTHER: &str = "01b9774e-55c0-8003-8000-000000000008";

    fn read(values: &[&str], takes_weak: bool) -> Option<Result<TaskSet, ()>> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(IF_MATCH, HeaderValue::from_str(value).unwrap());
        }
        tags_of(&headers, IF_MATCH, takes_weak).map_err(|_problem| ()).transpose()
    }

    fn these(ids: &[&str]) -> Option<Result<TaskSet, ()>> {
        Some(Ok(TaskSet::These(ids.iter().map(|id| id.parse().unwrap()).collect())))
    }

    #[test]
    fn tags_are_read_as_rfc_9110_writes_them() {
        let quoted = format!("\"{ID}\"");
        assert_eq!(read(&[], true), None);
        for any in ["*", " * "] {
            assert_eq!(read(&[any], false), Some(Ok(TaskSet::Any)));
        }
        assert_eq!(read(&[&quoted], false), these(&[ID]));
        assert_eq!(read(&[&format!(",{quoted} ,, \"{OTHER}\",")], false), these(&[ID, OTHER]));
        assert_eq!(
            read(&[&quoted, &format!("\"{OTHER}\"")], false),
            these(&[ID, OTHER]),
            "two headers are one list"
        );
        let weak = format!("W/\"{ID}\", \"{OTHER}\"");
        assert_eq!(
            (read(&[&weak], false), read(&[&weak], true)),
            (these(&[OTHER]), these(&[ID, OTHER]))
        );
        // Foreign tags are valid and match nothing. So do ids in another spelling.
        for foreign in ["\"\"", "\"a,b\"", &quoted.to_uppercase(), &quoted.replace('-', "")] {
            assert_eq!(read(&[foreign], true), these(&[]), "{foreign}");
        }
    }

    #[test]
    fn what_is_no_list_of_tags_is_refused() {
        let quoted = format!("\"{ID}\"");
        let wrong = [
            "",
            ",",
            ID,
            &format!("\"{ID}"),
            &format!("w/{quoted}"),
            &format!("{quoted} {quoted}"),
            &format!("{quoted};"),
            "* , *",
            &format!("*, {quoted}"),
            &format!("{quoted}, *"),
            "\"a b\"",
        ];
        for wrong in wrong {
            assert_eq!(read(&[wrong], true), Some(Err(())), "{wrong}");
        }
        assert_eq!(read(&["*", &quoted], true), Some(Err(())));
        assert_eq!(read(&[&quoted, "*"], true), Some(Err(())));
        assert_eq!(read(&["*", "*"], true), Some(Err(())));
    }

    proptest::proptest! {
        #[test]
        fn any_header_is_read_or_refused(
            text in r#"[ -~\t]{0,40}|((W/)?"[ -~]{0,4}"|[*, ]){0,6}"#,
        ) {
            if let Some(Ok(TaskSet::These(tasks))) = read(&[&text], true) {
                assert!(tasks.is_empty() && text.contains('"'), "no tag of a task is so short: \
                    {text}");
            }
        }
    }
}
