//! Postgres fails over to a synchronous standby under traffic, in a stack of its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use punctual::postgres::cluster::schema::{self, CheckError};
use punctual::postgres::connection::ConnectionPurpose;
use punctual::postgres::{Connection, PostgresError, PostgresSettings};
use sqlx::postgres::PgConnection;

use crate::support::traffic::Plan;
use crate::support::{
    Cluster, Consumer, Ledger, NONE, Node, OwnStack, Traffic, Wishes, eventually, now_ms,
};

const DEADLINE: Duration = Duration::from_secs(120);
/// The longest time without a record, from the loss of the primary on. The standby is promoted at
/// once here, so all of it is Punctual's and the promotion's.
const GAP_MAX_MS: i64 = 40_000;

/// A cluster on a primary and its standby. The stack is dropped first: on a former primary, which
/// waits for its standby, a database could not be dropped.
struct Pair {
    own: OwnStack,
    cluster: Cluster,
    primary: String,
    standby: String,
}

impl Pair {
    async fn start() -> Self {
        let own = OwnStack::start("failover").await;
        let [primary, standby] = own.start_standby().await;
        let cluster = Cluster::at(&own.stack, "failover", Wishes::default()).await;
        Self { own, cluster, primary, standby }
    }

    fn url(&self, hosts: &[&str]) -> String {
        let (hosts, database) = (hosts.join(","), &self.cluster.database.name);
        format!("postgres://punctual:punctual@{hosts}/{database}")
    }

    /// Starts a node with these hosts in its URL.
    async fn node(&self, hosts: &[&str]) -> Node {
        let url = format!("{}?target_session_attrs=read-write", self.url(hosts));
        let stack = &self.cluster.stack;
        let mut node = self.cluster.spawn_bare(&[
            "--database-url",
            &url,
            "--kafka",
            &stack.kafka,
            "--etcd",
            &stack.etcd,
            "--cluster",
            &self.cluster.name,
        ]);
        node.wait_ready().await;
        node
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_is_lost_or_early_when_postgres_fails_over_to_its_synchronous_standby() {
    let mut pair = Pair::start().await;
    see_a_standby_refused(&pair).await;
    let (primary, standby) = (pair.primary.clone(), pair.standby.clone());
    let orders = [[primary.as_str(), standby.as_str()], [standby.as_str(), primary.as_str()]];
    let (first, second) = tokio::join!(pair.node(&orders[0]), pair.node(&orders[1]));
    let topic = pair.cluster.topic("orders").await;
    let consumer = pair.cluster.consumer(&topic);
    let ledger = Arc::new(Ledger::default());
    let plan = Plan { topic, tasks_per_second: 150, ahead: 0..4000 };
    let nodes = [first.api().clone(), second.api().clone()];
    let traffic = Traffic::start(plan.clone(), &ledger, &nodes);
    consumer.wait_count(500, DEADLINE).await;

    let (lost_at, began) = (now_ms(), Instant::now());
    pair.own.lose_primary().await;
    pair.own.promote().await;
    let promoted_ms = began.elapsed().as_millis();
    for node in &nodes {
        eventually("the node is ready again", DEADLINE, async || node.is_ready().await).await;
    }
    let ready_ms = began.elapsed().as_millis();
    let back_at = now_ms();
    let is_after = || consumer.look(|records| records.iter().any(|r| r.timestamp > back_at + 1000));
    eventually("records of after the failover", DEADLINE, async || is_after()).await;
    for node in &nodes {
        assert_eq!(node.metric("punctual_postgres_primary_changes_total").await, 1.0);
    }
    traffic.stop().await;

    let url = pair.url(&[standby.as_str()]);
    pair.cluster.look_at(&url);
    let findings = ledger.settle_up(&pair.cluster, || consumer.records(), DEADLINE).await;
    assert_eq!(findings.dead, NONE, "a failover is no reason to give up a task");
    let gap_ms = longest_gap(&consumer, lost_at);
    eprintln!(
        "failover: promoted after {promoted_ms} ms, nodes ready after {ready_ms} ms, {gap_ms} ms \
         without a record; {} tasks, {} twice, lost 0, early 0",
        ledger.len(),
        findings.duplicates.len()
    );
    assert!(gap_ms < GAP_MAX_MS, "{gap_ms} ms without a record");
    see_a_former_primary_left(&pair, [&first, &second]).await;
}

/// A server in recovery is none for a node: of several hosts it is passed by, and a single one is
/// left with its first change.
async fn see_a_standby_refused(pair: &Pair) {
    let purpose =
        ConnectionPurpose { name: "test", deadline: Duration::from_secs(10), settings: &[] };
    let connect = |hosts: &[&str]| {
        Connection::new(&PostgresSettings::new(&pair.url(hosts)).unwrap(), purpose)
    };
    let change = async |open: &mut PgConnection| {
        sqlx::query("update cluster set window_ms = window_ms").execute(open).await
    };
    let mut only = connect(&[pair.standby.as_str()]);
    let refused = only.run("change a row", change).await.unwrap_err();
    assert!(matches!(refused, PostgresError::Unreachable { .. }), "{refused:?}");
    assert_eq!((refused.code().as_deref(), only.is_open()), (Some("25006"), false));

    let settings = PostgresSettings::new(&pair.url(&[pair.standby.as_str()])).unwrap();
    let refused = schema::check(&settings).await.unwrap_err();
    let CheckError::Postgres(refused) = refused else { panic!("{refused:?}") };
    assert!(refused.is_away(), "a node that starts meanwhile waits: {refused:?}");

    let said = connect(&[pair.standby.as_str(), "127.0.0.1:1"]).keep_open().await.unwrap_err();
    let said = format!("{said:?}");
    assert!(said.contains(&format!("{} is a standby", pair.standby)), "{said}");
    assert!(said.contains("127.0.0.1:1: "), "{said}");

    let mut both = connect(&[pair.standby.as_str(), &pair.primary]);
    assert_eq!(both.run("change a row", change).await.unwrap().rows_affected(), 1);
}

/// Returns the longest time between two records after `since`, in milliseconds.
fn longest_gap(consumer: &Consumer, since: i64) -> i64 {
    let mut times: Vec<i64> =
        consumer.look(|records| records.iter().map(|record| record.timestamp).collect());
    times.sort_unstable();
    times.windows(2).filter(|pair| pair[1] > since).map(|pair| pair[1] - pair[0]).max().unwrap()
}

/// The former primary comes back and takes writes, because nobody told it of the failover. Nodes
/// stay with the new one, and a node that starts finds it, too.
async fn see_a_former_primary_left(pair: &Pair, nodes: [&Node; 2]) {
    pair.own.start_again("postgres").await;
    let third = pair.node(&[pair.primary.as_str(), &pair.standby]).await;
    let topic = pair.cluster.topic("later").await;
    let consumer = pair.cluster.consumer(&topic);
    let ledger = Arc::new(Ledger::default());
    let plan = Plan { topic, tasks_per_second: 50, ahead: 0..1000 };
    let apis = [nodes[0].api().clone(), nodes[1].api().clone(), third.api().clone()];
    let traffic = Traffic::start(plan, &ledger, &apis);
    // Sessions are opened anew, with both servers in reach.
    let end = "select count(pg_terminate_backend(pid)) from pg_stat_activity
        where datname = current_database() and application_name like 'punctual %'";
    assert!(pair.cluster.count(end).await > 20, "the sessions are on the new primary");
    consumer.wait_count(100, DEADLINE).await;
    for api in &apis {
        eventually("the node is ready again", DEADLINE, async || api.is_ready().await).await;
    }
    traffic.stop().await;
    let findings = ledger.settle_up(&pair.cluster, || consumer.records(), DEADLINE).await;
    assert_eq!(findings.dead, NONE);
    let mut former = pair.cluster.database.connect().await;
    let sessions = "select count(*) from pg_stat_activity
        where datname = current_database() and application_name like 'punctual %'";
    eventually("no node has a session on the former primary", DEADLINE, async || {
        let count: i64 = sqlx::query_scalar(sessions).fetch_one(&mut former).await.unwrap();
        count == 0
    })
    .await;
}
