//! Compressed bodies: gzip and zstd, unpacked within the limit on a body.
//!
//! A few KiB can unpack to GiB, so the output is counted while it is made. A decoder may not keep a
//! window larger than RFC 9659 allows. Only a few bodies are unpacked at a time, because each takes
//! a decoder's window that is not counted.

use std::io::{self, BufRead, Read};

use axum::body::Bytes;
use axum::http::{HeaderMap, header};
use flate2::bufread::MultiGzDecoder;
use zstd::stream::read::Decoder as ZstdDecoder;

use super::body_memory::{BodyMemory, too_large};
use crate::api::problems::problem::Problem;
use crate::api::problems::problem_type::ProblemType;
use crate::api::shared::{ApiShared, UNPACKED_AT_ONCE};

/// The largest zstd window for a content encoding (RFC 9659): 8 MiB, as a logarithm.
const WINDOW_LOG_MAX: u32 = 23;
/// Bytes that are unpacked at a time.
const PIECE_BYTES: usize = 16 << 10;
/// Pieces of output after which other tasks get their turn. The same holds after [`PACKED_AT_ONCE`]
/// bytes of input, because empty gzip members give no output for megabytes.
const PIECES_AT_ONCE: usize = 16;
const PACKED_AT_ONCE: usize = 64 << 10;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Encoding {
    Gzip,
    Zstd,
}

impl Encoding {
    /// Returns the compression of the body; `None` when there is none.
    pub fn of(headers: &HeaderMap) -> Result<Option<Self>, Problem> {
        let mut given = headers.get_all(header::CONTENT_ENCODING).iter();
        let Some(encoding) = given.next() else { return Ok(None) };
        let is = |name: &str| encoding.as_bytes().eq_ignore_ascii_case(name.as_bytes());
        match () {
            () if given.next().is_some() => Err(Problem::unsupported_encoding()),
            () if is("identity") => Ok(None),
            // The two names mean the same (RFC 9110, 8.4.1.3).
            () if is("gzip") || is("x-gzip") => Ok(Some(Self::Gzip)),
            () if is("zstd") => Ok(Some(Self::Zstd)),
            () => Err(Problem::unsupported_encoding()),
        }
    }

    fn decoder(self, packed: &[u8]) -> io::Result<Box<dyn Read + Send + '_>> {
        let packed = Turns { rest: packed, left: PACKED_AT_ONCE };
        Ok(match self {
            Self::Gzip => Box::new(MultiGzDecoder::new(packed)),
            Self::Zstd => {
                let mut decoder = ZstdDecoder::with_buffer(packed)?;
                decoder.window_log_max(WINDOW_LOG_MAX)?;
                Box::new(decoder)
            }
        })
    }
}

/// Input that reports `WouldBlock` from time to time, so that a decoder yields.
struct Turns<'a> {
    rest: &'a [u8],
    /// Bytes until the next turn of others.
    left: usize,
}

impl BufRead for Turns<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.left == 0 {
            self.left = PACKED_AT_ONCE;
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(&self.rest[..self.rest.len().min(self.left)])
    }

    fn consume(&mut self, count: usize) {
        self.rest = &self.rest[count..];
        self.left -= count;
    }
}

impl Read for Turns<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.fill_buf()?.read(buffer)?;
        self.consume(count);
        Ok(count)
    }
}

/// Unpacks the body `packed`, which has arrived in `packed_memory`.
pub async fn unpack(
    shared: &ApiShared,
    encoding: Encoding,
    (packed, packed_memory): (&Bytes, &BodyMemory),
) -> Result<(Bytes, BodyMemory), Problem> {
    let corrupt = |error: &io::Error| {
        let name = if encoding == Encoding::Gzip { "gzip" } else { "zstd" };
        Problem::new(
            ProblemType::MalformedEncoding,
            format!("the body is not {name}, or is incomplete: {error}"),
        )
        .at("content-encoding")
    };
    let Ok(_turn) = shared.unpacking.acquire().await else {
        return Err(Problem::busy(UNPACKED_AT_ONCE));
    };
    let mut decoder = encoding.decoder(packed).map_err(|error| corrupt(&error))?;
    let mut memory = BodyMemory::of_unpacked(shared, packed_memory);
    let mut whole: Vec<u8> = Vec::new();
    let mut piece = vec![0; PIECE_BYTES];
    for count in 1_usize.. {
        let length = match decoder.read(&mut piece) {
            Ok(0) => break,
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                tokio::task::yield_now().await;
                continue;
            }
            Err(error) => return Err(corrupt(&error)),
        };
        if whole.len().saturating_add(length) > shared.settings.body_bytes_max {
            return Err(too_large(shared));
        }
        memory.grow(length)?;
        whole.extend_from_slice(&piece[..length]);
        if count.is_multiple_of(PIECES_AT_ONCE) {
            tokio::task::yield_now().await;
        }
    }
    Ok((Bytes::from(whole), memory))
}
