//! The oracle: derives the exact contents of the tables from the requests and their answers alone.
//!
//! It takes in each request with its answer, in the order of the answers. Only answers with a
//! status 2xx count.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use az::SaturatingAs as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use sqlx::Row as _;
use uuid::Uuid;

use super::cluster::Cluster;
use super::wait::{eventually_some, now_ms};

/// A request and its answer.
#[derive(Clone, Debug)]
pub struct Call {
    pub method: String,
    /// The path with its query, percent-encoded.
    pub path: String,
    pub body: Vec<u8>,
    /// The header `Idempotency-Key`.
    pub key: Option<String>,
    pub status: u16,
    pub answer: Vec<u8>,
    /// The time of the answer, in milliseconds since the epoch.
    pub at: i64,
}

/// The state of a task, as far as the answers tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ending {
    /// The task waits, is on its way, or was published.
    Open,
    Cancelled,
    /// A bulk cancel may have cancelled this task just before it was claimed.
    PerhapsCancelled,
    Dead,
    /// A dead letter that was dropped.
    Dropped,
}

/// A task due at least this much later than a bulk cancel certainly waited then, in milliseconds.
/// The figure covers the window and the error of the recorded clock.
const CERTAINLY_WAITS: i64 = 2000;
/// A task due at least this long ago is certainly claimed, also on a busy machine. In milliseconds.
const MAY_STILL_WAIT: i64 = 20_000;

/// An accepted task.
#[derive(Debug)]
struct Accepted {
    topic: String,
    name: Option<String>,
    key: Option<Vec<u8>>,
    payload: Option<Vec<u8>>,
    headers: Vec<Header>,
    /// In milliseconds.
    expires_at: Option<i64>,
    ending: Ending,
}

#[derive(Debug, Default)]
pub struct Oracle {
    tasks: HashMap<Uuid, Accepted>,
    /// The task that each name stands for.
    names: HashMap<(String, String), Uuid>,
}

/// Name, key, payload and headers.
type Kept = (Option<String>, Option<Vec<u8>>, Option<Vec<u8>>, Vec<Header>);

/// The name of a header and its value, which may be null.
type Header = (String, Option<Vec<u8>>);

/// A task as it is in a table.
#[derive(Debug)]
struct Row {
    id: Uuid,
    state: String,
    topic: String,
    /// Its contents, where the table has them.
    kept: Option<Kept>,
}

type Members = HashMap<String, Box<RawValue>>;

#[derive(Deserialize)]
struct Batch {
    tasks: Vec<Members>,
}

impl Oracle {
    /// Takes in a request and its answer.
    pub fn take_in(&mut self, call: &Call) {
        if !(200..300).contains(&call.status) {
            return;
        }
        let path = call.path.split('?').next().unwrap();
        let segments: Vec<String> = path.trim_start_matches('/').split('/').map(decoded).collect();
        let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
        match (call.method.as_str(), segments.as_slice()) {
            ("POST", ["v1", "tasks"]) => {
                let mut members: Members = serde_json::from_slice(&call.body).unwrap();
                if let Some(key) = &call.key {
                    members.insert("name".to_owned(), name_of(key));
                }
                self.submitted(call.status, &answer_of(call), &members);
            }
            ("POST", ["v1", "tasks", "batch"]) => self.submitted_many(call),
            ("POST", ["v1", "tasks", "cancel"]) => self.cancelled_many(call),
            ("POST", ["v1", "dead", "redrive"]) => self.were_dead(call, "redriven", Ending::Open),
            ("POST", ["v1", "dead", "drop"]) => self.were_dead(call, "dropped", Ending::Dropped),
            ("POST", ["v1", "dead", id, "redrive"]) => self.was_dead(id, Ending::Open),
            ("DELETE", ["v1", "dead", id]) => self.was_dead(id, Ending::Dropped),
            ("PUT", ["v1", "topics", topic, "tasks", name]) => self.replaced(call, topic, name),
            ("DELETE", ["v1", "tasks", id]) => {
                let id = id.parse().unwrap();
                self.cancelled(id, call);
            }
            ("DELETE", ["v1", "topics", topic, "tasks", name]) => {
                let id = self.names[&((*topic).to_owned(), (*name).to_owned())];
                self.cancelled(id, call);
            }
            // A move changes nothing but the due time.
            ("PATCH", ["v1", "tasks", _] | ["v1", "topics", _, "tasks", _]) => {}
            ("GET" | "HEAD", _) => {}
            other => panic!("the oracle does not know what {other:?} does"),
        }
    }

    fn submitted(&mut self, status: u16, answer: &Value, members: &Members) {
        let topic = text_of(&members["topic"]);
        let name = members.get("name").map(|name| text_of(name));
        match status {
            201 => self.accept(answer, topic, name, members),
            200 => {
                let known = self.names.get(&(topic, name.expect("only a name can be known")));
                assert_eq!(
                    known,
                    Some(&id_of(answer)),
                    "a known name is answered with its task: {answer}"
                );
            }
            other => panic!("a submit is not answered {other}"),
        }
    }

    fn submitted_many(&mut self, call: &Call) {
        let batch: Batch = serde_json::from_slice(&call.body).unwrap_or_else(|_no_task_in_it| {
            // Some items are not objects. Those are read again, one by one.
            #[derive(Deserialize)]
            struct Raw {
                tasks: Vec<Box<RawValue>>,
            }
            let raw: Raw = serde_json::from_slice(&call.body).unwrap();
            Batch {
                tasks: raw
                    .tasks
                    .iter()
                    .map(|task| serde_json::from_str(task.get()).unwrap_or_default())
                    .collect(),
            }
        });
        let answer = answer_of(call);
        let results = answer["results"].as_array().unwrap();
        assert_eq!(results.len(), batch.tasks.len(), "one result for each task");
        for (result, members) in results.iter().zip(&batch.tasks) {
            let status = u16::try_from(result["status"].as_u64().unwrap()).unwrap();
            if (200..300).contains(&status) {
                self.submitted(status, &result["task"], members);
            }
        }
    }

    fn replaced(&mut self, call: &Call, topic: &str, name: &str) {
        if call.status == 200 {
            let old = self.names[&(topic.to_owned(), name.to_owned())];
            let old = self.tasks.get_mut(&old).expect("what is replaced was accepted");
            let ending = std::mem::replace(&mut old.ending, Ending::Cancelled);
            assert!(
                matches!(ending, Ending::Open | Ending::PerhapsCancelled),
                "what is replaced waited, and was {ending:?}"
            );
        }
        let members = serde_json::from_slice(&call.body).unwrap();
        self.accept(&answer_of(call), topic.to_owned(), Some(name.to_owned()), &members);
    }

    fn accept(&mut self, answer: &Value, topic: String, name: Option<String>, members: &Members) {
        let id = id_of(answer);
        assert_eq!(answer["topic"], Value::from(topic.as_str()));
        if let Some(name) = &name {
            self.names.insert((topic.clone(), name.clone()), id);
        }
        let text = |field: &str| members.get(field).map(|value| text_of(value).into_bytes());
        let bytes =
            |field: &str| members.get(field).map(|value| STANDARD.decode(text_of(value)).unwrap());
        let json = members.get("payload").map(|value| value.get().as_bytes().to_vec());
        let headers = members
            .get("headers")
            .map(|headers| serde_json::from_str::<Pairs>(headers.get()).unwrap().0);
        let told = answer.get("expires_at").and_then(Value::as_str);
        let wanted = members.get("expires_at");
        assert_eq!(told.is_some(), wanted.is_some(), "{answer}");
        // Milliseconds may name the last day of the year 9999, which `jiff` does not read.
        let expires_at = told.zip(wanted).map(|(told, wanted)| {
            let number = serde_json::from_str::<f64>(wanted.get());
            number.map_or_else(|_text| millis_of(told), |millis| millis.saturating_as::<i64>())
        });
        let accepted = Accepted {
            topic,
            name,
            key: text("key").or_else(|| bytes("key_base64")),
            payload: json.or_else(|| text("payload_text")).or_else(|| bytes("payload_base64")),
            headers: headers.unwrap_or_default(),
            expires_at,
            ending: Ending::Open,
        };
        assert!(self.tasks.insert(id, accepted).is_none(), "two tasks got the id {id}");
    }

    fn cancelled(&mut self, id: Uuid, call: &Call) {
        let answer = answer_of(call);
        assert_eq!(answer["verdict"], "cancelled");
        assert_eq!(id_of(&answer["task"]), id);
        let task = self.tasks.get_mut(&id).expect("what is cancelled was accepted");
        assert!(
            !matches!(task.ending, Ending::Dead | Ending::Dropped),
            "what is dead is not cancelled: {task:?}"
        );
        task.ending = Ending::Cancelled;
    }

    fn cancelled_many(&mut self, call: &Call) {
        let (answer, range) = (answer_of(call), Range::of(&call.body));
        let waits = |id: Uuid| due_at(id) > call.at + CERTAINLY_WAITS;
        let may_wait = |id: Uuid| due_at(id) > call.at - MAY_STILL_WAIT;
        let meant = self
            .tasks
            .iter_mut()
            .filter(|(id, task)| range.holds(**id, &task.topic) && task.ending == Ending::Open);
        let meant: Vec<(Uuid, &mut Accepted)> =
            meant.map(|(id, task)| (*id, task)).filter(|(id, _)| may_wait(*id)).collect();
        let certain = meant.iter().filter(|(id, _)| waits(*id)).count();
        let count = usize::try_from(answer["cancelled"].as_u64().unwrap()).unwrap();
        assert_eq!(answer["more"], false, "{answer}");
        assert!(
            (certain..=meant.len()).contains(&count),
            "{certain} to {} waited, and it says {answer}",
            meant.len()
        );
        if answer["dry_run"] == false {
            for (id, task) in meant {
                task.ending = if waits(id) { Ending::Cancelled } else { Ending::PerhapsCancelled };
            }
        }
    }

    /// Records the deaths of accepted tasks, which no answer tells.
    pub fn died(&mut self, ids: impl IntoIterator<Item = Uuid>) {
        for id in ids {
            self.tasks.get_mut(&id).expect("what died was accepted").ending = Ending::Dead;
        }
    }

    fn was_dead(&mut self, id: &str, ending: Ending) {
        let task = self.tasks.get_mut(&id.parse().unwrap()).expect("what is dead was accepted");
        assert_eq!(std::mem::replace(&mut task.ending, ending), Ending::Dead, "{task:?}");
    }

    fn were_dead(&mut self, call: &Call, counted: &str, ending: Ending) {
        let (answer, range) = (answer_of(call), Range::of(&call.body));
        let dead = self
            .tasks
            .iter_mut()
            .filter(|(id, task)| range.holds(**id, &task.topic) && task.ending == Ending::Dead);
        let dead: Vec<&mut Accepted> = dead.map(|(_, task)| task).collect();
        assert_eq!(
            (&answer[counted], &answer["more"]),
            (&Value::from(dead.len()), &Value::from(false))
        );
        if answer["dry_run"] == false {
            dead.into_iter().for_each(|task| task.ending = ending);
        }
    }

    pub fn task_count(&self) -> usize {
        self.tasks.len()
    }

    /// Waits until all tasks due by now have ended. Then fails the test unless the tables and the
    /// execlog hold exactly the expected contents.
    pub async fn check(&self, cluster: &Cluster, deadline: Duration) {
        let due_by = now_ms();
        let rows = eventually_some("what is due has ended", deadline, async || {
            let rows = rows_of(cluster).await;
            rows.iter().all(|row| has_ended(&row.state) || due_at(row.id) > due_by).then_some(rows)
        })
        .await;
        let mut found = HashSet::new();
        for row in &rows {
            assert!(found.insert(row.id), "task {} is there twice: {rows:?}", row.id);
            let Some(task) = self.tasks.get(&row.id) else { panic!("nobody was told of {row:?}") };
            task.check(row);
        }
        let lost: Vec<_> = self.tasks.iter().filter(|(id, _)| !found.contains(id)).collect();
        assert!(lost.is_empty(), "told, and not there: {lost:?}");
        let entries = sqlx::query("select topic, name, id from task_name")
            .fetch_all(&cluster.sql)
            .await
            .unwrap();
        let entries: HashMap<(String, String), Uuid> =
            entries.iter().map(|row| ((row.get(0), row.get(1)), row.get(2))).collect();
        assert_eq!(entries, self.names, "the names");
        let dead: Vec<Uuid> = sqlx::query_scalar("select id from dead_letter order by id")
            .fetch_all(&cluster.sql)
            .await
            .unwrap();
        let mut wanted: Vec<Uuid> = self
            .tasks
            .iter()
            .filter(|(_, task)| task.ending == Ending::Dead)
            .map(|(id, _)| *id)
            .collect();
        wanted.sort_unstable();
        assert_eq!(dead, wanted, "the dead letters");
        for nothing in ["select count(*) from task_follow", "select count(*) from quarantine"] {
            assert_eq!(cluster.count(nothing).await, 0, "{nothing}");
        }
    }
}

impl Accepted {
    fn check(&self, row: &Row) {
        assert_eq!(row.topic, self.topic, "the topic of {}", row.id);
        let is_right = match self.ending {
            Ending::Open if row.state == "expired" => {
                self.expires_at.is_some_and(|expires_at| expires_at <= now_ms())
            }
            Ending::Open => matches!(row.state.as_str(), "scheduled" | "claimed" | "published"),
            Ending::Cancelled => row.state == "cancelled",
            Ending::PerhapsCancelled => row.state != "dead",
            Ending::Dead => row.state == "dead",
            Ending::Dropped => row.state == "dropped",
        };
        assert!(is_right, "{row:?}; {self:?}");
        if let Some((name, key, payload, headers)) = &row.kept {
            assert_eq!((name, key), (&self.name, &self.key), "name and key of {}", row.id);
            // The stored expiry precedes the headers of the submitter.
            let expiry = self.expires_at.map(stored_expiry);
            let wanted: Vec<Header> = expiry.into_iter().chain(self.headers.clone()).collect();
            assert_eq!(
                (payload, headers),
                (&self.payload, &wanted),
                "payload and headers of {}",
                row.id
            );
        }
    }
}

fn has_ended(state: &str) -> bool {
    matches!(state, "published" | "cancelled" | "dead" | "dropped" | "expired")
}

fn millis_of(text: &str) -> i64 {
    let at: jiff::Timestamp = text.parse().unwrap();
    at.as_millisecond()
}

/// The header in which the expiry of a task is stored that named a time and was never sent.
fn stored_expiry(at: i64) -> Header {
    ("punctual-expiry".to_owned(), Some([&[0][..], &at.to_be_bytes()].concat()))
}

/// Returns all tasks of all tables, as of one moment.
async fn rows_of(cluster: &Cluster) -> Vec<Row> {
    let query = "select coalesce(first_id, id) as id, 'scheduled' as state, topic, true as is_kept,
      name, key, payload, headers from task
        union all select coalesce(first_id, id), 'scheduled', topic, true, name, key, payload,
          headers from task_far
        union all select id, state, topic, false, null, null, null, null from execlog
          where state not in ('deferred', 'redriven')";
    let rows = sqlx::query(query).fetch_all(&cluster.sql).await.unwrap();
    let row = |row: sqlx::postgres::PgRow| {
        let headers: Option<Vec<u8>> = row.get("headers");
        let kept = (
            row.get("name"),
            row.get("key"),
            row.get("payload"),
            headers_of(&headers.unwrap_or_default()),
        );
        let is_kept: bool = row.get("is_kept");
        Row {
            id: row.get("id"),
            state: row.get("state"),
            topic: row.get("topic"),
            kept: is_kept.then_some(kept),
        }
    };
    rows.into_iter().map(row).collect()
}

/// Reads headers from their column. The lengths of name (2 bytes) and value (4 bytes, all ones for
/// null) precede each header.
fn headers_of(mut rest: &[u8]) -> Vec<Header> {
    let mut headers = Vec::new();
    while !rest.is_empty() {
        let (length, after) = rest.split_at(2);
        let (name, after) =
            after.split_at(usize::from(u16::from_be_bytes(length.try_into().unwrap())));
        let (length, after) = after.split_at(4);
        let length = u32::from_be_bytes(length.try_into().unwrap());
        let is_null = length == u32::MAX;
        let (value, after) =
            after.split_at(if is_null { 0 } else { usize::try_from(length).unwrap() });
        headers
            .push((String::from_utf8(name.to_vec()).unwrap(), (!is_null).then(|| value.to_vec())));
        rest = after;
    }
    headers
}

/// The headers of an object, in the order of its members.
struct Pairs(Vec<Header>);

/// The values that a member of `headers` gives to its name.
fn values_of(value: &Value) -> Vec<Option<Vec<u8>>> {
    match value {
        Value::Null => vec![None],
        Value::String(text) => vec![Some(text.clone().into_bytes())],
        Value::Array(values) => values.iter().flat_map(values_of).collect(),
        object => vec![Some(STANDARD.decode(object["base64"].as_str().unwrap()).unwrap())],
    }
}

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Pairs;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object of headers")
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                mut map: A,
            ) -> Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some((name, value)) = map.next_entry::<String, Value>()? {
                    pairs.extend(values_of(&value).into_iter().map(|value| (name.clone(), value)));
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Visitor)
    }
}

/// The selection of a request for many tasks.
struct Range {
    /// `None` selects nothing.
    topic: Option<String>,
    due_from: i64,
    due_to: i64,
}

impl Range {
    fn of(body: &[u8]) -> Self {
        let body: Value = serde_json::from_slice(body).unwrap();
        let time = |field: &str, without: i64| match &body[field] {
            Value::String(text) => {
                let nanos = text.parse::<jiff::Timestamp>().unwrap().as_nanosecond();
                i64::try_from((nanos + 999_999).div_euclid(1_000_000)).unwrap()
            }
            Value::Number(number) => {
                number.as_i64().unwrap_or_else(|| number.as_f64().unwrap() as i64)
            }
            _ => without,
        };
        // All callers are anonymous, so a submitter selects no task.
        let topic = match (&body["topic"], &body["submitted_by"]) {
            (Value::String(topic), Value::Null) => Some(topic.clone()),
            (_, Value::String(_)) => None,
            _ => panic!("neither a topic nor a submitter: {body}"),
        };
        Self { topic, due_from: time("due_from", i64::MIN), due_to: time("due_to", i64::MAX) }
    }

    fn holds(&self, id: Uuid, topic: &str) -> bool {
        Some(topic) == self.topic.as_deref() && (self.due_from..self.due_to).contains(&due_at(id))
    }
}

fn answer_of(call: &Call) -> Value {
    serde_json::from_slice(&call.answer).unwrap()
}

/// Returns the name that a key stands for, as JSON: the content of an RFC 8941 string, or the key
/// itself.
fn name_of(key: &str) -> Box<RawValue> {
    let quoted = key.trim().strip_prefix('"').and_then(|key| key.strip_suffix('"'));
    // Both escapes of RFC 8941 are also valid in JSON.
    let name = quoted.map_or_else(
        || key.trim().to_owned(),
        |quoted| serde_json::from_str(&format!("\"{quoted}\"")).unwrap(),
    );
    serde_json::value::to_raw_value(&name).unwrap()
}

fn text_of(value: &RawValue) -> String {
    serde_json::from_str(value.get()).unwrap()
}

fn id_of(task: &Value) -> Uuid {
    task["id"].as_str().unwrap_or_else(|| panic!("no id in {task}")).parse().unwrap()
}

/// Returns the first 48 bits of an id, in milliseconds.
fn due_at(id: Uuid) -> i64 {
    i64::try_from(id.as_u128() >> 80).unwrap()
}

/// Returns a segment of a path without its percent-encoding.
fn decoded(segment: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = segment.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let hex = after
            .get(..2)
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        match (first, hex) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
