//! A service that callbacks call. It answers at once.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use hyper::Method;
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::Deliveries;
use crate::bench::load::rest::{RestTarget, json, told};
use crate::bench::run::{millis, now};
use crate::domain::TopicName;

/// The callback, and the address of its service.
#[derive(Clone, Debug)]
pub struct ServicePlan {
    pub topic: TopicName,
    /// The nodes must be allowed to call it.
    pub listen: SocketAddr,
    pub concurrency: u16,
    /// The time to run of the tasks. It leads from `punctual-finish-by` back to the append.
    pub ttr: Duration,
}

/// The called service. The callback is set until [`Self::end`].
#[derive(Debug)]
pub struct CalledService {
    path: String,
    rest: RestTarget,
    _server: JoinSet<std::io::Result<()>>,
}

#[derive(Serialize)]
struct NewCallback {
    url: String,
    concurrency: u16,
}

struct Called {
    deliveries: Arc<Deliveries>,
    ttr_ms: i64,
}

impl CalledService {
    /// Starts the service, and sets the callback of the topic.
    ///
    /// # Errors
    /// Returns the reason as text when the address is taken, when the topic has a callback, or when
    /// a node refuses the new one.
    pub async fn start(
        plan: &ServicePlan,
        rest: &RestTarget,
        deliveries: &Arc<Deliveries>,
    ) -> Result<Self, String> {
        let listener = TcpListener::bind(plan.listen)
            .await
            .map_err(|error| format!("--listen {}: {error}", plan.listen))?;
        let called = Called { deliveries: Arc::clone(deliveries), ttr_ms: millis(plan.ttr) };
        let router = Router::new().fallback(take).with_state(Arc::new(called));
        let mut server = JoinSet::new();
        server.spawn(async move { axum::serve(listener, router).await });
        let path = format!("/v1/topics/{}/callback", plan.topic);
        let service = Self { path, rest: rest.clone(), _server: server };
        if service.call(Method::GET, bytes::Bytes::new()).await.is_ok() {
            return Err(format!("{} has a callback: choose another topic", plan.topic));
        }
        let url = format!("http://{}/", plan.listen);
        let body = json(&NewCallback { url, concurrency: plan.concurrency })?;
        service.call(Method::PUT, body).await?;
        Ok(service)
    }

    /// Ends the callback.
    ///
    /// # Errors
    /// Returns the reason as text.
    pub async fn end(self) -> Result<(), String> {
        self.call(Method::DELETE, bytes::Bytes::new()).await
    }

    async fn call(&self, method: Method, body: bytes::Bytes) -> Result<(), String> {
        let answer = self.rest.connection(0)?.call(method, &self.path, body).await?;
        if (200..300).contains(&answer.status) { Ok(()) } else { Err(told(&answer)) }
    }
}

async fn take(State(called): State<Arc<Called>>, headers: HeaderMap) -> StatusCode {
    let at = now();
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let finish_by = header("punctual-finish-by").and_then(|value| value.parse::<i64>().ok());
    match (header("punctual-key"), finish_by) {
        (Some(key), Some(finish_by)) => {
            called.deliveries.delivered(key.as_bytes(), finish_by - called.ttr_ms, at);
            StatusCode::NO_CONTENT
        }
        _ => StatusCode::BAD_REQUEST,
    }
}
