//! The suite behind `make bench`: runs each scenario against Punctual (one node and two), the usual
//! poller, retry topics, and the floor, one after the other on the same servers, and writes
//! docs/benchmarks.md with its pictures.
//!
//! The suite needs the servers (`PUNCTUAL_DATABASE_URL`, `PUNCTUAL_KAFKA`, `PUNCTUAL_ETCD`,
//! `PUNCTUAL_STACK`, `PUNCTUAL_KAFKA_JARS`) and the release programs beside its own. Results are
//! kept in `PUNCTUAL_BENCH_FOLDER`. A scenario with a result is measured again only with `--again`.
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
mod retry_topics;
mod servers;
mod take_over;

use std::process::ExitCode;

use clap::Parser as _;
use plan::Size;
use punctual::shutdown::TaskFailure;

/// Measures Punctual, the poller and the floor, and writes docs/benchmarks.md.
#[derive(clap::Parser)]
struct Arguments {
    /// Measures with the sizes of the published page, in two hours.
    #[arg(long, conflicts_with = "tiny")]
    full: bool,
    /// Measures with tiny sizes, to try the suite itself. Prints tables and writes no page.
    #[arg(long)]
    tiny: bool,
    /// Measures only this scenario; repeatable.
    #[arg(long, value_name = "SCENARIO")]
    only: Vec<String>,
    /// Measures scenarios that already have a result, too.
    #[arg(long)]
    again: bool,
    /// Only writes the page, from the existing results.
    #[arg(long)]
    page: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    rustls::crypto::ring::default_provider().install_default().ok();
    match run(Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("suite: {failure}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> Result<(), TaskFailure> {
    let size = match (arguments.full, arguments.tiny) {
        (true, _) => Size::Full,
        (false, true) => Size::Tiny,
        (false, false) => Size::Short,
    };
    let servers = servers::Servers::from_environment()?;
    let results = results::Results::open(&servers.folder, size)?;
    if !arguments.page {
        measure::all(&servers, &results, size, &arguments.only, arguments.again).await?;
    }
    // A run with tiny sizes is no benchmark, so it does not change the page.
    if size == Size::Tiny {
        page::show(&results)
    } else {
        page::write(&servers, &results, size).await
    }
}
