//! The answers to correct requests.

mod moves;
mod tracked;

use super::*;

#[tokio::test]
async fn a_task_is_created_with_its_location_and_can_be_looked_up() {
    let api = api();
    let task = concat!(
        r#"{"topic":"orders","due_at":"2030-01-31T10:30:00.25+01:00","payload":{"a" : 1.0},"#,
        r#""key":"k","headers":{"h":"1"},"name":"order-17"}"#,
    );
    let response = api.ask(post("/v1/tasks", task)).await;
    assert_eq!(response.status(), StatusCode::CREATED);
    let location = header_of(&response, "location").unwrap().to_owned();
    let created = json_of(response).await;
    let id = created["id"].as_str().unwrap();
    assert_eq!(location, format!("/v1/tasks/{id}"));
    let wanted = format!(
        r#"{{"id":"{id}","topic":"orders","name":"order-17","key":"k","due_at":"2030-01-31T09:30:00.250Z","state":"scheduled","attempt":1}}"#
    );
    assert_eq!(created, serde_json::from_str::<Value>(&wanted).unwrap());
    let found = text_of(api.ask(bare("GET", &location)).await).await;
    assert_eq!(
        found,
        format!(
            r#"{},"headers":{{"h":"1"}},"payload":{{"a" : 1.0}}}}"#,
            wanted.trim_end_matches('}')
        )
    );
}

#[tokio::test]
async fn a_known_name_gets_the_first_task() {
    let api = api();
    let first =
        submit(&api, r#"{"topic":"t","delay":"1h","payload":1,"key":"k","name":"n"}"#).await;
    let response =
        api.ask(post("/v1/tasks", r#"{"topic":"t","delay":"2h","payload":2,"name":"n"}"#)).await;
    assert_eq!(response.status(), StatusCode::OK);
    let again = json_of(response).await;
    assert_eq!(
        (&again["id"], &again["due_at"], &again["key"], &again["payload"]),
        (&first["id"], &first["due_at"], &Value::from("k"), &Value::from(1))
    );
    let batch = r#"{"tasks":[{"topic":"t","delay":"2h","payload":2,"name":"n","key":"other"}]}"#;
    let result = json_of(api.ask(post("/v1/tasks/batch", batch)).await).await["results"][0].clone();
    assert_eq!(
        (&result["status"], &result["task"]["id"], &result["task"]["key"]),
        (&Value::from(200), &first["id"], &Value::Null)
    );
}

/// `PUT` by name.
async fn put(api: &Api, path: &str, task: &str) -> Response {
    api.ask(request("PUT", path, Some("application/json"), task.to_owned())).await
}

#[tokio::test]
async fn a_task_is_created_replaced_looked_up_and_cancelled_by_its_name() {
    let api = api();
    let path = "/v1/topics/orders/tasks/a%2Fb%20%C3%A4";
    let response = put(&api, path, r#"{"delay":"1h","payload":1,"key":"k"}"#).await;
    assert_eq!(response.status(), StatusCode::CREATED);
    let location = header_of(&response, "location").unwrap().to_owned();
    let first = json_of(response).await;
    assert_eq!(location, format!("/v1/tasks/{}", first["id"].as_str().unwrap()));
    assert_eq!(
        (&first["topic"], &first["name"], &first["key"]),
        (&"orders".into(), &"a/b ä".into(), &"k".into())
    );
    let response = put(&api, path, r#"{"delay":"2h","payload":2}"#).await;
    assert_eq!(response.status(), StatusCode::OK);
    let second = json_of(response).await;
    assert_ne!(second["id"], first["id"]);
    assert_eq!(
        json_of(api.ask(bare("GET", &location)).await).await["state"],
        Value::from("cancelled")
    );
    let found = json_of(api.ask(bare("GET", path)).await).await;
    assert_eq!(
        (&found["id"], &found["payload"], &found["state"]),
        (&second["id"], &Value::from(2), &"scheduled".into())
    );
    for _ in 0..2 {
        let cancelled = json_of(api.ask(bare("DELETE", path)).await).await;
        assert_eq!(
            (&cancelled["verdict"], &cancelled["task"]["id"]),
            (&"cancelled".into(), &second["id"])
        );
    }
    // A final task makes way.
    assert_eq!(
        put(&api, path, r#"{"delay":"3h","payload":3}"#).await.status(),
        StatusCode::CREATED
    );
}

#[tokio::test]
async fn a_replacement_that_is_too_late_shows_the_task_and_changes_nothing() {
    let api = api();
    let first = submit(&api, r#"{"topic":"claimed","delay":"1h","payload":1,"name":"n"}"#).await;
    let response = put(&api, "/v1/topics/claimed/tasks/n", r#"{"delay":"2h","payload":2}"#).await;
    assert_eq!(response.status(), StatusCode::CONFLICT);
    let problem = json_of(response).await;
    assert_eq!(
        (&problem["type"], &problem["verdict"]),
        (&"urn:punctual:problem:too-late".into(), &"too_late".into())
    );
    assert_eq!(
        (&problem["task"]["id"], &problem["task"]["payload"]),
        (&first["id"], &Value::from(1))
    );
}

#[tokio::test]
async fn a_replacement_whose_outcome_is_unknown_can_be_repeated() {
    let problem =
        json_of(put(&api(), "/v1/topics/lost/tasks/n", r#"{"delay":"2h","payload":2}"#).await)
            .await;
    assert!(problem["detail"].as_str().unwrap().contains("Repeating is safe"), "{problem}");
}

#[tokio::test]
async fn content_types_of_json_in_utf_8_are_taken() {
    let api = api();
    for content_type in [
        "application/json",
        "Application/JSON; charset=UTF-8",
        "application/json;charset=\"utf-8\"",
    ] {
        let request = request(
            "POST",
            "/v1/tasks",
            Some(content_type),
            r#"{"topic":"t","delay":0,"payload":null}"#,
        );
        assert_eq!(api.ask(request).await.status(), StatusCode::CREATED, "{content_type}");
    }
}

#[tokio::test]
async fn a_batch_is_answered_in_order() {
    let api = api();
    let tasks: Vec<String> = (0..1000)
        .map(|number| {
            format!(r#"{{"topic":"t{}","delay":0,"payload":1,"key":"{number}"}}"#, number % 3)
        })
        .collect();
    let answer = json_of(
        api.ask(post("/v1/tasks/batch", format!(r#"{{"tasks":[{}]}}"#, tasks.join(",")))).await,
    )
    .await;
    let results = answer["results"].as_array().unwrap();
    assert_eq!(results.len(), 1000);
    for (number, result) in results.iter().enumerate() {
        assert_eq!(
            (&result["status"], &result["task"]["key"]),
            (&Value::from(201), &Value::from(number.to_string()))
        );
        assert_eq!(result["task"]["topic"], Value::from(format!("t{}", number % 3)));
    }
    let empty = api.ask(post("/v1/tasks/batch", r#"{"tasks":[]}"#)).await;
    assert_eq!(text_of(empty).await, r#"{"results":[]}"#);
}

#[tokio::test]
async fn a_cancel_has_its_verdict_also_when_repeated() {
    let api = api();
    let task = submit(&api, r#"{"topic":"t","delay":"1h","payload":1}"#).await;
    let path = format!("/v1/tasks/{}", task["id"].as_str().unwrap());
    for _ in 0..2 {
        let response = api.ask(bare("DELETE", &path)).await;
        assert_eq!(response.status(), StatusCode::OK);
        let answer = json_of(response).await;
        assert_eq!(
            (&answer["verdict"], &answer["task"]["state"]),
            (&Value::from("cancelled"), &Value::from("cancelled"))
        );
    }
}

#[tokio::test]
async fn a_cancel_that_is_too_late_carries_the_receipt() {
    let api = api();
    let task = submit(&api, r#"{"topic":"published","delay":"1h","payload":1}"#).await;
    let response =
        api.ask(bare("DELETE", &format!("/v1/tasks/{}", task["id"].as_str().unwrap()))).await;
    assert_eq!(response.status(), StatusCode::CONFLICT);
    let problem = json_of(response).await;
    assert_eq!(
        (&problem["verdict"], &problem["task"]["receipt"]["lateness_ms"]),
        (&Value::from("too_late"), &Value::from(3))
    );
}

#[tokio::test]
async fn a_cancel_of_nothing_says_so() {
    for id in ["17", "01b977ea-f4c0-8003-8000-000000000007"] {
        let problem = json_of(api().ask(bare("DELETE", &format!("/v1/tasks/{id}"))).await).await;
        assert_eq!(problem["verdict"], Value::from("not_found"));
    }
}

#[tokio::test]
async fn what_is_unknown_says_how_to_repeat_it() {
    let problem =
        json_of(api().ask(post("/v1/tasks", r#"{"topic":"lost","delay":0,"payload":1}"#)).await)
            .await;
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("may be stored") && detail.contains("with a name"), "{detail}");
}

#[tokio::test]
async fn the_cluster_is_shown() {
    let cluster = json_of(api().ask(bare("GET", "/v1/cluster")).await).await;
    assert_eq!(cluster["now"], Value::from("2026-01-01T00:00:00.000Z"));
    assert_eq!(
        (&cluster["window_ms"], &cluster["nodes"][0]["heartbeat_age_ms"]),
        (&Value::from(200), &Value::from(250))
    );
    assert_eq!(
        (&cluster["nodes"][0]["shards"], &cluster["missing"]),
        (&serde_json::json!([0, 1, 2, 3]), &serde_json::json!([]))
    );
}

#[tokio::test]
async fn readiness_says_what_is_missing() {
    assert_eq!(api().ask(bare("GET", "/readyz")).await.status(), StatusCode::OK);
    let problem = json_of(draining_api().ask(bare("GET", "/readyz")).await).await;
    assert_eq!(problem["missing"][0]["what"], Value::from("draining"));
}

#[tokio::test]
async fn requests_are_counted_by_route_method_and_status() {
    let api = api();
    submit(&api, r#"{"topic":"t","delay":0,"payload":1}"#).await;
    api.ask(bare("GET", "/v1/tasks/17")).await;
    api.ask(bare("BREW", "/secret-name")).await;
    let response = api.ask(bare("GET", "/metrics")).await;
    assert_eq!(
        header_of(&response, "content-type"),
        Some("application/openmetrics-text; version=1.0.0; charset=utf-8")
    );
    let text = text_of(response).await;
    for line in [
        r#"punctual_api_requests_total{route="/v1/tasks",method="POST",status="201"} 1"#,
        r#"punctual_api_requests_total{route="/v1/tasks/{id}",method="GET",status="404"} 1"#,
        r#"punctual_api_requests_total{route="none",method="other",status="404"} 1"#,
        r#"punctual_api_request_duration_seconds_count{route="/v1/tasks"} 1"#,
        "punctual_api_requests_in_flight 1",
        "punctual_api_body_memory_bytes 0",
    ] {
        assert!(text.contains(line), "{line} in\n{text}");
    }
}

#[tokio::test]
async fn a_list_is_read_page_by_page_and_its_cursor_is_good_for_its_filters_alone() {
    let api = api();
    let mut ids = Vec::new();
    for (topic, delay) in [("a", "3h"), ("a", "1h"), ("b", "2h"), ("a", "2h"), ("published", "1h")]
    {
        let task = submit(
            &api,
            &format!(
                r#"{{"topic":"{topic}","delay":"{delay}","payload":1,"key":"k",
                "headers":{{"h":"1"}}}}"#
            ),
        )
        .await;
        ids.push(task["id"].clone());
    }
    let first = json_of(api.ask(bare("GET", "/v1/tasks?topic=a&limit=2")).await).await;
    assert_eq!((&first["tasks"][0]["id"], &first["tasks"][1]["id"]), (&ids[1], &ids[3]));
    let task = &first["tasks"][0];
    assert_eq!((&task["key"], &task["state"]), (&"k".into(), &"scheduled".into()));
    assert!(
        ["payload", "headers", "tombstone"].iter().all(|field| task.get(field).is_none()),
        "a list shows no payload: {task}"
    );
    let cursor = first["cursor"].as_str().unwrap();
    let second =
        json_of(api.ask(bare("GET", &format!("/v1/tasks?topic=a&limit=2&cursor={cursor}"))).await)
            .await;
    assert_eq!(
        (second["tasks"].as_array().unwrap().len(), &second["tasks"][0]["id"]),
        (1, &ids[0])
    );
    assert_eq!(second["cursor"], Value::Null);
    for others in ["topic=b", "limit=2", "topic=a&due_to=2030-01-01T00:00:00Z"] {
        let response = api.ask(bare("GET", &format!("/v1/tasks?{others}&cursor={cursor}"))).await;
        assert_eq!(response.status(), StatusCode::BAD_REQUEST, "{others}");
    }
    assert_eq!(
        api.ask(bare("GET", &format!("/v1/dead?topic=a&cursor={cursor}"))).await.status(),
        StatusCode::BAD_REQUEST
    );
}

#[tokio::test]
async fn counts_say_whether_they_are_exact() {
    let api = api();
    for (topic, delay) in [("a", "30s"), ("a", "90s"), ("b", "2h")] {
        submit(&api, &format!(r#"{{"topic":"{topic}","delay":"{delay}","payload":1}}"#)).await;
    }
    let counts = json_of(api.ask(bare("GET", "/v1/tasks/counts")).await).await;
    assert_eq!(counts["pending"], serde_json::json!({"count": 3, "exact": true}));
    assert_eq!(
        counts["topics"],
        serde_json::json!([
            {"topic": "a", "count": 2, "exact": true},
            {"topic": "b", "count": 1, "exact": true},
        ])
    );
    let minutes = counts["minutes"].as_array().unwrap();
    assert_eq!(
        (minutes.len(), &minutes[0]),
        (120, &serde_json::json!({"from": "2026-01-01T00:00:00.000Z", "count": 1, "exact": true}))
    );
    let days = counts["days"].as_array().unwrap();
    assert_eq!((days.len(), &days[0]["count"], &days[1]["count"]), (30, &3.into(), &0.into()));
    assert_eq!((&minutes[1]["count"], &counts["more_topics"]), (&1.into(), &false.into()));
    assert_eq!(
        json_of(api.ask(bare("GET", "/v1/tasks/counts?topic=b")).await).await["pending"]["count"],
        Value::from(1)
    );
}

/// The answer to a bulk change after which nothing is left.
fn done(member: &str, count: u64, dry_run: bool) -> Value {
    let known = (count == 0).then_some(true);
    serde_json::json!({
        member: count,
        "more": false,
        "dry_run": dry_run,
        "searched_to": null,
        "cursor": null,
        "topic_known": known,
    })
}

#[tokio::test]
async fn a_dead_letter_is_listed_redriven_and_dropped() {
    let api = api();
    let first = submit(&api, r#"{"topic":"dead","delay":0,"payload":1}"#).await["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let second = submit(&api, r#"{"topic":"dead","delay":1,"payload":1}"#).await["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let listed = json_of(api.ask(bare("GET", "/v1/dead")).await).await;
    assert_eq!(
        (&listed["tasks"][0]["id"], &listed["tasks"][1]["id"]),
        (&first.clone().into(), &second.clone().into())
    );
    assert_eq!(
        (&listed["tasks"][0]["reason"], &listed["tasks"][0]["died_at"]),
        (&"tried".into(), &"2026-01-01T00:00:00.000Z".into())
    );
    let redriven = json_of(api.ask(bare("POST", &format!("/v1/dead/{first}/redrive"))).await).await;
    assert_eq!((&redriven["state"], &redriven["attempt"]), (&"scheduled".into(), &2.into()));
    assert_eq!(redriven.get("died_at"), None);
    let dry = post("/v1/dead/redrive", r#"{"topic":"dead","dry_run":true}"#);
    assert_eq!(json_of(api.ask(dry).await).await, done("redriven", 1, true));
    let dropped = json_of(api.ask(bare("DELETE", &format!("/v1/dead/{second}"))).await).await;
    assert_eq!((&dropped["state"], &dropped["id"]), (&"dead".into(), &second.clone().into()));
    assert_eq!(
        api.ask(bare("DELETE", &format!("/v1/dead/{second}"))).await.status(),
        StatusCode::NOT_FOUND
    );
    assert_eq!(
        json_of(api.ask(bare("GET", "/v1/dead")).await).await,
        serde_json::json!({"tasks": [], "cursor": null, "topic_known": null})
    );
    for delay in 0..3 {
        submit(&api, &format!(r#"{{"topic":"dead","delay":{delay},"payload":1}}"#)).await;
    }
    for (dry_run, dropped) in [(true, 3), (false, 3), (false, 0)] {
        let answer = api
            .ask(post(
                "/v1/dead/drop",
                format!(r#"{{"topic":"dead","dry_run":{dry_run},"cursor":null}}"#),
            ))
            .await;
        assert_eq!(json_of(answer).await, done("dropped", dropped, dry_run));
    }
}

#[tokio::test]
async fn many_tasks_are_cancelled_by_topic_and_due_time() {
    let api = api();
    for (topic, delay) in [("a", "1h"), ("a", "2h"), ("a", "3h"), ("b", "2h")] {
        submit(&api, &format!(r#"{{"topic":"{topic}","delay":"{delay}","payload":1}}"#)).await;
    }
    let body = |dry_run: bool| {
        format!(
            r#"{{"topic":"a","due_from":"2026-01-01T01:00:00Z","due_to":"2026-01-01T03:00:00Z",
              "dry_run":{dry_run}}}"#
        )
    };
    for (dry_run, cancelled) in [(true, 2), (false, 2), (false, 0)] {
        let answer = json_of(api.ask(post("/v1/tasks/cancel", body(dry_run))).await).await;
        assert_eq!(answer, done("cancelled", cancelled, dry_run));
    }
}

#[tokio::test]
async fn an_answer_that_finds_nothing_says_whether_its_topic_is_known() {
    let api = api();
    submit(&api, r#"{"topic":"a","delay":"1h","payload":1}"#).await;
    for (topic, known) in
        [("no-such-topic", Value::from(false)), ("b", Value::from(true)), ("unseen", Value::Null)]
    {
        for path in ["/v1/tasks", "/v1/tasks/counts", "/v1/dead"] {
            let answer =
                json_of(api.ask(bare("GET", &format!("{path}?topic={topic}"))).await).await;
            assert_eq!(answer.get("topic_known"), Some(&known), "{path} {topic}");
        }
        for path in ["/v1/tasks/cancel", "/v1/dead/redrive", "/v1/dead/drop"] {
            let answer = json_of(
                api.ask(post(
                    path,
                    format!(r#"{{"topic":"{topic}","due_to":"2030-01-01T00:00:00Z"}}"#),
                ))
                .await,
            )
            .await;
            assert_eq!(answer.get("topic_known"), Some(&known), "{path} {topic}");
        }
    }
    for path in ["/v1/tasks?topic=a", "/v1/tasks/counts?topic=a", "/v1/dead"] {
        let answer = json_of(api.ask(bare("GET", path)).await).await;
        assert_eq!(answer.get("topic_known"), Some(&Value::Null), "{path}");
    }
}

#[tokio::test]
async fn a_topic_that_kafka_lacks_is_changed_only_if_it_has_tasks() {
    let api = api();
    submit(&api, r#"{"topic":"gone","delay":"1h","payload":1}"#).await;
    for (topic, changed, popped) in [
        ("no-such-topic", 422, 404),
        ("unsearched", 422, 404),
        ("gone", 200, 404),
        ("unseen", 200, 200),
    ] {
        let path = |rest: &str| format!("/v1/topics/{topic}/{rest}");
        let callback = r#"{"url":"https://jobs.example.com/"}"#;
        let statuses = [
            put(&api, &path("policy"), r#"{"delay_max":"1h"}"#).await,
            put(&api, &path("callback"), callback).await,
            api.ask(bare("POST", &path("pause"))).await,
            api.ask(post(&path("pop"), r#"{"group":"g","wait":"0s"}"#)).await,
        ]
        .map(|answer| answer.status().as_u16());
        assert_eq!(statuses, [changed, changed, changed, popped], "{topic}");
    }
    // A submit asks Kafka alone.
    for dead_topic in ["no-such-topic", "unsearched", "gone"] {
        let policy = format!(r#"{{"ttr":"1m","retry":{{"dead_topic":"{dead_topic}"}}}}"#);
        let refused = put(&api, "/v1/topics/orders/policy", &policy).await;
        assert_eq!(refused.status(), StatusCode::UNPROCESSABLE_ENTITY, "{dead_topic}");
        assert_eq!(json_of(refused).await["field"], "retry.dead_topic");
    }
}

#[tokio::test]
async fn a_misspelt_topic_is_not_resumed_and_a_deleted_one_is() {
    let api = api();
    let resume = async |topic: &str| {
        let path = format!("/v1/topics/{topic}");
        [
            api.ask(bare("POST", &format!("{path}/resume"))).await,
            api.ask(bare("DELETE", &format!("{path}/policy"))).await,
            put(&api, &format!("{path}/policy"), "{}").await,
        ]
        .map(|answer| answer.status().as_u16())
    };
    for (topic, status) in [
        ("no-such-topic", 404),
        ("unsearched", 404),
        ("gone", 404),
        ("orders", 200),
        ("unseen", 200),
    ] {
        assert_eq!(resume(topic).await, [status; 3], "{topic}");
    }
    submit(&api, r#"{"topic":"gone","delay":"1h","payload":1}"#).await;
    let paused = api.ask(bare("POST", "/v1/topics/gone/pause")).await;
    assert_eq!(paused.status(), StatusCode::OK);
    for _repeat in 0..2 {
        assert_eq!(resume("gone").await, [200; 3]);
    }
}
