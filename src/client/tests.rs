//! Tests of the clients: against the API over a model of a node's service, and against a scripted
//! server for everything that the model does not do.

mod access;
mod in_doubt;
mod many;
mod outcomes;
mod scripted;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use tokio::net::TcpListener;

use super::answer::{Deed, Ending, Exit, NodeAnswer};
use super::args::{DeadArgs, DeadCommand, DeadRedrive, RangeArgs};
use super::bulk::Bulk;
use super::output::print;
use super::{
    args::{self, CancelArgs, NodeOptions, SubmitArgs},
    draft,
};
use crate::access::{Policy, PolicyHandle};
use crate::api::{self, ApiMetrics, ApiSettings};
use crate::node::requests::service::Service;
use crate::node::requests::service::model::Model;
use crate::shutdown::Tasks;
use crate::telemetry::Registry;

#[derive(Parser)]
enum CommandLine {
    Submit(Box<SubmitArgs>),
    Show(args::Show),
    Move(args::MoveArgs),
    Cancel(CancelArgs),
    Pop(args::PopArgs),
    Finish(args::FinishArgs),
    Fail(args::FailArgs),
    Extend(args::ExtendArgs),
    Dead(DeadArgs),
}

/// A cancel of all tasks of a topic in a range.
fn bulk(range: &RangeArgs, is_dry_run: bool) -> Bulk<'_> {
    let path = &["v1", "tasks", "cancel"];
    Bulk {
        path,
        topic: Some("t"),
        submitted_by: None,
        choice: None,
        to_topic: None,
        new_due: (None, None),
        range,
        is_dry_run,
        is_json: false,
        retry_for: Duration::from_secs(1),
        what: "task",
        done: "cancelled",
    }
}

fn submit_args(line: &str) -> Result<SubmitArgs, clap::Error> {
    let words = ["punctual", "submit", "--topic"].into_iter().chain(line.split(' '));
    CommandLine::try_parse_from(words).map(|line| match line {
        CommandLine::Submit(args) => *args,
        _ => panic!("this is a submit"),
    })
}

async fn node() -> NodeOptions {
    rustls::crypto::ring::default_provider().install_default().ok();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let mut registry = Registry::default();
    let metrics = ApiMetrics::register(&mut registry);
    let api = api::Api::new(
        Service::of_model(Arc::new(Model::default())),
        ApiSettings::default(),
        metrics,
        Arc::new(registry),
        PolicyHandle::new(Policy::open()),
    );
    api.cursors().set_secret(b"a secret of tests");
    let tasks = Tasks::default();
    tasks.spawn("api", api::serve(listener, api, None, tasks.clone()));
    NodeOptions::at(format!("http://{address}/"), Duration::from_secs(30))
}

async fn submit(node: &NodeOptions, line: &str) -> NodeAnswer {
    let args = SubmitArgs { node: node.clone(), ..submit_args(line).unwrap() };
    super::submit_one(&args).await.unwrap()
}

async fn show(node: &NodeOptions, id: &str) -> NodeAnswer {
    super::ask(node, |caller| caller.get(&["v1", "tasks", id], &[])).await.unwrap()
}

async fn cancel(node: &NodeOptions, id: &str) -> NodeAnswer {
    super::ask(node, |caller| caller.delete(&["v1", "tasks", id])).await.unwrap()
}

async fn livez(node: &NodeOptions) -> Result<NodeAnswer, Ending> {
    super::ask(node, |caller| caller.get(&["livez"], &[])).await
}

#[tokio::test]
async fn a_task_is_submitted_shown_and_cancelled() {
    let node = node().await;
    let answer = submit(
        &node,
        "t --due-at 2030-01-31T09:30:00Z --payload [1] --key k --header a=b=c --name n",
    )
    .await;
    let line = print::submitted(&answer).unwrap();
    let (id, rest) = line.split_at(36);
    assert_eq!(rest, "  submitted, scheduled, due 2030-01-31T09:30:00.000Z to t");
    let shown = print::shown(&show(&node, id).await).unwrap();
    for line in [
        "id          ",
        "name        n",
        "key         k",
        "header      a=b=c",
        "payload     [1]",
        "state       scheduled",
    ] {
        assert!(shown.lines().any(|shown| shown.starts_with(line)), "{line} in\n{shown}");
    }
    let words = ["punctual", "move", id, "--due-at", "2030-02-28T09:30Z"];
    let Ok(CommandLine::Move(args)) = CommandLine::try_parse_from(words) else {
        panic!("this is a move")
    };
    let moved = super::move_one(&args::MoveArgs { node: node.clone(), ..args }).await.unwrap();
    let line = format!("{id}  moved, due 2030-02-28T09:30:00.000Z");
    assert_eq!(print::moved(&moved).unwrap(), line);
    assert_eq!(print::cancelled(&cancel(&node, id).await).unwrap(), format!("{id}  cancelled"));
}

#[tokio::test]
async fn every_refusal_has_its_exit_code() {
    let node = node().await;
    for (line, exit) in [
        ("no-such-topic --delay 1h --payload 1", Exit::Refused),
        ("t --delay 1month --payload 1", Exit::Refused),
        ("t --delay -1s --payload 1", Exit::Refused),
        ("full --delay 1h --payload 1", Exit::NothingDone),
        ("away --delay 1h --payload 1", Exit::NothingDone),
        ("lost --delay 1h --payload 1", Exit::Unknown),
    ] {
        let answer = submit(&node, line).await;
        assert_eq!(answer.problem().unwrap().exit(), exit, "{line}");
    }
    let published = submit(&node, "published --delay 1s --payload-text x").await;
    let id = published.read::<super::task::Task>().unwrap().id;
    let too_late = cancel(&node, &id).await.problem().unwrap().ending();
    assert_eq!(too_late.exit, Exit::TooLate);
    assert!(too_late.text.contains("partition   1"), "{}", too_late.text);
    let unknown = show(&node, "01b9774e-55c0-8003-8000-000000000007").await;
    assert_eq!(unknown.problem().unwrap().exit(), Exit::NotFound);
}

/// Cancels as `punctual cancel` does.
async fn cancel_by(node: &NodeOptions, line: &str) -> NodeAnswer {
    let words = ["punctual", "cancel"].into_iter().chain(line.split(' '));
    let Ok(CommandLine::Cancel(args)) = CommandLine::try_parse_from(words) else {
        panic!("this is a cancel: {line}")
    };
    super::cancel_one(&CancelArgs { node: node.clone(), ..args }).await.unwrap()
}

#[tokio::test]
async fn what_was_replaced_is_shown_with_the_task_in_its_place() {
    let node = node().await;
    let id_of = |answer: &NodeAnswer| answer.read::<super::task::Task>().unwrap().id;
    let first =
        id_of(&submit(&node, "t --name n --delay 1h --payload 1 --replace --if-absent").await);
    let second = id_of(
        &submit(&node, &format!("t --name n --delay 2h --payload 2 --replace --if-match {first}"))
            .await,
    );
    let shown = print::shown(&show(&node, &first).await).unwrap();
    assert!(shown.contains(&format!("state       cancelled\nreplaced by {second}\n")), "{shown}");
    let ending = cancel_by(&node, &first).await.problem().unwrap().ending();
    assert_eq!(ending.exit, Exit::Refused);
    assert!(
        ending.text.contains("the id in replaced_by\n")
            && ending.text.contains(&format!("replaced by {second}")),
        "{}",
        ending.text
    );
    // The name stands for another task than the expected one.
    for line in ["--if-absent", &format!("--if-match {first}")] {
        let unmet =
            submit(&node, &format!("t --name n --delay 3h --payload 3 --replace {line}")).await;
        assert_eq!((unmet.status, unmet.problem().unwrap().exit()), (412, Exit::Refused));
        assert!(unmet.problem().unwrap().ending().text.contains(&second));
    }
    assert_eq!(
        cancel_by(&node, &format!("--topic t --name n --if-match {first}")).await.status,
        412
    );
    assert_eq!(
        cancel_by(&node, &format!("--topic t --name n --if-match {second}")).await.status,
        200
    );
    for wrong in [
        "t --name n --delay 1h --payload 1 --if-absent",
        &format!("t --name n --delay 1h --payload 1 --if-match {first}"),
        &format!("t --name n --delay 1h --payload 1 --replace --if-absent --if-match {first}"),
        "t --name n --delay 1h --payload 1 --replace --if-match n",
    ] {
        assert!(submit_args(wrong).is_err(), "{wrong}");
    }
    for wrong in
        [format!("{first} --if-match {first}"), format!("--topic t --if-match {first} --yes")]
    {
        assert!(
            CommandLine::try_parse_from(["punctual", "cancel"].into_iter().chain(wrong.split(' ')))
                .is_err(),
            "{wrong}"
        );
    }
}

#[tokio::test]
async fn a_node_that_is_not_there_has_done_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    rustls::crypto::ring::default_provider().install_default().ok();
    let nowhere = NodeOptions::at(url, Duration::from_secs(30));
    let ending = livez(&nowhere).await.unwrap_err();
    assert_eq!(ending.exit, Exit::NothingDone, "{}", ending.text);
    let no_url = NodeOptions { url: Some("localhost:7070".to_owned()), ..nowhere };
    assert_eq!(livez(&no_url).await.unwrap_err().exit, Exit::Usage);
}

#[tokio::test]
async fn a_node_that_does_not_answer_leaves_it_unknown() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    rustls::crypto::ring::default_provider().install_default().ok();
    let silent = NodeOptions::at(
        format!("http://{}", listener.local_addr().unwrap()),
        Duration::from_secs(1),
    );
    let ending = livez(&silent).await.unwrap_err();
    assert_eq!(ending.exit, Exit::Unknown, "{}", ending.text);
    assert_eq!(Deed::Read.end(ending).exit, Exit::NothingDone);
}

#[test]
fn only_a_node_says_that_nothing_was_done() {
    let problem = |kind: &str| {
        format!(r#"{{"type":"urn:punctual:problem:{kind}","title":"T","detail":"D"}}"#)
    };
    for (status, text, exit) in [
        (503, problem("busy"), Exit::NothingDone),
        (503, problem("draining"), Exit::NothingDone),
        (503, problem("unavailable"), Exit::NothingDone),
        (503, problem("not-ready"), Exit::NothingDone),
        (503, problem("outcome-unknown"), Exit::Unknown),
        (503, problem("of-a-later-release"), Exit::Unknown),
        // Answers of Envoy and of other proxies.
        (
            503,
            "upstream connect error or disconnect/reset before headers. reset reason: connection \
             termination"
                .to_owned(),
            Exit::Unknown,
        ),
        (503, r#"{"type":"about:blank","title":"Service Unavailable"}"#.to_owned(), Exit::Unknown),
        (503, r#"{"type":"busy"}"#.to_owned(), Exit::Unknown),
        (500, problem("internal"), Exit::Unknown),
        (502, String::new(), Exit::Unknown),
        (504, String::new(), Exit::Unknown),
        (524, String::new(), Exit::Unknown),
        (408, problem("request-timeout"), Exit::NothingDone),
        (429, String::new(), Exit::NothingDone),
        (401, String::new(), Exit::Refused),
        (404, "no route".to_owned(), Exit::Refused),
        (404, problem("task-not-found"), Exit::NotFound),
        (404, problem("callback-not-found"), Exit::NotFound),
        (501, String::new(), Exit::Refused),
    ] {
        let answer = NodeAnswer { status, retry_after: None, has_token: false, text };
        assert_eq!(answer.problem().unwrap().exit(), exit, "{answer:?}");
    }
}

#[test]
fn every_503_of_a_node_is_known_to_the_client() {
    let page = include_str!("../../docs/problems.md");
    let rows = page
        .lines()
        .filter_map(|line| line.strip_prefix("| [`urn:punctual:problem:")?.split_once("`]"));
    let kinds: Vec<&str> =
        rows.filter(|(_, rest)| rest.contains("| 503 |")).map(|(kind, _)| kind).collect();
    assert_eq!(
        kinds,
        ["busy", "draining", "unavailable", "outcome-unknown", "not-ready"],
        "does it say that nothing was done?"
    );
}

#[test]
fn a_command_line_says_when_and_what_exactly_once() {
    for line in [
        "t --payload 1",
        "t --delay 1h",
        "t --delay 1h --due-at 2030-01-31T09:30:00Z --payload 1",
        "t --delay 1h --payload 1 --payload-text 1",
        "t --delay 1h --payload 1 --key a --key-base64 YQ==",
        "t --delay 1h --payload 1 --header a",
        "t --delay 1h --payload 1 --replace",
        "t --delay 1h --payload 1 --run-id r",
        "t --delay 1h tasks.jsonl",
        "t tasks.jsonl --name n",
        "t tasks.jsonl --batch 0",
        "t tasks.jsonl --batch 10001",
        "t tasks.jsonl --run-id ",
    ] {
        assert_eq!(submit_args(line).unwrap_err().exit_code(), 2, "{line}");
    }
    let shown = CommandLine::try_parse_from(["punctual", "show", "17"]);
    assert!(shown.err().unwrap().to_string().contains("UUID"));
    let lines = submit_args("t tasks.jsonl --run-id r --concurrency 64").unwrap();
    assert_eq!((lines.lines.concurrency, lines.lines.batch, lines.lines.from_line), (64, 1000, 1));
}

#[test]
fn a_task_is_named_by_its_id_or_by_topic_and_name() {
    const ID: &str = "01b9774e-55c0-8003-8000-000000000007";
    let parse = |line: &str| {
        CommandLine::try_parse_from(std::iter::once("punctual").chain(line.split(' '))).map(
            |line| match line {
                CommandLine::Cancel(args) => args.dry_run || args.yes,
                CommandLine::Dead(DeadArgs {
                    command:
                        DeadCommand::Redrive(DeadRedrive { change: args, .. })
                        | DeadCommand::Drop(args),
                }) => args.yes,
                CommandLine::Submit(_)
                | CommandLine::Pop(_)
                | CommandLine::Finish(_)
                | CommandLine::Fail(_)
                | CommandLine::Extend(_)
                | CommandLine::Show(_)
                | CommandLine::Move(_)
                | CommandLine::Dead(_) => false,
            },
        )
    };
    for line in [
        format!("show {ID}"),
        "show --topic t --name n".to_owned(),
        format!("move {ID} --delay 1h"),
        format!("move {ID} --due-at 5"),
        "move --topic t --name n --delay 1h".to_owned(),
        format!("cancel {ID}"),
        "cancel --topic t --name n".to_owned(),
        "cancel --topic t --due-to 5 --yes".to_owned(),
        "dead list --limit 5 --due-from 5".to_owned(),
        format!("dead redrive {ID}"),
        format!("dead redrive {ID} --to-topic u"),
        "dead redrive --topic t --to-topic u --yes".to_owned(),
        "dead redrive --topic t --due-from 5 --dry-run".to_owned(),
        "dead redrive --topic t --due-to 5".to_owned(),
        format!("dead drop {ID}"),
        format!("dead delete {ID}"),
        "dead drop --topic t --dry-run".to_owned(),
        "dead drop --topic t --due-from 5 --yes".to_owned(),
    ] {
        let parsed = parse(&line);
        assert_eq!(parsed.ok(), Some(line.contains("--yes")), "{line}");
    }
    for line in [
        "show".to_owned(),
        "show --topic t".to_owned(),
        "show --name n".to_owned(),
        format!("show {ID} --topic t --name n"),
        format!("move {ID}"),
        "move --delay 1h".to_owned(),
        "move --topic t --delay 1h".to_owned(),
        format!("move {ID} --topic t --name n --delay 1h"),
        format!("move {ID} --delay 1h --due-at 5"),
        "cancel".to_owned(),
        "cancel --due-from 5 --yes".to_owned(),
        format!("cancel {ID} --yes"),
        "cancel --topic t --name n --yes".to_owned(),
        "cancel --topic t --name n --due-from 5".to_owned(),
        "cancel --topic t --yes --dry-run".to_owned(),
        "dead redrive".to_owned(),
        "dead redrive --to-topic u".to_owned(),
        format!("dead drop {ID} --to-topic u"),
        format!("dead redrive {ID} --yes"),
        "dead drop".to_owned(),
        "dead drop --yes".to_owned(),
        format!("dead drop {ID} --topic t"),
        "dead drop --topic t --yes --dry-run".to_owned(),
        "dead list --limit 5 --all".to_owned(),
    ] {
        assert_eq!(parse(&line).err().map(|error| error.exit_code()), Some(2), "{line}");
    }
}

#[test]
fn a_delay_needs_a_unit() {
    for number in ["30", "0", "+30", "-30", "1.5", " 30"] {
        let words = ["punctual", "submit", "--topic", "t", "--payload", "1", "--delay", number];
        let error = CommandLine::try_parse_from(words)
            .err()
            .unwrap_or_else(|| panic!("`{number}` was taken"));
        let right = format!("{0}ms, {0}s, {0}m", number.trim());
        assert!(error.exit_code() == 2 && error.to_string().contains(&right), "{number}: {error}");
    }
    for span in ["30ms", "1.5h", "PT30M"] {
        let args = submit_args(&format!("t --payload 1 --delay {span}")).unwrap();
        assert_eq!(args.due.delay.as_deref(), Some(span));
    }
}

fn said(line: &str) -> String {
    CommandLine::try_parse_from(line.split(' '))
        .err()
        .unwrap_or_else(|| panic!("{line} was taken"))
        .to_string()
}

#[test]
fn a_wrong_command_line_is_told_all_the_ways_that_are_right() {
    for (line, ways) in [
        (
            "punctual show",
            ["<ID|--topic <TOPIC>|--name <NAME>>", "punctual show --topic <TOPIC> --name <NAME> "],
        ),
        (
            "punctual cancel",
            [
                "<ID|--topic <TOPIC>|--name <NAME>|--submitted-by <PRINCIPAL>>",
                "punctual cancel --topic <TOPIC> [--ids",
            ],
        ),
        (
            "punctual dead redrive",
            ["<ID|--topic <TOPIC>>", "punctual dead redrive --topic <TOPIC> "],
        ),
        ("punctual dead drop", ["<ID|--topic <TOPIC>>", "punctual dead drop --topic <TOPIC> "]),
    ] {
        let said = said(line);
        assert!(ways.iter().all(|way| said.contains(way)), "{line}: {said}");
        assert!(!said.contains("--url"), "{line}: {said}");
    }
    for line in ["punctual cancel --name x", "punctual show --name x"] {
        let said = said(line);
        let (missing, _usage) = said.split_once("Usage:").unwrap();
        assert!(
            missing.contains("  --topic <TOPIC>\n") && !missing.contains("ID"),
            "{line}: {said}"
        );
    }
    for line in ["punctual dead list --nope", "punctual cancel --nope"] {
        assert!(!said(line).contains("<URL>"), "{line}: {}", said(line));
    }
}

#[test]
fn keys_and_names_may_begin_with_a_hyphen() {
    let args = submit_args("t --delay 1h --payload 1 --key -1 --name -n").unwrap();
    assert_eq!((args.key.as_deref(), args.name.as_deref()), (Some("-1"), Some("-n")));
    assert!(
        submit_args("t --delay 1h --payload 1 --name --replace").is_err(),
        "the value of --name was forgotten"
    );
    for line in ["punctual show --topic t --name -n", "punctual cancel --topic t --name -n"] {
        assert!(CommandLine::try_parse_from(line.split(' ')).is_ok(), "{line}");
    }
}

#[tokio::test]
async fn an_empty_name_is_wrong_usage_and_no_node_is_asked() {
    let node = node().await;
    for path in [["v1", "topics", "demo", "tasks", ""], ["v1", "topics", "", "tasks", "n"]] {
        let ending = super::ask(&node, |caller| caller.delete(&path)).await.unwrap_err();
        assert_eq!(
            (ending.exit, ending.text.contains("empty")),
            (Exit::Usage, true),
            "{path:?}: {}",
            ending.text
        );
    }
}

#[tokio::test]
async fn a_file_is_sent_byte_for_byte() {
    let path = std::env::temp_dir().join(format!("punctual-client-test-{}", std::process::id()));
    for (bytes, member) in [
        (b"text\n".as_slice(), r#""payload_text":"text\n""#),
        (b"\xff\x00", r#""payload_base64":"/wA=""#),
    ] {
        std::fs::write(&path, bytes).unwrap();
        let args =
            submit_args(&format!("t --delay 5ms --payload-file {}", path.display())).unwrap();
        let body = String::from_utf8(draft::body_of(&args).await.unwrap()).unwrap();
        assert_eq!(body, format!(r#"{{"topic":"t","delay":"5ms",{member}}}"#));
    }
    std::fs::remove_file(&path).unwrap();
    let args = submit_args("t --delay 5ms --payload {x}").unwrap();
    assert!(draft::body_of(&args).await.unwrap_err().contains("--payload-text"));
}
