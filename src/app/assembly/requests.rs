//! Starts what stores, cancels, replaces and reads single tasks for requests.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::{Core, Site};
use crate::node::requests::answers::{AnswerLane, Answers};
use crate::node::requests::canceller::Canceller;
use crate::node::requests::connections::principal_turns::{CallKind, PrincipalTurns};
use crate::node::requests::connections::{Connections, Pools};
use crate::node::requests::group_commit::named_store::NamedStore;
use crate::node::requests::group_commit::{self, GroupCommit, GroupCommitParts};
use crate::node::requests::replacer::Replacer;
use crate::node::requests::service::look_up_limit::LookUpLimit;
use crate::node::requests::service::reporter::Reporter;
use crate::node::requests::service::stored_tasks::StoredTasks;
use crate::node::requests::service::submitter::Submitter;
use crate::node::shared::NodeShared;
use crate::postgres::lists::backlog::BacklogCounter;
use crate::postgres::tasks::answers::AnswerStore;
use crate::postgres::tasks::cancel::Cancels;
use crate::postgres::tasks::look_up::LookUp;
use crate::postgres::tasks::names::Names;
use crate::postgres::tasks::replace::Replaces;
use crate::postgres::tasks::submit::Submits;
use crate::postgres::tasks::submit_named::NamedSubmits;

/// Maximum number of connections for look-ups, and for replacements: as many as one principal uses
/// at a time. So the queues for the connections hold few calls of one principal.
const LOOK_UPS_MAX: usize = CallKind::LookUps.at_once();
const REPLACES_MAX: usize = CallKind::Changes.at_once();
/// Maximum number of connections for the entries of names.
const NAMES_MAX: usize = 3;

/// The connections of requests to Postgres.
pub(super) struct RequestStores {
    pub names: Arc<Names>,
    pub replaces: Arc<Replaces>,
    pub look_up: Arc<LookUp>,
    /// The turns of principals at all connections for callers.
    pub turns: Arc<PrincipalTurns>,
    connections: Connections,
}

impl Site<'_> {
    pub(super) fn request_stores(&self) -> RequestStores {
        let (postgres, retention) = (&self.parts.postgres, self.settings.retention.names);
        RequestStores {
            names: Arc::new(Names::new(postgres, retention, NAMES_MAX)),
            replaces: Arc::new(Replaces::new(postgres, retention, REPLACES_MAX)),
            look_up: Arc::new(LookUp::new(postgres, &self.cluster, LOOK_UPS_MAX)),
            turns: Arc::default(),
            connections: Connections::default(),
        }
    }

    pub(super) fn start_group_commit(
        &self,
        shared: &Arc<NodeShared>,
        stores: &RequestStores,
    ) -> GroupCommit {
        let (parts, limits) = (self.parts, &self.settings.limits);
        let limits = group_commit::queue::QueueLimits {
            tasks_max: limits.submit_queue_tasks,
            bytes_max: limits.submit_queue_bytes,
        };
        let named = NamedStore {
            shared: Arc::clone(shared),
            submits: NamedSubmits::new(&parts.postgres, parts.node, self.settings.retention.names),
            names: Arc::clone(&stores.names),
        };
        let lanes = GroupCommitParts {
            shared: Arc::clone(shared),
            submits: Submits::new(&parts.postgres, parts.node),
            named,
            connections: stores.connections.clone(),
            stopping: self.tasks.stopping.clone(),
        };
        let (group_commit, [plain, named]) = GroupCommit::new(limits, lanes);
        self.tasks.spawn("submit", plain.run());
        self.tasks.spawn("submit named", named.run());
        group_commit
    }

    /// Starts to keep connections open for the first requests after a quiet time.
    pub(super) fn keep_connections(&self, stores: &RequestStores) {
        let pools = Pools {
            look_up: Arc::clone(&stores.look_up),
            names: Arc::clone(&stores.names),
            replaces: Arc::clone(&stores.replaces),
        };
        let keeping = pools.keep(stores.connections.clone(), self.tasks.stopping.clone());
        self.tasks.spawn("keep connections", keeping);
    }

    pub(super) fn submitter(
        &self,
        core: &Core,
        stores: &RequestStores,
        group_commit: &GroupCommit,
    ) -> Submitter {
        Submitter {
            shared: Arc::clone(&core.shared),
            delay_max: self.settings.delay_max,
            topics: self.parts.topics.clone(),
            look_up_limit: LookUpLimit::default(),
            names: Arc::clone(&stores.names),
            group_commit: group_commit.clone(),
            bulletin: core.membership.bulletin(),
            draining: self.tasks.draining.clone(),
        }
    }

    /// Starts to cancel, and returns the service for single stored tasks.
    pub(super) fn start_stored_tasks(
        &self,
        shared: &Arc<NodeShared>,
        stores: &RequestStores,
    ) -> StoredTasks {
        let (canceller, lane) = Canceller::new(
            self.settings.limits.cancel_queue,
            Cancels::new(&self.parts.postgres, self.settings.retention.names),
            stores.connections.keep(),
            self.parts.metrics.clone(),
            self.tasks.stopping.clone(),
        );
        self.tasks.spawn("cancel", lane.run());
        StoredTasks {
            canceller,
            replacer: Replacer::new(shared, Arc::clone(&stores.replaces), &stores.turns),
            names: Arc::clone(&stores.names),
            look_up: Arc::clone(&stores.look_up),
            turns: Arc::clone(&stores.turns),
        }
    }

    /// Starts to take the answers of consumers, and returns the service for them.
    pub(super) fn start_answers(
        &self,
        shared: &Arc<NodeShared>,
        stores: &RequestStores,
    ) -> Answers {
        let (queue, lane) = AnswerLane::new(
            self.settings.limits.answer_queue,
            AnswerStore::new(&self.parts.postgres, self.settings.retention.names),
            stores.connections.keep(),
            Arc::clone(shared),
            self.tasks.stopping.clone(),
        );
        self.tasks.spawn("answers", lane.run());
        let look_up = (&stores.look_up, &stores.turns);
        Answers::new(shared, &stores.names, look_up, queue)
    }

    pub(super) fn reporter(
        &self,
        core: &Core,
        stores: &RequestStores,
        backlog: Arc<BacklogCounter>,
    ) -> Reporter {
        Reporter {
            shared: Arc::clone(&core.shared),
            backlog,
            connections: stores.connections.clone(),
            bulletin: core.membership.bulletin(),
            has_seen_etcd: AtomicBool::new(false),
            keys: self.parts.postgres.payload_keys().clone(),
        }
    }
}
