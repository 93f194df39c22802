//! Reads the view of a task from its row, with its record as it was submitted.

use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::attempts::tracked_of;
use super::in_batches::moved_of;
use crate::domain::task::{expiry, spread};
use crate::domain::{Expiry, Kept, TaskId, TaskState, TaskView, Timestamp, TopicName};
use crate::postgres::tasks::principals::actors_of;
use crate::sealing::{Columns, KeySet, OpenedRecord, RecordOwner};

/// Lists show keys of at most this many bytes, so that a page is limited in bytes, too. A sealed
/// key is 33 bytes longer, so statements take keys of at most 1,057 bytes.
const LISTED_KEY_MAX: usize = 1024;

/// Reads the view of a row with its whole record.
pub(in crate::postgres) fn view_of_row(
    row: &PgRow,
    first: TaskId,
    state: TaskState,
    keys: &KeySet,
) -> Result<TaskView, sqlx::Error> {
    let is_kept = !matches!(state, TaskState::Cancelled | TaskState::Finished);
    let topic: &str = row.try_get("topic")?;
    let (kept, terms) = match is_kept {
        true => kept_of(row, RecordOwner::Task(first, topic), keys)?,
        false => (None, StoredTerms::default()),
    };
    view_with(row, first, state, (kept, terms))
}

/// Reads the view of a row of a list, which has the key and the beginning of the headers only.
pub(in crate::postgres) fn view_of_listed(
    row: &PgRow,
    first: TaskId,
    state: TaskState,
    keys: &KeySet,
) -> Result<TaskView, sqlx::Error> {
    let head = row.try_get::<Option<Vec<u8>>, _>("headers")?.unwrap_or_default();
    let owner = RecordOwner::Task(first, row.try_get("topic")?);
    let kept = keys.open_key(owner, &head, row.try_get("key")?).ok().map(listed_key);
    view_with(row, first, state, (kept, StoredTerms::split(&head).0))
}

/// Returns the part of a record that lists show: its key, if it is not long.
pub(in crate::postgres) fn listed_key(key: Option<Vec<u8>>) -> Kept {
    let key = key.filter(|key| key.len() <= LISTED_KEY_MAX);
    Kept { key, payload: None, headers: Vec::new() }
}

fn view_with(
    row: &PgRow,
    first: TaskId,
    state: TaskState,
    (kept, terms): (Option<Kept>, StoredTerms),
) -> Result<TaskView, sqlx::Error> {
    let mut view = TaskView {
        id: first,
        topic: TopicName::stored(row.try_get("topic")?),
        name: row.try_get("name")?,
        state,
        replaced_by: None,
        attempt: row.try_get::<Option<i16>, _>("attempt")?.unwrap_or(1),
        receipt: None,
        kept,
        reason: row.try_get("reason")?,
        died_at: row.try_get::<Option<i64>, _>("died_at")?.map(Timestamp::from_micros),
        moved_to: moved_of(row)?,
        requested_due_at: None,
        expires_at: None,
        actors: actors_of(row)?,
        tracked: tracked_of(row)?,
    };
    terms.show_in(&mut view);
    Ok(view)
}

/// Reads the record of a row. A record that cannot be opened counts as no longer kept.
pub(super) fn kept_of(
    row: &PgRow,
    owner: RecordOwner<'_>,
    keys: &KeySet,
) -> Result<(Option<Kept>, StoredTerms), sqlx::Error> {
    let column = row.try_get::<Option<Vec<u8>>, _>("headers")?.unwrap_or_default();
    let (key, payload): (Option<Vec<u8>>, Option<Vec<u8>>) =
        (row.try_get("key")?, row.try_get("payload")?);
    let (terms, own) = StoredTerms::split(&column);
    let stored = Columns::new(key.as_deref(), payload.as_deref(), Some(&column));
    let kept = match keys.open(owner, stored) {
        OpenedRecord::Plain => Some(Kept { key, payload, headers: own.to_vec() }),
        OpenedRecord::Opened(opened) => {
            let headers = opened.headers.unwrap_or_default();
            let headers = StoredTerms::split(&headers).1.to_vec();
            Some(Kept { key: opened.key, payload: opened.payload, headers })
        }
        OpenedRecord::Unopened(why) => {
            tracing::debug!(?why, ?owner, "the record of a task cannot be decrypted");
            None
        }
    };
    Ok((kept, terms))
}

/// The expiry of a task and the due time that was asked for, as its row has them.
#[derive(Clone, Copy, Default)]
pub(in crate::postgres) struct StoredTerms {
    expiry: Option<Expiry>,
    requested_at: Option<Timestamp>,
}

impl StoredTerms {
    /// Splits the column `headers`, or its beginning, into the terms and the submitter's headers.
    pub(in crate::postgres) fn split(column: &[u8]) -> (Self, &[u8]) {
        let (expiry, rest) = expiry::split(column);
        let (requested_at, own) = spread::split(rest);
        (Self { expiry, requested_at }, own)
    }

    /// Writes the terms into the view of the task.
    pub(in crate::postgres) fn show_in(self, view: &mut TaskView) {
        view.expires_at = view.expires_at.or_else(|| Some(self.expiry?.at(view.due_at())));
        // A move sets the spread aside.
        view.requested_due_at = self.requested_at.filter(|_at| view.moved_to.is_none());
    }
}
