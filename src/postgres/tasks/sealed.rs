//! Seals the records of new tasks before a statement stores them.

use crate::domain::{NewTask, Record};
use crate::sealing::{Columns, KeySet, OwnedColumns, RecordOwner, SealError};

/// The records of some tasks as they are to be stored. Empty when nothing is sealed.
#[derive(Debug)]
pub(in crate::postgres) struct StoredRecords(Option<Vec<OwnedColumns>>);

impl StoredRecords {
    /// Seals the records of `tasks`, if new records are sealed.
    pub(in crate::postgres) fn of(keys: &KeySet, tasks: &[&NewTask]) -> Result<Self, sqlx::Error> {
        if !keys.seals() {
            return Ok(Self(None));
        }
        let seal = |task: &&NewTask| sealed(keys, task);
        tasks.iter().map(seal).collect::<Result<Vec<_>, _>>().map(|all| Self(Some(all)))
    }

    /// Returns the columns of each task, in order. `tasks` are those of [`Self::of`].
    pub(in crate::postgres) fn each<'q>(
        &'q self,
        tasks: &[&'q NewTask],
    ) -> impl Iterator<Item = Columns<'q>> {
        tasks.iter().enumerate().map(|(index, task)| match &self.0 {
            Some(sealed) => sealed[index].as_columns(),
            None => columns_of(&task.record),
        })
    }
}

/// Seals the record of a task. Returns it as it is when nothing is sealed.
fn sealed(keys: &KeySet, task: &NewTask) -> Result<OwnedColumns, sqlx::Error> {
    let owner = RecordOwner::Task(task.id, task.record.topic.as_str());
    let plain = columns_of(&task.record);
    let sealed = keys.seal(owner, plain).map_err(refused)?;
    // The current key was there a moment ago, and a new record is not sealed yet.
    sealed.ok_or_else(|| sqlx::Error::Encode("a record was not encrypted".into()))
}

/// Returns the columns of a record that is not sealed.
pub(in crate::postgres) fn columns_of(record: &Record) -> Columns<'_> {
    let (key, payload) = (record.key.as_deref(), record.payload.as_deref());
    Columns::new(key, payload, record.headers.as_column())
}

/// Turns a failed encryption into an error of a statement that was not run.
pub(in crate::postgres) fn refused(error: SealError) -> sqlx::Error {
    sqlx::Error::Encode(Box::new(error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Headers, ShardCount, Timestamp, TopicName};
    use crate::sealing::keys::{KEY_LENGTH, MasterKey};

    fn task(payload: &[u8]) -> NewTask {
        let record = Record {
            topic: TopicName::stored("t"),
            key: None,
            payload: Some(payload.into()),
            headers: Headers::default(),
        };
        NewTask::new(record, None, Timestamp::EPOCH, ShardCount::DEFAULT, (1, 2))
    }

    #[test]
    fn records_are_stored_sealed_or_as_they_are() {
        let (one, other) = (task(b"one"), task(b"other"));
        let tasks = [&one, &other];
        let plain = StoredRecords::of(&KeySet::default(), &tasks).unwrap();
        let payloads: Vec<_> = plain.each(&tasks).map(|columns| columns.payload.unwrap()).collect();
        assert_eq!(payloads, [b"one".as_slice(), b"other"]);
        let keys = [(1, MasterKey::new([1; KEY_LENGTH]))].into();
        let keys = KeySet::new(Some(1), keys).unwrap();
        let sealed = StoredRecords::of(&keys, &tasks).unwrap();
        for columns in sealed.each(&tasks) {
            assert!(columns.are_sealed() && columns.payload.unwrap().len() > 30);
        }
    }
}
