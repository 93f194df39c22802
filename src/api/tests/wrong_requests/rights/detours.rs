//! Detours around the rights: other spellings of a path, dry runs, and the state of the node.

use super::*;

const SECRET: &str = "orders.secret";

/// Sends a GET, a PUT and a DELETE to a path, and returns each status with its answer.
async fn answers(world: &World, path: &str) -> Vec<(u16, String)> {
    let body = r#"{"delay":"1h","payload":1}"#;
    let mut answers = Vec::new();
    for request in [
        bare("GET", path),
        request("PUT", path, Some("application/json"), body),
        bare("DELETE", path),
    ] {
        let response = world.ask(request).await;
        answers.push((response.status().as_u16(), text_of(response).await));
    }
    answers
}

#[tokio::test]
async fn the_topic_that_is_checked_is_the_one_that_is_used_however_it_is_spelled() {
    let world = World::new(&Action::ON_TOPICS, "orders.open");
    world.task(SECRET, "n").await;
    world.task("orders.open", "n").await;
    let before = world.state().await;
    for (path, status) in [
        ("/v1/topics/orders.secret/tasks/n", 403),
        ("/v1/topics/orders%2Esecret/tasks/n", 403),
        ("/v1/topics/orders%2esecret/tasks/%6e", 403),
        ("/v1/topics/%6Frders.secret/tasks/n", 403),
        ("http://a/v1/topics/orders%2Esecret/tasks/n", 403),
        ("/v1/topics/orders%252Esecret/tasks/n", 400),
        ("/v1/topics/orders.secret;a=b/tasks/n", 400),
        ("/v1/topics/orders.secret%00/tasks/n", 400),
        ("/v1/topics/orders.open%2F..%2Forders.secret/tasks/n", 400),
        ("/v1/topics/orders.secret/tasks/n/", 404),
        ("/v1/topics/orders.secret//tasks/n", 404),
        ("/v1/topics//orders.secret/tasks/n", 404),
        ("/v1//topics/orders.secret/tasks/n", 404),
        ("//v1/topics/orders.secret/tasks/n", 404),
        ("/v1/./topics/orders.secret/tasks/n", 404),
        ("/V1/topics/orders.secret/tasks/n", 404),
    ] {
        for (given, text) in answers(&world, path).await {
            assert_eq!(given, status, "{path}: {text}");
            assert!(!text.contains(MARKER), "{path}: {text}");
            if status == 403 {
                let problem: Value = serde_json::from_str(&text).unwrap();
                assert_eq!(problem["topic"], SECRET, "{path}");
            }
        }
    }
    for (query, status) in [
        ("topic=orders%2Esecret", 403),
        ("topic=orders.open&topic=orders.secret", 400),
        ("topic=orders%252Esecret", 400),
        ("Topic=orders.open", 400),
    ] {
        for path in ["/v1/tasks", "/v1/dead", "/v1/tasks/counts"] {
            let response = world.ask(bare("GET", &format!("{path}?{query}"))).await;
            assert_eq!(response.status(), status, "{path}?{query}");
        }
    }
    assert_eq!(world.state().await, before);
    let found = world.ask(bare("GET", "/v1/topics/orders%2Eopen/tasks/%6E")).await;
    assert_eq!(found.status(), 200);
    assert_eq!(json_of(found).await["topic"], "orders.open");
}

#[tokio::test]
async fn many_tasks_are_cancelled_by_cancel_alone_and_counted_by_read_alone() {
    for (action, dry_status, status) in [(Action::Cancel, 403, 200), (Action::Read, 200, 403)] {
        let world = World::new(&[action], "open");
        world.task("open", "n").await;
        let call = |is_dry_run: bool| {
            post("/v1/tasks/cancel", format!(r#"{{"topic":"open","dry_run":{is_dry_run}}}"#))
        };
        let before = world.state().await;
        assert_eq!(world.ask(call(true)).await.status(), dry_status, "{action}");
        assert_eq!(world.state().await, before, "{action}");
        assert_eq!(world.ask(call(false)).await.status(), status, "{action}");
        assert_eq!(world.state().await == before, status != 200, "{action}");
    }
    // A move needs both rights, and its dry run the right to read.
    for (actions, dry_status, status) in [
        (&[Action::Cancel, Action::Submit][..], 403, 200),
        (&[Action::Read, Action::Cancel], 200, 403),
        (&[Action::Read, Action::Submit], 200, 403),
    ] {
        let world = World::new(actions, "open");
        world.task("open", "n").await;
        let call = |is_dry_run: bool| {
            let body = format!(
                r#"{{"topic":"open","names":["n"],"to":"2026-02-01T00:00:00Z",
                  "dry_run":{is_dry_run}}}"#
            );
            post("/v1/tasks/move", body)
        };
        let before = world.state().await;
        assert_eq!(world.ask(call(true)).await.status(), dry_status, "{actions:?}");
        assert_eq!(world.state().await, before, "{actions:?}");
        assert_eq!(world.ask(call(false)).await.status(), status, "{actions:?}");
        assert_eq!(world.state().await == before, status != 200, "{actions:?}");
    }
    for path in ["/v1/dead/redrive", "/v1/dead/drop"] {
        let world = World::new(&[Action::Read, Action::Cancel, Action::Submit], "dead");
        world.task("dead", "n").await;
        let dry = post(path, r#"{"topic":"dead","dry_run":true}"#);
        assert_eq!(world.ask(dry).await.status(), 200, "{path}");
        assert_eq!(world.ask(post(path, r#"{"topic":"dead"}"#)).await.status(), 403, "{path}");
    }
}

#[tokio::test]
async fn the_state_of_the_node_tells_no_topic_and_no_reason_to_those_who_do_not_operate() {
    let world = World::new(&Action::ON_TOPICS, "*");
    world.task(SECRET, "n").await;
    for path in ["/v1/cluster", "/metrics"] {
        assert_eq!(world.ask(bare("GET", path)).await.status(), 403, "{path}");
        assert_eq!(world.api.ask(bare("GET", path)).await.status(), 401, "{path}");
    }
    let metrics = text_of(world.all.ask(bare("GET", "/metrics")).await).await;
    assert!(!metrics.contains(SECRET), "{metrics}");
    world.model.is_draining.store(true, Ordering::Relaxed);
    for (api, has_reason) in [(&world.api, false), (&world.all, true)] {
        let response = api.ask(bare("GET", "/readyz")).await;
        assert_eq!(response.status(), 503);
        let text = text_of(response).await;
        assert_eq!(text.contains("\"why\""), has_reason, "{text}");
    }
}

#[tokio::test]
async fn a_pop_that_waits_ends_when_the_rights_change() {
    let rights = [Action::Pop, Action::ReadPayload];
    let world = World::new(&rights, "waiting");
    let pop = || post("/v1/topics/waiting/pop", r#"{"group":"g","wait":"20s"}"#);
    let reloading = async {
        tokio::task::yield_now().await;
        world.policy.replace(Policy::new(Vec::new(), HashMap::new(), None));
    };
    let waiting = async { tokio::join!(world.ask(pop()), reloading).0 };
    let ended = tokio::time::timeout(Duration::from_secs(10), waiting).await.unwrap();
    assert_eq!(ended.status(), 200);
    assert_eq!(text_of(ended).await, r#"{"tasks":[]}"#);
    assert_eq!(world.ask(pop()).await.status(), 401, "the next one has the new rights");
}
