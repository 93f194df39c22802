//! The readers of pages: login, session, and the cookie that carries it.

use axum::body::Body;
use axum::http::{HeaderMap, Request, header};

use super::response::refused_of;
use crate::access::{Caller, Unidentified};
use crate::api::access::guard::Proofs;
use crate::api::access::sessions::{LIFE, NoSession, Session};
use crate::api::problems::problem::Problem;
use crate::api::request::request_id::RequestId;
use crate::api::server::answer::RequestPlace;
use crate::api::server::router::Api;
use crate::console::frame::{Reader, Refused};

/// Stands for every reader who has not logged in, in the token of the login's form.
pub const LOGIN: &[u8] = b"login";

/// Over TLS, the prefix has browsers refuse the cookie unless it is of this host, and secure.
const COOKIE: &str = "punctual-session";
const SECURE_COOKIE: &str = "__Host-punctual-session";

/// The reason of a node that does not know the secret of its cluster yet. So it can neither open
/// sessions nor check forms.
const STARTING: &str = "the node is starting; repeat this in a moment";

/// A reader, as the API and as pages know it.
#[derive(Debug)]
pub struct Identified {
    pub caller: Caller,
    pub reader: Reader,
    /// The bytes that the tokens of the reader's forms are made of.
    pub whose: Vec<u8>,
}

/// Identifies a reader by the session, or else by the certificate of the connection. Without both,
/// the reader is anonymous, if anonymous callers have rights on this node. Only the login takes
/// tokens, and throttles wrong ones.
pub fn identify(api: &Api, request: &Request<Body>) -> Option<Identified> {
    let shared = api.shared();
    let policy = shared.policy.current();
    let session = session_of(api, request.headers()).and_then(|session| {
        let caller = policy.identify(&format!("Bearer {}", session.token), shared.now()).ok()?;
        Some((caller, session.mark.to_vec()))
    });
    let has_session = session.is_some() && !policy.is_open();
    let (caller, whose) = match session {
        Some(identified) => identified,
        None => {
            let caller = policy.identify_peer(Proofs::of(request).peer).ok()?;
            let whose = [b"principal ", caller.principal.name.as_str().as_bytes()].concat();
            (caller, whose)
        }
    };
    let name = (!policy.is_open()).then(|| caller.principal.name.as_str().to_owned());
    let has_now = shared.settings.port.has("/v1/cluster");
    let csrf = shared.cursors.sessions.form_token(&whose);
    Some(Identified { caller, reader: Reader { name, has_session, has_now, csrf }, whose })
}

/// Returns the problem of a node that is starting.
pub fn starting(api: &Api) -> Option<Problem> {
    let has_secret = !api.shared().cursors.sessions.form_token(LOGIN).is_empty();
    (!has_secret).then(|| Problem::unavailable(STARTING))
}

fn session_of(api: &Api, headers: &HeaderMap) -> Option<Session> {
    let shared = api.shared();
    let named = |wanted: &str| {
        let cookies =
            headers.get_all(header::COOKIE).iter().filter_map(|field| field.to_str().ok());
        let mut pairs = cookies.flat_map(|field| field.split(';')).filter_map(|pair| {
            let (name, value) = pair.trim().split_once('=')?;
            (name == wanted).then_some(value)
        });
        pairs.find_map(|value| shared.cursors.sessions.open(value, shared.now()))
    };
    // Another site of the domain can plant a cookie of the plain name, but none of the secure one.
    named(SECURE_COOKIE).or_else(|| named(COOKIE))
}

/// Returns a new session for a token.
///
/// # Errors
/// When the token proves nobody, or cannot be kept in a cookie.
pub async fn log_in(
    api: &Api,
    place: &RequestPlace,
    id: &RequestId,
    token: &str,
) -> Result<String, Refused> {
    let shared = api.shared();
    let now = shared.now();
    let identified = shared.policy.current().identify(&format!("Bearer {token}"), now);
    match identified {
        Ok(_caller) => {}
        Err(reason) => {
            tracing::debug!(%reason, "a login has failed");
            let is_unjudged = reason == Unidentified::KeysMissing;
            let problem = api.deny_login(place, id, is_unjudged).await;
            return Err(refused_of(&problem));
        }
    }
    shared.cursors.sessions.seal(token, now).map_err(|reason| {
        refused_of(&match reason {
            NoSession::Starting => Problem::unavailable(STARTING),
            NoSession::TokenTooLong => {
                Problem::invalid("token", "the token is too long for a session of the console")
            }
        })
    })
}

/// Returns the header that gives a session to a browser.
pub fn cookie_of(session: &str, headers: &HeaderMap) -> String {
    set_cookie(session, LIFE.as_secs(), headers)
}

/// Returns the header that takes the session from a browser.
pub fn no_cookie(headers: &HeaderMap) -> String {
    set_cookie("", 0, headers)
}

/// A browser says with each form whether it has come over TLS to this node or to a proxy in front.
/// Without a word the cookie is secure.
fn set_cookie(value: &str, seconds: u64, headers: &HeaderMap) -> String {
    let origin = headers.get(header::ORIGIN).and_then(|origin| origin.to_str().ok());
    let is_plain = origin.is_some_and(|origin| origin.starts_with("http://"));
    let (name, secure) = if is_plain { (COOKIE, "") } else { (SECURE_COOKIE, "; Secure") };
    format!("{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}")
}
