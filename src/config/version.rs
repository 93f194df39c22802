//! Which program this is.

/// The release, `0.1.0`.
pub const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// The commit that it was built from, or `unknown`.
pub const COMMIT: &str = env!("PUNCTUAL_COMMIT");

/// Both, as `--version` prints them.
pub(super) const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("PUNCTUAL_COMMIT"), ")");
