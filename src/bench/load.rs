//! Submits: at a rate or as fast as can be, into an intake.

pub mod flow;
pub(super) mod http;
pub mod intake;
pub mod record;
pub mod rest;
