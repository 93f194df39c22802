//! The callbacks of topics, as operators set them.

use std::sync::Arc;

use crate::access::permit::{self, Permit};
use crate::domain::TopicName;
use crate::domain::topic::callback::policy::CallbackPolicy;
use crate::domain::topic::callback::{Callback, StoredCallback};
use crate::node::messages::Unavailable;
use crate::node::messages::answers::PutCallback;
use crate::node::requests::postgres_failures::{retrying, unavailable_of, unavailable_of_read};
use crate::postgres::PostgresSettings;
use crate::postgres::topics::Topics;

/// Maximum number of connections for calls about callbacks, and for the look at all of them.
const CONNECTIONS_MAX: usize = 2;

/// The callbacks of the cluster.
#[derive(Debug)]
pub struct CallbackService {
    policy: Arc<CallbackPolicy>,
    store: Topics,
}

impl CallbackService {
    pub fn new(policy: Arc<CallbackPolicy>, postgres: &PostgresSettings) -> Self {
        Self { policy, store: Topics::new(postgres, CONNECTIONS_MAX) }
    }

    pub(super) async fn find(
        &self,
        topic: &TopicName,
    ) -> Result<Option<StoredCallback>, Unavailable> {
        self.store.callback(topic).await.map_err(unavailable_of_read)
    }

    pub(super) async fn all(&self) -> Result<Vec<StoredCallback>, Unavailable> {
        self.store.callbacks().await.map_err(unavailable_of_read)
    }

    pub(super) async fn put(
        &self,
        permit: &Permit<permit::SetCallback>,
        callback: &Callback,
    ) -> Result<PutCallback, Unavailable> {
        if let Err(refused) = self.policy.check(&callback.url) {
            return Ok(PutCallback::Refused(refused));
        }
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
        let former = retrying(|| self.store.delete_callback(permit.topic())).await?;
        if former.is_some() {
            tracing::info!(
                topic = %permit.topic(), principal = %permit.principal().name,
                "the callback of a topic was deleted"
            );
        }
        Ok(former)
    }

    pub(super) async fn pause(
        &self,
        stored: &StoredCallback,
        reason: &str,
    ) -> Result<bool, Unavailable> {
        let paused = self.store.pause_callback(&stored.topic, stored.revision, reason).await;
        paused.map_err(|error| unavailable_of(&error))
    }
}
