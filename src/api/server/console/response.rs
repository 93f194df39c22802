//! The answers that pages are sent in, and the headers that keep a page from doing anything else.

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;

use crate::api::problems::problem::Problem;
use crate::console::assets::Asset;
use crate::console::frame::{self, Page, Reader, Refused, Section};

/// A page may load the console's style, script and icon, and may send requests and forms to this
/// node. Nothing else: no script or style inside the page, and no frame around the page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; form-action 'self'; base-uri 'none'; \
                      frame-ancestors 'none'";

/// Returns the status of the answer that a page is about.
pub fn status_of(refused: &Refused) -> StatusCode {
    StatusCode::from_u16(refused.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// Returns the problem as pages show it.
pub fn refused_of(problem: &Problem) -> Refused {
    let status = problem.kind().status().as_u16();
    Refused { status, problem: serde_json::to_value(problem.json()).unwrap_or_default() }
}

/// Returns a page that only says why there is none.
pub fn refused(problem: &Problem) -> Response {
    let refused = refused_of(problem);
    show(status_of(&refused), &refused.page(Section::Now), None)
}

/// Returns a page.
pub fn show(status: StatusCode, page: &Page, reader: Option<&Reader>) -> Response {
    html(status, frame::write(page, reader))
}

/// Returns an answer with an HTML text.
pub fn html(status: StatusCode, text: String) -> Response {
    let mut response = Response::new(Body::from(Bytes::from(text)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CACHE_CONTROL, "no-store"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // Without a referrer at all, browsers would send no origin with forms.
        (header::REFERRER_POLICY, "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.insert("cross-origin-opener-policy", HeaderValue::from_static("same-origin"));
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    response
}

/// Returns a file that pages load. A new content has a new path.
pub fn asset_of(asset: Asset) -> Response {
    let mut response = html(StatusCode::OK, asset.content().to_owned());
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(asset.content_type()));
    let for_ever = HeaderValue::from_static("public, max-age=31536000, immutable");
    headers.insert(header::CACHE_CONTROL, for_ever);
    response
}

/// Returns an answer that leads to another page.
pub fn to(path: &str, cookie: Option<String>) -> Response {
    let mut response = html(StatusCode::SEE_OTHER, String::new());
    let Ok(path) = HeaderValue::try_from(path) else {
        return refused(&Problem::no_such_path());
    };
    response.headers_mut().insert(header::LOCATION, path);
    if let Some(cookie) = cookie.and_then(|cookie| HeaderValue::try_from(cookie).ok()) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}
