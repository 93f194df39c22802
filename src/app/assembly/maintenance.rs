//! Starts the maintenance of the tables of a node: its partitions, and the entries of names.

use std::sync::Arc;
use std::time::Duration;

use super::Site;
use crate::clock::{self, ClusterClock};
use crate::domain::leaves::Rules;
use crate::error_chain::chain;
use crate::node::maintenance::{self, Leaves, Maintenance};
use crate::node::requests::service::Service;
use crate::postgres::tasks::names::Names;

/// Pause between attempts to create the partitions.
const PARTITIONS_RETRY: Duration = Duration::from_millis(500);

impl Site<'_> {
    /// Ensures that leaves exist before a task is inserted or claimed, and continues to maintain
    /// them. Returns false when the node is told to stop first.
    pub(super) async fn keep_partitions(
        &self,
        leaves: &Arc<Leaves>,
        clock: &Arc<ClusterClock>,
        service: &Service,
    ) -> bool {
        let retention = &self.settings.retention;
        let rules = Rules {
            payload_retention: retention.payloads,
            receipt_retention: retention.receipts,
            ..Rules::new(&self.cluster)
        };
        let metrics = self.parts.maintenance_metrics.clone();
        let mut maintenance =
            Maintenance::new(&self.parts.postgres, rules, Arc::clone(leaves), metrics);
        let draining = &self.tasks.draining;
        loop {
            // A round may be cut off anywhere.
            let Some(made) = draining.run_until_cancelled(maintenance.make_all()).await else {
                return false;
            };
            let reason = match made {
                Ok(true) => break,
                Ok(false) => {
                    tracing::info!("another node creates the partitions; waiting for them");
                    "another node creates the partitions".to_owned()
                }
                Err(error) => {
                    let reason = chain(&error);
                    tracing::warn!(error = reason, "make partitions; trying again");
                    format!("cannot create the partitions: {reason}")
                }
            };
            service.waits_for(self.parts.missing(reason));
            tokio::select! {
                () = clock::sleep(PARTITIONS_RETRY) => {}
                () = draining.cancelled() => return false,
            }
        }
        maintenance::start(self.tasks, &self.parts.postgres, maintenance, clock);
        true
    }

    pub(super) fn free_names(&self, names: &Arc<Names>, clock: &Arc<ClusterClock>) {
        let interval = Rules::new(&self.cluster).interval();
        let (names, clock, metrics) =
            (Arc::clone(names), Arc::clone(clock), self.parts.maintenance_metrics.clone());
        let sweeping =
            maintenance::sweep_names(names, clock, interval, metrics, self.tasks.stopping.clone());
        self.tasks.spawn("free names", sweeping);
    }
}
