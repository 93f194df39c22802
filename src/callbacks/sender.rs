//! Sends a task to its service, and reads the answer.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use az::SaturatingAs as _;
use reqwest::header::{self, HeaderMap, HeaderName, HeaderValue};
use reqwest::redirect::Policy as Redirects;
use reqwest::{Client, RequestBuilder, Response, StatusCode, Url};
use serde::de::IgnoredAny;

use super::keys::SigningKeys;
use super::resolver::CheckedResolver;
use super::threads::CallbackThreads;
use crate::clock;
use crate::domain::task::headers;
use crate::domain::topic::callback::policy::{CallbackPolicy, RefusedUrl};
use crate::domain::topic::callback::{Callback, may_be_sent};
use crate::error_chain::chain;
use crate::node::messages::answers::Popped;

/// A connection is made within this time, and within the timeout of the callback.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// A connection without requests is closed after this time. Its address is looked up again then.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// Bytes of an answer's body that are read, so that its connection can be used again.
const BODY_MAX: usize = 64 << 10;
/// Deadline of reading them. The status has decided before.
const BODY_DEADLINE: Duration = Duration::from_secs(1);
/// The shortest time that `Retry-After` can ask for. A shorter one is none, and so is a date of the
/// past.
const LATER_MIN: Duration = Duration::from_secs(1);
/// The longest time that `Retry-After` can ask for.
const LATER_MAX: Duration = Duration::from_secs(86_400);

/// The answer of a service about a task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum ServiceAnswer {
    /// 2xx: the work is done.
    Finished,
    /// 429 or 503 with `Retry-After`.
    Later { after: Duration, reason: String },
    /// 410: the service wants no more requests.
    Gone,
    /// Any other answer. `is_overloaded` for 429 and 5xx.
    Failed { reason: String, is_overloaded: bool },
    /// No answer in time, or no connection. `reason` is for callers. `cause` is for the log of the
    /// node alone: it may name addresses of the inner network.
    Unanswered { reason: NoAnswer, cause: String },
}

impl ServiceAnswer {
    fn late(timeout: Duration) -> Self {
        let reason = NoAnswer::TimedOut(timeout);
        Self::Unanswered { reason, cause: reason.to_string() }
    }
}

/// Why a request has no answer. The text is the reason of the attempt, which callers who set a URL
/// may read, so it tells little about the network of the node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum NoAnswer {
    /// A name without an address and a failed TLS handshake count, too: a text of their own would
    /// tell which names exist, and which ports are open.
    #[error("no connection")]
    NoConnection,
    #[error("the address is not allowed")]
    ForbiddenAddress,
    /// The connection ended early, or the answer is not HTTP.
    #[error("no valid answer")]
    Invalid,
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// A panic of the node.
    #[error("the node failed to send the request")]
    NotSent,
}

impl NoAnswer {
    fn of(error: &reqwest::Error) -> Self {
        if has_cause::<RefusedUrl>(error) {
            Self::ForbiddenAddress
        } else if error.is_connect() {
            Self::NoConnection
        } else {
            Self::Invalid
        }
    }
}

/// Returns true when an error or one of its causes is an `E`. The `source` of an I/O error skips
/// the error that it wraps.
fn has_cause<E: Error + 'static>(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(cause) = next {
        if cause.is::<E>() {
            return true;
        }
        next = match cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(wrapped) => Some(wrapped),
            None => cause.source(),
        };
    }
    false
}

/// Sends requests of one callback.
#[derive(Debug)]
pub(super) struct Sender {
    client: Client,
    threads: CallbackThreads,
    policy: Arc<CallbackPolicy>,
    keys: Arc<ArcSwap<SigningKeys>>,
}

impl Sender {
    /// Makes the client. Blocks, because the client may read all authorities of the machine.
    ///
    /// # Errors
    /// When these cannot be read.
    pub fn make(
        policy: Arc<CallbackPolicy>,
        keys: Arc<ArcSwap<SigningKeys>>,
        threads: CallbackThreads,
    ) -> Result<Self, reqwest::Error> {
        Ok(Self { client: client_for(&policy)?, threads, policy, keys })
    }

    /// Returns the URL of a callback, if this node may call it.
    ///
    /// # Errors
    /// When it may not. The settings of another node may let it.
    pub fn may_call(&self, callback: &Callback) -> Result<Url, RefusedUrl> {
        self.policy.check(&callback.url)
    }

    /// Sends a task to a URL of [`Sender::may_call`], and waits for the answer until `timeout` is
    /// over. Moves the payload out of the task.
    pub async fn send(
        &self,
        (url, callback): (Url, &Callback),
        task: &mut Popped,
        timeout: Duration,
    ) -> ServiceAnswer {
        let mut headers = headers_of(callback, task);
        let body = task.record.payload.take().unwrap_or_default();
        let seconds = clock::wall().as_millis() / 1000;
        let signature = self.keys.load().sign(seconds, &task.record.topic, &body);
        if let Ok(value) = HeaderValue::from_str(&signature) {
            headers.insert(HeaderName::from_static("punctual-signature"), value);
        }
        if body.is_empty() {
            // The client leaves it out for an empty body, and some services insist on it.
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
        }
        let request = self.client.post(url).headers(headers).body(Vec::from(body));
        let asking = self.threads.run(ask(request, timeout));
        // The deadline in `ask` is late while another service keeps the thread busy.
        match tokio::time::timeout(timeout + BODY_DEADLINE, asking).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(panic)) => {
                ServiceAnswer::Unanswered { reason: NoAnswer::NotSent, cause: panic.to_string() }
            }
            Err(_elapsed) => ServiceAnswer::late(timeout),
        }
    }
}

/// Makes the HTTP client of one callback.
fn client_for(policy: &Arc<CallbackPolicy>) -> Result<Client, reqwest::Error> {
    Client::builder()
        .dns_resolver(Arc::new(CheckedResolver::new(Arc::clone(policy))))
        .redirect(Redirects::none())
        .no_proxy()
        .referer(false)
        .connect_timeout(CONNECT_MAX)
        .pool_idle_timeout(IDLE_MAX)
        .user_agent(concat!("punctual/", env!("CARGO_PKG_VERSION")))
        .build()
}

/// Sends a request, and reads the answer.
async fn ask(request: RequestBuilder, timeout: Duration) -> ServiceAnswer {
    match tokio::time::timeout(timeout, request.send()).await {
        Ok(Ok(answer)) => {
            let read = Read::of(&answer);
            drain(answer).await;
            read.judged()
        }
        Ok(Err(error)) => {
            let reason = NoAnswer::of(&error);
            // The URL may hold a secret.
            ServiceAnswer::Unanswered { reason, cause: chain(&error.without_url()) }
        }
        Err(_elapsed) => ServiceAnswer::late(timeout),
    }
}

/// The parts of an answer that decide.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Read {
    status: StatusCode,
    retry_after: Option<Duration>,
}

impl Read {
    fn of(answer: &Response) -> Self {
        let retry_after = answer.headers().get(header::RETRY_AFTER);
        let retry_after = retry_after.and_then(|value| value.to_str().ok()).and_then(span_of);
        Self { status: answer.status(), retry_after }
    }

    fn judged(self) -> ServiceAnswer {
        let reason = format!("the callback answered {}", self.status);
        // Without a wait, all attempts would follow each other at once: the back-off decides.
        let retry_after = self.retry_after.filter(|after| *after >= LATER_MIN);
        match (self.status, retry_after) {
            (status, _) if status.is_success() => ServiceAnswer::Finished,
            (StatusCode::GONE, _) => ServiceAnswer::Gone,
            (StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE, Some(after)) => {
                ServiceAnswer::Later { after, reason }
            }
            (status, _) => {
                let is_overloaded =
                    status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
                ServiceAnswer::Failed { reason, is_overloaded }
            }
        }
    }
}

/// Reads the value of `Retry-After`: seconds, or a date.
fn span_of(value: &str) -> Option<Duration> {
    let value = value.trim();
    let span = match value.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_no_number) => {
            let at = jiff::fmt::rfc2822::parse(value).ok()?.timestamp().as_millisecond();
            let now = clock::wall().as_millis();
            Duration::from_millis(at.saturating_sub(now).max(0).saturating_as())
        }
    };
    Some(span.min(LATER_MAX))
}

/// Reads a short body to its end. The connection of a long or slow one is closed.
async fn drain(mut answer: Response) {
    let reading = async {
        let mut read = 0_usize;
        while read < BODY_MAX
            && let Ok(Some(piece)) = answer.chunk().await
        {
            read = read.saturating_add(piece.len());
        }
    };
    if tokio::time::timeout(BODY_DEADLINE, reading).await.is_err() {
        tracing::trace!("the body of an answer was slow");
    }
}

fn headers_of(callback: &Callback, task: &Popped) -> HeaderMap {
    let mut all = HeaderMap::new();
    let mut content_type = None;
    // A service that takes `_` for `-` would join both values.
    let folded = |name: &str| name.replace('_', "-");
    let is_set = |name: &str| callback.headers.iter().any(|(set, _)| folded(set) == folded(name));
    // Other producers than Punctual may have more.
    for (name, value) in headers::decode(task.record.headers.as_bytes()).take(headers::COUNT_MAX) {
        let name = name.to_ascii_lowercase();
        let (Ok(wanted), Some(Ok(value))) =
            (HeaderName::from_bytes(name.as_bytes()), value.map(HeaderValue::from_bytes))
        else {
            // HTTP cannot carry it.
            continue;
        };
        if wanted == header::CONTENT_TYPE {
            content_type = Some(value);
        } else if may_be_sent(&name) && !is_set(&name) {
            all.append(wanted, value);
        }
    }
    let usual = || HeaderValue::from_static(usual_type(task.record.payload.as_deref()));
    all.insert(header::CONTENT_TYPE, content_type.unwrap_or_else(usual));
    for (name, value) in &callback.headers {
        if let (Ok(name), Ok(mut value)) =
            (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(value))
        {
            value.set_sensitive(true);
            all.insert(name, value);
        }
    }
    let mut own = |name: &'static str, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            all.insert(HeaderName::from_static(name), value);
        }
    };
    own("punctual-task-id", &task.id.to_string());
    own("punctual-topic", task.record.topic.as_str());
    own("punctual-attempt", &task.attempt.to_string());
    own("punctual-attempts-max", &task.attempts_max.to_string());
    own("punctual-due-at", &task.due_at.as_millis().to_string());
    own("punctual-finish-by", &task.finish_by.as_millis().to_string());
    if let Some(Ok(key)) = task.record.key.as_deref().map(std::str::from_utf8) {
        own("punctual-key", key);
    }
    if task.record.payload.is_none() {
        own("punctual-tombstone", "true");
    }
    all
}

/// Returns the type of a body whose record does not name one.
fn usual_type(payload: Option<&[u8]>) -> &'static str {
    let payload = payload.unwrap_or_default();
    if serde_json::from_slice::<IgnoredAny>(payload).is_ok() {
        "application/json"
    } else if std::str::from_utf8(payload).is_ok() {
        "text/plain; charset=utf-8"
    } else {
        "application/octet-stream"
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;
    use crate::domain::{Headers, Record, TaskId, Timestamp, TopicName};

    fn popped(headers: &[(&str, &[u8])], payload: &[u8]) -> Popped {
        let headers = headers.iter().map(|(name, value)| (*name, Some(*value)));
        Popped {
            id: TaskId::from_uuid(uuid::Uuid::nil()),
            attempt: 2,
            attempts_max: 5,
            due_at: Timestamp::from_millis(1_700_000_000_000),
            finish_by: Timestamp::from_millis(1_700_000_030_000),
            ttr: Duration::from_secs(30),
            partition: 0,
            offset: 7,
            published_at: Timestamp::from_millis(1_700_000_000_002),
            record: Record {
                topic: TopicName::stored("orders"),
                key: Some((*b"order-1").into()),
                payload: Some(payload.into()),
                headers: Headers::stored(Some(headers::encode_any(headers))),
            },
        }
    }

    fn callback(headers: &[(&str, &str)]) -> Callback {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Callback {
            url: "https://a.example/".to_owned(),
            headers: headers.iter().map(owned).collect(),
            timeout: Duration::from_secs(10),
            concurrency: 5,
            max_per_second: None,
            is_paused: false,
        }
    }

    #[test]
    fn a_request_has_the_headers_of_the_record_and_those_of_punctual() {
        let task = popped(
            &[
                ("TraceParent", b"00-1"),
                ("Host", b"evil.example"),
                ("authorization", b"Bearer stolen"),
                ("punctual-attempt", b"99"),
                ("new\nline", b"x"),
                ("binary", b"\xff\n"),
                ("X_Tenant", b"evil"),
                ("x-tenant", b"evil"),
                ("X_Original_URL", b"/admin"),
            ],
            br#"{"a":1}"#,
        );
        let own = callback(&[("authorization", "Bearer own"), ("x-tenant", "good")]);
        let all = headers_of(&own, &task);
        let tenants: Vec<_> = all.keys().filter(|name| name.as_str().ends_with("tenant")).collect();
        assert_eq!((tenants.len(), all.get_all("x-tenant").iter().count()), (1, 1));
        assert!(!all.contains_key("x_original_url"));
        let value = |name: &str| all.get(name).map(|value| value.to_str().unwrap());
        assert_eq!(value("traceparent"), Some("00-1"));
        assert_eq!(value("authorization"), Some("Bearer own"));
        assert_eq!(value("punctual-attempt"), Some("2"));
        assert_eq!(value("punctual-key"), Some("order-1"));
        assert_eq!(value("punctual-due-at"), Some("1700000000000"));
        assert_eq!(value("content-type"), Some("application/json"));
        assert_eq!((value("host"), all.contains_key("binary")), (None, false));
        let plain = headers_of(&callback(&[]), &popped(&[("Content-Type", b"text/csv")], b"a,b"));
        assert_eq!(plain.get("content-type").unwrap(), "text/csv");
        assert_eq!(usual_type(Some(b"a,b")), "text/plain; charset=utf-8");
        assert_eq!(usual_type(Some(b"\xff")), "application/octet-stream");
    }

    #[test]
    fn the_status_decides_and_only_two_wait_as_long_as_the_service_says() {
        let code = |status: u16| StatusCode::from_u16(status).unwrap();
        let judged = |status: u16, after: Option<&str>| {
            let retry_after = after.and_then(span_of);
            Read { status: code(status), retry_after }.judged()
        };
        for status in [200, 201, 202, 204, 299] {
            assert_eq!(judged(status, None), ServiceAnswer::Finished);
        }
        assert_eq!(judged(410, Some("5")), ServiceAnswer::Gone);
        for status in [429, 503] {
            let is_later = matches!(judged(status, Some("5")), ServiceAnswer::Later { after, .. }
                if after == Duration::from_secs(5));
            assert!(is_later, "{status}");
            for after in [None, Some("0"), Some("Wed, 21 Oct 2015 07:28:00 GMT")] {
                let overloaded = ServiceAnswer::Failed {
                    reason: format!("the callback answered {}", code(status)),
                    is_overloaded: true,
                };
                assert_eq!(judged(status, after), overloaded, "{after:?}");
            }
        }
        for status in [301, 307, 400, 404, 500, 502] {
            assert!(matches!(judged(status, Some("5")), ServiceAnswer::Failed { .. }), "{status}");
        }
        assert_eq!(span_of("soon"), None);
        assert_eq!(span_of("-1"), None);
        assert_eq!(span_of("99999999999"), Some(LATER_MAX));
        assert_eq!(span_of("Wed, 21 Oct 2015 07:28:00 GMT"), Some(Duration::ZERO));
    }

    #[tokio::test]
    async fn the_reason_of_an_attempt_tells_little_about_the_network_and_the_log_tells_all() {
        rustls::crypto::ring::default_provider().install_default().ok();
        let listen = async || {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            (listener, port)
        };
        let client = client_for(&Arc::default()).unwrap();
        let told = async |host: &str, port: u16, timeout: Duration| {
            let request = client.post(format!("http://{host}:{port}/secret"));
            match ask(request, timeout).await {
                ServiceAnswer::Unanswered { reason, cause } => (reason.to_string(), cause),
                answered => panic!("{answered:?}"),
            }
        };
        let long = Duration::from_secs(60);
        let (_silent, port) = listen().await;
        let (reason, _cause) = told("127.0.0.1", port, Duration::from_millis(50)).await;
        assert_eq!(reason, "no answer within 50ms");
        let (reason, cause) = told("localhost", port, long).await;
        assert_eq!(reason, "the address is not allowed");
        assert!(cause.contains("is not public") && !cause.contains("secret"), "{cause}");
        let (listener, port) = listen().await;
        drop(listener);
        let (reason, cause) = told("127.0.0.1", port, long).await;
        assert_eq!(reason, "no connection");
        assert!(cause.contains("refused"), "{cause}");
        let (listener, port) = listen().await;
        let answering = async {
            let (mut stream, _address) = listener.accept().await.unwrap();
            assert!(stream.read(&mut [0; 4096]).await.unwrap() > 0);
            stream.write_all(b"no HTTP\r\n\r\n").await.unwrap();
        };
        let ((reason, cause), ()) = tokio::join!(told("127.0.0.1", port, long), answering);
        assert_eq!(reason, "no valid answer");
        assert_ne!(cause, reason);
    }
}
