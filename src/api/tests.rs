//! Tests of the API as its callers see it, over a model of the node's service.

mod answers;
mod conditions;
mod connections;
mod early_answers;
mod interface;
mod limits;
mod packed;
mod slow_callers;
mod sockets;
mod streams;
mod traces;
mod wrong_requests;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, Request, StatusCode, header};
use http_body_util::BodyExt as _;
use serde_json::Value;

use super::callers::{CallerConnection, Callers};
use super::server::answer::Answer;
use super::server::console;
use super::{Api, ApiMetrics, ApiSettings, Hosts, Port};
use crate::access::{Policy, PolicyHandle};
use crate::domain::Monotonic;
use crate::node::requests::service::Service;
use crate::node::requests::service::model::Model;
use crate::telemetry::Registry;

type Response = axum::http::Response<Answer>;

impl Api {
    /// Answers a request over its own connection. All requests come from the same caller.
    async fn ask(&self, request: Request<Body>) -> Response {
        self.ask_of(&Callers::default(), request).await
    }

    async fn ask_of(&self, callers: &Callers, mut request: Request<Body>) -> Response {
        let is_probe = request.method() == "GET" && request.uri().path() == "/livez";
        if !is_probe && request.uri().authority().is_none() {
            let host = HeaderValue::from_static("a");
            request.headers_mut().entry(header::HOST).or_insert(host);
        }
        let caller = callers.enter([127, 0, 0, 1].into(), usize::MAX).unwrap();
        let connection = Arc::new(CallerConnection::new(caller, Monotonic::default()));
        let place = self.place(&connection, false);
        console::answer(self, place, request).await
    }
}

/// Limits wide enough for tests without limits of their own.
impl Default for ApiSettings {
    fn default() -> Self {
        Self {
            port: Port::Sole,
            dev: None,
            has_console: true,
            hosts: Hosts::new(([127, 0, 0, 1], 7070).into(), "http://a", &[]),
            body_bytes_max: 16 << 20,
            body_memory_max: 256 << 20,
            header_bytes_max: 16 << 10,
            batch_tasks_max: 10_000,
            requests_in_flight_max: 1024,
            caller_requests_max: 512,
            caller_denials_max: 1000,
            streams_max: 256,
            connections_max: 4096,
            caller_connections_max: 2048,
            header_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            request_deadline: Duration::from_secs(30),
            answer_timeout: Duration::from_secs(30),
        }
    }
}

fn api_of(settings: ApiSettings) -> (Api, Arc<Model>) {
    api_with(settings, PolicyHandle::new(Policy::open()))
}

fn api_with(settings: ApiSettings, policy: PolicyHandle) -> (Api, Arc<Model>) {
    let model = Arc::new(Model::default());
    let mut registry = Registry::default();
    let metrics = ApiMetrics::register(&mut registry);
    let service = Service::of_model(model.clone());
    let api = Api::new(service, settings, metrics, Arc::new(registry), policy);
    api.cursors().set_secret(b"a secret of tests");
    (api, model)
}

fn api() -> Api {
    api_of(ApiSettings::default()).0
}

fn draining_api() -> Api {
    let (api, model) = api_of(ApiSettings::default());
    model.is_draining.store(true, Ordering::Relaxed);
    api
}

fn request(
    method: &str,
    path: &str,
    content_type: Option<&str>,
    body: impl Into<Body>,
) -> Request<Body> {
    let request = Request::builder().method(method).uri(path);
    let request = content_type
        .into_iter()
        .fold(request, |request, value| request.header(header::CONTENT_TYPE, value));
    request.body(body.into()).unwrap()
}

fn post(path: &str, body: impl Into<Body>) -> Request<Body> {
    request("POST", path, Some("application/json"), body)
}

fn bare(method: &str, path: &str) -> Request<Body> {
    request(method, path, None, Body::empty())
}

async fn text_of(response: Response) -> String {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

async fn json_of(response: Response) -> Value {
    serde_json::from_str(&text_of(response).await).unwrap()
}

/// Returns the value of one line of `/metrics`.
async fn metric(api: &Api, line: &str) -> Option<String> {
    let text = text_of(api.ask(bare("GET", "/metrics")).await).await;
    text.lines().find_map(|found| found.strip_prefix(line)).map(|value| value.trim().to_owned())
}

fn header_of<'a>(response: &'a Response, name: &str) -> Option<&'a str> {
    response.headers().get(name).map(|value| value.to_str().unwrap())
}

/// Submits a task that must be accepted, and returns the answer.
async fn submit(api: &Api, task: &str) -> Value {
    let response = api.ask(post("/v1/tasks", task.to_owned())).await;
    assert_eq!(response.status(), StatusCode::CREATED);
    json_of(response).await
}
