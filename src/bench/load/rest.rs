//! Submits tasks over REST, as any client would: one task by `POST /v1/tasks`, several by `POST
//! /v1/tasks/batch`.

use std::sync::Arc;
use std::time::Duration;

use az::SaturatingAs as _;
use bytes::Bytes;
use hyper::Method;
use hyper::header::HeaderValue;
use serde::{Deserialize, Serialize};

use super::http::{Http, HttpAnswer, Trust};
use super::intake::{CallResult, LoadConnection, LoadTarget};
use super::record::Records;
use crate::bench::ledger::{Planned, Reply};
use crate::domain::TopicName;

/// How the due time is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WrittenDue {
    /// As the planned due time.
    At,
    /// As `"delay": 0`.
    Now,
}

/// A cluster, given by the URLs of some of its nodes. Connections are spread over them.
#[derive(Clone, Debug)]
pub struct RestTarget {
    urls: Vec<String>,
    trust: Trust,
    /// Never empty. Tasks go to them in turn.
    topics: Arc<[TopicName]>,
    records: Records,
    due: WrittenDue,
    tracking: Option<TrackedLoad>,
    authorization: Option<HeaderValue>,
}

/// The times of tracked tasks. The wait after each attempt is the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TrackedLoad {
    pub ttr: Duration,
    pub backoff: Duration,
}

impl RestTarget {
    pub fn new(
        urls: &[String],
        trust: Trust,
        topics: Vec<TopicName>,
        records: Records,
        due: WrittenDue,
    ) -> Self {
        let (urls, topics) = (urls.to_vec(), topics.into());
        Self { urls, trust, topics, records, due, tracking: None, authorization: None }
    }

    /// Sends this header with each call.
    #[must_use]
    pub fn authorized(self, authorization: Option<HeaderValue>) -> Self {
        Self { authorization, ..self }
    }

    /// Submits to another topic.
    #[must_use]
    pub fn to_topic(self, topic: TopicName) -> Self {
        Self { topics: Arc::new([topic]), ..self }
    }

    /// Submits tracked tasks.
    #[must_use]
    pub fn tracked(self, tracking: TrackedLoad) -> Self {
        Self { tracking: Some(tracking), ..self }
    }

    /// Returns the payload of the records with this key.
    pub fn payload(&self, key: u64) -> &str {
        self.records.payload(key)
    }

    fn topic_of(&self, task: &Planned) -> &TopicName {
        &self.topics[task.key.saturating_as::<usize>() % self.topics.len()]
    }

    /// Returns a connection to one of the nodes.
    pub fn connection(&self, number: usize) -> Result<Http, String> {
        let url =
            self.urls.get(number % self.urls.len().max(1)).ok_or("there is no URL of a node")?;
        Http::new(url, &self.trust).map(|http| http.authorized(self.authorization.clone()))
    }
}

impl LoadTarget for RestTarget {
    type Connection = RestConnection;

    async fn open(&self, number: usize) -> Result<RestConnection, String> {
        Ok(RestConnection { http: self.connection(number)?, rest: self.clone() })
    }
}

/// One connection.
#[derive(Debug)]
pub struct RestConnection {
    http: Http,
    rest: RestTarget,
}

/// A task as `POST /v1/tasks` takes it.
#[derive(Serialize)]
struct NewTask<'a> {
    topic: &'a str,
    key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    due_at: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay: Option<u64>,
    payload_text: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttr: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<NewRetry>,
}

#[derive(Serialize)]
struct NewRetry {
    backoff_min: u64,
    backoff_max: u64,
    backoff_factor: u8,
}

#[derive(Serialize)]
struct NewBatch<'a> {
    tasks: Vec<NewTask<'a>>,
}

impl RestConnection {
    /// Submits one task and returns its id.
    ///
    /// # Errors
    /// Returns the reason as text when the task was not accepted.
    pub async fn submit_one(&mut self, task: &Planned) -> Result<String, String> {
        #[derive(Deserialize)]
        struct Task {
            id: String,
        }
        let body = json(&self.new_task(task))?;
        let answer = self.http.call(Method::POST, "/v1/tasks", body).await?;
        let told = || format!("{}: {}", answer.status, told(&answer));
        if answer.status != 201 {
            return Err(told());
        }
        serde_json::from_slice::<Task>(&answer.body).map(|task| task.id).map_err(|_no_task| told())
    }

    /// Submits tasks in one call, and returns their ids in the same order.
    ///
    /// # Errors
    /// Returns the reason as text when not all tasks were accepted.
    pub async fn submit_many(&mut self, tasks: &[Planned]) -> Result<Vec<String>, String> {
        #[derive(Deserialize)]
        struct Results {
            results: Vec<One>,
        }
        #[derive(Deserialize)]
        struct One {
            task: Option<Task>,
        }
        #[derive(Deserialize)]
        struct Task {
            id: String,
        }
        let batch = NewBatch { tasks: tasks.iter().map(|task| self.new_task(task)).collect() };
        let answer = self.http.call(Method::POST, "/v1/tasks/batch", json(&batch)?).await?;
        let read: Option<Results> = serde_json::from_slice(&answer.body).ok();
        let ids = read.map(|read| {
            read.results.into_iter().filter_map(|one| one.task).map(|task| task.id).collect()
        });
        ids.filter(|ids: &Vec<String>| ids.len() == tasks.len()).ok_or_else(|| told(&answer))
    }

    fn new_task(&self, task: &Planned) -> NewTask<'_> {
        let (due_at, delay) = match self.rest.due {
            WrittenDue::At => (Some(task.due_at), None),
            WrittenDue::Now => (None, Some(0)),
        };
        NewTask {
            topic: self.rest.topic_of(task).as_str(),
            key: String::from_utf8_lossy(&self.rest.records.key(task.key)).into_owned(),
            due_at,
            delay,
            payload_text: self.rest.records.payload(task.key),
            ttr: self.rest.tracking.map(|tracking| millis_of(tracking.ttr)),
            retry: self.rest.tracking.map(|tracking| NewRetry {
                backoff_min: millis_of(tracking.backoff),
                backoff_max: millis_of(tracking.backoff),
                backoff_factor: 1,
            }),
        }
    }
}

impl LoadConnection for RestConnection {
    async fn submit(&mut self, tasks: &[Planned]) -> Result<CallResult, String> {
        if let [task] = tasks {
            let body = json(&self.new_task(task))?;
            let answer = self.http.call(Method::POST, "/v1/tasks", body).await?;
            return match reply_of(answer.status, &kind_of(&answer)) {
                Reply::Accepted => Ok(CallResult::All),
                Reply::Refused => Ok(CallResult::None(told(&answer))),
                Reply::Unknown => Err(told(&answer)),
            };
        }
        let batch = NewBatch { tasks: tasks.iter().map(|task| self.new_task(task)).collect() };
        let body = json(&batch)?;
        let answer = self.http.call(Method::POST, "/v1/tasks/batch", body).await?;
        answered(&answer, tasks.len())
    }
}

fn millis_of(span: Duration) -> u64 {
    span.as_millis().saturating_as()
}

/// Writes a body.
///
/// # Errors
/// Returns the reason as text.
pub fn json(body: &impl Serialize) -> Result<Bytes, String> {
    serde_json::to_vec(body).map(Bytes::from).map_err(|error| format!("write a body: {error}"))
}

/// Returns the result of a call that has a result for each of `count` parts.
///
/// # Errors
/// Returns the answer as text when it is not known whether the call took effect.
pub fn answered(answer: &HttpAnswer, count: usize) -> Result<CallResult, String> {
    #[derive(Deserialize)]
    struct Results {
        results: Vec<One>,
    }
    #[derive(Deserialize)]
    struct One {
        status: u16,
        #[serde(default)]
        problem: ProblemKind,
    }
    let Ok(Results { results }) = serde_json::from_slice(&answer.body) else {
        return match reply_of(answer.status, &kind_of(answer)) {
            Reply::Refused => Ok(CallResult::None(told(answer))),
            Reply::Accepted | Reply::Unknown => Err(told(answer)),
        };
    };
    let replies: Vec<Reply> =
        results.iter().map(|one| reply_of(one.status, &one.problem)).collect();
    if replies.len() == count && replies.iter().all(|reply| *reply == Reply::Accepted) {
        return Ok(CallResult::All);
    }
    Ok(CallResult::Some(replies, told(answer)))
}

/// The type of a problem. Empty for any other answer.
#[derive(Default, Deserialize)]
struct ProblemKind {
    #[serde(default, rename = "type")]
    name: String,
}

fn kind_of(answer: &HttpAnswer) -> ProblemKind {
    serde_json::from_slice(&answer.body).unwrap_or_default()
}

/// Classifies the answer for a task. After some server errors it is unknown whether the task was
/// stored.
fn reply_of(status: u16, kind: &ProblemKind) -> Reply {
    let is_open = kind.name.is_empty() || kind.name.ends_with(":outcome-unknown");
    match status {
        200 | 201 => Reply::Accepted,
        400..500 => Reply::Refused,
        503 if !is_open => Reply::Refused,
        _ => Reply::Unknown,
    }
}

/// Returns the beginning of an answer, for people.
pub fn told(answer: &HttpAnswer) -> String {
    let text = String::from_utf8_lossy(&answer.body);
    let detail = text.find("\"detail\"").map_or(text.as_ref(), |start| &text[start..]);
    format!("{} {}", answer.status, detail.chars().take(200).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(due: WrittenDue) -> RestConnection {
        let urls = ["http://127.0.0.1:1".to_owned()];
        let topics = vec![TopicName::new("orders").unwrap()];
        let trust = Trust::new(None).unwrap();
        let rest = RestTarget::new(&urls, trust, topics, Records::new(4), due);
        RestConnection { http: rest.connection(0).unwrap(), rest }
    }

    #[test]
    fn a_task_is_written_as_the_api_reads_it() {
        for (due, field, value) in
            [(WrittenDue::At, "due_at", 1_700_000_000_000_i64), (WrittenDue::Now, "delay", 0)]
        {
            let connection = connection(due);
            let body =
                json(&connection.new_task(&Planned { key: 0xab, due_at: 1_700_000_000_000 }));
            let written: serde_json::Value = serde_json::from_slice(&body.unwrap()).unwrap();
            assert_eq!(
                (written["topic"].as_str(), written["key"].as_str()),
                (Some("orders"), Some("00000000000000ab"))
            );
            assert_eq!(
                (written[field].as_i64(), written["payload_text"].as_str().map(str::len)),
                (Some(value), Some(4))
            );
            assert_eq!(written.as_object().unwrap().len(), 4);
        }
    }

    #[test]
    fn a_batch_is_answered_task_by_task() {
        let answer = |status, body: &'static str| HttpAnswer {
            status,
            body: Bytes::from_static(body.as_bytes()),
        };
        let all = answer(200, r#"{"results":[{"status":201,"task":{"id":"x"}},{"status":201}]}"#);
        assert_eq!(answered(&all, 2), Ok(CallResult::All));
        let unknown = r#"{"status":503,"problem":{"type":"urn:punctual:problem:outcome-unknown"}}"#;
        let busy = r#"{"status":503,"problem":{"type":"urn:punctual:problem:busy"}}"#;
        let text = format!(r#"{{"results":[{{"status":201}},{{"status":422}},{unknown},{busy}]}}"#);
        let some = answered(&HttpAnswer { status: 200, body: Bytes::from(text) }, 4).unwrap();
        let replies = [Reply::Accepted, Reply::Refused, Reply::Unknown, Reply::Refused];
        assert_eq!([0, 1, 2, 3].map(|index| some.reply(index)), replies);
        let none = answered(
            &answer(503, r#"{"type":"urn:punctual:problem:busy","detail":"try later"}"#),
            2,
        );
        assert_eq!(none, Ok(CallResult::None("503 \"detail\":\"try later\"}".to_owned())));
        // The task may be stored. Counting it as refused would report its record as a fault of the
        // cluster.
        for body in [r#"{"type":"urn:punctual:problem:outcome-unknown"}"#, "a proxy's page"] {
            assert!(answered(&answer(503, body), 2).is_err(), "{body}");
        }
        assert!(answered(&answer(500, "{}"), 1).is_err());
    }
}
