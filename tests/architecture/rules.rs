//! The rules: each takes sources and answers with what breaks it, one line each, nothing when it holds.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::{Modules, Source, paths};

/// What each module may use of this crate; a deeper path allows only that part. ARCHITECTURE.md says why.
const LAYERS: &[(&str, &[&str])] = &[
    ("domain", &[]),
    ("engine", &["domain"]),
    ("clock", &["domain", "engine"]),
    ("shutdown", &["clock"]),
    ("telemetry", &[]),
    ("kill_point", &[]),
    ("postgres", &["domain", "clock", "kill_point", "shutdown"]),
    ("kafka", &["domain", "clock", "telemetry"]),
    ("etcd", &["domain", "clock", "shutdown", "telemetry"]),
    ("node", &["domain", "engine", "postgres", "kafka", "etcd", "clock", "kill_point", "shutdown", "telemetry"]),
    ("api", &["domain", "clock", "shutdown", "telemetry", "node::service"]),
    ("client", &["domain", "clock"]),
    // It measures a cluster from outside, with a consumer and a forgotten session of its own; nothing of a node.
    ("bench", &["domain", "clock", "shutdown", "kafka", "client::figures", "postgres::old_snapshot", "postgres::connection"]),
    ("config", &["domain", "bench::args", "client::args", "telemetry::logging"]),
    ("app", &["domain", "engine", "postgres", "kafka", "etcd", "node", "api", "clock", "shutdown", "telemetry", "config"]),
    ("main", &["app", "bench", "client", "config", "shutdown", "telemetry"]),
];

/// Libraries that stop at their folder.
const HOMES: &[(&str, &[&str])] = &[
    ("axum", &["api"]),
    ("base64", &["api", "client"]),
    ("clap", &["config", "client::args", "bench::args"]),
    ("clap_complete", &["config"]),
    ("etcd_client", &["etcd"]),
    ("flate2", &["api"]),
    ("hdrhistogram", &["bench::quantiles"]),
    ("http_body_util", &["api", "bench::http"]),
    ("hyper", &["api", "bench"]),
    ("hyper_util", &["api", "bench::http"]),
    ("jiff", &["api", "bench", "domain"]),
    ("prometheus_client", &["telemetry"]),
    ("rdkafka", &["kafka"]),
    ("reqwest", &["client"]),
    ("rustix", &["app", "node", "clock", "client"]),
    ("rustls", &["main"]),
    ("serde", &["api", "bench", "client", "etcd"]),
    ("serde_json", &["api", "bench", "client", "etcd"]),
    ("sqlx", &["postgres"]),
    ("tower", &["api"]),
    ("tracing_subscriber", &["telemetry"]),
    ("zstd", &["api"]),
];

/// Libraries for all but the pure modules.
const EVERYWHERE: &[&str] = &["bytes", "futures_util", "rand", "thiserror", "tokio", "tokio_util", "tracing", "uuid"];

/// Modules without input, output and clock, and the libraries that they may use: only values and their arithmetic.
const PURE: &[(&str, &[&str])] =
    &[("domain", &["jiff", "thiserror", "uuid", "xxhash_rust"]), ("engine", &["uuid", "xxhash_rust"])];

/// What is not pure in the standard library.
const IMPURE: &[&str] = &["std::env", "std::fs", "std::io", "std::net", "std::process", "std::thread"];

/// A file has at most so many lines.
const LINES_MAX: usize = 600;

/// Files that may be longer, each with its reason. Empty, and meant to stay so.
const LONG_FILES: &[(&str, &str)] = &[];

fn at(source: &Source, position: usize, what: &str) -> String {
    format!("{}:{}: {what}", source.path, source.line_of(position))
}

fn is_within(module: &[String], place: &str) -> bool {
    let place: Vec<&str> = place.split("::").collect();
    module.len() >= place.len() && module.iter().zip(place).all(|(own, other)| own == other)
}

/// Who uses whom.
pub fn layers(sources: &[Source]) -> Vec<String> {
    let modules = Modules::new(sources);
    let mut broken = Vec::new();
    for (module, source) in &modules.sources {
        // The root of the library only declares.
        let Some(top) = module.first() else { continue };
        let Some((_, allowed)) = LAYERS.iter().find(|(layer, _)| layer == top) else {
            broken.push(format!("{}: `{top}` has no layer in {}", source.path, file!()));
            continue;
        };
        for (target, position) in modules.dependencies(module) {
            let is_own = target.first() == Some(top);
            if !is_own && !target.is_empty() && !allowed.iter().any(|place| is_within(&target, place)) {
                broken.push(at(source, position, &format!("`{top}` must not use `{}`", target.join("::"))));
            }
        }
    }
    broken
}

/// Modules that depend on each other in a circle: each step of it.
pub fn cycles(sources: &[Source]) -> Vec<String> {
    let modules = Modules::new(sources);
    let graph: BTreeMap<Vec<String>, BTreeSet<Vec<String>>> =
        modules.sources.keys().map(|module| (module.clone(), modules.dependencies(module).into_keys().collect())).collect();
    let reach = |from: &Vec<String>| {
        let mut reached: BTreeSet<Vec<String>> = BTreeSet::new();
        let mut open: Vec<Vec<String>> = graph.get(from).into_iter().flatten().cloned().collect();
        while let Some(module) = open.pop() {
            if reached.insert(module.clone()) {
                open.extend(graph.get(&module).into_iter().flatten().cloned());
            }
        }
        reached
    };
    let reached: BTreeMap<_, _> = graph.keys().map(|module| (module.clone(), reach(module))).collect();
    let is_back = |from: &Vec<String>, to: &Vec<String>| reached.get(to).is_some_and(|onward| onward.contains(from));
    let mut broken = Vec::new();
    for (module, source) in &modules.sources {
        for (target, position) in modules.dependencies(module) {
            if is_back(module, &target) {
                let target = if target.is_empty() { "crate".to_owned() } else { target.join("::") };
                broken.push(at(source, position, &format!("uses `{target}`, which uses it in turn, directly or through others")));
            }
        }
    }
    broken
}

/// Libraries outside their folders. `dependencies` are those of the manifest: a new one needs a home.
pub fn libraries(sources: &[Source], dependencies: &[String]) -> Vec<String> {
    let mut broken = Vec::new();
    for name in dependencies {
        let is_known = EVERYWHERE.contains(&name.as_str())
            || HOMES.iter().any(|(library, _)| library == name)
            || PURE.iter().any(|(_, libraries)| libraries.contains(&name.as_str()));
        if !is_known {
            broken.push(format!("Cargo.toml: `{name}` has no home in {}", file!()));
        }
    }
    for source in sources {
        let module = source.module();
        let pure = PURE.iter().find(|(place, _)| is_within(&module, place));
        for path in paths(&source.production) {
            let Some(name) = path.segments.first() else { continue };
            let is_library = dependencies.contains(name);
            let home = HOMES.iter().find(|(library, _)| library == name);
            if let Some((place, allowed)) = pure {
                let whole = path.segments.join("::");
                if (is_library && !allowed.contains(&name.as_str())) || IMPURE.iter().any(|start| whole.starts_with(start)) {
                    broken.push(at(source, path.position, &format!("`{place}` is pure and must not use `{whole}`")));
                }
            } else if let Some((library, homes)) = home
                && is_library
                && !homes.iter().any(|place| is_within(&module, place))
            {
                broken.push(at(source, path.position, &format!("`{library}` belongs to {}", homes.join(" and "))));
            }
        }
    }
    broken
}

/// Names of the manifest's dependencies, as code writes them.
pub fn dependencies(manifest: &str) -> Vec<String> {
    let section =
        manifest.split("\n[").find(|section| section.trim_start_matches('[').starts_with("dependencies]")).unwrap_or_default();
    section.lines().filter_map(|line| line.split_once('=')).map(|(name, _)| name.trim().replace('-', "_")).collect()
}

/// Files that nobody reads to their end.
pub fn lengths(sources: &[Source]) -> Vec<String> {
    sources
        .iter()
        .filter(|source| !LONG_FILES.iter().any(|(path, _)| *path == source.path))
        .map(|source| (source, source.text.lines().count()))
        .filter(|(_, lines)| *lines > LINES_MAX)
        .map(|(source, lines)| format!("{}: {lines} lines, more than {LINES_MAX}", source.path))
        .collect()
}

/// Words that must not stand in some part of a file.
fn words(source: &Source, code: &str, banned: &[&str], why: &str) -> Vec<String> {
    let found = banned.iter().flat_map(|word| code.match_indices(word));
    found.map(|(position, word)| at(source, position, &format!("`{word}`: {why}"))).collect()
}

/// Panics in production code.
pub fn panics(sources: &[Source]) -> Vec<String> {
    let why = "an error is a value outside tests";
    sources.iter().flat_map(|source| words(source, &source.production, &[".unwrap()", ".expect("], why)).collect()
}

/// Tests that are skipped.
pub fn ignored(sources: &[Source]) -> Vec<String> {
    let why = "a test runs, or it is deleted";
    sources.iter().flat_map(|source| words(source, &source.code, &[concat!("#[", "ignore")], why)).collect()
}

/// Tests that wait for time; `tests/support` has what waits for a fact.
pub fn sleeps(sources: &[Source]) -> Vec<String> {
    let why = "a test waits for a fact, not for time (see tests/support)";
    let mut broken = Vec::new();
    for source in sources.iter().filter(|source| !source.path.starts_with("tests/support")) {
        let tests: String =
            source.code.chars().zip(source.production.chars()).map(|(c, kept)| if kept == c { ' ' } else { c }).collect();
        // Blanking keeps lengths, but only in bytes: a test with other letters in its code is searched as a whole.
        let tests = if tests.len() == source.code.len() { tests } else { source.code.clone() };
        broken.extend(words(source, &tests, &["::sleep("], why));
    }
    broken
}

/// Statements without a name: a `-- name` first, in a line of its own, leads from `pg_stat_statements` to the code.
pub fn statements(sources: &[Source]) -> Vec<String> {
    let mut broken = Vec::new();
    for source in sources.iter().filter(|source| source.path.starts_with("src/postgres")) {
        for (start, text) in texts(source) {
            // A literal of a test stands between blanks that were code.
            let is_production = source.code[..start].trim_end().len() == source.production[..start].trim_end().len();
            if !is_production {
                continue;
            }
            let text = text.trim_start_matches(|c: char| c.is_whitespace() || c == '\\');
            if let Some(rest) = text.strip_prefix("-- ") {
                let first = rest.lines().next().unwrap_or_default();
                let (name, has_more) = match first.split_once("\\n") {
                    Some((name, _)) => (name, true),
                    None => (first, rest.contains('\n') && !first.ends_with('\\')),
                };
                if name.trim().is_empty() || !has_more {
                    broken.push(at(
                        source,
                        start,
                        "the name of a statement needs a line of its own, else all of it is a comment",
                    ));
                }
            } else if is_statement(text) {
                broken.push(at(source, start, "a statement begins with a line `-- name`"));
            }
        }
    }
    broken
}

/// The text of each string literal; those within one `concat!` are one.
fn texts(source: &Source) -> Vec<(usize, String)> {
    let mut texts: Vec<(usize, String)> = Vec::new();
    let mut joined_until = 0;
    for (start, end) in source.literals.iter().copied() {
        let text = &source.text[start..end];
        match texts.last_mut() {
            Some((_, whole)) if start < joined_until => whole.push_str(text),
            _ => {
                texts.push((start, text.to_owned()));
                joined_until = source.concat_end(start).unwrap_or(0);
            }
        }
    }
    texts
}

/// Data definition is left out: it is seldom, and its text differs from partition to partition.
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

/// Places that are nobody's business: package registries (which one is used is the builder's own setting) and paths of one machine.
pub fn places(path: &str, text: &str) -> Vec<String> {
    // In pieces, so that this file does not hold what it forbids.
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
        let folder =
            folders.iter().find(|folder| line.match_indices(folder.as_str()).any(|(start, _)| is_absolute(&line[..start])));
        for place in host.into_iter().chain(folder) {
            broken.push(format!("{path}:{}: names `{place}`", number + 1));
        }
    }
    broken
}

/// True when a path that begins after `before` is not the rest of a longer one.
fn is_absolute(before: &str) -> bool {
    !before.ends_with(|c: char| c.is_alphanumeric() || "._-/}~$)>".contains(c))
}

/// The header of a sabotage: the promise, what is broken, and a test that exists.
pub fn sabotage(path: &str, patch: &str, sources: &[&str]) -> Vec<String> {
    let header = patch.split("diff --git").next().unwrap_or_default();
    let field = |name: &str| header.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).unwrap_or_default();
    let words: Vec<&str> = field("Test").split(' ').collect();
    let is_known = matches!(words.as_slice(), ["--lib", _] | ["--test", "integration", _]);
    let test = words.last().and_then(|path| path.rsplit("::").next()).unwrap_or_default();
    let broken = [
        (field("Promise").is_empty() || field("Sabotage").is_empty(), "says neither its promise nor what it breaks"),
        (!is_known, "names no test of --lib or of --test integration"),
        (!sources.iter().any(|source| source.contains(&format!("fn {test}("))), "names a test that does not exist"),
    ];
    broken.into_iter().filter(|(is_broken, _)| *is_broken).map(|(_, what)| format!("{path}: {what}")).collect()
}
