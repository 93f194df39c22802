//! The command-line clients of the REST API: `submit`, `show`, `cancel`, `pop`, `finish`,
//! `fail`, `extend`, `list`, `dead`, `schedule`, `topic` and `cluster`.
//!
//! Each command prints its result to stdout and its errors to stderr. The exit code tells a script
//! what to do next. A command repeats a call only where that is safe: the task has a name, the call
//! was certainly not carried out, or the repetition changes nothing.

pub mod access;
pub mod answer;
pub mod args;
mod bulk;
mod caller;
mod commands;
mod draft;
pub mod lines;
pub mod output;
mod pages;
pub mod task;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::process::ExitCode;

use access::profile::{self, Profiles};
use answer::{Deed, Ending, NodeAnswer};
use args::DeadCommand;
use bulk::Bulk;
use caller::{Condition, NodeCaller, Repeating, ask, given};
use commands::{pop, schedule};
use draft::outcome;
use output::ended::{ToText, end, finish, put_out, watch_once};
use output::{cluster, counts, print, profiles, topics};
use pages::ListParameters;
use task::Task;

use crate::clock;

const TASKS: [&str; 2] = ["v1", "tasks"];
const DEAD: [&str; 2] = ["v1", "dead"];

/// Runs one client command.
pub async fn run(command: args::ClientCommand) -> ExitCode {
    match command {
        args::ClientCommand::Task { command } | args::ClientCommand::OfTasks(command) => {
            of_tasks(command).await
        }
        args::ClientCommand::Dead(args) => dead(args).await,
        args::ClientCommand::Schedule(args) => Box::pin(schedule::run(args)).await,
        args::ClientCommand::Topic(args) => Box::pin(topic(args)).await,
        args::ClientCommand::Profile(args) => choose_profile(args),
        args::ClientCommand::Cluster(args) => Box::pin(show_cluster(args)).await,
    }
}

async fn of_tasks(command: args::TaskCommand) -> ExitCode {
    match command {
        args::TaskCommand::Submit(args) => Box::pin(submit(*args)).await,
        args::TaskCommand::Show(args) => show(args).await,
        args::TaskCommand::Move(args) => move_tasks(*args).await,
        args::TaskCommand::Cancel(args) => cancel(*args).await,
        args::TaskCommand::Pop(args) => Box::pin(pop::run(args)).await,
        args::TaskCommand::Finish(args) => {
            answer(&args.node, &args.task, "finish", outcome::of_finish(&args)).await
        }
        args::TaskCommand::Fail(args) => {
            answer(&args.node, &args.task, "fail", outcome::of_fail(&args)).await
        }
        args::TaskCommand::Extend(args) => {
            answer(&args.node, &args.task, "extend", outcome::of_extend(&args)).await
        }
        args::TaskCommand::List(args) => list(*args).await,
    }
}

/// Submits a task, or the tasks of a file.
async fn submit(args: args::SubmitArgs) -> ExitCode {
    if let Some(file) = &args.file {
        return lines::submit(&args, file).await;
    }
    let asked = submit_one(&args).await;
    if args.replace {
        return end(asked, args.node.is_json(), Deed::Replace, print::replaced);
    }
    end(
        asked,
        args.node.is_json(),
        Deed::Submit { is_named: args.name.is_some() },
        print::submitted,
    )
}

async fn submit_one(args: &args::SubmitArgs) -> Result<NodeAnswer, Ending> {
    let caller = NodeCaller::new(&args.node)?;
    let body = draft::body_of(args).await.map_err(Ending::usage)?;
    let call = match (&args.topic, &args.name) {
        (Some(topic), Some(name)) if args.replace => {
            let condition =
                args.if_absent.then_some(Condition::IsAbsent).or(args.if_match.map(Condition::Is));
            let query = given(&[("when", &args.when), ("not_after", &args.not_after)]);
            let call = caller.put(&["v1", "topics", topic, "tasks", name], body)?;
            call.only_if(condition).with_query(&query)
        }
        _ => caller.post(&TASKS, body)?,
    };
    // A repeated PUT would schedule the task again if it was published in between.
    let repeating =
        if args.name.is_some() && !args.replace { Repeating::IsSafe } else { Repeating::MayDouble };
    let asked = caller.ask_for(&call, args.retry_for.unwrap_or_default(), repeating).await;
    asked.map(|asked| asked.answer)
}

/// Shows a task.
async fn show(args: args::Show) -> ExitCode {
    let asked =
        ask(&args.node, |caller| match (&args.task.id, &args.task.topic, &args.task.name) {
            (None, Some(topic), Some(name)) => {
                caller.get(&["v1", "topics", topic, "tasks", name], &[])
            }
            (id, ..) => caller.get(&["v1", "tasks", &id_text(*id)], &[]),
        });
    end(asked.await, args.node.is_json(), Deed::Read, print::shown)
}

/// Moves a task to another due time, or many tasks of a topic.
async fn move_tasks(args: args::MoveArgs) -> ExitCode {
    if args.by.is_some() || args.to.is_some() {
        return move_many(&args).await;
    }
    end(move_one(&args).await, args.node.is_json(), Deed::Move, print::moved)
}

async fn move_one(args: &args::MoveArgs) -> Result<NodeAnswer, Ending> {
    let body = draft::body_of_move(&args.due_at, &args.delay).map_err(Ending::usage)?;
    ask(&args.node, |caller| match (&args.id, &args.topic, &args.name) {
        (None, Some(topic), Some(name)) => {
            caller.patch(&["v1", "topics", topic, "tasks", name], body)
        }
        (id, ..) => caller.patch(&["v1", "tasks", &id_text(*id)], body),
    })
    .await
}

async fn move_many(args: &args::MoveArgs) -> ExitCode {
    let topic = args.topic.as_deref();
    if !args.yes && !args.dry_run {
        return unconfirmed(&deed_of_move(args), args.node.is_json());
    }
    let bulk = Bulk {
        path: &["v1", "tasks", "move"],
        topic,
        submitted_by: None,
        choice: Some(&args.choice),
        to_topic: None,
        new_due: (args.by.as_deref(), args.to.as_deref()),
        range: &args.range,
        is_dry_run: args.dry_run,
        is_json: args.node.is_json(),
        retry_for: bulk::RETRY_FOR,
        what: "task",
        done: "moved",
    };
    run_bulk(&args.node, bulk).await
}

/// Returns the words for a move of many tasks.
fn deed_of_move(args: &args::MoveArgs) -> String {
    let what = format!("tasks of {}", args.topic.as_deref().unwrap_or_default());
    let tasks = args::named(&what, Some(&args.choice), &args.range);
    format!("move {tasks} that can still be moved")
}

/// Cancels a task, or all tasks of a topic or a submitter.
async fn cancel(args: args::CancelArgs) -> ExitCode {
    if args.name.is_none() && (args.topic.is_some() || args.submitted_by.is_some()) {
        return cancel_many(&args).await;
    }
    end(cancel_one(&args).await, args.node.is_json(), Deed::Cancel, print::cancelled)
}

async fn cancel_one(args: &args::CancelArgs) -> Result<NodeAnswer, Ending> {
    ask(&args.node, |caller| match (&args.id, &args.topic, &args.name) {
        (None, Some(topic), Some(name)) => {
            let call = caller.delete(&["v1", "topics", topic, "tasks", name])?;
            Ok(call.only_if(args.if_match.map(Condition::Is)))
        }
        (id, ..) => caller.delete(&["v1", "tasks", &id_text(*id)]),
    })
    .await
}

async fn cancel_many(args: &args::CancelArgs) -> ExitCode {
    let (topic, submitted_by) = (args.topic.as_deref(), args.submitted_by.as_deref());
    if !args.yes && !args.dry_run {
        return unconfirmed(&deed_of_cancel(args), args.node.is_json());
    }
    let bulk = Bulk {
        path: &["v1", "tasks", "cancel"],
        topic,
        submitted_by,
        choice: Some(&args.choice),
        to_topic: None,
        new_due: (None, None),
        range: &args.range,
        is_dry_run: args.dry_run,
        is_json: args.node.is_json(),
        retry_for: bulk::RETRY_FOR,
        what: "task",
        done: "cancelled",
    };
    run_bulk(&args.node, bulk).await
}

/// Returns the words for a cancel of many tasks.
fn deed_of_cancel(args: &args::CancelArgs) -> String {
    let (topic, submitted_by) = (args.topic.as_deref(), args.submitted_by.as_deref());
    let of = topic.map(|topic| format!(" of {topic}")).unwrap_or_default();
    let by = submitted_by.map(|name| format!(" submitted by {name}")).unwrap_or_default();
    let tasks = args::named(&format!("tasks{of}{by}"), Some(&args.choice), &args.range);
    format!("cancel {tasks} that can still be cancelled")
}

/// Answers for a tracked task as its consumer.
async fn answer(
    node: &args::NodeOptions,
    task: &args::TaskArgs,
    call: &str,
    body: Result<Vec<u8>, String>,
) -> ExitCode {
    let asked = answer_one(node, task, call, body).await;
    end(asked, node.is_json(), Deed::Answer, print::answered)
}

async fn answer_one(
    node: &args::NodeOptions,
    task: &args::TaskArgs,
    call: &str,
    body: Result<Vec<u8>, String>,
) -> Result<NodeAnswer, Ending> {
    let body = body.map_err(Ending::usage)?;
    ask(node, |caller| match (&task.id, &task.topic, &task.name) {
        (None, Some(topic), Some(name)) => {
            caller.post(&["v1", "topics", topic, "tasks", name, call], body)
        }
        (id, ..) => caller.post(&["v1", "tasks", &id_text(*id), call], body),
    })
    .await
}

/// Refuses an irreversible bulk operation that was not confirmed.
fn unconfirmed(deed: &str, is_json: bool) -> ExitCode {
    let text =
        format!("this would {deed}; nothing was done\nadd --dry-run to count, or --yes to do it");
    Ending::usage(text).report(is_json)
}

/// Lists pending tasks in the order of their due times.
async fn list(args: args::ListArgs) -> ExitCode {
    if args.counts {
        let filters = given(&[("topic", &args.topic), ("state", &args.state)]);
        let asked = ask(&args.node, |caller| caller.get(&["v1", "tasks", "counts"], &filters));
        return end(asked.await, args.node.is_json(), Deed::Read, |answer| {
            counts::shown(answer, args.topic.as_deref())
        });
    }
    let mut filters = filters_of(&args.topic, &args.range);
    filters.extend(given(&[("submitted_by", &args.submitted_by), ("state", &args.state)]));
    let (choice, ids) = (&args.choice, args.choice.id_texts());
    filters.extend(ids.iter().map(|id| ("ids", id.as_str())));
    filters.extend(choice.names.iter().map(|name| ("names", name.as_str())));
    filters.extend(given(&[
        ("name_prefix", &choice.name_prefix),
        ("key", &choice.key),
        ("key_base64", &choice.key_base64),
    ]));
    let listing = ListParameters {
        path: &TASKS,
        filters,
        part: &args.part,
        is_json: args.node.is_json(),
        what: "task",
    };
    let cells = |task: Task| {
        let key = task
            .key
            .or_else(|| task.key_base64.map(|key| format!("base64:{key}")))
            .unwrap_or_default();
        [task.due_at, task.id, task.topic, task.name.unwrap_or_default(), key]
    };
    let printed = match NodeCaller::new(&args.node) {
        Ok(caller) => listing.print(&caller, ["DUE", "ID", "TOPIC", "NAME", "KEY"], cells).await,
        Err(ending) => Err(ending.into()),
    };
    finish(printed.map(|()| ExitCode::SUCCESS), args.node.is_json(), Deed::Read)
}

/// Lists, pauses and resumes topics, and sets their policies.
async fn topic(args: args::TopicArgs) -> ExitCode {
    use args::TopicCommand as Command;
    match args.command {
        Command::List(args) => {
            let limit = args.limit.to_string();
            let mut query = given(&[("after", &args.after)]);
            query.push(("limit", &limit));
            let asked = ask(&args.node, |caller| caller.get(&["v1", "topics"], &query));
            end(asked.await, args.node.is_json(), Deed::Read, topics::listed)
        }
        Command::Show(args) => {
            let asked = ask(&args.node, |caller| caller.get(&["v1", "topics", &args.topic], &[]));
            end(asked.await, args.node.is_json(), Deed::Read, topics::shown)
        }
        Command::Policy(args) => topic_policy(&args).await,
        Command::Callback(args) => topic_callback(&args).await,
        Command::Pause(args) => topic_act(&args, "pause").await,
        Command::Resume(args) => topic_act(&args, "resume").await,
    }
}

async fn topic_policy(args: &args::TopicPolicyArgs) -> ExitCode {
    let path = ["v1", "topics", &args.topic, "policy"];
    let asked = put_or_delete(&args.node, &path, args.file.as_deref());
    end(Box::pin(asked).await, args.node.is_json(), Deed::Schedule, topics::shown)
}

async fn topic_callback(args: &args::TopicCallbackArgs) -> ExitCode {
    let path = ["v1", "topics", &args.topic, "callback"];
    if args.file.is_none() && !args.delete {
        let asked = ask(&args.node, |caller| caller.get(&path, &[]));
        return end(asked.await, args.node.is_json(), Deed::Read, topics::callback);
    }
    let asked = put_or_delete(&args.node, &path, args.file.as_deref());
    let show: ToText = if args.delete { topics::callback_ended } else { topics::callback };
    end(Box::pin(asked).await, args.node.is_json(), Deed::Schedule, show)
}

/// Puts the content of a file, or without a file deletes what is there.
async fn put_or_delete(
    node: &args::NodeOptions,
    path: &[&str],
    file: Option<&Path>,
) -> Result<NodeAnswer, Ending> {
    let caller = NodeCaller::new(node)?;
    match file {
        Some(file) => {
            let body = draft::json_of(file).await.map_err(Ending::usage)?;
            caller.ask(&caller.put(path, body)?).await
        }
        None => caller.ask(&caller.delete(path)?).await,
    }
}

async fn topic_act(args: &args::TopicPause, act: &str) -> ExitCode {
    let body = match &args.reason {
        Some(reason) => serde_json::json!({ "reason": reason }).to_string(),
        None => String::new(),
    };
    let path = ["v1", "topics", &args.topic, act];
    let asked = ask(&args.node, |caller| caller.post(&path, body));
    end(asked.await, args.node.is_json(), Deed::Schedule, topics::shown)
}

/// Lists profiles, or chooses the default one.
fn choose_profile(args: args::ProfileArgs) -> ExitCode {
    use args::ProfileCommand as Command;
    let (options, name) = match args.command {
        Command::List(args) => (args.options, None),
        Command::Use(args) => (args.options, Some(args.name)),
    };
    let read = profile::path_of(options.profiles_file.as_deref())
        .and_then(|path| Profiles::read(&path))
        .and_then(|all| match &name {
            Some(name) => all.choose(name),
            None => Ok(all),
        });
    match (read, options.output.is_json()) {
        (Ok(all), true) => put_out(&profiles::as_json(&all), true, Deed::Read),
        (Ok(all), false) => {
            let text = if name.is_some() { profiles::chosen(&all) } else { profiles::listed(&all) };
            put_out(&text, false, Deed::Read)
        }
        (Err(problem), is_json) => Ending::usage(problem).report(is_json),
    }
}

/// Shows the cluster, once or again and again.
async fn show_cluster(args: args::ClusterArgs) -> ExitCode {
    use args::ClusterCommand as Command;
    let (args, show): (args::ClusterShow, ToText) = match args.command {
        Command::Status(args) => (args, cluster::status),
        Command::Nodes(args) => (args, cluster::nodes),
        Command::Topics(args) => (args, cluster::topics),
    };
    let Some(pause) = args.watch else {
        return end(ask_cluster(&args).await, args.node.is_json(), Deed::Read, show);
    };
    loop {
        if let Some(code) = watch_once(ask_cluster(&args).await, args.node.is_json(), show) {
            return code;
        }
        clock::sleep(pause).await;
    }
}

async fn ask_cluster(args: &args::ClusterShow) -> Result<NodeAnswer, Ending> {
    ask(&args.node, |caller| caller.get(&["v1", "cluster"], &[])).await
}

/// Lists, redrives or drops dead letters.
async fn dead(args: args::DeadArgs) -> ExitCode {
    match args.command {
        DeadCommand::List(args) => dead_list(&args).await,
        DeadCommand::Redrive(args) => dead_redrive(&args).await,
        DeadCommand::Drop(args) => dead_drop(&args).await,
    }
}

async fn dead_list(args: &args::DeadList) -> ExitCode {
    let filters = filters_of(&args.topic, &args.range);
    let listing = ListParameters {
        path: &DEAD,
        filters,
        part: &args.part,
        is_json: args.node.is_json(),
        what: "dead letter",
    };
    let cells = |task: Task| {
        let attempts = task.attempt.map(|attempt| attempt.to_string()).unwrap_or_default();
        [task.due_at, task.id, task.topic, attempts, task.reason.unwrap_or_default()]
    };
    let printed = match NodeCaller::new(&args.node) {
        Ok(caller) => {
            listing.print(&caller, ["DUE", "ID", "TOPIC", "ATTEMPTS", "REASON"], cells).await
        }
        Err(ending) => Err(ending.into()),
    };
    finish(printed.map(|()| ExitCode::SUCCESS), args.node.is_json(), Deed::Read)
}

async fn dead_redrive(redrive: &args::DeadRedrive) -> ExitCode {
    let (args, to_topic) = (&redrive.change, redrive.to_topic.as_deref());
    if let Some(topic) = &args.topic {
        let deed = deed_of_dead("redrive", topic, args);
        let bulk = bulk_of_dead(args, topic, &["v1", "dead", "redrive"], "redriven");
        return dead_many(args, &deed, Bulk { to_topic, ..bulk }).await;
    }
    let body = match to_topic {
        Some(to_topic) => serde_json::json!({ "to_topic": to_topic }).to_string(),
        None => String::new(),
    };
    let asked =
        ask(&args.node, |caller| caller.post(&["v1", "dead", &id_text(args.id), "redrive"], body));
    end(asked.await, args.node.is_json(), Deed::TakeAway, print::redriven)
}

async fn dead_drop(args: &args::DeadChange) -> ExitCode {
    if let Some(topic) = &args.topic {
        let deed = deed_of_dead("drop", topic, args);
        let bulk = bulk_of_dead(args, topic, &["v1", "dead", "drop"], "dropped");
        return dead_many(args, &deed, bulk).await;
    }
    let asked = ask(&args.node, |caller| caller.delete(&["v1", "dead", &id_text(args.id)]));
    end(asked.await, args.node.is_json(), Deed::TakeAway, print::dropped)
}

/// Returns the words for a change of all dead letters of a topic.
fn deed_of_dead(verb: &str, topic: &str, args: &args::DeadChange) -> String {
    format!("{verb} {}", args::named(&format!("dead letters of {topic}"), None, &args.range))
}

async fn dead_many(args: &args::DeadChange, deed: &str, bulk: Bulk<'_>) -> ExitCode {
    if !args.yes && !args.dry_run {
        return unconfirmed(deed, args.node.is_json());
    }
    run_bulk(&args.node, bulk).await
}

fn bulk_of_dead<'a>(
    args: &'a args::DeadChange,
    topic: &'a str,
    path: &'a [&'a str],
    done: &'static str,
) -> Bulk<'a> {
    Bulk {
        path,
        topic: Some(topic),
        submitted_by: None,
        choice: None,
        to_topic: None,
        new_due: (None, None),
        range: &args.range,
        is_dry_run: args.dry_run,
        is_json: args.node.is_json(),
        retry_for: bulk::RETRY_FOR,
        what: "dead letter",
        done,
    }
}

async fn run_bulk(node: &args::NodeOptions, bulk: Bulk<'_>) -> ExitCode {
    let deed = if bulk.is_dry_run { Deed::Read } else { Deed::Bulk };
    let done = match NodeCaller::new(node) {
        Ok(caller) => bulk.run(&caller).await,
        Err(ending) => Err(ending.into()),
    };
    finish(done.map(|text| put_out(&text, node.is_json(), deed)), node.is_json(), deed)
}

fn filters_of<'a>(
    topic: &'a Option<String>,
    range: &'a args::RangeArgs,
) -> Vec<(&'a str, &'a str)> {
    given(&[("topic", topic), ("due_from", &range.due_from), ("due_to", &range.due_to)])
}

fn id_text(id: Option<crate::domain::TaskId>) -> String {
    id.map(|id| id.to_string()).unwrap_or_default()
}
