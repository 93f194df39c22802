//! Calls about topics: their policies, pause and resume.

use std::sync::Arc;

use crate::access::Principal;
use crate::access::permit::{self, Grant, Permit};
use crate::domain::TopicName;
use crate::domain::topic::policy::{StoredTopic, TopicChange, TopicChanged};
use crate::node::messages::Unavailable;
use crate::node::requests::connections::principal_turns::{CallKind, PrincipalTurns};
use crate::node::requests::postgres_failures::{retrying, unavailable_of_read};
use crate::node::shared::NodeShared;
use crate::postgres::PostgresSettings;
use crate::postgres::topics::Topics;

/// Maximum number of connections for calls about topics. One principal uses one of them at a time.
const CONNECTIONS_MAX: usize = 2;

/// The topics of the cluster. Each call has a turn of its principal.
#[derive(Debug)]
pub struct TopicService {
    shared: Arc<NodeShared>,
    store: Topics,
    turns: Arc<PrincipalTurns>,
}

impl TopicService {
    pub fn new(
        shared: Arc<NodeShared>,
        postgres: &PostgresSettings,
        turns: Arc<PrincipalTurns>,
    ) -> Self {
        Self { shared, store: Topics::new(postgres, CONNECTIONS_MAX), turns }
    }

    pub async fn find(
        &self,
        by: &Principal,
        topic: &TopicName,
    ) -> Result<StoredTopic, Unavailable> {
        let _turn = self.turns.take(by, CallKind::Topics).await?;
        self.store.find(topic).await.map_err(unavailable_of_read)
    }

    /// Returns true if the topic of `grant` has, or had, a policy or a pause.
    pub async fn had_policy(&self, grant: &Grant) -> Result<bool, Unavailable> {
        let stored = self.find(grant.principal(), grant.topic()).await?;
        Ok(stored.revision > 0)
    }

    /// Returns all topics that have, or had, a policy or a pause.
    pub async fn all_or_former(&self, by: &Principal) -> Result<Vec<StoredTopic>, Unavailable> {
        let _turn = self.turns.take(by, CallKind::Topics).await?;
        self.store.all().await.map_err(unavailable_of_read)
    }

    /// Returns the number of tasks of a topic that are claimed and not settled.
    pub async fn in_flight(&self, by: &Principal, topic: &TopicName) -> Result<u64, Unavailable> {
        let _turn = self.turns.take(by, CallKind::Topics).await?;
        self.store.in_flight(topic).await.map_err(unavailable_of_read)
    }

    /// Changes the policy of a topic, or pauses or resumes it.
    pub async fn change(
        &self,
        permit: &Permit<permit::Operate>,
        change: TopicChange,
    ) -> Result<TopicChanged, Unavailable> {
        let principal = &permit.principal().name;
        let by = self.shared.callers.of(principal).await;
        let change = TopicChange { by: by.map_err(unavailable_of_read)?, ..change };
        let _turn = self.turns.take(permit.principal(), CallKind::Topics).await?;
        let done = retrying(|| self.store.change(permit.topic(), &change)).await?;
        if let TopicChanged::Changed(topic) = &done {
            self.shared.policies.changed(topic);
            // An act of an operator.
            tracing::info!(
                topic = %permit.topic(), %principal, is_paused = change.is_paused,
                reason = change.reason, has_policy = change.policy.is_some(),
                "a topic was changed"
            );
        }
        Ok(done)
    }
}
