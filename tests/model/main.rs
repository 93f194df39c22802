//! Searches the protocol exhaustively at a small scope, without a server or a clock. `feedback`
//! does so for tracked tasks and their consumers. docs/testing.md lists the scopes.
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
mod intake;
mod outbox;
mod pauses;
mod protocol;
mod schedules;
mod searches;

use protocol::Protocol;
use protocol::scopes;
use searches::ScopeSearches;

/// The number of states of each scope. A change shows that an action was lost from the model, or
/// added to it.
const STATES: [(&str, usize); 17] = [
    ("life and death", 127_324),
    ("zombies", 462_804),
    ("acknowledgements", 71_783),
    ("two tasks", 1_044_590),
    ("adopted and cancelled", 182_130),
    ("deferral and cancel", 1_818),
    ("late settles", 23_708),
    ("far and cancel", 46_179),
    ("leaves", 486_604),
    ("undone settles", 20_617),
    ("crashes", 27_625),
    ("membership", 14_167),
    ("names", 59_994),
    ("moves", 896_198),
    ("expiry", 45_531),
    ("deferral and expiry", 17_674),
    ("expiry and crashes", 33_852),
];

#[test]
fn every_state_keeps_the_promises_and_every_task_can_end_from_everywhere() {
    assert_eq!(
        scopes::all().iter().map(|scope| scope.name).collect::<Vec<_>>(),
        STATES.map(|(name, _)| name)
    );
    let mut searches = ScopeSearches::begin();
    for (scope, expected) in scopes::all().into_iter().zip(STATES) {
        searches.search(&Protocol::new(scope, None), expected);
    }
    searches.end(&protocol::KINDS);
}
