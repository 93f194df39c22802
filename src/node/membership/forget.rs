//! Deletes the heartbeats of nodes that are dead for long and hold nothing any more.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::error_chain::chain;
use crate::postgres;
use crate::postgres::cluster::heartbeat::Heartbeats;
use crate::shutdown::Failure;

const PAUSE: Duration = Duration::from_secs(300);
/// People may want to see that a node has died.
const AGE_MIN: Duration = Duration::from_secs(3600);

/// On a connection of its own, open for the moment: it must not hold a heartbeat up.
pub(super) async fn run(settings: postgres::Settings, ttl: Duration, stopping: CancellationToken) -> Result<(), Failure> {
    loop {
        tokio::select! {
            () = stopping.cancelled() => return Ok(()),
            () = clock::sleep(PAUSE) => {}
        }
        match Heartbeats::new(&settings, ttl).forget(AGE_MIN).await {
            Ok(0) => {}
            Ok(count) => tracing::info!(count, "forgot the heartbeats of dead nodes"),
            Err(error) => tracing::debug!(error = %chain(&error), "dead nodes are forgotten later"),
        }
    }
}
