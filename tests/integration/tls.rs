//! TLS on every connection of a node, and its certificate replaced while it runs.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::json;
use tokio::task::JoinSet;

use crate::support::authority::local;
use crate::support::stack::Secure;
use crate::support::{Api, Authority, Cluster, Ledger, Node, OwnStack, Wishes, eventually};

const DEADLINE: Duration = Duration::from_secs(90);

/// Returns a certificate for 127.0.0.1 that is valid until a year, with its key, both in PEM.
fn signed(authority: &Authority, until_year: i32) -> (String, String) {
    authority.sign(|params| {
        params.subject_alt_names = vec![local()];
        params.not_after = rcgen::date_time_ymd(until_year, 1, 1);
    })
}

/// The flags of a node that reaches its servers over TLS alone.
struct Flags {
    database_url: String,
    database_ca: String,
    kafka_ca: String,
    etcd_ca: String,
}

impl Flags {
    fn new(cluster: &Cluster, secure: &Secure) -> Self {
        let (place, query) = secure.database_url.split_once('?').unwrap();
        let (place, _first_database) = place.rsplit_once('/').unwrap();
        let mode = query.split('&').next().unwrap();
        Self {
            database_url: format!("{place}/{}?{mode}", cluster.database.name),
            database_ca: secure.ca.clone(),
            kafka_ca: secure.ca.clone(),
            etcd_ca: secure.ca.clone(),
        }
    }

    fn spawn(&self, cluster: &Cluster, secure: &Secure) -> Node {
        let database_url = format!("{}&sslrootcert={}", self.database_url, self.database_ca);
        let kafka_ca = format!("ssl.ca.location={}", self.kafka_ca);
        let mut words = vec!["--database-url", &database_url, "--kafka", &secure.kafka_sasl_ssl];
        for property in [
            "security.protocol=SASL_SSL",
            "sasl.mechanism=SCRAM-SHA-256",
            "sasl.username=punctual",
            "sasl.password=punctual",
            &kafka_ca,
        ] {
            words.extend(["--kafka-property", property]);
        }
        words.extend(["--cluster", &cluster.name, "--require-tls"]);
        words.extend(["--etcd", &cluster.stack.etcd, "--etcd-ca-file", &self.etcd_ca]);
        words.extend(["--tls-certificate-file", &secure.certificate]);
        words.extend(["--tls-key-file", &secure.key]);
        cluster.spawn_bare(&words)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_become_records_over_tls_everywhere() {
    let own = OwnStack::start_secure("tls").await;
    let secure = own.secure.clone().unwrap();
    let ca = std::fs::read_to_string(&secure.ca).unwrap();
    let wishes = Wishes { has_etcd: false, ..Wishes::default() };
    let cluster = Cluster::at(&own.stack, "tls", wishes).await;
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let flags = Flags::new(&cluster, &secure);
    let mut node = flags.spawn(&cluster, &secure);
    node.wait_listening_securely(&ca).await;
    node.wait_ready().await;
    assert!(node.api().cluster().await["missing"].as_array().unwrap().is_empty());
    assert_eq!(node.api().metric("punctual_etcd_session_up").await, 1.0);

    let tasks: Vec<_> = (0..500)
        .map(|n| json!({ "topic": topic, "delay": n * 4, "payload_text": format!("task {n}") }))
        .collect();
    let ledger = Ledger::default();
    ledger.accept_all(&node.api().submit_all(&tasks).await, &tasks);
    let settled = ledger.settle_up(&cluster, || consumer.records(), DEADLINE).await;
    assert_eq!(settled.published_count, 500);
    let plain: i64 = sqlx::query_scalar(
        "select count(*) from pg_stat_activity join pg_stat_ssl using (pid)
         where application_name like 'punctual %' and datname = current_database() and not ssl",
    )
    .fetch_one(&cluster.sql)
    .await
    .unwrap();
    assert_eq!(plain, 0, "connections to Postgres without TLS");
    assert!(!node.log().contains("others on the network"), "{}", node.log_tail());

    // A server with a certificate of another authority is refused.
    let other = cluster.folder().join("other.pem");
    std::fs::write(&other, Authority::new().pem()).unwrap();
    let other = || other.to_str().unwrap().to_owned();
    let of_flags = || Flags::new(&cluster, &secure);
    for (flags, server, reason) in [
        (Flags { database_ca: other(), ..of_flags() }, "postgres", "invalid peer certificate"),
        (Flags { kafka_ca: other(), ..of_flags() }, "kafka", "certificate verify failed"),
        (Flags { etcd_ca: other(), ..of_flags() }, "etcd", "invalid peer certificate"),
    ] {
        let mut stranger = flags.spawn(&cluster, &secure);
        stranger.wait_listening_securely(&ca).await;
        eventually(&format!("it says why {server} is not used"), DEADLINE, async || {
            stranger.log().contains(reason)
        })
        .await;
        eventually(&format!("it is not ready without {server}"), DEADLINE, async || {
            let missing = stranger.api().get("/readyz").await.text;
            missing.contains(&format!("\"what\":\"{server}\""))
        })
        .await;
    }
}

/// The certificate files of a node.
struct Files {
    certificate: PathBuf,
    key: PathBuf,
}

impl Files {
    fn new(folder: &Path) -> Self {
        let [certificate, key] = ["certificate.pem", "key.pem"].map(|name| folder.join(name));
        Self { certificate, key }
    }

    fn write(&self, (certificate, key): &(String, String)) {
        std::fs::write(&self.certificate, certificate).unwrap();
        std::fs::write(&self.key, key).unwrap();
    }
}

/// Asks over new connections and over kept ones until told to stop. Returns the failures.
async fn ask_until(
    stop: Arc<AtomicBool>,
    asked: Arc<AtomicU64>,
    base: String,
    ca: String,
) -> Vec<String> {
    let kept = Api::secure(base.clone(), &ca);
    let mut failures = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let fresh = Api::secure(base.clone(), &ca);
        for api in [&kept, &fresh] {
            match api.try_send(reqwest::Method::GET, "/v1/tasks/counts", None).await {
                Ok(answer) if answer.status == 200 => {
                    asked.fetch_add(1, Ordering::Relaxed);
                }
                Ok(answer) => failures.push(answer.text),
                Err(error) => failures.push(format!("{error:?}")),
            }
        }
    }
    failures
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_is_replaced_under_load_without_one_failed_request() {
    let cluster = Cluster::start("certificate").await;
    let authority = Authority::new();
    let (files, ca) = (Files::new(cluster.folder()), authority.pem());
    files.write(&signed(&authority, 2090));
    let mut node = cluster.spawn(&[
        "--tls-certificate-file",
        files.certificate.to_str().unwrap(),
        "--tls-key-file",
        files.key.to_str().unwrap(),
        "--operator-listen",
        "127.0.0.1:0",
    ]);
    node.wait_listening_securely(&ca).await;
    node.wait_ready().await;
    let operators = Api::secure(format!("https://{}", node.operator_address().unwrap()), &ca);
    for path in ["/metrics", "/v1/cluster"] {
        assert_eq!(node.api().get(path).await.status, 404, "{path}");
        assert_eq!(operators.get(path).await.status, 200, "{path}");
    }
    assert_eq!(operators.get("/v1/tasks").await.status, 404);

    let (stop, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut callers = JoinSet::new();
    for _ in 0..4 {
        let base = node.api().base().to_owned();
        callers.spawn(ask_until(stop.clone(), asked.clone(), base, ca.clone()));
    }
    let expires = || operators.metric("punctual_tls_certificate_expires_seconds");
    let refused = || operators.metric("punctual_tls_certificate_refused");
    let first = expires().await;
    let metrics = operators.get("/metrics").await.text;
    let alarms = include_str!("../../docs/alerts.yml");
    let named = alarms.split(|c: char| !(c.is_ascii_lowercase() || c == '_'));
    for name in named.filter(|word| word.starts_with("punctual_tls_")) {
        assert!(metrics.contains(&format!("\n{name} ")), "docs/alerts.yml has {name}");
    }

    // A key that does not match the certificate, as between two writes.
    let second = signed(&authority, 2091);
    std::fs::write(&files.certificate, &second.0).unwrap();
    eventually("the pair is refused", DEADLINE, async || refused().await == 1.0).await;
    assert_eq!(expires().await, first);
    std::fs::write(&files.key, &second.1).unwrap();
    eventually("the new certificate is served", DEADLINE, async || {
        refused().await == 0.0 && expires().await > first
    })
    .await;
    let at_swap = asked.load(Ordering::Relaxed);
    eventually("all callers have asked since", DEADLINE, async || {
        asked.load(Ordering::Relaxed) > at_swap + 40
    })
    .await;
    // An expired one is not loaded.
    files.write(&signed(&authority, 2001));
    eventually("the expired one is refused", DEADLINE, async || refused().await == 1.0).await;
    assert!(node.log().contains("has expired"), "{}", node.log_tail());
    stop.store(true, Ordering::Relaxed);
    while let Some(failures) = callers.join_next().await {
        assert_eq!(failures.unwrap(), Vec::<String>::new());
    }
}
