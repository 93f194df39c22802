//! The application's database, and its clients, which submit in their own transactions.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _};
use uuid::Uuid;

use super::Doors;
use super::asking::{Asked, Asker, Due, TRANSACTION_EVERY_MS};
use crate::door_history::{Door, Op, Rejection};
use crate::plan::NODES;
use crate::support::ledger::SERIAL_HEADER;
use crate::support::wait::look_for;
use crate::support::{now_ms, wait};
use crate::traffic::Load;

/// The time for one transaction, also to connect.
const PATIENCE: Duration = Duration::from_secs(3);
const RETRY_MS: i64 = 100;
/// The name of the sessions that write rows.
const CLIENT: &str = "client";
/// The time until the server has noticed that a client is gone, or answers again.
const END_DEADLINE: Duration = Duration::from_secs(60);

/// A database of the application's server.
#[derive(Clone, Debug)]
pub struct Shop {
    /// Its URL for the application.
    pub url: String,
    name: String,
}

/// Returns the role of a node.
pub fn role_of(node: u8) -> String {
    format!("node{node}")
}

impl Shop {
    /// Creates a database, and a role for each node.
    pub async fn open(server: &str, name: &str) -> Self {
        let name = name.replace("test", "shop");
        let mut sql = PgConnection::connect(server).await.expect("the shop's server is up");
        let roles = (1..=NODES).map(role_of).map(|role| {
            format!(
                "do $$ begin if not exists (select from pg_roles where rolname = '{role}') then \
                 create role {role} login password '{role}'; end if; end $$"
            )
        });
        for statement in roles.chain([format!("create database {name}")]) {
            sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut sql).await.expect("set it up");
        }
        let mut url = reqwest::Url::parse(server).expect("a URL");
        url.set_path(&format!("/{name}"));
        let shop = Self { url: url.to_string(), name };
        let mut sql = shop.connect().await.expect("the shop's server is up");
        let table = "create table orders (serial bigint primary key, row_id uuid unique)";
        sqlx::raw_sql(table).execute(&mut sql).await.expect("create its table");
        shop
    }

    /// Returns its URL for a node, through the proxy at `address`.
    pub fn url_of(&self, address: &str, node: u8) -> String {
        let role = role_of(node);
        format!("postgres://{role}:{role}@{address}/{}", self.name)
    }

    /// Connects, or fails while the server is stopped or frozen.
    pub async fn connect(&self) -> Option<PgConnection> {
        connect(&self.url).await
    }

    /// Connects as a client that writes rows.
    async fn connect_client(&self) -> Option<PgConnection> {
        connect(&format!("{}?application_name={CLIENT}", self.url)).await
    }

    /// Returns the serials of all committed rows, when no client can commit any more.
    pub async fn committed(&self) -> Vec<i64> {
        let mut found = None;
        look_for(END_DEADLINE, async || {
            let mut sql = self.connect().await?;
            let clients = "select count(*) from pg_stat_activity
                where application_name = $1 and datname = current_database()";
            let clients = sqlx::query_scalar::<_, i64>(clients).bind(CLIENT);
            if clients.fetch_one(&mut sql).await.ok()? > 0 {
                return None;
            }
            let query = sqlx::query_scalar("select serial from orders");
            found = query.fetch_all(&mut sql).await.ok();
            found.as_ref().map(|_serials| ())
        })
        .await
        .expect("the clients of the shop end, and it answers");
        found.unwrap_or_default()
    }

    pub async fn rejections(&self) -> Vec<Rejection> {
        let mut sql = self.connect().await.expect("the shop answers");
        // The rows of cancels and finishes have no headers with a serial.
        let query = "select coalesce(o.serial, 0) as serial, r.reason
            from punctual.outbox_rejected r left join orders o on o.row_id = r.id";
        let rows = sqlx::query(query).fetch_all(&mut sql).await.expect("read the rejected rows");
        rows.iter()
            .map(|row| Rejection {
                serial: u64::try_from(row.get::<i64, _>("serial")).unwrap(),
                reason: row.get("reason"),
            })
            .collect()
    }
}

async fn connect(url: &str) -> Option<PgConnection> {
    tokio::time::timeout(PATIENCE, PgConnection::connect(url)).await.ok()?.ok()
}

impl Doors {
    /// Writes rows until the traffic ends.
    pub(super) async fn write_rows(self: Arc<Self>, mut asker: Asker, load: Load) {
        let mut session: Option<PgConnection> = None;
        let mut next = now_ms();
        while !load.is_over.load(Ordering::Relaxed) {
            next = (next + TRANSACTION_EVERY_MS).max(now_ms() - TRANSACTION_EVERY_MS);
            wait::until(next).await;
            let Some(mut sql) = (match session.take() {
                Some(sql) => Some(sql),
                None => self.shop.connect_client().await,
            }) else {
                wait::until(now_ms() + RETRY_MS).await;
                continue;
            };
            let (asked, commits) = asker.transaction(self.take_finishes(Door::Sql));
            let sent_at = now_ms();
            let written = tokio::time::timeout(PATIENCE, write(&mut sql, &asked, commits)).await;
            match written {
                Ok(Ok(rows)) => {
                    self.note(asked, Some(rows), (sent_at, Some(commits)));
                    session = Some(sql);
                }
                // The table of orders tells at the end.
                Ok(Err(_)) | Err(_) => {
                    self.note(asked, None, (sent_at, None));
                    asker.forget();
                }
            }
        }
        if let Some(sql) = session {
            // The server may be down.
            let _closed = tokio::time::timeout(PATIENCE, sql.close()).await;
        }
    }
}

/// Writes one transaction. Returns the ids of the rows.
async fn write(
    sql: &mut PgConnection,
    asked: &[Asked],
    commits: bool,
) -> Result<Vec<Uuid>, sqlx::Error> {
    sqlx::raw_sql("begin").execute(&mut *sql).await?;
    let mut rows = Vec::with_capacity(asked.len());
    for asked in asked {
        let row = write_row(sql, asked).await?;
        let order = sqlx::query("insert into orders (serial, row_id) values ($1, $2)");
        let order = order.bind(i64::try_from(asked.serial).unwrap()).bind(row);
        order.execute(&mut *sql).await?;
        rows.push(row);
    }
    let end = if commits { "commit" } else { "rollback" };
    sqlx::raw_sql(end).execute(&mut *sql).await?;
    Ok(rows)
}

async fn write_row(sql: &mut PgConnection, asked: &Asked) -> Result<Uuid, sqlx::Error> {
    match asked.op {
        Op::Submit | Op::Replace => write_task(sql, asked).await,
        Op::Cancel => {
            let statement = match asked.is_plain {
                true => {
                    "insert into punctual.outbox (op, topic, name) values ('cancel', $1, $2)
                    returning id"
                }
                false => "select punctual.cancel(topic => $1, name => $2)",
            };
            let query = sqlx::query_scalar(statement).bind(&asked.topic_name).bind(&asked.name);
            query.fetch_one(sql).await
        }
        Op::Finish => {
            let (task, attempt) = asked.finishes.expect("a finish names an attempt");
            let statement = match asked.is_plain {
                true => {
                    "insert into punctual.outbox (op, topic, task_id, attempt)
                    values ('finish', $1, $2, $3) returning id"
                }
                false => "select punctual.finish(topic => $1, id => $2, attempt => $3)",
            };
            let query = sqlx::query_scalar(statement).bind(&asked.topic_name).bind(task);
            query.bind(i32::from(attempt)).fetch_one(sql).await
        }
    }
}

async fn write_task(sql: &mut PgConnection, asked: &Asked) -> Result<Uuid, sqlx::Error> {
    let (due, millis) = match asked.due {
        Due::At(due_at) => ("due_at", due_at),
        Due::After(delay) => ("delay", delay),
    };
    let due_value = match asked.due {
        Due::At(_) => "timestamptz 'epoch' + $6::float8 * interval '1 millisecond'",
        Due::After(_) => "$6::float8 * interval '1 millisecond'",
    };
    let op = if asked.op == Op::Replace { "replace" } else { "submit" };
    let ttr = "$7::float8 * interval '1 millisecond'";
    // A function refuses at once what the table takes.
    let statement = if asked.is_plain || asked.is_wrong {
        // Due twice, if its topic is right.
        let is_due_twice = asked.is_wrong && asked.topic_name.contains("by-sql");
        let (mut more, mut value) = match (is_due_twice, due) {
            (true, "due_at") => (", delay".to_owned(), ", interval '1 s'".to_owned()),
            (true, _) => (", due_at".to_owned(), ", now()".to_owned()),
            (false, _) => (String::new(), String::new()),
        };
        if asked.tracked.is_some() {
            more.push_str(", ttr, retry");
            value.push_str(&format!(", {ttr}, $8::jsonb"));
        }
        format!(
            "insert into punctual.outbox (op, topic, name, payload_text, key, headers, \
             {due}{more}) values ('{op}', $1, $2, $3, $4, $5::jsonb, {due_value}{value}) \
             returning id"
        )
    } else {
        let more = match asked.tracked {
            Some(_) => format!(", ttr => {ttr}, retry => $8::jsonb"),
            None => String::new(),
        };
        format!(
            "select punctual.{op}(topic => $1, name => $2, payload_text => $3, key => $4, \
             headers => $5::jsonb, {due} => {due_value}{more})"
        )
    };
    let headers = serde_json::json!({ SERIAL_HEADER: asked.serial.to_string() }).to_string();
    let query = sqlx::query_scalar(AssertSqlSafe(statement));
    let query = query.bind(&asked.topic_name).bind(&asked.name).bind(&asked.text);
    let query = query.bind(&asked.key).bind(headers).bind(millis as f64);
    match asked.tracked {
        Some(tracked) => {
            query.bind(tracked.ttr_ms as f64).bind(Asked::retry(tracked)).fetch_one(sql).await
        }
        None => query.fetch_one(sql).await,
    }
}
