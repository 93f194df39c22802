//! The life of a task, one file per verb, and the names (idempotency keys) that stand for tasks.

pub mod adopt;
pub mod answers;
pub mod cancel;
pub mod claim;
pub mod look_up;
pub mod names;
pub mod principals;
pub mod replace;
pub(in crate::postgres) mod sealed;
pub mod settle;
pub mod submit;
pub mod submit_named;
