//! Installs, checks and removes an outbox in a database of a user.

use std::fmt::Write as _;
use std::time::Duration;

use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Row};
use thiserror::Error;

use super::objects::{self, OutboxOwner};
use super::{BEGIN, PURPOSE, SCHEMA, VERSION};
use crate::clock;
use crate::postgres::{Connection, PostgresError, PostgresSettings};

/// The first version of Postgres with `gen_random_uuid`, as `server_version_num`.
const SERVER_MIN: i32 = 130_000;

/// The looks at the lock of another installation, and the pause between two of them.
const LOOKS_MAX: u32 = 5;
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The columns that a submitter writes. Sequence, table and time of a row are the outbox's own.
const COLUMNS: &str = "id, op, topic, name, task_id, attempt, due_at, delay, payload, \
                       payload_text, payload_bytes, tombstone, key, key_bytes, headers, ttr, retry";

const TABLES: [&str; 4] =
    ["punctual.outbox_0", "punctual.outbox_1", "punctual.outbox_2", "punctual.outbox_3"];

/// An administrative command that did not do its work.
#[derive(Debug, Error)]
pub enum SetupError {
    #[error(transparent)]
    Postgres(#[from] PostgresError),
    /// The setup has changed nothing, for this reason.
    #[error("{0}")]
    Refused(String),
}

/// The roles that get rights on an outbox.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Grants {
    /// Roles that may call the functions and insert rows.
    pub submitters: Vec<String>,
    /// Roles whose nodes take the rows out.
    pub drainers: Vec<String>,
}

/// The result of an installation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Installed {
    pub is_new: bool,
    /// The owner of the outbox, unless it is the user of the connection.
    pub other_owner: Option<String>,
}

/// The result of a check.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutboxReport {
    pub version: i32,
    /// The role that owns the schema and all objects in it.
    pub owner: String,
    /// Functions that are not those of this version.
    pub other_functions: Vec<String>,
    /// Rows that wait, counted up to [`ROWS_COUNTED_MAX`].
    pub waiting: u64,
    /// The age of the oldest waiting row.
    pub oldest: Option<Duration>,
    /// Refused rows, counted up to [`ROWS_COUNTED_MAX`].
    pub rejected: u64,
    /// The user of the connection, and the rights that it lacks to take rows out.
    pub user: String,
    pub missing_rights: Vec<String>,
}

/// Counts of rows end here.
pub const ROWS_COUNTED_MAX: u64 = 100_000;

impl OutboxReport {
    /// Returns the problems, one line each.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.version != VERSION {
            problems.push(other_version(self.version));
        }
        if !self.other_functions.is_empty() {
            problems.push(objects::other_functions(&self.other_functions, &self.owner));
        }
        if !self.missing_rights.is_empty() {
            problems.push(format!(
                "the role {} cannot drain it: it lacks {}; run `punctual outbox install \
                 --drainer {}` as the owner",
                self.user,
                self.missing_rights.join(", "),
                self.user
            ));
        }
        if self.rejected > 0 {
            problems.push(format!(
                "{} rows were rejected; punctual.outbox_rejected has them with their reasons",
                self.rejected
            ));
        }
        if let Some(age) = self.oldest.filter(|age| *age > Duration::from_secs(60)) {
            problems.push(format!(
                "the oldest row has waited for {} s; does a node run with this outbox?",
                age.as_secs()
            ));
        }
        problems
    }
}

/// Says that an outbox has another version than this program's, and the remedy.
pub fn other_version(version: i32) -> String {
    format!(
        "the outbox has version {version}, and this program needs {VERSION}; when it is empty, run \
         `punctual outbox remove` and `punctual outbox install`"
    )
}

/// Installs the outbox, unless it is there, and grants the rights.
///
/// # Errors
/// When the database cannot take it, or has an outbox of a role that the user cannot be. Then
/// nothing was changed.
pub async fn install(
    settings: &PostgresSettings,
    grants: &Grants,
) -> Result<Installed, SetupError> {
    let mut connection = Connection::new(settings, PURPOSE).plain();
    let run = async |open: &mut PgConnection| {
        sqlx::raw_sql(BEGIN).execute(&mut *open).await?;
        let outcome = install_in(open, grants).await?;
        let end = if outcome.is_ok() { "commit" } else { "rollback" };
        sqlx::raw_sql(end).execute(open).await?;
        Ok(outcome)
    };
    connection.run("install the outbox", run).await?.map_err(SetupError::Refused)
}

async fn install_in(
    open: &mut PgConnection,
    grants: &Grants,
) -> Result<Result<Installed, String>, sqlx::Error> {
    wait_for_others(open).await?;
    if let Some(reason) = refusal(open).await? {
        return Ok(Err(reason));
    }
    let owner = match objects::owner(open).await? {
        Ok(owner) => owner,
        Err(reason) => return Ok(Err(reason)),
    };
    if let Some(owner) = &owner {
        if let Some(reason) = refusal_of_installed(open, owner).await? {
            return Ok(Err(reason));
        }
    } else {
        sqlx::raw_sql(SCHEMA).execute(&mut *open).await?;
    }
    let submitters = grants.submitters.iter().map(|role| rights_to_submit(&quoted(role)));
    let drainers = grants.drainers.iter().map(|role| rights_to_drain(&quoted(role)));
    for rights in submitters.chain(drainers) {
        sqlx::raw_sql(AssertSqlSafe(rights)).execute(&mut *open).await?;
    }
    let is_new = owner.is_none();
    Ok(Ok(Installed { is_new, other_owner: owner.and_then(OutboxOwner::other_role) }))
}

/// Waits for an installation at the same time, for a second at most. Every role of the database may
/// take the lock. Without it, the second installation fails, because the schema has one name.
async fn wait_for_others(open: &mut PgConnection) -> Result<(), sqlx::Error> {
    for _look in 0..LOOKS_MAX {
        let text = "-- one installation at a time\n\
                    select pg_try_advisory_xact_lock(1886744163, 101)";
        let query = sqlx::query_scalar(text).persistent(false);
        let is_taken: bool = query.fetch_one(&mut *open).await?;
        if is_taken {
            break;
        }
        clock::sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

/// Returns why the outbox that is there is not one that the user has installed with this version.
async fn refusal_of_installed(
    open: &mut PgConnection,
    owner: &OutboxOwner,
) -> Result<Option<String>, sqlx::Error> {
    if let Some(reason) = owner.refusal() {
        return Ok(Some(reason));
    }
    match version_of(open).await? {
        Some(VERSION) => {}
        Some(other) => return Ok(Some(other_version(other))),
        None => {
            let reason = "punctual.installation has no row, so the schema `punctual` is no outbox";
            return Ok(Some(reason.to_owned()));
        }
    }
    let others = objects::differing_functions(open).await?;
    Ok((!others.is_empty()).then(|| objects::other_functions(&others, &owner.role)))
}

/// Returns why this database cannot have an outbox.
async fn refusal(open: &mut PgConnection) -> Result<Option<String>, sqlx::Error> {
    let row = sqlx::query(
        "-- may this database have an outbox
        select current_setting('server_version_num')::integer as version,
          current_setting('server_encoding') = 'SQL_ASCII' as has_no_encoding,
          exists (select from pg_namespace n where n.nspname = 'punctual' and not exists (
            select from pg_class c where c.relnamespace = n.oid and c.relname = 'installation'))
            as is_taken,
          exists (select from pg_class c join pg_roles r on r.oid = c.relowner
            where c.oid = to_regclass('public.execlog_batch') and r.rolname = 'punctual')
            as hides_tables",
    )
    .persistent(false)
    .fetch_one(open)
    .await?;
    let version: i32 = row.try_get("version")?;
    if version < SERVER_MIN {
        return Ok(Some(format!(
            "the server is Postgres {}, and an outbox needs 13 or later",
            version / 10_000
        )));
    }
    if row.try_get("has_no_encoding")? {
        let reason = "the encoding of the database is SQL_ASCII, so its texts may be no texts";
        return Ok(Some(reason.to_owned()));
    }
    if row.try_get("is_taken")? {
        let reason = "the database has another schema `punctual`, which is not an outbox";
        return Ok(Some(reason.to_owned()));
    }
    if row.try_get("hides_tables")? {
        let reason = "this is the database of a cluster whose user is called punctual: the schema \
                      `punctual` would come before its tables; use another database for the \
                      outbox, or another user for the cluster";
        return Ok(Some(reason.to_owned()));
    }
    Ok(None)
}

/// Returns the version of the outbox, or `None` without one.
async fn version_of(open: &mut PgConnection) -> Result<Option<i32>, sqlx::Error> {
    let is_there: bool = sqlx::query_scalar(
        "-- is there an outbox\nselect to_regclass('punctual.installation') is not null",
    )
    .persistent(false)
    .fetch_one(&mut *open)
    .await?;
    if !is_there {
        return Ok(None);
    }
    sqlx::query_scalar("-- version of an outbox\nselect version from punctual.installation")
        .persistent(false)
        .fetch_optional(open)
        .await
}

/// Returns a name as an identifier.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn rights_to_submit(role: &str) -> String {
    format!(
        "grant usage on schema punctual to {role};
        grant usage on sequence punctual.outbox_seq to {role};
        grant insert ({COLUMNS}) on punctual.outbox to {role};
        grant execute on all functions in schema punctual to {role};"
    )
}

fn rights_to_drain(role: &str) -> String {
    let mut rights = format!(
        "grant usage on schema punctual to {role};
        grant select on punctual.installation to {role};
        grant select, delete on punctual.outbox to {role};
        grant select, insert on punctual.outbox_rejected to {role};
        grant execute on function punctual.slot to {role};"
    );
    for table in TABLES {
        // Writing to a String cannot fail.
        write!(rights, "grant select, truncate on {table} to {role};").ok();
    }
    rights
}

/// Checks the outbox as the user of the URL.
///
/// # Errors
/// When there is none, or it cannot be read.
pub async fn check(settings: &PostgresSettings) -> Result<OutboxReport, SetupError> {
    let mut connection = Connection::new(settings, PURPOSE).plain();
    let run = async |open: &mut PgConnection| {
        sqlx::raw_sql(BEGIN).execute(&mut *open).await?;
        let outcome = check_in(open).await?;
        sqlx::raw_sql("rollback").execute(open).await?;
        Ok(outcome)
    };
    connection.run("check the outbox", run).await?.map_err(SetupError::Refused)
}

const MAY_READ: &str = "-- may the user read an outbox
select current_user::text, has_schema_privilege(n.oid, 'usage')
  and has_table_privilege(c.oid, 'select')
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname = 'punctual' and c.relname = 'installation'";

async fn check_in(open: &mut PgConnection) -> Result<Result<OutboxReport, String>, sqlx::Error> {
    let no_outbox = || "the database has no outbox; `punctual outbox install` makes one".to_owned();
    let owner = match objects::owner(open).await? {
        Ok(Some(owner)) => owner,
        Ok(None) => return Ok(Err(no_outbox())),
        Err(reason) => return Ok(Err(reason)),
    };
    let access: Option<(String, bool)> =
        sqlx::query_as(MAY_READ).persistent(false).fetch_optional(&mut *open).await?;
    let version = match access {
        Some((_user, true)) => version_of(open).await?,
        Some((user, false)) => {
            return Ok(Err(format!(
                "the role {user} cannot read the outbox; run `punctual outbox install --drainer \
                 {user}` as the owner"
            )));
        }
        None => None,
    };
    let Some(version) = version else { return Ok(Err(no_outbox())) };
    let other_functions = match version {
        VERSION => objects::differing_functions(open).await?,
        _ => Vec::new(),
    };
    let missing_rights = missing_rights(open).await?;
    let row = sqlx::query(
        "-- state of an outbox
        select (select count(*) from (select from punctual.outbox limit $1) x) as waiting,
          (select count(*) from (select from punctual.outbox_rejected limit $1) x) as rejected,
          (select (extract(epoch from clock_timestamp() - called_at) * 1000)::bigint
            from punctual.outbox order by seq limit 1) as oldest",
    )
    .bind(i64::try_from(ROWS_COUNTED_MAX).unwrap_or(i64::MAX))
    .persistent(false)
    .fetch_one(open)
    .await?;
    let count = |column: &str| {
        row.try_get::<i64, _>(column).map(|count| u64::try_from(count).unwrap_or_default())
    };
    let oldest: Option<i64> = row.try_get("oldest")?;
    Ok(Ok(OutboxReport {
        version,
        owner: owner.role,
        other_functions,
        waiting: count("waiting")?,
        oldest: oldest.map(|millis| Duration::from_millis(u64::try_from(millis).unwrap_or(0))),
        rejected: count("rejected")?,
        user: owner.user,
        missing_rights,
    }))
}

/// Returns the rights that the user lacks to take rows out.
async fn missing_rights(open: &mut PgConnection) -> Result<Vec<String>, sqlx::Error> {
    let needed: Vec<(&str, &str)> = [
        ("punctual.installation", "select"),
        ("punctual.outbox", "select"),
        ("punctual.outbox", "delete"),
        ("punctual.outbox_rejected", "select"),
        ("punctual.outbox_rejected", "insert"),
    ]
    .into_iter()
    .chain(TABLES.into_iter().flat_map(|table| [(table, "select"), (table, "truncate")]))
    .collect();
    let (tables, rights): (Vec<&str>, Vec<&str>) = needed.into_iter().unzip();
    sqlx::query_scalar(
        "-- missing rights on an outbox
        select r.action || ' on ' || r.name
        from unnest($1::text[], $2::text[]) as r (name, action)
        where not has_table_privilege(r.name, r.action)
        union all
        select 'execute on punctual.slot()'
        where not has_function_privilege('punctual.slot()', 'execute')",
    )
    .bind(&tables)
    .bind(&rights)
    .persistent(false)
    .fetch_all(open)
    .await
}

/// Removes the outbox. It must be empty, and nobody may be using it.
///
/// # Errors
/// When it is not there or not empty, or has objects of several roles. Then nothing was changed.
pub async fn remove(settings: &PostgresSettings) -> Result<(), SetupError> {
    let mut connection = Connection::new(settings, PURPOSE).plain();
    let run = async |open: &mut PgConnection| {
        sqlx::raw_sql(BEGIN).execute(&mut *open).await?;
        let outcome = remove_in(open).await?;
        let end = if outcome.is_ok() { "commit" } else { "rollback" };
        sqlx::raw_sql(end).execute(open).await?;
        Ok(outcome)
    };
    connection.run("remove the outbox", run).await?.map_err(SetupError::Refused)
}

/// Drops every object by its name. Objects of others that depend on one of them keep the outbox.
/// Version 1 has no function `finish`.
const DROP: &str = "
drop function if exists punctual.finish;
drop function punctual.cancel, punctual.replace, punctual.submit, punctual.check_task,
  punctual.check_target, punctual.refuse;
drop table punctual.outbox_rejected, punctual.outbox, punctual.installation;
drop function punctual.slot;
drop sequence punctual.outbox_seq;
drop schema punctual";

async fn remove_in(open: &mut PgConnection) -> Result<Result<(), String>, sqlx::Error> {
    match objects::owner(open).await? {
        Ok(Some(_owner)) => {}
        Ok(None) => return Ok(Err("the database has no outbox".to_owned())),
        Err(reason) => return Ok(Err(reason)),
    }
    // A transaction that has inserted and not yet committed holds a lock.
    sqlx::raw_sql(
        "-- stop inserts\nlock table punctual.outbox, punctual.outbox_rejected \
         in access exclusive mode",
    )
    .execute(&mut *open)
    .await?;
    let row = sqlx::query(
        "-- is an outbox empty
        select (select count(*) from (select from punctual.outbox limit 1) x) as waiting,
          (select count(*) from (select from punctual.outbox_rejected limit 1) x) as rejected",
    )
    .persistent(false)
    .fetch_one(&mut *open)
    .await?;
    if row.try_get::<i64, _>("waiting")? > 0 {
        let reason = "the outbox has rows that are not submitted yet; let a node drain them, or \
                      delete them from punctual.outbox";
        return Ok(Err(reason.to_owned()));
    }
    if row.try_get::<i64, _>("rejected")? > 0 {
        let reason = "punctual.outbox_rejected has rows; delete those that you do not need";
        return Ok(Err(reason.to_owned()));
    }
    sqlx::raw_sql(DROP).execute(open).await?;
    Ok(Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> OutboxReport {
        OutboxReport {
            version: VERSION,
            owner: "shop_owner".to_owned(),
            other_functions: Vec::new(),
            waiting: 3,
            oldest: Some(Duration::from_secs(5)),
            rejected: 0,
            user: "shop".to_owned(),
            missing_rights: Vec::new(),
        }
    }

    #[test]
    fn rows_on_their_way_are_no_problem_and_old_and_rejected_ones_are() {
        assert_eq!(report().problems(), Vec::<String>::new());
        let old = OutboxReport { oldest: Some(Duration::from_secs(61)), ..report() };
        let rejected = OutboxReport { rejected: 1, ..report() };
        let other = OutboxReport { version: VERSION + 1, ..report() };
        let missing = vec!["delete on punctual.outbox".to_owned()];
        let denied = OutboxReport { missing_rights: missing, ..report() };
        let functions = vec!["punctual.cancel(text,text)".to_owned()];
        let changed = OutboxReport { other_functions: functions, ..report() };
        for (wrong, said) in [
            (old, "waited for 61 s"),
            (rejected, "punctual.outbox_rejected"),
            (other, "has version 4"),
            (denied, "lacks delete on punctual.outbox"),
            (changed, "version 3: punctual.cancel(text,text); if their owner shop_owner"),
        ] {
            let problems = wrong.problems();
            assert!(problems.len() == 1 && problems[0].contains(said), "{problems:?}");
        }
    }

    #[test]
    fn a_role_is_one_identifier() {
        assert_eq!(quoted("shop\"; drop"), "\"shop\"\"; drop\"");
    }
}
