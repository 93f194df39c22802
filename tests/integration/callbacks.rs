//! Services get tracked tasks by callbacks, and their answers are those of a consumer.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::serve::Listener;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use parking_lot::Mutex;
use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use reqwest::Method;
use ring::hmac;
use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use uuid::Uuid;

use crate::support::api::Answer;
use crate::support::node::program;
use crate::support::proxy::{Proxy, Target};
use crate::support::wait::until;
use crate::support::{Api, Authority, Cluster, Node, eventually, eventually_some, now_ms};

const DEADLINE: Duration = Duration::from_secs(90);
const KEYS: [&[u8]; 2] = [b"the first key of two, 32 bytes..", b"the second key of two, 32 bytes."];

/// A request that the service has got.
#[derive(Clone, Debug)]
pub struct Request {
    at: i64,
    pub path: String,
    pub headers: HashMap<String, String>,
    body: Bytes,
}

impl Request {
    fn id(&self) -> Uuid {
        self.headers["punctual-task-id"].parse().unwrap()
    }

    fn attempt(&self) -> u64 {
        self.headers["punctual-attempt"].parse().unwrap()
    }
}

/// The answer to a request: the status, `retry-after`, and how long it takes.
#[derive(Clone, Copy)]
pub struct Reply(u16, Option<&'static str>, Duration);

pub const OK: Reply = Reply(204, None, Duration::ZERO);

type Rule = Box<dyn Fn(&Request) -> Reply + Send>;

/// A service that is called back.
pub struct Service {
    port: u16,
    seen: Mutex<Vec<Request>>,
    rule: Mutex<Rule>,
}

impl Service {
    pub async fn start(rule: impl Fn(&Request) -> Reply + Send + 'static) -> Arc<Self> {
        Self::start_at(TcpListener::bind("127.0.0.1:0").await.unwrap(), rule)
    }

    fn start_at<L: Listener<Addr = SocketAddr>>(
        listener: L,
        rule: impl Fn(&Request) -> Reply + Send + 'static,
    ) -> Arc<Self> {
        let port = listener.local_addr().unwrap().port();
        let service =
            Arc::new(Self { port, seen: Mutex::default(), rule: Mutex::new(Box::new(rule)) });
        let router = Router::new().fallback(Self::answer).with_state(Arc::clone(&service));
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        service
    }

    async fn answer(
        State(service): State<Arc<Self>>,
        uri: Uri,
        headers: HeaderMap,
        body: Bytes,
    ) -> Response {
        let text = |value: &axum::http::HeaderValue| value.to_str().unwrap().to_owned();
        let headers = headers.iter().map(|(name, value)| (name.to_string(), text(value)));
        let request =
            Request { at: now_ms(), path: uri.to_string(), headers: headers.collect(), body };
        let Reply(status, retry_after, takes) = (service.rule.lock())(&request);
        service.seen.lock().push(request);
        until(now_ms() + i64::try_from(takes.as_millis()).unwrap()).await;
        let mut answer = StatusCode::from_u16(status).unwrap().into_response();
        if let Some(after) = retry_after {
            answer.headers_mut().insert("retry-after", after.parse().unwrap());
        }
        if status == 307 {
            answer.headers_mut().insert("location", "/elsewhere".parse().unwrap());
        }
        answer
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    pub fn seen(&self) -> Vec<Request> {
        self.seen.lock().clone()
    }

    fn now_answers(&self, rule: impl Fn(&Request) -> Reply + Send + 'static) {
        *self.rule.lock() = Box::new(rule);
    }
}

/// Accepts connections with TLS.
struct TlsListener {
    tcp: TcpListener,
    acceptor: TlsAcceptor,
}

impl TlsListener {
    /// Makes a new authority, and a certificate for 127.0.0.1. Returns the authority in PEM.
    async fn bind() -> (Self, String) {
        let authority = Authority::new();
        let (certificate, key) = authority.sign_local();
        let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        (Self { tcp, acceptor: TlsAcceptor::from(Arc::new(config)) }, authority.pem())
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (stream, address) = self.tcp.accept().await.unwrap();
            // A node that does not trust the certificate ends the handshake.
            if let Ok(stream) = self.acceptor.accept(stream).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}

/// Starts a node that may call these services.
async fn node_for(cluster: &Cluster, services: &[&Arc<Service>]) -> Node {
    cluster.node_with(&words(&flags_for(cluster, services))).await
}

pub fn words(flags: &[String]) -> Vec<&str> {
    flags.iter().map(String::as_str).collect()
}

/// Returns the flags of a node that may call these services.
pub fn flags_for(cluster: &Cluster, services: &[&Arc<Service>]) -> Vec<String> {
    let file = cluster.folder().join("callback.keys");
    std::fs::write(&file, KEYS.map(|key| STANDARD.encode(key)).join("\n")).unwrap();
    let hosts: Vec<String> = services.iter().map(|one| one.url("")).collect();
    let (hosts, file) = (hosts.join(","), file.to_str().unwrap());
    let flags = ["--callback-host", &hosts, "--callback-network", "127.0.0.1"];
    flags.into_iter().chain(["--callback-key-file", file]).map(str::to_owned).collect()
}

async fn put(api: &Api, topic: &str, callback: &Value) -> Answer {
    let body = Some(("application/json", callback.to_string().into_bytes()));
    api.send(Method::PUT, &format!("/v1/topics/{topic}/callback"), body).await
}

async fn set(api: &Api, topic: &str, callback: &Value) -> Value {
    let answer = put(api, topic, callback).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()
}

fn task(topic: &str, n: usize, ttr: &str) -> Value {
    json!({ "topic": topic, "delay": 0, "key": format!("k{n}"), "payload": { "n": n }, "ttr": ttr,
            "retry": { "attempts_max": 4, "backoff_min": "200ms" } })
}

/// Waits for the dead letter of a topic: its task is shown as dead before the letter is written.
/// Returns the reason.
async fn reason_of_death(api: &Api, topic: &str) -> String {
    eventually_some("a dead letter", DEADLINE, async || {
        let dead = api.get(&format!("/v1/dead?topic={topic}")).await.json();
        dead["tasks"][0]["reason"].as_str().map(str::to_owned)
    })
    .await
}

async fn state_of(api: &Api, id: Uuid) -> String {
    api.task(id).await.state
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_gets_each_task_with_its_record_and_a_signature_and_finishes_it() {
    let cluster = Cluster::start("callbacks").await;
    let service = Service::start(|_request| OK).await;
    let (topic, node) = (cluster.topic("orders").await, node_for(&cluster, &[&service]).await);
    let api = node.api();
    let headers = json!({ "Authorization": "Bearer of-service" });
    let callback = json!({ "url": service.url("/jobs?source=1"), "headers": headers });
    let shown = set(api, &topic, &callback).await;
    assert_eq!(shown["header_names"], json!(["authorization"]));
    assert!(!shown.to_string().contains("of-service"), "{shown}");
    let mut wanted = task(&topic, 1, "60s");
    wanted["headers"] = json!({ "traceparent": "00-1", "authorization": "forged" });
    let id = api.submit(&wanted).await.id;
    let untracked = json!({ "topic": topic, "delay": 0, "payload": "untracked" });
    api.submit(&untracked).await;
    eventually("it is finished", DEADLINE, async || state_of(api, id).await == "finished").await;
    let seen = service.seen();
    let [request] = &seen[..] else { panic!("{seen:?}") };
    assert_eq!((request.id(), request.attempt()), (id, 1));
    assert_eq!(request.path, "/jobs?source=1");
    assert_eq!(serde_json::from_slice::<Value>(&request.body).unwrap(), json!({ "n": 1 }));
    let header = |name: &str| request.headers[name].as_str();
    assert_eq!(header("authorization"), "Bearer of-service");
    assert_eq!(header("traceparent"), "00-1");
    assert_eq!(header("content-type"), "application/json");
    assert_eq!((header("punctual-topic"), header("punctual-key")), (topic.as_str(), "k1"));
    let mut parts = header("punctual-signature").split(',');
    let seconds = parts.next().unwrap().strip_prefix("t=").unwrap();
    assert!((now_ms() / 1000 - seconds.parse::<i64>().unwrap()).abs() < 100);
    let signed = [format!("{seconds}\n{topic}\n").as_bytes(), &request.body].concat();
    for (key, part) in KEYS.iter().zip(parts) {
        let signature = hex::decode(part.strip_prefix("v1=").unwrap()).unwrap();
        let key = hmac::Key::new(hmac::HMAC_SHA256, key);
        hmac::verify(&key, &signed, &signature).expect("the signature is right");
    }
    let finished = r#"punctual_callback_requests_total{outcome="finished"}"#;
    assert_eq!(api.metric(finished).await, 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_status_of_the_answer_decides() {
    let cluster = Cluster::start("callbacks").await;
    let n = |request: &Request| {
        serde_json::from_slice::<Value>(&request.body).unwrap()["n"].as_u64().unwrap()
    };
    let service = Service::start(move |request| match (n(request), request.attempt()) {
        (0, 1) => Reply(500, None, Duration::ZERO),
        (1, 1) => Reply(503, Some("2"), Duration::ZERO),
        (2, 1) => Reply(307, None, Duration::ZERO),
        (3, 1) => Reply(204, None, Duration::from_secs(60)),
        (4, _) => Reply(400, None, Duration::ZERO),
        _ => OK,
    })
    .await;
    let (topic, node) = (cluster.topic("orders").await, node_for(&cluster, &[&service]).await);
    let api = node.api();
    // Longer than a stall of a busy machine, which would cost an attempt.
    set(api, &topic, &json!({ "url": service.url("/"), "timeout": "15s" })).await;
    let tasks: Vec<Value> = (0..5).map(|n| task(&topic, n, "60s")).collect();
    let ids: Vec<Uuid> = api.submit_all(&tasks).await.iter().map(|task| task.id).collect();
    for id in &ids[..4] {
        eventually("finished", DEADLINE, async || state_of(api, *id).await == "finished").await;
    }
    eventually("given up", DEADLINE, async || state_of(api, ids[4]).await == "dead").await;
    let mut attempts: BTreeMap<usize, Vec<(u64, i64)>> = BTreeMap::new();
    for request in service.seen() {
        assert_eq!(request.path, "/", "a redirect was followed");
        let index = ids.iter().position(|id| *id == request.id()).unwrap();
        attempts.entry(index).or_default().push((request.attempt(), request.at));
    }
    let counts: Vec<usize> = attempts.values().map(Vec::len).collect();
    assert_eq!(counts, [2, 2, 2, 2, 4]);
    let later = &attempts[&1];
    let waited = later[1].1 - later[0].1;
    assert!(waited >= 2000, "Retry-After says two seconds, and it was {waited} ms");
    let reason = reason_of_death(api, &topic).await;
    assert!(reason.contains("the callback answered 400"), "{reason}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reason_of_an_attempt_without_a_connection_names_no_address() {
    let cluster = Cluster::start("callbacks").await;
    let service = Service::start(|_request| OK).await;
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", closed.local_addr().unwrap());
    drop(closed);
    let mut flags = flags_for(&cluster, &[&service]);
    flags.iter_mut().for_each(|flag| *flag = flag.replace(&service.url(""), &url));
    let (topic, node) = (cluster.topic("orders").await, cluster.node_with(&words(&flags)).await);
    let api = node.api();
    set(api, &topic, &json!({ "url": format!("{url}/") })).await;
    let id = api.submit(&task(&topic, 0, "60s")).await.id;
    eventually("given up", DEADLINE, async || state_of(api, id).await == "dead").await;
    let reason = reason_of_death(api, &topic).await;
    assert!(reason.contains("no connection") && !reason.contains("127.0.0.1"), "{reason}");
    assert!(node.log().contains("refused"), "the log has the cause");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_is_gone_pauses_its_callback_until_it_is_set_again() {
    let cluster = Cluster::start("callbacks").await;
    let service = Service::start(|_request| Reply(410, None, Duration::ZERO)).await;
    let (topic, node) = (cluster.topic("orders").await, node_for(&cluster, &[&service]).await);
    let (api, path) = (node.api(), format!("/v1/topics/{topic}/callback"));
    let callback = json!({ "url": service.url("/"), "concurrency": 1 });
    set(api, &topic, &callback).await;
    let id = api.submit(&task(&topic, 0, "30s")).await.id;
    let is_paused = async || api.get(&path).await.json()["paused"] == true;
    eventually("it is paused", DEADLINE, is_paused).await;
    let shown = api.get(&path).await.json();
    assert!(shown["pause_reason"].as_str().unwrap().contains("410"), "{shown}");
    let has_metric = async || api.metric("punctual_callbacks_paused").await == 1.0;
    eventually("the metric says so", DEADLINE, has_metric).await;
    let before = service.seen().len();
    service.now_answers(|_request| OK);
    set(api, &topic, &callback).await;
    let done = async || ["finished", "dead"].contains(&state_of(api, id).await.as_str());
    eventually("it is called again", DEADLINE, done).await;
    let after = api.submit(&task(&topic, 1, "30s")).await.id;
    eventually("and again", DEADLINE, async || state_of(api, after).await == "finished").await;
    assert!(service.seen().len() > before);
    // The command line shows and sets it, too.
    let topic_callback = async |more: &[&str]| {
        let words = [&["topic", "callback", &topic, "--url", api.base()], more].concat();
        let output = program(&words).output().await.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let file = cluster.folder().join("callback.json");
    std::fs::write(&file, json!({ "url": service.url("/new") }).to_string()).unwrap();
    assert!(topic_callback(&[file.to_str().unwrap()]).await.contains("/new"));
    assert!(topic_callback(&[]).await.contains("concurrency     50"));
    assert!(topic_callback(&["--delete"]).await.contains("callback ended"));
    assert_eq!(api.send(Method::DELETE, &path, None).await.status, 404);
    assert_eq!(api.get(&path).await.status, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_hangs_makes_no_other_one_wait() {
    let cluster = Cluster::start("callbacks").await;
    let hanging = Service::start(|_request| Reply(204, None, Duration::from_secs(600))).await;
    let good = Service::start(|_request| OK).await;
    let (slow_topic, topic) = (cluster.topic("slow").await, cluster.topic("orders").await);
    let node = node_for(&cluster, &[&hanging, &good]).await;
    let api = node.api();
    let slow = json!({ "url": hanging.url("/"), "timeout": "2s", "concurrency": 8 });
    set(api, &slow_topic, &slow).await;
    set(api, &topic, &json!({ "url": good.url("/") })).await;
    let tasks: Vec<Value> = (0..60).map(|n| task(&slow_topic, n, "30s")).collect();
    api.submit_all(&tasks).await;
    eventually("it hangs", DEADLINE, async || hanging.seen().len() >= 8).await;
    let tasks: Vec<Value> = (0..200).map(|n| task(&topic, n, "30s")).collect();
    let ids: Vec<Uuid> = api.submit_all(&tasks).await.iter().map(|task| task.id).collect();
    for id in &ids {
        eventually("finished", DEADLINE, async || state_of(api, *id).await == "finished").await;
    }
    let seen = good.seen();
    assert_eq!(seen.len(), 200, "each of them once");
    // At most eight at a time for two seconds, and then fewer.
    let first = hanging.seen()[0].at;
    let within = hanging.seen().iter().filter(|request| request.at < first + 1500).count();
    assert!(within <= 8, "{within} requests at once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_when_a_node_dies_and_the_service_fails_for_a_while() {
    let cluster = Cluster::start("callbacks").await;
    let service = Service::start(|_request| OK).await;
    let topic = cluster.topic("orders").await;
    let mut first = node_for(&cluster, &[&service]).await;
    let second = node_for(&cluster, &[&service]).await;
    let api = second.api();
    let callback = json!({ "url": service.url("/"), "max_per_second": 100 });
    set(api, &topic, &callback).await;
    let tasks: Vec<Value> = (0..300)
        .map(|n| {
            json!({ "topic": topic, "delay": n * 10, "key": format!("k{n}"), "payload": { "n": n },
                    "ttr": "8s",
                    "retry": { "attempts_max": 20, "backoff_min": "300ms", "backoff_max": "1s" } })
        })
        .collect();
    let ids: Vec<Uuid> = api.submit_all(&tasks).await.iter().map(|task| task.id).collect();
    eventually("it is called", DEADLINE, async || service.seen().len() > 40).await;
    service.now_answers(|_request| Reply(500, None, Duration::ZERO));
    first.kill().await;
    let failing = service.seen().len() + 20;
    eventually("it fails for a while", DEADLINE, async || service.seen().len() > failing).await;
    service.now_answers(|_request| OK);
    for id in &ids {
        eventually("finished", DEADLINE, async || state_of(api, *id).await == "finished").await;
    }
}

/// The answer comes while Postgres is away, and Postgres comes back after the time to run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_that_was_done_is_finished_although_postgres_was_away_until_after_its_time() {
    let cluster = Cluster::start("callbacks-away").await;
    let mut proxy = Proxy::closed(Target::postgres(&cluster.stack)).await;
    proxy.open().await;
    let takes = |request: &Request| match request.attempt() {
        1 => Reply(204, None, Duration::from_secs(2)),
        _ => Reply(500, None, Duration::ZERO),
    };
    let service = Service::start(takes).await;
    let topic = cluster.topic("orders").await;
    let url = cluster.database.url_by(proxy.address());
    let own = ["--database-url", &url, "--kafka", &cluster.stack.kafka].map(str::to_owned);
    let flags = [own.to_vec(), flags_for(&cluster, &[&service])].concat();
    let mut node = cluster.spawn_bare(&words(&flags));
    node.wait_ready().await;
    let api = node.api();
    set(api, &topic, &json!({ "url": service.url("/") })).await;
    let id = api.submit(&task(&topic, 1, "15s")).await.id;
    eventually("it is called", DEADLINE, async || !service.seen().is_empty()).await;
    proxy.close().await;
    until(service.seen()[0].at + 20_000).await;
    proxy.open().await;
    eventually("it is finished", DEADLINE, async || {
        let state = state_of(api, id).await;
        assert_ne!(state, "dead", "{:?}", service.seen());
        state == "finished"
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_with_tls_is_called_if_the_machine_trusts_its_authority() {
    let cluster = Cluster::start("callbacks").await;
    let ((trusted, authority), (other, _)) = tokio::join!(TlsListener::bind(), TlsListener::bind());
    let file = cluster.folder().join("authorities.pem");
    std::fs::write(&file, authority).unwrap();
    let trusted = Service::start_at(trusted, |_request| OK);
    let other = Service::start_at(other, |_request| OK);
    let hosts = [&trusted, &other].map(|one| format!("127.0.0.1:{}", one.port)).join(",");
    let keys = cluster.callback_key_file();
    let flags = ["--callback-host", &hosts, "--callback-network", "127.0.0.1"];
    let flags = [&flags[..], &["--callback-key-file", &keys]].concat();
    let mut node = cluster.spawn_in(&[("SSL_CERT_FILE", file.to_str().unwrap())], &flags);
    node.wait_ready().await;
    let (api, url) = (node.api(), |port: u16| format!("https://127.0.0.1:{port}/"));
    let (topic, distrusted) = (cluster.topic("orders").await, cluster.topic("others").await);
    set(api, &topic, &json!({ "url": url(trusted.port) })).await;
    set(api, &distrusted, &json!({ "url": url(other.port) })).await;
    let id = api.submit(&task(&topic, 0, "60s")).await.id;
    let mut once = task(&distrusted, 1, "60s");
    once["retry"] = json!({ "attempts_max": 1 });
    let refused = api.submit(&once).await.id;
    eventually("finished", DEADLINE, async || state_of(api, id).await == "finished").await;
    eventually("given up", DEADLINE, async || state_of(api, refused).await == "dead").await;
    let reason = reason_of_death(api, &distrusted).await;
    assert!(reason.contains("no connection"), "{reason}");
    assert!(node.log().contains("certificate"), "the log has the cause");
    assert_eq!((trusted.seen().len(), other.seen().len()), (1, 0));
}

#[tokio::test]
async fn only_urls_that_the_operator_allows_are_taken() {
    let cluster = Cluster::start("callbacks").await;
    let service = Service::start(|_request| OK).await;
    let topic = cluster.topic("orders").await;
    let services = [&service];
    let (node, without) = tokio::join!(node_for(&cluster, &services), cluster.node_with(&[]));
    for url in [
        "http://127.0.0.1:1/".to_owned(),
        format!("http://localhost:{}/", service.port),
        format!("http://user@127.0.0.1:{}/", service.port),
        "https://example.com/".to_owned(),
        "http://169.254.169.254/latest/meta-data/".to_owned(),
        "file:///etc/passwd".to_owned(),
    ] {
        let answer = put(node.api(), &topic, &json!({ "url": url })).await;
        assert_eq!((answer.status, &answer.json()["field"]), (400, &json!("url")), "{url}");
    }
    let off = put(without.api(), &topic, &json!({ "url": "https://example.com/" })).await;
    assert!(off.text.contains("--callback-host"), "{}", off.text);
    let unknown = put(node.api(), "no-such-topic", &json!({ "url": service.url("/") })).await;
    assert_eq!(unknown.status, 422, "{}", unknown.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_key_file_is_refused_before_the_node_starts() {
    let cluster = Cluster::start("wrong-keys").await;
    let file = cluster.callback_key_file();
    std::fs::write(&file, "c2hvcnQ=").unwrap();
    let flags = ["--callback-host", "*", "--callback-key-file", &file];
    let mut node = cluster.spawn(&flags);
    assert_eq!(node.wait_exit(DEADLINE).await.code(), Some(2), "{}", node.log_tail());
    let log = node.log();
    assert!(log.contains("--callback-key-file") && log.contains("too short"), "{log}");
    assert!(!log.contains("listening") && !log.contains("c2hvcnQ="), "{log}");
}

/// Bridges and stream processors copy records with their headers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_is_copied_from_another_topic_answers_for_no_task_there() {
    let cluster = Cluster::start("callbacks").await;
    let service = Service::start(|_request| OK).await;
    let [orders, copies] = [cluster.topic("orders").await, cluster.topic("copies").await];
    let node = node_for(&cluster, &[&service]).await;
    let api = node.api();
    set(api, &copies, &json!({ "url": service.url("/copies") })).await;
    let consumer = cluster.consumer(&orders);
    let id = api.submit(&task(&orders, 1, "60s")).await.id;
    let records = consumer.wait_count(1, DEADLINE).await;
    let headers = records[0].headers.iter().fold(OwnedHeaders::new(), |headers, (name, value)| {
        headers.insert(Header { key: name, value: value.as_deref() })
    });
    let producer: FutureProducer =
        ClientConfig::new().set("bootstrap.servers", &cluster.stack.kafka).create().unwrap();
    let copy = FutureRecord::to(&copies).key("k").payload("copied").headers(headers);
    producer.send(copy, DEADLINE).await.unwrap();
    eventually("the copy is sent", DEADLINE, async || service.seen().len() == 1).await;
    assert_eq!(service.seen()[0].id(), id);
    let own = api.submit(&task(&copies, 2, "60s")).await.id;
    eventually("it is finished", DEADLINE, async || state_of(api, own).await == "finished").await;
    assert_eq!(state_of(api, id).await, "awaiting");
}
