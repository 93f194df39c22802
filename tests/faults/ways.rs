//! The proxies between the nodes and the servers: toxiproxy, over its API.

use std::time::Duration;

use reqwest::{Client, Method};
use serde_json::{Value, json};

use super::plan::{NODES, Server};
use crate::support::api::client;
use crate::support::{now_ms, wait};

const ANSWER_DEADLINE: Duration = Duration::from_secs(10);
/// A delay of the plan is at most 800 ms, plus a fifth of jitter.
const HELD_BACK_MAX_MS: i64 = 1_000;

/// All proxies of a breakable stack.
#[derive(Clone, Debug)]
pub struct Ways {
    api: String,
    http: Client,
    listens: Vec<(String, String)>,
}

/// Returns the services of a server. A stack without replicas has the first of each.
const fn services_of(server: Server) -> &'static [&'static str] {
    match server {
        Server::Postgres => &["postgres", "standby"],
        Server::Etcd => &["etcd"],
        Server::Kafka => &["kafka", "kafka2", "kafka3"],
        Server::Shop => &["shop"],
    }
}

impl Ways {
    pub async fn new(api: &str) -> Self {
        let http = client(ANSWER_DEADLINE);
        let mut ways = Self { api: api.to_owned(), http, listens: Vec::new() };
        let known = ways.call(Method::GET, "/proxies", None).await;
        let listens = known.as_object().unwrap().iter();
        ways.listens = listens
            .map(|(name, proxy)| (name.clone(), proxy["listen"].as_str().unwrap().to_owned()))
            .collect();
        ways
    }

    /// Returns the names and the addresses of a node's proxies to a server: one, or one for each of
    /// its replicas.
    fn of(&self, server: Server, node: u8) -> impl Iterator<Item = &(String, String)> {
        let names: Vec<String> =
            services_of(server).iter().map(|service| format!("{service}-{node}")).collect();
        self.listens.iter().filter(move |(known, _)| names.contains(known))
    }

    /// Returns the address at which a node reaches a server. There are commas between those of
    /// several replicas.
    pub fn address(&self, server: Server, node: u8) -> String {
        let addresses: Vec<&str> =
            self.of(server, node).map(|(_, address)| address.as_str()).collect();
        assert!(!addresses.is_empty(), "toxiproxy has no way from node {node} to {server:?}");
        addresses.join(",")
    }

    /// Breaks all connections and refuses new ones.
    pub async fn cut(&self, server: Server, node: u8) {
        self.enable(server, node, false).await;
    }

    pub async fn mend(&self, server: Server, node: u8) {
        self.enable(server, node, true).await;
    }

    async fn enable(&self, server: Server, node: u8, is_enabled: bool) {
        for (name, _) in self.of(server, node) {
            let body = json!({ "enabled": is_enabled });
            self.call(Method::POST, &format!("/proxies/{name}"), Some(body)).await;
        }
    }

    /// Delays the server's answers by `millis` from now on.
    pub async fn delay(&self, server: Server, node: u8, millis: i64) {
        self.poison(server, node, "latency", json!({ "latency": millis, "jitter": millis / 5 }))
            .await;
    }

    /// Suppresses the server's answers from now on, while the connections stay open.
    pub async fn silence(&self, server: Server, node: u8) {
        self.poison(server, node, "timeout", json!({ "timeout": 0 })).await;
    }

    async fn poison(&self, server: Server, node: u8, kind: &str, attributes: Value) {
        let toxic = json!({
            "name": "fault",
            "type": kind,
            "stream": "downstream",
            "attributes": attributes,
        });
        for (name, _) in self.of(server, node) {
            self.call(Method::POST, &format!("/proxies/{name}/toxics"), Some(toxic.clone())).await;
        }
    }

    /// Undoes [`Self::delay`] or [`Self::silence`]. First breaks the affected connections:
    /// toxiproxy hangs when a toxic is removed from a connection ending at that moment (its issue
    /// 558), so there must be none.
    pub async fn cure(&self, server: Server, node: u8) {
        self.cut(server, node).await;
        // toxiproxy does not report when it has forgotten a connection. It has done so when all
        // delayed data has come out.
        wait::until(now_ms() + HELD_BACK_MAX_MS).await;
        for (name, _) in self.of(server, node) {
            self.call(Method::DELETE, &format!("/proxies/{name}/toxics/fault"), None).await;
        }
        self.mend(server, node).await;
    }

    /// Resets all proxies to their initial state.
    pub async fn mend_all(&self) {
        self.call(Method::POST, "/reset", None).await;
    }

    pub fn database_url(&self, node: u8, database: &str) -> String {
        assert!((1..=NODES).contains(&node), "there are {NODES} nodes");
        let hosts = self.address(Server::Postgres, node);
        format!("postgres://punctual:punctual@{hosts}/{database}")
    }

    async fn call(&self, method: Method, path: &str, body: Option<Value>) -> Value {
        let request = self.http.request(method.clone(), format!("{}{path}", self.api));
        let request = match body {
            Some(body) => request.header("content-type", "application/json").body(body.to_string()),
            None => request,
        };
        let response = request
            .send()
            .await
            .unwrap_or_else(|error| panic!("toxiproxy: {method} {path}: {error:?}"));
        let status = response.status();
        let text = response.text().await.unwrap();
        assert!(status.is_success(), "toxiproxy: {method} {path}: {status} {text}");
        serde_json::from_str(&text).unwrap_or(Value::Null)
    }
}
