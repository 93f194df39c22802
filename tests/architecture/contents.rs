//! The rules about the contents of single files. Each takes sources and returns its violations, as
//! the rules about the structure do.

use std::collections::BTreeSet;

use crate::rules::at;
use crate::source::Source;

/// The files that make permits, out of a check of rights.
const PERMITS: &[&str] = &["src/access/permit.rs", "src/node/messages/permitted.rs"];

/// The files that may ask for a permit. Handlers ask the guard of their request. The service knows
/// that a task was found by its id, or is of the topic of its name. Callbacks act for the caller
/// who has set them, on their topic.
const ASK_FOR_PERMITS: &[&str] = &[
    "src/api/access/guard.rs",
    "src/api/handlers/inbound.rs",
    "src/callbacks/keeper.rs",
    "src/node/requests/service.rs",
    "src/node/requests/service/callback_calls.rs",
    "src/node/requests/service/many.rs",
    "src/node/requests/service/stored_tasks.rs",
];

/// Types of these files that are no permits, but say that one is missing.
const MISSING_RIGHTS: &[&str] = &["Denied", "DeniedDraft", "HiddenTask"];

/// The functions that make permits.
const MAKE_PERMITS: &[&str] = &["new", "of", "of_topic", "on", "unlimited"];

/// Returns ways to a permit without a check: public fields and derived constructors, and calls from
/// files that are no part of the checks.
pub fn permits(sources: &[Source]) -> Vec<String> {
    let (makers, others): (Vec<&Source>, Vec<&Source>) =
        sources.iter().partition(|source| PERMITS.contains(&source.path.as_str()));
    let mut broken = Vec::new();
    let mut names = BTreeSet::new();
    if makers.is_empty() {
        broken.push(format!("none of {PERMITS:?} is there"));
    }
    for source in makers {
        let (mut name, mut derived) = ("", "");
        for (index, line) in source.text.lines().enumerate() {
            if let Some(list) = line.strip_prefix("#[derive(") {
                derived = list;
            }
            if let Some(rest) = line.strip_prefix("pub struct ") {
                name = rest.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
                names.insert(name);
                let is_made = derived.split([',', ')']).any(|one| one.trim() == "Default");
                if is_made || derived.contains("Deserialize") {
                    broken.push(at(source, index + 1, &format!("derives a way to make `{name}`")));
                }
            }
            let is_open = line.starts_with("    pub ") && line.ends_with(',');
            let is_permit = !name.is_empty() && !MISSING_RIGHTS.contains(&name);
            if (is_open || line.contains("(pub ")) && is_permit {
                broken.push(at(source, index + 1, &format!("a field of `{name}` is public")));
            }
            if line.starts_with('}') || line.ends_with(");") {
                name = "";
            }
        }
    }
    for source in others.into_iter().filter(|source| source.path.starts_with("src/")) {
        let may_ask = ASK_FOR_PERMITS.contains(&source.path.as_str());
        for path in source.production().filter(|_path| !may_ask) {
            if let [.., of, function] = path.segments.as_slice()
                && names.contains(of.as_str())
                && MAKE_PERMITS.contains(&function.as_str())
            {
                let what = format!("`{of}::{function}`: ask the guard of the request for a permit");
                broken.push(at(source, path.place.line, &what));
            }
        }
    }
    broken
}

/// Returns panics in production code.
pub fn panics(sources: &[Source]) -> Vec<String> {
    let mut broken = Vec::new();
    for source in sources {
        let calls = source.facts.calls.iter().filter(|(_, place)| !place.is_test);
        for (method, place) in
            calls.filter(|(method, _)| ["unwrap", "expect"].contains(&method.as_str()))
        {
            broken.push(at(
                source,
                place.line,
                &format!("`{method}`: an error is a value outside tests"),
            ));
        }
    }
    broken
}

/// Returns tests that are skipped.
pub fn ignored(sources: &[Source]) -> Vec<String> {
    let mut broken = Vec::new();
    for source in sources {
        for (_, place) in source.facts.attributes.iter().filter(|(name, _)| name == "ignore") {
            broken.push(at(source, place.line, "`ignore`: a test runs, or it is deleted"));
        }
    }
    broken
}

/// Returns tests that wait for time to pass. `tests/support` has functions that wait for a
/// condition.
pub fn sleeps(sources: &[Source]) -> Vec<String> {
    let mut broken = Vec::new();
    for source in sources.iter().filter(|source| !source.path.starts_with("tests/support")) {
        let sleeps = source
            .facts
            .paths
            .iter()
            .filter(|path| path.segments.last().is_some_and(|name| name == "sleep"));
        for path in sleeps.filter(|path| path.place.is_test) {
            let why = "a test waits for a fact, not for time (see tests/support)";
            broken.push(at(source, path.place.line, &format!("`sleep`: {why}")));
        }
    }
    broken
}

/// Returns statements without a name. A `-- name` in a line of its own at the beginning leads from
/// `pg_stat_statements` to the code.
pub fn statements(sources: &[Source]) -> Vec<String> {
    let mut broken = Vec::new();
    for source in sources.iter().filter(|source| source.path.starts_with("src/postgres")) {
        for (text, place) in source.facts.texts.iter().filter(|(_, place)| !place.is_test) {
            if let Some(rest) = text.trim_start().strip_prefix("-- ") {
                let (name, has_more) =
                    rest.split_once('\n').map_or((rest, false), |(name, _)| (name, true));
                if name.trim().is_empty() || !has_more {
                    let what = "the name of a statement needs a line of its own, else all of it is \
                                a comment";
                    broken.push(at(source, place.line, what));
                }
            } else if is_statement(text) {
                broken.push(at(source, place.line, "a statement begins with a line `-- name`"));
            }
        }
    }
    broken
}

/// Returns true for a statement that needs a name. Data definition is left out: it is rare, and its
/// text differs from partition to partition.
fn is_statement(text: &str) -> bool {
    let lower = text.to_lowercase();
    let words: Vec<&str> = lower.split_whitespace().collect();
    match words.as_slice() {
        ["select", _, ..] => true,
        ["insert", "into", ..] | ["delete", "from", ..] => true,
        ["update", rest @ ..] => rest.contains(&"set"),
        ["with", rest @ ..] => rest.contains(&"as"),
        _ => false,
    }
}

/// Returns private places: package registries, which are the builder's own setting, and paths of
/// one machine.
pub fn places(path: &str, text: &str) -> Vec<String> {
    // The texts are in pieces, so that this file does not contain the forbidden places.
    let hosts = [
        ["crates", "io"].join("."),
        ["repo1.maven", "org"].join("."),
        ["repo.maven.apache", "org"].join("."),
        ["proxy.golang", "org"].join("."),
        ["registry.npmjs", "org"].join("."),
        ["pypi", "org"].join("."),
        ["files.pythonhosted", "org"].join("."),
        ["deb.debian", "org"].join("."),
    ];
    let folders = ["work", "root", "home", "Users"].map(|folder| format!("/{folder}/"));
    let mut broken = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let host = hosts.iter().find(|host| line.contains(host.as_str()));
        let folder = folders.iter().find(|folder| {
            line.match_indices(folder.as_str()).any(|(start, _)| is_absolute(&line[..start]))
        });
        for place in host.into_iter().chain(folder) {
            broken.push(format!("{path}:{}: names `{place}`", number + 1));
        }
    }
    broken
}

/// Returns true when a path that begins after `before` is not the rest of a longer one.
fn is_absolute(before: &str) -> bool {
    !before.ends_with(|c: char| c.is_alphanumeric() || "._-/}~$)>".contains(c))
}

/// Checks the header of a sabotage: the promise, the broken part, and a test that exists.
pub fn sabotage(path: &str, patch: &str, sources: &[&str]) -> Vec<String> {
    let header = patch.split("diff --git").next().unwrap_or_default();
    let field = |name: &str| {
        header
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
            .unwrap_or_default()
    };
    let words: Vec<&str> = field("Test").split(' ').collect();
    let is_known = matches!(words.as_slice(), ["--lib", _] | ["--test", "integration", _]);
    let test = words.last().and_then(|path| path.rsplit("::").next()).unwrap_or_default();
    let broken = [
        (
            field("Promise").is_empty() || field("Sabotage").is_empty(),
            "says neither its promise nor what it breaks",
        ),
        (!is_known, "names no test of --lib or of --test integration"),
        (
            !sources.iter().any(|source| source.contains(&format!("fn {test}("))),
            "names a test that does not exist",
        ),
    ];
    broken
        .into_iter()
        .filter(|(is_broken, _)| *is_broken)
        .map(|(_, what)| format!("{path}: {what}"))
        .collect()
}
