//! Tests of unknown outcomes: the client cannot tell whether a call took effect, or cannot print
//! the result.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use super::scripted::Scripted;
use super::{bulk, submit_args};
use crate::client::answer::{Deed, Ending, Exit, NodeAnswer};
use crate::client::args::{NodeOptions, RangeArgs, SubmitArgs};
use crate::client::bulk::Bulk;
use crate::client::caller::{Asked, NodeCaller, Repeating};
use crate::client::output::print;
use crate::client::pages::ListFailure;
use crate::client::{end, finish, submit_one};

const BUSY: &str =
    r#"{"type":"urn:punctual:problem:busy","title":"B","detail":"nothing was done"}"#;
const UNKNOWN: &str =
    r#"{"type":"urn:punctual:problem:outcome-unknown","title":"U","detail":"who knows"}"#;
const TOO_LATE: &str =
    r#"{"type":"urn:punctual:problem:too-late","title":"L","detail":"d","verdict":"too_late"}"#;
const REFUSED: &str =
    r#"{"type":"urn:punctual:problem:unknown-topic","title":"T","detail":"no such topic"}"#;

/// Submits a task with a name to a server that gives these answers, and retries for a second.
async fn submit_named<const N: usize>(answers: [(u16, &str); N]) -> Result<NodeAnswer, Ending> {
    let server = Scripted::start(answers).await;
    let args = submit_args("t --name n --delay 5ms --payload 1 --retry-for 1s").unwrap();
    submit_one(&SubmitArgs { node: server.node.clone(), ..args }).await
}

#[tokio::test]
async fn what_an_attempt_may_have_done_a_later_one_does_not_undo() {
    for last in [
        (503, BUSY),
        (503, "upstream connect error"),
        (409, TOO_LATE),
        (401, "who are you?"),
        (404, "{}"),
    ] {
        let ending = match submit_named([(502, "bad gateway"), last]).await {
            Ok(answer) => answer.problem().unwrap().ending(),
            Err(ending) => ending,
        };
        assert_eq!(ending.exit, Exit::Unknown, "{last:?}: {}", ending.text);
    }
    let ending = submit_named([(503, UNKNOWN), (503, BUSY)]).await.unwrap_err();
    assert_eq!(ending.text, "an earlier attempt had no answer; the last one: B: nothing was done");
    let said = Deed::Submit { is_named: true }.end(ending).text;
    assert!(
        said.ends_with(
            "the task may be stored, or not; repeat the command: the same name makes no second task"
        ),
        "{said}"
    );
}

#[tokio::test]
async fn what_a_node_says_of_a_later_attempt_holds_for_all_of_them() {
    for (last, exit) in
        [((422, REFUSED), Some(Exit::Refused)), ((201, "{}"), None), ((200, "{}"), None)]
    {
        let answer = submit_named([(502, ""), last]).await.unwrap();
        assert_eq!(answer.problem().map(|problem| problem.exit()), exit, "{last:?}");
    }
    let busy = submit_named([(503, BUSY)]).await.unwrap();
    assert_eq!(busy.problem().unwrap().exit(), Exit::NothingDone, "no attempt is in doubt");
}

#[tokio::test]
async fn without_a_name_a_proxys_503_is_not_repeated() {
    let server = Scripted::start([(503, "upstream connect error"), (201, "{}")]).await;
    let caller = server.caller();
    let call = caller.post(&["v1", "tasks"], "{}").unwrap();
    let asked = caller.ask_for(&call, Duration::from_secs(20), Repeating::MayDouble).await.unwrap();
    assert_eq!((asked.answer.status, server.asked().len()), (503, 1));
    let server = Scripted::start([(502, ""), (200, "{}")]).await;
    let Asked { answer, is_in_doubt } = server
        .caller()
        .ask_for(&call_of(&server.caller()), Duration::from_secs(20), Repeating::IsSafe)
        .await
        .unwrap();
    assert_eq!((answer.status, is_in_doubt), (200, true));
}

/// The parser of URLs would drop some of these characters, and the URL would name another task.
#[tokio::test]
async fn a_name_reaches_the_node_as_it_is_whatever_is_in_it() {
    let server = Scripted::start([(200, "{}")]).await;
    let caller = server.caller();
    for name in ["a\tb", "a\nb", "a\r", "a/b %é", "-._~"] {
        caller
            .ask(&caller.get(&["v1", "topics", "de\nmo", "tasks", name], &[]).unwrap())
            .await
            .unwrap();
    }
    let paths = ["a%09b", "a%0Ab", "a%0D", "a%2Fb%20%25%C3%A9", "-._~"];
    assert_eq!(
        server.asked(),
        paths.map(|name| format!("GET /base/v1/topics/de%0Amo/tasks/{name}"))
    );
}

#[test]
fn no_value_can_be_taken_for_another_member() {
    let text = concat!(
        r#"{"id":"i","topic":"t","due_at":"d","state":"scheduled","#,
        r#""payload_text":"one\nstate       published\u202e"}"#,
    );
    let answer =
        NodeAnswer { status: 200, retry_after: None, has_token: false, text: text.to_owned() };
    let shown = print::shown(&answer).unwrap();
    assert!(
        shown.ends_with("payload     one\n            state       published\\u{202e}"),
        "{shown}"
    );
}

/// The task may have been published since. The same call would then schedule another one.
#[tokio::test]
async fn a_replacement_whose_outcome_is_unknown_is_not_repeated() {
    for (first, asked_count) in [((502, ""), 1), ((503, UNKNOWN), 1), ((503, BUSY), 2)] {
        let server = Scripted::start([first, (201, "{}")]).await;
        let args =
            submit_args("t --name n --replace --delay 5ms --payload 1 --retry-for 1m").unwrap();
        submit_one(&SubmitArgs { node: server.node.clone(), ..args }).await.unwrap();
        assert_eq!(server.asked().len(), asked_count, "{first:?}");
    }
}

#[test]
fn what_is_no_nodes_answer_is_none_also_as_json() {
    for text in ["<html>", "{}", r#"{"ok":true}"#, r#"{"id":"x"}"#] {
        let answer = || NodeAnswer {
            status: 200,
            retry_after: None,
            has_token: false,
            text: text.to_owned(),
        };
        for is_json in [false, true] {
            assert_eq!(
                end(Ok(answer()), is_json, Deed::Submit { is_named: true }, print::submitted),
                Exit::Unknown.into(),
                "{text}"
            );
            assert_eq!(
                end(Ok(answer()), is_json, Deed::Cancel, print::cancelled),
                Exit::Unknown.into(),
                "{text}"
            );
            assert_eq!(
                end(Ok(answer()), is_json, Deed::TakeAway, print::dropped),
                Exit::Unknown.into(),
                "{text}"
            );
        }
    }
}

fn call_of(caller: &NodeCaller) -> crate::client::caller::Call {
    caller.get(&["v1", "tasks"], &[]).unwrap()
}

const NO_RANGE: RangeArgs = RangeArgs { due_from: None, due_to: None };

#[tokio::test]
async fn a_count_of_which_an_answer_was_lost_is_not_exact() {
    let more = r#"{"cancelled":10000,"more":true,"dry_run":false}"#;
    let last = r#"{"cancelled":17,"more":false,"dry_run":false}"#;
    let server = Scripted::start([(200, more), (503, UNKNOWN), (200, last)]).await;
    assert_eq!(
        bulk(&NO_RANGE, false).run(&server.caller()).await.unwrap(),
        "at least 10,017 tasks cancelled"
    );
    let server = Scripted::start([(200, more), (502, ""), (200, last)]).await;
    let json =
        Bulk { is_json: true, ..bulk(&NO_RANGE, false) }.run(&server.caller()).await.unwrap();
    assert_eq!(json, r#"{"cancelled":10017,"dry_run":false,"exact":false,"more":false}"#);
}

#[tokio::test]
async fn nothing_was_done_is_not_said_of_a_bulk_that_may_have_done_something() {
    let more = r#"{"cancelled":10000,"more":true,"dry_run":false}"#;
    let stuck = r#"{"cancelled":0,"more":true,"dry_run":false}"#;
    let moved = r#"{"cancelled":0,"more":true,"dry_run":false,"cursor":"c1"}"#;
    let counted = Scripted::start([(200, more), (200, stuck)]).await;
    let in_doubt = Scripted::start([(200, moved), (502, ""), (200, moved)]).await;
    for server in [counted, in_doubt] {
        let Err(ListFailure::Ending(ending)) = bulk(&NO_RANGE, false).run(&server.caller()).await
        else {
            panic!("it broke off")
        };
        assert_eq!(ending.exit, Exit::Unknown, "{}", ending.text);
    }
}

/// Two people redrive the same dead letters.
#[tokio::test]
async fn what_somebody_else_has_in_hand_is_asked_for_again() {
    let stuck = r#"{"cancelled":0,"more":true,"dry_run":false}"#;
    let last = r#"{"cancelled":17,"more":false,"dry_run":false}"#;
    let server = Scripted::start([(200, stuck), (200, stuck), (200, last)]).await;
    assert_eq!(bulk(&NO_RANGE, false).run(&server.caller()).await.unwrap(), "17 tasks cancelled");
}

#[tokio::test]
async fn a_look_that_fails_has_done_nothing_whatever_fails() {
    for (status, text) in [(502, "bad gateway"), (503, UNKNOWN), (500, "")] {
        for is_json in [false, true] {
            let answer = || NodeAnswer {
                status,
                retry_after: None,
                has_token: false,
                text: text.to_owned(),
            };
            let looked = end(Ok(answer()), is_json, Deed::Read, |_| Ok(String::new()));
            assert_eq!(looked, ExitCode::from(Exit::NothingDone), "{status}");
            let listed = finish(Err(ListFailure::Problem(answer())), is_json, Deed::Read);
            assert_eq!(listed, ExitCode::from(Exit::NothingDone), "{status}");
            let cancelled = end(Ok(answer()), is_json, Deed::Cancel, |_| Ok(String::new()));
            assert_eq!(cancelled, ExitCode::from(Exit::Unknown), "{status}");
        }
    }
    let silent =
        finish(Err(Ending::new(Exit::Unknown, "did not answer").into()), false, Deed::Read);
    assert_eq!(silent, ExitCode::from(Exit::NothingDone));
}

#[test]
fn json_that_is_no_problem_is_told_from_one() {
    for text in ["<html>", "{}", r#"{"message":"no healthy upstream"}"#, "[]", "\"no\""] {
        let answer =
            NodeAnswer { status: 502, retry_after: None, has_token: false, text: text.to_owned() };
        let ending = answer.problem().unwrap().ending();
        assert!(
            ending.text.contains("status 502 without a problem in JSON"),
            "{text}: {}",
            ending.text
        );
    }
}

#[test]
fn whoever_is_left_in_doubt_is_told_whether_to_repeat() {
    let problem =
        NodeAnswer { status: 502, retry_after: None, has_token: false, text: String::new() }
            .problem()
            .unwrap();
    for (deed, advice) in [
        (Deed::Submit { is_named: true }, "the same name makes no second task"),
        (Deed::Submit { is_named: false }, "may publish the task twice"),
        (Deed::Replace, "look with `punctual show"),
        (Deed::Cancel, "repeating is safe"),
        (Deed::TakeAway, "repeating is safe"),
        (Deed::Bulk, "repeating is safe"),
    ] {
        let ending = deed.end(problem.ending());
        assert!(
            ending.exit == Exit::Unknown && ending.text.contains(advice),
            "{deed:?}: {}",
            ending.text
        );
        let refused = deed.end(Ending::new(Exit::Refused, "no"));
        assert_eq!(refused.text, "no", "{deed:?}");
    }
}

#[test]
fn what_was_done_and_cannot_be_told_is_neither_refused_nor_undone() {
    let full = io::Error::from(io::ErrorKind::StorageFull);
    for deed in
        [Deed::Submit { is_named: false }, Deed::Replace, Deed::Cancel, Deed::TakeAway, Deed::Bulk]
    {
        let ending = deed.unwritten(&full);
        assert!(
            ending.exit == Exit::Unknown && ending.text.starts_with("it was done; "),
            "{deed:?}: {}",
            ending.text
        );
    }
    assert_eq!(Deed::Read.unwritten(&full).exit, Exit::NothingDone);
}

#[tokio::test]
async fn a_password_in_a_url_is_refused_and_never_repeated() {
    rustls::crypto::ring::default_provider().install_default().ok();
    let caller = |url: &str| NodeCaller::new(&NodeOptions::at(url, Duration::from_secs(1)));
    for url in [
        "me:s3cret@proxy:7070",
        "https://me:s3/cret@proxy",
        "ftp://me:s3cret@proxy",
        "https://me:p@s3cret@ proxy",
        "http://me:s3cret@proxy",
        "https://me@proxy",
        "http://:s3cret@proxy",
    ] {
        let ending = caller(url).unwrap_err();
        assert!(ending.exit == Exit::Usage && ending.text.contains("proxy"), "{}", ending.text);
        assert!(!ending.text.contains("s3"), "{}", ending.text);
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let silent = caller(&format!("http://{address}/base/")).unwrap();
    let call = call_of(&silent);
    let late = silent.ask(&call).await.unwrap_err();
    assert_eq!(late.text, format!("http://{address}/base did not answer within 1s (--timeout)"));
    drop(listener);
    let gone = silent.ask(&call).await.unwrap_err();
    assert!(
        gone.text.starts_with(&format!("cannot reach http://{address}/base: ")),
        "{}",
        gone.text
    );
}
