//! The pages of the problem types: one for each below `/problems`, and docs/problems.md with all of
//! them.

use super::problem_type::{ProblemType, TYPE_PREFIX};

const PREFACE: &str = "# Problems

A refused request is answered with `application/problem+json`
([RFC 9457](https://www.rfc-editor.org/rfc/rfc9457)).

| member | meaning |
|---|---|
| `type` | names the problem. Decide by it: a type keeps its meaning. More types may be added |
| `title` | the type in words |
| `detail` | the error in this request, and a correct value |
| `field` | the field that is wrong |
| `retry_after` | seconds to wait before the next attempt |

The header `Link` (rel=\"help\") leads to the page of the type on the same node: `/problems/` and
the end of the `type`. `GET /problems` is this page.

\"Safe to retry?\" is about the same request, sent again:

- **yes**: nothing was done, and a later attempt may succeed;
- **with a name**: the first attempt may have taken effect, and a task without a name may then
  exist twice;
- **after a correction**: nothing was done, and the same request gets the same answer;
- **no use**: there is no such task, or it was replaced, or it can no longer be stopped.
";

/// Returns all pages as one: docs/problems.md.
pub fn all() -> String {
    let mut text = PREFACE.to_owned();
    text.push_str("\n| `type` | status | safe to retry? | meaning |\n|---|---|---|---|\n");
    for kind in ProblemType::ALL {
        let row = kind.row();
        let retry = kind.safe_to_retry();
        text.push_str(&format!(
            "| [`{TYPE_PREFIX}{0}`](#{0}) | {1} | {retry} | {2} |\n",
            row.slug, row.status, row.title
        ));
    }
    for kind in ProblemType::ALL {
        text.push('\n');
        text.push_str(&section(*kind, "##"));
    }
    text
}

/// Returns the page of one type; `slug` is the end of its `type`.
pub fn of(slug: &str) -> Option<String> {
    let kind = ProblemType::ALL.iter().find(|kind| kind.slug() == slug)?;
    Some(section(*kind, "#"))
}

fn section(kind: ProblemType, level: &str) -> String {
    let row = kind.row();
    let retry = kind
        .retry_after()
        .map(|seconds| format!(" · `Retry-After: {seconds}`"))
        .unwrap_or_default();
    let when = wrapped(&format!("**{}.** {}", row.title, row.when));
    let then = wrapped(&format!("What to do: {}", row.then));
    format!(
        "{level} {0}\n\n{1} · `{TYPE_PREFIX}{0}`{retry}\n\n{when}\n\n{then}\n",
        row.slug, row.status
    )
}

/// A paragraph in lines of at most 100 characters, as far as its words allow that.
fn wrapped(text: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= 100 => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_type_has_a_page_of_its_own() {
        let slugs: BTreeSet<&str> = ProblemType::ALL.iter().map(|kind| kind.slug()).collect();
        assert_eq!(slugs.len(), ProblemType::ALL.len());
        for slug in slugs {
            assert!(of(slug).unwrap().starts_with(&format!("# {slug}\n")));
        }
        assert_eq!(of("no-such-problem"), None);
    }

    #[test]
    fn paragraphs_keep_their_words_in_lines_of_100_characters() {
        for kind in ProblemType::ALL {
            let text = kind.row().when;
            let lines = wrapped(text);
            assert_eq!(lines.replace('\n', " "), text);
            assert!(lines.lines().all(|line| line.chars().count() <= 100), "{lines}");
        }
    }

    #[test]
    fn a_retry_is_safe_where_nothing_was_done_and_another_attempt_may_succeed() {
        for kind in ProblemType::ALL {
            let is_temporary = kind.retry_after().is_some() || kind.status().as_u16() == 408;
            let expected = match kind {
                ProblemType::Internal | ProblemType::OutcomeUnknown => "with a name",
                ProblemType::AttemptTooHigh | ProblemType::DeniedTooOften => "after a correction",
                ProblemType::TaskNotFound
                | ProblemType::ScheduleNotFound
                | ProblemType::CallbackNotFound => "no use",
                _ if kind.status().as_u16() == 409 => "no use",
                _ if is_temporary => "yes",
                _ => "after a correction",
            };
            assert_eq!(kind.safe_to_retry(), expected, "{}", kind.slug());
            assert!(
                expected != "yes" || !kind.row().when.contains("may have been done"),
                "{}",
                kind.slug()
            );
        }
    }

    #[test]
    fn the_types_are_in_the_order_of_their_status() {
        assert!(ProblemType::ALL.is_sorted_by_key(|kind| kind.status()));
    }
}
