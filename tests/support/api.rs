//! A client of the REST API.

use std::sync::Once;
use std::time::Duration;

use reqwest::Method;
use reqwest::header::HeaderMap;
use serde_json::{Value, json};
use uuid::Uuid;

use super::wait::{now_ms, until};

/// How long to retry requests that a busy node may refuse for a while.
const PATIENCE_MS: i64 = 60_000;

/// A client of one node.
#[derive(Clone, Debug)]
pub struct Api {
    base: String,
    http: reqwest::Client,
}

/// The answer of a node.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub text: String,
}

/// A task as the API shows it.
#[derive(Clone, Debug)]
pub struct Task {
    pub id: Uuid,
    pub due_at: i64,
    pub state: String,
    pub shown: Value,
}

/// Returns an HTTP client whose requests end after `deadline`.
pub fn client(deadline: Duration) -> reqwest::Client {
    builder(deadline).build().unwrap()
}

fn builder(deadline: Duration) -> reqwest::ClientBuilder {
    static PROVIDER: Once = Once::new();
    PROVIDER.call_once(|| {
        rustls::crypto::ring::default_provider()
            .install_default()
            .expect("nobody else has installed a provider");
    });
    reqwest::Client::builder().timeout(deadline)
}

impl Api {
    pub fn new(base: String) -> Self {
        let http = client(Duration::from_secs(90));
        Self { base, http }
    }

    /// Returns a client of a node with TLS, which trusts the authority of the PEM text `ca` alone.
    pub fn secure(base: String, ca: &str) -> Self {
        let ca = reqwest::Certificate::from_pem(ca.as_bytes()).unwrap();
        let http = builder(Duration::from_secs(90))
            .tls_built_in_root_certs(false)
            .add_root_certificate(ca)
            .build()
            .unwrap();
        Self { base, http }
    }

    /// As [`Self::secure`], with a client certificate. `identity` is its key and itself in PEM.
    pub fn secure_as(base: String, ca: &str, identity: &str) -> Self {
        let ca = reqwest::Certificate::from_pem(ca.as_bytes()).unwrap();
        let http = builder(Duration::from_secs(90))
            .tls_built_in_root_certs(false)
            .add_root_certificate(ca)
            .identity(reqwest::Identity::from_pem(identity.as_bytes()).unwrap())
            .build()
            .unwrap();
        Self { base, http }
    }

    pub fn base(&self) -> &str {
        &self.base
    }

    pub async fn try_send(
        &self,
        method: Method,
        path: &str,
        body: Option<(&str, Vec<u8>)>,
    ) -> Result<Answer, reqwest::Error> {
        let mut request = self.http.request(method, format!("{}{path}", self.base));
        if let Some((content_type, body)) = body {
            request = request.header("content-type", content_type).body(body);
        }
        let response = request.send().await?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Ok(Answer { status, headers, text: response.text().await? })
    }

    /// As [`Self::send`], with headers.
    pub async fn send_with(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<Value>,
    ) -> Answer {
        let mut request = self.http.request(method, format!("{}{path}", self.base));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        let response = request.send().await.unwrap();
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Answer { status, headers, text: response.text().await.unwrap() }
    }

    pub async fn send(&self, method: Method, path: &str, body: Option<(&str, Vec<u8>)>) -> Answer {
        let answer = self.try_send(method.clone(), path, body).await;
        answer.unwrap_or_else(|error| panic!("{method} {}{path}: {error:?}", self.base))
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, None).await
    }

    pub async fn post(&self, path: &str, body: impl Into<Vec<u8>>) -> Answer {
        self.send(Method::POST, path, Some(("application/json", body.into()))).await
    }

    /// Submits a task that must be accepted.
    pub async fn submit(&self, task: &Value) -> Task {
        self.submit_text(&task.to_string()).await
    }

    /// Submits a task given as JSON text, for contents that must arrive byte for byte.
    pub async fn submit_text(&self, task: &str) -> Task {
        let answer = self.post_tasks("/v1/tasks", task).await;
        assert_eq!(answer.status, 201, "{task}: {}", answer.text);
        let shown = Task::new(answer.json());
        let location = answer.headers.get("location").and_then(|location| location.to_str().ok());
        assert_eq!(
            location,
            Some(format!("/v1/tasks/{}", shown.id).as_str()),
            "the Location of a new task"
        );
        shown
    }

    /// Submits many tasks at once, each of which must be accepted. Returns the tasks in the same
    /// order.
    pub async fn submit_all(&self, tasks: &[Value]) -> Vec<Task> {
        let mut accepted = Vec::with_capacity(tasks.len());
        for chunk in tasks.chunks(10_000) {
            let body = json!({ "tasks": chunk }).to_string();
            let answer = self.post_tasks("/v1/tasks/batch", &body).await;
            assert_eq!(answer.status, 200, "{}", answer.text);
            let results = answer.json()["results"].as_array().unwrap().clone();
            assert_eq!(results.len(), chunk.len(), "one result for each task");
            accepted.extend(results.into_iter().map(|result| {
                assert_eq!(result["status"], 201, "{result}");
                Task::new(result["task"].clone())
            }));
        }
        accepted
    }

    /// Looks up a task that must be known.
    pub async fn task(&self, id: Uuid) -> Task {
        let answer = self.look(&format!("/v1/tasks/{id}")).await;
        assert_eq!(answer.status, 200, "task {id}: {}", answer.text);
        Task::new(answer.json())
    }

    pub async fn cancel(&self, id: Uuid) -> Answer {
        self.send(Method::DELETE, &format!("/v1/tasks/{id}"), None).await
    }

    /// Repeats a GET until a busy node answers. A GET changes nothing, so repeating is safe.
    pub async fn look(&self, path: &str) -> Answer {
        self.insist(Method::GET, path).await
    }

    /// Cancels until there is a verdict. The verdict stays the same however often it is requested.
    pub async fn verdict(&self, id: Uuid) -> String {
        self.insist(Method::DELETE, &format!("/v1/tasks/{id}")).await.verdict()
    }

    async fn insist(&self, method: Method, path: &str) -> Answer {
        let end = now_ms() + PATIENCE_MS;
        loop {
            let answer = self.send(method.clone(), path, None).await;
            if answer.status != 503 || now_ms() > end {
                return answer;
            }
            until(now_ms() + 20).await;
        }
    }

    async fn post_tasks(&self, path: &str, body: &str) -> Answer {
        self.send_tasks(Method::POST, path, body).await
    }

    /// Sends tasks or a schedule until Kafka has told the node about the topic. On a busy machine
    /// that takes longer than a request waits for it. Nothing is stored then, so repeating is safe.
    pub async fn send_tasks(&self, method: Method, path: &str, body: &str) -> Answer {
        let end = now_ms() + PATIENCE_MS;
        loop {
            let text = Some(("application/json", body.as_bytes().to_vec()));
            let answer = self.send(method.clone(), path, text).await;
            if !answer.lacks_topics() || now_ms() > end {
                return answer;
            }
            until(now_ms() + 20).await;
        }
    }

    /// Makes the node look up a topic. The node relies on the result for a minute, whatever happens
    /// to the topic meanwhile.
    pub async fn learn(&self, topic: &str) {
        let large = json!({ "topic": topic, "delay": 0, "payload_text": "x".repeat(1_100_000) });
        let answer = self.post_tasks("/v1/tasks", &large.to_string()).await;
        assert_eq!(answer.status, 422, "{}", answer.text);
    }

    /// Returns the cluster as the node sees it.
    pub async fn cluster(&self) -> Value {
        let answer = self.get("/v1/cluster").await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json()
    }

    /// Returns the value of a metric. The name includes its labels:
    /// `punctual_missing{what="kafka"}`.
    pub async fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").await.text;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("there is no metric {name} in:\n{text}")).parse().unwrap()
    }

    pub async fn is_ready(&self) -> bool {
        self.try_send(Method::GET, "/readyz", None).await.is_ok_and(|answer| answer.status == 200)
    }
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text)
            .unwrap_or_else(|error| panic!("{error} in {:?}", self.text))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Returns true if no task was stored, because Kafka did not tell about the topics in time.
    fn lacks_topics(&self) -> bool {
        const WHY: &str = "cannot look up the topic";
        let says_so =
            |problem: &Value| problem["detail"].as_str().is_some_and(|why| why.contains(WHY));
        if !self.text.contains(WHY) {
            return false;
        }
        let shown = self.json();
        match shown["results"].as_array() {
            Some(results) => results.iter().all(|result| says_so(&result["problem"])),
            None => says_so(&shown),
        }
    }

    /// Returns the verdict of a cancel or a move.
    pub fn verdict(&self) -> String {
        let verdict = self.json()["verdict"].as_str().map(str::to_owned);
        let verdict = verdict.unwrap_or_else(|| panic!("no verdict in {:?}", self.text));
        let status = match verdict.as_str() {
            "cancelled" | "moved" => 200,
            "too_late" | "replaced" => 409,
            "not_found" => 404,
            other => panic!("no such verdict: {other}"),
        };
        assert_eq!(self.status, status, "the status of verdict {verdict}");
        verdict
    }
}

impl Task {
    /// Reads a task from its JSON.
    pub fn new(shown: Value) -> Self {
        let text =
            |field: &str| shown[field].as_str().unwrap_or_else(|| panic!("no {field} in {shown}"));
        let due_at: jiff::Timestamp = text("due_at").parse().unwrap();
        Self {
            id: text("id").parse().unwrap(),
            due_at: due_at.as_millisecond(),
            state: text("state").to_owned(),
            shown,
        }
    }

    /// Returns the receipt's partition and offset.
    pub fn position(&self) -> Option<(i32, i64)> {
        let receipt = self.shown.get("receipt").filter(|receipt| !receipt.is_null())?;
        let partition = i32::try_from(receipt["partition"].as_i64()?).ok()?;
        Some((partition, receipt["offset"].as_i64()?))
    }
}
