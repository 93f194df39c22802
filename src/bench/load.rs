//! Submits tasks into an intake, at a rate or at full speed.

pub mod flow;
pub mod http;
pub mod intake;
pub mod record;
pub mod rest;
