//! Outboxes: nodes take submits and cancels out of the databases of applications, which wrote them
//! in their own transactions.
//!
//! ```text
//! user's database                        Punctual's database
//! begin, lock, read rows by seq
//!                                        rows of outbox_seen are stored: skip them
//!   wave by wave:                        begin, hold the epoch, insert into outbox_seen,
//!                                        store the tasks, commit
//! delete the rows, keep the refused
//! ones in outbox_rejected, commit
//!                                        delete from outbox_seen
//! ```
//!
//! - The node dies anywhere: the rows are in the outbox, and those that were stored are in
//!   `outbox_seen`. Or they are gone, and only their entries are left, which the next epoch
//!   removes.
//! - Two nodes at once: each takes an epoch before it reads. Only the later epoch stores anything.
//! - An entry of `outbox_seen` is removed by the node of the current epoch, after it saw the row
//!   gone. So no node can still store that row.
//! - A cancel never overtakes its submit: rows are read in the order of `seq`, and a wave has at
//!   most one row of each name.
//!
//! - A row that must wait makes the later rows of its topic wait, and no others.
//!
//! `drainer` runs the turns, `rows` carries them out, `waves` puts rows in order, `waits` has the
//! topics that wait.

pub mod drainer;
mod metrics;
mod rows;
mod waits;
mod waves;

pub use metrics::OutboxMetrics;
