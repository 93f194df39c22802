//! Runs: stretches of records that one transaction stores.

use std::collections::HashSet;

use uuid::Uuid;

use crate::domain::{TaskName, TopicName};
use crate::inbound::carrier::{Answer, Change, Item, NewItem};
use crate::postgres::inbound::ItemKey;

/// A record that was checked.
#[derive(Debug)]
pub(super) enum Checked {
    Store(Item),
    /// The record at this offset is rejected.
    Rejected(i64),
}

impl Checked {
    pub(super) const fn offset(&self) -> i64 {
        match self {
            Self::Store(item) => item.key.seq,
            Self::Rejected(offset) => *offset,
        }
    }
}

/// The records of one transaction. The offset moves behind the last of them, over rejected ones.
#[derive(Debug)]
pub(super) enum Run {
    /// Submits, each of another name.
    Submits(Vec<NewItem>),
    /// Answers of consumers.
    Answers(Vec<(ItemKey, Answer)>),
    /// A replacement or a cancel.
    One(Item),
    /// Rejected records at the end. This is the last.
    Rejected(ItemKey),
}

pub(super) const fn key_of(offset: i64) -> ItemKey {
    ItemKey { id: Uuid::nil(), seq: offset }
}

/// Cuts records into runs, in their order.
pub(super) fn cut(records: Vec<Checked>) -> Vec<Run> {
    let mut runs = Vec::new();
    let mut open = OpenRun::default();
    let mut rejected = None;
    for record in records {
        let item = match record {
            Checked::Rejected(offset) => {
                rejected = Some(offset);
                continue;
            }
            Checked::Store(item) => item,
        };
        rejected = None;
        let name = item.name();
        match item {
            Item { key, change: Change::Submit(task) } => {
                let is_known = name.as_ref().is_some_and(|name| open.names.contains(name));
                if is_known || !open.answers.is_empty() {
                    open.close(&mut runs);
                }
                open.names.extend(name);
                open.submits.push(NewItem { key, task });
            }
            Item { key, change: Change::Answer(answer) } => {
                if !open.submits.is_empty() {
                    open.close(&mut runs);
                }
                open.answers.push((key, answer));
            }
            item => {
                open.close(&mut runs);
                runs.push(Run::One(item));
            }
        }
    }
    open.close(&mut runs);
    runs.extend(rejected.map(|offset| Run::Rejected(key_of(offset))));
    runs
}

/// The run that further records may join: submits, or answers.
#[derive(Default)]
struct OpenRun {
    submits: Vec<NewItem>,
    /// The names of the submits.
    names: HashSet<(TopicName, TaskName)>,
    answers: Vec<(ItemKey, Answer)>,
}

impl OpenRun {
    fn close(&mut self, runs: &mut Vec<Run>) {
        let Self { submits, answers, .. } = std::mem::take(self);
        if !submits.is_empty() {
            runs.push(Run::Submits(submits));
        }
        if !answers.is_empty() {
            runs.push(Run::Answers(answers));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::access::Caller;
    use crate::access::permit::Permit;
    use crate::access::rights::Rights;
    use crate::domain::{Headers, NewTask, Record, ShardCount, Timestamp};
    use crate::node::messages::answers::{ConsumerCall, Target};

    fn task(name: Option<u8>) -> NewTask {
        let record = Record {
            topic: TopicName::new("orders").unwrap(),
            key: None,
            payload: Some(Box::default()),
            headers: Headers::default(),
        };
        let name = name.map(|name| TaskName::new(&name.to_string()).unwrap());
        NewTask::new(record, name, Timestamp::EPOCH, ShardCount::DEFAULT, (0, 0))
    }

    fn answer(name: u8) -> Answer {
        let caller = Caller::anonymous(Rights::everything());
        let permit = Permit::on(&caller, &TopicName::new("orders").unwrap()).unwrap();
        let name = TaskName::new(&name.to_string()).unwrap();
        Answer { target: Target::Name(permit, name), call: ConsumerCall::Finish { attempt: None } }
    }

    /// A record by its kind: 0 rejects, 1 replaces, 2 answers, others submit.
    fn checked(offset: usize, (kind, name): (u8, Option<u8>)) -> Checked {
        let offset = i64::try_from(offset).unwrap();
        let key = key_of(offset);
        match kind {
            0 => Checked::Rejected(offset),
            1 => {
                let change = Change::Replace(task(Some(name.unwrap_or(0))));
                Checked::Store(Item { key, change })
            }
            2 => Checked::Store(Item { key, change: Change::Answer(answer(name.unwrap_or(0))) }),
            _ => Checked::Store(Item { key, change: Change::Submit(task(name)) }),
        }
    }

    fn shown(run: &Run) -> String {
        let joined = |keys: Vec<ItemKey>| {
            let offsets: Vec<String> = keys.iter().map(|key| key.seq.to_string()).collect();
            offsets.join(",")
        };
        match run {
            Run::Submits(items) => {
                format!("submits {}", joined(items.iter().map(|item| item.key).collect()))
            }
            Run::Answers(answers) => {
                format!("answers {}", joined(answers.iter().map(|(key, _)| *key).collect()))
            }
            Run::One(item) => format!("one {}", item.key.seq),
            Run::Rejected(key) => format!("rejected {}", key.seq),
        }
    }

    fn shown_runs(given: &[(u8, Option<u8>)]) -> Vec<String> {
        let records = given.iter().enumerate().map(|(offset, kind)| checked(offset, *kind));
        cut(records.collect()).iter().map(shown).collect()
    }

    #[test]
    fn a_run_ends_at_a_known_name_and_at_a_replacement_and_goes_over_rejected_records() {
        let given = [
            (3, Some(1)),
            (0, None),
            (3, None),
            (3, Some(1)),
            (3, Some(2)),
            (3, Some(1)),
            (1, Some(1)),
            (3, Some(1)),
            (0, None),
            (0, None),
        ];
        let wanted =
            ["submits 0,2", "submits 3,4", "submits 5", "one 6", "submits 7", "rejected 9"];
        assert_eq!(shown_runs(&given), wanted);
    }

    #[test]
    fn answers_are_a_run_between_the_submits_before_and_after_them() {
        let given = [
            (3, Some(1)),
            (2, Some(1)),
            (0, None),
            (2, Some(2)),
            (3, Some(1)),
            (2, None),
            (1, None),
        ];
        let wanted = ["submits 0", "answers 1,3", "submits 4", "answers 5", "one 6"];
        assert_eq!(shown_runs(&given), wanted);
    }

    proptest! {
        #[test]
        fn records_keep_their_order_and_a_name_is_once_in_a_run(
            given: Vec<(u8, Option<u8>)>,
        ) {
            let given: Vec<_> = given.into_iter().map(|(kind, name)| (kind % 5, name)).collect();
            let records: Vec<Checked> =
                given.iter().enumerate().map(|(offset, kind)| checked(offset, *kind)).collect();
            let last = i64::try_from(records.len()).unwrap() - 1;
            let mut offsets = Vec::new();
            for run in cut(records) {
                match run {
                    Run::Submits(items) => {
                        let mut names: Vec<_> =
                            items.iter().filter_map(|item| item.task.name.clone()).collect();
                        let count = names.len();
                        names.sort_by(|one, other| one.as_str().cmp(other.as_str()));
                        names.dedup();
                        prop_assert_eq!(names.len(), count);
                        offsets.extend(items.iter().map(|item| item.key.seq));
                    }
                    Run::Answers(answers) => {
                        offsets.extend(answers.iter().map(|(key, _)| key.seq));
                    }
                    Run::One(item) => offsets.push(item.key.seq),
                    Run::Rejected(key) => offsets.push(key.seq),
                }
            }
            prop_assert!(offsets.is_sorted_by(|one, other| one < other));
            prop_assert_eq!(offsets.last().copied(), (last >= 0).then_some(last));
            let stored = given.iter().filter(|(kind, _)| *kind != 0).count();
            let trailing = given.last().is_some_and(|(kind, _)| *kind == 0);
            prop_assert_eq!(offsets.len(), stored + usize::from(trailing));
        }
    }
}
