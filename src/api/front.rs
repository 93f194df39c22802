//! What every request passes: bounds, measurement, and the router.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Method, Request, Version, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, delete, get, post};
use futures_util::FutureExt as _;
use tokio::sync::SemaphorePermit;
use tower::ServiceExt as _;

use super::metrics::{Counted, method_label};
use super::problem::Problem;
use super::problem_type::ProblemType;
use super::shared::Shared;
use super::{Metrics, Settings, bulk, cluster, health, lists, names, tasks};
use crate::clock;
use crate::node::service::Service;
use crate::telemetry::Registry;

/// The REST API, ready to answer requests. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Api {
    shared: Arc<Shared>,
    router: Router,
}

/// All routes. Literal ones stand before those with a parameter that would match them, too: the label of a request is the first that matches.
fn routes() -> [(&'static str, MethodRouter<Arc<Shared>>); 14] {
    [
        ("/v1/tasks", get(lists::tasks).post(tasks::submit)),
        ("/v1/tasks/batch", post(tasks::submit_batch)),
        ("/v1/tasks/counts", get(lists::counts)),
        ("/v1/tasks/cancel", post(bulk::cancel)),
        ("/v1/tasks/{id}", get(tasks::look_up).delete(tasks::cancel)),
        ("/v1/topics/{topic}/tasks/{name}", get(names::look_up).put(names::replace).delete(names::cancel)),
        ("/v1/dead", get(lists::dead)),
        ("/v1/dead/redrive", post(bulk::redrive_all)),
        ("/v1/dead/{id}", delete(bulk::drop_dead)),
        ("/v1/dead/{id}/redrive", post(bulk::redrive)),
        ("/v1/cluster", get(cluster::show)),
        ("/livez", get(health::livez)),
        ("/readyz", get(health::readyz)),
        ("/metrics", get(health::metrics)),
    ]
}

/// The paths of [`routes`], for the labels of metrics.
const ROUTES: [&str; 14] = [
    "/v1/tasks",
    "/v1/tasks/batch",
    "/v1/tasks/counts",
    "/v1/tasks/cancel",
    "/v1/tasks/{id}",
    "/v1/topics/{topic}/tasks/{name}",
    "/v1/dead",
    "/v1/dead/redrive",
    "/v1/dead/{id}",
    "/v1/dead/{id}/redrive",
    "/v1/cluster",
    "/livez",
    "/readyz",
    "/metrics",
];

impl Api {
    pub fn new(service: Service, settings: Settings, metrics: Metrics, registry: Arc<Registry>) -> Self {
        let shared = Arc::new(Shared::new(service, settings, metrics, registry));
        let router = routes().into_iter().fold(Router::new(), |router, (path, methods)| router.route(path, methods));
        let router = router.method_not_allowed_fallback(method_not_allowed).fallback(not_found).with_state(shared.clone());
        Self { shared, router }
    }

    pub fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    pub fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }

    /// Answers one request; never fails, and does not panic when a handler does.
    pub async fn answer(&self, request: Request<Body>) -> Response {
        let started = clock::monotonic();
        let shared = &*self.shared;
        let route = label_of(request.uri().path());
        let method = method_label(request.method());
        let version = request.version();
        let _counted = Counted::new(&shared.metrics.in_flight, 1);
        let mut response = match self.admit(route) {
            Ok(_permit) => self.route(request).await,
            Err(problem) => problem.into_response(),
        };
        if version < Version::HTTP_2 && shared.service.is_draining() {
            // So that callers which keep their connections go elsewhere.
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        let took = clock::monotonic().since(started);
        shared.metrics.answered(route, method, response.status(), took);
        tracing::debug!(route, method, status = response.status().as_u16(), ?took, "answered");
        response
    }

    /// Takes a place among the requests in flight. A probe always has one, and is answered while the node drains.
    fn admit(&self, route: &'static str) -> Result<Option<SemaphorePermit<'_>>, Problem> {
        if matches!(route, "/livez" | "/readyz" | "/metrics") {
            return Ok(None);
        }
        if self.shared.service.is_draining() {
            self.shared.metrics.rejected("draining");
            return Err(Problem::draining());
        }
        self.shared.requests.try_acquire().map(Some).map_err(|_none_left| {
            self.shared.metrics.rejected("requests_in_flight");
            Problem::busy("requests_in_flight")
        })
    }

    async fn route(&self, request: Request<Body>) -> Response {
        let answer = AssertUnwindSafe(self.router.clone().oneshot(request)).catch_unwind().await;
        match answer {
            Ok(Ok(response)) => response,
            Ok(Err(never)) => match never {},
            Err(_panic) => {
                // The panic hook has said where. One request that meets a bug must not take the node with it, nor, sent again, the next node.
                tracing::error!("a handler panicked; the request is answered 500");
                Problem::new(ProblemType::Internal, "the node met a bug; whether anything was done is unknown").into_response()
            }
        }
    }
}

async fn not_found() -> Problem {
    Problem::new(ProblemType::NotFound, "there is no such path; tasks are at /v1/tasks")
}

async fn method_not_allowed(method: Method) -> Problem {
    let method: String = method.as_str().chars().take(20).collect();
    Problem::new(
        ProblemType::MethodNotAllowed,
        format!("{method} is not for this path; the header Allow names the methods that are"),
    )
}

/// The route that a path belongs to, for metrics and logs: a path itself may hold names and ids.
fn label_of(path: &str) -> &'static str {
    ROUTES.into_iter().find(|route| matches_route(route, path)).unwrap_or("none")
}

fn matches_route(route: &str, path: &str) -> bool {
    let mut parts = path.split('/');
    let is_match = route.split('/').all(|part| match parts.next() {
        Some(given) => given == part || (part.starts_with('{') && !given.is_empty()),
        None => false,
    });
    is_match && parts.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_is_its_own_label() {
        let routes = routes().map(|(path, _)| path);
        assert_eq!(routes, ROUTES);
        for route in routes {
            assert_eq!(label_of(route), route);
        }
    }

    #[test]
    fn a_path_gets_the_label_of_its_route() {
        assert_eq!(label_of("/v1/tasks/01934b2e-7d3c-8017-9f2b-6a1c0e4d5b7f"), "/v1/tasks/{id}");
        for path in ["/", "", "/v1/tasks/", "/v1/tasks/a/b", "/v1", "/livez/"] {
            assert_eq!(label_of(path), "none", "{path}");
        }
    }
}
