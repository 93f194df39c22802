//! A database of a test's own.

use std::net::SocketAddr;

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::stack::Stack;

/// Counts the sessions of one's database that wait for a lock.
pub const BLOCKED: &str = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";

/// Dropped with the test.
#[derive(Debug)]
pub struct Database {
    pub name: String,
    pub url: String,
    /// The database that the stack names: one cannot drop the one that one is in.
    server: String,
}

impl Database {
    /// An empty one; its name begins with `prefix`.
    pub async fn create(stack: &Stack, prefix: &str) -> Self {
        Self::create_as(stack, prefix, "").await
    }

    /// An empty one, made with these words of `create database`.
    pub async fn create_as(stack: &Stack, prefix: &str, words: &str) -> Self {
        let name = format!("{}_{:08x}", prefix.replace('-', "_"), rand::random::<u32>());
        administer(&stack.database_url, format!("create database {name} {words}")).await.expect("create the test's database");
        Self { url: stack.database(&name), name, server: stack.database_url.clone() }
    }

    pub async fn connect(&self) -> PgConnection {
        PgConnection::connect(&self.url).await.unwrap()
    }

    /// Its URL by way of `address`.
    pub fn url_by(&self, address: SocketAddr) -> String {
        format!("postgres://punctual:punctual@{address}/{}", self.name)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let statement = format!("drop database if exists {} with (force)", self.name);
        // A runtime of its own, in a thread of its own: the test's may be on its way out.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                if let Err(error) = runtime.block_on(administer(&self.server, statement)) {
                    eprintln!("the database {} is left behind: {error}", self.name);
                }
            });
        });
    }
}

/// Runs a statement of the server's administration.
async fn administer(server: &str, statement: String) -> Result<(), sqlx::Error> {
    let mut connection = PgConnection::connect(server).await?;
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut connection).await?;
    connection.close().await
}
