//! Clients of the REST API, for people and scripts: the subcommands `submit`, `show` and `cancel`.
//!
//! Each makes one call with a deadline, prints what came of it (stdout what was asked for, stderr why not), and says by its exit code what a script
//! should do next. Nothing is repeated by itself: whether that is safe depends on the task having a name.

pub mod answer;
pub mod args;
mod call;
mod draft;
mod print;
pub mod task;
#[cfg(test)]
mod tests;

use std::process::ExitCode;

use answer::{Answer, Ending};
use call::Method;

/// Submits a task.
pub async fn submit(args: args::Submit) -> ExitCode {
    let is_named = args.name.is_some();
    let ended = match draft::body_of(&args).await {
        Ok(body) => call::call(&args.node, Method::Post(body), "/v1/tasks").await,
        Err(wrong) => Err(Ending::usage(wrong)),
    };
    end(ended, args.node.json, |ending| ending.advise_submit(is_named), print::submitted)
}

/// Shows a task.
pub async fn show(args: args::Show) -> ExitCode {
    let ended = call::call(&args.node, Method::Get, &format!("/v1/tasks/{}", args.id)).await;
    end(ended, args.node.json, Ending::advise_show, print::shown)
}

/// Cancels a task.
pub async fn cancel(args: args::Cancel) -> ExitCode {
    let ended = call::call(&args.node, Method::Delete, &format!("/v1/tasks/{}", args.id)).await;
    end(ended, args.node.json, Ending::advise_cancel, print::cancelled)
}

/// Prints what came of a call and says it as an exit code.
fn end(
    ended: Result<Answer, Ending>,
    is_json: bool,
    advise: impl FnOnce(Ending) -> Ending,
    show: impl FnOnce(&Answer) -> Result<String, Ending>,
) -> ExitCode {
    let answer = match ended {
        Ok(answer) => answer,
        Err(ending) => return advise(ending).report(),
    };
    let Some(problem) = answer.problem() else {
        let text = if is_json { Ok(answer.text.clone()) } else { show(&answer) };
        return match text {
            Ok(text) => print::to_stdout(&text),
            Err(ending) => advise(ending).report(),
        };
    };
    if is_json {
        // The problem is the answer: scripts read it where they read a task.
        print::to_stdout(&answer.text);
        return problem.exit().into();
    }
    problem.ending().report()
}
