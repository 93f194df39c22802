//! Selections of tasks, and positions in lists.

use uuid::Uuid;
use xxhash_rust::xxh3::Xxh3;

use super::ids::PUT_OFF;
use super::{IdRange, PrincipalName, TaskId, TaskName, TaskView, Timestamp, TopicName, ids};

/// The end of the year 9999, which is later than the row of any held task.
const HELD_MAX: Timestamp = Timestamp::from_micros(253_402_300_799_999_000);

/// Tasks selected by topic, due time, submitter, state and choice. For a follow-up, the due time of
/// its row counts.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Selection {
    pub topic: Option<TopicName>,
    /// Inclusive.
    pub due_from: Option<Timestamp>,
    /// Exclusive.
    pub due_to: Option<Timestamp>,
    /// Lists of dead letters do not take this one, nor the next.
    pub submitted_by: Option<PrincipalName>,
    pub state: Option<PendingState>,
    /// Needs a topic.
    pub choice: Option<Choice>,
}

/// A choice among the pending tasks of one topic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Choice {
    /// The ids as submitters know them, at most [`Self::COUNT_MAX`].
    Ids(Vec<TaskId>),
    /// At most [`Self::COUNT_MAX`] names.
    Names(Vec<TaskName>),
    /// All names that begin with this text.
    NamePrefix(Box<str>),
    Key(Box<[u8]>),
}

impl Choice {
    /// The most ids or names of a choice.
    pub const COUNT_MAX: usize = 1000;
    /// The most names that may begin with a prefix. Names of ended tasks count while they are kept.
    pub const PREFIXED_MAX: usize = 10_000;

    /// Returns true when the tasks are listed one by one, in the request itself.
    pub const fn is_enumerated(&self) -> bool {
        matches!(self, Self::Ids(_) | Self::Names(_))
    }

    /// Each part has its length before it, so no two choices have the same bytes.
    fn add_to(&self, hash: &mut Xxh3) {
        let mut add = |part: &[u8]| {
            hash.update(&part.len().to_be_bytes());
            hash.update(part);
        };
        match self {
            Self::Ids(ids) => {
                add(b"ids");
                ids.iter().for_each(|id| add(id.uuid().as_bytes()));
            }
            Self::Names(names) => {
                add(b"names");
                names.iter().for_each(|name| add(name.as_str().as_bytes()));
            }
            Self::NamePrefix(prefix) => {
                add(b"prefix");
                add(prefix.as_bytes());
            }
            Self::Key(key) => {
                add(b"key");
                add(key);
            }
        }
    }
}

/// The state of a task that is in `task` or `task_far`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PendingState {
    /// The first attempt is pending.
    Scheduled,
    /// An attempt is with the consumer.
    Awaiting,
    /// An attempt has failed.
    Retrying,
}

impl PendingState {
    pub const ALL: [Self; 3] = [Self::Scheduled, Self::Awaiting, Self::Retrying];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Awaiting => "awaiting",
            Self::Retrying => "retrying",
        }
    }
}

impl Selection {
    /// Returns the ranges of the rows that the selected tasks may have: of tasks, and behind them
    /// of held tasks, whose rows are put off.
    pub fn rows(&self) -> [IdRange; 2] {
        let (ids, held) = (self.ids(), IdRange::held());
        let put_off = |at: Timestamp| ids::floor_of(at.plus(PUT_OFF).min(HELD_MAX));
        let not_held = IdRange { from: ids.from, to: ids.to.min(held.from) };
        let held = IdRange {
            from: self.due_from.map_or(held.from, put_off),
            to: self.due_to.map_or_else(Uuid::max, put_off),
        };
        [not_held, held]
    }

    /// Returns the range of all ids that the selection can contain.
    pub fn ids(&self) -> IdRange {
        IdRange {
            from: self.due_from.map_or_else(Uuid::nil, ids::floor_of),
            to: self.due_to.map_or_else(Uuid::max, ids::floor_of),
        }
    }
}

impl IdRange {
    /// Returns the part behind a position. Without a position, the whole selection.
    pub fn behind(self, from: Option<Cursor>) -> Self {
        let next = |cursor: Cursor| Uuid::from_u128(cursor.after.as_u128().saturating_add(1));
        Self { from: from.map_or(self.from, |cursor| next(cursor).max(self.from)), to: self.to }
    }
}

/// The list that a reader pages through. A position in one list is not valid in another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum List {
    Tasks,
    DeadLetters,
}

/// A page of a list, in its order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page {
    /// Without payloads and headers, and with the key only if it is short.
    pub tasks: Vec<TaskView>,
    /// Where the next page begins, or `None` at the end of the list. A page may be short or empty
    /// without being the last one.
    pub next: Option<Cursor>,
}

/// The position of a reader: all ids up to `after` were looked at. The bytes include a digest of
/// the selection, so a cursor is only valid for the list it came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cursor {
    pub after: Uuid,
}

impl Cursor {
    pub const BYTES: usize = 24;

    /// Returns the bytes of this position in `list`, for this `selection`.
    pub fn to_bytes(self, list: List, selection: &Selection) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let (position, digest) = bytes.split_at_mut(16);
        position.copy_from_slice(self.after.as_bytes());
        digest.copy_from_slice(&self.digest(list, selection).to_be_bytes());
        bytes
    }

    /// Reads a position. Returns `None` when the bytes belong to another list or selection, or are
    /// not a cursor.
    pub fn of_bytes(bytes: &[u8], list: List, selection: &Selection) -> Option<Self> {
        let (position, digest) = bytes.split_at_checked(16)?;
        let cursor = Self { after: Uuid::from_slice(position).ok()? };
        (digest == cursor.digest(list, selection).to_be_bytes()).then_some(cursor)
    }

    fn digest(self, list: List, selection: &Selection) -> u64 {
        let mut hash = Xxh3::new();
        hash.update(match list {
            List::Tasks => b"tasks 1",
            List::DeadLetters => b"dead 1 ",
        });
        let ids = selection.ids();
        for id in [self.after, ids.from, ids.to] {
            hash.update(id.as_bytes());
        }
        hash.update(selection.topic.as_ref().map_or("", TopicName::as_str).as_bytes());
        if let Some(submitter) = &selection.submitted_by {
            // No topic has a NUL in its name.
            hash.update(b"\0");
            hash.update(submitter.as_str().as_bytes());
        }
        if let Some(state) = selection.state {
            hash.update(b"\0\0");
            hash.update(state.as_str().as_bytes());
        }
        if let Some(choice) = &selection.choice {
            hash.update(b"\0\0\0");
            choice.add_to(&mut hash);
        }
        hash.digest()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selection(topic: &str, from: i64) -> Selection {
        Selection {
            topic: TopicName::new(topic).ok(),
            due_from: Some(Timestamp::from_millis(from)),
            ..Selection::default()
        }
    }

    fn chosen(choice: Choice) -> Selection {
        Selection { choice: Some(choice), ..selection("orders", 1) }
    }

    #[test]
    fn a_cursor_is_good_for_what_it_was_given_for_and_for_nothing_else() {
        let cursor = Cursor { after: Uuid::from_u128(7) };
        let bytes = cursor.to_bytes(List::Tasks, &selection("orders", 1));
        assert_eq!(Cursor::of_bytes(&bytes, List::Tasks, &selection("orders", 1)), Some(cursor));
        for (list, selection) in [
            (List::DeadLetters, selection("orders", 1)),
            (List::Tasks, selection("other", 1)),
            (List::Tasks, selection("orders", 2)),
            (List::Tasks, selection("", 1)),
            (
                List::Tasks,
                Selection {
                    submitted_by: PrincipalName::new("ann").ok(),
                    ..selection("orders", 1)
                },
            ),
            (
                List::Tasks,
                Selection { state: Some(PendingState::Awaiting), ..selection("orders", 1) },
            ),
            (List::Tasks, chosen(Choice::Key(Box::from(*b"a")))),
        ] {
            assert_eq!(Cursor::of_bytes(&bytes, list, &selection), None);
        }
        for index in 0..bytes.len() {
            let mut damaged = bytes;
            damaged[index] ^= 1;
            assert_eq!(Cursor::of_bytes(&damaged, List::Tasks, &selection("orders", 1)), None);
        }
        assert_eq!(Cursor::of_bytes(&bytes[..23], List::Tasks, &selection("orders", 1)), None);
    }

    #[test]
    fn a_cursor_of_a_choice_is_for_that_choice() {
        let name = |text: &str| TaskName::new(text).unwrap();
        let choices = [
            Choice::Key(Box::from(*b"ab")),
            Choice::NamePrefix(Box::from("ab")),
            Choice::Names(vec![name("ab")]),
            Choice::Names(vec![name("a"), name("b")]),
            Choice::Ids(vec![TaskId::from_uuid(Uuid::from_u128(1))]),
            Choice::Ids(Vec::new()),
        ];
        let cursor = Cursor { after: Uuid::from_u128(7) };
        for (index, choice) in choices.iter().enumerate() {
            let bytes = cursor.to_bytes(List::Tasks, &chosen(choice.clone()));
            for (other_index, other) in choices.iter().enumerate() {
                let read = Cursor::of_bytes(&bytes, List::Tasks, &chosen(other.clone()));
                assert_eq!(read.is_some(), index == other_index, "{choice:?} {other:?}");
            }
        }
    }

    #[test]
    fn without_bounds_all_ids_are_meant() {
        assert_eq!(Selection::default().ids(), IdRange { from: Uuid::nil(), to: Uuid::max() });
    }

    #[test]
    fn the_rows_of_held_tasks_come_behind_all_others_in_the_same_range_of_due_times() {
        let at = Timestamp::from_millis;
        let [not_held, held] = Selection::default().rows();
        assert_eq!((not_held.from, not_held.to), (Uuid::nil(), held.from));
        assert_eq!(held.to, Uuid::max());
        let range =
            Selection { due_from: Some(at(5)), due_to: Some(at(9)), ..Selection::default() };
        let [not_held, held] = range.rows();
        assert_eq!(not_held, IdRange::of_times(at(5), at(9)));
        assert_eq!(held, IdRange::of_times(at(5).plus(PUT_OFF), at(9).plus(PUT_OFF)));
        let far = Selection { due_from: Some(at(253_402_300_799_999)), ..Selection::default() };
        let [not_held, held] = far.rows();
        assert!(not_held.is_empty() && !held.is_empty());
    }

    #[test]
    fn behind_a_position_lies_what_was_not_looked_at() {
        let range = |from: u128| IdRange { from: Uuid::from_u128(from), to: Uuid::from_u128(9) };
        let behind = |after: u128| range(5).behind(Some(Cursor { after: Uuid::from_u128(after) }));
        assert_eq!(
            [range(5).behind(None), behind(1), behind(5), behind(8)],
            [range(5), range(5), range(6), range(9)]
        );
        assert_eq!(behind(u128::MAX).from, Uuid::max());
    }
}
