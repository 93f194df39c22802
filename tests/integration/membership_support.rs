//! Memberships to start, kill and cut off, each with a cluster of its own.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use etcd_client::{Client, GetOptions};
use punctual::clock::{self, ClusterClock};
use punctual::domain::{ClusterWishes, NodeId, ShardCount, Timestamp};
use punctual::engine::liveness::broker::BrokerContact;
use punctual::node::membership::{
    self, Bulletin, LoopProgress, Membership, MembershipMetrics, MembershipParts,
    MembershipSettings,
};
use punctual::postgres::cluster::schema;
use punctual::shutdown::Tasks;
use punctual::{
    etcd::{self, EtcdMetrics, EtcdSettings},
    postgres::PostgresSettings,
    telemetry,
};
use sqlx::AssertSqlSafe;
use tokio::runtime::Runtime;

use crate::support::{Database, Stack};

pub const SHARDS: u64 = 64;

/// A database and a prefix in etcd, on running servers.
#[derive(Debug)]
pub struct Cluster {
    pub database: Database,
    pub etcd: String,
    pub ttl: Duration,
}

impl Cluster {
    /// Uses the servers that all tests share.
    pub async fn new(ttl: Duration) -> Self {
        Self::on(&Stack::shared(), ttl).await
    }

    pub async fn on(stack: &Stack, ttl: Duration) -> Self {
        let database = Database::create(stack, "membership").await;
        // Few leaves, because leaves take time to create.
        let wishes = ClusterWishes {
            shards: ShardCount::new(SHARDS).ok(),
            horizon: Some(Duration::from_secs(3600)),
            ..ClusterWishes::default()
        };
        schema::migrate(&PostgresSettings::new(&database.url).unwrap(), wishes).await.unwrap();
        Self { database, etcd: stack.etcd.clone(), ttl }
    }

    pub fn node(&self, name: &str) -> Node {
        Node::start(self, name, &self.database.url, true)
    }

    pub fn node_without_etcd(&self, name: &str) -> Node {
        Node::start(self, name, &self.database.url, false)
    }

    /// Returns the counter of a node's heartbeat, whether the node is dead, and whether it has
    /// left.
    pub async fn row(&self, node: NodeId) -> Option<(i64, bool, bool)> {
        sqlx::query_as("select counter, dead, has_left from heartbeat where node = $1")
            .bind(node.uuid())
            .fetch_optional(&mut self.database.connect().await)
            .await
            .unwrap()
    }

    pub async fn execute(&self, statement: &str) {
        sqlx::raw_sql(AssertSqlSafe(statement.to_owned()))
            .execute(&mut self.database.connect().await)
            .await
            .unwrap();
    }

    /// Revokes the leases of all nodes, as an etcd in trouble may.
    pub async fn revoke_all_sessions(&self) -> usize {
        let mut client = Client::connect([&self.etcd], None).await.unwrap();
        let keys = client
            .get(format!("{}/nodes/", self.database.name), Some(GetOptions::new().with_prefix()))
            .await
            .unwrap();
        for pair in keys.kvs() {
            client.lease_revoke(pair.lease()).await.unwrap();
        }
        keys.kvs().len()
    }
}

/// A membership in a runtime of its own, so a kill leaves no time for a goodbye.
#[derive(Debug)]
pub struct Node {
    pub id: NodeId,
    pub membership: Membership,
    pub tasks: Tasks,
    pub session: Option<etcd::Session>,
    pub broker: Arc<Mutex<BrokerContact>>,
    pub progress: LoopProgress,
    pub clock: Arc<ClusterClock>,
    pub registry: Arc<telemetry::Registry>,
    runtime: Option<Runtime>,
}

impl Node {
    pub fn start(cluster: &Cluster, name: &str, url: &str, has_etcd: bool) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let _within = runtime.enter();
        let tasks = Tasks::default();
        let started_at = clock::wall();
        let id = NodeId::new(started_at, 0, rand::random());
        let mut registry = telemetry::Registry::default();
        let etcd = has_etcd.then(|| {
            let settings = EtcdSettings::new(
                vec![cluster.etcd.clone()],
                &cluster.database.name,
                cluster.ttl,
                etcd::Credentials::default(),
            );
            etcd::start(&settings, id, &tasks, EtcdMetrics::register(&mut registry))
        });
        let broker = Arc::new(Mutex::new(BrokerContact { has_broker: true, has_due: false }));
        let (asked, progress, clock) =
            (Arc::clone(&broker), LoopProgress::new(1), Arc::new(ClusterClock::default()));
        // As for a claim loop that has run and is not expected to run again.
        progress.tick(0);
        drop(progress.begin(0));
        let settings = MembershipSettings {
            node: id,
            name: name.to_owned(),
            address: "http://127.0.0.1:7070".to_owned(),
            version: "test".to_owned(),
            started_at,
            ttl: cluster.ttl,
            shards: ShardCount::new(SHARDS).unwrap(),
        };
        let session = etcd.as_ref().map(|(session, _)| session.clone());
        let parts = MembershipParts {
            postgres: PostgresSettings::new(url).unwrap(),
            etcd,
            clock: Arc::clone(&clock),
            progress: progress.clone(),
            broker: Arc::new(move || *asked.lock().unwrap()),
            metrics: MembershipMetrics::register(&mut registry),
        };
        let membership = membership::start(settings, parts, &tasks);
        drop(_within);
        let registry = Arc::new(registry);
        Self {
            id,
            membership,
            tasks,
            session,
            broker,
            progress,
            clock,
            registry,
            runtime: Some(runtime),
        }
    }

    pub fn bulletin(&self) -> Bulletin {
        self.membership.bulletin().borrow().clone()
    }

    /// Waits until `is_so` is true for the bulletin. Returns the waiting time.
    pub async fn wait(
        &self,
        what: &str,
        deadline: Duration,
        is_so: impl FnMut(&Bulletin) -> bool,
    ) -> Duration {
        let from = clock::monotonic();
        let mut bulletin = self.membership.bulletin();
        let outcome = tokio::time::timeout(deadline, bulletin.wait_for(is_so))
            .await
            .map(|ended| drop(ended.unwrap()));
        assert!(outcome.is_ok(), "not within {deadline:?}: {what}; {:?}", self.bulletin());
        clock::monotonic().since(from)
    }

    pub async fn wait_for_shards(&self, count: usize, deadline: Duration) -> Duration {
        self.wait(&format!("{count} shards"), deadline, |bulletin| bulletin.mine.len() == count)
            .await
    }

    /// For `span`, nobody's shards move.
    pub async fn stays_put(&self, span: Duration) {
        let mut bulletin = self.membership.bulletin();
        let owners = bulletin.borrow().owners.clone();
        let moved =
            tokio::time::timeout(span, bulletin.wait_for(|bulletin| bulletin.owners != owners))
                .await;
        assert!(moved.is_err(), "shards moved: {:?}", self.bulletin());
    }

    /// The value of a metric.
    pub fn metric(&self, name: &str) -> f64 {
        let text = telemetry::encode(&self.registry).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no metric {name}")).parse().unwrap()
    }

    /// Ends the membership like kill -9: no last heartbeat, and the session is not revoked.
    pub fn kill(mut self) -> NodeId {
        self.runtime.take().unwrap().shutdown_background();
        self.id
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Makes ids of nodes that never ran.
pub fn some_node() -> NodeId {
    NodeId::new(Timestamp::from_millis(1_700_000_000_000), 0, rand::random())
}
