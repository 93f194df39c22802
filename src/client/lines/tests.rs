//! Tests of bulk runs against servers that fail in many ways.

use std::cell::Cell;
use std::io::{self, Read};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::delivery::Delivery;
use super::line::Naming;
use super::reader::{Input, Reading};
use super::screen::{Manner, Screen};
use super::tally::LineCounts;
use super::{LinesRun, RunPlan};
use crate::client::answer::{Ending, Exit};
use crate::client::args::NodeOptions;
use crate::client::caller::NodeCaller;
use crate::shutdown::Tasks;

const BATCH: usize = 10;
const CONCURRENCY: usize = 3;

/// How a server answers a bulk submit with these names: an answer, or `None` to leave the caller
/// without one.
type Manners = dyn Fn(usize, &[String]) -> Option<(u16, Value)> + Send + Sync;

/// Starts a server that records the names of each request. The server answers a look-up of a known
/// task with 'not found'.
async fn server(manners: Box<Manners>) -> (NodeOptions, Arc<Mutex<Vec<Vec<String>>>>) {
    rustls::crypto::ring::default_provider().install_default().ok();
    let asked: Arc<Mutex<Vec<Vec<String>>>> = Arc::default();
    let (seen, manners) = (asked.clone(), Arc::new(manners));
    let app = Router::new().fallback(move |method: Method, body: Bytes| {
        let look_up = (method == Method::GET).then(|| {
            let forgotten = json!({
                "type": "urn:punctual:problem:task-not-found",
                "title": "T",
                "detail": "forgotten",
            });
            (StatusCode::NOT_FOUND, [("retry-after", "0")], forgotten.to_string())
        });
        let answer = look_up.is_none().then(|| answer_of(&body, &seen, &**manners)).flatten();
        async move {
            match (look_up, answer) {
                (Some(forgotten), _) => forgotten,
                (None, Some((status, body))) => {
                    let status = StatusCode::from_u16(status).unwrap();
                    (status, [("retry-after", "0")], body.to_string())
                }
                (None, None) => std::future::pending().await,
            }
        }
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    Tasks::default().spawn("server", async move { Ok(axum::serve(listener, app).await?) });
    (NodeOptions::at(url, Duration::from_secs(1)), asked)
}

fn answer_of(
    body: &[u8],
    seen: &Mutex<Vec<Vec<String>>>,
    manners: &Manners,
) -> Option<(u16, Value)> {
    let batch: Value = serde_json::from_slice(body).unwrap();
    let names: Vec<String> = batch["tasks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|task| task["name"].as_str().unwrap().to_owned())
        .collect();
    let mut seen = seen.lock().unwrap();
    let answer = manners(seen.len(), &names);
    seen.push(names);
    answer
}

fn all_new(names: &[String]) -> Option<(u16, Value)> {
    let results: Vec<Value> =
        names.iter().map(|name| json!({"status": 201, "task": {"id": name}})).collect();
    Some((200, json!({ "results": results })))
}

fn busy() -> Value {
    json!({
        "type": "urn:punctual:problem:busy",
        "title": "Busy",
        "status": 503,
        "detail": "nothing was done",
        "retry_after": 0,
    })
}

fn lines(count: usize) -> io::Cursor<String> {
    io::Cursor::new("{\"delay\":1}\n".repeat(count))
}

fn input_of(source: impl Read + Send + 'static) -> Input {
    let reading = Reading {
        naming: Naming::new("r", None),
        from_line: 1,
        chunk_lines_max: BATCH.div_ceil(4),
    };
    Input::start(source, reading).unwrap()
}

fn plan(retry_for: u64) -> RunPlan {
    RunPlan {
        run_id: "r".to_owned(),
        manner: Manner { is_json: false, is_quiet: true },
        batch_lines_max: BATCH,
        concurrency: CONCURRENCY,
        retry_for: Duration::from_secs(retry_for),
        bytes_total: None,
        from_line: 1,
    }
}

/// Runs an input to its end. Returns the counts, the exit, and the line to resume from.
async fn run(node: &NodeOptions, input: Input, retry_for: u64) -> (LineCounts, Option<Exit>, u64) {
    let (plan, caller, stopping) =
        (plan(retry_for), NodeCaller::new(node).unwrap(), CancellationToken::new());
    let screen = Screen::new(plan.manner);
    let last_through = Cell::new(None);
    let (retry_for, caller, last_through) = (plan.retry_for, &caller, &last_through);
    let delivery =
        Delivery { caller, retry_for, stopping: &stopping, screen: &screen, last_through };
    let mut run = LinesRun::new(&plan);
    run.deliver_all(input, delivery).await;
    (run.tally.counts, run.exit(), run.tally.resume_line())
}

#[tokio::test]
async fn lines_without_an_answer_are_sent_again_under_the_same_names() {
    // Of every seven requests one gets 'busy', and another gets no answer within the timeout of one
    // second.
    let (node, asked) = server(Box::new(|count, names| match count % 7 {
        3 => None,
        1 => Some((503, busy())),
        _ => all_new(names),
    }))
    .await;
    let (counts, exit, _) = run(&node, input_of(lines(95)), 60).await;
    assert_eq!((counts, exit), (LineCounts { accepted: 95, ..LineCounts::default() }, None));
    let mut names: Vec<String> = asked.lock().unwrap().concat();
    assert!(names.len() > 95, "some were sent again");
    names.sort_unstable();
    names.dedup();
    let mut expected: Vec<String> = (1..=95).map(|number| format!("r/{number}")).collect();
    expected.sort_unstable();
    assert_eq!(names, expected);
    assert!(asked.lock().unwrap().iter().all(|names| names.len() <= BATCH));
}

#[tokio::test]
async fn of_a_batch_only_what_was_not_taken_is_sent_again() {
    let (node, asked) = server(Box::new(|count, names| {
        let results: Vec<Value> = names
            .iter()
            .enumerate()
            .map(|(index, name)| match index {
                _ if name == "r/2" => {
                    json!({
                        "status": 422,
                        "problem": { "title": "No", "detail": "never", "field": "tasks[1].topic" },
                    })
                }
                0 if count == 0 => json!({"status": 503, "problem": busy()}),
                3 => json!({"status": 200, "task": {"id": name}}),
                _ => json!({"status": 201, "task": {"id": name}}),
            })
            .collect();
        Some((200, json!({ "results": results })))
    }))
    .await;
    let (counts, exit, resume) = run(&node, input_of(lines(4)), 60).await;
    let (first, again) = {
        let asked = asked.lock().unwrap();
        (asked[0].len(), asked.last().unwrap().clone())
    };
    assert_eq!(
        (counts.refused, counts.accepted + counts.known, exit, resume),
        (1, 3, Some(Exit::Refused), 5)
    );
    assert!(first < 4 || again == ["r/1"], "{again:?}");
}

#[tokio::test]
async fn a_line_that_spoils_its_batch_is_found_by_halves() {
    let (node, _) = server(Box::new(|_, names| {
        if names.iter().any(|name| name == "r/7") {
            Some((413, json!({"title": "The body is too large"})))
        } else {
            all_new(names)
        }
    }))
    .await;
    let (counts, exit, _) = run(&node, input_of(lines(10)), 60).await;
    assert_eq!(
        (counts, exit),
        (LineCounts { accepted: 9, refused: 1, ..LineCounts::default() }, Some(Exit::Refused))
    );
}

#[tokio::test]
async fn a_node_that_stays_away_ends_the_run_and_the_run_says_where_to_go_on() {
    let (node, _) = server(Box::new(
        |count, names| if count < 2 { all_new(names) } else { Some((503, busy())) },
    ))
    .await;
    let (counts, exit, resume) = run(&node, input_of(lines(10_000)), 0).await;
    assert_eq!(exit, Some(Exit::NothingDone));
    assert!(
        counts.accepted > 0 && counts.not_submitted > 0 && counts.total() < 10_000,
        "{counts:?}"
    );
    // Requests arrive in any order: the first one may be the one that was not accepted.
    assert!(resume <= counts.accepted + 1, "{resume} after {counts:?}");
    let (node, _) = server(Box::new(|_, _| None)).await;
    let (counts, exit, resume) = run(&node, input_of(lines(1)), 0).await;
    assert_eq!(
        (counts, exit, resume),
        (LineCounts { unknown: 1, ..LineCounts::default() }, Some(Exit::Unknown), 1)
    );
}

#[tokio::test]
async fn a_run_that_is_turned_away_is_not_one_of_which_some_lines_were_refused() {
    for status in [401, 403, 404, 302] {
        let (node, _) = server(Box::new(move |_, _| Some((status, json!("who are you?"))))).await;
        let (counts, exit, resume) = run(&node, input_of(lines(3)), 0).await;
        assert_eq!(
            (counts, exit, resume),
            (LineCounts { not_submitted: 3, ..LineCounts::default() }, Some(Exit::NothingDone), 1),
            "{status}"
        );
    }
}

#[test]
fn what_could_not_be_written_comes_before_all_but_an_interruption() {
    let plan = plan(0);
    let mut run = LinesRun::new(&plan);
    assert_eq!(run.exit(), None);
    run.note_unwritten(Err(io::ErrorKind::StorageFull.into()));
    run.note_unwritten(Err(io::ErrorKind::Other.into()));
    assert_eq!(
        run.unwritten.as_ref().map(io::Error::kind),
        Some(io::ErrorKind::StorageFull),
        "the first one"
    );
    assert_eq!((run.exit(), run.is_complete()), (Some(Exit::Unknown), true));
    run.ending = Some(Ending::new(Exit::NothingDone, "away"));
    assert_eq!((run.exit(), run.is_complete()), (Some(Exit::Unknown), false));
    run.ending = Some(Ending::new(Exit::Interrupted, "interrupted"));
    assert_eq!(run.exit(), Some(Exit::Interrupted));
}

#[tokio::test]
async fn an_input_that_breaks_off_leaves_what_came_before_submitted() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _into: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("gone"))
        }
    }
    let (node, _) = server(Box::new(|_, names| all_new(names))).await;
    let (counts, exit, resume) = run(&node, input_of(lines(25).chain(Broken)), 60).await;
    assert_eq!((counts.accepted, exit, resume), (25, Some(Exit::NothingDone), 26));
}

#[tokio::test]
async fn lines_that_are_no_tasks_do_not_stop_the_others() {
    let (node, asked) = server(Box::new(|_, names| all_new(names))).await;
    let (counts, exit, _) =
        run(&node, input_of(io::Cursor::new("{}\nnonsense\n\n{\"name\":\"own\"}\n[]\n{}")), 60)
            .await;
    assert_eq!(
        (counts, exit),
        (LineCounts { accepted: 3, refused: 2, ..LineCounts::default() }, Some(Exit::Refused))
    );
    let mut names = asked.lock().unwrap().concat();
    names.sort_unstable();
    assert_eq!(names, ["own", "r/1", "r/6"]);
}

#[tokio::test]
async fn an_endless_input_is_read_no_further_than_it_is_sent() {
    struct Endless;
    impl Read for Endless {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let line = format!("{{\"payload_text\":\"{}\"}}\n", "x".repeat(8_000));
            let count = line.len().min(into.len());
            into[..count].copy_from_slice(&line.as_bytes()[..count]);
            Ok(count)
        }
    }
    let (node, asked) = server(Box::new(|_, _| None)).await;
    let input = input_of(Endless);
    let bytes_read = input.bytes_read.clone();
    // The run gives up after waiting a second for the server: enough time to read gigabytes.
    let (counts, exit, _) = run(&node, input, 0).await;
    assert_eq!(exit, Some(Exit::Unknown));
    assert_eq!(asked.lock().unwrap().len(), CONCURRENCY);
    assert!(counts.total() <= 30, "{counts:?}");
    let bytes_read = bytes_read.load(std::sync::atomic::Ordering::Relaxed);
    assert!(bytes_read < 1 << 20, "{bytes_read} bytes were read ahead");
}
