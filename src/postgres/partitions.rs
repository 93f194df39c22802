//! Reads the partitions in the catalog, and creates missing ones.

pub(super) mod locks;
pub mod mover;
pub mod retire;

use std::collections::BTreeSet;

use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection as _, Row};

use self::locks::{HeldFor, MAINTENANCE};
use super::{Connection, PostgresError};
use crate::domain::leaves::{Parent, Partition, Rules};
use crate::domain::{Timestamp, ids};

/// The partitions of one table, by their start.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Census {
    pub attached: BTreeSet<Timestamp>,
    /// A detach has begun and not ended: no query sees their rows.
    pub detaching: BTreeSet<Timestamp>,
    /// Tables with the name of a partition that are not attached.
    pub orphans: BTreeSet<Timestamp>,
}

/// Returns the partitions of `parent` in the catalog, and Postgres's clock at that moment.
pub async fn take_census(
    connection: &mut Connection,
    parent: Parent,
) -> Result<(Census, Timestamp), PostgresError> {
    let what = format!("read the partitions of {}", parent.table());
    connection.run(&what, async |open| census_of(open, parent).await).await
}

async fn census_of(
    open: &mut PgConnection,
    parent: Parent,
) -> Result<(Census, Timestamp), sqlx::Error> {
    // The clock is read first, so the catalog is at least as new.
    let now: i64 = sqlx::query_scalar(
        "-- clock\nselect (extract(epoch from clock_timestamp()) * 1000000)::bigint",
    )
    .fetch_one(&mut *open)
    .await?;
    let rows = sqlx::query(
        "-- partitions
        select c.relname::text as name, i.inhrelid is not null as is_part,
          coalesce(i.inhdetachpending, false) as is_detaching
        from pg_class p
        join pg_class c on c.relnamespace = p.relnamespace and c.relkind = 'r'
          and starts_with(c.relname::text, $1 || '_')
        left join pg_inherits i on i.inhrelid = c.oid
        where p.oid = to_regclass($1)",
    )
    .bind(parent.table())
    .fetch_all(open)
    .await?;
    let mut census = Census::default();
    for row in rows {
        let name: String = row.try_get("name")?;
        let Some(partition) = Partition::of_name(parent, &name) else { continue };
        let of_its_kind = match (row.try_get("is_part")?, row.try_get("is_detaching")?) {
            (false, _) => &mut census.orphans,
            (true, true) => &mut census.detaching,
            (true, false) => &mut census.attached,
        };
        of_its_kind.insert(partition.start);
    }
    Ok((census, Timestamp::from_micros(now)))
}

/// Maximum number of partitions created in one transaction. Each takes a few locks and about 4 ms.
const CREATE_MAX: usize = 32;

/// Creates `partitions` and attaches them, in their order. An existing table is attached. Returns
/// false when another node is creating partitions: the next census will show them. An attach does
/// not wait for inserts, claims or reads.
pub async fn create(
    connection: &mut Connection,
    rules: &Rules,
    partitions: &[Partition],
) -> Result<bool, PostgresError> {
    for some in partitions.chunks(CREATE_MAX) {
        if !create_some(connection, rules, some).await? {
            return Ok(false);
        }
    }
    Ok(true)
}

async fn create_some(
    connection: &mut Connection,
    rules: &Rules,
    partitions: &[Partition],
) -> Result<bool, PostgresError> {
    let what = partitions.first().map_or_else(String::new, |first| {
        format!("create {} partitions from {} on", partitions.len(), first.name())
    });
    let created = connection
        .run(&what, async |open| {
            let mut transaction = open.begin().await?;
            if !locks::take(&mut transaction, MAINTENANCE, HeldFor::Transaction).await? {
                transaction.rollback().await?;
                return Ok(false);
            }
            for partition in partitions {
                create_one(&mut transaction, rules, *partition).await?;
            }
            transaction.commit().await?;
            Ok(true)
        })
        .await;
    match created {
        // Without the lock, because a stranger has it, two nodes may create the same partition.
        Err(error) if error.is_concurrent_create() => Ok(false),
        created => created,
    }
}

async fn create_one(
    transaction: &mut PgConnection,
    rules: &Rules,
    partition: Partition,
) -> Result<(), sqlx::Error> {
    let name = partition.name();
    let parents: Vec<bool> = sqlx::query_scalar(
        "-- is there a partition\n\
         select exists (select from pg_inherits where inhrelid = c.oid) from pg_class c where \
         c.oid = to_regclass($1)",
    )
    .bind(&name)
    .fetch_all(&mut *transaction)
    .await?;
    match parents.first() {
        None => {
            let (table, bounds) = (partition.parent.table(), PartitionBounds::of(rules, partition));
            let check = bounds.check();
            let storage = storage_of(partition.parent);
            execute(
                transaction,
                format!("create table {name} (like {table} including all, {check}) {storage}"),
            )
            .await?;
            if partition.parent == Parent::ExeclogBatch {
                execute(transaction, without_statistics(&name)).await?;
            }
            execute(transaction, attach_statement(rules, partition)).await
        }
        Some(false) => execute(transaction, attach_statement(rules, partition)).await,
        // Another node created it after the census.
        Some(true) => Ok(()),
    }
}

/// Turns statistics of the arrays off. No plan depends on them, and an analyze would count their
/// elements: 16 s of CPU for 6,000 batches of 1,000 tasks, instead of 0.25 s.
fn without_statistics(name: &str) -> String {
    const ARRAYS: [&str; 15] = [
        "ids",
        "first_ids",
        "attempts",
        "names",
        "topic_names",
        "topic_indexes",
        "outcomes",
        "partitions",
        "offsets",
        "published_ats",
        "next_ids",
        "submitted_by",
        "submitted_ats",
        "trackings",
        "moved_tos",
    ];
    let columns: Vec<String> =
        ARRAYS.iter().map(|column| format!("alter column {column} set statistics 0")).collect();
    format!("alter table {name} {}", columns.join(", "))
}

/// Runs a statement whose text only contains names and bounds of partitions.
pub(super) async fn execute(open: &mut PgConnection, statement: String) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(open).await.map(|_done| ())
}

pub(super) fn attach_statement(rules: &Rules, partition: Partition) -> String {
    let PartitionBounds { from, to, .. } = PartitionBounds::of(rules, partition);
    format!(
        "alter table {} attach partition {} for values from ({from}) to ({to})",
        partition.parent.table(),
        partition.name()
    )
}

/// Leaves and hours are never vacuumed. Their rows vanish with the whole partition soon, no
/// transaction id grows old in them, and without statistics the planner keeps using the index (with
/// them, sweeps read whole leaves). Days of the execlog are vacuumed as usual, because each settle
/// leaves a dead row.
const fn storage_of(parent: Parent) -> &'static str {
    match parent {
        Parent::Task | Parent::ExeclogPayload => {
            "with (autovacuum_enabled = false, toast.autovacuum_enabled = false)"
        }
        Parent::ExeclogBatch
        | Parent::ExeclogCancelled
        | Parent::ExeclogRedriven
        | Parent::ExeclogEnded
        | Parent::ExeclogDropped
        | Parent::ExeclogFinished
        | Parent::ExeclogAttempt => "",
    }
}

/// The bounds of a partition as SQL.
struct PartitionBounds {
    column: &'static str,
    from: String,
    to: String,
}

impl PartitionBounds {
    fn of(rules: &Rules, partition: Partition) -> Self {
        let (from, to) = (partition.start, rules.end_of(partition));
        let id = |at| format!("'{}'", ids::floor_of(at));
        let time = |at: Timestamp| format!("to_timestamp({})", at.as_millis() / 1000);
        match partition.parent {
            Parent::Task => Self { column: "id", from: id(from), to: id(to) },
            Parent::ExeclogBatch | Parent::ExeclogPayload => {
                Self { column: "batch", from: id(from), to: id(to) }
            }
            Parent::ExeclogCancelled => {
                Self { column: "cancelled_at", from: time(from), to: time(to) }
            }
            Parent::ExeclogRedriven => {
                Self { column: "redriven_at", from: time(from), to: time(to) }
            }
            Parent::ExeclogEnded => Self { column: "ended_at", from: time(from), to: time(to) },
            Parent::ExeclogDropped => Self { column: "dropped_at", from: time(from), to: time(to) },
            Parent::ExeclogFinished => {
                Self { column: "finished_at", from: time(from), to: time(to) }
            }
            Parent::ExeclogAttempt => Self { column: "at", from: time(from), to: time(to) },
        }
    }

    /// Returns the check constraint that makes attaching the partition quick: its rows need not be
    /// read.
    fn check(&self) -> String {
        let Self { column, from, to } = self;
        format!("check ({column} >= {from} and {column} < {to})")
    }
}
