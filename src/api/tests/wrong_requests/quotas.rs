//! Callers beyond their limits.

use std::hash::Hash;

use super::super::*;
use crate::access::credential::token::Token;
use crate::access::document::{self, NodeRules};
use crate::access::limits::pending::{PendingCount, PendingFigures};
use crate::clock;
use crate::domain::{PrincipalName, TopicName};
use crate::node::requests::service::model::{NOW_MILLIS, SCHEDULES_MAX};

/// An API with two principals of the same limits, and their tokens.
struct Limited {
    api: Api,
    pending: Arc<PendingFigures>,
    tokens: [Token; 2],
}

impl Limited {
    fn new(limits: &str) -> Self {
        Self::with(limits, "")
    }

    /// Adds more to the file.
    fn with(limits: &str, more: &str) -> Self {
        let tokens = [(); 2].map(|()| Token::generate().unwrap());
        let mut text = format!("version = 1\n{more}\n");
        for (name, token) in ["ann", "bob"].iter().zip(&tokens) {
            text.push_str(&format!(
                "[principals.{name}]\nallow = [ {{ actions = ['*'], topics = ['*'] }} ]\n\
                 limits = {{ {limits} }}\ntokens = [ {{ id = '{}', sha256 = '{}' }} ]\n",
                token.id(),
                token.hash()
            ));
        }
        let mut registry = Registry::default();
        let metrics = ApiMetrics::register(&mut registry);
        let policy = PolicyHandle::new(document::read(&text, NodeRules::NONE).unwrap().policy);
        let service = Service::of_model(Arc::new(Model::default()));
        let settings = ApiSettings::default();
        let pending = Arc::clone(policy.quotas().pending());
        let api = Api::new(service, settings, metrics, Arc::new(registry), policy);
        Self { api, pending, tokens }
    }

    async fn ask(&self, caller: usize, mut request: Request<Body>) -> Response {
        let value = format!("Bearer {}", self.tokens[caller].expose()).parse().unwrap();
        request.headers_mut().insert(header::AUTHORIZATION, value);
        self.api.ask(request).await
    }

    async fn batch(&self, caller: usize, tasks: usize, topic: &str) -> Response {
        let task = format!(r#"{{"topic":"{topic}","delay":"1h","payload":1}}"#);
        let body = format!(r#"{{"tasks":[{}]}}"#, vec![task; tasks].join(","));
        self.ask(caller, post("/v1/tasks/batch", body)).await
    }
}

#[tokio::test]
async fn a_batch_is_taken_as_a_whole_or_not_at_all() {
    let limited = Limited::new("tasks_per_second = 1, burst = 100");
    assert_eq!(limited.batch(0, 99, "t").await.status(), 200);
    let refused = limited.batch(0, 2, "t").await;
    assert_eq!(refused.status(), 429);
    assert_eq!(header_of(&refused, "retry-after"), Some("1"));
    let problem = json_of(refused).await;
    assert_eq!(problem["type"], "urn:punctual:problem:quota-exceeded");
    assert!(problem["detail"].as_str().unwrap().contains("`tasks_per_second`"), "{problem}");
    assert_eq!(problem["retry_after"], 1);
    assert_eq!(limited.batch(0, 1, "t").await.status(), 200, "nothing was taken");
    let refused = limited.batch(0, 100, "t").await;
    assert_eq!(header_of(&refused, "retry-after"), Some("100"));
    assert_eq!(limited.batch(1, 100, "t").await.status(), 200, "another one is not slowed");
}

#[tokio::test]
async fn every_way_to_submit_counts_and_refused_tasks_do_as_well() {
    let limited = Limited::new("tasks_per_second = 1, burst = 3");
    let single = || post("/v1/tasks", r#"{"topic":"t","delay":"1h","payload":1}"#);
    let named = || {
        let body = r#"{"delay":"1h","payload":1}"#.to_owned();
        request("PUT", "/v1/topics/t/tasks/n", Some("application/json"), body)
    };
    assert_eq!(limited.ask(0, single()).await.status(), 201);
    assert!(limited.ask(0, named()).await.status().is_success());
    let unknown = limited.batch(0, 1, "bad").await;
    assert_eq!(unknown.status(), 200);
    assert!(text_of(unknown).await.contains(r#""status":422"#));
    for request in [single(), named()] {
        assert_eq!(limited.ask(0, request).await.status(), 429);
    }
    assert_eq!(limited.ask(0, bare("GET", "/v1/tasks/counts")).await.status(), 200);
}

#[tokio::test]
async fn runs_that_a_caller_asks_for_count_as_submits() {
    let limited = Limited::new("tasks_per_second = 1, burst = 4");
    let call = |method, path: &str, body: &str| {
        request(method, path, Some("application/json"), body.to_owned())
    };
    let path = "/v1/schedules/t/hourly";
    let hourly = r#"{"every":"1h","payload":1}"#;
    assert!(limited.ask(1, call("PUT", path, hourly)).await.status().is_success());
    let trigger = || bare("POST", "/v1/schedules/t/hourly/trigger");
    let backfill = |more: &str| {
        call("POST", "/v1/schedules/t/hourly/backfill", &format!(r#"{{"last":"2h"{more}}}"#))
    };
    assert_eq!(limited.ask(0, backfill(r#","dry_run":true"#)).await.status(), 200);
    assert_eq!(limited.ask(0, backfill("")).await.status(), 200, "two runs");
    for _left in 0..2 {
        assert_eq!(limited.ask(0, trigger()).await.status(), 201);
    }
    for request in [trigger(), backfill("")] {
        let refused = limited.ask(0, request).await;
        assert_eq!(refused.status(), 429);
        assert_eq!(json_of(refused).await["type"], "urn:punctual:problem:quota-exceeded");
    }
    let unknown = bare("POST", "/v1/schedules/t/other/trigger");
    assert_eq!(limited.ask(0, unknown).await.status(), 404);
}

#[tokio::test]
async fn a_new_schedule_beyond_the_limit_of_the_cluster_is_refused_and_others_can_be_changed() {
    let limited = Limited::new("");
    let put = async |name: &str, query: &str, payload: u8| {
        let (path, body) = (
            format!("/v1/schedules/t/{name}{query}"),
            format!(r#"{{"every":"1h","payload":{payload}}}"#),
        );
        limited.ask(0, request("PUT", &path, Some("application/json"), body)).await
    };
    for number in 0..SCHEDULES_MAX {
        assert_eq!(put(&format!("n{number}"), "", 1).await.status(), 201, "{number}");
    }
    for query in ["", "?dry_run=true"] {
        let refused = put("new", query, 1).await;
        assert_eq!(refused.status(), 422);
        assert!(!refused.headers().contains_key(header::RETRY_AFTER), "no room comes by waiting");
        let problem = json_of(refused).await;
        assert_eq!(problem["type"], "urn:punctual:problem:too-many-schedules");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains(&SCHEDULES_MAX.to_string()), "{detail}");
        assert!(detail.contains("--schedules-max"), "{detail}");
    }
    assert_eq!(put("n0", "", 2).await.status(), 200, "a change is no new one");
    assert_eq!(limited.ask(0, bare("DELETE", "/v1/schedules/t/n0")).await.status(), 200);
    assert_eq!(put("new", "", 1).await.status(), 201);
}

#[tokio::test]
async fn reads_and_requests_have_limits_of_their_own() {
    let limited = Limited::new("reads_per_second = 2");
    let read = || limited.ask(0, bare("GET", "/v1/tasks/counts"));
    assert_eq!([read().await.status(), read().await.status()], [200, 200]);
    assert_eq!(read().await.status(), 429);
    assert_eq!(limited.ask(0, bare("GET", "/v1/whoami")).await.status(), 200);
    assert_eq!(limited.batch(0, 5, "t").await.status(), 200);

    let limited = Limited::new("requests = 1");
    let kept = limited.ask(0, bare("GET", "/v1/tasks/counts")).await;
    assert_eq!(kept.status(), 200);
    let refused = limited.ask(0, bare("GET", "/v1/whoami")).await;
    assert_eq!(refused.status(), 429, "the answer before is not read yet");
    assert_eq!(limited.ask(1, bare("GET", "/v1/whoami")).await.status(), 200);
    drop(kept);
    assert_eq!(limited.ask(0, bare("GET", "/v1/whoami")).await.status(), 200);
}

#[tokio::test]
async fn dry_runs_count_as_reads() {
    let hourly = r#"{"every":"1h","payload":1}"#;
    let call = |method, path: &str, body: &str| {
        request(method, path, Some("application/json"), body.to_owned())
    };
    let many = r#"{"topic":"t","dry_run":true}"#;
    let move_many = format!(
        r#"{{"topic":"t","due_from":{NOW_MILLIS},"due_to":{},"by":"1m","dry_run":true}}"#,
        NOW_MILLIS + 60_000
    );
    let dry_runs = [
        ("PUT", "/v1/schedules/t/hourly?dry_run=true", hourly),
        ("POST", "/v1/schedules/t/hourly/backfill", r#"{"last":"2h","dry_run":true}"#),
        ("POST", "/v1/tasks/cancel", many),
        ("POST", "/v1/tasks/move", &move_many),
        ("POST", "/v1/dead/drop", many),
        ("POST", "/v1/dead/redrive", many),
    ];
    for (method, path, body) in dry_runs {
        let limited = Limited::new("reads_per_second = 1");
        let schedule = call("PUT", "/v1/schedules/t/hourly", hourly);
        assert!(limited.ask(0, schedule).await.status().is_success());
        let dry_run = async |caller| limited.ask(caller, call(method, path, body)).await.status();
        let read = async |caller| limited.ask(caller, bare("GET", "/v1/tasks/counts")).await;
        assert_eq!(dry_run(0).await, 200, "{method} {path}");
        assert_eq!(read(0).await.status(), 429, "{method} {path}");
        assert_eq!(limited.batch(0, 1, "t").await.status(), 200, "a submit is no read");
        assert_eq!(read(1).await.status(), 200, "another one is not slowed");
        assert_eq!(dry_run(1).await, 429, "{method} {path}");
    }
}

#[tokio::test]
async fn changes_of_what_is_not_there_count_as_reads_and_reads_slow_no_changes() {
    let absent = "/v1/tasks/01934b2e-7d3c-8017-9f2b-6a1c0e4d5b7f";
    let wrong_changes = || {
        let id = absent.rsplit('/').next().unwrap();
        let finish = format!(r#"{{"outcomes":[{{"id":"{id}","attempt":1,"outcome":"finish"}}]}}"#);
        let none = r#"{"topic":"t","key":"none"}"#;
        vec![
            bare("DELETE", absent),
            bare("DELETE", "/v1/topics/t/tasks/none"),
            bare("DELETE", &absent.replace("tasks", "dead")),
            bare("DELETE", "/v1/schedules/t/none"),
            bare("POST", "/v1/schedules/t/none/trigger"),
            request("PATCH", absent, Some("application/json"), r#"{"delay":"1h"}"#.to_owned()),
            post(&format!("{absent}/finish"), r#"{"attempt":1}"#),
            post("/v1/outcomes", finish),
            post("/v1/tasks/cancel", none),
        ]
    };
    for (n, change) in wrong_changes().into_iter().enumerate() {
        let what = format!("{} {}", change.method(), change.uri());
        let limited = Limited::new("reads_per_second = 1");
        let read = || limited.ask(0, bare("GET", "/v1/tasks/counts"));
        assert_eq!(read().await.status(), 200);
        assert_eq!(read().await.status(), 429, "{what}");
        let status = limited.ask(0, change).await.status();
        assert!([200, 404].contains(&status.as_u16()), "reads slow no changes: {what}: {status}");
        let [next, again] = [n + 1, n + 2].map(|n| n % wrong_changes().len());
        for again in [next, again] {
            let refused = limited.ask(0, wrong_changes().swap_remove(again)).await;
            assert_eq!(refused.status(), 429, "{what}");
            let kind = json_of(refused).await["type"].clone();
            assert_eq!(kind, "urn:punctual:problem:quota-exceeded", "{what}");
        }
        assert_eq!(limited.batch(0, 1, "t").await.status(), 200, "a submit finds nothing: {what}");
        let other = limited.ask(1, bare("DELETE", absent)).await;
        assert_eq!(other.status(), 404, "another one is not slowed: {what}");
    }
}

#[tokio::test]
async fn each_absent_task_of_many_outcomes_counts_as_a_read_and_ended_ones_count_together() {
    let by_id = |n: usize| format!(r#"{{"id":"01934b2e-7d3c-8017-9f2b-{n:012x}""#);
    let by_name = |n: usize| format!(r#"{{"topic":"t","name":"none{n}""#);
    let outcomes = |tasks: Vec<String>| {
        let finish = |task: String| format!(r#"{task},"outcome":"finish"}}"#);
        let items: Vec<String> = tasks.into_iter().map(finish).collect();
        post("/v1/outcomes", format!(r#"{{"outcomes":[{}]}}"#, items.join(",")))
    };
    let absent = |id_count: usize, name_count: usize| {
        outcomes((0..id_count).map(by_id).chain((0..name_count).map(by_name)).collect())
    };
    let wait = async |limited: &Limited| {
        let refused = limited.ask(0, bare("DELETE", "/v1/topics/t/tasks/none")).await;
        assert_eq!(refused.status(), 429);
        header_of(&refused, "retry-after").unwrap().parse::<u64>().unwrap()
    };
    for (id_count, name_count) in [(1_200, 0), (0, 1_200), (600, 600)] {
        let limited = Limited::new("reads_per_second = 10");
        let answer = limited.ask(0, absent(id_count, name_count)).await;
        assert_eq!(answer.status(), 200, "the debt is made by this request");
        let results = json_of(answer).await["results"].as_array().unwrap().clone();
        assert!(results.iter().all(|result| result["status"] == 404), "{results:?}");
        let wait = wait(&limited).await;
        assert!((110..=120).contains(&wait), "{id_count} {name_count}: {wait}");
    }

    let limited = Limited::new("reads_per_second = 1");
    let task = r#"{"topic":"t","name":"there","delay":"1h","payload":1}"#;
    assert_eq!(limited.ask(1, post("/v1/tasks", task)).await.status(), 201);
    let untracked = vec![r#"{"topic":"t","name":"there""#.to_owned(); 50];
    assert_eq!(limited.ask(0, bare("GET", "/v1/tasks/counts")).await.status(), 200);
    let answer = json_of(limited.ask(0, outcomes(untracked)).await).await;
    assert_eq!(answer["results"][49]["status"], 409, "{answer}");
    assert_eq!(wait(&limited).await, 1);
}

#[tokio::test]
async fn changes_that_succeed_are_no_reads() {
    let limited = Limited::new("reads_per_second = 1");
    for name in ["a", "b", "c"] {
        let task = format!(r#"{{"topic":"t","name":"{name}","delay":"1h","payload":1}}"#);
        let answer = limited.ask(0, post("/v1/tasks", task)).await;
        let id = json_of(answer).await["id"].as_str().unwrap().to_owned();
        let cancelled = limited.ask(0, bare("DELETE", &format!("/v1/tasks/{id}"))).await;
        assert_eq!(cancelled.status(), 200);
    }
    assert_eq!(limited.ask(0, bare("GET", "/v1/tasks/counts")).await.status(), 200);
}

fn exact<T: Eq + Hash, const N: usize>(task_counts: [(T, u64); N]) -> PendingCount<T> {
    PendingCount { task_counts: task_counts.into(), is_exact: true, at: clock::monotonic() }
}

#[tokio::test]
async fn a_caller_with_too_many_pending_tasks_is_refused_every_way_to_submit() {
    let topics = "[topics.'t*']\nlimits = { pending_max = 8 }";
    let limited = Limited::with("tasks_per_second = 1, burst = 9, pending_max = 5", topics);
    let pending = &limited.pending;
    let name = |name| PrincipalName::new(name).unwrap();
    pending.take_principals(exact([(name("ann"), 5), (name("bob"), 4)]));
    let refused = limited.batch(0, 1, "u").await;
    assert_eq!((refused.status().as_u16(), header_of(&refused, "retry-after")), (429, Some("10")));
    let problem = json_of(refused).await;
    assert_eq!(problem["type"], "urn:punctual:problem:too-many-pending");
    assert!(problem["detail"].as_str().unwrap().contains("this caller has"), "{problem}");
    let named = r#"{"delay":"1h","payload":1}"#.to_owned();
    let named = request("PUT", "/v1/topics/u/tasks/n", Some("application/json"), named);
    assert_eq!(limited.ask(0, named).await.status(), 429);
    assert_eq!(limited.batch(1, 9, "u").await.status(), 200, "another one is not slowed");
    pending.take_principals(exact([(name("ann"), 4)]));
    assert_eq!(limited.batch(0, 1, "u").await.status(), 200);

    // All callers together have the limit of a pattern.
    let topic = |name| TopicName::new(name).unwrap();
    pending.take_topics(exact([(topic("t-a"), 4), (topic("t-b"), 4), (topic("u"), 99)]));
    let problem = json_of(limited.batch(0, 1, "t-c").await).await;
    assert!(problem["detail"].as_str().unwrap().contains("the topics t* have"), "{problem}");
    assert_eq!(limited.batch(0, 8, "u").await.status(), 200, "the refusals took nothing");
}

#[tokio::test]
async fn topics_have_limits_that_all_callers_share() {
    let topics = "[topics.'t*']\nlimits = { tasks_per_second = 1, burst = 10, record_max = 2 }\n\
                  [topics.t-late]\nlimits = { delay_max = '1m' }";
    let limited = Limited::with("tasks_per_second = 1, burst = 100", topics);
    assert_eq!(limited.batch(0, 6, "t-a").await.status(), 200);
    let refused = limited.batch(1, 5, "t-b").await;
    assert_eq!((refused.status().as_u16(), header_of(&refused, "retry-after")), (429, Some("1")));
    let problem = json_of(refused).await;
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("`tasks_per_second` of the topics t*"), "{problem}");
    assert_eq!(limited.batch(1, 4, "t-b").await.status(), 200);
    assert_eq!(limited.batch(1, 96, "other").await.status(), 200, "nothing was taken of bob's");
    for (body, kind) in [
        (r#"{"topic":"t-a","delay":"1h","payload":"long"}"#, "record-too-large"),
        (r#"{"topic":"t-late","delay":"1h","payload":1}"#, "too-far-ahead"),
    ] {
        let response = limited.ask(0, post("/v1/tasks", body)).await;
        assert_eq!(response.status(), 422);
        assert_eq!(json_of(response).await["type"], format!("urn:punctual:problem:{kind}"));
    }
}

#[tokio::test]
async fn a_task_is_not_moved_beyond_the_longest_delay_of_its_caller_or_topic() {
    let of_topic = Limited::with("", "[topics.orders]\nlimits = { delay_max = '1m' }");
    for limited in [Limited::new("delay_max = '1m'"), of_topic] {
        let task = r#"{"topic":"orders","name":"n","delay":"30s","payload":1}"#;
        let id = json_of(limited.ask(0, post("/v1/tasks", task)).await).await["id"].clone();
        let by_id = format!("/v1/tasks/{}", id.as_str().unwrap());
        let by_name = "/v1/topics/orders/tasks/n";
        let many = "/v1/tasks/move";
        let many_later = format!(
            r#"{{"topic":"orders","due_from":{NOW_MILLIS},"due_to":{},"by":"31s"}}"#,
            NOW_MILLIS + 31_000
        );
        let many_earlier = format!(
            r#"{{"topic":"orders","due_from":{},"due_to":{},"by":"-31s"}}"#,
            NOW_MILLIS + 60_000,
            NOW_MILLIS + 91_000
        );
        for (method, path, body, status) in [
            ("POST", many, many_earlier, 200),
            ("PATCH", by_id.as_str(), r#"{"delay":"61s"}"#.to_owned(), 422),
            ("PATCH", by_name, r#"{"delay":"61s"}"#.to_owned(), 422),
            ("POST", many, many_later, 422),
            ("PATCH", by_id.as_str(), r#"{"delay":"60s"}"#.to_owned(), 200),
            ("PATCH", by_name, r#"{"delay":"60s"}"#.to_owned(), 200),
        ] {
            let request = request(method, path, Some("application/json"), body.clone());
            let response = limited.ask(0, request).await;
            assert_eq!(response.status(), status, "{method} {path} {body}");
            if status == 422 {
                let problem = json_of(response).await;
                assert_eq!(problem["type"], "urn:punctual:problem:too-far-ahead", "{problem}");
                assert!(problem["detail"].as_str().unwrap().contains("1m"), "{problem}");
            }
        }
    }
}
