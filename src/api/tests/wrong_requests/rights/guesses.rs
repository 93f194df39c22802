//! Guesses of keys and payloads, by callers who may not see them.

use serde_json::json;

use super::*;
use crate::node::requests::service::model::NOW_MILLIS;

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

#[tokio::test]
async fn keys_are_not_guessed_by_a_caller_who_may_not_see_them() {
    let rights = [Action::Submit, Action::Cancel, Action::Read];
    let status_of = async |world: &World, request| {
        let status = world.ask(request).await.status().as_u16();
        (status, world.state().await)
    };
    let list = |more: &str| bare("GET", &format!("/v1/tasks?topic=t{more}"));
    let many = |path: &str, more: &str| post(path, format!(r#"{{"topic":"t"{more}}}"#));
    for key in [MARKER, "none"] {
        let world = World::new(&rights, "t");
        world.task("t", "n").await;
        let before = world.state().await;
        let (chosen, dry) = (format!(r#","key":"{key}""#), r#","dry_run":true"#);
        let due = format!(r#","to":{}"#, NOW_MILLIS + 3_600_000);
        for request in [
            list(&format!("&key={key}")),
            list("&key_base64=bm9uZQ=="),
            many("/v1/tasks/cancel", &format!("{chosen}{dry}")),
            many("/v1/tasks/move", &format!("{chosen}{due}{dry}")),
            many("/v1/tasks/move", &format!("{chosen}{due}")),
        ] {
            let what = format!("{} {}", request.method(), request.uri());
            assert_eq!(status_of(&world, request).await, (403, before.clone()), "{what}");
        }
        assert_eq!(status_of(&world, list("&names=n")).await.0, 200);
        // A cancel is no guess: it costs the tasks that it meets.
        assert_eq!(status_of(&world, many("/v1/tasks/cancel", &chosen)).await.0, 200);
        let all = World::new(&[&rights[..], &[Action::ReadPayload]].concat(), "t");
        for request in [
            list(&format!("&key={key}")),
            many("/v1/tasks/cancel", &format!("{chosen}{dry}")),
            many("/v1/tasks/move", &format!("{chosen}{due}")),
        ] {
            assert_eq!(status_of(&all, request).await.0, 200);
        }
    }
}
