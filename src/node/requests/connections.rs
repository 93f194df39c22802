//! Keeps the connections to Postgres open without which callers would be turned away, and shows
//! their state.
//!
//! A connection opened at its first use may find none free, long after the node has reported ready.
//! The owner of a connection therefore checks every two seconds, also without use, and opens a lost
//! connection again. [`principal_turns`] shares the connections among callers.

pub mod principal_turns;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::error_chain::chain;
use crate::node::messages::{NotReady, Requirement};
use crate::postgres::PostgresError;
use crate::postgres::tasks::look_up::LookUp;
use crate::postgres::tasks::names::Names;
use crate::postgres::tasks::replace::Replaces;
use crate::shutdown::TaskFailure;

/// The interval of checks: a third of the time in which a load balancer makes three probes.
const INTERVAL: Duration = Duration::from_secs(2);
/// The pause before a failed attempt to open a connection is retried.
const RETRY: Duration = Duration::from_millis(500);

type Timer = Pin<Box<dyn Future<Output = ()> + Send + Sync>>;

/// The reason why each connection is not open, or `None` for an open one.
#[derive(Clone, Debug, Default)]
pub struct Connections(Arc<Mutex<Vec<Option<String>>>>);

impl Connections {
    /// Adds a connection, which is missing until shown to be open.
    pub fn keep(&self) -> KeptConnection {
        let index = self.with(|all| {
            all.push(Some("a connection to Postgres for requests is being opened".to_owned()));
            all.len() - 1
        });
        KeptConnection { all: self.clone(), index, timer: Box::pin(async {}) }
    }

    /// Returns the missing requirement while one of the connections cannot be opened.
    pub fn missing(&self) -> Option<NotReady> {
        self.with(|all| {
            let mut whys: Vec<&str> = all.iter().filter_map(Option::as_deref).collect();
            whys.dedup();
            (!whys.is_empty())
                .then(|| NotReady { what: Requirement::Connections, why: whys.join("; ") })
        })
    }

    fn with<T>(&self, act: impl FnOnce(&mut Vec<Option<String>>) -> T) -> T {
        act(&mut self.0.lock())
    }
}

/// A connection, or the first of several, that its owner keeps open.
pub struct KeptConnection {
    all: Connections,
    index: usize,
    timer: Timer,
}

impl KeptConnection {
    /// Waits until the connection must be checked. The first check is at once. The owner checks the
    /// connection, and then calls `show`.
    pub async fn due(&mut self) {
        self.timer.as_mut().await;
    }

    /// Shows whether the connection is open.
    pub fn show(&mut self, opened: Result<(), PostgresError>) {
        let pause = if opened.is_ok() { INTERVAL } else { RETRY };
        let why = opened.err().map(|error| chain(&error));
        if let Some(why) = &why {
            tracing::debug!(why, "a connection to Postgres for requests is not open");
        }
        self.all.with(|all| all[self.index] = why);
        self.timer = Box::pin(clock::sleep(pause));
    }
}

impl fmt::Debug for KeptConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeptConnection").field("index", &self.index).finish_non_exhaustive()
    }
}

/// The connections that callers share.
#[derive(Debug)]
pub struct Pools {
    pub look_up: Arc<LookUp>,
    pub names: Arc<Names>,
    pub replaces: Arc<Replaces>,
}

impl Pools {
    /// Keeps one connection of each kind open until the node stops.
    pub async fn keep(
        self,
        connections: Connections,
        stopping: CancellationToken,
    ) -> Result<(), TaskFailure> {
        let [mut look_up, mut names, mut replaces] = [(); 3].map(|()| connections.keep());
        let keeping = async {
            tokio::join!(
                async {
                    loop {
                        look_up.due().await;
                        look_up.show(self.look_up.keep_open().await);
                    }
                },
                async {
                    loop {
                        names.due().await;
                        names.show(self.names.keep_open().await);
                    }
                },
                async {
                    loop {
                        replaces.due().await;
                        replaces.show(self.replaces.keep_open().await);
                    }
                },
            );
        };
        // The future is on the heap, because three connections under construction are large.
        stopping.run_until_cancelled(Box::pin(keeping)).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::connection::error::Cause;

    fn unreachable(why: &'static str) -> PostgresError {
        PostgresError::Unreachable {
            what: "connect for submit".to_owned(),
            source: Cause::Fact(why),
        }
    }

    #[tokio::test]
    async fn each_must_have_been_open_and_be_so_still() {
        let connections = Connections::default();
        assert!(connections.missing().is_none());
        let [mut first, mut second] = [(); 2].map(|()| connections.keep());
        first.due().await;
        first.show(Ok(()));
        assert!(connections.missing().is_some_and(|missing| missing.why.contains("being opened")));
        second.show(Ok(()));
        assert!(connections.missing().is_none());
        first.show(Err(unreachable("too many")));
        let missing = connections.missing().unwrap();
        assert_eq!(missing.what, Requirement::Connections);
        assert!(
            missing.why.starts_with("connect for submit: ") && missing.why.ends_with("too many"),
            "{}",
            missing.why
        );
        first.show(Ok(()));
        assert!(connections.missing().is_none());
    }
}
