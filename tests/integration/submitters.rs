//! The submitter of a task and the time of the submit are kept through every move.

use std::time::Duration;

use punctual::domain::leaves::Rules;
use punctual::domain::{
    Batch, BatchBuilder, BatchId, ClusterSettings, ClusterWishes, Headers, IdRange, NewTask,
    NodeId, Outcome, Precondition, PrincipalId, PrincipalName, Receipt, Record, Selection,
    ShardCount, Submitted, TaskId, TaskName, TaskState, TaskView, Timestamp, TopicName,
};
use punctual::postgres::PostgresSettings;
use punctual::postgres::cluster::schema;
use punctual::postgres::lists::dead_letters::due_range::DueRange;
use punctual::postgres::lists::dead_letters::{DeadLetterChange, DeadLetters};
use punctual::postgres::partitions::mover::Mover;
use punctual::postgres::tasks::adopt::Adoptions;
use punctual::postgres::tasks::cancel::Cancels;
use punctual::postgres::tasks::claim::{ClaimRequest, Claimed, Claims, Source, smallints};
use punctual::postgres::tasks::look_up::LookUp;
use punctual::postgres::tasks::principals::{Interned, Principals};
use punctual::postgres::tasks::replace::{Replacement, Replaces};
use punctual::postgres::tasks::settle::{SettleTerms, Settlement, Settles};
use punctual::postgres::tasks::submit::{Group, Submits};
use punctual::postgres::tasks::submit_named::{NamedGroup, NamedSubmits};
use sqlx::AssertSqlSafe;
use sqlx::postgres::PgConnection;

use crate::support::partitions::move_far;
use crate::support::{Database, Stack};

mod over_rest;
mod redaction;
mod upgrade;

const DAY: Duration = Duration::from_secs(86_400);
const TOPIC: &str = "orders";

/// A database of its own, with three principals.
struct Stage {
    /// Gone with the stage.
    _database: Database,
    settings: PostgresSettings,
    rules: Rules,
    sql: PgConnection,
    look_up: LookUp,
    dead_letters: DeadLetters,
    node: NodeId,
    now: Timestamp,
    ann: Option<PrincipalId>,
    bob: Option<PrincipalId>,
    carol: Option<PrincipalId>,
}

impl Stage {
    async fn new() -> Self {
        let database = Database::create(&Stack::shared(), "submitters").await;
        let (mut sql, settings) =
            (database.connect().await, PostgresSettings::new(&database.url).unwrap());
        let wishes = ClusterWishes { horizon: Some(DAY), ..ClusterWishes::default() };
        let report = schema::migrate(&settings, wishes).await.unwrap();
        let now = number(&mut sql, "select (extract(epoch from now()) * 1000000)::bigint").await;
        let principals = Principals::new(&settings, 1);
        let mut ids = Vec::new();
        for name in ["ann", "bob", "carol"] {
            ids.push(principals.intern(&named(name)).await.unwrap().id());
        }
        Self {
            _database: database,
            look_up: LookUp::new(&settings, &report.cluster, 1),
            dead_letters: DeadLetters::new(&settings, DAY, 1),
            settings,
            rules: Rules::new(&report.cluster),
            sql,
            node: NodeId::new(Timestamp::EPOCH, 0, rand::random()),
            now: Timestamp::from_micros(now),
            ann: ids[0],
            bob: ids[1],
            carol: ids[2],
        }
    }

    /// A task that is due so many seconds from now.
    fn task(&self, seconds: u64, name: Option<&str>, by: Option<PrincipalId>) -> NewTask {
        let record = Record {
            topic: TopicName::new(TOPIC).unwrap(),
            key: None,
            payload: Some(b"p".to_vec().into_boxed_slice()),
            headers: Headers::default(),
        };
        let name = name.map(|name| TaskName::new(name).unwrap());
        let due_at = self.now.plus(Duration::from_secs(seconds));
        let random = (rand::random(), rand::random());
        let task = NewTask::new(record, name, due_at, ShardCount::DEFAULT, random);
        NewTask { submitted_by: by, ..task }
    }

    async fn store(&self, group: &Group<'_>) {
        Submits::new(&self.settings, self.node).store(group).await.unwrap();
    }

    /// Claims what is due up to so many seconds from now.
    async fn claim(&self, seconds: u64) -> Batch {
        let shards = smallints(&ShardCount::DEFAULT.all().collect::<Vec<_>>());
        let end = self.now.plus(Duration::from_secs(seconds));
        let range = IdRange::of_times(self.now.minus(Duration::from_secs(60)), end);
        let batch = BatchId::new(self.now, 0, rand::random());
        let request = ClaimRequest::of_all(batch, self.node, &shards, range);
        match Claims::new(&self.settings, self.rules)
            .claim(Source::Task, request)
            .await
            .unwrap()
            .claimed
        {
            Claimed::Batch(batch) => batch,
            other => panic!("{other:?}"),
        }
    }

    /// Settles a batch with what `outcome` says of each row.
    async fn settle(&self, batch: &Batch, outcome: impl Fn(TaskId) -> Outcome) {
        let outcomes: Vec<Outcome> = batch.tasks().map(|task| outcome(task.id)).collect();
        let settlement = Settlement::new(batch, &outcomes);
        let mut settles = Settles::new(&self.settings, self.node, DAY);
        let (settled, outcome) = settles.settle(&[&settlement], SettleTerms::default()).await;
        outcome.unwrap();
        assert_eq!(settled.batches.len(), 1);
    }

    async fn view(&self, id: TaskId) -> TaskView {
        self.look_up.task(id).await.unwrap().unwrap()
    }

    async fn submitted(&self, id: TaskId) -> Option<Submitted> {
        self.view(id).await.actors.submitted
    }

    async fn number(&mut self, query: &str) -> i64 {
        number(&mut self.sql, query).await
    }

    /// The view `execlog` on a task: state, submitter, who ended it.
    async fn lines(&mut self, id: TaskId) -> Vec<(String, Option<String>, Option<String>)> {
        let query = "select state, submitted_by, ended_by from execlog where id = $1
                     order by claimed_at, state";
        sqlx::query_as(query).bind(id.uuid()).fetch_all(&mut self.sql).await.unwrap()
    }
}

fn named(name: &str) -> PrincipalName {
    PrincipalName::new(name).unwrap()
}

async fn number(sql: &mut PgConnection, query: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(query.to_owned())).fetch_one(sql).await.unwrap()
}

fn deferred(row: TaskId) -> Outcome {
    let next = row.due_at().plus(Duration::from_secs(1));
    Outcome::Deferred { next: TaskId::new(next, row.shard(), rand::random()), maybe_sent: false }
}

fn dead(_row: TaskId) -> Outcome {
    Outcome::Dead { reason: "too large".into(), receipt: None }
}

fn published(row: TaskId) -> Outcome {
    Outcome::Published(Receipt { partition: 0, offset: 1, published_at: row.due_at() })
}

fn line(
    state: &str,
    submitted_by: &str,
    ended_by: Option<&str>,
) -> (String, Option<String>, Option<String>) {
    (state.to_owned(), Some(submitted_by.to_owned()), ended_by.map(str::to_owned))
}

/// The longest way of a task: far, near, claimed, deferred, claimed, adopted, dead, redriven, dead,
/// dropped.
#[tokio::test]
async fn the_submitter_goes_with_a_task_from_the_far_table_to_its_end() {
    let mut stage = Stage::new().await;
    let (far, other) = (stage.task(2 * 86_400, None, stage.ann), stage.task(90_000, None, None));
    stage.store(&Group { far: vec![&far, &other], ..Group::default() }).await;
    let at_first = stage.submitted(far.id).await.unwrap();
    assert_eq!(at_first.by, named("ann"));
    assert!(
        at_first.at >= stage.now.minus(Duration::from_millis(1))
            && at_first.at < stage.now.plus(Duration::from_secs(60)),
        "{at_first:?}"
    );
    assert_eq!(stage.submitted(other.id).await, None, "nothing is known of an anonymous caller");
    // So that it can be moved, claimed and settled now, the task becomes due soon.
    let soon = TaskId::new(stage.now.plus(Duration::from_secs(5)), far.id.shard(), 7);
    let renamed = sqlx::query("update task_far set id = $1 where id = $2")
        .bind(soon.uuid())
        .bind(far.id.uuid());
    assert_eq!(renamed.execute(&mut stage.sql).await.unwrap().rows_affected(), 1);
    let range = IdRange::of_times(stage.now, stage.now.plus(Duration::from_secs(60)));
    assert_eq!(move_far(&mut Mover::new(&stage.settings), range).await.unwrap().task_count, 1);
    assert_eq!(stage.number("select count(*) from task").await, 1);
    assert_eq!(stage.submitted(soon).await.as_ref(), Some(&at_first), "moved");
    let batch = stage.claim(10).await;
    assert_eq!(stage.submitted(soon).await.as_ref(), Some(&at_first), "claimed");
    stage.settle(&batch, deferred).await;
    assert_eq!(stage.submitted(soon).await.as_ref(), Some(&at_first), "deferred");
    // The node dies, and another one adopts the second attempt.
    stage.claim(20).await;
    stage.node = NodeId::new(Timestamp::EPOCH, 0, rand::random());
    let mut adoptions = Adoptions::new(&stage.settings, stage.node);
    let adopted = adoptions.adopt(BatchId::new(Timestamp::EPOCH, 0, 0)).await.unwrap();
    let adopted = adoptions.load(adopted[0]).await.unwrap().unwrap().0;
    stage.settle(&adopted, dead).await;
    assert_eq!(stage.submitted(soon).await.as_ref(), Some(&at_first), "dead");
    let redriven = stage.dead_letters.redrive(soon, stage.bob).await.unwrap().unwrap();
    assert_eq!(redriven.view.actors.submitted.as_ref(), Some(&at_first), "redriven");
    assert_eq!(stage.submitted(soon).await.as_ref(), Some(&at_first), "redriven");
    let batch = stage.claim(30).await;
    stage.settle(&batch, dead).await;
    let dropped = stage.dead_letters.discard((soon, None), stage.carol).await.unwrap().unwrap();
    let view = stage.view(soon).await;
    assert_eq!((view.state, view.reason.as_deref()), (TaskState::Dead, Some("too large")));
    assert_eq!(view.actors, dropped.actors, "the answer of the drop is that of a look-up");
    assert_eq!(view.actors.submitted.as_ref(), Some(&at_first), "dropped");
    assert_eq!(view.actors.dropped.unwrap().by, Some(named("carol")));
    assert!(view.kept.is_none() && dropped.kept.is_some());
    let states: Vec<_> = stage.lines(soon).await;
    assert!(states.contains(&line("deferred", "ann", None)), "{states:?}");
    assert!(states.contains(&line("redriven", "ann", Some("bob"))), "{states:?}");
    assert!(states.contains(&line("dropped", "ann", Some("carol"))), "{states:?}");
    assert_eq!(states.len(), 3, "the drop has the line of the second death: {states:?}");
    let at = "select count(distinct submitted_at) from execlog where submitted_by = 'ann'";
    assert_eq!(stage.number(at).await, 1);
    // Without the batches, the line of the drop still says all of it.
    stage
        .number("with gone as (delete from execlog_batch returning 1) select count(*) from gone")
        .await;
    stage
        .number("with gone as (delete from execlog_ended returning 1) select count(*) from gone")
        .await;
    assert_eq!(stage.view(soon).await.actors, dropped.actors);
}

/// A look-up has found the topic that the caller has the right to. Since then, the task may have
/// been redriven to another topic, and have died there.
#[tokio::test]
async fn a_dead_letter_of_another_topic_than_the_permitted_one_stays() {
    let stage = Stage::new().await;
    let task = stage.task(1, None, stage.ann);
    stage.store(&Group { near: vec![&task], ..Group::default() }).await;
    stage.settle(&stage.claim(5).await, dead).await;
    let [own, to] = [TOPIC, "invoices"].map(|topic| TopicName::new(topic).unwrap());
    let letters = &stage.dead_letters;
    let redriven = letters.redrive_to((task.id, Some(&own)), stage.bob, Some(&to)).await.unwrap();
    assert_eq!(redriven.unwrap().view.topic, to);
    stage.settle(&stage.claim(20).await, dead).await;
    assert_eq!(letters.discard((task.id, Some(&own)), stage.bob).await.unwrap(), None);
    let other = TopicName::new("payments").unwrap();
    for next in [None, Some(&own), Some(&other)] {
        let redriven = letters.redrive_to((task.id, Some(&own)), stage.bob, next).await;
        assert_eq!(redriven.unwrap(), None, "{next:?}");
    }
    let view = stage.view(task.id).await;
    assert_eq!((view.state, view.actors.dropped), (TaskState::Dead, None));
    let dropped = letters.discard((task.id, Some(&to)), stage.carol).await.unwrap();
    assert_eq!(dropped.unwrap().topic, to);
}

#[tokio::test]
async fn each_task_of_a_batch_keeps_its_own_submitter() {
    let stage = Stage::new().await;
    let near = [
        stage.task(1, None, stage.ann),
        stage.task(2, None, None),
        stage.task(3, None, stage.bob),
        stage.task(4, None, stage.ann),
    ];
    stage.store(&Group { near: near.iter().collect(), ..Group::default() }).await;
    let batch = stage.claim(5).await;
    let names = async |stage: &Stage, tasks: &[NewTask]| {
        let mut names = Vec::new();
        for task in tasks {
            let submitted = stage.submitted(task.id).await;
            names.push(submitted.map(|submitted| submitted.by.to_string()));
        }
        names
    };
    let expected =
        [Some("ann"), None, Some("bob"), Some("ann")].map(|name| name.map(str::to_owned));
    assert_eq!(names(&stage, &near).await, expected);
    // One dies, one is published, two go on.
    let (died, done) = (near[2].id, near[3].id);
    stage
        .settle(&batch, |row| match row {
            row if row == died => dead(row),
            row if row == done => published(row),
            row => deferred(row),
        })
        .await;
    assert_eq!(names(&stage, &near).await, expected);
    // The same for tasks that are claimed by their insert.
    let claimed =
        [stage.task(0, None, None), stage.task(0, None, stage.bob), stage.task(0, None, stage.ann)];
    let id = BatchId::new(stage.now, 0, rand::random());
    stage.store(&Group { claimed: Some((id, claimed.iter().collect())), ..Group::default() }).await;
    let expected = [None, Some("bob"), Some("ann")].map(|name| name.map(str::to_owned));
    assert_eq!(names(&stage, &claimed).await, expected);
    stage.settle(&BatchBuilder::of_new_tasks(id, claimed.iter()), deferred).await;
    assert_eq!(names(&stage, &claimed).await, expected);
}

/// A batch stores nothing of anonymous tasks, and one element for equal submitters.
#[tokio::test]
async fn a_batch_stores_no_more_of_its_submitters_than_it_must() {
    let mut stage = Stage::new().await;
    let sizes = "select (coalesce(cardinality(submitted_by), -1) * 100
      + coalesce(cardinality(submitted_ats), -1))::bigint
                 from execlog_batch order by claimed_at desc limit 1";
    let (ann, bob) = (stage.ann, stage.bob);
    for (number, (submitters, size)) in [
        ([None, None], -101),
        ([ann, ann], 101),
        // The moment is that of the statement, so it is the same for both.
        ([ann, bob], 201),
        ([None, bob], 202),
    ]
    .into_iter()
    .enumerate()
    {
        let near = submitters.map(|by| stage.task(1, None, by));
        stage.store(&Group { near: near.iter().collect(), ..Group::default() }).await;
        stage.claim(2).await;
        assert_eq!(stage.number(sizes).await, size, "claimed, case {number}");
        let claimed = submitters.map(|by| stage.task(0, None, by));
        let id = BatchId::new(stage.now, 0, rand::random());
        let group = Group { claimed: Some((id, claimed.iter().collect())), ..Group::default() };
        stage.store(&group).await;
        let size = if size == 201 { 202 } else { size };
        assert_eq!(stage.number(sizes).await, size, "claimed on insert, case {number}");
        let names = [format!("a{number}"), format!("b{number}")];
        let tasks =
            [0, 1].map(|index| stage.task(0, Some(names[index].as_str()), submitters[index]));
        let group = NamedGroup {
            tasks: &tasks.iter().collect::<Vec<_>>(),
            is_far: &[false; 2],
            is_claimed: &[true; 2],
            batch: Some(BatchId::new(stage.now, 0, rand::random())),
        };
        let mut submits = NamedSubmits::new(&stage.settings, stage.node, DAY);
        assert_eq!(submits.store(&group).await.unwrap().0.len(), 2);
        let size = if submitters == [ann, bob] { 201 } else { size };
        assert_eq!(stage.number(sizes).await, size, "with names, case {number}");
    }
}

#[tokio::test]
async fn a_named_task_and_the_one_in_its_place_have_submitters_of_their_own() {
    let mut stage = Stage::new().await;
    let tasks = [
        stage.task(600, Some("a"), stage.ann),
        stage.task(2 * 86_400, Some("b"), stage.ann),
        stage.task(600, Some("c"), None),
    ];
    let group = NamedGroup {
        tasks: &tasks.iter().collect::<Vec<_>>(),
        is_far: &[false, true, false],
        is_claimed: &[false; 3],
        batch: None,
    };
    let mut submits = NamedSubmits::new(&stage.settings, stage.node, DAY);
    assert_eq!(submits.store(&group).await.unwrap().0.len(), 3);
    let replaces = Replaces::new(&stage.settings, DAY, 1);
    for (former, is_far) in [(&tasks[0], true), (&tasks[1], false)] {
        let submitted = stage.submitted(former.id).await.unwrap();
        assert_eq!(submitted.by, named("ann"));
        let name = former.name.as_ref().map(|name| name.as_str());
        let next = stage.task(if is_far { 2 * 86_400 } else { 700 }, name, stage.bob);
        let replaced = replaces.replace(&next, is_far, None, &Precondition::default()).await;
        assert_eq!(replaced.unwrap(), Replacement::Replaced);
        assert_eq!(stage.submitted(next.id).await.unwrap().by, named("bob"));
        let view = stage.view(former.id).await;
        assert_eq!((view.state, view.replaced_by), (TaskState::Cancelled, Some(next.id)));
        assert_eq!(view.actors.submitted, Some(submitted));
        assert_eq!(view.actors.cancelled_by, Some(named("bob")));
        assert_eq!(stage.lines(former.id).await, [line("cancelled", "ann", Some("bob"))]);
    }
    // A name that was free, and a replacement by an anonymous caller.
    let created = stage.task(600, Some("d"), stage.carol);
    let place =
        async |task: &NewTask| replaces.replace(task, false, None, &Precondition::default()).await;
    assert_eq!(place(&created).await.unwrap(), Replacement::Created);
    assert_eq!(stage.submitted(created.id).await.unwrap().by, named("carol"));
    let anonymous = stage.task(600, Some("d"), None);
    assert_eq!(place(&anonymous).await.unwrap(), Replacement::Replaced);
    assert_eq!(stage.submitted(anonymous.id).await, None);
    assert_eq!(stage.view(created.id).await.actors.cancelled_by, None);
}

#[tokio::test]
async fn a_cancel_says_who_has_submitted_and_who_has_cancelled_the_task() {
    let mut stage = Stage::new().await;
    let (near, far) = (stage.task(600, None, stage.ann), stage.task(2 * 86_400, None, None));
    stage.store(&Group { near: vec![&near], far: vec![&far], claimed: None }).await;
    let submitted = stage.submitted(near.id).await;
    assert!(submitted.is_some());
    let mut cancels = Cancels::new(&stage.settings, DAY);
    let (views, outcome) =
        cancels.cancel_group(&[(near.id, stage.bob), (far.id, stage.carol)]).await;
    outcome.unwrap();
    let [near_view, far_view] = views.try_into().unwrap();
    let (near_view, far_view) = (near_view.unwrap(), far_view.unwrap());
    assert_eq!(near_view, stage.view(near.id).await, "the answer is that of a look-up");
    assert_eq!(far_view, stage.view(far.id).await);
    assert_eq!(near_view.actors.submitted, submitted);
    assert_eq!(near_view.actors.cancelled_by, Some(named("bob")));
    assert_eq!(far_view.actors.submitted, None);
    assert_eq!(far_view.actors.cancelled_by, Some(named("carol")));
    assert_eq!(stage.lines(near.id).await, [line("cancelled", "ann", Some("bob"))]);
}

#[tokio::test]
async fn many_dead_letters_are_put_back_and_dropped_by_somebody() {
    let mut stage = Stage::new().await;
    let near = [1, 2, 3, 4].map(|second| stage.task(second, None, stage.ann));
    stage.store(&Group { near: near.iter().collect(), ..Group::default() }).await;
    let batch = stage.claim(5).await;
    stage.settle(&batch, dead).await;
    let (topic, all) = (TopicName::new(TOPIC).unwrap(), DueRange::of(&Selection::default()));
    for (change, by, expected) in [
        (DeadLetterChange::Redrive, stage.bob, line("redriven", "ann", Some("bob"))),
        (DeadLetterChange::Drop, stage.carol, line("dropped", "ann", Some("carol"))),
    ] {
        let changed =
            stage.dead_letters.change_some((change, by), (&topic, None), all, 2).await.unwrap();
        assert_eq!(changed.rows.len(), 2);
        let ids = if change == DeadLetterChange::Redrive { &near[..2] } else { &near[2..] };
        for task in ids {
            assert_eq!(stage.lines(task.id).await.as_slice(), std::slice::from_ref(&expected));
            assert_eq!(stage.submitted(task.id).await.unwrap().by, named("ann"));
        }
    }
    assert_eq!(stage.number("select count(*) from execlog where state = 'dead'").await, 0);
}

#[tokio::test]
async fn a_principal_has_one_number_whoever_asks_for_it_first() {
    let mut stage = Stage::new().await;
    let nodes = [0; 4].map(|_| Principals::new(&stage.settings, 2));
    let name = |number: usize| named(&format!("jwt:k8s/{number}"));
    for number in 0..30 {
        let name = name(number);
        let [one, two, three, four] = nodes.each_ref().map(|node| node.intern(&name));
        let (one, two, three, four) = tokio::join!(one, two, three, four);
        let ids = [one, two, three, four].map(|interned| interned.unwrap().id().unwrap());
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
        // Also from memory, and from Postgres.
        assert_eq!(nodes[0].intern(&name).await.unwrap(), Interned::Known(ids[0]));
        assert_eq!(nodes[0].find(&name).await.unwrap(), Some(ids[0]));
        assert_eq!(Principals::new(&stage.settings, 1).find(&name).await.unwrap(), Some(ids[0]));
    }
    assert_eq!(stage.number("select count(*) from principal").await, 33);
    assert_eq!(nodes[0].find(&named("nobody")).await.unwrap(), None);
    let anonymous = PrincipalName::anonymous();
    assert_eq!(nodes[0].intern(&anonymous).await.unwrap(), Interned::Anonymous);
    assert_eq!(stage.number("select count(*) from principal").await, 33);
    // After the last number nobody is refused.
    let fill = "insert into principal (id, name) overriding system value
      select i, 'filler-' || i from generate_series(1, 32767) i
      where i not in (select id from principal) offset 1";
    sqlx::raw_sql(fill).execute(&mut stage.sql).await.unwrap();
    let last = nodes[1].intern(&named("last")).await.unwrap();
    assert!(matches!(last, Interned::Known(_)), "{last:?}");
    assert_eq!(nodes[1].intern(&named("one-too-many")).await.unwrap(), Interned::UsedUp);
    assert_eq!(nodes[1].intern(&named("last")).await.unwrap(), last);
}

#[tokio::test]
async fn a_number_that_a_failover_has_lost_is_not_used_for_another_principal() {
    let mut stage = Stage::new().await;
    let node = Principals::new(&stage.settings, 1);
    let (ann, id) = (named("ann"), stage.ann.unwrap());
    assert_eq!(node.intern(&ann).await.unwrap(), Interned::Known(id));
    assert_eq!(node.intern(&ann).await.unwrap(), Interned::Known(id));
    let lose = async |stage: &mut Stage, more: &str| {
        let text = format!("delete from principal where name = 'ann'; {more}");
        sqlx::raw_sql(AssertSqlSafe(text)).execute(&mut stage.sql).await.unwrap();
        // Every connection of the node is opened again, and the first that is may be any.
        Principals::new(&stage.settings, 1).find(&named("nobody")).await.unwrap();
    };
    // The same name gets its number again: rows of tasks in flight may have it.
    lose(&mut stage, "").await;
    assert_eq!(node.find(&ann).await.unwrap(), None);
    assert_eq!(node.intern(&ann).await.unwrap(), Interned::Known(id));
    assert_eq!(stage.number("select count(*) from principal where name = 'ann'").await, 1);
    // Another one may have it meanwhile.
    let taken = format!(
        "insert into principal (id, name) overriding system value values ({}, 'mallory')",
        id.as_smallint()
    );
    lose(&mut stage, &taken).await;
    let Interned::Known(other) = node.intern(&ann).await.unwrap() else { panic!() };
    assert_ne!(other, id);
    assert_eq!(node.intern(&named("mallory")).await.unwrap(), Interned::Known(id));
}
