//! Clients using one endpoint at a time, and their errors.

use std::future::Future;
use std::time::Duration;

use etcd_client::{Certificate, Client, ConnectOptions, Identity, TlsOptions};
use thiserror::Error;

use super::settings::EtcdSettings;
use crate::error_chain::chain;

/// An error of etcd. `what` names the attempt.
#[derive(Debug, Error)]
pub enum EtcdError {
    #[error("{what}: no answer within {deadline:?}")]
    Late { what: &'static str, deadline: Duration },
    #[error("{what}")]
    Refused {
        what: &'static str,
        #[source]
        source: Box<etcd_client::Error>,
    },
    /// No connection could be set up, or the certificate or its key are invalid. The reason is
    /// text, because the driver's error does not expose its causes.
    #[error("{what}: {why}")]
    Unconnected { what: &'static str, why: String },
    /// The lease has expired or was revoked. A new one is needed.
    #[error("{what}: the lease is gone")]
    LeaseGone { what: &'static str },
    #[error("{what}: the stream has ended")]
    Ended { what: &'static str },
}

impl EtcdError {
    pub(super) fn new(what: &'static str, source: etcd_client::Error) -> Self {
        // The driver reports an expired lease in two ways: by the status of the call, or, for a
        // keep-alive, by its own message.
        let is_lease_gone = match &source {
            etcd_client::Error::GRpcStatus(status) => {
                status.message().contains("requested lease not found")
            }
            etcd_client::Error::LeaseKeepAliveError(words) => words.contains("lease not found"),
            _ => false,
        };
        match source {
            _ if is_lease_gone => Self::LeaseGone { what },
            etcd_client::Error::TransportError(reason) => {
                Self::Unconnected { what, why: chain(&reason) }
            }
            source => Self::Refused { what, source: Box::new(source) },
        }
    }
}

/// The endpoints, one of them in use. A client of several endpoints balances between them, and a
/// frozen endpoint would receive every second call. With one endpoint in use, the first failed call
/// switches to the next one.
#[derive(Debug)]
pub(super) struct Endpoints {
    settings: EtcdSettings,
    next: usize,
}

impl Endpoints {
    pub(super) fn new(settings: &EtcdSettings) -> Self {
        Self { settings: settings.clone(), next: 0 }
    }

    /// Returns a client of the next endpoint. The client connects with its first call.
    pub(super) async fn next(&mut self) -> Result<Client, EtcdError> {
        let (pulse, credentials) = (self.settings.pulse(), self.settings.credentials());
        // A follower without a leader must refuse calls, not stay silent. The client itself must
        // detect a dead connection.
        let mut options = ConnectOptions::new()
            .with_connect_timeout(self.settings.deadline())
            .with_keep_alive(pulse * 2, pulse * 2)
            .with_keep_alive_while_idle(true)
            .with_require_leader(true);
        let endpoint = self.settings.endpoint(self.next).to_owned();
        if endpoint.starts_with("https://") {
            // Without roots the driver trusts no certificate. A private authority replaces those of
            // the machine.
            let tls = match &credentials.ca {
                Some(ca) => TlsOptions::new().ca_certificate(Certificate::from_pem(ca)),
                None => TlsOptions::new().with_native_roots(),
            };
            options = options.with_tls(match &credentials.identity {
                Some((certificate, key)) => tls.identity(Identity::from_pem(certificate, key)),
                None => tls,
            });
        }
        if let Some((user, password)) = &credentials.login {
            // An expired token costs one call, not the session.
            options = options.with_user(user, password).with_auto_token_refresh(true);
        }
        self.next = self.next.wrapping_add(1);
        within(self.settings.deadline(), "connect", Client::connect([endpoint], Some(options)))
            .await
    }
}

/// Limits a call to `deadline`.
pub(super) async fn within<T>(
    deadline: Duration,
    what: &'static str,
    call: impl Future<Output = Result<T, etcd_client::Error>>,
) -> Result<T, EtcdError> {
    match tokio::time::timeout(deadline, call).await {
        Ok(answer) => answer.map_err(|source| EtcdError::new(what, source)),
        Err(_elapsed) => Err(EtcdError::Late { what, deadline }),
    }
}
