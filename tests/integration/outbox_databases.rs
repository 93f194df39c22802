//! Outboxes in databases with settings of their own, and the order of rows of one key.

use std::time::Duration;

use crate::outbox::{Shop, outbox, run};
use crate::support::database::Database;
use crate::support::{Cluster, Stack};

const DEADLINE: Duration = Duration::from_secs(60);

/// Debezium makes such a publication. Postgres then refuses to delete a row that has no key.
#[tokio::test]
async fn an_outbox_is_drained_in_a_database_that_publishes_all_tables() {
    let cluster = Cluster::start("outbox-published").await;
    let topic = cluster.topic("orders").await;
    let database = Database::create(&cluster.stack, "test-shop").await;
    let mut sql = database.connect().await;
    run(&mut sql, "create publication everything for all tables").await;
    let mut shop = Shop { database, sql };
    shop.install(&[]).await;
    for topic in [topic.as_str(), "no-such-topic"] {
        let submit = format!("select punctual.submit('{topic}', payload => '1', delay => '1 h')");
        shop.run(&submit).await;
    }
    let _node = cluster.node_with(&["--outbox", &shop.flag()]).await;
    shop.wait_empty().await;
    assert_eq!(shop.count("select count(*) from punctual.outbox_rejected").await, 1);
    shop.run("delete from punctual.outbox_rejected").await;
}

#[tokio::test]
async fn roles_get_the_right_to_call_functions_where_not_everybody_has_it() {
    let database = Database::create(&Stack::shared(), "test-shop").await;
    let mut sql = database.connect().await;
    run(&mut sql, "alter default privileges revoke execute on functions from public").await;
    let mut shop = Shop { database, sql };
    let role = shop.database.name.replace("test", "role");
    let of_role = shop.database.url.replace("user=punctual", &format!("user={role}"));
    shop.run(&format!("create role {role} login")).await;
    shop.install(&["--drainer", &role]).await;
    let (code, said) = outbox(&["check", "--database-url", &of_role]).await;
    assert_eq!(code, Some(0), "{said}");
    shop.run(&format!("revoke execute on function punctual.slot from {role}")).await;
    let (code, said) = outbox(&["check", "--database-url", &of_role]).await;
    assert!(code == Some(1) && said.contains("lacks execute on punctual.slot()"), "{said}");
    shop.install(&["--submitter", &role]).await;
    let submit = "select punctual.submit('orders', payload => '1', delay => '1 hour')";
    let plain = "insert into punctual.outbox (topic, payload, delay) values ('t', '1', '1 s')";
    shop.run(&format!("set role {role}; {submit}; {plain}; reset role")).await;
    assert_eq!(shop.count("select count(*) from punctual.outbox").await, 2);
    shop.run(&format!("drop owned by {role}; drop role {role}")).await;
}

#[tokio::test]
async fn tasks_of_one_key_and_due_time_leave_in_the_order_of_their_rows() {
    let cluster = Cluster::start("outbox-order").await;
    let mut shop = Shop::open(&cluster.stack).await;
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let due = "due_at => date_trunc('second', now()) + interval '25 s', key => 'k'";
    shop.run(&format!(
        "begin;
        select punctual.submit('{topic}', name => 'a', payload => '0', {due});
        select punctual.replace('{topic}', name => 'a', payload => '1', {due});
        select punctual.submit('{topic}', payload => '2', {due});
        select punctual.replace('{topic}', name => 'b', payload => '3', {due});
        select punctual.submit('{topic}', payload => '4', {due});
        commit"
    ))
    .await;
    let _node = cluster.node_with(&["--outbox", &shop.flag()]).await;
    let records = consumer.wait_count(4, DEADLINE).await;
    let payloads: Vec<&[u8]> = records.iter().filter_map(|one| one.payload.as_deref()).collect();
    assert_eq!(payloads, [b"1", b"2", b"3", b"4"]);
}

/// A refusal is durable only when its row is deleted. A node that dies before that leaves it to the
/// next one, which may decide otherwise: the rows behind it must not have been carried out.
#[tokio::test]
async fn a_cancel_does_not_overtake_a_replacement_that_was_refused_at_first() {
    let cluster = Cluster::start("outbox-refused").await;
    let orders = cluster.topic("orders").await;
    let late = orders.replace("orders", "late");
    let mut shop = Shop::open(&cluster.stack).await;
    let task = "payload => '1', delay => interval '1 hour'";
    for call in [
        format!("replace('{late}', name => 'a', {task})"),
        format!("cancel('{late}', 'a')"),
        format!("submit('{orders}', {task})"),
    ] {
        shop.run(&format!("select punctual.{call}")).await;
    }
    let mut node = cluster.spawn_to_die_with("outbox-stored", &["--outbox", &shop.flag()]);
    node.wait_exit(DEADLINE).await;
    assert_eq!(shop.count("select count(*) from punctual.outbox_rejected").await, 0);
    assert_eq!(cluster.topic("late").await, late);
    let _heir = cluster.node_with(&["--outbox", &shop.flag()]).await;
    shop.wait_empty().await;
    assert_eq!(shop.count("select count(*) from punctual.outbox_rejected").await, 0);
    assert_eq!(cluster.count("select count(*) from execlog_cancelled").await, 1);
}
