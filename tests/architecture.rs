//! Checks the structure of the program. ARCHITECTURE.md is the map, and these tests keep the map
//! true. An example breaks each rule, because a rule that cannot fail proves nothing.
#![expect(clippy::panic, reason = "a tree that cannot be read fails the test")]

#[path = "architecture/contents.rs"]
mod contents;
#[path = "architecture/modules.rs"]
mod modules;
#[path = "architecture/pages.rs"]
mod pages;
#[path = "architecture/rules.rs"]
mod rules;
#[path = "architecture/source.rs"]
mod source;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use source::Source;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Returns every file that could be committed, by the path from the root: all files except git's
/// own and those named by `.gitignore`.
fn files() -> Vec<(String, String)> {
    let ignored = fs::read_to_string(root().join(".gitignore")).unwrap_or_default();
    let ignored: Vec<&str> =
        ignored.lines().map(|line| line.trim().trim_matches('/')).chain([".git"]).collect();
    let mut found = Vec::new();
    let mut open = vec![root()];
    while let Some(folder) = open.pop() {
        for entry in
            fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        {
            let path = entry.unwrap_or_else(|error| panic!("{}: {error}", folder.display())).path();
            let name = relative(&path);
            if ignored.contains(&name.as_str()) {
                continue;
            }
            if path.is_dir() {
                open.push(path);
            } else if let Ok(text) = fs::read_to_string(&path) {
                found.push((name, text));
            }
        }
    }
    found.sort();
    found
}

fn relative(path: &Path) -> String {
    let parts = path.strip_prefix(root()).unwrap_or(path).components();
    parts.map(|part| part.as_os_str().to_string_lossy().into_owned()).collect::<Vec<_>>().join("/")
}

/// Returns the Rust files of some folders.
fn rust(folders: &[&str]) -> Vec<Source> {
    static ALL: LazyLock<Vec<Source>> = LazyLock::new(|| {
        let rust = files().into_iter().filter(|(path, _)| path.ends_with(".rs"));
        rust.map(|(path, text)| Source::new(&path, &text)).collect()
    });
    let is_wanted = |source: &&Source| folders.iter().any(|folder| source.path.starts_with(folder));
    let sources: Vec<Source> = ALL.iter().filter(is_wanted).cloned().collect();
    assert!(!sources.is_empty(), "there is no Rust in {folders:?}");
    sources
}

fn holds(broken: Vec<String>) {
    assert!(broken.is_empty(), "\n{}\n", broken.join("\n"));
}

/// Returns the files of an example, given as `(path, text)`.
fn example(files: &[(&str, &str)]) -> Vec<Source> {
    files.iter().map(|(path, text)| Source::new(path, text)).collect()
}

/// Returns the number of violations.
fn said(broken: Vec<String>) -> usize {
    broken.len()
}

#[test]
fn each_layer_uses_only_what_it_may() {
    holds(rules::layers(&rust(&["src/"])));
}

#[test]
fn modules_form_no_circle() {
    holds(rules::cycles("src/", &rust(&["src/"])));
    for program in ["benches/suite/", "benches/floor/", "benches/poller/"] {
        holds(rules::cycles(program, &rust(&[program])));
    }
}

#[test]
fn folders_are_taken_in_at_a_look() {
    let files = files();
    let paths: Vec<&str> = files.iter().map(|(path, _)| path.as_str()).collect();
    let is_program = |path: &&str| path.starts_with("src/") || path.starts_with("benches/");
    holds(rules::folders(&paths.into_iter().filter(is_program).collect::<Vec<_>>()));
}

#[test]
fn files_are_long_enough_to_be_one() {
    holds(rules::scraps(&rust(&["src/", "benches/"])));
}

#[test]
fn libraries_stop_at_their_folders() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let dependencies = rules::dependencies(&manifest);
    assert!(dependencies.len() > 10, "{dependencies:?}");
    holds(rules::libraries(&rust(&["src/"]), &dependencies));
}

#[test]
fn files_are_short_enough_to_be_read() {
    let all = rust(&["src/", "tests/", "build.rs", "benches/", "examples/"]);
    holds(rules::lengths(&all, rules::LONG_FILES));
}

#[test]
fn production_code_does_not_panic_on_errors() {
    holds(contents::panics(&rust(&["src/"])));
}

#[test]
fn permits_come_out_of_checks() {
    holds(contents::permits(&rust(&["src/"])));
}

#[test]
fn no_test_is_skipped() {
    holds(contents::ignored(&rust(&["src/", "tests/"])));
}

#[test]
fn tests_wait_for_facts() {
    holds(contents::sleeps(&rust(&["src/", "tests/"])));
}

#[test]
fn statements_begin_with_their_name() {
    holds(contents::statements(&rust(&["src/"])));
}

#[test]
fn nothing_names_a_registry_or_a_path_of_one_machine() {
    // The lock file names its registry by cargo's own convention.
    let files = files().into_iter().filter(|(path, _)| path != "Cargo.lock");
    holds(files.flat_map(|(path, text)| contents::places(&path, &text)).collect());
}

/// Every Markdown file of the repository.
fn markdown() -> Vec<(String, String)> {
    files().into_iter().filter(|(path, _)| path.ends_with(".md")).collect()
}

#[test]
fn links_of_the_docs_lead_to_files_and_headings_that_exist() {
    holds(pages::links(&markdown(), |path| root().join(path).exists()));
}

#[test]
fn docs_name_code_that_exists() {
    // The changelog tells of names as they were.
    let pages: Vec<_> = markdown().into_iter().filter(|(path, _)| path != "CHANGELOG.md").collect();
    let sources: Vec<_> = files().into_iter().filter(|(path, _)| path.ends_with(".rs")).collect();
    holds(pages::stale_names(&pages, &sources));
}

#[test]
fn every_page_of_the_docs_is_in_the_table_of_contents() {
    holds(pages::unlisted(&markdown()));
}

#[test]
fn decisions_are_all_in_their_index() {
    let files = files();
    let index = files
        .iter()
        .find(|(path, _)| path == "docs/decisions/README.md")
        .map(|(_, text)| text.as_str())
        .unwrap_or_default();
    let records = files
        .iter()
        .filter_map(|(path, _)| path.strip_prefix("docs/decisions/"))
        .filter(|name| *name != "README.md");
    holds(
        records
            .filter(|name| !index.contains(*name))
            .map(|name| format!("{name} is not in the index"))
            .collect(),
    );
}

#[test]
fn every_sabotage_still_applies() {
    let files = files();
    let patches: Vec<&(String, String)> =
        files.iter().filter(|(path, _)| path.starts_with("tests/sabotage/")).collect();
    let sources: Vec<&str> = files
        .iter()
        .filter(|(path, _)| path.ends_with(".rs"))
        .map(|(_, text)| text.as_str())
        .collect();
    holds(
        patches.iter().flat_map(|(path, text)| contents::sabotage(path, text, &sources)).collect(),
    );
    // The nine promises of the README.
    let has = |promise: char| {
        patches.iter().any(|(_, text)| text.starts_with(&format!("Promise: {promise}, ")))
    };
    holds(
        ('1'..='9')
            .filter(|promise| !has(*promise))
            .map(|promise| format!("no sabotage of promise {promise}"))
            .collect(),
    );
    for (path, _) in patches {
        let git = Command::new("git").current_dir(root()).args(["apply", "--check", path]).output();
        let output = git.unwrap_or_else(|error| panic!("git, to check {path}: {error}"));
        assert!(
            output.status.success(),
            "{path} is to be made anew: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

#[test]
fn main_is_under_50_lines() {
    let main = fs::read_to_string(root().join("src/main.rs")).unwrap();
    assert!(main.lines().count() < 50);
}

// The rules, tested on examples that break them.

#[test]
fn a_layer_that_reaches_up_is_seen_however_it_is_written() {
    for text in [
        "use crate::node::Wheel;",
        "use crate::{node, domain::Task};",
        "fn f() { crate::node::go() }",
        "fn f() -> Vec<crate::node::Wheel> {}",
        "use super::super::node;",
    ] {
        let sources = example(&[
            ("src/engine/claiming.rs", text),
            ("src/node.rs", ""),
            ("src/domain.rs", ""),
        ]);
        assert_eq!(said(rules::layers(&sources)), 1, "{text}");
    }
}

#[test]
fn what_is_allowed_or_is_not_code_is_not_seen() {
    for text in [
        "use crate::domain::Task;",
        "// use crate::node::Wheel;",
        "/* crate::node /* nested */ crate::node */",
        "const TEXT: &str = \"crate::node::Wheel\";",
        "const TEXT: &str = r#\"\"crate::node\"#;",
        "fn quote() -> char { '\"' } // crate::node",
        "#[cfg(test)]\nmod tests { use crate::node::Wheel; fn f() { if true {} } }",
        "#[cfg(test)]\nuse crate::node::Wheel;",
    ] {
        let sources = example(&[
            ("src/engine/claiming.rs", text),
            ("src/node.rs", ""),
            ("src/domain.rs", ""),
        ]);
        assert_eq!(rules::layers(&sources), Vec::<String>::new(), "{text}");
    }
}

#[test]
fn the_api_sees_of_a_node_only_its_service() {
    let node = ("src/node.rs", "pub mod messages;\npub mod wheel;");
    let others = [
        node,
        ("src/node/messages.rs", ""),
        ("src/node/requests/service.rs", ""),
        ("src/node/wheel.rs", ""),
    ];
    for (text, count) in [
        ("use crate::node::messages::Draft;", 0),
        ("use crate::node::wheel;", 1),
        ("use crate::node::go;", 1),
    ] {
        let sources = example(&[&others[..], &[("src/api/tasks.rs", text)]].concat());
        assert_eq!(said(rules::layers(&sources)), count, "{text}");
    }
}

#[test]
fn a_module_without_a_layer_is_seen() {
    assert_eq!(said(rules::layers(&example(&[("src/utils.rs", "")]))), 1);
}

#[test]
fn a_circle_is_seen_through_reexports_and_between_parent_and_child() {
    let through = example(&[
        ("src/a.rs", "pub mod b;\npub mod c;\npub use b::B;\npub use self::c::C;"),
        ("src/a/b.rs", "use super::C;\npub struct B;"),
        ("src/a/c.rs", "use super::B;\npub struct C;"),
    ]);
    assert_eq!(said(rules::cycles("src/", &through)), 2, "a::b to a::c and back");
    let family = example(&[
        ("src/a.rs", "mod b;\nuse b::B;\npub struct A;"),
        ("src/a/b.rs", "use super::A;\npub struct B;"),
    ]);
    assert_eq!(said(rules::cycles("src/", &family)), 2, "a to a::b and back");
}

#[test]
fn a_circle_is_seen_through_a_neighbour_that_passes_names_on() {
    // A reader of `c` opens `b` to find the definition in `d`.
    let sources = example(&[
        ("src/a.rs", "pub mod b;\npub mod c;"),
        ("src/a/b.rs", "mod d;\npub use d::D;\nuse super::c::C;"),
        ("src/a/b/d.rs", "pub struct D;"),
        ("src/a/c.rs", "use super::b::D;\npub struct C;"),
    ]);
    assert_eq!(said(rules::cycles("src/", &sources)), 2, "a::b to a::c and back");
    let called = example(&[
        ("src/a.rs", "use crate::b;\npub fn f() { b::c::g() }"),
        ("src/b.rs", "pub mod c;"),
        ("src/b/c.rs", "pub fn g() { crate::a::f() }"),
    ]);
    assert_eq!(said(rules::cycles("src/", &called)), 2, "a to b::c and back");
}

#[test]
fn a_circle_is_seen_between_the_root_of_a_program_and_its_parts() {
    let sources = example(&[
        ("benches/x/main.rs", "mod a;\npub type Failure = ();\nfn main() { a::f() }"),
        ("benches/x/a.rs", "use crate::Failure;\npub fn f() {}"),
    ]);
    assert_eq!(said(rules::cycles("benches/x/", &sources)), 2);
}

#[test]
fn a_wide_folder_is_seen() {
    let names: Vec<String> = (0..13).map(|number| format!("src/a/m{number}.rs")).collect();
    let paths: Vec<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(said(rules::folders(&paths)), 1);
    assert_eq!(said(rules::folders(&paths[1..])), 0);
    assert_eq!(
        said(rules::folders(&[&paths[1..], &["src/a/m1/b.rs"]].concat())),
        0,
        "a module and its folder are one"
    );
}

#[test]
fn a_scrap_is_seen() {
    let code = "use crate::domain::Task;\npub fn f() {}";
    assert_eq!(said(rules::scraps(&example(&[("src/a.rs", code)]))), 1);
    for (path, text) in [
        ("src/a.rs", "pub mod b;\nuse crate::domain::Task;\npub fn f() {}"),
        ("src/a.rs", "use crate::domain::Task;\nconst ALL: [Task; 0] = [];"),
        ("src/a/metrics.rs", code),
        ("src/a/tests.rs", code),
    ] {
        assert_eq!(said(rules::scraps(&example(&[(path, text)]))), 0, "{path}: {text}");
    }
    assert_eq!(
        said(rules::scraps(&example(&[("src/a.rs", &format!("{code}{}", "\n".repeat(40)))]))),
        0
    );
}

#[test]
fn siblings_under_a_root_that_passes_their_names_on_are_no_circle() {
    let sources = example(&[
        ("src/a.rs", "pub mod b;\npub mod c;\npub use b::B;\npub use c::C;"),
        ("src/a/b.rs", "pub struct B;"),
        ("src/a/c.rs", "use super::B;\npub struct C;"),
    ]);
    assert_eq!(rules::cycles("src/", &sources), Vec::<String>::new());
}

#[test]
fn a_library_outside_its_folder_is_seen() {
    let dependencies = ["sqlx", "clap", "tokio"].map(str::to_owned);
    for (path, text, count) in [
        ("src/postgres/claim.rs", "use sqlx::Row;", 0),
        ("src/node/claimer.rs", "use sqlx::Row;", 1),
        ("src/node/claimer.rs", "fn f(e: sqlx::Error) {}", 1),
        ("src/node/claimer.rs", "use std::fmt;\nuse ::sqlx;", 1),
        ("src/client/args.rs", "use clap::Args;", 0),
        ("src/client/submit.rs", "use clap::Args;", 1),
        ("src/engine/claiming.rs", "use tokio::time;", 1),
        ("src/engine/claiming.rs", "use std::{fmt, fs};", 1),
        ("src/node/claimer.rs", "use tokio::time;", 0),
    ] {
        assert_eq!(
            said(rules::libraries(&example(&[(path, text)]), &dependencies)),
            count,
            "{path}: {text}"
        );
    }
}

#[test]
fn a_library_without_a_home_is_seen() {
    let manifest = "[package]\n\
                    name = \"x\"\n\n\
                    [dependencies]\n\
                    serde-json5 = \"1\"\n\
                    thiserror = { version = \"2\" }\n\n\
                    [dev-dependencies]\n\
                    y = \"1\"\n";
    assert_eq!(rules::dependencies(manifest), ["serde_json5", "thiserror"]);
    assert_eq!(said(rules::libraries(&[], &rules::dependencies(manifest))), 1);
}

#[test]
fn a_long_file_is_seen() {
    let lines = |path: &str, count: usize| Source::new(path, &"\n".repeat(count));
    let long = [("src/a.rs", 610)];
    for (files, long, count) in [
        (vec![lines("src/a.rs", 601), lines("src/b.rs", 600)], &[][..], 1),
        (vec![lines("src/a.rs", 610)], &long, 0),
        (vec![lines("src/a.rs", 611)], &long, 1),
        (vec![lines("src/a.rs", 600)], &long, 1),
        (vec![lines("src/b.rs", 600)], &long, 1),
    ] {
        assert_eq!(said(rules::lengths(&files, long)), count, "{long:?}");
    }
}

#[test]
fn a_panic_is_seen_outside_tests_only() {
    let text = "fn f() { g().unwrap(); assert!(h().expect(\"x\")) }\n\
                #[cfg(test)]\n\
                mod tests { fn f() { g().unwrap() } }";
    assert_eq!(
        said(contents::panics(&example(&[
            ("src/a.rs", text),
            ("src/a/tests.rs", "fn f() { g().unwrap() }"),
            ("src/a/tests/more.rs", "fn f() { g().unwrap() }")
        ]))),
        2
    );
    assert_eq!(
        said(contents::panics(&example(&[(
            "src/a.rs",
            "// x.unwrap()\nfn f() { x.unwrap_or(1) }"
        )]))),
        0
    );
}

#[test]
fn a_permit_without_a_check_is_seen() {
    let permit = "#[derive(Clone, Debug)]\npub struct Permit<R> {\n    right: R,\n}\n";
    for (made, used, count) in [
        (permit.to_owned(), "fn f(permit: Permit) { permit.topic(); Permit::clone(p); }", 0),
        (permit.to_owned(), "fn f() { Permit::<Read>::on(caller, topic) }", 1),
        (permit.to_owned(), "#[cfg(test)]\nmod tests { fn f() { Permit::on(caller, topic) } }", 0),
        (permit.replace("    right", "    pub right"), "", 1),
        (permit.replace("Debug", "Default"), "", 1),
        ("pub struct TaskPermit(pub TaskId);\n".to_owned(), "", 1),
        ("pub struct Denied(pub Action);\n".to_owned(), "", 0),
    ] {
        let sources =
            [("src/access/permit.rs", made.as_str()), ("src/api/handlers/tasks.rs", used)];
        assert_eq!(said(contents::permits(&example(&sources))), count, "{made} {used}");
    }
}

#[test]
fn a_skipped_test_and_a_test_that_sleeps_are_seen() {
    let skipped = concat!("#[test]\n#[ign", "ore = \"slow\"]\nfn f() {}");
    assert_eq!(said(contents::ignored(&example(&[("tests/a.rs", skipped)]))), 1);
    for (path, text, count) in [
        ("tests/a.rs", "fn f() { tokio::time::sleep(x).await }", 1),
        ("tests/support/wait.rs", "fn f() { tokio::time::sleep(x).await }", 0),
        ("src/a.rs", "fn f() { clock::sleep(x) }", 0),
        ("src/a.rs", "#[cfg(test)]\nmod tests { fn f() { clock::sleep(x) } }", 1),
    ] {
        assert_eq!(said(contents::sleeps(&example(&[(path, text)]))), count, "{path}: {text}");
    }
}

#[test]
fn a_statement_without_a_name_is_seen() {
    for (text, count) in [
        ("const S: &str = \"select 1\";", 1),
        ("const S: &str = \"\n  with d as (delete from task) select 1\";", 1),
        ("const S: &str = \"-- claim\nselect 1\";", 0),
        ("const S: &str = \"-- claim\\n select 1\";", 0),
        ("const S: &str = \"\\\n-- claim\nselect 1\";", 0),
        ("const S: &str = \"-- claim select 1\";", 1),
        ("const S: &str = \"-- claim \\\n select 1\";", 1),
        ("const S: &str = \"update the heartbeat\";", 0),
        ("const S: &str = \"update heartbeat set counter = 1\";", 1),
        ("const S: &str = concat!(\"-- claim in \", $table, \"\n select 1 from \", $table);", 0),
        ("const S: &str = concat!(\"select 1 from \", $table);", 1),
        ("#[cfg(test)]\nmod tests { const S: &str = \"select 1\"; }", 0),
    ] {
        assert_eq!(
            said(contents::statements(&example(&[("src/postgres/claim.rs", text)]))),
            count,
            "{text}"
        );
    }
    assert_eq!(
        said(contents::statements(&example(&[("src/api/a.rs", "const S: &str = \"select 1\";")]))),
        0
    );
}

#[test]
fn a_registry_and_a_path_of_one_machine_are_seen() {
    let registry = ["https://crates", "io/x"].join(".");
    let folder = ["cd ", "work", "main"].join("/");
    assert_eq!(said(contents::places("a", &format!("fine\n{registry}\n{folder}\n"))), 2);
    assert_eq!(said(contents::places("a", "see docs/work/x.md and $HOME/work/x")), 0);
}

#[test]
fn a_sabotage_without_a_header_or_a_test_is_seen() {
    let sources = ["#[test]\nfn it_is_so() {}\n"];
    let whole =
        "Promise: 1, x\nSabotage: y\nTest: --lib a::tests::it_is_so\n\ndiff --git a/a b/a\n";
    assert_eq!(said(contents::sabotage("a", whole, &sources)), 0);
    for broken in [
        whole.replace("it_is_so", "it_is_not"),
        whole.replace("--lib", "--bin x"),
        whole.replace("Sabotage", "Why"),
    ] {
        assert_eq!(said(contents::sabotage("a", &broken, &sources)), 1, "{broken}");
    }
}

/// Markdown files made up for a test.
fn written(pages: &[(&str, &str)]) -> Vec<(String, String)> {
    pages.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
}

#[test]
fn a_link_that_leads_nowhere_is_seen() {
    let exists = |path: &str| matches!(path, "docs/a.md" | "docs/here.md");
    let here = (
        "docs/here.md",
        "# `punctual`: 1. A heading\n\n## Twice\n## Twice\n```\n# code [x](gone.md)\n```\n",
    );
    for (text, count) in [
        ("[x](here.md) [y](https://e.org#z) [z](../docs/here.md#twice)", 0),
        ("[x](../gone.md) [y](there.md)", 2),
        ("# One\n[x](#one) [y](#two)", 1),
        ("[x](here.md#punctual-1-a-heading) [y](here.md#twice-1)", 0),
        ("[x](here.md#code-xgonemd) [y](here.md#twice-2)", 2),
    ] {
        assert_eq!(
            said(pages::links(&written(&[("docs/a.md", text), here]), exists)),
            count,
            "{text}"
        );
    }
}

#[test]
fn a_page_that_is_not_in_the_table_of_contents_is_seen() {
    for (summary, count) in [
        ("[a](how-to/a.md)\n[r](../README.md)", 0),
        ("[r](../README.md)", 1),
        ("[a](how-to/a.md) [a](how-to/a.md)", 1),
    ] {
        let pages =
            written(&[("docs/SUMMARY.md", summary), ("docs/how-to/a.md", ""), ("README.md", "")]);
        assert_eq!(said(pages::unlisted(&pages)), count, "{summary}");
    }
}

#[test]
fn a_name_that_the_code_does_not_have_is_seen() {
    let source =
        "struct Wheel; impl Wheel { fn turn() {} } #[test] fn a_task_is_due_and_goes_out() {}";
    let sources = [("src/node/wheel.rs".to_owned(), source.to_owned())];
    for (text, count) in [
        ("`src/node/wheel.rs`, `wheel.rs`, `Wheel::turn`, `a_task_is_due_and_goes_out`", 0),
        ("`src/wheel.rs`", 1),
        ("`Wheel::stop`", 1),
        ("`a_task_is_due_and_stays_there`", 1),
        ("`punctual_in_flight_tasks_of_a_topic`, `wal_writer_delay`", 0),
        ("```\n`Wheel::stop`\n```", 0),
    ] {
        let pages = [("docs/a.md".to_owned(), text.to_owned())];
        assert_eq!(said(pages::stale_names(&pages, &sources)), count, "{text}");
    }
}
