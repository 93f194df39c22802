//! Prints answers for people.

use std::io::{self, IsTerminal as _, Write as _};

use crate::client::answer::{Cancelled, Ending, Exit, Heeded, NodeAnswer};
use crate::client::task::{Task, one_line};

/// Writes `text` to stdout as complete lines. A reader that has closed the pipe (`| head`) is not
/// an error.
pub fn to_stdout(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout();
    match writeln!(stdout, "{}", text.trim_end_matches('\n')).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

/// Writes the next lines of a list. Returns false when the reader has closed the pipe and the rest
/// need not be written.
pub fn lines(text: &str) -> Result<bool, Ending> {
    match io::stdout().write_all(text.as_bytes()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => {
            Err(Ending::new(Exit::NothingDone, format!("cannot write the answer: {error}")))
        }
    }
}

/// Clears a terminal.
const CLEAR: &str = "\u{1b}[2J\u{1b}[H";

/// Writes one look of many: JSON on a line of its own, text on a cleared terminal, or else followed
/// by an empty line. Returns false when the reader has closed the pipe.
pub fn frame(text: &str, is_json: bool) -> Result<bool, Ending> {
    let text = text.trim_end_matches('\n');
    match (is_json, io::stdout().is_terminal()) {
        (true, _) => lines(&format!("{text}\n")),
        (false, true) => lines(&format!("{CLEAR}{text}\n")),
        (false, false) => lines(&format!("{text}\n\n")),
    }
}

/// Clears a terminal before an error takes the place of the last look. A failed write is ignored,
/// because the error is written to stderr.
pub fn clear() {
    let mut stdout = io::stdout();
    if stdout.is_terminal() {
        stdout.write_all(CLEAR.as_bytes()).and_then(|()| stdout.flush()).ok();
    }
}

/// Writes a remark to stderr. A failed write is ignored, because a closed stderr has no reader.
pub fn aside(text: &str) {
    writeln!(io::stderr(), "{text}").ok();
}

/// Describes a task that was just submitted.
pub fn submitted(answer: &NodeAnswer) -> Result<String, Ending> {
    let task: Task = answer.read()?;
    let verb = if answer.status == 201 { "submitted" } else { "known by its name" };
    let advice = match task.state.as_str() {
        "published" | "finished" | "cancelled" | "dead" | "expired" => {
            "; nothing is scheduled: --replace schedules a new task under this name"
        }
        _ => "",
    };
    Ok(one_line(&format!(
        "{}  {verb}, {}, due {} to {}{advice}",
        task.id, task.state, task.due_at, task.topic
    )))
}

/// Describes a task that was just stored under its name.
pub fn replaced(answer: &NodeAnswer) -> Result<String, Ending> {
    let task: Task = answer.read()?;
    let verb =
        if answer.status == 201 { "submitted" } else { "submitted, in place of the previous task" };
    let Task { id, state, due_at, topic, .. } = &task;
    Ok(one_line(&format!("{id}  {verb}, {state}, due {due_at} to {topic}")))
}

/// Describes a task with all its members.
pub fn shown(answer: &NodeAnswer) -> Result<String, Ending> {
    answer.read().map(|task: Task| task.lines())
}

/// Returns the verdict of a cancel that took effect, and its task.
pub fn cancelled(answer: &NodeAnswer) -> Result<String, Ending> {
    let cancelled: Cancelled = answer.read()?;
    Ok(one_line(&format!("{}  {}", cancelled.task.id, cancelled.verdict)))
}

/// Returns the verdict of a move, and the new due time of the task.
pub fn moved(answer: &NodeAnswer) -> Result<String, Ending> {
    let Cancelled { verdict, task } = answer.read()?;
    Ok(one_line(&format!("{}  {verdict}, due {}", task.id, task.due_at)))
}

/// Returns the verdict of a consumer's call, and its task.
pub fn answered(answer: &NodeAnswer) -> Result<String, Ending> {
    let Heeded { verdict, in_flight, superseded, task } = answer.read()?;
    let next = match (&task.retry_at, &task.finish_by) {
        (Some(at), _) if verdict == "retrying" => format!(", due {at}"),
        (_, Some(by)) if verdict == "extended" => format!(", to finish by {by}"),
        _ => String::new(),
    };
    let in_flight = if in_flight { "; an attempt may still reach the topic" } else { "" };
    let superseded = if superseded { "; a later attempt was made" } else { "" };
    Ok(one_line(&format!("{}  {verdict}{next}{in_flight}{superseded}", task.id)))
}

/// Describes a dead letter that was dropped.
pub fn dropped(answer: &NodeAnswer) -> Result<String, Ending> {
    answer.read().map(|task: Task| one_line(&format!("{}  dropped", task.id)))
}

/// Describes a dead letter that was redriven.
pub fn redriven(answer: &NodeAnswer) -> Result<String, Ending> {
    let Task { id, state, due_at, topic, .. } = answer.read()?;
    Ok(one_line(&format!("{id}  redriven, {state}, due {due_at} to {topic}")))
}

/// Returns foreign text as one word for a shell, quoted if necessary.
pub fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-/:@".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", one_line(text).replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::task::is_steering;

    #[test]
    fn no_answer_of_a_server_steers_the_terminal() {
        let foreign = r"\u001b]0;x\u0007\u009b2J\u202e\u200f\u2028\nforged";
        let member = |name: &str| format!(r#""{name}":"{foreign}""#);
        let members = ["id", "topic", "due_at", "state", "retry_at"].map(member).join(",");
        let task = format!("{{{members}}}");
        let outcome = format!(r#"{{{},"task":{task}}}"#, member("verdict"));
        let retrying = format!(r#"{{"verdict":"retrying","task":{task}}}"#);
        let answer = |text: &str| NodeAnswer {
            status: 201,
            retry_after: None,
            has_token: false,
            text: text.to_owned(),
        };
        for said in [
            submitted(&answer(&task)),
            replaced(&answer(&task)),
            cancelled(&answer(&outcome)),
            moved(&answer(&outcome)),
            answered(&answer(&outcome)),
            answered(&answer(&retrying)),
            dropped(&answer(&task)),
            redriven(&answer(&task)),
        ] {
            let said = said.unwrap();
            assert!(said.contains("\\u{1b}]0;x\\u{7}") && said.contains(" forged"), "{said:?}");
            assert!(!said.contains(is_steering), "{said:?}");
        }
    }

    #[test]
    fn foreign_text_is_one_word_of_a_command() {
        assert_eq!(shell_word("nightly/7"), "nightly/7");
        assert_eq!(shell_word(""), "''");
        assert_eq!(shell_word("$(id) it's\u{1b}"), "'$(id) it'\\''s\\u{1b}'");
    }
}
