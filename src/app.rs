//! The composition root: builds the modules in order, runs them, and ends them in reverse order.
//!
//! - `startup`, `assembly`: waits for the servers; builds a node from its modules.
//! - `ports`, `access`: the ports of the API; the auth file and the audit trail.
//! - `credentials`, `exposure`, `kafka_settings`: logins to servers; connections that others could
//!   read; the settings of the Kafka clients.
//! - `readiness`, `limits`: whether the node is ready; its limits as metrics.
//! - `handles`: the parts of a node that its caller shares.
//! - `outbox`, `tokens`: the commands `outbox`, `token` and `auth`.

mod access;
mod assembly;
mod credentials;
mod exposure;
mod handles;
mod kafka_settings;
mod limits;
pub mod outbox;
mod ports;
mod readiness;
mod startup;
pub mod tokens;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use az::SaturatingAs as _;

pub use self::access::payload_keys;
pub use self::handles::Handles;
pub use self::startup::check;
use crate::access::{Policy, PolicyHandle};
use crate::api::access::audit::Audit;
use crate::api::{self, Api, ApiMetrics, ApiSettings, Hosts, Port};
use crate::callbacks::SigningKeys;
use crate::clock;
use crate::config::{self, CheckedSettings, Command, MigrationSettings, SettingProblem, Settings};
use crate::domain::NodeId;
use crate::error_chain::chain;
use crate::postgres::cluster::schema;
use crate::shutdown::{self, TaskFailure, Tasks};
use crate::signals::{self, EndSignal, Signals};
use crate::telemetry::traces::{TraceSettings, Traces};
use crate::{
    postgres::{self, PostgresSettings},
    telemetry,
};

/// Maximum time to tell the other nodes that this node leaves.
const LEAVE_DEADLINE: Duration = Duration::from_secs(2);
/// Maximum time for the background tasks to end when no work is left.
const STOP_DEADLINE: Duration = Duration::from_secs(5);
/// The time that the Kafka clients have to end.
const CLIENTS_DEADLINE: Duration = Duration::from_secs(2);
/// Time that a node waits after a vital task has failed. Records in flight may still be
/// acknowledged and settled.
const HOPELESS_GRACE: Duration = Duration::from_secs(1);
/// The path of a collector for spans, by the specification of OTLP over HTTP.
const TRACES_PATH: &str = "/v1/traces";
/// The flag of the URL of a database.
const DATABASE_URL: &str = "--database-url";
/// The log line of a node that is told to stop before it is ready.
const STOPPED_EARLY: &str = "stopped before the start was complete";
/// Interval at which a draining node checks whether it is done.
const DRAIN_INTERVAL: Duration = Duration::from_millis(10);

/// Returns the problems that the modules find in their settings.
pub fn problems(wanted: CheckedSettings<'_>) -> Vec<SettingProblem> {
    let settings = match wanted {
        CheckedSettings::Node(settings) => settings,
        CheckedSettings::Consumer(properties) => return kafka_settings::problems(properties),
        CheckedSettings::Migration(settings) => {
            let may_be_plain = settings.postgres_plaintext;
            return exposure::of_postgres(DATABASE_URL, &settings.database_url, may_be_plain);
        }
        CheckedSettings::Reseal(command) => {
            let may_be_plain = command.postgres_plaintext;
            return exposure::of_postgres(DATABASE_URL, &command.database_url, may_be_plain);
        }
        CheckedSettings::Outbox(command) => {
            let may_be_plain = command.postgres_plaintext;
            return exposure::of_postgres(DATABASE_URL, &command.database_url, may_be_plain);
        }
    };
    let mut problems = credentials::problems(settings);
    if let Some(tls) = ports::tls_settings(settings)
        && let Err(error) = api::tls::CertificateKeeper::check(&tls)
    {
        problems.push(SettingProblem { flag: error.flag, text: error.text });
    }
    problems.extend(access::problems(settings));
    if let Some(Err(error)) = settings.callbacks.key_file.as_deref().map(SigningKeys::load) {
        problems.push(SettingProblem { flag: "--callback-key-file", text: error.to_string() });
    }
    problems
}

/// Brings the schema up to date and logs the changes.
pub async fn migrate(settings: MigrationSettings) -> Result<(), TaskFailure> {
    let postgres = PostgresSettings::new(settings.database_url.expose())
        .map_err(|text| format!("--database-url: {text}"))?;
    let report = schema::migrate(&postgres, settings.cluster).await?;
    tracing::info!(database = postgres.place(), "{report}");
    Ok(())
}

/// Runs a node until it is told to stop.
///
/// # Errors
/// When the node cannot start, or when a background task failed. A server that is only away is
/// waited for.
pub async fn serve(settings: Settings, handles: Handles) -> Result<(), TaskFailure> {
    settings.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
    exposure::of_other_servers(&settings).iter().for_each(|exposed| tracing::warn!("{exposed}"));
    telemetry::logging::uncouple()
        .map_err(|error| format!("cannot start the thread that writes the log: {error}"))?;
    let Handles { tasks, service, .. } = handles.clone();
    watch_signals(&tasks)?;
    let mut registry = telemetry::registry(config::RELEASE, config::COMMIT);
    limits::register(&mut registry, &settings.limits);
    limits::make_room(settings.limits.connections_max.saturating_add(ports::OPERATORS_MAX));
    if !settings.core_dumps {
        limits::forbid_core_dumps();
    }
    let ports = ports::Ports::open(&settings, &mut registry)?;
    let address = ports.address()?;
    let policy = access::start(&settings, &mut registry, &tasks)?;
    let audit = access::start_audit(&settings, &mut registry, &tasks)?;
    let node = NodeId::new(clock::wall(), rand::random(), rand::random());
    let advertise = advertised(&settings.advertise, address);
    let mut assembled =
        assembly::NodeParts::new(&settings, node, &advertise, &mut registry, &tasks)?;
    let traces = start_traces(&settings, &mut registry)?;
    assembled.traces = traces.clone();
    let api_metrics = ApiMetrics::register(&mut registry);
    let readiness_metrics = readiness::ReadinessMetrics::register(&mut registry);
    let registry = Arc::new(registry);
    let operators = match settings.operator_listen {
        Some(listen) if !listen.ip().is_loopback() && !settings.operator_anonymous => {
            policy.clone()
        }
        _ => PolicyHandle::new(Policy::open()),
    };
    let api = |settings: ApiSettings| {
        let policy = if settings.port == Port::Operator { &operators } else { &policy };
        let (metrics, registry) = (api_metrics.clone(), Arc::clone(&registry));
        Api::new(service.clone(), settings, metrics, registry, policy.clone())
            .with_audit(audit.clone())
            .with_traces(traces.clone())
    };
    let hosts = Hosts::new(address, &advertise, &settings.hosts);
    let api_settings = ApiSettings { dev: handles.dev.clone(), ..api_settings(&settings, hosts) };
    let cursors = ports.serve(api_settings, api, &tasks)?;
    handles.address.get_or_init(|| address);
    tasks.spawn("readiness", readiness::report(service.clone(), readiness_metrics, tasks.clone()));
    let principals = policy.current().principals().len();
    tracing::info!(
        %address,
        %node,
        principals,
        name = settings.node_name,
        version = config::RELEASE,
        commit = config::COMMIT,
        "listening"
    );

    let waited = startup::wait_for_postgres(&settings, &mut assembled, &service, &tasks).await;
    let outcome = match waited {
        Ok(Some(checked)) => {
            cursors.set_secret(checked.secret.bytes());
            run(&settings, assembled, checked, (&policy, audit.as_ref()), &handles).await
        }
        Ok(None) => {
            tracing::info!("{STOPPED_EARLY}");
            Ok(())
        }
        Err(failure) => Err(failure),
    };
    if !tasks.stop(STOP_DEADLINE).await {
        tracing::warn!("some background tasks did not end in time");
    }
    access::end_audit(audit.as_ref()).await;
    end_traces(traces).await;
    outcome?;
    match tasks.failure() {
        Some(failure) => Err(failure.into()),
        None => Ok(()),
    }
}

/// Starts the export of spans, if there is a collector. Does not wait for it.
fn start_traces(
    settings: &Settings,
    registry: &mut telemetry::Registry,
) -> Result<Option<Traces>, TaskFailure> {
    let Some(export) = &settings.traces else { return Ok(None) };
    let headers = export.headers.iter();
    let traces = TraceSettings {
        url: format!("{}{TRACES_PATH}", export.endpoint),
        headers: headers.map(|(name, value)| (name.clone(), value.expose().to_owned())).collect(),
        per_million: export.per_million,
        version: config::RELEASE,
        node: settings.node_name.clone(),
        cluster: settings.cluster.clone(),
    };
    let started = Traces::start(&traces, registry);
    let started = started.map_err(|error| format!("--otlp-endpoint: {error}"))?;
    tracing::info!(endpoint = export.endpoint, "spans go to a collector");
    Ok(Some(started))
}

/// Sends the spans that wait, and ends the export.
async fn end_traces(traces: Option<Traces>) {
    let Some(traces) = traces else { return };
    if tokio::task::spawn_blocking(move || traces.end()).await.is_err() {
        tracing::warn!("the export of spans did not end cleanly");
    }
}

/// Starts the loops, waits for the signal to drain, and drains.
async fn run(
    settings: &Settings,
    mut parts: assembly::NodeParts,
    checked: schema::Checked,
    access: (&PolicyHandle, Option<&Audit>),
    handles: &Handles,
) -> Result<(), TaskFailure> {
    let tasks = &handles.tasks;
    for warning in &checked.warnings {
        tracing::warn!("{warning}");
    }
    if let Some(keeper) = parts.key_keeper.take() {
        tasks.spawn("payload keys", keeper.run(tasks.stopping.clone()));
    }
    let (postgres, node) = (parts.postgres.clone(), parts.node);
    let started = assembly::start(settings, parts, checked.cluster, access, handles).await?;
    let Some(running) = started else {
        tracing::info!("{STOPPED_EARLY}");
        return Ok(());
    };
    tasks.draining.cancelled().await;
    drain(settings, &running, tasks).await;
    // The loops have ended before the heartbeat says that this node is gone. So other nodes adopt
    // the rest at once, if there is any.
    if !tasks.stop(STOP_DEADLINE).await {
        tracing::warn!("some background tasks did not end in time");
    }
    if let Err(error) = postgres::cluster::heartbeat::retire(&postgres, node).await {
        tracing::info!(
            error = chain(&error),
            "cannot withdraw the heartbeat of this node; it expires by itself"
        );
    }
    // The end of a Kafka client may wait for a name server, or for a server of tokens.
    let ending = tokio::task::spawn_blocking(move || drop(running));
    match tokio::time::timeout(CLIENTS_DEADLINE, ending).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "the Kafka clients did not end cleanly"),
        Err(_elapsed) => tracing::info!("the Kafka clients end with the process"),
    }
    tracing::info!("stopped");
    Ok(())
}

/// Stops claiming, publishes and settles the tasks in flight, and leaves.
async fn drain(settings: &Settings, running: &assembly::Running, tasks: &Tasks) {
    tracing::info!(timeout = ?settings.drain_timeout, "draining");
    let began_at = clock::monotonic();
    if !running.membership.leave(LEAVE_DEADLINE).await {
        tracing::warn!(
            "cannot tell other nodes that this node leaves; they take over when its heartbeat has \
             expired"
        );
    }
    while !running.is_idle() {
        let (is_hopeless, span) = (tasks.are_hopeless(), clock::monotonic().since(began_at));
        if is_hopeless && span >= HOPELESS_GRACE || span >= settings.drain_timeout {
            let amount = running.in_flight.amount();
            let reason = if is_hopeless {
                "this node cannot publish or settle"
            } else {
                "the drain timeout has passed"
            };
            tracing::warn!(
                batches = amount.batches,
                tasks = amount.tasks,
                reason,
                "stopping with batches in flight; other nodes adopt them"
            );
            running.give_up();
            return;
        }
        clock::sleep(DRAIN_INTERVAL).await;
    }
    tracing::info!(took = ?clock::monotonic().since(began_at), "drained");
}

/// A supervisor may send the same signal twice, to the process and to its group.
const SAME_WISH: Duration = Duration::from_millis(500);

/// Watches signals. The first SIGTERM, SIGINT or SIGHUP drains. A second one ends the process at
/// once, if it comes later than [`SAME_WISH`] after the first.
fn watch_signals(tasks: &Tasks) -> Result<(), TaskFailure> {
    let mut signals = Signals::listen(&EndSignal::ALL)?;
    let tasks = tasks.clone();
    tasks.clone().spawn("signals", async move {
        let mut told_at = None;
        loop {
            tokio::select! {
                _ = signals.next() => {}
                () = tasks.stopping.cancelled() => return Ok(()),
            }
            let now = clock::monotonic();
            if now.since(*told_at.get_or_insert(now)) > SAME_WISH {
                tracing::warn!("second stop signal: stopping at once");
                telemetry::logging::flush();
                shutdown::exit_at_once(130);
            }
            tasks.draining.cancel();
        }
    });
    Ok(())
}

/// Ends the first process of a container at the first signal, with the exit code that a shell would
/// report. An open transaction is rolled back with its connection. Commands that handle signals
/// themselves are left alone.
///
/// # Errors
/// When the system does not accept a handler.
pub fn end_on_signals(command: &Command) -> Result<(), TaskFailure> {
    let ends_by_itself = match command {
        Command::Serve(_) | Command::Dev(_) | Command::DevPostgres(_) => true,
        Command::Client(command) => command.ends_by_itself(),
        Command::Migrate(_)
        | Command::Check(_)
        | Command::Outbox(_)
        | Command::Reseal(_)
        | Command::Token(_)
        | Command::Auth(_)
        | Command::Print(_)
        | Command::Bench { .. } => false,
    };
    if ends_by_itself || !signals::needs_handlers() {
        return Ok(());
    }
    let mut signals = Signals::listen(&EndSignal::ALL)?;
    // A separate background task, because the command may be blocked in a write.
    Tasks::default().spawn("signals", async move {
        let code = signals.next().await.exit_code();
        telemetry::logging::flush();
        std::process::exit(code)
    });
    Ok(())
}

/// Returns the URL for other nodes. A port of 0 is replaced by the port that the system has chosen.
fn advertised(advertise: &str, address: SocketAddr) -> String {
    advertise
        .strip_suffix(":0")
        .map_or_else(|| advertise.to_owned(), |host| format!("{host}:{}", address.port()))
}

/// Denied requests of one address in a minute without a valid credential. A person who mistypes a
/// token stays below.
const CALLER_DENIALS_MAX: u32 = 20;

fn api_settings(settings: &Settings, hosts: Hosts) -> ApiSettings {
    let limits = &settings.limits;
    ApiSettings {
        dev: None,
        port: if settings.operator_listen.is_some() { Port::Public } else { Port::Sole },
        has_console: settings.has_console,
        hosts,
        body_bytes_max: limits.body_bytes_max,
        body_memory_max: limits.body_memory_bytes,
        header_bytes_max: limits.header_bytes_max,
        batch_tasks_max: limits.batch_tasks_max,
        requests_in_flight_max: limits.requests_max,
        caller_requests_max: limits.caller_requests_max,
        caller_denials_max: CALLER_DENIALS_MAX,
        streams_max: limits.streams_max.saturating_as::<u32>(),
        connections_max: limits.connections_max,
        caller_connections_max: limits.caller_connections_max,
        header_timeout: limits.header_timeout,
        idle_timeout: limits.idle_timeout,
        request_deadline: limits.request_timeout,
        answer_timeout: limits.answer_timeout,
    }
}
