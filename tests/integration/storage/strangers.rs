//! Roles without rights on the tables that hold the advisory locks of Punctual.

use punctual::postgres::partitions::retire::Retirer;
use sqlx::Connection as _;

use super::*;
use crate::outbox_owners::Role;

/// Takes all locks of the program: for the maintenance, for migrations and for retirements.
const HOLD: &str = "select pg_advisory_lock(1886744163, n) from generate_series(1, 18) n";
const LOCK: &str = "lock table only _sqlx_migrations in share update exclusive mode nowait";
/// A migration gives up after a minute.
const SOON: Duration = Duration::from_secs(50);

#[tokio::test]
async fn a_stranger_stops_neither_a_migration_nor_the_maintenance() {
    let mut database = Database::empty().await;
    let mallory = Role::create(&database.own, &mut database.sql, "mallory").await;
    let mut stranger = PgConnection::connect(&mallory.url).await.unwrap();
    execute(&mut stranger, HOLD).await;
    let wishes = ClusterWishes {
        leaf: Some(seconds(900)),
        horizon: Some(seconds(3600)),
        ..ClusterWishes::default()
    };
    let migrate = || tokio::time::timeout(SOON, schema::migrate(&database.settings, wishes));
    let (one, other) = tokio::join!(migrate(), migrate());
    let [one, other] = [one, other].map(|migrated| migrated.unwrap().unwrap());
    assert!(one.applied.is_empty() != other.applied.is_empty(), "one after the other");
    execute(&mut stranger, "begin").await;
    let denied = sqlx::raw_sql(LOCK).execute(&mut stranger).await.unwrap_err().to_string();
    assert!(denied.contains("permission denied"), "{denied}");
    // Locks of the session stay.
    execute(&mut stranger, "rollback").await;

    let rules = Rules { leaf_grace: seconds(3600), ..Rules::new(&one.cluster) };
    let now = database.now().await;
    let past = rules.partition_of(Parent::Task, now.minus(seconds(4 * 3600)));
    assert!(create(&mut database.connection(), &rules, &[past]).await.unwrap());
    assert_eq!(retire(&database, Parent::Task, rules).await.dropped_count, 1);
    let near = task(now.plus(seconds(60)));
    database.insert("task_far", near, b"x").await;
    let range = IdRange::of_times(now, now.plus(seconds(120)));
    let mut mover = Mover::new(&database.settings);
    assert_eq!(move_far(&mut mover, range).await.unwrap().task_count, 1);

    // A lock of a node still counts.
    execute(&mut stranger, "select pg_advisory_unlock_all()").await;
    database.insert("task_far", task(now.plus(seconds(61))), b"x").await;
    let mut node = database.another().await;
    execute(&mut node, HOLD).await;
    assert_eq!(move_far(&mut mover, range).await.unwrap().task_count, 0);
    assert!(!Retirer::new(&database.settings, Parent::Task, rules).lock().await.unwrap());
    stranger.close().await.unwrap();
    mallory.drop(&mut database.sql).await;
}

#[tokio::test]
async fn a_migration_waits_for_one_of_this_build_and_for_one_of_an_older_build() {
    let older = "select pg_advisory_lock(1886744163, 2)";
    let turn = "select count(*) from pg_locks where relation = '_sqlx_migrations'::regclass
        and mode = 'ShareUpdateExclusiveLock' and";
    let own = format!("begin; {LOCK}");
    for (hold, is_granted) in [(older, "granted"), (own.as_str(), "not granted")] {
        let (mut database, _rules) = Database::with_long_leaves().await;
        let mut holder = database.another().await;
        execute(&mut holder, hold).await;
        let settings = database.settings.clone();
        let migrating =
            tokio::spawn(async move { schema::migrate(&settings, ClusterWishes::default()).await });
        let query = format!("{turn} {is_granted}");
        eventually("the migration has come to its turn", SOON, async || {
            database.number(&query).await == 1
        })
        .await;
        assert!(!migrating.is_finished(), "{hold}");
        execute(&mut holder, "rollback; select pg_advisory_unlock_all()").await;
        migrating.await.unwrap().unwrap();
    }
}
