//! Answers for people.

use std::io::{self, Write as _};
use std::process::ExitCode;

use super::answer::{Answer, Cancelled, Ending};
use super::task::Task;

/// Writes `text` as lines. A reader that has gone away (`| head`) is no failure.
pub fn to_stdout(text: &str) -> ExitCode {
    match writeln!(io::stdout(), "{}", text.trim_end_matches('\n')) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            writeln!(io::stderr(), "write the answer: {error}").ok();
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

/// What is said of a task that was just submitted.
pub fn submitted(answer: &Answer) -> Result<String, Ending> {
    let task: Task = answer.read()?;
    let verb = if answer.status == 201 { "submitted" } else { "known by its name" };
    Ok(format!("{}  {verb}, {}, due {} to {}", task.id, task.state, task.due_at, task.topic))
}

/// All of a task.
pub fn shown(answer: &Answer) -> Result<String, Ending> {
    answer.read().map(|task: Task| task.lines())
}

/// The verdict of a cancel that took effect, and its task.
pub fn cancelled(answer: &Answer) -> Result<String, Ending> {
    let cancelled: Cancelled = answer.read()?;
    let id = cancelled.task.map(|task| task.id).unwrap_or_default();
    Ok(format!("{id}  {}", cancelled.verdict))
}
