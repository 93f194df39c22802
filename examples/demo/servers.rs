//! The servers, and the fresh database and topic that the demo creates there and drops at its end.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};
use uuid::Uuid;

use crate::Failure;

pub const PARTITIONS: i32 = 4;

pub struct Servers {
    pub database_url: String,
    pub kafka: String,
    pub etcd: String,
    /// Name of the database, of the cluster and of the topic.
    pub name: String,
    admin_url: String,
    admin: AdminClient<DefaultClientContext>,
}

/// The final state of one task in the execlog.
#[derive(sqlx::FromRow)]
pub struct FinalLine {
    pub id: Uuid,
    pub state: String,
    pub partition: Option<i32>,
    pub offset: Option<i64>,
}

pub fn setting(name: &str) -> Result<String, Failure> {
    std::env::var(name).map_err(|_unset| format!("{name} is not set: run `make demo`").into())
}

impl Servers {
    pub async fn prepare() -> Result<Self, Failure> {
        let admin_url = setting("PUNCTUAL_DATABASE_URL")?;
        let (kafka, etcd) = (setting("PUNCTUAL_KAFKA")?, setting("PUNCTUAL_ETCD")?);
        let name = format!("punctual_demo_{:08x}", rand::random::<u32>());
        administer(&admin_url, format!("create database {name}"))
            .await
            .map_err(|error| format!("create a database: {error}"))?;
        let mut url = reqwest::Url::parse(&admin_url)?;
        url.set_path(&format!("/{name}"));
        let admin: AdminClient<_> =
            ClientConfig::new().set("bootstrap.servers", &kafka).create()?;
        let servers = Self { database_url: url.to_string(), kafka, etcd, name, admin_url, admin };
        servers.create_topic().await?;
        Ok(servers)
    }

    /// Creates the topic with the broker's append time, so the consumer sees when a record was
    /// really there.
    async fn create_topic(&self) -> Result<(), Failure> {
        let topic = NewTopic::new(&self.name, PARTITIONS, TopicReplication::Fixed(1))
            .set("message.timestamp.type", "LogAppendTime");
        let options = AdminOptions::new().operation_timeout(Some(Duration::from_secs(10)));
        for answer in self.admin.create_topics([&topic], &options).await? {
            answer.map_err(|(topic, code)| format!("create topic {topic}: {code}"))?;
        }
        Ok(())
    }

    pub async fn sql(&self) -> Result<PgConnection, Failure> {
        let options: PgConnectOptions = self.database_url.parse()?;
        Ok(options.application_name("demo").connect().await?)
    }

    pub async fn forget(&self) -> Result<(), Failure> {
        administer(&self.admin_url, format!("drop database {} with (force)", self.name)).await?;
        self.admin.delete_topics(&[&self.name], &AdminOptions::new()).await?;
        Ok(())
    }
}

async fn administer(url: &str, statement: String) -> Result<(), sqlx::Error> {
    let options: PgConnectOptions = url.parse()?;
    let mut connection = options.connect().await?;
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut connection).await?;
    connection.close().await
}

/// Returns the tasks that a node has claimed and not settled.
pub async fn unsettled(sql: &mut PgConnection, owner: Uuid) -> Result<Vec<Uuid>, Failure> {
    let query = "select coalesce(b.first_ids[i], b.ids[i])
        from execlog_batch b cross join generate_series(1, b.task_count) i
        where b.settled_at is null and b.owner = $1";
    Ok(sqlx::query_scalar(query).bind(owner).fetch_all(sql).await?)
}

pub async fn final_lines(sql: &mut PgConnection) -> Result<Vec<FinalLine>, Failure> {
    let query = "select id, state, partition, \"offset\" from execlog where state in ('published', \
                 'cancelled', 'dead')";
    Ok(sqlx::query_as(query).fetch_all(sql).await?)
}
