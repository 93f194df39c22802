//! The lines of the audit trail.

use super::*;
use crate::api::Audit;
use crate::audit::{self, AuditStream, Folder, StreamSettings};
use crate::shutdown::Tasks;

/// A world whose requests have lines.
struct Audited {
    world: World,
    folder: Folder,
    _tasks: Tasks,
}

impl Audited {
    fn new(world: World, has_reads: bool) -> Self {
        let audited = Self::at(world, has_reads, &Folder::temporary());
        while audited.text().is_empty() {
            std::thread::yield_now();
        }
        audited
    }

    /// Writes the trail to the file `audit` of the folder, which may be there.
    fn at(world: World, has_reads: bool, folder: &Folder) -> Self {
        let settings =
            StreamSettings { path: folder.path("audit"), is_lossy: false, places_max: 4096 };
        let (tasks, metrics) = (Tasks::default(), audit::Metrics::default());
        let first = Audit::line_of_node("node-1", "start");
        let stream = AuditStream::start(&settings, first, metrics, &tasks).unwrap();
        let audit = Audit { stream, node: "node-1".to_owned(), has_reads };
        let with = |api: &Api| api.clone().with_audit(Some(audit.clone()));
        let (api, all) = (with(&world.api), with(&world.all));
        let world = World { api, all, ..world };
        Self { world, folder: folder.clone(), _tasks: tasks }
    }

    fn text(&self) -> String {
        std::fs::read_to_string(self.folder.path("audit")).unwrap()
    }

    /// Returns the lines after the first one, which is about the node.
    fn lines(&self) -> Vec<Value> {
        let lines: Vec<Value> =
            self.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((&lines[0]["node"], &lines[0]["action"]), (&"node-1".into(), &"start".into()));
        lines[1..].to_vec()
    }

    /// Sends a request as the caller with the token, and returns its status and its line.
    async fn line_of(&self, request: Request<Body>) -> (u16, Option<Value>) {
        let before = self.lines().len();
        let status = self.world.ask(request).await.status().as_u16();
        let after = self.lines();
        assert!(after.len() <= before + 1, "{after:?}");
        (status, after.get(before).cloned())
    }
}

#[tokio::test]
async fn each_denied_request_has_its_line_and_no_line_has_a_payload_key_header_or_token() {
    let audited = Audited::new(World::new(&Action::ON_TOPICS, "other"), true);
    let id = audited.world.task("secret", "n").await;
    let mut denied_count = 0;
    for (what, request) in requests(&audited.world.all, "secret", &id).await {
        let (status, line) = audited.line_of(request).await;
        // The id of the request for a dead letter is that of a pending task, which is hidden too.
        if [401, 403, 404].contains(&status) {
            let line = line.unwrap_or_else(|| panic!("{what}: {status} has no line"));
            assert_eq!(line["status"], status, "{what}: {line}");
            assert_eq!(line["principal"], "ann", "{what}: {line}");
            assert!(line.get("topic").is_none_or(|topic| topic == "secret"), "{what}: {line}");
            assert_eq!(line["denied"].as_object().unwrap().values().next().unwrap(), 1);
            denied_count += 1;
        }
    }
    assert!(denied_count > 15, "{denied_count}");
    for (what, request) in requests(&audited.world.all, "secret", &id).await {
        let before = audited.lines().len();
        let status = audited.world.api.ask(request).await.status();
        let lines = audited.lines();
        assert_eq!((status.as_u16(), lines.len()), (401, before + 1), "{what}");
        assert_eq!(lines[before]["problem"], "unauthenticated");
        assert!(lines[before].get("principal").is_none());
    }
    let text = audited.text();
    assert!(!text.contains(MARKER) && !text.contains(&audited.world.token), "{text}");
}

#[tokio::test]
async fn each_change_has_its_line_and_a_bulk_request_has_one() {
    let audited = Audited::new(World::new(&Action::ON_TOPICS, "open"), false);
    let json = Some("application/json");
    let task =
        format!(r#"{{"topic":"open","delay":"1h","name":"n","key":"{MARKER}","payload":1}}"#);
    let (status, line) = audited.line_of(post("/v1/tasks", task.clone())).await;
    let line = line.unwrap();
    assert_eq!((status, &line["count"], &line["action"]), (201, &1.into(), &"submit".into()));
    for (member, value) in [
        ("operation", "submitTask"),
        ("topic", "open"),
        ("principal", "ann"),
        ("address", "127.0.0.1"),
        ("node", "node-1"),
    ] {
        assert_eq!(line[member], value, "{line}");
    }
    assert_eq!(line["credential"].as_str().unwrap().len(), 8);
    let id = line["target"]["id"].as_str().unwrap().to_owned();
    // A known name changes nothing, and says so.
    let line = audited.line_of(post("/v1/tasks", task)).await.1.unwrap();
    assert_eq!((&line["status"], line.get("count")), (&200.into(), None));

    let put = request("PUT", "/v1/topics/open/tasks/n", json, r#"{"delay":"1h","payload":1}"#);
    let line = audited.line_of(put).await.1.unwrap();
    assert_eq!((&line["action"], &line["target"]["name"]), (&"replace".into(), &"n".into()));
    assert_ne!(line["target"]["id"], id.as_str());

    let item = |topic: &str| format!(r#"{{"topic":"{topic}","delay":"1h","payload":1}}"#);
    let items = [item("open"), item("secret"), item("open"), item("no-such-topic")].join(",");
    let batch = post("/v1/tasks/batch", format!(r#"{{"tasks":[{items}]}}"#));
    let line = audited.line_of(batch).await.1.unwrap();
    assert_eq!((&line["count"], &line["topics"]["open"]), (&2.into(), &2.into()), "{line}");
    let (first, last) = (&line["target"]["first_id"], &line["target"]["last_id"]);
    assert!(first.is_string() && last.is_string() && first != last, "{line}");
    assert_eq!(line["denied"], serde_json::json!({ "secret": 1, "no-such-topic": 1 }));

    let moved = r#"{"topic":"open","name_prefix":"n","due_from":"2026-02-01T00:00:00Z","to":0}"#;
    let moved = moved.replace("\"to\":0", "\"to\":\"2026-01-15T00:00:00Z\"");
    let line = audited.line_of(post("/v1/tasks/move", moved)).await.1.unwrap();
    assert_eq!((&line["action"], &line["operation"]), (&"move".into(), &"moveTasks".into()));
    assert_eq!(line["target"]["name_prefix"], "n", "{line}");
    let keyed = format!(r#"{{"topic":"open","key":"{MARKER}","due_from":"2027-01-01T00:00:00Z"}}"#);
    let line = audited.line_of(post("/v1/tasks/cancel", keyed)).await.1.unwrap();
    assert_eq!(line["target"]["by_key"], true, "{line}");
    let selection = r#"{"topic":"open","due_from":"2026-01-01T00:00:00Z"}"#;
    let dry = selection.replace('}', r#","dry_run":true}"#);
    assert_eq!(audited.line_of(post("/v1/tasks/cancel", dry)).await, (200, None));
    let line = audited.line_of(post("/v1/tasks/cancel", selection)).await.1.unwrap();
    assert_eq!((&line["action"], &line["count"]), (&"cancel".into(), &3.into()), "{line}");
    assert_eq!(line["target"]["due_from"], "2026-01-01T00:00:00.000Z");
    let tracked = r#"{"topic":"open","name":"t","delay":"1h","payload":1,"ttr":"1m"}"#;
    assert_eq!(audited.line_of(post("/v1/tasks", tracked)).await.0, 201);
    let finish = post("/v1/topics/open/tasks/t/finish", "{}");
    let (status, line) = audited.line_of(finish).await;
    assert_eq!((status, line.map(|line| line["action"].clone())), (409, None));
    // Requests that change nothing have none.
    for request in [bare("GET", "/v1/tasks?topic=open"), post("/v1/tasks", "{}")] {
        assert_eq!(audited.line_of(request).await.1, None);
    }
    assert!(!audited.text().contains(MARKER), "{}", audited.text());
}

#[tokio::test]
async fn each_call_of_a_consumer_has_its_line() {
    let audited = Audited::new(World::new(&Action::ON_TOPICS, "tracked"), false);
    let id = audited.world.task("tracked", "n").await;
    for (path, operation) in [
        ("/v1/topics/tracked/tasks/n/extend".to_owned(), "extendTaskByName"),
        (format!("/v1/tasks/{id}/fail"), "failTask"),
        (format!("/v1/tasks/{id}/finish"), "finishTask"),
    ] {
        let body =
            format!(r#"{{"attempt":1{}}}"#, if operation == "failTask" { REASON } else { "" });
        let (status, line) = audited.line_of(post(&path, body)).await;
        let line = line.unwrap();
        assert_eq!((status, &line["operation"]), (200, &operation.into()), "{line}");
        assert_eq!((&line["action"], &line["count"]), (&"finish".into(), &1.into()), "{line}");
        assert_eq!(line["topic"], "tracked", "{line}");
    }
    let outcome = r#"{"topic":"tracked","name":"n","outcome":"finish"}"#;
    let foreign = r#"{"topic":"secret","name":"n","outcome":"finish"}"#;
    let body = format!(r#"{{"outcomes":[{outcome},{foreign}]}}"#);
    let line = audited.line_of(post("/v1/outcomes", body)).await.1.unwrap();
    assert_eq!((&line["count"], &line["denied"]["secret"]), (&1.into(), &1.into()), "{line}");
    assert!(!audited.text().contains(MARKER), "{}", audited.text());
}

/// A reason that is part of the body of a failure.
const REASON: &str = r#","reason":"marker-of-a-payload""#;

#[tokio::test]
async fn reads_of_payloads_have_lines_where_they_are_wanted() {
    for (has_reads, actions, has_line) in [
        (true, &[Action::Read, Action::ReadPayload][..], true),
        (true, &[Action::Read], false),
        (false, &[Action::Read, Action::ReadPayload], false),
    ] {
        let audited = Audited::new(World::new(actions, "open"), has_reads);
        let id = audited.world.task("open", "n").await;
        for path in [&format!("/v1/tasks/{id}"), "/v1/topics/open/tasks/n", "/v1/tasks?topic=open"]
        {
            let (status, line) = audited.line_of(bare("GET", path)).await;
            assert_eq!((status, line.is_some()), (200, has_line), "{path}");
            if let Some(line) = line {
                assert_eq!((&line["action"], &line["topic"]), (&"read".into(), &"open".into()));
            }
        }
        assert!(!audited.text().contains(MARKER));
    }
}

#[tokio::test]
async fn a_refusal_that_shows_a_payload_has_a_line_where_reads_have() {
    for has_reads in [true, false] {
        let audited = Audited::new(World::new(&Action::ON_TOPICS, "open"), has_reads);
        let id = audited.world.task("open", "n").await;
        let finish = post(&format!("/v1/tasks/{id}/finish"), "{}");
        let (status, line) = audited.line_of(finish).await;
        assert_eq!((status, line.is_some()), (409, has_reads), "an untracked task is shown");
    }
}

#[tokio::test]
async fn without_room_for_a_line_nothing_is_done_and_reads_go_on() {
    let folder = Folder::temporary();
    std::os::unix::fs::symlink("/dev/full", folder.path("audit")).unwrap();
    let audited = Audited::at(World::new(&Action::ON_TOPICS, "open"), false, &folder);
    let world = &audited.world;
    let task = r#"{"topic":"open","delay":"1h","payload":1}"#;
    // The first line fails by itself, at some moment.
    let mut stored: u64 = 0;
    while world.ask(post("/v1/tasks", task)).await.status() == 201 {
        stored += 1;
    }
    let response = world.ask(post("/v1/tasks", task)).await;
    assert_eq!(response.status(), 503);
    let problem = json_of(response).await;
    assert_eq!(problem["type"], "urn:punctual:problem:busy");
    assert!(problem["detail"].as_str().unwrap().contains("--audit-file"), "{problem}");
    let list = json_of(world.ask(bare("GET", "/v1/tasks?topic=open")).await).await;
    assert_eq!(u64::try_from(list["tasks"].as_array().unwrap().len()).unwrap(), stored);
    // A denied request is not answered without its line, either.
    assert_eq!(world.ask(bare("GET", "/v1/tasks?topic=secret")).await.status(), 503);

    std::fs::remove_file(folder.path("audit")).unwrap();
    while world.ask(post("/v1/tasks", task)).await.status() != 201 {
        tokio::task::yield_now().await;
    }
    assert_eq!(u64::try_from(audited.lines().len()).unwrap(), stored + 1);
}

#[tokio::test]
async fn without_room_for_a_line_a_hidden_task_and_an_absent_one_are_answered_alike() {
    let folder = Folder::temporary();
    let audited = Audited::at(World::new(&Action::ON_TOPICS, "open"), false, &folder);
    let world = &audited.world;
    let [hidden, shown] = [world.task("secret", "n").await, world.task("open", "n").await];
    let mut absent = hidden.clone();
    absent.replace_range(35.., if hidden.ends_with('0') { "1" } else { "0" });
    let ask = async |method, id: &str| {
        let path = format!("/v1/tasks/{id}");
        let response = world.ask(bare(method, &path)).await;
        let status = response.status().as_u16();
        (status, text_of(response).await.replace(id, "ID"))
    };
    let without_request = |(status, text): (u16, String)| {
        let mut problem: Value = serde_json::from_str(&text).unwrap();
        problem.as_object_mut().unwrap().remove("request_id");
        (status, problem)
    };
    for is_writable in [true, false] {
        if !is_writable {
            std::fs::remove_file(folder.path("audit")).unwrap();
            std::os::unix::fs::symlink("/dev/full", folder.path("audit")).unwrap();
            let task = r#"{"topic":"open","delay":"1h","payload":1}"#;
            while world.ask(post("/v1/tasks", task)).await.status() != 503 {
                tokio::task::yield_now().await;
            }
        }
        for method in ["GET", "DELETE"] {
            let answers = [ask(method, &hidden).await, ask(method, &absent).await];
            let [hidden, absent] = answers.map(without_request);
            assert_eq!(hidden, absent, "{method}");
            assert_eq!(hidden.0, if is_writable { 404 } else { 503 }, "{method}");
        }
        assert_eq!(ask("GET", &shown).await.0, 200);
    }
}

#[tokio::test]
async fn a_look_up_of_a_callback_is_no_change() {
    let rights = [Action::Callback, Action::ReadPayload, Action::Submit];
    let audited = Audited::new(World::new(&rights, "open"), true);
    let path = "/v1/topics/open/callback";
    let look_up = || bare("GET", path);
    assert_eq!(audited.line_of(look_up()).await, (404, None));
    let callback = r#"{"url":"https://jobs.example.com/"}"#;
    let put = || request("PUT", path, Some("application/json"), callback);
    let (status, line) = audited.line_of(put()).await;
    assert_eq!((status, &line.unwrap()["action"]), (200, &"callback".into()));
    assert_eq!(audited.line_of(look_up()).await, (200, None));
    std::fs::remove_file(audited.folder.path("audit")).unwrap();
    std::os::unix::fs::symlink("/dev/full", audited.folder.path("audit")).unwrap();
    while audited.world.ask(put()).await.status() != 503 {
        tokio::task::yield_now().await;
    }
    assert_eq!(audited.world.ask(look_up()).await.status(), 200);
}

#[tokio::test]
async fn a_flood_of_denials_has_no_lines_and_a_valid_token_passes() {
    let settings = ApiSettings { caller_denials_max: 3, ..ApiSettings::default() };
    let audited = Audited::new(World::of(&[(&Action::ON_TOPICS, "open")], settings), false);
    let world = &audited.world;
    let denied = |n: usize| {
        let request = bare("GET", "/v1/tasks?topic=open");
        let headers = [("authorization", "Bearer pt_x"), ("host", "evil"), ("origin", "http://e")];
        let (name, value) = headers[n % 3];
        let (mut request, name) = (request, header::HeaderName::from_static(name));
        request.headers_mut().insert(name, HeaderValue::from_static(value));
        request
    };
    for (n, status) in [401, 421, 403].into_iter().enumerate() {
        assert_eq!(world.api.ask(denied(n)).await.status(), status);
    }
    for n in 0..9 {
        let response = world.api.ask(denied(n)).await;
        assert_eq!(response.status(), 429);
        let wait: u64 = header_of(&response, "retry-after").unwrap().parse().unwrap();
        assert!((1..=60).contains(&wait), "{wait}");
        assert_eq!(json_of(response).await["type"], "urn:punctual:problem:denied-too-often");
    }
    assert_eq!(audited.lines().len(), 3, "{:?}", audited.lines());
    let task = r#"{"topic":"open","delay":"1h","payload":1}"#;
    assert_eq!(world.ask(post("/v1/tasks", task)).await.status(), 201);
    assert_eq!(world.ask(bare("GET", "/v1/tasks?topic=secret")).await.status(), 403);
    assert_eq!(world.ask(bare("GET", "/v1/tasks?topic=open")).await.status(), 200);
    assert_eq!(audited.lines().len(), 5, "a known caller has its lines");

    // Also one whose rights rule the operation out.
    let settings = ApiSettings { caller_denials_max: 1, ..ApiSettings::default() };
    let audited = Audited::new(World::of(&[(&[Action::Read], "open")], settings), false);
    for line in 1..5 {
        assert_eq!(audited.world.ask(post("/v1/tasks", task)).await.status(), 403);
        assert_eq!(audited.lines().len(), line);
    }
}

#[tokio::test]
async fn a_line_says_how_many_denied_topics_it_leaves_out() {
    let audited = Audited::new(World::new(&Action::ON_TOPICS, "open"), false);
    let item = |n| format!(r#"{{"topic":"probe-{n}","delay":"1h","payload":1}}"#);
    let items: Vec<String> = (0..150).map(item).collect();
    let batch = post("/v1/tasks/batch", format!(r#"{{"tasks":[{}]}}"#, items.join(",")));
    let line = audited.line_of(batch).await.1.unwrap();
    assert_eq!(line["denied"].as_object().unwrap().len(), 100);
    assert_eq!(line["more_denied"], 50);
}

#[tokio::test]
async fn a_change_whose_caller_has_gone_has_a_line_without_a_status() {
    let audited = Audited::new(World::new(&Action::ON_TOPICS, "slow"), false);
    let task = r#"{"topic":"slow","delay":"1h","payload":1}"#;
    let asking = audited.world.ask(post("/v1/tasks", task));
    assert!(tokio::time::timeout(Duration::from_millis(100), asking).await.is_err());
    while audited.lines().is_empty() {
        tokio::task::yield_now().await;
    }
    let line = &audited.lines()[0];
    assert_eq!((&line["topic"], line.get("status")), (&"slow".into(), None), "{line}");
}
