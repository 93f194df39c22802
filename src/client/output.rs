//! Output for people: tables, figures, tasks.

pub(super) mod cluster;
pub(super) mod counts;
pub(super) mod ended;
pub mod figures;
pub(super) mod print;
pub(super) mod profiles;
pub(super) mod schedules;
pub(super) mod table;
pub(super) mod topics;
