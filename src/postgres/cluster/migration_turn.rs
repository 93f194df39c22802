//! The turn of a migration: one program migrates at a time.
//!
//! The turn is a lock of the table of migrations. Only the owner of the tables may take it, so no
//! other role can keep nodes from starting. It is held by a session of its own, because each
//! migration is a transaction of the other session.
//!
//! Builds before this rule take an advisory lock only. It is taken as well, and waited for, unless
//! a role without rights on the tables holds it.

use std::time::Duration;

use sqlx::postgres::PgConnection;

use crate::clock;
use crate::postgres::connection::ConnectionPurpose;
use crate::postgres::connection::error::Cause;
use crate::postgres::connection::holder::holder_of;
use crate::postgres::partitions::locks::{self, HeldFor, MIGRATE};
use crate::postgres::{Connection, PostgresError, PostgresSettings};

/// How long a program waits for its turn. A node with `--auto-migrate` then tries again.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// The session is idle while the other one migrates. A vanished machine keeps its turn for that
/// long.
const PURPOSE: ConnectionPurpose = ConnectionPurpose {
    name: "turn of migration",
    deadline: Duration::from_secs(70),
    settings: &[("lock_timeout", "60s"), ("idle_in_transaction_session_timeout", "1h")],
};
/// The pause between two looks at the lock of older builds.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Two programs that create the table at once: the second one fails, and finds it.
const TRIES_MAX: u32 = 5;
const WHAT: &str = "wait for other migrations";

const IS_THERE: &str =
    "-- is there a table of migrations\nselect to_regclass('_sqlx_migrations') is not null";

/// The table as the library creates it.
const CREATE: &str = "-- create the table of migrations
create table if not exists _sqlx_migrations (
  version bigint primary key,
  description text not null,
  installed_on timestamptz not null default now(),
  success boolean not null,
  checksum bytea not null,
  execution_time bigint not null
)";

/// This mode conflicts with itself, but with no insert and no read. Only roles with the right to
/// update, delete or truncate may take it.
const LOCK: &str = "-- lock the table of migrations
lock table only _sqlx_migrations in share update exclusive mode";

/// Waits for the turn, which ends with the returned session. `migrating` is the session that
/// migrates.
///
/// # Errors
/// [`PostgresError::GaveWay`], with the holder of the turn, when the wait is too long.
pub(super) async fn take(
    settings: &PostgresSettings,
    migrating: &mut Connection,
) -> Result<Connection, PostgresError> {
    let mut connection = Connection::new(settings, PURPOSE);
    create_table(&mut connection).await?;
    let lock = async |open: &mut PgConnection| {
        sqlx::raw_sql("-- begin the turn\nbegin").execute(&mut *open).await?;
        sqlx::raw_sql(LOCK).execute(open).await.map(|_locked| ())
    };
    match connection.run(WHAT, lock).await {
        Ok(()) => {}
        Err(error) if error.is_lock_conflict() => return Err(with_holder(connection, error).await),
        Err(error) => return Err(error),
    }
    wait_for_older_builds(migrating).await?;
    Ok(connection)
}

async fn create_table(connection: &mut Connection) -> Result<(), PostgresError> {
    let mut tries = 0;
    loop {
        tries += 1;
        match connection.run("create the table of migrations", create_unless_there).await {
            Err(error) if error.is_concurrent_create() && tries < TRIES_MAX => {}
            outcome => return outcome,
        }
    }
}

async fn create_unless_there(open: &mut PgConnection) -> Result<(), sqlx::Error> {
    let is_there: bool = sqlx::query_scalar(IS_THERE).fetch_one(&mut *open).await?;
    if !is_there {
        sqlx::raw_sql(CREATE).execute(open).await?;
    }
    Ok(())
}

/// Adds the holder of the turn to the error.
async fn with_holder(mut connection: Connection, error: PostgresError) -> PostgresError {
    // The transaction is over with its session.
    connection.close();
    let find = async |open: &mut PgConnection| holder_of(open, "_sqlx_migrations").await;
    let found = connection.run("find the holder of the turn", find).await;
    match (error, found) {
        (PostgresError::GaveWay { source, .. }, Ok(Some(holder))) => {
            PostgresError::GaveWay { what: format!("{WHAT} ({holder} has the turn)"), source }
        }
        (error, _) => error,
    }
}

/// Takes the lock of older builds for the session that migrates.
async fn wait_for_older_builds(migrating: &mut Connection) -> Result<(), PostgresError> {
    let until = clock::monotonic().plus(WAIT_MAX);
    while !migrating.run(WHAT, take_older_lock).await? {
        if clock::monotonic() >= until {
            let source = Cause::Fact("an older build of this program is migrating");
            return Err(PostgresError::GaveWay { what: WHAT.to_owned(), source });
        }
        clock::sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

async fn take_older_lock(open: &mut PgConnection) -> Result<bool, sqlx::Error> {
    locks::take(open, MIGRATE, HeldFor::Session).await
}
