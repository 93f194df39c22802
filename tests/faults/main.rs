//! The fault runner: three nodes on real servers, traffic, and a list of operations that break what can be broken, made from a seed; then an oracle holds
//! every record, verdict and receipt against the promises. docs/faults.md has the oracle in prose, and how to run, replay and keep a run.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::as_conversions,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a program that tests: it ends where its own means fail, and reads this machine's clock itself"
)]

#[path = "../support/mod.rs"]
#[expect(dead_code, unused_imports, reason = "shared with the integration tests, which use all of it")]
mod support;

mod args;
mod caller;
mod duplicates;
mod field;
mod history;
mod names;
mod nodes;
mod oracle;
mod perform;
mod plan;
mod report;
mod round;
mod traffic;
mod ways;

use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser as _;
use serde_json::Value;

use args::{Args, Order};
use support::OwnStack;

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let orders = match args.orders() {
        Ok(orders) => orders,
        Err(error) => {
            eprintln!("faults: {error}");
            return ExitCode::from(2);
        }
    };
    tokio::select! {
        // What was started is taken down on the way out.
        _ = tokio::signal::ctrl_c() => ExitCode::from(130),
        is_kept = run(&args, orders) => if is_kept { ExitCode::SUCCESS } else { ExitCode::FAILURE },
    }
}

/// True when every round has kept all promises.
async fn run(args: &Args, orders: Vec<Order>) -> bool {
    let own = Arc::new(OwnStack::start_breakable("faults").await);
    println!("a stack of its own is up");
    let mut summaries: Vec<Value> = Vec::new();
    let mut is_kept = true;
    for order in orders {
        is_kept &= run_round(args, &own, order, &mut summaries).await;
    }
    if let Some(path) = &args.json {
        std::fs::write(path, format!("{:#}\n", Value::Array(summaries))).expect("write the summary");
    }
    is_kept
}

async fn run_round(args: &Args, own: &Arc<OwnStack>, order: Order, summaries: &mut Vec<Value>) -> bool {
    println!("{}: {} operations in {} s, seed {}", order.name, order.plan.operations.len(), order.plan.seconds, order.plan.seed);
    let round = round::run(own, &order.name, order.plan, args.rate, order.is_deck).await;
    report::write(&round, &round.folder);
    summaries.push(report::summary(&round));
    println!("{}: {:.1} s\n{}", order.name, round.took.as_secs_f64(), report::table(&round));
    let is_kept = round.judgement.violations.is_empty();
    if !is_kept {
        println!("{}: PROMISES BROKEN\n{}", order.name, report::evidence(&round.history, &round.judgement));
        println!("{}: its logs and its history are in {}", order.name, round.folder.display());
        println!("to replay it, put this into a file and say `make faults REPLAY=file`:\n{}", round.plan);
    }
    is_kept
}
