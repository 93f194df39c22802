//! Commands that list and show: pending tasks and dead letters, with the changes to many of them,
//! and the cluster.

use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use super::{punctual, text};
use crate::support::node::program;
use crate::support::{Cluster, now_ms};

#[tokio::test(flavor = "multi_thread")]
async fn what_is_pending_and_what_has_died_is_listed_and_dealt_with() {
    let cluster = Cluster::start("many").await;
    let node = cluster.node().await;
    let topic = cluster.topic("t").await;
    let due_at = now_ms() + 3_600_000;
    let all: Vec<Value> = (0..2_500)
        .map(|n| {
            json!({
                "topic": topic,
                "due_at": due_at + n,
                "payload": n,
                "name": format!("n{n}"),
            })
        })
        .collect();
    node.api().submit_all(&all).await;
    let run = async |words: &[&str]| {
        let output = punctual(node.api().base(), words).await;
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(0), "{words:?}: {err}");
        (out, err)
    };
    let names = |out: &str| -> Vec<String> {
        let name = |line: &str| {
            serde_json::from_str::<Value>(line).unwrap()["name"].as_str().unwrap().to_owned()
        };
        out.lines().map(name).collect()
    };

    // Several requests, in order of due time. The cursor of a list continues the list.
    let expected: Vec<String> = (0..2_500).map(|n| format!("n{n}")).collect();
    let (out, err) = run(&["list", "--topic", &topic, "--all", "--json"]).await;
    assert_eq!((names(&out), err.as_str()), (expected.clone(), ""));
    let (out, err) = run(&["list", "--topic", &topic, "--limit", "1200", "-o", "json"]).await;
    let cursor: Value = serde_json::from_str(&err).unwrap();
    let cursor = cursor["cursor"].as_str().unwrap();
    let (rest, _) = run(&["list", "--topic", &topic, "--all", "--json", "--cursor", cursor]).await;
    assert_eq!([names(&out), names(&rest)].concat(), expected);
    let (out, err) = run(&["list", "--limit", "2"]).await;
    assert!(
        out.lines().count() == 3 && err.contains("2 tasks, and there are more: "),
        "{out}{err}"
    );
    assert!(run(&["list", "--counts"]).await.0.contains(" 2,500\n"));

    // By due time: the start is included, the end is not.
    let (from, to) = ((due_at + 10).to_string(), (due_at + 20).to_string());
    let range = ["cancel", "--topic", &topic, "--due-from", &from, "--due-to", &to];
    assert_eq!(
        run(&[&range[..], &["--dry-run"]].concat()).await.0,
        "10 tasks would be cancelled; nothing was done\n"
    );
    assert_eq!(run(&[&range[..], &["--yes"]].concat()).await.0, "10 tasks cancelled\n");
    let (out, _) = run(&["cancel", "--topic", &topic, "--yes", "--json"]).await;
    assert_eq!(serde_json::from_str::<Value>(&out).unwrap()["cancelled"], 2_490);
    assert_eq!(run(&["list"]).await, (String::new(), "0 tasks\n".to_owned()));

    // Dead letters as a settle writes them.
    let ids: Vec<String> =
        (1..=5).map(|n| format!("01a1fe6e-c1f{n}-8001-80ed-000000000001")).collect();
    for id in &ids {
        sqlx::query(
            "insert into dead_letter (id, row_id, topic, payload, attempts, reason) values ($1, \
             $1, $2, '1', 3, 'tried')",
        )
        .bind(id.parse::<uuid::Uuid>().unwrap())
        .bind(&topic)
        .execute(&cluster.sql)
        .await
        .unwrap();
    }
    let (out, err) = run(&["dead", "list", "--topic", &topic]).await;
    assert!(
        ids.iter().all(|id| out.contains(id)) && out.contains("tried") && err == "5 dead letters\n",
        "{out}{err}"
    );
    assert!(
        run(&["dead", "redrive", &ids[0]])
            .await
            .0
            .starts_with(&format!("{}  redriven, scheduled, ", ids[0]))
    );
    assert_eq!(run(&["dead", "drop", &ids[1]]).await.0, format!("{}  dropped\n", ids[1]));
    let from_the_fourth = 0x01a1_fe6e_c1f4_i64.to_string();
    let drop = ["dead", "drop", "--topic", &topic, "--due-from", &from_the_fourth];
    assert_eq!(
        run(&[&drop[..], &["--dry-run"]].concat()).await.0,
        "2 dead letters would be dropped; nothing was done\n"
    );
    assert_eq!(run(&[&drop[..], &["--yes"]].concat()).await.0, "2 dead letters dropped\n");
    let redrive = ["dead", "redrive", "--topic", &topic];
    assert_eq!(
        run(&[&redrive[..], &["--dry-run"]].concat()).await.0,
        "1 dead letter would be redriven; nothing was done\n"
    );
    for unconfirmed in [&redrive, &["dead", "drop", "--topic", &topic]] {
        let refused = punctual(node.api().base(), unconfirmed).await;
        assert_eq!(refused.status.code(), Some(2), "{unconfirmed:?}");
        assert!(
            text(&refused.stderr)
                .contains("nothing was done\nadd --dry-run to count, or --yes to do it")
        );
    }
    assert_eq!(run(&[&redrive[..], &["--yes"]].concat()).await.0, "1 dead letter redriven\n");
    assert_eq!(run(&["dead", "list"]).await.0, "");
    let missing = punctual(node.api().base(), &["dead", "drop", &ids[1]]).await;
    assert_eq!(missing.status.code(), Some(4));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cluster_is_shown_through_a_profile_once_and_again_and_again() {
    let cluster = Cluster::start("cluster-command").await;
    let mut node = cluster.node().await;
    let file = cluster.folder().join("profiles.toml");
    let profiles = format!("[profiles.here]\nurl = \"{}\"\n", node.api().base());
    std::fs::write(&file, profiles).unwrap();
    let file = file.to_str().unwrap();
    let run = async |words: &[&str]| {
        let output = program(words).args(["--profiles-file", file]).output().await.unwrap();
        assert_eq!(output.status.code(), Some(0), "{words:?}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    let status = run(&["cluster", "status", "--profile", "here"]).await;
    for line in ["ready        yes", "nodes        1 assigned", "shards       16 of 16 owned"] {
        assert!(status.lines().any(|found| found == line), "{line}: {status}");
    }
    assert_eq!(run(&["profile", "use", "here"]).await, format!("here  {}\n", node.api().base()));
    let nodes = run(&["cluster", "nodes"]).await;
    assert!(nodes.starts_with("NAME") && nodes.contains(node.api().base()), "{nodes}");
    let json: Value = serde_json::from_str(&run(&["cluster", "status", "--json"]).await).unwrap();
    assert_eq!(json["shard_count"], 16);
    let listed: Value = serde_json::from_str(&run(&["profile", "list", "-ojson"]).await).unwrap();
    assert_eq!(listed["default"], "here");

    // A node that goes away does not end the watch.
    let mut watch = program(&["cluster", "status", "--watch=100ms", "--json"])
        .args(["--profiles-file", file])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut looks = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut errors = BufReader::new(watch.stderr.take().unwrap()).lines();
    for _look in 0..2 {
        let look: Value = serde_json::from_str(&looks.next_line().await.unwrap().unwrap()).unwrap();
        assert_eq!(look["missing"], json!([]));
    }
    node.kill().await;
    for _look in 0..2 {
        let error = errors.next_line().await.unwrap().unwrap();
        assert!(error.contains("cannot reach") || error.contains("broke off"), "{error}");
    }
    drop(looks);
    assert!(watch.try_wait().unwrap().is_none(), "the watch goes on");
}
