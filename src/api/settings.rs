//! The bounds of the API.

use std::time::Duration;

/// Each bound with its status when it is reached; docs/reference/limits.md has them in one table. `/livez`, `/readyz` and `/metrics` are held by those on
/// connections and headers, and have places of their own, which are no setting.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Bytes of one body, as it comes and unpacked: 413. At most 4 GiB.
    pub body_bytes_max: usize,
    /// Bytes of all bodies that are being read, unpacked, parsed or stored, and of answers beyond 64 KiB until they are written: 503. At least one of
    /// the largest always fits, if it is not compressed.
    pub body_memory_max: usize,
    /// Bytes of a request's header, with 32 for each field (RFC 9113, 6.5.2): 431. At most 64 KiB.
    pub header_bytes_max: usize,
    /// Tasks of one batch: 413. At most 10,000.
    pub batch_tasks_max: usize,
    /// Requests from their header until their answer is written: 503.
    pub requests_in_flight_max: usize,
    /// Of these, requests of one caller, which is an address: 429.
    pub caller_requests_max: usize,
    /// Of these, requests of one connection of HTTP/2: those beyond it are refused as streams.
    pub streams_max: u32,
    /// Connections, idle ones included: those beyond it are answered 503 and closed.
    pub connections_max: usize,
    /// Of these, connections of one caller, at least one: those beyond it are answered 429 and closed.
    pub caller_connections_max: usize,
    /// How long the header of a request may take from its first byte, and the first request of a connection from its beginning: closed without an
    /// answer.
    pub header_timeout: Duration,
    /// How long a connection may be without a request: closed.
    pub idle_timeout: Duration,
    /// How long a request may take from its header to its answer: 408 while its body is awaited, 503 after.
    pub request_deadline: Duration,
    /// How long a caller may take to read what is ready to be written, up to 64 KiB of it: closed. A stream of HTTP/2 is reset this long after
    /// `request_deadline`.
    pub answer_timeout: Duration,
}
