//! The console over HTTP: the reader of a page, and the page's calls of the API.
//!
//! A page calls the API as any caller does, with the rights of the reader: [`Api::call`] checks,
//! limits and audits each call. The pages are in [`crate::console`].

mod pages;
mod reader;
mod response;

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, Method, Request, StatusCode, Uri, header};
use axum::response::Response;
use futures_util::FutureExt as _;
use hyper::body::Body as _;
use tokio::sync::Semaphore;

use self::reader::Identified;
use self::response::{asset_of, html, refused, show, status_of, to};
use super::answer::{Answer, RequestPlace, is_large};
use super::router::{Api, SeenRequest};
use crate::api::access::hosts;
use crate::api::problems::problem::Problem;
use crate::api::problems::problem_type::ProblemType;
use crate::api::shared::Deadline;
use crate::console::action::Fields;
use crate::console::assets::Asset;
use crate::console::frame::{self, Page, ROOT, Reader, Refused, Section};

/// The label of pages in metrics and logs.
const ROUTE: &str = "/console";
/// The path of the form that ends a session.
const LOGOUT: &str = "/console/logout";
/// Bytes of a form. The largest one is a login with a JSON Web Token.
const FORM_BYTES_MAX: usize = 16 << 10;

/// Limits the forms of the login that are read at the same time.
static LOGINS: Semaphore = Semaphore::const_new(32);
/// The time in which such a form must arrive.
const LOGIN_MAX: Duration = Duration::from_secs(5);

/// Answers a request of a page or, as the API does, any other one. Never fails.
pub async fn answer(
    api: &Api,
    place: RequestPlace,
    request: Request<Body>,
) -> axum::http::Response<Answer> {
    if is_page(api, &request) {
        Box::pin(answer_page(api, place, request)).await
    } else {
        api.answer(place, request).await
    }
}

/// Returns true for a request of a page or of a file that pages load.
fn is_page(api: &Api, request: &Request<Body>) -> bool {
    let rest = request.uri().path().strip_prefix(ROOT);
    api.settings().has_console && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Answers a request of a page. Survives a panic.
async fn answer_page(
    api: &Api,
    mut place: RequestPlace,
    request: Request<Body>,
) -> axum::http::Response<Answer> {
    let seen = SeenRequest::of(&request, ROUTE);
    let only_shows = !matches!(*request.method(), Method::POST);
    let mut response = match api.begin_page(&mut place, &request) {
        Err(problem) => refused(&problem),
        Ok(()) => {
            let responding = respond(api, &place, request, &seen);
            AssertUnwindSafe(responding).catch_unwind().await.unwrap_or_else(|_panic| {
                // The panic hook has logged the place.
                tracing::error!(request_id = %seen.id, "a page panicked; the answer is 500");
                refused(&Problem::new(ProblemType::Internal, "the node hit a bug"))
            })
        }
    };
    let size = response.body().size_hint().lower();
    if place.must_hold(size)
        && let Err(problem) = place.hold_answer(size, only_shows).await
    {
        response = refused(&problem);
    }
    if !is_large(size) {
        place.give_back();
    }
    api.finish(place, response, seen).await
}

async fn respond(
    api: &Api,
    place: &RequestPlace,
    request: Request<Body>,
    seen: &SeenRequest,
) -> Response {
    if let Some(asset) = Asset::of_path(request.uri().path()) {
        return asset_of(asset);
    }
    if comes_from_elsewhere(&request) {
        let target = request.uri().path_and_query().map_or(ROOT, |target| target.as_str());
        return html(StatusCode::OK, frame::continued(target));
    }
    if let Err(problem) = hosts::check_origin(&request) {
        return refused(&problem);
    }
    let identified = reader::identify(api, &request);
    let (parts, body) = request.into_parts();
    let method = parts.method.clone();
    let is_login = parts.uri.path() == Section::Login.path();
    if (method == Method::POST || is_login || identified.is_none())
        && let Some(problem) = reader::starting(api)
    {
        return refused(&problem);
    }
    if matches!(method, Method::GET | Method::HEAD) {
        let path: Vec<String> = segments(parts.uri.path());
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        return match (path.as_slice(), identified) {
            (["login"], _) => show(StatusCode::OK, &login_page(api, ROOT, None), None),
            (_, None) => {
                let target = parts.uri.path_and_query().map_or(ROOT, |target| target.as_str());
                show(StatusCode::UNAUTHORIZED, &login_page(api, target, None), None)
            }
            (path, Some(identified)) => {
                let fields = fields_of(parts.uri.query().unwrap_or_default());
                pages::show_page(api, (place, &seen.id), &identified, (path, &fields)).await
            }
        };
    }
    if method != Method::POST {
        return refused(&Problem::new(ProblemType::MethodNotAllowed, "pages take GET and POST"));
    }
    if identified.is_none() && !is_login {
        if parts.uri.path() == LOGOUT {
            return to(Section::Login.path(), None);
        }
        let next = page_of_form(&parts).unwrap_or_else(|| ROOT.to_owned());
        return show(StatusCode::UNAUTHORIZED, &login_page(api, &next, Some(&ended())), None);
    }
    // Callers without a session have a few places of their own, and little time.
    let _login = match identified.is_none().then(|| LOGINS.try_acquire()) {
        Some(Err(_all_taken)) => {
            let detail = "too many logins are in progress; repeat it in a moment";
            return refused(&Problem::new(ProblemType::Busy, detail));
        }
        login => login,
    };
    let deadline = match identified {
        Some(_) => api.shared().deadline(),
        None => Deadline::after(LOGIN_MAX),
    };
    let reading = axum::body::to_bytes(body, FORM_BYTES_MAX);
    let form = match deadline.hold(reading).await {
        Ok(Ok(bytes)) => fields_of(&String::from_utf8_lossy(&bytes)),
        Ok(Err(_too_large)) => {
            let detail = "a form of the console has 16 KiB at most";
            return refused(&Problem::new(ProblemType::BodyTooLarge, detail));
        }
        Err(_elapsed) => {
            let detail = "the form did not arrive in time";
            return refused(&Problem::new(ProblemType::RequestTimeout, detail));
        }
    };
    post(api, (place, seen), identified, (parts.uri.path(), &parts.headers, &form)).await
}

/// Carries a form out.
async fn post(
    api: &Api,
    (place, seen): (&RequestPlace, &SeenRequest),
    identified: Option<Identified>,
    (path, headers, form): (&str, &HeaderMap, &Fields),
) -> Response {
    let sessions = &api.shared().cursors.sessions;
    if path == Section::Login.path() {
        let next = Some(form.get("next")).filter(|next| is_own(next)).unwrap_or(ROOT);
        if !sessions.is_form_token(form.get("csrf"), reader::LOGIN) {
            return show(StatusCode::FORBIDDEN, &login_page(api, next, Some(&stale())), None);
        }
        return match reader::log_in(api, place, &seen.id, form.get("token")).await {
            Ok(session) => to(next, Some(reader::cookie_of(&session, headers))),
            Err(refused) => {
                let status = status_of(&refused);
                show(status, &login_page(api, next, Some(&refused)), None)
            }
        };
    }
    let Some(identified) = identified else {
        return show(StatusCode::UNAUTHORIZED, &login_page(api, ROOT, None), None);
    };
    if !sessions.is_form_token(form.get("csrf"), &identified.whose) {
        let page = stale().page(Section::Now);
        return show(StatusCode::FORBIDDEN, &page, Some(&identified.reader));
    }
    match path {
        LOGOUT => to(Section::Login.path(), Some(reader::no_cookie(headers))),
        "/console/act" => pages::act(api, (place, &seen.id), &identified, form).await,
        _ => refused(&Problem::no_such_path()),
    }
}

fn stale() -> Refused {
    Refused::new(
        StatusCode::FORBIDDEN.as_u16(),
        "stale form",
        "Nothing was done: the form is not one of this session. Load its page again.",
    )
}

fn ended() -> Refused {
    Refused::new(
        StatusCode::UNAUTHORIZED.as_u16(),
        "session ended",
        "Nothing was done: your session has ended. Log in, and do it again.",
    )
}

/// Returns the address of the page that a form was on, if the browser tells it and a new session
/// can open it.
fn page_of_form(parts: &Parts) -> Option<String> {
    let field = |name: HeaderName| parts.headers.get(name).and_then(|value| value.to_str().ok());
    let own = parts.uri.authority().map(|own| own.as_str()).or_else(|| field(header::HOST))?;
    let page: Uri = field(header::REFERER)?.parse().ok()?;
    let is_here = page.authority().is_some_and(|of| of.as_str().eq_ignore_ascii_case(own));
    let of_session = ["/console/act", "/console/done"].contains(&page.path());
    let address = page.path_and_query()?.as_str();
    (is_here && !of_session && is_own(address)).then(|| address.to_owned())
}

/// Returns the page of the login, which leads on to `next`.
fn login_page(api: &Api, next: &str, failed: Option<&Refused>) -> Page {
    let csrf = api.shared().cursors.sessions.form_token(reader::LOGIN);
    let nobody = Reader { name: None, has_session: false, has_now: false, csrf };
    frame::login(&nobody, next, failed)
}

/// Returns true for the address of a page of the console.
fn is_own(address: &str) -> bool {
    let rest = address.strip_prefix(ROOT);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '?']))
}

/// Returns true for a link on a page of another site. Its request has no session, because the
/// browser does not send one then. The answer is a page that loads the address again.
fn comes_from_elsewhere(request: &Request<Body>) -> bool {
    let is = |name: &str, values: &[&str]| {
        let given = request.headers().get(name).and_then(|value| value.to_str().ok());
        given.is_some_and(|given| values.contains(&given))
    };
    *request.method() == Method::GET
        && is("sec-fetch-site", &["cross-site", "same-site"])
        && is("sec-fetch-mode", &["navigate"])
        && is("sec-fetch-dest", &["document"])
}

/// Returns the decoded parts of a path after that of the console.
fn segments(path: &str) -> Vec<String> {
    let rest = path.strip_prefix(ROOT).unwrap_or_default();
    let decoded = |segment: &str| {
        percent_encoding::percent_decode_str(segment).decode_utf8_lossy().into_owned()
    };
    rest.split('/').filter(|segment| !segment.is_empty()).map(decoded).collect()
}

/// Reads the pairs of a query or of a form.
fn fields_of(text: &str) -> Fields {
    let decoded = |part: &str| {
        let spaced = part.replace('+', " ");
        percent_encoding::percent_decode_str(&spaced).decode_utf8_lossy().into_owned()
    };
    let pairs = text.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decoded(name), decoded(value))
    });
    Fields::new(pairs.collect())
}
