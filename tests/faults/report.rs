//! The result of a round, for people and for programs. For a violation it shows the whole history
//! of the task.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};
use uuid::Uuid;

use super::deliveries::Route;
use super::history::{History, Target};
use super::oracle::{Judgement, Rule};
use super::plan::Kind;
use super::round::{Round, seconds};

/// Violations shown in full.
const SHOWN_MAX: usize = 8;
/// Warnings of the nodes shown with the verdict, and characters of each.
const WARNINGS_MAX: usize = 12;
const WARNING_CHARACTERS_MAX: usize = 300;

const RULES: [(Rule, &str); 21] = [
    (Rule::Lost, "lost"),
    (Rule::EndedTwice, "ended twice"),
    (Rule::Early, "early"),
    (Rule::Changed, "changed"),
    (Rule::WrongVerdict, "wrong verdicts"),
    (Rule::WrongReceipt, "wrong receipts"),
    (Rule::Stranger, "strangers"),
    (Rule::Unattributed, "unattributed duplicates"),
    (Rule::WrongDeadLetter, "wrong dead letters"),
    (Rule::WrongAnswer, "wrong answers"),
    (Rule::BrokenNode, "broken nodes"),
    (Rule::Late, "late without a reason"),
    (Rule::TooManyAttempts, "attempts too many"),
    (Rule::AfterFinish, "attempts after the finish"),
    (Rule::AfterExpiry, "records after the expiry"),
    (Rule::WhilePaused, "published while paused"),
    (Rule::WrongRun, "wrong runs"),
    (Rule::OutOfOrder, "out of order"),
    (Rule::WrongRejection, "wrong rejections"),
    (Rule::WrongDelivery, "wrong deliveries"),
    (Rule::Uncovered, "uncovered operations"),
];

/// Returns the round as a table.
pub fn table(round: &Round) -> String {
    let (counts, found) = (round.judgement.counts, &round.judgement);
    let mut text = String::new();
    let mut line = |what: &str, figures: String| {
        // Writing to a String never fails.
        let _written = writeln!(text, "  {what:<24} {figures}").is_ok();
    };
    line(
        "submits",
        format!(
            "{} ({} accepted, of these {} in the place of another; {} refused; {} without an \
             answer, of which {} were stored and published)",
            counts.asked,
            counts.accepted,
            counts.replaced,
            counts.refused,
            counts.unknown,
            counts.unknown_stored
        ),
    );
    line(
        "cancels",
        format!(
            "{} ({} cancelled, {} too late, {} without an answer)",
            counts.cancels, counts.cancelled, counts.too_late, counts.cancels_unknown
        ),
    );
    line(
        "moves",
        format!(
            "{} ({} moved, {} without an answer); {} PUTs whose condition did not hold",
            counts.moves, counts.moved, counts.moves_unknown, counts.kept
        ),
    );
    line("runs of schedules", counts.runs.to_string());
    line(
        "tracked",
        format!(
            "{} accepted; {} calls of consumers ({} refused, {} without an answer)",
            counts.tracked, counts.calls, counts.calls_refused, counts.calls_unknown
        ),
    );
    if !round.history.delivered.is_empty() {
        let all = round.history.delivered.len();
        let popped =
            round.history.delivered.iter().filter(|one| one.route != Route::Callback).count();
        line("without Kafka", format!("{popped} popped, {} by a callback", all - popped));
    }
    if !round.history.doors.requests.is_empty() {
        line("doors", round.history.doors.figures());
    }
    line("records", counts.records.to_string());
    line(
        "ended",
        format!(
            "{} published ({} by receipt), {} finished, {} expired, {} cancelled, {} dead ({} \
             exhausted); {} still wait for their due time",
            counts.published,
            counts.by_receipt,
            counts.finished,
            counts.expired,
            counts.withdrawn,
            counts.dead,
            counts.exhausted,
            counts.pending
        ),
    );
    line(
        "lateness",
        format!(
            "p50 {} ms, p99 {} ms, max {} ms, faults and all",
            found.lateness_at(0.5),
            found.lateness_at(0.99),
            found.lateness_at(1.0)
        ),
    );
    line("longest wait unexplained", format!("{} ms", found.unexplained_max));
    let causes: Vec<String> =
        found.duplicates.iter().map(|(kind, count)| format!("{} {count}", kind.name())).collect();
    let total: usize = found.duplicates.values().sum();
    line(
        "duplicates",
        if total == 0 { "0".to_owned() } else { format!("{total} ({})", causes.join(", ")) },
    );
    let drained = round
        .drained_after
        .map_or_else(|| "never".to_owned(), |after| format!("{:.1} s", after.as_secs_f64()));
    line("all has ended after", drained);
    let done: Vec<String> = found
        .stakes
        .iter()
        .map(|(kind, (count, records))| format!("{} {count} ({records})", kind.name()))
        .collect();
    line(
        "operations",
        format!("{} (records at stake): {}", round.history.spans.len(), done.join(", ")),
    );
    for (rule, name) in RULES {
        line(name, found.count_of(rule).to_string());
    }
    text
}

/// Returns the round for programs.
pub fn summary(round: &Round) -> Value {
    let (counts, found) = (round.judgement.counts, &round.judgement);
    let by_kind = |values: Vec<(Kind, Value)>| -> Value {
        Value::Object(
            values.into_iter().map(|(kind, value)| (kind.name().to_owned(), value)).collect(),
        )
    };
    let rules = RULES
        .into_iter()
        .map(|(rule, name)| (name.replace(' ', "_"), json!(found.count_of(rule))))
        .collect();
    json!({
        "seed": round.plan.seed,
        "seconds": round.plan.seconds,
        "took_seconds": round.took.as_secs_f64(),
        "drained_after_seconds": round.drained_after.map(|after| after.as_secs_f64()),
        "submits": counts.asked, "accepted": counts.accepted, "replaced": counts.replaced,
        "refused": counts.refused,
        "committed": counts.committed,
        "unknown": counts.unknown, "unknown_stored": counts.unknown_stored,
        "cancels": counts.cancels, "cancelled": counts.cancelled, "too_late": counts.too_late,
        "cancels_unknown": counts.cancels_unknown,
        "moves": counts.moves, "moved": counts.moved, "moves_unknown": counts.moves_unknown,
        "kept": counts.kept,
        "records": counts.records, "published": counts.published, "by_receipt": counts.by_receipt,
        "withdrawn": counts.withdrawn, "dead": counts.dead, "pending": counts.pending,
        "tracked": counts.tracked, "finished": counts.finished, "exhausted": counts.exhausted,
        "expired": counts.expired, "runs": counts.runs,
        "calls": counts.calls, "calls_refused": counts.calls_refused,
        "calls_unknown": counts.calls_unknown,
        "lateness_ms": {
            "p50": found.lateness_at(0.5),
            "p99": found.lateness_at(0.99),
            "max": found.lateness_at(1.0),
        },
        "unexplained_wait_max_ms": found.unexplained_max,
        "duplicates": by_kind(found.duplicates.iter().map(|(kind, count)| (*kind, json!(count))).collect()),
        "operations": by_kind(
            found.stakes.iter().map(|(kind, (count, records))| (*kind, json!({
                "done": count,
                "records": records,
            }))).collect()
        ),
        "violations": Value::Object(rules),
    })
}

/// Summarizes the round's broken promises: the number for each rule, the first one of each, and the
/// most frequent warnings of the nodes. Returns `None` when all were kept.
pub fn verdict(name: &str, round: &Round) -> Option<String> {
    let violations = &round.judgement.violations;
    let mut text = format!("{name} (seed {}):", round.plan.seed);
    for (rule, rule_name) in RULES {
        if let Some(first) = violations.iter().find(|violation| violation.rule == rule) {
            text.push_str(&format!(
                "\n  {rule_name} {}, the first: {first}",
                round.judgement.count_of(rule)
            ));
        }
    }
    (!violations.is_empty()).then(|| text + &warnings(&round.folder))
}

/// Returns the most frequent warnings and errors in the logs of the nodes, each with its first
/// line.
fn warnings(folder: &Path) -> String {
    let files = std::fs::read_dir(folder).expect("read the folder of the round");
    let mut found: HashMap<(String, String), (usize, String)> = HashMap::new();
    for file in files.filter_map(Result::ok) {
        if !file.file_name().to_string_lossy().starts_with("node-") {
            continue;
        }
        let log = std::fs::read(file.path()).expect("read the log of a node");
        for line in String::from_utf8_lossy(&log).lines() {
            let Ok(parsed) = serde_json::from_str::<Value>(line) else { continue };
            let text = |name: &str| parsed[name].as_str().unwrap_or_default().to_owned();
            if ["WARN", "ERROR"].contains(&text("level").as_str()) {
                let first = || (0, line.chars().take(WARNING_CHARACTERS_MAX).collect());
                found.entry((text("level"), text("message"))).or_insert_with(first).0 += 1;
            }
        }
    }
    let mut found: Vec<(usize, String)> = found.into_values().collect();
    found.sort_by_key(|(count, _)| Reverse(*count));
    let shown = found.iter().take(WARNINGS_MAX);
    shown.map(|(count, first)| format!("\n  warned {count} times, the first: {first}")).collect()
}

/// Returns the evidence: the first violations of each rule, each with the whole history of its
/// task.
pub fn evidence(history: &History, judgement: &Judgement) -> String {
    let mut text = String::new();
    let mut shown = 0;
    for (rule, _) in RULES {
        let of_rule = judgement.violations.iter().filter(|violation| violation.rule == rule);
        for violation in of_rule.take(3).take(SHOWN_MAX.saturating_sub(shown)) {
            shown += 1;
            text.push_str(&format!("\n  {violation}\n"));
            for line in violation.task.into_iter().flat_map(|task| story(history, task)) {
                text.push_str(&format!("      {line}\n"));
            }
        }
    }
    let rest = judgement.violations.len() - shown;
    if rest > 0 {
        text.push_str(&format!("\n  and {rest} more\n"));
    }
    text
}

/// Returns all parts of a history that concern one task, and the operations meanwhile, in order.
fn story(history: &History, task: Uuid) -> Vec<String> {
    let mut lines: Vec<(i64, String)> = Vec::new();
    let records: Vec<_> = history.records.iter().filter(|record| record.id == task).collect();
    let serial = records.iter().find_map(|record| record.serial);
    let own = history
        .submits
        .iter()
        .find(|submit| submit.accepted() == Some(task) || Some(submit.serial) == serial);
    let name = own.and_then(|submit| Some((submit.topic, submit.name.as_ref()?)));
    let is_of_name = |topic: usize, other: Option<&String>| {
        name.is_some_and(|name| Some(name) == other.map(|other| (topic, other)))
    };
    for submit in &history.submits {
        let is_own = own.is_some_and(|own| own.serial == submit.serial);
        if is_own || is_of_name(submit.topic, submit.name.as_ref()) {
            lines.push((submit.sent_at, format!("{submit:?}")));
        }
    }
    for cancel in &history.cancels {
        let is_own = match &cancel.target {
            Target::Id(id) => *id == task,
            Target::Name(topic, name) => is_of_name(*topic, Some(name)),
        };
        if is_own {
            lines.push((cancel.sent_at, format!("{cancel:?}")));
        }
    }
    let moves = history.moves.iter().filter(|one| one.id == task);
    lines.extend(moves.map(|one| (one.sent_at, format!("{one:?}"))));
    let schedule = records.iter().find_map(|record| Some(&record.run.as_ref()?.schedule));
    let commands = history.commands.iter().filter(|command| Some(&command.schedule) == schedule);
    lines.extend(commands.map(|command| (command.sent_at, format!("{command:?}"))));
    let requests = history.doors.requests.iter().filter(|request| {
        own.is_some_and(|own| own.serial == request.serial)
            || is_of_name(request.topic, request.name.as_ref())
    });
    lines.extend(requests.map(|request| (request.sent_at, format!("{request:?}"))));
    let delivered = history.delivered.iter().filter(|delivered| delivered.id == task);
    lines.extend(delivered.map(|delivered| (delivered.at, format!("{delivered:?}"))));
    let calls = history.calls.iter().filter(|call| call.id == task);
    lines.extend(calls.map(|call| (call.sent_at, format!("{call:?}"))));
    lines.extend(records.iter().map(|record| (record.at, format!("{record:?}"))));
    lines.extend(
        history
            .lines
            .iter()
            .filter(|line| line.id == task)
            .map(|line| (line.published_at.unwrap_or(i64::MAX), format!("{line:?}"))),
    );
    let from = own.map_or_else(
        || lines.iter().map(|(at, _)| *at).min().unwrap_or_default(),
        |submit| submit.sent_at,
    );
    let to =
        lines.iter().map(|(at, _)| *at).filter(|at| *at < i64::MAX).max().unwrap_or(from) + 5000;
    for span in history.spans.iter().filter(|span| span.begin <= to && span.end >= from - 2000) {
        lines.push((span.begin, format!("operation {} until {}", span.operation, span.end)));
    }
    lines.sort_by_key(|(at, _)| *at);
    let shown = |at: i64| {
        if at == i64::MAX {
            "   (end)".to_owned()
        } else {
            format!("{:8.3}", seconds(at - history.started_at))
        }
    };
    lines.into_iter().map(|(at, line)| format!("{} {line}", shown(at))).collect()
}

/// Writes all results of a round to its folder.
pub fn write(round: &Round, folder: &Path) {
    let history = &round.history;
    let mut text = String::new();
    let all = [
        history.spans.iter().map(|span| format!("{span:?}\n")).collect::<String>(),
        history.submits.iter().map(|submit| format!("{submit:?}\n")).collect(),
        history.cancels.iter().map(|cancel| format!("{cancel:?}\n")).collect(),
        history.moves.iter().map(|one| format!("{one:?}\n")).collect(),
        history.calls.iter().map(|call| format!("{call:?}\n")).collect(),
        history.delivered.iter().map(|delivered| format!("{delivered:?}\n")).collect(),
        history.commands.iter().map(|command| format!("{command:?}\n")).collect(),
        history.runs.iter().map(|run| format!("{run:?}\n")).collect(),
        history.doors.requests.iter().map(|request| format!("{request:?}\n")).collect(),
        history.doors.rejections.iter().map(|rejection| format!("{rejection:?}\n")).collect(),
        history.records.iter().map(|record| format!("{record:?}\n")).collect(),
        history.lines.iter().map(|line| format!("{line:?}\n")).collect(),
        history.clock.changes.iter().map(|change| format!("{change:?}\n")).collect(),
        history.clock.readings.iter().map(|reading| format!("{reading:?}\n")).collect(),
    ];
    all.iter().for_each(|part| text.push_str(part));
    for (name, text) in [
        ("history.txt", text),
        ("plan.txt", round.plan.to_string()),
        ("summary.json", format!("{:#}\n", summary(round))),
        ("evidence.txt", evidence(history, &round.judgement)),
    ] {
        std::fs::write(folder.join(name), text).expect("write down what was found");
    }
}

/// Copies the servers' logs, because they are deleted with their stack.
pub fn keep_logs(logs: &Path, folder: &Path) {
    for entry in std::fs::read_dir(logs)
        .expect("read the folder of the servers' logs")
        .filter_map(Result::ok)
    {
        std::fs::copy(entry.path(), folder.join(entry.file_name())).expect("copy a server's log");
    }
}
