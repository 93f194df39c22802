//! The clients of clients/ keep their promises: through a proxy that loses answers, against a node
//! with TLS and tokens, and without a node. Each is tested in a test framework of the language.
//! Afterwards, the cluster must hold exactly the tasks of the tests.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use futures_util::stream::StreamExt as _;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::support::node::binary;
use crate::support::{Authority, Cluster, Node};
use crate::tokens::{AuthFile, run, text};

/// A Java client and a Go client are compiled first, beside other tests.
const DEADLINE: Duration = Duration::from_secs(360);

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A proxy that is bad to each request in the same way: it loses the first answer, refuses the
/// second attempt, forgets the outcome of the third, and answers the fourth. Below `/gateway`, it
/// answers as a gateway that has lost its connection to the node, below `/stalled` its answers have
/// no end, and below `/partly-refused` and `/partly-lost` bulk calls fail after their first part.
struct LosingProxy {
    base: String,
    http: reqwest::Client,
    attempts: Mutex<HashMap<(Method, String, Bytes), Attempts>>,
    gateway_count: AtomicUsize,
    /// When the bulk calls came that fail after their first part.
    partial_at: Mutex<Vec<Instant>>,
}

/// The attempts of one request.
#[derive(Default)]
struct Attempts {
    began_at: Vec<Instant>,
    /// The `Retry-After` of the answers, in seconds: 1 for the first request that is repeated, and
    /// 0 for the others, which would only take longer.
    retry_after: u8,
}

impl LosingProxy {
    /// Starts a proxy of a node. Returns its address.
    async fn start(node: &Node) -> (String, Arc<Self>) {
        let proxy = Arc::new(Self {
            base: node.api().base().to_owned(),
            http: crate::support::api::client(Duration::from_secs(30)),
            attempts: Mutex::default(),
            gateway_count: AtomicUsize::new(0),
            partial_at: Mutex::default(),
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().fallback(Self::answer).with_state(Arc::clone(&proxy));
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        (address, proxy)
    }

    async fn answer(
        State(proxy): State<Arc<Self>>,
        method: Method,
        uri: Uri,
        headers: HeaderMap,
        body: Bytes,
    ) -> Response {
        if uri.path().starts_with("/gateway/") {
            proxy.gateway_count.fetch_add(1, Ordering::Relaxed);
            let json = [("content-type", "application/json")];
            let said = r#"{"message":"Service Unavailable"}"#;
            return (StatusCode::SERVICE_UNAVAILABLE, json, said).into_response();
        }
        if uri.path().starts_with("/stalled/") {
            return stalled();
        }
        if uri.path().starts_with("/partly-") {
            proxy.partial_at.lock().push(Instant::now());
            return partial(&body, uri.path().starts_with("/partly-refused/"));
        }
        let (attempt, retry_after) = {
            let mut attempts = proxy.attempts.lock();
            let is_told = attempts.values().any(|one| one.retry_after == 1);
            let one = attempts.entry((method.clone(), uri.to_string(), body.clone())).or_default();
            one.began_at.push(Instant::now());
            if one.began_at.len() == 2 && !is_told {
                one.retry_after = 1;
            }
            (one.began_at.len(), one.retry_after)
        };
        if attempt == 2 {
            return problem("busy", retry_after);
        }
        let mut request = proxy.http.request(method, format!("{}{uri}", proxy.base));
        if let Some(content_type) = headers.get("content-type") {
            request = request.header("content-type", content_type);
        }
        let answer = request.body(body).send().await.unwrap();
        let (status, content_type) =
            (answer.status(), answer.headers().get("content-type").cloned());
        let answer = answer.bytes().await.unwrap();
        match attempt {
            // The body ends before its length: the client sees a lost connection.
            1 => lost(),
            3 => problem("outcome-unknown", retry_after),
            _ => (status, [("content-type", content_type.unwrap())], answer).into_response(),
        }
    }

    /// Returns the number of requests that were repeated until they had an answer.
    fn repeated_count(&self) -> usize {
        self.attempts.lock().values().filter(|attempts| attempts.began_at.len() >= 4).count()
    }

    /// Returns how long the client waited after each `Retry-After` of a second.
    fn pauses(&self) -> Vec<Duration> {
        let attempts = self.attempts.lock();
        let told = attempts.values().filter(|attempts| attempts.retry_after == 1);
        told.flat_map(|attempts| attempts.began_at[1..].windows(2))
            .map(|pair| pair[1] - pair[0])
            .collect()
    }
}

/// Answers a bulk submit of three tasks: the first is done, the second is not, the third perhaps.
/// The repetition of these two is refused, or its answer is lost.
fn partial(body: &Bytes, is_refused: bool) -> Response {
    let body: Value = serde_json::from_slice(body).unwrap();
    let problem = |slug: &str, status: u16| {
        let kind = format!("urn:punctual:problem:{slug}");
        json!({ "type": kind, "title": "..", "status": status, "detail": "by the proxy" })
    };
    match (body["tasks"].as_array().unwrap().len(), is_refused) {
        (3, _) => {
            let mut unavailable = problem("unavailable", 503);
            unavailable["retry_after"] = 1.into();
            let unknown = problem("outcome-unknown", 503);
            let task =
                json!({ "id": "01934b2e-7d3c-8017-9f2b-6a1c0e4d5b7f", "state": "scheduled" });
            let results = json!({ "results": [
                { "status": 201, "task": task },
                { "status": 503, "problem": unavailable },
                { "status": 503, "problem": unknown },
            ] });
            answered(StatusCode::OK, &results)
        }
        (_, true) => answered(StatusCode::UNAUTHORIZED, &problem("unauthenticated", 401)),
        (_, false) => lost(),
    }
}

fn answered(status: StatusCode, body: &Value) -> Response {
    (status, [("content-type", "application/json")], body.to_string()).into_response()
}

fn stalled() -> Response {
    let begin = futures_util::stream::once(async { Ok::<Bytes, &str>("{".into()) });
    let body = Body::from_stream(begin.chain(futures_util::stream::pending()));
    Response::builder().header("content-type", "application/json").body(body).unwrap()
}

fn lost() -> Response {
    let broken = futures_util::stream::once(async { Err::<Bytes, _>("lost") });
    Response::builder()
        .header("content-type", "application/json")
        .body(Body::from_stream(broken))
        .unwrap()
}

fn problem(slug: &str, retry_after: u8) -> Response {
    let body = format!(
        r#"{{"type":"urn:punctual:problem:{slug}","title":"..","status":503,
          "detail":"by the proxy","retry_after":{retry_after}}}"#
    );
    let retry_after = retry_after.to_string();
    let headers =
        [("content-type", "application/problem+json"), ("retry-after", retry_after.as_str())];
    (StatusCode::SERVICE_UNAVAILABLE, headers, body).into_response()
}

/// A node with TLS and tokens, and the files for a client of the node.
struct Secure {
    node: Node,
    ca: PathBuf,
    token: PathBuf,
    _auth: AuthFile,
}

impl Secure {
    async fn start(cluster: &Cluster, language: &str) -> Self {
        let authority = Authority::new();
        let (certificate, key) = authority.sign_local();
        let file = |name: &str, text: &str| {
            let path = cluster.folder().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let (certificate, key) = (file("certificate.pem", &certificate), file("key.pem", &key));
        let made = run(&["token", "new", "--principal", "orders", "--expires", "1d"], "").await;
        let (token, lines) = (text(&made.stdout), text(&made.stderr));
        let rights = "[roles.all]\n\
                      allow = [ { actions = [\"submit\", \"read\", \"cancel\"], \
                      topics = [\"*\"] } ]\n";
        let lines = lines.replace("roles  = []", "roles = [\"all\"]");
        let auth =
            AuthFile::new(&format!("clients-{language}"), &format!("version = 1\n{rights}{lines}"));
        let mut node = cluster.spawn(&[
            "--tls-certificate-file",
            certificate.to_str().unwrap(),
            "--tls-key-file",
            key.to_str().unwrap(),
            "--auth-file",
            auth.path(),
        ]);
        let ca = authority.pem();
        node.wait_listening_securely(&ca).await;
        node.wait_ready().await;
        Self { node, ca: file("ca.pem", &ca), token: file("token", &token), _auth: auth }
    }
}

/// Runs the story of a client, and compares the table with it.
async fn keeps_its_promises(language: &str, mut command: Command) {
    let cluster = Cluster::start(&format!("clients-{language}")).await;
    let topic = cluster.topic("orders").await;
    let keys = cluster.callback_key_file();
    let callbacks = ["--callback-host", "*.example.com", "--callback-key-file", &keys];
    let node = cluster.node_with(&callbacks).await;
    let secure = Secure::start(&cluster, language).await;
    let (losing, proxy) = LosingProxy::start(&node).await;
    command
        .env("PUNCTUAL_URL", node.api().base())
        .env("PUNCTUAL_LOSING_URL", losing)
        .env("PUNCTUAL_SECURE_URL", secure.node.api().base())
        .env("PUNCTUAL_CA_FILE", &secure.ca)
        .env("PUNCTUAL_TOKEN_FILE", &secure.token)
        .env("PUNCTUAL_TOPIC", &topic)
        .env("PUNCTUAL_BIN", binary())
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = tokio::time::timeout(DEADLINE, command.output()).await.unwrap().unwrap();
    let (said, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{language}:\n{said}\n{errors}");
    assert!(proxy.repeated_count() >= 4, "{} requests were repeated", proxy.repeated_count());
    let pauses = proxy.pauses();
    let second = Duration::from_secs(1);
    assert!(pauses.len() == 2 && pauses.iter().all(|pause| *pause >= second), "{pauses:?}");
    assert_eq!(proxy.gateway_count.load(Ordering::Relaxed), 1, "a trigger that may have been done");
    let partial = proxy.partial_at.lock().clone();
    assert!(partial.len() >= 4, "two bulk calls, each with a repetition: {}", partial.len());
    assert!(partial[1] - partial[0] >= second, "{:?}", partial[1] - partial[0]);
    let path = format!("/v1/tasks?topic={topic}&limit=100");
    let pending = node.api().get(&path).await.json()["tasks"].as_array().unwrap().clone();
    let mut keys: Vec<&str> = pending.iter().map(|task| task["key"].as_str().unwrap()).collect();
    keys.sort_unstable();
    // Each of these tasks was submitted through the proxy, or to the node with TLS.
    assert_eq!(keys, ["named", "replaced", "secure", "unnamed"], "{language}");
    let names: Vec<_> = pending.iter().filter(|task| task["key"] == "unnamed").collect();
    assert!(names[0]["name"].is_string(), "a task without a name has got one");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_python_client_keeps_its_promises() {
    let mut command = Command::new("python3");
    command.args(["-m", "unittest", "discover", "--start-directory", "tests"]);
    command.current_dir(root().join("clients/python")).env("PYTHONPATH", "src");
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    keeps_its_promises("python", command).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_typescript_client_keeps_its_promises() {
    let built = root().join(".stack/clients/typescript/tests/client.test.js");
    assert!(built.exists(), "the client is not built: run scripts/clients");
    let mut command = Command::new("node");
    command.arg("--test").arg(built);
    keeps_its_promises("typescript", command).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_java_client_keeps_its_promises() {
    let mut command = Command::new("mvn");
    command.args(["--quiet", "--batch-mode", "--offline", "surefire:test"]);
    command.current_dir(root().join("clients/java"));
    keeps_its_promises("java", command).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_go_client_keeps_its_promises() {
    let mut command = Command::new("go");
    command.args(["test", "-count=1", "./..."]).current_dir(root().join("clients/go"));
    keeps_its_promises("go", command).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_php_client_keeps_its_promises() {
    let mut command = Command::new("php");
    command.arg("tests/run.php").current_dir(root().join("clients/php"));
    keeps_its_promises("php", command).await;
}
