//! Follows the keys of all members in etcd.
//!
//! The watch first reads the whole prefix, then watches it from the next revision on. Any failure
//! of the watch (silence, a lost leader, a compaction) leads to another read. That is one small
//! read, and its result is the truth, whichever events were missed. A watch of a killed etcd is
//! silent forever. So progress is requested at each pulse, and silence for half a TTL counts as
//! loss.

use std::collections::BTreeMap;
use std::time::Duration;

use az::SaturatingAs as _;
use etcd_client::{Event, EventType, GetOptions, KeyValue, WatchOptions, WatchStream};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::client::{Endpoints, EtcdError, within};
use super::contact::EtcdContact;
use super::metrics::EtcdMetrics;
use super::settings::EtcdSettings;
use crate::clock;
use crate::domain::{Monotonic, NodeId, Throttle};
use crate::shutdown::TaskFailure;

/// The maximum number of members, and the maximum bytes of a member's value. Whoever can write to
/// etcd must not be able to fill the memory of all nodes.
const MEMBERS_MAX: usize = 1024;
const MEMBER_BYTES_MAX: usize = 4096;
/// The interval of warnings about foreign data in etcd.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// The value of a node's key.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Member {
    pub name: String,
    pub address: String,
    pub version: String,
    /// Milliseconds since the epoch by the clock of the node's machine. Only for display.
    pub started_at: i64,
    pub can_publish: bool,
}

/// The members according to etcd.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum View {
    /// etcd does not answer, so the members are unknown.
    Away { since: Monotonic },
    /// The members, at most half a TTL old.
    Members(BTreeMap<NodeId, Member>),
}

pub(super) async fn run(
    settings: EtcdSettings,
    view: watch::Sender<View>,
    stopping: CancellationToken,
    metrics: EtcdMetrics,
) -> Result<(), TaskFailure> {
    let mut endpoints = Endpoints::new(&settings);
    let mut follower = Follower {
        settings,
        view,
        metrics,
        contact: EtcdContact::new("the view of the members"),
        foreign_log: Mutex::new(Throttle::new(WARN_EVERY)),
    };
    loop {
        let error = tokio::select! {
            () = stopping.cancelled() => return Ok(()),
            error = follower.follow(&mut endpoints) => error,
        };
        follower.lost(&error);
        tokio::select! {
            () = stopping.cancelled() => return Ok(()),
            () = clock::sleep(follower.contact.pause()) => {}
        }
    }
}

struct Follower {
    settings: EtcdSettings,
    view: watch::Sender<View>,
    metrics: EtcdMetrics,
    contact: EtcdContact,
    foreign_log: Mutex<Throttle>,
}

impl Follower {
    /// Follows the members until an error occurs.
    async fn follow(&mut self, endpoints: &mut Endpoints) -> EtcdError {
        match Box::pin(self.try_follow(endpoints)).await {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }

    async fn try_follow(
        &mut self,
        endpoints: &mut Endpoints,
    ) -> Result<std::convert::Infallible, EtcdError> {
        let mut client = endpoints.next().await?;
        let (deadline, prefix) = (self.settings.deadline(), self.settings.nodes_prefix());
        let get = client.get(prefix.clone(), Some(GetOptions::new().with_prefix()));
        let read = within(deadline, "read the members", get).await?;
        let revision = read.header().map_or(0, etcd_client::ResponseHeader::revision);
        let mut members: BTreeMap<_, _> =
            read.kvs().iter().filter_map(|pair| self.member(pair)).take(MEMBERS_MAX).collect();
        // The watch starts at the read revision, although its events are known. etcd does not
        // answer progress requests for a watch that starts in the future, and there may never be
        // another write.
        let options = WatchOptions::new().with_prefix().with_start_revision(revision);
        let mut stream =
            within(deadline, "watch the members", client.watch(prefix, Some(options))).await?;
        self.contact.back();
        loop {
            self.show(&members);
            let events = self.next_events(&mut stream).await?;
            for event in &events {
                self.apply(event, &mut members);
            }
        }
    }

    /// Returns the next events, within half a TTL. The list is empty when etcd only showed that it
    /// is alive.
    async fn next_events(&self, stream: &mut WatchStream) -> Result<Vec<Event>, EtcdError> {
        const WHAT: &str = "follow the members";
        let wait = async {
            loop {
                // Dropping `message` loses no data: events that have arrived stay in the stream.
                tokio::select! {
                    message = stream.message() => return message,
                    () = clock::sleep(self.settings.pulse()) => {}
                }
                stream.request_progress().await?;
            }
        };
        let message = within(self.settings.deadline(), WHAT, wait)
            .await?
            .ok_or(EtcdError::Ended { what: WHAT })?;
        if message.canceled() {
            tracing::debug!(
                reason = message.cancel_reason(),
                compacted_to = message.compact_revision(),
                "etcd ended the watch"
            );
            return Err(EtcdError::Ended { what: WHAT });
        }
        Ok(message.events().to_vec())
    }

    fn apply(&self, event: &Event, members: &mut BTreeMap<NodeId, Member>) {
        let Some(pair) = event.kv() else { return };
        match event.event_type() {
            EventType::Put if members.len() < MEMBERS_MAX => members.extend(self.member(pair)),
            EventType::Put => {
                // Known members may still change.
                members.extend(self.member(pair).filter(|(node, _)| members.contains_key(node)));
            }
            EventType::Delete => {
                if let Some(node) = self.node(pair) {
                    members.remove(&node);
                }
            }
        }
    }

    fn node(&self, pair: &KeyValue) -> Option<NodeId> {
        let prefix = self.settings.nodes_prefix();
        pair.key_str().ok()?.strip_prefix(prefix.as_str())?.parse().ok()
    }

    /// Decodes the node of a key. Only the existence of the key matters. The value may come from a
    /// later release, and this release need not understand it.
    fn member(&self, pair: &KeyValue) -> Option<(NodeId, Member)> {
        let Some(node) = self.node(pair) else {
            self.warn(|| {
                // Debug output escapes line breaks: the writer of a key writes no log lines.
                let key = String::from_utf8_lossy(pair.key());
                tracing::warn!(
                    ?key,
                    "etcd: skipping a key under the prefix of the nodes that is not a node's"
                );
            });
            return None;
        };
        Some((node, self.decode(node, pair.value())))
    }

    fn decode(&self, node: NodeId, value: &[u8]) -> Member {
        let decoded = match value.len() {
            0..=MEMBER_BYTES_MAX => {
                serde_json::from_slice(value).map_err(|error| error.to_string())
            }
            bytes => Err(format!("the value has {bytes} bytes, more than {MEMBER_BYTES_MAX}")),
        };
        decoded.unwrap_or_else(|error| {
            self.warn(|| {
                tracing::warn!(%node, error, "etcd: cannot read the value of a member's key");
            });
            Member {
                name: String::new(),
                address: String::new(),
                version: String::new(),
                started_at: 0,
                can_publish: true,
            }
        })
    }

    /// Logs a warning about foreign data in etcd, at most once a minute.
    fn warn(&self, log: impl FnOnce()) {
        if self.foreign_log.lock().lets_through(clock::monotonic()) {
            log();
        }
    }

    fn show(&self, members: &BTreeMap<NodeId, Member>) {
        self.metrics.watch_up.set(1);
        self.metrics.members.set(members.len().saturating_as::<i64>());
        self.view.send_if_modified(|view| {
            let is_new = !matches!(view, View::Members(known) if known == members);
            if is_new {
                *view = View::Members(members.clone());
            }
            is_new
        });
    }

    fn lost(&mut self, error: &EtcdError) {
        self.contact.lost(error);
        self.metrics.watch_up.set(0);
        self.metrics.failures.inc();
        self.view.send_if_modified(|view| {
            let was_there = matches!(view, View::Members(_));
            if was_there {
                *view = View::Away { since: clock::monotonic() };
            }
            was_there
        });
    }
}
