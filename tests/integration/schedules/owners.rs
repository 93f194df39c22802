//! Of two nodes that believe they own a schedule, one makes its runs.

use std::collections::HashSet;
use std::time::Duration;

use punctual::domain::schedule::ScheduleId;
use punctual::domain::schedule::plan::{Plan, Run};
use punctual::domain::{Headers, ScheduleName, Shard, TaskId, Timestamp, TopicName};
use punctual::postgres::PostgresSettings;
use punctual::postgres::schedules::make::{PlannedSchedule, RunMaker, RunTask};
use serde_json::json;

use super::{DEADLINE, put};
use crate::support::{Cluster, eventually_some, now_ms};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_nodes_that_make_the_same_runs_one_finds_the_schedule_moved_on() {
    let cluster = Cluster::start("schedule-owners").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let path = format!("/v1/schedules/{topic}/nightly");
    let body = json!({ "every": "300d", "payload": 1, "paused": true });
    put(node.api(), &path, &body).await;
    let (id, found_at): (i64, i64) = sqlx::query_as("select id, next_run_at from schedule")
        .fetch_one(&cluster.sql)
        .await
        .unwrap();
    // The node of the cluster leaves the schedule alone, because nothing is to be looked at.
    sqlx::query("update schedule set is_paused = false").execute(&cluster.sql).await.unwrap();
    let found_at = Timestamp::from_millis(found_at);
    let planned = |random: u64| {
        let run = Run { at: found_at, number: 1, missed: 0 };
        let name = ScheduleName::new("nightly").unwrap();
        let next_run_at = Some(found_at.plus(Duration::from_secs(300 * 86_400)));
        vec![PlannedSchedule {
            id: ScheduleId(id),
            revision: 1,
            topic: TopicName::stored(&topic),
            record: None,
            found_at,
            record_bytes: 1,
            plan: Plan {
                runs: vec![run],
                next_run_at,
                look_at: Some(found_at),
                runs_made: 1,
                skipped: 0,
                overlapping: 0,
            },
            tasks: vec![RunTask {
                at: found_at,
                id: TaskId::new(found_at, Shard::new(0), random),
                name: name.of_run(found_at).unwrap(),
                front: Headers::default(),
                headers: run.headers(&name),
                tracking: None,
                is_far: true,
            }],
        }]
    };
    let settings = PostgresSettings::new(&cluster.database.url).unwrap();
    let mut makers = [(); 2].map(|()| RunMaker::new(&settings, DEADLINE));
    let now = Timestamp::from_millis(now_ms());
    let waiting = "select count(*) from pg_stat_activity where datname = current_database()
        and application_name = 'punctual schedule runs' and wait_event_type = 'Lock'";
    // Both statements have found the row before one of them may change it. A statement gives way
    // after 200 ms, and then the scene is played again.
    let made = eventually_some("both have waited for the row", DEADLINE, async || {
        let mut lock = cluster.sql.begin().await.unwrap();
        sqlx::query("select from schedule for update").execute(&mut *lock).await.unwrap();
        let [one, other] = &mut makers;
        let (plan, same) = (planned(1), planned(2));
        let (one, other, is_staged) =
            tokio::join!(one.make(&plan, now), other.make(&same, now), async {
                let mut is_staged = false;
                for _look in 0..100 {
                    is_staged = cluster.count(waiting).await == 2;
                    if is_staged {
                        break;
                    }
                }
                lock.commit().await.unwrap();
                is_staged
            });
        let made: Vec<TaskId> = one.into_iter().chain(other).flatten().collect();
        if made.is_empty() || !is_staged {
            assert!(made.len() <= 1, "{made:?}");
            sqlx::query("delete from schedule_run").execute(&cluster.sql).await.unwrap();
            sqlx::query("delete from task_far").execute(&cluster.sql).await.unwrap();
            sqlx::query("delete from task_name").execute(&cluster.sql).await.unwrap();
            sqlx::query("update schedule set next_run_at = $1")
                .bind(found_at.as_millis())
                .execute(&cluster.sql)
                .await
                .unwrap();
            return None;
        }
        Some(made)
    })
    .await;
    assert_eq!(made.len(), 1, "{made:?}");
    assert_eq!(cluster.count("select count(*) from task_far").await, 1);
    assert_eq!(cluster.count("select count(*) from schedule_run").await, 1);
    // Without the rows of its runs, only the comparison with the schedule stands against a plan of
    // an older revision, and against one that found the schedule elsewhere.
    sqlx::query("delete from schedule_run").execute(&cluster.sql).await.unwrap();
    sqlx::query("delete from task_name").execute(&cluster.sql).await.unwrap();
    let [maker, _] = &mut makers;
    for (random, revision, next_run_at) in
        [(3, 2, found_at.as_millis()), (4, 1, found_at.as_millis() + 1)]
    {
        sqlx::query("update schedule set revision = $1, next_run_at = $2")
            .bind(revision)
            .bind(next_run_at)
            .execute(&cluster.sql)
            .await
            .unwrap();
        assert_eq!(maker.make(&planned(random), now).await.unwrap(), HashSet::new(), "{revision}");
    }
}
