//! Calls a node over HTTP.

pub mod retry;

use std::error::Error as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use az::SaturatingAs as _;
use bytes::Bytes;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::{
    ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue, IF_MATCH, IF_NONE_MATCH,
    RETRY_AFTER,
};
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, ClientBuilder, Identity, Response, Url};

use self::retry::RetryBudget;
use super::access::{self, Credential, profile, without_user};
use super::answer::{Ending, Exit, NodeAnswer, NodeProblem};
use super::args::NodeOptions;
use super::output::figures::grouped;
use crate::clock;
use crate::domain::TaskId;
use crate::domain::time::duration::spelled;

/// A node on the same network accepts a connection within milliseconds.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A node's default limit on a body.
const BODY_USUAL: usize = 16 << 20;

/// The end of the error of TLS when the other side answers in plain HTTP.
const NOT_TLS: &str = "InvalidContentType";

/// The longest answer that is read, in bytes. The largest of a node is a task with its record: a
/// body of [`BODY_USUAL`] has up to 72 MiB when each of its bytes is escaped in the answer. Lists
/// have no payloads and no long keys, and a pop has 4 MiB of records, or one record.
const ANSWER_MAX: usize = 256 << 20;

/// A call to a node. A clone is cheap, because it shares the body.
#[derive(Clone, Debug)]
pub struct Call {
    method: Method,
    url: Url,
    condition: Option<Condition>,
}

/// A precondition of a change by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Condition {
    /// The name stands for this task.
    Is(TaskId),
    /// The schedule of this name has this revision.
    IsRevision(u64),
    /// The name stands for no task, or no schedule.
    IsAbsent,
}

impl Condition {
    fn header(self) -> (HeaderName, String) {
        match self {
            Self::Is(id) => (IF_MATCH, format!("\"{id}\"")),
            Self::IsRevision(revision) => (IF_MATCH, format!("\"{revision}\"")),
            Self::IsAbsent => (IF_NONE_MATCH, "*".to_owned()),
        }
    }
}

impl Call {
    const fn new(method: Method, url: Url) -> Self {
        Self { method, url, condition: None }
    }

    /// Adds parameters to the call.
    #[must_use]
    pub fn with_query(mut self, query: &[(&str, &str)]) -> Self {
        if !query.is_empty() {
            self.url.query_pairs_mut().extend_pairs(query);
        }
        self
    }

    /// Adds a precondition to the call.
    #[must_use]
    pub fn only_if(self, condition: Option<Condition>) -> Self {
        Self { condition, ..self }
    }
}

#[derive(Clone, Debug)]
enum Method {
    Get,
    Delete,
    /// The body is JSON.
    Patch(Bytes),
    /// The body is JSON.
    Post(Bytes),
    Put(Bytes),
}

/// The effect of repeating a call whose first attempt got no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Repeating {
    /// A repetition adds no effect.
    IsSafe,
    /// A repetition may take effect a second time. The call is retried only when it was certainly
    /// not carried out.
    MayDouble,
}

/// The result of a call with its retries.
#[derive(Debug)]
pub struct Asked {
    pub answer: NodeAnswer,
    /// True when an earlier attempt got no answer: it may have taken effect as well.
    pub is_in_doubt: bool,
}

/// Calls one node over kept-alive connections.
#[derive(Clone, Debug)]
pub struct NodeCaller {
    http: Client,
    base: Url,
    /// The base URL as given, without a password, for messages.
    shown: String,
    /// Timeout of one call.
    timeout: Duration,
    credential: Option<Credential>,
}

impl NodeCaller {
    /// # Errors
    /// Returns wrong usage when the URL, the token or the certificates are not valid, and when the
    /// token must not be sent to this URL.
    pub fn new(node: &NodeOptions) -> Result<Self, Ending> {
        let node = &profile::complete(node).map_err(Ending::usage)?;
        let given = node.url.as_deref().unwrap_or_default().trim_end_matches('/');
        let shown = without_user(given);
        let base = Url::parse(given).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
        let base = base.ok_or_else(|| {
            Ending::usage(format!(
                "`{shown}` is not the URL of a node; write it like http://127.0.0.1:7070 (--url, \
                 PUNCTUAL_URL)"
            ))
        })?;
        if !base.username().is_empty() || base.password().is_some() {
            let text = "a user or password in a URL is visible in the list of processes and in the \
                        shell's history; give a token by PUNCTUAL_TOKEN or --token-file";
            return Err(Ending::usage(format!("{shown}: {text}")));
        }
        let credential = Credential::read(&node.credentials).map_err(Ending::usage)?;
        if credential.is_some() && base.scheme() == "http" {
            access::check_plaintext(base.host_str().unwrap_or_default(), &node.credentials)
                .map_err(|text| Ending::usage(format!("{shown}: {text}")))?;
        }
        let mut http = trusting(node.ca_file.as_deref(), base.scheme()).map_err(Ending::usage)?;
        if let Some(identity) = identity(node).map_err(Ending::usage)? {
            http = http.identity(identity);
        }
        let http = http
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(node.timeout)
            .redirect(Policy::none())
            // A proxy configured for the web would receive calls to the machine as well.
            .no_proxy()
            .tcp_nodelay(true)
            .user_agent(concat!("punctual/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| {
                Ending::new(
                    Exit::NothingDone,
                    format!("cannot set up the client: {}", causes(&error)),
                )
            })?;
        Ok(Self { http, base, shown, timeout: node.timeout, credential })
    }

    pub fn get(&self, path: &[&str], query: &[(&str, &str)]) -> Result<Call, Ending> {
        let mut url = self.url(path)?;
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        Ok(Call::new(Method::Get, url))
    }

    pub fn delete(&self, path: &[&str]) -> Result<Call, Ending> {
        Ok(Call::new(Method::Delete, self.url(path)?))
    }

    pub fn post(&self, path: &[&str], body: impl Into<Bytes>) -> Result<Call, Ending> {
        Ok(Call::new(Method::Post(body.into()), self.url(path)?))
    }

    pub fn put(&self, path: &[&str], body: impl Into<Bytes>) -> Result<Call, Ending> {
        Ok(Call::new(Method::Put(body.into()), self.url(path)?))
    }

    pub fn patch(&self, path: &[&str], body: impl Into<Bytes>) -> Result<Call, Ending> {
        Ok(Call::new(Method::Patch(body.into()), self.url(path)?))
    }

    /// Builds the URL. Each segment is percent-encoded as a whole, slashes included. The encoding
    /// happens here, because the URL parser drops tabs and line breaks, and the URL would then name
    /// another task.
    fn url(&self, path: &[&str]) -> Result<Url, Ending> {
        if let Some(dots) = path.iter().find(|segment| matches!(**segment, "." | "..")) {
            return Err(Ending::usage(format!(
                "`{dots}` cannot be used in a URL, where it means a folder; use the task's id"
            )));
        }
        if path.contains(&"") {
            return Err(Ending::usage("the topic and the name must not be empty".to_owned()));
        }
        let mut url = self.base.clone();
        let whole =
            path.iter().fold(url.path().trim_end_matches('/').to_owned(), |whole, segment| {
                format!("{whole}/{}", utf8_percent_encode(segment, SPECIAL))
            });
        url.set_path(&whole);
        Ok(url)
    }

    /// Makes one attempt. Returns an `Ending` with the error to report when no answer came. A
    /// refused token is replaced once, if its file has another one by now. A refused request had no
    /// effect.
    pub async fn ask(&self, call: &Call) -> Result<NodeAnswer, Ending> {
        let Some(credential) = &self.credential else { return self.send(call, None).await };
        let header = credential.header();
        let answer = self.send(call, Some(&header)).await?;
        if answer.status == 401 && credential.renew(&header) {
            return self.send(call, Some(&credential.header())).await;
        }
        Ok(answer)
    }

    async fn send(
        &self,
        call: &Call,
        authorization: Option<&HeaderValue>,
    ) -> Result<NodeAnswer, Ending> {
        let url = call.url.clone();
        let request = match &call.method {
            Method::Get => self.http.get(url),
            Method::Delete => self.http.delete(url),
            Method::Post(body) => {
                self.http.post(url).header(CONTENT_TYPE, "application/json").body(body.clone())
            }
            Method::Patch(body) => {
                self.http.patch(url).header(CONTENT_TYPE, "application/json").body(body.clone())
            }
            Method::Put(body) => {
                self.http.put(url).header(CONTENT_TYPE, "application/json").body(body.clone())
            }
        };
        let request = match call.condition.map(Condition::header) {
            Some((name, value)) => request.header(name, value),
            None => request,
        };
        let request = match authorization {
            Some(value) => request.header(AUTHORIZATION, value),
            None => request,
        };
        let body_bytes = match &call.method {
            Method::Post(body) | Method::Put(body) | Method::Patch(body) => body.len(),
            Method::Get | Method::Delete => 0,
        };
        let failed = |error: reqwest::Error| self.ending_of(&error.without_url(), body_bytes);
        let response = request
            .header(ACCEPT, "application/json, application/problem+json")
            .send()
            .await
            .map_err(failed)?;
        let (status, retry_after) = (response.status().as_u16(), retry_after(&response));
        let text = text_of(response, ANSWER_MAX).await.map_err(failed)?;
        let text = text.ok_or_else(|| {
            let (base, limit) = (&self.shown, grouped(ANSWER_MAX.saturating_as::<u64>()));
            let text = format!(
                "the answer of {base} is longer than {limit} bytes; is this the URL of a node?"
            );
            Ending::new(Exit::Unknown, text)
        })?;
        Ok(NodeAnswer { status, retry_after, has_token: authorization.is_some(), text })
    }

    /// Makes a call, and retries it with growing pauses while the node is away or busy, for up to
    /// `limit`. Returns the last failure if no attempt succeeds.
    ///
    /// The outcome is unknown if an earlier attempt may have taken effect, even if the last attempt
    /// certainly did not.
    pub async fn ask_for(
        &self,
        call: &Call,
        limit: Duration,
        repeating: Repeating,
    ) -> Result<Asked, Ending> {
        let mut patience = RetryBudget::new(limit);
        let mut is_in_doubt = false;
        loop {
            let asked = self.ask(call).await;
            let (problem, wait) = match &asked {
                Ok(answer) => (answer.problem(), answer.retry_after),
                Err(_) => (None, None),
            };
            let exit = problem
                .as_ref()
                .map(NodeProblem::exit)
                .or(asked.as_ref().err().map(|ending| ending.exit));
            let may_repeat = match exit {
                Some(Exit::NothingDone) => true,
                Some(Exit::Unknown) => repeating == Repeating::IsSafe,
                _ => false,
            };
            let pause = if may_repeat {
                patience.pause(clock::monotonic(), wait, rand::random())
            } else {
                None
            };
            if let Some(pause) = pause {
                is_in_doubt |= exit == Some(Exit::Unknown);
                clock::sleep(pause).await;
                continue;
            }
            return match (asked, problem) {
                (Ok(_), Some(problem)) if is_in_doubt && !stands(&problem) => {
                    Err(in_doubt(problem.ending()))
                }
                (Err(ending), _) if is_in_doubt => Err(in_doubt(ending)),
                (asked, _) => asked.map(|answer| Asked { answer, is_in_doubt }),
            };
        }
    }

    fn ending_of(&self, error: &reqwest::Error, body_bytes: usize) -> Ending {
        let base = &self.shown;
        if error.is_connect() {
            let cause = causes(error);
            let hint = match cause.ends_with(NOT_TLS) {
                true => "; the node has no TLS: use http://",
                false => "",
            };
            let text = format!(
                "cannot reach {base}: {cause}{hint}\n\
                 nothing was done; check the URL of the node (--url, PUNCTUAL_URL)"
            );
            return Ending::new(Exit::NothingDone, text);
        }
        if error.is_timeout() {
            return Ending::new(
                Exit::Unknown,
                format!("{base} did not answer within {} (--timeout)", spelled(self.timeout)),
            );
        }
        // A node refuses an oversized body at the first bytes. The client reads no answer while
        // writing.
        let bytes = |bytes: usize| grouped(bytes.saturating_as::<u64>());
        let hint = if body_bytes > BODY_USUAL {
            let (has, usual) = (bytes(body_bytes), bytes(BODY_USUAL));
            format!(
                "\n\
                 the body has {has} bytes, and a node accepts {usual} by default (--body-max); it \
                 may have been refused"
            )
        } else {
            String::new()
        };
        Ending::new(Exit::Unknown, format!("the call to {base} broke off: {}{hint}", causes(error)))
    }
}

/// Reads the body of an answer. Returns `None` when it is longer than `limit`, in bytes.
async fn text_of(mut response: Response, limit: usize) -> Result<Option<String>, reqwest::Error> {
    let mut body = Vec::new();
    while let Some(part) = response.chunk().await? {
        if part.len() > limit - body.len() {
            return Ok(None);
        }
        body.extend_from_slice(&part);
    }
    let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(Some(String::from_utf8(body).unwrap_or_else(|error| lossy(error.as_bytes()))))
}

/// Returns a client that trusts the authorities of `ca_file`, or those of the machine.
fn trusting(ca_file: Option<&Path>, scheme: &str) -> Result<ClientBuilder, String> {
    let builder = Client::builder();
    let Some(path) = ca_file.filter(|path| !path.as_os_str().is_empty()) else {
        // Over http:// no certificate is looked at, and reading those of the machine takes a while.
        return Ok(builder.tls_built_in_root_certs(scheme == "https"));
    };
    let shown = path.display();
    let text = std::fs::read(path).map_err(|error| format!("--ca-file {shown}: {error}"))?;
    let certificates = Certificate::from_pem_bundle(&text)
        .map_err(|error| format!("--ca-file {shown}: {}", causes(&error)))?;
    if certificates.is_empty() {
        return Err(format!("--ca-file {shown}: the file has no certificate in PEM"));
    }
    let builder = builder.tls_built_in_root_certs(false);
    Ok(certificates.into_iter().fold(builder, ClientBuilder::add_root_certificate))
}

/// Returns the client certificate with its key, if they are given.
fn identity(node: &NodeOptions) -> Result<Option<Identity>, String> {
    let given = |path: &Option<PathBuf>| path.clone().filter(|path| !path.as_os_str().is_empty());
    let (Some(certificate), Some(key)) = (given(&node.certificate_file), given(&node.key_file))
    else {
        return Ok(None);
    };
    let read = |flag, path: &Path| {
        std::fs::read(path).map_err(|error| format!("{flag} {}: {error}", path.display()))
    };
    let mut pem = read("--key-file", &key)?;
    pem.push(b'\n');
    pem.extend(read("--certificate-file", &certificate)?);
    let identity = Identity::from_pem(&pem).map_err(|error| {
        let files =
            format!("--certificate-file {}, --key-file {}", certificate.display(), key.display());
        format!("{files}: {}", causes(&error))
    })?;
    Ok(Some(identity))
}

/// Returns true when a problem is the final outcome of a call although an earlier attempt got no
/// answer. A node that refuses this call has not carried out an earlier attempt, either, unless the
/// credentials or rights have ended since. 'Too late' is different: the task in flight may be from
/// the earlier attempt.
fn stands(problem: &NodeProblem) -> bool {
    match problem.exit() {
        Exit::Refused => problem.slug().is_some() && !matches!(problem.status, 401 | 403),
        Exit::NotFound | Exit::Unknown => true,
        Exit::Usage | Exit::NothingDone | Exit::TooLate | Exit::Interrupted => false,
    }
}

fn in_doubt(last: Ending) -> Ending {
    Ending::new(
        Exit::Unknown,
        format!("an earlier attempt had no answer; the last one: {}", last.text),
    )
}

/// Every byte is percent-encoded, except those that are never special in a URL.
const SPECIAL: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Returns how long the node asks the client to wait. Dates are ignored: nodes send seconds.
fn retry_after(response: &Response) -> Option<Duration> {
    let seconds = response.headers().get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// Returns the innermost cause of an error. The outer ones only repeat the URL.
fn causes(error: &reqwest::Error) -> String {
    let mut innermost: &dyn std::error::Error = error;
    let mut source = error.source();
    while let Some(cause) = source {
        innermost = cause;
        source = cause.source();
    }
    innermost.to_string()
}

/// Returns the filters that were given.
pub fn given<'a>(filters: &[(&'a str, &'a Option<String>)]) -> Vec<(&'a str, &'a str)> {
    filters
        .iter()
        .filter_map(|(name, value)| value.as_deref().map(|value| (*name, value)))
        .collect()
}

/// Makes one call.
pub async fn ask(
    node: &NodeOptions,
    call: impl FnOnce(&NodeCaller) -> Result<Call, Ending>,
) -> Result<NodeAnswer, Ending> {
    let caller = NodeCaller::new(node)?;
    caller.ask(&call(&caller)?).await
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn an_answer_is_read_up_to_its_limit() {
        let answer = |body: &'static [u8]| Response::from(axum::http::Response::new(body));
        let read = text_of(answer(b"12345"), 5).await.unwrap();
        assert_eq!(read.as_deref(), Some("12345"));
        assert_eq!(text_of(answer(b"12345"), 4).await.unwrap(), None);
        assert_eq!(text_of(answer(b"a\xff"), 2).await.unwrap().as_deref(), Some("a\u{fffd}"));
    }

    #[tokio::test]
    async fn a_node_without_tls_is_told_from_one_that_is_away() {
        rustls::crypto::ring::default_provider().install_default().ok();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let plain = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let read = stream.read(&mut [0; 1024]).await.unwrap();
            assert!(read > 0);
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
            stream
        };
        let url = format!("https://{}", listener.local_addr().unwrap());
        let node = NodeOptions::at(url, Duration::from_secs(30));
        let call = |caller: &NodeCaller| caller.get(&["livez"], &[]);
        let (ended, _stream) = tokio::join!(ask(&node, call), plain);
        let ending = ended.unwrap_err();
        assert_eq!(ending.exit, Exit::NothingDone, "{}", ending.text);
        assert!(ending.text.contains("the node has no TLS: use http://"), "{}", ending.text);
    }

    #[test]
    fn only_a_refusal_of_what_was_asked_tells_of_an_earlier_attempt() {
        let stands = |status: u16, slug: &str| {
            let text = format!(r#"{{"type":"urn:punctual:problem:{slug}"}}"#);
            let answer = NodeAnswer { status, retry_after: None, has_token: true, text };
            stands(&answer.problem().unwrap())
        };
        assert!(stands(422, "record-too-large") && stands(404, "task-not-found"));
        // The token may have ended since.
        assert!(!stands(401, "unauthenticated") && !stands(403, "forbidden"));
        assert!(!stands(503, "busy"));
    }
}
