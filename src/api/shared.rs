//! What the handlers share.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use tokio::sync::Semaphore;
use tokio::time::error::Elapsed;

use super::{Metrics, Settings};
use crate::clock;
use crate::domain::Monotonic;
use crate::node::service::Service;
use crate::telemetry::Registry;

/// What the handlers share.
#[derive(Debug)]
pub struct Shared {
    pub service: Service,
    pub settings: Settings,
    pub metrics: Metrics,
    pub registry: Arc<Registry>,
    /// The OpenAPI document.
    pub document: Bytes,
    /// Bytes that bodies may still take.
    pub body_memory: Semaphore,
    /// Requests that may still be taken in.
    pub requests: Semaphore,
}

impl Shared {
    pub fn new(service: Service, settings: Settings, metrics: Metrics, registry: Arc<Registry>, document: Bytes) -> Self {
        // One body of the largest size always fits, whatever the settings say.
        let body_memory_max = settings.body_memory_max.max(settings.body_bytes_max);
        let body_memory = Semaphore::new(body_memory_max.min(Semaphore::MAX_PERMITS));
        let requests = Semaphore::new(settings.requests_in_flight_max.min(Semaphore::MAX_PERMITS));
        Self { service, settings, metrics, registry, document, body_memory, requests }
    }

    /// When a request that has just arrived must be answered.
    pub fn deadline(&self) -> Deadline {
        Deadline::after(self.settings.request_deadline)
    }
}

/// When a request must be answered.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(Monotonic);

impl Deadline {
    pub fn after(span: Duration) -> Self {
        Self(clock::monotonic().plus(span))
    }

    /// Waits for `future` no longer than that.
    pub async fn hold<F: Future>(self, future: F) -> Result<F::Output, Elapsed> {
        tokio::time::timeout(self.0.since(clock::monotonic()), future).await
    }
}
