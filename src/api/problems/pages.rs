//! The pages of the problem types: one for each below `/problems`, and docs/problems.md with all of
//! them.

use super::problem_type::{ProblemType, TYPE_PREFIX};

const PREFACE: &str = "# Problems

What Punctual answers when it does not do what it was asked for: `application/problem+json` ([RFC 9457](https://www.rfc-editor.org/rfc/rfc9457)).
Decide by `type`: it names the problem and keeps its meaning; more types may be added. `title` is the type for people, `detail` says what is wrong
here and what would be right, `field` names the field, `retry_after` (seconds) says when to ask again. The header `Link` (rel=\"help\") leads to the
page of the type, `/problems/` and the end of the `type` on any node; `GET /problems` is this page.
";

/// Returns all pages as one: docs/problems.md.
pub fn all() -> String {
    let mut text = PREFACE.to_owned();
    text.push_str("\n| `type` | status | |\n|---|---|---|\n");
    for kind in ProblemType::ALL {
        let row = kind.row();
        text.push_str(&format!("| [`{TYPE_PREFIX}{0}`](#{0}) | {1} | {2} |\n", row.slug, row.status, row.title));
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
    let retry = kind.retry_after().map(|seconds| format!(" · `Retry-After: {seconds}`")).unwrap_or_default();
    format!(
        "{level} {0}\n\n{1} · `{TYPE_PREFIX}{0}`{retry}\n\n**{2}.** {3}\n\nWhat to do: {4}\n",
        row.slug, row.status, row.title, row.when, row.then
    )
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
    fn the_types_are_in_the_order_of_their_status() {
        assert!(ProblemType::ALL.is_sorted_by_key(|kind| kind.status()));
    }
}
