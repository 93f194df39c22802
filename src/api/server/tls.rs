//! TLS of the API's ports.
//!
//! ```text
//! certificates   the files, checked and made into the configurations of rustls
//! keeper         looks at the files again and again, and replaces what new connections get
//! handshake      a connection from its first byte to the end of its handshake
//! peer           the names that a client certificate proves
//! ```
//!
//! A connection counts against the limits before its handshake, and the handshake counts as a part
//! of its first header. The socket below the TLS stream is still [`super::watched::WatchedStream`],
//! so slow callers are cut off with TLS as without.

mod certificates;
pub(super) mod handshake;
mod keeper;
mod peer;

pub use self::certificates::{ClientAuth, Clients, Error, Settings};
pub use self::keeper::{Acceptor, CertificateKeeper, Metrics};
