//! Finds the session that holds a lock, as far as the role of the connection may see it.

use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Row as _};

/// Describes sessions with locks in this database. Statements add which locks.
const HOLDER: &str =
    "coalesce('pid ' || l.pid, 'a prepared transaction') || coalesce(', role ' || a.usename, '')
  || coalesce(', application ' || nullif(a.application_name, ''), '')
from pg_locks l left join pg_stat_activity a on a.pid = l.pid
where l.granted and l.database = (select oid from pg_database where datname = current_database())";

/// Describes the session with a lock on `table` that is in the way of `share update exclusive`.
pub async fn holder_of(
    open: &mut PgConnection,
    table: &'static str,
) -> Result<Option<String>, sqlx::Error> {
    let find = format!(
        "-- holder of a lock on a table
select {HOLDER}
  and l.locktype = 'relation' and l.relation = '{table}'::regclass
  and l.mode in ('ShareUpdateExclusiveLock', 'ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock',
    'AccessExclusiveLock')
order by a.xact_start
limit 1"
    );
    let row = sqlx::raw_sql(AssertSqlSafe(find)).fetch_optional(open).await?;
    row.map(|row| row.try_get(0)).transpose()
}

/// Describes the session with the advisory lock of these two keys, if its role lacks the rights of
/// the owner of the tables. Such a lock has 2 as its `objsubid`.
pub async fn stranger_with(
    open: &mut PgConnection,
    (class, number): (i32, i32),
) -> Result<Option<String>, sqlx::Error> {
    let find = format!(
        "-- stranger with an advisory lock
select {HOLDER}
  and l.locktype = 'advisory' and l.objsubid = 2
  and l.classid = $1::integer::oid and l.objid = $2::integer::oid
  and not coalesce(pg_has_role(a.usesysid, coalesce(
    (select relowner from pg_class where oid = to_regclass('task')),
    (select oid from pg_roles where rolname = current_user)), 'member'), false)
order by a.backend_start
limit 1"
    );
    let query = sqlx::query_scalar(AssertSqlSafe(find)).bind(class).bind(number);
    query.fetch_optional(open).await
}
