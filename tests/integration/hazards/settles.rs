//! Settles that are repeated, or come from a node that does not own the batch any more.

use std::collections::HashSet;
use std::time::Duration;

use punctual::domain::{
    Batch, BatchId, ClusterSettings, NodeId, Outcome, Receipt, TaskId, TaskState,
};
use punctual::postgres::PostgresError;
use punctual::postgres::tasks::adopt::Adoptions;
use punctual::postgres::tasks::look_up::LookUp;
use punctual::postgres::tasks::settle::{SettleTerms, Settlement, Settles};
use sqlx::AssertSqlSafe;
use uuid::Uuid;

use super::{PATIENCE, Stage, run, statement, without};

/// A time within the range of one stage of claims.
const RETRY_AFTER: Duration = Duration::from_secs(20);
const RULE: &str = " and settled_at is null";

fn node() -> NodeId {
    NodeId::new(Default::default(), 0, rand::random())
}

/// A claimed task, and its follow-up.
async fn claimed(stage: &mut Stage, owner: NodeId) -> (Batch, TaskId) {
    let now = stage.now().await;
    stage.insert("task", now, 1).await;
    let batch = stage.claim(owner).await;
    let next = TaskId::new(now.plus(RETRY_AFTER), batch.id_of(0).shard(), rand::random());
    (batch, next)
}

fn deferred(batch: &Batch, next: TaskId) -> Settlement {
    Settlement::new(batch, &[Outcome::Deferred { next, maybe_sent: true }])
}

/// The settle of a batch with one task that is deferred to `next`, with its parameters.
fn settle(text: &str, owner: NodeId, batch: &Batch, next: TaskId) -> String {
    let (owner, id, first, shard) =
        (owner.uuid(), batch.id.uuid(), batch.id_of(0), next.shard().as_smallint());
    let nothing = "'{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}'";
    format!(
        "prepare settle as {text};
         execute settle ('{owner}', '{id}', 0, '{first}', '{first}', '{{orders}}', null, '{{2}}',
           '{{-1}}', '{{-1}}', '{{0}}', '{{{next}}}',
           '{{{next}}}', '{{{shard}}}', '{{{first}}}', '{{orders}}', '{{NULL}}', '{{p}}',
           '{{NULL}}', '{{NULL}}', '{{2}}', '{{1}}', '{{true}}',
           {nothing}, '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', 3600);
         deallocate settle"
    )
}

/// The rule: a settle depends on `settled_at is null`. A settle without an answer is repeated, by
/// the node or by the adopter. Each of them has chosen a follow-up.
#[tokio::test]
async fn a_repeated_settle_makes_a_second_follow_up_unless_it_finds_the_batch_unsettled() {
    let with_rule = statement("settle with follow-ups");
    let without_rule = without(&with_rule, RULE);
    for (text, follow_ups) in [(with_rule, 1), (without_rule, 2)] {
        let mut stage = Stage::new().await;
        let owner = node();
        let (batch, next) = claimed(&mut stage, owner).await;
        let another = TaskId::new(next.due_at(), next.shard(), rand::random());
        for next in [next, another] {
            stage.run(&settle(&text, owner, &batch, next)).await;
        }
        assert_eq!(stage.number("select count(*) from task").await, follow_ups);
    }
}

/// The same through the product's own code, and for a former owner.
#[tokio::test]
async fn neither_a_zombie_nor_a_repetition_settles_anything() {
    let mut stage = Stage::new().await;
    let (owner, zombie) = (node(), node());
    let (batch, next) = claimed(&mut stage, owner).await;
    let another = TaskId::new(next.due_at(), next.shard(), rand::random());
    let settles = |node| Settles::new(&stage.settings, node, PATIENCE);
    assert!(
        settles(zombie)
            .settle(&[&deferred(&batch, another)], SettleTerms::default())
            .await
            .0
            .batches
            .is_empty()
    );
    assert_eq!(
        settles(owner)
            .settle(&[&deferred(&batch, next)], SettleTerms::default())
            .await
            .0
            .batches
            .len(),
        1
    );
    assert!(
        settles(owner)
            .settle(&[&deferred(&batch, another)], SettleTerms::default())
            .await
            .0
            .batches
            .is_empty()
    );
    assert_eq!(stage.number("select count(*) from task").await, 1);
    let follow = format!("select count(*) from task_follow where row_id = '{next}'");
    assert_eq!(stage.number(&follow).await, 1);
}

/// The rule: the settle of a later attempt names the row of the end. The batch that leads there is
/// dropped one receipt retention after the *first* attempt. A task that waited longer (for an
/// unavailable topic, or as a dead letter) would otherwise be unknown from the moment of its end.
#[tokio::test]
async fn a_task_is_found_for_as_long_as_the_receipt_of_its_last_attempt_is_kept() {
    let mut stage = Stage::new().await;
    let owner = node();
    let (batch, next) = claimed(&mut stage, owner).await;
    let first = batch.id_of(0);
    let mut settles = Settles::new(&stage.settings, owner, PATIENCE);
    let look_up = LookUp::new(&stage.settings, &ClusterSettings::DEFAULT, 1);
    assert_eq!(
        settles.settle(&[&deferred(&batch, next)], SettleTerms::default()).await.0.batches.len(),
        1
    );
    let is_gone = format!("delete from execlog_batch where batch = '{}'", batch.id.uuid());
    stage.run(&is_gone).await;
    let state = async || look_up.task(first).await.unwrap().map(|view| view.state);
    assert_eq!(state().await, Some(TaskState::Scheduled));
    let last = stage.claim(owner).await;
    assert_eq!((last.id_of(0), state().await), (next, Some(TaskState::Claimed)));
    // Of several ends the last one counts.
    let another = TaskId::new(next.due_at(), next.shard(), rand::random());
    stage.run(&format!("insert into execlog_ended values ('{first}', '{another}', now())")).await;
    let receipt = Receipt { partition: 3, offset: 7, published_at: stage.now().await };
    assert_eq!(
        settles
            .settle(
                &[&Settlement::new(&last, &[Outcome::Published(receipt)])],
                SettleTerms::default()
            )
            .await
            .0
            .batches
            .len(),
        1
    );
    assert_eq!(stage.number("select count(*) from task_follow").await, 0);
    let view = look_up.task(first).await.unwrap().unwrap();
    assert_eq!(
        (view.id, view.state, view.attempt, view.receipt.map(|receipt| receipt.offset)),
        (first, TaskState::Published, 2, Some(7))
    );
    // No end is made of nothing.
    stage.run("delete from execlog_batch").await;
    assert_eq!(state().await, None);
}

/// Each statement of a settle commits alone. If one fails, the earlier ones must not be repeated,
/// or their batches would look as if another node had adopted them.
#[tokio::test]
async fn what_was_settled_before_a_statement_failed_is_said_to_be_settled() {
    let mut stage = Stage::new().await;
    let owner = node();
    let (plain, _) = claimed(&mut stage, owner).await;
    let (put_off, next) = claimed(&mut stage, owner).await;
    let receipt = Receipt { partition: 0, offset: 7, published_at: stage.now().await };
    let settlements =
        [deferred(&put_off, next), Settlement::new(&plain, &[Outcome::Published(receipt)])];
    // The follow-up does not get in.
    stage.run("begin; lock table task in access exclusive mode").await;
    let mut settles = Settles::new(&stage.settings, owner, PATIENCE);
    let (settled, outcome) = settles.settle(&settlements.each_ref(), SettleTerms::default()).await;
    stage.run("rollback").await;
    assert!(outcome.is_err());
    assert_eq!(settled.batches, HashSet::from([plain.id]));
    let (settled, outcome) =
        settles.settle(&settlements.each_ref()[..1], SettleTerms::default()).await;
    outcome.unwrap();
    assert_eq!(settled.batches, HashSet::from([put_off.id]));
}

/// The rule: a settle names its owner. Otherwise a node that was declared dead overwrites the
/// outcomes of a batch that another node is publishing.
#[tokio::test]
async fn without_the_owner_a_zombie_settles_what_another_node_has_adopted() {
    let with_rule = statement("settle with follow-ups");
    let without_rule = without(&with_rule, " and owner = $1")
        .replace("batch = $2", "batch = $2 and $1::uuid is not null");
    for (text, follow_ups) in [(with_rule, 0), (without_rule, 1)] {
        let mut stage = Stage::new().await;
        let zombie = node();
        let (batch, next) = claimed(&mut stage, zombie).await;
        stage.run(&format!("update execlog_batch set owner = '{}'", node().uuid())).await;
        stage.run(&settle(&text, zombie, &batch, next)).await;
        assert_eq!(stage.number("select count(*) from task").await, follow_ups);
    }
}

/// The rule: a batch is adopted if no living node owns the batch. The row of a node that died long
/// ago may be gone, and so may be the owner of a released batch.
#[tokio::test]
async fn a_batch_whose_owner_is_in_no_list_is_adopted() {
    for owner in ["'01934b2e-7d3c-8017-9f2b-6a1c0e4d5b7f'", "null"] {
        let mut stage = Stage::new().await;
        let (batch, _) = claimed(&mut stage, node()).await;
        stage.run(&format!("update execlog_batch set owner = {owner}")).await;
        let heir = node();
        let mut adoptions = Adoptions::new(&stage.settings, heir);
        assert_eq!(adoptions.adopt(BatchId::MIN).await.unwrap(), [batch.id]);
        assert_eq!(adoptions.load(batch.id).await.unwrap().unwrap().0.id_of(0), batch.id_of(0));
    }
}

/// The other side of the rule: while the owner has a heartbeat, no other node adopts its batches.
#[tokio::test]
async fn a_batch_of_a_living_owner_is_left_alone() {
    let mut stage = Stage::new().await;
    let owner = node();
    claimed(&mut stage, owner).await;
    stage.run(&heartbeat_of(owner)).await;
    assert_eq!(Adoptions::new(&stage.settings, node()).adopt(BatchId::MIN).await.unwrap(), []);
    stage.run("update heartbeat set dead = true").await;
    assert_eq!(Adoptions::new(&stage.settings, node()).adopt(BatchId::MIN).await.unwrap().len(), 1);
}

fn heartbeat_of(node: NodeId) -> String {
    format!(
        "insert into heartbeat (node, name, address, version, counter, started_at,
          beat_at, has_broker, can_publish)
         values ('{}', 'n', 'a', 'v', 1, now(), now(), true, true)",
        node.uuid()
    )
}

/// Many batches of today, besides the one with the given id.
fn many_batches(like: BatchId, count: usize) -> String {
    format!(
        "insert into execlog_batch (batch, claimed_at, task_count, ids)
         select (left('{}', 24) || lpad(to_hex(n), 12, '0'))::uuid, now(), 1, '{{}}'
           from generate_series(1, {count}) n",
        like.uuid()
    )
}

/// The rule: the check for living nodes uses arrays. At a take-over all nodes adopt at once. A node
/// that finds a row just adopted by another one checks the condition again, and Postgres does not
/// evaluate a `not exists` a second time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_that_adopt_at_once_do_not_take_the_same_batches() {
    let mut stage = Stage::new().await;
    let like = claimed(&mut stage, node()).await.0.id;
    stage.run(&many_batches(like, 120)).await;
    let heirs = [node(), node()];
    for heir in heirs {
        stage.run(&heartbeat_of(heir)).await;
    }
    let [mut first, mut second] = heirs.map(|heir| Adoptions::new(&stage.settings, heir));
    for _round in 0..100 {
        stage.run("update execlog_batch set owner = null").await;
        let (one, other) = tokio::join!(first.adopt(BatchId::MIN), second.adopt(BatchId::MIN));
        let (one, other): (HashSet<_>, HashSet<_>) =
            (one.unwrap().into_iter().collect(), other.unwrap().into_iter().collect());
        assert!(
            one.is_disjoint(&other),
            "{} batches have two owners",
            one.intersection(&other).count()
        );
    }
}

/// The rule: a look back has a deadline of its own, because the same connection clears doubts and
/// adopts batches of dead nodes. The later statements have other deadlines.
#[tokio::test]
async fn a_look_back_that_takes_long_gives_way_and_its_limit_ends_with_it() {
    let mut stage = Stage::new().await;
    let batch = claimed(&mut stage, node()).await.0.id;
    let mut adoptions = Adoptions::new(&stage.settings, node());
    let (all, patience) =
        (BatchId::MIN..BatchId::from_uuid(Uuid::max()), Duration::from_millis(100));
    stage.run("begin; lock table execlog_batch in access exclusive mode").await;
    let late = adoptions.oldest_unsettled(all.clone(), patience).await.unwrap_err();
    assert!(matches!(late, PostgresError::GaveWay { .. }) && late.is_slow(), "{late:?}");
    let next = adoptions.own_unsettled(BatchId::MIN).await.unwrap_err();
    assert!(next.is_lock_conflict(), "after the second that a lock may take: {next:?}");
    stage.run("commit").await;
    assert_eq!(adoptions.oldest_unsettled(all, Duration::MAX).await.unwrap(), Some(batch));
}

/// The rule: the range of batches is an index condition. Each batch settled since the last vacuum
/// has left an entry in the index.
#[tokio::test]
async fn a_settle_does_not_come_by_all_that_was_settled_before() {
    let with_rule = statement("settle");
    let without_rule = without(&with_rule, "b.batch = any($2) and ");
    let mut stage = Stage::new().await;
    let owner = node();
    let batch = claimed(&mut stage, owner).await.0;
    // A snapshot keeps the entries, so that no vacuum removes them.
    let mut reader = stage.another().await;
    run(&mut reader, "begin isolation level repeatable read; select 1 from task limit 1").await;
    stage.run(&many_batches(batch.id, 20_000)).await;
    stage.run("update execlog_batch set settled_at = now() where owner is null").await;
    stage.run("analyze execlog_batch").await;
    stage.run("set plan_cache_mode = force_custom_plan").await;
    let mut pages = Vec::new();
    for text in [with_rule, without_rule] {
        let (owner, id, first) = (owner.uuid(), batch.id.uuid(), batch.id_of(0));
        stage.run(&format!("prepare settle as {text}")).await;
        let explain = format!(
            "explain (analyze, buffers) execute settle ('{owner}', '{{{id}}}', '{{0}}',
              '{{{first}}}', '{{{first}}}',
              '{{false}}', '{{orders}}', '{{}}', '{{1}}',
               '{{0}}', '{{7}}', '{{0}}', '{{1}}', '{{1}}', '{{1}}', '{{1}}')"
        );
        stage.run("begin").await;
        let plan: Vec<String> = sqlx::query_scalar(AssertSqlSafe(explain))
            .persistent(false)
            .fetch_all(&mut stage.sql)
            .await
            .unwrap();
        stage.run("rollback; deallocate settle").await;
        // The first line with figures is of the whole.
        let figures = plan.iter().find(|line| line.contains("Buffers: shared")).unwrap();
        let count: u64 =
            figures.split(['=', ' ']).filter_map(|word| word.parse::<u64>().ok()).sum();
        pages.push(count);
    }
    assert!(pages[0] * 10 < pages[1], "pages with and without: {pages:?}");
}
