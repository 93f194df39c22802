//! The bounds of the API.

use std::time::Duration;

/// Each bound with its status when it is reached. `/livez`, `/readyz` and `/metrics` are held by the bounds on connections only.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Bytes of one body: 413. At most 4 GiB.
    pub body_bytes_max: usize,
    /// Bytes of all bodies that are being read, parsed or stored: 503. At least one of the largest always fits.
    pub body_memory_max: usize,
    /// Requests that are being answered: 503.
    pub requests_in_flight_max: usize,
    /// Connections, idle ones included: those beyond it are answered 503 and closed.
    pub connections_max: usize,
    /// How long the header of a request may take from its first byte, and how long a connection of HTTP/1 may be idle: closed without an answer.
    pub header_read_timeout: Duration,
    /// How long a request may take from its header to its answer: 408 while its body is being read, 503 after.
    pub request_deadline: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            body_bytes_max: 16 << 20,
            body_memory_max: 256 << 20,
            requests_in_flight_max: 1024,
            connections_max: 4096,
            header_read_timeout: Duration::from_secs(10),
            request_deadline: Duration::from_secs(30),
        }
    }
}
