//! Assembles a node from its modules. `parts` can be built before the servers are reachable, and
//! `core` is what most loops share. The other modules start the loops and services by their job.

mod core;
mod inbound;
mod loops;
mod maintenance;
mod parts;
mod requests;
mod services;

use std::sync::Arc;

use self::inbound::InboundParts;
pub use self::parts::{NodeParts, Running};
use super::handles::Handles;
use crate::access::PolicyHandle;
use crate::api::access::audit::Audit;
use crate::config::Settings;
use crate::domain::ClusterSettings;
use crate::inbound::carrier::CarrierParts;
use crate::node::membership::{LoopProgress, Membership};
use crate::node::publish::publisher::Publisher;
use crate::node::requests::service;
use crate::node::requests::service::callbacks::CallbackService;
use crate::node::shared::NodeShared;
use crate::shutdown::{TaskFailure, Tasks};

/// Maximum number of batches in flight. A small batch costs more than its tasks.
pub const IN_FLIGHT_BATCHES_MAX: usize = 8_192;

/// The inputs of the assembly of a node.
struct Site<'a> {
    settings: &'a Settings,
    parts: &'a NodeParts,
    cluster: ClusterSettings,
    tasks: &'a Tasks,
}

/// The parts that most loops of the node share.
struct Core {
    shared: Arc<NodeShared>,
    membership: Membership,
    publisher: Arc<Publisher>,
    progress: LoopProgress,
}

/// Starts all loops of a node, and opens the service. Returns `None` when the node is told to stop
/// before its partitions exist.
pub async fn start(
    settings: &Settings,
    parts: NodeParts,
    cluster: ClusterSettings,
    (policy, audit): (&PolicyHandle, Option<&Audit>),
    handles: &Handles,
) -> Result<Option<Running>, TaskFailure> {
    let Handles { tasks, service, .. } = handles;
    let site = Site { settings, parts: &parts, cluster, tasks };
    let (leaves, clock) = (Arc::clone(&handles.leaves), Arc::clone(&handles.clock));
    let stores = site.request_stores();
    if !site.keep_partitions(&leaves, &clock, service).await {
        return Ok(None);
    }
    site.free_names(&stores.names, &clock);
    let core = site.core(leaves, clock, policy)?;
    site.preload(&core.publisher).await;
    site.start_claimers(&core);
    site.start_settling(&core);
    let group_commit = site.start_group_commit(&core.shared, &stores);
    let (counter, backlog) = site.start_counting(&core);
    let (lists, bulks) = site.lists_and_bulks(&core.shared, counter, &stores);
    site.keep_connections(&stores);
    let stored = site.start_stored_tasks(&core.shared, &stores);
    let answers = site.start_answers(&core.shared, &stores);
    let carrier = CarrierParts {
        postgres: parts.postgres.clone(),
        name_retention: settings.retention.names,
        shared: Arc::clone(&core.shared),
        service: service.clone(),
        policy: policy.clone(),
        names: Arc::clone(&stores.names),
        look_up: Arc::clone(&stores.look_up),
        audit: audit.cloned(),
    };
    let inbound = InboundParts {
        carrier: &carrier,
        kafka: &parts.kafka,
        topics: &parts.topics,
        metrics: &parts.inbound_metrics,
        bulletin: core.membership.bulletin(),
    };
    inbound::start(settings, &inbound, tasks)?;
    let callback_policy = site.start_callbacks(service, &core).await?;
    service.open(service::Parts {
        shared: Arc::clone(&core.shared),
        submitter: site.submitter(&core, &stores, &group_commit),
        pops: site.start_pops(&core.shared, &stores.look_up),
        callbacks: CallbackService::new(
            callback_policy,
            &parts.postgres,
            Arc::clone(&stores.turns),
        ),
        stored,
        lists,
        bulks,
        answers,
        schedules: site.start_schedules(&core, &stores),
        topics: site.topic_service(&core, &stores),
        reporter: site.reporter(&core, &stores, backlog),
        draining: tasks.draining.clone(),
    });
    let in_flight = Arc::clone(&core.shared.in_flight);
    Ok(Some(Running {
        membership: core.membership,
        in_flight,
        publisher: core.publisher,
        group_commit,
        callbacks: parts.callback_metrics.clone(),
    }))
}
