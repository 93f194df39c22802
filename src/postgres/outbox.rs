//! Outboxes: tables in databases of users, out of which nodes take submits, replacements, cancels
//! and finishes.
//!
//! `setup` installs, checks and removes an outbox, after `objects` has looked at its owner and its
//! functions. `source` takes rows out of it, in the user's database. [`super::inbound`] stores
//! their tasks in Punctual's. `submitter` writes rows for `bench`.

mod objects;
pub mod setup;
pub mod source;
pub mod submitter;

use std::time::Duration;

use super::connection::ConnectionPurpose;

/// A session of the user's database. A pooler in transaction mode may be in between, so nothing is
/// pinned: each transaction sets its own parameters.
const PURPOSE: ConnectionPurpose =
    ConnectionPurpose { name: "outbox", deadline: Duration::from_secs(10), settings: &[] };

/// Begins each transaction in the user's database. The defaults of the role, the database and the
/// pooler must not matter. A commit that a crash undoes would bring rows back, so it is on disk.
const BEGIN: &str = "-- begin at an outbox
begin isolation level read committed read write;
set local search_path = pg_catalog, pg_temp;
set local synchronous_commit = on;
set local lock_timeout = '1s';
set local statement_timeout = '10s';
set local idle_in_transaction_session_timeout = '60s';
set local timezone = 'UTC';
set local enable_hashjoin = off;
set local enable_mergejoin = off;
set local enable_seqscan = off;
set local jit = off";

/// The version of the outbox that this program installs and drains. A change to the schema, also to
/// the body of a function, needs another one: a check compares the functions of this version.
pub const VERSION: i32 = 3;

const SCHEMA: &str = include_str!("outbox/schema.sql");
