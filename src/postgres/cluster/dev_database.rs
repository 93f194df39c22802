//! The database of a dev server: the mark, the clock, and the tasks that the clock waits for.
//!
//! The clock of a cluster is Postgres's `clock_timestamp()`. In this database, sessions find
//! another function of the same name first, which adds the value in the table `punctual_dev`. The
//! table is also the mark of the database: no database without the mark is ever touched.

use std::time::Duration;

use az::SaturatingAs as _;
use sqlx::Row as _;
use sqlx::postgres::PgConnection;
use thiserror::Error;
use uuid::Uuid;

use crate::clock;
use crate::domain::{Monotonic, TaskId, Timestamp};
use crate::postgres::connection::ConnectionPurpose;
use crate::postgres::connection::error::check_count;
use crate::postgres::{Connection, PostgresError, PostgresSettings};

const PURPOSE: ConnectionPurpose =
    ConnectionPurpose { name: "dev", deadline: Duration::from_secs(10), settings: &[] };
/// A setting of a session that sees the clock further ahead, in microseconds.
const AHEAD: &str = "punctual.dev_ahead";

const MARK: &str = "-- mark the database of a dev server
create table public.punctual_dev (ahead_us bigint not null);
insert into public.punctual_dev values (0);
create function public.punctual_dev_ahead() returns interval language sql volatile as $$
  select (ahead_us + coalesce(nullif(current_setting('punctual.dev_ahead', true), ''), '0')::bigint)
    * interval '1 microsecond' from public.punctual_dev $$;
create function public.clock_timestamp() returns timestamptz language sql volatile as $$
  select pg_catalog.clock_timestamp() + public.punctual_dev_ahead() $$;
create function public.statement_timestamp() returns timestamptz language sql volatile as $$
  select pg_catalog.statement_timestamp() + public.punctual_dev_ahead() $$;
do $$ begin
  execute format('alter database %I set search_path = public, pg_catalog', current_database());
end $$";

#[derive(Debug, Error)]
pub enum PrepareError {
    #[error(transparent)]
    Postgres(#[from] PostgresError),
    #[error(
        "the database {0} is not empty, and was not made by `punctual dev`; its clock would be \
         set. Give an empty one: createdb punctual_dev"
    )]
    Foreign(String),
}

/// The clock of a dev server, and what is still to be published.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outlook {
    pub now: Timestamp,
    /// When the time was asked for.
    pub asked_at: Monotonic,
    /// When the next unclaimed task is due. The tasks of a paused topic wait for its resume.
    pub next_due_at: Option<Timestamp>,
    /// When the next claimed task that is not settled is due.
    pub unsettled_due_at: Option<Timestamp>,
    /// When the next runs of schedules are to be made. A paused schedule makes none.
    pub runs_due_at: Option<Timestamp>,
}

/// The connection of a dev server to its database.
#[derive(Debug)]
pub struct DevDatabase {
    settings: PostgresSettings,
    connection: Connection,
}

impl DevDatabase {
    /// Marks an empty database, or finds the mark. The clock starts at the real time.
    ///
    /// # Errors
    /// When the database belongs to somebody else, or cannot be reached.
    pub async fn prepare(settings: PostgresSettings) -> Result<Self, PrepareError> {
        let mut connection = Connection::new(&settings, PURPOSE);
        let statement = async |open: &mut PgConnection| {
            sqlx::query(
                "-- whose database is this
                select to_regclass('public.punctual_dev') is not null as is_marked,
                  not exists (select from pg_class c join pg_namespace n on n.oid = c.relnamespace
                    where n.nspname !~ '^pg_' and n.nspname <> 'information_schema') as is_empty",
            )
            .fetch_one(open)
            .await
            .and_then(|row| Ok((row.try_get("is_marked")?, row.try_get("is_empty")?)))
        };
        let whose: (bool, bool) = connection.run("look whose database it is", statement).await?;
        match whose {
            (true, _) => {}
            (false, true) => {
                let mark = async |open: &mut PgConnection| sqlx::raw_sql(MARK).execute(open).await;
                connection.run("mark the database", mark).await?;
            }
            (false, false) => return Err(PrepareError::Foreign(settings.place())),
        }
        // A session keeps the functions that it has found.
        let connection = Connection::new(&settings, PURPOSE);
        let mut database = Self { settings, connection };
        database.set_ahead(Duration::ZERO).await?;
        Ok(database)
    }

    /// Sets how far the clock is ahead of the real time.
    pub async fn set_ahead(&mut self, ahead: Duration) -> Result<(), PostgresError> {
        let micros = ahead.as_micros().saturating_as::<i64>();
        let statement = async |open: &mut PgConnection| {
            sqlx::query("-- set the clock of a dev server\nupdate punctual_dev set ahead_us = $1")
                .bind(micros)
                .execute(open)
                .await
                .and_then(|done| check_count(done.rows_affected(), 1))
        };
        self.connection.run("set the clock of the dev server", statement).await
    }

    /// Returns settings for a session that sees the clock further ahead.
    pub fn ahead_by(&self, span: Duration) -> PostgresSettings {
        self.settings.clone().with_session_setting(AHEAD, &span.as_micros().to_string())
    }

    pub async fn outlook(&mut self) -> Result<Outlook, PostgresError> {
        self.connection.keep_open().await?;
        let asked_at = clock::monotonic();
        let statement = async |open: &mut PgConnection| {
            sqlx::query(
                "-- what the clock of a dev server waits for
                select (extract(epoch from clock_timestamp()) * 1000000)::bigint as now,
                  (select id from task where topic <> all (p.topics) order by id limit 1) as near,
                  (select id from task_far where topic <> all (p.topics) order by id limit 1)
                    as far,
                  (select id from execlog_batch b cross join unnest(b.ids) as id
                    where b.settled_at is null order by id limit 1) as unsettled,
                  (select min(look_at) from schedule) as runs
                from (select array(select topic from topic_policy where is_paused) as topics) p",
            )
            .fetch_one(open)
            .await
            .and_then(|row| {
                let due_at = |name: &str| {
                    let id: Option<Uuid> = row.try_get(name)?;
                    Ok::<_, sqlx::Error>(id.map(|id| TaskId::from_uuid(id).due_at()))
                };
                Ok(Outlook {
                    now: Timestamp::from_micros(row.try_get("now")?),
                    asked_at,
                    next_due_at: due_at("near")?.into_iter().chain(due_at("far")?).min(),
                    unsettled_due_at: due_at("unsettled")?,
                    runs_due_at: row.try_get::<Option<i64>, _>("runs")?.map(Timestamp::from_millis),
                })
            })
        };
        self.connection.run("look what is to be published", statement).await
    }
}
