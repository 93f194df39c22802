//! Puts a node together from its modules.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::kafka_settings;
use crate::clock::{self, ClusterClock};
use crate::config::{self, Settings};
use crate::domain::leaves::Rules;
use crate::domain::{ClusterSettings, NodeId};
use crate::engine::books::Suspects;
use crate::engine::claiming;
use crate::engine::liveness::broker::BrokerContact;
use crate::engine::topics::{self, Topics};
use crate::node::adopter::{Adopter, LookBack};
use crate::node::bulk::Bulks;
use crate::node::canceller::Canceller;
use crate::node::claimer::{self, Claimer, Pace};
use crate::node::desk::Desk;
use crate::node::gate::Gate;
use crate::node::holdings::{self, Holdings};
use crate::node::intake::{self, Intake};
use crate::node::keeper::{self, Keeper, Leaves};
use crate::node::lists::Lists;
use crate::node::membership::{self, Membership, Progress};
use crate::node::metrics::Metrics;
use crate::node::named_store::NamedStore;
use crate::node::placing::Placing;
use crate::node::publisher::{Publisher, Reports};
use crate::node::replacer::Replacer;
use crate::node::service::{Lack, Missing, Service};
use crate::node::settler::{self, Settler, Undone};
use crate::node::topic_keeper::TopicKeeper;
use crate::node::wheel::{self, Entrance};
use crate::postgres::adopt::Adoptions;
use crate::postgres::backlog::BacklogCounter;
use crate::postgres::cancel_many::CancelMany;
use crate::postgres::claim::Claims;
use crate::postgres::counts::Counter;
use crate::postgres::dead_letters::DeadLetters;
use crate::postgres::listing::Listing;
use crate::postgres::look_up::LookUp;
use crate::postgres::names::Names;
use crate::postgres::recent_topics::recent_topics;
use crate::postgres::replace::Replaces;
use crate::postgres::settle::Settles;
use crate::postgres::submit::Submits;
use crate::postgres::submit_named::NamedSubmits;
use crate::postgres::{self, cancel};
use crate::shutdown::{Failure, Tasks, chain};
use crate::telemetry::Registry;
use crate::{etcd, kafka};

/// How far behind the front a claim looks again: longer than an insert takes to commit.
const SLACK: Duration = Duration::from_millis(750);
/// No tick is stretched further, however wide the window: as long as `--tick` may be at most.
const TICK_MAX: Duration = Duration::from_secs(1);
/// Tasks that a claim aims at.
const CLAIM_TARGET: u64 = 1_000;
/// A topic without an acknowledgement for so long while records wait is parked.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// Connections for look-ups.
const LOOK_UPS_MAX: usize = 4;
/// Connections for replacements, and for the entries of names.
const REPLACES_MAX: usize = 4;
const NAMES_MAX: usize = 3;
/// Connections for lists, and for dead letters.
const LISTS_MAX: usize = 2;
const DEAD_LETTERS_MAX: usize = 2;
/// A small batch costs more than its tasks: so many are held at most.
pub const IN_FLIGHT_BATCHES_MAX: usize = 8_192;
/// A start is not delayed for longer by a Kafka that does not answer.
const PRELOAD_DEADLINE: Duration = Duration::from_secs(2);
const RETRY: Duration = Duration::from_millis(500);

/// What can be made before the servers are there.
#[derive(Debug)]
pub struct Parts {
    pub node: NodeId,
    pub postgres: postgres::Settings,
    pub kafka: kafka::Settings,
    pub contact: kafka::Contact,
    topics: kafka::Topics,
    kafka_metrics: kafka::Metrics,
    /// None: this node is alone.
    pub etcd: Option<(etcd::Session, watch::Receiver<etcd::View>)>,
    membership_metrics: membership::Metrics,
    keeper_metrics: keeper::Metrics,
    metrics: Metrics,
    advertise: String,
}

/// What is needed to end a node.
#[derive(Debug)]
pub struct Running {
    pub membership: Membership,
    pub holdings: Arc<Holdings>,
    publisher: Arc<Publisher>,
    intake: Intake,
}

/// Nobody but that thread sees whether Kafka is there.
async fn watch_prober(topics: kafka::Topics, stopping: CancellationToken) -> Result<(), Failure> {
    tokio::select! {
        () = stopping.cancelled() => Ok(()),
        () = topics.failure() => Err("the thread that asks Kafka about topics has panicked".into()),
    }
}

impl Parts {
    pub fn new(
        settings: &Settings,
        node: NodeId,
        advertise: &str,
        registry: &mut Registry,
        tasks: &Tasks,
    ) -> Result<Self, Failure> {
        let kafka = kafka_settings::of(settings);
        let kafka_metrics = kafka::Metrics::register(registry);
        let topics = kafka::Topics::start(&kafka, kafka_metrics.clone())?;
        tasks.spawn("kafka prober", watch_prober(topics.clone(), tasks.stopping.clone()));
        let etcd_metrics = etcd::Metrics::register(registry);
        let etcd = match &settings.etcd {
            None => None,
            Some(endpoints) => {
                let etcd = etcd::Settings::new(endpoints.clone(), &settings.cluster, settings.session_ttl);
                Some(etcd::start(&etcd, node, tasks, etcd_metrics))
            }
        };
        Ok(Self {
            node,
            postgres: postgres::Settings::new(settings.database_url.expose())?,
            contact: topics.contact(),
            kafka,
            topics,
            kafka_metrics,
            etcd,
            membership_metrics: membership::Metrics::register(registry),
            keeper_metrics: keeper::Metrics::register(registry),
            metrics: Metrics::register(registry),
            advertise: advertise.to_owned(),
        })
    }

    /// What the node waits for while it starts: Postgres, for this reason, and what else is away.
    pub fn missing(&self, reason: String) -> Vec<Missing> {
        let mut missing = vec![Missing { what: Lack::Postgres, why: reason }];
        if !self.contact.is_held() {
            missing.push(Missing { what: Lack::Kafka, why: self.contact.trouble() });
        }
        if let Some((_, view)) = &self.etcd
            && matches!(*view.borrow(), etcd::View::Away { .. })
        {
            missing.push(Missing { what: Lack::Etcd, why: "it has not answered".to_owned() });
        }
        missing
    }
}

impl Running {
    /// True when nothing waits to be stored, published or settled.
    pub fn is_idle(&self) -> bool {
        self.intake.is_idle() && self.holdings.is_idle()
    }

    /// Gives up what is left when there is no more time: nothing of it leaves this node any more, and others adopt it.
    pub fn give_up(&self) {
        let batches = self.holdings.give_up_all_but(&[], clock::monotonic());
        if let Err(error) = self.publisher.purge() {
            tracing::warn!(error = chain(&error), batches = batches.len(), "the producer could not be emptied");
        }
    }
}

/// What all loops share.
struct Core {
    clock: Arc<ClusterClock>,
    gate: Arc<Gate>,
    holdings: Arc<Holdings>,
    leaves: Arc<Leaves>,
    membership: Membership,
    publisher: Arc<Publisher>,
    wheel: Entrance,
    shared: Arc<claimer::Shared>,
    progress: Progress,
}

/// Starts all loops of a node, and opens the service.
pub async fn start(
    settings: &Settings,
    parts: Parts,
    cluster: ClusterSettings,
    service: &Service,
    tasks: &Tasks,
) -> Result<Running, Failure> {
    let leaves = Arc::new(Leaves::default());
    let names = Arc::new(Names::new(&parts.postgres, settings.retention.names, NAMES_MAX));
    let clock = Arc::new(ClusterClock::default());
    keep_partitions(settings, &parts, cluster, (&leaves, &clock), (service, tasks)).await;
    let interval = Rules::new(&cluster).interval();
    let sweeping = keeper::sweep_names(
        Arc::clone(&names),
        Arc::clone(&clock),
        interval,
        parts.keeper_metrics.clone(),
        tasks.stopping.clone(),
    );
    tasks.spawn("free names", sweeping);
    let core = core(settings, &parts, cluster, (leaves, clock), tasks)?;
    preload(&parts, &core).await;
    start_claimers(settings, &parts, cluster, &core, tasks);
    let placing = Placing {
        shared: Arc::clone(&core.shared),
        leaves: Arc::clone(&core.leaves),
        wheel: core.wheel.clone(),
        window: cluster.window,
    };
    start_settling(settings, &parts, &core, &placing, tasks);
    let intake = start_intake(settings, &parts, &placing, &names, tasks);
    let (lists, bulks) = lists_and_bulks(settings, &parts, &cluster, &placing);
    let replacer = Replacer { placing, replaces: Replaces::new(&parts.postgres, settings.retention.names, REPLACES_MAX) };
    let cancels = cancel::Canceller::new(&parts.postgres);
    let (canceller, lane) = Canceller::new(settings.bounds.cancel_queue, cancels, parts.metrics.clone(), tasks.stopping.clone());
    tasks.spawn("cancel", lane.run());
    service.open(Desk {
        node: parts.node,
        cluster,
        delay_max: settings.delay_max,
        clock: Arc::clone(&core.clock),
        gate: Arc::clone(&core.gate),
        holdings: Arc::clone(&core.holdings),
        intake: intake.clone(),
        canceller,
        replacer,
        names,
        lists,
        bulks,
        look_up: LookUp::new(&parts.postgres, &cluster, LOOK_UPS_MAX),
        backlog: BacklogCounter::new(&parts.postgres, cluster.shards),
        topics: parts.topics,
        bulletin: core.membership.bulletin(),
        leaves: Arc::clone(&core.leaves),
        metrics: parts.metrics,
        draining: tasks.draining.clone(),
        has_seen_etcd: AtomicBool::new(false),
    });
    Ok(Running { membership: core.membership, holdings: core.holdings, publisher: core.publisher, intake })
}

/// Makes sure that there are leaves before anything is inserted or claimed, and keeps at it.
async fn keep_partitions(
    settings: &Settings,
    parts: &Parts,
    cluster: ClusterSettings,
    (leaves, clock): (&Arc<Leaves>, &Arc<ClusterClock>),
    (service, tasks): (&Service, &Tasks),
) {
    let mut rules = Rules::new(&cluster);
    rules.payload_retention = settings.retention.payloads;
    rules.receipts_retention = settings.retention.receipts;
    let mut keeper = Keeper::new(&parts.postgres, rules, Arc::clone(leaves), parts.keeper_metrics.clone());
    loop {
        let reason = match keeper.make_all().await {
            Ok(true) => break,
            Ok(false) => {
                tracing::info!("another node makes the partitions; waiting for them");
                "another node makes the partitions".to_owned()
            }
            Err(error) => {
                let reason = chain(&error);
                tracing::warn!(error = reason, "make partitions; trying again");
                format!("the partitions cannot be made: {reason}")
            }
        };
        service.waits_for(parts.missing(reason));
        tokio::select! {
            () = clock::sleep(RETRY) => {}
            () = tasks.draining.cancelled() => return,
        }
    }
    keeper::start(tasks, &parts.postgres, keeper, clock);
}

/// Fetches the metadata of the topics that were in use lately: their first records then need not wait for it.
async fn preload(parts: &Parts, core: &Core) {
    match recent_topics(&parts.postgres).await {
        Ok(topics) if topics.is_empty() => {}
        Ok(topics) => {
            let loaded = core.publisher.preload(topics, PRELOAD_DEADLINE).await;
            tracing::debug!(loaded, "topics preloaded");
        }
        Err(error) => tracing::debug!(error = chain(&error), "preload topics"),
    }
}

fn core(
    settings: &Settings,
    parts: &Parts,
    cluster: ClusterSettings,
    (leaves, clock): (Arc<Leaves>, Arc<ClusterClock>),
    tasks: &Tasks,
) -> Result<Core, Failure> {
    let bounds = holdings::Bounds {
        tasks_max: settings.bounds.in_flight_tasks,
        bytes_max: settings.bounds.in_flight_bytes,
        batches_max: IN_FLIGHT_BATCHES_MAX,
    };
    let topic_rules = topics::Settings {
        silence_max: SILENCE_MAX,
        denial_max: settings.kafka.topic_denial_max,
        tasks_max: settings.bounds.topic_in_flight_tasks,
        bytes_max: settings.bounds.in_flight_bytes / 4,
    };
    let holdings = Arc::new(Holdings::new(bounds, Topics::new(topic_rules)));
    let progress = Progress::new(settings.claim_loops);
    let membership = start_membership(settings, parts, cluster, &clock, &holdings, &progress, tasks)?;
    let gate = Arc::new(Gate::new(Arc::clone(&clock), parts.contact.clone(), tasks.draining.clone(), membership.trust()));
    let contact = parts.contact.clone();
    let reports = Arc::new(Reports::new(Arc::clone(&holdings), Arc::clone(&clock), contact, parts.metrics.clone()));
    let publisher = Arc::new(Publisher::new(
        reports,
        parts.kafka.clone(),
        parts.kafka_metrics.clone(),
        parts.contact.clone(),
        Arc::clone(&gate),
    )?);
    let wheel = wheel::start(Arc::clone(&publisher), Arc::clone(&clock), settings.precision, tasks)?;
    let shared = Arc::new(claimer::Shared::new(
        parts.node,
        cluster.shards,
        Arc::clone(&clock),
        Arc::clone(&holdings),
        Arc::clone(&gate),
        Arc::clone(&leaves),
        parts.metrics.clone(),
    ));
    Ok(Core { clock, gate, holdings, leaves, membership, publisher, wheel, shared, progress })
}

#[expect(clippy::too_many_arguments, reason = "the membership touches as many parts; it is started in one place")]
fn start_membership(
    settings: &Settings,
    parts: &Parts,
    cluster: ClusterSettings,
    clock: &Arc<ClusterClock>,
    holdings: &Arc<Holdings>,
    progress: &Progress,
    tasks: &Tasks,
) -> Result<Membership, Failure> {
    let (contact, held) = (parts.contact.clone(), Arc::clone(holdings));
    let broker = move || BrokerContact { has_broker: contact.is_held(), has_due: held.amount().tasks > 0 };
    let identity = membership::Settings {
        node: parts.node,
        name: settings.node_name.clone(),
        address: parts.advertise.clone(),
        version: config::RELEASE.to_owned(),
        started_at: clock::wall(),
        ttl: settings.session_ttl,
        shards: cluster.shards,
    };
    let works_with = membership::Parts {
        postgres: parts.postgres.clone(),
        etcd: parts.etcd.clone(),
        clock: Arc::clone(clock),
        progress: progress.clone(),
        broker: Arc::new(broker),
        metrics: parts.membership_metrics.clone(),
    };
    Ok(membership::start(identity, works_with, tasks))
}

fn start_claimers(settings: &Settings, parts: &Parts, cluster: ClusterSettings, core: &Core, tasks: &Tasks) {
    let pace = Pace {
        tick: settings.tick,
        // A claim has taken 80 to 130 ms on a bad disk: a window of 200 ms still hides it.
        tick_calm: (cluster.window / 4).clamp(settings.tick, TICK_MAX),
        // The first claim of what comes then is small: 120 ms are left for it.
        tick_idle: (cluster.window * 2 / 5).clamp(settings.tick, TICK_MAX),
        loop_count: settings.claim_loops,
    };
    let rules = claiming::Settings { window: cluster.window, slack: SLACK, leaf: cluster.leaf, rows_target: CLAIM_TARGET };
    for index in 0..settings.claim_loops {
        let claimer = Claimer::new(
            index,
            Arc::clone(&core.shared),
            claimer::Parts {
                pace,
                settings: rules,
                bulletin: core.membership.bulletin(),
                progress: core.progress.clone(),
                wheel: core.wheel.clone(),
                draining: tasks.draining.clone(),
                claims: Claims::new(&parts.postgres),
            },
        );
        tasks.spawn("claim", claimer.run());
    }
}

fn start_settling(settings: &Settings, parts: &Parts, core: &Core, placing: &Placing, tasks: &Tasks) {
    let undone = Arc::new(Undone::default());
    let settler = Settler {
        settles: Settles::new(&parts.postgres, parts.node, settings.retention.names),
        placing: placing.clone(),
        reports: Arc::clone(&core.publisher.reports),
        clock: Arc::clone(&core.clock),
        undone: Arc::clone(&undone),
        metrics: parts.metrics.clone(),
        stopping: tasks.stopping.clone(),
        batches_max: settler::BATCHES_MAX,
        is_failing: false,
    };
    tasks.spawn("settle", settler.run());
    let adopter = Adopter {
        adoptions: Adoptions::new(&parts.postgres, parts.node),
        holdings: Arc::clone(&core.holdings),
        publisher: Arc::clone(&core.publisher),
        gate: Arc::clone(&core.gate),
        undone,
        wheel: core.wheel.clone(),
        metrics: parts.metrics.clone(),
        adopt_now: core.membership.adopt_now(),
        stopping: tasks.stopping.clone(),
        suspects: Suspects::default(),
        to_load: Vec::new(),
        to_free: Vec::new(),
        bulletin: core.membership.bulletin(),
        progress: core.progress.clone(),
        clock: Arc::clone(&core.clock),
        past: LookBack::default(),
    };
    tasks.spawn("adopt", adopter.run());
    let topic_keeper = TopicKeeper {
        shared: Arc::clone(&core.shared),
        publisher: Arc::clone(&core.publisher),
        topics: parts.topics.clone(),
        silence_max: SILENCE_MAX,
        clock: Arc::clone(&core.clock),
        stopping: tasks.stopping.clone(),
        is_failing: false,
    };
    let closing = TopicKeeper::close_retired(Arc::clone(&topic_keeper.publisher), tasks.stopping.clone());
    tasks.spawn("close producers", closing);
    tasks.spawn("topics", topic_keeper.run());
}

fn lists_and_bulks(settings: &Settings, parts: &Parts, cluster: &ClusterSettings, placing: &Placing) -> (Lists, Bulks) {
    let listing = Arc::new(Listing::new(&parts.postgres, cluster, LISTS_MAX));
    let dead_letters = Arc::new(DeadLetters::new(&parts.postgres, settings.retention.names, DEAD_LETTERS_MAX));
    let lists = Lists {
        listing: Arc::clone(&listing),
        dead_letters: Arc::clone(&dead_letters),
        counter: Counter::new(&parts.postgres, cluster),
        metrics: parts.metrics.clone(),
    };
    let bulks = Bulks {
        listing,
        dead_letters,
        cancels: CancelMany::new(&parts.postgres),
        placing: placing.clone(),
        metrics: parts.metrics.clone(),
        request_deadline: settings.bounds.request_timeout,
    };
    (lists, bulks)
}

fn start_intake(settings: &Settings, parts: &Parts, placing: &Placing, names: &Arc<Names>, tasks: &Tasks) -> Intake {
    let bounds = intake::Bounds { tasks_max: settings.bounds.submit_queue_tasks, bytes_max: settings.bounds.submit_queue_bytes };
    let named = NamedStore {
        placing: placing.clone(),
        submits: NamedSubmits::new(&parts.postgres, parts.node, settings.retention.names),
        names: Arc::clone(names),
    };
    let submits = Submits::new(&parts.postgres, parts.node);
    let lanes = intake::Parts { placing: placing.clone(), submits, named, stopping: tasks.stopping.clone() };
    let (intake, [plain, named]) = Intake::new(bounds, lanes);
    tasks.spawn("submit", plain.run());
    tasks.spawn("submit named", named.run());
    intake
}
