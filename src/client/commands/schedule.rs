//! `punctual schedule`: recurring schedules.

use std::process::ExitCode;

use serde_json::json;

use super::apply;
use crate::client::answer::{Deed, Ending};
use crate::client::args;
use crate::client::caller::{NodeCaller, ask, given};
use crate::client::draft;
use crate::client::output::ended::{end, finish, put_out};
use crate::client::output::{print, schedules};

/// Creates, lists, pauses and deletes schedules.
pub async fn run(args: args::ScheduleArgs) -> ExitCode {
    use args::ScheduleCommand as Command;
    match args.command {
        Command::Set(args) => schedule_set(&args).await,
        Command::List(args) => {
            let limit = args.limit.to_string();
            let mut query = given(&[("after", &args.after)]);
            query.push(("limit", &limit));
            let asked =
                ask(&args.node, |caller| caller.get(&["v1", "schedules", &args.topic], &query));
            end(asked.await, args.node.is_json(), Deed::Read, schedules::listed)
        }
        Command::Show(args) => {
            let asked = ask(&args.node, |caller| caller.get(&schedule_path(&args.place), &[]));
            end(asked.await, args.node.is_json(), Deed::Read, schedules::shown)
        }
        Command::Next(args) => {
            let count = args.count.to_string();
            let asked = ask(&args.node, |caller| {
                caller.get(&schedule_path(&args.place), &[("next", &count)])
            });
            end(asked.await, args.node.is_json(), Deed::Read, schedules::next)
        }
        Command::Pause(args) => schedule_act(&args, "pause").await,
        Command::Resume(args) => schedule_act(&args, "resume").await,
        Command::Trigger(args) => {
            let [v1, schedules, topic, name] = schedule_path(&args.place);
            let asked =
                ask(&args.node, |caller| caller.post(&[v1, schedules, topic, name, "trigger"], ""));
            end(
                asked.await,
                args.node.is_json(),
                Deed::Submit { is_named: false },
                print::submitted,
            )
        }
        Command::Backfill(args) => schedule_backfill(&args).await,
        Command::Apply(args) => schedule_apply(&args).await,
        Command::Delete(args) => {
            let asked = ask(&args.node, |caller| caller.delete(&schedule_path(&args.place)));
            end(asked.await, args.node.is_json(), Deed::TakeAway, schedules::deleted)
        }
    }
}

async fn schedule_set(args: &args::ScheduleSet) -> ExitCode {
    let asked = async {
        let body = draft::json_of(&args.file).await.map_err(Ending::usage)?;
        let caller = NodeCaller::new(&args.node)?;
        let query: &[(&str, &str)] = if args.dry_run { &[("dry_run", "true")] } else { &[] };
        caller.ask(&caller.put(&schedule_path(&args.place), body)?.with_query(query)).await
    };
    end(Box::pin(asked).await, args.node.is_json(), Deed::Schedule, schedules::shown)
}

async fn schedule_act(args: &args::ScheduleOne, act: &str) -> ExitCode {
    let [v1, schedules, topic, name] = schedule_path(&args.place);
    let asked = ask(&args.node, |caller| caller.post(&[v1, schedules, topic, name, act], ""));
    end(asked.await, args.node.is_json(), Deed::Schedule, schedules::shown)
}

fn schedule_path(place: &args::SchedulePlace) -> [&str; 4] {
    ["v1", "schedules", &place.topic, &place.name]
}

async fn schedule_backfill(args: &args::ScheduleBackfill) -> ExitCode {
    let [v1, schedules, topic, name] = schedule_path(&args.place);
    let mut body = json!({ "dry_run": args.dry_run });
    for (member, value) in [("from", &args.from), ("to", &args.to), ("last", &args.last)] {
        if let Some(value) = value {
            body[member] = json!(value);
        }
    }
    let body = body.to_string();
    let asked =
        ask(&args.node, |caller| caller.post(&[v1, schedules, topic, name, "backfill"], body));
    let deed = if args.dry_run { Deed::Read } else { Deed::Schedule };
    end(asked.await, args.node.is_json(), deed, schedules::backfilled)
}

async fn schedule_apply(args: &args::ScheduleApply) -> ExitCode {
    let deed = if args.dry_run { Deed::Read } else { Deed::Schedule };
    let done = apply::run(args).await;
    finish(done.map(|text| put_out(&text, args.node.is_json(), deed)), args.node.is_json(), deed)
}
