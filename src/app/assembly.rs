//! Assembles a node from its modules.

mod inbound;
mod services;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::inbound::{InboundMetrics, InboundParts};
use super::credentials::{CredentialKeeper, ServerSettings, etcd_credentials};
use super::handles::Handles;
use super::kafka_settings;
use crate::access::PolicyHandle;
use crate::api::access::audit::Audit;
use crate::callbacks::CallbackMetrics;
use crate::clock::{self, ClusterClock};
use crate::config::{self, Settings};
use crate::domain::leaves::Rules;
use crate::domain::{ClusterSettings, NodeId, SubmitOrder};
use crate::engine::claiming::ClaimSettings;
use crate::engine::liveness::broker::BrokerContact;
use crate::engine::topics::{TopicBreakers, TopicSettings};
use crate::error_chain::chain;
use crate::etcd::{self, EtcdMetrics, EtcdSettings};
use crate::kafka::{KafkaContact, KafkaMetrics, KafkaSettings, TopicCache};
use crate::node::claim::{ClaimPace, ClaimParts, Claimer};
use crate::node::fence::Fence;
use crate::node::in_flight::batches::{InFlightBatches, InFlightLimits};
use crate::node::in_flight::keeper::InFlightKeeper;
use crate::node::maintenance::backlog_keeper::BacklogKeeper;
use crate::node::maintenance::run_keeper::ScheduleMetrics;
use crate::node::maintenance::{self, KeyKeeper, Leaves, Maintenance, MaintenanceMetrics};
use crate::node::membership::{
    self, LoopProgress, Membership, MembershipMetrics, MembershipParts, MembershipSettings,
};
use crate::node::messages::{NotReady, Requirement};
use crate::node::metrics::NodeMetrics;
use crate::node::publish::producer_keeper::ProducerKeeper;
use crate::node::publish::publisher::{Publisher, Reports};
use crate::node::publish::wheel;
use crate::node::requests::answers::{AnswerLane, Answers};
use crate::node::requests::canceller::Canceller;
use crate::node::requests::connections::{Connections, Pools};
use crate::node::requests::group_commit::named_store::NamedStore;
use crate::node::requests::group_commit::{self, GroupCommit, GroupCommitParts};
use crate::node::requests::replacer::Replacer;
use crate::node::requests::service::callbacks::CallbackService;
use crate::node::requests::service::look_up_limit::LookUpLimit;
use crate::node::requests::service::pops::calls::PopMetrics;
use crate::node::requests::service::reporter::Reporter;
use crate::node::requests::service::stored_tasks::StoredTasks;
use crate::node::requests::service::submitter::Submitter;
use crate::node::requests::service::{self, Service};
use crate::node::settle::adopter::{Adopter, AdopterParts};
use crate::node::settle::settler::{Settler, SettlerParts, Undone};
use crate::node::shared::{CallerNumbers, Calls, NodeShared};
use crate::node::topic_keeper::TopicKeeper;
use crate::node::topic_keeper::pending_counter::PendingCounter;
use crate::node::topic_keeper::policies::TopicPolicies;
use crate::node::topic_keeper::policy_keeper::PolicyKeeper;
use crate::postgres::PostgresSettings;
use crate::postgres::lists::backlog::BacklogCounter;
use crate::postgres::lists::counts::TaskCounter;
use crate::postgres::tasks::adopt::{Adoptions, recent_topics};
use crate::postgres::tasks::answers::AnswerStore;
use crate::postgres::tasks::cancel::Cancels;
use crate::postgres::tasks::claim::Claims;
use crate::postgres::tasks::look_up::LookUp;
use crate::postgres::tasks::names::Names;
use crate::postgres::tasks::principals::Principals;
use crate::postgres::tasks::replace::Replaces;
use crate::postgres::tasks::settle::Settles;
use crate::postgres::tasks::submit::Submits;
use crate::postgres::tasks::submit_named::NamedSubmits;
use crate::shutdown::{TaskFailure, Tasks};
use crate::telemetry::Registry;
use crate::telemetry::traces::Traces;

/// How far behind the watermark a claim looks again. The slack must be longer than an insert takes
/// to commit.
const SLACK: Duration = Duration::from_millis(750);
/// Maximum length of a stretched tick, however wide the window is. It equals the maximum of
/// `--tick`.
const TICK_MAX: Duration = Duration::from_secs(1);
/// Number of tasks that a claim aims at.
const CLAIM_TARGET: u64 = 1_000;
/// The circuit breaker of a topic opens when records wait and no acknowledgement came for this
/// long. Half of the publish deadline applies when that is shorter, because no record waits past
/// the deadline.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// Maximum number of connections for look-ups.
const LOOK_UPS_MAX: usize = 4;
/// Maximum number of connections for replacements, and for the entries of names.
const REPLACES_MAX: usize = 4;
const NAMES_MAX: usize = 3;
/// Maximum number of connections for the numbers of principals. Each node asks once for each.
const PRINCIPALS_MAX: usize = 1;
/// Maximum number of batches in flight. A small batch costs more than its tasks.
pub const IN_FLIGHT_BATCHES_MAX: usize = 8_192;
/// Maximum delay of a start by a Kafka that does not answer.
const PRELOAD_DEADLINE: Duration = Duration::from_secs(2);
/// Pause between attempts to create the partitions.
const PARTITIONS_RETRY: Duration = Duration::from_millis(500);

/// The parts that can be built before the servers are reachable.
#[derive(Debug)]
pub struct NodeParts {
    pub node: NodeId,
    pub postgres: PostgresSettings,
    pub kafka: KafkaSettings,
    pub contact: KafkaContact,
    topics: TopicCache,
    kafka_metrics: KafkaMetrics,
    /// `None` when this node is the only one.
    pub etcd: Option<(etcd::Session, watch::Receiver<etcd::View>)>,
    membership_metrics: MembershipMetrics,
    maintenance_metrics: MaintenanceMetrics,
    metrics: NodeMetrics,
    inbound_metrics: InboundMetrics,
    pop_metrics: PopMetrics,
    callback_metrics: CallbackMetrics,
    schedule_metrics: ScheduleMetrics,
    pub key_keeper: Option<KeyKeeper>,
    pub policies: Arc<TopicPolicies>,
    pub traces: Option<Traces>,
    advertise: String,
}

/// The parts that are needed to end a node.
#[derive(Debug)]
pub struct Running {
    pub membership: Membership,
    pub in_flight: Arc<InFlightBatches>,
    publisher: Arc<Publisher>,
    group_commit: GroupCommit,
    callbacks: CallbackMetrics,
}

/// Fails when the thread that probes Kafka has panicked. Only that thread sees whether Kafka is
/// reachable.
async fn watch_prober(topics: TopicCache, stopping: CancellationToken) -> Result<(), TaskFailure> {
    tokio::select! {
        () = stopping.cancelled() => Ok(()),
        () = topics.failure() => Err("the thread that asks Kafka about topics has panicked".into()),
    }
}

impl NodeParts {
    pub fn new(
        settings: &Settings,
        node: NodeId,
        advertise: &str,
        registry: &mut Registry,
        tasks: &Tasks,
    ) -> Result<Self, TaskFailure> {
        let kafka = kafka_settings::of(settings);
        let kafka_metrics = KafkaMetrics::register(registry);
        let topics = TopicCache::start(&kafka, kafka_metrics.clone())?;
        tasks.spawn("kafka prober", watch_prober(topics.clone(), tasks.stopping.clone()));
        let etcd_metrics = EtcdMetrics::register(registry);
        let etcd_settings = etcd_settings(settings);
        let postgres = PostgresSettings::new(settings.database_url.expose())?;
        let payload_keys = settings.access.payload_keys.clone();
        let servers = ServerSettings {
            postgres: postgres.clone(),
            kafka: kafka.properties.clone(),
            etcd: etcd_settings.clone(),
        };
        let keeper = CredentialKeeper::new(settings, servers, registry);
        tasks.spawn("credentials", keeper.run(tasks.clone()));
        let etcd = etcd_settings.map(|etcd| etcd::start(&etcd, node, tasks, etcd_metrics));
        Ok(Self {
            node,
            policies: Arc::default(),
            traces: None,
            key_keeper: Some(KeyKeeper::new(payload_keys, &postgres, registry)),
            postgres,
            contact: topics.contact(),
            kafka,
            topics,
            kafka_metrics,
            etcd,
            membership_metrics: MembershipMetrics::register(registry),
            maintenance_metrics: MaintenanceMetrics::register(registry),
            metrics: NodeMetrics::register(registry)
                .with_topics(registry, &settings.metrics_topics),
            inbound_metrics: InboundMetrics::register(registry),
            pop_metrics: PopMetrics::register(registry),
            callback_metrics: CallbackMetrics::register(registry),
            schedule_metrics: ScheduleMetrics::register(registry),
            advertise: advertise.to_owned(),
        })
    }

    /// Returns the missing requirements of a starting node: Postgres, for this reason, and other
    /// servers that are away.
    pub fn missing(&self, reason: String) -> Vec<NotReady> {
        let mut missing = vec![NotReady { what: Requirement::Postgres, why: reason }];
        if !self.contact.is_held() {
            missing.push(NotReady { what: Requirement::Kafka, why: self.contact.trouble() });
        }
        if let Some((_, view)) = &self.etcd
            && matches!(*view.borrow(), etcd::View::Away { .. })
        {
            missing.push(NotReady {
                what: Requirement::Etcd,
                why: "no usable answer yet; the log has the reason".to_owned(),
            });
        }
        missing
    }
}

impl Running {
    /// Returns true when no task waits to be stored, published or settled, and no callback for its
    /// answer.
    pub fn is_idle(&self) -> bool {
        let has_callbacks = self.callbacks.in_flight.get() > 0;
        self.group_commit.is_idle() && self.in_flight.is_idle() && !has_callbacks
    }

    /// Gives up the remaining work when the time has run out. This node publishes none of it any
    /// more, and other nodes adopt it.
    pub fn give_up(&self) {
        let batches = self.in_flight.give_up_all();
        if let Err(error) = self.publisher.purge() {
            tracing::warn!(
                error = chain(&error),
                batches = batches.len(),
                "cannot empty the producer"
            );
        }
    }
}

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

/// Starts all loops of a node, and opens the service.
pub async fn start(
    settings: &Settings,
    parts: NodeParts,
    cluster: ClusterSettings,
    (policy, audit): (&PolicyHandle, Option<&Audit>),
    handles: &Handles,
) -> Result<Running, TaskFailure> {
    let Handles { tasks, service, .. } = handles;
    let site = Site { settings, parts: &parts, cluster, tasks };
    let (leaves, clock) = (Arc::clone(&handles.leaves), Arc::clone(&handles.clock));
    let names = Arc::new(Names::new(&parts.postgres, settings.retention.names, NAMES_MAX));
    site.keep_partitions(&leaves, &clock, service).await;
    site.free_names(&names, &clock);
    let core = site.core(leaves, clock, policy)?;
    site.preload(&core.publisher).await;
    site.start_claimers(&core);
    site.start_settling(&core);
    let connections = Connections::default();
    let group_commit = site.start_group_commit(&core.shared, &names, &connections);
    let replaces = Arc::new(Replaces::new(&parts.postgres, settings.retention.names, REPLACES_MAX));
    let (counter, backlog) = site.start_counting(&core);
    let (lists, bulks) = site.lists_and_bulks(&core.shared, counter, &replaces);
    let look_up = Arc::new(LookUp::new(&parts.postgres, &cluster, LOOK_UPS_MAX));
    let pools = Pools {
        look_up: Arc::clone(&look_up),
        names: Arc::clone(&names),
        replaces: Arc::clone(&replaces),
    };
    tasks.spawn("keep connections", pools.keep(connections.clone(), tasks.stopping.clone()));
    let (cancels, kept) = (Cancels::new(&parts.postgres), connections.keep());
    let (metrics, stopping) = (parts.metrics.clone(), tasks.stopping.clone());
    let (canceller, lane) =
        Canceller::new(settings.limits.cancel_queue, cancels, kept, metrics, stopping);
    tasks.spawn("cancel", lane.run());
    let store = AnswerStore::new(&parts.postgres, settings.retention.names);
    let (queue, lane) = AnswerLane::new(
        settings.limits.answer_queue,
        store,
        connections.keep(),
        Arc::clone(&core.shared),
        tasks.stopping.clone(),
    );
    tasks.spawn("answers", lane.run());
    let answers = Answers::new(&core.shared, &names, (&look_up, LOOK_UPS_MAX), queue);
    let submitter = Submitter {
        shared: Arc::clone(&core.shared),
        delay_max: settings.delay_max,
        topics: parts.topics.clone(),
        look_up_limit: LookUpLimit::default(),
        names: Arc::clone(&names),
        group_commit: group_commit.clone(),
        bulletin: core.membership.bulletin(),
        draining: tasks.draining.clone(),
    };
    let replacer = Replacer::new(&core.shared, replaces, REPLACES_MAX);
    let reporter = Reporter {
        shared: Arc::clone(&core.shared),
        backlog,
        connections,
        bulletin: core.membership.bulletin(),
        has_seen_etcd: AtomicBool::new(false),
        keys: parts.postgres.payload_keys().clone(),
    };
    let inbound = InboundParts {
        postgres: &parts.postgres,
        kafka: &parts.kafka,
        topics: &parts.topics,
        metrics: &parts.inbound_metrics,
        shared: &core.shared,
        service,
        policy,
        names: &names,
        look_up: &look_up,
        audit,
        bulletin: core.membership.bulletin(),
    };
    inbound::start(settings, &inbound, tasks)?;
    let callback_policy = site.start_callbacks(service, &core).await?;
    service.open(service::Parts {
        shared: Arc::clone(&core.shared),
        submitter,
        pops: site.start_pops(&core.shared, &look_up),
        callbacks: CallbackService::new(callback_policy, &parts.postgres),
        stored: StoredTasks { canceller, replacer, names, look_up },
        lists,
        bulks,
        answers,
        schedules: site.start_schedules(&core),
        topics: site.topic_service(&core),
        reporter,
        draining: tasks.draining.clone(),
    });
    let in_flight = Arc::clone(&core.shared.in_flight);
    Ok(Running {
        membership: core.membership,
        in_flight,
        publisher: core.publisher,
        group_commit,
        callbacks: parts.callback_metrics.clone(),
    })
}

impl Site<'_> {
    /// Ensures that leaves exist before a task is inserted or claimed, and continues to maintain
    /// them.
    async fn keep_partitions(
        &self,
        leaves: &Arc<Leaves>,
        clock: &Arc<ClusterClock>,
        service: &Service,
    ) {
        let retention = &self.settings.retention;
        let rules = Rules {
            payload_retention: retention.payloads,
            receipt_retention: retention.receipts,
            ..Rules::new(&self.cluster)
        };
        let metrics = self.parts.maintenance_metrics.clone();
        let mut maintenance =
            Maintenance::new(&self.parts.postgres, rules, Arc::clone(leaves), metrics);
        loop {
            let reason = match maintenance.make_all().await {
                Ok(true) => break,
                Ok(false) => {
                    tracing::info!("another node creates the partitions; waiting for them");
                    "another node creates the partitions".to_owned()
                }
                Err(error) => {
                    let reason = chain(&error);
                    tracing::warn!(error = reason, "make partitions; trying again");
                    format!("cannot create the partitions: {reason}")
                }
            };
            service.waits_for(self.parts.missing(reason));
            tokio::select! {
                () = clock::sleep(PARTITIONS_RETRY) => {}
                () = self.tasks.draining.cancelled() => return,
            }
        }
        maintenance::start(self.tasks, &self.parts.postgres, maintenance, clock);
    }

    fn free_names(&self, names: &Arc<Names>, clock: &Arc<ClusterClock>) {
        let interval = Rules::new(&self.cluster).interval();
        let (names, clock, metrics) =
            (Arc::clone(names), Arc::clone(clock), self.parts.maintenance_metrics.clone());
        let sweeping =
            maintenance::sweep_names(names, clock, interval, metrics, self.tasks.stopping.clone());
        self.tasks.spawn("free names", sweeping);
    }

    /// Fetches the metadata of recently used topics, so that first records do not wait
    /// for metadata.
    async fn preload(&self, publisher: &Publisher) {
        match recent_topics(&self.parts.postgres).await {
            Ok(topics) if topics.is_empty() => {}
            Ok(topics) => {
                let loaded = publisher.preload(&topics, PRELOAD_DEADLINE).await;
                tracing::debug!(loaded, "topics preloaded");
            }
            Err(error) => tracing::debug!(error = chain(&error), "preload topics"),
        }
    }

    fn silence_max(&self) -> Duration {
        SILENCE_MAX.min(self.settings.kafka.publish_deadline / 2)
    }

    fn core(
        &self,
        leaves: Arc<Leaves>,
        clock: Arc<ClusterClock>,
        policy: &PolicyHandle,
    ) -> Result<Core, TaskFailure> {
        let (settings, parts, tasks) = (self.settings, self.parts, self.tasks);
        let limits = InFlightLimits {
            tasks_max: settings.limits.in_flight_tasks,
            bytes_max: settings.limits.in_flight_bytes,
            batches_max: IN_FLIGHT_BATCHES_MAX,
        };
        let topic_rules = TopicSettings {
            silence_max: self.silence_max(),
            denial_max: settings.kafka.topic_denial_max,
            tasks_max: settings.limits.topic_in_flight_tasks,
            bytes_max: settings.limits.in_flight_bytes / 4,
        };
        let in_flight = Arc::new(InFlightBatches::new(limits, TopicBreakers::new(topic_rules)));
        let policies = Arc::clone(&parts.policies);
        let progress = LoopProgress::new(settings.claim_loops);
        let membership = self.start_membership(&clock, &in_flight, &progress);
        let contact = parts.contact.clone();
        let fence = Arc::new(Fence::new(
            Arc::clone(&clock),
            contact.clone(),
            tasks.draining.clone(),
            membership.fencing(),
        ));
        let reports = Reports::new(
            Arc::clone(&in_flight),
            (Arc::clone(&clock), Arc::clone(&policies)),
            contact.clone(),
            parts.metrics.clone(),
            (settings.kafka.publish_deadline, self.cluster.window),
        );
        let publisher = Arc::new(Publisher::new(
            Arc::new(reports),
            parts.kafka.clone(),
            (parts.kafka_metrics.clone(), parts.traces.clone()),
            contact,
            Arc::clone(&fence),
        )?);
        let wheel =
            wheel::start(Arc::clone(&publisher), Arc::clone(&clock), settings.precision, tasks)?;
        let shared = Arc::new(NodeShared {
            node: parts.node,
            cluster: self.cluster,
            clock,
            in_flight,
            fence,
            leaves,
            policies,
            pending: Arc::clone(policy.quotas().pending()),
            wheel,
            metrics: parts.metrics.clone(),
            calls: Calls::default(),
            submit_order: SubmitOrder::default(),
            callers: CallerNumbers {
                principals: Principals::new(&parts.postgres, PRINCIPALS_MAX),
                metrics: parts.metrics.clone(),
            },
        });
        Ok(Core { shared, membership, publisher, progress })
    }

    fn start_membership(
        &self,
        clock: &Arc<ClusterClock>,
        in_flight: &Arc<InFlightBatches>,
        progress: &LoopProgress,
    ) -> Membership {
        let (settings, parts) = (self.settings, self.parts);
        let (contact, held) = (parts.contact.clone(), Arc::clone(in_flight));
        let broker = move || BrokerContact {
            has_broker: contact.is_held(),
            has_due: held.amount().tasks > 0,
        };
        let identity = MembershipSettings {
            node: parts.node,
            name: settings.node_name.clone(),
            address: parts.advertise.clone(),
            version: config::RELEASE.to_owned(),
            started_at: clock::wall(),
            ttl: settings.session_ttl,
            shards: self.cluster.shards,
        };
        let works_with = MembershipParts {
            postgres: parts.postgres.clone(),
            etcd: parts.etcd.clone(),
            clock: Arc::clone(clock),
            progress: progress.clone(),
            broker: Arc::new(broker),
            metrics: parts.membership_metrics.clone(),
        };
        membership::start(identity, works_with, self.tasks)
    }

    fn start_claimers(&self, core: &Core) {
        let (settings, cluster) = (self.settings, self.cluster);
        let pace = ClaimPace {
            tick: settings.tick,
            // A claim has taken 80 to 130 ms on a bad disk. A window of 200 ms still hides that.
            tick_calm: (cluster.window / 4).clamp(settings.tick, TICK_MAX),
            // The first claim after an idle time is small. 120 ms are left for it.
            tick_idle: (cluster.window * 2 / 5).clamp(settings.tick, TICK_MAX),
            loop_count: settings.claim_loops,
        };
        let rules = ClaimSettings {
            window: cluster.window,
            slack: SLACK,
            leaf: cluster.leaf,
            rows_target: CLAIM_TARGET,
        };
        for index in 0..settings.claim_loops {
            let parts = ClaimParts {
                pace,
                settings: rules,
                bulletin: core.membership.bulletin(),
                progress: core.progress.clone(),
                draining: self.tasks.draining.clone(),
                claims: Claims::new(&self.parts.postgres, Rules::new(&cluster)),
            };
            self.tasks.spawn("claim", Claimer::new(index, Arc::clone(&core.shared), parts).run());
        }
    }

    fn start_settling(&self, core: &Core) {
        let (parts, tasks) = (self.parts, self.tasks);
        let undone = Arc::new(Undone::default());
        let settler = SettlerParts {
            settles: Settles::new(&parts.postgres, parts.node, self.settings.retention.names),
            shared: Arc::clone(&core.shared),
            reports: Arc::clone(&core.publisher.reports),
            undone: Arc::clone(&undone),
            progress: core.progress.clone(),
            stopping: tasks.stopping.clone(),
        };
        tasks.spawn_vital("settle", Settler::new(settler).run());
        let adopter = AdopterParts {
            adoptions: Adoptions::new(&parts.postgres, parts.node),
            shared: Arc::clone(&core.shared),
            publisher: Arc::clone(&core.publisher),
            undone,
            adopt_now: core.membership.adopt_now(),
            stopping: tasks.stopping.clone(),
            bulletin: core.membership.bulletin(),
            progress: core.progress.clone(),
        };
        tasks.spawn("adopt", Adopter::new(adopter).run());
        tasks.spawn(
            "close producers",
            ProducerKeeper::close_retired(Arc::clone(&core.publisher), tasks.stopping.clone()),
        );
        let producer_keeper = ProducerKeeper {
            shared: Arc::clone(&core.shared),
            publisher: Arc::clone(&core.publisher),
            publish_deadline: self.settings.kafka.publish_deadline,
            stopping: tasks.stopping.clone(),
        };
        tasks.spawn_vital("producers", producer_keeper.run());
        let topic_keeper = TopicKeeper {
            shared: Arc::clone(&core.shared),
            publisher: Arc::clone(&core.publisher),
            topics: parts.topics.clone(),
            silence_max: self.silence_max(),
            stopping: tasks.stopping.clone(),
        };
        tasks.spawn_vital("topics", topic_keeper.run());
        let policy_keeper = PolicyKeeper::new(Arc::clone(&core.shared), &parts.postgres);
        tasks.spawn("policies", policy_keeper.run(tasks.stopping.clone()));
        let in_flight_keeper =
            InFlightKeeper { shared: Arc::clone(&core.shared), stopping: tasks.stopping.clone() };
        tasks.spawn("in flight", in_flight_keeper.run());
    }

    /// Starts to count the tasks of the cluster. Requests count with the same connections.
    fn start_counting(&self, core: &Core) -> (Arc<TaskCounter>, Arc<BacklogCounter>) {
        let (postgres, cluster) = (&self.parts.postgres, &self.cluster);
        let tasks = Arc::new(TaskCounter::new(postgres, cluster));
        let backlog = Arc::new(BacklogCounter::new(postgres, cluster.shards));
        let keeper = BacklogKeeper {
            shared: Arc::clone(&core.shared),
            bulletin: core.membership.bulletin(),
            tasks: Arc::clone(&tasks),
            backlog: Arc::clone(&backlog),
        };
        self.tasks.spawn("count", keeper.run(self.tasks.draining.clone()));
        let pending_counter = PendingCounter {
            figures: Arc::clone(&core.shared.pending),
            counter: Arc::clone(&tasks),
            metrics: self.parts.metrics.clone(),
        };
        self.tasks.spawn("count pending", pending_counter.run(self.tasks.stopping.clone()));
        (tasks, backlog)
    }

    fn start_group_commit(
        &self,
        shared: &Arc<NodeShared>,
        names: &Arc<Names>,
        connections: &Connections,
    ) -> GroupCommit {
        let (parts, limits) = (self.parts, &self.settings.limits);
        let limits = group_commit::queue::Bounds {
            tasks_max: limits.submit_queue_tasks,
            bytes_max: limits.submit_queue_bytes,
        };
        let named = NamedStore {
            shared: Arc::clone(shared),
            submits: NamedSubmits::new(&parts.postgres, parts.node, self.settings.retention.names),
            names: Arc::clone(names),
        };
        let lanes = GroupCommitParts {
            shared: Arc::clone(shared),
            submits: Submits::new(&parts.postgres, parts.node),
            named,
            connections: connections.clone(),
            stopping: self.tasks.stopping.clone(),
        };
        let (group_commit, [plain, named]) = GroupCommit::new(limits, lanes);
        self.tasks.spawn("submit", plain.run());
        self.tasks.spawn("submit named", named.run());
        group_commit
    }
}

/// Converts the settings of a node for etcd. Returns `None` when this node is the only one.
fn etcd_settings(settings: &Settings) -> Option<EtcdSettings> {
    let wanted = settings.etcd.as_ref()?;
    Some(EtcdSettings::new(
        wanted.endpoints.clone(),
        &settings.cluster,
        settings.session_ttl,
        etcd_credentials(wanted),
    ))
}
