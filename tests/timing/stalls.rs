//! When the machine or its disk stood still: for the tests that promise times, which no program can keep then.

use std::sync::{Arc, Mutex};

use sqlx::Connection as _;
use tokio::task::JoinHandle;

use crate::support::wait::until;
use crate::support::{Database, now_ms};

const EVERY_MS: i64 = 10;
/// A bare commit takes about 1 ms.
const STALL_MS: i64 = 50;

/// Bare commits, one after the other, until it is dropped.
#[derive(Debug)]
pub struct Stalls {
    watching: JoinHandle<()>,
    seen: Arc<Mutex<Vec<(i64, i64)>>>,
}

impl Stalls {
    /// Watches Postgres from now on.
    pub async fn watch(database: &Database) -> Self {
        let seen: Arc<Mutex<Vec<(i64, i64)>>> = Arc::default();
        let (mut connection, into) = (database.connect().await, Arc::clone(&seen));
        let watching = tokio::spawn(async move {
            loop {
                until(now_ms() + EVERY_MS).await;
                let begin = now_ms();
                let mut transaction = connection.begin().await.unwrap();
                sqlx::query("select pg_logical_emit_message(true, 'stalls', '')").execute(&mut *transaction).await.unwrap();
                transaction.commit().await.unwrap();
                if now_ms() - begin > STALL_MS {
                    into.lock().unwrap().push((begin, now_ms()));
                }
            }
        });
        Self { watching, seen }
    }

    /// True when a commit took long at some moment between `begin` and `end`.
    pub fn meets(&self, begin: i64, end: i64) -> bool {
        self.total_ms(begin, end) > 0
    }

    /// How long commits that took long took in all, of those that met the span.
    pub fn total_ms(&self, begin: i64, end: i64) -> i64 {
        assert!(!self.watching.is_finished(), "the watch has failed");
        let seen = self.seen.lock().unwrap();
        seen.iter().filter(|stall| stall.0 <= end && begin <= stall.1).map(|stall| stall.1 - stall.0).sum()
    }
}

impl Drop for Stalls {
    fn drop(&mut self) {
        self.watching.abort();
    }
}
