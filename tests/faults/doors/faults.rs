//! Breaks the doors: the application's database, the intake topic, and the node between its store
//! and its commit.

use std::sync::atomic::Ordering;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions};
use rdkafka::client::DefaultClientContext;
use uuid::Uuid;

use super::{Doors, shop};
use crate::field::{Field, insist};
use crate::plan::{Kind, NODES, Operation};
use crate::support::wait::look_for;
use crate::support::{eventually_some, now_ms, wait};

const RESTART_DEADLINE: Duration = Duration::from_secs(180);
/// How long a node is looked for that is between its store and its commit. Servers may be down.
const HUNT_DEADLINE: Duration = Duration::from_secs(15);
const QUERY_DEADLINE: Duration = Duration::from_millis(500);
/// Producers and brokers know a new partition after this time.
const KNOWN_MS: i64 = 3000;

/// Carries out an operation on the doors.
pub async fn carry_out(field: &Field, operation: &Operation, lasts: i64) {
    let Some(doors) = &field.doors else { return };
    match operation.kind {
        Kind::ShopStop => {
            field.own.stop("shop").await;
            wait::until(now_ms() + lasts).await;
            field.own.start_again("shop").await;
        }
        Kind::ShopFreeze => {
            field.own.freeze_shop().await;
            wait::until(now_ms() + lasts).await;
            field.own.thaw_shop().await;
        }
        Kind::IntakePartitions => doors.add_partition().await,
        Kind::KillAtStore => doors.kill_at_store(field, lasts).await,
        _ => unreachable!("no operation on the doors alone: {operation}"),
    }
}

impl Doors {
    async fn add_partition(&self) {
        let count = self.partitions.load(Ordering::Relaxed) + 1;
        let admin: AdminClient<DefaultClientContext> = ClientConfig::new()
            .set("bootstrap.servers", &self.kafka)
            .create()
            .expect("create an admin client");
        let wanted = usize::try_from(count).unwrap();
        insist("the intake topic has one more partition", async || {
            let options = AdminOptions::new().request_timeout(Some(Duration::from_secs(10)));
            let new = NewPartitions::new(&self.intake, wanted);
            let made = admin.create_partitions([&new], &options).await;
            let failed = match made {
                Ok(results) if results.iter().all(Result::is_ok) => return Ok(()),
                other => format!("{other:?}"),
            };
            // The answer to an earlier request may have been lost.
            let known = admin.inner().fetch_metadata(Some(&self.intake), Duration::from_secs(2));
            let is_made = known.is_ok_and(|known| {
                known.topics().iter().any(|topic| topic.partitions().len() == wanted)
            });
            if is_made { Ok(()) } else { Err(failed) }
        })
        .await;
        wait::until(now_ms() + KNOWN_MS).await;
        self.partitions.store(count, Ordering::Relaxed);
    }

    /// Kills the node that drains the outbox while rows are stored and not deleted. Freezes the
    /// node before each look, so that the look still holds at the kill.
    async fn kill_at_store(&self, field: &Field, lasts: i64) {
        let killed = look_for(HUNT_DEADLINE, async || {
            for number in self.drainers().await {
                let slot = &field.slots[usize::from(number) - 1];
                slot.freeze().await;
                if self.has_stored_rows(field).await {
                    slot.kill().await;
                    return Some(number);
                }
                slot.thaw().await;
            }
            None
        })
        .await;
        let Some(number) = killed else { return };
        self.kills_at_store.fetch_add(1, Ordering::Relaxed);
        let slot = &field.slots[usize::from(number) - 1];
        wait::until(now_ms() + lasts).await;
        slot.start_again().await;
        eventually_some("the node listens again", RESTART_DEADLINE, async || slot.address()).await;
    }

    /// Returns the nodes that have a session in the application's database.
    async fn drainers(&self) -> Vec<u8> {
        let Some(mut sql) = self.shop.connect().await else { return Vec::new() };
        let query = "select distinct usename::text from pg_stat_activity
            where datname = current_database()";
        let query = sqlx::query_scalar::<_, String>(query);
        let roles = tokio::time::timeout(QUERY_DEADLINE, query.fetch_all(&mut sql)).await;
        let roles = roles.ok().and_then(Result::ok).unwrap_or_default();
        (1..=NODES).filter(|number| roles.contains(&shop::role_of(*number))).collect()
    }

    async fn has_stored_rows(&self, field: &Field) -> bool {
        let Some(mut sql) = self.shop.connect().await else { return false };
        let look = async {
            let stored: Vec<Uuid> = sqlx::query_scalar("select row_id from outbox_seen")
                .fetch_all(&field.cluster.sql)
                .await?;
            let query = "select count(*) from punctual.outbox where id = any($1)";
            sqlx::query_scalar::<_, i64>(query).bind(stored).fetch_one(&mut sql).await
        };
        let found = tokio::time::timeout(QUERY_DEADLINE, look).await;
        matches!(found, Ok(Ok(count)) if count > 0)
    }
}
