//! Batches of records, as sent by producers and read by consumers (magic 2).
//!
//! The broker stores batches as they came, apart from the offset, the timestamp of the append with
//! its attribute, and the checksum.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use kafka_protocol::records::{Record, RecordBatchDecoder};

use crate::domain::Timestamp;

/// An error of the protocol, which ends a connection.
pub type BrokerError = Box<dyn std::error::Error + Send + Sync>;

/// Bytes in front of the part that the length of a batch counts.
const FRAME: usize = 12;
const MAGIC: usize = 16;
const CRC: usize = 17;
const ATTRIBUTES: usize = 21;
const LAST_OFFSET_DELTA: usize = 23;
const MAX_TIMESTAMP: usize = 35;
/// The shortest batch: its header.
const HEADER: usize = 61;
/// The bit of the attributes that says that the timestamp is the time of the append.
const LOG_APPEND_TIME: i16 = 0x08;

/// A stored batch, and the offsets of its records.
#[derive(Clone, Debug)]
pub struct StoredBatch {
    pub first: i64,
    pub last: i64,
    pub appended_at: Timestamp,
    pub bytes: Bytes,
}

/// Cuts the records of a request into batches.
///
/// # Errors
/// When the bytes are not whole batches of the present format.
pub fn cut(mut records: Bytes) -> Result<Vec<Bytes>, BrokerError> {
    let mut batches = Vec::new();
    while records.has_remaining() {
        let length = records.get(8..FRAME).map(|mut length| length.get_i32()).unwrap_or_default();
        let size = usize::try_from(length).unwrap_or_default().saturating_add(FRAME);
        if size < HEADER || size > records.len() || records[MAGIC] != 2 {
            return Err("not whole record batches of format 2".into());
        }
        batches.push(records.split_to(size));
    }
    Ok(batches)
}

/// Gives a batch its place in the log. `batch` is one that [`cut`] returned.
pub fn store(batch: &[u8], first: i64, now: Timestamp) -> StoredBatch {
    let mut bytes = BytesMut::from(batch);
    bytes[..8].as_mut().put_i64(first);
    let attributes = (&bytes[ATTRIBUTES..]).get_i16() | LOG_APPEND_TIME;
    bytes[ATTRIBUTES..].as_mut().put_i16(attributes);
    bytes[MAX_TIMESTAMP..].as_mut().put_i64(now.as_millis());
    let checksum = crc32c::crc32c(&bytes[ATTRIBUTES..]);
    bytes[CRC..].as_mut().put_u32(checksum);
    let delta = (&bytes[LAST_OFFSET_DELTA..]).get_i32();
    let last = first + i64::from(delta.max(0));
    StoredBatch { first, last, appended_at: now, bytes: bytes.freeze() }
}

/// Returns the records of a batch.
///
/// # Errors
/// When the batch is compressed, which Punctual's own are not, or when it cannot be read.
pub fn read(batch: &StoredBatch) -> Result<Vec<Record>, BrokerError> {
    Ok(RecordBatchDecoder::decode(&mut batch.bytes.clone())?.records)
}

#[cfg(test)]
mod tests {
    use kafka_protocol::records::{
        Compression, RecordBatchEncoder, RecordEncodeOptions, TimestampType,
    };

    use super::*;

    fn batch(values: &[&'static str]) -> Bytes {
        let record = |(offset, value): (i64, &&'static str)| Record {
            transactional: false,
            control: false,
            delete_horizon: false,
            partition_leader_epoch: 0,
            producer_id: 1,
            producer_epoch: 0,
            timestamp_type: TimestampType::Creation,
            offset,
            sequence: i32::try_from(offset).unwrap(),
            timestamp: 1_000,
            key: None,
            value: Some(Bytes::from_static(value.as_bytes())),
            headers: Default::default(),
        };
        let records: Vec<Record> = (0..).zip(values).map(record).collect();
        let mut bytes = BytesMut::new();
        let options = RecordEncodeOptions { version: 2, compression: Compression::None };
        RecordBatchEncoder::encode(&mut bytes, &records, &options).unwrap();
        bytes.freeze()
    }

    #[test]
    fn a_stored_batch_has_its_offsets_and_the_time_of_its_append() {
        let now = Timestamp::from_millis(5_000);
        let stored = store(&batch(&["a", "b"]), 7, now);
        assert_eq!((stored.first, stored.last), (7, 8));
        // The decoder checks the checksum.
        let read = read(&stored).unwrap();
        let shown: Vec<_> =
            read.iter().map(|record| (record.offset, record.value.as_deref())).collect();
        assert_eq!(shown, [(7, Some(b"a".as_slice())), (8, Some(b"b".as_slice()))]);
        assert!(read.iter().all(|record| record.timestamp_type == TimestampType::LogAppend));
    }

    #[test]
    fn records_are_cut_into_whole_batches() {
        let (one, two) = (batch(&["a"]), batch(&["b", "c"]));
        let both: Bytes = [one.as_ref(), two.as_ref()].concat().into();
        assert_eq!(cut(both.clone()).unwrap(), [one, two]);
        for wrong in [both.slice(..both.len() - 1), both.slice(1..), Bytes::from_static(b"abc")] {
            assert!(cut(wrong).is_err());
        }
    }
}
