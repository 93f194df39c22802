//! A separate cluster for each test: a database, topics, a name.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rdkafka::ClientConfig;
use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, NewTopic, ResourceSpecifier, TopicReplication,
    TopicResult,
};
use rdkafka::client::DefaultClientContext;
use rdkafka::metadata::MetadataPartition;
use rdkafka::types::RDKafkaErrorCode;
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use uuid::Uuid;

use super::consumer::Consumer;
use super::database::Database;
use super::node::{Node, program};
use super::stack::Stack;
use super::wait::{eventually, eventually_some, look_for, now_ms};

/// Enough for parallel consumers to differ, few enough to be cheap.
pub const PARTITIONS: i32 = 3;
const SERVER_DEADLINE: Duration = Duration::from_secs(90);
const ADMIN_DEADLINE: Duration = Duration::from_secs(30);

/// The options of a test's cluster.
#[derive(Clone, Copy, Debug)]
pub struct Wishes {
    pub shards: u16,
    pub leaf: &'static str,
    pub horizon: &'static str,
    pub window: &'static str,
    /// False for a cluster without etcd, which has one node.
    pub has_etcd: bool,
}

impl Default for Wishes {
    /// Few leaves, because they take time to create.
    fn default() -> Self {
        Self { shards: 16, leaf: "15m", horizon: "2h", window: "200ms", has_etcd: true }
    }
}

/// One line of the view `execlog`.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct ExeclogLine {
    pub id: Uuid,
    pub topic: Option<String>,
    pub due_at: i64,
    pub state: String,
    pub published_at: Option<i64>,
    pub partition: Option<i32>,
    pub offset: Option<i64>,
    pub lateness_ms: Option<i64>,
    pub node: Option<Uuid>,
}

impl ExeclogLine {
    /// Returns true for a line of a final state.
    pub fn is_final(&self) -> bool {
        matches!(self.state.as_str(), "published" | "cancelled" | "dead" | "dropped")
    }
}

/// A cluster. A drop deletes the topics and the database.
pub struct Cluster {
    pub name: String,
    pub stack: Stack,
    /// Before the database: its sessions must end before the database can be dropped.
    pub sql: PgPool,
    pub database: Database,
    wishes: Wishes,
    admin: AdminClient<DefaultClientContext>,
    topics: Mutex<Vec<String>>,
    node_count: AtomicUsize,
    logs: PathBuf,
}

impl Cluster {
    pub async fn start(name: &str) -> Self {
        Self::with(name, Wishes::default()).await
    }

    pub async fn with(name: &str, wishes: Wishes) -> Self {
        Self::at(&Stack::shared(), name, wishes).await
    }

    /// Creates a cluster on given servers and migrates its database.
    pub async fn at(stack: &Stack, name: &str, wishes: Wishes) -> Self {
        let cluster = Self::unmigrated(stack, name, wishes).await;
        cluster.migrate().await;
        cluster
    }

    /// Creates a cluster whose database is empty.
    pub async fn unmigrated(stack: &Stack, name: &str, wishes: Wishes) -> Self {
        let database = Database::create(stack, &format!("test-{name}")).await;
        let name = database.name.replace('_', "-");
        let sql = pool(&database.url);
        let admin = ClientConfig::new().set("bootstrap.servers", &stack.kafka).create().unwrap();
        let logs = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(&name);
        std::fs::create_dir_all(&logs).unwrap();
        let (topics, node_count, stack) = (Mutex::default(), AtomicUsize::new(0), stack.clone());
        Self { name, stack, database, sql, wishes, admin, topics, node_count, logs }
    }

    /// Looks at another server from now on, which has become the primary of its database.
    pub fn look_at(&mut self, url: &str) {
        self.sql = pool(url);
    }

    /// Returns the folder of its logs, which is deleted with the cluster.
    pub fn folder(&self) -> &Path {
        &self.logs
    }

    /// Writes a file with one key that signs requests of callbacks. Returns its path.
    pub fn callback_key_file(&self) -> String {
        let file = self.folder().join("callback.keys");
        std::fs::write(&file, "a2V5IG9uZSBrZXkgb25lIGtleSBvbmUga2V5").unwrap();
        file.to_str().unwrap().to_owned()
    }

    pub async fn migrate(&self) {
        let wishes = &self.wishes;
        let shards = wishes.shards.to_string();
        let settings = [
            "--shards",
            &shards,
            "--leaf",
            wishes.leaf,
            "--horizon",
            wishes.horizon,
            "--window",
            wishes.window,
        ];
        let output = program(&["migrate", "--database-url", &self.database.url])
            .args(settings)
            .output()
            .await
            .unwrap();
        assert!(output.status.success(), "migrate: {}", String::from_utf8_lossy(&output.stderr));
    }

    // --- nodes ---

    /// Starts a node and waits until it is ready.
    pub async fn node(&self) -> Node {
        self.node_with(&[]).await
    }

    pub async fn node_with(&self, arguments: &[&str]) -> Node {
        let mut node = self.spawn(arguments);
        node.wait_ready().await;
        node
    }

    /// Starts a node without waiting for it.
    pub fn spawn(&self, arguments: &[&str]) -> Node {
        let all = self.arguments(arguments);
        self.spawn_bare(&all)
    }

    /// Starts a node that aborts at a failpoint: `claim-committed`, or `record-handed-over:20` for
    /// the twentieth time.
    pub fn spawn_to_die_at(&self, point: &str) -> Node {
        self.spawn_to_die_with(point, &[])
    }

    /// The same with more arguments.
    pub fn spawn_to_die_with(&self, point: &str, arguments: &[&str]) -> Node {
        self.spawn_in(&[(punctual::failpoint::VARIABLE, point)], arguments)
    }

    /// Starts a node in this environment, without waiting for it.
    pub fn spawn_in(&self, variables: &[(&str, &str)], arguments: &[&str]) -> Node {
        let all = self.arguments(arguments);
        Node::spawn_with(&self.next_node_name(), &all, variables, &self.logs)
    }

    /// Returns the flags of a node.
    pub fn arguments<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        let mut all = vec![
            "--database-url",
            &self.database.url,
            "--kafka",
            &self.stack.kafka,
            "--cluster",
            &self.name,
        ];
        if self.wishes.has_etcd {
            all.extend(["--etcd", &self.stack.etcd]);
        }
        all.extend(more);
        all
    }

    /// Starts a node without etcd that reaches Postgres by this URL.
    pub fn spawn_by(&self, url: &str, more: &[&str]) -> Node {
        let own = ["--database-url", url, "--kafka", &self.stack.kafka, "--cluster", &self.name];
        self.spawn_bare(&[&own[..], more].concat())
    }

    /// Starts a node with no settings but these.
    pub fn spawn_bare(&self, arguments: &[&str]) -> Node {
        Node::spawn(&self.next_node_name(), arguments, &self.logs)
    }

    fn next_node_name(&self) -> String {
        format!("node-{}", self.node_count.fetch_add(1, Ordering::Relaxed) + 1)
    }

    // --- topics ---

    /// Creates a topic for this test. Its records carry the broker's append time.
    pub async fn topic(&self, suffix: &str) -> String {
        self.topic_with(suffix, &[]).await
    }

    pub async fn topic_with(&self, suffix: &str, settings: &[(&str, &str)]) -> String {
        let topic = format!("{}.{suffix}", self.name);
        self.create_topic(&topic, settings).await;
        self.topics.lock().push(topic.clone());
        topic
    }

    /// Creates a topic for the test with a second replica on a broker that is down
    /// (`OwnStack::know_second_broker`). While the topic demands two in-sync replicas
    /// (`min.insync.replicas`), no records are accepted.
    pub async fn topic_with_replica_away(&self, suffix: &str) -> String {
        let topic = format!("{}.{suffix}", self.name);
        let replicas: Vec<&[i32]> = (0..PARTITIONS).map(|_| [1, 2].as_slice()).collect();
        self.create(&topic, TopicReplication::Variable(&replicas), &[("min.insync.replicas", "1")])
            .await;
        self.topics.lock().push(topic.clone());
        topic
    }

    /// Waits until all replicas of all topics are in sync, and the first of each partition leads:
    /// Kafka moves leaders back to a broker that was away, which may cause duplicates.
    pub async fn wait_in_sync(&self) {
        let is_settled = |partition: &MetadataPartition| {
            let (replicas, leader) = (partition.replicas(), partition.leader());
            partition.isr().len() == replicas.len() && replicas.first() == Some(&leader)
        };
        eventually("all replicas are in sync, and the first lead", SERVER_DEADLINE, async || {
            let metadata = self.admin.inner().fetch_metadata(None, Duration::from_secs(5));
            metadata.is_ok_and(|metadata| {
                let mut topics = metadata.topics().iter();
                topics.all(|topic| topic.partitions().iter().all(is_settled))
            })
        })
        .await;
    }

    /// Creates a topic by its full name, with a replica on each broker. Waits for a topic of the
    /// same name to be deleted.
    pub async fn create_topic(&self, topic: &str, settings: &[(&str, &str)]) {
        let brokers = i32::try_from(self.stack.kafka.split(',').count()).unwrap();
        self.create(topic, TopicReplication::Fixed(brokers), settings).await;
    }

    async fn create(
        &self,
        topic: &str,
        replication: TopicReplication<'_>,
        settings: &[(&str, &str)],
    ) {
        let append_time = [("message.timestamp.type", "LogAppendTime")];
        let is_told = settings.iter().any(|(key, _)| *key == append_time[0].0);
        let settings = append_time.iter().filter(|_| !is_told).chain(settings);
        let new = settings
            .fold(NewTopic::new(topic, PARTITIONS, replication), |new, (key, value)| {
                new.set(key, value)
            });
        let mut may_be_made = false;
        let mut create = async || {
            let Ok(answers) = self.admin.create_topics([&new], &admin_options()).await else {
                may_be_made = true;
                return false;
            };
            let is_there = |answer: &TopicResult| {
                matches!(answer, Err((_, RDKafkaErrorCode::TopicAlreadyExists)))
            };
            let is_made =
                answers.iter().all(|answer| answer.is_ok() || may_be_made && is_there(answer));
            may_be_made |= is_made || answers.iter().any(|answer| !is_there(answer));
            is_made
        };
        eventually(&format!("topic {topic} is created"), SERVER_DEADLINE, &mut create).await;
        // The controller has answered, but brokers learn of the topic a moment later. A deletion
        // whose answer was lost may come after the creation.
        let mut missing = String::new();
        let has_leaders = look_for(SERVER_DEADLINE, async || match self.leaders(topic) {
            Ok(()) => Some(()),
            Err(error) => {
                missing = error;
                create().await;
                None
            }
        });
        let has_leaders = has_leaders.await.is_some();
        assert!(has_leaders, "topic {topic} has no leaders in {SERVER_DEADLINE:?}: {missing}");
    }

    /// Checks that each partition of a topic has a leader. Otherwise it returns what is missing.
    fn leaders(&self, topic: &str) -> Result<(), String> {
        let metadata = self.admin.inner().fetch_metadata(Some(topic), Duration::from_secs(5));
        let metadata = metadata.map_err(|error| error.to_string())?;
        for topic in metadata.topics() {
            if let Some(error) = topic.error() {
                return Err(format!("{error:?}"));
            }
            if let Some(part) = topic.partitions().iter().find(|part| part.leader() < 0) {
                return Err(format!("partition {} has the error {:?}", part.id(), part.error()));
            }
        }
        Ok(())
    }

    /// Replaces a topic's settings.
    pub async fn alter_topic(&self, topic: &str, settings: &[(&str, &str)]) {
        self.try_alter_topic(topic, settings).await.unwrap();
        eventually(&format!("topic {topic} has its new settings"), SERVER_DEADLINE, async || {
            self.has_settings(topic, settings).await.unwrap()
        })
        .await;
    }

    /// Returns true when the broker knows these settings of the topic, a moment after it has
    /// confirmed them. Fails if Kafka is down.
    pub async fn has_settings(
        &self,
        topic: &str,
        settings: &[(&str, &str)],
    ) -> Result<bool, String> {
        let resource = ResourceSpecifier::Topic(topic);
        let described = self.admin.describe_configs([&resource], &admin_options()).await;
        let described = described.map_err(|error| error.to_string())?.into_iter().next();
        let described = described.unwrap().map_err(|error| error.to_string())?;
        let is_set = |(key, value): &(&str, &str)| {
            described.get(key).is_some_and(|entry| entry.value.as_deref() == Some(value))
        };
        Ok(settings.iter().all(is_set))
    }

    /// Replaces a topic's settings, or fails if Kafka is down. Kafka applies them a moment later.
    pub async fn try_alter_topic(
        &self,
        topic: &str,
        settings: &[(&str, &str)],
    ) -> Result<(), String> {
        let change = AlterConfig::new(ResourceSpecifier::Topic(topic))
            .set("message.timestamp.type", "LogAppendTime");
        let change = settings.iter().fold(change, |change, (key, value)| change.set(key, value));
        let answers = self
            .admin
            .alter_configs([&change], &admin_options())
            .await
            .map_err(|error| error.to_string())?;
        if answers.iter().all(Result::is_ok) { Ok(()) } else { Err(format!("{answers:?}")) }
    }

    /// Deletes a topic. When it returns, the broker knows of it: a record for a topic of the same
    /// name does not get into the former log, which would be deleted with it.
    pub async fn delete_topic(&self, topic: &str) {
        self.try_delete_topic(topic).await.unwrap();
        eventually(&format!("topic {topic} is gone"), SERVER_DEADLINE, async || {
            self.leaders(topic).is_err_and(|error| error.contains("UNKNOWN_TOPIC"))
        })
        .await;
    }

    /// Deletes a topic, or fails if Kafka is down.
    pub async fn try_delete_topic(&self, topic: &str) -> Result<(), String> {
        let answers = self
            .admin
            .delete_topics(&[topic], &admin_options())
            .await
            .map_err(|error| error.to_string())?;
        if answers.iter().all(Result::is_ok) { Ok(()) } else { Err(format!("{answers:?}")) }
    }

    pub fn consumer(&self, topic: &str) -> Consumer {
        Consumer::start(&self.stack.kafka, topic, PARTITIONS)
    }

    // --- the contents of Postgres ---

    /// Queries the database for a single number.
    pub async fn count(&self, query: &'static str) -> i64 {
        sqlx::query_scalar(query)
            .fetch_one(&self.sql)
            .await
            .unwrap_or_else(|error| panic!("{query}: {error}"))
    }

    pub async fn execlog(&self) -> Vec<ExeclogLine> {
        let query =
            "select id, topic, round(extract(epoch from due_at) * 1000)::bigint as due_at, state,
              round(extract(epoch from published_at) * 1000)::bigint as published_at, partition,
                \"offset\",
              lateness_ms::bigint as lateness_ms, node
            from execlog";
        sqlx::query_as(query).fetch_all(&self.sql).await.expect("read the execlog")
    }

    /// Waits until this many tasks are published, cancelled or dead.
    pub async fn wait_final(&self, count: usize, deadline: Duration) {
        let query = "select count(*) from execlog
          where state in ('published', 'cancelled', 'dead', 'dropped')";
        let wanted = i64::try_from(count).unwrap();
        eventually(
            &format!("{count} tasks have their final line in the execlog"),
            deadline,
            async || {
                // A test may have stopped Postgres.
                sqlx::query_scalar::<_, i64>(query)
                    .fetch_one(&self.sql)
                    .await
                    .is_ok_and(|found| found >= wanted)
            },
        )
        .await;
    }

    /// Returns the ids of the tasks that a node has claimed and not settled.
    pub async fn unsettled(&self, owner: Uuid) -> Vec<Uuid> {
        let query = "select coalesce(b.first_ids[i], b.ids[i])
            from execlog_batch b cross join generate_series(1, b.task_count) i
            where b.settled_at is null and b.owner = $1";
        sqlx::query_scalar(query)
            .bind(owner)
            .fetch_all(&self.sql)
            .await
            .expect("read the unsettled batches")
    }

    /// Kills a node while some of its tasks are certainly claimed and not settled. Returns when the
    /// node froze, in milliseconds since the epoch, and the ids of the tasks.
    pub async fn kill_with_unsettled_work(&self, node: &mut Node) -> (i64, Vec<Uuid>) {
        let id = node.id().await;
        let (frozen_at, mut orphans) =
            eventually_some("the node has unsettled work", SERVER_DEADLINE, async || {
                // The node is frozen before the query, so its result still holds when the node
                // dies.
                let frozen_at = now_ms();
                node.freeze();
                let unsettled = self.unsettled(id).await;
                if unsettled.is_empty() {
                    node.thaw();
                }
                (!unsettled.is_empty()).then_some((frozen_at, unsettled))
            })
            .await;
        node.kill().await;
        // A claim that Postgres was executing when the node froze may have finished since. Adoption
        // happens seconds later.
        orphans.extend(self.unsettled(id).await);
        orphans.sort_unstable();
        orphans.dedup();
        (frozen_at, orphans)
    }
}

fn pool(url: &str) -> PgPool {
    let options: PgConnectOptions = url.parse().unwrap();
    PgPoolOptions::new().max_connections(4).connect_lazy_with(options.application_name("test"))
}

fn admin_options() -> AdminOptions {
    AdminOptions::new().request_timeout(Some(ADMIN_DEADLINE))
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let topics = std::mem::take(&mut *self.topics.lock());
        let (admin, topics) = (&self.admin, topics.iter().map(String::as_str).collect::<Vec<_>>());
        // A separate runtime in a separate thread, because the test's runtime may be shutting down.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let runtime =
                    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                let options = AdminOptions::new().request_timeout(Some(Duration::from_secs(5)));
                if !topics.is_empty()
                    && runtime.block_on(admin.delete_topics(&topics, &options)).is_err()
                {
                    eprintln!("topics of {} are left behind", self.name);
                }
            });
        });
        if !std::thread::panicking() && std::fs::remove_dir_all(&self.logs).is_err() {
            eprintln!("logs are left behind in {}", self.logs.display());
        }
    }
}
