//! The ledger: compares the promises made to submitters with the arrived records and the execlog.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::time::Duration;

use serde_json::Value;
use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_64;

use super::api::Task;
use super::cluster::{Cluster, ExeclogLine};
use super::consumer::Record;
use super::wait::{eventually_some, look_for};

/// The header that tells which submit a record came from when the answer was lost.
pub const SERIAL_HEADER: &str = "serial";

/// No tasks.
pub const NONE: [Uuid; 0] = [];

/// Accepted tasks, and later answers about them.
#[derive(Debug, Default)]
pub struct Ledger {
    entries: Mutex<HashMap<Uuid, Entry>>,
    /// Serials of submits whose answer was lost. They may have been stored.
    unknown: Mutex<HashSet<String>>,
}

#[derive(Clone, Debug)]
struct Entry {
    topic: String,
    due_at: i64,
    payload_hash: Option<u64>,
    verdict: Option<String>,
}

/// The results of a comparison. Broken promises are not among them: they fail the test.
#[derive(Debug, Default)]
pub struct Findings {
    pub published_count: usize,
    pub cancelled_count: usize,
    pub dead: Vec<Uuid>,
    /// Tasks with more than one record.
    pub duplicates: Vec<Uuid>,
    /// Append time minus due time of each task's first record, in milliseconds, sorted.
    pub lateness: Vec<i64>,
}

impl Ledger {
    /// Records an accepted task and the expected payload. `None`: the payload is not compared.
    pub fn accept(&self, task: &Task, payload: Option<&[u8]>) {
        let topic = task.shown["topic"].as_str().unwrap().to_owned();
        let entry =
            Entry { topic, due_at: task.due_at, payload_hash: payload.map(xxh3_64), verdict: None };
        let former = self.entries.lock().unwrap().insert(task.id, entry);
        assert!(former.is_none(), "two tasks got the id {}", task.id);
    }

    /// Records many tasks, with the values submitted for them in the same order.
    pub fn accept_all(&self, tasks: &[Task], submitted: &[Value]) {
        for (task, submitted) in tasks.iter().zip(submitted) {
            self.accept(task, submitted["payload_text"].as_str().map(str::as_bytes));
        }
    }

    /// Records the answer to a cancel.
    pub fn cancel(&self, id: Uuid, verdict: String) {
        let mut entries = self.entries.lock().unwrap();
        entries.get_mut(&id).expect("only accepted tasks are cancelled").verdict = Some(verdict);
    }

    /// Records a submit whose answer was lost.
    pub fn lose_sight_of(&self, serial: String) {
        self.unknown.lock().unwrap().insert(serial);
    }

    pub fn len(&self) -> usize {
        self.entries.lock().unwrap().len()
    }

    /// Returns true when each accepted task that was not cancelled is among `records`.
    pub fn has_arrived(&self, records: &[Record]) -> bool {
        let arrived: HashSet<Uuid> = records.iter().map(Record::task_id).collect();
        self.entries
            .lock()
            .unwrap()
            .iter()
            .all(|(id, entry)| entry.is_cancelled() || arrived.contains(id))
    }

    /// Returns true when each accepted task has a final line.
    fn has_ended(&self, execlog: &[ExeclogLine]) -> bool {
        let ended: HashSet<Uuid> =
            execlog.iter().filter(|line| line.is_final()).map(|line| line.id).collect();
        self.entries.lock().unwrap().keys().all(|id| ended.contains(id))
    }

    /// Waits until all tasks have ended, then compares. Fails the test for each broken promise: a
    /// lost task, early or changed, a false answer to a cancel in either direction, a number of
    /// final lines other than one, or a wrong receipt.
    pub async fn settle_up(
        &self,
        cluster: &Cluster,
        records: impl Fn() -> Vec<Record>,
        deadline: Duration,
    ) -> Findings {
        cluster.wait_final(self.len(), deadline).await;
        // The cluster may also have had tasks of another ledger.
        let execlog =
            eventually_some("each accepted task has a final line", deadline, async || {
                let lines = cluster.execlog().await;
                self.has_ended(&lines).then_some(lines)
            })
            .await;
        // A record in the topic reaches the consumer a moment later. If a record is missing, the
        // comparison reports it.
        look_for(deadline, async || {
            let arrived: HashSet<(i32, i64)> =
                records().iter().map(|record| (record.partition, record.offset)).collect();
            let entries = self.entries.lock().unwrap();
            let ours = execlog.iter().filter(|line| entries.contains_key(&line.id));
            let mut receipts = ours.filter_map(|line| line.partition.zip(line.offset));
            receipts.all(|receipt| arrived.contains(&receipt)).then_some(())
        })
        .await;
        self.compare(&records(), &execlog)
    }

    /// Compares records and execlog with the accepted tasks.
    pub fn compare(&self, records: &[Record], execlog: &[ExeclogLine]) -> Findings {
        let entries = self.entries.lock().unwrap();
        let mut by_id: HashMap<Uuid, Vec<&Record>> = HashMap::new();
        for record in records {
            by_id.entry(record.task_id()).or_default().push(record);
        }
        self.check_strangers(&entries, &by_id);
        let mut lines: HashMap<Uuid, Vec<&ExeclogLine>> = HashMap::new();
        for line in execlog.iter().filter(|line| line.is_final()) {
            lines.entry(line.id).or_default().push(line);
        }
        let mut findings = Findings::default();
        for (id, entry) in entries.iter() {
            let records = by_id.get(id).map_or(&[][..], Vec::as_slice);
            let lines = lines.get(id).map_or(&[][..], Vec::as_slice);
            assert_eq!(
                lines.len(),
                1,
                "final lines of task {id}, due at {}: {lines:?}; records: {records:?}",
                entry.due_at
            );
            entry.check(*id, records, lines[0]);
            findings.take_in(*id, entry, records, lines[0]);
        }
        findings.lateness.sort_unstable();
        findings
    }

    /// A record of a task that was never submitted would also be a broken promise.
    fn check_strangers(&self, entries: &HashMap<Uuid, Entry>, by_id: &HashMap<Uuid, Vec<&Record>>) {
        let unknown = self.unknown.lock().unwrap();
        for (id, records) in by_id.iter().filter(|(id, _)| !entries.contains_key(id)) {
            let serial = records[0]
                .header(SERIAL_HEADER)
                .map(|serial| String::from_utf8_lossy(serial).into_owned());
            assert!(
                serial.is_some_and(|serial| unknown.contains(&serial)),
                "nobody submitted task {id}: {records:?}"
            );
        }
    }
}

impl Entry {
    fn is_cancelled(&self) -> bool {
        self.verdict.as_deref() == Some("cancelled")
    }

    fn check(&self, id: Uuid, records: &[&Record], line: &ExeclogLine) {
        let about = (line.topic.as_deref(), line.due_at);
        assert_eq!(
            about,
            (Some(self.topic.as_str()), self.due_at),
            "topic and due time of task {id} in the execlog"
        );
        match line.state.as_str() {
            "cancelled" => {
                assert!(
                    self.is_cancelled(),
                    "task {id} was cancelled, and nobody was told so (told: {:?})",
                    self.verdict
                );
                assert!(records.is_empty(), "task {id} was cancelled and is in Kafka: {records:?}");
            }
            "dead" => {
                assert!(!self.is_cancelled(), "task {id} was cancelled, and is a dead letter")
            }
            _published => {
                assert!(!self.is_cancelled(), "task {id} was cancelled, and published");
                assert!(
                    !records.is_empty(),
                    "task {id}, due at {}, is lost: {line:?}",
                    self.due_at
                );
                assert!(line.node.is_some(), "the execlog says which node has published {id}");
                self.check_receipt(id, records, line);
            }
        }
        for record in records {
            assert!(
                record.timestamp >= self.due_at,
                "task {id}, due at {}, is early: {record:?}",
                self.due_at
            );
            assert!(
                self.payload_hash.is_none_or(|hash| record.payload_hash == Some(hash)),
                "the payload of {id} has changed"
            );
        }
    }

    fn check_receipt(&self, id: Uuid, records: &[&Record], line: &ExeclogLine) {
        let position = (line.partition, line.offset);
        let record =
            records.iter().find(|record| position == (Some(record.partition), Some(record.offset)));
        let record = record.unwrap_or_else(|| {
            panic!("the receipt of {id} says {position:?}, the topic has {records:?}")
        });
        if record.is_append_time {
            assert_eq!(line.published_at, Some(record.timestamp), "published_at of {id}");
            assert_eq!(line.lateness_ms, Some(record.timestamp - self.due_at), "lateness of {id}");
        }
    }
}

impl Findings {
    fn take_in(&mut self, id: Uuid, entry: &Entry, records: &[&Record], line: &ExeclogLine) {
        match line.state.as_str() {
            "cancelled" => self.cancelled_count += 1,
            "dead" => self.dead.push(id),
            _published => self.published_count += 1,
        }
        if records.len() > 1 {
            self.duplicates.push(id);
        }
        self.lateness.extend(records.iter().map(|record| record.timestamp - entry.due_at).min());
    }

    /// Returns the lateness in milliseconds that a share of the tasks does not exceed (0.5: half of
    /// them).
    pub fn lateness_at(&self, quantile: f64) -> i64 {
        let rank = (quantile * self.lateness.len() as f64).ceil() as usize;
        self.lateness[rank.clamp(1, self.lateness.len()) - 1]
    }
}
