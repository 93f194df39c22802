//! The hazards behind the rules of the statements, each with two connections: the failure without a
//! rule, and the correct result with the rule.
//!
//! "With the rule" is the product's own code. "Without" is the product's statement, read from the
//! source by name, without the text of the rule. If the rule is an order of steps, "without" is the
//! other order. So a test fails when a rule is lost, and also when the reason for a rule is gone.

mod cancels;
mod locks;
mod names;
mod partitions;
mod settles;
mod unsettled;

use std::path::Path;
use std::time::{Duration, Instant};

use punctual::domain::leaves::Rules;
use punctual::domain::{BatchId, ClusterWishes, IdRange, NodeId, Shard, TaskId, Timestamp};
use punctual::postgres::cluster::schema;
use punctual::postgres::connection::ConnectionPurpose;
use punctual::postgres::tasks::claim::{ClaimRequest, Claimed, Claims, Source};
use punctual::postgres::{Connection, PostgresSettings};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection as _};
use tokio::task::JoinHandle;

use crate::support::wait::look_for;
use crate::support::{self, BLOCKED, Stack, eventually};

const PATIENCE: Duration = Duration::from_secs(90);
/// A canceller waits 200 ms for a lock.
const STAGED_WITHIN: Duration = Duration::from_millis(150);
/// The lock timeout of sessions: a second.
const STAGED_WITHIN_A_SECOND: Duration = Duration::from_millis(900);
const STAGINGS_MAX: usize = 20;

/// A database with leaves of a quarter of an hour.
struct Stage {
    own: support::Database,
    settings: PostgresSettings,
    rules: Rules,
    sql: PgConnection,
}

impl Stage {
    async fn new() -> Self {
        let own = support::Database::create(&Stack::shared(), "hazards").await;
        let (sql, settings) = (own.connect().await, PostgresSettings::new(&own.url).unwrap());
        let hours = |count: u64| Duration::from_secs(count * 3600);
        let wishes = ClusterWishes {
            leaf: Some(hours(1) / 4),
            horizon: Some(hours(2)),
            ..ClusterWishes::default()
        };
        let report = schema::migrate(&settings, wishes).await.unwrap();
        // The leaf that is ending now is not part of the test.
        let rules = Rules {
            leaf_grace: hours(1),
            payload_retention: hours(1),
            ..Rules::new(&report.cluster)
        };
        Self { own, settings, rules, sql }
    }

    async fn another(&self) -> PgConnection {
        self.own.connect().await
    }

    fn connection(&self) -> Connection {
        Connection::new(
            &self.settings,
            ConnectionPurpose { name: "test", deadline: PATIENCE, settings: &[] },
        )
    }

    async fn run(&mut self, statement: &str) {
        run(&mut self.sql, statement).await;
    }

    async fn number(&mut self, query: &str) -> i64 {
        number(&mut self.sql, query).await
    }

    async fn now(&mut self) -> Timestamp {
        Timestamp::from_micros(
            self.number("select (extract(epoch from clock_timestamp()) * 1000000)::bigint").await,
        )
    }

    /// Writes tasks as a submit does, into `task`, `task_far` or a leaf; a millisecond apart.
    async fn insert(&mut self, table: &str, from: Timestamp, count: u64) -> Vec<TaskId> {
        let at = |number| from.plus(Duration::from_millis(number));
        let ids: Vec<TaskId> = (0..count)
            .map(|number| TaskId::new(at(number), Shard::new(7), rand::random()))
            .collect();
        for id in &ids {
            self.run(&format!(
                "insert into {table} (shard, id, topic, payload) values (7, '{id}', 'orders', 'p')"
            ))
            .await;
        }
        ids
    }

    /// Claims all tasks due within the hour.
    async fn claim(&mut self, owner: NodeId) -> punctual::domain::Batch {
        let now = self.now().await;
        let range = IdRange::of_times(
            now.minus(Duration::from_secs(3600)),
            now.plus(Duration::from_secs(3600)),
        );
        let batch = BatchId::new(now, 0, rand::random());
        let request = ClaimRequest::of_all(batch, owner, &[7], range);
        match Claims::new(&self.settings, self.rules)
            .claim(Source::Task, request)
            .await
            .unwrap()
            .claimed
        {
            Claimed::Batch(batch) => batch,
            other => panic!("{other:?}"),
        }
    }

    /// Waits until so many connections wait for somebody's lock.
    async fn wait_blocked(&mut self, count: i64) {
        eventually("they wait for a lock", PATIENCE, async || self.number(BLOCKED).await == count)
            .await;
    }

    /// Lets the holder continue when this many sessions wait for a lock. Returns false when the
    /// sessions gave up before, so the test proves nothing.
    async fn release(&mut self, count: i64, holder: &mut PgConnection, statement: &str) -> bool {
        self.release_within(STAGED_WITHIN, count, holder, statement).await
    }

    async fn release_within(
        &mut self,
        limit: Duration,
        count: i64,
        holder: &mut PgConnection,
        statement: &str,
    ) -> bool {
        let began_at = Instant::now();
        let is_blocked =
            look_for(limit, async || (self.number(BLOCKED).await == count).then_some(()))
                .await
                .is_some();
        run(holder, statement).await;
        is_blocked && began_at.elapsed() < limit
    }

    async fn wait_detaching(&mut self) {
        let query = "select count(*) from pg_inherits where inhdetachpending";
        eventually("the detach is pending", PATIENCE, async || self.number(query).await == 1).await;
    }
}

/// Repeats a stage until the machine was fast enough.
pub async fn staged<T>(mut stage: impl AsyncFnMut() -> Option<T>) -> T {
    for _ in 0..STAGINGS_MAX {
        if let Some(seen) = Box::pin(stage()).await {
            return seen;
        }
    }
    panic!("this machine is too slow to stage it");
}

pub async fn run(connection: &mut PgConnection, statement: &str) {
    try_run(connection, statement).await.unwrap_or_else(|error| panic!("{statement}: {error}"));
}

async fn try_run(connection: &mut PgConnection, statement: &str) -> Result<u64, sqlx::Error> {
    let done = sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).execute(connection).await?;
    Ok(done.rows_affected())
}

pub async fn number(connection: &mut PgConnection, query: &str) -> i64 {
    let query = sqlx::query_scalar(AssertSqlSafe(query.to_owned())).persistent(false);
    query.fetch_one(connection).await.unwrap()
}

/// Runs a statement in the background, over a new connection, because the statement is expected to
/// wait for another one.
fn in_background(
    mut connection: PgConnection,
    statement: String,
) -> JoinHandle<Result<u64, sqlx::Error>> {
    tokio::spawn(async move {
        let outcome = try_run(&mut connection, &statement).await;
        connection.close().await?;
        outcome
    })
}

fn code_of(error: &sqlx::Error) -> Option<String> {
    error.as_database_error().and_then(|error| error.code()).map(|code| code.into_owned())
}

const DEADLOCK: &str = "40P01";
const LOCK_TIMEOUT: &str = "55P03";

/// Returns a statement of the product by its name.
fn statement(name: &str) -> String {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src/postgres")];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let source = std::fs::read_to_string(path).unwrap();
            let begin = format!("\"-- {name}\n");
            found.extend(
                source.split(&begin).skip(1).map(|rest| rest.split('"').next().unwrap().to_owned()),
            );
        }
    }
    assert_eq!(found.len(), 1, "statements named {name}");
    found.remove(0)
}

/// Returns the statement without the text of a rule, which must occur exactly once.
fn without(statement: &str, rule: &str) -> String {
    assert_eq!(statement.matches(rule).count(), 1, "{rule:?} in:\n{statement}");
    statement.replace(rule, "")
}
