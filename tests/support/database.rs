//! A separate database for a test.

use std::net::SocketAddr;

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::stack::Stack;

/// Counts the sessions of the current database waiting for a lock.
pub const BLOCKED: &str = "select count(*) from pg_stat_activity where datname = \
                           current_database() and wait_event_type = 'Lock'";

/// A database dropped with the test.
#[derive(Debug)]
pub struct Database {
    pub name: String,
    pub url: String,
    /// The URL of the stack's own database. A session cannot drop the database that it is connected
    /// to.
    server: String,
}

impl Database {
    /// Creates an empty database whose name begins with `prefix`.
    pub async fn create(stack: &Stack, prefix: &str) -> Self {
        Self::create_as(stack, prefix, "").await
    }

    /// Creates an empty database with these options of `create database`.
    pub async fn create_as(stack: &Stack, prefix: &str, words: &str) -> Self {
        let name = format!("{}_{:08x}", prefix.replace('-', "_"), rand::random::<u32>());
        administer(&stack.database_url, format!("create database {name} {words}"))
            .await
            .expect("create the test's database");
        Self { url: stack.database(&name), name, server: stack.database_url.clone() }
    }

    pub async fn connect(&self) -> PgConnection {
        PgConnection::connect(&self.url).await.unwrap()
    }

    /// Returns its URL through the proxy at `address`.
    pub fn url_by(&self, address: SocketAddr) -> String {
        format!("postgres://punctual:punctual@{address}/{}", self.name)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let statement = format!("drop database if exists {} with (force)", self.name);
        // A separate runtime in a separate thread, because the test's runtime may be shutting down.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let runtime =
                    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                if let Err(error) = runtime.block_on(administer(&self.server, statement)) {
                    eprintln!("the database {} is left behind: {error}", self.name);
                }
            });
        });
    }
}

/// Runs an administrative statement on the server.
async fn administer(server: &str, statement: String) -> Result<(), sqlx::Error> {
    let mut connection = PgConnection::connect(server).await?;
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut connection).await?;
    connection.close().await
}
