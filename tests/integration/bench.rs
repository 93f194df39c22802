//! `punctual bench` as a user runs it.

use std::process::Output;
use std::time::Duration;

use punctual::bench::results::report::BenchReport;

use crate::outbox::Shop;
use crate::support::node::program;
use crate::support::{Cluster, Node};

/// For a run of a few seconds.
const DEADLINE: Duration = Duration::from_secs(90);

async fn bench(cluster: &Cluster, url: &str, arguments: &[&str]) -> Output {
    let mut command = program(&["bench", "--url", url, "--kafka", &cluster.stack.kafka]);
    let output = tokio::time::timeout(DEADLINE, command.args(arguments).output()).await;
    output.unwrap_or_else(|_elapsed| panic!("punctual bench {arguments:?} does not end")).unwrap()
}

/// Runs a scenario against a node, and reads the report and the picture.
async fn report(cluster: &Cluster, node: &Node, scenario: &[&str]) -> (BenchReport, String) {
    let folder = std::env::temp_dir().join(format!("{}-{}", cluster.name, scenario[0]));
    let (json, svg) = (folder.with_extension("json"), folder.with_extension("svg"));
    let topic = cluster.topic(scenario[0]).await;
    let pid = format!("node={}", node.pid);
    let common = [
        "--topic",
        &topic,
        "--pid",
        &pid,
        "--json",
        json.to_str().unwrap(),
        "--svg",
        svg.to_str().unwrap(),
    ];
    let output = bench(cluster, node.api().base(), &[scenario, &common].concat()).await;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{scenario:?}: {said}{}",
        String::from_utf8_lossy(&output.stdout)
    );
    assert!(said.contains(scenario[0]), "it says how far it is: {said}");
    let (text, picture) =
        (std::fs::read_to_string(&json).unwrap(), std::fs::read_to_string(&svg).unwrap());
    std::fs::remove_file(json).unwrap();
    std::fs::remove_file(svg).unwrap();
    (serde_json::from_str(&text).unwrap(), picture)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lateness_is_measured_from_outside() {
    let cluster = Cluster::start("bench").await;
    let node = cluster.node().await;
    let (report, picture) = report(
        &cluster,
        &node,
        &[
            "lateness",
            "--rate",
            "200",
            "--for",
            "3s",
            "--warmup",
            "1s",
            "--ahead-max",
            "2s",
            "--pending",
            "500",
        ],
    )
    .await;
    let spans = report.spans.as_ref().unwrap();
    // 600 on a machine that does not stall. After a stall, the late submits are sent at once.
    assert!(spans.count > 100, "200 a second for 3 s: {report:?}");
    assert!(
        report.counts.are_clean() && report.counts.accepted > spans.count,
        "{:?}",
        report.counts
    );
    assert!(
        report.usage[0].name == "node" && report.usage[0].us_per_task > 0.0,
        "{:?}",
        report.usage
    );
    assert_eq!(report.series.len(), 3);
    assert!(picture.contains("<polyline"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_and_cancels_are_measured_from_outside() {
    let cluster = Cluster::start("bench-burst").await;
    let node = cluster.node().await;
    let (burst, _) = report(&cluster, &node, &["burst", "--count", "3000", "--lead", "8s"]).await;
    assert_eq!((burst.counts.arrived, burst.counts.are_clean()), (3000, true));
    assert!(burst.facts.contains_key("first out, ms"), "{:?}", burst.facts);
    let (cancel, _) = report(
        &cluster,
        &node,
        &["cancel", "--count", "300", "--warmup", "50", "--connections", "4"],
    )
    .await;
    assert_eq!((cancel.facts["cancelled"], cancel.facts["any other verdict"]), (250.0, 0.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_tells_nothing_of_lateness_is_refused() {
    let cluster = Cluster::start("bench-refused").await;
    let topic = cluster.topic_with("created", &[("message.timestamp.type", "CreateTime")]).await;
    for (topic, wanted) in
        [(topic.as_str(), "LogAppendTime"), ("there-is-no-such-topic", "has no topic")]
    {
        let output = bench(&cluster, "http://127.0.0.1:1", &["lateness", "--topic", topic]).await;
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(wanted), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finishes_and_second_attempts_are_measured_from_outside() {
    let cluster = Cluster::start("bench-tracked").await;
    let node = cluster.node().await;
    let words = ["finish", "--count", "300", "--warmup", "50", "--connections", "2"];
    let (finish, _) = report(&cluster, &node, &[&words[..], &["--batch", "50"]].concat()).await;
    assert_eq!((finish.facts["finished"], finish.facts["any other answer"]), (250.0, 0.0));
    let words = ["tracked", "--rate", "100", "--for", "3s", "--warmup", "1s", "--ahead-max", "2s"];
    let more = ["--unfinished", "10", "--ttr", "1s", "--backoff", "0s"];
    let (tracked, picture) = report(&cluster, &node, &[&words[..], &more].concat()).await;
    assert!(tracked.counts.are_clean(), "{:?}", tracked.counts);
    assert!(tracked.spans.as_ref().unwrap().count > 10, "a tenth of 300: {tracked:?}");
    for none in ["not answered", "any other answer", "attempts after a finish"] {
        assert_eq!(tracked.facts[none], 0.0, "{none}: {:?}", tracked.facts);
    }
    assert!(tracked.facts.contains_key("append - due of the second attempt, p99, ms"));
    assert!(picture.contains("<polyline"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumers_without_kafka_are_measured_from_outside() {
    let cluster = Cluster::start("bench-pop").await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let service = listener.local_addr().unwrap().to_string();
    // The bench listens there.
    drop(listener);
    let (host, keys) = (format!("http://{service}"), cluster.callback_key_file());
    let flags = ["--callback-host", &host, "--callback-network", "127.0.0.1"];
    let flags = [&flags[..], &["--callback-key-file", &keys]].concat();
    let node = cluster.node_with(&flags).await;
    let steady = ["--rate", "100", "--for", "3s", "--warmup", "1s", "--ahead-max", "2s"];
    for more in [&["pop", "--pollers", "5", "--max", "3"][..], &["callback", "--listen", &service]]
    {
        let (report, _) = report(&cluster, &node, &[more, &steady[..]].concat()).await;
        assert!(report.counts.are_clean(), "{:?}", report.counts);
        assert!(report.spans.as_ref().unwrap().count > 100, "100 a second for 3 s: {report:?}");
        let late = report.facts["append - due, p50, ms"];
        assert!(late < 1_500.0, "submitted ahead, and {late} ms late: {report:?}");
        for none in ["not delivered", "delivered again", "attempts after the first"] {
            assert_eq!(report.facts[none], 0.0, "{none}: {:?}", report.facts);
        }
    }
}

/// Runs both ways in beside REST with these arguments. Returns their reports.
async fn reports_of_doors(name: &str, arguments: &[&str]) -> [BenchReport; 2] {
    let cluster = Cluster::start(name).await;
    let shop = Shop::open(&cluster.stack).await;
    let intake = cluster.topic("in").await;
    let node = cluster.node_with(&["--outbox", &shop.flag(), "--intake-topic", &intake]).await;
    let outbox = ["outbox", "--database-url", &shop.database.url];
    let (by_rows, _) = report(&cluster, &node, &[&outbox[..], arguments].concat()).await;
    let records = ["intake", "--intake", &intake];
    let (by_records, _) = report(&cluster, &node, &[&records[..], arguments].concat()).await;
    [by_rows, by_records]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_and_records_are_measured_from_their_insert_to_the_append() {
    let arguments = ["--rate", "50", "--for", "3s", "--warmup", "1s"];
    for report in reports_of_doors("bench-doors", &arguments).await {
        assert!(report.counts.are_clean(), "{report:?}");
        assert!(report.spans.as_ref().unwrap().count > 50, "50 a second for 3 s: {report:?}");
        assert!(report.usage[0].us_per_task > 0.0, "{:?}", report.usage);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_and_records_are_taken_in_at_full_speed() {
    let arguments = ["--count", "3000", "--batch", "250", "--connections", "4"];
    for report in reports_of_doors("bench-take-in", &arguments).await {
        let counts = report.counts;
        assert!(counts.are_clean() && counts.accepted == 3_300, "{report:?}");
        // One in a hundred is due at once, and the last one of each part.
        assert_eq!(counts.arrived, 4 + 31, "{report:?}");
        assert!(report.rate > 0.0 && report.facts["written per second"] > 0.0, "{report:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_way_in_that_no_node_serves_is_told() {
    let cluster = Cluster::start("bench-no-door").await;
    let (topic, intake) = (cluster.topic("out").await, cluster.topic("in").await);
    let words = ["intake", "--topic", &topic, "--intake", &intake, "--count", "1000"];
    let output = bench(&cluster, "http://127.0.0.1:1", &words).await;
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("--intake-topic"), "{said}");
}
