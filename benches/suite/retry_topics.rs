//! Measures retries over a retry topic: a program in Java with Kafka's own client, because its
//! behaviour is what is compared (`benches/retry_topics`).

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use punctual::bench::ledger::{Ledger, Reply, written};
use punctual::bench::results::report::BenchReport;
use punctual::bench::results::{float, ratio};
use punctual::shutdown::TaskFailure;
use tokio::process::Command;

use crate::plan::Tracked;
use crate::servers::{Place, Servers};

/// Runs the program, and reports how late its retries were consumed.
pub async fn measure(
    servers: &Servers,
    place: &Place,
    tracked: &Tracked,
    (partitions, warm_up): (i32, Duration),
) -> Result<BenchReport, TaskFailure> {
    servers.topic(&format!("{}-retry", place.topic), partitions).await?;
    let program =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/retry_topics/RetryTopics.java");
    let (measured, backoff) = (Duration::from_secs(tracked.seconds), tracked.silence());
    let millis = |span: Duration| span.as_millis().to_string();
    let output = Command::new("java")
        .arg("-cp")
        .arg(servers.kafka_jars.join("*"))
        .arg(program)
        .args([&servers.kafka, &place.topic, &tracked.rate.to_string()])
        .args([millis(warm_up), millis(measured), millis(backoff)])
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await?;
    let said = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() || said.is_empty() {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(format!("the retry topics ended with {}: {why}", output.status).into());
    }
    let retries: Vec<(i64, i64)> = said.lines().map(retry_of).collect::<Result<_, _>>()?;
    Ok(report(&retries, tracked))
}

/// Reads the due time of a retry, and the time when it was consumed.
fn retry_of(line: &str) -> Result<(i64, i64), TaskFailure> {
    let (due_at, seen_at) = line.split_once(' ').ok_or("a line has no two times")?;
    Ok((due_at.parse()?, seen_at.parse()?))
}

fn report(retries: &[(i64, i64)], tracked: &Tracked) -> BenchReport {
    let from = retries.iter().map(|(due_at, _)| *due_at).min().unwrap_or_default();
    let to = retries.iter().map(|(due_at, _)| *due_at).max().unwrap_or_default() + 1;
    let ledger = Ledger::new(1, from);
    for (due_at, seen_at) in retries {
        let task = ledger.plan(*due_at);
        ledger.answered(&[task], |_| Reply::Accepted, None);
        ledger.arrived(&written(task.key), *seen_at);
    }
    let spans = ledger.lateness(&(from..to)).quantiles();
    let count = spans.as_ref().map_or(0, |spans| spans.count);
    BenchReport {
        scenario: "tracked".to_owned(),
        taken_at: jiff::Timestamp::from_millisecond(from)
            .map(|at| at.to_string())
            .unwrap_or_default(),
        settings: [("rate".to_owned(), tracked.rate.to_string())].into(),
        measured: "second attempt at its consumer - due".to_owned(),
        rate: ratio(float(count), Duration::from_secs(tracked.seconds).as_secs_f64()),
        counts: ledger.counts(),
        series: ledger.series(&(from..to), 1000),
        spans,
        ..BenchReport::default()
    }
}
