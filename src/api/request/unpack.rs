//! Bodies that come compressed: gzip and zstd, unpacked within the bound on a body.
//!
//! A few KiB can unpack to GiB, so that what comes out is counted while it does, and a decoder may
//! not keep a window larger than RFC 9659 allows. Only so many bodies are unpacked at a time: each
//! takes a decoder's window besides what is counted.

use std::io::{self, BufRead, Read};

use axum::body::Bytes;
use axum::http::{HeaderMap, header};
use flate2::bufread::MultiGzDecoder;
use zstd::stream::read::Decoder as ZstdDecoder;

use super::share::{Share, too_large};
use crate::api::problems::problem::Problem;
use crate::api::problems::problem_type::ProblemType;
use crate::api::shared::{Shared, UNPACKED_AT_ONCE};

/// The window of zstd that a content encoding may have (RFC 9659): 8 MiB, by its logarithm.
const WINDOW_LOG_MAX: u32 = 23;
/// Bytes that come out at a time.
const PIECE_BYTES: usize = 16 << 10;
/// Others get their turn after so many pieces, and after so many bytes that went in: of empty
/// members of gzip nothing comes out for megabytes.
const PIECES_AT_ONCE: usize = 16;
const PACKED_AT_ONCE: usize = 64 << 10;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Encoding {
    Gzip,
    Zstd,
}

impl Encoding {
    /// How the body was compressed; `None` when it was not.
    pub fn of(headers: &HeaderMap) -> Result<Option<Self>, Problem> {
        let mut given = headers.get_all(header::CONTENT_ENCODING).iter();
        let Some(encoding) = given.next() else { return Ok(None) };
        let is = |name: &str| encoding.as_bytes().eq_ignore_ascii_case(name.as_bytes());
        match () {
            () if given.next().is_some() => Err(Problem::unsupported_encoding()),
            () if is("identity") => Ok(None),
            // RFC 9110, 8.4.1.3: the two are the same.
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

/// Bytes that would block after every few, so that a decoder comes up for air.
struct Turns<'a> {
    rest: &'a [u8],
    /// Bytes until the next turn.
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

/// The body that `packed` is the compressed form of.
pub async fn unpack<'a>(shared: &'a Shared, encoding: Encoding, packed: &Bytes) -> Result<(Bytes, Share<'a>), Problem> {
    let corrupt = |error: &io::Error| {
        let name = if encoding == Encoding::Gzip { "gzip" } else { "zstd" };
        Problem::new(ProblemType::MalformedEncoding, format!("the body is not {name}, or not all of it: {error}"))
            .at("content-encoding")
    };
    let Ok(_turn) = shared.unpacking.acquire().await else { return Err(Problem::busy(UNPACKED_AT_ONCE)) };
    let mut decoder = encoding.decoder(packed).map_err(|error| corrupt(&error))?;
    let mut share = Share::none(shared);
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
        share.grow(length)?;
        whole.extend_from_slice(&piece[..length]);
        if count.is_multiple_of(PIECES_AT_ONCE) {
            tokio::task::yield_now().await;
        }
    }
    Ok((Bytes::from(whole), share))
}
