//! The services that are called back. Operations break one of them, which is called for the tasks
//! of two topics, and answers well, badly, late, by half or never. Nothing is done to the other
//! one, so its requests must be on time.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use reqwest::Method;
use ring::hmac;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_64;

use super::deliveries::{Delivered, Route};
use super::field::Field;
use super::history::{Call, CallKind, CallVerdict, LIMITED, PROMPT, SERVED};
use super::plan::ServiceFault;
use super::traffic::Ledger;
use crate::support::wait::look_for;
use crate::support::{eventually_some, now_ms, wait};

/// The topics whose tasks the services get: those of the service that is broken come first.
const CALLED: [usize; 3] = [LIMITED, SERVED, PROMPT];
/// How long the nodes wait for an answer of the service that is broken.
const TIMEOUT_MS: i64 = 1500;
/// The same for the other service, which is only late on a busy machine.
const PROMPT_TIMEOUT_MS: i64 = 5000;
/// The delay that the service asks for.
const RETRY_AFTER_S: i64 = 1;
const KEY: &[u8] = b"key one key one key one key";
/// An outgoing connection may take the port of a service that is down, for a moment.
const PORT_DEADLINE: Duration = Duration::from_secs(60);
const BACKLOG: u32 = 1024;
/// How long an operation goes on without a request. Kafka may be down.
const MEET_DEADLINE: Duration = Duration::from_secs(10);
/// The most bytes of a request that a stuck service reads. Records are smaller.
const REQUEST_MAX: usize = 64 << 10;

/// Both services of a round.
#[derive(Debug)]
pub struct Services {
    arguments: Vec<String>,
    broken: Host,
    prompt: Host,
    service: OnceLock<Arc<Service>>,
    /// True while no caller of `pop` lives.
    are_callers_gone: watch::Sender<bool>,
}

/// A port with a server that can be taken away with all its connections. The server has a runtime
/// of its own, whose end breaks them.
#[derive(Debug)]
struct Host {
    address: SocketAddr,
    /// Reserves the port, and refuses connections, while there is no server.
    socket: Mutex<Option<TcpSocket>>,
    runtime: Mutex<Option<Runtime>>,
}

/// The behaviour of a server.
#[derive(Clone, Copy)]
enum Manner {
    Answers,
    Stuck,
}

/// The parts that both services have.
#[derive(Debug)]
struct Service {
    ledger: Arc<Ledger>,
    seed: u64,
    /// The name of each topic of `CALLED`.
    topics: [String; 3],
    /// The service that is broken answers 500.
    fails: AtomicBool,
}

/// A task in a request.
#[derive(Clone, Copy)]
struct Asked {
    topic: usize,
    id: Uuid,
    attempt: u16,
}

impl Services {
    /// Reserves the ports, and writes the signing keys into a folder.
    pub fn reserve(folder: &Path) -> Self {
        let [broken, prompt] = [Host::reserve(), Host::reserve()];
        let keys = folder.join("callback.keys");
        std::fs::write(&keys, STANDARD.encode(KEY)).expect("write the keys");
        let keys = keys.to_str().expect("a path in UTF-8");
        let hosts = format!("{},{}", broken.url(), prompt.url());
        let arguments = [
            "--callback-host",
            &hosts,
            "--callback-network",
            "127.0.0.1",
            "--callback-key-file",
            keys,
        ];
        let arguments = arguments.map(str::to_owned).to_vec();
        let (service, are_callers_gone) = (OnceLock::new(), watch::Sender::new(false));
        Self { arguments, broken, prompt, service, are_callers_gone }
    }

    /// Returns the flags of nodes that may call the services.
    pub fn arguments(&self) -> Vec<String> {
        self.arguments.clone()
    }

    /// Returns a channel that shows true while no caller of `pop` may live.
    pub fn are_callers_gone(&self) -> watch::Receiver<bool> {
        self.are_callers_gone.subscribe()
    }

    /// Starts the services, and sets the callbacks.
    pub async fn start(&self, field: &Field, ledger: &Arc<Ledger>, seed: u64) {
        let (ledger, topics) = (Arc::clone(ledger), CALLED.map(|topic| field.topic_name(topic)));
        let service = Service { ledger, seed, topics, fails: AtomicBool::new(false) };
        let service = self.service.get_or_init(|| Arc::new(service));
        for host in [&self.broken, &self.prompt] {
            host.start(service, Manner::Answers);
        }
        for topic in CALLED {
            let (host, timeout) = match topic {
                PROMPT => (&self.prompt, PROMPT_TIMEOUT_MS),
                _ => (&self.broken, TIMEOUT_MS),
            };
            let callback = json!({
                "url": host.url(), "timeout": format!("{timeout}ms"), "concurrency": 30
            });
            let path = format!("/v1/topics/{}/callback", field.topic_name(topic));
            field.order(Method::PUT, &path, &callback).await;
        }
    }

    fn service(&self) -> &Arc<Service> {
        self.service.get().expect("the services run")
    }
}

/// Carries out an operation on the service. It goes on for a while if no request has come.
pub async fn break_service(field: &Field, fault: ServiceFault, lasts: i64) {
    let services = field.services.as_ref().expect("the cluster calls services");
    let (host, service) = (&services.broken, services.service());
    let begin = now_ms();
    let until_undone = async || wait::until(begin + lasts).await;
    match fault {
        ServiceFault::Down => {
            host.stop().await;
            until_undone().await;
            host.start(service, Manner::Answers);
        }
        ServiceFault::Fails => {
            service.fails.store(true, Ordering::Relaxed);
            until_undone().await;
            service.meet(begin).await;
            service.fails.store(false, Ordering::Relaxed);
        }
        ServiceFault::Stuck => {
            host.stop().await;
            host.start(service, Manner::Stuck);
            until_undone().await;
            service.meet(begin).await;
            host.stop().await;
            host.start(service, Manner::Answers);
        }
    }
}

/// Lets all callers of `pop` be gone for a while.
pub async fn kill_callers(field: &Field, lasts: i64) {
    let services = field.services.as_ref().expect("the cluster has callers of pop");
    services.are_callers_gone.send_replace(true);
    wait::until(now_ms() + lasts).await;
    services.are_callers_gone.send_replace(false);
}

impl Host {
    fn reserve() -> Self {
        let socket = bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port is free");
        let address = socket.local_addr().expect("it is bound");
        Self { address, socket: Mutex::new(Some(socket)), runtime: Mutex::default() }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn start(&self, service: &Arc<Service>, manner: Manner) {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("start a thread for a service");
        let _inside = runtime.enter();
        let socket = self.socket.lock().unwrap().take().expect("the service is down");
        let listener = socket.listen(BACKLOG).expect("listen at the reserved port");
        let service = Arc::clone(service);
        match manner {
            Manner::Answers => runtime.spawn(async move {
                let router = Router::new().fallback(answer).with_state(service);
                axum::serve(listener, router).await.expect("the service goes on");
            }),
            Manner::Stuck => runtime.spawn(be_stuck(listener, service)),
        };
        *self.runtime.lock().unwrap() = Some(runtime);
    }

    /// Ends the server, and refuses connections.
    async fn stop(&self) {
        self.end();
        let what = "the port of the service is free";
        let socket = eventually_some(what, PORT_DEADLINE, async || bind(self.address).ok()).await;
        *self.socket.lock().unwrap() = Some(socket);
    }

    fn end(&self) {
        let runtime = self.runtime.lock().unwrap().take();
        if let Some(runtime) = runtime {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // A runtime that is dropped would wait for its threads.
        self.end();
    }
}

fn bind(address: SocketAddr) -> std::io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

impl Service {
    /// Waits until the service that is broken has got a request since a moment.
    async fn meet(&self, since: i64) {
        let met = look_for(MEET_DEADLINE, async || {
            let all = self.ledger.delivered.lock().unwrap();
            let is_met = |one: &Delivered| {
                one.at >= since && one.route == Route::Callback && one.topic != PROMPT
            };
            all.iter().any(is_met).then_some(())
        });
        if met.await.is_none() {
            eprintln!("no request has met the service that is broken");
        }
    }

    /// Returns the task of a request, and notes that it was delivered. Without one, the history
    /// says what is wrong with the request.
    fn take(&self, headers: &HeaderMap, body: &[u8]) -> Option<Asked> {
        let at = now_ms();
        match self.read(headers, body) {
            Ok(asked) => {
                let Asked { topic, id, attempt } = asked;
                let (payload_hash, route) = (xxh3_64(body), Route::Callback);
                let delivered = Delivered { at, topic, id, attempt, payload_hash, route };
                self.ledger.delivered.lock().unwrap().push(delivered);
                Some(asked)
            }
            Err(wrong) => {
                self.ledger.oddities.lock().unwrap().push(format!("a callback: {wrong}"));
                None
            }
        }
    }

    /// Returns the task of a request, or what is wrong with it.
    fn read(&self, headers: &HeaderMap, body: &[u8]) -> Result<Asked, String> {
        let header = |name: &str| {
            let value = headers.get(name).and_then(|value| value.to_str().ok());
            value.ok_or_else(|| format!("no {name}: {headers:?}"))
        };
        let name = header("punctual-topic")?;
        let called = CALLED.into_iter().zip(&self.topics).find(|(_, known)| *known == name);
        let (topic, _) = called.ok_or_else(|| format!("another topic: {headers:?}"))?;
        let signature = header("punctual-signature")?;
        let (time, digest) = signature
            .strip_prefix("t=")
            .and_then(|rest| rest.split_once(",v1="))
            .ok_or_else(|| format!("no signature: {signature}"))?;
        let digest = hex::decode(digest).map_err(|error| format!("{signature}: {error}"))?;
        let signed = [format!("{time}\n{name}\n").as_bytes(), body].concat();
        hmac::verify(&hmac::Key::new(hmac::HMAC_SHA256, KEY), &signed, &digest)
            .map_err(|_unspecified| format!("a wrong signature: {signature}"))?;
        let id = header("punctual-task-id")?.parse().map_err(|_error| "no id".to_owned())?;
        let attempt = header("punctual-attempt")?.parse();
        Ok(Asked { topic, id, attempt: attempt.map_err(|_error| "no attempt".to_owned())? })
    }

    /// Records that the node may do this to an attempt now. It may not get the answer.
    fn note(&self, Asked { id, attempt, .. }: Asked, kind: CallKind) {
        let at = now_ms();
        let verdict = CallVerdict::Unknown { why: "the answer of the service".to_owned() };
        let attempt = Some(attempt);
        let call = Call { node: 0, sent_at: at, answered_at: at, id, attempt, kind, verdict };
        self.ledger.calls.lock().unwrap().push(call);
    }
}

/// Answers a request of a callback. The choice depends on the seed, the task and the attempt.
async fn answer(State(service): State<Arc<Service>>, headers: HeaderMap, body: Bytes) -> Response {
    let at = now_ms();
    let Some(asked) = service.take(&headers, &body) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let finish = || service.note(asked, CallKind::Finish);
    if asked.topic == PROMPT {
        finish();
        return StatusCode::NO_CONTENT.into_response();
    }
    if service.fails.load(Ordering::Relaxed) {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    let mixed = asked.id.as_u64_pair().1 ^ service.seed ^ (u64::from(asked.attempt) << 32);
    let mut chance = StdRng::seed_from_u64(mixed);
    match chance.random_range(0..100) {
        0..45 => {
            finish();
            StatusCode::NO_CONTENT.into_response()
        }
        // Half an answer.
        45..52 => {
            finish();
            let broken = futures_util::stream::once(async { Err::<Bytes, _>("lost") });
            Response::new(Body::from_stream(broken))
        }
        52..65 => {
            wait::until(at + chance.random_range(100..2 * TIMEOUT_MS)).await;
            finish();
            StatusCode::OK.into_response()
        }
        65..70 => std::future::pending::<Response>().await,
        70..85 => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        85..92 => {
            let retry_in = Some(RETRY_AFTER_S * 1000);
            service.note(asked, CallKind::Fail { retry_in, is_final: false });
            let after = [("retry-after", RETRY_AFTER_S.to_string())];
            (StatusCode::SERVICE_UNAVAILABLE, after).into_response()
        }
        _ => StatusCode::BAD_REQUEST.into_response(),
    }
}

/// Takes requests, and answers none of them.
async fn be_stuck(listener: TcpListener, service: Arc<Service>) {
    loop {
        // A caller may be gone before it is accepted.
        let Ok((stream, _)) = listener.accept().await else { continue };
        let service = Arc::clone(&service);
        // Without a request, or after the first bytes of an answer, the connection is closed.
        tokio::spawn(async move { hold(stream, &service).await });
    }
}

/// Reads a request, and keeps its connection without an answer, or breaks it within the headers of
/// one. No task is finished by such an answer.
async fn hold(mut stream: TcpStream, service: &Service) -> Option<()> {
    let (headers, body) = request_of(&mut stream).await?;
    let asked = service.take(&headers, &body)?;
    if asked.id.as_u128().is_multiple_of(2) {
        std::future::pending::<()>().await;
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nser").await.ok()
}

async fn request_of(stream: &mut TcpStream) -> Option<(HeaderMap, Vec<u8>)> {
    const END: &[u8] = b"\r\n\r\n";
    let mut read = Vec::new();
    let end = loop {
        if let Some(end) = read.windows(END.len()).position(|part| part == END) {
            break end;
        }
        if read.len() > REQUEST_MAX || stream.read_buf(&mut read).await.ok()? == 0 {
            return None;
        }
    };
    let mut body = read.split_off(end + END.len());
    let mut headers = HeaderMap::new();
    for line in String::from_utf8_lossy(&read).lines().skip(1) {
        let Some((name, value)) = line.split_once(": ") else { continue };
        headers.append(
            HeaderName::from_bytes(name.as_bytes()).ok()?,
            HeaderValue::from_str(value).ok()?,
        );
    }
    let length: usize = headers.get("content-length")?.to_str().ok()?.parse().ok()?;
    while body.len() < length.min(REQUEST_MAX) {
        if stream.read_buf(&mut body).await.ok()? == 0 {
            return None;
        }
    }
    Some((headers, body))
}

/// Returns a call for each attempt that a service may have got: a node that gets no answer of it,
/// or no connection to it, fails the attempt, and nobody else sees that.
pub fn failures(field: &Field) -> Vec<Call> {
    let arrivals = field.arrivals();
    let called = arrivals.iter().filter(|arrival| CALLED.contains(&arrival.topic));
    let call = |(id, attempt, at)| Call {
        node: 0,
        sent_at: at,
        answered_at: at,
        id,
        attempt: Some(attempt),
        kind: CallKind::Fail { retry_in: None, is_final: false },
        verdict: CallVerdict::Unknown { why: "the node, about the service".to_owned() },
    };
    called.filter_map(|one| Some(call((one.id, one.attempt?, one.at)))).collect()
}
