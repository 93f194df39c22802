//! The contents of the tables as sorted lines of text, and copies of the rows to restore.

use sqlx::AssertSqlSafe;
use sqlx::postgres::PgConnection;

/// The data known to the model, one line each. `{hidden}` is a leaf that is not attached.
const LINES: &str = "
select 'far ' || id || ' ' || coalesce(first_id::text, '-') from task_far
union all select 'near ' || id || ' ' || coalesce(first_id::text, '-') from task
{hidden}
union all
select 'batch ' || batch || ' ' || coalesce(owner::text,
  '-') || ' ' || (settled_at is not null) || ' ' ||
  (select string_agg(u.id || ':' || coalesce(u.outcome, 0), ',' order by u.id)
    from unnest(ids, outcomes) as u (id, outcome))
from execlog_batch
union all select 'payload ' || batch || ' ' || cardinality(topics) from execlog_payload
union all select 'cancelled ' || id || ' ' || coalesce(replaced_by::text, '-')
  from execlog_cancelled
union all select 'dead ' || id from dead_letter
union all select 'follow ' || first_id || ' ' || row_id || ' ' || maybe_sent from task_follow
union all select 'name ' || id || ' ' || row_id from task_name
union all select 'heart ' || node || ' ' || case when dead then 'dead' else 'alive' end
  from heartbeat";

/// Tables that a settle writes.
const SETTLED: [&str; 6] =
    ["execlog_batch", "task", "task_follow", "execlog_ended", "dead_letter", "task_name"];
const ALL: [&str; 10] = [
    "task",
    "task_far",
    "execlog_batch",
    "execlog_payload",
    "execlog_cancelled",
    "execlog_ended",
    "dead_letter",
    "task_follow",
    "task_name",
    "heartbeat",
];

/// The rows of some tables, as JSON.
pub type Kept = Vec<(&'static str, String)>;

pub async fn lines(sql: &mut PgConnection, hidden: Option<&str>) -> Vec<String> {
    let hidden = hidden.map_or_else(String::new, |leaf| {
        format!(
            "union all select 'near ' || id || ' ' || coalesce(first_id::text, '-') from {leaf}"
        )
    });
    let text = LINES.replace("{hidden}", &hidden);
    let mut lines: Vec<String> =
        sqlx::query_scalar(AssertSqlSafe(text)).persistent(false).fetch_all(sql).await.unwrap();
    lines.sort_unstable();
    lines
}

pub async fn keep(sql: &mut PgConnection) -> Kept {
    let mut kept = Vec::new();
    for table in SETTLED {
        let text = format!("select coalesce(jsonb_agg(to_jsonb(t)), '[]')::text from {table} t");
        kept.push((
            table,
            sqlx::query_scalar(AssertSqlSafe(text)).fetch_one(&mut *sql).await.unwrap(),
        ));
    }
    kept
}

pub async fn put_back(sql: &mut PgConnection, kept: Kept) {
    for (table, rows) in kept {
        execute(sql, &format!("delete from {table}")).await;
        let text = format!(
            "insert into {table} select * from jsonb_populate_recordset(null::{table}, \
             $1::text::jsonb)"
        );
        sqlx::query(AssertSqlSafe(text)).bind(rows).execute(&mut *sql).await.unwrap();
    }
}

pub async fn empty(sql: &mut PgConnection) {
    let text: String = ALL.map(|table| format!("delete from {table};")).concat();
    execute(sql, &text).await;
}

pub async fn execute(sql: &mut PgConnection, text: &str) {
    sqlx::raw_sql(AssertSqlSafe(text.to_owned())).execute(sql).await.unwrap();
}
