//! Punctual: a delay scheduler for Kafka. See ARCHITECTURE.md for an overview.

pub mod access;
pub mod api;
pub mod app;
pub mod audit;
pub mod bench;
pub mod callbacks;
pub mod client;
pub mod clock;
pub mod config;
pub mod console;
pub mod dev;
pub mod domain;
pub mod engine;
pub mod error_chain;
pub mod etcd;
pub mod failpoint;
pub mod inbound;
pub mod kafka;
pub mod node;
pub mod postgres;
pub mod private_file;
pub mod sealing;
pub mod shutdown;
pub mod signals;
pub mod telemetry;
