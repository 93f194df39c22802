//! Keeps a runner for each callback of the cluster.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use az::SaturatingAs as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::keys::SigningKeys;
use super::metrics::CallbackMetrics;
use super::runner::Runner;
use super::sender::Sender;
use super::threads::CallbackThreads;
use crate::access::permit::{Denied, Permit, Right};
use crate::access::{Caller, Rights};
use crate::clock;
use crate::domain::topic::callback::StoredCallback;
use crate::domain::topic::callback::policy::CallbackPolicy;
use crate::domain::topic::group::ConsumerGroup;
use crate::domain::{Throttle, TopicName, Unopened};
use crate::error_chain::chain;
use crate::node::membership::Bulletin;
use crate::node::requests::service::Service;
use crate::shutdown::{TaskFailure, Tasks};

const INTERVAL: Duration = Duration::from_secs(1);
/// The file with the keys is read again after so many turns.
const KEYS_EVERY: u32 = 10;
/// Minimum time between two log lines about an unusable file.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The parts of a keeper.
#[derive(Debug)]
pub struct CallbackParts {
    pub policy: Arc<CallbackPolicy>,
    pub key_file: PathBuf,
    pub keys: SigningKeys,
    pub service: Service,
    pub bulletin: watch::Receiver<Bulletin>,
    pub metrics: CallbackMetrics,
    pub tasks: Tasks,
}

/// Reads the callbacks of the cluster, and carries them out.
#[derive(Debug)]
pub struct CallbackKeeper {
    parts: CallbackParts,
    keys: Arc<ArcSwap<SigningKeys>>,
    /// Started with the first callback.
    threads: Option<CallbackThreads>,
    running: HashMap<TopicName, Running>,
    /// Of log lines about the file with the keys.
    throttle: Throttle,
    /// Callbacks whose headers this node cannot decrypt, each with its log lines.
    unopened: HashMap<TopicName, Throttle>,
}

/// A callback that this node carries out.
#[derive(Debug)]
struct Running {
    callback: watch::Sender<StoredCallback>,
    ending: CancellationToken,
}

impl CallbackKeeper {
    pub fn new(parts: CallbackParts) -> Self {
        let keys = Arc::new(ArcSwap::from_pointee(parts.keys.clone()));
        let throttle = Throttle::new(LOG_INTERVAL);
        let (threads, running, unopened) = (None, HashMap::new(), HashMap::new());
        Self { parts, keys, threads, running, throttle, unopened }
    }

    /// Runs until the node drains. Requests that are under way then get their answers.
    pub async fn run(mut self) -> Result<(), TaskFailure> {
        let draining = self.parts.tasks.draining.clone();
        for turn in 0_u32.. {
            if turn % KEYS_EVERY == KEYS_EVERY - 1 {
                self.read_keys().await?;
            }
            match self.parts.service.all_callbacks().await {
                Ok(all) => self.carry_out(all).await?,
                // The known callbacks go on.
                Err(reason) => tracing::debug!(?reason, "read the callbacks"),
            }
            tokio::select! {
                () = draining.cancelled() => break,
                () = clock::sleep(INTERVAL) => {}
            }
        }
        Ok(())
    }

    async fn read_keys(&mut self) -> Result<(), TaskFailure> {
        let path = self.parts.key_file.clone();
        match tokio::task::spawn_blocking(move || SigningKeys::load(&path)).await? {
            Ok((keys, _warned_at_start)) => self.keys.store(Arc::new(keys)),
            Err(error) => {
                self.parts.metrics.key_failures.inc();
                if self.throttle.lets_through(clock::monotonic()) {
                    tracing::warn!(
                        error = chain(&error),
                        "the file with the signing keys is not usable; the former keys stay"
                    );
                }
            }
        }
        Ok(())
    }

    async fn carry_out(&mut self, mut all: Vec<StoredCallback>) -> Result<(), TaskFailure> {
        let paused = all.iter().filter(|one| one.pause_reason.is_some()).count();
        self.parts.metrics.paused.set(paused.saturating_as());
        let is_unopened = |topic: &TopicName| {
            all.iter().any(|stored| stored.topic == *topic && stored.unopened.is_some())
        };
        self.unopened.retain(|topic, _throttle| is_unopened(topic));
        all.retain(|stored| self.is_opened(stored));
        self.parts.metrics.unopened.set(self.unopened.len().saturating_as());
        self.running.retain(|topic, running| {
            let stays = all.iter().any(|stored| stored.topic == *topic);
            if !stays {
                running.ending.cancel();
            }
            stays
        });
        for stored in all {
            match self.running.get(&stored.topic) {
                Some(running) => {
                    running.callback.send_if_modified(|known| {
                        let is_new = *known != stored;
                        if is_new {
                            *known = stored;
                        }
                        is_new
                    });
                }
                None => self.start(stored).await?,
            }
        }
        Ok(())
    }

    /// Returns false for a callback whose headers this node cannot decrypt. It sends nothing
    /// without them; other nodes may.
    fn is_opened(&mut self, stored: &StoredCallback) -> bool {
        let Some(why) = stored.unopened else { return true };
        let throttle = self.unopened.entry(stored.topic.clone());
        let throttle = throttle.or_insert_with(|| Throttle::new(LOG_INTERVAL));
        if throttle.lets_through(clock::monotonic()) {
            let reason = match why {
                Unopened::NoKey(id) => format!("this node lacks payload key {id}"),
                Unopened::Damaged => "they were not encrypted for this callback".to_owned(),
            };
            tracing::warn!(
                topic = %stored.topic,
                reason,
                "cannot decrypt the headers of a callback; this node sends nothing for it"
            );
        }
        false
    }

    fn threads(&mut self) -> io::Result<CallbackThreads> {
        if let Some(threads) = &self.threads {
            return Ok(threads.clone());
        }
        Ok(self.threads.insert(CallbackThreads::start()?).clone())
    }

    async fn start(&mut self, stored: StoredCallback) -> Result<(), TaskFailure> {
        let (policy, keys) = (Arc::clone(&self.parts.policy), Arc::clone(&self.keys));
        let threads = match self.threads() {
            Ok(threads) => threads,
            Err(error) => {
                // The next turn tries again.
                tracing::warn!(error = chain(&error), "start a thread for callbacks");
                return Ok(());
            }
        };
        let making = move || Sender::make(policy, keys, threads);
        let made = tokio::task::spawn_blocking(making).await?;
        let sender = match made {
            Ok(sender) => Arc::new(sender),
            Err(error) => {
                // The next turn tries again.
                tracing::warn!(error = chain(&error), "make an HTTP client for a callback");
                return Ok(());
            }
        };
        let topic = stored.topic.clone();
        let ending = self.parts.tasks.draining.child_token();
        let (callback, watched) = watch::channel(stored);
        let runner = Runner {
            callback: watched,
            service: self.parts.service.clone(),
            sender,
            permits: permits(&topic)
                .map_err(|denied| format!("a callback may not do this: {denied:?}"))?,
            group: ConsumerGroup::of_callback(&topic),
            bulletin: self.parts.bulletin.clone(),
            metrics: self.parts.metrics.clone(),
            state: Arc::default(),
            ending: ending.clone(),
        };
        let stopping = self.parts.tasks.stopping.clone();
        self.parts.tasks.spawn("callback", async move {
            // A task without an answer at the end of the node comes again by its time to run.
            stopping.run_until_cancelled(runner.run()).await;
            Ok(())
        });
        self.running.insert(topic, Running { callback, ending });
        Ok(())
    }
}

/// Returns the rights of callbacks on their topic. Those of the operator were checked when the
/// callback was set.
fn permits<A, B>(topic: &TopicName) -> Result<(Permit<A>, Permit<B>), Denied>
where
    A: Right,
    B: Right,
{
    let caller = Caller::anonymous(Rights::everything());
    Ok((Permit::on(&caller, topic)?, Permit::on(&caller, topic)?))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::telemetry::Registry;

    #[tokio::test]
    async fn a_wrong_key_file_is_counted_and_the_former_keys_stay() {
        let name = format!("punctual-callback-keys-{:032x}", rand::random::<u128>());
        let path = std::env::temp_dir().join(name);
        fs::write(&path, "a2V5IG9uZSBrZXkgb25lIGtleSBvbmUga2V5").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        let (keys, warning) = SigningKeys::load(&path).unwrap();
        assert_eq!(warning, None);
        let mut keeper = CallbackKeeper::new(CallbackParts {
            policy: Arc::default(),
            key_file: path.clone(),
            keys,
            service: Service::default(),
            bulletin: watch::channel(Bulletin::default()).1,
            metrics: CallbackMetrics::register(&mut Registry::default()),
            tasks: Tasks::default(),
        });
        let topic = TopicName::stored("orders");
        let first = keeper.keys.load().sign(1, &topic, b"body");
        keeper.read_keys().await.unwrap();
        assert_eq!(keeper.parts.metrics.key_failures.get(), 0);
        fs::write(&path, "no key").unwrap();
        keeper.read_keys().await.unwrap();
        fs::remove_file(&path).unwrap();
        keeper.read_keys().await.unwrap();
        assert_eq!(keeper.parts.metrics.key_failures.get(), 2);
        assert_eq!(keeper.keys.load().sign(1, &topic, b"body"), first);
    }
}
