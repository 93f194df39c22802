//! The calls of the service about schedules.

use super::Service;
use crate::access::permit::{self, Permit, Read};
use crate::domain::schedule::{RevisionCondition, ScheduleChange, StoredSchedule};
use crate::domain::{ScheduleName, Timestamp};
use crate::node::messages::{
    Backfill, BackfillAnswer, PutSchedule, Refusal, ScheduleRange, Triggered, Unavailable,
};

impl Service {
    /// Creates a schedule, or replaces the one of its name.
    pub async fn put_schedule(
        &self,
        permit: &Permit<permit::Schedule>,
        put: PutSchedule,
        arrived_at: Option<Timestamp>,
    ) -> Result<ScheduleChange, Refusal> {
        debug_assert_eq!(permit.topic(), &put.schedule.record.topic);
        answer_by_model!(self, model => model.schedules.put(put, permit.shows_records()));
        let parts = self.opened()?;
        let put = parts.schedules.put(&parts.submitter, permit, put, arrived_at);
        Box::pin(put).await
    }

    /// Returns a schedule.
    pub async fn schedule(
        &self,
        permit: &Permit<Read>,
        name: &ScheduleName,
    ) -> Result<Option<StoredSchedule>, Unavailable> {
        answer_by_model!(self, model => Ok(model.schedules.find(permit.topic(), name)));
        self.opened()?.schedules.find(permit, name).await
    }

    /// Returns a schedule of which the caller wants runs.
    pub async fn schedule_to_run(
        &self,
        permit: &Permit<permit::Schedule>,
        name: &ScheduleName,
    ) -> Result<Option<StoredSchedule>, Unavailable> {
        answer_by_model!(self, model => Ok(model.schedules.find(permit.topic(), name)));
        self.opened()?.schedules.find(permit, name).await
    }

    /// Lists the schedules of a topic in the order of their names.
    pub async fn schedules(
        &self,
        permit: &Permit<Read>,
        range: ScheduleRange,
    ) -> Result<Vec<StoredSchedule>, Unavailable> {
        let ScheduleRange { after, limit } = range;
        answer_by_model!(self, model => Ok(model.schedules.list(permit.topic(), after, limit)));
        self.opened()?.schedules.list(permit, after.as_ref(), limit).await
    }

    /// Pauses or resumes a schedule.
    pub async fn pause_schedule(
        &self,
        permit: &Permit<permit::Schedule>,
        name: &ScheduleName,
        is_paused: bool,
    ) -> Result<ScheduleChange, Unavailable> {
        answer_by_model!(self, model => {
            Ok(model.schedules.set_paused(permit.topic(), name, is_paused))
        });
        let schedules = &self.opened()?.takes_changes()?.schedules;
        Box::pin(schedules.set_paused(permit, name, is_paused)).await
    }

    /// Deletes a schedule.
    pub async fn delete_schedule(
        &self,
        permit: &Permit<permit::Schedule>,
        name: &ScheduleName,
        condition: RevisionCondition,
    ) -> Result<ScheduleChange, Unavailable> {
        answer_by_model!(self, model => {
            Ok(model.schedules.delete(permit.topic(), name, condition))
        });
        let schedules = &self.opened()?.takes_changes()?.schedules;
        Box::pin(schedules.delete(permit, name, condition)).await
    }

    /// Makes runs of the past.
    pub async fn backfill_schedule(
        &self,
        permit: &Permit<permit::Schedule>,
        name: &ScheduleName,
        wanted: Backfill,
    ) -> Result<BackfillAnswer, Refusal> {
        answer_by_model!(self, model => {
            Ok(model.schedules.backfill((permit.topic(), name), &wanted))
        });
        let parts = self.opened()?;
        Box::pin(parts.schedules.backfill(&parts.submitter, permit, name, wanted)).await
    }

    /// Submits a run of a schedule that is due now.
    pub async fn trigger_schedule(
        &self,
        permit: &Permit<permit::Schedule>,
        name: &ScheduleName,
        arrived_at: Option<Timestamp>,
    ) -> Result<Option<Triggered>, Refusal> {
        answer_by_model!(self, model => Ok(model.schedules.trigger(permit.topic(), name)));
        let parts = self.opened()?;
        let trigger = parts.schedules.trigger(&parts.submitter, permit, name, arrived_at);
        Box::pin(trigger).await
    }
}
