//! The policy of a node: read from its auth file and kept current, or open to everybody. And its
//! audit trail. `payload_keys` is the command `payload-keys`.

pub mod payload_keys;

use std::time::Duration;

use az::SaturatingAs as _;

use crate::access::credential::jwt::fetch::KeyFetcher;
use crate::access::document::NodeRules;
use crate::access::reload::Reloader;
use crate::access::{Metrics, Policy, PolicyHandle, file};
use crate::api::Audit;
use crate::audit::{self, AuditStream, StreamSettings};
use crate::clock;
use crate::config::{AuditTrail, SettingProblem, Settings};
use crate::sealing::key_file;
use crate::shutdown::{TaskFailure, Tasks};
use crate::telemetry::Registry;

/// Interval of the reminders that a node beyond loopback is open to everybody.
const REMINDER: Duration = Duration::from_secs(3600);

/// Returns the problems of the auth file and of the file with the payload keys.
pub(super) fn problems(settings: &Settings) -> Vec<SettingProblem> {
    let mut problems = auth_problems(settings);
    if let Some(Err(error)) = settings.access.payload_keys.as_deref().map(key_file::load) {
        problems.push(SettingProblem { flag: "--payload-key-file", text: error.to_string() });
    }
    problems
}

fn auth_problems(settings: &Settings) -> Vec<SettingProblem> {
    let Some(path) = &settings.access.auth_file else { return Vec::new() };
    let lines = match file::load(path, rules(settings)) {
        Err(error) => error.lines(),
        Ok(_) => Vec::new(),
    };
    lines.into_iter().map(|text| SettingProblem { flag: "--auth-file", text }).collect()
}

/// Returns the rules that a node with these settings has for the auth file.
fn rules(settings: &Settings) -> NodeRules {
    NodeRules {
        burst_min: settings.limits.batch_tasks_max.saturating_as(),
        takes_certificates: settings.tls.as_ref().is_some_and(|tls| tls.clients.is_some()),
    }
}

/// Reads the auth file and keeps the policy current in the background.
///
/// # Errors
/// When the auth file has become wrong since it was checked.
pub(super) fn start(
    settings: &Settings,
    registry: &mut Registry,
    tasks: &Tasks,
) -> Result<PolicyHandle, TaskFailure> {
    let metrics = Metrics::register(registry);
    if let Some(path) = &settings.access.auth_file {
        let reloader = Reloader::start(path.clone(), rules(settings), metrics.clone())
            .map_err(|error| format!("--auth-file: {error}"))?;
        let policy = reloader.policy();
        tasks.spawn("auth file", reloader.run(tasks.clone()));
        let fetcher = KeyFetcher::new(policy.clone(), metrics);
        tasks.spawn("keys of issuers", fetcher.run(tasks.clone()));
        return Ok(policy);
    }
    if settings.listen.ip().is_loopback() {
        tracing::info!("no --auth-file: everyone on this machine may do everything");
    } else {
        tasks.spawn("open access", remind(settings.listen.to_string(), tasks.clone()));
    }
    let policy = Policy::open();
    policy.count_with(&metrics);
    Ok(PolicyHandle::new(policy))
}

/// Places in the audit trail beside those of requests: each turn at an outbox or an intake topic
/// takes five.
const AUDIT_PLACES_OF_OTHERS: usize = 3072;

/// Starts the audit trail, if the node has one.
///
/// # Errors
/// When the file cannot be opened.
pub(super) fn start_audit(
    settings: &Settings,
    registry: &mut Registry,
    tasks: &Tasks,
) -> Result<Option<Audit>, TaskFailure> {
    let metrics = audit::Metrics::register(registry);
    let Some(AuditTrail { file, has_reads, is_lossy }) = settings.access.audit.clone() else {
        return Ok(None);
    };
    let node = settings.node_name.clone();
    let first = Audit::line_of_node(&node, "start");
    // A pop holds the place of its line while it waits.
    let places_max = settings.limits.requests_max.saturating_add(AUDIT_PLACES_OF_OTHERS);
    let opened = StreamSettings { path: file, is_lossy, places_max };
    let stream = AuditStream::start(&opened, first, metrics, tasks)
        .map_err(|error| format!("--audit-file {}: {error}", opened.path.display()))?;
    Ok(Some(Audit { stream, node, has_reads }))
}

/// Writes the last line of the audit trail.
pub(super) async fn end_audit(audit: Option<&Audit>) {
    if let Some(audit) = audit {
        audit.stream.end(Audit::line_of_node(&audit.node, "stop")).await;
    }
}

/// Warns again and again, because a line at the start is read once.
async fn remind(listen: String, tasks: Tasks) -> Result<(), TaskFailure> {
    loop {
        tracing::warn!(
            listen,
            "open to everyone (--allow-anonymous): anyone who reaches this address may submit, \
             read and cancel all tasks"
        );
        tokio::select! {
            () = clock::sleep(REMINDER) => {}
            () = tasks.stopping.cancelled() => return Ok(()),
        }
    }
}
