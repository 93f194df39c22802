//! Request bodies: read whole, within the limits. They count against the limits until the answer is
//! made.

use std::error::Error;
use std::{io, iter};

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Request, header};
use az::SaturatingAs as _;
use http_body_util::BodyExt as _;
use hyper::body::Body as _;

use super::fields::object;
use super::share::{Share, too_large};
use super::unpack::{Encoding, unpack};
use crate::api::json::values::shown;
use crate::api::problems::problem::Problem;
use crate::api::problems::problem_type::ProblemType;
use crate::api::shared::{ApiShared, Deadline, UNPACKED_AT_ONCE};

/// The most memory that is reserved for a body before its bytes arrive, whatever its declared
/// length.
const CAPACITY_MAX: usize = 1 << 20;
/// Bytes of an unwanted body that are read to name its first field.
const UNWANTED_BYTES_MAX: usize = 4096;

/// Reads a body that says it is JSON, and unpacks it.
pub async fn read<'a>(
    shared: &'a ApiShared,
    request: Request<Body>,
    deadline: Deadline,
) -> Result<(Bytes, Share<'a>), Problem> {
    check_content_type(request.headers())?;
    let encoding = Encoding::of(request.headers())?;
    let collected = deadline.hold(collect(shared, request.into_body())).await;
    let (bytes, share) = collected.map_err(|_elapsed| late(shared))??;
    let Some(encoding) = encoding else { return Ok((bytes, share)) };
    // The body has arrived, so a delay from here on is not the caller's fault.
    let unpacked = deadline.hold(unpack(shared, encoding, &bytes)).await;
    unpacked.map_err(|_elapsed| Problem::busy(UNPACKED_AT_ONCE))?
}

/// Reads a body that may be left out. Without one, and for `null`, which some clients send for no
/// body, returns an empty object.
pub async fn read_optional<'a>(
    shared: &'a ApiShared,
    request: Request<Body>,
    deadline: Deadline,
) -> Result<(Bytes, Share<'a>), Problem> {
    let none = Bytes::from_static(b"{}");
    if request.body().is_end_stream() {
        return Ok((none, Share::none(shared)));
    }
    let (bytes, share) = read(shared, request, deadline).await?;
    let is_none = ["", "null"].contains(&text_of(&bytes)?.trim());
    Ok((if is_none { none } else { bytes }, share))
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
    if ["", "null"].contains(&text.trim()) {
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

async fn collect(shared: &ApiShared, mut body: Body) -> Result<(Bytes, Share<'_>), Problem> {
    let declared = body.size_hint().lower().saturating_as::<usize>();
    if declared > shared.settings.body_bytes_max {
        return Err(too_large(shared));
    }
    let mut share = Share::none(shared);
    // Most bodies arrive in one piece, which then needs no copy.
    let mut first = Bytes::new();
    let mut whole: Vec<u8> = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(piece) = frame.map_err(broken)?.into_data() else { continue };
        if first.len().max(whole.len()).saturating_add(piece.len()) > shared.settings.body_bytes_max
        {
            return Err(too_large(shared));
        }
        share.grow(piece.len())?;
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
    Ok((if whole.is_empty() { first } else { Bytes::from(whole) }, share))
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
