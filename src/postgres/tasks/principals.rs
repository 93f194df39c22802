//! Principals in the tables: numbers instead of names, and how statements write submitters.
//!
//! The number of a principal is committed on its own before any statement uses it, so a statement
//! that is rolled back takes no number along. Two nodes that intern the same name at the same time
//! meet at the unique name: one inserts it, the other reads it.
//!
//! A failover may lose that commit. The number is therefore derived from the name, so that the same
//! name gets it again and another one hardly ever does. And a remembered number counts only until
//! the node opens a session: then Postgres is asked again, and a lost name is inserted again.
//!
//! An anonymous task costs a submit one look at each task of the group and otherwise nothing: the
//! statement is another text, without submitters. A claim aggregates nulls: 1 to 2 % of Postgres's
//! CPU of a claim. A row and a batch grow by no byte. A cancel binds one array of nulls more.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use sqlx::postgres::{PgArguments, PgConnection, PgRow};
use sqlx::query::QueryScalar;
use sqlx::{Postgres, Row};

use crate::clock;
use crate::domain::{
    Actors, Dropped, NewTask, PrincipalId, PrincipalName, Submitted, Throttle, Timestamp,
};
use crate::postgres::connection::error::Cause;
use crate::postgres::connection::pool::Pool;
use crate::postgres::connection::{ConnectionPurpose, SessionCount};
use crate::postgres::{PostgresError, PostgresSettings};

const PURPOSE: ConnectionPurpose =
    ConnectionPurpose { name: "principals", deadline: Duration::from_secs(2), settings: &[] };
/// Maximum number of principals that a node remembers. It asks Postgres about others each time.
const KNOWN_MAX: usize = 10_000;
/// The statement finds nothing when another node has inserted the name after it began. The next
/// one sees that row.
const TRIES_MAX: usize = 5;
/// The answer when all 32,767 numbers are taken. It is not the number of a principal.
const USED_UP: i16 = 0;
const LOG_USED_UP_EVERY: Duration = Duration::from_secs(600);

/// The number is the first free one from `$2` on. A known name must not reach the insert.
const INTERN: &str = "-- intern a principal
with known as materialized (
  select id from principal where name = $1
), free as materialized (
  select n.id
  from (
    select (1 + (i - 1) % 32767)::smallint as id
    from generate_series($2::integer, $2::integer + 32766) i
  ) n
  where not exists (select from known)
    and not exists (select from principal p where p.id = n.id)
  limit 1
), made as (
  insert into principal (id, name) overriding system value
  select id, $1 from free
  on conflict do nothing
  returning id
)
select id from known
union all select id from made
union all select 0::smallint
  where not exists (select from known) and not exists (select from free)";

/// A principal without a number has done nothing.
pub(in crate::postgres) const FIND: &str =
    "-- find a principal\nselect id from principal where name = $1";

/// The numbers of principals. Postgres has all of them, and a node those that it has met.
#[derive(Debug)]
pub struct Principals {
    pool: Pool,
    known: Mutex<HashMap<PrincipalName, Remembered>>,
    sessions: SessionCount,
    used_up_log: Mutex<Throttle>,
}

/// A number that Postgres has told.
#[derive(Clone, Copy, Debug)]
struct Remembered {
    id: PrincipalId,
    /// The sessions of the node before Postgres was asked.
    sessions: u64,
}

/// The number of a principal, or the reason why there is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interned {
    Known(PrincipalId),
    /// The caller is anonymous.
    Anonymous,
    /// All numbers are taken. What the principal does is stored as if it was anonymous: a name too
    /// many must not keep a caller from submitting.
    UsedUp,
}

impl Interned {
    pub const fn id(self) -> Option<PrincipalId> {
        match self {
            Self::Known(id) => Some(id),
            Self::Anonymous | Self::UsedUp => None,
        }
    }
}

impl Principals {
    pub fn new(settings: &PostgresSettings, connections_max: usize) -> Self {
        Self {
            pool: Pool::new(settings, PURPOSE, connections_max),
            known: Mutex::default(),
            sessions: settings.sessions(),
            used_up_log: Mutex::new(Throttle::new(LOG_USED_UP_EVERY)),
        }
    }

    /// Returns the number of a principal. A new name gets one.
    pub async fn intern(&self, name: &PrincipalName) -> Result<Interned, PostgresError> {
        if name.is_anonymous() {
            return Ok(Interned::Anonymous);
        }
        if let Some(id) = self.remembered(name) {
            return Ok(Interned::Known(id));
        }
        // The future is on the heap: it is rarely needed, and would make the future of every call
        // larger.
        Box::pin(self.intern_new(name)).await
    }

    /// Returns the number of a principal. `None` when it has none, and so has done nothing.
    pub async fn find(&self, name: &PrincipalName) -> Result<Option<PrincipalId>, PostgresError> {
        if let Some(id) = self.remembered(name) {
            return Ok(Some(id));
        }
        let sessions = self.sessions.get();
        let find = sqlx::query_scalar(FIND).bind(name.as_str());
        let id = self.ask("find a principal", find).await?.map(PrincipalId::new);
        Ok(id.inspect(|id| self.remember(name, Remembered { id: *id, sessions })))
    }

    async fn intern_new(&self, name: &PrincipalName) -> Result<Interned, PostgresError> {
        const WHAT: &str = "intern a principal";
        let sessions = self.sessions.get();
        for _try in 0..TRIES_MAX {
            let preferred = i32::from(name.preferred_number());
            let intern = sqlx::query_scalar(INTERN).bind(name.as_str()).bind(preferred);
            match self.ask(WHAT, intern).await? {
                Some(USED_UP) => {
                    if self.used_up_log.lock().lets_through(clock::monotonic()) {
                        tracing::error!(
                            principal = %name,
                            "the table principal is full; its changes are stored without its name"
                        );
                    }
                    return Ok(Interned::UsedUp);
                }
                Some(id) => {
                    let id = PrincipalId::new(id);
                    self.remember(name, Remembered { id, sessions });
                    return Ok(Interned::Known(id));
                }
                None => {}
            }
        }
        Err(PostgresError::new(WHAT, Cause::Fact("others take its number in the table principal")))
    }

    async fn ask(
        &self,
        what: &str,
        query: QueryScalar<'_, Postgres, i16, PgArguments>,
    ) -> Result<Option<i16>, PostgresError> {
        let statement = async |open: &mut PgConnection| query.fetch_optional(open).await;
        self.pool.run(what, statement).await
    }

    fn remembered(&self, name: &PrincipalName) -> Option<PrincipalId> {
        let remembered = self.known.lock().get(name).copied()?;
        (remembered.sessions == self.sessions.get()).then_some(remembered.id)
    }

    fn remember(&self, name: &PrincipalName, remembered: Remembered) {
        let mut known = self.known.lock();
        if known.len() < KNOWN_MAX || known.contains_key(name) {
            known.insert(name.clone(), remembered);
        }
    }
}

/// The moment of a submit, in a statement that stores tasks with submitters: milliseconds since the
/// epoch, computed once. A CTE.
pub(in crate::postgres) const STAMP: &str = "stamp as materialized (
  select floor(extract(epoch from statement_timestamp()) * 1000)::bigint as at
)";

/// Returns true when a statement must write submitters.
pub(super) fn have_submitters(tasks: &[&NewTask]) -> bool {
    tasks.iter().any(|task| task.submitted_by.is_some())
}

pub(super) fn submitters_of(tasks: &[&NewTask]) -> Vec<Option<i16>> {
    tasks.iter().map(|task| task.submitted_by.map(PrincipalId::as_smallint)).collect()
}

/// Returns the submitters of a batch as its row has them: none when all tasks are anonymous, and
/// one when all have the same.
pub(super) fn submitters_of_batch(tasks: &[&NewTask]) -> Option<Vec<Option<i16>>> {
    let mut submitters = submitters_of(tasks);
    let first = submitters.first().copied()?;
    if submitters.iter().all(|submitter| *submitter == first) {
        submitters.truncate(1);
    }
    submitters.iter().any(Option::is_some).then_some(submitters)
}

/// Returns the expressions for `submitted_by` and `submitted_ats` of a batch made of rows in this
/// `order`. A subquery over the rows with a submitter would cost 7 % of a claim, even without such
/// rows.
pub(super) fn aggregates_in(order: &str) -> String {
    ["submitted_by", "submitted_at"]
        .map(|column| {
            format!(
                "case when count(submitted_by) = 0 then null
      when count(submitted_by) = count(*) and min({column}) = max({column})
        then array[min({column})]
      else array_agg({column}{order}) end"
            )
        })
        .join(",\n    ")
}

/// Reads who did what to a task. A statement that knows less leaves columns out.
pub(in crate::postgres) fn actors_of(row: &PgRow) -> Result<Actors, sqlx::Error> {
    let by: Option<String> = row.try_get("submitted_by")?;
    let at: Option<i64> = row.try_get("submitted_at")?;
    let submitted = by.zip(at).map(|(by, at)| Submitted {
        by: PrincipalName::stored(&by),
        at: Timestamp::from_millis(at),
    });
    Ok(Actors { submitted, ..Actors::default() })
}

/// Reads the name of a principal.
pub(in crate::postgres) fn principal_of(
    row: &PgRow,
    column: &str,
) -> Result<Option<PrincipalName>, sqlx::Error> {
    let name: Option<String> = row.try_get(column)?;
    Ok(name.map(|name| PrincipalName::stored(&name)))
}

/// Reads who dropped a dead letter, and when.
pub(in crate::postgres) fn dropped_of(row: &PgRow) -> Result<Option<Dropped>, sqlx::Error> {
    let at: Option<i64> = row.try_get("dropped_at")?;
    let by = principal_of(row, "dropped_by")?;
    Ok(at.map(|at| Dropped { by, at: Timestamp::from_micros(at) }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Headers, Record, ShardCount, TopicName};

    #[test]
    fn a_batch_names_its_submitters_as_shortly_as_it_can() {
        let record = Record {
            topic: TopicName::stored("orders"),
            key: None,
            payload: None,
            headers: Headers::default(),
        };
        let task = |id: Option<i16>| NewTask {
            submitted_by: id.map(PrincipalId::new),
            ..NewTask::new(record.clone(), None, Timestamp::EPOCH, ShardCount::DEFAULT, (0, 1))
        };
        for (tasks, expected) in [
            (vec![], None),
            (vec![None, None], None),
            (vec![Some(7)], Some(vec![Some(7)])),
            (vec![Some(7), Some(7)], Some(vec![Some(7)])),
            (vec![None, Some(7)], Some(vec![None, Some(7)])),
            (vec![Some(8), Some(7), Some(8)], Some(vec![Some(8), Some(7), Some(8)])),
        ] {
            let tasks: Vec<NewTask> = tasks.into_iter().map(task).collect();
            let tasks: Vec<&NewTask> = tasks.iter().collect();
            assert_eq!(submitters_of_batch(&tasks), expected);
            assert_eq!(have_submitters(&tasks), expected.is_some());
        }
    }
}
