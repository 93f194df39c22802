//! Outboxes: nodes take submits, replacements, cancels and finishes out of the databases of
//! applications, which wrote them in their own transactions.
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
//! - The node dies anywhere: the rows are in the outbox, and stored rows have an entry in
//!   `outbox_seen`. Or only entries without rows are left, and the next epoch removes these
//!   entries.
//! - Two nodes at once: each takes an epoch before reading. Only the later epoch stores anything.
//! - The node of the current epoch removes an entry of `outbox_seen` after seeing the row gone. So
//!   no node can still store that row.
//! - A cancel never overtakes its submit: rows are read in the order of `seq`, and a wave has at
//!   most one row of each name.
//!
//! - A waiting row makes the later rows of the same topic wait, and no others.
//!
//! `drainer` runs the turns, `rows` carries out the rows, `waves` puts rows in order, `waits` has
//! the waiting topics.

pub mod drainer;
mod metrics;
mod rows;
mod waits;
mod waves;

pub use metrics::OutboxMetrics;
