//! Reads in the log of a partition (`scripts/stack kafka-log`) how the transaction of a record has
//! ended.
//!
//! The log decides what was committed, and not what a producer was told. A broker that takes over
//! from a lost one may write the marker that ends a transaction a second time, behind the first
//! records of the next one. Kafka prevents that only for producers that take a new epoch for each
//! transaction (KIP-890). librdkafka's producers keep theirs, so they may be told of a commit whose
//! records were aborted.

/// Returns true when `log` says that the record at `offset` belongs to an aborted transaction.
pub fn is_aborted(log: &str, offset: i64) -> bool {
    let mut producer = None;
    let mut lines = log.lines();
    while let Some(line) = lines.next() {
        let Some(batch) = Batch::read(line) else { continue };
        if !batch.is_marker && batch.first <= offset && offset <= batch.last {
            producer = Some(batch.producer);
        }
        if batch.is_marker && producer == Some(batch.producer) {
            // The marker's kind is in the line of its record.
            return lines.next().is_some_and(|record| record.contains("endTxnMarker: ABORT"));
        }
    }
    false
}

struct Batch<'a> {
    first: i64,
    last: i64,
    producer: &'a str,
    is_marker: bool,
}

impl<'a> Batch<'a> {
    fn read(line: &'a str) -> Option<Self> {
        let value = |key: &str| line.split_once(key)?.1.split(' ').next();
        line.starts_with("baseOffset: ").then_some(())?;
        Some(Self {
            first: value("baseOffset: ")?.parse().ok()?,
            last: value("lastOffset: ")?.parse().ok()?,
            producer: value("producerId: ")?,
            is_marker: value("isControl: ")? == "true",
        })
    }
}
