//! The console in a real browser: every page and every action, by keyboard, on a phone, in the
//! dark. With `PUNCTUAL_WRITE_DOCS` set, the browser also takes the pictures of
//! docs/operate/console.md.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::process::Command;
use uuid::Uuid;

use crate::callbacks::{OK, Service, flags_for};
use crate::outbox::Shop;
use crate::support::{Api, Cluster, Node, eventually_some, now_ms};
use crate::tokens::{AuthFile, run, text};

/// A browser starts, and opens some eighty pages.
const DEADLINE: Duration = Duration::from_secs(480);
const MINUTE_MS: i64 = 60_000;
const DAY_MS: i64 = 24 * 60 * MINUTE_MS;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The topics have names of their own, because the pictures show them.
const TOPIC: &str = "orders.reminders";
const DEAD_TOPIC: &str = "orders.refunds";

/// Creates a topic, also where an earlier run has left it behind.
async fn create(cluster: &Cluster, topic: &str, settings: &[(&str, &str)]) {
    cluster.try_delete_topic(topic).await.ok();
    cluster.create_topic(topic, settings).await;
}

/// Submits tasks over the next two hours and the next days, in waves. Returns the ids of order-17
/// and order-18.
async fn fill(api: &Api) -> (Uuid, Uuid) {
    let now = now_ms();
    let at = |due_at: i64, n: i64| json!({"topic": TOPIC, "due_at": due_at, "payload": {"n": n}});
    let minutes = (0..120).flat_map(|minute| {
        (0..(2 + 2 * ((minute / 9) % 4) + minute % 3)).map(move |n| (minute, n))
    });
    let mut tasks: Vec<Value> =
        minutes.map(|(minute, n)| at(now + 30_000 + minute * MINUTE_MS + n, n)).collect();
    let days = (1..30)
        .flat_map(|day| (0..(260 - 90 * i64::from(day % 7 > 4) + 4 * day)).map(move |n| (day, n)));
    tasks.extend(days.map(|(day, n)| at(now + day * DAY_MS + n * 1000, n)));
    for tasks in tasks.chunks(1000) {
        let batch = json!({ "tasks": tasks }).to_string();
        assert_eq!(api.post("/v1/tasks/batch", batch).await.status, 200);
    }
    let named = |name: &str| {
        json!({
            "topic": TOPIC, "delay": "3h", "name": name, "key": name,
            "headers": {"source": "checkout"}, "payload": {"remind": name, "by": "mail"},
        })
    };
    (api.submit(&named("order-17")).await.id, api.submit(&named("order-18")).await.id)
}

/// Makes dead letters: their topic takes smaller records by the time they are due.
async fn dead_letters(cluster: &Cluster, api: &Api, count: usize) -> Vec<Uuid> {
    api.learn(DEAD_TOPIC).await;
    cluster.alter_topic(DEAD_TOPIC, &[("max.message.bytes", "20000")]).await;
    let task = |n: usize| {
        json!({"topic": DEAD_TOPIC, "delay": "1s", "key": format!("refund-{n}"),
               "payload_text": "x".repeat(100_000)})
    };
    let tasks: Vec<Value> = (0..count).map(task).collect();
    let accepted = api.submit_all(&tasks).await;
    eventually_some("all of them are dead", DEADLINE, async || {
        let page = api.get(&format!("/v1/dead?topic={DEAD_TOPIC}")).await.json();
        (page["tasks"].as_array().unwrap().len() == count).then_some(())
    })
    .await;
    accepted.iter().map(|task| task.id).collect()
}

async fn schedule(api: &Api) {
    let schedule = json!({
        "cron": "0 9 * * 1-5", "time_zone": "Europe/Vienna", "note": "a summary for the shop",
        "payload": {"report": "daily"},
    });
    let path = format!("/v1/schedules/{TOPIC}/daily-report");
    let body = Some(("application/json", schedule.to_string().into_bytes()));
    assert_eq!(api.send(reqwest::Method::PUT, &path, body).await.status, 201);
}

/// A node of the same cluster that asks for a token.
async fn guarded(cluster: &Cluster) -> (Node, String, AuthFile) {
    let made = run(&["token", "new", "--principal", "ann"], "").await;
    let (token, lines) = (text(&made.stdout), text(&made.stderr));
    let rights = "[roles.all]\nallow = [{ actions = [\"*\"], topics = [\"*\"] }]\n";
    let lines = lines.replace("roles  = []", "roles = [\"all\"]\noperate = true");
    let auth = AuthFile::new("console", &format!("version = 1\n{rights}{lines}"));
    let node = cluster.node_with(&["--auth-file", auth.path()]).await;
    (node, token.trim().to_owned(), auth)
}

/// Sets a callback that is paused, so that the consumer of the tests stays the only one.
async fn callback(api: &Api, service: &Service) {
    let callback = json!({ "url": service.url("/jobs?key=secret"), "paused": true,
                           "headers": { "authorization": "Bearer of-service" } });
    let body = Some(("application/json", callback.to_string().into_bytes()));
    let path = format!("/v1/topics/{TOPIC}/callback");
    assert_eq!(api.send(reqwest::Method::PUT, &path, body).await.status, 200);
}

/// Returns the texts that the browser looks for on pages about an outbox, an intake topic and a
/// callback.
fn looks(service: &Service, intake: &str) -> Vec<Value> {
    let topic = format!("/console/topics?topic={TOPIC}");
    let look = |path: &str, says: &str| action(path, &json!([]), says);
    vec![
        look("/console/inbound", "shop"),
        look("/console/inbound", intake),
        look(&topic, &service.url("/jobs")),
        look(&topic, &format!("punctual topic callback {TOPIC} FILE")),
    ]
}

/// Makes a tracked task that its consumer has finished.
async fn finished(api: &Api) -> Uuid {
    let task = json!({
        "topic": TOPIC, "delay": "1s", "name": "order-16", "key": "order-16", "ttr": "1h",
        "payload": {"remind": "order-16", "by": "mail"},
    });
    let id = api.submit(&task).await.id;
    eventually_some("the task is published", DEADLINE, async || {
        (api.task(id).await.state == "awaiting").then_some(())
    })
    .await;
    assert_eq!(api.post(&format!("/v1/tasks/{id}/finish"), "").await.status, 200);
    id
}

fn action(path: &str, steps: &Value, says: &str) -> Value {
    json!({ "path": path, "steps": steps, "says": says })
}

/// Returns the step that fills the field of a label in.
fn given(field: &str, value: &str) -> Value {
    json!({ "field": field, "value": value })
}

/// Returns the searches for tasks that the browser does.
fn searches() -> Vec<Value> {
    let search = |fields: &[(&str, &str)], says: &str| {
        let topic = [("Topic", TOPIC)];
        let fields = topic.iter().chain(fields).map(|(field, value)| given(field, value));
        let steps: Vec<Value> = fields.chain([json!("Show")]).collect();
        action("/console/tasks", &json!(steps), says)
    };
    // Hundreds of tasks are due before those that are found.
    let due_from = (now_ms() + 150 * MINUTE_MS).to_string();
    let due_to = (now_ms() + 200 * MINUTE_MS).to_string();
    vec![
        search(&[("Key", "order-17")], "order-17"),
        search(&[("Name begins with", "order-1")], "order-18"),
        search(&[("Due from", &due_from), ("Due before", &due_to)], "order-18"),
        search(
            &[("Name begins with", "order-1"), ("Due from", &due_to)],
            "No more tasks are pending here",
        ),
        // The name alone leads to the page of the task.
        search(&[("Name", "order-17")], "will be due"),
    ]
}

/// Returns the actions that the browser does, each from a page by its steps: the labels to press,
/// and the fields to fill in.
fn actions((task, soon): (Uuid, Uuid), dead: &[Uuid]) -> Vec<Value> {
    let (of_task, of_dead) =
        (|id: Uuid| format!("/console/tasks/{id}"), format!("/console/dead?topic={DEAD_TOPIC}"));
    let schedule = format!("/console/schedules/{TOPIC}/daily-report");
    let topic = format!("/console/topics?topic={TOPIC}");
    let twice = |path: &str, label: &str, says| action(path, &json!([label, label]), says);
    let move_it = "Move this task";
    let moved = json!([move_it, given("New due time", "4h"), move_it]);
    let reason = "the shop is closed";
    let pause = "Pause this topic";
    let paused = json!([pause, given("Reason", reason), pause]);
    // The dead letters may be redriven already, and not dead again yet.
    let redrive = format!("/console/confirm?action=redrive-many&topic={DEAD_TOPIC}");
    vec![
        action(&of_task(task), &moved, "The task is moved"),
        twice(&of_task(soon), "Publish this task now", "The task is due now"),
        twice(&of_task(task), "Cancel this task", "The task is cancelled"),
        twice(&of_task(dead[0]), "Redrive this dead letter", "is redriven"),
        twice(&of_task(dead[1]), "Drop this dead letter", "is dropped"),
        twice(&schedule, "Pause this schedule", "is paused"),
        twice(&schedule, "Resume this schedule", "makes runs again"),
        twice(&schedule, "Trigger a run of this schedule", "A run is made"),
        action(&topic, &paused, "The topic is paused"),
        action(&topic, &json!([]), reason),
        twice(&topic, "Resume this topic", "published to again"),
        twice(&of_dead, "Drop dead letters", "dead letters are dropped"),
        action(&redrive, &json!(["Redrive dead letters"]), "dead letters are redriven"),
    ]
}

/// Returns the pictures to make: those of docs/images when the docs are to be written.
fn shots(task: Uuid) -> Vec<Value> {
    if std::env::var_os("PUNCTUAL_WRITE_DOCS").is_none() {
        return Vec::new();
    }
    let file = |name: &str| root().join(format!("docs/images/console-{name}.png"));
    vec![
        json!({ "file": file("now"), "path": "/console" }),
        json!({ "file": file("ahead"), "path": "/console/ahead" }),
        json!({ "file": file("task"), "path": format!("/console/tasks/{task}") }),
        json!({ "file": file("dark"), "path": "/console", "dark": true }),
        json!({ "file": file("phone"), "path": "/console", "phone": true }),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn people_read_and_act_with_a_keyboard_on_a_phone_and_in_the_dark() {
    let cluster = Cluster::start("console").await;
    create(&cluster, TOPIC, &[]).await;
    create(&cluster, DEAD_TOPIC, &[("max.message.bytes", "1000000")]).await;
    let (shop, intake) = (Shop::open(&cluster.stack).await, cluster.topic("in").await);
    let service = Service::start(|_request| OK).await;
    let mut flags = flags_for(&cluster, &[&service]);
    flags.extend(["--outbox".to_owned(), shop.flag(), "--intake-topic".to_owned(), intake.clone()]);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let (node, (guarded, token, _auth)) =
        tokio::join!(cluster.node_with(&flags), guarded(&cluster));
    let api = node.api();
    callback(api, &service).await;
    let (task, soon) = fill(api).await;
    let finished = finished(api).await;
    let dead = dead_letters(&cluster, api, 6).await;
    schedule(api).await;
    let all = [searches(), looks(&service, &intake), actions((task, soon), &dead)].concat();
    let plan = json!({
        "browser": "/usr/bin/chromium",
        "base": api.base(),
        "pages": [
            "/console",
            "/console/topics",
            format!("/console/topics?topic={TOPIC}"),
            "/console/inbound",
            "/console/ahead",
            format!("/console/ahead?topic={TOPIC}"),
            format!("/console/tasks?topic={TOPIC}"),
            format!("/console/tasks?topic={TOPIC}&key=order-17&due_from=2026-01-01T00:00Z"),
            format!("/console/tasks/{task}"),
            format!("/console/tasks/{finished}"),
            format!("/console/tasks/{}", dead[0]),
            "/console/dead",
            format!("/console/dead?topic={DEAD_TOPIC}"),
            "/console/schedules",
            format!("/console/schedules?topic={TOPIC}"),
            format!("/console/schedules/{TOPIC}/daily-report"),
            format!("/console/confirm?action=drop-many&topic={DEAD_TOPIC}"),
            format!("/console/confirm?action=move&id={task}"),
            format!("/console/confirm?action=pause-topic&topic={TOPIC}"),
            "/console/login",
        ],
        "shots": shots(finished),
        "actions": all,
        "twice": {
            "path": format!("/console/confirm?action=trigger&topic={TOPIC}&name=daily-report"),
            "label": "Trigger a run of this schedule",
        },
        "login": { "base": guarded.api().base(), "token": token,
                   "path": format!("/console/tasks?topic={TOPIC}") },
    });
    let mut node_program = Command::new("node");
    node_program
        .arg(root().join(".stack/console/pages.mjs"))
        .arg(plan.to_string())
        .stdin(Stdio::null())
        .kill_on_drop(true);
    // Somebody submits meanwhile, so that there are rates. The tasks are claimed at once.
    let traffic = async {
        loop {
            api.submit(&json!({ "topic": TOPIC, "delay": "10ms", "payload": 1 })).await;
        }
    };
    let output = tokio::select! {
        output = tokio::time::timeout(DEADLINE, node_program.output()) => output,
        () = traffic => unreachable!("the traffic does not end"),
    };
    let output = output.expect("the browser is done in time").unwrap();
    let told = text(&output.stderr);
    assert!(output.status.success(), "scripts/console must have run before:\n{told}");
    eventually_some("the task that was to be published now is published", DEADLINE, async || {
        (api.task(soon).await.state == "published").then_some(())
    })
    .await;
    for topic in [TOPIC, DEAD_TOPIC] {
        cluster.delete_topic(topic).await;
    }
}
