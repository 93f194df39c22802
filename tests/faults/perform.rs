//! Carries out the operations of a plan at their times.

use std::collections::HashMap;
use std::time::Duration;

use etcd_client::{Client, DeleteOptions, GetOptions};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use reqwest::Method;
use serde_json::json;
use tokio::sync::Mutex;

use super::doors;
use super::field::{Field, insist};
use super::history::{DELETED, LIMITED, PAUSED, Span, UNAVAILABLE};
use super::plan::{Kind, Operation, Plan, Resource};
use super::quota;
use super::replicated::{self, standby_follows};
use super::services;
use crate::support::{eventually, eventually_some, now_ms, wait};

/// The lowered limit of a topic, in bytes.
const LIMIT_LOW: &str = "2000";
const LIMIT_HIGH: &str = "1048588";
const RESTART_DEADLINE: Duration = Duration::from_secs(180);
/// The deadline of a reading, shorter than the time between two steps of a clock.
const READING_DEADLINE: Duration = Duration::from_millis(400);

/// Carries out a plan. Returns when everything is undone again. On a slow machine an operation that
/// takes longer than planned delays the later ones, so the plan keeps its shape. Operations needing
/// the same resource never overlap.
pub async fn perform(
    field: &Field,
    plan: &Plan,
    started_at: i64,
    say: impl Fn(&Span),
) -> Vec<Span> {
    let locks: HashMap<Resource, Mutex<()>> =
        plan.operations.iter().map(|operation| (operation.resource(), Mutex::default())).collect();
    let carry_out = async |operation: Operation| {
        let _alone = locks[&operation.resource()].lock().await;
        let begin = now_ms();
        carry_out(field, &operation).await;
        let span = Span { operation, begin, end: now_ms() };
        say(&span);
        span
    };
    let planned = |millis: u64| started_at + i64::try_from(millis).unwrap();
    let mut running = FuturesUnordered::new();
    let (mut open, mut spans, mut delay) = (Vec::<Operation>::new(), Vec::<Span>::new(), 0);
    for operation in plan.operations.iter().copied() {
        while open.iter().any(|open| open.over_at() <= operation.at) {
            let span: Span = running.next().await.expect("what is open is running");
            open.retain(|open| *open != span.operation);
            delay = delay.max(span.end - planned(span.operation.over_at()));
            spans.push(span);
        }
        let mut its_time = std::pin::pin!(wait::until(planned(operation.at) + delay));
        loop {
            tokio::select! {
                () = &mut its_time => break,
                Some(span) = running.next() => {
                    open.retain(|open| *open != span.operation);
                    spans.push(span);
                }
            }
        }
        open.push(operation);
        running.push(carry_out(operation));
    }
    spans.extend(running.collect::<Vec<Span>>().await);
    spans
}

/// The time until a broker certainly applies a topic's new settings, a moment after it has told
/// them. On a stalling machine, the moment is long.
const TAKEN_UP_MS: i64 = 2000;

async fn carry_out(field: &Field, operation: &Operation) {
    let (node, lasts) = (operation.node, i64::try_from(operation.lasts).unwrap());
    let until_undone = async || wait::until(now_ms() + lasts).await;
    let slot = || &field.slots[usize::from(node) - 1];
    match operation.kind {
        Kind::KillNode => {
            slot().kill().await;
            until_undone().await;
            slot().start_again().await;
            eventually_some("the node listens again", RESTART_DEADLINE, async || slot().address())
                .await;
        }
        Kind::FreezeNode => {
            slot().freeze().await;
            until_undone().await;
            slot().thaw().await;
        }
        Kind::PostgresStop => restart_postgres(field, Stop::InGoodOrder, lasts).await,
        Kind::PostgresImmediate => restart_postgres(field, Stop::AtOnce, lasts).await,
        Kind::PostgresCrash => crash_postgres(field).await,
        Kind::DiskFull => {
            field.own.disk("full").await;
            until_undone().await;
            field.own.disk("free").await;
        }
        Kind::KafkaStop => restart(field, "kafka", Stop::InGoodOrder, lasts).await,
        Kind::KafkaKill => restart(field, "kafka", Stop::AtOnce, lasts).await,
        Kind::TopicUnavailable => {
            // One of its two replicas is down.
            alter(field, UNAVAILABLE, ("min.insync.replicas", "2")).await;
            let begin = now_ms() + TAKEN_UP_MS;
            until_undone().await;
            field.note(UNAVAILABLE, |topic| topic.refusals.push((begin, now_ms())));
            alter(field, UNAVAILABLE, ("min.insync.replicas", "1")).await;
        }
        Kind::TopicDeleted => delete_topic(field, lasts).await,
        Kind::TopicLimit => limit_topic(field, lasts).await,
        Kind::EtcdStop => restart(field, "etcd", Stop::InGoodOrder, lasts).await,
        Kind::EtcdKill => restart(field, "etcd", Stop::AtOnce, lasts).await,
        Kind::EtcdEmptied => empty_etcd(field).await,
        Kind::EtcdLeases => revoke_leases(field).await,
        Kind::Cut(server) => {
            field.ways.cut(server, node).await;
            until_undone().await;
            field.ways.mend(server, node).await;
        }
        Kind::Delay(server) => {
            field.ways.delay(server, node, operation.by).await;
            until_undone().await;
            field.ways.cure(server, node).await;
        }
        Kind::HalfOpen(server) => {
            field.ways.silence(server, node).await;
            until_undone().await;
            field.ways.cure(server, node).await;
        }
        Kind::ClockStep => {
            field.step_clock(operation.by);
            until_undone().await;
            field.step_clock(0);
        }
        Kind::PostgresClock => move_postgres_clock(field, operation, lasts).await,
        Kind::AuthRewritten => {
            field.access.as_ref().expect("the nodes have an auth file").rewrite(lasts).await;
        }
        Kind::Pause => pause_topic(field, lasts).await,
        Kind::Quota => {
            limit_producers(field, Some(operation.by)).await;
            until_undone().await;
            limit_producers(field, None).await;
        }
        Kind::ShopStop | Kind::ShopFreeze | Kind::IntakePartitions | Kind::KillAtStore => {
            doors::carry_out(field, operation, lasts).await;
        }
        Kind::Service(fault) => services::break_service(field, fault, lasts).await,
        Kind::KillCallers => services::kill_callers(field, lasts).await,
        Kind::Replicated(kind) => replicated::carry_out(field, kind, operation).await,
        Kind::Stall(_) => panic!("a plan holds a stall, which nobody can cause"),
    }
}

/// Steps Postgres's clock forward, with the steps spread evenly, and slews it all the while. The
/// change is not undone, because a clock that goes back is another fault.
async fn move_postgres_clock(field: &Field, operation: &Operation, lasts: i64) {
    let (begin, steps) = (now_ms(), operation.steps().map(i64::from).collect::<Vec<_>>());
    let count = i64::try_from(steps.len()).unwrap().max(1);
    for (index, step) in (0..count).zip(steps.into_iter().chain([0])) {
        wait::until(begin + lasts * index / count).await;
        field.postgres_clock.step(step, operation.by);
        // Postgres may be down at this moment, but it answers at the end of a round.
        let reading = field.postgres_clock.note_reading(&field.cluster.sql);
        if !matches!(tokio::time::timeout(READING_DEADLINE, reading).await, Ok(Ok(()))) {
            eprintln!("Postgres did not say what its clock shows");
        }
    }
    wait::until(begin + lasts).await;
    field.postgres_clock.step(0, 0);
}

/// Pauses a topic. A node that was frozen may carry out a pause late, so the round ends with one
/// more resume.
async fn pause_topic(field: &Field, lasts: i64) {
    let path = format!("/v1/topics/{}/pause", field.topic_name(PAUSED));
    field.order(Method::POST, &path, &json!({ "reason": "a fault" })).await;
    let begin = now_ms();
    wait::until(begin + lasts).await;
    field.note(PAUSED, |topic| topic.pauses.push((begin, now_ms())));
    resume_topic(field).await;
}

/// Resumes the topic of pauses.
pub async fn resume_topic(field: &Field) {
    let path = format!("/v1/topics/{}/resume", field.topic_name(PAUSED));
    field.order(Method::POST, &path, &json!({})).await;
}

async fn limit_producers(field: &Field, bytes_per_second: Option<i64>) {
    let what = format!("each client may send {bytes_per_second:?} bytes a second");
    insist(&what, async || quota::set(&field.own.stack.kafka, bytes_per_second).await).await;
}

async fn limit_topic(field: &Field, lasts: i64) {
    let begin = now_ms();
    alter(field, LIMITED, ("max.message.bytes", LIMIT_LOW)).await;
    wait::until(begin + lasts).await;
    alter(field, LIMITED, ("max.message.bytes", LIMIT_HIGH)).await;
    field.note(LIMITED, |topic| topic.limits.push((begin, now_ms())));
}

#[derive(Clone, Copy)]
enum Stop {
    InGoodOrder,
    AtOnce,
}

async fn restart(field: &Field, service: &str, stop: Stop, lasts: i64) {
    match stop {
        Stop::InGoodOrder => field.own.stop(service).await,
        Stop::AtOnce => field.own.kill(service).await,
    }
    wait::until(now_ms() + lasts).await;
    field.own.start_again(service).await;
}

async fn restart_postgres(field: &Field, stop: Stop, lasts: i64) {
    restart(field, &field.own.primary(), stop, lasts).await;
    standby_follows(field).await;
}

/// Kills the backend of a claim loop, as the kernel would when memory runs out. Postgres then ends
/// all other backends and recovers.
async fn crash_postgres(field: &Field) {
    // The node of the backend may be killed or cut off at this moment. The backend is then gone,
    // and another one is chosen.
    let pid =
        eventually_some("the backend of a claim loop is killed", RESTART_DEADLINE, async || {
            let query = "select pid from pg_stat_activity where datname = current_database() and \
                         application_name = 'punctual claim' limit 1";
            let pid = sqlx::query_scalar::<_, i32>(query)
                .fetch_optional(&field.cluster.sql)
                .await
                .ok()
                .flatten()?;
            let status = tokio::process::Command::new("kill")
                .args(["-s", "KILL", &pid.to_string()])
                .status()
                .await;
            status.is_ok_and(|status| status.success()).then_some(pid)
        })
        .await;
    eventually_some("Postgres has recovered", RESTART_DEADLINE, async || {
        // The pool may have returned a connection that was about to end. An answer now comes from
        // after the crash.
        let alive =
            sqlx::query_scalar::<_, i64>("select count(*) from pg_stat_activity where pid = $1")
                .bind(pid);
        alive.fetch_one(&field.cluster.sql).await.ok().filter(|count| *count == 0)
    })
    .await;
    standby_follows(field).await;
}

async fn alter(field: &Field, topic: usize, setting: (&str, &str)) {
    let name = field.topic_name(topic);
    let what = format!("{} of {name} is set to {}", setting.0, setting.1);
    insist(&what, async || field.cluster.try_alter_topic(&name, &[setting]).await).await;
    // A broker that has just begun on a stalling machine needs seconds to read them.
    eventually(&what, RESTART_DEADLINE, async || {
        field.cluster.has_settings(&name, &[setting]).await == Ok(true)
    })
    .await;
}

async fn delete_topic(field: &Field, lasts: i64) {
    let (name, begin) = (field.topic_name(DELETED), now_ms());
    // The absence is recorded before the deletion, so answers in between are judged correctly.
    field.note(DELETED, |topic| topic.absences.push((begin, i64::MAX)));
    insist(&format!("topic {name} is deleted"), async || {
        match field.cluster.try_delete_topic(&name).await {
            // A retry of a request whose first answer was lost.
            Err(error) if error.contains("UnknownTopic") => Ok(()),
            other => other,
        }
    })
    .await;
    field.stop_reading(DELETED);
    wait::until(now_ms() + lasts).await;
    field.cluster.create_topic(&name, &[]).await;
    field.note(DELETED, |topic| {
        topic.absences.iter_mut().for_each(|absence| absence.1 = absence.1.min(now_ms()))
    });
    field.read_again(DELETED);
}

async fn etcd(field: &Field) -> Client {
    let connect = async || Client::connect([&field.own.stack.etcd], None).await.ok();
    eventually_some("etcd answers", RESTART_DEADLINE, connect).await
}

async fn empty_etcd(field: &Field) {
    let mut client = etcd(field).await;
    // Nodes may be about to create their keys again.
    eventually_some("there are keys in etcd to delete", RESTART_DEADLINE, async || {
        let answer = client.delete("", Some(DeleteOptions::new().with_all_keys())).await.ok()?;
        (answer.deleted() > 0).then_some(())
    })
    .await;
}

/// Revokes all leases, as if all had expired at the same moment.
async fn revoke_leases(field: &Field) {
    let mut client = etcd(field).await;
    let prefix = format!("{}/nodes/", field.cluster.name);
    // A node may be about to create its key.
    let leases = eventually_some("a node has its key in etcd", RESTART_DEADLINE, async || {
        let keys = client.get(prefix.clone(), Some(GetOptions::new().with_prefix())).await.ok()?;
        let leases: Vec<i64> = keys
            .kvs()
            .iter()
            .map(etcd_client::KeyValue::lease)
            .filter(|lease| *lease != 0)
            .collect();
        (!leases.is_empty()).then_some(leases)
    })
    .await;
    for lease in leases {
        // The lease may have expired by itself.
        if let Err(error) = client.lease_revoke(lease).await {
            eprintln!("lease {lease:x}: {error}");
        }
    }
}
