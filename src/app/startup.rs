//! Waits for the servers that a node needs, and logs which one is missing. Checks them without a
//! node.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use super::assembly::NodeParts;
use crate::clock;
use crate::config::{self, Settings};
use crate::domain::time::duration::spelled;
use crate::domain::{Backoff, ClusterWishes, NodeId};
use crate::error_chain::chain;
use crate::node::maintenance::key_keeper::KeyError;
use crate::node::requests::service::Service;
use crate::postgres::PostgresError;
use crate::postgres::cluster::schema::{self, CheckError, Checked, MigrateError};
use crate::postgres::topics::Topics;
use crate::shutdown::{TaskFailure, Tasks};
use crate::{etcd, telemetry};

/// The pause before the next look at a database that is not usable yet. It doubles each time.
const RETRY_MIN: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// Waits until the database is usable. Returns `None` when the node was told to stop meanwhile.
///
/// # Errors
/// When waiting would not help: an old schema, or server settings that break a guarantee.
pub async fn wait_for_postgres(
    settings: &Settings,
    parts: &mut NodeParts,
    service: &Service,
    tasks: &Tasks,
) -> Result<Option<Checked>, TaskFailure> {
    let mut backoff = Backoff::new(RETRY_MIN, RETRY_MAX);
    let mut said = None;
    loop {
        let tried = tokio::select! {
            tried = try_postgres(settings, parts, false) => tried,
            // An unfinished migration is rolled back with its connection.
            () = tasks.draining.cancelled() => return Ok(None),
        };
        let reason = match tried {
            Ok(checked) => return Ok(Some(checked)),
            Err(Attempt::Refused(failure)) => return Err(failure.into()),
            Err(Attempt::Away(reason)) => reason,
        };
        if said.as_ref() != Some(&reason) {
            tracing::warn!(
                database = parts.postgres.place(),
                reason,
                "cannot use Postgres yet; retrying"
            );
            said = Some(reason.clone());
        }
        service.waits_for(parts.missing(reason));
        tokio::select! {
            () = clock::sleep(backoff.next_pause()) => {}
            () = tasks.draining.cancelled() => return Ok(None),
        }
    }
}

/// The time that a check gives the servers to answer.
const CHECK_DEADLINE: Duration = Duration::from_secs(10);
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// The time that a check gives etcd to end its session.
const END_DEADLINE: Duration = Duration::from_secs(2);

/// Checks that a node with these settings could start. Prints a line for each server. Changes
/// nothing.
///
/// # Errors
/// When the settings of a client cannot be used, or the output is closed.
pub async fn check(settings: Settings) -> Result<ExitCode, TaskFailure> {
    let settings = Settings { auto_migrate: false, ..settings };
    let tasks = Tasks::default();
    let mut registry = telemetry::registry(config::RELEASE, config::COMMIT);
    let node = NodeId::new(clock::wall(), rand::random(), rand::random());
    let mut parts = NodeParts::new(&settings, node, &settings.advertise, &mut registry, &tasks)?;
    let deadline = clock::monotonic().plus(CHECK_DEADLINE);
    let postgres =
        tokio::time::timeout(CHECK_DEADLINE, try_postgres(&settings, &mut parts, true)).await;
    let postgres = match postgres {
        Ok(Ok(checked)) => {
            checked.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
            let cluster = checked.cluster;
            Ok(format!("{} shards, window {}", cluster.shards.get(), spelled(cluster.window)))
        }
        Ok(Err(Attempt::Away(reason) | Attempt::Refused(reason))) => Err(reason),
        Err(_elapsed) => Err("no answer".to_owned()),
    };
    let is_etcd_there = |parts: &NodeParts| {
        let view = parts.etcd.as_ref().map(|(_session, view)| view.borrow().clone());
        view.is_none_or(|view| matches!(view, etcd::View::Members(_)))
    };
    while !(parts.contact.is_reachable() && is_etcd_there(&parts)) && clock::monotonic() < deadline
    {
        clock::sleep(CHECK_INTERVAL).await;
    }
    let kafka = match parts.contact.is_reachable() {
        true => Ok("answers".to_owned()),
        false => Err(parts.contact.trouble()),
    };
    let etcd = match &parts.etcd {
        None => Ok("not used: the node would be the only one".to_owned()),
        Some(_) if is_etcd_there(&parts) => Ok("answers".to_owned()),
        Some(_) => Err("no usable answer; the log has the reason".to_owned()),
    };
    if let Some((session, _view)) = &parts.etcd
        && !session.end_session(END_DEADLINE).await
    {
        tracing::debug!("the session in etcd ends by itself");
    }
    let is_good = postgres.is_ok() && kafka.is_ok() && etcd.is_ok();
    let mut out = std::io::stdout().lock();
    writeln!(out, "settings  ok")?;
    for (name, found) in [("postgres", postgres), ("kafka", kafka), ("etcd", etcd)] {
        match found {
            Ok(text) => writeln!(out, "{name:<9} ok: {text}")?,
            Err(text) => writeln!(out, "{name:<9} FAILED: {text}")?,
        }
    }
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

enum Attempt {
    Away(String),
    Refused(String),
}

/// Compares the schema, the keys and the policies with those of the node. A check changes nothing.
async fn try_postgres(
    settings: &Settings,
    parts: &mut NodeParts,
    is_check: bool,
) -> Result<Checked, Attempt> {
    if settings.auto_migrate {
        schema::migrate(&parts.postgres, ClusterWishes::default()).await.map_err(|error| {
            match &error {
                MigrateError::Postgres(cause) if passes(cause) => Attempt::Away(chain(&error)),
                _ => Attempt::Refused(chain(&error)),
            }
        })?;
    }
    let checked = schema::check(&parts.postgres).await.map_err(|error| match &error {
        CheckError::Postgres(cause) if passes(cause) => Attempt::Away(chain(&error)),
        _ => Attempt::Refused(chain(&error)),
    })?;
    let window = checked.cluster.window;
    if settings.tick >= window {
        let [tick, window] = [settings.tick, window].map(spelled);
        return Err(Attempt::Refused(format!(
            "--tick {tick} must be shorter than the window of this cluster, {window}, or tasks are \
             claimed after they are due"
        )));
    }
    if let Some(keeper) = &mut parts.key_keeper {
        let checked = if is_check { keeper.compare().await } else { keeper.check().await };
        checked.map_err(|error| match &error {
            KeyError::Postgres(cause) if passes(cause) => Attempt::Away(chain(&error)),
            _ => Attempt::Refused(format!("--payload-key-file: {}", chain(&error))),
        })?;
    }
    // A task takes the policy of its topic at its submit. So no submit comes before the policies.
    let topics = Topics::new(&parts.postgres, 1);
    let topics = topics.all().await.map_err(|error| match &error {
        cause if passes(cause) => Attempt::Away(chain(&error)),
        _ => Attempt::Refused(chain(&error)),
    })?;
    for topic in parts.policies.take_in(topics).paused {
        tracing::info!(%topic, "the topic is paused; its tasks wait in their table");
    }
    Ok(checked)
}

/// Returns true for errors that pass: Postgres is away, or another node holds a lock, perhaps for a
/// migration longer than a lock timeout.
fn passes(error: &PostgresError) -> bool {
    error.is_away() || matches!(error, PostgresError::GaveWay { .. })
}
