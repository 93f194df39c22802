//! Migrates the schema, and checks it when a node starts.

use std::fmt;
use std::time::Duration;

use sqlx::migrate::Migrator;
use sqlx::postgres::PgConnection;
use sqlx::{Connection as _, Row};
use thiserror::Error as ThisError;

use super::migration_turn;
pub use super::{RefusedCluster, Secret};
use crate::clock;
use crate::domain::leaves::{Parent, Rules};
use crate::domain::time::duration::spelled;
use crate::domain::{ClusterSettings, ClusterWishes};
use crate::error_chain::chain;
use crate::postgres::connection::ConnectionPurpose;
use crate::postgres::connection::error::Cause;
use crate::postgres::partitions::{self, execute, take_census};
use crate::postgres::{Connection, PostgresError, PostgresSettings, cluster};

/// The migrations are embedded in the program.
static MIGRATIONS: Migrator = sqlx::migrate!();

/// The first word of the name of a migration, as in the file
/// `0021_from_0018_overlap_and_spread_of_schedules.sql`. Programs with 0018 or a later migration
/// can run on the schema. A program without the file reads the word in the database.
const FROM: &str = "from";

/// Migrations may rewrite tables. All other statements on a table queue behind a change of it that
/// waits for a reader, so each wait is short: see [`change_tables`].
const PURPOSE: ConnectionPurpose = ConnectionPurpose {
    name: "migrate",
    deadline: Duration::from_secs(600),
    settings: &[("lock_timeout", "1s")],
};
/// The pause after a wait for a lock in vain.
const LOCK_PAUSE: Duration = Duration::from_secs(5);
/// For how long a migration tries to get its locks. A node with `--auto-migrate` then
/// begins again.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(60);
const CHECK: ConnectionPurpose =
    ConnectionPurpose { name: "check", deadline: Duration::from_secs(5), settings: &[] };

/// The result of a migration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MigrationReport {
    /// The applied versions. Empty when the schema was up to date.
    pub applied: Vec<i64>,
    pub cluster: ClusterSettings,
    /// Changed settings of the cluster, as text. Nodes take them up at their next start.
    pub changed: Vec<String>,
    pub partitions_made: usize,
}

impl fmt::Display for MigrationReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.applied.last() {
            Some(version) => write!(f, "the schema is at version {version} now")?,
            None => write!(f, "the schema was already up to date")?,
        }
        let ClusterSettings { shards, leaf, horizon, window } = self.cluster;
        let [leaf, horizon, window] = [leaf, horizon, window].map(spelled);
        write!(
            f,
            "; {} shards, leaves of {leaf}, horizon {horizon}, window {window}",
            shards.get()
        )?;
        if !self.changed.is_empty() {
            write!(
                f,
                "; changed: {}; nodes use the change from their next start on",
                self.changed.join(", ")
            )?;
        }
        write!(f, "; {} partitions made", self.partitions_made)
    }
}

#[derive(Debug, ThisError)]
pub enum MigrateError {
    #[error(transparent)]
    Postgres(#[from] PostgresError),
    #[error(transparent)]
    Refused(#[from] RefusedCluster),
    #[error("the schema (version {0}) is newer than this program; use the newer program")]
    Newer(i64),
    #[error(
        "another build of this program made version {0} of the schema; nothing was changed. Use \
         that build, or a new database"
    )]
    OtherBuild(i64),
    #[error("the storage of another program version: {0}")]
    Mismatch(String),
}

/// Updates the schema, the settings of the cluster, the storage of columns and the first
/// partitions. Repeating it is harmless, and two at once wait for each other. Nothing is done when
/// the server or the settings are refused.
pub async fn migrate(
    settings: &PostgresSettings,
    wishes: ClusterWishes,
) -> Result<MigrationReport, MigrateError> {
    let mut connection = Connection::new(settings, PURPOSE);
    // Nodes report server settings that only cost time.
    cluster::check_server(&mut connection).await?.tolerated()?;
    // The turn ends with its connection, whatever happens.
    let turn = migration_turn::take(settings, &mut connection).await?;
    let stored = cluster::read(&mut connection).await?;
    let wished = cluster::resolve(stored, wishes)?;
    let before = applied(&mut connection).await?;
    check_newer(&before).map_err(MigrateError::Newer)?;
    let before: Vec<i64> = before.iter().map(|applied| applied.version).collect();
    change_tables(&mut connection).await?;
    cluster::write(&mut connection, &wished).await?;
    let partitions_made = make_partitions(&mut connection, &Rules::new(&wished)).await?;
    let applied = MIGRATIONS
        .iter()
        .map(|migration| migration.version)
        .filter(|version| !before.contains(version))
        .collect();
    let changed = stored.map_or_else(Vec::new, |stored| cluster::changes(&stored, &wished));
    drop(turn);
    Ok(MigrationReport { applied, cluster: wished, changed, partitions_made })
}

/// Changes the tables. Tries again while others hold locks on them, such as a dump or a long query.
/// Each migration commits by itself, so a repetition goes on where the last one ended.
async fn change_tables(connection: &mut Connection) -> Result<(), MigrateError> {
    let until = clock::monotonic().plus(LOCK_WAIT_MAX);
    loop {
        match try_to_change_tables(connection).await {
            Err(MigrateError::Postgres(error))
                if error.is_lock_conflict() && clock::monotonic() < until =>
            {
                tracing::warn!(
                    error = chain(&error),
                    "another transaction uses a table that the migration changes; trying again"
                );
                clock::sleep(LOCK_PAUSE).await;
            }
            outcome => return outcome,
        }
    }
}

async fn try_to_change_tables(connection: &mut Connection) -> Result<(), MigrateError> {
    run_migrations(connection).await?;
    Ok(connection.run("set the storage of columns", set_storage).await?)
}

async fn run_migrations(connection: &mut Connection) -> Result<(), MigrateError> {
    // Our own lock is held already. The lock of the library would be waited for without a deadline.
    let mut migrations = Migrator::with_migrations(MIGRATIONS.migrations.to_vec());
    migrations.set_locking(false);
    // Migrations that are unknown here were checked before.
    migrations.set_ignore_missing(true);
    let outcome = connection
        .run("migrate", async |open| Ok(migrations.run_direct(None, open, false).await))
        .await?;
    outcome.map_err(|error| match error {
        sqlx::migrate::MigrateError::Execute(source)
        | sqlx::migrate::MigrateError::ExecuteMigration(source, _) => {
            MigrateError::Postgres(PostgresError::new("migrate", source.into()))
        }
        sqlx::migrate::MigrateError::VersionMismatch(version) => MigrateError::OtherBuild(version),
        other => MigrateError::Mismatch(other.to_string()),
    })
}

/// A migration that was applied, perhaps by a newer program.
#[derive(Clone, Debug, sqlx::FromRow)]
struct Applied {
    version: i64,
    /// The name of its file, with spaces.
    description: String,
}

/// Returns the migrations that were applied successfully, by version. Empty in a new database.
async fn applied(connection: &mut Connection) -> Result<Vec<Applied>, PostgresError> {
    let statement = async |open: &mut PgConnection| {
        let is_there: bool = sqlx::query_scalar(
            "-- is there a schema\nselect to_regclass('_sqlx_migrations') is not null",
        )
        .fetch_one(&mut *open)
        .await?;
        if !is_there {
            return Ok(Vec::new());
        }
        sqlx::query_as(
            "-- applied versions
            select version, description from _sqlx_migrations where success order by version",
        )
        .fetch_all(open)
        .await
    };
    connection.run("read the version of the schema", statement).await
}

/// Fails with the first migration of a newer program on which this one cannot run.
fn check_newer(applied: &[Applied]) -> Result<(), i64> {
    let newest = newest();
    let runs_on = |applied: &Applied| {
        MIGRATIONS.version_exists(applied.version)
            || oldest_that_runs_on(&applied.description).is_some_and(|oldest| oldest <= newest)
    };
    match applied.iter().find(|applied| !runs_on(applied)) {
        Some(newer) => Err(newer.version),
        None => Ok(()),
    }
}

/// Returns the newest migration of this program.
fn newest() -> i64 {
    MIGRATIONS.iter().map(|migration| migration.version).max().unwrap_or(0)
}

/// Returns N for a description that begins with "from N": a program can run on the described
/// migration if its own newest migration is N or later. `None` without such a beginning.
fn oldest_that_runs_on(description: &str) -> Option<i64> {
    let mut words = description.split(' ');
    (words.next()? == FROM).then_some(())?;
    words.next()?.parse().ok()
}

/// Sets the compression of arrays: lz4 where the server supports it, otherwise none. The default,
/// pglz, takes 11 us per task. New partitions inherit the setting.
async fn set_storage(open: &mut PgConnection) -> Result<(), sqlx::Error> {
    let has_lz4: bool = sqlx::query_scalar(
        "-- has the server lz4\n\
         select coalesce((select 'lz4' = any(enumvals) from pg_settings where name = \
         'default_toast_compression'), false)",
    )
    .fetch_one(&mut *open)
    .await?;
    // Only columns that differ are changed, because a change locks the table.
    let columns = sqlx::query(
        "-- columns to store otherwise
        select c.relname::text as name, a.attname::text as attribute
        from pg_class c
        join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
        join pg_type t on t.oid = a.atttypid
        where c.oid in (select to_regclass(n)
          from unnest(array['task', 'task_far', 'execlog_batch', 'execlog_payload',
          'dead_letter', 'execlog_finished']) n)
          and a.attlen = -1 and (t.typcategory = 'A' or t.typname = 'bytea')
          and case when $1 then a.attcompression <> 'l' else a.attstorage <> 'e' end",
    )
    .bind(has_lz4)
    .fetch_all(&mut *open)
    .await?;
    let how = if has_lz4 { "compression lz4" } else { "storage external" };
    let mut transaction = open.begin().await?;
    for column in columns {
        let (table, attribute): (String, String) =
            (column.try_get("name")?, column.try_get("attribute")?);
        execute(
            &mut transaction,
            format!("alter table {table} alter column {attribute} set {how}"),
        )
        .await?;
    }
    transaction.commit().await
}

/// Creates partitions until none is missing. Other nodes may be creating some at the same time.
async fn make_partitions(
    connection: &mut Connection,
    rules: &Rules,
) -> Result<usize, PostgresError> {
    const TRIES_MAX: u32 = 100;
    let mut made = 0;
    for parent in Parent::ALL {
        for attempt in 0.. {
            let (census, now) = take_census(connection, parent).await?;
            let missing = rules.missing(parent, &census.attached, now);
            if missing.is_empty() {
                break;
            }
            if attempt == TRIES_MAX {
                let what = format!("create the partitions of {}", parent.table());
                return Err(PostgresError::new(
                    what,
                    Cause::Fact("another node is creating them and does not finish"),
                ));
            }
            if partitions::create(connection, rules, &missing).await? {
                made += missing.len();
            } else {
                clock::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    Ok(made)
}

/// Returns the owner of the tables, when this role lacks the rights of an owner.
async fn foreign_owner(connection: &mut Connection) -> Result<Option<String>, PostgresError> {
    let statement = async |open: &mut PgConnection| {
        sqlx::query_scalar(
            "-- does somebody else own the tables
            select pg_get_userbyid(relowner)::text from pg_class where oid = to_regclass('task')
              and not pg_has_role(relowner, 'usage')",
        )
        .fetch_optional(open)
        .await
    };
    connection.run("see who owns the tables", statement).await
}

/// Why a node may not start on this database.
#[derive(Debug, ThisError)]
pub enum CheckError {
    /// Postgres is away. Try again.
    #[error(transparent)]
    Postgres(#[from] PostgresError),
    #[error(
        "the database has no schema yet: run `punctual migrate` (or serve with --auto-migrate)"
    )]
    NoSchema,
    #[error(
        "the schema is at version {applied}, this program needs {needed}: run `punctual migrate` \
         (or serve with --auto-migrate)"
    )]
    Older { applied: i64, needed: i64 },
    #[error("the schema (version {applied}) is newer than this program; use the newer program")]
    Newer { applied: i64 },
    #[error(transparent)]
    Refused(#[from] RefusedCluster),
    #[error(
        "the tables belong to the role {owner}, whose rights this role lacks, so it cannot create \
         or drop partitions. See \"Rights\" in docs/operate/postgres.md"
    )]
    NotOwner { owner: String },
}

/// The result of a successful check.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Checked {
    pub cluster: ClusterSettings,
    /// The secret that the nodes of the cluster share.
    pub secret: Secret,
    /// Server settings that cost time, but break no promise.
    pub warnings: Vec<String>,
}

/// Checks the server's settings, the version of the schema and the settings of the cluster.
pub async fn check(settings: &PostgresSettings) -> Result<Checked, CheckError> {
    let mut connection = Connection::new(settings, CHECK);
    let warnings = cluster::check_server(&mut connection).await?.tolerated()?;
    let applied = applied(&mut connection).await?;
    check_newer(&applied).map_err(|applied| CheckError::Newer { applied })?;
    let needed = newest();
    match applied.last() {
        None => return Err(CheckError::NoSchema),
        Some(&Applied { version: applied, .. }) if applied < needed => {
            return Err(CheckError::Older { applied, needed });
        }
        Some(_) => {}
    }
    if let Some(owner) = foreign_owner(&mut connection).await? {
        return Err(CheckError::NotOwner { owner });
    }
    let cluster = cluster::read(&mut connection).await?.ok_or(CheckError::NoSchema)?;
    let cluster = cluster.with(ClusterWishes::default()).map_err(RefusedCluster::Invalid)?;
    let secret = cluster::read_secret(&mut connection).await?;
    Ok(Checked { cluster, secret, warnings })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last migration of the time before this rule.
    const BEFORE: i64 = 19;

    #[test]
    fn a_migration_names_the_programs_that_run_on_it() {
        for (description, oldest) in [
            ("from 0020 members", Some(20)),
            ("from 0020", Some(20)),
            ("from members", None),
            ("members from 0020", None),
            ("expiry", None),
        ] {
            assert_eq!(oldest_that_runs_on(description), oldest, "{description}");
        }
        for migration in MIGRATIONS.iter().filter(|migration| migration.version > BEFORE) {
            let oldest = oldest_that_runs_on(&migration.description);
            assert!(
                oldest.is_some_and(|oldest| oldest <= migration.version),
                "name the migration {0:04} {0:04}_from_NNNN_.., with the newest migration of the \
                 oldest program that can run on it (docs/operate/upgrade.md)",
                migration.version
            );
        }
    }

    #[test]
    fn a_newer_schema_is_refused_unless_this_program_can_run_on_it() {
        let applied =
            |description: &str| [Applied { version: 9999, description: description.to_owned() }];
        assert_eq!(check_newer(&applied(&format!("from {} members", newest()))), Ok(()));
        assert_eq!(check_newer(&applied(&format!("from {} members", newest() + 1))), Err(9999));
        assert_eq!(check_newer(&applied("members")), Err(9999));
    }
}
