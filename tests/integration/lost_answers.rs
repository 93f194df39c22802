//! Postgres commits, and the answer is lost. The only consequence may be a refusal or a delay.

use std::sync::Arc;
use std::time::Duration;

use crate::support::proxy::{Proxy, Target};
use crate::support::traffic::Plan;
use crate::support::wait::look_for;
use crate::support::{Cluster, Ledger, NONE, Traffic, Wishes, eventually};

const DEADLINE: Duration = Duration::from_secs(120);
const ROUNDS: usize = 3;
/// Repeats until a claim was among the lost answers.
const ROUNDS_MAX: usize = 12;
const IN_DOUBT: &str = "whose claims got no answer";
const SILENCE: Duration = Duration::from_secs(1);

/// Claims, submits and settles: everything in progress when Postgres becomes silent. No record is
/// sent twice: a claim without an answer has sent nothing, and a settle without an answer is
/// repeated from memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_postgres_commits_without_an_answer_is_found_and_published_once() {
    let cluster = Cluster::with("answers", Wishes { has_etcd: false, ..Wishes::default() }).await;
    let topic = cluster.topic("orders").await;
    let mut proxy = Proxy::closed(Target::postgres(&cluster.stack)).await;
    proxy.open().await;
    let url = cluster.database.url_by(proxy.address());
    let mut node = cluster.spawn_by(&url, &[]);
    node.wait_ready().await;
    let consumer = cluster.consumer(&topic);
    let ledger = Arc::new(Ledger::default());
    let traffic = Traffic::start(
        Plan { topic, tasks_per_second: 200, ahead: 0..3000 },
        &ledger,
        &[node.api().clone()],
    );
    for round in 1..=ROUNDS_MAX {
        if round > ROUNDS && node.log().contains(IN_DOUBT) {
            break;
        }
        consumer.wait_count(round * 300, DEADLINE).await;
        let known =
            "select count(*) from execlog_batch where claimed_at > now() - interval '1 minute'";
        let before = cluster.count(known).await;
        proxy.mute();
        // Each connection commits one statement whose answer is lost. Usually a claim is among
        // them.
        look_for(SILENCE, async || (cluster.count(known).await > before).then_some(())).await;
        proxy.close().await;
        proxy.open().await;
        node.wait_ready().await;
    }
    traffic.stop().await;
    let findings = ledger.settle_up(&cluster, || consumer.records(), DEADLINE).await;
    assert_eq!((findings.duplicates, findings.dead), (Vec::new(), Vec::from(NONE)));
    assert!(node.log().contains(IN_DOUBT), "no claim was in doubt: {}", node.log());
    eventually("all batches are settled", DEADLINE, async || {
        cluster.count("select count(*) from execlog_batch where settled_at is null").await == 0
    })
    .await;
}
