//! Tests of lists and bulk operations.

use std::time::Duration;

use super::scripted::Scripted;
use super::{CommandLine, bulk};
use crate::client;
use crate::client::answer::{Ending, Exit, NodeAnswer};
use crate::client::args::{ChoiceArgs, DeadArgs, DeadCommand, PartArgs, RangeArgs};
use crate::client::bulk::Bulk;
use crate::client::caller::Call;
use crate::client::caller::{NodeCaller, Repeating};
use crate::client::output::print;
use crate::client::pages::{ListEnd, ListFailure, ListParameters};

const BUSY: &str =
    r#"{"type":"urn:punctual:problem:busy","title":"B","status":503,"detail":"nothing was done"}"#;

async fn walk(server: &Scripted, part: &PartArgs) -> (Vec<String>, Result<ListEnd, ListFailure>) {
    let mut seen = Vec::new();
    let filters = vec![("topic", "a&b"), ("due_from", "2030-01-31T09:30:00+01:00")];
    let listing =
        ListParameters { path: &["v1", "tasks"], filters, part, is_json: false, what: "task" };
    let caller = server.caller();
    let listed = listing.walk(&caller, |tasks| {
        seen.extend(tasks.iter().map(|task| task.get().to_owned()));
        Ok(true)
    });
    let listed = listed.await;
    (seen, listed)
}

fn part(limit: u64) -> PartArgs {
    PartArgs { limit, all: false, cursor: None }
}

#[tokio::test]
async fn a_move_of_many_sends_its_choice_and_its_span_until_nothing_is_left() {
    let server = Scripted::start([
        (200, r#"{"moved":2,"more":true,"cursor":"c","dry_run":false}"#),
        (200, r#"{"moved":1,"more":false,"cursor":null,"dry_run":false}"#),
    ])
    .await;
    let choice = ChoiceArgs { name_prefix: Some("order-17/".to_owned()), ..ChoiceArgs::default() };
    let range = RangeArgs { due_from: None, due_to: None };
    let moved = Bulk {
        path: &["v1", "tasks", "move"],
        choice: Some(&choice),
        new_due: (Some("-1h"), None),
        done: "moved",
        ..bulk(&range, false)
    };
    assert_eq!(moved.run(&server.caller()).await.unwrap(), "3 tasks moved");
    let body = r#"POST /base/v1/tasks/move {"topic":"t","dry_run":false,"#;
    assert_eq!(
        server.asked(),
        [
            format!(r#"{body}"name_prefix":"order-17/","by":"-1h"}}"#),
            format!(r#"{body}"cursor":"c","name_prefix":"order-17/","by":"-1h"}}"#),
        ]
    );
}

#[test]
fn a_move_is_of_one_task_or_of_many() {
    use clap::Parser as _;
    let id = "01b977ea-f4c0-8003-8000-000000000007";
    for (line, is_right) in [
        (format!("{id} --delay 1h"), true),
        ("--topic t --name n --due-at 2030-01-31T09:30Z".to_owned(), true),
        ("--topic t --by -1h --due-from 1 --due-to 2 --dry-run".to_owned(), true),
        (format!("--topic t --ids {id},{id} --to 2030-01-31T09:30Z --yes"), true),
        ("--topic t --names a --names b --to 2030-01-31T09:30Z --yes".to_owned(), true),
        (format!("{id} --by 1h"), false),
        ("--topic t --name n --to 2030-01-31T09:30Z".to_owned(), false),
        ("--topic t --by 1h --to 2030-01-31T09:30Z".to_owned(), false),
        ("--topic t --key a --name-prefix b --to 2030-01-31T09:30Z".to_owned(), false),
        ("--by 1h".to_owned(), false),
        ("--topic t".to_owned(), false),
        (format!("{id} --delay 1h --yes"), false),
    ] {
        let words = ["punctual", "move"].into_iter().chain(line.split(' '));
        assert_eq!(CommandLine::try_parse_from(words).is_ok(), is_right, "{line}");
    }
}

#[test]
fn the_question_before_a_change_names_the_tasks_that_are_meant() {
    use clap::Parser as _;
    let ids = "move --topic t --to 5 --ids 01b977ea-f4c0-8003-8000-000000000007";
    for (line, tasks) in [
        ("cancel --topic t", "all tasks of t"),
        ("cancel --topic t --due-to 5", "all tasks of t in this range"),
        ("cancel --topic t --name-prefix rr/97", "the chosen tasks of t"),
        ("cancel --topic t --key k --due-from 5", "the chosen tasks of t in this range"),
        ("cancel --topic t --key-base64 YQ==", "the chosen tasks of t"),
        ("cancel --submitted-by p", "all tasks submitted by p"),
        ("cancel --topic t --submitted-by p --names n", "the chosen tasks of t submitted by p"),
        ("move --topic t --by 1h", "all tasks of t"),
        ("move --topic t --by 1h --due-from 5", "all tasks of t in this range"),
        (ids, "the chosen tasks of t"),
        ("dead drop --topic t", "all dead letters of t"),
        ("dead drop --topic t --due-to 5", "all dead letters of t in this range"),
    ] {
        let words = std::iter::once("punctual").chain(line.split(' '));
        let (deed, wanted) = match CommandLine::try_parse_from(words).ok() {
            Some(CommandLine::Cancel(args)) => (
                client::deed_of_cancel(&args),
                format!("cancel {tasks} that can still be cancelled"),
            ),
            Some(CommandLine::Move(args)) => {
                (client::deed_of_move(&args), format!("move {tasks} that can still be moved"))
            }
            Some(CommandLine::Dead(DeadArgs { command: DeadCommand::Drop(args) })) => {
                (client::deed_of_dead("drop", "t", &args), format!("drop {tasks}"))
            }
            _ => panic!("{line} is wrong"),
        };
        assert_eq!(deed, wanted, "{line}");
    }
}

#[tokio::test]
async fn a_list_goes_from_page_to_page_also_over_empty_ones() {
    let server = Scripted::start([
        (200, r#"{"tasks":[{"id":1},{"id":2}],"cursor":"c/1"}"#),
        (200, r#"{"tasks":[],"cursor":"c2"}"#),
        (503, BUSY),
        (200, r#"{"tasks":[{"id":3}],"cursor":null}"#),
    ])
    .await;
    let (seen, listed) = walk(&server, &part(1500)).await;
    assert_eq!(seen, [r#"{"id":1}"#, r#"{"id":2}"#, r#"{"id":3}"#]);
    assert_eq!(listed.unwrap(), ListEnd { count: 3, cursor: None });
    let query = "GET /base/v1/tasks?topic=a%26b&due_from=2030-01-31T09%3A30%3A00%2B01%3A00";
    let expected = [
        format!("{query}&limit=1000"),
        format!("{query}&limit=1000&cursor=c%2F1"),
        format!("{query}&limit=1000&cursor=c2"),
        format!("{query}&limit=1000&cursor=c2"),
    ];
    assert_eq!(server.asked(), expected);
}

#[tokio::test]
async fn a_list_ends_at_its_limit_and_says_where_it_goes_on() {
    let server = Scripted::start([
        (200, r#"{"tasks":[{"id":1},{"id":2}],"cursor":"c1"}"#),
        (200, r#"{"tasks":[{"id":3}],"cursor":"c2"}"#),
    ])
    .await;
    let (_, listed) = walk(&server, &part(3)).await;
    assert_eq!(listed.unwrap(), ListEnd { count: 3, cursor: Some("c2".to_owned()) });
    assert!(server.asked()[1].ends_with("&limit=1&cursor=c1"), "{:?}", server.asked());
}

#[tokio::test]
async fn a_list_that_does_not_move_is_given_up() {
    let server = Scripted::start([(200, r#"{"tasks":[],"cursor":"c"}"#)]).await;
    let (_, listed) = walk(&server, &part(3)).await;
    assert!(
        matches!(listed, Err(ListFailure::Ending(Ending { exit: Exit::Unknown, .. }))),
        "{listed:?}"
    );
    let refused = Scripted::start([(
        400,
        r#"{"type":"urn:punctual:problem:invalid-value","detail":"no such cursor"}"#,
    )])
    .await;
    assert!(matches!(walk(&refused, &part(3)).await.1, Err(ListFailure::Problem(_))));
}

#[tokio::test]
async fn a_bulk_cancel_goes_on_until_none_is_left() {
    let server = Scripted::start([
        (200, r#"{"cancelled":10000,"more":true,"dry_run":false}"#),
        (503, BUSY),
        (200, r#"{"cancelled":17,"more":false,"dry_run":false}"#),
    ])
    .await;
    let range = RangeArgs { due_from: None, due_to: Some("5".to_owned()) };
    assert_eq!(bulk(&range, false).run(&server.caller()).await.unwrap(), "10,017 tasks cancelled");
    let request = r#"POST /base/v1/tasks/cancel {"topic":"t","due_to":5,"dry_run":false}"#;
    assert_eq!(server.asked(), [request; 3]);
    let json = Bulk { is_json: true, ..bulk(&range, false) }.run(&server.caller()).await.unwrap();
    assert_eq!(json, r#"{"cancelled":17,"dry_run":false,"exact":true,"more":false}"#);
}

#[tokio::test]
async fn a_dry_run_asks_once_and_says_when_there_is_more() {
    let server =
        Scripted::start([(200, r#"{"cancelled":10000,"more":true,"dry_run":true}"#)]).await;
    let range = RangeArgs { due_from: None, due_to: None };
    let said = bulk(&range, true).run(&server.caller()).await.unwrap();
    assert_eq!(said, "10,000 tasks and more would be cancelled; nothing was done");
    assert_eq!(server.asked(), [r#"POST /base/v1/tasks/cancel {"topic":"t","dry_run":true}"#]);
}

#[tokio::test]
async fn a_bulk_cancel_goes_on_where_the_search_has_ended() {
    let server = Scripted::start([
        (
            200,
            concat!(
                r#"{"cancelled":0,"more":true,"dry_run":true,"#,
                r#""searched_to":"2030-01-01T00:00:00.000Z","cursor":"c1"}"#,
            ),
        ),
        (
            200,
            concat!(
                r#"{"cancelled":10000,"more":true,"dry_run":true,"#,
                r#""searched_to":"2030-01-01T00:00:00.000Z","cursor":"c2"}"#,
            ),
        ),
        (200, r#"{"cancelled":3,"more":false,"dry_run":true}"#),
    ])
    .await;
    let range = RangeArgs { due_from: Some("7".to_owned()), due_to: None };
    let said = bulk(&range, true).run(&server.caller()).await.unwrap();
    assert_eq!(said, "10,003 tasks would be cancelled; nothing was done");
    let expected = ["", r#","cursor":"c1""#, r#","cursor":"c2""#].map(|cursor| {
        format!(r#"POST /base/v1/tasks/cancel {{"topic":"t","due_from":7,"dry_run":true{cursor}}}"#)
    });
    assert_eq!(server.asked(), expected);
}

#[tokio::test]
async fn a_bulk_cancel_that_breaks_off_says_what_was_done() {
    let server =
        Scripted::start([(200, r#"{"cancelled":10000,"more":true,"dry_run":false}"#), (400, "{}")])
            .await;
    let range = RangeArgs { due_from: None, due_to: None };
    let Err(ListFailure::Ending(ending)) = bulk(&range, false).run(&server.caller()).await else {
        panic!("it broke off")
    };
    assert!(ending.text.contains("10,000 tasks cancelled before that"), "{}", ending.text);
    let endless = Scripted::start([(200, r#"{"redriven":0,"more":true,"dry_run":false}"#)]).await;
    let ended = bulk(&range, false).run(&endless.caller()).await;
    assert!(
        matches!(ended, Err(ListFailure::Ending(Ending { exit: Exit::NothingDone, .. }))),
        "{ended:?}"
    );
}

#[tokio::test]
async fn counts_say_what_is_an_estimate() {
    let text = r#"{"as_of":"2030-01-31T09:30:12.345Z","pending":{"count":1234567,"exact":false},
        "topics":[{"topic":"orders","count":1234000,"exact":false},
          {"topic":"t","count":567,"exact":true}],"more_topics":true,
        "minutes":[{"from":"2030-01-31T09:30:00.000Z","count":0,"exact":true},
          {"from":"2030-01-31T09:31:00.000Z","count":42,"exact":true}]}"#;
    let answer =
        NodeAnswer { status: 200, retry_after: None, has_token: false, text: text.to_owned() };
    assert_eq!(
        crate::client::output::counts::shown(&answer, None).unwrap(),
        "pending  about 1,234,567\n\
         as of    2030-01-31T09:30:12.345Z\n\n\
         TOPIC   PENDING\n\
         orders  about 1,234,000\n\
         t       567\n\
         (more)  more topics have pending tasks\n\n\
         DUE IN THE MINUTE FROM    PENDING\n\
         2030-01-31T09:31:00.000Z  42\n"
    );
}

#[tokio::test]
async fn a_topic_that_nobody_knows_is_refused_only_when_nothing_was_found_of_it() {
    let range = RangeArgs { due_from: None, due_to: None };
    let refused = |ended: Result<String, ListFailure>| match ended {
        Err(ListFailure::Ending(ending)) => {
            ending.exit == Exit::Refused && ending.text.contains("the topic t is not known")
        }
        _ => false,
    };
    for (known, is_refused) in [("false", true), ("true", false), ("null", false)] {
        let text =
            format!(r#"{{"cancelled":0,"more":false,"dry_run":true,"topic_known":{known}}}"#);
        let server = Scripted::start([(200, text.as_str())]).await;
        assert_eq!(refused(bulk(&range, true).run(&server.caller()).await), is_refused, "{known}");
        let page = format!(r#"{{"tasks":[],"cursor":null,"topic_known":{known}}}"#);
        let (count, walked) = walk(&Scripted::start([(200, page.as_str())]).await, &part(3)).await;
        assert_eq!((count.len(), walked.is_err()), (0, is_refused), "{known}");
    }
    let server = Scripted::start([
        (200, r#"{"cancelled":7,"more":true,"dry_run":false,"cursor":"c"}"#),
        (200, r#"{"cancelled":0,"more":false,"dry_run":false,"topic_known":false}"#),
    ])
    .await;
    assert_eq!(bulk(&range, false).run(&server.caller()).await.unwrap(), "7 tasks cancelled");
}

async fn ask(
    server: &Scripted,
    call: impl FnOnce(&NodeCaller) -> Result<Call, Ending>,
    repeating: Repeating,
) -> NodeAnswer {
    let caller = server.caller();
    caller
        .ask_for(&call(&caller).unwrap(), Duration::from_secs(20), repeating)
        .await
        .unwrap()
        .answer
}

#[tokio::test]
async fn a_name_stands_in_the_path_whatever_it_holds() {
    let server = Scripted::start([(200, "{}")]).await;
    ask(
        &server,
        |caller| caller.get(&["v1", "topics", "t", "tasks", "a/b?c#d%2F ä\""], &[]),
        Repeating::IsSafe,
    )
    .await;
    assert_eq!(server.asked(), ["GET /base/v1/topics/t/tasks/a%2Fb%3Fc%23d%252F%20%C3%A4%22"]);
    assert_eq!(
        server.caller().get(&["v1", "topics", "t", "tasks", ".."], &[]).unwrap_err().exit,
        Exit::Usage
    );
}

#[tokio::test]
async fn only_what_is_safe_to_repeat_is_repeated() {
    let unknown = r#"{"type":"urn:punctual:problem:outcome-unknown","status":503}"#;
    let done = r#"{"id":"i","topic":"t","state":"scheduled"}"#;
    for (repeating, status, asked) in [(Repeating::IsSafe, 201, 3), (Repeating::MayDouble, 503, 2)]
    {
        let server = Scripted::start([(503, BUSY), (503, unknown), (201, done)]).await;
        let answer = ask(&server, |caller| caller.post(&["v1", "tasks"], "{}"), repeating).await;
        assert_eq!((answer.status, server.asked().len()), (status, asked), "{repeating:?}");
    }
}

#[tokio::test]
async fn a_replacement_says_which_one_it_is() {
    let task = r#"{"id":"i","topic":"t","state":"scheduled","due_at":"d"}"#;
    let server = Scripted::start([(200, task)]).await;
    let args = super::submit_args("t --name order/17 --replace --delay 5ms --payload 1").unwrap();
    let answer = crate::client::submit_one(&crate::client::args::SubmitArgs {
        node: server.node.clone(),
        ..args
    })
    .await
    .unwrap();
    assert_eq!(
        server.asked(),
        [r#"PUT /base/v1/topics/t/tasks/order%2F17 {"delay":"5ms","payload":1}"#]
    );
    assert_eq!(
        print::replaced(&answer).unwrap(),
        "i  submitted, in place of the previous task, scheduled, due d to t"
    );
}
