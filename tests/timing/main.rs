//! Promises with figures: lateness, speed, resources. These tests run alone, one after another:
//! `cargo test --test timing -- --test-threads=1`.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::as_conversions,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a test ends where something is not as it should be, and reads this machine's clock \
              and settings itself"
)]

#[path = "../support/mod.rs"]
#[expect(
    dead_code,
    unused_imports,
    reason = "shared with the integration tests, which use all of it"
)]
mod support;

mod footprint;
mod lateness;
mod lists;
mod pops;
mod stalls;
mod take_over;
