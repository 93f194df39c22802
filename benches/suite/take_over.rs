//! Measures a take-over: one of two nodes dies or leaves while tasks are due. The result is the
//! lateness of the worst task.

use std::process::Stdio;
use std::time::Duration;

use punctual::bench::results::quantiles::Spans;
use punctual::bench::results::report::BenchReport;
use punctual::shutdown::TaskFailure;
use rustix::process::Signal;

use crate::contender::{Running, Who, bench, words};
use crate::servers::{Place, Servers};

/// The node dies or leaves at least this long after the start of the measurement, and before its
/// end.
const SECONDS_BEFORE: u64 = 7;
const MEASURED: &str = "14s";
const UNSETTLED_DEADLINE: Duration = Duration::from_secs(20);

/// Runs `count` rounds, each with its own cluster. The report's distribution is that of the worst
/// lateness of each round.
pub async fn rounds(
    servers: &Servers,
    count: u32,
    is_kill: bool,
) -> Result<BenchReport, TaskFailure> {
    let mut worst = Spans::default();
    let mut all: Option<BenchReport> = None;
    for number in 1..=count {
        let place = servers.place(1, 8).await?;
        let mut running = Running::prepare(servers, &place, Who::Nodes(2), &[], &[]).await?;
        running.spawn()?;
        running.ready().await?;
        let report = round(servers, &place, &mut running, is_kill).await?;
        running.end().await?;
        servers.forget(&place).await?;
        let max = report.spans.as_ref().map_or(0.0, |spans| spans.max);
        println!(
            "   round {number}: worst {max:.0} ms, {} duplicates, {} lost",
            report.counts.duplicates, report.counts.lost
        );
        worst.record(Duration::from_secs_f64(max / 1000.0));
        all = Some(match all {
            None => report,
            Some(mut all) => {
                all.counts.submitted += report.counts.submitted;
                all.counts.accepted += report.counts.accepted;
                all.counts.arrived += report.counts.arrived;
                all.counts.duplicates += report.counts.duplicates;
                all.counts.lost += report.counts.lost;
                all.counts.early += report.counts.early;
                all
            }
        });
    }
    let mut all = all.ok_or("no rounds")?;
    all.measured = "worst lateness of a round".to_owned();
    all.spans = worst.quantiles();
    all.series.clear();
    all.usage.clear();
    Ok(all)
}

async fn round(
    servers: &Servers,
    place: &Place,
    running: &mut Running,
    is_kill: bool,
) -> Result<BenchReport, TaskFailure> {
    let json = servers.folder.join(format!("{}.json", place.name));
    let victim = running.urls.pop().ok_or("there are two nodes")?;
    let mut bench = bench(servers, running, &place.topic);
    bench.args(words(
        &[("--rate", &500), ("--for", &MEASURED), ("--ahead-max", &"3s"), ("--warmup", &"1s")],
        "lateness",
    ));
    let mut child =
        bench.arg("--json").arg(&json).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    tokio::time::sleep(Duration::from_secs(SECONDS_BEFORE)).await;
    if is_kill {
        kill_with_unsettled_work(servers, place, running, &victim).await?;
    } else {
        running.terminate(1).await?;
    }
    child.wait().await?;
    let report = serde_json::from_str(&std::fs::read_to_string(&json)?)?;
    std::fs::remove_file(json)?;
    Ok(report)
}

/// Kills a node while it has unsettled work. The node is frozen before the check, so the work is
/// still unsettled when it dies.
async fn kill_with_unsettled_work(
    servers: &Servers,
    place: &Place,
    running: &mut Running,
    victim: &str,
) -> Result<(), TaskFailure> {
    let client = reqwest::Client::builder().no_proxy().build()?;
    let cluster: serde_json::Value =
        client.get(format!("{victim}/v1/cluster")).send().await?.json().await?;
    let node = cluster["node"].as_str().ok_or("a node tells its id")?;
    let query = format!(
        "select count(*)::text from execlog_batch where settled_at is null and owner = '{node}'"
    );
    let found = async {
        loop {
            running.signal(1, Signal::STOP)?;
            if servers.ask(&place.url, &query).await? != "0" {
                return Ok::<(), TaskFailure>(());
            }
            running.signal(1, Signal::CONT)?;
            tokio::time::sleep(Duration::from_millis(13)).await;
        }
    };
    tokio::time::timeout(UNSETTLED_DEADLINE, found)
        .await
        .map_err(|_elapsed| "the node never had unsettled work")??;
    running.kill(1).await
}
