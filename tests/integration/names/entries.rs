//! The entries of names: how they follow their tasks, and what they know when nothing else does.

use std::sync::Arc;
use std::time::Duration;

use punctual::domain::leaves::Rules;
use punctual::domain::{
    BatchBuilder, BatchId, ClusterSettings, ClusterWishes, Headers, NewTask, NodeId, Outcome,
    Precondition, Receipt, Record, ShardCount, TaskId, TaskName, TaskState, Timestamp, TopicName,
};
use punctual::node::maintenance::{Leaves, Maintenance, MaintenanceMetrics};
use punctual::postgres::PostgresSettings;
use punctual::postgres::cluster::schema;
use punctual::postgres::lists::dead_letters::DeadLetters;
use punctual::postgres::tasks::cancel::Cancels;
use punctual::postgres::tasks::look_up::LookUp;
use punctual::postgres::tasks::names::{Names, Swept};
use punctual::postgres::tasks::replace::{Replacement, Replaces};
use punctual::postgres::tasks::settle::{SettleTerms, Settlement, Settles};
use punctual::postgres::tasks::submit_named::{NamedGroup, NamedSubmits};
use sqlx::AssertSqlSafe;
use uuid::Uuid;

use crate::support::{Cluster, Stack, Wishes, eventually, now_ms};

/// A database with a batch of named tasks, as claimed on insert.
struct Claimed {
    cluster: Cluster,
    settings: PostgresSettings,
    batch: punctual::domain::Batch,
    tasks: Vec<NewTask>,
    node: NodeId,
}

const DAY: Duration = Duration::from_secs(86_400);

fn named_task(name: &str, due_at: Timestamp) -> NewTask {
    let record = Record {
        topic: TopicName::new("orders").unwrap(),
        key: None,
        payload: None,
        headers: Headers::default(),
    };
    NewTask::new(
        record,
        Some(TaskName::new(name).unwrap()),
        due_at,
        ShardCount::DEFAULT,
        (0, rand::random()),
    )
}

impl Claimed {
    async fn start(name: &str, names: &[&str]) -> Self {
        let cluster = Cluster::unmigrated(&Stack::shared(), name, Wishes::default()).await;
        let settings = PostgresSettings::new(&cluster.database.url).unwrap();
        let wishes =
            ClusterWishes { horizon: Some(Duration::from_secs(7200)), ..ClusterWishes::default() };
        let report = schema::migrate(&settings, wishes).await.unwrap();
        let maintenance = Maintenance::new(
            &settings,
            Rules::new(&report.cluster),
            Arc::new(Leaves::default()),
            MaintenanceMetrics::default(),
        );
        let mut maintenance = maintenance;
        maintenance.round().await.unwrap();
        let now = Timestamp::from_millis(now_ms());
        let node = NodeId::new(now, 0, 1);
        let tasks: Vec<NewTask> = names.iter().map(|name| named_task(name, now)).collect();
        let all: Vec<&NewTask> = tasks.iter().collect();
        let batch = BatchId::new(now, 0, rand::random());
        let (is_far, is_claimed) = (vec![false; all.len()], vec![true; all.len()]);
        let group = NamedGroup {
            tasks: &all,
            is_far: &is_far,
            is_claimed: &is_claimed,
            batch: Some(batch),
        };
        let (won, _now) = NamedSubmits::new(&settings, node, DAY).store(&group).await.unwrap();
        assert_eq!(won.len(), tasks.len());
        let batch = BatchBuilder::of_new_tasks(batch, tasks.iter());
        Self { cluster, settings, batch, tasks, node }
    }

    async fn settle(&self, outcomes: &[Outcome]) {
        let settlement = Settlement::new(&self.batch, outcomes);
        let (settled, outcome) = Settles::new(&self.settings, self.node, DAY)
            .settle(&[&settlement], SettleTerms::default())
            .await;
        outcome.unwrap();
        assert_eq!(settled.batches.len(), 1);
    }

    /// Row and remaining time of an entry.
    async fn entry(&self, name: &str) -> (Uuid, f64) {
        let query = "select row_id, extract(epoch from expires_at - clock_timestamp())::float8 \
                     from task_name where name = $1";
        sqlx::query_as(query).bind(name).fetch_one(&self.cluster.sql).await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_follows_its_task_through_deferrals_to_its_end() {
    let names = ["dead", "deferred", "late", "on-time", "perhaps-sent"];
    let claimed = Claimed::start("entries", &names).await;
    let now = claimed.tasks[0].id.due_at();
    let next = |index: usize| {
        TaskId::new(
            now.plus(Duration::from_secs(3600)),
            claimed.tasks[index].id.shard(),
            rand::random(),
        )
    };
    let receipt = |after: u64| Receipt {
        partition: 0,
        offset: 0,
        published_at: now.plus(Duration::from_secs(after)),
    };
    let (certain, perhaps) = (next(1), next(4));
    let outcomes = [
        Outcome::Dead { reason: "refused".into(), receipt: None },
        Outcome::Deferred { next: certain, maybe_sent: false },
        Outcome::Published(receipt(61)),
        Outcome::Published(receipt(1)),
        Outcome::Deferred { next: perhaps, maybe_sent: true },
    ];
    sqlx::query("update task_name set expires_at = clock_timestamp()")
        .execute(&claimed.cluster.sql)
        .await
        .unwrap();
    claimed.settle(&outcomes).await;
    let hours = [24.0, 25.0, 24.0, 0.0, 25.0];
    for ((name, hours), row) in
        names.iter().zip(hours).zip([None, Some(certain), None, None, Some(perhaps)])
    {
        let index = names.iter().position(|other| other == name).unwrap();
        let (row_id, left) = claimed.entry(name).await;
        assert_eq!(row_id, row.unwrap_or(claimed.tasks[index].id).uuid(), "{name}");
        assert!((left / 3600.0 - hours).abs() < 0.05, "{name}: {left} s left, not {hours} h");
    }
    // The task that is certainly not in the topic can be replaced, but the other one cannot.
    let replaces = Replaces::new(&claimed.settings, DAY, 1);
    let due_at = now.plus(Duration::from_secs(1800));
    let successor = named_task("deferred", due_at);
    let replaced =
        replaces.replace(&successor, false, None, &Precondition::default()).await.unwrap();
    assert_eq!(replaced, Replacement::Replaced);
    assert!(matches!(
        replaces
            .replace(&named_task("perhaps-sent", due_at), false, None, &Precondition::default())
            .await,
        Ok(Replacement::Gone(_))
    ));
    let states = claimed
        .cluster
        .count("select count(*) from execlog_cancelled where name = 'deferred' and attempt = 2")
        .await;
    assert_eq!((states, claimed.cluster.count("select count(*) from task_follow").await), (1, 1));
    let look_up = LookUp::new(&claimed.settings, &ClusterSettings::DEFAULT, 1);
    let view = look_up.task(claimed.tasks[1].id).await.unwrap().unwrap();
    assert_eq!((view.id, view.state), (claimed.tasks[1].id, TaskState::Cancelled));
    assert_eq!(view.replaced_by, Some(successor.id), "also as the follow-up that it was");
    // A sweep frees expired names whose tasks are final.
    let names = Names::new(&claimed.settings, DAY, 1);
    assert_eq!(names.sweep(100).await.unwrap(), Swept { freed_count: 1, prolonged_count: 0 });
    sqlx::query("update task_name set expires_at = clock_timestamp()")
        .execute(&claimed.cluster.sql)
        .await
        .unwrap();
    assert_eq!(names.sweep(100).await.unwrap(), Swept { freed_count: 2, prolonged_count: 2 });
    let known = names
        .known(&[("orders", "perhaps-sent"), ("orders", "dead"), ("other", "deferred")])
        .await
        .unwrap();
    assert_eq!(known.map_states(), [Some(TaskState::Scheduled), None, None]);
}

/// A sweep comes each minute on every node, and there may be hundreds of millions of names.
#[tokio::test]
async fn a_sweep_reads_few_of_many_names() {
    let cluster = Cluster::start("many-names").await;
    let fill = "insert into task_name (topic, name, id, row_id, expires_at)
        select 'orders', n, gen_random_uuid(), gen_random_uuid(),
          clock_timestamp() + make_interval(hours => n / 10000 * 2 - 1)
        from generate_series(9995, 30000) n";
    sqlx::raw_sql(fill).execute(&cluster.sql).await.unwrap();
    let settings = PostgresSettings::new(&cluster.database.url).unwrap();
    let swept = Names::new(&settings, DAY, 1).sweep(100).await.unwrap();
    assert_eq!(swept.freed_count, 5);
    // The end of the connection reports the reads.
    let read = "select coalesce(sum(idx_tup_read), 0)::bigint from pg_stat_user_indexes
        where indexrelname = 'task_name_expires_at'";
    eventually("the reads are reported", super::DEADLINE, async || cluster.count(read).await >= 5)
        .await;
    let read = cluster.count(read).await;
    assert!(read < 100, "{read} entries of the index were read");
}

/// The entry of the name is all that is left: the dead letter was dropped, and the receipt has
/// expired.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_knows_how_its_task_has_ended_when_nothing_else_does() {
    let claimed = Claimed::start("outcomes", &["dead", "redriven", "published"]).await;
    let now = claimed.tasks[0].id.due_at();
    let dead = || Outcome::Dead { reason: "refused".into(), receipt: None };
    claimed
        .settle(&[
            dead(),
            dead(),
            Outcome::Published(Receipt { partition: 0, offset: 0, published_at: now }),
        ])
        .await;
    let cluster = ClusterSettings::DEFAULT;
    let (look_up, names) =
        (LookUp::new(&claimed.settings, &cluster, 1), Names::new(&claimed.settings, DAY, 1));
    let replaces = Replaces::new(&claimed.settings, DAY, 1);
    let waiting = ["cancelled", "held", "moved"]
        .map(|name| named_task(name, now.plus(Duration::from_secs(1800))));
    for task in &waiting {
        assert_eq!(
            replaces.replace(task, false, None, &Precondition::default()).await.unwrap(),
            Replacement::Created
        );
    }
    // A replacement locks the entry before the row. A cancel that locks the row before the entry
    // would cause a deadlock.
    let mut holder = claimed.cluster.sql.begin().await.unwrap();
    sqlx::query("select from task_name where name = 'held' for update")
        .execute(&mut *holder)
        .await
        .unwrap();
    let ids = waiting.each_ref().map(|task| task.id);
    let wanted = ids.map(|id| (id, None));
    let (cancelled, outcome) = Cancels::new(&claimed.settings, DAY).cancel_group(&wanted).await;
    outcome.unwrap();
    assert!(cancelled.iter().all(Option::is_some));
    holder.rollback().await.unwrap();
    let known = async || {
        let wanted =
            ["dead", "redriven", "published", "cancelled", "moved"].map(|name| ("orders", name));
        names.known(&wanted).await.unwrap().map_states()
    };
    let (dead, published, cancelled) =
        (Some(TaskState::Dead), Some(TaskState::Published), Some(TaskState::Cancelled));
    assert_eq!(known().await, [dead, dead, published, cancelled, cancelled]);
    let forget = async |table: &'static str| {
        sqlx::query(AssertSqlSafe(format!("delete from {table}")))
            .execute(&claimed.cluster.sql)
            .await
    };
    forget("execlog_cancelled").await.unwrap();
    assert_eq!(
        DeadLetters::new(&claimed.settings, DAY, 1)
            .redrive(claimed.tasks[1].id, None)
            .await
            .unwrap()
            .map(|_| ()),
        Some(())
    );
    assert_eq!(
        replaces
            .replace(
                &named_task("moved", now.plus(DAY / 24)),
                false,
                None,
                &Precondition::default()
            )
            .await
            .unwrap(),
        Replacement::Created
    );
    let scheduled = Some(TaskState::Scheduled);
    assert_eq!(known().await, [dead, scheduled, published, cancelled, scheduled]);
    for table in ["dead_letter", "task", "task_follow", "execlog_batch"] {
        forget(table).await.unwrap();
    }
    assert_eq!(
        known().await,
        [dead, published, published, cancelled, published],
        "what stands in no place was published unless it says otherwise"
    );
    assert_eq!(look_up.task(ids[0]).await.unwrap().map(|view| view.state), None);
}

trait States {
    fn map_states(&self) -> Vec<Option<TaskState>>;
}

impl States for Vec<Option<punctual::postgres::tasks::names::NameHolder>> {
    fn map_states(&self) -> Vec<Option<TaskState>> {
        self.iter().map(|known| known.map(|known| known.state)).collect()
    }
}
