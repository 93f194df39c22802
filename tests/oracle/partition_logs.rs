//! The end of a record's transaction, as the log of its partition tells it.

use super::partition_log::is_aborted;

fn batch(first: i64, last: i64, producer: u64, is_marker: bool) -> String {
    format!(
        "baseOffset: {first} lastOffset: {last} count: 1 baseSequence: 0 lastSequence: 0 \
         producerId: {producer} producerEpoch: 6 partitionLeaderEpoch: 7 isTransactional: true \
         isControl: {is_marker} position: 73 size: 78 magic: 2 isvalid: true\n\
         | offset: {first} CreateTime: 1796083561114 keySize: 4 valueSize: 6 headerKeys: []"
    )
}

fn marker(at: i64, producer: u64, kind: &str) -> String {
    format!("{} endTxnMarker: {kind} coordinatorEpoch: 8\n", batch(at, at, producer, true))
}

#[test]
fn a_record_has_the_end_of_the_next_marker_of_its_producer() {
    let records = |first, last, producer| batch(first, last, producer, false) + "\n";
    let log = [
        "Dumping 0.log\nLog starting offset: 0\n".to_owned(),
        records(0, 1, 2005),
        records(2, 2, 31),
        marker(3, 31, "ABORT"),
        marker(4, 2005, "COMMIT"),
        records(5, 6, 2005),
        marker(7, 2005, "ABORT"),
        marker(8, 2005, "COMMIT"),
        records(9, 9, 2005),
    ]
    .concat();
    let aborted: Vec<i64> = (0..10).filter(|offset| is_aborted(&log, *offset)).collect();
    // A record without a marker behind it has no end, and a marker is no record.
    assert_eq!(aborted, [2, 5, 6]);
}
