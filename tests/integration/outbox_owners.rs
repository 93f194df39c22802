//! An outbox belongs to one role: no other role can take its place, or stop it.

use punctual::postgres::PostgresSettings;
use punctual::postgres::outbox::source::OutboxSource;
use sqlx::{Connection as _, PgConnection};

use crate::outbox::{Shop, outbox, run};
use crate::support::Stack;
use crate::support::database::Database;

/// The schema as `install` creates it.
const SCHEMA: &str = include_str!("../../src/postgres/outbox/schema.sql");

/// A role of a test that may create schemas in the database.
pub struct Role {
    pub name: String,
    pub url: String,
}

impl Role {
    pub async fn create(database: &Database, sql: &mut PgConnection, name: &str) -> Self {
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

    pub async fn drop(self, sql: &mut PgConnection) {
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
    let read = source(&database.url).installation().await.unwrap();
    assert!(read.unwrap_err().contains("is no table"), "a node does not read it");
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

fn source(url: &str) -> OutboxSource {
    OutboxSource::new(&PostgresSettings::new(url).unwrap())
}

const LOCK: &str = "lock table only punctual.outbox in share update exclusive mode nowait";

#[tokio::test]
async fn only_a_role_that_may_delete_rows_can_stop_an_outbox() {
    let mut shop = Shop::open(&Stack::shared()).await;
    let [mallory, node] = [
        Role::create(&shop.database, &mut shop.sql, "mallory").await,
        Role::create(&shop.database, &mut shop.sql, "node").await,
    ];
    shop.install(&["--submitter", &mallory.name, "--drainer", &node.name]).await;
    let submit = "select punctual.submit('orders', payload => '1', delay => '1 hour')";
    let mut other = PgConnection::connect(&mallory.url).await.unwrap();
    for lock in [LOCK, "lock table punctual.outbox in share mode nowait"] {
        run(&mut other, "begin").await;
        let denied = sqlx::raw_sql(lock).execute(&mut other).await.unwrap_err().to_string();
        assert!(denied.contains("permission denied"), "{lock}: {denied}");
        run(&mut other, "rollback").await;
    }
    // The keys are those of an advisory lock of earlier versions. The insert is not committed.
    let stop = "begin; select pg_advisory_xact_lock(1886744163, 100)";
    run(&mut other, &format!("{stop}; {submit}")).await;
    shop.run(submit).await;
    let mut first = source(&node.url);
    assert_eq!(first.read(&[]).await.unwrap().unwrap().len(), 1);
    // An insert does not wait for a turn, and a second node skips it.
    shop.run(&format!("set lock_timeout = '100ms'; {submit}; set lock_timeout = 0")).await;
    let mut second = source(&shop.database.url);
    assert!(second.read(&[]).await.unwrap().is_none());
    let holder = second.holder().await.unwrap().unwrap();
    assert!(holder.contains(&format!("role {}", node.name)), "{holder}");
    assert!(holder.starts_with("pid ") && holder.ends_with("application punctual outbox"));
    first.give_back().await.unwrap();
    assert_eq!(second.holder().await.unwrap(), None);
    assert_eq!(second.read(&[]).await.unwrap().unwrap().len(), 2);
    second.close();
    run(&mut other, "rollback").await;
    mallory.drop(&mut shop.sql).await;
    node.drop(&mut shop.sql).await;
}
