//! Shared support of the tests against real servers: the servers, a cluster for each test, nodes to
//! start and kill, a consumer, and the ledger that compares promises with arrived records.

pub mod api;
pub mod authority;
pub mod cluster;
pub mod consumer;
pub mod cutter;
pub mod database;
pub mod dev_server;
pub mod kafka_admin;
pub mod kafka_way;
pub mod ledger;
pub mod node;
pub mod oracle;
pub mod page;
pub mod partitions;
pub mod proxy;
pub mod stack;
pub mod stub_broker;
pub mod token_server;
pub mod traffic;
pub mod wait;

pub use api::{Answer, Api};
pub use authority::Authority;
pub use cluster::{Cluster, Wishes};
pub use consumer::{Consumer, Record};
pub use cutter::Cutter;
pub use database::{BLOCKED, Database};
pub use ledger::{Ledger, NONE};
pub use node::Node;
pub use oracle::{Call, Oracle};
pub use stack::{OwnStack, Stack};
pub use traffic::Traffic;
pub use wait::{eventually, eventually_some, now_ms};
