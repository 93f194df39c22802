//! The servers, and the database and topic that each run creates on them.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use punctual::bench::args::topics_in_turn;
use punctual::domain::TopicName;
use punctual::shutdown::TaskFailure;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

/// Name of the report's setting that holds [`write_back`].
pub const WRITE_BACK: &str = "write-back";
/// Name of the report's setting that holds [`commit`].
pub const COMMIT: &str = "commit";
/// Name of the report's setting that holds [`machine`].
pub const MACHINE: &str = "machine";
/// Name of the broker in the usage of a report.
pub const KAFKA: &str = "kafka";

pub struct Servers {
    database_url: String,
    pub kafka: String,
    pub etcd: String,
    /// The folder of results and logs.
    pub folder: PathBuf,
    /// The folder of Kafka's libraries for Java.
    pub kafka_jars: PathBuf,
    /// The folder of the release programs.
    programs: PathBuf,
    /// Process ids of the servers, by name.
    pub pids: Vec<(&'static str, u32)>,
}

/// The database and the topics of one run. [`Servers::forget`] drops them.
pub struct Place {
    pub name: String,
    pub url: String,
    /// The database of an application that submits by an outbox. See [`Servers::open_shop`].
    pub shop_url: String,
    /// The name of the topic, or what the names of all topics begin with.
    pub topic: String,
    pub topics: Vec<TopicName>,
}

fn shop_of(name: &str) -> String {
    format!("{name}_shop")
}

impl Place {
    /// Returns the name of the intake topic, if the run has one.
    pub fn intake(&self) -> String {
        format!("{}-in", self.topic)
    }
}

pub fn setting(name: &str) -> Result<String, TaskFailure> {
    std::env::var(name)
        .map_err(|_unset| format!("{name} is not set: run this by `make bench`").into())
}

impl Servers {
    pub fn from_environment() -> Result<Self, TaskFailure> {
        let programs = std::env::current_exe()?
            .parent()
            .and_then(|examples| examples.parent())
            .ok_or("no folder of programs")?
            .to_owned();
        let stack = PathBuf::from(setting("PUNCTUAL_STACK")?);
        let pid = |service: &str| -> Result<u32, TaskFailure> {
            let text = std::fs::read_to_string(stack.join(format!("{service}.pid")))?;
            Ok(text.split_whitespace().next().unwrap_or_default().parse()?)
        };
        Ok(Self {
            database_url: setting("PUNCTUAL_DATABASE_URL")?,
            kafka: setting("PUNCTUAL_KAFKA")?,
            etcd: setting("PUNCTUAL_ETCD")?,
            folder: setting("PUNCTUAL_BENCH_FOLDER")?.into(),
            kafka_jars: setting("PUNCTUAL_KAFKA_JARS")?.into(),
            programs,
            pids: vec![("postgres", pid("postgres")?), (KAFKA, pid("kafka")?)],
        })
    }

    /// Returns the path of `punctual`, `poller` or `floor`.
    pub fn program(&self, name: &str) -> PathBuf {
        if name == "punctual" {
            self.programs.join(name)
        } else {
            self.programs.join("examples").join(name)
        }
    }

    /// Creates an empty database, and `count` topics with append times.
    pub async fn place(&self, count: u16, partitions: i32) -> Result<Place, TaskFailure> {
        let name = format!("bench_{:08x}", rand::random::<u32>());
        self.administer(format!("create database {name}")).await?;
        let mut url = reqwest::Url::parse(&self.database_url)?;
        url.set_path(&shop_of(&name));
        let shop_url = url.to_string();
        url.set_path(&name);
        let topic = name.replace('_', "-");
        let topics = topics_in_turn(&TopicName::new(&topic)?, count)?;
        for name in &topics {
            self.topic(name.as_str(), partitions).await?;
        }
        Ok(Place { name, url: url.to_string(), shop_url, topic, topics })
    }

    /// Creates the database of an application. The cluster's own would not do: the schema of an
    /// outbox has the name of the cluster's user, and would come before its tables.
    pub async fn open_shop(&self, place: &Place) -> Result<(), TaskFailure> {
        self.administer(format!("create database {}", shop_of(&place.name))).await
    }

    pub async fn topic(&self, name: &str, partitions: i32) -> Result<(), TaskFailure> {
        let new = NewTopic::new(name, partitions, TopicReplication::Fixed(1))
            .set("message.timestamp.type", "LogAppendTime");
        let made = self.admin()?.create_topics(&[new], &AdminOptions::new()).await?;
        made.into_iter()
            .next()
            .ok_or("Kafka did not answer")?
            .map_err(|(topic, code)| format!("create topic {topic}: {code}"))?;
        Ok(())
    }

    pub async fn forget(&self, place: &Place) -> Result<(), TaskFailure> {
        let intake = place.intake();
        let topics = place.topics.iter().map(TopicName::as_str);
        // Without an intake topic, Kafka says so for it alone.
        let topics: Vec<&str> = topics.chain([intake.as_str()]).collect();
        self.admin()?.delete_topics(&topics, &AdminOptions::new()).await?;
        for database in [&place.name, &shop_of(&place.name)] {
            self.administer(format!("drop database if exists {database} with (force)")).await?;
        }
        // A checkpoint now, so the next run does not pay for the writes of this one.
        self.administer("checkpoint".to_owned()).await
    }

    /// Runs statements in a database.
    pub async fn run_in(&self, place: &Place, statements: &'static str) -> Result<(), TaskFailure> {
        let mut connection = PgConnection::connect(&place.url).await?;
        sqlx::raw_sql(statements).execute(&mut connection).await?;
        Ok(connection.close().await?)
    }

    /// Returns the single value of a query.
    pub async fn ask(&self, url: &str, query: &str) -> Result<String, TaskFailure> {
        let mut connection = PgConnection::connect(url).await?;
        let value = sqlx::query_scalar::<_, String>(AssertSqlSafe(query))
            .fetch_one(&mut connection)
            .await?;
        connection.close().await?;
        Ok(value)
    }

    pub async fn version(&self) -> Result<String, TaskFailure> {
        self.ask(&self.database_url, "select current_setting('server_version')").await
    }

    /// Returns the server settings that affect durability and speed.
    pub async fn settings(&self) -> Result<String, TaskFailure> {
        let query = "select string_agg(name || ' ' || current_setting(name), ', ' order by name)
            from pg_settings
            where name in ('fsync', 'full_page_writes', 'synchronous_commit', 'shared_buffers',
              'max_wal_size', 'checkpoint_timeout', 'wal_compression', 'jit')";
        self.ask(&self.database_url, query).await
    }

    async fn administer(&self, statement: String) -> Result<(), TaskFailure> {
        let mut connection = PgConnection::connect(&self.database_url).await?;
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut connection).await?;
        Ok(connection.close().await?)
    }

    fn admin(&self) -> Result<AdminClient<DefaultClientContext>, TaskFailure> {
        Ok(ClientConfig::new()
            .set("bootstrap.servers", &self.kafka)
            .set("request.timeout.ms", millis(Duration::from_secs(20)))
            .create()?)
    }
}

/// Returns the limits and the interval of the kernel's write-back (`vm.dirty_*`) of data written
/// without waiting. A commit waits for a large write-back. Empty where the kernel does not expose
/// these values.
pub fn write_back() -> String {
    let value = |name: &str| -> Option<u64> {
        std::fs::read_to_string(format!("/proc/sys/vm/dirty_{name}")).ok()?.trim().parse().ok()
    };
    let (Some(bytes), Some(percent), Some(centis)) =
        (value("background_bytes"), value("background_ratio"), value("writeback_centisecs"))
    else {
        return String::new();
    };
    let from = if bytes > 0 {
        format!("{} MiB", bytes >> 20)
    } else {
        format!("{percent} % of the memory")
    };
    format!("from {from} on, a look each {} ms", centis.saturating_mul(10))
}

/// Returns the commit checked out, and whether the programs were changed since. Pages that a run
/// writes do not count as a change.
pub fn commit() -> String {
    let is_changed = !said(
        "git",
        &["diff", "--stat", "HEAD", "--", "src", "benches", "migrations", "Cargo.lock"],
    )
    .is_empty();
    format!(
        "{}{}",
        said("git", &["rev-parse", "--short", "HEAD"]),
        if is_changed { " with changes" } else { "" }
    )
}

/// Describes the machine that runs the servers and the measured programs.
pub fn machine() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
        .map_or("unknown", |(_, name)| name.trim());
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = memory.lines().find_map(|line| {
        line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse::<f64>().ok()
    });
    let gib = kib.unwrap_or_default() / 1_048_576.0;
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    format!("{cores} cores of {model}, {gib:.0} GiB")
}

/// Returns the output of a program in one line.
pub fn said(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output
        .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        .unwrap_or_default()
}

fn millis(span: Duration) -> String {
    span.as_millis().to_string()
}
