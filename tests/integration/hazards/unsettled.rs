//! Searches for unsettled batches under an old snapshot.

use std::collections::HashMap;
use std::time::Duration;

use punctual::domain::task::feedback::Call;
use punctual::domain::{BatchId, ClusterSettings, Shard, TaskId};
use punctual::postgres::tasks::answers::{AnswerCall, AnswerStore, AnswerTerms};
use punctual::postgres::tasks::look_up::LookUp;
use punctual::postgres::tasks::names::Names;

use super::{PATIENCE, Stage, run};
use crate::support::eventually;

const HOUR: Duration = Duration::from_secs(3600);
const SETTLED: i64 = 20_000;
/// The calls of a round, each with its name.
const CALLS: [&str; 4] = ["states", "sweep", "look up", "answer"];

/// The entries of indexes of unsettled batches that were read so far.
const ENTRIES_READ: &str = "
select coalesce(sum(s.idx_tup_read), 0)::bigint
from pg_stat_user_indexes s join pg_index i using (indexrelid)
where s.relname like 'execlog_batch%' and i.indpred is not null
  and pg_get_expr(i.indpred, i.indrelid) like '%settled_at IS NULL%'";
const SESSIONS: &str = "select count(*) from pg_stat_activity where datname = current_database()";

/// Makes one call about the task `id`, with the name `n`, over new connections.
async fn call(stage: &Stage, what: &str, id: TaskId) {
    let (settings, now) = (&stage.settings, id.due_at().plus(HOUR));
    match what {
        "states" => {
            let known = Names::new(settings, HOUR, 1).known(&[("orders", "n")]).await.unwrap();
            assert!(known[0].is_some_and(|holder| holder.id == id));
        }
        "sweep" => {
            let swept = Names::new(settings, HOUR, 1).sweep(10).await.unwrap();
            assert_eq!((swept.freed_count, swept.prolonged_count), (1, 0));
        }
        "look up" => {
            let look_up = LookUp::new(settings, &ClusterSettings::DEFAULT, 1);
            assert!(look_up.task(id).await.unwrap().is_none());
            let found = look_up.topics(&[id]).await.unwrap();
            assert!(found.topics.is_empty());
        }
        _ => {
            let call = AnswerCall {
                first: id,
                topic: None,
                call: Call::Finish { attempt: None },
                retry_at: None,
                by: None,
                reason: None,
                principal: None,
            };
            let terms = AnswerTerms { now, leaves_end: now.plus(HOUR), window: HOUR };
            let mut answers = HashMap::new();
            let mut store = AnswerStore::new(settings, HOUR);
            store.take(&[call], terms, &mut answers).await.unwrap();
            assert!(answers.is_empty());
        }
    }
}

/// The rule: a statement names the lowest id of the unsettled batches. Under an old snapshot, their
/// index keeps an entry for each batch that was ever settled.
#[tokio::test]
async fn searches_for_unsettled_batches_do_not_come_by_all_that_were_settled_before() {
    let mut stage = Stage::new().await;
    let now = stage.now().await;
    let id = TaskId::new(now.minus(HOUR), Shard::new(7), rand::random());
    let mut reader = stage.another().await;
    run(&mut reader, "begin isolation level repeatable read; select 1 from task limit 1").await;
    let batch = BatchId::new(now, 1, 1).uuid();
    let insert = format!(
        "insert into execlog_batch (batch, claimed_at, task_count, ids)
         select (left('{batch}', 24) || lpad(to_hex(n), 12, '0'))::uuid, now(), 1, '{{}}'
         from generate_series(1, {SETTLED}) n"
    );
    stage.run(&insert).await;
    stage.run("update execlog_batch set settled_at = now()").await;
    for has_rule in [false, true] {
        let from = has_rule.then(|| BatchId::new(now.plus(Duration::from_secs(1)), 1, 1));
        stage.settings.unsettled_floor().set(from);
        for what in CALLS {
            let expires =
                if what == "sweep" { "now() - interval '1 minute'" } else { "'infinity'" };
            let name = format!(
                "delete from task_name; insert into task_name (topic, name, id, row_id, expires_at)
                   values ('orders', 'n', '{id}', '{id}', {expires})"
            );
            stage.run(&name).await;
            let before = stage.number(ENTRIES_READ).await;
            call(&stage, what, id).await;
            // The statistics of a session are complete when it has ended.
            eventually("its sessions have ended", PATIENCE, async || {
                stage.number(SESSIONS).await == 2
            })
            .await;
            let read = stage.number(ENTRIES_READ).await - before;
            assert_eq!(read >= SETTLED, !has_rule, "{what}, {has_rule}: {read} entries");
            assert!(!has_rule || read < SETTLED / 100, "{what}: {read} entries");
        }
    }
}
