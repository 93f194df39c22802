//! The demo: two nodes publish 1,000 tasks, and one of them is killed half-way. The demo then
//! compares the guarantees with the records that a consumer saw.
//!
//! The demo needs Postgres, Kafka and etcd (`PUNCTUAL_DATABASE_URL`, `PUNCTUAL_KAFKA`,
//! `PUNCTUAL_ETCD`) and the program (`PUNCTUAL_BIN`). `make demo` provides all of them. The exit
//! code is 0 when every guarantee was kept, otherwise 1.
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

/// The reason for an early end of the demo, as text for the user.
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
