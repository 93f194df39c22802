//! Records when the machine or its disk stalled. No program can keep time limits during a stall, so
//! the tests of such limits leave stalls out.

use std::sync::{Arc, Mutex, MutexGuard};

use sqlx::Connection as _;
use tokio::task::JoinHandle;

use crate::support::wait::until;
use crate::support::{Database, now_ms};

const EVERY_MS: i64 = 10;
/// A bare commit takes about 1 ms.
const STALL_MS: i64 = 50;

/// Makes bare commits, one after another, until dropped.
#[derive(Debug)]
pub struct Stalls {
    watching: JoinHandle<()>,
    /// The planned start and the end of each commit.
    seen: Arc<Mutex<Vec<(i64, i64)>>>,
}

impl Stalls {
    /// Watches Postgres from now on.
    pub async fn watch(database: &Database) -> Self {
        let seen: Arc<Mutex<Vec<(i64, i64)>>> = Arc::default();
        let (mut connection, into) = (database.connect().await, Arc::clone(&seen));
        let watching = tokio::spawn(async move {
            loop {
                let planned = now_ms() + EVERY_MS;
                until(planned).await;
                // The time counts from the planned start, so a stall between two commits counts as
                // well.
                let mut transaction = connection.begin().await.unwrap();
                sqlx::query("select pg_logical_emit_message(true, 'stalls', '')")
                    .execute(&mut *transaction)
                    .await
                    .unwrap();
                transaction.commit().await.unwrap();
                into.lock().unwrap().push((planned, now_ms()));
            }
        });
        Self { watching, seen }
    }

    /// Returns true when a commit was slow between `begin` and `end`, or so shortly before that its
    /// backlog was not yet worked off.
    pub fn meets(&self, begin: i64, end: i64) -> bool {
        self.seen()
            .iter()
            .filter(is_stall)
            .any(|stall| stall.0 <= end && begin <= stall.1 + took(stall))
    }

    /// Returns the total duration of the slow commits that overlap the span.
    pub fn total_ms(&self, begin: i64, end: i64) -> i64 {
        self.seen()
            .iter()
            .filter(is_stall)
            .filter(|stall| stall.0 <= end && begin <= stall.1)
            .map(took)
            .sum()
    }

    /// Returns when the last commit of the span that took more than `longer_than` milliseconds
    /// ended.
    pub fn last_end(&self, begin: i64, end: i64, longer_than: i64) -> Option<i64> {
        let seen = self.seen();
        let long = seen
            .iter()
            .filter(|commit| took(commit) > longer_than && commit.0 <= end && begin <= commit.1);
        long.map(|commit| commit.1).max()
    }

    /// Returns the p99 of the commits so far.
    pub fn p99_ms(&self) -> i64 {
        let mut all: Vec<i64> = self.seen().iter().map(took).collect();
        all.sort_unstable();
        all.get(all.len() * 99 / 100).copied().unwrap_or_default()
    }

    fn seen(&self) -> MutexGuard<'_, Vec<(i64, i64)>> {
        assert!(!self.watching.is_finished(), "the watch has failed");
        self.seen.lock().unwrap()
    }
}

fn took(commit: &(i64, i64)) -> i64 {
    commit.1 - commit.0
}

fn is_stall(commit: &&(i64, i64)) -> bool {
    took(commit) > STALL_MS
}

impl Drop for Stalls {
    fn drop(&mut self) {
        self.watching.abort();
    }
}
