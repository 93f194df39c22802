//! Tracked tasks against Postgres: the verdict of every call in every state, the answers of quick
//! consumers, and many consumers beside claims and settles. A test plays the node: it claims,
//! "publishes" and settles.

mod extensions;
mod found_topics;
mod moves;
mod orders;
mod topics;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use punctual::domain::leaves::Rules;
use punctual::domain::task::feedback::{AttemptRow, Call, Verdict, due_after_silence};
use punctual::domain::{
    Batch, BatchBuilder, BatchId, ClusterWishes, Headers, IdRange, NewTask, NodeId, Outcome,
    Receipt, Record, RetryPolicy, ShardCount, TaskId, TaskName, TaskState, TaskView, Timestamp,
    TopicName, TrackedRow, Tracking, Ttr,
};
use punctual::postgres::cluster::schema;
use punctual::postgres::lists::backlog::BacklogCounter;
use punctual::postgres::lists::dead_letters::DeadLetters;
use punctual::postgres::tasks::answers::{AnswerCall, AnswerStore, AnswerTerms, Answered};
use punctual::postgres::tasks::cancel::Cancels;
use punctual::postgres::tasks::claim::{ClaimRequest, Claimed, Claims, Source};
use punctual::postgres::tasks::look_up::LookUp;
use punctual::postgres::tasks::settle::{SettleTerms, Settlement, Settles};
use punctual::postgres::tasks::submit::{Group, Submits};
use punctual::postgres::tasks::submit_named::{NamedGroup, NamedSubmits};
use punctual::postgres::{PostgresError, PostgresSettings};
use rand::Rng as _;
use sqlx::Connection as _;
use sqlx::postgres::PgConnection;

use crate::support::{Database, Stack};

const WINDOW: Duration = Duration::from_millis(200);
const HOUR: Duration = Duration::from_secs(3600);
const SHARD: i16 = 7;

/// A database, and a test in the place of a node.
struct Scene {
    own: Database,
    settings: PostgresSettings,
    rules: Rules,
    node: NodeId,
    leaves_end: Timestamp,
    look_up: LookUp,
}

fn tracking(attempts_max: u16) -> Tracking {
    let policy = RetryPolicy::DEFAULT;
    let retry = RetryPolicy::new(
        attempts_max,
        policy.backoff_min(),
        policy.backoff_max(),
        policy.backoff_factor(),
    );
    Tracking {
        ttr: Ttr::new(Duration::from_secs(30)).unwrap(),
        retry: retry.unwrap(),
        dead_topic: None,
    }
}

fn task(due_at: Timestamp, name: Option<&str>, tracking: Option<Tracking>) -> NewTask {
    let record = Record {
        topic: TopicName::new("orders").unwrap(),
        key: Some((*b"key").into()),
        payload: Some((*b"payload").into()),
        headers: Headers::default(),
    };
    let name = name.map(|name| TaskName::new(name).unwrap());
    let new = NewTask::new(record, name, due_at, ShardCount::DEFAULT, (0, rand::random()));
    let shard = punctual::domain::Shard::new(SHARD.try_into().unwrap());
    NewTask {
        id: TaskId::new(due_at, shard, rand::random()),
        tracking: tracking.map(Box::new),
        ..new
    }
}

fn finish(first: TaskId) -> AnswerCall {
    call(first, Call::Finish { attempt: None })
}

fn fail(first: TaskId, attempt: u16) -> AnswerCall {
    call(first, Call::Fail { attempt, is_final: false })
}

fn extend(first: TaskId, attempt: u16) -> AnswerCall {
    call(first, Call::Extend { attempt })
}

fn call(first: TaskId, call: Call) -> AnswerCall {
    AnswerCall { first, topic: None, call, retry_at: None, by: None, reason: None, principal: None }
}

impl Scene {
    async fn new(name: &str) -> Self {
        let own = Database::create(&Stack::shared(), name).await;
        let settings = PostgresSettings::new(&own.url).unwrap();
        let wishes = ClusterWishes { horizon: Some(HOUR * 2), ..ClusterWishes::default() };
        let report = schema::migrate(&settings, wishes).await.unwrap();
        let node = NodeId::new(Timestamp::EPOCH, 0, rand::random());
        let look_up = LookUp::new(&settings, &report.cluster, 2);
        let rules = Rules::new(&report.cluster);
        let mut scene = Self { own, settings, rules, node, leaves_end: Timestamp::EPOCH, look_up };
        scene.leaves_end = scene.now().await.plus(HOUR);
        scene
    }

    async fn now(&self) -> Timestamp {
        let query = "select (extract(epoch from clock_timestamp()) * 1000000)::bigint";
        Timestamp::from_micros(self.number(query).await)
    }

    async fn number(&self, query: &'static str) -> i64 {
        sqlx::query_scalar(query).fetch_one(&mut self.own.connect().await).await.unwrap()
    }

    async fn submit(&self, name: Option<&str>, tracking: Option<Tracking>) -> TaskId {
        self.submit_at(self.now().await.floor_millis(), name, tracking).await
    }

    async fn submit_at(
        &self,
        due_at: Timestamp,
        name: Option<&str>,
        tracking: Option<Tracking>,
    ) -> TaskId {
        let new = task(due_at, name, tracking);
        if name.is_none() {
            let group = Group { near: vec![&new], ..Group::default() };
            Submits::new(&self.settings, self.node).store(&group).await.unwrap();
        } else {
            let group =
                NamedGroup { tasks: &[&new], is_far: &[false], is_claimed: &[false], batch: None };
            NamedSubmits::new(&self.settings, self.node, HOUR).store(&group).await.unwrap();
        }
        new.id
    }

    /// Claims everything that is due within the hour.
    async fn claim(&self) -> Batch {
        self.try_claim().await.expect("something to claim")
    }

    async fn try_claim(&self) -> Option<Batch> {
        self.claim_beside().await.unwrap()
    }

    /// Claims as above, and may fail where others hold locks. So may the others that end alike.
    async fn claim_beside(&self) -> Result<Option<Batch>, PostgresError> {
        let now = self.now().await;
        let batch = BatchId::new(now, 0, rand::random());
        let range = IdRange::of_times(now.minus(HOUR), now.plus(HOUR));
        let request = ClaimRequest::of_all(batch, self.node, &[SHARD], range);
        let mut claims = Claims::new(&self.settings, self.rules);
        match claims.claim(Source::Task, request).await?.claimed {
            Claimed::Batch(batch) => Ok(Some(batch)),
            Claimed::Nothing => Ok(None),
            other => panic!("{other:?}"),
        }
    }

    /// Returns the outcomes of a batch whose records are all published.
    async fn published(&self, batch: &Batch) -> Settlement {
        let now = self.now().await;
        let receipt = Receipt { partition: 3, offset: 17, published_at: now };
        let outcome = |bytes: Option<&[u8]>, id: TaskId| {
            let Some(row) = bytes.map(|bytes| TrackedRow::decode(bytes).unwrap()) else {
                return Outcome::Published(receipt);
            };
            if row.is_verdict {
                return Outcome::Dead { reason: row.dead_reason().into(), receipt: None };
            }
            let next = AttemptRow::after(row.attempt, row.attempts_max());
            let times = (Duration::ZERO, WINDOW);
            let due_at = due_after_silence(next, now, row.tracking.ttr, times);
            let next = TaskId::new(due_at.ceil_millis(), id.shard(), rand::random());
            Outcome::Attempted { receipt, appended_at: now, next }
        };
        let outcomes: Vec<Outcome> =
            batch.tasks().map(|task| outcome(task.tracking, task.id)).collect();
        Settlement::new(batch, &outcomes)
    }

    async fn settle(&self, settlement: &Settlement) -> usize {
        self.settle_beside(self.node, settlement).await.unwrap()
    }

    async fn settle_beside(
        &self,
        node: NodeId,
        settlement: &Settlement,
    ) -> Result<usize, PostgresError> {
        let terms =
            SettleTerms { leaves_end: self.leaves_end, now: self.now().await, window: WINDOW };
        let mut settles = Settles::new(&self.settings, node, HOUR);
        let (settled, outcome) = settles.settle(&[settlement], terms).await;
        outcome.map(|()| settled.batches.len())
    }

    /// Claims what is due, publishes it, and settles the batch.
    async fn attempt(&self) {
        let batch = self.claim().await;
        let settlement = self.published(&batch).await;
        assert_eq!(self.settle(&settlement).await, 1);
    }

    async fn answer(&self, call: &AnswerCall) -> Option<Answered> {
        let mut store = AnswerStore::new(&self.settings, HOUR);
        self.answer_with(&mut store, call).await
    }

    async fn answer_with(&self, store: &mut AnswerStore, call: &AnswerCall) -> Option<Answered> {
        let mut answers = HashMap::new();
        self.take(store, std::slice::from_ref(call), &mut answers).await.unwrap();
        answers.remove(&call.first)
    }

    async fn take(
        &self,
        store: &mut AnswerStore,
        calls: &[AnswerCall],
        answers: &mut HashMap<TaskId, Answered>,
    ) -> Result<(), PostgresError> {
        let terms =
            AnswerTerms { now: self.now().await, leaves_end: self.leaves_end, window: WINDOW };
        store.take(calls, terms, answers).await
    }

    async fn verdict(&self, call: &AnswerCall) -> Verdict {
        self.answer(call).await.expect("a verdict").verdict
    }

    async fn view(&self, first: TaskId) -> TaskView {
        self.look_up.task(first).await.unwrap().unwrap()
    }

    async fn state(&self, first: TaskId) -> TaskState {
        self.view(first).await.state
    }

    async fn awaiting_count(&self) -> u64 {
        let counter = BacklogCounter::new(&self.settings, ShardCount::DEFAULT);
        counter.awaiting().await.unwrap().count
    }

    /// Checks that ended tasks have left no rows behind.
    async fn is_tidy(&self) {
        assert_eq!(self.number("select count(*) from task_follow").await, 0);
        assert_eq!(self.number("select count(*) from task").await, 0);
    }
}

#[tokio::test]
async fn a_task_that_was_never_sent_and_an_untracked_one_have_no_verdict_here() {
    let scene = Scene::new("tracked").await;
    let first = scene.submit(None, Some(tracking(3))).await;
    for call in [finish(first), fail(first, 1), extend(first, 1)] {
        assert_eq!(scene.answer(&call).await, None);
    }
    assert_eq!(scene.state(first).await, TaskState::Scheduled);
    let untracked = scene.submit(None, None).await;
    scene.claim().await;
    for call in [finish(untracked), fail(untracked, 1), extend(untracked, 1)] {
        assert_eq!(scene.answer(&call).await, None);
    }
    let absent = TaskId::new(first.due_at(), first.shard(), rand::random());
    assert_eq!(scene.answer(&finish(absent)).await, None);
    assert_eq!(scene.number("select count(*) from task_follow").await, 0);
}

#[tokio::test]
async fn a_consumer_that_is_quicker_than_the_settle_finishes_in_flight() {
    let scene = Scene::new("tracked").await;
    let first = scene.submit(Some("n"), Some(tracking(3))).await;
    let batch = scene.claim().await;
    let settlement = scene.published(&batch).await;
    assert_eq!(scene.verdict(&fail(first, 2)).await, Verdict::AttemptTooHigh);
    assert_eq!(scene.number("select count(*) from task_follow").await, 0);
    assert_eq!(scene.verdict(&finish(first)).await, Verdict::FinishedInFlight);
    assert_eq!(scene.verdict(&finish(first)).await, Verdict::Finished);
    assert_eq!(scene.verdict(&fail(first, 1)).await, Verdict::AlreadyFinished);
    let view = scene.view(first).await;
    assert!(view.state == TaskState::Finished && view.is_in_flight());
    assert_eq!(scene.settle(&settlement).await, 1);
    let view = scene.view(first).await;
    assert!(view.state == TaskState::Finished && !view.is_in_flight());
    assert_eq!(scene.number("select count(*) from execlog where state = 'finished'").await, 1);
    assert_eq!(scene.number("select count(*) from task_name where outcome = 5").await, 1);
    scene.is_tidy().await;
}

#[tokio::test]
async fn a_quick_consumer_fails_and_extends_and_the_settle_obeys() {
    let scene = Scene::new("tracked").await;
    let first = scene.submit(None, Some(tracking(3))).await;
    let batch = scene.claim().await;
    let settlement = scene.published(&batch).await;
    let reason = Some("out of stock".into());
    let failed = AnswerCall { reason, ..fail(first, 1) };
    assert_eq!(scene.verdict(&failed).await, Verdict::Noted);
    scene.settle(&settlement).await;
    let view = scene.view(first).await;
    assert_eq!(view.state, TaskState::Retrying);
    let tracked = view.tracked.unwrap();
    assert_eq!((tracked.attempt, tracked.attempts.len()), (1, 2));
    let reasons = [&tracked.attempts[0].reason, &tracked.attempts[1].reason];
    assert_eq!(reasons.map(|reason| reason.as_deref()), [None, Some("out of stock")]);
    // The second attempt is extended in flight by an hour.
    let batch = scene.claim().await;
    let settlement = scene.published(&batch).await;
    let by = Some(HOUR / 2);
    let extended = AnswerCall { by, ..extend(first, 2) };
    let asked_at = scene.now().await;
    assert_eq!(scene.verdict(&extended).await, Verdict::Noted);
    scene.settle(&settlement).await;
    let view = scene.view(first).await;
    assert_eq!(view.state, TaskState::Awaiting);
    let finish_by = view.tracked.unwrap().finish_by.unwrap();
    assert!(finish_by >= asked_at.plus(HOUR / 2).floor_millis(), "{finish_by:?}");
    assert_eq!(scene.verdict(&finish(first)).await, Verdict::Finished);
    scene.is_tidy().await;
}

#[tokio::test]
async fn an_awaiting_task_is_finished_failed_or_extended() {
    let scene = Scene::new("tracked").await;
    let [done, failed, extended, final_] = [
        scene.submit(Some("a"), Some(tracking(3))).await,
        scene.submit(Some("b"), Some(tracking(3))).await,
        scene.submit(None, Some(tracking(3))).await,
        scene.submit(None, Some(tracking(3))).await,
    ];
    scene.attempt().await;
    assert_eq!(scene.state(done).await, TaskState::Awaiting);
    assert_eq!(scene.awaiting_count().await, 4);
    assert_eq!(scene.verdict(&finish(done)).await, Verdict::Finished);
    let retry_at = scene.now().await.plus(HOUR / 2).ceil_millis();
    let asked = AnswerCall { retry_at: Some(retry_at), ..fail(failed, 1) };
    assert_eq!(scene.verdict(&asked).await, Verdict::Retrying);
    let next_at = async || scene.view(failed).await.tracked.unwrap().next_at;
    assert_eq!(next_at().await, Some(retry_at));
    // A repeated call changes nothing.
    assert_eq!(scene.verdict(&fail(failed, 1)).await, Verdict::RetryingAsBefore);
    assert_eq!(next_at().await, Some(retry_at));
    assert_eq!(scene.verdict(&extend(failed, 1)).await, Verdict::AlreadyFailed);
    assert_eq!(scene.verdict(&extend(extended, 1)).await, Verdict::Extended);
    assert_eq!(scene.awaiting_count().await, 2);
    for call in [fail(extended, 2), extend(extended, 2)] {
        assert_eq!(scene.verdict(&call).await, Verdict::AttemptTooHigh);
    }
    let last = AnswerCall {
        reason: Some("poison".into()),
        ..call(final_, Call::Fail { attempt: 1, is_final: true })
    };
    assert_eq!(scene.verdict(&last).await, Verdict::Dying);
    for call in [finish(final_), fail(final_, 1), extend(final_, 1)] {
        assert_eq!(scene.verdict(&call).await, Verdict::Dead);
    }
    // A failed task can still be finished, and a cancel is too late.
    let cancelled = Cancels::new(&scene.settings, HOUR).cancel_group(&[(failed, None)]).await;
    assert!(cancelled.1.is_ok() && cancelled.0 == [None]);
    assert_eq!(scene.verdict(&finish(failed)).await, Verdict::Finished);
    scene.attempt().await;
    let view = scene.view(final_).await;
    assert_eq!(
        (view.state, view.reason.as_deref()),
        (TaskState::Dead, Some("attempt 1 of 3 failed: poison"))
    );
    for call in [finish(final_), fail(final_, 1)] {
        assert_eq!(scene.answer(&call).await, None, "a look-up tells");
    }
}

#[tokio::test]
async fn an_earlier_attempt_may_finish_and_nothing_else() {
    let scene = Scene::new("tracked").await;
    let first = scene.submit(None, Some(tracking(3))).await;
    scene.attempt().await;
    let second = scene.claim().await;
    let settlement = scene.published(&second).await;
    let late = call(first, Call::Finish { attempt: Some(1) });
    for call in [fail(first, 1), extend(first, 1)] {
        assert_eq!(scene.verdict(&call).await, Verdict::AttemptSuperseded);
    }
    assert_eq!(scene.verdict(&late).await, Verdict::FinishedSuperseded);
    scene.settle(&settlement).await;
    assert_eq!(scene.state(first).await, TaskState::Finished);
    scene.is_tidy().await;
}

/// The second attempt had no acknowledgement, and waits to be sent again.
#[tokio::test]
async fn an_earlier_attempt_that_finishes_is_told_of_one_that_was_perhaps_sent() {
    let scene = Scene::new("tracked").await;
    let first = scene.submit(None, Some(tracking(3))).await;
    scene.attempt().await;
    let second = scene.claim().await;
    let next = TaskId::new(scene.now().await.ceil_millis(), first.shard(), rand::random());
    let outcome = Outcome::Deferred { next, maybe_sent: true };
    scene.settle(&Settlement::new(&second, &[outcome])).await;
    let late = call(first, Call::Finish { attempt: Some(1) });
    let answered = scene.answer(&late).await.unwrap();
    assert_eq!(answered.verdict, Verdict::FinishedSuperseded);
    assert!(answered.view.unwrap().is_in_flight());
    scene.is_tidy().await;
}

#[tokio::test]
async fn silence_uses_up_all_attempts_and_a_redrive_goes_on_counting() {
    let scene = Scene::new("tracked").await;
    let first = scene.submit(Some("n"), Some(tracking(2))).await;
    scene.attempt().await;
    scene.attempt().await;
    let view = scene.view(first).await;
    assert_eq!((view.state, view.tracked.unwrap().attempt), (TaskState::Awaiting, 2));
    // The verdict row is claimed: too late for everything.
    let verdict = scene.claim().await;
    for call in [finish(first), fail(first, 2), extend(first, 2)] {
        assert_eq!(scene.verdict(&call).await, Verdict::Dead);
    }
    let settlement = scene.published(&verdict).await;
    scene.settle(&settlement).await;
    scene.is_tidy().await;
    let view = scene.view(first).await;
    assert_eq!(
        (view.state, view.reason.as_deref()),
        (TaskState::Dead, Some("attempt 2 of 2 was not finished in its time to run"))
    );
    assert_eq!(scene.number("select count(*) from task_name where outcome = 3").await, 1);
    let letters = DeadLetters::new(&scene.settings, HOUR, 1);
    let redriven = letters.redrive(first, None).await.unwrap().unwrap().view;
    let attempt = redriven.tracked.unwrap().attempt;
    assert_eq!((redriven.state, attempt), (TaskState::Retrying, 2), "as a look-up shows it");
    assert_eq!(scene.verdict(&fail(first, 2)).await, Verdict::RetryingAsBefore);
    let third = scene.claim().await;
    let row = TrackedRow::decode(third.task(0).tracking.unwrap()).unwrap();
    assert_eq!((row.attempt, row.attempts_max()), (3, 4));
    let settlement = scene.published(&third).await;
    scene.settle(&settlement).await;
    assert_eq!(
        scene.verdict(&call(first, Call::Finish { attempt: Some(3) })).await,
        Verdict::Finished
    );
    scene.is_tidy().await;
    let attempts = scene.view(first).await.tracked.unwrap().attempts;
    let numbers: Vec<u16> = attempts.iter().map(|line| line.attempt).collect();
    assert_eq!(numbers, [1, 2, 3, 3]);
}

#[tokio::test]
async fn an_outage_of_kafka_uses_up_no_attempt() {
    let scene = Scene::new("tracked").await;
    let first = scene.submit(None, Some(tracking(2))).await;
    for maybe_sent in [false, true] {
        let batch = scene.claim().await;
        let next = TaskId::new(scene.now().await.ceil_millis(), first.shard(), rand::random());
        let outcome = Outcome::Deferred { next, maybe_sent };
        scene.settle(&Settlement::new(&batch, &[outcome])).await;
        let state = if maybe_sent { TaskState::Awaiting } else { TaskState::Scheduled };
        assert_eq!(scene.state(first).await, state);
    }
    let batch = scene.claim().await;
    let row = TrackedRow::decode(batch.task(0).tracking.unwrap()).unwrap();
    assert_eq!((row.attempt, batch.task(0).attempt), (1, 3));
    let settlement = scene.published(&batch).await;
    scene.settle(&settlement).await;
    assert_eq!(
        scene.verdict(&call(first, Call::Finish { attempt: Some(1) })).await,
        Verdict::Finished
    );
}

/// Consumers answer at any time, twice, late and about old attempts, while batches are claimed and
/// settled. At the end each task has one final line, and none was claimed after its finish.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_consumers_beside_claims_and_settles_leave_one_final_line_for_each_task() {
    const TASKS: usize = 200;
    let scene = Arc::new(Scene::new("tracked").await);
    let mut firsts = Vec::new();
    for number in 0..TASKS {
        let name = (number % 3 == 0).then(|| format!("n{number}"));
        firsts.push(scene.submit(name.as_deref(), Some(tracking(4))).await);
    }
    let is_over = Arc::new(AtomicBool::new(false));
    let consumers: Vec<_> = (0..4)
        .map(|_| {
            let (scene, firsts, is_over) =
                (Arc::clone(&scene), firsts.clone(), Arc::clone(&is_over));
            tokio::spawn(async move {
                let mut store = AnswerStore::new(&scene.settings, HOUR);
                while !is_over.load(Ordering::Relaxed) {
                    let first = firsts[rand::rng().random_range(0..TASKS)];
                    let attempt = rand::rng().random_range(1..=4);
                    let said = match rand::rng().random_range(0..10) {
                        0 => finish(first),
                        1 => call(first, Call::Finish { attempt: Some(attempt) }),
                        2 => call(first, Call::Fail { attempt, is_final: true }),
                        3..6 => extend(first, attempt),
                        _ => {
                            AnswerCall { retry_at: Some(Timestamp::EPOCH), ..fail(first, attempt) }
                        }
                    };
                    scene.answer_with(&mut store, &said).await;
                }
            })
        })
        .collect();
    let mut claims: HashMap<TaskId, usize> = HashMap::new();
    let mut idle = 0;
    while idle < 3 {
        let Some(batch) = scene.try_claim().await else {
            idle += 1;
            continue;
        };
        idle = 0;
        for task in batch.tasks() {
            *claims.entry(task.first_id).or_default() += 1;
        }
        // Finished before the claim: a final line that is not in flight.
        let finished: i64 = sqlx::query_scalar(
            "select count(*) from execlog_finished f join execlog_batch b
             on f.id = any(coalesce(b.first_ids, b.ids)) where b.batch = $1
             and f.finished_at < b.claimed_at",
        )
        .bind(batch.id.uuid())
        .fetch_one(&mut scene.own.connect().await)
        .await
        .unwrap();
        assert_eq!(finished, 0, "claimed after the finish");
        let settlement = scene.published(&batch).await;
        assert_eq!(scene.settle(&settlement).await, 1);
    }
    is_over.store(true, Ordering::Relaxed);
    for consumer in consumers {
        consumer.await.unwrap();
    }
    scene.is_tidy().await;
    let mut sql: PgConnection = PgConnection::connect(&scene.own.url).await.unwrap();
    let lines: Vec<(uuid::Uuid, i64)> = sqlx::query_as(
        "select id, count(*) from execlog where state in ('finished', 'dead') group by id",
    )
    .fetch_all(&mut sql)
    .await
    .unwrap();
    assert_eq!(lines.len(), TASKS);
    assert!(lines.iter().all(|(_id, count)| *count == 1), "{lines:?}");
    assert_eq!(claims.len(), TASKS);
    assert!(claims.values().all(|count| *count <= 5), "{claims:?}");
}

/// A batch of both kinds, as a claim on insert makes it.
#[tokio::test]
async fn tracked_and_untracked_tasks_share_a_batch() {
    let scene = Scene::new("tracked").await;
    let now = scene.now().await.floor_millis();
    let [tracked, untracked] = [task(now, None, Some(tracking(1))), task(now, None, None)];
    let id = BatchId::new(now, 0, rand::random());
    let group = Group { claimed: Some((id, vec![&tracked, &untracked])), ..Group::default() };
    Submits::new(&scene.settings, scene.node).store(&group).await.unwrap();
    let batch = BatchBuilder::of_new_tasks(id, [tracked.clone(), untracked.clone()].iter());
    let settlement = scene.published(&batch).await;
    assert_eq!(scene.settle(&settlement).await, 1);
    assert_eq!(scene.state(tracked.id).await, TaskState::Awaiting);
    assert_eq!(scene.state(untracked.id).await, TaskState::Published);
    assert_eq!(scene.number("select count(*) from task_follow").await, 1);
}

#[tokio::test]
async fn many_awaiting_tasks_are_estimated() {
    let scene = Scene::new("tracked").await;
    assert_eq!(scene.awaiting_count().await, 0);
    let many = "insert into task_follow (first_id, row_id, maybe_sent, attempt, note)
        select gen_random_uuid(), gen_random_uuid(), true, 1, case when n % 2 = 0 then 2 end
        from generate_series(1, 100000) as n";
    sqlx::query(many).execute(&mut scene.own.connect().await).await.unwrap();
    let count = scene.awaiting_count().await;
    assert!((35_000..65_000).contains(&count), "{count}");
}
