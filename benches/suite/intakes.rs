//! Submits tasks to the poller and to the floor: the same records as for Punctual, inserted
//! straight into their tables.

use punctual::bench::ledger::Planned;
use punctual::bench::load::intake::{CallResult, LoadConnection, LoadTarget};
use punctual::bench::load::record::Records;
use punctual::domain::{Headers, NewTask, NodeId, Record, ShardCount, Timestamp, TopicName};
use punctual::postgres::tasks::submit::{Group, Submits};
use punctual::postgres::{self, PostgresSettings};
use sqlx::{Connection as _, PgConnection};

/// Inserts into the poller's table: an insert for one task, one statement for many, COPY for more
/// than a thousand.
pub struct PollerIntake {
    pub url: String,
    pub topic: String,
    pub records: Records,
}

pub struct PollerConnection {
    connection: PgConnection,
    topic: String,
    records: Records,
}

const ONE: &str = "insert into poll_task (topic, key, payload, due_at) values ($1, $2, $3, \
                   to_timestamp($4::float8 / 1000))";

const MANY: &str = "insert into poll_task (topic, key, payload, due_at)
select $1, t.key, t.payload, to_timestamp(t.due_at::float8 / 1000)
  from unnest($2::bytea[], $3::bytea[], $4::bigint[]) as t(key, payload, due_at)";

const COPY: &str = "copy poll_task (topic, key, payload, due_at) from stdin";

/// Larger calls use COPY.
const UNNEST_MAX: usize = 1_000;

impl LoadTarget for PollerIntake {
    type Connection = PollerConnection;

    async fn open(&self, _number: usize) -> Result<PollerConnection, String> {
        let connection =
            PgConnection::connect(&self.url).await.map_err(|error| error.to_string())?;
        Ok(PollerConnection {
            connection,
            topic: self.topic.clone(),
            records: self.records.clone(),
        })
    }
}

impl PollerConnection {
    async fn insert(&mut self, tasks: &[Planned]) -> Result<(), sqlx::Error> {
        let (records, connection) = (&self.records, &mut self.connection);
        let keys: Vec<[u8; 16]> = tasks.iter().map(|task| records.key(task.key)).collect();
        if let ([task], [key]) = (tasks, keys.as_slice()) {
            let payload = records.payload(task.key).as_bytes();
            sqlx::query(ONE)
                .bind(&self.topic)
                .bind(&key[..])
                .bind(payload)
                .bind(task.due_at)
                .execute(connection)
                .await?;
        } else if tasks.len() <= UNNEST_MAX {
            let query = sqlx::query(MANY)
                .bind(&self.topic)
                .bind(keys.iter().map(|key| &key[..]).collect::<Vec<_>>())
                .bind(
                    tasks
                        .iter()
                        .map(|task| records.payload(task.key).as_bytes())
                        .collect::<Vec<_>>(),
                )
                .bind(tasks.iter().map(|task| task.due_at).collect::<Vec<_>>());
            query.execute(connection).await?;
        } else {
            let mut lines = String::new();
            for (task, key) in tasks.iter().zip(&keys) {
                let (key, payload) = (String::from_utf8_lossy(key), records.payload(task.key));
                let due_at = jiff::Timestamp::from_millisecond(task.due_at).unwrap_or_default();
                lines.push_str(&format!("{}\t{key}\t{payload}\t{due_at}\n", self.topic));
            }
            let mut copy = connection.copy_in_raw(COPY).await?;
            copy.send(lines.as_bytes()).await?;
            copy.finish().await?;
        }
        Ok(())
    }
}

impl LoadConnection for PollerConnection {
    async fn submit(&mut self, tasks: &[Planned]) -> Result<CallResult, String> {
        self.insert(tasks).await.map_err(|error| error.to_string())?;
        Ok(CallResult::All)
    }
}

/// Inserts into the product's tables with the product's statement.
pub struct FloorIntake {
    pub url: String,
    pub topic: TopicName,
    pub records: Records,
}

pub struct FloorConnection {
    submits: Submits,
    topic: TopicName,
    records: Records,
}

impl LoadTarget for FloorIntake {
    type Connection = FloorConnection;

    async fn open(&self, _number: usize) -> Result<FloorConnection, String> {
        let settings = PostgresSettings::new(&self.url)?;
        let node = NodeId::new(Timestamp::EPOCH, rand::random(), rand::random());
        Ok(FloorConnection {
            submits: Submits::new(&settings, node),
            topic: self.topic.clone(),
            records: self.records.clone(),
        })
    }
}

impl FloorConnection {
    fn new_task(&self, task: &Planned) -> NewTask {
        let record = Record {
            topic: self.topic.clone(),
            key: Some(self.records.key(task.key).into()),
            payload: Some(self.records.payload(task.key).as_bytes().into()),
            headers: Headers::default(),
        };
        NewTask::new(
            record,
            None,
            Timestamp::from_millis(task.due_at),
            ShardCount::DEFAULT,
            (rand::random(), rand::random()),
        )
    }
}

impl LoadConnection for FloorConnection {
    async fn submit(&mut self, tasks: &[Planned]) -> Result<CallResult, String> {
        let tasks: Vec<NewTask> = tasks.iter().map(|task| self.new_task(task)).collect();
        for group in tasks.chunks(postgres::tasks::submit::TASKS_MAX) {
            let group = Group { near: group.iter().collect(), ..Group::default() };
            self.submits.store(&group).await.map_err(|error| error.to_string())?;
        }
        Ok(CallResult::All)
    }
}
