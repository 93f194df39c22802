//! Locks on leaves that a statement does not need.

use std::time::Duration;

use punctual::domain::leaves::Parent;
use punctual::domain::{BatchId, IdRange, NodeId};
use punctual::postgres::tasks::claim::{ClaimRequest, Claimed, Claims, Source};
use sqlx::postgres::PgConnection;

use super::{LOCK_TIMEOUT, Stage, code_of, number, run, statement, try_run};

const LEAVES: &str = "select count(*) from pg_inherits where inhparent = 'task'::regclass";
const LEAVES_LOCKED: &str = "select count(distinct relation) from pg_locks l
    join pg_inherits i on i.inhrelid = l.relation and i.inhparent = 'task'::regclass
      where l.pid = pg_backend_pid()";

/// The product's claim of tasks due within five seconds, from all leaves or from the one of now,
/// ready to execute.
async fn prepared_claim(
    stage: &mut Stage,
    is_of_one_leaf: bool,
    plans: &str,
) -> (PgConnection, String) {
    let now = stage.now().await;
    let range = IdRange::of_times(now, now.plus(Duration::from_secs(5)));
    let leaf = stage.rules.partition_of(Parent::Task, now).name();
    let table = if is_of_one_leaf { leaf.as_str() } else { "task" };
    let (batch, owner) =
        (BatchId::new(now, 0, rand::random()).uuid(), NodeId::new(now, 0, rand::random()).uuid());
    let mut claimer = stage.another().await;
    let text = statement("claim")
        .replace("{table}", table)
        .replace("{which}", "shard = any($1)")
        .replace("{submitters}", "null, null");
    run(
        &mut claimer,
        &format!(
            "set plan_cache_mode = {plans}; set lock_timeout = '300ms'; prepare claim as {text}"
        ),
    )
    .await;
    let execute = format!(
        "execute claim ('{{7}}', '{}', '{}', '{{}}', '{{}}', '{batch}', '{owner}', 4000, 16777216)",
        range.from, range.to
    );
    (claimer, execute)
}

/// The rule: a claim names its leaf, or has a custom plan. Cancels and the mover have custom plans.
#[tokio::test]
async fn a_generic_plan_locks_every_leaf_unless_it_names_one() {
    let mut stage = Stage::new().await;
    let leaves = stage.number(LEAVES).await;
    assert!(leaves >= 9, "{leaves}");
    let cases = [
        (true, "force_generic_plan", true),
        (false, "force_custom_plan", true),
        (false, "force_generic_plan", false),
    ];
    for (is_of_one_leaf, plans, has_rule) in cases {
        let (mut claimer, execute) = prepared_claim(&mut stage, is_of_one_leaf, plans).await;
        run(&mut claimer, &format!("begin; {execute}")).await;
        let locked = number(&mut claimer, LEAVES_LOCKED).await;
        // The five seconds may reach into a second leaf.
        let is_right = if has_rule { locked <= 2 } else { locked == leaves };
        assert!(is_right, "{is_of_one_leaf}, {plans}: {locked} of {leaves} leaves locked");
        run(&mut claimer, "rollback").await;
    }
}

/// The consequence: the retirement of an unrelated leaf makes a claim fail.
#[tokio::test]
async fn with_generic_plans_the_lock_on_an_unrelated_leaf_fails_a_claim() {
    let mut stage = Stage::new().await;
    let now = stage.now().await;
    let unrelated = stage.rules.partition_of(Parent::Task, now.plus(Duration::from_secs(3600)));
    let mut retirer = stage.another().await;
    run(&mut retirer, &format!("begin; lock table {} in access exclusive mode", unrelated.name()))
        .await;
    let (mut claimer, execute) = prepared_claim(&mut stage, false, "force_generic_plan").await;
    let failed = try_run(&mut claimer, &execute).await.unwrap_err();
    assert_eq!(code_of(&failed).as_deref(), Some(LOCK_TIMEOUT));
    for (is_of_one_leaf, plans) in [(true, "force_generic_plan"), (false, "force_custom_plan")] {
        let (mut claimer, execute) = prepared_claim(&mut stage, is_of_one_leaf, plans).await;
        run(&mut claimer, &execute).await;
    }

    // The product's own claims, within a leaf and across the end of one.
    let leaf = stage.rules.partition_of(Parent::Task, now);
    let moment = Duration::from_millis(5);
    for end in [leaf.start.plus(moment), stage.rules.end_of(leaf).plus(moment)] {
        stage.insert("task", leaf.start, 3).await;
        let range = IdRange::of_times(leaf.start, end);
        let (batch, owner) =
            (BatchId::new(now, 0, rand::random()), NodeId::new(now, 0, rand::random()));
        let request = ClaimRequest::of_all(batch, owner, &[7], range);
        let mut claims = Claims::new(&stage.settings, stage.rules);
        let claimed = claims.claim(Source::Task, request).await.unwrap().claimed;
        assert!(matches!(claimed, Claimed::Batch(batch) if batch.len() == 3));
    }
}
