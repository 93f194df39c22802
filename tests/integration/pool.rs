//! Connections that callers share: the number of busy sessions is limited, whatever the callers do.

use std::pin::pin;
use std::time::Duration;

use punctual::postgres::PostgresSettings;
use punctual::postgres::connection::ConnectionPurpose;
use punctual::postgres::connection::pool::Pool;
use sqlx::postgres::PgConnection;

use crate::support::{Database, Stack, eventually};

const PATIENCE: Duration = Duration::from_secs(120);
/// Enough for a session to be opened, and for a count.
const ASIDE: Duration = Duration::from_millis(500);
/// The sessions wait until the lock is released.
const PURPOSE: ConnectionPurpose = ConnectionPurpose {
    name: "impatience",
    deadline: PATIENCE,
    settings: &[("lock_timeout", "0")],
};
const AT_WORK: &str = "select count(*) from pg_stat_activity where datname = current_database() \
                       and application_name = 'punctual impatience'";
const WAITING: &str = "select count(*) from pg_locks where locktype = 'advisory' and not granted
    and database = (select oid from pg_database where datname = current_database())";

async fn number(open: &mut PgConnection, query: &'static str) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar(query).fetch_one(open).await
}

#[tokio::test]
async fn a_session_whose_caller_is_gone_counts_until_the_server_has_ended_its_statement() {
    let database = Database::create(&Stack::shared(), "pool").await;
    let mut holder = database.connect().await;
    sqlx::raw_sql("select pg_advisory_lock(7)").execute(&mut holder).await.unwrap();
    let pool = Pool::new(&PostgresSettings::new(&database.url).unwrap(), PURPOSE, 2);
    // Two callers that give up while their statements wait for a lock.
    let waiting = async |open: &mut PgConnection| {
        number(open, "select 1::bigint from pg_advisory_xact_lock(7)").await
    };
    for sessions in 1..=2 {
        let caller = pool.run("wait for a lock", waiting);
        let is_waiting = eventually("it waits", PATIENCE, async || {
            number(&mut holder, WAITING).await.unwrap() == sessions
        });
        tokio::select! {
            answer = caller => panic!("nobody has released the lock: {answer:?}"),
            () = is_waiting => {}
        }
    }
    // A third caller has to wait until one statement has ended.
    let mut counting =
        pin!(pool.run("count the sessions", async |open| number(open, AT_WORK).await));
    assert!(
        tokio::time::timeout(ASIDE, &mut counting).await.is_err(),
        "three sessions are at work"
    );
    sqlx::raw_sql("select pg_advisory_unlock(7)").execute(&mut holder).await.unwrap();
    let counted = counting.await.unwrap();
    assert!((1..=2).contains(&counted), "{counted} sessions are at work");
}
