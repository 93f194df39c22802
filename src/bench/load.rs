//! Submits tasks at a rate or at full speed ([`flow`]), by one of the ways in: REST, an outbox, or
//! an intake topic. [`intake`] is the interface of all of them.

pub mod flow;
pub mod http;
pub mod intake;
pub mod intake_topic;
pub mod outbox;
pub mod outcome;
pub mod record;
pub mod rest;
