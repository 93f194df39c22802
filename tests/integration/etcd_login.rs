//! An etcd with authentication.

use std::time::Duration;

use etcd_client::{Client, ConnectOptions, Permission};
use serde_json::json;

use crate::support::{Cluster, Ledger, Node, OwnStack, Wishes, eventually};

const DEADLINE: Duration = Duration::from_secs(90);
const PASSWORD: &str = "correct-horse";

/// From now on only `root`, and for the nodes' keys the user `punctual`, are served.
async fn enable_authentication(cluster: &Cluster) {
    let mut client = Client::connect([&cluster.stack.etcd], None).await.unwrap();
    for user in ["root", "punctual"] {
        client.user_add(user, PASSWORD, None).await.unwrap();
        client.role_add(user).await.unwrap();
        client.user_grant_role(user, user).await.unwrap();
    }
    let all_nodes = Permission::read_write(format!("{}/nodes/", cluster.name)).with_prefix();
    client.role_grant_permission("punctual", all_nodes).await.unwrap();
    client.auth_enable().await.unwrap();
}

/// Returns true when the node has a key in etcd and sees the keys of the others. The others may see
/// the key before etcd has answered the node.
async fn is_logged_in(node: &Node) -> bool {
    let api = node.api();
    api.metric("punctual_etcd_session_up").await == 1.0
        && api.metric("punctual_etcd_watch_up").await == 1.0
}

async fn shares_the_shards(node: &Node) -> bool {
    node.assignment().await.values().map(Vec::len).collect::<Vec<_>>() == [8, 8]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_log_in_to_etcd_and_one_with_a_wrong_password_says_so() {
    let own = OwnStack::start("etcd-login").await;
    let cluster =
        Cluster::at(&own.stack, "etcd-login", Wishes { has_etcd: false, ..Wishes::default() })
            .await;
    enable_authentication(&cluster).await;
    let of_user = |password| {
        ["--etcd", &own.stack.etcd, "--etcd-user", "punctual", "--etcd-password", password]
    };
    let known = of_user(PASSWORD);
    let (first, second) = tokio::join!(cluster.node_with(&known), cluster.node_with(&known));
    for node in [&first, &second] {
        eventually("they log in", DEADLINE, async || is_logged_in(node).await).await;
        eventually("they share the shards", DEADLINE, async || shares_the_shards(node).await).await;
        assert!(
            node.log().contains("others on the network can read the password for etcd"),
            "{}",
            node.log_tail()
        );
    }
    // Tasks for the other node's shards arrive, too.
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let tasks: Vec<_> = (0..100)
        .map(|n| json!({ "topic": topic, "delay": 100, "payload_text": format!("task {n}") }))
        .collect();
    let ledger = Ledger::default();
    ledger.accept_all(&first.api().submit_all(&tasks).await, &tasks);
    assert_eq!(
        ledger.settle_up(&cluster, || consumer.records(), DEADLINE).await.published_count,
        100
    );

    for arguments in [&of_user("wrong-horse")[..], &["--etcd", &own.stack.etcd]] {
        let mut stranger = cluster.spawn(arguments);
        stranger.wait_listening().await;
        eventually("it says what etcd says", DEADLINE, async || {
            let log = stranger.log();
            log.contains("authentication failed") || log.contains("user name is empty")
        })
        .await;
        eventually("it is not ready for that reason", DEADLINE, async || {
            stranger.api().get("/readyz").await.text.contains("no usable answer")
        })
        .await;
        assert!(!stranger.log().contains("-horse"), "{}", stranger.log_tail());
    }

    // An etcd that crashed does not know its earlier tokens any more.
    own.kill("etcd").await;
    eventually("the session is lost", DEADLINE, async || {
        first.api().metric("punctual_etcd_session_up").await == 0.0
    })
    .await;
    own.start_again("etcd").await;
    for node in [&first, &second] {
        eventually("they log in again", DEADLINE, async || is_logged_in(node).await).await;
        assert!(!node.log().contains("-horse"), "{}", node.log_tail());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_of_etcd_changes_under_load_without_a_restart() {
    let own = OwnStack::start("etcd-password").await;
    let wishes = Wishes { has_etcd: false, ..Wishes::default() };
    let cluster = Cluster::at(&own.stack, "etcd-password", wishes).await;
    enable_authentication(&cluster).await;
    let file = cluster.folder().join("etcd-password");
    std::fs::write(&file, PASSWORD).unwrap();
    let flags = ["--etcd", &own.stack.etcd, "--etcd-user", "punctual"];
    let flags = [&flags[..], &["--etcd-password-file", file.to_str().unwrap()]].concat();
    let (first, second) = tokio::join!(cluster.node_with(&flags), cluster.node_with(&flags));
    for node in [&first, &second] {
        eventually("they log in", DEADLINE, async || is_logged_in(node).await).await;
        eventually("they share the shards", DEADLINE, async || shares_the_shards(node).await).await;
    }
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let tasks: Vec<_> = (0..600)
        .map(|n| json!({ "topic": topic, "delay": n * 25, "payload_text": format!("task {n}") }))
        .collect();
    let ledger = Ledger::default();
    ledger.accept_all(&first.api().submit_all(&tasks).await, &tasks);

    let root = ConnectOptions::new().with_user("root", PASSWORD);
    let mut root = Client::connect([&own.stack.etcd], Some(root)).await.unwrap();
    root.user_change_password("punctual", "battery-staple").await.unwrap();
    std::fs::write(&file, "battery-staple").unwrap();
    for node in [&first, &second] {
        eventually("the new password is read", DEADLINE, async || {
            node.log().contains("read the changed credentials")
        })
        .await;
    }
    // A new etcd process knows no token: everybody logs in again.
    own.kill("etcd").await;
    for node in [&first, &second] {
        eventually("the session is lost", DEADLINE, async || {
            node.api().metric("punctual_etcd_session_up").await == 0.0
        })
        .await;
    }
    own.start_again("etcd").await;
    for node in [&first, &second] {
        eventually("they log in again", DEADLINE, async || is_logged_in(node).await).await;
        eventually("they share the shards", DEADLINE, async || shares_the_shards(node).await).await;
        let log = node.log();
        assert!(!log.contains("-horse") && !log.contains("-staple"), "{}", node.log_tail());
    }
    let settled = ledger.settle_up(&cluster, || consumer.records(), DEADLINE).await;
    assert_eq!(settled.published_count, 600);
}
