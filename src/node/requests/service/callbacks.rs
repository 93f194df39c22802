//! The callbacks of topics, as operators set them.

use std::sync::Arc;

use crate::access::permit::{self, Permit};
use crate::domain::topic::callback::policy::CallbackPolicy;
use crate::domain::topic::callback::{Callback, StoredCallback};
use crate::node::messages::Unavailable;
use crate::node::messages::answers::PutCallback;
use crate::node::requests::connections::principal_turns::{CallKind, PrincipalTurns};
use crate::node::requests::postgres_failures::{retrying, unavailable_of, unavailable_of_read};
use crate::postgres::PostgresSettings;
use crate::postgres::topics::Topics;

/// Maximum number of connections for calls about callbacks. A change locks the table.
const CONNECTIONS_MAX: usize = 1;
/// The same for the loop that carries callbacks out, which does not wait for callers.
const LOOP_CONNECTIONS_MAX: usize = 1;

/// The callbacks of the cluster. Each call of an operator has a turn of its principal.
#[derive(Debug)]
pub struct CallbackService {
    policy: Arc<CallbackPolicy>,
    store: Topics,
    store_of_loop: Topics,
    turns: Arc<PrincipalTurns>,
}

impl CallbackService {
    pub fn new(
        policy: Arc<CallbackPolicy>,
        postgres: &PostgresSettings,
        turns: Arc<PrincipalTurns>,
    ) -> Self {
        let store = Topics::new(postgres, CONNECTIONS_MAX);
        let store_of_loop = Topics::new(postgres, LOOP_CONNECTIONS_MAX);
        Self { policy, store, store_of_loop, turns }
    }

    pub(super) async fn find(
        &self,
        permit: &Permit<permit::SetCallback>,
    ) -> Result<Option<StoredCallback>, Unavailable> {
        let _turn = self.turns.take(permit.principal(), CallKind::Callbacks).await?;
        self.store.callback(permit.topic()).await.map_err(unavailable_of_read)
    }

    /// Returns all callbacks, for the loop that carries them out.
    pub(super) async fn all(&self) -> Result<Vec<StoredCallback>, Unavailable> {
        self.store_of_loop.callbacks().await.map_err(unavailable_of_read)
    }

    pub(super) async fn put(
        &self,
        permit: &Permit<permit::SetCallback>,
        callback: &Callback,
    ) -> Result<PutCallback, Unavailable> {
        if let Err(refused) = self.policy.check(&callback.url) {
            return Ok(PutCallback::Refused(refused));
        }
        let _turn = self.turns.take(permit.principal(), CallKind::Callbacks).await?;
        let stored = retrying(|| self.store.put_callback(permit.topic(), callback)).await?;
        let Some(stored) = stored else { return Ok(PutCallback::TooMany) };
        // An act of an operator. The URL may hold a secret.
        tracing::info!(
            topic = %permit.topic(), principal = %permit.principal().name,
            is_paused = stored.callback.is_paused, "the callback of a topic was set"
        );
        Ok(PutCallback::Stored(stored))
    }

    pub(super) async fn delete(
        &self,
        permit: &Permit<permit::SetCallback>,
    ) -> Result<Option<StoredCallback>, Unavailable> {
        let _turn = self.turns.take(permit.principal(), CallKind::Callbacks).await?;
        let former = retrying(|| self.store.delete_callback(permit.topic())).await?;
        if former.is_some() {
            tracing::info!(
                topic = %permit.topic(), principal = %permit.principal().name,
                "the callback of a topic was deleted"
            );
        }
        Ok(former)
    }

    /// Pauses a callback, for the loop that carries them out.
    pub(super) async fn pause(
        &self,
        stored: &StoredCallback,
        reason: &str,
    ) -> Result<bool, Unavailable> {
        let paused =
            self.store_of_loop.pause_callback(&stored.topic, stored.revision, reason).await;
        paused.map_err(|error| unavailable_of(&error))
    }
}
