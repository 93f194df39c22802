//! The mover: from the far table into the leaves.

use punctual::postgres::partitions::mover::Moved;

use super::*;

#[tokio::test]
async fn the_mover_skips_a_row_that_somebody_has_locked() {
    let (mut database, rules) = Database::with_long_leaves().await;
    let (census, now) = take_census(&mut database.connection(), Parent::Task).await.unwrap();
    let range = IdRange::of_times(now, rules.end_of_run(Parent::Task, &census.attached, now));
    let near: Vec<TaskId> =
        (0..20_u64).map(|number| task(now.plus(Duration::from_millis(60_000 + number)))).collect();
    for id in &near {
        database.insert("task_far", *id, b"x").await;
    }
    let mut holder = database.another().await;
    execute(
        &mut holder,
        &format!("begin; select from task_far where id = '{}' for update", near[7]),
    )
    .await;
    let mut mover = Mover::new(&database.settings);
    assert_eq!(
        move_far(&mut mover, range).await.unwrap(),
        Moved { task_count: 19, stuck_count: 0 }
    );
    execute(&mut holder, "rollback").await;
    assert_eq!(move_far(&mut mover, range).await.unwrap(), Moved { task_count: 1, stuck_count: 0 });
}

#[tokio::test]
async fn the_mover_moves_what_comes_within_the_horizon_and_skips_what_it_cannot_move() {
    let (mut database, rules) = Database::with_long_leaves().await;
    let (census, now) = take_census(&mut database.connection(), Parent::Task).await.unwrap();
    let end = rules.end_of_run(Parent::Task, &census.attached, now);
    let near: Vec<TaskId> =
        (0..2500_u64).map(|number| task(now.plus(Duration::from_millis(5000 + number)))).collect();
    for id in &near {
        database.insert("task_far", *id, b"x").await;
    }
    // Due within the horizon but large, due beyond the horizon, and already due.
    for number in 0..9 {
        database
            .insert(
                "task_far",
                task(now.plus(Duration::from_millis(9000 + number))),
                &vec![b'x'; 2 << 20],
            )
            .await;
    }
    let (far, overdue) = (task(end.plus(seconds(1))), task(now.minus(seconds(3600))));
    for id in [far, overdue] {
        database.insert("task_far", id, b"x").await;
    }
    let poison = near[1234];
    database
        .run(&format!("alter table task add constraint no_poison check (id <> '{poison}')"))
        .await;
    let mut mover = Mover::new(&database.settings);
    // A round ends early while Postgres still holds the lock of a refused statement. The next round
    // goes on.
    let (mut moved_count, mut stuck_count) = (0, 0);
    eventually("all that can be moved is moved", Duration::from_secs(30), async || {
        let moved = move_far(&mut mover, IdRange::of_times(now, end)).await.unwrap();
        moved_count += moved.task_count;
        stuck_count = moved.stuck_count;
        moved_count == 2508 && stuck_count == 1
    })
    .await;
    assert_eq!((moved_count, stuck_count), (2508, 1));
    assert_eq!(mover.count().await.unwrap(), 3);
    assert_eq!(database.number("select count(*) from task").await, 2508);
    database.run("alter table task drop constraint no_poison").await;
    assert_eq!(move_far(&mut mover, IdRange::of_times(now, end)).await.unwrap().task_count, 1);
    assert_eq!(database.state(far).await, Some((TaskState::Scheduled, 1)));
    assert_eq!(database.state(overdue).await, Some((TaskState::Scheduled, 1)));
    assert_eq!(database.state(near[0]).await, Some((TaskState::Scheduled, 1)));
}

#[tokio::test]
async fn what_stops_every_move_is_the_rounds_error_and_no_tasks_fault() {
    let (mut database, rules) = Database::with_long_leaves().await;
    let (census, now) = take_census(&mut database.connection(), Parent::Task).await.unwrap();
    let range = IdRange::of_times(now, rules.end_of_run(Parent::Task, &census.attached, now));
    let near: Vec<TaskId> =
        (0..40_u64).map(|number| task(now.plus(Duration::from_millis(60_000 + number)))).collect();
    for id in &near {
        database.insert("task_far", *id, b"x").await;
    }
    // As a full disk would, or a missing right.
    database
        .run(
            "create function full_disk() returns trigger language plpgsql as $$
              begin raise exception using errcode = 'disk_full', message = 'no room'; end $$;
             create trigger full_disk before insert on task
               for each row execute function full_disk()",
        )
        .await;
    let mut mover = Mover::new(&database.settings);
    // A round may end early, as above.
    let error = eventually_some("a round says why", Duration::from_secs(60), async || {
        move_far(&mut mover, range).await.err()
    })
    .await;
    assert!(punctual::error_chain::chain(&error).contains("no room"), "{error:?}");
    database.run("drop trigger full_disk on task").await;
    let mut moved_count = 0;
    eventually("all are moved", Duration::from_secs(60), async || {
        moved_count += move_far(&mut mover, range).await.unwrap().task_count;
        moved_count == 40
    })
    .await;
}
