//! Runs: stretches of records that one transaction stores.

use std::collections::HashSet;

use uuid::Uuid;

use crate::domain::{TaskName, TopicName};
use crate::inbound::carrier::{Change, Item, NewItem};
use crate::postgres::inbound::ItemKey;

/// A record that was checked.
#[derive(Debug)]
pub(super) enum Checked {
    Store(Item),
    /// The record at this offset is rejected.
    Rejected(i64),
}

/// The records of one transaction. The offset moves behind the last of them, over rejected ones.
#[derive(Debug)]
pub(super) enum Run {
    /// Submits, each of another name.
    Submits(Vec<NewItem>),
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
    let mut submits: Vec<NewItem> = Vec::new();
    let mut names: HashSet<(TopicName, TaskName)> = HashSet::new();
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
        let is_new = match (&item.change, item.name()) {
            (Change::Submit(_), None) => true,
            (_, Some(name)) => names.insert(name),
            (_, None) => false,
        };
        if !is_new || !matches!(item.change, Change::Submit(_)) {
            flush(&mut submits, &mut runs);
            names.clear();
        }
        match item {
            Item { key, change: Change::Submit(task) } => {
                if !is_new {
                    // The name begins the next run.
                    names.extend(task.name.clone().map(|name| (task.record.topic.clone(), name)));
                }
                submits.push(NewItem { key, task });
            }
            item => runs.push(Run::One(item)),
        }
    }
    flush(&mut submits, &mut runs);
    runs.extend(rejected.map(|offset| Run::Rejected(key_of(offset))));
    runs
}

fn flush(submits: &mut Vec<NewItem>, runs: &mut Vec<Run>) {
    if !submits.is_empty() {
        runs.push(Run::Submits(std::mem::take(submits)));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::domain::{Headers, NewTask, Record, ShardCount, Timestamp};

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

    /// A record by its kind: 0 rejects, 1 replaces, others submit.
    fn checked(offset: usize, (kind, name): (u8, Option<u8>)) -> Checked {
        let offset = i64::try_from(offset).unwrap();
        let key = key_of(offset);
        match kind {
            0 => Checked::Rejected(offset),
            1 => {
                let change = Change::Replace(task(Some(name.unwrap_or(0))));
                Checked::Store(Item { key, change })
            }
            _ => Checked::Store(Item { key, change: Change::Submit(task(name)) }),
        }
    }

    fn shown(run: &Run) -> String {
        match run {
            Run::Submits(items) => {
                let offsets: Vec<String> =
                    items.iter().map(|item| item.key.seq.to_string()).collect();
                format!("submits {}", offsets.join(","))
            }
            Run::One(item) => format!("one {}", item.key.seq),
            Run::Rejected(key) => format!("rejected {}", key.seq),
        }
    }

    #[test]
    fn a_run_ends_at_a_known_name_and_at_a_replacement_and_goes_over_rejected_records() {
        let given = [
            (2, Some(1)),
            (0, None),
            (2, None),
            (2, Some(1)),
            (2, Some(2)),
            (2, Some(1)),
            (1, Some(1)),
            (2, Some(1)),
            (0, None),
            (0, None),
        ];
        let records = given.into_iter().enumerate().map(|(offset, kind)| checked(offset, kind));
        let runs: Vec<String> = cut(records.collect()).iter().map(shown).collect();
        let wanted =
            ["submits 0,2", "submits 3,4", "submits 5", "one 6", "submits 7", "rejected 9"];
        assert_eq!(runs, wanted);
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
