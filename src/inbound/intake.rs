//! Intake topics: nodes take submits, cancels and answers of consumers out of topics of Kafka.
//!
//! ```text
//! Kafka                                  Punctual's database
//! read records of a partition
//!                                        (refused ones: write them to the rejected topic, and
//!                                        wait for the acknowledgement)
//!   run by run:                          begin, move intake_offset from the first record of the
//!                                        run to behind its last, store the tasks, commit
//! ```
//!
//! - The offset moves only from the place known to the node, and only together with the tasks. So
//!   each record is stored exactly once, whatever dies, and however many nodes read the partition.
//! - A run is a stretch of submits of different names, or of answers of consumers. A replacement or
//!   a cancel is a run of its own. So records of a partition take effect in their order.
//! - A waiting record makes the partition wait. Other partitions are at most slower: all take
//!   turns.
//!
//! `keeper` reads partitions, `turns` carries out the records, `runs` cuts the records into runs,
//! `partition` is the state of one partition.

pub mod keeper;
mod metrics;
mod partition;
mod runs;
mod turns;

pub use metrics::IntakeMetrics;
