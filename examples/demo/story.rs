//! The steps of the demo, in order.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt};
use rustix::process::Signal;
use serde_json::{Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::Failure;
use crate::consumer::{Arrival, Consumer};
use crate::node::{Node, migrate};
use crate::servers::{Servers, final_lines, unsettled};
use crate::summary::{Facts, Kill, Spread};
use crate::wait::{now_ms, until, until_ms};

const TASK_COUNT: i64 = 1000;
const SPAN_MS: i64 = 10_000;
/// Time from the start of the submits to the first due time.
const LEAD_MS: i64 = 1500;
/// Maximum number of submits in flight.
const SUBMITTERS: usize = 32;
const NODE_DEADLINE: Duration = Duration::from_secs(20);
/// Time after the last due time: a take-over, and a margin for a slow machine.
const END_DEADLINE: Duration = Duration::from_secs(20);

/// Runs the demo. Returns true when every guarantee was kept.
pub async fn tell() -> Result<bool, Failure> {
    // reqwest requires a TLS provider, although all connections stay on one machine.
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        return Err("somebody else has chosen a TLS provider".into());
    }
    let servers = Servers::prepare().await?;
    let logs = std::env::temp_dir().join(&servers.name);
    std::fs::create_dir_all(&logs)?;
    let told = tokio::select! {
        told = tell_on(&servers, &logs) => told,
        _ = tokio::signal::ctrl_c() => Err("interrupted".into()),
    };
    let forgotten = servers.forget().await;
    if let Ok(true) = told {
        std::fs::remove_dir_all(&logs)?;
        forgotten?;
    } else {
        println!("\nThe nodes' logs are in {}", logs.display());
    }
    told
}

async fn tell_on(servers: &Servers, logs: &Path) -> Result<bool, Failure> {
    println!("Punctual: 1,000 tasks over 10 s, two nodes, and one of them is killed half-way.\n");
    migrate(servers).await?;
    let http = reqwest::Client::builder().timeout(Duration::from_secs(10)).build()?;
    let (survivor, victim) = tokio::join!(
        Node::start("node-1", servers, &http, logs),
        Node::start("node-2", servers, &http, logs)
    );
    let (mut survivor, mut victim) = (survivor?, victim?);
    for node in [&survivor, &victim] {
        let shards = until("both nodes have shards", NODE_DEADLINE, async || {
            let count = survivor.shards_of(node.id, &http).await?.len();
            Ok((count > 0 && count < 64).then_some(count))
        });
        println!(
            "  {} is ready on {} (pid {}) with {} of 64 shards",
            node.name,
            node.base,
            node.pid,
            shards.await?
        );
    }
    let consumer = Consumer::start(servers)?;
    let mut sql = servers.sql().await?;

    let start = now_ms() + LEAD_MS;
    let due_at = submit(&servers.name, start, [&survivor, &victim], &http).await?;
    let took = now_ms() + LEAD_MS - start;
    println!(
        "  {} tasks submitted over REST in {took} ms; they are due from now on, over {} s\n",
        due_at.len(),
        SPAN_MS / 1000
    );

    println!("  {:>6} {:>9}   {:>8} {:>9} {:>9}", "second", "arrived", "late p50", "p99", "max");
    let mut seen = 0;
    for second in 1..=SPAN_MS / 2000 {
        seen = report_second(second, start, seen, &consumer, &due_at).await;
    }
    let kill = kill(&mut victim, &survivor, &http, &mut sql).await?;
    println!(
        "\n  kill -9 of {} with {} tasks claimed and not yet settled\n",
        victim.name,
        kill.in_flight.len()
    );
    for second in SPAN_MS / 2000 + 1..=SPAN_MS / 1000 {
        seen = report_second(second, start, seen, &consumer, &due_at).await;
    }
    let facts = gather(due_at, kill, &consumer, &mut sql).await?;
    survivor.end().await?;
    Ok(facts.summarise())
}

/// Submits all tasks, half of them to each node. Returns the accepted due time of each task by id.
async fn submit(
    topic: &str,
    start: i64,
    nodes: [&Node; 2],
    http: &reqwest::Client,
) -> Result<HashMap<Uuid, i64>, Failure> {
    let submits = (0..TASK_COUNT).zip(nodes.iter().cycle()).map(|(number, node)| async move {
        let due_at = start + number * SPAN_MS / TASK_COUNT;
        let task = json!({
            "topic": topic,
            "due_at": due_at,
            "key": format!("customer-{}", number % 97),
            "payload": { "number": number },
        });
        let request = http.post(format!("{}/v1/tasks", node.base)).json(&task);
        let answer: Value =
            serde_json::from_str(&request.send().await?.error_for_status()?.text().await?)?;
        let id: Uuid = answer["id"].as_str().ok_or("a task without an id")?.parse()?;
        let answered: jiff::Timestamp =
            answer["due_at"].as_str().ok_or("a task without a due time")?.parse()?;
        Ok::<_, Failure>((id, answered.as_millisecond()))
    });
    futures_util::stream::iter(submits).buffer_unordered(SUBMITTERS).try_collect().await
}

/// Prints one line about the records since the last call. Returns the total number of records.
async fn report_second(
    second: i64,
    start: i64,
    seen: usize,
    consumer: &Consumer,
    due_at: &HashMap<Uuid, i64>,
) -> usize {
    until_ms(start + second * 1000).await;
    let arrivals = consumer.arrivals();
    let late = arrivals[seen..].iter().filter_map(|arrival| lateness(arrival, due_at)).collect();
    let spread = Spread::of(late);
    println!(
        "  {second:>4} s {:>9}   {:>5} ms {:>6} ms {:>6} ms",
        arrivals.len() - seen,
        spread.p50,
        spread.p99,
        spread.max
    );
    arrivals.len()
}

/// Returns the append time minus the due time, in milliseconds.
pub fn lateness(arrival: &Arrival, due_at: &HashMap<Uuid, i64>) -> Option<i64> {
    due_at.get(&arrival.id).map(|due_at| arrival.appended_at - due_at)
}

/// Kills `victim` while it certainly has unsettled work. The node is frozen, Postgres is asked for
/// its unsettled work, and the node is killed only if there is some.
async fn kill(
    victim: &mut Node,
    survivor: &Node,
    http: &reqwest::Client,
    sql: &mut PgConnection,
) -> Result<Kill, Failure> {
    let shards = survivor.shards_of(victim.id, http).await?;
    until("the node holds unsettled work", NODE_DEADLINE, async || {
        victim.signal(Signal::STOP)?;
        if unsettled(sql, victim.id).await?.is_empty() {
            victim.signal(Signal::CONT)?;
            return Ok(None);
        }
        Ok(Some(()))
    })
    .await?;
    victim.kill().await?;
    let killed_at = now_ms();
    // Asked again, because a claim that Postgres was executing has finished by now. No node adopts
    // batches for seconds.
    Ok(Kill {
        at: killed_at,
        in_flight: unsettled(sql, victim.id).await?.into_iter().collect(),
        shards: shards.into_iter().collect(),
    })
}

/// Waits for the remaining records, then collects the facts.
async fn gather(
    due_at: HashMap<Uuid, i64>,
    kill: Kill,
    consumer: &Consumer,
    sql: &mut PgConnection,
) -> Result<Facts, Failure> {
    let is_over = async || -> Result<Option<()>, Failure> {
        let open: i64 = sqlx::query_scalar(
            "select (select count(*) from task) + (select count(*) from execlog_batch where \
             settled_at is null)",
        )
        .fetch_one(&mut *sql)
        .await?;
        Ok((open == 0 && consumer.arrivals().len() >= due_at.len()).then_some(()))
    };
    if let Err(failure) = until("all tasks arrive and are settled", END_DEADLINE, is_over).await {
        // The summary lists the missing tasks.
        println!("\n  {failure}");
    }
    Ok(Facts { due_at, kill, arrivals: consumer.arrivals(), final_lines: final_lines(sql).await? })
}
