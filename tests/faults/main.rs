//! The fault runner: three nodes on real servers, traffic, and a list of faults made from a seed.
//! Afterwards an oracle checks every record, verdict and receipt against the promises.
//! docs/faults.md describes the oracle in prose, and how to run, replay and keep a run.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::as_conversions,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a program that tests: it ends where its own means fail, and reads this machine's \
              clock itself"
)]

#[path = "../support/mod.rs"]
#[expect(
    dead_code,
    unused_imports,
    reason = "shared with the integration tests, which use all of it"
)]
mod support;

mod access;
mod args;
mod caller;
mod clock;
mod clock_file;
mod consumers;
mod counts;
mod deliveries;
mod door_history;
mod door_plan;
mod door_rules;
mod doors;
mod duplicates;
mod expiry;
mod field;
#[expect(dead_code, reason = "all of it is evidence: shown when a promise was broken")]
mod history;
mod lateness;
mod moves;
mod names;
mod nodes;
mod oracle;
mod pauses;
mod perform;
mod plan;
mod plan_text;
mod quota;
mod replicated;
mod replicated_plan;
mod report;
mod round;
mod scenarios;
mod schedule_history;
mod schedules;
mod services;
mod stalls;
mod tracked;
mod traffic;
mod verdicts;
mod ways;
mod without_kafka;

use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser as _;
use serde_json::Value;

use args::{Args, Order};
use field::Setup;
use plan::Plan;
use round::Round;
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
        // All started processes are stopped on the way out.
        _ = tokio::signal::ctrl_c() => ExitCode::from(130),
        is_kept = run(&args, orders) => if is_kept { ExitCode::SUCCESS } else { ExitCode::FAILURE },
    }
}

/// Runs all rounds. Returns true when every round has kept all promises, and every measurement its
/// limits.
async fn run(args: &Args, orders: Vec<Order>) -> bool {
    if let Some(former) = &args.former {
        println!("one node is {}", former.display());
    }
    let own = match args.is_replicated(&orders) {
        true => OwnStack::start_replicated("faults").await,
        false => OwnStack::start_breakable("faults").await,
    };
    let own = Arc::new(own);
    println!("a stack of its own is up");
    let mut summaries: Vec<Value> = Vec::new();
    let mut broken: Vec<String> = Vec::new();
    for Order { name, plan, is_deck } in orders {
        let mut setup = Setup::of_faults(&name, args.rate, is_deck);
        (setup.has_access, setup.has_doors) = (plan.has_access(), plan.has_doors());
        setup.former.clone_from(&args.former);
        let round = judged(&own, &setup, plan, &mut summaries).await;
        broken.extend(report::verdict(&setup.name, &round));
    }
    for scenario in scenarios::of_names(&args.scenario) {
        let (name, rate) = (scenario.name, scenario.tasks_per_second);
        let setup = match scenario.is_varied {
            true => Setup::of_faults(name, rate, false),
            false => Setup::of_measurement(name, rate),
        };
        let setup = Setup { tracked_percent: scenario.tracked_percent, ..setup };
        let round = judged(&own, &setup, scenario.plan(), &mut summaries).await;
        let figures = (scenario.measure)(&round.history);
        figures.iter().for_each(|figure| println!("{}: {figure}", scenario.name));
        broken.extend(report::verdict(scenario.name, &round));
        broken.extend(
            figures
                .iter()
                .filter(|figure| !figure.is_met())
                .map(|figure| format!("{}: {figure}", scenario.name)),
        );
    }
    if let Some(path) = &args.json {
        std::fs::write(path, format!("{:#}\n", Value::Array(summaries)))
            .expect("write the summary");
    }
    // The verdict comes last, so every excerpt from the end of the log contains it.
    match broken.as_slice() {
        [] => println!("all promises were kept"),
        broken => println!("PROMISES BROKEN, in full above:\n{}", broken.join("\n")),
    }
    broken.is_empty()
}

/// Runs a plan and prints its result. For broken promises it prints all evidence.
async fn judged(
    own: &Arc<OwnStack>,
    setup: &Setup,
    plan: Plan,
    summaries: &mut Vec<Value>,
) -> Round {
    println!(
        "{}: {} operations in {} s, seed {}",
        setup.name,
        plan.operations.len(),
        plan.seconds,
        plan.seed
    );
    let round = round::run(own, setup, plan).await;
    report::write(&round, &round.folder);
    summaries.push(report::summary(&round));
    println!("{}: {:.1} s\n{}", setup.name, round.took.as_secs_f64(), report::table(&round));
    if !round.judgement.violations.is_empty() {
        report::keep_logs(&own.logs(), &round.folder);
        println!(
            "{}: PROMISES BROKEN\n{}",
            setup.name,
            report::evidence(&round.history, &round.judgement)
        );
        println!(
            "{}: the logs of nodes and servers and the history are in {}",
            setup.name,
            round.folder.display()
        );
        println!(
            "to replay it, put this into a file and say `make faults REPLAY=file`{}{}:\n{}",
            if own.is_replicated() { " with REPLICATED=1" } else { "" },
            if setup.former.is_some() { " with the same FORMER" } else { "" },
            round.plan
        );
    }
    round
}
