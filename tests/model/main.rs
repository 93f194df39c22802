//! Searches the protocol exhaustively at a small scope, without a server or a clock. `feedback`
//! does so for tracked tasks and their consumers.
//! docs/testing.md lists the scope.
#![expect(
    clippy::unwrap_used,
    clippy::as_conversions,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a test ends where something is not as it should be, and says how long a search took"
)]

mod checker;
mod controls;
mod feedback;
mod protocol;

use std::collections::BTreeSet;
use std::time::Instant;

use checker::search;
use protocol::Protocol;
use protocol::scopes;

/// The number of states of each scope. A change shows that an action was lost from the model, or
/// added to it.
const STATES: [(&str, usize); 13] = [
    ("life and death", 127_324),
    ("zombies", 462_804),
    ("acknowledgements", 71_783),
    ("two tasks", 1_044_590),
    ("adopted and cancelled", 182_130),
    ("deferral and cancel", 1_818),
    ("late settles", 23_708),
    ("far and cancel", 46_179),
    ("leaves", 486_364),
    ("undone settles", 20_617),
    ("crashes", 27_625),
    ("membership", 14_167),
    ("names", 59_994),
];

#[test]
fn every_state_keeps_the_promises_and_every_task_can_end_from_everywhere() {
    let began = Instant::now();
    let (mut kinds, mut total, mut wrong) = (BTreeSet::new(), 0, Vec::new());
    assert_eq!(
        scopes::all().iter().map(|scope| scope.name).collect::<Vec<_>>(),
        STATES.map(|(name, _)| name)
    );
    for (scope, (name, state_count)) in scopes::all().into_iter().zip(STATES) {
        let began = Instant::now();
        let found = search(&Protocol::new(scope, None));
        eprintln!(
            "{name}: {} states, {} steps, {:.1?}",
            found.state_count,
            found.step_count,
            began.elapsed()
        );
        if let Some(broken) = &found.broken {
            wrong.push(format!("{name} breaks {}", broken.story()));
        } else if found.state_count != state_count {
            wrong.push(format!(
                "{name} has {} states, not {state_count}: what was lost, or is new?",
                found.state_count
            ));
        }
        total += found.state_count;
        kinds.extend(found.kinds.into_keys());
    }
    eprintln!("{total} states in {:.1?}", began.elapsed());
    let missing: Vec<_> = protocol::KINDS.iter().filter(|kind| !kinds.contains(**kind)).collect();
    assert!(missing.is_empty(), "never taken: {missing:?}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
