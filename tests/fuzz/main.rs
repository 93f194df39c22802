//! Fuzzes all code that turns bytes from outside into values. The code must answer or refuse,
//! and never panic, for every input. There is one function for each decoder.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a test ends where something is not as it should be, and reads this machine's clock \
              and settings itself"
)]

mod extremes;
mod harness;

use std::collections::HashMap;
use std::ffi::OsString;

use harness::fuzz;
use punctual::api::json::times;
use punctual::api::request::draft::DraftReader;
use punctual::client::answer::NodeAnswer;
use punctual::client::lines::line::Naming;
use punctual::client::task::Task;
use punctual::domain::task::headers;
use punctual::domain::{
    BatchId, Cursor, Headers, List, NodeId, Selection, TaskId, TaskName, Timestamp, TopicName,
};
use punctual::etcd::Member;
use punctual::node::messages::Due;
use punctual::postgres::connection::arrays::Elements;
use punctual::postgres::tasks::claim::batch_of;
use punctual::sealing::KeySet;
use serde_json::value::RawValue;

/// The last due time that may be accepted: in the year 9999.
const DUE_AT_MAX: i64 = 253_402_300_800_000;
const YEAR_2100: Timestamp = Timestamp::from_micros(4_102_444_800_000_000);

#[test]
fn the_json_of_a_task_is_read_or_refused() {
    fuzz("draft", |input| {
        let text = String::from_utf8_lossy(input);
        let named = DraftReader::default().read_named(
            &text,
            TopicName::new("t").unwrap(),
            TaskName::new("n").unwrap(),
        );
        for (draft, _) in [DraftReader::default().read(&text), named].into_iter().flatten() {
            if let Due::At(at) = draft.due {
                assert!((0..DUE_AT_MAX).contains(&at.as_millis()), "{at:?}");
            }
            assert!(
                draft.record.payload.is_some() || draft.record.key.is_some(),
                "a tombstone has a key"
            );
            assert!(
                draft
                    .name
                    .is_none_or(|name| !name.as_str().contains('\0') && name.as_str().len() <= 255)
            );
            assert!(
                headers::decode(draft.record.headers.as_bytes())
                    .all(|(name, _)| !name.to_lowercase().starts_with("punctual-"))
            );
        }
    });
}

#[test]
fn a_due_time_is_read_as_it_is_meant_and_never_earlier() {
    fuzz("due_at", |input| {
        let text = String::from_utf8_lossy(input).into_owned();
        let written = serde_json::to_string(&text).unwrap();
        for json in [Some(written), Some(text.clone())].into_iter().flatten() {
            let Ok(raw) = RawValue::from_string(json) else { continue };
            let Ok(at) = times::due_at(&raw) else { continue };
            assert!((0..DUE_AT_MAX).contains(&at.as_millis()), "{at:?}");
            if let Ok(meant) = text.parse::<jiff::Timestamp>() {
                let late = i128::from(at.as_micros()) * 1_000 - meant.as_nanosecond();
                // Times are rounded up to the next whole millisecond, and a leap second becomes the
                // second after it.
                assert!(
                    (0..1_001_000_000).contains(&late),
                    "{text}: {at:?} is {late} ns after what was written"
                );
            }
        }
    });
}

#[test]
fn a_delay_is_read_or_refused_and_bounded() {
    fuzz("delay", |input| {
        let text = String::from_utf8_lossy(input).into_owned();
        for json in [serde_json::to_string(&text).unwrap(), text] {
            let Ok(raw) = RawValue::from_string(json) else { continue };
            if let Ok(delay) = times::delay(&raw) {
                assert!(delay.as_secs() <= 1000 * 366 * 86_400, "{delay:?}");
                assert!(
                    YEAR_2100.plus(delay) < Timestamp::MAX,
                    "{delay:?} from now does not fit into an id"
                );
            }
        }
    });
}

#[test]
fn an_id_has_one_spelling() {
    fuzz("id", |input| {
        let text = String::from_utf8_lossy(input);
        if let Ok(id) = text.parse::<TaskId>() {
            assert_eq!(id.to_string(), text.to_lowercase());
            assert!(id.due_at() <= Timestamp::MAX && id.shard().number() < 4096);
            assert_eq!(text.parse::<NodeId>().map(NodeId::uuid), Ok(id.uuid()));
        }
    });
}

#[test]
fn a_cursor_is_one_that_was_given_or_none() {
    let selection = Selection { topic: TopicName::new("orders").ok(), ..Selection::default() };
    fuzz("cursor", |input| {
        for list in [List::Tasks, List::DeadLetters] {
            let Some(cursor) = Cursor::of_bytes(input, list, &selection) else { continue };
            assert_eq!(cursor.to_bytes(list, &selection), input);
        }
    });
}

#[test]
fn names_and_topics_are_valid_or_refused() {
    fuzz("name_and_topic", |input| {
        let text = String::from_utf8_lossy(input);
        if let Ok(name) = TaskName::new(&text) {
            assert!((1..=255).contains(&name.as_str().len()) && !name.as_str().contains('\0'));
        }
        if let Ok(topic) = TopicName::new(&text) {
            let is_plain =
                |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
            assert!(
                (1..=249).contains(&topic.as_str().len()) && topic.as_str().bytes().all(is_plain)
            );
        }
    });
}

#[test]
fn stored_headers_are_read_as_far_as_they_are_whole() {
    fuzz("headers", |input| {
        let read: Vec<(&str, Option<&[u8]>)> = headers::decode(input).collect();
        if let Ok(again) = Headers::new(read.iter().copied()) {
            assert!(input.starts_with(again.as_bytes()), "what was read is what was written");
        }
    });
}

#[test]
fn an_array_of_postgres_is_read_within_its_bytes() {
    fuzz("arrays", |input| {
        let Some(elements) = Elements::new(input) else { return };
        assert!(elements.count_max() <= input.len());
        let read: Vec<Option<&[u8]>> = elements.take(BYTES_MANY).collect();
        assert!(
            read.iter().flatten().map(|element| element.len() + 4).sum::<usize>() <= input.len()
        );
    });
}

const BYTES_MANY: usize = 10_000;

/// Splits the input into ten arrays, each preceded by its length of two bytes. A length of 0xffff
/// is NULL.
fn arrays_of(mut input: &[u8]) -> [Option<&[u8]>; 10] {
    [(); 10].map(|()| {
        let (length, rest) = input
            .split_first_chunk::<2>()
            .map(|(length, rest)| (u16::from_be_bytes(*length), rest))?;
        let (array, rest) = rest.split_at(usize::from(length).min(rest.len()));
        let is_null = length == u16::MAX;
        input = if is_null { input.get(2..).unwrap_or_default() } else { rest };
        (!is_null).then_some(array)
    })
}

#[test]
fn the_arrays_of_a_batch_are_all_of_it_or_nothing() {
    fuzz("batch", |input| {
        let arrays = arrays_of(input);
        let Some(batch) =
            batch_of(BatchId::new(Timestamp::EPOCH, 0, 0), arrays, &KeySet::default())
        else {
            return;
        };
        assert_eq!(
            Some(batch.len()),
            arrays[0].and_then(Elements::new).map(|ids| ids.declared_count())
        );
        for task in batch.tasks() {
            assert!(task.bytes() <= input.len() && usize::from(task.topic) < batch.topics().len());
            headers::decode(task.headers).for_each(drop);
        }
    });
}

#[test]
fn a_member_of_etcd_is_read_or_passed_over() {
    fuzz("member", |input| {
        if let Ok(member) = serde_json::from_slice::<Member>(input) {
            let again = serde_json::to_vec(&member).unwrap();
            assert_eq!(serde_json::from_slice::<Member>(&again).unwrap(), member);
        }
    });
}

/// Each line is an argument of the command line.
#[test]
fn settings_are_understood_or_refused_with_a_problem() {
    fuzz("settings", |input| {
        let text = String::from_utf8_lossy(input);
        // Arguments that name a file would make the program read it.
        let lines = text.lines().filter(|line| !line.contains("file"));
        let words = ["punctual", "serve"].into_iter().chain(lines).map(OsString::from);
        if let Err(punctual::config::CommandRefusal::Problems(problems)) =
            punctual::config::read(words, punctual::app::problems)
        {
            assert!(!problems.is_empty());
        }
    });
}

#[test]
fn a_line_of_a_file_of_tasks_is_a_task_with_a_name_or_refused() {
    fuzz("line", |input| {
        for naming in [Naming::new("run", None), Naming::new("run", Some("orders"))] {
            let Ok(Some(line)) = naming.line_of(1, input) else { continue };
            // The value may be any that the grammar allows, also one that few types can hold
            // (`1e400`, half of a surrogate pair). The node decides whether to accept it.
            let members: HashMap<String, &RawValue> = serde_json::from_str(&line.json).unwrap();
            assert!(
                members.contains_key("name"),
                "without a name it cannot be sent again: {}",
                line.json
            );
        }
    });
}

/// The status is in the first three bytes. The rest is the answer of a server that need not be a
/// node.
#[test]
fn what_a_client_is_answered_is_understood_or_explained() {
    fuzz("answer", |input| {
        let (status, text) = input.split_first_chunk::<3>().unwrap_or((b"200", input));
        let status =
            std::str::from_utf8(status).ok().and_then(|status| status.parse().ok()).unwrap_or(502);
        let answer = NodeAnswer {
            status,
            retry_after: None,
            has_token: false,
            text: String::from_utf8_lossy(text).into_owned(),
        };
        match answer.problem() {
            Some(problem) => drop(problem.ending()),
            None => drop(answer.read::<Task>().map(|task| task.lines())),
        }
    });
}
