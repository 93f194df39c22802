//! The steps that many stories share: nodes that die and go on, tasks and rows that are made, and
//! what must hold in the end.

use std::collections::HashSet;
use std::os::unix::process::ExitStatusExt as _;

use punctual::domain::{Shard, TaskId, Timestamp};
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::AssertSqlSafe;
use uuid::Uuid;

use super::{DEADLINE, Heir, SIGABRT, Stage, TASK_COUNT};
use crate::support::api::Task;
use crate::support::ledger::SERIAL_HEADER;
use crate::support::{Api, Node, Record, eventually, now_ms};

impl Stage {
    pub(super) async fn victim(&self) -> Node {
        let node = ready(self.cluster.spawn_to_die_at(&self.kill_at)).await;
        node.api().learn(&self.topic).await;
        node
    }

    pub(super) async fn heir_beforehand(&self) -> Option<Node> {
        match self.heir {
            Heir::Restarted => None,
            Heir::Beside => Some(self.cluster.node().await),
        }
    }

    pub(super) async fn heir_afterwards(&self, heir: Option<Node>) -> Node {
        match heir {
            Some(heir) => heir,
            None => self.cluster.node().await,
        }
    }

    /// Freezes the heir, so the victim does the work that only one node does. Not during the heir's
    /// own maintenance, whose lock would stop the victim's.
    pub(super) async fn freeze(&self, heir: Option<&Node>) {
        let Some(heir) = heir else { return };
        let locks = "select count(*) from pg_locks where locktype = 'advisory'
            and database = (select oid from pg_database where datname = current_database())";
        eventually("the heir is frozen between two rounds of maintenance", DEADLINE, async || {
            heir.freeze();
            let is_between = self.number(locks).await == 0;
            if !is_between {
                heir.thaw();
            }
            is_between
        })
        .await;
    }

    /// Waits for the abort. Returns the tasks that the node had claimed and not settled.
    pub(super) async fn await_death(&self, victim: &mut Node) -> HashSet<Uuid> {
        let status = victim.wait_exit(DEADLINE).await;
        assert_eq!(status.signal(), Some(SIGABRT), "{}", victim.log());
        // Reads the unsettled batches of this run before another node adopts them. A claim in
        // progress ends at once.
        let query = "select coalesce(b.first_ids[i], b.ids[i])
            from execlog_batch b cross join generate_series(1, b.task_count) i
            join heartbeat h on h.node = b.owner and h.name = $1 where b.settled_at is null";
        let ids = sqlx::query_scalar::<_, Uuid>(query)
            .bind(&victim.name)
            .fetch_all(&self.cluster.sql)
            .await
            .unwrap();
        ids.into_iter().collect()
    }

    pub(super) async fn finish(&self, heir: Option<Node>, claimed: &HashSet<Uuid>) -> Node {
        if let Some(heir) = &heir {
            heir.thaw();
        }
        let heir = self.heir_afterwards(heir).await;
        let findings =
            self.ledger.settle_up(&self.cluster, || self.consumer.records(), DEADLINE).await;
        assert_eq!((findings.published_count, findings.dead.len()), (self.ledger.len(), 0));
        assert!(
            findings.duplicates.iter().all(|id| claimed.contains(id)),
            "twice: {:?}",
            findings.duplicates
        );
        heir
    }

    pub(super) fn numbered(&self, number: i64, fields: Value) -> Value {
        let text = format!("{} {number}", self.topic);
        let mut task = json!({
            "topic": self.topic,
            "payload_text": text,
            "key": number.to_string(),
            "headers": { SERIAL_HEADER: text },
        });
        task.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        task
    }

    pub(super) async fn ledger_submit(&self, api: &Api, ahead_ms: i64) {
        api.learn(&self.topic).await;
        let due_at = now_ms() + ahead_ms;
        let tasks: Vec<Value> = (0..TASK_COUNT)
            .map(|number| self.numbered(number, json!({ "due_at": due_at })))
            .collect();
        self.ledger.accept_all(&api.submit_all(&tasks).await, &tasks);
    }

    /// Makes a call during which the node dies.
    pub(super) async fn lose(&self, api: &Api, method: Method, path: &str, body: &Value) {
        let answer = api
            .try_send(method, path, Some(("application/json", body.to_string().into_bytes())))
            .await;
        assert!(answer.is_err(), "it died before it could answer: {answer:?}");
    }

    /// Inserts rows as a submit does, and notes them in the ledger.
    pub(super) async fn insert(&self, table: &str, times: &[Timestamp]) {
        let ids: Vec<TaskId> = times
            .iter()
            .map(|at| TaskId::new(*at, Shard::new(rand::random_range(0..16)), rand::random()))
            .collect();
        let statement = format!(
            "insert into {table} (shard, id, topic, payload) select s, i, $3, 'x'::bytea from \
             unnest($1, $2) x (s, i)"
        );
        sqlx::query(AssertSqlSafe(statement))
            .bind(ids.iter().map(|id| id.shard().as_smallint()).collect::<Vec<_>>())
            .bind(ids.iter().map(|id| id.uuid()).collect::<Vec<_>>())
            .bind(&self.topic)
            .execute(&self.cluster.sql)
            .await
            .unwrap();
        for id in ids {
            let shown = json!({ "topic": self.topic });
            let task = Task {
                id: id.uuid(),
                due_at: id.due_at().as_millis(),
                state: "scheduled".to_owned(),
                shown,
            };
            self.ledger.accept(&task, Some(b"x"));
        }
    }

    /// Checks that each serial was published, and twice only by the death of the node that had
    /// claimed the task.
    pub(super) fn assert_each_serial_once(&self, count: usize, claimed: &HashSet<Uuid>) {
        let records = self.consumer.records();
        let serials: HashSet<Vec<u8>> =
            records.iter().map(|record| record.header(SERIAL_HEADER).unwrap().to_vec()).collect();
        let tasks: HashSet<Uuid> = records.iter().map(Record::task_id).collect();
        assert_eq!((tasks.len(), serials.len()), (count, count));
        let mut seen = HashSet::new();
        let twice = records.iter().map(Record::task_id).filter(|id| !seen.insert(*id));
        let unexplained: Vec<Uuid> = twice.filter(|id| !claimed.contains(id)).collect();
        assert_eq!(unexplained, Vec::<Uuid>::new(), "twice without having been in flight");
    }

    pub(super) async fn number(&self, query: &str) -> i64 {
        sqlx::query_scalar(AssertSqlSafe(query.to_owned()))
            .fetch_one(&self.cluster.sql)
            .await
            .unwrap()
    }
}

pub(super) async fn ready(mut node: Node) -> Node {
    node.wait_ready().await;
    node
}
