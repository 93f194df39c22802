//! Reports whether the node is ready. The log says when that changes, and the metrics say which
//! requirements are missing.

use std::time::Duration;

use crate::clock;
use crate::domain::Monotonic;
use crate::node::messages::{NotReady, Requirement};
use crate::node::requests::service::Service;
use crate::shutdown::{TaskFailure, Tasks};
use crate::telemetry::{Family, Gauge, Registry};

/// Interval of the checks. A shorter interruption is logged by the module that has it.
const INTERVAL: Duration = Duration::from_millis(500);

#[derive(Clone, Debug, Default)]
pub struct ReadinessMetrics {
    ready: Gauge,
    missing: Family<[(&'static str, &'static str); 1], Gauge>,
}

impl ReadinessMetrics {
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        metrics.show(&[NotReady { what: Requirement::Postgres, why: String::new() }]);
        registry.register("punctual_ready", "1 while /readyz answers 200", metrics.ready.clone());
        registry.register(
            "punctual_missing",
            "1 while the node is not ready for this reason; else 0",
            metrics.missing.clone(),
        );
        metrics
    }

    fn show(&self, missing: &[NotReady]) {
        self.ready.set(i64::from(missing.is_empty()));
        for what in Requirement::ALL {
            let is_missing = missing.iter().any(|missing| missing.what == what);
            self.missing.get_or_create(&[("what", what.name())]).set(i64::from(is_missing));
        }
    }
}

/// Reports readiness until the node drains. The drain has its own log line.
pub async fn report(
    service: Service,
    metrics: ReadinessMetrics,
    tasks: Tasks,
) -> Result<(), TaskFailure> {
    let mut logged = LoggedReadiness { lacked: None, changed_at: clock::monotonic() };
    loop {
        let missing = service.missing();
        metrics.show(&missing);
        if tasks.draining.is_cancelled() {
            return Ok(());
        }
        logged.log(&missing, clock::monotonic());
        tokio::select! {
            () = clock::sleep(INTERVAL) => {}
            () = tasks.draining.cancelled() => {}
            () = tasks.stopping.cancelled() => return Ok(()),
        }
    }
}

struct LoggedReadiness {
    /// `None` before the node was ready for the first time. During a start, the waiting module logs
    /// the reason.
    lacked: Option<Vec<Requirement>>,
    changed_at: Monotonic,
}

impl LoggedReadiness {
    fn log(&mut self, missing: &[NotReady], now: Monotonic) {
        let lacks: Vec<Requirement> = missing.iter().map(|missing| missing.what).collect();
        if self.lacked.as_ref().map_or(!lacks.is_empty(), |lacked| *lacked == lacks) {
            return;
        }
        let after = now.since(self.changed_at);
        let reasons = || missing.iter().map(NotReady::to_string).collect::<Vec<_>>().join("; ");
        match &self.lacked {
            _ if lacks.is_empty() => tracing::info!(?after, "ready"),
            Some(lacked) if !lacked.is_empty() => {
                tracing::warn!(reasons = reasons(), ?after, "still not ready")
            }
            _ => tracing::warn!(reasons = reasons(), ?after, "not ready any more"),
        }
        (self.lacked, self.changed_at) = (Some(lacks), now);
    }
}
