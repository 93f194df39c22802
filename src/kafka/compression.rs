//! Computes the size of a record after a producer has compressed it.
//!
//! A broker checks the size of a compressed batch against the topic's `max.message.bytes`, and once
//! more after compressing the batch again for the topic's `compression.type`. So a record with an
//! uncompressed size over the limit is compressed here, to know the size.

use std::io::{self, Write};

use flate2::write::GzEncoder;
use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};
use tokio::sync::Semaphore;

use super::KafkaSettings;
use crate::domain::Record;

/// A compression codec of Kafka.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Codec {
    Gzip,
    Snappy,
    Lz4,
    Zstd,
}

impl Codec {
    /// Returns the codec of this name, or `None` for `none` and for unknown names.
    pub(super) fn of(name: &str) -> Option<Self> {
        match name {
            "gzip" => Some(Self::Gzip),
            "snappy" => Some(Self::Snappy),
            "lz4" => Some(Self::Lz4),
            "zstd" => Some(Self::Zstd),
            _ => None,
        }
    }
}

/// The broker's treatment of a compressed batch: the topic's `compression.type`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TopicCompression {
    /// The broker keeps the batch as it came (`producer`, Kafka's default).
    #[default]
    AsSent,
    Uncompressed,
    By(Codec),
}

impl TopicCompression {
    pub(super) fn of(value: &str) -> Self {
        match value {
            "uncompressed" => Self::Uncompressed,
            codec => Codec::of(codec).map_or(Self::AsSent, Self::By),
        }
    }
}

/// librdkafka's `compression.level` for the default of the codec. The broker uses the same level.
const LEVEL_DEFAULT: i32 = -1;
/// Compressing is pure computation. Further callers wait for their turn, and leave processors to
/// the rest of the node.
const AT_ONCE_MAX: usize = 2;
/// A sixteenth is added, because these encoders are not the producer's own, or get the record in
/// other pieces. Their results are a little larger or smaller.
const ALLOWANCE: usize = 16;
/// Snappy compresses each block by itself.
const BLOCK_BYTES: usize = 64 << 10;

/// The compression that the producers of a node use.
#[derive(Debug)]
pub(super) struct Compression {
    /// `None` when the producers do not compress.
    codec: Option<Codec>,
    level: i32,
    turns: Semaphore,
}

impl Compression {
    pub(super) fn of(settings: &KafkaSettings) -> Self {
        let codec = settings.property("compression.codec").as_deref().and_then(Codec::of);
        let level = settings
            .property("compression.level")
            .and_then(|level| level.parse().ok())
            .unwrap_or(LEVEL_DEFAULT);
        Self { codec, level, turns: Semaphore::new(AT_ONCE_MAX) }
    }

    /// Returns an upper estimate of the bytes that `record` counts against `limit`, the limit of
    /// its topic. The record is compressed only when it would exceed the limit otherwise.
    pub(super) async fn size(
        &self,
        record: &Record,
        limit: usize,
        topic: TopicCompression,
    ) -> usize {
        let plain = record.size();
        let Some(codec) = self.codec.filter(|_| plain > limit) else { return plain };
        let again = match topic {
            TopicCompression::Uncompressed => return plain,
            TopicCompression::By(other) if other != codec => Some(other),
            TopicCompression::By(_) | TopicCompression::AsSent => None,
        };
        // The semaphore fails only when it is closed, and it never is.
        let _turn = self.turns.acquire().await;
        tokio::task::block_in_place(|| {
            let sent = compressed_size(record, codec, self.level);
            again.map_or(sent, |other| sent.max(compressed_size(record, other, LEVEL_DEFAULT)))
        })
    }
}

/// Returns an upper estimate of the bytes of a batch that holds only `record`, compressed by
/// `codec`.
fn compressed_size(record: &Record, codec: Codec, level: i32) -> usize {
    let around = record.size().saturating_sub(record.bytes());
    let parts = [record.key.as_deref(), record.payload.as_deref(), Some(record.headers.as_bytes())];
    match compress(&parts.map(Option::unwrap_or_default), codec, level) {
        // The frame around the record counts uncompressed. A batch that grows by compression is
        // sent uncompressed.
        Ok(bytes) => {
            bytes.saturating_add(bytes / ALLOWANCE).saturating_add(around).min(record.size())
        }
        Err(error) => {
            tracing::debug!(?codec, %error, "cannot compress a record");
            record.size()
        }
    }
}

fn compress(parts: &[&[u8]], codec: Codec, level: i32) -> io::Result<usize> {
    let counter = ByteCounter::default();
    match codec {
        Codec::Gzip => {
            let level = u32::try_from(level).map_or(flate2::Compression::default(), |level| {
                flate2::Compression::new(level.min(9))
            });
            let mut encoder = GzEncoder::new(counter, level);
            parts.iter().try_for_each(|part| encoder.write_all(part))?;
            encoder.finish().map(|counter| counter.0)
        }
        Codec::Snappy => snappy(parts),
        Codec::Lz4 => {
            // The frame format of librdkafka. Levels above 2 compress better than this encoder,
            // which has no levels.
            let info =
                FrameInfo::new().block_size(BlockSize::Max64KB).block_mode(BlockMode::Independent);
            let mut encoder = FrameEncoder::with_frame_info(info, counter);
            parts.iter().try_for_each(|part| encoder.write_all(part))?;
            encoder.finish().map(|counter| counter.0).map_err(io::Error::other)
        }
        Codec::Zstd => {
            let level = if level == LEVEL_DEFAULT { 3 } else { level.min(22) };
            let mut encoder = zstd::stream::write::Encoder::new(counter, level)?;
            parts.iter().try_for_each(|part| encoder.write_all(part))?;
            encoder.finish().map(|counter| counter.0)
        }
    }
}

fn snappy(parts: &[&[u8]]) -> io::Result<usize> {
    let mut encoder = snap::raw::Encoder::new();
    let mut buffer = vec![0; snap::raw::max_compress_len(BLOCK_BYTES)];
    let mut total = 0_usize;
    for block in parts.iter().flat_map(|part| part.chunks(BLOCK_BYTES)) {
        let bytes = encoder.compress(block, &mut buffer).map_err(io::Error::other)?;
        total = total.saturating_add(bytes);
    }
    Ok(total)
}

/// Counts the bytes that are written, and keeps none of them.
#[derive(Debug, Default)]
struct ByteCounter(usize);

impl Write for ByteCounter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.saturating_add(bytes.len());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Headers, TopicName};

    const CODECS: [Codec; 4] = [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd];

    fn record(payload: Vec<u8>) -> Record {
        Record {
            topic: TopicName::stored("t"),
            key: None,
            payload: Some(payload.into()),
            headers: Headers::default(),
        }
    }

    fn noise(length: usize) -> Vec<u8> {
        let mut state = 1_u64;
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            state.to_be_bytes()[0]
        };
        (0..length).map(|_| next()).collect()
    }

    fn compression(codec: &str) -> Compression {
        Compression { codec: Codec::of(codec), level: LEVEL_DEFAULT, turns: Semaphore::new(1) }
    }

    #[test]
    fn every_codec_makes_one_letter_small_and_noise_no_smaller() {
        for codec in CODECS {
            let size = compressed_size(&record(vec![b'x'; 3_000_000]), codec, LEVEL_DEFAULT);
            assert!(size < 200_000, "{codec:?}: {size}");
            let noise = record(noise(300_000));
            assert_eq!(compressed_size(&noise, codec, LEVEL_DEFAULT), noise.size(), "{codec:?}");
        }
    }

    #[test]
    fn a_level_is_the_codecs_own() {
        let text: Vec<u8> = (0..40_000)
            .flat_map(|n| format!("{{\"order\":{n},\"sum\":{}}}", n * 7919 % 1000).into_bytes())
            .collect();
        let record = record(text);
        for codec in [Codec::Gzip, Codec::Zstd] {
            let [low, high] = [1, 9].map(|level| compressed_size(&record, codec, level));
            assert_ne!(low, high, "{codec:?}");
            assert_eq!(
                compressed_size(&record, codec, 99),
                compressed_size(&record, codec, if codec == Codec::Gzip { 9 } else { 22 })
            );
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn only_what_is_over_the_limit_is_compressed_and_only_if_the_producer_does() {
        let letters = record(vec![b'x'; 3_000_000]);
        let plain = letters.size();
        assert_eq!(
            compression("zstd").size(&letters, plain, TopicCompression::AsSent).await,
            plain
        );
        assert_eq!(
            compression("none").size(&letters, 1_000, TopicCompression::AsSent).await,
            plain
        );
        assert!(
            compression("zstd").size(&letters, plain - 1, TopicCompression::AsSent).await < 2_000
        );
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_the_broker_compresses_anew_must_fit_as_well() {
        let letters = record(vec![b'x'; 3_000_000]);
        let size = async |topic| compression("zstd").size(&letters, 1_000_000, topic).await;
        assert_eq!(size(TopicCompression::Uncompressed).await, letters.size());
        let kept = size(TopicCompression::AsSent).await;
        assert_eq!(size(TopicCompression::of("zstd")).await, kept);
        assert!(
            size(TopicCompression::of("snappy")).await > 10 * kept,
            "snappy leaves a twentieth of it"
        );
        assert_eq!(TopicCompression::of("producer"), TopicCompression::AsSent);
    }
}
