//! Rust source as far as the rules must understand it: what is code, what is text, what is a test, and which paths it names.

use std::collections::BTreeMap;

/// A file of Rust. All forms have the same length, so that a position in one is a position in the others.
#[derive(Clone, Debug)]
pub struct Source {
    /// Where it lies, from the root of the repository, with `/`.
    pub path: String,
    pub text: String,
    /// The text with comments and literals blanked out.
    pub code: String,
    /// The code with everything under `#[cfg(test)]` blanked out.
    pub production: String,
    /// Where string literals begin and end, quotes excluded.
    pub literals: Vec<(usize, usize)>,
}

impl Source {
    pub fn new(path: &str, text: &str) -> Self {
        let (code, literals) = blank(text);
        // A file that is declared under `#[cfg(test)]` by its name.
        let production = if is_test_file(path) { spaces(&code) } else { without_tests(&code) };
        Self { path: path.to_owned(), text: text.to_owned(), code, production, literals }
    }

    /// The number of the line of a position, from 1.
    pub fn line_of(&self, position: usize) -> usize {
        self.text[..position].matches('\n').count() + 1
    }

    /// Where the `concat!` ends whose first text begins at `position`.
    pub fn concat_end(&self, position: usize) -> Option<usize> {
        let before = self.code[..position].trim_end();
        before.ends_with("concat!(").then(|| position + self.code[position..].find(')').unwrap_or(0))
    }

    /// The module of a file of `src`: `src/node/wheel.rs` is `["node", "wheel"]`; `lib.rs` and `main.rs` are the roots `[]` and `["main"]`.
    pub fn module(&self) -> Vec<String> {
        let name = self.path.trim_start_matches("src/").trim_end_matches(".rs");
        match name {
            "lib" => Vec::new(),
            _ => name.split('/').map(str::to_owned).collect(),
        }
    }
}

fn is_test_file(path: &str) -> bool {
    path.starts_with("tests/") || path.ends_with("/tests.rs") || path.contains("/tests/")
}

fn spaces(text: &str) -> String {
    text.chars().map(|c| if c == '\n' { "\n".to_owned() } else { " ".repeat(c.len_utf8()) }).collect()
}

/// `text` with comments and literals blanked out, and where its string literals are.
fn blank(text: &str) -> (String, Vec<(usize, usize)>) {
    let mut code = String::with_capacity(text.len());
    let mut literals = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        let first = rest.chars().next().unwrap_or(' ');
        let is_fresh = !code.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        if rest.starts_with("//") {
            let length = rest.find('\n').unwrap_or(rest.len());
            code.push_str(&spaces(&rest[..length]));
            at += length;
        } else if rest.starts_with("/*") {
            let length = comment_length(rest);
            code.push_str(&spaces(&rest[..length]));
            at += length;
        } else if let Some((start, end, length)) = string_at(rest, is_fresh) {
            literals.push((at + start, at + end));
            code.push_str(&spaces(&rest[..length]));
            at += length;
        } else if let Some(length) = char_length(rest) {
            code.push_str(&spaces(&rest[..length]));
            at += length;
        } else {
            code.push(first);
            at += first.len_utf8();
        }
    }
    (code, literals)
}

fn comment_length(rest: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < rest.len() {
        if rest[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += rest[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    rest.len()
}

/// Start and end of the content of the string literal that begins here, and its whole length.
fn string_at(rest: &str, is_fresh: bool) -> Option<(usize, usize, usize)> {
    let prefix = if is_fresh { ["br", "cr", "b", "c", "r", ""].into_iter().find(|prefix| begins(rest, prefix))? } else { "" };
    let after = &rest[prefix.len()..];
    if prefix.ends_with('r') {
        let hashes = after.len() - after.trim_start_matches('#').len();
        let start = prefix.len() + hashes + 1;
        let close = format!("\"{}", "#".repeat(hashes));
        let end = rest[start..].find(&close).map_or(rest.len(), |found| start + found);
        return Some((start, end, (end + close.len()).min(rest.len())));
    }
    let mut escaped = false;
    let start = prefix.len() + 1;
    if !after.starts_with('"') {
        return None;
    }
    for (offset, c) in rest[start..].char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return Some((start, start + offset, start + offset + 1)),
            _ => {}
        }
    }
    Some((start, rest.len(), rest.len()))
}

fn begins(rest: &str, prefix: &str) -> bool {
    let Some(after) = rest.strip_prefix(prefix) else { return false };
    let after = if prefix.ends_with('r') { after.trim_start_matches('#') } else { after };
    after.starts_with('"')
}

/// The length of the character literal that begins here; a lifetime is none.
fn char_length(rest: &str) -> Option<usize> {
    let body = rest.strip_prefix('\'')?;
    if let Some(escape) = body.strip_prefix('\\') {
        let skip = escape.chars().next()?.len_utf8();
        return escape[skip..].find('\'').map(|end| 2 + skip + end + 1);
    }
    let c = body.chars().next()?;
    body[c.len_utf8()..].starts_with('\'').then(|| 2 + c.len_utf8())
}

/// `code` with each item under `#[cfg(test)]` blanked out.
fn without_tests(code: &str) -> String {
    const MARK: &str = "#[cfg(test)]";
    let mut production = code.to_owned();
    while let Some(start) = production.find(MARK) {
        let end = item_end(&production, start + MARK.len());
        production.replace_range(start..end, &spaces(&code[start..end]));
    }
    production
}

/// Where the item that follows `from` ends: at its semicolon, or at its last brace.
fn item_end(code: &str, from: usize) -> usize {
    let mut depth = 0_usize;
    for (offset, c) in code[from..].char_indices() {
        match c {
            '{' | '(' | '[' => depth += 1,
            '}' if depth == 1 => return from + offset + 1,
            '}' | ')' | ']' => depth = depth.saturating_sub(1),
            ';' if depth == 0 => return from + offset + 1,
            _ => {}
        }
    }
    code.len()
}

/// A path as it stands in the code, one for each leaf of a `use` tree: `crate::a::{b, c::D}` is `crate::a::b` and `crate::a::c::D`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedPath {
    pub segments: Vec<String>,
    pub position: usize,
    /// True in `pub use` and `pub(..) use`.
    pub is_reexport: bool,
}

/// All paths of at least two segments, and what `use` names, in `code`.
pub fn paths(code: &str) -> Vec<NamedPath> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(c) = code[at..].chars().next() {
        if !(c.is_alphabetic() || c == '_') {
            at += c.len_utf8();
            continue;
        }
        let word = word_at(&code[at..]);
        let before = code[..at].trim_end();
        let is_member = before.ends_with("::") && !before.trim_end_matches(':').ends_with(['{', ',', ';', '(', ' ']);
        if word == "use" {
            let statement_end = code[at..].find(';').map_or(code.len(), |length| at + length);
            let is_reexport = before.ends_with("pub") || before.ends_with(')');
            let tree = &code[at + 3..statement_end];
            for segments in tree_paths(tree) {
                found.push(NamedPath { segments, position: at, is_reexport });
            }
            at = statement_end;
            continue;
        }
        let (segments, length) = straight_path(&code[at..]);
        if segments.len() > 1 && !is_member && !before.ends_with('.') {
            found.push(NamedPath { segments, position: at, is_reexport: false });
        }
        at += length.max(word.len());
    }
    found
}

fn word_at(code: &str) -> &str {
    let end = code.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(code.len());
    &code[..end]
}

/// The path that begins here, `a::b::c`, and its length.
fn straight_path(code: &str) -> (Vec<String>, usize) {
    let mut segments = vec![word_at(code).to_owned()];
    let mut length = segments[0].len();
    while let Some(after) = code[length..].strip_prefix("::") {
        let word = word_at(after);
        if word.is_empty() {
            break;
        }
        segments.push(word.to_owned());
        length += 2 + word.len();
    }
    (segments, length)
}

/// The leaves of a `use` tree.
fn tree_paths(tree: &str) -> Vec<Vec<String>> {
    let tree = tree.trim().trim_start_matches("::");
    let Some(open) = tree.find('{') else {
        let path = tree.split(" as ").next().unwrap_or_default();
        return vec![path.split("::").map(|segment| segment.trim().to_owned()).filter(|segment| !segment.is_empty()).collect()];
    };
    let head: Vec<String> =
        tree[..open].split("::").map(|segment| segment.trim().to_owned()).filter(|segment| !segment.is_empty()).collect();
    let inside = tree[open + 1..].trim_end().trim_end_matches('}');
    let inside = &tree[open + 1..open + 1 + matching(&tree[open + 1..]).unwrap_or(inside.len())];
    branches(inside).into_iter().flat_map(tree_paths).map(|tail| head.iter().cloned().chain(tail).collect()).collect()
}

/// Where the brace that is open at the start is closed.
fn matching(text: &str) -> Option<usize> {
    let mut depth = 1_usize;
    text.char_indices().find_map(|(offset, c)| {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        (depth == 0).then_some(offset)
    })
}

/// The branches of a tree, split at its own commas.
fn branches(inside: &str) -> Vec<&str> {
    let mut depth = 0_usize;
    inside
        .split(|c: char| {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            c == ',' && depth == 0
        })
        .filter(|branch| !branch.trim().is_empty())
        .collect()
}

/// Dependencies between the modules of a crate, by their production code.
#[derive(Debug)]
pub struct Modules<'a> {
    /// Each module with its source, by path.
    pub sources: BTreeMap<Vec<String>, &'a Source>,
    /// Names that a module re-exports, and the path that they lead to.
    reexports: BTreeMap<(Vec<String>, String), Vec<String>>,
}

impl<'a> Modules<'a> {
    pub fn new(sources: &'a [Source]) -> Self {
        let mut modules =
            Self { sources: sources.iter().map(|source| (source.module(), source)).collect(), reexports: BTreeMap::new() };
        let mut reexports = BTreeMap::new();
        for (module, source) in &modules.sources {
            for path in paths(&source.production).iter().filter(|path| path.is_reexport) {
                if let (Some(target), Some(name)) = (modules.absolute(module, &path.segments), path.segments.last()) {
                    reexports.insert((module.clone(), name.clone()), target);
                }
            }
        }
        modules.reexports = reexports;
        modules
    }

    /// The modules that `module` depends on, each with a position. What it re-exports is not among them: it only passes it on.
    pub fn dependencies(&self, module: &[String]) -> BTreeMap<Vec<String>, usize> {
        let Some(source) = self.sources.get(module) else { return BTreeMap::new() };
        let mut dependencies = BTreeMap::new();
        for path in paths(&source.production).iter().filter(|path| !path.is_reexport) {
            if let Some(target) = self.absolute(module, &path.segments).map(|path| self.owner(&path))
                && target != module
            {
                dependencies.entry(target).or_insert(path.position);
            }
        }
        dependencies
    }

    /// A path from the root of the crate; `None` when it leads out of it.
    fn absolute(&self, module: &[String], segments: &[String]) -> Option<Vec<String>> {
        let (first, rest) = segments.split_first()?;
        let mut from = match first.as_str() {
            "crate" => Vec::new(),
            "punctual" if module == ["main"] => Vec::new(),
            "self" => module.to_vec(),
            "super" => module.split_last()?.1.to_vec(),
            child => {
                let path: Vec<String> = module.iter().cloned().chain([child.to_owned()]).collect();
                if !self.sources.contains_key(&path) {
                    return None;
                }
                path
            }
        };
        for segment in rest {
            match segment.as_str() {
                "super" => from = from.split_last()?.1.to_vec(),
                "self" => {}
                _ => from.push(segment.clone()),
            }
        }
        Some(from)
    }

    /// The module that defines what an absolute path names, through re-exports.
    fn owner(&self, path: &[String]) -> Vec<String> {
        let mut module = Vec::new();
        for (index, segment) in path.iter().enumerate() {
            let mut deeper = module.clone();
            deeper.push(segment.clone());
            if self.sources.contains_key(&deeper) {
                module = deeper;
            } else if let Some(target) = self.reexports.get(&(module.clone(), segment.clone())) {
                let onward: Vec<String> = target.iter().chain(&path[index + 1..]).cloned().collect();
                return if onward == path { module } else { self.owner(&onward) };
            } else {
                break;
            }
        }
        module
    }
}
