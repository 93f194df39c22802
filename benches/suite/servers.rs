//! The servers, and what is made on them for each run: a database and a topic of its own.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use punctual::shutdown::Failure;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

/// The setting of a report under which [`write_back`] is told.
pub const WRITE_BACK: &str = "write-back";
/// The setting of a report under which [`commit`] is told.
pub const COMMIT: &str = "commit";
/// The setting of a report under which [`machine`] is told.
pub const MACHINE: &str = "machine";
/// The broker, in the usage of a report.
pub const KAFKA: &str = "kafka";

pub struct Servers {
    database_url: String,
    pub kafka: String,
    pub etcd: String,
    /// Where results and logs are kept.
    pub folder: PathBuf,
    /// The folder of the release programs.
    programs: PathBuf,
    /// Numbers of the server processes, by name.
    pub pids: Vec<(&'static str, u32)>,
}

/// A database of one run; forgotten by [`Servers::forget`].
pub struct Place {
    pub name: String,
    pub url: String,
    pub topic: String,
}

pub fn setting(name: &str) -> Result<String, Failure> {
    std::env::var(name).map_err(|_unset| format!("{name} is not set: run this by `make bench`").into())
}

impl Servers {
    pub fn from_environment() -> Result<Self, Failure> {
        let programs =
            std::env::current_exe()?.parent().and_then(|examples| examples.parent()).ok_or("no folder of programs")?.to_owned();
        let stack = PathBuf::from(setting("PUNCTUAL_STACK")?);
        let pid = |service: &str| -> Result<u32, Failure> {
            let text = std::fs::read_to_string(stack.join(format!("{service}.pid")))?;
            Ok(text.split_whitespace().next().unwrap_or_default().parse()?)
        };
        Ok(Self {
            database_url: setting("PUNCTUAL_DATABASE_URL")?,
            kafka: setting("PUNCTUAL_KAFKA")?,
            etcd: setting("PUNCTUAL_ETCD")?,
            folder: setting("PUNCTUAL_BENCH_FOLDER")?.into(),
            programs,
            pids: vec![("postgres", pid("postgres")?), (KAFKA, pid("kafka")?)],
        })
    }

    /// `punctual`, `poller` or `floor`.
    pub fn program(&self, name: &str) -> PathBuf {
        if name == "punctual" { self.programs.join(name) } else { self.programs.join("examples").join(name) }
    }

    /// An empty database and a topic with append times.
    pub async fn place(&self, partitions: i32) -> Result<Place, Failure> {
        let name = format!("bench_{:08x}", rand::random::<u32>());
        self.administer(format!("create database {name}")).await?;
        let mut url = reqwest::Url::parse(&self.database_url)?;
        url.set_path(&format!("/{name}"));
        let topic = name.replace('_', "-");
        self.topic(&topic, partitions).await?;
        Ok(Place { name, url: url.to_string(), topic })
    }

    pub async fn topic(&self, name: &str, partitions: i32) -> Result<(), Failure> {
        let new = NewTopic::new(name, partitions, TopicReplication::Fixed(1)).set("message.timestamp.type", "LogAppendTime");
        let made = self.admin()?.create_topics(&[new], &AdminOptions::new()).await?;
        made.into_iter()
            .next()
            .ok_or("Kafka did not answer")?
            .map_err(|(topic, code)| format!("create topic {topic}: {code}"))?;
        Ok(())
    }

    pub async fn forget(&self, place: &Place) -> Result<(), Failure> {
        self.admin()?.delete_topics(&[&place.topic], &AdminOptions::new()).await?;
        self.administer(format!("drop database if exists {} with (force)", place.name)).await?;
        // What one run left to be written is not the next one's to pay.
        self.administer("checkpoint".to_owned()).await
    }

    /// Runs statements in a database.
    pub async fn run_in(&self, place: &Place, statements: &'static str) -> Result<(), Failure> {
        let mut connection = PgConnection::connect(&place.url).await?;
        sqlx::raw_sql(statements).execute(&mut connection).await?;
        Ok(connection.close().await?)
    }

    /// One value of a query.
    pub async fn ask(&self, url: &str, query: &str) -> Result<String, Failure> {
        let mut connection = PgConnection::connect(url).await?;
        let value = sqlx::query_scalar::<_, String>(AssertSqlSafe(query)).fetch_one(&mut connection).await?;
        connection.close().await?;
        Ok(value)
    }

    pub async fn version(&self) -> Result<String, Failure> {
        self.ask(&self.database_url, "select current_setting('server_version')").await
    }

    /// The settings on which durability and speed depend.
    pub async fn settings(&self) -> Result<String, Failure> {
        let query = "select string_agg(name || ' ' || current_setting(name), ', ' order by name) from pg_settings
            where name in ('fsync', 'full_page_writes', 'synchronous_commit', 'shared_buffers', 'max_wal_size', 'checkpoint_timeout', 'wal_compression', 'jit')";
        self.ask(&self.database_url, query).await
    }

    async fn administer(&self, statement: String) -> Result<(), Failure> {
        let mut connection = PgConnection::connect(&self.database_url).await?;
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut connection).await?;
        Ok(connection.close().await?)
    }

    fn admin(&self) -> Result<AdminClient<DefaultClientContext>, Failure> {
        Ok(ClientConfig::new()
            .set("bootstrap.servers", &self.kafka)
            .set("request.timeout.ms", millis(Duration::from_secs(20)))
            .create()?)
    }
}

/// From how much on, and how often, this machine's kernel writes back what programs wrote without
/// waiting for it (`vm.dirty_*`): what it does in one go, a commit waits for. Empty where the
/// kernel does not tell.
pub fn write_back() -> String {
    let value =
        |name: &str| -> Option<u64> { std::fs::read_to_string(format!("/proc/sys/vm/dirty_{name}")).ok()?.trim().parse().ok() };
    let (Some(bytes), Some(percent), Some(centis)) =
        (value("background_bytes"), value("background_ratio"), value("writeback_centisecs"))
    else {
        return String::new();
    };
    let from = if bytes > 0 { format!("{} MiB", bytes >> 20) } else { format!("{percent} % of the memory") };
    format!("from {from} on, a look each {} ms", centis.saturating_mul(10))
}

/// What is checked out, and whether the programs were changed in it: the pages that a run writes do
/// not count.
pub fn commit() -> String {
    let is_changed = !said("git", &["diff", "--stat", "HEAD", "--", "src", "benches", "migrations", "Cargo.lock"]).is_empty();
    format!("{}{}", said("git", &["rev-parse", "--short", "HEAD"]), if is_changed { " with changes" } else { "" })
}

/// What the servers, and all that is measured, run on.
pub fn machine() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':')).map_or("unknown", |(_, name)| name.trim());
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = memory.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    let gib = kib.unwrap_or_default() / 1_048_576.0;
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    format!("{cores} cores of {model}, {gib:.0} GiB")
}

/// What a program prints, in a line.
pub fn said(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}

fn millis(span: Duration) -> String {
    span.as_millis().to_string()
}
