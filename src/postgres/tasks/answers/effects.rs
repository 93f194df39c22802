//! The effects of a group of answers, written together.

use az::SaturatingAs as _;
use sqlx::postgres::PgConnection;
use sqlx::query;
use uuid::Uuid;

use super::calls::{AnswerCall, AnswerTerms, Answered, FoundRow};
use super::statements;
use crate::domain::task::feedback::{AttemptRow, Call, Effect, Follow, Note, Place, Verdict};
use crate::domain::{
    Actors, AttemptEvent, Finished, PrincipalId, Sent, TaskId, TaskState, TaskView, Timestamp,
    TopicName, TrackedRow, TrackedView, Ttr,
};
use crate::postgres::connection::error::check_count;
use crate::postgres::tasks::names::{self, NameTerms};
use crate::postgres::tasks::settle::next_rows::{self, NextRow};

/// Stands for a reason that the consumer did not give.
const NO_REASON: &str = "no reason given";

/// The times that decide about the next attempts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) terms: AnswerTerms,
    pub(super) names: NameTerms,
}

/// The effects of a group.
pub(super) struct Effects<'a> {
    times: Times,
    finished: Vec<FinalLine<'a>>,
    gone: Vec<Uuid>,
    rows: Vec<NextRow<'a>>,
    changed: Vec<Change>,
    lines: Vec<Line>,
    names: Vec<NameMove<'a>>,
    answers: Vec<(TaskId, Answered)>,
}

struct FinalLine<'a> {
    found: &'a FoundRow,
    attempt: u16,
    in_flight: bool,
    by: Option<PrincipalId>,
}

/// A row of `task_follow` after the call.
struct Change {
    first: Uuid,
    row: Uuid,
    is_again: bool,
    note: Option<Note>,
    next: Option<Uuid>,
    is_verdict: bool,
    attempts_max: u16,
    reason: Option<String>,
}

struct Line {
    first: Uuid,
    row: Uuid,
    next: Uuid,
    attempt: u16,
    event: AttemptEvent,
    reason: Option<String>,
}

struct NameMove<'a> {
    found: &'a FoundRow,
    name: &'a str,
    next: Option<Uuid>,
}

/// The row after a failed or extended attempt.
struct Next {
    id: TaskId,
    sent: Sent,
    reason: Option<String>,
}

impl<'a> Effects<'a> {
    pub(super) fn new(times: Times) -> Self {
        Self {
            times,
            finished: Vec::new(),
            gone: Vec::new(),
            rows: Vec::new(),
            changed: Vec::new(),
            lines: Vec::new(),
            names: Vec::new(),
            answers: Vec::new(),
        }
    }

    pub(super) fn into_answers(self) -> Vec<(TaskId, Answered)> {
        self.answers
    }

    /// Adds a call that changes nothing.
    pub(super) fn nothing(&mut self, call: &AnswerCall, verdict: Verdict) {
        let answered = Answered { verdict, view: None, row: None, ran_for: None };
        self.answers.push((call.first, answered));
    }

    /// Adds a call about the task that was found.
    pub(super) fn add(
        &mut self,
        call: &AnswerCall,
        found: &'a FoundRow,
        follow: Follow,
        (verdict, effect): (Verdict, Effect),
    ) {
        match effect {
            Effect::Nothing => self.nothing(call, verdict),
            Effect::End | Effect::Mark => self.finish(call, found, follow, (verdict, effect)),
            Effect::Replace { note, row } => {
                self.replace(call, found, follow.is_again, (verdict, note, row));
            }
            Effect::Note { note, is_verdict } => {
                self.note(call, found, follow.is_again, (verdict, note, is_verdict));
            }
        }
    }

    fn finish(
        &mut self,
        call: &AnswerCall,
        found: &'a FoundRow,
        follow: Follow,
        (verdict, effect): (Verdict, Effect),
    ) {
        let is_claimed = effect == Effect::Mark;
        let place = if is_claimed { Place::Claimed } else { Place::Pending };
        let current = follow.current(place);
        let attempt = match call.call {
            Call::Finish { attempt } => attempt.unwrap_or(current),
            Call::Fail { attempt, .. } | Call::Extend { attempt } => attempt,
        };
        let in_flight = is_claimed || follow.is_again;
        if is_claimed {
            self.changed.push(Change {
                first: found.first.uuid(),
                row: found.id.uuid(),
                is_again: follow.is_again,
                note: Some(Note::Finished),
                next: None,
                is_verdict: follow.is_verdict,
                attempts_max: found.tracking.attempts_max(),
                reason: None,
            });
        } else {
            self.gone.push(found.first.uuid());
        }
        self.finished.push(FinalLine { found, attempt, in_flight, by: call.principal });
        self.move_name(found, None);
        let now = self.times.terms.now;
        let sent = found.sent(follow.is_again).filter(|_sent| !is_claimed);
        let mut view = view_of(found, TaskState::Finished, attempt);
        if let Some(tracked) = view.tracked.as_mut() {
            // The name of the caller is known to the API.
            tracked.finished = Some(Finished { at: now, by: None, in_flight });
        }
        self.answers.push((
            call.first,
            Answered {
                verdict,
                view: Some(view),
                row: None,
                ran_for: sent.map(|sent| now.since(sent.appended_at)),
            },
        ));
    }

    fn replace(
        &mut self,
        call: &AnswerCall,
        found: &'a FoundRow,
        is_again: bool,
        (verdict, note, row): (Verdict, Option<Note>, AttemptRow),
    ) {
        let now = self.times.terms.now;
        let ttr = found.tracking.tracking.ttr.as_duration();
        let unknown = Sent { appended_at: now, finish_by: now.plus(ttr), record: None };
        let sent = found.sent(is_again).unwrap_or(unknown);
        let current = answered_attempt(call);
        let next = self.next(call, found, sent, row.is_verdict);
        let tracking = TrackedRow {
            attempt: if row.is_verdict { current } else { row.attempt },
            is_verdict: row.is_verdict,
            sent: Some(next.sent),
            reason: next.reason.as_deref().filter(|_| row.is_verdict).map(Into::into),
            ..found.tracking.clone()
        };
        let is_far = next.id.due_at() >= self.times.terms.leaves_end;
        self.rows.push(NextRow {
            id: next.id,
            first_id: found.first.uuid(),
            topic: &found.topic,
            record: found.record.each_ref().map(Option::as_deref),
            name: found.name.as_deref(),
            tries: 1,
            submitted: found.submitted,
            tracking: Some(tracking.encode()),
            moved_to: found.moved_to,
            is_far,
        });
        self.changed.push(Change {
            first: found.first.uuid(),
            row: next.id.uuid(),
            is_again: false,
            note,
            next: None,
            is_verdict: row.is_verdict,
            attempts_max: found.tracking.attempts_max(),
            reason: next.reason.clone(),
        });
        self.record(call, found, &next, current);
        self.move_name(found, Some(next.id.uuid()));
        let state = match (note, row.is_verdict) {
            (Some(Note::Failed), true) => TaskState::Dead,
            (Some(Note::Failed), false) => TaskState::Retrying,
            _ => TaskState::Awaiting,
        };
        let mut view = view_of(found, state, current);
        view.reason = tracking.reason.as_ref().map(|_| tracking.dead_reason());
        if let Some(tracked) = view.tracked.as_mut() {
            tracked.next_at = (state == TaskState::Retrying).then(|| next.id.due_at());
            tracked.finish_by = (state == TaskState::Awaiting).then_some(next.sent.finish_by);
        }
        let row = (!is_far).then_some(next.id);
        self.answers.push((call.first, Answered { verdict, view: Some(view), row, ran_for: None }));
    }

    fn note(
        &mut self,
        call: &AnswerCall,
        found: &'a FoundRow,
        is_again: bool,
        (verdict, note, is_verdict): (Verdict, Note, bool),
    ) {
        let now = self.times.terms.now;
        let current = answered_attempt(call);
        let ttr = found.tracking.tracking.ttr.as_duration();
        let sent = Sent { appended_at: now, finish_by: now.plus(ttr), record: None };
        let next = self.next(call, found, sent, is_verdict);
        self.changed.push(Change {
            first: found.first.uuid(),
            row: found.id.uuid(),
            is_again,
            note: Some(note),
            next: Some(next.id.uuid()),
            is_verdict,
            attempts_max: found.tracking.attempts_max(),
            reason: next.reason.clone(),
        });
        self.record(call, found, &next, current);
        let view = Some(view_of(found, TaskState::Claimed, current));
        self.answers.push((call.first, Answered { verdict, view, row: None, ran_for: None }));
    }

    /// Decides when the row after the answered attempt is due.
    fn next(&self, call: &AnswerCall, found: &FoundRow, sent: Sent, is_verdict: bool) -> Next {
        let current = answered_attempt(call);
        let Times { terms: AnswerTerms { now, window, .. }, .. } = self.times;
        let tracking = &found.tracking;
        let random: u64 = rand::random();
        let (due_at, sent, reason) = match call.call {
            Call::Extend { .. } => {
                let by = call.by.unwrap_or(tracking.tracking.ttr.as_duration());
                let span = Ttr::extended(now.since(sent.appended_at), by);
                let finish_by = sent.appended_at.plus(span).ceil_millis();
                let due_at = finish_by.plus(tracking.wait_after_extension(current, window));
                // An attempt that was extended for as long as it can be may have ended.
                (due_at.max(now), Sent { finish_by, ..sent }, None)
            }
            Call::Finish { .. } | Call::Fail { .. } => {
                let attempt = tracking.attempts_since_redrive(current);
                let jitter = random.to_be_bytes()[0];
                let wait = tracking.tracking.retry.wait_after_failure(attempt, jitter);
                let due_at = match call.retry_at {
                    _ if is_verdict => now,
                    Some(at) => at.max(now),
                    None => now.plus(wait),
                };
                let reason = call.reason.as_deref().unwrap_or(NO_REASON);
                (due_at, sent, Some(reason.replace('\0', " ")))
            }
        };
        let id = TaskId::new(due_at.ceil_millis(), found.id.shard(), rand::random());
        Next { id, sent, reason }
    }

    fn record(&mut self, call: &AnswerCall, found: &FoundRow, next: &Next, attempt: u16) {
        let event = match call.call {
            Call::Finish { .. } => AttemptEvent::Finished,
            Call::Fail { .. } => AttemptEvent::Failed,
            Call::Extend { .. } => AttemptEvent::Extended,
        };
        self.lines.push(Line {
            first: found.first.uuid(),
            row: found.id.uuid(),
            next: next.id.uuid(),
            attempt,
            event,
            reason: next.reason.clone().filter(|_| call.reason.is_some()),
        });
    }

    fn move_name(&mut self, found: &'a FoundRow, next: Option<Uuid>) {
        self.names.extend(found.name.as_deref().map(|name| NameMove { found, name, next }));
    }

    /// Writes all effects. Every row that must be there is counted.
    pub(super) async fn write(&mut self, open: &mut PgConnection) -> Result<(), sqlx::Error> {
        self.write_finished(open).await?;
        self.write_changes(open).await?;
        next_rows::insert(open, &self.rows).await?;
        if !self.lines.is_empty() {
            let each = || self.lines.iter();
            query(statements::RECORD)
                .bind(each().map(|line| line.first).collect::<Vec<_>>())
                .bind(each().map(|line| line.row).collect::<Vec<_>>())
                .bind(each().map(|line| line.next).collect::<Vec<_>>())
                .bind(each().map(|line| line.attempt.saturating_as::<i16>()).collect::<Vec<_>>())
                .bind(each().map(|line| line.event.code()).collect::<Vec<_>>())
                .bind(each().map(|line| line.reason.as_deref()).collect::<Vec<_>>())
                .execute(&mut *open)
                .await?;
        }
        self.write_names(open).await
    }

    async fn write_finished(&self, open: &mut PgConnection) -> Result<(), sqlx::Error> {
        if !self.finished.is_empty() {
            let each = || self.finished.iter();
            let found = || each().map(|line| line.found);
            query(statements::FINISH)
                .bind(found().map(|found| found.first.uuid()).collect::<Vec<_>>())
                .bind(found().map(|found| found.id.uuid()).collect::<Vec<_>>())
                .bind(found().map(|found| found.topic.as_str()).collect::<Vec<_>>())
                .bind(found().map(|found| found.name.as_deref()).collect::<Vec<_>>())
                .bind(each().map(|line| line.attempt.saturating_as::<i16>()).collect::<Vec<_>>())
                .bind(each().map(|line| line.in_flight).collect::<Vec<_>>())
                .bind(found().map(|found| found.submitted.0).collect::<Vec<_>>())
                .bind(found().map(|found| found.submitted.1).collect::<Vec<_>>())
                .bind(each().map(|line| line.by.map(PrincipalId::as_smallint)).collect::<Vec<_>>())
                .bind(found().map(|found| found.tracking.encode()).collect::<Vec<_>>())
                .bind(found().map(|found| found.moved_to).collect::<Vec<_>>())
                .execute(&mut *open)
                .await?;
        }
        if self.gone.is_empty() {
            return Ok(());
        }
        let gone = query(statements::FORGET).bind(&self.gone).execute(open).await?;
        check_count(gone.rows_affected(), self.gone.len())
    }

    async fn write_changes(&self, open: &mut PgConnection) -> Result<(), sqlx::Error> {
        if self.changed.is_empty() {
            return Ok(());
        }
        let each = || self.changed.iter();
        let changed = query(statements::CHANGE)
            .bind(each().map(|change| change.first).collect::<Vec<_>>())
            .bind(each().map(|change| change.row).collect::<Vec<_>>())
            .bind(each().map(|change| change.is_again).collect::<Vec<_>>())
            .bind(each().map(|change| change.note.map(Note::code)).collect::<Vec<_>>())
            .bind(each().map(|change| change.next).collect::<Vec<_>>())
            .bind(each().map(|change| change.is_verdict).collect::<Vec<_>>())
            .bind(each().map(|c| c.attempts_max.saturating_as::<i16>()).collect::<Vec<_>>())
            .bind(each().map(|change| change.reason.as_deref()).collect::<Vec<_>>())
            .execute(open)
            .await?;
        check_count(changed.rows_affected(), self.changed.len())
    }

    /// An entry may stand for another task by now, so the count of changed entries says nothing.
    async fn write_names(&mut self, open: &mut PgConnection) -> Result<(), sqlx::Error> {
        if self.names.is_empty() {
            return Ok(());
        }
        self.names.sort_unstable_by_key(|moved| (moved.found.topic.as_str(), moved.name));
        let each = || self.names.iter();
        query(statements::NAME)
            .bind(each().map(|moved| moved.found.topic.as_str()).collect::<Vec<_>>())
            .bind(each().map(|moved| moved.name).collect::<Vec<_>>())
            .bind(each().map(|moved| moved.found.first.uuid()).collect::<Vec<_>>())
            .bind(each().map(|moved| moved.next).collect::<Vec<_>>())
            .bind(
                each()
                    .map(|moved| moved.next.is_none().then_some(names::FINISHED))
                    .collect::<Vec<_>>(),
            )
            .bind(self.times.names.retention.as_secs_f64())
            .execute(open)
            .await?;
        Ok(())
    }
}

fn answered_attempt(call: &AnswerCall) -> u16 {
    match call.call {
        Call::Finish { attempt } => attempt.unwrap_or_default(),
        Call::Fail { attempt, .. } | Call::Extend { attempt } => attempt,
    }
}

/// Returns the view of a task that was changed just now.
fn view_of(found: &FoundRow, state: TaskState, attempt: u16) -> Box<TaskView> {
    Box::new(TaskView {
        id: found.first,
        topic: TopicName::stored(&found.topic),
        name: found.name.clone(),
        state,
        replaced_by: None,
        attempt: 1,
        receipt: None,
        kept: None,
        reason: None,
        died_at: None,
        moved_to: found.moved_to.map(Timestamp::from_millis),
        requested_due_at: None,
        expires_at: None,
        actors: Actors::default(),
        tracked: Some(Box::new(TrackedView {
            tracking: found.tracking.tracking.clone(),
            attempt,
            attempts_max: found.tracking.attempts_max(),
            finish_by: None,
            next_at: None,
            finished: None,
            attempts: Vec::new(),
        })),
    })
}
