//! Measures the time to look up a task that has fired. docs/decisions/0002 has the figures.
//!
//! Usage:
//! `PUNCTUAL_DATABASE_URL=.. cargo run --release --example look_up [tasks, in millions: 10]`. The
//! program creates, fills, measures and drops a database of its own.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]
#![expect(clippy::unwrap_used, reason = "a measurement that fails says so and ends")]
#![expect(clippy::as_conversions, reason = "random numbers and percentiles")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use punctual::clock::monotonic;
use punctual::domain::leaves::{Parent, Partition, Rules};
use punctual::domain::{
    BatchId, ClusterSettings, ClusterWishes, Reach, Shard, TaskId, TaskState, Timestamp,
    WidthClass, ids,
};
use punctual::postgres::cluster::schema;
use punctual::postgres::connection::ConnectionPurpose;
use punctual::postgres::tasks::look_up::{IN_BATCHES, LookUp};
use punctual::postgres::{Connection, PostgresSettings, partitions};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection as _, Row};

const HOUR: i64 = 3_600_000;
const BATCH_COLUMNS: &str = "batch, owner, claimed_at, settled_at, task_count, ids, first_ids, \
                             attempts, width_class, id_from, id_to, topic_names, outcomes, \
                             partitions, offsets, published_ats, next_ids";

/// A batch to be written.
struct Batch {
    claimed_at: i64,
    rows: Vec<(TaskId, Option<TaskId>, i16)>,
    /// Ids of the follow-ups, when the whole batch is deferred.
    next: Vec<TaskId>,
}

struct Loader {
    random: SmallRng,
    batches: String,
    payloads: String,
    samples: BTreeMap<&'static str, Vec<(TaskId, TaskState)>>,
    counts: BTreeMap<&'static str, (u64, u64)>,
    connection: PgConnection,
}

#[tokio::main]
async fn main() {
    let millions: u64 = std::env::args().nth(1).map_or(10, |text| text.parse().unwrap());
    let server = std::env::vars().find(|(name, _)| name == "PUNCTUAL_DATABASE_URL").unwrap().1;
    let name = format!("look_up_{}", std::process::id());
    let mut admin = PgConnection::connect(&server).await.unwrap();
    run(&mut admin, format!("create database {name}")).await;
    let mut url = reqwest::Url::parse(&server).unwrap();
    url.set_path(&name);
    measure(url.as_str(), millions * 1_000_000).await;
    run(&mut admin, format!("drop database {name} with (force)")).await;
}

async fn run(connection: &mut PgConnection, statement: String) {
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(connection).await.unwrap();
}

async fn measure(url: &str, task_count: u64) {
    let settings = PostgresSettings::new(url).unwrap();
    schema::migrate(&settings, ClusterWishes::default()).await.unwrap();
    let rules = Rules::new(&ClusterSettings::DEFAULT);
    let mut maker = Connection::new(
        &settings,
        ConnectionPurpose { name: "partitions", deadline: Duration::from_secs(10), settings: &[] },
    );
    let (_, now) = partitions::take_census(&mut maker, Parent::ExeclogBatch).await.unwrap();
    let past = (1..=7).rev().map(|days| now.minus(Duration::from_secs(days * 86_400)));
    let days: Vec<Partition> =
        past.map(|at| rules.partition_of(Parent::ExeclogBatch, at)).collect();
    assert!(partitions::create(&mut maker, &rules, &days).await.unwrap());

    let mut loader = Loader {
        random: SmallRng::seed_from_u64(1),
        batches: String::new(),
        payloads: String::new(),
        samples: BTreeMap::new(),
        counts: BTreeMap::new(),
        connection: PgConnection::connect(url).await.unwrap(),
    };
    let start = monotonic();
    loader.load(now.as_millis(), task_count).await;
    println!("loaded in {:?}", monotonic().since(start));
    run(&mut loader.connection, "vacuum analyze execlog_batch".to_owned()).await;
    for (kind, (batches, tasks)) in &loader.counts {
        println!("  {kind:12} {tasks:>9} tasks in {batches:>7} batches");
    }
    let look_up = LookUp::new(&settings, &ClusterSettings::DEFAULT, 4);
    let uniform = loader.uniform();
    let mut samples: Vec<(&str, Vec<(TaskId, TaskState)>)> = vec![("all", uniform)];
    samples.extend(std::mem::take(&mut loader.samples));
    let unknown = (0..2000)
        .map(|_| (loader.id(now.as_millis() - loader_span(), 4096), TaskState::Scheduled))
        .collect();
    samples.push(("unknown", unknown));
    for (kind, ids) in &samples {
        time(&look_up, kind, ids).await;
    }
    let (_, stragglers) = samples.iter().find(|(kind, _)| *kind == "straggler").unwrap();
    explain(&mut loader.connection, stragglers[0].0).await;
}

const fn loader_span() -> i64 {
    100 * HOUR
}

async fn time(look_up: &LookUp, kind: &str, ids: &[(TaskId, TaskState)]) {
    // The first look-up warms up the connection.
    look_up.task(ids[0].0).await.unwrap();
    let mut took = Vec::with_capacity(ids.len());
    for &(id, state) in ids {
        let start = monotonic();
        let view = look_up.task(id).await.unwrap();
        took.push(monotonic().since(start));
        match state {
            TaskState::Scheduled => assert_eq!(view, None),
            state => assert_eq!(view.unwrap().state, state, "{id}"),
        }
    }
    took.sort_unstable();
    let at = |part: f64| took[((took.len() - 1) as f64 * part) as usize];
    println!(
        "{kind:12} {:>6} ids: p50 {:?}, p99 {:?}, p99.9 {:?}, max {:?}",
        took.len(),
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0)
    );
}

/// Prints the plan that a look-up uses.
async fn explain(connection: &mut PgConnection, id: TaskId) {
    let earliest = ids::floor_of(id.due_at().minus(Duration::from_secs(70)));
    let spans: Vec<String> = WidthClass::all().map(|span| span.as_smallint().to_string()).collect();
    let starts: Vec<String> =
        WidthClass::all().map(|span| span.lowest_start(id).to_string()).collect();
    run(
        connection,
        "set plan_cache_mode = force_generic_plan; set enable_seqscan = off; set jit = off"
            .to_owned(),
    )
    .await;
    run(connection, format!("prepare p (uuid, uuid, smallint[], uuid[], uuid) as {IN_BATCHES}"))
        .await;
    let statement = format!(
        "explain (analyze, buffers, costs off, timing off) execute p ('{earliest}', '{id}', \
         '{{{}}}', '{{{}}}', '{earliest}')",
        spans.join(","),
        starts.join(",")
    );
    for row in sqlx::raw_sql(AssertSqlSafe(statement)).fetch_all(connection).await.unwrap() {
        println!("{}", row.get::<String, _>(0));
    }
}

impl Loader {
    /// Loads six days of traffic. Each kind of task has its share.
    async fn load(&mut self, now: i64, task_count: u64) {
        let percent = |share: u64| (task_count * share / 100) as i64;
        // A quiet day: ticks of 20 ms, two claim loops with half of the shards each, 20 tasks a
        // claim.
        self.on_time("sparse", now - 140 * HOUR, percent(25), (20, 20)).await;
        // A busy hour or two: 1000 tasks a claim.
        self.on_time("dense", now - 100 * HOUR, percent(49), (1000, 50)).await;
        // Late inserts, swept together over a quarter of an hour in the midst of the busy time.
        self.stragglers(now - 100 * HOUR, percent(1), percent(49)).await;
        // An hour's tasks, claimed five hours late, by four loops.
        self.backlog(now - 60 * HOUR, percent(15)).await;
        self.immediate(now - 30 * HOUR, percent(5)).await;
        self.follow_ups(now - 20 * HOUR, percent(3)).await;
        // Payloads of these tasks are still kept.
        self.on_time("kept", now - HOUR / 60, percent(2), (1000, 50)).await;
    }

    fn id(&mut self, due: i64, shard_below: u16) -> TaskId {
        let shard = self.random.random_range(0..64_u16.min(shard_below));
        TaskId::new(Timestamp::from_millis(due), Shard::new(shard), self.random.random())
    }

    /// Writes claims of `size` tasks due within `width` ms.
    async fn on_time(
        &mut self,
        kind: &'static str,
        start: i64,
        tasks: i64,
        (size, width): (i64, i64),
    ) {
        for number in 0..tasks / size {
            // Two loops claim side by side, so each range occurs twice.
            let from = start + number / 2 * width;
            let rows = (0..size).map(|_| {
                let due = from + self.random.random_range(0..width);
                (self.id(due, 64), None, 1)
            });
            let rows = rows.collect();
            self.write(kind, Batch { claimed_at: from - 180, rows, next: Vec::new() }).await;
        }
        self.flush().await;
    }

    async fn stragglers(&mut self, start: i64, tasks: i64, dense_tasks: i64) {
        let span = dense_tasks / 1000 / 2 * 50;
        for _sweep in 0..tasks / 50 {
            let from = start + self.random.random_range(0..span.max(1));
            let width = self.random.random_range(1..900_000);
            let rows = (0..50).map(|_| {
                let due = from + self.random.random_range(0..width);
                (self.id(due, 64), None, 1)
            });
            let rows = rows.collect();
            self.write("straggler", Batch { claimed_at: from + 910_000, rows, next: Vec::new() })
                .await;
        }
        self.flush().await;
    }

    async fn backlog(&mut self, start: i64, tasks: i64) {
        let width = HOUR * 4 * 1000 / tasks.max(4000);
        for number in 0..tasks / 1000 {
            let from = start + number / 4 * width.max(1);
            let rows = (0..1000).map(|_| {
                let due = from + self.random.random_range(0..width.max(1));
                (self.id(due, 64), None, 1)
            });
            let rows = rows.collect();
            self.write(
                "backlog",
                Batch { claimed_at: start + 5 * HOUR + number * 5, rows, next: Vec::new() },
            )
            .await;
        }
        self.flush().await;
    }

    async fn immediate(&mut self, start: i64, tasks: i64) {
        let mut written = 0;
        let mut at = start;
        while written < tasks {
            at += self.random.random_range(0..4);
            let size = self.random.random_range(1..=10);
            let rows: Vec<_> = (0..size)
                .map(|_| {
                    let due = at + self.random.random_range(0..200);
                    (self.id(due, 64), None, 1)
                })
                .collect();
            written += size;
            self.write("immediate", Batch { claimed_at: at, rows, next: Vec::new() }).await;
        }
        self.flush().await;
    }

    /// Writes tasks that were deferred twice and published at the third attempt.
    async fn follow_ups(&mut self, start: i64, rows: i64) {
        for number in 0..rows / 300 {
            let from = start + number * 50;
            let firsts: Vec<TaskId> =
                (0..100).map(|place| self.id(from + place % 50, 64)).collect();
            let mut current = firsts.clone();
            for attempt in 1..=3_i16 {
                let claimed_at = from + i64::from(attempt - 1) * 30_000;
                let follow: Vec<(TaskId, Option<TaskId>, i16)> = current
                    .iter()
                    .zip(&firsts)
                    .map(|(&row, &first)| (row, Some(first), attempt))
                    .collect();
                let next = if attempt < 3 {
                    (0..100).map(|place| self.id(claimed_at + 30_000 + place * 10, 64)).collect()
                } else {
                    Vec::new()
                };
                current.clone_from(&next);
                self.write("follow-up", Batch { claimed_at, rows: follow, next }).await;
            }
        }
        self.flush().await;
    }

    async fn write(&mut self, kind: &'static str, batch: Batch) {
        let id = BatchId::new(
            Timestamp::from_millis(batch.claimed_at),
            self.random.random_range(0..4096),
            self.random.random(),
        );
        let reach = Reach::of(batch.rows.iter().map(|row| row.0)).unwrap();
        let count = batch.rows.len();
        let array = |items: &mut dyn Iterator<Item = String>| {
            format!("{{{}}}", items.collect::<Vec<_>>().join(","))
        };
        let is_follow_up = batch.rows[0].1.is_some();
        let optional =
            |text: String, is_there: bool| if is_there { text } else { "\\N".to_owned() };
        let is_deferred = !batch.next.is_empty();
        let at = format!("{}", batch.claimed_at as f64 / 1000.0);
        let repeated = |text: &str| array(&mut (0..count).map(|_| text.to_owned()));
        writeln!(
            self.batches,
            "{id}\t{id}\t{}\t{}\t{count}\t{}\t{}\t{}\t{}\t{}\t{}\t{{orders}}\t{}\t{}\t{}\t{}\t{}",
            time_text(&at),
            time_text(&at),
            array(&mut batch.rows.iter().map(|row| row.0.to_string())),
            optional(
                array(&mut batch.rows.iter().map(|row| row.1.unwrap_or(row.0).to_string())),
                is_follow_up
            ),
            optional(repeated(&batch.rows[0].2.to_string()), is_follow_up),
            reach.width_class.as_smallint(),
            reach.from,
            reach.to,
            repeated(if is_deferred { "2" } else { "1" }),
            repeated(if is_deferred { "-1" } else { "3" }),
            array(
                &mut (0..count)
                    .map(|place| (batch.claimed_at % 1_000_000 + place as i64).to_string())
            ),
            repeated(&batch.claimed_at.to_string()),
            optional(array(&mut batch.next.iter().map(ToString::to_string)), is_deferred),
        )
        .unwrap();
        if kind == "kept" {
            let bytes: String =
                (0..128).map(|_| format!("{:02x}", self.random.random::<u8>())).collect();
            let payload = format!("\"\\\\\\\\x{bytes}{bytes}\"");
            let null = repeated("NULL");
            writeln!(
                self.payloads,
                "{id}\t{}\t{null}\t{}\t{null}",
                repeated("orders"),
                repeated(&payload)
            )
            .unwrap();
        }
        self.sample(kind, &batch);
        if self.batches.len() + self.payloads.len() > 16 << 20 {
            self.flush().await;
        }
    }

    fn sample(&mut self, kind: &'static str, batch: &Batch) {
        let (batches, tasks) = self.counts.entry(kind).or_default();
        *batches += 1;
        *tasks += batch.rows.len() as u64;
        let row = batch.rows[self.random.random_range(0..batch.rows.len())];
        let samples = self.samples.entry(kind).or_default();
        let chosen = (row.1.unwrap_or(row.0), TaskState::Published);
        // Reservoir sampling: each batch has the same chance. Batches of one kind have about the
        // same size.
        if samples.len() < 10_000 {
            samples.push(chosen);
        } else {
            let place = self.random.random_range(0..*batches);
            if let Some(kept) = samples.get_mut(place as usize) {
                *kept = chosen;
            }
        }
    }

    /// Returns 10,000 tasks of all kinds, each kind with its share.
    fn uniform(&mut self) -> Vec<(TaskId, TaskState)> {
        let total: u64 = self.counts.values().map(|(_, tasks)| tasks).sum();
        (0..10_000)
            .map(|_| {
                let mut place = self.random.random_range(0..total);
                let kind = self.counts.iter().find(|(_, (_, tasks))| {
                    let is_it = place < *tasks;
                    place = place.saturating_sub(*tasks);
                    is_it
                });
                let samples = &self.samples[kind.unwrap().0];
                samples[self.random.random_range(0..samples.len())]
            })
            .collect()
    }

    async fn flush(&mut self) {
        copy(&mut self.connection, &format!("execlog_batch ({BATCH_COLUMNS})"), &mut self.batches)
            .await;
        copy(
            &mut self.connection,
            "execlog_payload (batch, topics, keys, payloads, headers)",
            &mut self.payloads,
        )
        .await;
    }
}

async fn copy(connection: &mut PgConnection, into: &str, text: &mut String) {
    if text.is_empty() {
        return;
    }
    let mut copy = connection.copy_in_raw(&format!("copy {into} from stdin")).await.unwrap();
    copy.send(text.as_bytes()).await.unwrap();
    copy.finish().await.unwrap();
    text.clear();
}

/// Returns SQL text of a `timestamptz` from seconds since the epoch.
fn time_text(seconds: &str) -> String {
    let seconds: f64 = seconds.parse().unwrap();
    jiff::Timestamp::from_millisecond((seconds * 1000.0) as i64).unwrap().to_string()
}
