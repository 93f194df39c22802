//! The path of every request: limits, measurement, and the router.

mod routes;

use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Version, header};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt as _;
use hyper::body::Body as _;
use tower::ServiceExt as _;
use tracing::Instrument as _;

#[cfg(test)]
pub use self::routes::strict_document;
use self::routes::{NO_ROUTE, dev_routes, document_of, label_of, operations_of, routes};
use super::answer::{Answer, RequestPlace};
use crate::access::{Caller, CredentialId, PolicyHandle};
use crate::api::access::audit::{Audit, AuditedRequest};
use crate::api::access::cursors::Cursors;
use crate::api::access::guard::{Guard, Proofs};
use crate::api::access::limits::Reading;
use crate::api::access::required::Access;
use crate::api::access::{hosts, limits};
use crate::api::callers::{CallerConnection, PlacePurpose};
use crate::api::metrics::{ApiMetrics, method_label};
use crate::api::openapi::operation::Operation;
use crate::api::openapi::route::Route;
use crate::api::problems::problem::Problem;
use crate::api::problems::problem_type::ProblemType;
use crate::api::request::request_id::{REQUEST_ID, RequestId};
use crate::api::request::trace::RequestTrace;
use crate::api::shared::{ApiSettings, ApiShared, BODY_MEMORY_SHARE, Port};
use crate::clock;
use crate::domain::Monotonic;
use crate::node::requests::service::Service;
use crate::telemetry::Registry;
use crate::telemetry::traces::{SubmitSpan, Traces};

/// The REST API, ready to answer requests. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Api {
    shared: Arc<ApiShared>,
    router: Router,
    /// The paths of all routes, in order.
    paths: Arc<[&'static str]>,
    operations: Arc<[(&'static str, Method, &'static Operation)]>,
    /// `None` without an audit trail.
    audit: Option<Audit>,
    /// `None` without tracing.
    traces: Option<Traces>,
}

/// The facts of a request that its answer needs.
#[derive(Debug)]
pub struct SeenRequest {
    started: Monotonic,
    route: &'static str,
    pub method: &'static str,
    version: Version,
    /// False for a caller that waits for permission to send its body (`Expect: 100-continue`). An
    /// unneeded body is not asked for.
    may_read_rest: bool,
    pub id: RequestId,
}

impl SeenRequest {
    pub fn of(request: &Request<Body>, route: &'static str) -> Self {
        Self {
            started: clock::monotonic(),
            route,
            method: method_label(request.method()),
            version: request.version(),
            may_read_rest: !request.headers().contains_key(header::EXPECT),
            id: RequestId::of(request.headers()),
        }
    }
}

/// The bytes that a header field counts besides name and value (RFC 9113, 6.5.2).
const FIELD_BYTES: usize = 32;

/// The operations whose requests submit the tasks of their body.
const SUBMITS: [&str; 3] = ["submitTask", "submitBatch", "putTask"];

/// The problems that an unknown path or method may be answered with.
const OF_NO_OPERATION: [ProblemType; 14] = [
    ProblemType::InvalidValue,
    ProblemType::Unauthenticated,
    ProblemType::Forbidden,
    ProblemType::WrongHost,
    ProblemType::NotFound,
    ProblemType::MethodNotAllowed,
    ProblemType::TooManyRequests,
    ProblemType::QuotaExceeded,
    ProblemType::DeniedTooOften,
    ProblemType::HeaderTooLarge,
    ProblemType::Internal,
    ProblemType::Busy,
    ProblemType::Draining,
    ProblemType::Unavailable,
];

impl Api {
    pub fn new(
        service: Service,
        settings: ApiSettings,
        metrics: ApiMetrics,
        registry: Arc<Registry>,
        policy: PolicyHandle,
    ) -> Self {
        let port = settings.port;
        let is_dev = settings.dev.is_some();
        let mut routes: Vec<Route> =
            routes().into_iter().filter(|route| port.has(route.path)).collect();
        let shared = ApiShared::new(service, settings, metrics, registry, policy);
        let shared = Arc::new(shared.with_document(document_of(&routes)));
        if is_dev {
            routes.extend(dev_routes());
        }
        let paths = routes.iter().map(|route| route.path).collect();
        let operations = routes.iter().flat_map(operations_of).collect();
        let router = routes
            .into_iter()
            .fold(Router::new(), |router, route| router.route(route.path, route.handlers));
        let router =
            router.method_not_allowed_fallback(method_not_allowed).with_state(shared.clone());
        Self { shared, router, paths, operations, audit: None, traces: None }
    }

    /// Adds an audit trail.
    #[must_use]
    pub fn with_audit(self, audit: Option<Audit>) -> Self {
        Self { audit, ..self }
    }

    /// Adds spans of the requests that submit tasks.
    #[must_use]
    pub fn with_traces(self, traces: Option<Traces>) -> Self {
        Self { traces, ..self }
    }

    /// Returns the seal of cursors, which waits for the secret of the cluster.
    pub fn cursors(&self) -> Arc<Cursors> {
        self.shared.cursors.clone()
    }

    pub fn shared(&self) -> &Arc<ApiShared> {
        &self.shared
    }

    pub fn settings(&self) -> &ApiSettings {
        &self.shared.settings
    }

    pub fn metrics(&self) -> &ApiMetrics {
        &self.shared.metrics
    }

    pub fn log_refused_caller(&self, limit: &'static str, address: IpAddr) {
        self.shared.log_refused_caller(limit, address);
    }

    /// Makes the place of a request whose header came over `connection`.
    pub fn place(&self, connection: &Arc<CallerConnection>, is_multiplexed: bool) -> RequestPlace {
        RequestPlace::new(self.shared.clone(), connection.clone(), is_multiplexed)
    }

    /// Answers one request. Never fails, and survives a panic of its handler.
    pub async fn answer(
        &self,
        mut place: RequestPlace,
        request: Request<Body>,
    ) -> axum::http::Response<Answer> {
        let route = label_of(&self.paths, request.uri().path());
        let seen = SeenRequest::of(&request, route);
        let id = seen.id.clone();
        let (method, is_head) = (seen.method, request.method() == Method::HEAD);
        let operation = self.operation_of(route, request.method());
        let is_api = request.uri().path().starts_with("/v1/");
        let only_shows = is_head || request.method() == Method::GET;
        // The span has the level of the log lines within, so that it costs nothing when these are
        // off.
        let span = tracing::debug_span!("request", request_id = %id);
        let asked = operation.map(|operation| (operation, request.method()));
        let mut audited =
            AuditedRequest::new(self.audit.as_ref(), id.as_str(), place.address(), asked);
        let caller = place.caller();
        let tell = |response: &mut Response| {
            let problem = response.extensions_mut().remove::<Arc<Problem>>();
            let kind = problem.as_ref().map(|problem| problem.kind());
            let limit = problem.as_ref().and_then(|problem| problem.limit());
            let status = response.status();
            debug_assert!(
                is_told(operation, kind, status),
                "{route} {method} does not tell of {status}, {problem:?}"
            );
            if let Some(problem) = problem {
                if let Some(limit) = limit {
                    self.shared.metrics.rejected(limit);
                    if limit == BODY_MEMORY_SHARE {
                        self.log_refused_caller(limit, caller);
                    }
                }
                problem.write(response, id.as_str(), is_head);
            }
            (kind, limit)
        };
        let mut response = {
            // Pinned here, so that the large future is not moved once more.
            let responding =
                pin!(self.respond((&mut place, &mut audited), (route, operation), request, &id));
            responding.instrument(span.clone()).await
        };
        self.throttle_denials(place.caller(), &mut audited, &mut response);
        // The problem is written before the size is measured: it may show a task with its payload.
        let (mut kind, mut limit) = tell(&mut response);
        let size = response.body().size_hint().lower();
        let has_changed_nothing = only_shows || response.status().is_client_error();
        if place.must_hold(size)
            && let Err(problem) = place.hold_answer(size, has_changed_nothing).await
        {
            response = problem.into_response();
            (kind, limit) = tell(&mut response);
        }
        audited.count(response.status(), limit);
        if let Err(problem) = audited.finish(response.status(), kind).await {
            response = problem.into_response();
            tell(&mut response);
        }
        if is_api {
            // Answers may hold payloads, which belong into no cache.
            let headers = response.headers_mut();
            headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
            let no_sniff = HeaderValue::from_static("nosniff");
            headers.insert(header::X_CONTENT_TYPE_OPTIONS, no_sniff);
        }
        self.finish(place, response, seen).await
    }

    /// Begins the span of a request that submits tasks, and makes it the parent of their traces. An
    /// unrecorded span changes nothing: the tasks carry the trace of the caller.
    fn begin_span(
        &self,
        operation: Option<&Operation>,
        route: &'static str,
        request: &mut Request<Body>,
    ) -> Option<SubmitSpan> {
        let traces = self.traces.as_ref()?;
        operation.filter(|operation| SUBMITS.contains(&operation.id))?;
        let caller = RequestTrace::of_caller(request.headers());
        let names = caller.as_ref().map(|caller| (caller.parent(), caller.state()));
        let span = traces.submit(names, (method_label(request.method()), route))?;
        request.extensions_mut().insert(RequestTrace::of_span(&span, caller));
        Some(span)
    }

    /// Makes the answer out of a response, and counts it.
    pub async fn finish(
        &self,
        mut place: RequestPlace,
        mut response: Response,
        seen: SeenRequest,
    ) -> axum::http::Response<Answer> {
        let SeenRequest { started, route, method, version, may_read_rest, id } = seen;
        let span = tracing::debug_span!("request", request_id = %id);
        let is_last = place.settle_rest(may_read_rest).await;
        if is_last || (version < Version::HTTP_2 && self.shared.service.is_draining()) {
            // The rest of a body stands where the next request would begin. And the callers of a
            // draining node should go to another node.
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response.headers_mut().insert(REQUEST_ID, id.into_header());
        let took = clock::monotonic().since(started);
        self.shared.metrics.answered(route, method, response.status(), took);
        let _in_span = span.enter();
        tracing::debug!(
            route,
            method,
            status = response.status().as_u16(),
            ?took,
            caller = %place.caller(),
            "answered"
        );
        response.map(|body| Answer::new(body, place))
    }

    /// Makes a call for the reader of a page of the console, who is identified already. It is
    /// limited and audited as a request of its own.
    pub async fn call(
        &self,
        (caller, place): (&Caller, &RequestPlace),
        mut request: Request<Body>,
    ) -> Result<Response, Arc<Problem>> {
        let route = label_of(&self.paths, request.uri().path());
        let operation = self.operation_of(route, request.method());
        let access = operation.map_or(Access::Known, |operation| operation.access);
        let reading = Reading::of(operation, request.method());
        let id = RequestId::of(request.headers());
        let asked = operation.map(|operation| (operation, request.method()));
        let mut audited =
            AuditedRequest::new(self.audit.as_ref(), id.as_str(), place.address(), asked);
        audited.is_known = self.is_known(caller);
        audited.counts = Some(caller.principal.counts.clone());
        let policy = self.shared.policy.current();
        let guard = Guard::of(&policy, caller.clone(), access, &audited.trail);
        let begun = guard.and_then(|guard| {
            let in_progress = limits::begin(&self.shared.policy, guard.caller(), reading)?;
            audited.reserve().map(|()| (guard, in_progress))
        });
        let mut response = match begun {
            Ok(_) if route == NO_ROUTE => self.no_such_path(request.uri().path()).into_response(),
            Ok((guard, _in_progress)) => {
                request.extensions_mut().insert(guard);
                share_memory(place, &mut request);
                let response = self.route(request, &id).await;
                self.charge(caller, reading, &response);
                response
            }
            Err(problem) => problem.into_response(),
        };
        self.throttle_denials(place.caller(), &mut audited, &mut response);
        let problem = response.extensions_mut().remove::<Arc<Problem>>();
        let kind = problem.as_ref().map(|problem| problem.kind());
        let limit = problem.as_ref().and_then(|problem| problem.limit());
        if let Some(limit) = limit {
            self.shared.metrics.rejected(limit);
        }
        audited.count(response.status(), limit);
        audited.finish(response.status(), kind).await?;
        problem.map_or(Ok(response), Err)
    }

    /// Counts a failed login, and writes the line in the audit trail. With `is_unjudged`, the keys
    /// of the token's issuer are missing.
    pub async fn deny_login(
        &self,
        place: &RequestPlace,
        id: &RequestId,
        is_unjudged: bool,
    ) -> Arc<Problem> {
        let mut audited =
            AuditedRequest::new(self.audit.as_ref(), id.as_str(), place.address(), None);
        audited.is_unjudged = is_unjudged;
        let denial = || match is_unjudged {
            true => Problem::keys_missing(),
            false => Problem::unauthenticated(true),
        };
        let mut response = denial().into_response();
        self.throttle_denials(place.caller(), &mut audited, &mut response);
        let problem = response.extensions_mut().remove::<Arc<Problem>>();
        let problem = problem.unwrap_or_else(|| Arc::new(denial()));
        match audited.finish(response.status(), Some(problem.kind())).await {
            Ok(()) => problem,
            Err(unwritten) => Arc::new(unwritten),
        }
    }

    /// Makes the problem for a path without a route at this port.
    fn no_such_path(&self, path: &str) -> Problem {
        match self.settings().port {
            Port::Public if !Port::Public.has(path) => Problem::new(
                ProblemType::NotFound,
                "only the operator port of the node has this path (--operator-listen)",
            ),
            Port::Operator => Problem::new(
                ProblemType::NotFound,
                "this is the operator port, with /livez, /readyz, /metrics and /v1/cluster alone; \
                 ask the other port of the node (--listen)",
            ),
            Port::Sole | Port::Public => Problem::no_such_path(),
        }
    }

    fn is_known(&self, caller: &Caller) -> bool {
        caller.credential != CredentialId::Anonymous || self.shared.policy.current().is_open()
    }

    async fn respond(
        &self,
        (place, audited): (&mut RequestPlace, &mut AuditedRequest),
        (route, operation): (&'static str, Option<&'static Operation>),
        mut request: Request<Body>,
        id: &RequestId,
    ) -> Response {
        let begun = self.begin((&mut *place, &mut *audited), (route, operation), &request);
        match begun.and_then(|guard| audited.reserve().map(|()| guard)) {
            // axum would take an empty part of a path for an id.
            Ok(_) if route == NO_ROUTE => self.no_such_path(request.uri().path()).into_response(),
            Ok(guard) => {
                let reading = Reading::of(operation, request.method());
                let caller = guard.caller().clone();
                request.extensions_mut().insert(guard);
                share_memory(place, &mut request);
                let span = self.begin_span(operation, route, &mut request);
                let response = self.route(request, id).await;
                self.charge(&caller, reading, &response);
                if let Some(span) = span {
                    let location = response.headers().get(header::LOCATION);
                    let task_id = location.and_then(|path| path.to_str().ok()?.rsplit('/').next());
                    span.end(response.status().as_u16(), id.as_str(), task_id);
                }
                response
            }
            Err(problem) => {
                place.give_back();
                problem.into_response()
            }
        }
    }

    fn charge(&self, caller: &Caller, reading: Reading, response: &Response) {
        if reading == Reading::IfUnchanged {
            limits::charge_unchanged(&self.shared.policy, caller, response);
        }
    }

    /// Replaces the answer to a caller without a credential that was denied too often. A hidden
    /// task keeps its answer, because an absent one has the same; it has no line.
    fn throttle_denials(
        &self,
        address: IpAddr,
        audited: &mut AuditedRequest,
        response: &mut Response,
    ) {
        let problem = response.extensions().get::<Arc<Problem>>().map(|problem| problem.kind());
        let Some(kind) = problem.filter(|kind| audited.denies_unknown(*kind)) else { return };
        let counted = self.shared.denials.count(address, clock::monotonic());
        let Err(retry_after) = counted else { return };
        audited.has_no_line = true;
        self.shared.log_refused_caller("denials", address);
        if audited.is_unjudged {
            *response = Problem::keys_missing_too_often().into_response();
        } else if kind != ProblemType::TaskNotFound {
            *response = Problem::denied_too_often(retry_after).into_response();
        }
    }

    fn operation_of(&self, route: &'static str, method: &Method) -> Option<&'static Operation> {
        let method = if method == Method::HEAD { &Method::GET } else { method };
        self.operations
            .iter()
            .find(|(path, of, _)| *path == route && of == method)
            .map(|(_, _, operation)| *operation)
    }

    /// Takes a place among the requests in flight, and identifies the caller. Probes have their own
    /// places, and are answered even while the node drains.
    fn begin(
        &self,
        (place, audited): (&mut RequestPlace, &mut AuditedRequest),
        (route, operation): (&'static str, Option<&'static Operation>),
        request: &Request<Body>,
    ) -> Result<Guard, Problem> {
        self.check_size(request)?;
        let access = operation.map_or(Access::Known, |operation| operation.access);
        if !operation.is_some_and(Operation::answers_any_host) {
            self.shared.settings.hosts.check(request)?;
        }
        if access != Access::Open {
            hosts::check_origin(request)?;
        }
        let purpose = match route {
            "/livez" | "/readyz" => PlacePurpose::Health,
            "/metrics" => PlacePurpose::Metrics,
            "/openapi.json" | "/problems" | "/problems/{slug}" => PlacePurpose::Documents,
            _ => PlacePurpose::Work,
        };
        self.take_place(place, purpose)?;
        let policy = self.shared.policy.current();
        let caller = Guard::identify(&policy, access, Proofs::of(request), || self.shared.now())
            .inspect_err(|denied| {
                audited.is_unjudged = denied.kind() == ProblemType::Unavailable;
            })?;
        audited.is_known = self.is_known(&caller);
        if purpose == PlacePurpose::Work {
            audited.counts = Some(caller.principal.counts.clone());
        }
        let guard = Guard::of(&policy, caller, access, &audited.trail)?;
        if purpose == PlacePurpose::Work {
            let reading = Reading::of(operation, request.method());
            place.count(limits::begin(&self.shared.policy, guard.caller(), reading)?);
        }
        Ok(guard)
    }

    /// Takes a place for a page of the console.
    pub fn begin_page(
        &self,
        place: &mut RequestPlace,
        request: &Request<Body>,
    ) -> Result<(), Problem> {
        self.check_size(request)?;
        self.shared.settings.hosts.check(request)?;
        self.take_place(place, PlacePurpose::Work)
    }

    fn check_size(&self, request: &Request<Body>) -> Result<(), Problem> {
        let header_bytes_max = self.shared.settings.header_bytes_max;
        if size_of(request) > header_bytes_max {
            self.shared.metrics.rejected("header_bytes");
            return Err(Problem::header_too_large(header_bytes_max));
        }
        Ok(())
    }

    fn take_place(&self, place: &mut RequestPlace, purpose: PlacePurpose) -> Result<(), Problem> {
        if purpose == PlacePurpose::Work && self.shared.service.is_draining() {
            self.shared.metrics.rejected("draining");
            return Err(Problem::draining());
        }
        place.take(purpose)
    }

    async fn route(&self, request: Request<Body>, id: &RequestId) -> Response {
        let answer = AssertUnwindSafe(self.router.clone().oneshot(request)).catch_unwind().await;
        match answer {
            Ok(Ok(response)) => response,
            Ok(Err(never)) => match never {},
            Err(_panic) => {
                // The panic hook has logged the place. A request that meets a bug must not end this
                // node, nor the next node when it is sent again.
                tracing::error!(request_id = %id, "a handler panicked; the answer is 500");
                Problem::new(
                    ProblemType::Internal,
                    "the node hit a bug; whether anything was done is unknown",
                )
                .into_response()
            }
        }
    }
}

/// Gives a request with a body the caller's share of the memory of bodies.
fn share_memory(place: &RequestPlace, request: &mut Request<Body>) {
    if !request.body().is_end_stream() {
        request.extensions_mut().insert(place.memory_share());
    }
}

/// True when the OpenAPI document lists this answer.
fn is_told(
    operation: Option<&Operation>,
    problem: Option<ProblemType>,
    status: StatusCode,
) -> bool {
    match operation {
        Some(operation) => operation.tells_of(status, problem),
        None => matches!(problem, Some(kind) if OF_NO_OPERATION.contains(&kind)),
    }
}

/// Returns the bytes of a request's header, counted as HTTP/2 does. The limit is thus the same for
/// both versions.
fn size_of(request: &Request<Body>) -> usize {
    let fields = |headers: &HeaderMap| {
        headers
            .iter()
            .map(|(name, value)| name.as_str().len() + value.len() + FIELD_BYTES)
            .sum::<usize>()
    };
    let uri = request.uri();
    uri.path().len() + uri.query().map_or(0, str::len) + fields(request.headers())
}

async fn method_not_allowed(method: Method) -> Problem {
    let method: String = method.as_str().chars().take(20).collect();
    Problem::new(
        ProblemType::MethodNotAllowed,
        format!("this path does not support {method}; the header Allow lists the methods"),
    )
}
