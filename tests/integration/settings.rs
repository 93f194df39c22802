//! Wrong settings, missing servers, and a database that is not ready.

use std::process::{Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use sqlx::AssertSqlSafe;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStderr};

use crate::support::node::program;
use crate::support::proxy::{Proxy, Target};
use crate::support::wait::look_for;
use crate::support::{Api, Cluster, Node, Stack, Wishes, eventually};

const DEADLINE: Duration = Duration::from_secs(120);

async fn run(arguments: &[&str]) -> Output {
    let output = tokio::time::timeout(DEADLINE, program(arguments).output());
    output.await.unwrap_or_else(|_elapsed| panic!("punctual {arguments:?} does not end")).unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_problems_of_the_settings_are_told_at_once() {
    let bare = run(&["serve"]).await;
    assert_eq!(bare.status.code(), Some(2), "{}", errors(&bare));
    for flag in ["--database-url", "--kafka"] {
        assert!(errors(&bare).contains(flag), "{flag}: {}", errors(&bare));
    }
    // A template leaves an empty variable for a missing value, and an empty variable counts as not
    // set.
    let mut empty = program(&["serve"]);
    for name in [
        "PRECISION",
        "LISTEN",
        "SESSION_TTL",
        "TICK",
        "ETCD",
        "KAFKA",
        "AUTO_MIGRATE",
        "LOG",
        "LOG_FORMAT",
        "NODE_NAME",
    ] {
        empty.env(format!("PUNCTUAL_{name}"), "");
    }
    let empty = empty.output().await.unwrap();
    assert_eq!((empty.status.code(), errors(&empty)), (Some(2), errors(&bare)));
    let bad = [
        ("--listen", "nowhere"),
        ("--precision", "soon"),
        ("--session-ttl", "1 parsec"),
        ("--delay-max", "-1s"),
        ("--cluster", "a/b"),
        ("--kafka-property", "no-equals-sign"),
        ("--in-flight-bytes", "lots"),
    ];
    let mut arguments = vec!["serve", "--database-url", "mysql://x", "--kafka", "127.0.0.1:1"];
    let flags: Vec<String> = bad.iter().map(|(flag, value)| format!("{flag}={value}")).collect();
    arguments.extend(flags.iter().map(String::as_str));
    let output = run(&arguments).await;
    assert_eq!(output.status.code(), Some(2), "{}", errors(&output));
    for (flag, _) in bad.iter().chain(&[("--database-url", "")]) {
        assert!(errors(&output).contains(flag), "{flag} is not told: {}", errors(&output));
    }
    let output = run(&[
        "migrate",
        "--database-url",
        "postgres://x",
        "--shards",
        "63",
        "--leaf",
        "1s",
        "--horizon",
        "1d",
    ])
    .await;
    assert_eq!(output.status.code(), Some(2), "{}", errors(&output));
    assert!(
        errors(&output).contains("--shards") && errors(&output).contains("--horizon"),
        "{}",
        errors(&output)
    );
    let output = run(&["migrate", "--database-url", "postgres://x", "--leaf", "7s"]).await;
    assert!(
        output.status.code() == Some(2) && errors(&output).contains("--leaf"),
        "{}",
        errors(&output)
    );
    let output = run(&["show", "--timeout", "2", "x"]).await;
    assert!(
        output.status.code() == Some(2) && errors(&output).contains("like 200ms, 30s"),
        "{}",
        errors(&output)
    );
    let output = run(&[
        "bench",
        "burst",
        "--kafka-property",
        "acks=hunter2",
        "--kafka-property",
        "no.such=hunter2",
    ])
    .await;
    assert!(
        output.status.code() == Some(2) && errors(&output).contains("acks"),
        "{}",
        errors(&output)
    );
    assert!(
        errors(&output).contains("no.such") && !errors(&output).contains("hunter2"),
        "{}",
        errors(&output)
    );
    let unknown = run(&["serve", "--no-such-flag"]).await;
    assert_eq!(unknown.status.code(), Some(2), "{}", errors(&unknown));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_version_names_the_commit() {
    let output = run(&["--version"]).await;
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success()
            && text.starts_with(&format!("punctual {} (", env!("CARGO_PKG_VERSION"))),
        "{text}"
    );
    let commit = text.trim().rsplit_once('(').unwrap().1.trim_end_matches(')');
    let is_hash =
        commit.len() >= 7 && commit.chars().take(7).all(|digit| digit.is_ascii_hexdigit());
    assert!(is_hash || commit == "unknown", "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn help_explains_every_setting_of_a_node() {
    let text = String::from_utf8(run(&["serve", "--help"]).await.stdout).unwrap();
    for variable in [
        "DATABASE_URL",
        "KAFKA",
        "ETCD",
        "LISTEN",
        "CLUSTER",
        "PRECISION",
        "SESSION_TTL",
        "DELAY_MAX",
        "LOG_FORMAT",
    ] {
        assert!(text.contains(&format!("PUNCTUAL_{variable}")), "{variable}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_are_never_shown() {
    const SECRET: &str = "hunter2-f00d";
    let cluster = Cluster::start("secrets").await;
    // Wrong and right settings, and a server that refuses: no message may contain the password.
    let url = format!("postgres://user:{SECRET}@127.0.0.1:1/nowhere");
    let property = format!("sasl.password={SECRET}");
    for arguments in [
        vec![
            "serve",
            "--database-url",
            &url,
            "--kafka",
            "127.0.0.1:1",
            "--kafka-property",
            &property,
            "--listen",
            "nowhere",
        ],
        vec!["migrate", "--database-url", &url],
        vec!["migrate", "--database-url", &url.replace(":1/", ":x/"), "--shards", "63"],
    ] {
        let output = run(&arguments).await;
        assert!(!output.status.success());
        let shown = errors(&output) + &String::from_utf8_lossy(&output.stdout);
        assert!(!shown.contains(SECRET), "{shown}");
    }
    let node = cluster.node_with(&["--kafka-property", &property, "--log", "debug"]).await;
    let metrics = node.metrics().await;
    let shown = format!("{}{}{}", node.log(), node.api().get("/v1/cluster").await.text, metrics);
    assert!(!shown.contains(SECRET));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn migrate_can_be_repeated_and_never_changes_the_shards() {
    let cluster = Cluster::start("migrate").await;
    cluster.migrate().await;
    let url = cluster.database.url.as_str();
    assert!(
        run(&["migrate", "--database-url", url]).await.status.success(),
        "what is not given stays as it is"
    );
    assert_eq!(cluster.count("select shards::bigint from cluster").await, 16);
    let output = run(&["migrate", "--database-url", url, "--shards", "32"]).await;
    assert!(!output.status.success() && errors(&output).contains("shards"), "{}", errors(&output));
    assert!(run(&["migrate", "--database-url", url, "--window", "300ms"]).await.status.success());
    assert_eq!(cluster.count("select window_ms from cluster").await, 300);
    assert_eq!(cluster.count("select shards::bigint from cluster").await, 16);
    let plain = ["migrate", "--database-url", url];
    let (one, other) = tokio::join!(run(&plain), run(&plain));
    assert!(
        one.status.success() && other.status.success(),
        "two at once: {}{}",
        errors(&one),
        errors(&other)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_was_not_migrated_is_told_with_what_to_do() {
    let cluster = Cluster::unmigrated(&Stack::shared(), "unmigrated", Wishes::default()).await;
    let mut node = cluster.spawn(&[]);
    eventually("the node says what to do", DEADLINE, async || {
        node.log().contains("punctual migrate")
    })
    .await;
    if node.has_ended().is_none() {
        node.wait_listening().await;
        assert!(!node.api().is_ready().await);
    }
    drop(node);
    // The flag alone means true.
    cluster.node_with(&["--auto-migrate"]).await;
    assert_eq!(cluster.count("select count(*) from cluster").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tick_that_is_as_long_as_the_window_is_refused() {
    let cluster = Cluster::start("tick").await;
    let mut node = cluster.spawn(&["--tick", "200ms"]);
    let refusal = "--tick 200ms must be shorter than the window of this cluster, 200ms";
    eventually("the node says why it does not start", DEADLINE, async || {
        node.log().contains(refusal)
    })
    .await;
    assert!(!node.wait_exit(DEADLINE).await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_missing_at_the_start_is_named_and_waited_for() {
    let cluster = Cluster::start("missing").await;
    let stack = &cluster.stack;
    let mut postgres = Proxy::closed(Target::postgres(stack)).await;
    let mut kafka = Proxy::closed(Target::kafka(stack)).await;
    let mut etcd = Proxy::closed(Target::etcd(stack)).await;
    let url = cluster.database.url_by(postgres.address());
    let (kafka_address, etcd_address) =
        (kafka.address().to_string(), format!("http://{}", etcd.address()));
    let mut node = cluster.spawn_bare(&[
        "--database-url",
        &url,
        "--kafka",
        &kafka_address,
        "--etcd",
        &etcd_address,
        "--cluster",
        &cluster.name,
    ]);
    node.wait_listening().await;
    waits_for(&node, &["postgres", "kafka", "etcd"]).await;
    postgres.open().await;
    waits_for(&node, &["kafka", "etcd"]).await;
    kafka.open().await;
    waits_for(&node, &["etcd"]).await;
    etcd.open().await;
    node.wait_ready().await;
    assert_eq!(node.api().get("/livez").await.status, 200);
    // One clear line per problem, not one per attempt.
    let log = node.log();
    for address in [postgres.address(), etcd.address()] {
        let lines = log.lines().filter(|line| line.contains(&address.to_string())).count();
        assert!((1..=12).contains(&lines), "{lines} lines about {address}:\n{log}");
    }
}

/// Waits until `/readyz` names exactly these servers.
async fn waits_for(node: &Node, servers: &[&str]) {
    let mut named = Vec::new();
    let found = look_for(DEADLINE, async || {
        let answer = node.api().get("/readyz").await;
        assert_eq!(answer.status, 503, "{}", answer.text);
        let missing = answer.json()["missing"].clone();
        named = missing
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["what"].as_str().unwrap().to_owned())
            .collect();
        let is_named = |server: &&&str| named.iter().any(|name| name == **server);
        let of_servers: Vec<&&str> =
            ["postgres", "kafka", "etcd"].iter().filter(is_named).collect();
        of_servers.into_iter().eq(servers).then_some(())
    });
    let is_found = found.await.is_some();
    assert!(is_found, "/readyz should name {servers:?}, it names {named:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_that_waits_for_a_lock_says_what_cannot_be_made() {
    let cluster = Cluster::start("locked-out").await;
    // A partition is missing, and a lock keeps nodes from creating a new one.
    let gone: String = sqlx::query_scalar(
        "select inhrelid::regclass::text from pg_inherits where inhparent = \
         'execlog_cancelled'::regclass order by 1 limit 1",
    )
    .fetch_one(&cluster.sql)
    .await
    .unwrap();
    sqlx::raw_sql(AssertSqlSafe(format!("drop table {gone}"))).execute(&cluster.sql).await.unwrap();
    let mut somebody = cluster.sql.begin().await.unwrap();
    sqlx::raw_sql("lock table execlog_cancelled in access exclusive mode")
        .execute(&mut *somebody)
        .await
        .unwrap();
    let mut node = cluster.spawn(&[]);
    node.wait_listening().await;
    let mut told = Value::Null;
    let found = look_for(DEADLINE, async || {
        told = node.api().get("/readyz").await.json()["missing"].clone();
        let why = told.as_array()?.iter().find(|one| one["what"] == "postgres")?["why"].as_str()?;
        why.starts_with("cannot create the partitions: ").then_some(())
    });
    let is_found = found.await.is_some();
    assert!(is_found, "/readyz should say what cannot be made: {told}");
    somebody.rollback().await.unwrap();
    node.wait_ready().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_that_does_not_own_the_tables_is_refused_at_the_start() {
    let cluster = Cluster::start("not-owner").await;
    let (role, name) = (format!("guest_{}", cluster.database.name), &cluster.name);
    let statement =
        format!("create role {role} login; grant all on all tables in schema public to {role}");
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(&cluster.sql).await.unwrap();
    let url = cluster.database.url.replace("user=punctual", &format!("user={role}"));
    assert_ne!(url, cluster.database.url, "the role of a test's database stands in its URL");
    let output =
        run(&["serve", "--database-url", &url, "--kafka", &cluster.stack.kafka, "--cluster", name])
            .await;
    let statement = format!("drop owned by {role}; drop role {role}");
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(&cluster.sql).await.unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", errors(&output));
    assert!(errors(&output).contains("belong to the role punctual"), "{}", errors(&output));
}

/// Starts a node with a pipe as its log, and waits for the line with the address. Returns the other
/// end of the pipe, too.
async fn node_with_piped_log(
    cluster: &Cluster,
    log: &str,
) -> (Child, Lines<BufReader<ChildStderr>>, Api) {
    let arguments = [
        "--database-url",
        &cluster.database.url,
        "--kafka",
        &cluster.stack.kafka,
        "--cluster",
        &cluster.name,
    ];
    let mut command =
        program(&["serve", "--listen", "127.0.0.1:0", "--log-format", "json", "--log", log]);
    let mut node = command.args(arguments).stderr(Stdio::piped()).spawn().unwrap();
    let mut log = BufReader::new(node.stderr.take().unwrap()).lines();
    let address = loop {
        let line = log.next_line().await.unwrap().expect("the node says where it listens");
        let line: Value = serde_json::from_str(&line).unwrap();
        if line["message"] == "listening" {
            break line["address"].as_str().unwrap().to_owned();
        }
    };
    (node, log, Api::new(format!("http://{address}")))
}

async fn ends_in_good_order(mut node: Child) {
    let pid = node.id().unwrap().to_string();
    assert!(
        tokio::process::Command::new("kill")
            .args(["-s", "TERM", &pid])
            .status()
            .await
            .unwrap()
            .success()
    );
    let status = tokio::time::timeout(DEADLINE, node.wait()).await.expect("the node ends").unwrap();
    assert_eq!(status.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_outlives_whoever_reads_its_log() {
    let cluster = Cluster::start("no-reader").await;
    let (node, log, api) = node_with_piped_log(&cluster, "trace").await;
    drop(log);
    eventually("the node is ready", DEADLINE, async || api.is_ready().await).await;
    ends_in_good_order(node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_goes_on_when_whoever_reads_its_log_stops_reading() {
    let cluster = Cluster::start("slow-reader").await;
    // A filter applies as given, to all libraries.
    let (node, mut log, api) = node_with_piped_log(&cluster, "trace,sqlx=info").await;
    eventually("the node is ready", DEADLINE, async || api.is_ready().await).await;
    eventually("lines are lost", DEADLINE, async || {
        futures_util::future::join_all((0..100).map(|_| api.get("/livez"))).await;
        let metrics = api.get("/metrics").await.text;
        let lost = metrics
            .lines()
            .find_map(|line| line.strip_prefix("punctual_log_lines_lost_total "))
            .unwrap();
        lost.parse::<u64>().unwrap() > 0
    })
    .await;
    eventually("the node is ready", DEADLINE, async || api.is_ready().await).await;
    // Once the pipe is read again, the log says that lines were lost.
    let told = async {
        loop {
            let line = log.next_line().await.unwrap().unwrap();
            if line.contains("log lines were lost") {
                return;
            }
        }
    };
    tokio::time::timeout(DEADLINE, told).await.expect("the log tells of what it lacks");
    ends_in_good_order(node).await;
}

#[tokio::test]
async fn a_check_asks_the_servers_of_a_node_and_starts_none() {
    let cluster = Cluster::start("check").await;
    let check = async |flags: &[&str]| {
        let output = run(&[&["server", "check"], flags].concat()).await;
        let out = String::from_utf8(output.stdout).unwrap();
        (output.status.code(), out.lines().map(str::to_owned).collect::<Vec<String>>())
    };
    let (code, lines) = check(&cluster.arguments(&[])).await;
    assert_eq!(code, Some(0), "{lines:?}");
    assert_eq!(lines[0], "settings  ok");
    assert!(lines[1].starts_with("postgres  ok: ") && lines[1].contains("window"), "{lines:?}");
    assert_eq!(&lines[2..], ["kafka     ok: answers", "etcd      ok: answers"]);
    assert_eq!(cluster.count("select count(*) from heartbeat").await, 0);
    let (url, kafka) = (cluster.database.url.as_str(), cluster.stack.kafka.as_str());
    let away = ["--database-url", url, "--kafka", kafka, "--etcd", "127.0.0.1:9"];
    let (code, lines) = check(&away).await;
    assert_eq!(code, Some(1), "{lines:?}");
    assert!(lines[3].starts_with("etcd      FAILED: "), "{lines:?}");
}
