//! `punctual pop`: takes tasks for a consumer without Kafka, and runs a command for each.

use std::io;
use std::process::{ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::future;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::client::answer::{Deed, Ending, Exit, NodeAnswer};
use crate::client::args::{NodeOptions, PopArgs};
use crate::client::caller::{NodeCaller, Repeating};
use crate::client::output::ended::{end, put_out};
use crate::client::output::print;
use crate::client::task::{given, is_steering};
use crate::clock;
use crate::domain::Timestamp;
use crate::domain::time::duration::spelled;
use crate::signals::{EndSignal, Signals};

/// How long a call is repeated while no node answers.
const RETRY_FOR: Duration = Duration::from_secs(300);
/// For how long a command may go on after its time to run, while no node tells whether the time was
/// extended. A node restarts within it.
const EXTENDED_RETRY_FOR: Duration = Duration::from_secs(30);
/// The time that a call has beyond its wait.
const ANSWERED_AFTER: Duration = Duration::from_secs(10);
/// The shortest time between the beginnings of two calls when the first one gets no task.
const CALLS_APART: Duration = Duration::from_secs(1);

#[derive(Deserialize)]
struct Popped {
    tasks: Vec<Box<RawValue>>,
}

/// The members of a popped task that a command gets.
#[derive(Deserialize, Debug)]
struct PoppedTask {
    id: String,
    topic: String,
    attempt: u16,
    attempts_max: u16,
    finish_by: String,
    key: Option<String>,
    #[serde(default, deserialize_with = "given")]
    payload: Option<Box<RawValue>>,
    payload_text: Option<String>,
    payload_base64: Option<String>,
}

impl PoppedTask {
    /// Returns the bytes of the record's value. A tombstone has none.
    fn payload(&self) -> Result<Vec<u8>, String> {
        match (&self.payload, &self.payload_text, &self.payload_base64) {
            (Some(json), _, _) => Ok(json.get().into()),
            (None, Some(text), _) => Ok(text.clone().into_bytes()),
            (None, None, Some(base64)) => {
                STANDARD.decode(base64).map_err(|error| format!("the payload: {error}"))
            }
            (None, None, None) => Ok(Vec::new()),
        }
    }

    fn finish_by(&self) -> Result<Timestamp, String> {
        let at = Timestamp::of_rfc3339(&self.finish_by);
        at.ok_or_else(|| format!("finish_by is no time: {}", self.finish_by))
    }
}

/// The members of a task that say whether its consumer has more time.
#[derive(Deserialize)]
struct LookedUp {
    attempt: u16,
    finish_by: Option<String>,
}

/// Takes tasks, and prints them or runs a command for each.
pub async fn run(args: PopArgs) -> ExitCode {
    let timeout = args.node.timeout.max(args.wait.saturating_add(ANSWERED_AFTER));
    let node = NodeOptions { timeout, ..args.node.clone() };
    let caller = match NodeCaller::new(&node) {
        Ok(caller) => caller,
        Err(ending) => return ending.report(args.node.is_json()),
    };
    match &args.exec {
        Some(command) => work(&caller, &args, command).await,
        None => end(pop(&caller, &args).await, args.node.is_json(), Deed::Answer, shown),
    }
}

async fn pop(caller: &NodeCaller, args: &PopArgs) -> Result<NodeAnswer, Ending> {
    let body = json!({ "group": args.group, "wait": spelled(args.wait), "max": args.max });
    let call = caller.post(&["v1", "topics", &args.topic, "pop"], body.to_string())?;
    // A task of an answer that was lost comes again.
    let limit = if args.exec.is_some() { RETRY_FOR } else { Duration::ZERO };
    caller.ask_for(&call, limit, Repeating::IsSafe).await.map(|asked| asked.answer)
}

/// Prints a task on each line, in JSON.
fn shown(answer: &NodeAnswer) -> Result<String, Ending> {
    let popped: Popped = answer.read()?;
    let lines: Vec<String> = popped.tasks.iter().map(|task| line_of(task.get())).collect();
    Ok(lines.join("\n"))
}

/// Returns a JSON value on one line, without characters that steer a terminal. Line breaks and tabs
/// stand only between its tokens, and all others only in its strings, where JSON has an escape.
fn line_of(json: &str) -> String {
    let mut line = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '\n' | '\r' | '\t' => line.push(' '),
            c if is_steering(c) => line.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => line.push(c),
        }
    }
    line
}

/// Runs the command for each task until a signal comes. Commands that run then are waited for,
/// until a second signal.
async fn work(caller: &NodeCaller, args: &PopArgs, command: &str) -> ExitCode {
    let mut signals = Signals::listen(&EndSignal::ALL).unwrap_or_default();
    loop {
        let asked_at = clock::monotonic();
        let asked = tokio::select! {
            asked = pop(caller, args) => asked,
            signal = signals.next() => return ended_by(signal),
        };
        let popped = asked.and_then(|answer| match answer.problem() {
            Some(problem) => Err(problem.ending()),
            None => answer.read::<Popped>(),
        });
        let tasks = match popped {
            Ok(popped) => popped.tasks,
            Err(ending) => return ending.report(args.node.is_json()),
        };
        if tasks.is_empty() {
            tokio::select! {
                () = clock::sleep(pause_after(clock::monotonic().since(asked_at))) => {}
                signal = signals.next() => return ended_by(signal),
            }
            continue;
        }
        let running = tasks.iter().map(|task| one(caller, args, command, task.get()));
        let mut running = std::pin::pin!(future::join_all(running));
        let mut signal = None;
        loop {
            tokio::select! {
                _ended = &mut running => break,
                caught = signals.next() => match signal {
                    None => signal = Some(caught),
                    // The commands are killed when they are not waited for any more.
                    Some(_first) => return ended_by(caught),
                },
            }
        }
        if let Some(signal) = signal {
            return ended_by(signal);
        }
    }
}

/// Returns the pause after a call that has taken so long and got no task. A call with a short
/// `--wait` would otherwise be repeated without any pause.
fn pause_after(took: Duration) -> Duration {
    CALLS_APART.saturating_sub(took)
}

fn ended_by(signal: EndSignal) -> ExitCode {
    ExitCode::from(u8::try_from(signal.exit_code()).unwrap_or(u8::MAX))
}

/// Runs the command for one task, and answers by its exit code. An answer that is refused, and a
/// command that takes too long, are told: the task comes again, is dead after its last attempt, or
/// somebody else has ended it.
async fn one(caller: &NodeCaller, args: &PopArgs, command: &str, text: &str) {
    let is_json = args.node.is_json();
    // The exit code is that of one task, and not of the command.
    let _code: ExitCode = match answered(caller, command, text).await {
        Ok(answer) if is_json => put_out(&answer.text, true, Deed::Answer),
        Ok(answer) => match print::answered(&answer) {
            Ok(text) => put_out(&text, false, Deed::Answer),
            Err(ending) => ending.report(false),
        },
        Err(ending) => ending.report(is_json),
    };
}

async fn answered(caller: &NodeCaller, command: &str, text: &str) -> Result<NodeAnswer, Ending> {
    let refused = |reason: String| Ending::new(Exit::Refused, reason);
    let task: PoppedTask =
        serde_json::from_str(text).map_err(|error| refused(format!("no task: {error}")))?;
    let mut finish_by = task.finish_by().map_err(refused)?;
    let mut left = finish_by.since(clock::wall());
    let mut running = std::pin::pin!(execute(command, &task));
    let status = loop {
        let end = async {
            clock::sleep(left).await;
            let asked_at = clock::monotonic();
            let later = extended(caller, &task).await;
            (later, clock::monotonic().since(asked_at))
        };
        tokio::select! {
            status = &mut running => break status,
            (later, took) = end => match later {
                Some(later) if later > finish_by => {
                    left = later.since(finish_by).saturating_sub(took);
                    finish_by = later;
                }
                _ => return Err(refused(killed(&task))),
            },
        }
    };
    let (call, body) = match outcome(status) {
        None => ("finish", json!({ "attempt": task.attempt })),
        Some(reason) => ("fail", json!({ "attempt": task.attempt, "reason": reason })),
    };
    let call = caller.post(&["v1", "tasks", &task.id, call], body.to_string())?;
    let answer = caller.ask_for(&call, RETRY_FOR, Repeating::IsSafe).await?.answer;
    match answer.problem() {
        Some(problem) => Err(problem.ending()),
        None => Ok(answer),
    }
}

/// Says what becomes of a task whose command has taken too long.
fn killed(task: &PoppedTask) -> String {
    let next = if task.attempt >= task.attempts_max {
        "this was its last attempt, so it is dead"
    } else {
        "it comes again"
    };
    format!("{}  killed after its time to run; {next}", task.id)
}

/// Returns the end of the time to run, which the command may have extended. `None` when no node
/// tells, or another attempt was made. The command goes on meanwhile.
async fn extended(caller: &NodeCaller, task: &PoppedTask) -> Option<Timestamp> {
    let call = caller.get(&["v1", "tasks", &task.id], &[]).ok()?;
    let asked = caller.ask_for(&call, EXTENDED_RETRY_FOR, Repeating::IsSafe).await.ok()?;
    let looked_up: LookedUp = asked.answer.read().ok()?;
    let finish_by = looked_up.finish_by.filter(|_time| looked_up.attempt == task.attempt)?;
    Timestamp::of_rfc3339(&finish_by)
}

/// The processes of a command. They are killed when the command is not waited for any more.
struct ProcessGroup(Option<Pid>);

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(group) = self.0
            && let Err(error) = kill_process_group(group, Signal::KILL)
            && error != Errno::SRCH
        {
            tracing::warn!(%error, "cannot kill the processes of a command");
        }
    }
}

/// Runs the command in a shell, in a process group of its own: a Ctrl-C of the terminal does not
/// reach it. Its processes are killed when it is not waited for any more.
async fn execute(command: &str, task: &PoppedTask) -> Result<ExitStatus, String> {
    let payload = task.payload()?;
    let text = |error: io::Error| error.to_string();
    // A variable cannot hold the character NUL.
    let key = task.key.as_deref().filter(|key| !key.contains('\0')).unwrap_or_default();
    let mut child = Command::new("sh")
        .args(["-c", command])
        .env("PUNCTUAL_TASK_ID", &task.id)
        .env("PUNCTUAL_TASK_TOPIC", &task.topic)
        .env("PUNCTUAL_TASK_ATTEMPT", task.attempt.to_string())
        .env("PUNCTUAL_TASK_ATTEMPTS_MAX", task.attempts_max.to_string())
        .env("PUNCTUAL_TASK_FINISH_BY", &task.finish_by)
        .env("PUNCTUAL_TASK_KEY", key)
        .stdin(Stdio::piped())
        .kill_on_drop(true)
        .process_group(0)
        .spawn()
        .map_err(text)?;
    let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
    let mut group = ProcessGroup(pid);
    if let Some(mut input) = child.stdin.take() {
        match input.write_all(&payload).await {
            // A command need not read its payload.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(text(error)),
            _ => drop(input),
        }
    }
    let ended = child.wait().await.map_err(text);
    // Processes that the command has left behind go on.
    group.0 = None;
    ended
}

/// Returns the reason of a failure. `None` for a command that has done its work.
fn outcome(status: Result<ExitStatus, String>) -> Option<String> {
    match status {
        Ok(status) if status.success() => None,
        Ok(status) => Some(status.to_string()),
        Err(reason) => Some(reason),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_popped_task_is_the_same_json_and_steers_no_terminal() {
        let json = "{\n\t\"key\": \"a\u{9b}\u{202e}\u{2028}\u{7f}b\\u001b\"}";
        let line = line_of(json);
        assert!(!line.contains(is_steering), "{line:?}");
        let [before, after] = [json, line.as_str()].map(serde_json::from_str::<serde_json::Value>);
        assert_eq!(before.unwrap(), after.unwrap());
    }

    #[test]
    fn calls_without_a_task_begin_a_second_apart() {
        let pauses = [0, 400, 1_000, 20_000].map(|took| pause_after(Duration::from_millis(took)));
        assert_eq!(pauses, [1_000, 600, 0, 0].map(Duration::from_millis));
    }

    #[test]
    fn a_task_that_was_killed_at_its_last_attempt_does_not_come_again() {
        for (attempt, next) in [(2, "; it comes again"), (3, "last attempt, so it is dead")] {
            let task = json!({ "id": "i", "topic": "t", "attempt": attempt, "attempts_max": 3,
                "finish_by": "2030-01-31T09:30:00.000Z" });
            let said = killed(&serde_json::from_value(task).unwrap());
            assert!(said.starts_with("i  killed") && said.ends_with(next), "{said}");
        }
    }
}
