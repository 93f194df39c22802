//! The claim statement: its answers, the stored data, and its cost for the server.

use std::time::Duration;

use punctual::domain::leaves::{Parent, Rules};
use punctual::domain::{
    Batch, BatchId, ClusterWishes, IdRange, NodeId, Shard, TaskId, Timestamp, TopicName, ids,
};
use punctual::postgres::cluster::schema;
use punctual::postgres::tasks::claim::{ClaimRequest, Claimed, Claims, Source};
use punctual::postgres::{PostgresError, PostgresSettings};
use sqlx::AssertSqlSafe;
use sqlx::postgres::PgConnection;
use uuid::Uuid;

use crate::support::{Database, Stack, eventually_some};

const SHARDS: i16 = 64;

/// Tasks with a payload beginning with the id. Every third has a key, every fifth a name, and every
/// seventh is a second attempt.
const STORE: &str =
    "insert into task (shard, id, topic, key, payload, headers, name, first_id, attempt)
  select shard, id, 'topic-' || n % 4, case when n % 3 = 0 then uuid_send(id) end,
    uuid_send(id) || $3, case when n % 2 = 0 then uuid_send(id) end,
    case when n % 5 = 0 then id::text end,
    case when n % 7 = 0 then id end, case when n % 7 = 0 then 2 end
  from unnest($1::smallint[], $2::uuid[]) with ordinality as tasks (shard, id, n)";
/// The number of tasks that keep the form of STORE.
const KEPT: &str = "select count(*)
  from execlog_batch join execlog_payload using (batch),
    unnest(ids, names, first_ids, attempts, topics, keys, payloads, headers) as u (id, name,
      first_id, attempt, topic, key, payload, header)
  where batch = $1 and payload = uuid_send(id) || $2 and topic ~ '^topic-[0-3]$'
    and coalesce(key, uuid_send(id)) = uuid_send(id)
    and coalesce(header, uuid_send(id)) = uuid_send(id) and coalesce(name, id::text) = id::text
    and coalesce(first_id, id) = id and (first_id is null) = (attempt is null)";
const SESSION: &str = "select pid from pg_stat_activity where datname = current_database() and \
                       application_name = 'punctual claim'";

struct Stage {
    /// Gone with the stage.
    _database: Database,
    sql: PgConnection,
    claims: Claims,
    rules: Rules,
    shards: Vec<i16>,
    now: Timestamp,
}

impl Stage {
    async fn new() -> Self {
        let database = Database::create(&Stack::shared(), "claims").await;
        let (mut sql, settings) =
            (database.connect().await, PostgresSettings::new(&database.url).unwrap());
        let hour = Duration::from_secs(3600);
        let wishes =
            ClusterWishes { leaf: Some(hour), horizon: Some(2 * hour), ..ClusterWishes::default() };
        let report = schema::migrate(&settings, wishes).await.unwrap();
        let micros: i64 =
            sqlx::query_scalar("select (extract(epoch from clock_timestamp()) * 1000000)::bigint")
                .fetch_one(&mut sql)
                .await
                .unwrap();
        Self {
            _database: database,
            sql,
            claims: Claims::new(&settings, Rules::new(&report.cluster)),
            rules: Rules::new(&report.cluster),
            shards: (0..SHARDS).collect(),
            now: Timestamp::from_micros(micros),
        }
    }

    /// Stores this many tasks, all due in the given second from now.
    async fn store(&mut self, second: u64, count: usize, filling: &[u8]) {
        let due_at = self.now.plus(Duration::from_secs(second));
        let ids: Vec<TaskId> = (0..SHARDS)
            .cycle()
            .take(count)
            .map(|shard| TaskId::new(due_at, Shard::new(shard.cast_unsigned()), rand::random()))
            .collect();
        let stored = sqlx::query(STORE)
            .bind(ids.iter().map(|id| id.shard().as_smallint()).collect::<Vec<_>>())
            .bind(ids.iter().map(|id| id.uuid()).collect::<Vec<Uuid>>())
            .bind(filling)
            .execute(&mut self.sql)
            .await
            .unwrap();
        assert_eq!(usize::try_from(stored.rows_affected()), Ok(count));
    }

    async fn claim(&mut self, second: u64) -> (BatchId, Claimed) {
        self.claim_from(Source::Task, second).await
    }

    /// Claims the tasks due in the given second.
    async fn claim_from(&mut self, source: Source, second: u64) -> (BatchId, Claimed) {
        let (from, to) = (
            self.now.plus(Duration::from_secs(second)),
            self.now.plus(Duration::from_secs(second + 1)),
        );
        let batch = BatchId::new(self.now, 0, rand::random());
        let owner = NodeId::new(self.now, 0, 1);
        let range = IdRange::of_times(from, to);
        let request = ClaimRequest::of_all(batch, owner, &self.shards, range);
        (batch, self.claims.claim(source, request).await.unwrap().claimed)
    }

    async fn run(&mut self, statement: &str) {
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut self.sql).await.unwrap();
    }

    async fn is_empty(&mut self, second: u64) -> bool {
        let from = self.now.plus(Duration::from_secs(second));
        let range = IdRange::of_times(from, from.plus(Duration::from_secs(1)));
        let (batch, owner) =
            (BatchId::new(self.now, 0, rand::random()), NodeId::new(self.now, 0, 1));
        let request = ClaimRequest::of_all(batch, owner, &self.shards, range);
        self.claims.is_empty(request).await.unwrap()
    }

    /// Claims the tasks due in the given second, without these topics. Such a claim has 200 ms, and
    /// is repeated when it gives way.
    async fn claim_beside(&mut self, second: u64, hotspot: &[TopicName]) -> (BatchId, Claimed) {
        let range = IdRange::of_times(
            self.now.plus(Duration::from_secs(second)),
            self.now.plus(Duration::from_secs(second + 1)),
        );
        let owner = NodeId::new(self.now, 0, 1);
        eventually_some(
            "a claim beside a hotspot is answered",
            Duration::from_secs(30),
            async || {
                let batch = BatchId::new(self.now, 0, rand::random());
                let all = ClaimRequest::of_all(batch, owner, &self.shards, range);
                let request = ClaimRequest { left_out: hotspot, is_beside_a_hotspot: true, ..all };
                match self.claims.claim(Source::Task, request).await {
                    Ok(answer) => Some((batch, answer.claimed)),
                    Err(PostgresError::GaveWay { .. }) => None,
                    Err(error) => panic!("{error}"),
                }
            },
        )
        .await
    }

    async fn claim_batch(&mut self, second: u64) -> Batch {
        match self.claim(second).await.1 {
            Claimed::Batch(batch) => batch,
            other => panic!("{other:?}"),
        }
    }

    /// The pages that the kernel has mapped for the claiming session.
    async fn pages_mapped(&mut self) -> u64 {
        let pid: i32 = sqlx::query_scalar(SESSION).fetch_one(&mut self.sql).await.unwrap();
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        // proc(5): the tenth field; the second one is a name in brackets.
        stat.rsplit(')')
            .next()
            .and_then(|rest| rest.split_whitespace().nth(7))
            .unwrap()
            .parse()
            .unwrap()
    }
}

#[tokio::test]
async fn a_claim_answers_and_keeps_each_task_with_what_belongs_to_it() {
    let mut stage = Stage::new().await;
    stage.store(0, 1_000, b"filling").await;
    let (batch, claimed) = stage.claim(0).await;
    let Claimed::Batch(answered) = claimed else { panic!("{claimed:?}") };
    assert_eq!(answered.len(), 1_000);
    for task in answered.tasks() {
        let id = task.id.uuid();
        assert_eq!(task.payload, Some([id.as_bytes().as_slice(), b"filling"].concat().as_slice()));
        assert!(
            task.key.is_none_or(|key| key == id.as_bytes())
                && [&[], id.as_bytes().as_slice()].contains(&task.headers)
        );
        assert!(task.name.is_none_or(|name| name == id.to_string().as_bytes()));
        assert_eq!(task.first_id, task.id);
    }
    let count_of = |held: fn(&punctual::domain::batch::BatchTask<'_>) -> bool| {
        answered.tasks().filter(held).count()
    };
    assert_eq!(
        (count_of(|task| task.key.is_some()), count_of(|task| task.name.is_some())),
        (333, 200)
    );
    assert_eq!(
        (count_of(|task| task.attempt == 2), count_of(|task| task.headers.is_empty())),
        (142, 500)
    );
    let kept: i64 = sqlx::query_scalar(KEPT)
        .bind(batch.uuid())
        .bind(b"filling".as_slice())
        .fetch_one(&mut stage.sql)
        .await
        .unwrap();
    assert_eq!(kept, 1_000);
    let left: i64 =
        sqlx::query_scalar("select count(*) from task").fetch_one(&mut stage.sql).await.unwrap();
    assert_eq!(left, 0);
    assert!(matches!(stage.claim(0).await.1, Claimed::Nothing), "a second claim finds nothing");
}

/// A claim keeps the plan of its leaf, whatever becomes of the leaf.
#[tokio::test]
async fn a_claim_finds_the_tasks_of_its_leaf_in_every_state_of_the_leaf() {
    let mut stage = Stage::new().await;
    // An hour ahead: in one leaf, and not the leaf of now.
    let leaf = stage.rules.partition_of(Parent::Task, stage.now.plus(Duration::from_secs(3600)));
    let second = leaf.start.since(stage.now).as_secs() + 60;
    let count_of = async |stage: &mut Stage| match stage.claim(second).await.1 {
        Claimed::Batch(batch) => batch.len(),
        Claimed::Nothing => 0,
        claimed @ Claimed::TooLarge { .. } => panic!("{claimed:?}"),
    };
    assert_eq!(count_of(&mut stage).await, 0, "an empty leaf");
    stage.store(second, 2_000, b"filling").await;
    assert_eq!(count_of(&mut stage).await, 2_000, "a plan from the time when the leaf was empty");
    stage.store(second, 3, b"filling").await;
    let name = leaf.name();
    stage.run(&format!("alter table task detach partition {name}")).await;
    assert_eq!(count_of(&mut stage).await, 3, "a detached leaf");
    stage.run(&format!("drop table {name}")).await;
    assert_eq!(count_of(&mut stage).await, 0, "no leaf");
    assert!(stage.is_empty(second).await);
    let bounds = ids::floor_of(leaf.start);
    let end = ids::floor_of(stage.rules.end_of(leaf));
    stage
        .run(&format!(
            "create table {name} partition of task for values from ('{bounds}') to ('{end}')"
        ))
        .await;
    stage.store(second, 5, b"filling").await;
    assert!(!stage.is_empty(second).await);
    assert_eq!(count_of(&mut stage).await, 5, "another leaf of the same name");
    assert!(stage.is_empty(second).await);
}

#[tokio::test]
async fn a_claim_beside_a_hotspot_takes_what_is_not_of_its_topics_and_nothing_else() {
    let mut stage = Stage::new().await;
    stage.store(0, 6_000, b"filling").await;
    let topics: Vec<TopicName> = (0..4).map(|n| TopicName::stored(&format!("topic-{n}"))).collect();
    let (_, all) = stage.claim_beside(0, &[]).await;
    assert!(matches!(all, Claimed::TooLarge { first: Some(_) }), "{all:?}");
    let (batch, claimed) = stage.claim_beside(0, &topics[1..]).await;
    let Claimed::Batch(answered) = claimed else { panic!("{claimed:?}") };
    assert_eq!((answered.len(), answered.topics()), (1_500, &topics[..1]));
    for task in answered.tasks() {
        assert_eq!(
            task.payload,
            Some([task.id.uuid().as_bytes().as_slice(), b"filling"].concat().as_slice())
        );
    }
    let kept: i64 = sqlx::query_scalar(KEPT)
        .bind(batch.uuid())
        .bind(b"filling".as_slice())
        .fetch_one(&mut stage.sql)
        .await
        .unwrap();
    assert_eq!(kept, 1_500);
    let left: i64 = sqlx::query_scalar(
        "select count(*) from task where topic = any('{topic-1,topic-2,topic-3}')",
    )
    .fetch_one(&mut stage.sql)
    .await
    .unwrap();
    assert_eq!(left, 4_500);
    let (_, again) = stage.claim_beside(0, &topics[1..]).await;
    assert!(matches!(again, Claimed::Nothing), "{again:?}");
}

#[tokio::test]
async fn a_claim_that_is_too_large_takes_nothing_and_tells_the_lowest_id() {
    let mut stage = Stage::new().await;
    stage.store(0, 4_001, b"").await;
    assert_too_large(&mut stage, Source::Task).await;
    sqlx::raw_sql(
        "with moved as (delete from task returning *) insert into task_far select * from moved",
    )
    .execute(&mut stage.sql)
    .await
    .unwrap();
    assert_too_large(&mut stage, Source::Far).await;
}

async fn assert_too_large(stage: &mut Stage, source: Source) {
    const LOWEST: &str = "select id from (select id from task union all select id from task_far) \
                          waiting order by id limit 1";
    const COUNTS: &str = "select (select count(*) from task) + (select count(*) from task_far), \
                          (select count(*) from execlog_batch)";
    let lowest: Uuid = sqlx::query_scalar(LOWEST).fetch_one(&mut stage.sql).await.unwrap();
    let (_, claimed) = stage.claim_from(source, 0).await;
    assert!(
        matches!(claimed, Claimed::TooLarge { first: Some(first) } if first == lowest),
        "{source:?}: {claimed:?}"
    );
    let counts: (i64, i64) = sqlx::query_as(COUNTS).fetch_one(&mut stage.sql).await.unwrap();
    assert_eq!(counts, (4_001, 0), "{source:?}");
}

/// For 1,000 payloads of 1 kB, each claim maps 1,781 pages in a session without kept memory, and 60
/// in a session with it. The 60 are pages of tables new to the session.
#[tokio::test]
async fn a_claim_works_in_the_memory_of_the_one_before() {
    const CLAIMS: u64 = 16;
    const PAGES_MAX: u64 = 400;
    let mut stage = Stage::new().await;
    for second in 0..CLAIMS {
        stage.store(second, 1_000, &[7; 1_000]).await;
    }
    for second in 0..CLAIMS / 2 {
        assert_eq!(stage.claim_batch(second).await.len(), 1_000);
    }
    let before = stage.pages_mapped().await;
    for second in CLAIMS / 2..CLAIMS {
        assert_eq!(stage.claim_batch(second).await.len(), 1_000);
    }
    let per_claim = (stage.pages_mapped().await - before) / (CLAIMS / 2);
    assert!(per_claim <= PAGES_MAX, "{per_claim} pages were mapped for each claim");
}
