//! Says in the log when the node becomes ready, and when it no longer is.

use std::time::Duration;

use crate::clock;
use crate::node::service::Service;
use crate::shutdown::{Failure, Tasks};

/// How often it is looked; what comes and goes in between is told by whatever it was.
const INTERVAL: Duration = Duration::from_millis(500);

/// Runs until the node drains: the log says that by itself.
pub async fn say(service: Service, tasks: Tasks) -> Result<(), Failure> {
    let mut was_ready = false;
    let mut changed_at = clock::monotonic();
    loop {
        let now = clock::monotonic();
        let missing = service.missing();
        let is_ready = missing.is_empty();
        if is_ready && !was_ready {
            tracing::info!(after = ?now.since(changed_at), "ready");
        } else if was_ready && !is_ready {
            let reasons: Vec<String> = missing.into_iter().map(|missing| format!("{}: {}", missing.what, missing.why)).collect();
            tracing::warn!(reasons = reasons.join("; "), after = ?now.since(changed_at), "not ready any more");
        }
        if was_ready != is_ready {
            (was_ready, changed_at) = (is_ready, now);
        }
        tokio::select! {
            () = clock::sleep(INTERVAL) => {}
            () = tasks.draining.cancelled() => return Ok(()),
            () = tasks.stopping.cancelled() => return Ok(()),
        }
    }
}
