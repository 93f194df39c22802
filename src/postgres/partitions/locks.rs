//! The advisory locks of this program. They keep two nodes from doing the same work at once.
//!
//! Every role that may connect to the database may take an advisory lock. So these locks only save
//! work, and no promise depends on them: the catalog, and locks of rows and tables, make two nodes
//! harmless. A node works without a lock that a stranger holds. A stranger is a session whose role
//! lacks the rights of the owner of the tables.

use std::time::Duration;

use parking_lot::Mutex;
use sqlx::postgres::PgConnection;

use crate::clock;
use crate::domain::Throttle;
use crate::domain::leaves::Parent;
use crate::postgres::connection::holder::stranger_with;

/// First key of this program's advisory locks ("punc"). Other programs in the same database use
/// others.
const LOCK_CLASS: i32 = 0x7075_6e63;
/// Second keys. This one is taken for a transaction that creates partitions or moves tasks out of
/// the far table.
const LOCK_MAINTENANCE: i32 = 1;
/// Taken by `migrate`, for its session.
const LOCK_MIGRATE: i32 = 2;

/// The pause between two log lines about strangers.
const STRANGER_LOG_INTERVAL: Duration = Duration::from_secs(60);
static STRANGER_LOG: Mutex<Throttle> = Mutex::new(Throttle::new(STRANGER_LOG_INTERVAL));

/// An advisory lock of the database, and thus of the cluster.
#[derive(Clone, Copy, Debug)]
pub(in crate::postgres) struct Lock(pub(super) i32, pub(super) i32);

pub(in crate::postgres) const MAINTENANCE: Lock = Lock(LOCK_CLASS, LOCK_MAINTENANCE);
pub(in crate::postgres) const MIGRATE: Lock = Lock(LOCK_CLASS, LOCK_MIGRATE);

/// Returns the lock for retiring partitions of `parent`. It is taken for a session, because a
/// detach runs outside of transactions.
pub(super) const fn retire_lock(parent: Parent) -> Lock {
    let number = match parent {
        Parent::Task => 10,
        Parent::ExeclogBatch => 11,
        Parent::ExeclogPayload => 12,
        Parent::ExeclogCancelled => 13,
        Parent::ExeclogRedriven => 14,
        Parent::ExeclogEnded => 15,
        Parent::ExeclogDropped => 16,
        Parent::ExeclogFinished => 17,
        Parent::ExeclogAttempt => 18,
    };
    Lock(LOCK_CLASS, number)
}

/// How long a lock is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::postgres) enum HeldFor {
    Transaction,
    Session,
}

/// Takes a lock without waiting. Returns false when another node has it. With a stranger's lock in
/// the way, returns true without the lock.
pub(in crate::postgres) async fn take(
    open: &mut PgConnection,
    lock: Lock,
    held_for: HeldFor,
) -> Result<bool, sqlx::Error> {
    let text = match held_for {
        HeldFor::Transaction => {
            "-- lock for a transaction\nselect pg_try_advisory_xact_lock($1, $2)"
        }
        HeldFor::Session => "-- lock for a session\nselect pg_try_advisory_lock($1, $2)",
    };
    let query = sqlx::query_scalar(text).bind(lock.0).bind(lock.1);
    let is_taken: bool = query.fetch_one(&mut *open).await?;
    Ok(is_taken || is_of_stranger(open, lock).await?)
}

/// Returns true when a stranger holds the lock, and logs who it is, now and then.
pub(in crate::postgres) async fn is_of_stranger(
    open: &mut PgConnection,
    lock: Lock,
) -> Result<bool, sqlx::Error> {
    let Some(holder) = stranger_with(open, (lock.0, lock.1)).await? else { return Ok(false) };
    if STRANGER_LOG.lock().lets_through(clock::monotonic()) {
        tracing::warn!(
            holder,
            "a session without the rights on Punctual's tables holds an advisory lock of Punctual; \
             working without the lock"
        );
    }
    Ok(true)
}
