//! Aborts the program between two steps that belong together, at every failpoint
//! (`punctual::failpoint`). Another node takes over, or a new one starts. Nothing is lost, each
//! task ends once, and only tasks that the dead node had claimed and not settled may be published
//! twice.

mod intake_topic;
mod stage;

use std::collections::HashSet;
use std::thread;
use std::time::{Duration, Instant};

use punctual::domain::leaves::{Parent, Rules};
use punctual::domain::{ClusterSettings, Timestamp};
use punctual::failpoint::Failpoint;
use punctual::postgres::connection::ConnectionPurpose;
use punctual::postgres::partitions::create;
use punctual::postgres::{Connection, PostgresSettings};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use uuid::Uuid;

use self::stage::ready;
use crate::outbox::Shop;
use crate::support::api::Task;
use crate::support::ledger::SERIAL_HEADER;
use crate::support::{Cluster, Consumer, Ledger, NONE, Node, Record, Wishes, eventually, now_ms};

const DEADLINE: Duration = Duration::from_secs(120);
/// Clusters at a time, for both tests together: most of a case is waiting for a heartbeat to age.
/// With more of them, a task of a slow machine falls due before its case has come to the death.
static PLACES: Semaphore = Semaphore::const_new(7);
const TASK_COUNT: i64 = 200;
/// The tasks must be stored by then, also on a busy disk: the storing node dies at the claim.
const DUE_AFTER_MS: i64 = 10_000;
/// More than one chunk of the mover, which has a thousand rows.
const FAR_COUNT: i64 = 1_200;
const SIGABRT: i32 = 6;
const LEAF: Duration = Duration::from_secs(4);

/// The node that goes on after the death.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Heir {
    /// A node started after the death.
    Restarted,
    /// A node that ran before the death.
    Beside,
}

/// The work leading to the failpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Story {
    Publish,
    Submit,
    SubmitNamed,
    Adopt,
    Retire,
    Move,
    Replace,
    Reschedule,
    Cancel,
    Answer,
    Outbox,
    Intake,
    Schedule,
}

type Case = (Failpoint, u32, Story);

/// All failpoints, with the moment of the death and the work that leads there.
const CASES: [Case; 32] = [
    (Failpoint::RunsPlanned, 1, Story::Schedule),
    (Failpoint::RunsMade, 1, Story::Schedule),
    (Failpoint::RunsWithdrawn, 1, Story::Schedule),
    (Failpoint::FarChunkMoved, 1, Story::Move),
    (Failpoint::LeafTruncated, 1, Story::Retire),
    (Failpoint::LeafDetached, 1, Story::Retire),
    (Failpoint::BatchAdopted, 1, Story::Adopt),
    (Failpoint::BatchLoaded, 1, Story::Adopt),
    (Failpoint::ClaimCommitted, 1, Story::Publish),
    (Failpoint::RecordHandedOver, 20, Story::Publish),
    (Failpoint::LastAcknowledged, 1, Story::Publish),
    (Failpoint::SettleReady, 1, Story::Publish),
    (Failpoint::SettleAnswered, 1, Story::Publish),
    (Failpoint::InsertCommitted, 1, Story::Submit),
    (Failpoint::InsertCommitted, 1, Story::SubmitNamed),
    (Failpoint::InsertCommitted, 1, Story::Outbox),
    (Failpoint::InsertCommitted, 1, Story::Intake),
    (Failpoint::NameLocked, 1, Story::Replace),
    (Failpoint::NameTakenOut, 1, Story::Replace),
    (Failpoint::NameReplaced, 1, Story::Replace),
    (Failpoint::MoveFollowed, 1, Story::Reschedule),
    (Failpoint::TaskMoved, 1, Story::Reschedule),
    (Failpoint::FarCancelled, 1, Story::Cancel),
    (Failpoint::CancelCommitted, 1, Story::Cancel),
    (Failpoint::AnswersCommitted, 1, Story::Answer),
    (Failpoint::AnswersFollowed, 1, Story::Answer),
    (Failpoint::OutboxRead, 1, Story::Outbox),
    (Failpoint::OutboxStored, 1, Story::Outbox),
    (Failpoint::OutboxDeleted, 1, Story::Outbox),
    (Failpoint::IntakeRead, 1, Story::Intake),
    (Failpoint::IntakeRejected, 1, Story::Intake),
    (Failpoint::IntakeStored, 1, Story::Intake),
];

#[test]
fn a_node_that_dies_at_any_point_is_replaced_and_nothing_is_lost() {
    all_cases(Heir::Restarted);
}

#[test]
fn a_node_that_dies_at_any_point_is_taken_over_and_nothing_is_lost() {
    all_cases(Heir::Beside);
}

#[test]
fn there_is_a_case_for_every_point() {
    for point in Failpoint::ALL {
        assert!(CASES.iter().any(|(staged, _, _)| *staged == *point), "{point:?}");
    }
}

/// Runs all cases, several at a time, and fails with the names of the failed ones. Their messages
/// are printed before.
fn all_cases(heir: Heir) {
    // Runs a single case: FAILPOINT=LeafDetached.
    let wanted = std::env::var("FAILPOINT").ok();
    let is_wanted =
        |case: &Case| wanted.as_ref().is_none_or(|wanted| format!("{:?}", case.0) == *wanted);
    // Each case has its own thread, so a panic fails only this case.
    let threads = CASES.into_iter().filter(is_wanted).map(|case| {
        let thread = thread::spawn(move || run_alone(case, heir));
        (case, thread)
    });
    let threads: Vec<_> = threads.collect();
    let failed = threads.into_iter().filter_map(|(case, thread)| thread.join().err().map(|_| case));
    let failed: Vec<Case> = failed.collect();
    assert!(failed.is_empty(), "{heir:?}, failed: {failed:?}");
}

fn run_alone(case: Case, heir: Heir) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let _place = PLACES.acquire().await.unwrap();
        let began_at = Instant::now();
        run(case, heir).await;
        eprintln!("{case:?} {heir:?}: {:.1} s", began_at.elapsed().as_secs_f64());
    });
}

async fn run((point, times, story): Case, heir: Heir) {
    let stage = Stage::new(point, times, heir).await;
    match story {
        Story::Publish => stage.publish().await,
        Story::Submit => stage.submit().await,
        Story::SubmitNamed => stage.submit_named().await,
        Story::Adopt => stage.adopt().await,
        Story::Retire => stage.retire().await,
        Story::Move => stage.move_far().await,
        Story::Replace => stage.replace().await,
        Story::Reschedule => stage.reschedule().await,
        Story::Cancel => stage.cancel().await,
        Story::Answer => stage.answer().await,
        Story::Outbox => stage.outbox().await,
        Story::Intake => stage.intake().await,
        Story::Schedule => stage.schedule().await,
    }
}

struct Stage {
    point: Failpoint,
    kill_at: String,
    heir: Heir,
    cluster: Cluster,
    topic: String,
    consumer: Consumer,
    ledger: Ledger,
}

impl Stage {
    async fn new(point: Failpoint, times: u32, heir: Heir) -> Self {
        let wishes = Wishes { leaf: "4s", horizon: "20s", ..Wishes::default() };
        let cluster = Cluster::with(point.name(), wishes).await;
        let topic = cluster.topic("orders").await;
        let consumer = cluster.consumer(&topic);
        Self {
            point,
            kill_at: format!("{}:{times}", point.name()),
            heir,
            cluster,
            topic,
            consumer,
            ledger: Ledger::default(),
        }
    }

    /// All tasks are due at one moment, so a batch has many.
    async fn publish(&self) {
        let heir = self.heir_beforehand().await;
        let mut victim = self.victim().await;
        self.ledger_submit(victim.api(), DUE_AFTER_MS).await;
        let claimed = self.await_death(&mut victim).await;
        let _heir = self.heir_afterwards(heir).await;
        let findings =
            self.ledger.settle_up(&self.cluster, || self.consumer.records(), DEADLINE).await;
        let duplicates: HashSet<Uuid> = findings.duplicates.iter().copied().collect();
        assert_eq!(findings.dead, NONE);
        assert!(
            duplicates.is_subset(&claimed),
            "twice without having been in flight: {:?}",
            duplicates.difference(&claimed)
        );
        match self.point {
            Failpoint::ClaimCommitted => {
                assert!(duplicates.is_empty(), "nothing was sent: {duplicates:?}")
            }
            // Kafka had acknowledged the record, but no row said so.
            Failpoint::LastAcknowledged | Failpoint::SettleReady => assert!(!duplicates.is_empty()),
            _ => {}
        }
    }

    /// No caller got an answer. Each task exists once, because the group was stored.
    async fn submit(&self) {
        let heir = self.heir_beforehand().await;
        let mut victim = self.victim().await;
        let tasks: Vec<Value> = (0..40)
            .map(|number| self.numbered(number, json!({ "delay": number % 2 * 2_000 + 50 })))
            .collect();
        self.lose(victim.api(), Method::POST, "/v1/tasks/batch", &json!({ "tasks": tasks })).await;
        let claimed = self.await_death(&mut victim).await;
        let _heir = self.heir_afterwards(heir).await;
        self.consumer.wait_count(tasks.len(), DEADLINE).await;
        self.cluster.wait_final(tasks.len(), DEADLINE).await;
        self.assert_each_serial_once(tasks.len(), &claimed);
    }

    /// Repeating a submit with a name is safe. The answer is the first task.
    async fn submit_named(&self) {
        let heir = self.heir_beforehand().await;
        let mut victim = self.victim().await;
        let named = |number: i64| {
            self.numbered(
                number,
                json!({ "delay": number % 2 * 2_000 + 50, "name": format!("n{number}") }),
            )
        };
        let body = json!({ "tasks": (0..40).map(named).collect::<Vec<_>>() });
        self.lose(victim.api(), Method::POST, "/v1/tasks/batch", &body).await;
        let claimed = self.await_death(&mut victim).await;
        let heir = self.heir_afterwards(heir).await;
        let again = heir.api().send_tasks(Method::POST, "/v1/tasks/batch", &body.to_string()).await;
        let results = again.json()["results"].as_array().unwrap().clone();
        assert!(results.iter().all(|result| result["status"] == 200), "{results:?}");
        self.consumer.wait_count(40, DEADLINE).await;
        self.cluster.wait_final(40, DEADLINE).await;
        self.assert_each_serial_once(40, &claimed);
    }

    /// One node dies with claimed tasks, and the adopter dies, too.
    async fn adopt(&self) {
        let heir = self.heir_beforehand().await;
        let first = self.cluster.spawn_to_die_at(Failpoint::ClaimCommitted.name());
        let mut first = ready(first).await;
        self.freeze(heir.as_ref()).await;
        self.ledger_submit(first.api(), DUE_AFTER_MS).await;
        let mut claimed = self.await_death(&mut first).await;
        assert!(!claimed.is_empty());
        let mut adopter = self.cluster.spawn_to_die_at(&self.kill_at);
        adopter.wait_listening().await;
        claimed.extend(self.await_death(&mut adopter).await);
        self.finish(heir, &claimed).await;
    }

    /// A row slips into a past leaf between two checks. The row must not be dropped with the leaf.
    async fn retire(&self) {
        let heir = self.heir_beforehand().await;
        self.freeze(heir.as_ref()).await;
        let settings = PostgresSettings::new(&self.cluster.database.url).unwrap();
        let rules = Rules::new(&ClusterSettings {
            leaf: LEAF,
            horizon: Duration::from_secs(20),
            ..ClusterSettings::DEFAULT
        });
        let leaf = rules.partition_of(Parent::Task, Timestamp::from_millis(now_ms() - 7_200_000));
        let purpose =
            ConnectionPurpose { name: "test", deadline: Duration::from_secs(10), settings: &[] };
        assert!(create(&mut Connection::new(&settings, purpose), &rules, &[leaf]).await.unwrap());
        let mut victim = self.cluster.spawn_to_die_at(&self.kill_at);
        victim.wait_listening().await;
        self.await_death(&mut victim).await;
        self.insert(&leaf.name(), &[leaf.start]).await;
        let _heir = self.finish(heir, &HashSet::new()).await;
        let left = format!("select count(*) from pg_class where relname = '{}'", leaf.name());
        eventually("the leaf is gone when the row is", DEADLINE, async || {
            self.number(&left).await == 0
        })
        .await;
    }

    async fn move_far(&self) {
        let heir = self.heir_beforehand().await;
        self.freeze(heir.as_ref()).await;
        let due_at = Timestamp::from_millis(now_ms() + 30_000);
        let times: Vec<Timestamp> = (0..FAR_COUNT)
            .map(|number| due_at.plus(Duration::from_millis(number.unsigned_abs())))
            .collect();
        self.insert("task_far", &times).await;
        let mut victim = self.cluster.spawn_to_die_at(&self.kill_at);
        victim.wait_listening().await;
        self.await_death(&mut victim).await;
        let (moved, left) = (
            self.number("select count(*) from task").await,
            self.number("select count(*) from task_far").await,
        );
        assert!(moved > 0 && left > 0 && moved + left == FAR_COUNT, "{moved} moved, {left} left");
        self.finish(heir, &HashSet::new()).await;
    }

    /// A repeated PUT replaces the result of the first one.
    async fn replace(&self) {
        let heir = self.heir_beforehand().await;
        let mut victim = self.victim().await;
        let delay = if self.point == Failpoint::NameTakenOut { "2h" } else { "60s" };
        let first =
            victim.api().submit(&self.numbered(0, json!({ "delay": delay, "name": "n" }))).await;
        self.ledger.accept(&first, None);
        let path = format!("/v1/topics/{}/tasks/n", self.topic);
        let new = json!({ "delay": "40s", "payload_text": "new" });
        self.lose(victim.api(), Method::PUT, &path, &new).await;
        self.await_death(&mut victim).await;
        let live = "select (select count(*) from task) + (select count(*) from task_far)";
        eventually("the transaction of the dead node has ended", DEADLINE, async || {
            self.number(live).await == 1
        })
        .await;
        let heir = self.heir_afterwards(heir).await;
        let answer = heir.api().send_tasks(Method::PUT, &path, &new.to_string()).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        assert_eq!(self.number(live).await, 1, "live tasks of one name");
        self.ledger.accept(&Task::new(answer.json()), Some(b"new"));
        self.ledger.cancel(first.id, "cancelled".to_owned());
        let findings =
            self.ledger.settle_up(&self.cluster, || self.consumer.records(), DEADLINE).await;
        assert_eq!(
            (findings.published_count, findings.cancelled_count, findings.duplicates),
            (1, 1, Vec::new())
        );
    }

    /// A repeated move gives the task its new time, whether or not the first one took effect.
    async fn reschedule(&self) {
        let heir = self.heir_beforehand().await;
        let mut victim = self.victim().await;
        let task = self.numbered(0, json!({ "delay": "2h", "name": "n" }));
        let id = victim.api().submit(&task).await.id;
        let path = format!("/v1/tasks/{id}");
        let due_at = now_ms() + 45_000;
        let new = json!({ "due_at": due_at });
        self.lose(victim.api(), Method::PATCH, &path, &new).await;
        let claimed = self.await_death(&mut victim).await;
        let live = "select (select count(*) from task) + (select count(*) from task_far)";
        eventually("the transaction of the dead node has ended", DEADLINE, async || {
            self.number(live).await == 1
        })
        .await;
        let heir = self.heir_afterwards(heir).await;
        let body = Some(("application/json", new.to_string().into_bytes()));
        let answer = heir.api().send(Method::PATCH, &path, body).await;
        assert_eq!((answer.status, answer.verdict().as_str()), (200, "moved"), "{}", answer.text);
        assert_eq!(self.number(live).await, 1, "rows of one task");
        let records = self.consumer.wait_count(1, DEADLINE).await;
        let header = records[0].header("punctual-due-at");
        assert_eq!((records[0].task_id(), header), (id, Some(due_at.to_string().as_bytes())));
        self.cluster.wait_final(1, DEADLINE).await;
        self.assert_each_serial_once(1, &claimed);
    }

    /// A repeated cancel gets the verdict that the first one would have got.
    async fn cancel(&self) {
        let heir = self.heir_beforehand().await;
        let mut victim = self.victim().await;
        let tasks: Vec<Value> =
            ["60s", "2h"].iter().map(|delay| self.numbered(0, json!({ "delay": delay }))).collect();
        let accepted = victim.api().submit_all(&tasks).await;
        self.ledger.accept_all(&accepted, &tasks);
        let paths: Vec<String> =
            accepted.iter().map(|task| format!("/v1/tasks/{}", task.id)).collect();
        let cancel = |place: usize| victim.api().try_send(Method::DELETE, &paths[place], None);
        let (near, far) = tokio::join!(cancel(0), cancel(1));
        assert!(near.is_err() && far.is_err(), "it died before it could answer: {near:?} {far:?}");
        self.await_death(&mut victim).await;
        let heir = self.heir_afterwards(heir).await;
        for task in &accepted {
            let verdict = heir.api().cancel(task.id).await.verdict();
            assert_eq!(verdict, "cancelled");
            self.ledger.cancel(task.id, verdict);
        }
        let findings =
            self.ledger.settle_up(&self.cluster, || self.consumer.records(), DEADLINE).await;
        assert_eq!(findings.cancelled_count, 2);
    }

    /// A finish took effect and was not answered: its repetition is told so, and no attempt
    /// follows.
    async fn answer(&self) {
        let heir = self.heir_beforehand().await;
        let mut victim = self.victim().await;
        // On a slow machine, too, the finish comes before another attempt.
        let task = json!({ "topic": self.topic, "delay": 0, "payload": 1, "ttr": "10m" });
        let id = victim.api().submit(&task).await.id;
        let awaiting = "select count(*) from task_follow where attempt = 1";
        eventually("the consumer has the task", DEADLINE, async || {
            self.number(awaiting).await == 1
        })
        .await;
        let path = format!("/v1/tasks/{id}/finish");
        let body = Some(("application/json", b"{}".to_vec()));
        let unanswered = victim.api().try_send(Method::POST, &path, body).await;
        assert!(unanswered.is_err(), "it died before it could answer: {unanswered:?}");
        self.await_death(&mut victim).await;
        let heir = self.heir_afterwards(heir).await;
        let repeated = heir.api().post(&path, "{}").await;
        assert_eq!((repeated.status, &repeated.json()["verdict"]), (200, &json!("finished")));
        let rows = "select (select count(*) from task) + (select count(*) from task_far)";
        assert_eq!(self.number(rows).await, 0);
        // The record is in the topic, but the test's own consumer may be behind.
        assert_eq!(self.consumer.wait_count(1, DEADLINE).await.len(), 1);
    }

    /// Each row of an outbox takes effect once, in its order, wherever its node has died.
    async fn outbox(&self) {
        let mut shop = Shop::open(&self.cluster.stack).await;
        let flag = shop.flag();
        let arguments = ["--outbox", &flag];
        let heir = match self.heir {
            Heir::Restarted => None,
            Heir::Beside => Some(self.cluster.node_with(&arguments).await),
        };
        self.freeze(heir.as_ref()).await;
        let topic = &self.topic;
        // The named ones must still wait on a slow machine when they are cancelled and replaced.
        let rows = format!(
            "select punctual.submit('{topic}', payload_text => i::text,
              delay => i % 2 * '9 s'::interval,
              headers => jsonb_build_object('{SERIAL_HEADER}', i::text))
            from generate_series(1, 40) i;
            select punctual.submit('{topic}', payload => '0', delay => '2 h', name => 'a');
            select punctual.submit('{topic}', payload => '0', delay => '2 h', name => 'b');
            select punctual.cancel('{topic}', 'a');
            select punctual.replace('{topic}', 'b', payload => '41', delay => '9 s',
              headers => '{{\"{SERIAL_HEADER}\": \"41\"}}')"
        );
        shop.run(&rows).await;
        let mut victim = self.cluster.spawn_to_die_with(&self.kill_at, &arguments);
        victim.wait_listening().await;
        let claimed = self.await_death(&mut victim).await;
        let _heir = match heir {
            Some(heir) => {
                heir.thaw();
                heir
            }
            None => self.cluster.node_with(&arguments).await,
        };
        shop.wait_empty().await;
        self.consumer.wait_count(41, DEADLINE).await;
        self.cluster.wait_final(43, DEADLINE).await;
        self.assert_each_serial_once(41, &claimed);
        assert_eq!(self.number("select count(*) from execlog_cancelled").await, 2);
        assert_eq!(shop.count("select count(*) from punctual.outbox_rejected").await, 0);
        eventually("no entry of a row is left", DEADLINE, async || {
            self.number("select count(*) from outbox_seen").await == 0
        })
        .await;
    }

    /// Each instant of a schedule gets one task, whenever its maker dies.
    async fn schedule(&self) {
        const RUNS: usize = 12;
        let heir = self.heir_beforehand().await;
        let mut victim = self.victim().await;
        let path = format!("/v1/schedules/{}/often", self.topic);
        let schedule = |payload: &str| {
            json!({ "every": "1s", "runs_max": RUNS, "payload": payload,
                "missed": { "policy": "all", "within": "1h" } })
        };
        let put = async |node: &Node, payload: &str| {
            let body = Some(("application/json", schedule(payload).to_string().into_bytes()));
            node.api().try_send(Method::PUT, &path, body).await
        };
        // The heir must not make the runs before the victim does.
        self.freeze(heir.as_ref()).await;
        let stored = put(&victim, "a").await;
        if self.point == Failpoint::RunsWithdrawn {
            assert_eq!(stored.unwrap().status, 201);
            let made = "select count(*) from schedule_run";
            eventually("runs are made", DEADLINE, async || self.number(made).await > 0).await;
            assert!(put(&victim, "b").await.is_err(), "it died before it could answer");
        }
        self.await_death(&mut victim).await;
        if let Some(heir) = &heir {
            heir.thaw();
        }
        let _heir = self.heir_afterwards(heir).await;
        let run_at = |record: &Record| {
            let text = String::from_utf8(record.header("punctual-run-at").unwrap().to_vec());
            text.unwrap().parse::<jiff::Timestamp>().unwrap().as_second()
        };
        let runs = || -> HashSet<(i64, Uuid)> {
            self.consumer
                .records()
                .iter()
                .map(|record| (run_at(record), record.task_id()))
                .collect()
        };
        eventually("all runs are published", DEADLINE, async || runs().len() >= RUNS).await;
        let pending = "select (select count(*) from task) + (select count(*) from task_far)";
        eventually("no run is left", DEADLINE, async || self.number(pending).await == 0).await;
        let mut times: Vec<i64> = runs().iter().map(|(at, _id)| *at).collect();
        times.sort_unstable();
        let first = times[0];
        let wanted: Vec<i64> = (first..).take(RUNS).collect();
        assert_eq!(times, wanted, "each instant has one task");
    }
}
