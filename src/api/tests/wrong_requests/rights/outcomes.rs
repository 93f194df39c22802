//! The outcomes of many tasks, of which some are not the caller's: each gets the same result as by
//! itself.

use serde_json::json;

use super::*;

fn unknown(n: usize) -> String {
    format!("01934b2e-7d3c-8017-9f2b-{n:012x}")
}

fn finish(id: &str) -> Value {
    json!({ "id": id, "outcome": "finish" })
}

fn outcomes(items: &[Value]) -> Request<Body> {
    post("/v1/outcomes", json!({ "outcomes": items }).to_string())
}

/// Returns the results without the fields, which have the places of the outcomes.
async fn results_of(response: Response) -> Vec<Value> {
    assert_eq!(response.status(), 200);
    let mut results = json_of(response).await["results"].as_array().unwrap().clone();
    for result in &mut results {
        if let Some(problem) = result.get_mut("problem").and_then(Value::as_object_mut) {
            problem.remove("field");
        }
    }
    results
}

#[tokio::test]
async fn many_outcomes_get_the_results_that_each_gets_alone_with_few_look_ups() {
    let world = World::new(&[Action::Finish], "tracked");
    let own = world.task("tracked", "n").await;
    let other = world.task("secret", "n").await;
    // The attempt is too high, so nothing changes.
    let fail = |id: &str| json!({ "id": id, "outcome": "fail", "attempt": 9 });
    let by_name =
        |topic: &str| json!({ "topic": topic, "name": "n", "outcome": "fail", "attempt": 9 });
    let mut items: Vec<Value> = (0..1_200).map(|n| finish(&unknown(n))).collect();
    for (place, item) in [
        (0, fail(&own)),
        (1, finish(&other)),
        (2, by_name("tracked")),
        (3, by_name("secret")),
        (4, json!({ "id": "x", "outcome": "finish" })),
        (600, fail(&own)),
        (601, fail(&other)),
        (1_199, fail(&own)),
    ] {
        items[place] = item;
    }
    let before = world.state().await;
    let called = world.model.topic_calls.load(Ordering::Relaxed);
    let results = results_of(world.ask(outcomes(&items)).await).await;
    // There are 1,197 ids, and 500 are looked up at a time.
    assert_eq!(world.model.topic_calls.load(Ordering::Relaxed) - called, 3);
    let statuses: Vec<u64> =
        results.iter().map(|result| result["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses[..6], [409, 404, 409, 403, 400, 404]);
    assert_eq!((statuses[600], statuses[601], statuses[1_199]), (409, 404, 409));
    assert_eq!(results[1], results[5], "a hidden task is an absent one");
    for place in [0, 1, 2, 3, 4, 5, 600, 601, 1_199] {
        let alone = results_of(world.ask(outcomes(&items[place..=place])).await).await;
        assert_eq!(alone, results[place..=place], "{place}");
    }
    assert_eq!(world.state().await, before);
}

#[tokio::test]
async fn a_caller_without_an_auth_file_needs_no_look_ups() {
    let world = World::new(&[Action::Finish], "tracked");
    let own = world.task("tracked", "n").await;
    let called = world.model.topic_calls.load(Ordering::Relaxed);
    let items = [finish(&own), finish(&unknown(1))];
    let results = results_of(world.all.ask(outcomes(&items)).await).await;
    assert_eq!((&results[0]["status"], &results[1]["status"]), (&json!(200), &json!(404)));
    assert_eq!(world.model.topic_calls.load(Ordering::Relaxed), called);
}
