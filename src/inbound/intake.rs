//! Intake topics: nodes take submits, replacements, cancels and answers of consumers out of topics
//! of Kafka.
//!
//! ```text
//! Kafka                                  Punctual's database
//! read records of a partition
//!   run by run:                          begin, move intake_offset from the first record of the
//!                                        run to behind its last, store the tasks, and the
//!                                        rejections of the refused records that it passes, commit
//! write the rejected records to their
//! topic
//!                                        delete their rejections
//! ```
//!
//! - The offset moves only from the place known to the node, and only together with the tasks and
//!   the rejections. So each record is either stored or rejected, exactly once, whatever dies, and
//!   however many nodes read the partition.
//! - A rejection that is stored and whose record is not written waits. The next node reads the
//!   partition from its record on. So a record may be written to the rejected topic twice.
//! - A run is a stretch of submits of different names, or of answers of consumers. A replacement or
//!   a cancel is a run of its own. So records of a partition take effect in their order.
//! - A waiting record makes the partition wait. Other partitions are at most slower: all take
//!   turns.
//!
//! `keeper` reads partitions, `turns` carries out the records, `runs` cuts the records into runs,
//! `rejects` writes rejected records, `partition` is the state of one partition.

pub mod keeper;
mod metrics;
mod partition;
mod rejects;
mod runs;
mod turns;

pub use metrics::IntakeMetrics;
