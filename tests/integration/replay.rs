//! Replays the model: executes random traces with the product's own statements on a real Postgres,
//! and compares the tables with the model after each step. Without this comparison, the model might
//! describe something else.
//!
//! Emulated: a crash of Postgres that undoes settles restores the changed rows, and a lost answer
//! is ignored by the test. A cancel, a replacement and a detach are one step each here, because the
//! product makes one call for each.

#[path = "../model/checker.rs"]
#[expect(dead_code, reason = "the search is the model's own test")]
mod checker;
#[path = "../model/protocol/mod.rs"]
#[expect(dead_code, reason = "the mistakes are the model's own test")]
mod protocol;

mod tables;
mod world;

use std::collections::BTreeMap;
use std::time::Instant;

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use checker::Model;
use protocol::scopes::{self, Scope};
use protocol::state::State;
use protocol::{Action, Protocol, kind_of};
use world::World;

/// Number of traces per scope, and their maximum length.
const TRACES: usize = 100;
const STEPS_MAX: usize = 70;
/// Number of databases used at a time.
const WORKERS: usize = 4;

/// How often each kind of step was taken with a statement, and compared.
type Counts = BTreeMap<&'static str, usize>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_traces_of_the_model_come_to_the_same_on_a_real_postgres() {
    let began = Instant::now();
    let seed: u64 = rand::random();
    eprintln!("seed {seed}");
    let all: Vec<(Scope, u64)> = scopes::all()
        .into_iter()
        .flat_map(|scope| {
            // A name is replaced twice: there are more ways to go.
            let count = if scope.is_named { TRACES * 3 } else { TRACES };
            (0..count).map(move |_| Scope { is_stepwise: false, ..scope.clone() })
        })
        .zip(0..)
        .collect();
    let trace_count = all.len();
    let shares = (0..WORKERS).map(|worker| {
        let share: Vec<(Scope, u64)> = all.iter().skip(worker).step_by(WORKERS).cloned().collect();
        tokio::spawn(async move { replay_all(share, seed).await })
    });
    let mut counts = Counts::new();
    for share in futures_util::future::join_all(shares).await {
        for (kind, count) in share.unwrap() {
            *counts.entry(kind).or_default() += count;
        }
    }
    let compared: usize = counts.values().sum();
    eprintln!(
        "{trace_count} traces, {compared} statements compared in {:?}: {counts:?}",
        began.elapsed()
    );
    assert!(trace_count >= 1_000);
    assert!(compared >= trace_count * 4, "the traces are too short: {compared} statements");
    for kind in STATEMENTS {
        assert!(
            counts.get(kind).is_some_and(|count| *count >= 3),
            "{kind} was hardly replayed: {counts:?}"
        );
    }
}

/// Each kind of step with a statement must have been replayed.
const STATEMENTS: [&str; 20] = [
    "Submit",
    "Cancel",
    "Reschedule",
    "PutLock",
    "PutVerdict",
    "Claim",
    "Settle",
    "SettleAgain",
    "Ask",
    "Adopt",
    "Load",
    "Move",
    "Prepare",
    "DetachBegins",
    "DropOrKeep",
    "Beat",
    "DeclareDead",
    "Restart",
    "LateCommit",
    "PostgresCrash",
];

async fn replay_all(share: Vec<(Scope, u64)>, seed: u64) -> Counts {
    let mut world = World::create().await;
    let mut counts = Counts::new();
    for (scope, number) in share {
        let mut random = SmallRng::seed_from_u64(seed.wrapping_add(number));
        let protocol = Protocol::new(scope, None);
        let trace = walk(&protocol, &mut random);
        world.begin(number).await;
        let mut state = protocol.initial();
        for (position, (action, next)) in trace.iter().enumerate() {
            let has_crash =
                trace[position..].iter().any(|(action, _)| matches!(action, Action::PostgresCrash));
            if world.take(&protocol, (&state, *action, next), has_crash).await {
                *counts.entry(kind_of(*action)).or_default() += 1;
                let (expected, found) = (world.expected(&protocol, &next.db), world.found().await);
                assert_eq!(
                    found,
                    expected,
                    "{} after {:#?}",
                    protocol.scope.name,
                    actions_of(&trace[..=position])
                );
            }
            state = *next;
        }
    }
    counts
}

fn actions_of(trace: &[(Action, State)]) -> Vec<Action> {
    trace.iter().map(|(action, _)| *action).collect()
}

/// A random trace: first a kind of action, then one action of this kind, so frequent kinds do not
/// dominate.
fn walk(protocol: &Protocol, random: &mut SmallRng) -> Vec<(Action, State)> {
    let mut state = protocol.initial();
    let mut trace = Vec::new();
    let mut actions = Vec::new();
    while trace.len() < STEPS_MAX {
        actions.clear();
        protocol.actions(&state, &mut actions);
        let mut kinds: BTreeMap<&'static str, Vec<(Action, State)>> = BTreeMap::new();
        for &action in &actions {
            if let Some(next) = protocol.step(&state, action).filter(|next| *next != state) {
                kinds.entry(kind_of(action)).or_default().push((action, next));
            }
        }
        // Time passes, and most things go well.
        kinds.retain(|kind, _| {
            !matches!(*kind, "Tick" | "Crash" | "Pause" | "AgeOfTheLiving" | "LateAbort")
                || random.random_bool(0.3)
        });
        let kinds: Vec<_> = kinds.into_values().collect();
        let Some(step) = kinds.choose(random).and_then(|kind| kind.choose(random)) else {
            if actions.is_empty() {
                break;
            }
            // All possible actions were postponed: try again.
            if random.random_bool(0.05) {
                break;
            }
            continue;
        };
        state = step.1;
        trace.push(*step);
    }
    trace
}
