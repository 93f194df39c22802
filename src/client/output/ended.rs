//! Ends a command: prints its result or the reason why there is none, and chooses the exit code.

use std::process::ExitCode;

use super::print;
use crate::client::answer::{Deed, Ending, Exit, NodeAnswer};
use crate::client::pages::ListFailure;

/// Makes text of an answer.
pub type ToText = fn(&NodeAnswer) -> Result<String, Ending>;

/// Prints one look of many. Returns the exit code if there is no next look: the call is wrong, or
/// nobody reads the output. A node that is away may come back.
pub fn watch_once(
    asked: Result<NodeAnswer, Ending>,
    is_json: bool,
    show: ToText,
) -> Option<ExitCode> {
    let shown = shown(asked, is_json, show);
    let exit = match &shown {
        Ok(text) => match print::frame(text, is_json) {
            Ok(true) => return None,
            Ok(false) => return Some(ExitCode::SUCCESS),
            Err(ending) => return Some(ending.report(is_json)),
        },
        Err(ListFailure::Problem(answer)) => answer.problem().unwrap_or_default().exit(),
        Err(ListFailure::Ending(ending)) => ending.exit,
    };
    let is_passing = matches!(exit, Exit::NothingDone | Exit::Unknown);
    if is_passing && !is_json {
        print::clear();
    }
    let code = finish(shown.map(|_text| ExitCode::SUCCESS), is_json, Deed::Read);
    (!is_passing).then_some(code)
}

/// Prints the result of a call and returns its exit code.
pub fn end(
    ended: Result<NodeAnswer, Ending>,
    is_json: bool,
    deed: Deed,
    show: impl FnOnce(&NodeAnswer) -> Result<String, Ending>,
) -> ExitCode {
    let shown = shown(ended, is_json, show);
    finish(shown.map(|text| put_out(&text, is_json, deed)), is_json, deed)
}

/// Returns the text of an answer. The answer is parsed with `--json`, too: an answer that does not
/// parse is not a node's.
fn shown(
    ended: Result<NodeAnswer, Ending>,
    is_json: bool,
    show: impl FnOnce(&NodeAnswer) -> Result<String, Ending>,
) -> Result<String, ListFailure> {
    let answer = ended?;
    if answer.problem().is_some() {
        return Err(ListFailure::Problem(answer));
    }
    let text = show(&answer)?;
    Ok(if is_json { answer.text } else { text })
}

/// Prints the result to stdout.
pub fn put_out(text: &str, is_json: bool, deed: Deed) -> ExitCode {
    match print::to_stdout(text) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => deed.unwritten(&error).report(is_json),
    }
}

/// Reports why there is no answer, or only a part of it.
pub fn finish(done: Result<ExitCode, ListFailure>, is_json: bool, deed: Deed) -> ExitCode {
    match done {
        Ok(code) => code,
        Err(ListFailure::Ending(ending)) => deed.end(ending).report(is_json),
        Err(ListFailure::Problem(answer)) => {
            let problem = answer.problem().unwrap_or_default();
            let ending = deed.end(problem.ending());
            // A script knows the problems of nodes, not the JSON of some proxy.
            if is_json && problem.slug().is_some() {
                print::aside(answer.text.trim_end());
                return ending.exit.into();
            }
            ending.report(is_json)
        }
    }
}
