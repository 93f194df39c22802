//! The objects of the schema `punctual` in the catalog of a user's database: their owner, and the
//! bodies of the functions.
//!
//! The functions of an outbox run with the rights of their caller. A role that may create schemas
//! can make a look-alike, and then its code runs as other roles. So each command looks at the
//! catalog before it reads a table of the outbox.

use sqlx::Row;
use sqlx::postgres::PgConnection;

use super::{SCHEMA, VERSION};

/// The most functions that a message names.
const NAMED_MAX: i64 = 10;

/// The role that owns an outbox with all its objects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutboxOwner {
    pub role: String,
    /// The user of the connection.
    pub user: String,
    /// The user is the owner, or may `set role` to it, as a superuser may.
    pub user_may_act: bool,
}

impl OutboxOwner {
    /// Returns why the user cannot install into this outbox, if so.
    pub fn refusal(&self) -> Option<String> {
        let Self { role, user, user_may_act } = self;
        (!user_may_act).then(|| {
            format!(
                "the schema punctual belongs to the role {role}, and {user} is no member of it; \
                 drop the schema if that role should have no outbox here, or install the outbox \
                 as {role}"
            )
        })
    }

    /// Returns the role, unless it is the user of the connection.
    pub fn other_role(self) -> Option<String> {
        (self.role != self.user).then_some(self.role)
    }
}

/// The condition that a relation `c` has the name of a table of an outbox, and is none.
macro_rules! no_table {
    () => {
        "c.relname ~ '^(installation|outbox(_[0-3]|_rejected)?)$' and c.relkind not in ('r', 'p')"
    };
}

/// Finds the owner of the schema, and the first object with another owner. A view in the place of a
/// table would run the code of its owner when it is read.
const OWNER: &str = concat!(
    "-- owner of an outbox
select pg_get_userbyid(n.nspowner)::text as role, current_user::text as who,
  pg_has_role(n.nspowner, case when current_setting('server_version_num')::integer < 160000
    then 'member' else 'set' end) as user_may_act,
  o.object, o.owner, o.is_view
from pg_namespace n
left join lateral (
  select x.object, pg_get_userbyid(x.owner)::text as owner, x.is_view
  from (
    select case when c.relkind in ('r', 'p') then 'table ' when c.relkind = 'S' then 'sequence '
        when c.relkind = 'c' then 'type ' else 'view ' end || c.oid::regclass::text as object,
      c.relowner as owner,
      ",
    no_table!(),
    " as is_view
    from pg_class c
    where c.relnamespace = n.oid and c.relkind not in ('i', 'I')
    union all
    select 'function ' || p.oid::regprocedure::text, p.proowner, false
    from pg_proc p
    where p.pronamespace = n.oid
  ) x
  where x.owner <> n.nspowner or x.is_view
  order by x.is_view desc, x.object
  limit 1
) o on true
where n.nspname = 'punctual'
  and exists (select from pg_class c where c.relnamespace = n.oid and c.relname = 'installation')"
);

/// Returns the owner of the outbox, or `None` without an outbox. The inner error says which object
/// belongs to another role.
pub async fn owner(
    open: &mut PgConnection,
) -> Result<Result<Option<OutboxOwner>, String>, sqlx::Error> {
    let Some(row) = sqlx::query(OWNER).persistent(false).fetch_optional(open).await? else {
        return Ok(Ok(None));
    };
    let role = shown(row.try_get("role")?);
    let object: Option<&str> = row.try_get("object")?;
    let Some(object) = object.map(shown) else {
        let user = shown(row.try_get("who")?);
        return Ok(Ok(Some(OutboxOwner {
            role,
            user,
            user_may_act: row.try_get("user_may_act")?,
        })));
    };
    if row.try_get("is_view")? {
        return Ok(Err(format!(
            "the {object} is no table, so the schema punctual of the role {role} is no outbox; \
             drop the schema, and install the outbox again"
        )));
    }
    let other = shown(row.try_get("owner")?);
    Ok(Err(format!(
        "the {object} belongs to the role {other}, and the schema punctual to {role}, but all of \
         an outbox belongs to one role; drop the objects of other roles, or drop the schema and \
         install the outbox again as its owner"
    )))
}

const LOOK_ALIKE: &str = concat!(
    "-- is a table of an outbox none
select c.oid::regclass::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname = 'punctual' and ",
    no_table!(),
    "
order by 1 limit 1"
);

/// Returns why the tables of an outbox must not be read, if so.
pub async fn look_alike(open: &mut PgConnection) -> Result<Option<String>, sqlx::Error> {
    let found: Option<String> =
        sqlx::query_scalar(LOOK_ALIKE).persistent(false).fetch_optional(open).await?;
    let reason = |name: &str| format!("{} is no table, so this is no outbox", shown(name));
    Ok(found.as_deref().map(reason))
}

/// Returns a name of another role's choice without characters that control a terminal.
fn shown(name: &str) -> String {
    name.escape_debug().to_string()
}

/// Compares the functions by name. An overloaded function with another body differs, too.
const DIFFERING: &str = "-- functions of an outbox that differ
select coalesce(f.signature, 'punctual.' || e.name)
from unnest($1::text[], $2::text[]) as e (name, body)
full join (
  select p.proname::text as name, p.oid::regprocedure::text as signature, p.prosrc as body
  from pg_proc p join pg_namespace n on n.oid = p.pronamespace
  where n.nspname = 'punctual'
) f on f.name = e.name
where f.body is distinct from e.body
order by 1
limit $3";

/// Returns the functions that are not as [`VERSION`] installs them: changed, missing or added.
pub async fn differing_functions(open: &mut PgConnection) -> Result<Vec<String>, sqlx::Error> {
    let (names, bodies) = functions();
    let query = sqlx::query_scalar(DIFFERING).bind(names).bind(bodies).bind(NAMED_MAX);
    let found: Vec<String> = query.persistent(false).fetch_all(open).await?;
    Ok(found.iter().map(|name| shown(name)).collect())
}

/// Says which functions differ, and the remedy. `owner` is the role that may have changed them.
pub fn other_functions(functions: &[String], owner: &str) -> String {
    format!(
        "these functions are not those of version {VERSION}: {}; if their owner {owner} should \
         have no outbox here, drop the schema punctual, or else, when the outbox is empty, run \
         `punctual outbox remove` and `punctual outbox install` as {owner}",
        functions.join(", ")
    )
}

/// Returns the names of the functions of the schema, and their bodies.
fn functions() -> (Vec<&'static str>, Vec<&'static str>) {
    let definitions = SCHEMA.split("create function punctual.").skip(1);
    let functions = definitions.filter_map(|definition| {
        let (name, rest) = definition.split_once('(')?;
        Some((name, rest.split("$$").nth(1)?))
    });
    functions.unzip()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_function_of_the_schema_has_its_body() {
        let (names, bodies) = functions();
        let expected = [
            "slot",
            "refuse",
            "check_target",
            "check_task",
            "submit",
            "replace",
            "cancel",
            "finish",
        ];
        assert_eq!(names, expected);
        assert_eq!(names.len(), SCHEMA.matches("create function").count());
        assert!(bodies[0].trim().starts_with("select ("), "{}", bodies[0]);
        for body in &bodies[1..] {
            assert!(body.starts_with("\n") && body.ends_with("\nend "), "{body}");
        }
    }

    #[test]
    fn only_a_role_that_may_be_the_owner_installs() {
        let owner = |user: &str, user_may_act| OutboxOwner {
            role: "mallory".to_owned(),
            user: user.to_owned(),
            user_may_act,
        };
        let refusal = owner("shop", false).refusal().unwrap();
        assert!(refusal.contains("belongs to the role mallory, and shop is no member"));
        assert_eq!(owner("postgres", true).refusal(), None);
        assert_eq!(owner("postgres", true).other_role().as_deref(), Some("mallory"));
        assert_eq!(owner("mallory", true).other_role(), None);
    }

    #[test]
    fn a_name_cannot_steer_the_terminal() {
        assert_eq!(shown("a\u{1b}[2J\u{202e}"), "a\\u{1b}[2J\\u{202e}");
    }
}
