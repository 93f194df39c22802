//! Keeps the payload keys of the node: reads the file with them, and registers them in Postgres.
//!
//! A file that is gone or wrong changes nothing, and neither does a Postgres that is away: the keys
//! from before stay. While nodes of an older version live, nothing is sealed with a key that the
//! cluster has not used yet, and new records are refused.
//!
//! A node that lacks a key of the cluster says so, also without a file. It works for the tasks that
//! it can read.

use std::path::PathBuf;
use std::time::Duration;

use az::SaturatingAs as _;
use thiserror::Error;
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::domain::{Monotonic, Throttle};
use crate::error_chain::chain;
use crate::postgres::cluster::payload_keys::{KeyRegistry, Registered};
use crate::postgres::{PostgresError, PostgresSettings};
use crate::sealing::key_file::{self, KeyFileError, LoadedKeys};
use crate::sealing::{KeySet, PayloadKeys};
use crate::shutdown::TaskFailure;
use crate::telemetry::{Counter, Gauge, Registry};

/// Interval at which the file is read.
const INTERVAL: Duration = Duration::from_secs(1);
/// Interval of the looks at the keys that the cluster uses. Each opens a session for a moment.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Interval of the log lines about a state that lasts.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// Why the keys of a file are not used.
#[derive(Debug, Error)]
pub enum KeyError {
    #[error(transparent)]
    File(#[from] KeyFileError),
    #[error(
        "payload key {0} is another key on the other nodes of this cluster: give each key an id of \
         its own"
    )]
    Differs(u32),
    #[error(transparent)]
    Postgres(#[from] PostgresError),
    #[error("the thread that reads the file has failed")]
    Thread,
}

/// The state of the payload keys as the node sees it.
#[derive(Clone, Debug, Default)]
struct KeyMetrics {
    current: Gauge,
    held: Gauge,
    reload_failures: Counter,
}

impl KeyMetrics {
    fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "punctual_payload_key_current",
            "Id of the payload key that encrypts new records; 0: they are not encrypted",
            metrics.current.clone(),
        );
        registry.register(
            "punctual_payload_key_held",
            "1 while new records are refused because nodes of an older version could not decrypt \
             them; else 0",
            metrics.held.clone(),
        );
        registry.register(
            "punctual_payload_key_reload_failures",
            "Checks of the file with the payload keys (one per second) that found it unreadable or \
             wrong, or could not register its keys; the previous keys stay in use",
            metrics.reload_failures.clone(),
        );
        metrics
    }
}

/// Keeps the keys of the file.
#[derive(Debug)]
pub struct KeyKeeper {
    /// `None`: there is no file.
    path: Option<PathBuf>,
    keys: PayloadKeys,
    registry: KeyRegistry,
    metrics: KeyMetrics,
    /// The keys of the file that are in use.
    taken: KeySet,
    checked_at: Option<Monotonic>,
    failure: Option<String>,
    refusal_log: Throttle,
    lacking_log: Throttle,
}

impl KeyKeeper {
    /// Creates the keeper of the keys for the records in a database.
    pub fn new(
        path: Option<PathBuf>,
        postgres: &PostgresSettings,
        registry: &mut Registry,
    ) -> Self {
        Self {
            path,
            keys: postgres.payload_keys().clone(),
            registry: KeyRegistry::new(postgres),
            metrics: KeyMetrics::register(registry),
            taken: KeySet::default(),
            checked_at: None,
            failure: None,
            refusal_log: Throttle::new(LOG_EVERY),
            lacking_log: Throttle::new(LOG_EVERY),
        }
    }

    /// Reads the file, and takes its keys if they have changed or are held.
    ///
    /// # Errors
    /// The keys from before are still used.
    pub async fn check(&mut self) -> Result<(), KeyError> {
        self.check_file().await?;
        let now = clock::monotonic();
        if self.checked_at.is_none_or(|at| now.since(at) >= CHECK_INTERVAL) {
            self.checked_at = Some(now);
            if let Err(error) = self.check_used().await {
                tracing::debug!(error = chain(&error), "cannot look for the keys in use; retrying");
            }
        }
        Ok(())
    }

    /// Compares the keys of the file with those of the cluster. Changes nothing.
    ///
    /// # Errors
    /// When a node could not start with these keys.
    pub async fn compare(&mut self) -> Result<(), KeyError> {
        let Some(LoadedKeys { set, .. }) = self.load().await? else { return Ok(()) };
        match self.registry.differing(&set).await? {
            Some(id) => Err(KeyError::Differs(id)),
            None => Ok(()),
        }
    }

    /// Compares the keys of the node with those that the cluster uses.
    async fn check_used(&mut self) -> Result<(), PostgresError> {
        let used = self.registry.used().await?;
        // A command has found no record with the key, before this node has encrypted one.
        if self.keys.current().current().is_some_and(|id| !used.contains(&id)) {
            self.taken = KeySet::default();
        }
        let lacking = self.keys.note_used(&used);
        if !lacking.is_empty() && self.lacking_log.lets_through(clock::monotonic()) {
            tracing::error!(
                keys = ?lacking,
                "this node lacks payload keys that the cluster uses; its readers get no records \
                 with these keys, and its tasks with them wait"
            );
        }
        Ok(())
    }

    /// Reads the file, if there is one.
    async fn load(&self) -> Result<Option<LoadedKeys>, KeyError> {
        let Some(path) = self.path.clone() else { return Ok(None) };
        // A network file system may take its time.
        let loaded = tokio::task::spawn_blocking(move || key_file::load(&path));
        Ok(Some(loaded.await.map_err(|_error| KeyError::Thread)??))
    }

    async fn check_file(&mut self) -> Result<(), KeyError> {
        let Some(LoadedKeys { set, warning }) = self.load().await? else { return Ok(()) };
        let is_held = self.keys.current().is_held();
        if set == self.taken && !is_held {
            return Ok(());
        }
        let is_new = set != self.taken;
        if let Some(warning) = warning.filter(|_warning| is_new) {
            tracing::warn!("{warning}");
        }
        self.checked_at = None;
        match self.registry.register(&set).await? {
            Registered::Usable => {
                self.keys.replace(set.clone());
                self.metrics.held.set(0);
                tracing::info!(
                    file = self.file(),
                    keys = set.ids().count(),
                    current = set.current(),
                    "read the file with the payload keys"
                );
            }
            Registered::OlderNodes(nodes) => {
                self.keys.replace(set.clone().held());
                self.metrics.held.set(1);
                if is_new || self.refusal_log.lets_through(clock::monotonic()) {
                    tracing::error!(
                        nodes = nodes.join(", "),
                        "new records are refused: nodes of an older version are running, which \
                         could not decrypt them"
                    );
                }
            }
            Registered::Differs(id) => return Err(KeyError::Differs(id)),
        }
        self.metrics.current.set(set.current().map_or(0, |id| id.saturating_as::<i64>()));
        self.taken = set;
        Ok(())
    }

    /// Checks the file each second until the node stops.
    ///
    /// # Errors
    /// None. A file that is gone or wrong is no failure.
    pub async fn run(mut self, stopping: CancellationToken) -> Result<(), TaskFailure> {
        loop {
            tokio::select! {
                () = clock::sleep(INTERVAL) => {}
                () = stopping.cancelled() => return Ok(()),
            }
            let checked = tokio::select! {
                checked = self.check() => checked,
                () = stopping.cancelled() => return Ok(()),
            };
            self.report(checked);
        }
    }

    fn file(&self) -> String {
        self.path.as_ref().map(|path| path.display().to_string()).unwrap_or_default()
    }

    /// Counts a failure that lasts, and logs it now and then.
    fn report(&mut self, checked: Result<(), KeyError>) {
        let Err(error) = checked else {
            if self.failure.take().is_some() {
                tracing::info!(file = self.file(), "the payload keys are valid again");
            }
            return;
        };
        self.metrics.reload_failures.inc();
        let told = chain(&error);
        if self.failure.as_ref() != Some(&told) {
            self.refusal_log.reset();
        }
        if self.refusal_log.lets_through(clock::monotonic()) {
            tracing::error!(
                error = told,
                file = self.file(),
                "the payload keys are refused; the previous keys stay in use"
            );
        }
        self.failure = Some(told);
    }
}
