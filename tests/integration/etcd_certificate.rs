//! The certificate with which nodes show themselves to etcd, replaced while they run.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;

use crate::support::{Authority, Cluster, Ledger, Node, OwnStack, Wishes, eventually};

const DEADLINE: Duration = Duration::from_secs(90);

/// Makes etcd demand a certificate of an authority, after a restart.
async fn demand(authority: &Authority, own: &OwnStack) {
    let ca = own.secure.as_ref().map(|secure| PathBuf::from(&secure.ca)).unwrap();
    std::fs::write(ca.with_file_name("clients.pem"), authority.pem()).unwrap();
    own.stop("etcd").await;
    own.start_again("etcd").await;
}

async fn is_in_contact(node: &Node) -> bool {
    let api = node.api();
    api.metric("punctual_etcd_session_up").await == 1.0
        && api.metric("punctual_etcd_watch_up").await == 1.0
}

async fn shares_the_shards(node: &Node) -> bool {
    node.assignment().await.values().map(Vec::len).collect::<Vec<_>>() == [8, 8]
}

fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_for_etcd_changes_under_load_without_a_restart() {
    let own = OwnStack::start_secure("etcd-certificate").await;
    let secure = own.secure.clone().unwrap();
    let (first, second) = (Authority::new(), Authority::new());
    demand(&first, &own).await;
    let wishes = Wishes { has_etcd: false, ..Wishes::default() };
    let cluster = Cluster::at(&own.stack, "etcd-certificate", wishes).await;
    let identity = first.sign(|_params| {});
    let certificate = write(cluster.folder(), "etcd.pem", &identity.0);
    let key = write(cluster.folder(), "etcd-key.pem", &identity.1);
    let flags = ["--etcd", &own.stack.etcd, "--etcd-ca-file", &secure.ca];
    let files = [certificate.to_str().unwrap(), key.to_str().unwrap()];
    let files = ["--etcd-certificate-file", files[0], "--etcd-key-file", files[1]];
    let flags = [flags, files].concat();
    let nodes = tokio::join!(cluster.node_with(&flags), cluster.node_with(&flags));
    let nodes = [&nodes.0, &nodes.1];
    for node in nodes {
        eventually("they are in contact", DEADLINE, async || is_in_contact(node).await).await;
        eventually("they share the shards", DEADLINE, async || shares_the_shards(node).await).await;
    }
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let tasks: Vec<_> = (0..600)
        .map(|n| json!({ "topic": topic, "delay": n * 25, "payload_text": format!("task {n}") }))
        .collect();
    let ledger = Ledger::default();
    ledger.accept_all(&nodes[0].api().submit_all(&tasks).await, &tasks);

    // The authority of the certificate is withdrawn first.
    demand(&second, &own).await;
    for node in nodes {
        eventually("the node is refused and says so", DEADLINE, async || {
            !is_in_contact(node).await && node.log().contains("etcd: lost the session")
        })
        .await;
        eventually("it keeps its shards", DEADLINE, async || shares_the_shards(node).await).await;
    }
    let identity = second.sign(|_params| {});
    // Half of a pair fits nothing, and does no harm.
    std::fs::write(&certificate, &identity.0).unwrap();
    for node in nodes {
        eventually("the half is read", DEADLINE, async || {
            node.log().contains("read the changed credentials")
        })
        .await;
    }
    std::fs::write(&key, &identity.1).unwrap();
    for node in nodes {
        eventually("they are in contact", DEADLINE, async || is_in_contact(node).await).await;
        eventually("they share the shards", DEADLINE, async || shares_the_shards(node).await).await;
        assert!(!node.log().contains("PRIVATE KEY"), "{}", node.log_tail());
    }
    let settled = ledger.settle_up(&cluster, || consumer.records(), DEADLINE).await;
    assert_eq!(settled.published_count, 600);
}
