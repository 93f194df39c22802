//! Guesses of keys and payloads, by callers who may not see them.

use serde_json::json;

use super::*;

fn put(path: &str, payload: &str) -> Request<Body> {
    let body = json!({ "every": "1h", "key": "k", "payload": payload }).to_string();
    request("PUT", path, Some("application/json"), body)
}

#[tokio::test]
async fn a_dry_run_of_a_schedule_does_not_tell_whether_its_payload_was_guessed() {
    let (path, dry) = ("/v1/schedules/t/s", "/v1/schedules/t/s?dry_run=true");
    for (more, is_told) in [(&[][..], false), (&[Action::ReadPayload], true)] {
        let world = World::new(&[&[Action::Schedule, Action::Read], more].concat(), "t");
        assert_eq!(world.all.ask(put(path, "right")).await.status(), 201);
        let ask = async |guess| {
            let answer = world.ask(put(dry, guess)).await;
            let tag = header_of(&answer, "etag").map(ToOwned::to_owned);
            let mut json = json_of(answer).await;
            json.as_object_mut().unwrap().remove("payload");
            (tag, json)
        };
        let [right, wrong] = [ask("right").await, ask("wrong").await];
        assert_eq!(right != wrong, is_told, "{right:?} {wrong:?}");
    }
}
