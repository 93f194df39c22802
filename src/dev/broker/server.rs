//! Listens for clients, and keeps the time of consumer groups.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use super::connection;
use super::state::Broker;
use super::topics::Topics;
use crate::clock::{self, ClusterClock};
use crate::error_chain::chain;
use crate::shutdown::{TaskFailure, Tasks};

/// Connections of all clients. Further ones are closed at once.
const CONNECTIONS_MAX: usize = 256;
/// The pause after a connection could not be accepted.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
/// Interval at which sessions and joins of groups are checked.
const TICK: Duration = Duration::from_millis(100);

/// Listens on a port of loopback (0: a free one), with these topics: names with numbers of
/// partitions. Serves in the background until `tasks` stop.
///
/// # Errors
/// When the port is taken, or a topic cannot be created.
pub async fn start(
    port: u16,
    new: &[(String, usize)],
    clock: Arc<ClusterClock>,
    tasks: &Tasks,
) -> Result<Broker, TaskFailure> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.map_err(|error| {
        format!(
            "listen on 127.0.0.1:{port} for Kafka clients: {error}; --kafka-port 0 takes a free \
             port, and --kafka 127.0.0.1:{port} uses a Kafka that runs there"
        )
    })?;
    let mut topics = Topics::default();
    for (name, partition_count) in new {
        topics
            .create(name, *partition_count)
            .map_err(|reason| format!("--topic {name}:{partition_count}: {reason:?}"))?;
    }
    let broker = Broker::new(listener.local_addr()?, topics, clock);
    tasks.spawn("dev broker", accept(broker.clone(), listener, tasks.clone()));
    tasks.spawn("dev consumer groups", tick(broker.clone(), tasks.clone()));
    Ok(broker)
}

async fn accept(broker: Broker, listener: TcpListener, tasks: Tasks) -> Result<(), TaskFailure> {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = tasks.stopping.cancelled() => return Ok(()),
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "cannot accept a connection of a Kafka client");
                clock::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            tracing::warn!("more than {CONNECTIONS_MAX} connections of Kafka clients");
            continue;
        };
        let (broker, stopping) = (broker.clone(), tasks.stopping.clone());
        tasks.spawn("dev broker connection", async move {
            let served = stopping.run_until_cancelled(connection::serve(broker, stream)).await;
            if let Some(Err(error)) = served {
                tracing::debug!(error = chain(error.as_ref()), "a Kafka client was cut off");
            }
            drop(place);
            Ok(())
        });
    }
}

async fn tick(broker: Broker, tasks: Tasks) -> Result<(), TaskFailure> {
    loop {
        tokio::select! {
            () = clock::sleep(TICK) => {}
            () = tasks.stopping.cancelled() => return Ok(()),
        }
        broker.shared.groups.lock().tick(clock::monotonic());
    }
}
