//! A Prometheus that scrapes a node evaluates every query of docs/grafana and every rule of
//! docs/alerts.yml, and Postgres every statement.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::process::{Child, Command};

use crate::support::api::client;
use crate::support::{Cluster, eventually, eventually_some};

const DEADLINE: Duration = Duration::from_secs(60);
/// A panel with this in its description may have no data in a cluster that is well.
const ONLY_IN_TROUBLE: &str = "Empty unless";

const OVERVIEW: &str = include_str!("../../docs/grafana/overview.json");
const TOPIC: &str = include_str!("../../docs/grafana/topic.json");

/// A Prometheus that scrapes one node and has the rules. A drop ends it.
struct Prometheus {
    base: String,
    _process: Child,
}

impl Prometheus {
    async fn start(folder: &Path, target: &str) -> Self {
        let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/alerts.yml");
        let settings = json!({
            "global": { "scrape_interval": "1s", "evaluation_interval": "1s" },
            "rule_files": [rules],
            "scrape_configs": [
                { "job_name": "punctual", "static_configs": [{ "targets": [target] }] },
            ],
        });
        // YAML is a superset of JSON.
        let file = folder.join("prometheus.yml");
        std::fs::write(&file, settings.to_string()).unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let log = std::fs::File::create(folder.join("prometheus.log")).unwrap();
        let process = Command::new("prometheus")
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", folder.join("prometheus").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let prometheus = Self { base: format!("http://127.0.0.1:{port}"), _process: process };
        let is_up = async || prometheus.get("/-/ready", &[]).await.is_some();
        eventually("Prometheus is ready", DEADLINE, is_up).await;
        prometheus
    }

    /// Returns the answer; null if it is not JSON. `None` unless the answer is 200.
    async fn get(&self, path: &str, query: &[(&str, &str)]) -> Option<Value> {
        let request = client(DEADLINE).get(format!("{}{path}", self.base)).query(query);
        let answer = request.send().await.ok().filter(|answer| answer.status().is_success())?;
        Some(answer.json().await.unwrap_or_default())
    }

    /// Returns the samples of an expression, or panics because it is wrong.
    async fn samples(&self, expression: &str) -> Vec<Value> {
        let answer = self.get("/api/v1/query", &[("query", expression)]).await;
        let answer = answer.unwrap_or_else(|| panic!("Prometheus refuses {expression}"));
        answer["data"]["result"].as_array().unwrap().clone()
    }

    async fn has_data(&self, expression: &str) -> bool {
        self.samples(expression).await.iter().any(|sample| sample["value"][1] != "NaN")
    }

    /// Returns the loaded rules. `None` while one of them was not evaluated.
    async fn rules(&self) -> Option<Vec<Value>> {
        let answer = self.get("/api/v1/rules", &[]).await?;
        let groups = answer["data"]["groups"].as_array()?.iter();
        let rules: Vec<Value> =
            groups.flat_map(|group| group["rules"].as_array().unwrap().clone()).collect();
        rules.iter().all(|rule| rule["health"] != "unknown").then_some(rules)
    }
}

/// Returns the panels of a dashboard, without the titles of rows.
fn panels(dashboard: &Value) -> Vec<&Value> {
    let panels = dashboard["panels"].as_array().unwrap().iter();
    panels.filter(|panel| panel["type"] != "row").collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

fn asks_postgres(panel: &Value) -> bool {
    panel["datasource"]["uid"] == "${postgres}"
}

/// Checks that people can read a panel and that its data source can be chosen.
fn is_complete(panel: &Value, source: &str) {
    let title = text(&panel["title"]);
    assert!(text(&panel["description"]).len() > 20, "{title}: no description");
    let defaults = &panel["fieldConfig"]["defaults"];
    assert!(!text(&defaults["unit"]).is_empty(), "{title}: no unit");
    assert!(!defaults["thresholds"]["steps"].as_array().unwrap().is_empty(), "{title}");
    for target in panel["targets"].as_array().unwrap() {
        for part in [panel, target] {
            assert_eq!(part["datasource"]["uid"], source, "{title}");
        }
    }
}

fn variables(dashboard: &Value) -> Vec<&str> {
    let list = dashboard["templating"]["list"].as_array().unwrap();
    list.iter().map(|variable| text(&variable["name"])).collect()
}

/// Evaluates every query of the panels that ask Prometheus.
async fn every_panel_has_data(prometheus: &Prometheus, dashboard: &Value, topic: &str) {
    let fill_in = |query: &str| {
        let query = query.replace("$__rate_interval", "5m").replace("$__range", "5m");
        query.replace("$job", "punctual").replace("$topic", topic)
    };
    for panel in panels(dashboard).into_iter().filter(|panel| !asks_postgres(panel)) {
        is_complete(panel, "${datasource}");
        let may_be_empty = text(&panel["description"]).contains(ONLY_IN_TROUBLE);
        for target in panel["targets"].as_array().unwrap() {
            let query = fill_in(text(&target["expr"]));
            assert!(!query.contains('$'), "{query} has an unknown variable");
            let holds = async || may_be_empty || prometheus.has_data(&query).await;
            // An expression that is wrong panics at once.
            prometheus.samples(&query).await;
            let what = format!("{} has data: {query}", panel["title"]);
            eventually(&what, DEADLINE, holds).await;
        }
    }
}

async fn every_rule_is_evaluated(prometheus: &Prometheus) {
    let rules = eventually_some("the rules are evaluated", DEADLINE, || prometheus.rules()).await;
    assert!(rules.len() > 40, "{}", rules.len());
    for rule in rules {
        assert_eq!(rule["health"], "ok", "{rule}");
    }
}

/// Runs every statement about a topic. Each has rows.
async fn every_statement_has_rows(cluster: &Cluster, dashboard: &Value, topic: &str) {
    let fill_in = |statement: &str| {
        let statement = statement.replace("${topic:sqlstring}", &format!("'{topic}'"));
        let statement = statement.replace("$__unixEpochFrom()", "0");
        statement.replace("$__unixEpochTo()", "4102444800")
    };
    for panel in panels(dashboard).into_iter().filter(|panel| asks_postgres(panel)) {
        is_complete(panel, "${postgres}");
        for target in panel["targets"].as_array().unwrap() {
            let statement = fill_in(text(&target["rawSql"]));
            let rows = sqlx::query(sqlx::AssertSqlSafe(statement.clone()));
            let rows = rows.fetch_all(&cluster.sql).await;
            let rows = rows.unwrap_or_else(|error| panic!("{statement}: {error}"));
            assert!(!rows.is_empty(), "{statement} has no rows");
        }
    }
}

/// Evaluates the query for the list of topics, as Grafana does. The topic is in it.
async fn the_topic_can_be_chosen(prometheus: &Prometheus, dashboard: &Value, topic: &str) {
    let list = dashboard["templating"]["list"].as_array().unwrap();
    let variable = list.iter().find(|variable| variable["name"] == "topic").unwrap();
    assert_eq!(variable["datasource"]["uid"], "${datasource}");
    let query = text(&variable["query"]["query"]).replace("$job", "punctual");
    let series = query.strip_prefix("label_values(").unwrap().strip_suffix(", topic)").unwrap();
    let topics = prometheus.samples(series).await;
    let topics: Vec<&str> = topics.iter().map(|series| text(&series["metric"]["topic"])).collect();
    assert_eq!(topics, [topic]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_query_of_dashboards_and_alerts_works() {
    let [overview, by_topic] =
        [OVERVIEW, TOPIC].map(|text| serde_json::from_str::<Value>(text).unwrap());
    assert_eq!(variables(&overview), ["datasource", "job"]);
    assert_eq!(variables(&by_topic), ["datasource", "job", "postgres", "topic"]);
    let of_postgres = panels(&by_topic).into_iter().filter(|panel| asks_postgres(panel));
    assert_eq!(of_postgres.count(), 5, "the others ask Prometheus");

    let cluster = Cluster::start("dashboards").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node_with(&["--metrics-topics", &topic]).await;
    let target = node.api().base().trim_start_matches("http://");
    let prometheus = Prometheus::start(cluster.folder(), target).await;
    let is_scraped = async || prometheus.has_data("punctual_ready").await;
    eventually("the node is scraped", DEADLINE, is_scraped).await;
    for delay in ["0ms", "100ms", "1s"] {
        node.api().submit(&json!({ "topic": topic, "delay": delay, "payload": 1 })).await;
    }
    cluster.wait_final(3, DEADLINE).await;
    every_statement_has_rows(&cluster, &by_topic, &topic).await;
    every_panel_has_data(&prometheus, &overview, &topic).await;
    every_panel_has_data(&prometheus, &by_topic, &topic).await;
    the_topic_can_be_chosen(&prometheus, &by_topic, &topic).await;
    every_rule_is_evaluated(&prometheus).await;
}
