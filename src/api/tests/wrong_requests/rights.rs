//! Callers without a right: nothing changes, and nothing is shown.

mod audit;
mod console;
mod detours;
mod guesses;
mod issuers;
mod outcomes;
mod principals;
mod tricks;
mod unread;

use std::collections::HashMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::super::*;
use crate::access::credential::certificate::{
    CertificateEntry, NamePattern, PeerCertificate, PeerName,
};
use crate::access::credential::token::Token;
use crate::access::document::{self, NodeRules};
use crate::access::limits::Limits;
use crate::access::pattern::Pattern;
use crate::access::policy::TokenEntry;
use crate::access::principal::{Fingerprint, Principal};
use crate::access::rights::Rule;
use crate::access::{Action, PrincipalCounts, Rights};
use crate::domain::{PrincipalName, Timestamp};

const MARKER: &str = "marker-of-a-payload";

/// An API whose only token has these rights, and another API without limits on the same tasks.
struct World {
    api: Api,
    all: Api,
    model: Arc<Model>,
    policy: PolicyHandle,
    token: String,
}

impl World {
    fn new(actions: &[Action], topic: &str) -> Self {
        Self::with(&[(actions, topic)])
    }

    fn with(rules: &[(&[Action], &str)]) -> Self {
        Self::of(rules, ApiSettings::default())
    }

    fn of(rules: &[(&[Action], &str)], settings: ApiSettings) -> Self {
        let rule = |(actions, topic): &(&[Action], &str)| Rule {
            actions: actions.to_vec(),
            topics: vec![Pattern::new(topic).unwrap()],
        };
        let rules: Vec<Rule> = rules.iter().map(rule).collect();
        let rights = Arc::new(Rights::new(&rules, &[], false));
        let name = PrincipalName::new("ann").unwrap();
        let (limits, counts) = (Limits::default(), PrincipalCounts::default());
        let principal = Principal { name, rights, limits, counts };
        let (token, principal) = (Token::generate().unwrap(), Arc::new(principal));
        let entry = TokenEntry {
            principal: principal.clone(),
            hash: token.hash(),
            not_before: None,
            expires: None,
        };
        let tokens = HashMap::from([(token.id(), entry)]);
        let model = Arc::new(Model::default());
        let api_of = |policy: PolicyHandle| {
            let mut registry = Registry::default();
            let metrics = ApiMetrics::register(&mut registry);
            let service = Service::of_model(model.clone());
            let api = Api::new(service, settings.clone(), metrics, Arc::new(registry), policy);
            api.cursors().set_secret(b"a secret of tests");
            api
        };
        let policy = PolicyHandle::new(Policy::new(vec![principal], tokens, None));
        let all = api_of(PolicyHandle::new(Policy::open()));
        Self { api: api_of(policy.clone()), all, model, policy, token: token.expose().to_owned() }
    }

    async fn ask(&self, mut request: Request<Body>) -> Response {
        let value = format!("Bearer {}", self.token).parse().unwrap();
        request.headers_mut().insert(header::AUTHORIZATION, value);
        self.api.ask(request).await
    }

    /// Submits a task with a marker as its payload, as a caller with all rights.
    async fn task(&self, topic: &str, name: &str) -> String {
        let ttr = if topic == "tracked" { r#","ttr":"1m""# } else { "" };
        let task = format!(
            r#"{{"topic":"{topic}","delay":"1h","name":"{name}","key":"{MARKER}",
              "headers":{{"h":"{MARKER}"}},"payload":"{MARKER}"{ttr}}}"#
        );
        submit(&self.all, &task).await["id"].as_str().unwrap().to_owned()
    }

    /// Returns all tasks and dead letters, as a caller with all rights.
    async fn state(&self) -> String {
        let mut state = String::new();
        for path in ["/v1/tasks", "/v1/dead"] {
            state.push_str(&text_of(self.all.ask(bare("GET", path)).await).await);
        }
        let tracked = self.all.ask(bare("GET", "/v1/topics/tracked/tasks/n")).await;
        if tracked.status() == StatusCode::OK {
            state.push_str(&text_of(tracked).await);
        }
        state
    }
}

/// A request of every operation of the document, for the task `id` of the topic `topic`.
async fn requests(api: &Api, topic: &str, id: &str) -> Vec<(String, Request<Body>)> {
    let document = json_of(api.ask(bare("GET", "/openapi.json")).await).await;
    let mut all = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let target = path.replace("{topic}", topic).replace("{name}", "n").replace("{id}", id);
        for (method, operation) in methods.as_object().unwrap() {
            let is_open = operation["security"].as_array().unwrap().is_empty();
            let examples = &operation["requestBody"]["content"]["application/json"]["examples"];
            let bodies: Vec<String> = examples.as_object().map_or_else(
                || vec![String::new()],
                |examples| {
                    let text = |example: &Value| example["value"].to_string();
                    let of_topic = |text: String| text.replace("\"demo\"", &format!("{topic:?}"));
                    examples.values().map(text).map(of_topic).collect()
                },
            );
            if is_open {
                continue;
            }
            for body in bodies {
                let kind = (!body.is_empty()).then_some("application/json");
                let method = method.to_uppercase();
                let what = format!("{method} {target} {body}");
                all.push((what.clone(), request(&method, &target, kind, body)));
                if method == "GET" {
                    all.push((format!("HEAD {target}"), bare("HEAD", &target)));
                }
            }
        }
    }
    assert!(all.len() > 20, "{all:?}");
    all
}

#[tokio::test]
async fn without_a_token_or_a_right_nothing_is_done_on_any_route() {
    let world = World::new(&Action::ON_TOPICS, "other");
    for topic in ["secret", "dead", "tracked"] {
        let id = world.task(topic, "n").await;
        let before = world.state().await;
        for (what, request) in requests(&world.all, topic, &id).await {
            let response = world.api.ask(request).await;
            assert_eq!(response.status(), 401, "{what}");
            let challenge = header_of(&response, "www-authenticate");
            assert_eq!(challenge, Some(r#"Bearer realm="punctual""#), "{what}");
        }
        for (what, request) in requests(&world.all, topic, &id).await {
            let response = world.ask(request).await;
            let status = response.status().as_u16();
            let text = text_of(response).await;
            let is_alone = (what.contains("/v1/tasks/batch") && !text.contains(r#""status":201"#))
                || (what.contains("/v1/outcomes") && !text.contains(r#""status":200"#));
            let is_own = what.contains("/v1/whoami");
            assert!(
                [401, 403, 404].contains(&status) || is_alone || is_own,
                "{what}: {status} {text}"
            );
            assert!(!text.contains(MARKER), "{what}: {text}");
        }
        assert_eq!(world.state().await, before);
    }
}

#[tokio::test]
async fn a_token_wins_over_the_certificate_of_its_connection() {
    let world = World::new(&Action::ON_TOPICS, "orders");
    let names = NamePattern::uri("spiffe://shop/*").unwrap();
    let entry = CertificateEntry {
        names,
        rights: Arc::new(Rights::new(&[], &[], true)),
        limits: Limits::default(),
        counts: PrincipalCounts::default(),
    };
    let current = world.policy.current();
    let [ann] = current.principals() else { panic!("one principal") };
    let token = Token::parse(&world.token).unwrap();
    let tokens = HashMap::from([(token.id(), current.entry(token.id()).unwrap().clone())]);
    let policy = Policy::new(vec![ann.clone()], tokens, None).with_certificates(vec![entry]);
    world.policy.replace(policy);

    let shown = |mut request: Request<Body>, uri: &str| {
        let names = vec![PeerName::uri(uri).unwrap()];
        let peer =
            PeerCertificate { id: Fingerprint::of(b"certificate"), names, until: Timestamp::MAX };
        request.extensions_mut().insert(Arc::new(peer));
        request
    };
    let who = || bare("GET", "/v1/whoami");
    let known = world.api.ask(shown(who(), "spiffe://shop/orders")).await;
    let known = json_of(known).await;
    assert_eq!(known["principal"], "cert:spiffe://shop/orders");
    assert_eq!(
        (&known["credential"], &known["operate"]),
        (&Value::from("certificate-03d66dd0"), &Value::from(true))
    );
    let both = json_of(world.ask(shown(who(), "spiffe://shop/orders")).await).await;
    assert_eq!(both["principal"], "ann");
    let other = world.api.ask(shown(who(), "spiffe://bank/orders")).await;
    assert_eq!(other.status(), 401);
    assert!(text_of(other).await.contains("client certificate"));
    // A wrong token is not made good by a certificate.
    let mut wrong = shown(who(), "spiffe://shop/orders");
    wrong.headers_mut().insert(header::AUTHORIZATION, "Bearer x".parse().unwrap());
    assert_eq!(world.api.ask(wrong).await.status(), 401);
}

#[tokio::test]
async fn a_token_that_cannot_be_judged_yet_is_503_and_a_wrong_one_401() {
    let mut world = World::new(&Action::ON_TOPICS, "orders");
    let text = "version = 1\n[[jwt]]\nname = 'i'\nissuer = 'https://i'\naudience = 'p'\n\
                jwks_url = 'https://i/keys'\n";
    world.policy.replace(document::read(text, NodeRules::NONE).unwrap().policy);
    for (header, status) in [(r#"{"alg":"ES256"}"#, 503), (r#"{"alg":"none"}"#, 401)] {
        let parts = [header, r#"{"iss":"https://i"}"#, "signature"];
        world.token = parts.map(|part| URL_SAFE_NO_PAD.encode(part)).join(".");
        let response = world.ask(bare("GET", "/v1/whoami")).await;
        assert_eq!(response.status(), status, "{header}");
        assert_eq!(header_of(&response, "retry-after").is_some(), status == 503, "{header}");
    }
}

#[tokio::test]
async fn without_read_payload_no_answer_has_key_headers_or_payload() {
    let actions = Action::ON_TOPICS.into_iter().filter(|action| *action != Action::ReadPayload);
    let actions: Vec<Action> = actions.collect();
    for topic in ["open", "claimed", "published", "dead", "tracked"] {
        let world = World::new(&actions, topic);
        let id = world.task(topic, "n").await;
        let known = format!(r#"{{"topic":"{topic}","delay":"2h","name":"n","payload":1}}"#);
        let known = text_of(world.ask(post("/v1/tasks", known)).await).await;
        assert!(known.contains(&id) && known.contains(r#""redacted":true"#), "{known}");
        assert!(!known.contains(MARKER), "{known}");
        for (what, request) in requests(&world.all, topic, &id).await {
            let text = text_of(world.ask(request).await).await;
            assert!(!text.contains(MARKER), "{what}: {text}");
        }
    }
}

#[tokio::test]
async fn the_task_of_a_foreign_topic_is_as_absent_as_one_that_never_was() {
    let world = World::new(&Action::ON_TOPICS, "other");
    let id = world.task("dead", "n").await;
    let fresh = "01b977ea-f4c0-8003-8000-000000000007";
    for (method, path) in [
        ("GET", "/v1/tasks/{id}"),
        ("HEAD", "/v1/tasks/{id}"),
        ("DELETE", "/v1/tasks/{id}"),
        ("DELETE", "/v1/dead/{id}"),
        ("POST", "/v1/dead/{id}/redrive"),
        ("POST", "/v1/tasks/{id}/finish"),
    ] {
        let mut answers = Vec::new();
        for id in [&id, fresh] {
            let mut request = bare(method, &path.replace("{id}", id));
            request.headers_mut().insert("x-request-id", HeaderValue::from_static("same"));
            let response = world.ask(request).await;
            assert_eq!(response.status(), 404, "{method} {path}");
            let headers = response.headers().clone();
            answers.push((headers, text_of(response).await));
        }
        assert_eq!(answers[0], answers[1], "{method} {path}");
    }
}

#[tokio::test]
async fn all_topics_do_not_include_hidden_ones_unless_they_are_written_out() {
    let read: &[Action] = &[Action::Read];
    for (rules, count) in [(vec![(read, "*")], 1), (vec![(read, "*"), (read, "_hidden")], 2)] {
        let world = World::with(&rules);
        for topic in ["open", "_hidden"] {
            let task = format!(r#"{{"topic":"{topic}","delay":"2m","payload":1}}"#);
            submit(&world.all, &task).await;
        }
        let counts = json_of(world.ask(bare("GET", "/v1/tasks/counts")).await).await;
        let topics = counts["topics"].as_array().unwrap();
        let minutes = counts["minutes"].as_array().unwrap().iter();
        let of_minutes: u64 = minutes.map(|minute| minute["count"].as_u64().unwrap()).sum();
        let shown = (counts["pending"]["count"].as_u64().unwrap(), topics.len(), of_minutes);
        assert_eq!(shown, (count, usize::try_from(count).unwrap(), count), "{counts}");
        let list = json_of(world.ask(bare("GET", "/v1/tasks")).await).await;
        assert_eq!(list["tasks"].as_array().unwrap().len(), topics.len(), "{list}");
    }
}

#[tokio::test]
async fn a_put_needs_both_rights_and_a_batch_refuses_only_what_is_forbidden() {
    let world = World::with(&[(&[Action::Submit], "open"), (&[Action::Cancel], "elsewhere")]);
    let id = world.task("open", "n").await;
    let put = request(
        "PUT",
        "/v1/topics/open/tasks/n",
        Some("application/json"),
        r#"{"delay":1,"payload":1}"#,
    );
    assert_eq!(world.ask(put).await.status(), 403);
    let task = json_of(world.all.ask(bare("GET", &format!("/v1/tasks/{id}"))).await).await;
    assert_eq!(task["state"], "scheduled");
    let item = |topic: &str| format!(r#"{{"{}opic":"{topic}","delay":1,"payload":1}}"#, "\\u0074");
    let body = format!(r#"{{"tasks":[{},{},{}]}}"#, item("open"), item("secret"), item("open"));
    let answer = json_of(world.ask(post("/v1/tasks/batch", body)).await).await;
    let statuses: Vec<&Value> =
        answer["results"].as_array().unwrap().iter().map(|result| &result["status"]).collect();
    assert_eq!(statuses, [201, 403, 201]);
    let problem = &answer["results"][1]["problem"];
    assert_eq!((&problem["action"], &problem["topic"]), (&"submit".into(), &"secret".into()));
}

#[tokio::test]
async fn a_dead_topic_needs_the_right_to_submit_to_it_as_well() {
    let own: &[Action] = &[Action::Submit, Action::Cancel];
    let world = World::with(&[(own, "open"), (own, "dead.*")]);
    for (dead_topic, status) in [("dead.open", 201), ("secret", 403)] {
        let rest = format!(
            r#""delay":"1h","payload":1,"ttr":"1m","retry":{{"dead_topic":"{dead_topic}"}}}}"#
        );
        let task = format!(r#"{{"topic":"open",{rest}"#);
        let one = world.ask(post("/v1/tasks", task.clone())).await;
        assert_eq!(one.status(), status, "{dead_topic}");
        let put = format!("/v1/topics/open/tasks/{dead_topic}");
        let put = request("PUT", &put, Some("application/json"), format!("{{{rest}"));
        let put = world.ask(put).await;
        assert_eq!(put.status(), status, "{dead_topic}");
        let batch = post("/v1/tasks/batch", format!(r#"{{"tasks":[{task}]}}"#));
        let batch = json_of(world.ask(batch).await).await;
        assert_eq!(batch["results"][0]["status"], status, "{dead_topic}");
        if status == 403 {
            for problem in
                [json_of(one).await, json_of(put).await, batch["results"][0]["problem"].clone()]
            {
                assert_eq!(
                    (&problem["action"], &problem["topic"]),
                    (&"submit".into(), &"secret".into())
                );
            }
        }
    }
}

#[tokio::test]
async fn a_caller_finishes_tasks_of_its_own_topics_alone() {
    let world = World::with(&[(&[Action::Finish], "tracked"), (&[Action::Finish], "other")]);
    let foreign = submit(&world.all, r#"{"topic":"secret","delay":"1h","payload":1,"ttr":"1m"}"#);
    let foreign = foreign.await["id"].as_str().unwrap().to_owned();
    let (own, named) = (world.task("tracked", "a").await, world.task("tracked", "b").await);
    let outcomes = format!(
        r#"{{"outcomes":[
            {{"id":"{own}","outcome":"finish"}},
            {{"id":"{foreign}","outcome":"finish"}},
            {{"topic":"tracked","name":"b","outcome":"fail","attempt":1,"reason":"{MARKER}"}},
            {{"topic":"secret","name":"b","outcome":"finish"}},
            {{"topic":"other","name":"b","outcome":"finish"}}]}}"#
    );
    let response = world.ask(post("/v1/outcomes", outcomes)).await;
    assert_eq!(response.status(), 200);
    let text = text_of(response).await;
    assert!(!text.contains(MARKER), "{text}");
    let answer: Value = serde_json::from_str(&text).unwrap();
    let results = answer["results"].as_array().unwrap();
    let statuses: Vec<&Value> = results.iter().map(|result| &result["status"]).collect();
    assert_eq!(statuses, [200, 404, 200, 403, 404]);
    let fields: Vec<&Value> = results.iter().map(|result| &result["problem"]["field"]).collect();
    assert_eq!(
        fields,
        [
            &Value::Null,
            &"outcomes[1].id".into(),
            &Value::Null,
            &"outcomes[3]".into(),
            &"outcomes[4].name".into()
        ]
    );
    let shown = json_of(world.all.ask(bare("GET", &format!("/v1/tasks/{named}"))).await).await;
    assert_eq!(shown["attempts"][0]["reason"], MARKER);
}

#[tokio::test]
async fn foreign_hosts_and_pages_are_refused_and_probes_answer_to_any_name() {
    let api = api();
    for (path, name, value, status) in [
        ("/v1/tasks", "host", "evil.example", 421),
        ("/metrics", "host", "evil.example", 421),
        ("/none", "host", "evil.example", 421),
        ("/livez", "host", "evil.example", 200),
        ("/readyz", "host", "evil.example", 200),
        ("/v1/tasks", "host", "LOCALHOST:7070", 200),
        ("/v1/tasks", "origin", "https://evil.example", 403),
        ("/v1/tasks", "sec-fetch-site", "cross-site", 403),
        ("/v1/tasks", "sec-fetch-site", "none", 200),
    ] {
        let mut request = bare("GET", path);
        request.headers_mut().insert(name, value.parse().unwrap());
        let response = api.ask(request).await;
        assert_eq!(response.status(), status, "{path} {name}: {value}");
        if status == 421 {
            let text = text_of(response).await;
            assert!(text.contains("not a name of this node") && text.contains("--host"), "{text}");
        }
    }
}

/// The tasks of a submitter are found and cancelled by the name of the principal. Doing so in all
/// topics needs the right everywhere.
#[tokio::test]
async fn tasks_of_a_submitter_are_listed_and_cancelled_by_whoever_may() {
    let own = [Action::Submit, Action::Cancel, Action::Read];
    let world = World::new(&own, "orders");
    let other = world.task("orders", "other").await;
    let body = r#"{"topic":"orders","delay":"1h","payload":1}"#;
    let submitted = json_of(world.ask(post("/v1/tasks", body)).await).await;
    let shown = json_of(world.all.ask(bare("GET", &path_of(&submitted))).await).await;
    assert_eq!(shown["submitted_by"], "ann");
    assert_eq!(shown["submitted_at"], "2026-01-01T00:00:00.000Z");
    let shown = json_of(world.all.ask(bare("GET", &format!("/v1/tasks/{other}"))).await).await;
    assert!(shown["submitted_by"].is_null(), "nothing is known of an anonymous caller");
    let listed = async |filter: &str| {
        let page = world.all.ask(bare("GET", &format!("/v1/tasks?{filter}"))).await;
        json_of(page).await["tasks"].as_array().unwrap().len()
    };
    for (filter, count) in [("submitted_by=ann", 1), ("submitted_by=bob", 0), ("topic=orders", 2)] {
        assert_eq!(listed(filter).await, count, "{filter}");
    }
    for path in ["/v1/tasks?submitted_by=anonymous", "/v1/dead?submitted_by=ann"] {
        assert_eq!(world.all.ask(bare("GET", path)).await.status(), 400, "{path}");
    }
    for (body, status) in [
        (r#"{"submitted_by":"ann","dry_run":true}"#, 403),
        (r#"{"submitted_by":"ann"}"#, 403),
        (r#"{"submitted_by":"ann","topic":"other"}"#, 403),
        (r#"{"submitted_by":"anonymous","topic":"orders"}"#, 400),
        (r#"{"dry_run":true}"#, 400),
        (r#"{"submitted_by":"ann","topic":"orders","dry_run":true}"#, 200),
        (r#"{"submitted_by":"ann","topic":"orders"}"#, 200),
    ] {
        assert_eq!(listed("").await, 2, "{body}");
        assert_eq!(world.ask(post("/v1/tasks/cancel", body)).await.status(), status, "{body}");
    }
    assert_eq!((listed("").await, listed("submitted_by=ann").await), (1, 0));
    world.ask(post("/v1/tasks", body)).await;
    let all = world.all.ask(post("/v1/tasks/cancel", r#"{"submitted_by":"ann"}"#)).await;
    assert_eq!(json_of(all).await["cancelled"], 1);
    for path in ["/v1/dead/redrive", "/v1/dead/drop"] {
        let refused = world.all.ask(post(path, r#"{"submitted_by":"ann","topic":"orders"}"#)).await;
        assert_eq!(refused.status(), 400, "{path}");
    }
}

fn path_of(task: &Value) -> String {
    format!("/v1/tasks/{}", task["id"].as_str().unwrap())
}

#[tokio::test]
async fn a_topic_is_shown_to_its_readers_and_held_by_operators_alone() {
    let world = World::new(&Action::ON_TOPICS, "orders");
    let policy = r#"{"delay_max":"1h"}"#;
    let put = |path: &str| request("PUT", path, Some("application/json"), policy);
    let path = "/v1/topics/orders/policy";
    for request in [
        put(path),
        bare("DELETE", path),
        bare("POST", "/v1/topics/orders/pause"),
        bare("POST", "/v1/topics/orders/resume"),
        bare("GET", "/v1/topics/other"),
        bare("GET", "/v1/topics"),
    ] {
        let what = format!("{} {}", request.method(), request.uri());
        assert_eq!(world.ask(request).await.status(), StatusCode::FORBIDDEN, "{what}");
    }
    let set = world.all.ask(put(path)).await;
    assert_eq!((set.status(), header_of(&set, "etag")), (StatusCode::OK, Some("\"1\"")));
    let paused = world.all.ask(bare("POST", "/v1/topics/orders/pause")).await;
    assert_eq!(header_of(&paused, "etag"), Some("\"2\""));
    let shown = json_of(world.ask(bare("GET", "/v1/topics/orders")).await).await;
    assert_eq!((&shown["policy"]["delay_max"], &shown["revision"]), (&"1h".into(), &2.into()));
    assert!(shown["paused"]["since"].is_string(), "{shown}");
    let listed = json_of(world.all.ask(bare("GET", "/v1/topics?limit=1")).await).await;
    assert_eq!(listed["topics"].as_array().map(Vec::len), Some(1), "{listed}");

    let mut outdated = put(path);
    outdated.headers_mut().insert(header::IF_MATCH, "\"1\"".parse().unwrap());
    assert_eq!(world.all.ask(outdated).await.status(), StatusCode::PRECONDITION_FAILED);
    let missing = world.all.ask(bare("GET", "/v1/topics/no-such-topic")).await;
    assert_eq!(missing.status(), StatusCode::NOT_FOUND);
    let missing = world.all.ask(bare("POST", "/v1/topics/no-such-topic/pause")).await;
    assert_eq!(missing.status(), StatusCode::UNPROCESSABLE_ENTITY);
    for (dead_topic, status) in [("no-such-topic", 422), ("unseen", 200)] {
        let body = format!(r#"{{"ttr":"1m","retry":{{"dead_topic":"{dead_topic}"}}}}"#);
        let set = world.all.ask(request("PUT", path, Some("application/json"), body)).await;
        assert_eq!(set.status(), status, "{dead_topic}");
        if status == 422 {
            assert_eq!(json_of(set).await["field"], "retry.dead_topic");
        }
    }
}

#[tokio::test]
async fn a_topic_is_held_by_those_who_operate_it() {
    let world = World::new(&[Action::Operate, Action::Read], "orders");
    let pause = |topic: &str| bare("POST", &format!("/v1/topics/{topic}/pause"));
    assert_eq!(world.ask(pause("orders")).await.status(), StatusCode::OK);
    assert_eq!(world.ask(pause("other")).await.status(), StatusCode::FORBIDDEN);
    assert_eq!(world.ask(bare("GET", "/v1/cluster")).await.status(), StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn a_redrive_to_another_topic_needs_a_submit_there_and_the_sight_of_the_records() {
    const OWN: &[Action] = &[Action::Read, Action::Redrive];
    const SEEN: &[Action] = &[Action::Read, Action::Redrive, Action::ReadPayload];
    // The readers of the other topic see the records.
    const OTHER: &[Action] = &[Action::Submit, Action::Read, Action::ReadPayload];
    for (rules, allows) in [
        (&[(SEEN, "dead")][..], false),
        (&[(OWN, "dead"), (OTHER, "other")], false),
        (&[(SEEN, "dead"), (&[Action::Submit], "other")], true),
    ] {
        let world = World::with(rules);
        let id = world.task("dead", "n").await;
        let path = format!("/v1/dead/{id}/redrive");
        for (path, body) in [
            ("/v1/dead/redrive", r#"{"topic":"dead","to_topic":"other"}"#),
            (path.as_str(), r#"{"to_topic":"other"}"#),
        ] {
            let status = world.ask(post(path, body)).await.status();
            assert_eq!(status != StatusCode::FORBIDDEN, allows, "{path} {rules:?}: {status}");
        }
    }
    let world = World::new(OWN, "dead");
    let id = world.task("dead", "n").await;
    let path = format!("/v1/dead/{id}/redrive");
    assert_eq!(world.ask(post(&path, "")).await.status(), StatusCode::OK);
}
