//! Rules of the Markdown pages: links, anchors, names of code, and the table of contents of the
//! book.

use std::collections::{BTreeMap, BTreeSet};

/// Links to files that do not exist, or to headings that a page does not have.
///
/// `pages` are paths and texts of all Markdown files; `exists` tells whether a path is a file or
/// folder.
pub fn links(pages: &[(String, String)], exists: impl Fn(&str) -> bool) -> Vec<String> {
    let anchors: BTreeMap<&str, BTreeSet<String>> =
        pages.iter().map(|(path, text)| (path.as_str(), anchors(text))).collect();
    let mut broken = Vec::new();
    for (path, text) in pages {
        for (number, target) in targets(text) {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let place = if file.is_empty() { path.clone() } else { resolve(path, file) };
            if !exists(&place) {
                broken.push(format!(
                    "{path}:{number}: a link leads to {target}, which does not exist"
                ));
            } else if !anchor.is_empty()
                && anchors.get(place.as_str()).is_some_and(|known| !known.contains(anchor))
            {
                broken.push(format!("{path}:{number}: {place} has no heading #{anchor}"));
            }
        }
    }
    broken
}

/// Pages below `docs/` missing in the table of contents, and pages listed twice.
pub fn unlisted(pages: &[(String, String)]) -> Vec<String> {
    const SUMMARY: &str = "docs/SUMMARY.md";
    let summary = pages
        .iter()
        .find(|(path, _)| path == SUMMARY)
        .map(|(_, text)| text.as_str())
        .unwrap_or_default();
    let mut listed = BTreeSet::new();
    let mut broken = Vec::new();
    for (number, target) in targets(summary) {
        if !listed.insert(resolve(SUMMARY, target)) {
            broken.push(format!("{SUMMARY}:{number}: lists {target} a second time"));
        }
    }
    let below_docs = pages
        .iter()
        .map(|(path, _)| path)
        .filter(|path| path.starts_with("docs/") && *path != SUMMARY);
    broken.extend(
        below_docs
            .filter(|path| !listed.contains(*path))
            .map(|path| format!("{path} is not in {SUMMARY}")),
    );
    broken
}

/// Names in backticks that the code does not have (any more): Rust files, items of a type
/// (`Type::item`), and tests.
///
/// `sources` are paths and texts of all Rust files.
pub fn stale_names(pages: &[(String, String)], sources: &[(String, String)]) -> Vec<String> {
    let known: BTreeSet<&str> = sources.iter().flat_map(|(_, text)| words(text)).collect();
    let has_file = |name: &str| {
        sources.iter().any(|(path, _)| path == name || path.ends_with(&format!("/{name}")))
    };
    let mut broken = Vec::new();
    for (path, text) in pages {
        for (number, line) in lines(text) {
            for name in line.split('`').skip(1).step_by(2) {
                let is_there = if name.ends_with(".rs") && words(name).count() > 1 {
                    has_file(name)
                } else if is_item(name) || is_test(name) {
                    words(name).all(|word| known.contains(word))
                } else {
                    true
                };
                if !is_there {
                    broken.push(format!("{path}:{number}: the code has no `{name}`"));
                }
            }
        }
    }
    broken
}

/// `Type::item`, with or without brackets.
fn is_item(name: &str) -> bool {
    name.contains("::")
        && name.starts_with(|c: char| c.is_ascii_uppercase())
        && name.chars().all(|c| c.is_alphanumeric() || "_:()".contains(c))
}

/// A sentence as names of tests are. Metrics are shorter, or begin with the program's name.
fn is_test(name: &str) -> bool {
    name.matches('_').count() >= 5
        && !name.starts_with("punctual_")
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// Lines outside of code blocks, with their numbers from 1.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        (!is_code && !is_fence).then_some((index + 1, line))
    })
}

/// Targets of the links to files and headings of the repository.
fn targets(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let links = lines(text).flat_map(|(number, line)| {
        line.split("](").skip(1).filter_map(move |rest| Some((number, rest.split(')').next()?)))
    });
    links.filter(|(_, target)| !target.contains("://") && !target.starts_with("mailto:"))
}

/// Path from the root of a link in the page `page`.
fn resolve(page: &str, file: &str) -> String {
    let folder = page.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut segments: Vec<&str> = folder.split('/').filter(|segment| !segment.is_empty()).collect();
    for segment in file.split('/') {
        match segment {
            ".." => drop(segments.pop()),
            "." | "" => {}
            name => segments.push(name),
        }
    }
    segments.join("/")
}

/// Anchors of the headings, as git hosts and mdbook make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (_, line) in lines(text) {
        let heading = line.trim_start_matches('#');
        if heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let anchor: String = heading
            .trim()
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
            .flat_map(char::to_lowercase)
            .map(|c| if c == ' ' { '-' } else { c })
            .collect();
        let repeated =
            (1..).map(|count| format!("{anchor}-{count}")).find(|name| !found.contains(name));
        let is_new = !found.contains(&anchor);
        found.extend(if is_new { Some(anchor) } else { repeated });
    }
    found
}
