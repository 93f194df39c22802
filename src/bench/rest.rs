//! Submits over REST, as any client would: one task by `POST /v1/tasks`, several by `POST /v1/tasks/batch`.

use bytes::Bytes;
use hyper::Method;
use serde::Deserialize;

use super::http::{Answer, Http};
use super::intake::{Answered, Intake, Lane};
use super::ledger::Planned;
use super::record::Records;

/// How due times are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Due {
    /// As planned.
    At,
    /// `"delay": 0`.
    Now,
}

/// A cluster, by the URLs of some of its nodes: connections are spread over them.
#[derive(Clone, Debug)]
pub struct Rest {
    urls: Vec<String>,
    topic: String,
    records: Records,
    due: Due,
}

impl Rest {
    pub fn new(urls: &[String], topic: &str, records: Records, due: Due) -> Self {
        Self { urls: urls.to_vec(), topic: topic.to_owned(), records, due }
    }

    /// A connection to one of the nodes.
    pub fn connection(&self, number: usize) -> Result<Http, String> {
        let url = self.urls.get(number % self.urls.len().max(1)).ok_or("no URL of a node")?;
        Http::new(url)
    }
}

impl Intake for Rest {
    type Lane = RestLane;

    async fn open(&self, number: usize) -> Result<RestLane, String> {
        Ok(RestLane { http: self.connection(number)?, rest: self.clone(), body: Vec::new() })
    }
}

/// One connection.
#[derive(Debug)]
pub struct RestLane {
    http: Http,
    rest: Rest,
    body: Vec<u8>,
}

impl RestLane {
    /// Submits one task and gives its id.
    ///
    /// # Errors
    /// In words, when it was not accepted.
    pub async fn submit_one(&mut self, task: &Planned) -> Result<String, String> {
        #[derive(Deserialize)]
        struct Task {
            id: String,
        }
        self.body.clear();
        self.write_task(task);
        let answer = self.http.call(Method::POST, "/v1/tasks", Bytes::copy_from_slice(&self.body)).await?;
        let told = || format!("{}: {}", answer.status, told(&answer));
        if answer.status != 201 {
            return Err(told());
        }
        serde_json::from_slice::<Task>(&answer.body).map(|task| task.id).map_err(|_no_task| told())
    }

    fn write_task(&mut self, task: &Planned) {
        let body = &mut self.body;
        body.extend_from_slice(b"{\"topic\":\"");
        body.extend_from_slice(self.rest.topic.as_bytes());
        body.extend_from_slice(b"\",\"key\":\"");
        body.extend_from_slice(&self.rest.records.key(task.key));
        match self.rest.due {
            Due::At => {
                body.extend_from_slice(b"\",\"due_at\":");
                body.extend_from_slice(task.due_at.to_string().as_bytes());
            }
            Due::Now => body.extend_from_slice(b"\",\"delay\":0"),
        }
        body.extend_from_slice(b",\"payload_text\":\"");
        body.extend_from_slice(self.rest.records.payload(task.key).as_bytes());
        body.extend_from_slice(b"\"}");
    }
}

impl Lane for RestLane {
    async fn submit(&mut self, tasks: &[Planned]) -> Result<Answered, String> {
        self.body.clear();
        if let [task] = tasks {
            self.write_task(task);
            let answer = self.http.call(Method::POST, "/v1/tasks", Bytes::copy_from_slice(&self.body)).await?;
            let is_accepted = matches!(answer.status, 200 | 201);
            return Ok(if is_accepted { Answered::All } else { Answered::None(told(&answer)) });
        }
        self.body.extend_from_slice(b"{\"tasks\":[");
        for (index, task) in tasks.iter().enumerate() {
            if index > 0 {
                self.body.push(b',');
            }
            self.write_task(task);
        }
        self.body.extend_from_slice(b"]}");
        let answer = self.http.call(Method::POST, "/v1/tasks/batch", Bytes::copy_from_slice(&self.body)).await?;
        Ok(answered(&answer, tasks.len()))
    }
}

fn answered(answer: &Answer, count: usize) -> Answered {
    #[derive(Deserialize)]
    struct Results {
        results: Vec<Status>,
    }
    #[derive(Deserialize)]
    struct Status {
        status: u16,
    }
    let Ok(Results { results }) = serde_json::from_slice(&answer.body) else { return Answered::None(told(answer)) };
    let accepted: Vec<bool> = results.iter().map(|result| matches!(result.status, 200 | 201)).collect();
    if accepted.len() == count && accepted.iter().all(|accepted| *accepted) {
        return Answered::All;
    }
    Answered::Some(accepted, told(answer))
}

/// The beginning of an answer, for people.
fn told(answer: &Answer) -> String {
    let text = String::from_utf8_lossy(&answer.body);
    let detail = text.find("\"detail\"").map_or(text.as_ref(), |start| &text[start..]);
    format!("{} {}", answer.status, detail.chars().take(200).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(due: Due) -> RestLane {
        let rest = Rest::new(&["http://127.0.0.1:1".to_owned()], "orders", Records::new(4), due);
        RestLane { http: rest.connection(0).unwrap(), rest, body: Vec::new() }
    }

    #[test]
    fn a_task_is_written_as_the_api_reads_it() {
        for (due, field, value) in [(Due::At, "due_at", 1_700_000_000_000_i64), (Due::Now, "delay", 0)] {
            let mut lane = lane(due);
            lane.write_task(&Planned { key: 0xab, due_at: 1_700_000_000_000 });
            let written: serde_json::Value = serde_json::from_slice(&lane.body).unwrap();
            assert_eq!((written["topic"].as_str(), written["key"].as_str()), (Some("orders"), Some("00000000000000ab")));
            assert_eq!((written[field].as_i64(), written["payload_text"].as_str().map(str::len)), (Some(value), Some(4)));
        }
    }

    #[test]
    fn a_batch_is_answered_task_by_task() {
        let answer = |status, body: &'static str| Answer { status, body: Bytes::from_static(body.as_bytes()) };
        let all = answer(200, r#"{"results":[{"status":201,"task":{"id":"x"}},{"status":201}]}"#);
        assert_eq!(answered(&all, 2), Answered::All);
        let some = answered(&answer(200, r#"{"results":[{"status":201},{"status":422}]}"#), 2);
        assert_eq!((some.is_accepted(0), some.is_accepted(1)), (true, false));
        let none = answered(&answer(503, r#"{"title":"Busy","detail":"try later"}"#), 2);
        assert_eq!(none, Answered::None("503 \"detail\":\"try later\"}".to_owned()));
    }
}
