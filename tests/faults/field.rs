//! The system under test: a cluster of three nodes and the consumers of its topics. Each node has
//! its own proxies to the servers of a breakable stack.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _};
use uuid::Uuid;

use super::access::Access;
use super::clock_file::ClockFile;
use super::consumers::Delivery;
use super::doors::Doors;
use super::history::{
    Arrival, BY_RECORD, BY_SQL, DEAD, DELETED, Expiry, LIMITED, Line, PAUSED, PROMPT, SCHEDULED,
    SERVED, STEADY, Topic, UNAVAILABLE,
};
use super::nodes::{Settings, Slot};
use super::plan::{CLOCK_NODE, NODES, Server};
use super::schedule_history::{MadeRun, RunHeaders};
use super::services::Services;
use super::ways::Ways;
use crate::support::api::client;
use crate::support::cluster::PARTITIONS;
use crate::support::ledger::SERIAL_HEADER;
use crate::support::node::binary;
use crate::support::wait::look_for;
use crate::support::{Cluster, Consumer, OwnStack, Record, Wishes, eventually, now_ms, wait};

const READY_DEADLINE: Duration = Duration::from_secs(180);
const HTTP_DEADLINE: Duration = Duration::from_secs(10);
const TABLESPACE: &str = "small_disk";
/// The node that may be of an earlier build. It is not that with a clock of its own.
const FORMER_NODE: u8 = 2;
/// The policy of the topic of pauses.
const EXPIRE_AFTER_MS: i64 = 4000;
/// All nodes use a new policy after this time.
const POLICY_KNOWN_MS: i64 = 2500;
/// Tracked tasks for a hundred others, in rounds of faults.
const TRACKED_PERCENT: u32 = 12;

/// The setup of a cluster.
#[derive(Clone, Debug)]
pub struct Setup {
    pub name: String,
    /// Arguments of `serve`, besides the addresses of the servers.
    pub arguments: Vec<String>,
    pub wishes: Wishes,
    pub tasks_per_second: u32,
    /// True when the plan was made to hold each kind of operation.
    pub is_deck: bool,
    /// Tracked tasks for a hundred others.
    pub tracked_percent: u32,
    /// The traffic has expiries, moves, schedules, consumers without Kafka, and a topic with a
    /// policy that is sometimes paused.
    pub is_varied: bool,
    /// Nodes check tokens and rights.
    pub has_access: bool,
    /// A part of the traffic comes through an outbox and an intake topic.
    pub has_doors: bool,
    /// The program of one node, if it is of an earlier build.
    pub former: Option<PathBuf>,
}

/// A cluster under test.
pub struct Field {
    pub own: Arc<OwnStack>,
    pub cluster: Cluster,
    pub ways: Ways,
    pub slots: Vec<Arc<Slot>>,
    pub http: reqwest::Client,
    /// The folder for logs and results.
    pub folder: PathBuf,
    clock_file: PathBuf,
    pub postgres_clock: Arc<ClockFile>,
    /// `None` while everybody may do everything.
    pub access: Option<Arc<Access>>,
    /// The doors beside REST, if the cluster has them.
    pub doors: Option<Arc<Doors>>,
    topics: Mutex<Vec<Topic>>,
    readers: Mutex<Vec<Reader>>,
    pub unable: Mutex<Vec<(String, i64)>>,
    /// `None` while nobody is called back.
    pub services: Option<Services>,
}

/// The consumer of a topic, until the topic is deleted.
struct Reader {
    topic: usize,
    incarnation: usize,
    consumer: Consumer,
}

impl Setup {
    /// Leaves and horizon are short, so within a run leaves are created and retired, and tasks move
    /// out of the far table. No step takes minutes.
    pub fn of_faults(name: &str, tasks_per_second: u32, is_deck: bool) -> Self {
        let wishes = Wishes { leaf: "10s", horizon: "20s", ..Wishes::default() };
        let arguments =
            ["--session-ttl", "2s", "--topic-denial-max", "3s", "--publish-deadline", "8s"];
        Self {
            name: name.to_owned(),
            arguments: arguments.map(str::to_owned).to_vec(),
            wishes,
            tasks_per_second,
            is_deck,
            tracked_percent: TRACKED_PERCENT,
            is_varied: true,
            has_access: false,
            has_doors: false,
            former: None,
        }
    }

    /// Measurements use the default settings of a node.
    pub fn of_measurement(name: &str, tasks_per_second: u32) -> Self {
        let wishes = Wishes { shards: 64, ..Wishes::default() };
        Self {
            name: name.to_owned(),
            arguments: Vec::new(),
            wishes,
            tasks_per_second,
            is_deck: false,
            tracked_percent: 0,
            is_varied: false,
            has_access: false,
            has_doors: false,
            former: None,
        }
    }
}

impl Field {
    /// Sets up a new cluster on a stack and waits until all of it is ready.
    pub async fn prepare(own: Arc<OwnStack>, setup: &Setup, folder: PathBuf) -> Self {
        let extras = own.extras.clone().expect("the stack is breakable");
        let ways = Ways::new(&extras.toxiproxy).await;
        ways.mend_all().await;
        let cluster = Cluster::unmigrated(&own.stack, &setup.name, setup.wishes).await;
        if !own.is_replicated() {
            put_on_small_disk(&own, &cluster.database.name, &extras.disk).await;
        }
        cluster.migrate().await;
        let clock_file = folder.join("clock");
        let postgres_clock = Arc::new(ClockFile::open(&extras.clock));
        let access = match setup.has_access {
            true => Some(Arc::new(Access::make(&folder).await)),
            false => None,
        };
        let mut arguments = setup.arguments.clone();
        arguments.extend(access.iter().flat_map(|access| access.arguments()));
        let services = setup.is_varied.then(|| Services::reserve(&folder));
        arguments.extend(services.iter().flat_map(Services::arguments));
        let mut field = Self {
            own,
            cluster,
            ways,
            slots: Vec::new(),
            http: client(HTTP_DEADLINE),
            folder,
            clock_file,
            postgres_clock,
            access,
            doors: None,
            topics: Mutex::default(),
            readers: Mutex::default(),
            unable: Mutex::default(),
            services,
        };
        field.step_clock(0);
        field.make_topics(setup.has_doors).await;
        if setup.has_doors {
            field.doors = Some(Arc::new(Doors::open(&field.own, &field.cluster).await));
        }
        field.slots = (1..=NODES)
            .map(|number| Slot::start(field.settings(number, setup, &arguments)))
            .collect();
        for slot in &field.slots {
            let what = format!("node {} is ready", slot.number());
            eventually(&what, READY_DEADLINE, async || slot.is_ready(&field.http).await).await;
        }
        if setup.is_varied {
            field.set_policy().await;
        }
        field
    }

    fn settings(&self, number: u8, setup: &Setup, more: &[String]) -> Settings {
        let url = self.ways.database_url(number, &self.cluster.database.name);
        let kafka = self.ways.address(Server::Kafka, number);
        let etcd = format!("http://{}", self.ways.address(Server::Etcd, number));
        let own = [
            "--database-url",
            &url,
            "--kafka",
            &kafka,
            "--etcd",
            &etcd,
            "--cluster",
            &self.cluster.name,
        ];
        let doors = self.doors.iter().flat_map(|doors| doors.arguments(&self.ways, number));
        let arguments =
            own.into_iter().map(str::to_owned).chain(more.iter().cloned()).chain(doors).collect();
        let variables = if number == CLOCK_NODE { self.clock_variables() } else { Vec::new() };
        let former = setup.former.clone().filter(|_program| number == FORMER_NODE);
        let program = former.unwrap_or_else(binary);
        Settings { number, program, arguments, variables, logs: self.folder.clone() }
    }

    /// Returns the environment of the node with a movable wall clock. A preloaded library changes
    /// the wall clock only.
    fn clock_variables(&self) -> Vec<(String, String)> {
        let file = self.clock_file.to_string_lossy().into_owned();
        [
            ("LD_PRELOAD", faketime_library()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_TIMESTAMP_FILE", file),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
    }

    /// Sets the wall clock of one node this far ahead of the machine's.
    pub fn step_clock(&self, millis: i64) {
        let new = self.clock_file.with_extension("new");
        std::fs::write(
            &new,
            format!(
                "{}{}.{:03}\n",
                if millis < 0 { '-' } else { '+' },
                millis.abs() / 1000,
                millis.abs() % 1000
            ),
        )
        .expect("write the clock's file");
        std::fs::rename(&new, &self.clock_file).expect("put the clock's file in its place");
    }

    // --- topics and their readers ---

    async fn make_topics(&self, has_doors: bool) {
        let has_one_broker = !self.own.is_replicated();
        if has_one_broker {
            self.own.know_second_broker().await;
        }
        for (index, suffix) in [
            (STEADY, "steady"),
            (UNAVAILABLE, "unavailable"),
            (DELETED, "deleted"),
            (LIMITED, "limited"),
            (PAUSED, "paused"),
            (SCHEDULED, "scheduled"),
            (SERVED, "served"),
            (PROMPT, "prompt"),
            (DEAD, "dead"),
            (BY_SQL, "by-sql"),
            (BY_RECORD, "by-record"),
        ] {
            if index > DEAD && !has_doors {
                break;
            }
            let name = match index {
                UNAVAILABLE if has_one_broker => self.cluster.topic_with_replica_away(suffix).await,
                _ => self.cluster.topic(suffix).await,
            };
            self.topics.lock().unwrap().push(Topic { name, ..Topic::default() });
            self.read(index, 0);
        }
    }

    /// Gives the topic of pauses a policy that all nodes know.
    async fn set_policy(&self) {
        let path = format!("/v1/topics/{}/policy", self.topic_name(PAUSED));
        let policy = json!({ "expire_after": format!("{EXPIRE_AFTER_MS}ms") });
        self.order(Method::PUT, &path, &policy).await;
        self.note(PAUSED, |topic| topic.expire_after = Some(EXPIRE_AFTER_MS));
        wait::until(now_ms() + POLICY_KNOWN_MS).await;
    }

    /// Sends a request of an operator to one node after another until a node carries it out.
    pub async fn order(&self, method: Method, path: &str, body: &Value) {
        let token = self.access.as_ref().map(|access| access.owner());
        eventually(path, READY_DEADLINE, async || {
            for address in self.slots.iter().filter_map(|slot| slot.address()) {
                let request = self.http.request(method.clone(), format!("http://{address}{path}"));
                let request = match &token {
                    Some(token) => request.bearer_auth(token),
                    None => request,
                };
                let request =
                    request.header("content-type", "application/json").body(body.to_string());
                match request.send().await {
                    Ok(answer) if answer.status().is_success() => return true,
                    Ok(answer) => eprintln!("{path}: {}", answer.status()),
                    Err(error) => eprintln!("{path}: {error}"),
                }
            }
            false
        })
        .await;
    }

    fn read(&self, topic: usize, incarnation: usize) {
        let consumer = Consumer::start(&self.own.stack.kafka, &self.topic_name(topic), PARTITIONS);
        self.readers.lock().unwrap().push(Reader { topic, incarnation, consumer });
    }

    pub fn topic_name(&self, topic: usize) -> String {
        self.topics.lock().unwrap()[topic].name.clone()
    }

    pub fn topics(&self) -> Vec<Topic> {
        self.topics.lock().unwrap().clone()
    }

    pub fn note(&self, topic: usize, note: impl FnOnce(&mut Topic)) {
        note(&mut self.topics.lock().unwrap()[topic]);
    }

    /// Stops reading a deleted topic. Keeps the records read so far.
    pub fn stop_reading(&self, topic: usize) {
        for reader in self.readers.lock().unwrap().iter_mut().filter(|reader| reader.topic == topic)
        {
            reader.consumer.end();
        }
    }

    /// Reads a topic that was created again.
    pub fn read_again(&self, topic: usize) {
        let incarnation =
            self.readers.lock().unwrap().iter().filter(|reader| reader.topic == topic).count();
        self.read(topic, incarnation);
    }

    /// Returns topic, partition and offset of all records that have arrived.
    pub fn positions(&self) -> HashSet<(usize, i32, i64)> {
        let readers = self.readers.lock().unwrap();
        let positions = readers.iter().flat_map(|reader| {
            let of = |records: &[Record]| -> Vec<_> {
                records
                    .iter()
                    .map(|record| (reader.topic, record.partition, record.offset))
                    .collect()
            };
            reader.consumer.look(of)
        });
        positions.collect()
    }

    pub fn record_count(&self) -> usize {
        self.readers
            .lock()
            .unwrap()
            .iter()
            .map(|reader| reader.consumer.look(<[Record]>::len))
            .sum()
    }

    pub fn arrivals(&self) -> Vec<Arrival> {
        self.readers
            .lock()
            .unwrap()
            .iter()
            .flat_map(|reader| {
                reader.consumer.records().into_iter().map(|record| arrival(reader, &record))
            })
            .collect()
    }

    /// Returns the records of tracked tasks that have arrived since the last call. `handled` counts
    /// the records of each reader. Topics that only callbacks consume are left out.
    pub fn deliveries(&self, handled: &mut Vec<usize>) -> Vec<Delivery> {
        self.deliveries_of(handled, |topic| topic < SERVED)
    }

    /// As [`Self::deliveries`], of tasks that came through a door beside REST.
    pub fn door_deliveries(&self, handled: &mut Vec<usize>) -> Vec<Delivery> {
        self.deliveries_of(handled, |topic| topic > DEAD)
    }

    fn deliveries_of(
        &self,
        handled: &mut Vec<usize>,
        is_wanted: impl Fn(usize) -> bool,
    ) -> Vec<Delivery> {
        let readers = self.readers.lock().unwrap();
        handled.resize(readers.len(), 0);
        let wanted = readers.iter().zip(handled).filter(|(reader, _)| is_wanted(reader.topic));
        let new = wanted.flat_map(|(reader, handled)| {
            reader.consumer.look(|records| {
                let new = records[*handled..].iter();
                *handled = records.len();
                new.filter_map(|record| delivery(reader.topic, record)).collect::<Vec<_>>()
            })
        });
        new.collect()
    }

    // --- the contents of Postgres ---

    /// Counts unfinished work: waiting tasks due before `until` by Postgres's clock, follow-ups
    /// with any due time (a moved task is none), and unsettled batches.
    pub async fn undone(&self, until: i64) -> Result<(i64, i64), sqlx::Error> {
        let query = "select
              (select count(*) from (select id, first_id, moved_to from task union all
                select id, first_id, moved_to from task_far) waiting
                where punctual_time(id) < to_timestamp($1 / 1000.0)
                  or first_id is not null and moved_to is distinct from punctual_millis(id)),
              (select count(*) from execlog_batch where settled_at is null)";
        sqlx::query_as(query).bind(until).fetch_one(&self.cluster.sql).await
    }

    /// Returns the lines of the execlog, with the reasons of dead tasks.
    pub async fn lines(&self) -> Vec<Line> {
        let query = "select e.id, e.topic,
              round(extract(epoch from e.due_at) * 1000)::bigint as due_at, e.state,
              round(extract(epoch from e.published_at) * 1000)::bigint as published_at,
              e.partition, e.\"offset\", e.lateness_ms::bigint as lateness_ms,
              round(extract(epoch from e.claimed_at) * 1000)::bigint as claimed_at, d.reason
            from execlog e left join dead_letter d on d.id = e.id and e.state = 'dead'";
        let rows = sqlx::query(query).fetch_all(&self.cluster.sql).await.expect("read the execlog");
        let expiries = self.expiries().await;
        let mut lines: Vec<Line> =
            rows.iter().map(|row| line(row).expect("a line of the execlog")).collect();
        for line in lines.iter_mut().filter(|line| line.state == "expired") {
            line.expiry = expiries.get(&line.id).copied();
        }
        lines
    }

    /// Returns the expiries of expired tasks by their first ids, which the execlog does not show.
    async fn expiries(&self) -> HashMap<Uuid, Expiry> {
        let query = "select coalesce(b.first_ids[i], b.ids[i]), b.published_ats[i],
              round(extract(epoch from b.settled_at) * 1000)::bigint
            from execlog_batch b cross join lateral generate_series(1, b.task_count) i
            where 5 = any(b.outcomes) and b.outcomes[i] = 5 and b.settled_at is not null";
        let rows: Vec<(Uuid, i64, i64)> =
            sqlx::query_as(query).fetch_all(&self.cluster.sql).await.expect("read the expiries");
        let expiry = |(id, expires_at, settled_at)| (id, Expiry { expires_at, settled_at });
        rows.into_iter().map(expiry).collect()
    }

    /// Returns the first ids and the due times of waiting tasks.
    pub async fn pending(&self) -> Vec<(Uuid, i64)> {
        let query = "select coalesce(first_id, id), round(extract(epoch from punctual_time(id)) * 1000)::bigint
            from (select id, first_id from task union all select id, first_id
              from task_far) waiting";
        sqlx::query_as(query).fetch_all(&self.cluster.sql).await.expect("read what waits")
    }

    /// Returns the runs of schedules that the table of runs has.
    pub async fn runs(&self) -> Vec<MadeRun> {
        let query = "select s.name, r.instant, r.first_id
            from schedule_run r join schedule s on s.id = r.schedule_id";
        let runs: Vec<(String, i64, Uuid)> =
            sqlx::query_as(query).fetch_all(&self.cluster.sql).await.expect("read the runs");
        runs.into_iter().map(|(schedule, at, id)| MadeRun { schedule, at, id }).collect()
    }

    /// Waits until all nodes are ready. Returns the nodes that are not.
    pub async fn unready(&self) -> Vec<String> {
        let mut unready = Vec::new();
        for slot in &self.slots {
            if look_for(READY_DEADLINE, async || slot.is_ready(&self.http).await.then_some(()))
                .await
                .is_none()
            {
                unready.push(format!(
                    "node {} is not ready {READY_DEADLINE:?} after the last operation",
                    slot.number()
                ));
            }
        }
        unready
    }
}

fn line(row: &PgRow) -> Result<Line, sqlx::Error> {
    let (partition, offset): (Option<i32>, Option<i64>) =
        (row.try_get("partition")?, row.try_get("offset")?);
    Ok(Line {
        id: row.try_get("id")?,
        topic: row.try_get("topic")?,
        due_at: row.try_get("due_at")?,
        state: row.try_get("state")?,
        published_at: row.try_get("published_at")?,
        position: partition.zip(offset),
        lateness: row.try_get("lateness_ms")?,
        claimed_at: row.try_get("claimed_at")?,
        reason: row.try_get("reason")?,
        expiry: None,
    })
}

/// Returns the number in a header.
fn number(record: &Record, name: &str) -> Option<i64> {
    std::str::from_utf8(record.header(name)?).ok()?.parse().ok()
}

fn attempt(record: &Record) -> Option<u16> {
    u16::try_from(number(record, "punctual-attempt")?).ok()
}

/// Returns the delivery of an attempt. The records of other tasks are none, nor are those of dead
/// ones.
fn delivery(topic: usize, record: &Record) -> Option<Delivery> {
    let ttr_ms = number(record, "punctual-ttr-ms")?;
    Some(Delivery { topic, id: record.task_id(), attempt: attempt(record)?, ttr_ms })
}

/// Returns the headers of the run of a schedule.
fn run(record: &Record) -> Option<RunHeaders> {
    let text = |name: &str| std::str::from_utf8(record.header(name)?).ok();
    let at: jiff::Timestamp = text("punctual-run-at")?.parse().ok()?;
    Some(RunHeaders {
        schedule: text("punctual-schedule")?.to_owned(),
        at: at.as_millisecond(),
        number: number(record, "punctual-run").and_then(|number| u64::try_from(number).ok()),
        missed: number(record, "punctual-missed").unwrap_or_default(),
    })
}

fn arrival(reader: &Reader, record: &Record) -> Arrival {
    Arrival {
        id: record.task_id(),
        topic: reader.topic,
        incarnation: reader.incarnation,
        partition: record.partition,
        offset: record.offset,
        at: record.timestamp,
        key: record.key.clone(),
        payload_hash: record.payload_hash,
        serial: number(record, SERIAL_HEADER).and_then(|serial| u64::try_from(serial).ok()),
        due_header: number(record, "punctual-due-at"),
        expires_header: number(record, "punctual-expires-at"),
        attempt: attempt(record),
        run: run(record),
        is_dead_letter: record.header("punctual-dead-reason").is_some(),
    }
}

/// Moves an empty database to the disk that can be filled up.
async fn put_on_small_disk(own: &OwnStack, database: &str, disk: &str) {
    let mut server = PgConnection::connect(&own.stack.database_url).await.expect("Postgres is up");
    let is_there = sqlx::query("select 1 from pg_tablespace where spcname = $1")
        .bind(TABLESPACE)
        .fetch_optional(&mut server)
        .await;
    if is_there.expect("ask for the tablespace").is_none_or(|row| row.is_empty()) {
        let statement = format!("create tablespace {TABLESPACE} location '{disk}'");
        sqlx::raw_sql(AssertSqlSafe(statement))
            .execute(&mut server)
            .await
            .expect("create the tablespace");
    }
    let statement = format!("alter database {database} set tablespace {TABLESPACE}");
    sqlx::raw_sql(AssertSqlSafe(statement))
        .execute(&mut server)
        .await
        .expect("move the database to its small disk");
}

fn faketime_library() -> String {
    let folders = std::fs::read_dir("/usr/lib").expect("read /usr/lib").filter_map(Result::ok);
    let library = folders
        .map(|folder| folder.path().join("faketime/libfaketime.so.1"))
        .find(|path| path.exists());
    library
        .expect("libfaketime is installed (`scripts/stack prerequisites --test`)")
        .to_string_lossy()
        .into_owned()
}

/// Repeats a request until Kafka carries it out, because Kafka may be down.
pub async fn insist(what: &str, mut ask: impl AsyncFnMut() -> Result<(), String>) {
    let deadline = Duration::from_secs(90);
    eventually(what, deadline, async || {
        ask().await.inspect_err(|error| eprintln!("{what}: {error}")).is_ok()
    })
    .await;
}
