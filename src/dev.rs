//! `punctual dev`: everything for development, in one process.
//!
//! ```text
//! punctual dev ── app::serve      the same node as in production, without etcd
//!   ├─ broker                     speaks Kafka's protocol, in memory
//!   ├─ time                       the clock that tests set, and GET /dev/published
//!   └─ punctual dev-postgres      the supervisor: a process of its own, which ends Postgres and
//!        └─ postgres              removes its folder, however the dev server ends
//! ```
//!
//! The node is not told that it serves a dev server, apart from the routes under `/dev/` and a
//! clock that follows every step ([`crate::app::Handles`]).

mod announcement;
mod broker;
mod postgres_server;
mod supervisor;
mod time;

use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

pub use self::supervisor::supervise_postgres;

use self::announcement::Announcement;
use self::broker::Broker;
use self::postgres_server::PostgresServer;
use self::time::DevTime;
use crate::api::dev_port::{DevPort, DevRequests};
use crate::app::{self, Handles};
use crate::clock::{self, ClusterClock};
use crate::config::{DevKafka, DevPostgres, DevSettings, Settings, node_of_dev};
use crate::domain::{ClusterWishes, ShardCount};
use crate::postgres::PostgresSettings;
use crate::postgres::cluster::dev_database::{DevDatabase, PrepareError};
use crate::postgres::cluster::schema;
use crate::shutdown::{TaskFailure, Tasks};

/// The leaves of a dev server: few, because each takes time to create.
const LEAF: Duration = Duration::from_secs(86_400);
/// How long a Postgres of its own may take until it answers.
const START_DEADLINE: Duration = Duration::from_secs(60);
/// The pause between two attempts to reach its own Postgres while that starts.
const RETRY: Duration = Duration::from_millis(5);
/// How long the connections of the broker may take to end.
const STOP_DEADLINE: Duration = Duration::from_secs(1);

/// Settings of the node. One claim loop and one shard publish overdue tasks in the order of their
/// due times. A long request lets the clock run through many tasks.
const NODE_FLAGS: [&str; 14] = [
    "--claim-loops",
    "1",
    "--producers",
    "1",
    "--session-ttl",
    "1s",
    "--drain-timeout",
    "3s",
    "--request-timeout",
    "10m",
    "--receipt-retention",
    "3650d",
    "--payload-retention",
    "30d",
];

/// Runs a dev server until it is told to stop.
///
/// # Errors
/// When one of its parts cannot start, or fails.
pub async fn run(settings: DevSettings) -> Result<(), TaskFailure> {
    let began_at = clock::monotonic();
    check_ports(&settings)?;
    match &settings.postgres {
        DevPostgres::Own(folder) => {
            let mut server = PostgresServer::start(&settings.path, folder.as_deref()).await?;
            let url = server.url();
            let outcome = {
                let serving = Box::pin(serve(&settings, &url, began_at));
                tokio::select! {
                    outcome = serving => outcome,
                    reason = server.ended() => Err(reason.into()),
                }
            };
            server.stop().await?;
            outcome
        }
        DevPostgres::Real(url) => Box::pin(serve(&settings, url.expose(), began_at)).await,
    }
}

/// Refuses a port that is taken, before Postgres is started. The node and the broker listen later.
fn check_ports(settings: &DevSettings) -> Result<(), TaskFailure> {
    let broker = match settings.kafka {
        DevKafka::Own { port, .. } => Some((port, "Kafka clients", "--kafka-port", "KAFKA_PORT")),
        DevKafka::Real(_) => None,
    };
    for (port, whose, flag, variable) in
        [Some((settings.port, "the REST API", "--port", "PORT")), broker].into_iter().flatten()
    {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(|error| {
            format!(
                "listen on 127.0.0.1:{port} for {whose}: {error}; another node may be running \
                 there. Give another port, or {flag} 0 for a free one (make dev \
                 {variable}=NUMBER)"
            )
        })?;
        drop(listener);
    }
    Ok(())
}

async fn serve(
    settings: &DevSettings,
    database_url: &str,
    began_at: crate::domain::Monotonic,
) -> Result<(), TaskFailure> {
    let (port, requests) = DevPort::new();
    let handles = Handles::of_dev(port);
    // The broker outlives the node, which drains into it.
    let broker_tasks = Tasks::default();
    let broker = start_broker(settings, &handles.clock, &broker_tasks).await?;
    handles.tasks.spawn("dev broker", watch(broker_tasks.clone(), handles.tasks.clone()));
    let kafka = match (&settings.kafka, &broker) {
        (DevKafka::Real(servers), _) => servers.clone(),
        (DevKafka::Own { .. }, Some(broker)) => broker.address().to_string(),
        (DevKafka::Own { .. }, None) => String::new(),
    };
    let own_clock_first = with_own_clock_first(database_url);
    let node = node_settings(settings.port, &own_clock_first, &kafka)?;
    let is_own = matches!(settings.postgres, DevPostgres::Own(_));
    let postgres = PostgresSettings::new(&own_clock_first)
        .map_err(|text| format!("--database-url: {text}"))?;
    let database = prepare(&postgres, is_own).await?;
    let wishes = ClusterWishes {
        shards: ShardCount::new(1).ok(),
        leaf: Some(LEAF),
        ..ClusterWishes::default()
    };
    let cluster = schema::migrate(&postgres, wishes).await?.cluster;
    let DevRequests { clock, published } = requests;
    let tasks = &handles.tasks;
    let dev_time = DevTime::new(database, cluster, handles.clone());
    tasks.spawn("dev clock", dev_time.run(clock, tasks.clone()));
    tasks.spawn("dev published", time::show_published(broker, published, tasks.clone()));
    let announcement = Announcement {
        began_at,
        kafka,
        database_url: is_own.then(|| database_url.to_owned()),
        settings: settings.clone(),
    };
    tasks.spawn("dev announcement", announcement.make(handles.clone()));
    let outcome = Box::pin(app::serve(node, handles)).await;
    if !broker_tasks.stop(STOP_DEADLINE).await {
        tracing::warn!("the connections of Kafka clients did not end in time");
    }
    outcome
}

/// Fails when a task of the broker has failed.
async fn watch(broker: Tasks, node: Tasks) -> Result<(), TaskFailure> {
    tokio::select! {
        () = broker.draining.cancelled() => Err("a task of the broker has failed".into()),
        () = node.stopping.cancelled() => Ok(()),
    }
}

async fn start_broker(
    settings: &DevSettings,
    clock: &Arc<ClusterClock>,
    tasks: &Tasks,
) -> Result<Option<Broker>, TaskFailure> {
    match &settings.kafka {
        DevKafka::Own { port, topics } => {
            broker::start(*port, topics, Arc::clone(clock), tasks).await.map(Some)
        }
        DevKafka::Real(_) => Ok(None),
    }
}

/// Returns the URL for sessions that find the clock of the dev server before that of Postgres.
/// Other nodes look into the schema of Postgres first.
fn with_own_clock_first(database_url: &str) -> String {
    let separator = if database_url.contains('?') { '&' } else { '?' };
    format!("{database_url}{separator}options[search_path]=public,pg_catalog")
}

/// Prepares the database. A server that has just been started is waited for.
async fn prepare(
    postgres: &PostgresSettings,
    is_starting: bool,
) -> Result<DevDatabase, TaskFailure> {
    let began_at = clock::monotonic();
    loop {
        match DevDatabase::prepare(postgres.clone()).await {
            Err(PrepareError::Postgres(error))
                if is_starting
                    && error.is_away()
                    && clock::monotonic().since(began_at) < START_DEADLINE =>
            {
                clock::sleep(RETRY).await;
            }
            prepared => return Ok(prepared?),
        }
    }
}

fn node_settings(port: u16, database_url: &str, kafka: &str) -> Result<Settings, TaskFailure> {
    let listen = format!("127.0.0.1:{port}");
    let own = ["--listen", &listen, "--database-url", database_url, "--kafka", kafka];
    let flags: Vec<String> = NODE_FLAGS.iter().chain(&own).map(|flag| (*flag).to_owned()).collect();
    let told = |problems: Vec<crate::config::SettingProblem>| {
        problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    };
    let settings = node_of_dev(&flags).map_err(told)?;
    let problems = app::problems(crate::config::CheckedSettings::Node(&settings));
    if problems.is_empty() { Ok(settings) } else { Err(told(problems).into()) }
}
