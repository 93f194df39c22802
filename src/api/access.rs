//! The senders of requests, and their rights.
//!
//! - `required`: the right that an operation needs, in the table beside the routes.
//! - `hosts`: the names under which a node answers, against DNS rebinding and foreign pages.
//! - `guard`: identifies the caller, and gives handlers the permits that the node asks for.
//! - `denials`: how often callers without a credential are denied until throttled.
//! - `limits`: what a caller may ask for, how often, and how much.
//! - `outcomes`: the outcome of a request, for the metrics of its principal.
//! - `cursors`: seals the positions in lists.
//! - `sessions`: the sealed sessions of the console.
//! - `trail`, `audit`: the notes of a request, and its line in the audit trail.

pub mod audit;
pub mod cursors;
pub mod denials;
pub mod guard;
pub mod hosts;
pub mod limits;
pub mod outcomes;
pub mod required;
pub mod sessions;
pub mod trail;
pub mod turns;
