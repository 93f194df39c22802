//! Request bodies: read whole, within the limits. They count against the limits until the answer is
//! made.

use std::error::Error;
use std::{io, iter, panic};

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Request, header};
use az::SaturatingAs as _;
use http_body_util::BodyExt as _;
use hyper::body::Body as _;

use super::body_memory::{BodyMemory, too_large};
use super::fields::object;
use super::unpack::{Encoding, unpack};
use crate::api::callers::MemoryShare;
use crate::api::json::values::shown;
use crate::api::problems::problem::Problem;
use crate::api::problems::problem_type::ProblemType;
use crate::api::shared::{ApiShared, Deadline, PARSED_AT_ONCE, UNPACKED_AT_ONCE};

/// The most memory reserved for a body before the bytes arrive, for any declared length.
const CAPACITY_MAX: usize = 1 << 20;
/// Bytes of an unwanted body that are read to name its first field.
const UNWANTED_BYTES_MAX: usize = 4096;

/// Bodies up to this size are parsed where they are: a fraction of a millisecond, less than a
/// change of threads is worth.
const IN_PLACE_MAX: usize = 64 << 10;

/// Reads and unpacks a body declared as JSON.
pub async fn read(
    shared: &ApiShared,
    request: Request<Body>,
    deadline: Deadline,
) -> Result<(Bytes, BodyMemory), Problem> {
    check_content_type(request.headers())?;
    let encoding = Encoding::of(request.headers())?;
    let share = share_of(shared, &request);
    let collected = deadline.hold(collect(shared, share, request.into_body())).await;
    let (bytes, memory) = collected.map_err(|_elapsed| late(shared))??;
    let Some(encoding) = encoding else { return Ok((bytes, memory)) };
    // The body has arrived, so a delay from here on is not the caller's fault.
    let unpacked = deadline.hold(unpack(shared, encoding, (&bytes, &memory))).await;
    unpacked.map_err(|_elapsed| Problem::busy(UNPACKED_AT_ONCE))?
}

/// Reads a body that may be left out. Without one, and for `null`, which some clients send for no
/// body, returns an empty object.
pub async fn read_optional(
    shared: &ApiShared,
    request: Request<Body>,
    deadline: Deadline,
) -> Result<(Bytes, BodyMemory), Problem> {
    let none = Bytes::from_static(b"{}");
    if request.body().is_end_stream() {
        return Ok((none, BodyMemory::none(shared, share_of(shared, &request))));
    }
    let (bytes, memory) = read(shared, request, deadline).await?;
    let is_none = ["", "null"].contains(&text_of(&bytes)?.trim());
    Ok((if is_none { none } else { bytes }, memory))
}

/// Returns the caller's share of the memory of bodies, which the router adds to a request with a
/// body.
fn share_of(shared: &ApiShared, request: &Request<Body>) -> MemoryShare {
    let of_caller = request.extensions().get::<MemoryShare>().cloned();
    of_caller.unwrap_or_else(|| MemoryShare::new(shared.body_memory_share))
}

/// Refuses a body on a call that takes none: ignoring a `{"dry_run":true}` would do harm. An empty
/// object passes, and so does `null`, which some clients send for no body.
pub async fn refuse(
    shared: &ApiShared,
    request: Request<Body>,
    deadline: Deadline,
) -> Result<(), Problem> {
    let body = request.into_body();
    if body.is_end_stream() {
        return Ok(());
    }
    let bytes = deadline.hold(beginning_of(body)).await.map_err(|_elapsed| late(shared))??;
    let unwanted = Problem::new(
        ProblemType::UnknownField,
        "nothing was done: this request may not have a body",
    );
    let Ok(text) = std::str::from_utf8(&bytes) else { return Err(unwanted) };
    // Something may follow a lot of white space.
    let is_whole = bytes.len() < UNWANTED_BYTES_MAX;
    if is_whole && ["", "null"].contains(&text.trim()) {
        return Ok(());
    }
    let Ok(object) = object(text) else { return Err(unwanted) };
    match object.pairs.first() {
        None => Ok(()),
        Some((name, _)) => Err(unwanted.at(shown(name))),
    }
}

/// Reads enough of a body to tell whether it contains anything.
async fn beginning_of(mut body: Body) -> Result<Vec<u8>, Problem> {
    let mut bytes = Vec::new();
    while bytes.len() < UNWANTED_BYTES_MAX
        && let Some(frame) = body.frame().await
    {
        let Ok(piece) = frame.map_err(broken)?.into_data() else { continue };
        bytes.extend_from_slice(&piece[..piece.len().min(UNWANTED_BYTES_MAX)]);
    }
    Ok(bytes)
}

fn late(shared: &ApiShared) -> Problem {
    shared.metrics.rejected("request_deadline");
    Problem::new(ProblemType::RequestTimeout, "nothing was done: the body did not arrive in time")
}

/// Returns the problem for a body that cannot be read to its end.
fn broken(error: axum::Error) -> Problem {
    let first: &(dyn Error + 'static) = &error;
    let sources = iter::successors(Some(first), |error| (**error).source());
    let kind =
        sources.filter_map(|error| error.downcast_ref::<io::Error>()).last().map(io::Error::kind);
    match kind {
        Some(io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData) => Problem::new(
            ProblemType::MalformedEncoding,
            "nothing was done: the chunks of the body are malformed (RFC 9112)",
        ),
        _ => {
            Problem::new(ProblemType::RequestTimeout, "nothing was done: the body ended too early")
        }
    }
}

async fn collect(
    shared: &ApiShared,
    share: MemoryShare,
    mut body: Body,
) -> Result<(Bytes, BodyMemory), Problem> {
    let declared = body.size_hint().lower().saturating_as::<usize>();
    if declared > shared.settings.body_bytes_max {
        return Err(too_large(shared));
    }
    let mut memory = BodyMemory::none(shared, share);
    // Most bodies arrive in one piece, which then needs no copy.
    let mut first = Bytes::new();
    let mut whole: Vec<u8> = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(piece) = frame.map_err(broken)?.into_data() else { continue };
        if first.len().max(whole.len()).saturating_add(piece.len()) > shared.settings.body_bytes_max
        {
            return Err(too_large(shared));
        }
        memory.grow(piece.len())?;
        if first.is_empty() {
            first = piece;
            continue;
        }
        if whole.is_empty() {
            whole.reserve(declared.min(CAPACITY_MAX).max(first.len() + piece.len()));
            whole.extend_from_slice(&first);
        }
        whole.extend_from_slice(&piece);
    }
    Ok((if whole.is_empty() { first } else { Bytes::from(whole) }, memory))
}

fn check_content_type(headers: &HeaderMap) -> Result<(), Problem> {
    let is_json = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(is_json);
    if is_json {
        return Ok(());
    }
    let detail = "the header Content-Type must be application/json (UTF-8)";
    Err(Problem::new(ProblemType::UnsupportedMediaType, detail).at("content-type"))
}

fn is_json(content_type: &str) -> bool {
    let mut parts = content_type.split(';').map(str::trim);
    let is_json =
        parts.next().is_some_and(|essence| essence.eq_ignore_ascii_case("application/json"));
    is_json
        && parts.all(|parameter| {
            let Some((name, value)) = parameter.split_once('=') else {
                return parameter.is_empty();
            };
            name.eq_ignore_ascii_case("charset")
                && value.trim_matches('"').eq_ignore_ascii_case("utf-8")
        })
}

/// Reads the text of a body with `read`. A large one is read on a thread for blocking work: serde
/// never yields, and tens of milliseconds on a thread of the runtime would delay claims.
pub async fn parse<T, F>(
    shared: &ApiShared,
    deadline: Deadline,
    bytes: Bytes,
    read: F,
) -> Result<T, Problem>
where
    T: Send + 'static,
    F: FnOnce(&str) -> Result<T, Problem> + Send + 'static,
{
    if bytes.len() <= IN_PLACE_MAX {
        return read(text_of(&bytes)?);
    }
    let permit = deadline.hold(shared.parsing.clone().acquire_owned()).await;
    let Ok(Ok(permit)) = permit else { return Err(Problem::busy(PARSED_AT_ONCE)) };
    // The thread cannot be cancelled, so it keeps the permit when the caller has gone.
    let parsing = tokio::task::spawn_blocking(move || {
        let parsed = text_of(&bytes).and_then(read);
        drop((bytes, permit));
        parsed
    });
    match parsing.await {
        Ok(parsed) => parsed,
        Err(error) => match error.try_into_panic() {
            // The router answers it, as it does for all panics.
            Ok(panic) => panic::resume_unwind(panic),
            Err(_cancelled) => Err(Problem::draining()),
        },
    }
}

/// Returns the text of a body, or a problem if it is not UTF-8.
pub fn text_of(bytes: &[u8]) -> Result<&str, Problem> {
    std::str::from_utf8(bytes).map_err(|error| {
        let valid = &bytes[..error.valid_up_to()];
        let line = valid.iter().filter(|byte| **byte == b'\n').count() + 1;
        let column = valid.iter().rev().take_while(|byte| **byte != b'\n').count() + 1;
        Problem::new(
            ProblemType::MalformedJson,
            format!("line {line}, column {column}: the bytes are not UTF-8"),
        )
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::access::{Policy, PolicyHandle};
    use crate::api::metrics::ApiMetrics;
    use crate::api::shared::ApiSettings;
    use crate::node::requests::service::Service;
    use crate::node::requests::service::model::Model;
    use crate::telemetry::Registry;

    fn shared() -> ApiShared {
        let mut registry = Registry::default();
        let metrics = ApiMetrics::register(&mut registry);
        let service = Service::of_model(Arc::new(Model::default()));
        let policy = PolicyHandle::new(Policy::open());
        ApiShared::new(service, ApiSettings::default(), metrics, Arc::new(registry), policy)
    }

    #[tokio::test]
    async fn large_bodies_are_parsed_on_other_threads_and_a_few_at_a_time() {
        let shared = shared();
        let read = async |length: usize, deadline| {
            let bytes = Bytes::from(vec![b' '; length]);
            let thread = move |text: &str| Ok((thread::current().id(), text.len()));
            parse(&shared, Deadline::after(deadline), bytes, thread).await
        };
        let (here, long) = (thread::current().id(), Duration::from_secs(60));
        assert_eq!(read(IN_PLACE_MAX, long).await.unwrap(), (here, IN_PLACE_MAX));
        let (elsewhere, length) = read(IN_PLACE_MAX + 1, long).await.unwrap();
        assert!(elsewhere != here && length == IN_PLACE_MAX + 1);
        let all = shared.parsing.clone().acquire_many_owned(4).await.unwrap();
        let busy = read(IN_PLACE_MAX + 1, Duration::from_millis(1)).await.unwrap_err();
        assert_eq!(busy.limit(), Some(PARSED_AT_ONCE));
        assert!(read(IN_PLACE_MAX, long).await.is_ok());
        drop(all);
        assert!(read(IN_PLACE_MAX + 1, long).await.is_ok());
    }
}
