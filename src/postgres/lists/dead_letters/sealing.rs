//! Seals dead letters for another topic: a sealed record opens in its own topic only.

use sqlx::postgres::PgConnection;
use sqlx::{Row as _, postgres::PgRow};
use uuid::Uuid;

use crate::domain::{TaskId, TopicName, TrackedRow, Unopened};
use crate::postgres::connection::error::check_count;
use crate::postgres::tasks::sealed::refused;
use crate::sealing::{KeySet, OpenedRecord, OwnedColumns, RecordOwner};

/// Locks the plain ones, too: `payload-keys reseal` must not seal them for their old topic
/// meanwhile.
const LOCK: &str = "-- lock dead letters for another topic
select d.id, d.topic, d.tracking, s.is_sealed, case when s.is_sealed then d.key end as key,
  case when s.is_sealed then d.payload end as payload,
  case when s.is_sealed then d.headers end as headers
from dead_letter d
cross join lateral (select punctual_sealed_by(d.headers) is not null as is_sealed) s
where d.id = any($1) and d.topic <> $2 and ($3::text is null or d.topic = $3)
order by d.id
for update of d";

const REPLACE: &str = "-- seal dead letters for another topic
update dead_letter d set key = n.key, payload = n.payload, headers = n.headers
from unnest($1::uuid[], $2::bytea[], $3::bytea[], $4::bytea[]) as n (id, key, payload, headers)
where d.id = n.id";

/// A dead letter that cannot go to another topic: this node cannot open its record, or the topic is
/// its dead topic.
#[derive(Debug)]
pub(super) struct Unsealable {
    pub(super) id: Uuid,
    why: String,
}

impl From<Unsealable> for sqlx::Error {
    fn from(Unsealable { id, why }: Unsealable) -> Self {
        let text = format!("the record of task {id} {why}, so it cannot go to another topic");
        Self::Decode(text.into())
    }
}

/// Seals these dead letters for the topic `to`, where the same transaction puts them next. Plain
/// records stay as they are, and so do dead letters of another topic than `from`, if it is given.
/// Returns the dead letters that must stay where they are.
pub(super) async fn seal_for(
    open: &mut PgConnection,
    ids: &[Uuid],
    (from, to): (Option<&TopicName>, &TopicName),
    keys: &KeySet,
) -> Result<Vec<Unsealable>, sqlx::Error> {
    let query = sqlx::query(LOCK).bind(ids).bind(to.as_str()).bind(from.map(TopicName::as_str));
    let rows = query.fetch_all(&mut *open).await?;
    let (mut sealed, mut unsealable) = (Vec::new(), Vec::new());
    for row in &rows {
        let tracking: Option<Vec<u8>> = row.try_get("tracking")?;
        let tracked = tracking.and_then(|bytes| TrackedRow::decode(&bytes).ok());
        if tracked.is_some_and(|tracked| tracked.tracking.dead_topic.as_ref() == Some(to)) {
            // Its consumer would get the dead record again.
            let why = "goes to the dead topic of its task".to_owned();
            unsealable.push(Unsealable { id: row.try_get("id")?, why });
            continue;
        }
        if !row.try_get("is_sealed")? {
            continue;
        }
        match sealed_again(row, to, keys)? {
            Ok(record) => sealed.push(record),
            Err(one) => unsealable.push(one),
        }
    }
    if sealed.is_empty() {
        return Ok(unsealable);
    }
    let each = || sealed.iter().map(|(_id, record)| record.as_columns());
    let replaced = sqlx::query(REPLACE)
        .bind(sealed.iter().map(|(id, _record)| *id).collect::<Vec<_>>())
        .bind(each().map(|record| record.key).collect::<Vec<_>>())
        .bind(each().map(|record| record.payload).collect::<Vec<_>>())
        .bind(each().map(|record| record.headers).collect::<Vec<_>>())
        .execute(open)
        .await?;
    // The rows are locked, so they are there.
    check_count(replaced.rows_affected(), sealed.len())?;
    Ok(unsealable)
}

type SealedAgain = Result<(Uuid, OwnedColumns), Unsealable>;

fn sealed_again(row: &PgRow, to: &TopicName, keys: &KeySet) -> Result<SealedAgain, sqlx::Error> {
    let first: Uuid = row.try_get("id")?;
    let stored = OwnedColumns {
        key: row.try_get("key")?,
        payload: row.try_get("payload")?,
        headers: row.try_get("headers")?,
    };
    let id = TaskId::from_uuid(first);
    let why = match keys.open(RecordOwner::Task(id, row.try_get("topic")?), stored.as_columns()) {
        OpenedRecord::Plain => return Ok(Ok((first, stored))),
        OpenedRecord::Opened(plain) => {
            let owner = RecordOwner::Task(id, to.as_str());
            let sealed = keys.seal(owner, plain.as_columns()).map_err(refused)?;
            return Ok(Ok((first, sealed.unwrap_or(plain))));
        }
        OpenedRecord::Unopened(Unopened::NoKey(key)) => {
            format!("is encrypted with payload key {key}, which this node lacks")
        }
        OpenedRecord::Unopened(Unopened::Damaged) => "cannot be decrypted".to_owned(),
    };
    Ok(Err(Unsealable { id: first, why }))
}
