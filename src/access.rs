//! Access: principals, their rights, and their credentials.
//!
//! `file` reads the auth file into a [`Policy`], an immutable snapshot. `reload` keeps the current
//! snapshot in a [`PolicyHandle`]. A request is identified by [`Policy::identify`] or, without a
//! token, by [`Policy::identify_peer`]. Each change or read asks the [`Rights`] of its [`Caller`].
//! Everything is denied unless a rule allows it. Denying rules win over allowing rules. `limits`
//! counts the use of each principal, and `metrics` shows who is served and refused.

pub mod action;
pub mod credential;
pub mod document;
pub mod file;
pub mod limits;
mod metrics;
pub mod pattern;
pub mod permit;
pub mod policy;
pub mod principal;
pub mod reload;
pub mod rights;

pub use action::Action;
pub use metrics::Metrics;
pub use metrics::principals::{PrincipalCounts, RequestOutcome};
pub use policy::{Policy, Unidentified};
pub use principal::{Caller, CredentialId, Principal};
pub use reload::PolicyHandle;
pub use rights::Rights;
