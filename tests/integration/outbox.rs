//! Outboxes: submits, replacements, cancels and finishes inside the transactions of an application.

use std::time::Duration;

use punctual::clock;
use punctual::domain::NodeId;
use punctual::domain::task::outbox_row::RejectedRow;
use punctual::postgres::PostgresSettings;
use punctual::postgres::inbound::{InboundStore, ItemKey, StoreError, StorePrecondition, Submits};
use punctual::postgres::outbox::source::OutboxSource;
use punctual::postgres::tasks::submit::Group;
use serde_json::json;
use sqlx::{AssertSqlSafe, PgConnection};

use crate::support::database::Database;
use crate::support::node::program;
use crate::support::proxy::{Proxy, Target};
use crate::support::{Cluster, Node, Stack, eventually};
use crate::tokens::AuthFile;

const DEADLINE: Duration = Duration::from_secs(60);

/// The database of an application.
pub struct Shop {
    pub database: Database,
    pub sql: PgConnection,
}

impl Shop {
    /// Creates a database with an outbox.
    pub async fn open(stack: &Stack) -> Self {
        let database = Database::create(stack, "test-shop").await;
        let (code, said) = outbox(&["install", "--database-url", &database.url]).await;
        assert_eq!(code, Some(0), "{said}");
        let sql = database.connect().await;
        Self { database, sql }
    }

    /// Installs the outbox once more, with these flags.
    pub async fn install(&self, flags: &[&str]) {
        let words = [&["install", "--database-url", self.database.url.as_str()], flags].concat();
        let (code, said) = outbox(&words).await;
        assert_eq!(code, Some(0), "{said}");
    }

    /// Returns the value of the flag that makes a node drain it.
    pub fn flag(&self) -> String {
        format!("shop={}", self.database.url)
    }

    pub async fn run(&mut self, statement: &str) {
        run(&mut self.sql, statement).await;
    }

    pub async fn count(&mut self, query: &str) -> i64 {
        sqlx::query_scalar(AssertSqlSafe(query.to_owned())).fetch_one(&mut self.sql).await.unwrap()
    }

    /// Waits until no row is left.
    pub async fn wait_empty(&mut self) {
        let sql = &mut self.sql;
        eventually("the outbox is empty", DEADLINE, async || {
            let query = "select count(*) from punctual.outbox";
            sqlx::query_scalar::<_, i64>(query).fetch_one(&mut *sql).await.unwrap() == 0
        })
        .await;
    }
}

pub async fn run(sql: &mut PgConnection, statement: &str) {
    sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).execute(sql).await.unwrap();
}

/// Runs `punctual outbox`. Returns its exit code and its output.
pub async fn outbox(arguments: &[&str]) -> (Option<i32>, String) {
    let output = program(&["outbox"]).args(arguments).output().await.unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(said).unwrap())
}

async fn drained_by(cluster: &Cluster, shop: &Shop) -> Node {
    cluster.node_with(&["--outbox", &shop.flag()]).await
}

const TASKS: &str = "select (select count(*) from task) + (select count(*) from task_far)";

#[tokio::test]
async fn an_outbox_is_installed_once_and_removed_when_it_is_empty() {
    let mut shop = Shop::open(&Stack::shared()).await;
    let url = shop.database.url.clone();
    let own = async |command| outbox(&[command, "--database-url", &url]).await;
    let (code, said) = own("install").await;
    assert!(code == Some(0) && said.contains("already"), "{said}");
    let (code, said) = own("check").await;
    assert!(code == Some(0) && said.contains("rejected 0"), "{said}");
    shop.run("select punctual.submit('orders', payload => '1', delay => '1 hour')").await;
    let (code, said) = own("remove").await;
    assert!(code == Some(1) && said.contains("not submitted yet"), "{said}");
    shop.run("delete from punctual.outbox").await;
    assert_eq!(own("remove").await.0, Some(0));
    let (code, said) = own("check").await;
    assert!(code == Some(1) && said.contains("no outbox"), "{said}");
}

#[tokio::test]
async fn a_role_submits_with_the_rights_of_a_submitter_alone() {
    let mut shop = Shop::open(&Stack::shared()).await;
    let role = shop.database.name.replace("test", "role");
    shop.run(&format!("create role {role} login")).await;
    let submit = "select punctual.submit('orders', payload => '1', delay => '1 hour')";
    let plain = "insert into punctual.outbox (topic, payload, delay) values ('t', '1', '1 s')";
    let as_role = format!("set role {role}");
    shop.run(&as_role).await;
    let denied = sqlx::raw_sql(submit).execute(&mut shop.sql).await;
    shop.run("reset role").await;
    assert!(denied.is_err(), "without the grant");
    let url = shop.database.url.clone();
    let grant = ["install", "--database-url", &url, "--submitter", &role];
    assert_eq!(outbox(&grant).await.0, Some(0));
    shop.run(&as_role).await;
    shop.run(submit).await;
    shop.run(plain).await;
    let denied = sqlx::raw_sql("delete from punctual.outbox").execute(&mut shop.sql).await;
    shop.run("reset role").await;
    assert!(denied.is_err(), "a submitter deletes nothing");
    let of_role = url.replace("user=punctual", &format!("user={role}"));
    let (code, said) = outbox(&["check", "--database-url", &of_role]).await;
    assert!(code == Some(1) && said.contains(&format!("--drainer {role}")), "{said}");
    assert_eq!(shop.count("select count(*) from punctual.outbox").await, 2);
    shop.run(&format!("drop owned by {role}; drop role {role}")).await;
}

#[tokio::test]
async fn a_wrong_call_is_refused_at_once_with_a_hint() {
    let mut shop = Shop::open(&Stack::shared()).await;
    for call in [
        "submit('no topic', payload => '1', delay => '1 s')",
        "submit('orders', payload => '1')",
        "submit('orders', payload => '1', delay => '1 s', due_at => now())",
        "submit('orders', payload => '1', delay => '1 month')",
        "submit('orders', payload => '1', delay => '-1 s')",
        "submit('orders', payload => '1', due_at => 'infinity')",
        "submit('orders', delay => '1 s')",
        "submit('orders', payload => '1', payload_text => '1', delay => '1 s')",
        "submit('orders', tombstone => true, delay => '1 s')",
        "submit('orders', payload => '1', delay => '1 s', name => '')",
        "submit('orders', payload => '1', delay => '1 s', headers => '[]')",
        "submit('orders', payload => '1', delay => '1 s', retry => '{}')",
        "submit('orders', payload => '1', delay => '1 s', key => 'a', key_bytes => 'b')",
        "replace('orders', null, payload => '1', delay => '1 s')",
        "cancel('orders', null)",
        "finish('orders')",
        "finish('orders', name => 'a', id => gen_random_uuid())",
        "finish('orders', name => 'a', attempt => 0)",
    ] {
        let statement = format!("select punctual.{call}");
        let error = sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut shop.sql).await;
        let error = error.expect_err(call).into_database_error().unwrap();
        let error = error.downcast::<sqlx::postgres::PgDatabaseError>();
        assert_eq!(error.code(), "22023", "{call}: {error}");
        assert!(error.hint().is_some(), "{call}");
    }
    assert_eq!(shop.count("select count(*) from punctual.outbox").await, 0);
}

#[tokio::test]
async fn a_submit_is_a_part_of_its_transaction_however_late_that_commits() {
    let cluster = Cluster::start("outbox").await;
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let mut shop = Shop::open(&cluster.stack).await;
    let _node = drained_by(&cluster, &shop).await;
    let submit = |text: &str| {
        format!("select punctual.submit('{topic}', payload_text => '{text}', delay => '0 s')")
    };
    let mut late = shop.database.connect().await;
    run(&mut late, "begin").await;
    run(&mut late, &submit("late")).await;
    let mut lost = shop.database.connect().await;
    run(&mut lost, "begin").await;
    run(&mut lost, &submit("lost")).await;
    run(&mut lost, "rollback").await;
    shop.run(&submit("early")).await;
    consumer.wait_count(1, DEADLINE).await;
    // The first row has the lowest number, and was not there when the others were taken.
    run(&mut late, "commit").await;
    consumer.wait_count(2, DEADLINE).await;
    let order = format!(
        "begin;
        select punctual.submit('{topic}', payload => '1', delay => '1 h', name => 'a');
        select punctual.submit('{topic}', payload => '1', delay => '1 h', name => 'b');
        select punctual.cancel('{topic}', 'a');
        select punctual.replace('{topic}', 'b', payload => '2', delay => '2 h');
        select punctual.submit('{topic}', payload => '3', delay => '1 h', name => 'a');
        commit"
    );
    shop.run(&order).await;
    shop.wait_empty().await;
    assert_eq!(cluster.count("select count(*) from execlog_cancelled").await, 2);
    let of_names = "select count(*) from task_name n join (select id, payload from task
        union all select id, payload from task_far) t on t.id = n.id
        where (n.name, t.payload) in (('a', '2'), ('b', '2'))";
    // The second submit of `a` found the name taken by the cancelled task.
    assert_eq!(cluster.count(of_names).await, 1);
    let records = consumer.records();
    let mut texts: Vec<&[u8]> =
        records.iter().map(|record| record.payload.as_deref().unwrap()).collect();
    texts.sort_unstable();
    assert_eq!(texts, [b"early".as_slice(), b"late"]);
    let entries = "select count(*) from outbox_seen";
    eventually("no entry is left", DEADLINE, async || cluster.count(entries).await == 0).await;
}

#[tokio::test]
async fn of_ten_thousand_rows_the_bad_ones_are_rejected_and_all_others_are_tasks() {
    let cluster = Cluster::start("outbox").await;
    let topic = cluster.topic("orders").await;
    let mut shop = Shop::open(&cluster.stack).await;
    let fill = format!(
        "insert into punctual.outbox (topic, payload, delay, name)
        select case when i % 200 = 0 then 'no-such-topic' else '{topic}' end, '{{}}',
          case when i % 200 <> 100 then interval '1 h' end, case when i % 2 = 0 then 'n' || i end
        from generate_series(1, 10000) i"
    );
    shop.run(&fill).await;
    let node = drained_by(&cluster, &shop).await;
    shop.wait_empty().await;
    assert_eq!(cluster.count(TASKS).await, 9_900);
    for (status, said) in [(422, "Kafka has no topic"), (400, "due_at and delay")] {
        let rejected = format!(
            "select count(*) from punctual.outbox_rejected
            where status = {status} and reason like '%{said}%'"
        );
        assert_eq!(shop.count(&rejected).await, 50, "{said}");
    }
    let metrics = node.metrics().await;
    assert!(metrics.contains("punctual_outbox_rows_rejected_total{outbox=\"shop\"} 100"));
    assert!(metrics.contains("punctual_outbox_rows_stored_total{outbox=\"shop\"} 9900"));
    for pages in
        [include_str!("../../docs/alerts.yml"), include_str!("../../docs/reference/metrics.md")]
    {
        let words = pages.split(|c: char| !c.is_ascii_lowercase() && c != '_');
        for name in words.filter(|word| word.starts_with("punctual_outbox_")) {
            assert!(metrics.contains(&format!("\n{name}{{")), "{name}: {metrics}");
        }
    }
}

#[tokio::test]
async fn two_nodes_at_one_outbox_store_each_row_once() {
    let cluster = Cluster::start("outbox").await;
    let mut shop = Shop::open(&cluster.stack).await;
    shop.run("insert into punctual.outbox (topic, payload, delay) values ('t', '1', '1 h')").await;
    let [ours, theirs] =
        [&cluster.database.url, &shop.database.url].map(|url| PostgresSettings::new(url).unwrap());
    let node = || NodeId::new(clock::wall(), rand::random(), rand::random());
    let store = || InboundStore::new(&ours, node(), Duration::from_secs(60));
    let (mut old, mut new) = (store(), store());
    let (mut first, mut second) = (OutboxSource::new(&theirs), OutboxSource::new(&theirs));
    let outbox = first.installation().await.unwrap().unwrap().0;
    let old_epoch = old.begin_epoch(outbox, "shop").await.unwrap();
    let rows = first.read(&[]).await.unwrap().unwrap();
    assert!(second.read(&[]).await.unwrap().is_none(), "the first has the lock");
    // The session of the first is lost, and the node does not know.
    first.close();
    let new_epoch = new.begin_epoch(outbox, "shop").await.unwrap();
    let again = second.read(&[]).await.unwrap().unwrap();
    assert!(rows == again && old.seen(old_epoch, &[]).await.is_err(), "the old one refuses none");
    let key = [ItemKey { id: rows[0].id, seq: rows[0].seq }];
    let submits = || Submits { items: &key, plain: Group::default(), named: None };
    let late = old.submit(&StorePrecondition::Rows(old_epoch), &submits()).await;
    assert!(matches!(late, Err(StoreError::Overtaken)), "{late:?}");
    new.submit(&StorePrecondition::Rows(new_epoch), &submits()).await.unwrap();
    let repeated = new.submit(&StorePrecondition::Rows(new_epoch), &submits()).await;
    assert!(matches!(repeated, Err(StoreError::Overtaken)), "{repeated:?}");
    assert_eq!(new.seen(new_epoch, &[key[0].id]).await.unwrap().len(), 1);
    assert_eq!(second.delete(&[key[0].seq], &[]).await.unwrap(), 1);
    // The row is gone, so its entry goes. The old node still cannot store it.
    new.forget(new_epoch, &[key[0].id]).await.unwrap();
    let late = old.submit(&StorePrecondition::Rows(old_epoch), &submits()).await;
    assert!(matches!(late, Err(StoreError::Overtaken)), "{late:?}");
}

#[tokio::test]
async fn a_rejected_row_keeps_all_that_was_inserted() {
    let mut shop = Shop::open(&Stack::shared()).await;
    shop.run(
        "insert into punctual.outbox (op, topic, name, due_at, payload_bytes, key_bytes, headers, \
         ttr, retry, task_id, attempt) values ('replace', 't', 'n', '2030-01-01 00:00Z', \
         '\\x00ff', '\\x01', '{\"a\": \"b\"}', '1 s', '{\"attempts_max\": 2}', \
         gen_random_uuid(), 3)",
    )
    .await;
    let kept = "select count(*) from (
        select to_jsonb(o) from punctual.outbox o
        intersect select to_jsonb(r) - 'rejected_at' - 'status' - 'reason'
        from punctual.outbox_rejected r) x";
    let mut other = shop.database.connect().await;
    run(&mut other, "begin isolation level repeatable read; select from punctual.outbox").await;
    let mut source = OutboxSource::new(&PostgresSettings::new(&shop.database.url).unwrap());
    let rows = source.read(&[]).await.unwrap().unwrap();
    let (seq, reason) = (rows[0].seq, "why".to_owned());
    let rejected = [RejectedRow { seq, status: 422, reason }];
    assert_eq!(source.delete(&[seq], &rejected).await.unwrap(), 1);
    assert_eq!(shop.count("select count(*) from punctual.outbox").await, 0);
    // A copy of the rejected row, as it was inserted, is a row of the outbox again.
    shop.run(
        "insert into punctual.outbox (seq, slot, id, op, called_at, topic, name, task_id, attempt, \
         due_at, delay, payload, payload_text, payload_bytes, tombstone, key, key_bytes, headers, \
         ttr, retry) \
         select seq, slot, id, op, called_at, topic, name, task_id, attempt, due_at, delay, \
         payload, payload_text, payload_bytes, tombstone, key, key_bytes, headers, ttr, retry \
         from punctual.outbox_rejected",
    )
    .await;
    assert_eq!(shop.count(kept).await, 1);
    let again = source.read(&[]).await.unwrap().unwrap();
    assert_eq!(rows, again);
}

#[tokio::test]
async fn a_consumer_finishes_tasks_inside_its_own_transaction() {
    let cluster = Cluster::start("outbox-finish").await;
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let mut shop = Shop::open(&cluster.stack).await;
    let node = drained_by(&cluster, &shop).await;
    let names = ["a", "b", "c"];
    for name in names {
        let task = "payload => '1', delay => '1 s', ttr => '1 h'";
        shop.run(&format!("select punctual.submit('{topic}', name => '{name}', {task})")).await;
    }
    let records = consumer.wait_count(names.len(), DEADLINE).await;
    let by_id = |number: usize| {
        let id = records[number].task_id();
        format!("select punctual.finish('{topic}', id => '{id}', attempt => 1)")
    };
    let state = async |name: &str| {
        let task = node.api().get(&format!("/v1/topics/{topic}/tasks/{name}")).await.json();
        task["state"].as_str().unwrap_or_default().to_owned()
    };
    shop.run(&format!("begin; {}; rollback", by_id(0))).await;
    assert_eq!(shop.count("select count(*) from punctual.outbox").await, 0);
    // Two by their ids, one of them twice, one by its name, and one that does not exist.
    let by_name = |name: &str| format!("select punctual.finish('{topic}', name => '{name}')");
    let calls = [by_id(1), by_id(2), by_id(1), by_name("nobody")].join("; ");
    shop.run(&format!("begin; {calls}; commit")).await;
    shop.wait_empty().await;
    let mut states = Vec::new();
    for name in names {
        states.push(state(name).await);
    }
    states.sort();
    assert_eq!(states, ["awaiting", "finished", "finished"], "one was rolled back");
    for name in names {
        shop.run(&by_name(name)).await;
    }
    shop.wait_empty().await;
    for name in names {
        assert_eq!(state(name).await, "finished");
    }
    let rejected = "select count(*) from punctual.outbox_rejected";
    assert_eq!(shop.count(rejected).await, 1);
    let of_nobody = format!("{rejected} where name = 'nobody' and op = 'finish' and status = 404");
    assert_eq!(shop.count(&of_nobody).await, 1);
}

/// Each rejected row costs round trips. The next turn goes on where a turn was too long.
#[tokio::test]
async fn many_rejected_rows_do_not_hold_up_an_outbox_when_postgres_is_slow() {
    let cluster = Cluster::start("outbox-slow").await;
    let topic = cluster.topic("orders").await;
    let mut shop = Shop::open(&cluster.stack).await;
    let mut proxy = Proxy::closed(Target::postgres(&cluster.stack)).await;
    proxy.slow_answers(Duration::from_millis(20));
    proxy.open().await;
    let url = cluster.database.url_by(proxy.address());
    let mut node = cluster.spawn_by(&url, &["--outbox", &shop.flag()]);
    node.wait_ready().await;
    let finish = format!("punctual.finish('{topic}', name => 'nobody-' || n)");
    shop.run(&format!("select {finish} from generate_series(1, 500) n")).await;
    let rejected = "select count(*) from punctual.outbox_rejected";
    eventually("some rows are rejected", DEADLINE, async || shop.count(rejected).await > 0).await;
    let left = shop.count("select count(*) from punctual.outbox").await;
    assert!(left > 0, "the first turn was not too long");
    assert!(node.log().contains("a turn takes too long"), "{}", node.log_tail());
    shop.wait_empty().await;
    assert_eq!(shop.count(rejected).await, 500);
}

/// The node cannot see that two rows are about one task when one of them has its id.
#[tokio::test]
async fn a_finish_by_id_overtakes_no_earlier_row() {
    let cluster = Cluster::start("outbox-order").await;
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let mut shop = Shop::open(&cluster.stack).await;
    let task = "payload => '1', delay => '1 s', ttr => '1 h'";
    shop.run(&format!("select punctual.submit('{topic}', name => 'a', {task})")).await;
    let _node = drained_by(&cluster, &shop).await;
    let id = consumer.wait_count(1, DEADLINE).await[0].task_id();
    // A task whose record is in the topic cannot be replaced, before it is finished.
    shop.run(&format!(
        "begin; select punctual.replace('{topic}', 'a', {task}); \
         select punctual.finish('{topic}', id => '{id}'); commit"
    ))
    .await;
    shop.wait_empty().await;
    let late =
        "select count(*) from punctual.outbox_rejected where op = 'replace' and status = 409";
    assert_eq!(shop.count(late).await, 1);
    assert_eq!(cluster.count(TASKS).await, 0, "nothing is pending");
}

/// Rows wait until there is a principal with the name of their outbox, and have its rights.
#[tokio::test]
async fn rows_have_the_rights_of_the_principal_of_their_outbox() {
    let cluster = Cluster::start("outbox").await;
    let [own, other] = [cluster.topic("own").await, cluster.topic("other").await];
    let mut shop = Shop::open(&cluster.stack).await;
    for topic in [&own, &other] {
        let submit = format!("select punctual.submit('{topic}', payload => '1', delay => '1 h')");
        shop.run(&submit).await;
    }
    let file = AuthFile::new("outbox", "version = 1\n[anonymous]\nroles = []\n");
    let node = cluster.node_with(&["--outbox", &shop.flag(), "--auth-file", file.path()]).await;
    eventually("the rows wait for their principal", DEADLINE, async || {
        node.log().contains("the auth file has no principal")
    })
    .await;
    assert_eq!(shop.count("select count(*) from punctual.outbox").await, 2);
    let principal = format!(
        "version = 1\n[anonymous]\noperate = true\n[principals.shop]\n\
         allow = [ {{ actions = [\"submit\"], topics = [{own:?}] }} ]\n"
    );
    std::fs::write(file.path(), principal).unwrap();
    shop.wait_empty().await;
    let denied = "select count(*) from punctual.outbox_rejected
        where status = 403 and reason like '%`submit`%'";
    assert_eq!(shop.count(denied).await, 1);
    let submitted = "select count(*) from task t join principal p on p.id = t.submitted_by
        where p.name = 'shop'";
    assert_eq!(cluster.count(submitted).await, 1);
    let stored = r#"punctual_principal_tasks_submitted_total{principal="shop"}"#;
    assert_eq!(node.api().metric(stored).await, 1.0);
}

/// An old transaction must neither lose rows nor make others wait.
#[tokio::test]
async fn a_table_is_truncated_when_its_turn_is_over_and_nobody_waits_for_it() {
    let mut shop = Shop::open(&Stack::shared()).await;
    let fill = "insert into punctual.outbox (slot, topic, payload, delay)
        select slot, 't', '1', '1 h' from generate_series(0, 3) slot";
    let pages = "select count(*) from pg_class where relname ~ '^outbox_[0-3]$'
        and pg_relation_size(oid) > 0";
    let mut source = OutboxSource::new(&PostgresSettings::new(&shop.database.url).unwrap());
    let mut old = shop.database.connect().await;
    run(&mut old, &format!("begin; {fill}")).await;
    shop.run("set lock_timeout = '100ms'").await;
    shop.run(fill).await;
    shop.run("delete from punctual.outbox").await;
    source.truncate_idle().await.unwrap();
    assert_eq!(shop.count(pages).await, 4, "the old transaction has locks");
    // An insert waits for no lock, as it would behind a truncation that waits.
    shop.run(fill).await;
    run(&mut old, "commit").await;
    source.truncate_idle().await.unwrap();
    assert_eq!(shop.count("select count(*) from punctual.outbox").await, 8, "no row was truncated");
    shop.run("delete from punctual.outbox").await;
    source.truncate_idle().await.unwrap();
    let left = shop.count(pages).await;
    assert!(left < 4, "the tables whose turn is over have no pages: {left}");
}

/// The page for users is run as it is printed.
#[tokio::test]
async fn the_page_about_sql_says_what_happens() {
    let cluster = Cluster::start("outbox").await;
    let topic = cluster.topic("orders").await;
    let mut shop = Shop::open(&cluster.stack).await;
    shop.run("create table orders (id bigint primary key)").await;
    let page = include_str!("../../docs/how-to/submit-from-sql.md");
    let blocks: Vec<&str> = page
        .split("```sql\n")
        .skip(1)
        .filter_map(|rest| rest.split_once("```"))
        .map(|(block, _)| block)
        .collect();
    assert!(blocks.len() >= 3, "{}", blocks.len());
    for block in blocks {
        shop.run(&block.replace("'orders'", &format!("'{topic}'"))).await;
    }
    let waiting = shop.count("select count(*) from punctual.outbox").await;
    assert!(waiting >= 4, "{waiting}");
    let _node = drained_by(&cluster, &shop).await;
    shop.wait_empty().await;
    assert_eq!(shop.count("select count(*) from punctual.outbox_rejected").await, 0);
    assert!(cluster.count(TASKS).await >= 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replacement_of_a_task_that_was_perhaps_sent_stops_no_other_row() {
    let cluster = Cluster::start("outbox").await;
    let mut shop = Shop::open(&cluster.stack).await;
    let topic = cluster.topic("orders").await;
    let node = drained_by(&cluster, &shop).await;
    for name in ["sent", "other"] {
        let task = json!({ "topic": topic, "delay": "2h", "payload": 1, "name": name });
        let id = node.api().submit(&task).await.id;
        if name == "sent" {
            // As after a redrive, or after a record without an acknowledgement.
            let follow = format!(
                "with f as (insert into task_follow values ('{id}', '{id}', true))
                 update task set first_id = id, attempt = 2 where id = '{id}'"
            );
            sqlx::query(AssertSqlSafe(follow)).execute(&cluster.sql).await.unwrap();
        }
    }
    let replace = format!("punctual.replace('{topic}', 'sent', payload => '2', delay => '1 h')");
    let cancel = |name: &str| format!("punctual.cancel('{topic}', '{name}')");
    shop.run(&format!("select {replace}, {}, {}", cancel("sent"), cancel("other"))).await;
    shop.wait_empty().await;
    let rejected = "select count(*) from punctual.outbox_rejected where status = 409";
    assert_eq!(shop.count(rejected).await, 1);
    assert_eq!(cluster.count("select count(*) from task").await, 1);
}

#[tokio::test]
async fn rows_of_a_topic_that_wait_for_its_limit_do_not_hold_up_the_others() {
    let cluster = Cluster::start("outbox").await;
    let mut shop = Shop::open(&cluster.stack).await;
    let [slow, other] = [cluster.topic("slow").await, cluster.topic("other").await];
    // The first turn may take a thousand. The rest waits for a hundred seconds.
    shop.run(&format!(
        "insert into punctual.outbox (topic, payload, delay)
         select '{slow}', '1', '1 hour' from generate_series(1, 2500)"
    ))
    .await;
    shop.run(&format!("select punctual.submit('{other}', payload => '1', delay => '1 hour')"))
        .await;
    let text = format!(
        "version = 1\n[anonymous]\nroles = []\n[principals.shop]\n\
         allow = [ {{ actions = [\"submit\"], topics = [\"*\"] }} ]\n\
         [topics.{slow:?}]\nlimits = {{ tasks_per_second = 10 }}\n"
    );
    let file = AuthFile::new("outbox-waits", &text);
    let flags = ["--outbox", &shop.flag(), "--auth-file", file.path(), "--batch-max", "10"];
    let node = cluster.node_with(&flags).await;
    let of_other =
        "select count(*) from (select topic from task union all select topic from task_far)
        t where topic like '%other'";
    eventually("the row behind them is stored", DEADLINE, async || {
        cluster.count(of_other).await == 1
    })
    .await;
    // The rows of a turn are deleted after they are stored, and then the line is written.
    eventually("the turn has ended", DEADLINE, async || {
        node.log().contains("rows of an outbox wait")
            && shop.count("select count(*) from punctual.outbox where topic like '%other'").await
                == 0
    })
    .await;
    let waiting = shop.count("select count(*) from punctual.outbox").await;
    assert!((500..=1_500).contains(&waiting), "{waiting} rows wait");
    assert_eq!(shop.count("select count(*) from punctual.outbox_rejected").await, 0);
}

/// The node that drains is killed again and again, in the middle of its turns.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_drain_an_outbox_while_the_one_at_work_is_killed() {
    const ROWS: i64 = 3_000;
    let cluster = Cluster::start("outbox").await;
    let mut shop = Shop::open(&cluster.stack).await;
    let topic = cluster.topic("orders").await;
    let mut nodes = [drained_by(&cluster, &shop).await, drained_by(&cluster, &shop).await];
    let stored = format!("punctual_outbox_rows_stored_total{{outbox={:?}}}", "shop");
    for round in 1..=3 {
        shop.run(&format!(
            "insert into punctual.outbox (topic, payload_text, delay)
             select '{topic}', {round} || '-' || n, '1 hour' from generate_series(1, {ROWS}) n"
        ))
        .await;
        // The one that has stored some of these rows is at work.
        let before = (round - 1) * ROWS;
        eventually("some rows are stored", DEADLINE, async || cluster.count(TASKS).await > before)
            .await;
        let mut counts = Vec::new();
        for node in &nodes {
            counts.push(node.api().metric(&stored).await);
        }
        let at_work = usize::from(counts[1] > 0.0);
        nodes[at_work].kill().await;
        nodes[at_work] = drained_by(&cluster, &shop).await;
    }
    shop.wait_empty().await;
    let distinct = "select count(distinct payload) from (select payload from task
        union all select payload from task_far) t";
    assert_eq!(cluster.count(TASKS).await, 3 * ROWS);
    assert_eq!(cluster.count(distinct).await, 3 * ROWS);
}
