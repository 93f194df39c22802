//! The suite behind `make bench`. It runs each scenario against Punctual (one node and two), the
//! usual poller, and the floor, one after the other on the same servers. It writes
//! docs/benchmarks.md with its pictures.
//!
//! Usage: `suite [--full] [--tiny] [--only SCENARIO].. [--again] [--page]`. The suite needs the
//! servers (`PUNCTUAL_DATABASE_URL`, `PUNCTUAL_KAFKA`, `PUNCTUAL_ETCD`, `PUNCTUAL_STACK`) and the
//! release programs beside its own. Results are kept in `PUNCTUAL_BENCH_FOLDER`. A scenario with a
//! result is measured again only with `--again`.
#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program of the benchmarks: it reads the environment and waits by itself, and is \
              there to be read"
)]

mod contender;
mod intakes;
mod measure;
mod observer;
mod page;
mod plan;
mod results;
mod servers;
mod take_over;

use std::process::ExitCode;

use plan::Size;
use punctual::shutdown::TaskFailure;

#[tokio::main]
async fn main() -> ExitCode {
    rustls::crypto::ring::default_provider().install_default().ok();
    match run(&std::env::args().skip(1).collect::<Vec<_>>()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("suite: {failure}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &[String]) -> Result<(), TaskFailure> {
    let (mut size, mut only, mut again, mut page_only) = (Size::Short, Vec::new(), false, false);
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--full" => size = Size::Full,
            "--tiny" => size = Size::Tiny,
            "--again" => again = true,
            "--page" => page_only = true,
            "--only" => only.push(words.next().ok_or("--only takes a scenario")?.clone()),
            other => return Err(format!("unknown: {other}").into()),
        }
    }
    let servers = servers::Servers::from_environment()?;
    let results = results::Results::open(&servers.folder, size)?;
    if !page_only {
        measure::all(&servers, &results, size, &only, again).await?;
    }
    // A run with tiny sizes is no benchmark, so it does not change the page.
    if size == Size::Tiny {
        page::show(&results)
    } else {
        page::write(&servers, &results, size).await
    }
}
