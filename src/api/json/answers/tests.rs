//! Tests of the JSON of tasks: what is shown, and that submitting it again gives the same bytes.

use proptest::prelude::*;

use super::*;
use crate::api::request::given_headers;
use crate::domain::{Dropped, Headers, Kept, PrincipalName, Shard, Submitted, TopicName};

fn view(payload: Option<&[u8]>) -> TaskView {
    let headers = Headers::new([("h", b"1".as_slice())]).unwrap().as_bytes().to_vec();
    TaskView {
        id: TaskId::new(Timestamp::from_millis(1_896_082_200_000), Shard::new(3), 7),
        topic: TopicName::new("orders").unwrap(),
        name: Some("order-17".to_owned()),
        state: TaskState::Published,
        replaced_by: None,
        attempt: 1,
        receipt: Some(Receipt {
            partition: 2,
            offset: 9,
            published_at: Timestamp::from_millis(1_896_082_200_003),
        }),
        kept: Some(Kept { key: Some(vec![0xff]), payload: payload.map(<[u8]>::to_vec), headers }),
        reason: None,
        died_at: None,
        moved_to: None,
        requested_due_at: None,
        expires_at: None,
        actors: Actors::default(),
        tracked: None,
    }
}

#[test]
fn who_did_what_is_answered_as_far_as_it_is_known() {
    let name = |name: &str| PrincipalName::new(name).unwrap();
    let at = Timestamp::from_millis(1_896_082_200_000);
    let shown = |actors| {
        let view = TaskView { actors, ..view(None) };
        serde_json::to_string(&TaskJson::of_view(&view, Shows::Metadata)).unwrap()
    };
    let known = Actors {
        submitted: Some(Submitted { by: name("ann"), at }),
        cancelled_by: Some(name("bob")),
        dropped: Some(Dropped { by: Some(name("carol")), at }),
    };
    let members = concat!(
        r#""submitted_by":"ann","submitted_at":"2030-01-31T09:30:00.000Z","cancelled_by":"bob","#,
        r#""dropped_by":"carol","dropped_at":"2030-01-31T09:30:00.000Z","redacted":true}"#
    );
    assert!(shown(known).ends_with(members));
    let anonymous = Actors { dropped: Some(Dropped { by: None, at }), ..Actors::default() };
    let json = shown(anonymous);
    assert!(json.ends_with(r#","dropped_at":"2030-01-31T09:30:00.000Z","redacted":true}"#));
    assert!(!json.contains("_by"), "{json}");
}

fn json(payload: Option<&[u8]>) -> String {
    serde_json::to_string(&TaskJson::of_view(&view(payload), Shows::All)).unwrap()
}

#[test]
fn a_task_is_answered_in_full() {
    let wanted = concat!(
        r#"{"id":"01b9774e-55c0-8003-8000-000000000007","topic":"orders","#,
        r#""name":"order-17","key_base64":"/w==","#,
        r#""due_at":"2030-01-31T09:30:00.000Z","state":"published","attempt":1,"#,
        r#""receipt":{"partition":2,"offset":9,"#,
        r#""published_at":"2030-01-31T09:30:00.003Z","lateness_ms":3},"#,
        r#""headers":{"h":"1"},"payload":{"a": 1.0}}"#
    );
    assert_eq!(json(Some(br#"{"a": 1.0}"#)), wanted);
}

#[test]
fn payloads_are_answered_so_that_submitting_them_again_gives_the_same_bytes() {
    for (payload, member) in [
        (b"null".as_slice(), r#""payload":null"#),
        (b"1 ", r#""payload_text":"1 ""#),
        (b"", r#""payload_text":"""#),
        (b"{", r#""payload_text":"{""#),
        (br#""\ud800""#, r#""payload_text":"\"\\ud800\"""#),
        (b"\xff", r#""payload_base64":"/w==""#),
    ] {
        assert!(json(Some(payload)).ends_with(&format!("{member}}}")), "{payload:?}");
    }
    assert!(json(None).ends_with(r#""tombstone":true}"#));
}

#[test]
fn metadata_are_all_but_key_headers_and_payload_and_say_so() {
    let (shown, tombstone) = (view(Some(b"marker")), view(None));
    for task in [&shown, &tombstone] {
        let json = serde_json::to_string(&TaskJson::of_view(task, Shows::Metadata)).unwrap();
        assert!(json.ends_with(r#""lateness_ms":3},"redacted":true}"#), "{json}");
        assert!(!json.contains("marker") && !json.contains("key"), "{json}");
    }
}

#[test]
fn the_words_of_a_consumer_are_shown_as_its_payload_is() {
    let reason = "attempt 2 of 2 failed: no stock for Ann; the dead topic d did not take it";
    let task = TaskView { reason: Some(reason.to_owned()), ..view(None) };
    for (shows, wanted) in [(Shows::All, reason), (Shows::Metadata, "attempt 2 of 2 failed")] {
        let json = serde_json::to_value(TaskJson::of_listed(&task, shows)).unwrap();
        assert_eq!(json["reason"], wanted);
    }
}

fn value() -> impl Strategy<Value = Option<Vec<u8>>> {
    proptest::option::of(prop_oneof![
        any::<Vec<u8>>(),
        any::<String>().prop_map(String::into_bytes)
    ])
}

proptest! {
    /// All values of one name stand together.
    #[test]
    fn what_is_written_is_read_back(
        names in proptest::collection::hash_map(
            "[a-z]{1,5}",
            proptest::collection::vec(value(), 1..4),
            0..6,
        ),
    ) {
        let given = names.iter().flat_map(|(name, values)| {
            values.iter().map(|value| (name.as_str(), value.as_deref()))
        });
        let headers = Headers::new(given).unwrap();
        let json = serde_json::to_string(&HeadersJson(headers.as_bytes())).unwrap();
        prop_assert_eq!(
            given_headers::read(Some(serde_json::from_str(&json).unwrap()), None).unwrap(),
            headers
        );
    }
}
