//! The command line of the fault runner.

use std::path::PathBuf;

use clap::Parser;

use super::plan::Plan;

/// The longest round. An hour takes five seeds.
const ROUND_MAX_SECONDS: u64 = 720;

/// Breaks a cluster of three nodes and its servers, under traffic, and checks every record against
/// the promises.
///
/// docs/faults.md describes the operations, the checks, and how to replay a run. Exit code 0 when
/// all promises were kept.
#[derive(Parser, Debug)]
#[command(name = "faults")]
pub struct Args {
    /// Seconds of traffic and faults in total, in rounds of at most twelve minutes.
    #[arg(long, default_value_t = 120)]
    pub seconds: u64,
    /// The seed of the first round; the next ones count on from it. `fresh` draws one. Repeatable:
    /// then the seconds are for each seed.
    #[arg(long)]
    pub seed: Vec<String>,
    /// A file with the operations of an earlier run, or a folder of such files. Replaces seeds,
    /// unless seeds are given as well.
    #[arg(long)]
    pub replay: Vec<PathBuf>,
    /// Nodes check tokens and rights in the rounds of seeds. A plan with `auth-rewritten` has it
    /// anyway.
    #[arg(long)]
    pub auth: bool,
    /// A part of the traffic comes through an outbox and an intake topic in the rounds of seeds. A
    /// plan with operations on them has it anyway. Not together with `--auth`.
    #[arg(long)]
    pub doors: bool,
    /// Postgres has a synchronous standby, and Kafka three brokers: failovers, lost brokers and
    /// rolling restarts in the rounds of seeds. A plan with such operations has them anyway. Not
    /// together with `--scenario`.
    #[arg(long)]
    pub replicated: bool,
    /// The program of an earlier build, by its whole path, for one of the three nodes: a rolling
    /// upgrade that does not end. The schema is that of this build. Not together with `--scenario`.
    #[arg(long, value_name = "PROGRAM")]
    pub former: Option<PathBuf>,
    /// A measured outage by its name, or `all`. Replaces seeds.
    #[arg(long)]
    pub scenario: Vec<String>,
    /// Tasks submitted per second.
    #[arg(long, default_value_t = 250)]
    pub rate: u32,
    /// Where to write the summary of all rounds.
    #[arg(long)]
    pub json: Option<PathBuf>,
}

/// A round to run.
pub struct Order {
    pub name: String,
    pub plan: Plan,
    /// True when the plan was made from a seed: then it holds each kind of operation.
    pub is_deck: bool,
}

impl Args {
    /// Returns all rounds, or why they cannot be run.
    pub fn orders(&self) -> Result<Vec<Order>, String> {
        super::scenarios::check_names(&self.scenario)?;
        if let Some(program) = &self.former {
            if !program.is_absolute() || !program.is_file() {
                return Err(format!("--former: {} is no path of a program", program.display()));
            }
            if !self.scenario.is_empty() {
                return Err("--former is for rounds, not for scenarios".to_owned());
            }
        }
        if self.replicated && !self.scenario.is_empty() {
            return Err("--replicated is for rounds, not for scenarios".to_owned());
        }
        let mut orders = Vec::new();
        for path in &self.replay {
            for file in files(path)? {
                let text = std::fs::read_to_string(&file)
                    .map_err(|error| format!("{}: {error}", file.display()))?;
                let plan = text.parse().map_err(|error| format!("{}: {error}", file.display()))?;
                let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                orders.push(Order { name, plan, is_deck: false });
            }
        }
        let seeds = self.seed.iter().map(|seed| seed_of(seed)).collect::<Result<Vec<_>, _>>()?;
        match seeds.as_slice() {
            [] if !self.replay.is_empty() || !self.scenario.is_empty() => {}
            [] => orders.extend(self.rounds(rand::random_range(1..1_000_000))),
            [seed] => orders.extend(self.rounds(*seed)),
            seeds => orders.extend(seeds.iter().map(|seed| self.order(*seed, self.seconds))),
        }
        self.check_stack(&orders)?;
        match orders.iter().find(|order| order.plan.has_access() && order.plan.has_doors()) {
            Some(order) => Err(format!(
                "{}: tokens (--auth) and doors (--doors) in one round are not supported: the auth \
                 file has no principals for the outbox and the intake topic",
                order.name
            )),
            None => Ok(orders),
        }
    }

    /// Returns true when the servers have replicas.
    pub fn is_replicated(&self, orders: &[Order]) -> bool {
        self.replicated || orders.iter().any(|order| order.plan.is_replicated())
    }

    /// Checks that one stack can have the operations of all rounds.
    fn check_stack(&self, orders: &[Order]) -> Result<(), String> {
        if !self.is_replicated(orders) {
            return Ok(());
        }
        let unfit =
            |order: &Order| Some((order.name.clone(), order.plan.kind_of_single_servers()?));
        match orders.iter().find_map(unfit) {
            Some((name, kind)) => Err(format!(
                "{name}: {} needs a stack without replicas (--replicated)",
                kind.name()
            )),
            None => Ok(()),
        }
    }

    fn rounds(&self, first: u64) -> Vec<Order> {
        let count = self.seconds.div_ceil(ROUND_MAX_SECONDS).max(1);
        (0..count).map(|index| self.order(first + index, self.seconds / count)).collect()
    }

    fn order(&self, seed: u64, seconds: u64) -> Order {
        let mut plan = match self.replicated {
            true => Plan::replicated(seed, seconds),
            false => Plan::new(seed, seconds),
        };
        plan.break_consumers();
        if self.auth {
            super::access::add_to(&mut plan);
        }
        if self.doors {
            plan.break_doors();
        }
        Order { name: format!("seed-{seed}"), plan, is_deck: true }
    }
}

fn seed_of(text: &str) -> Result<u64, String> {
    if text == "fresh" {
        return Ok(rand::random_range(1..1_000_000));
    }
    text.parse().map_err(|_wrong| format!("a seed is a number or `fresh`, not `{text}`"))
}

/// Returns the plans in a folder, sorted by name, or the one file.
fn files(path: &PathBuf) -> Result<Vec<PathBuf>, String> {
    if !path.is_dir() {
        return Ok(vec![path.clone()]);
    }
    let entries =
        std::fs::read_dir(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut files: Vec<PathBuf> =
        entries.filter_map(Result::ok).map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "ops"));
    files.sort();
    Ok(files)
}
