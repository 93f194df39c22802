//! The guarantees, shown on the real program with a real Postgres, Kafka and etcd. Each test has a
//! cluster of its own, so that tests run in parallel.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::as_conversions,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a test ends where something is not as it should be, and reads this machine's clock \
              and settings itself"
)]

#[path = "../support/mod.rs"]
#[expect(dead_code, reason = "shared with the fault runner, which breaks more")]
mod support;

mod answers;
mod audit;
mod backlog;
mod bad_input;
mod bench;
mod busy_logins;
mod callbacks;
mod cancel;
mod claims;
mod claims_fail;
mod clients;
mod clock_steps;
mod cluster;
mod command_line;
mod compressed_records;
mod console;
mod consumers;
mod dashboards;
mod dead_letters;
mod dead_topics;
mod delays;
mod denied_topics;
mod dev;
mod dist;
mod durability;
mod encryption;
mod etcd_certificate;
mod etcd_login;
mod examples;
mod expiry;
mod failover;
mod failpoints;
mod far;
mod generated;
mod hazards;
mod heartbeats;
mod http_clients;
mod identities;
mod idle_connections;
mod inbound_claims;
mod intake_answers;
mod intake_leaders;
mod intake_rejected;
mod intake_topics;
mod intake_transactions;
mod interface;
mod kafka_edge;
mod kafka_login;
mod kafka_outage;
mod kafka_refusals;
mod kafka_support;
mod kafka_without_brokers;
mod large;
mod leaves;
mod limits;
mod lists;
mod lost_answers;
mod main_job;
mod membership;
mod membership_outages;
mod membership_support;
mod migrate;
mod moves;
mod names;
mod names_race;
mod neighbours;
mod old_schema;
mod outages;
mod outbox;
mod outbox_databases;
mod outbox_owners;
mod paused;
mod pending_max;
mod permits;
mod pool;
mod pops;
mod refusals;
mod replaced;
mod replay;
mod restart;
mod revoked;
mod row_locks;
mod schedules;
mod selections;
mod server_credentials;
mod settings;
mod signals;
mod slow_kafka;
mod storage;
mod submit_order;
mod submitters;
mod take_over;
mod tls;
mod tokens;
mod traces;
mod tracked;
