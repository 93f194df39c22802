//! Schedules by the command line, by a file, and by the commands of their page.

use serde_json::json;

use super::DEADLINE;
use crate::support::Cluster;
use crate::support::node::program;

/// Returns the commands of a page that are in blocks of `sh`.
fn commands(page: &str) -> Vec<String> {
    let blocks = page.split("```sh\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_commands_of_the_page_work_as_they_stand() {
    let cluster = Cluster::start("schedule-page").await;
    let topic = cluster.topic("demo").await;
    let node = cluster.node().await;
    let page = include_str!("../../../docs/how-to/schedules.md");
    let mut count = 0;
    for lines in commands(page) {
        let lines = lines
            .replace("http://127.0.0.1:7070", node.api().base())
            .replace("/schedules/demo", &format!("/schedules/{topic}"))
            .replace("curl -s ", "curl -sS --fail-with-body ");
        let mut command = tokio::process::Command::new("bash");
        command.args(["-euo", "pipefail", "-c", &lines]).kill_on_drop(true);
        let output = tokio::time::timeout(DEADLINE, command.output()).await.unwrap().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && errors.is_empty(), "{lines}\n{said}\n{errors}");
        count += 1;
    }
    assert!(count >= 3, "{count} blocks");
    assert_eq!(cluster.count("select count(*) from schedule").await, 0, "the page deletes its own");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_line_sets_shows_and_deletes_a_schedule() {
    let cluster = Cluster::start("schedule-cli").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let file = cluster.folder().join("yearly.json");
    let schedule = json!({ "cron": "@yearly", "time_zone": "UTC", "payload": 1, "note": "ask" });
    std::fs::write(&file, schedule.to_string()).unwrap();
    let run = async |arguments: &[&str]| {
        let mut command = program(&["schedule"]);
        command.args(arguments).env("PUNCTUAL_URL", node.api().base());
        let output = tokio::time::timeout(DEADLINE, command.output()).await.unwrap().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        (output.status.code().unwrap(), said, String::from_utf8(output.stderr).unwrap())
    };
    let file = file.to_str().unwrap();
    let (code, said, errors) = run(&["set", &topic, "yearly", file, "--dry-run"]).await;
    assert!(code == 0 && said.contains("-01-01T00:00:00.000Z"), "{said}{errors}");
    assert_eq!(run(&["show", &topic, "yearly"]).await.0, 4, "a dry run stores nothing");
    assert_eq!(run(&["set", &topic, "yearly", file]).await.0, 0);
    let (code, said, errors) = run(&["list", &topic]).await;
    assert!(code == 0 && said.contains("@yearly (UTC)"), "{said}{errors}");
    let (code, said, errors) = run(&["next", &topic, "yearly", "--count", "3"]).await;
    assert!(code == 0 && said.lines().count() == 3, "{said}{errors}");
    let (code, said, errors) = run(&["pause", &topic, "yearly"]).await;
    assert!(code == 0 && said.contains("paused"), "{said}{errors}");
    assert_eq!(run(&["resume", &topic, "yearly"]).await.0, 0);
    let (code, said, errors) = run(&["trigger", &topic, "yearly"]).await;
    assert!(code == 0 && said.contains("submitted"), "{said}{errors}");
    assert_eq!(run(&["delete", &topic, "yearly"]).await.0, 0);
    assert_eq!(run(&["delete", &topic, "yearly"]).await.0, 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_of_schedules_is_applied_with_a_diff_and_others_are_pruned() {
    let cluster = Cluster::start("schedule-apply").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let file = cluster.folder().join("schedules.yaml");
    let run = async |text: &str, arguments: &[&str]| {
        std::fs::write(&file, text.replace("TOPIC", &topic)).unwrap();
        let mut command = program(&["schedule", "apply", "-f", file.to_str().unwrap()]);
        command.args(arguments).env("PUNCTUAL_URL", node.api().base());
        let output = tokio::time::timeout(DEADLINE, command.output()).await.unwrap().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        (output.status.code().unwrap(), said, String::from_utf8(output.stderr).unwrap())
    };
    let two = "schedules:
  - {topic: TOPIC, name: a, every: 1h, payload: 1}
  - topic: TOPIC
    name: b
    cron: '@yearly'
    time_zone: UTC
    payload: {x: 1}
";
    let (code, said, errors) = run(two, &["--dry-run"]).await;
    assert!(code == 0 && said.contains("2 created, 0 changed"), "{said}{errors}");
    assert_eq!(cluster.count("select count(*) from schedule").await, 0);
    let (code, said, errors) = run(two, &[]).await;
    assert!(code == 0 && said.contains(&format!("+ {topic}/a")), "{said}{errors}");
    let (_, said, _) = run(two, &["--prune"]).await;
    assert!(said.contains("0 created, 0 changed, 0 deleted, 2 unchanged"), "{said}");
    // A pause by hand stays.
    let pause = node.api().post(&format!("/v1/schedules/{topic}/a/pause"), "").await;
    assert_eq!(pause.status, 200);
    let one = "schedules: [{topic: TOPIC, name: a, every: 2h, payload: 1}]";
    let (code, said, errors) = run(one, &["--prune"]).await;
    for part in ["    every: \"1h\" -> \"2h\"", "1 changed, 1 deleted"] {
        assert!(code == 0 && said.contains(part), "{part}: {said}{errors}");
    }
    let a = node.api().look(&format!("/v1/schedules/{topic}/a")).await.json();
    assert_eq!((&a["paused"], &a["every"]), (&json!(true), &json!("2h")), "{a}");
    assert_eq!(cluster.count("select count(*) from schedule").await, 1);
    // One wrong schedule: nothing is changed.
    let wrong = "schedules: [{topic: TOPIC, name: a, every: 3h, payload: 1},
        {topic: TOPIC, name: c, every: 1ms, payload: 1}]";
    let (code, _, errors) = run(wrong, &[]).await;
    assert!(code == 1 && errors.contains(&format!("{topic}/c: ")), "{errors}");
    let a = node.api().look(&format!("/v1/schedules/{topic}/a")).await.json();
    assert_eq!(a["every"], "2h", "{a}");
}
