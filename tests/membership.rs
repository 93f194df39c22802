//! Who does what, with a real Postgres and a real etcd.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a test ends where something is not as it should be, and reads its own settings"
)]

#[path = "integration/heartbeats.rs"]
mod heartbeats;
#[path = "integration/membership.rs"]
mod membership;
#[path = "integration/membership_outages.rs"]
mod membership_outages;
#[path = "support/membership.rs"]
mod support;
