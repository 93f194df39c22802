//! The demo: two nodes publish 1,000 tasks, one of them is killed half-way, and what was promised
//! is held against what a consumer saw.
//!
//! Needs a Postgres, a Kafka and an etcd (`PUNCTUAL_DATABASE_URL`, `PUNCTUAL_KAFKA`,
//! `PUNCTUAL_ETCD`) and the program (`PUNCTUAL_BIN`): `make demo` brings all of it. Exit code 0
//! when every promise was kept, 1 when not.
#![expect(
    clippy::disallowed_methods,
    reason = "a program of its own: it reads the environment and the clock, and waits, by itself"
)]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "it is there to be read")]

mod consumer;
mod node;
mod servers;
mod story;
mod summary;
mod wait;

use std::process::ExitCode;

/// Whatever ends the demo early, in words for whoever runs it.
type Failure = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() -> ExitCode {
    match story::tell().await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("demo: {failure}");
            ExitCode::FAILURE
        }
    }
}
