//! Releases the limits of resolved tasks, and sets the gauges of the batches in flight.

use std::sync::Arc;
use std::time::Duration;

use az::SaturatingAs as _;
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::node::shared::NodeShared;
use crate::shutdown::TaskFailure;

const INTERVAL: Duration = Duration::from_millis(250);
/// Incomplete batches are eased after this time in flight. A task takes little more than the window
/// from claim to acknowledgement.
const EASED_AFTER: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub struct InFlightKeeper {
    pub shared: Arc<NodeShared>,
    pub stopping: CancellationToken,
}

impl InFlightKeeper {
    /// Runs until the node stops.
    pub async fn run(self) -> Result<(), TaskFailure> {
        loop {
            tokio::select! {
                () = self.stopping.cancelled() => return Ok(()),
                () = clock::sleep(INTERVAL) => {}
            }
            self.shared.in_flight.ease(clock::monotonic(), EASED_AFTER);
            self.show();
        }
    }

    fn show(&self) {
        let (amount, metrics) = (self.shared.in_flight.amount(), &self.shared.metrics);
        metrics.in_flight_tasks.set(amount.tasks.saturating_as());
        metrics.in_flight_bytes.set(amount.bytes.saturating_as());
        metrics.in_flight_batches.set(amount.batches.saturating_as());
        metrics.remembered_batches.set(amount.remembered.saturating_as());
    }
}
