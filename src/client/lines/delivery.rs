//! Sends one batch to the node, until each of its lines has an outcome or the time is up.

use std::cell::Cell;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use super::difference::{DifferingMember, differences};
use super::judge::{Again, LineOutcome, NextAttempt, Pending, SettledLine, judge};
use super::line::TaskLine;
use super::screen::Screen;
use crate::client::answer::{Ending, Exit, NodeAnswer};
use crate::client::caller::retry::RetryBudget;
use crate::client::caller::{NodeCaller, Repeating};
use crate::clock;
use crate::domain::Monotonic;

const BATCH: [&str; 3] = ["v1", "tasks", "batch"];
/// After this many failed connections in a row a batch continues in halves. A smaller batch is more
/// likely to get through a bad connection. One task that the node cannot answer then does not delay
/// the others.
const BREAKS_BEFORE_SPLIT: u32 = 2;

/// The state that all batches of a run share.
#[derive(Clone, Copy, Debug)]
pub struct Delivery<'a> {
    pub caller: &'a NodeCaller,
    /// How long a batch is retried while no request gets through.
    pub retry_for: Duration,
    /// Once cancelled, no batch is retried.
    pub stopping: &'a CancellationToken,
    pub screen: &'a Screen,
    /// The time when a line of any batch last got an outcome.
    pub last_through: &'a Cell<Option<Monotonic>>,
}

/// The outcomes of a batch.
#[derive(Debug, Default)]
pub struct Delivered {
    /// One outcome for each line.
    pub settled: Vec<SettledLine>,
    /// The reason why some lines were given up.
    pub trouble: Option<Ending>,
}

impl Delivery<'_> {
    /// Sends `lines` until each line is settled. Retries are safe, because each line has a name.
    pub async fn deliver(&self, lines: Vec<TaskLine>) -> Delivered {
        let mut delivered = Delivered::default();
        // A stack: the next part is the last element.
        let mut parts = vec![
            lines
                .into_iter()
                .map(|line| Pending { line, may_be_stored: false })
                .collect::<Vec<_>>(),
        ];
        let mut patience = RetryBudget::new(self.retry_for);
        let mut break_count = 0;
        while let Some(part) = parts.pop() {
            let asked = match self.caller.post(&BATCH, body_of(&part)) {
                Ok(call) => self.caller.ask(&call).await,
                Err(wrong) => Err(wrong),
            };
            let round = judge(asked, part);
            let has_progress = !round.settled.is_empty() || !round.known.is_empty();
            delivered.settled.extend(round.settled);
            self.compare(round.known, &mut delivered).await;
            if has_progress {
                patience.succeeded();
                self.last_through.set(Some(clock::monotonic()));
            }
            match round.next {
                NextAttempt::Done => break_count = 0,
                NextAttempt::Split(lines) => push_halves(&mut parts, lines),
                NextAttempt::Again(Again { lines, why, retry_after, is_unanswered }) => {
                    break_count = if is_unanswered { break_count + 1 } else { 0 };
                    if break_count >= BREAKS_BEFORE_SPLIT {
                        push_halves(&mut parts, lines);
                    } else {
                        parts.push(lines);
                    }
                    // A single line that always gets 503 does not end the run while others get
                    // through.
                    self.last_through
                        .get()
                        .into_iter()
                        .for_each(|at| patience.others_succeeded(at));
                    let pause = patience.pause(clock::monotonic(), retry_after, rand::random());
                    let Some(pause) = pause else {
                        delivered.trouble = Some(why);
                        break;
                    };
                    self.screen.trouble(&why.text);
                    if self.stopping.run_until_cancelled(clock::sleep(pause)).await.is_none() {
                        break;
                    }
                }
                NextAttempt::GiveUp(lines, ending) => {
                    parts.push(lines);
                    delivered.trouble = Some(ending);
                    break;
                }
            }
        }
        delivered.settled.extend(parts.into_iter().flatten().map(|pending| SettledLine {
            number: pending.line.number,
            outcome: if pending.may_be_stored {
                LineOutcome::Unknown
            } else {
                LineOutcome::NotSubmitted
            },
        }));
        delivered
    }
}

/// Maximum number of concurrent look-ups of known tasks, for each batch.
const LOOK_UPS_MAX: usize = 8;

impl Delivery<'_> {
    /// Settles lines whose names already stood for a task: each line is the same task or differs
    /// from it.
    async fn compare(&self, known: Vec<(TaskLine, Box<RawValue>)>, delivered: &mut Delivered) {
        let looks = known
            .into_iter()
            .map(|(line, task)| async move { (line.number, self.compare_one(&line, task).await) });
        let mut looks = stream::iter(looks).buffer_unordered(LOOK_UPS_MAX);
        while let Some((number, compared)) = looks.next().await {
            let outcome = compared.unwrap_or_else(|why| {
                delivered.trouble.get_or_insert(why);
                LineOutcome::Unknown
            });
            delivered.settled.push(SettledLine { number, outcome });
        }
    }

    /// Compares one line with its known task. The answer to a submit shows only the due time, so
    /// the other members need a look-up.
    async fn compare_one(
        &self,
        line: &TaskLine,
        task: Box<RawValue>,
    ) -> Result<LineOutcome, Ending> {
        let found = self.looked_up(&task).await?;
        let full = found.as_ref().map_or(task.get(), |answer| answer.text.as_str());
        let now = clock::wall();
        let mut members = differences(&line.json, full, now);
        // The submit tells the due time of before a move.
        if members.contains(&DifferingMember::DueAt)
            && !differences(&line.json, task.get(), now).contains(&DifferingMember::DueAt)
        {
            members.retain(|member| *member != DifferingMember::DueAt);
        }
        Ok(if members.is_empty() {
            LineOutcome::Known(task)
        } else {
            LineOutcome::Differs(task, members)
        })
    }

    /// Looks up all that a node knows of a task. Returns `None` when the node no longer knows it.
    async fn looked_up(&self, task: &RawValue) -> Result<Option<NodeAnswer>, Ending> {
        let id = serde_json::from_str::<KnownNode>(task.get()).map(|known| known.id);
        let Ok(id) = id else { return Ok(None) };
        let call = self.caller.get(&["v1", "tasks", &id], &[])?;
        let asking = self.caller.ask_for(&call, self.retry_for, Repeating::IsSafe);
        let Some(asked) = self.stopping.run_until_cancelled(asking).await else {
            return Err(Ending::new(
                Exit::Unknown,
                "interrupted while comparing lines with the tasks of their names",
            ));
        };
        let answer = asked?.answer;
        match answer.problem() {
            None => Ok(Some(answer)),
            // A caller may submit without the right to read.
            Some(problem) if problem.exit() == Exit::NotFound || problem.status == 403 => Ok(None),
            Some(problem) => Err(problem.ending()),
        }
    }
}

#[derive(Deserialize)]
struct KnownNode {
    id: String,
}

fn push_halves(parts: &mut Vec<Vec<Pending>>, mut lines: Vec<Pending>) {
    let second = lines.split_off(lines.len().div_ceil(2));
    if !second.is_empty() {
        parts.push(second);
    }
    parts.push(lines);
}

fn body_of(lines: &[Pending]) -> String {
    let bytes: usize = lines.iter().map(|pending| pending.line.json.len() + 1).sum();
    let mut body = String::with_capacity(bytes + 12);
    body.push_str("{\"tasks\":[");
    for (index, pending) in lines.iter().enumerate() {
        if index > 0 {
            body.push(',');
        }
        body.push_str(&pending.line.json);
    }
    body.push_str("]}");
    body
}
