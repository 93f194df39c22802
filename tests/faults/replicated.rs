//! Breaks servers that have replicas. Each operation ends when all replicas are in sync again, so
//! that the next one has a replica to turn to.

use super::field::Field;
use super::plan::Operation;
use super::replicated_plan::Replicated;
use crate::support::{now_ms, wait};

/// The services of the brokers, in the order of their numbers.
const BROKERS: [&str; 3] = ["kafka", "kafka2", "kafka3"];

/// Carries out an operation on a replicated stack.
pub async fn carry_out(field: &Field, kind: Replicated, operation: &Operation) {
    let lasts = i64::try_from(operation.lasts).unwrap();
    match kind {
        Replicated::PostgresFailover => {
            field.own.lose_primary().await;
            wait::until(now_ms() + lasts).await;
            field.own.promote().await;
            standby_follows(field).await;
        }
        Replicated::BrokerLost => {
            let broker = BROKERS[usize::try_from(operation.by).unwrap() - 1];
            field.own.kill(broker).await;
            wait::until(now_ms() + lasts).await;
            field.own.start_again(broker).await;
            field.cluster.wait_in_sync().await;
        }
        Replicated::BrokersRestarted => {
            for broker in BROKERS {
                field.own.stop(broker).await;
                field.own.start_again(broker).await;
                field.cluster.wait_in_sync().await;
            }
        }
    }
}

/// Waits until the standby of Postgres has all that the primary has, if there is one. Until then a
/// commit waits, and a failover would lose what the standby has not got.
pub async fn standby_follows(field: &Field) {
    if field.own.is_replicated() {
        field.own.follow_primary().await;
    }
}
