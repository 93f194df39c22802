//! Changes dead letters, and many tasks at once. Each change is made in pieces that are committed
//! one by one, so a call has limits in rows and in time. A call counts only the changes of its own
//! commits. Each piece has a turn of its principal, so that the calls of one principal do not make
//! the lists and calls of others wait.

use std::sync::Arc;
use std::time::Duration;

use az::SaturatingAs as _;

use super::connections::principal_turns::{CallKind, NoTurn, PrincipalTurn, PrincipalTurns};
use super::postgres_failures::{Tries, retrying, unavailable_of, unavailable_of_read};
use super::replacer::{moved, place_of};
use crate::access::Principal;
use crate::access::permit::{self, CancelManyPermit, Redrive, Right};
use crate::clock;
use crate::domain::{
    Cursor, IdRange, Monotonic, PrincipalId, Selection, TaskId, TaskView, Timestamp, TopicName,
};
use crate::error_chain::chain;
use crate::node::messages::permitted::TaskPermit;
use crate::node::messages::{BulkDone, BulkSelection, Shift, Unavailable};
use crate::node::shared::NodeShared;
use crate::postgres::PostgresError;
use crate::postgres::lists::cancel_many::{CancelGroup, CancelMany};
use crate::postgres::lists::dead_letters::due_range::DueRange;
use crate::postgres::lists::dead_letters::{DeadLetterChange, DeadLetters};
use crate::postgres::lists::listing::chosen::Selected;
use crate::postgres::lists::listing::{ListedTask, Listing, READ_MAX_OF_BULK, TaskPage};
use crate::postgres::tasks::cancel::GROUP_MAX;
use crate::postgres::tasks::replace::Replaces;
use crate::postgres::tasks::replace::reschedule::Rescheduling;

/// After this time a call begins no further piece, and reports its progress.
const SPAN_MAX: Duration = Duration::from_secs(5);

/// Serves changes of dead letters, and of many tasks.
#[derive(Debug)]
pub struct Bulks {
    pub listing: Arc<Listing>,
    pub dead_letters: Arc<DeadLetters>,
    pub cancels: CancelMany,
    pub replaces: Arc<Replaces>,
    pub shared: Arc<NodeShared>,
    pub turns: Arc<PrincipalTurns>,
    /// The deadline of a request. A call ends at half of the deadline: otherwise the caller would
    /// not learn how much was done.
    pub request_deadline: Duration,
}

/// A right to change dead letters.
pub trait DeadLetterRight: Right {
    const CHANGE: DeadLetterChange;
}

impl DeadLetterRight for Redrive {
    const CHANGE: DeadLetterChange = DeadLetterChange::Redrive;
}

impl DeadLetterRight for permit::Drop {
    const CHANGE: DeadLetterChange = DeadLetterChange::Drop;
}

/// The progress of a call.
struct CallProgress<'a> {
    bulk: &'a BulkSelection,
    begins_until: Monotonic,
    /// `None` once the first piece has waited for its turn.
    first_turn_within: Option<Duration>,
    task_count: u64,
    has_ended: bool,
}

impl Drop for CallProgress<'_> {
    fn drop(&mut self) {
        if !self.has_ended && !self.bulk.is_dry_run {
            let (topic, task_count) = (self.bulk.topic_or_all(), self.task_count);
            tracing::warn!(
                topic,
                task_count,
                "a bulk change was interrupted by its caller or its deadline; task_count is the \
                 minimum of its changes"
            );
        }
    }
}

impl<'a> CallProgress<'a> {
    fn new(bulk: &'a BulkSelection, request_deadline: Duration) -> Self {
        let span = SPAN_MAX.min(request_deadline / 2);
        let begins_until = clock::monotonic().plus(span);
        Self {
            bulk,
            begins_until,
            first_turn_within: Some(span / 2),
            task_count: 0,
            has_ended: false,
        }
    }

    fn room(&self) -> u64 {
        BulkSelection::TASKS_MAX.saturating_sub(self.task_count)
    }

    fn has_time(&self) -> bool {
        clock::monotonic() < self.begins_until
    }

    /// Returns how long the next piece may wait for its turn. The first one leaves half of the span
    /// to the work. The others leave the time to report the pieces before them.
    fn turn_within(&mut self) -> Duration {
        let rest = self.begins_until.since(clock::monotonic());
        self.first_turn_within.take().unwrap_or(rest)
    }

    /// Ends the call with an error. Earlier pieces stay done. The answer reports them, and that
    /// there is more, unless the error leaves more in doubt.
    fn end_with(
        mut self,
        error: &PostgresError,
        searched_to: Option<Cursor>,
    ) -> Result<BulkDone, Unavailable> {
        self.has_ended = true;
        match (self.task_count, error.is_unknown()) {
            (0, _) => Err(unavailable_of(error)),
            (count, true) => Err(Unavailable::Unknown {
                reason: format!("{}; {count} tasks were certainly changed", chain(error)),
            }),
            (_, false) => {
                tracing::warn!(
                    error = chain(error),
                    "a bulk change ended early; the answer says so"
                );
                Ok(self.with_more(searched_to))
            }
        }
    }

    /// Ends the call with a failed read. A read changes nothing, so the earlier pieces are certain.
    fn end_with_read(
        mut self,
        error: &PostgresError,
        searched_to: Option<Cursor>,
    ) -> Result<BulkDone, Unavailable> {
        self.has_ended = true;
        if self.task_count == 0 {
            Err(unavailable_of_read(error))
        } else {
            Ok(self.with_more(searched_to))
        }
    }

    /// Ends the call without a turn for its next piece. The earlier pieces are certain.
    fn end_without_turn(
        mut self,
        no_turn: NoTurn,
        searched_to: Option<Cursor>,
    ) -> Result<BulkDone, Unavailable> {
        self.has_ended = true;
        if self.task_count == 0 { Err(no_turn.into()) } else { Ok(self.with_more(searched_to)) }
    }

    /// Ends the call: too many names begin with its prefix.
    fn refuse_prefix(mut self) -> Unavailable {
        self.has_ended = true;
        Unavailable::TooManyNames
    }

    fn with_more(mut self, searched_to: Option<Cursor>) -> BulkDone {
        self.has_ended = true;
        BulkDone { task_count: self.task_count, has_more: true, searched_to }
    }

    fn with_no_more(mut self) -> BulkDone {
        self.has_ended = true;
        BulkDone { task_count: self.task_count, has_more: false, searched_to: None }
    }
}

/// A change of many pending tasks.
#[derive(Clone, Copy, Debug)]
enum PendingChange<'a> {
    /// A cancel, by the caller with this number.
    Cancel(&'a CancelManyPermit, Option<PrincipalId>),
    Move(Shift),
}

impl PendingChange<'_> {
    /// Returns true for a task that the change takes.
    fn takes(&self, task: &ListedTask, now: Timestamp) -> bool {
        match self {
            Self::Cancel(permit, _by) => permit.covers(&task.view.topic),
            Self::Move(shift) => is_moved_by(*shift, task.row.due_at_unheld(), now),
        }
    }
}

/// How the change of a page has ended.
enum PageEnd {
    Whole,
    /// The call has no more time. It goes on behind this cursor.
    OutOfTime(Option<Cursor>),
}

/// A page whose change has failed behind a cursor.
struct PageError {
    error: PostgresError,
    from: Option<Cursor>,
}

impl Bulks {
    /// Cancels all selected pending tasks, or counts them, up to the limit of a call.
    pub async fn cancel_all(
        &self,
        permit: &CancelManyPermit,
        bulk: &BulkSelection,
    ) -> Result<BulkDone, Unavailable> {
        let by = self.number_of(bulk.principal()).await?;
        self.change_pending(PendingChange::Cancel(permit, by), bulk).await
    }

    /// Moves all selected pending tasks by `shift`, or counts them, up to the limit of a call. No
    /// task is moved twice: a moved one lies outside of the range, or is due at its new time
    /// already.
    pub async fn move_all(
        &self,
        bulk: &BulkSelection,
        shift: Shift,
    ) -> Result<BulkDone, Unavailable> {
        self.change_pending(PendingChange::Move(shift), bulk).await
    }

    /// Waits for the turn of the next piece.
    async fn turn(
        &self,
        progress: &mut CallProgress<'_>,
        kind: CallKind,
    ) -> Result<PrincipalTurn<'_>, NoTurn> {
        let within = progress.turn_within();
        let taking = self.turns.take(progress.bulk.principal(), kind);
        tokio::time::timeout(within, taking).await.unwrap_or(Err(NoTurn(kind.limit())))
    }

    /// Changes or counts all selected pending tasks, page by page.
    async fn change_pending(
        &self,
        change: PendingChange<'_>,
        bulk: &BulkSelection,
    ) -> Result<BulkDone, Unavailable> {
        let selection = bulk.selection();
        let (mut progress, mut from) = (CallProgress::new(bulk, self.request_deadline), bulk.from);
        loop {
            // One task beyond the limit is looked for.
            let limit = usize::try_from(progress.room()).unwrap_or(GROUP_MAX).clamp(1, GROUP_MAX);
            let turn = match self.turn(&mut progress, CallKind::Tasks).await {
                Ok(turn) => turn,
                Err(no_turn) => return progress.end_without_turn(no_turn, from),
            };
            let mut page = match self.select(&selection, from, limit).await {
                Ok(Selected::Page(page)) => page,
                Ok(Selected::TooManyNames) => return Err(progress.refuse_prefix()),
                Err(error) => return progress.end_with_read(&error, from),
            };
            let now = self.shared.now();
            page.tasks.retain(|task| change.takes(task, now));
            if progress.room() == 0 {
                let has_more = page.next.is_some() || !page.tasks.is_empty();
                return Ok(if has_more {
                    progress.with_more(from)
                } else {
                    progress.with_no_more()
                });
            }
            if bulk.is_dry_run {
                match self.cancels.count(&page.tasks).await {
                    Ok(count) => progress.task_count += count,
                    Err(error) => return progress.end_with_read(&error, from),
                }
            } else {
                let changed = match change {
                    PendingChange::Cancel(_permit, by) => {
                        let cancelled = self.cancel_page(by, &page, &mut progress).await;
                        let cancelled = cancelled.map(|()| PageEnd::Whole);
                        cancelled.map_err(|error| PageError { error, from })
                    }
                    PendingChange::Move(shift) => {
                        // Other connections move the tasks, for up to 5 s.
                        drop(turn);
                        let _turn = match self.turn(&mut progress, CallKind::Changes).await {
                            Ok(turn) => turn,
                            Err(no_turn) => return progress.end_without_turn(no_turn, from),
                        };
                        self.move_page(shift, (&page, from), &mut progress).await
                    }
                };
                match changed {
                    Ok(PageEnd::Whole) => {}
                    Ok(PageEnd::OutOfTime(from)) => return Ok(progress.with_more(from)),
                    Err(PageError { error, from }) => return progress.end_with(&error, from),
                }
            }
            match page.next {
                None => return Ok(progress.with_no_more()),
                next if !progress.has_time() => return Ok(progress.with_more(next)),
                next => from = next,
            }
        }
    }

    /// Moves the tasks of a page that begins behind `from`.
    async fn move_page(
        &self,
        shift: Shift,
        (page, mut from): (&TaskPage, Option<Cursor>),
        progress: &mut CallProgress<'_>,
    ) -> Result<PageEnd, PageError> {
        for task in &page.tasks {
            if !progress.has_time() {
                return Ok(PageEnd::OutOfTime(from));
            }
            match self.move_one(task, shift).await {
                Ok(is_moved) => progress.task_count += u64::from(is_moved),
                Err(error) => return Err(PageError { error, from }),
            }
            from = Some(Cursor { after: task.row.uuid() });
        }
        Ok(PageEnd::Whole)
    }

    /// Moves a listed task while it is the row of the list. Returns false when it is not any more,
    /// may have been sent, or would expire before its new time.
    async fn move_one(&self, task: &ListedTask, shift: Shift) -> Result<bool, PostgresError> {
        let due_at = shift.of(task.row.due_at_unheld());
        let mut tries = Tries::default();
        loop {
            let place = place_of(&self.shared, due_at);
            let done = self.replaces.reschedule(task.view.id, Some(task.row), place).await;
            match done {
                Ok(Rescheduling::Moved { row, .. }) => {
                    moved(&self.shared, row);
                    return Ok(true);
                }
                Ok(Rescheduling::Gone { .. } | Rescheduling::WouldExpire { .. }) => {
                    return Ok(false);
                }
                Err(error) if tries.again_with_new_id(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    async fn select(
        &self,
        selection: &Selection,
        from: Option<Cursor>,
        limit: usize,
    ) -> Result<Selected, PostgresError> {
        let selected = self.listing.select(selection, from, limit, READ_MAX_OF_BULK).await?;
        if let Selected::Page(page) = &selected {
            self.shared.metrics.rows_looked_at.inc_by(page.looked);
        }
        Ok(selected)
    }

    async fn cancel_page(
        &self,
        by: Option<PrincipalId>,
        page: &TaskPage,
        progress: &mut CallProgress<'_>,
    ) -> Result<(), PostgresError> {
        let mut group = CancelGroup::new(&page.tasks, by);
        let mut tries = Tries::default();
        let outcome = loop {
            match self.cancels.cancel(&mut group).await {
                Err(error) if tries.again(&error) => {}
                other => break other,
            }
        };
        self.shared.metrics.cancelled.inc_by(group.cancelled_count);
        progress.task_count += group.cancelled_count;
        outcome
    }

    /// Redrives, drops or counts all selected dead letters of `topic`, up to the limit of a call.
    pub async fn change_all_dead(
        &self,
        change: DeadLetterChange,
        (topic, to): (&TopicName, Option<&TopicName>),
        bulk: &BulkSelection,
    ) -> Result<BulkDone, Unavailable> {
        let all = DueRange::of(&bulk.selection());
        let mut from = bulk.from;
        if bulk.is_dry_run {
            let _turn = self.turns.take(bulk.principal(), CallKind::DeadLetters).await?;
            return self.count_dead(topic, all.behind(from)).await.map_err(unavailable_of_read);
        }
        let by = self.number_of(bulk.principal()).await?;
        let mut progress = CallProgress::new(bulk, self.request_deadline);
        let mut tries = Tries::default();
        // Each piece begins behind the one before: a redriven task may have died again, and under
        // an old snapshot the index still has all the changed rows.
        while progress.room() > 0 {
            let turn = match self.turn(&mut progress, CallKind::DeadLetters).await {
                Ok(turn) => turn,
                Err(no_turn) => return progress.end_without_turn(no_turn, from),
            };
            let changed = match self
                .dead_letters
                .change_some((change, by), (topic, to), all.behind(from), progress.room())
                .await
            {
                Err(error) if tries.again(&error) => continue,
                Err(error) => return progress.end_with(&error, from),
                Ok(changed) => changed,
            };
            drop(turn);
            let Some(last) = changed.last else { break };
            from = Some(Cursor { after: last });
            progress.task_count += match change {
                DeadLetterChange::Redrive => self.redriven(&changed.rows),
                DeadLetterChange::Drop => self.dropped(changed.rows.len()),
            };
            if !progress.has_time() {
                return Ok(progress.with_more(from));
            }
        }
        // One dead letter beyond the limit is looked for. When dead letters are dropped, the search
        // also includes skipped ones: another transaction had them locked and may have left them.
        // (A redriven task may have died again, so starting over with it would never end.)
        let passed_by = (change == DeadLetterChange::Drop).then_some((all, None));
        let _turn = match self.turn(&mut progress, CallKind::DeadLetters).await {
            Ok(turn) => turn,
            Err(no_turn) => return progress.end_without_turn(no_turn, from),
        };
        for (rest, searched_to) in [(all.behind(from), from)].into_iter().chain(passed_by) {
            match self.dead_letters.ids(topic, rest, 1).await {
                Ok(left) if left.is_empty() => {}
                Ok(_) => return Ok(progress.with_more(searched_to)),
                Err(error) => return progress.end_with_read(&error, searched_to),
            }
        }
        Ok(progress.with_no_more())
    }

    async fn count_dead(
        &self,
        topic: &TopicName,
        range: DueRange,
    ) -> Result<BulkDone, PostgresError> {
        let mut ids = self.dead_letters.ids(topic, range, BulkSelection::TASKS_MAX + 1).await?;
        let count_max = usize::try_from(BulkSelection::TASKS_MAX).unwrap_or(usize::MAX);
        let has_more = ids.len() > count_max;
        ids.truncate(count_max);
        let searched_to = ids.last().filter(|_last| has_more).map(|last| Cursor { after: *last });
        Ok(BulkDone { task_count: ids.len().saturating_as::<u64>(), has_more, searched_to })
    }

    /// Redrives one dead letter. Returns `None` when there is none of the topic of the permit.
    pub async fn redrive(
        &self,
        permit: &TaskPermit<Redrive>,
        to: Option<&TopicName>,
    ) -> Result<Option<TaskView>, Unavailable> {
        let by = self.number_of(permit.principal()).await?;
        let from = (permit.id(), permit.topic());
        let _turn = self.turns.take(permit.principal(), CallKind::DeadLetters).await?;
        let redriven = retrying(|| self.dead_letters.redrive_to(from, by, to)).await?;
        Ok(redriven.map(|redriven| {
            self.redriven(&[redriven.row]);
            redriven.view
        }))
    }

    /// Drops one dead letter. Returns `None` when there is none of the topic of the permit.
    pub async fn drop_dead(
        &self,
        permit: &TaskPermit<permit::Drop>,
    ) -> Result<Option<TaskView>, Unavailable> {
        let by = self.number_of(permit.principal()).await?;
        let of = (permit.id(), permit.topic());
        let _turn = self.turns.take(permit.principal(), CallKind::DeadLetters).await?;
        let dropped = retrying(|| self.dead_letters.discard(of, by)).await?;
        self.dropped(usize::from(dropped.is_some()));
        Ok(dropped)
    }

    /// Returns the number under which a caller is stored.
    async fn number_of(&self, caller: &Principal) -> Result<Option<PrincipalId>, Unavailable> {
        let number = self.shared.callers.of(&caller.name).await;
        number.map_err(unavailable_of_read)
    }

    /// Has the new rows claimed at once, and returns their number.
    fn redriven(&self, rows: &[TaskId]) -> u64 {
        self.shared.claim_late(IdRange::spanning(rows.iter().copied()));
        let count = rows.len().saturating_as::<u64>();
        self.shared.metrics.redriven.inc_by(count);
        count
    }

    /// Counts dropped dead letters.
    fn dropped(&self, count: usize) -> u64 {
        let count = count.saturating_as::<u64>();
        self.shared.metrics.dead_letters_dropped.inc_by(count);
        count
    }
}

/// Returns false for a task that a move leaves alone: it is due at its new time already. An overdue
/// task is due now, and so is a task with a new time that has passed.
fn is_moved_by(shift: Shift, due_at: Timestamp, now: Timestamp) -> bool {
    let next = shift.of(due_at);
    let is_due_already = match shift {
        Shift::Later(_) => false,
        Shift::Earlier(_) | Shift::To(_) => due_at.max(next) <= now,
    };
    next != due_at && !is_due_already
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::permit::BulkPermit;
    use crate::access::{Caller, Rights};
    use crate::node::messages::BulkRange;

    #[test]
    fn a_call_without_a_turn_for_its_next_piece_reports_the_pieces_before() {
        let caller = Caller::anonymous(Rights::everything());
        let topic = TopicName::new("t").unwrap();
        let permit = BulkPermit::<permit::Move>::on(&caller, &topic, false).unwrap();
        let range = BulkRange { due_from: None, due_to: None, choice: None, from: None };
        let bulk = BulkSelection::new(&permit, range);
        let ended = |task_count| {
            let mut progress = CallProgress::new(&bulk, Duration::from_secs(1));
            progress.task_count = task_count;
            progress.end_without_turn(NoTurn("lists_share"), None)
        };
        assert_eq!(ended(0), Err(Unavailable::Busy { limit: "lists_share" }));
        let done = BulkDone { task_count: 3, has_more: true, searched_to: None };
        assert_eq!(ended(3), Ok(done));
    }

    #[test]
    fn a_move_leaves_tasks_alone_that_are_due_at_their_new_times_already() {
        let at = Timestamp::from_millis;
        let by = Duration::from_millis(10);
        for (shift, due_at, expected) in [
            (Shift::Later(by), 60, true),
            (Shift::Later(by), 10, true),
            (Shift::Earlier(by), 60, true),
            // Due now at the latest: a repetition of the call changes nothing.
            (Shift::Earlier(by), 55, true),
            (Shift::Earlier(by), 50, false),
            (Shift::Earlier(by), 10, false),
            (Shift::To(at(70)), 60, true),
            (Shift::To(at(70)), 70, false),
            (Shift::To(at(70)), 40, true),
            // A time of the past is another one for each call.
            (Shift::To(at(50)), 60, true),
            (Shift::To(at(50)), 50, false),
            (Shift::To(at(49)), 48, false),
        ] {
            assert_eq!(is_moved_by(shift, at(due_at), at(50)), expected, "{shift:?} {due_at}");
        }
    }
}
