//! Keeps the node's key alive, under a lease, for as long as it is wanted.
//!
//! ```text
//!            announce            granted and put
//!   Ended -------------> Lost -------------------> Held
//!     ^                   ^  \   call failed, lease gone  |
//!     |  end: revoked,    |   `---------------------------'
//!     `-- or left to run out (from either)
//! ```
//! After a loss the old lease is tried first: a session survives a restart of etcd that is shorter
//! than its TTL.

use std::time::Duration;

use az::SaturatingAs as _;
use etcd_client::{Client, LeaseKeepAliveStream, LeaseKeeper, PutOptions};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::client::{Endpoints, EtcdError, within};
use super::contact::EtcdContact;
use super::members::{Member, View};
use super::metrics::EtcdMetrics;
use super::settings::EtcdSettings;
use crate::clock;
use crate::domain::NodeId;
use crate::shutdown::{TaskFailure, Tasks};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SessionState {
    /// No session is wanted.
    Ended {
        /// False when etcd may keep the session until its TTL is over.
        is_revoked: bool,
    },
    /// A session is wanted and etcd does not have it. The background task is trying to get one.
    Lost,
    /// The key exists and is kept alive.
    Held,
}

/// The handle of the session. Its calls set the wanted state. A background task does the rest.
#[derive(Clone, Debug)]
pub struct Session {
    wanted: watch::Sender<Option<Member>>,
    state: watch::Receiver<SessionState>,
}

impl Session {
    pub(super) fn start(
        settings: &EtcdSettings,
        node: NodeId,
        view: watch::Receiver<View>,
        tasks: &Tasks,
        metrics: EtcdMetrics,
    ) -> Self {
        let (wanted, wanted_out) = watch::channel(None);
        let (state_in, state) = watch::channel(SessionState::Ended { is_revoked: true });
        let keeper = SessionKeeper {
            key: format!("{}{node}", settings.nodes_prefix()),
            node,
            settings: settings.clone(),
            wanted: wanted_out,
            view,
            state: state_in,
            lease: None,
            has_warned: false,
            metrics,
        };
        tasks.spawn("etcd session", keeper.run(tasks.stopping.clone()));
        Self { wanted, state }
    }

    /// Publishes `member` as the value of the key from now on. Starts the session if there is none.
    pub fn announce(&self, member: Member) {
        self.wanted.send_if_modified(|wanted| {
            let is_new = wanted.as_ref() != Some(&member);
            *wanted = Some(member);
            is_new
        });
    }

    /// Ends the session without waiting. A lease that cannot be revoked expires within the TTL.
    pub fn end(&self) {
        self.wanted.send_if_modified(|wanted| wanted.take().is_some());
    }

    /// Ends the session. Returns true when etcd has revoked it, or has none, within `deadline`.
    pub async fn end_session(&self, deadline: Duration) -> bool {
        self.end();
        let mut state = self.state.clone();
        let ended = state.wait_for(|state| matches!(state, SessionState::Ended { .. }));
        match tokio::time::timeout(deadline, ended).await {
            Ok(Ok(state)) => matches!(*state, SessionState::Ended { is_revoked: true }),
            Ok(Err(_closed)) => false,
            Err(_elapsed) => false,
        }
    }

    pub fn state(&self) -> SessionState {
        *self.state.borrow()
    }
}

struct SessionKeeper {
    key: String,
    node: NodeId,
    settings: EtcdSettings,
    wanted: watch::Receiver<Option<Member>>,
    view: watch::Receiver<View>,
    state: watch::Sender<SessionState>,
    /// The lease that may still be alive.
    lease: Option<i64>,
    has_warned: bool,
    metrics: EtcdMetrics,
}

impl SessionKeeper {
    async fn run(mut self, stopping: CancellationToken) -> Result<(), TaskFailure> {
        let mut endpoints = Endpoints::new(&self.settings);
        let mut contact = EtcdContact::new("the session");
        while !stopping.is_cancelled() {
            // A turn that is cut off leaves a lease behind at worst, and the lease expires.
            let turn = tokio::select! {
                () = stopping.cancelled() => break,
                turn = self.turn(&mut endpoints, &mut contact) => turn,
            };
            let Err(error) = turn else { continue };
            contact.lost(&error);
            self.metrics.failures.inc();
            if matches!(error, EtcdError::LeaseGone { .. }) {
                self.lease = None;
            }
            self.set(SessionState::Lost);
            tokio::select! {
                () = stopping.cancelled() => break,
                () = clock::sleep(contact.pause()) => {}
            }
        }
        let is_revoked = self.revoke(&mut endpoints).await;
        self.set(SessionState::Ended { is_revoked });
        Ok(())
    }

    /// Brings etcd to the wanted state, and keeps it there until that state changes (`Ok`) or a
    /// call fails.
    async fn turn(
        &mut self,
        endpoints: &mut Endpoints,
        contact: &mut EtcdContact,
    ) -> Result<(), EtcdError> {
        if self.wanted.borrow_and_update().is_none() {
            let is_revoked = self.revoke(endpoints).await;
            self.set(SessionState::Ended { is_revoked });
            // An error means that all handles are gone.
            if self.wanted.wait_for(Option::is_some).await.is_err() {
                std::future::pending::<()>().await;
            }
            self.set(SessionState::Lost);
        }
        let mut client = endpoints.next().await?;
        let lease = self.grant(&mut client).await?;
        self.put(&mut client, lease).await?;
        let keeping = within(
            self.settings.deadline(),
            "keep the session alive",
            client.lease_keep_alive(lease),
        )
        .await?;
        contact.back();
        self.set(SessionState::Held);
        self.keep(client, lease, keeping).await
    }

    /// Returns the lease that is still alive, or a new one.
    async fn grant(&mut self, client: &mut Client) -> Result<i64, EtcdError> {
        let deadline = self.settings.deadline();
        if let Some(lease) = self.lease {
            let known =
                within(deadline, "look for the session", client.lease_time_to_live(lease, None))
                    .await?;
            if known.ttl() > 0 {
                return Ok(lease);
            }
        }
        let asked = self.settings.ttl().as_millis().div_ceil(1000).saturating_as::<i64>();
        let grant = client.lease_grant(asked, None);
        let granted = within(deadline, "start a session", grant).await?;
        // etcd grants at least 1.5 times its election timeout.
        if granted.ttl() > asked && !self.has_warned {
            self.has_warned = true;
            tracing::warn!(
                asked,
                granted = granted.ttl(),
                "etcd raised the TTL of the session (in seconds), so a dead node is noticed later"
            );
        }
        self.lease = Some(granted.id());
        Ok(granted.id())
    }

    async fn put(&self, client: &mut Client, lease: i64) -> Result<(), EtcdError> {
        let member = self.wanted.borrow().clone();
        let Some(member) = member else { return Ok(()) };
        let value = serde_json::to_vec(&member).unwrap_or_default();
        let put = client.put(self.key.as_str(), value, Some(PutOptions::new().with_lease(lease)));
        within(self.settings.deadline(), "announce this node", put).await?;
        Ok(())
    }

    /// Keeps the lease alive and the key as wanted, until the session is no longer wanted.
    async fn keep(
        &mut self,
        mut client: Client,
        lease: i64,
        (mut keeper, mut answers): (LeaseKeeper, LeaseKeepAliveStream),
    ) -> Result<(), EtcdError> {
        loop {
            let must_put = tokio::select! {
                changed = self.wanted.changed() => {
                    if changed.is_err() || self.wanted.borrow_and_update().is_none() {
                        return Ok(());
                    }
                    true
                }
                // If the key of the node has vanished, it was deleted, or its lease expired.
                Ok(()) = self.view.changed() => self.is_missing(),
                () = clock::sleep(self.settings.pulse()) => false,
            };
            if must_put {
                self.put(&mut client, lease).await?;
            }
            self.pulse(&mut keeper, &mut answers).await?;
        }
    }

    async fn pulse(
        &self,
        keeper: &mut LeaseKeeper,
        answers: &mut LeaseKeepAliveStream,
    ) -> Result<(), EtcdError> {
        const WHAT: &str = "keep the session alive";
        let exchange = async {
            // This call only queues the request. The answer decides.
            keeper.keep_alive().await?;
            answers.message().await
        };
        match within(self.settings.deadline(), WHAT, exchange).await? {
            Some(answer) if answer.ttl() > 0 => Ok(()),
            Some(_) => Err(EtcdError::LeaseGone { what: WHAT }),
            None => Err(EtcdError::Ended { what: WHAT }),
        }
    }

    fn is_missing(&mut self) -> bool {
        let view = self.view.borrow_and_update();
        matches!(&*view, View::Members(members) if !members.contains_key(&self.node))
    }

    /// Revokes the lease if there is one. Returns false when it cannot be revoked, and expires.
    async fn revoke(&mut self, endpoints: &mut Endpoints) -> bool {
        let Some(lease) = self.lease.take() else { return true };
        let revoke = async {
            let mut client = endpoints.next().await?;
            within(self.settings.deadline(), "end the session", client.lease_revoke(lease)).await
        };
        match revoke.await {
            Ok(_) | Err(EtcdError::LeaseGone { .. }) => true,
            Err(error) => {
                tracing::debug!(
                    error = %crate::error_chain::chain(&error),
                    "cannot end the session; it expires by itself"
                );
                false
            }
        }
    }

    fn set(&self, new: SessionState) {
        self.metrics.session_up.set(i64::from(new == SessionState::Held));
        self.state.send_if_modified(|state| {
            let is_new = *state != new;
            *state = new;
            is_new
        });
    }
}
