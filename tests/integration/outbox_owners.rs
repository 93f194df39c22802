//! An outbox belongs to one role: no other role can take its place.

use sqlx::PgConnection;

use crate::outbox::{Shop, outbox, run};
use crate::support::Stack;
use crate::support::database::Database;

/// The schema as `install` creates it.
const SCHEMA: &str = include_str!("../../src/postgres/outbox/schema.sql");

/// A role of a test that may create schemas in the database.
struct Role {
    name: String,
    url: String,
}

impl Role {
    async fn create(database: &Database, sql: &mut PgConnection, name: &str) -> Self {
        let name = database.name.replace("test", name);
        let url = database.url.replace("user=punctual", &format!("user={name}"));
        assert_ne!(url, database.url, "the role of a test's database stands in its URL");
        let database = &database.name;
        let create =
            format!("create role {name} login; grant create on database {database} to {name}");
        run(sql, &create).await;
        Self { name, url }
    }

    /// Runs statements as this role.
    async fn run(&self, sql: &mut PgConnection, statements: &str) {
        run(sql, &format!("set role {}; {statements}; reset role", self.name)).await;
    }

    async fn drop(self, sql: &mut PgConnection) {
        run(sql, &format!("drop owned by {0} cascade; drop role {0}", self.name)).await;
    }
}

#[tokio::test]
async fn a_look_alike_of_another_role_is_not_taken_for_an_outbox() {
    let database = Database::create(&Stack::shared(), "test-shop").await;
    let mut sql = database.connect().await;
    let owner = Role::create(&database, &mut sql, "owner").await;
    let mallory = Role::create(&database, &mut sql, "mallory").await;
    let belongs = format!("belongs to the role {}", mallory.name);
    let cancel = "create or replace function punctual.cancel(topic text, name text) returns uuid
        language plpgsql as $$ begin return null; end $$";
    let grants = "grant usage on schema punctual to public;
        grant select on all tables in schema punctual to public";
    mallory.run(&mut sql, &format!("{SCHEMA}; {cancel}; {grants}")).await;
    let (code, said) = outbox(&["install", "--database-url", &owner.url]).await;
    assert!(code == Some(1) && said.contains(&belongs) && said.contains(&owner.name), "{said}");
    // A superuser may act as any role, so the functions tell.
    for command in ["install", "check"] {
        let (code, said) = outbox(&[command, "--database-url", &database.url]).await;
        assert!(
            code == Some(1) && said.contains("punctual.cancel(text,text)"),
            "{command}: {said}"
        );
    }
    mallory.run(&mut sql, &format!("drop schema punctual cascade; {SCHEMA}; {grants}")).await;
    let (code, said) = outbox(&["install", "--database-url", &owner.url]).await;
    assert!(code == Some(1) && said.contains(&belongs), "{said}");
    let (code, said) = outbox(&["install", "--database-url", &database.url]).await;
    assert!(code == Some(0) && said.contains("already") && said.contains(&belongs), "{said}");
    // A view would run the code of its owner as its reader.
    let view = "drop schema punctual cascade; create schema punctual;
        create view punctual.installation as select 2 as version";
    mallory.run(&mut sql, view).await;
    for command in ["install", "check", "remove"] {
        let (code, said) = outbox(&[command, "--database-url", &database.url]).await;
        assert!(code == Some(1) && said.contains("is no table"), "{command}: {said}");
    }
    mallory.drop(&mut sql).await;
    for command in ["install", "install", "remove"] {
        let (code, said) = outbox(&[command, "--database-url", &owner.url]).await;
        assert_eq!(code, Some(0), "{command}: {said}");
    }
    owner.drop(&mut sql).await;
}

#[tokio::test]
async fn an_outbox_with_an_object_of_another_role_is_refused() {
    let mut shop = Shop::open(&Stack::shared()).await;
    let mallory = Role::create(&shop.database, &mut shop.sql, "mallory").await;
    shop.run(&format!("grant usage, create on schema punctual to {}", mallory.name)).await;
    let submit = "create function punctual.submit(topic text) returns uuid language sql
        as 'select null::uuid'";
    mallory.run(&mut shop.sql, submit).await;
    let belongs = format!("function punctual.submit(text) belongs to the role {}", mallory.name);
    for command in ["install", "check", "remove"] {
        let (code, said) = outbox(&[command, "--database-url", &shop.database.url]).await;
        assert!(code == Some(1) && said.contains(&belongs), "{command}: {said}");
    }
    mallory.drop(&mut shop.sql).await;
    for command in ["install", "check", "remove"] {
        let (code, said) = outbox(&[command, "--database-url", &shop.database.url]).await;
        assert_eq!(code, Some(0), "{command}: {said}");
    }
}
