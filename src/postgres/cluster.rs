//! The settings of the cluster (one row), and the requirements on the server.

pub mod dev_database;
pub mod heartbeat;
mod migration_turn;
pub mod payload_keys;
pub mod reseal;
pub mod schema;

use std::fmt;
use std::time::Duration;

use sqlx::Row;
use sqlx::postgres::{PgConnection, PgRow};

use az::SaturatingAs as _;
use thiserror::Error as ThisError;

use super::connection::PINNED;
use super::connection::error::Cause;
use super::{Connection, PostgresError};
use crate::domain::cluster::ClusterSettingsError;
use crate::domain::time::duration::spelled;
use crate::domain::{ClusterSettings, ClusterWishes, ShardCount};

/// Why a database, or settings of the cluster, are refused.
#[derive(Debug, ThisError)]
pub enum RefusedCluster {
    #[error("{}", .0.join("; "))]
    Server(Vec<String>),
    #[error("the settings of the cluster are refused: {}", join(.0))]
    Invalid(Vec<ClusterSettingsError>),
    #[error("--{name} is {stored} in this database and cannot be changed to {wished}")]
    Fixed { name: &'static str, stored: String, wished: String },
}

fn join(problems: &[ClusterSettingsError]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Reads the stored settings. `None` before the first migration.
pub(super) async fn read(
    connection: &mut Connection,
) -> Result<Option<ClusterSettings>, PostgresError> {
    let statement = async |open: &mut PgConnection| {
        let is_there: bool =
            sqlx::query_scalar("-- is there a cluster\nselect to_regclass('cluster') is not null")
                .fetch_one(&mut *open)
                .await?;
        if !is_there {
            return Ok(None);
        }
        let row = sqlx::query(
            "-- read the settings of the cluster\n\
                               select shards, leaf_ms, horizon_ms, window_ms from cluster",
        )
        .fetch_optional(open)
        .await?;
        row.as_ref().map(settings_of).transpose()
    };
    connection.run("read the settings of the cluster", statement).await
}

/// A secret, which no message shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Reads the secret that the nodes of the cluster share.
pub(super) async fn read_secret(connection: &mut Connection) -> Result<Secret, PostgresError> {
    let statement = async |open: &mut PgConnection| {
        sqlx::query_scalar("-- read the secret of the cluster\nselect secret from cluster")
            .fetch_one(open)
            .await
            .map(Secret)
    };
    connection.run("read the secret of the cluster", statement).await
}

fn settings_of(row: &PgRow) -> Result<ClusterSettings, sqlx::Error> {
    let shards: i32 = row.try_get("shards")?;
    let shards = u64::try_from(shards).unwrap_or(0);
    let span = |column| {
        row.try_get::<i64, _>(column)
            .map(|ms| Duration::from_millis(u64::try_from(ms).unwrap_or(0)))
    };
    Ok(ClusterSettings {
        shards: ShardCount::new(shards).map_err(|error| sqlx::Error::Decode(Box::new(error)))?,
        leaf: span("leaf_ms")?,
        horizon: span("horizon_ms")?,
        window: span("window_ms")?,
    })
}

/// Returns the settings to store: the requested ones, then the stored ones, then the defaults.
pub(super) fn resolve(
    stored: Option<ClusterSettings>,
    wishes: ClusterWishes,
) -> Result<ClusterSettings, RefusedCluster> {
    let wished =
        stored.unwrap_or(ClusterSettings::DEFAULT).with(wishes).map_err(RefusedCluster::Invalid)?;
    let Some(stored) = stored else { return Ok(wished) };
    let fixed =
        |name, stored: String, wished: String| Err(RefusedCluster::Fixed { name, stored, wished });
    if wished.shards != stored.shards {
        return fixed("shards", stored.shards.get().to_string(), wished.shards.get().to_string());
    }
    if wished.leaf != stored.leaf {
        return fixed("leaf", spelled(stored.leaf), spelled(wished.leaf));
    }
    Ok(wished)
}

pub(super) fn changes(stored: &ClusterSettings, wished: &ClusterSettings) -> Vec<String> {
    let pairs =
        [("horizon", stored.horizon, wished.horizon), ("window", stored.window, wished.window)];
    let changed = pairs.into_iter().filter(|(_, before, after)| before != after);
    changed
        .map(|(name, before, after)| format!("{name}: {} -> {}", spelled(before), spelled(after)))
        .collect()
}

pub(super) async fn write(
    connection: &mut Connection,
    settings: &ClusterSettings,
) -> Result<(), PostgresError> {
    let ms = |span: Duration| span.as_millis().saturating_as::<i64>();
    let statement = async |open: &mut PgConnection| {
        sqlx::query(
            "-- write the settings of the cluster
            insert into cluster (shards, leaf_ms, horizon_ms, window_ms)
            values ($1, $2, $3, $4)
            on conflict (singleton) do update set horizon_ms = excluded.horizon_ms,
              window_ms = excluded.window_ms
            where (cluster.horizon_ms, cluster.window_ms) <> (excluded.horizon_ms,
              excluded.window_ms)",
        )
        .bind(i32::from(settings.shards.get()))
        .bind(ms(settings.leaf))
        .bind(ms(settings.horizon))
        .bind(ms(settings.window))
        .execute(open)
        .await
        .map(|_done| ())
    };
    connection.run("write the settings of the cluster", statement).await
}

const VERSION_MIN: i32 = 150_000;

/// Problems of the server.
#[derive(Debug, Default)]
pub(super) struct Faults {
    /// Problems that would break a promise.
    refusals: Vec<String>,
    /// Problems that only cost time.
    warnings: Vec<String>,
}

impl Faults {
    /// Returns the warnings, or fails when a promise would be broken.
    pub(super) fn tolerated(self) -> Result<Vec<String>, RefusedCluster> {
        if self.refusals.is_empty() {
            Ok(self.warnings)
        } else {
            Err(RefusedCluster::Server(self.refusals))
        }
    }
}

pub(super) async fn check_server(connection: &mut Connection) -> Result<Faults, PostgresError> {
    let statement = async |open: &mut PgConnection| {
        sqlx::query_as(
            "-- check the server
            select current_setting('server_version_num')::int as number,
              current_setting('server_version') as version,
              current_setting('fsync')::bool as has_fsync,
                current_setting('full_page_writes')::bool as has_full_page_writes,
              current_setting('wal_compression') as wal_compression,
                current_setting('commit_delay') <> '0' as has_commit_delay,
              current_setting('log_parameter_max_length') <> '0'
                and (current_setting('log_statement') in ('mod', 'all')
                  or current_setting('log_min_duration_statement') <> '-1'
                  or current_setting('log_min_duration_sample') <> '-1')
                or current_setting('log_parameter_max_length_on_error') <> '0'
                or coalesce(current_setting('auto_explain.log_min_duration', true), '-1') <> '-1'
                  and coalesce(current_setting('auto_explain.log_parameter_max_length', true), '0')
                    <> '0' as logs_payloads,
              pg_is_in_recovery() as is_standby, current_setting('server_encoding') as encoding,
              coalesce(current_setting($1, true), '') = 'on' as is_pinned",
        )
        .bind(PINNED)
        .fetch_one(open)
        .await
    };
    const WHAT: &str = "check the server's settings";
    let facts: ServerFacts = connection.run(WHAT, statement).await?;
    if facts.is_standby {
        // In a failover the address may have yet to follow the primary.
        let source = Cause::Fact("Postgres is a standby; connect to the primary");
        return Err(PostgresError::Unreachable { what: WHAT.to_owned(), source });
    }
    Ok(judge(&facts))
}

/// Facts that the server reports about itself.
#[derive(Clone, Debug, sqlx::FromRow)]
struct ServerFacts {
    /// For example 150018 for 15.18.
    number: i32,
    version: String,
    has_fsync: bool,
    has_full_page_writes: bool,
    wal_compression: String,
    has_commit_delay: bool,
    /// The server's log may hold the parameters of statements, which are payloads. The module
    /// `auto_explain` logs them from Postgres 16 on, where it has a setting for that.
    logs_payloads: bool,
    is_standby: bool,
    encoding: String,
    /// The parameters that a session sets when it starts have reached the server.
    is_pinned: bool,
}

fn judge(facts: &ServerFacts) -> Faults {
    let mut faults = Faults::default();
    let mut refuse = |is_so: bool, why: String| {
        if is_so {
            faults.refusals.push(why)
        }
    };
    refuse(
        facts.number < VERSION_MIN,
        format!("Postgres is {}, but 15 or later is required", facts.version),
    );
    refuse(
        !facts.is_pinned,
        "the settings of a session (synchronous_commit, deadlines, planning) do not reach \
         Postgres: a pooler in between drops them (PgBouncer's ignore_startup_parameters); connect \
         to Postgres itself"
            .to_owned(),
    );
    refuse(
        facts.encoding != "UTF8",
        format!(
            "the encoding of the database is {}; create one with `encoding 'UTF8' template \
             template0`",
            facts.encoding
        ),
    );
    refuse(
        !facts.has_fsync,
        "fsync is off, so a crash can lose committed tasks; switch it on".to_owned(),
    );
    refuse(
        !facts.has_full_page_writes,
        "full_page_writes is off, so a crash can destroy committed tasks; switch it on".to_owned(),
    );
    // "on" means pglz.
    if ["on", "pglz"].contains(&facts.wal_compression.as_str()) {
        faults.warnings.push(
            "wal_compression is pglz, which costs more CPU than all other work on a task; set it \
             to lz4 or off"
                .to_owned(),
        );
    }
    if facts.has_commit_delay {
        faults
            .warnings
            .push("commit_delay is not 0, so every claim waits for it; set it to 0".to_owned());
    }
    if facts.logs_payloads {
        faults.warnings.push(
            "Postgres logs failed, slow or all statements with their parameters, which include \
             payloads; set log_parameter_max_length, log_parameter_max_length_on_error and \
             auto_explain.log_parameter_max_length to 0"
                .to_owned(),
        );
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> ServerFacts {
        ServerFacts {
            number: 150_018,
            version: "15.18".to_owned(),
            has_fsync: true,
            has_full_page_writes: true,
            wal_compression: "lz4".to_owned(),
            has_commit_delay: false,
            logs_payloads: false,
            is_standby: false,
            encoding: "UTF8".to_owned(),
            is_pinned: true,
        }
    }

    #[test]
    fn a_server_that_cannot_keep_a_promise_is_refused_and_told_why() {
        assert_eq!(judge(&good()).tolerated().unwrap(), [""; 0]);
        let refused = [
            (
                ServerFacts { number: 140_012, version: "14.12".to_owned(), ..good() },
                "Postgres is 14.12",
            ),
            (ServerFacts { has_fsync: false, ..good() }, "fsync is off"),
            (ServerFacts { has_full_page_writes: false, ..good() }, "full_page_writes is off"),
            (ServerFacts { encoding: "LATIN1".to_owned(), ..good() }, "database is LATIN1"),
            (ServerFacts { is_pinned: false, ..good() }, "a pooler in between"),
        ];
        for (facts, why) in refused {
            let said = judge(&facts).tolerated().unwrap_err().to_string();
            assert!(said.contains(why), "{facts:?}: {said}");
        }
        let all = ServerFacts { has_fsync: false, has_full_page_writes: false, ..good() };
        assert_eq!(judge(&all).refusals.len(), 2, "it says all that is wrong at once");
    }

    #[test]
    fn a_server_that_is_merely_slow_is_taken_with_a_warning() {
        let slow = [
            (ServerFacts { wal_compression: "on".to_owned(), ..good() }, "pglz"),
            (ServerFacts { wal_compression: "pglz".to_owned(), ..good() }, "pglz"),
            (ServerFacts { has_commit_delay: true, ..good() }, "commit_delay"),
            (ServerFacts { logs_payloads: true, ..good() }, "log_parameter_max_length_on_error"),
            (ServerFacts { logs_payloads: true, ..good() }, "auto_explain"),
        ];
        for (facts, why) in slow {
            let warnings = judge(&facts).tolerated().unwrap();
            assert!(warnings.len() == 1 && warnings[0].contains(why), "{facts:?}: {warnings:?}");
        }
    }
}
