//! The commands of consumers: finish, fail and extend.

use super::*;
use crate::client::draft::outcome;

const TRACKED: &str = "tracked --delay 0s --payload 1 --name n --ttr 30s --attempts-max 2 \
                       --backoff-min 1m --backoff-max 2m --backoff-factor 3 --dead-topic d";

fn parsed(line: &str) -> Result<CommandLine, clap::Error> {
    CommandLine::try_parse_from(["punctual"].into_iter().chain(line.split(' ')))
}

/// Sends the call of a command line.
async fn answer(node: &NodeOptions, line: &str) -> NodeAnswer {
    let (task, call, body) = match parsed(line).unwrap() {
        CommandLine::Finish(args) => (args.task.clone(), "finish", outcome::of_finish(&args)),
        CommandLine::Fail(args) => (args.task.clone(), "fail", outcome::of_fail(&args)),
        CommandLine::Extend(args) => (args.task.clone(), "extend", outcome::of_extend(&args)),
        _ => panic!("this is no call of a consumer"),
    };
    crate::client::answer_one(node, &task, call, body).await.unwrap()
}

#[tokio::test]
async fn a_task_is_tracked_extended_failed_finished_and_shown() {
    let node = node().await;
    let submitted = print::submitted(&submit(&node, TRACKED).await).unwrap();
    let (id, _) = submitted.split_at(36);
    let said = async |line: &str| print::answered(&answer(&node, line).await).unwrap();
    let named = "--topic tracked --name n";
    assert_eq!(
        said(&format!("extend {named} --attempt 1 --by 5m")).await,
        format!("{id}  extended, to finish by 2026-01-01T00:01:00.000Z")
    );
    assert_eq!(
        said(&format!("fail {id} --attempt 1 --retry-in 10m --reason gone")).await,
        format!("{id}  retrying, due 2026-01-01T00:00:01.000Z")
    );
    let shown = print::shown(&show(&node, id).await).unwrap();
    for line in [
        "attempt     1 of 2",
        "ttr         30s",
        "retry       2026-01-01T00:00:01.000Z",
        "  attempt   1: failed 2026-01-01T00:00:00.000Z: gone",
    ] {
        assert!(shown.lines().any(|shown| shown == line), "{line} in\n{shown}");
    }
    assert_eq!(said(&format!("finish {id}")).await, format!("{id}  finished"));
    let shown = print::shown(&show(&node, id).await).unwrap();
    assert!(shown.contains("finished    2026-01-01T00:00:00.000Z"), "{shown}");
    let policy = serde_json::from_str::<serde_json::Value>(&show(&node, id).await.text).unwrap();
    let wanted = serde_json::json!({
        "attempts_max": 2,
        "backoff_min": "1m",
        "backoff_max": "2m",
        "backoff_factor": 3,
        "dead_topic": "d",
    });
    assert_eq!(policy["retry"], wanted);
}

#[tokio::test]
async fn each_refused_call_has_its_exit_code() {
    let node = node().await;
    submit(&node, TRACKED).await;
    submit(&node, "t --delay 0s --payload 1 --name n").await;
    for (line, exit) in [
        ("finish 01b977ea-f4c0-8003-8000-000000000007", Exit::NotFound),
        ("finish --topic t --name n", Exit::Refused),
        ("fail --topic tracked --name n --attempt 2", Exit::Refused),
        ("fail --topic tracked --name n --attempt 1 --retry-in 8d", Exit::Refused),
        ("finish --topic full --name n", Exit::NothingDone),
        ("finish --topic lost --name n", Exit::Unknown),
    ] {
        let problem = answer(&node, line).await.problem();
        assert_eq!(problem.map(|problem| problem.exit()), Some(exit), "{line}");
    }
    assert!(answer(&node, "finish --topic tracked --name n").await.problem().is_none());
    let late = answer(&node, "fail --topic tracked --name n --attempt 1 --final").await;
    assert_eq!(late.problem().unwrap().exit(), Exit::TooLate);
}

#[test]
fn a_call_names_one_task_and_one_retry() {
    for line in [
        "finish",
        "finish --topic t",
        "finish --name n",
        "finish 01b977ea-f4c0-8003-8000-000000000007 --topic t --name n",
        "finish 01b977ea-f4c0-8003-8000-000000000007 --attempt 0",
        "fail 01b977ea-f4c0-8003-8000-000000000007",
        "fail --topic t --name n --attempt 1 --retry-in 1s --final",
        "fail --topic t --name n --attempt 1 --retry-in 1s --retry-at 2030-01-01T00:00:00Z",
        "fail --topic t --name n --attempt 1 --retry-in 30",
        "extend --topic t --name n --attempt 1 --by 8d",
        "submit --topic t --delay 1s --payload 1 --attempts-max 3",
        "submit file.jsonl --ttr 30s",
        "submit file.jsonl --attempts-max 3",
    ] {
        assert!(parsed(line).is_err(), "{line}");
    }
}
