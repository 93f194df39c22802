//! Calls about schedules: checks them, stores them, and has their runs made.

use std::sync::Arc;
use std::time::Duration;

use az::SaturatingAs as _;

use super::submitter::{Submitter, unanswered};
use crate::access::permit::{self, Grant, Permit};
use crate::domain::schedule::plan::triggered_headers;
use crate::domain::schedule::{RevisionCondition, Schedule, ScheduleChange, StoredSchedule};
use crate::domain::{
    IdRange, PrincipalId, PrincipalName, Record, ScheduleName, TaskName, Timestamp,
};
use crate::node::maintenance::run_keeper::NewSchedules;
use crate::node::messages::{
    Backfill, BackfillAnswer, BackfillDone, Draft, Due, PutSchedule, Refusal, Triggered,
    Unavailable,
};
use crate::node::requests::connections::principal_turns::{
    CallKind, NoTurn, PrincipalTurn, PrincipalTurns,
};
use crate::node::requests::group_commit::submission::Submission;
use crate::node::requests::placing::RunPlacing;
use crate::node::requests::postgres_failures::{
    Tries, refusal_of, refusal_of_read, retrying, unavailable_of_read,
};
use crate::node::shared::NodeShared;
use crate::postgres::schedules::Schedules;
use crate::postgres::schedules::backfill::Backfilled;
use crate::postgres::schedules::change::{NamedSchedule, NewSchedule};
use crate::postgres::schedules::make::RunTask;

/// Maximum time until the first run of a schedule: 36,500 days, as for `--delay-max`. Rows that are
/// due thousands of years ahead count as held tasks (`postgres/topics/held.rs`).
const BEGINS_WITHIN: Duration = Duration::from_hours(36_500 * 24);

/// The maximum number of tries when other requests create the same schedule.
const TRIES_MAX: usize = 5;

/// The schedules of the cluster. Each use of the store has a turn of its principal.
#[derive(Debug)]
pub struct ScheduleService {
    pub shared: Arc<NodeShared>,
    pub store: Schedules,
    pub turns: Arc<PrincipalTurns>,
    pub new: NewSchedules,
    /// How long a name is kept after the due time of its task.
    pub name_retention: Duration,
}

impl ScheduleService {
    /// Checks a schedule, as a submit checks a task, and stores it.
    pub async fn put(
        &self,
        submitter: &Submitter,
        permit: &Permit<permit::Schedule>,
        put: PutSchedule,
        arrived_at: Option<Timestamp>,
    ) -> Result<ScheduleChange, Refusal> {
        let schedule = &put.schedule;
        if schedule.specification.differs_by_version() {
            submitter.knows_overlap()?;
        }
        let now = arrived_at.unwrap_or_default();
        // A schedule that has ended may be put again. No limit of tasks applies to how far ahead
        // the first run is: the same PUT would be refused or accepted depending on its time.
        let first = schedule.specification.timing.next_after(now);
        let draft = self.draft_of(schedule, first.unwrap_or(now));
        let checked = submitter.check_one(&permit.principal().name, draft, arrived_at).await?;
        if first.is_some_and(|first| first > now.plus(BEGINS_WITHIN)) {
            return Err(Refusal::TooFar { delay_max: BEGINS_WITHIN });
        }
        let new = NewSchedule {
            schedule,
            shard: schedule.shard(self.shared.cluster.shards),
            by: checked.submitted_by,
            condition: put.condition,
            is_dry_run: put.is_dry_run,
            sees_record: permit.shows_records(),
        };
        let _turn = self.turn(permit).await?;
        let mut tries = Tries::default();
        for _try in 0..TRIES_MAX {
            match self.store.put(new).await {
                Ok(ScheduleChange::Overtaken) => {}
                Ok(done) => {
                    if !put.is_dry_run {
                        self.make_runs(&done);
                    }
                    return Ok(done);
                }
                Err(error) if tries.again(&error) => {}
                Err(error) => return Err(refusal_of(&error)),
            }
        }
        let reason = "other requests kept changing the schedule; nothing was changed".to_owned();
        Err(Refusal::ServerAway { reason })
    }

    /// Returns the schedule of a name, of the topic of `grant`.
    pub async fn find(
        &self,
        grant: &Grant,
        name: &ScheduleName,
    ) -> Result<Option<StoredSchedule>, Unavailable> {
        let _turn = self.turn(grant).await?;
        self.store.find(grant.topic(), name).await.map_err(unavailable_of_read)
    }

    /// Lists schedules of the topic of `grant`.
    pub async fn list(
        &self,
        grant: &Grant,
        after: Option<&ScheduleName>,
        limit: usize,
    ) -> Result<Vec<StoredSchedule>, Unavailable> {
        let _turn = self.turn(grant).await?;
        let listed = self.store.list(grant.topic(), after, limit).await;
        listed.map_err(unavailable_of_read)
    }

    /// Pauses or resumes a schedule.
    pub async fn set_paused(
        &self,
        permit: &Permit<permit::Schedule>,
        name: &ScheduleName,
        is_paused: bool,
    ) -> Result<ScheduleChange, Unavailable> {
        let by = self.number_of(permit).await?;
        let named = named(permit, name, by, RevisionCondition::None);
        let _turn = self.turn(permit).await?;
        let done = retrying(|| self.store.set_paused(named, is_paused)).await?;
        self.make_runs(&done);
        Ok(done)
    }

    /// Deletes a schedule, and withdraws its runs.
    pub async fn delete(
        &self,
        permit: &Permit<permit::Schedule>,
        name: &ScheduleName,
        condition: RevisionCondition,
    ) -> Result<ScheduleChange, Unavailable> {
        let by = self.number_of(permit).await?;
        let named = named(permit, name, by, condition);
        let _turn = self.turn(permit).await?;
        retrying(|| self.store.delete(named)).await
    }

    /// Submits a run that is due now, paused or not. `None`: there is no such schedule.
    pub async fn trigger(
        &self,
        submitter: &Submitter,
        permit: &Permit<permit::Schedule>,
        name: &ScheduleName,
        arrived_at: Option<Timestamp>,
    ) -> Result<Option<Triggered>, Refusal> {
        let by: &PrincipalName = &permit.principal().name;
        let Some(stored) = self.find_to_run(permit, name).await? else {
            return Ok(None);
        };
        let at = arrived_at.unwrap_or_default().floor_millis();
        let name = name.of_run(at).map_err(|_too_long| beyond_calendar(at))?;
        let submit = async |name: Option<TaskName>| {
            let draft = Draft { name, ..self.draft_of(&stored.schedule, at) };
            let task = submitter.check_one(by, draft, arrived_at).await?;
            let answers = submitter.group_commit.enqueue(by, vec![Submission::new(0, task)]).await;
            let answer = answers.into_iter().next().map(|(_index, answer)| answer);
            answer.unwrap_or_else(unanswered)
        };
        let mut name = Some(name);
        let mut accepted = submit(name.clone()).await?;
        if !accepted.is_new {
            // Another task has the name, and keeps it.
            name = None;
            accepted = submit(None).await?;
        }
        let (id, state) = (accepted.id, accepted.state);
        Ok(Some(Triggered { id, name, state, schedule: stored.schedule }))
    }

    /// Makes the runs of a range of the past that are not there, due now.
    pub async fn backfill(
        &self,
        submitter: &Submitter,
        permit: &Permit<permit::Schedule>,
        name: &ScheduleName,
        wanted: Backfill,
    ) -> Result<BackfillAnswer, Refusal> {
        submitter.knows_overlap()?;
        let mut tries = Tries::default();
        for _try in 0..TRIES_MAX {
            let Some(stored) = self.find_to_run(permit, name).await? else {
                return Ok(BackfillAnswer::NotFound);
            };
            let now = self.shared.now();
            let range = (wanted.from, wanted.to);
            let instants = match stored.instants_to_backfill(range, wanted.asked_at) {
                Ok(instants) => instants,
                Err(error) => return Ok(BackfillAnswer::Refused(error)),
            };
            let by = &permit.principal().name;
            let draft = self.draft_of(&stored.schedule, now);
            submitter.check_one(by, draft, Some(now)).await?;
            let runs = self.backfill_runs(&stored, &instants)?;
            let turn = self.turn(permit).await?;
            let done = self.store.backfill(&stored, &runs, self.name_retention, wanted.is_dry_run);
            let done = done.await;
            drop(turn);
            match done {
                Ok(Some(done)) => {
                    return Ok(BackfillAnswer::Done(
                        self.note_backfill(done, &runs, instants, wanted),
                    ));
                }
                Ok(None) => {}
                // A repetition makes no run twice, but would not know what the first call has made.
                Err(error) if tries.again(&error) => {}
                Err(error) => return Err(refusal_of(&error)),
            }
        }
        let reason = "other requests kept changing the schedule; nothing was changed".to_owned();
        Err(Refusal::ServerAway { reason })
    }

    /// Returns a schedule of which the caller wants runs.
    async fn find_to_run(
        &self,
        grant: &Grant,
        name: &ScheduleName,
    ) -> Result<Option<StoredSchedule>, Refusal> {
        let _turn = self.turn(grant).await?;
        self.store.find(grant.topic(), name).await.map_err(refusal_of_read)
    }

    fn backfill_runs(
        &self,
        stored: &StoredSchedule,
        instants: &[Timestamp],
    ) -> Result<Vec<RunTask>, Refusal> {
        let Schedule { name, record, .. } = &stored.schedule;
        let placing = RunPlacing::new(&self.shared, (&record.topic, name), record.key.as_deref());
        let run = |at: &Timestamp| {
            let placed = placing.place(*at, Duration::ZERO, triggered_headers(name, *at));
            placed.ok_or_else(|| beyond_calendar(*at))
        };
        instants.iter().map(run).collect()
    }

    fn note_backfill(
        &self,
        done: Backfilled,
        runs: &[RunTask],
        instants: Vec<Timestamp>,
        wanted: Backfill,
    ) -> BackfillDone {
        let near = runs.iter().filter(|run| !run.is_far && done.made.contains(&run.id));
        self.shared.claim_late(IdRange::spanning(near.map(|run| run.id).collect::<Vec<_>>()));
        let (made, all) =
            (done.made.len().saturating_as::<u64>(), runs.len().saturating_as::<u64>());
        self.shared.metrics.submitted.inc_by(made);
        // The statement does not see runs that another transaction made while it waited.
        let known = if wanted.is_dry_run { done.known } else { all.saturating_sub(made) };
        BackfillDone { runs: instants, made: all.saturating_sub(known), known }
    }

    /// Has the first runs of a changed schedule made at once.
    fn make_runs(&self, done: &ScheduleChange) {
        if let ScheduleChange::Created(stored) | ScheduleChange::Changed(stored) = done {
            self.new.add(stored.id);
        }
    }

    /// Makes a draft of a run that is due now, with the headers of a run at `at`. The draft has the
    /// `ttr` and the expiry of the topic's policy, as all runs have. The draft has no spread, and
    /// no header with its submitter.
    fn draft_of(&self, schedule: &Schedule, at: Timestamp) -> Draft {
        let (policies, topic) = (&self.shared.policies, &schedule.record.topic);
        let own = triggered_headers(&schedule.name, at);
        let headers = schedule.record.headers.clone().followed_by(&own);
        Draft {
            record: Record { headers, ..schedule.record.clone() },
            name: None,
            due: Due::After(Duration::ZERO),
            tracking: policies.tracking_for(topic, schedule.tracking.clone()),
            expiry: policies.expiry_for(topic, None),
            spread: None,
        }
    }

    async fn turn(&self, grant: &Grant) -> Result<PrincipalTurn<'_>, NoTurn> {
        self.turns.take(grant.principal(), CallKind::Schedules).await
    }

    async fn number_of(&self, grant: &Grant) -> Result<Option<PrincipalId>, Unavailable> {
        let number = self.shared.callers.of(&grant.principal().name).await;
        number.map_err(unavailable_of_read)
    }
}

fn named<'a>(
    permit: &'a Permit<permit::Schedule>,
    name: &'a ScheduleName,
    by: Option<PrincipalId>,
    condition: RevisionCondition,
) -> NamedSchedule<'a> {
    NamedSchedule { topic: permit.topic(), name, by, condition }
}

/// Returns the refusal of a run at an instant whose text is too long for a name.
fn beyond_calendar(at: Timestamp) -> Refusal {
    Refusal::BadValue { reason: format!("there is no name for a run at {at}") }
}
