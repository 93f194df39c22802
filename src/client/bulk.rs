//! Bulk operations: bulk cancel and move, and the bulk redrive and drop of dead letters. Each is a
//! series of calls until no task is left.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::answer::{Ending, Exit};
use super::args::{ChoiceArgs, RangeArgs};
use super::caller::retry::RetryBudget;
use super::caller::{Asked, Call, NodeCaller, Repeating};
use super::draft::NumberOrText;
use super::output::figures::{counted, grouped};
use super::pages::{ListFailure, unknown_topic};
use crate::clock;
use crate::domain::time::duration::spelled;

/// See [`Bulk::retry_for`].
pub const RETRY_FOR: Duration = Duration::from_secs(60);

/// A bulk operation, with its words for messages.
#[derive(Clone, Copy, Debug)]
pub struct Bulk<'a> {
    pub path: &'a [&'a str],
    pub topic: Option<&'a str>,
    pub submitted_by: Option<&'a str>,
    /// A choice among the tasks of the topic.
    pub choice: Option<&'a ChoiceArgs>,
    /// Of a redrive: the topic to which the tasks go.
    pub to_topic: Option<&'a str>,
    /// Of a move: `by` and `to`, of which one is given.
    pub new_due: (Option<&'a str>, Option<&'a str>),
    pub range: &'a RangeArgs,
    pub is_dry_run: bool,
    pub is_json: bool,
    /// How long the second and later calls are retried. Also how long the operation continues while
    /// calls affect no task although more are left.
    pub retry_for: Duration,
    /// The noun for one affected item.
    pub what: &'static str,
    /// The participle of the operation. It is also the member of the answer holding the count.
    pub done: &'static str,
}

#[derive(Serialize)]
struct BulkRequest<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    topic: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    submitted_by: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    due_from: Option<NumberOrText<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    due_to: Option<NumberOrText<'a>>,
    dry_run: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ids: Vec<String>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    names: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    name_prefix: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_base64: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    to_topic: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<NumberOrText<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<NumberOrText<'a>>,
}

#[derive(Deserialize)]
struct BulkProgress {
    #[serde(alias = "cancelled", alias = "moved", alias = "redriven", alias = "dropped")]
    count: u64,
    more: bool,
    /// The position at which the next call continues.
    cursor: Option<String>,
    /// See [`unknown_topic`].
    #[serde(default)]
    topic_known: Option<bool>,
}

impl Bulk<'_> {
    /// Calls the node until no task is left. Returns the text to print.
    pub async fn run(&self, caller: &NodeCaller) -> Result<String, ListFailure> {
        let ended = self.run_shown(caller).await;
        self.wipe();
        ended
    }

    async fn run_shown(&self, caller: &NodeCaller) -> Result<String, ListFailure> {
        let mut from: Option<String> = None;
        let mut total = 0_u64;
        let (mut is_first, mut is_exact) = (true, true);
        let mut patience = RetryBudget::new(self.retry_for);
        loop {
            let call = self.call(caller, from.as_deref())?;
            let retry_for = if is_first { Duration::ZERO } else { self.retry_for };
            let asked = caller.ask_for(&call, retry_for, Repeating::IsSafe).await;
            let Asked { answer, is_in_doubt } =
                asked.map_err(|ending| self.broken_off(ending, total, is_exact))?;
            if let Some(problem) = answer.problem() {
                return Err(if is_first {
                    ListFailure::Problem(answer)
                } else {
                    self.broken_off(problem.ending(), total, is_exact).into()
                });
            }
            is_first = false;
            let progress: BulkProgress =
                answer.read().map_err(|ending| self.broken_off(ending, total, is_exact))?;
            total = total.saturating_add(progress.count);
            // An attempt without an answer may have affected tasks that are not counted. A dry run
            // affects none.
            is_exact &= self.is_dry_run || !is_in_doubt;
            self.show(total);
            let has_moved = progress.cursor.is_some() && progress.cursor != from;
            // The next call of a dry run would count the same tasks again, unless the cursor has
            // moved.
            if !progress.more || (self.is_dry_run && !has_moved) {
                let is_unknown = total == 0 && is_exact && progress.topic_known == Some(false);
                if let Some(topic) = self.topic.filter(|_topic| is_unknown) {
                    return Err(unknown_topic(topic).into());
                }
                return Ok(self.summary(total, progress.more, is_exact));
            }
            if progress.count > 0 || has_moved {
                patience.succeeded();
            } else {
                // Another caller is acting on the remaining tasks at this moment.
                let Some(pause) = patience.pause(clock::monotonic(), None, rand::random()) else {
                    let text = format!(
                        "the node says that there are more, but has {} none of them for {}",
                        self.done,
                        spelled(self.retry_for)
                    );
                    return Err(self
                        .broken_off(Ending::new(Exit::NothingDone, text), total, is_exact)
                        .into());
                };
                clock::sleep(pause).await;
            }
            // Without a cursor the next call starts from the beginning.
            from = progress.cursor;
        }
    }

    fn call(&self, caller: &NodeCaller, cursor: Option<&str>) -> Result<Call, Ending> {
        let request = BulkRequest {
            topic: self.topic,
            submitted_by: self.submitted_by,
            due_from: self.range.due_from.as_deref().map(NumberOrText),
            due_to: self.range.due_to.as_deref().map(NumberOrText),
            dry_run: self.is_dry_run,
            cursor,
            ids: self.choice.map(ChoiceArgs::id_texts).unwrap_or_default(),
            names: self.choice.map_or(&[][..], |choice| choice.names.as_slice()),
            name_prefix: self.choice.and_then(|choice| choice.name_prefix.as_deref()),
            key: self.choice.and_then(|choice| choice.key.as_deref()),
            key_base64: self.choice.and_then(|choice| choice.key_base64.as_deref()),
            to_topic: self.to_topic,
            by: self.new_due.0.map(NumberOrText),
            to: self.new_due.1.map(NumberOrText),
        };
        let body = serde_json::to_vec(&request)
            .map_err(|error| Ending::usage(format!("cannot write the request as JSON: {error}")))?;
        caller.post(self.path, body)
    }

    /// Adds to an early end how much was done before it.
    fn broken_off(&self, mut ending: Ending, total: u64, is_exact: bool) -> Ending {
        if self.is_dry_run {
            return ending;
        }
        if total > 0 {
            ending.text =
                format!("{}\n{} {} before that", ending.text, counted(total, self.what), self.done);
        }
        if (total > 0 || !is_exact) && ending.exit == Exit::NothingDone {
            // 'Nothing done' is true for the last call, not for the command.
            ending.exit = Exit::Unknown;
        }
        ending
    }

    fn is_shown(&self) -> bool {
        !self.is_json && !self.is_dry_run && io::stderr().is_terminal()
    }

    fn show(&self, total: u64) {
        if self.is_shown() {
            // A failed write is ignored: stderr is closed, and nobody reads the progress.
            write!(io::stderr(), "\r\x1b[2K{} {} so far", grouped(total), self.done).ok();
        }
    }

    /// Removes the progress line, so other output can be written.
    fn wipe(&self) {
        if self.is_shown() {
            write!(io::stderr(), "\r\x1b[2K").ok();
        }
    }

    fn summary(&self, total: u64, has_more: bool, is_exact: bool) -> String {
        if self.is_json {
            let dry_run = self.is_dry_run;
            let answer = json!({
                self.done: total,
                "more": has_more,
                "dry_run": dry_run,
                "exact": is_exact,
            });
            return answer.to_string();
        }
        let about = match (is_exact, self.is_dry_run) {
            (true, _) => "",
            (false, true) => "about ",
            (false, false) => "at least ",
        };
        let count = format!("{about}{}", counted(total, self.what));
        match (self.is_dry_run, has_more) {
            (false, _) => format!("{count} {}", self.done),
            (true, false) => format!("{count} would be {}; nothing was done", self.done),
            (true, true) => format!("{count} and more would be {}; nothing was done", self.done),
        }
    }
}
