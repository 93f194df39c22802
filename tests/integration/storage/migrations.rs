//! Migrations of an empty database, and refused databases.

use punctual::postgres::cluster::schema::{CheckError, MigrateError, RefusedCluster};
use sqlx::migrate::Migrator;

use super::*;

static MIGRATIONS: Migrator = sqlx::migrate!();

#[tokio::test]
async fn a_new_database_is_ready_after_one_migration_and_unchanged_by_another() {
    let mut database = Database::empty().await;
    assert!(matches!(schema::check(&database.settings).await, Err(CheckError::NoSchema)));
    let first = schema::migrate(&database.settings, ClusterWishes::default()).await.unwrap();
    let count = MIGRATIONS.iter().count();
    assert_eq!((first.cluster, first.applied.len()), (ClusterSettings::DEFAULT, count));
    assert!(first.partitions_made > 292 + 24 + 6, "{}", first.partitions_made);
    let again = schema::migrate(&database.settings, ClusterWishes::default()).await.unwrap();
    assert_eq!((again.applied, again.changed), (vec![], vec![]));
    assert!(
        again.partitions_made <= 2,
        "{}: more than those of a quarter of an hour that began meanwhile",
        again.partitions_made
    );
    assert_eq!(schema::check(&database.settings).await.unwrap().cluster, ClusterSettings::DEFAULT);
    // No large column uses pglz.
    let slow = "select count(*) from pg_attribute a join pg_type t on t.oid = a.atttypid
                where attrelid in (select inhrelid from pg_inherits
                  union select unnest(array['task_far', 'dead_letter']::regclass[]))
                  and attnum > 0 and attlen = -1 and (typcategory = 'A' or typname = 'bytea')
                    and attcompression <> 'l' and attstorage <> 'e'
                  and attrelid::regclass::text not like '%idx'
                    and attrelid::regclass::text not like '%pkey'";
    assert_eq!(database.number(slow).await, 0);
}

#[tokio::test]
async fn a_database_of_another_encoding_is_refused_before_anything_is_made_in_it() {
    let mut database = Database::empty_as("encoding 'LATIN1' locale 'C' template template0").await;
    let refused = schema::migrate(&database.settings, ClusterWishes::default()).await.unwrap_err();
    assert!(matches!(refused, MigrateError::Refused(RefusedCluster::Server(_))), "{refused:?}");
    assert!(refused.to_string().contains("database is LATIN1"), "{refused}");
    assert_eq!(
        database.number("select count(*) from pg_tables where schemaname = 'public'").await,
        0
    );
    assert!(matches!(
        schema::check(&database.settings).await,
        Err(CheckError::Refused(RefusedCluster::Server(_)))
    ));
}

#[tokio::test]
async fn two_migrations_at_once_wait_for_each_other() {
    let database = Database::empty().await;
    let migrate = || schema::migrate(&database.settings, ClusterWishes::default());
    let (one, other) = tokio::join!(migrate(), migrate());
    let applied = one.unwrap().applied.len() + other.unwrap().applied.len();
    assert_eq!(applied, MIGRATIONS.iter().count(), "each version once");
}

/// While a change of a table waits for a lock, Postgres makes all other statements on it wait, too.
#[tokio::test]
async fn a_migration_behind_a_long_reader_holds_up_no_others() {
    let database = Database::empty().await;
    let migrate = || schema::migrate(&database.settings, ClusterWishes::default());
    migrate().await.unwrap();
    let mut reader = database.own.connect().await;
    let differ = "alter table task_far alter column payload set compression pglz,
        alter column payload set storage main";
    for text in [differ, "begin", "select from task_far"] {
        sqlx::raw_sql(text).execute(&mut reader).await.unwrap();
    }
    let others = async {
        let mut other = database.own.connect().await;
        let mut longest = Duration::ZERO;
        throughout("others are answered", seconds(5), async || {
            let began_at = Instant::now();
            sqlx::raw_sql("select from task_far").execute(&mut other).await.unwrap();
            longest = longest.max(began_at.elapsed());
            longest < seconds(3)
        })
        .await;
        sqlx::raw_sql("rollback").execute(&mut reader).await.unwrap();
        longest
    };
    let (migrated, longest) = tokio::join!(migrate(), others);
    migrated.unwrap();
    assert!(longest > Duration::from_millis(500), "the migration waited for nothing");
}

#[tokio::test]
async fn horizon_and_window_may_change_shards_and_leaf_may_not() {
    let database = Database::empty().await;
    let migrate = |wishes| schema::migrate(&database.settings, wishes);
    let small = ClusterWishes {
        shards: ShardCount::new(8).ok(),
        horizon: Some(seconds(3600)),
        ..ClusterWishes::default()
    };
    assert_eq!(migrate(small).await.unwrap().cluster.shards, ShardCount::new(8).unwrap());
    let wider = ClusterWishes { horizon: Some(seconds(7200)), ..ClusterWishes::default() };
    let report = migrate(wider).await.unwrap();
    assert_eq!((report.changed.len(), report.cluster.shards.get()), (1, 8), "{:?}", report.changed);
    // An hour of leaves, and the leaves that begin meanwhile.
    assert!((4..=6).contains(&report.partitions_made), "{}", report.partitions_made);
    let other_shards =
        ClusterWishes { shards: ShardCount::new(16).ok(), ..ClusterWishes::default() };
    assert!(matches!(
        migrate(other_shards).await,
        Err(MigrateError::Refused(RefusedCluster::Fixed { name: "shards", .. }))
    ));
    let other_leaf = ClusterWishes { leaf: Some(seconds(1800)), ..ClusterWishes::default() };
    assert!(matches!(
        migrate(other_leaf).await,
        Err(MigrateError::Refused(RefusedCluster::Fixed { name: "leaf", .. }))
    ));
    let absurd = ClusterWishes { window: Some(seconds(60)), ..ClusterWishes::default() };
    assert!(matches!(
        migrate(absurd).await,
        Err(MigrateError::Refused(RefusedCluster::Invalid(_)))
    ));
}

#[tokio::test]
async fn a_newer_schema_is_refused_unless_it_says_that_this_program_can_run_on_it() {
    let (mut database, _rules) = Database::with_long_leaves().await;
    database
        .run(
            "insert into _sqlx_migrations (version, description, success, checksum, \
             execution_time) values (9999, 'later', true, '', 0)",
        )
        .await;
    assert!(matches!(
        schema::check(&database.settings).await,
        Err(CheckError::Newer { applied: 9999 })
    ));
    assert!(matches!(
        schema::migrate(&database.settings, ClusterWishes::default()).await,
        Err(MigrateError::Newer(9999))
    ));
    // The same migration, made so that this program can run on it.
    let newest = MIGRATIONS.iter().map(|migration| migration.version).max().unwrap();
    let rename = format!(
        "update _sqlx_migrations set description = 'from {newest} later' where version = 9999"
    );
    database.run(&rename).await;
    schema::check(&database.settings).await.unwrap();
    let report = schema::migrate(&database.settings, ClusterWishes::default()).await.unwrap();
    assert_eq!(report.applied, Vec::<i64>::new());
}
