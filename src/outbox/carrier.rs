//! Carries out the rows of a turn: checks them, and stores their tasks in waves.

use std::collections::VecDeque;
use std::iter;
use std::ops::Range;
use std::sync::Arc;

use uuid::Uuid;

use super::waves;
use crate::access::permit::{Cancel, Permit};
use crate::access::{Caller, Policy, PolicyHandle};
use crate::api::outbox::{self, OutboxRequest, Refused};
use crate::clock;
use crate::domain::task::outbox_row::{ClockOffset, OutboxRow, RejectedRow};
use crate::domain::{IdRange, Monotonic, NewTask, TaskId, TaskName, Timestamp, TopicName};
use crate::engine::placing::Destination;
use crate::error_chain::chain;
use crate::failpoint::{Failpoint, reach};
use crate::node::messages::Verdict;
use crate::node::requests::moving;
use crate::node::requests::placing::{Placer, assign_ids, clamp};
use crate::node::requests::postgres_failures::{Tries, refusal_of};
use crate::node::requests::replacer::{NameFinding, look};
use crate::node::requests::service::Service;
use crate::node::shared::NodeShared;
use crate::postgres::PostgresError;
use crate::postgres::outbox::store::{
    Epoch, OutboxCancel, OutboxStore, RowKey, StoreError, Submits,
};
use crate::postgres::tasks::look_up::LookUp;
use crate::postgres::tasks::names::Names;
use crate::postgres::tasks::replace::Replacement;
use crate::postgres::tasks::submit::Group;
use crate::postgres::tasks::submit_named::NamedGroup;

/// The most tries of a replacement or a cancel whose task is being moved or replaced.
const TRIES_MAX: usize = 10;
/// The most times that ids are drawn when one is taken.
const DRAWS_MAX: usize = 3;

/// The reason why a turn ends without an effect on the outbox. Its rows are read again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stop {
    /// A limit is reached, or a server is away.
    Later { reason: String },
    /// Another node drains the outbox, or it is unknown what was stored. The next turn needs a new
    /// epoch.
    NewEpoch { reason: String },
}

impl Stop {
    pub fn later(reason: impl Into<String>) -> Self {
        Self::Later { reason: reason.into() }
    }

    pub fn reason(&self) -> &str {
        let (Self::Later { reason } | Self::NewEpoch { reason }) = self;
        reason
    }
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        let reason = chain(&error);
        match error {
            StoreError::Postgres(error) if !error.is_unknown() => Self::Later { reason },
            StoreError::Postgres(_) | StoreError::Overtaken => Self::NewEpoch { reason },
        }
    }
}

impl From<PostgresError> for Stop {
    fn from(error: PostgresError) -> Self {
        StoreError::from(error).into()
    }
}

/// The rows of a turn after they were carried out.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Carried {
    /// Rows that were stored now. Those of an earlier turn do not count again.
    pub stored: usize,
    pub rejected: Vec<RejectedRow>,
}

impl Carried {
    /// Keeps a refused row.
    ///
    /// # Errors
    /// When the row waits, and with it the turn.
    fn refuse(&mut self, row: RowKey, refused: Refused) -> Result<(), Stop> {
        match refused {
            Refused::ForGood { status, reason } => {
                self.rejected.push(RejectedRow { seq: row.seq, status, reason });
                Ok(())
            }
            Refused::ForNow { reason } => Err(Stop::Later { reason }),
        }
    }
}

/// A row whose change can be stored.
struct Item {
    row: RowKey,
    change: Change,
}

enum Change {
    Submit(NewTask),
    Replace(NewTask),
    Cancel(Permit<Cancel>, TaskName),
}

impl Item {
    /// Returns the topic and the name of the task.
    fn name(&self) -> Option<(TopicName, TaskName)> {
        match &self.change {
            Change::Submit(task) | Change::Replace(task) => {
                Some((task.record.topic.clone(), task.name.clone()?))
            }
            Change::Cancel(permit, name) => Some((permit.topic().clone(), name.clone())),
        }
    }
}

/// A submit on its way into the tables.
struct NewRow {
    row: RowKey,
    task: NewTask,
}

impl NewRow {
    fn name(&self) -> Option<(&str, &str)> {
        let name = self.task.name.as_ref()?;
        Some((self.task.record.topic.as_str(), name.as_str()))
    }
}

/// Carries out rows, over a connection of its own.
#[derive(Debug)]
pub struct Carrier {
    /// The name of the outbox, and of its principal.
    pub name: String,
    pub shared: Arc<NodeShared>,
    pub service: Service,
    pub policy: PolicyHandle,
    pub names: Arc<Names>,
    pub look_up: Arc<LookUp>,
    pub store: OutboxStore,
}

impl Carrier {
    /// Carries out rows in their order. No piece of work begins after `until`.
    pub async fn carry_out(
        &mut self,
        epoch: Epoch,
        rows: Vec<OutboxRow>,
        offset: ClockOffset,
        until: Monotonic,
    ) -> Result<Carried, Stop> {
        let policy = self.policy.current();
        let caller = outbox::caller_of(&policy, &self.name).ok_or_else(|| {
            Stop::later(format!("the auth file has no principal {:?}", self.name))
        })?;
        let mut carried = Carried::default();
        let rows = self.unseen(epoch, rows, &mut carried).await?;
        let items = self.checked(rows, (&policy, &caller), offset, &mut carried).await?;
        for wave in waves::divide(items, Item::name) {
            self.store_wave(epoch, wave, until, &mut carried).await?;
            reach(Failpoint::OutboxStored);
        }
        Ok(carried)
    }

    /// Returns the rows that are not stored yet.
    async fn unseen(
        &mut self,
        epoch: Epoch,
        rows: Vec<OutboxRow>,
        carried: &mut Carried,
    ) -> Result<Vec<OutboxRow>, Stop> {
        let ids: Vec<Uuid> = rows.iter().map(|row| row.id).collect();
        let mut taken = self.store.seen(epoch, &ids).await?;
        let mut unseen = Vec::with_capacity(rows.len());
        for row in rows {
            match taken.get(&row.id) {
                Some(seq) if *seq == row.seq => {}
                Some(seq) => {
                    let reason = format!("id: the row {seq} has the same id");
                    carried.rejected.push(RejectedRow { seq: row.seq, status: 400, reason });
                }
                None => {
                    taken.insert(row.id, row.seq);
                    unseen.push(row);
                }
            }
        }
        Ok(unseen)
    }

    /// Checks rows as REST checks requests. Refused rows are kept apart.
    async fn checked(
        &self,
        rows: Vec<OutboxRow>,
        (policy, caller): (&Policy, &Caller),
        offset: ClockOffset,
        carried: &mut Carried,
    ) -> Result<Vec<Item>, Stop> {
        let arrived_at = self.service.arrival();
        let mut requests = Vec::with_capacity(rows.len());
        for row in rows {
            let key = RowKey { id: row.id, seq: row.seq };
            match outbox::read(&row, row.due_at(offset), (policy, caller), arrived_at) {
                Ok(request) => requests.push((key, request)),
                Err(refused) => carried.refuse(key, refused)?,
            }
        }
        let drafts = requests.iter().filter_map(|(_row, request)| match request {
            OutboxRequest::Submit(draft) | OutboxRequest::Replace(draft) => Some(draft.draft()),
            OutboxRequest::Cancel(..) => None,
        });
        if let Err(Refused::ForNow { reason } | Refused::ForGood { reason, .. }) =
            outbox::charge(&self.policy, caller, drafts)
        {
            return Err(Stop::Later { reason });
        }
        let mut items = Vec::with_capacity(requests.len());
        for (row, request) in requests {
            match self.change_of(request, arrived_at).await {
                Ok(change) => items.push(Item { row, change }),
                Err(refused) => carried.refuse(row, refused)?,
            }
        }
        Ok(items)
    }

    async fn change_of(
        &self,
        request: OutboxRequest,
        arrived_at: Option<Timestamp>,
    ) -> Result<Change, Refused> {
        let checked = match request {
            OutboxRequest::Cancel(permit, name) => return Ok(Change::Cancel(permit, name)),
            OutboxRequest::Submit(draft) => {
                self.service.check(draft, arrived_at).await.map(Change::Submit)
            }
            OutboxRequest::Replace(draft) => {
                self.service.check(draft, arrived_at).await.map(Change::Replace)
            }
        };
        checked.map_err(outbox::of_service)
    }

    async fn store_wave(
        &mut self,
        epoch: Epoch,
        wave: Vec<Item>,
        until: Monotonic,
        carried: &mut Carried,
    ) -> Result<(), Stop> {
        let (mut submits, mut others) = (Vec::new(), Vec::new());
        for Item { row, change } in wave {
            match change {
                Change::Submit(task) => submits.push(NewRow { row, task }),
                change => others.push((row, change)),
            }
        }
        self.submit(epoch, submits, carried).await?;
        for (row, change) in others {
            if clock::monotonic() >= until {
                return Err(Stop::later("the turn takes too long; the next one goes on"));
            }
            match change {
                Change::Submit(task) | Change::Replace(task) => {
                    self.replace(epoch, row, task, carried).await?;
                }
                Change::Cancel(permit, name) => {
                    self.cancel(epoch, row, &permit, &name).await?;
                    carried.stored += 1;
                }
            }
        }
        Ok(())
    }

    /// Stores submits. A row that Postgres refuses for a value is found by halves, and rejected
    /// alone.
    async fn submit(
        &mut self,
        epoch: Epoch,
        mut submits: Vec<NewRow>,
        carried: &mut Carried,
    ) -> Result<(), Stop> {
        assign_ids(&self.shared, submits.iter_mut().map(|new| &mut new.task));
        // Names are taken in the order in which the lanes of the API take them.
        submits.sort_by(|one, other| one.name().cmp(&other.name()));
        let mut pieces: VecDeque<Range<usize>> = iter::once(0..submits.len()).collect();
        while let Some(piece) = pieces.pop_front().filter(|piece| !piece.is_empty()) {
            match self.submit_piece(epoch, &mut submits[piece.clone()]).await {
                Ok(()) => carried.stored += piece.len(),
                Err(StoreError::Postgres(error @ PostgresError::BadValue { .. })) => {
                    if let [new] = &submits[piece.clone()] {
                        carried.refuse(new.row, outbox::of_service(refusal_of(&error)))?;
                    } else {
                        let middle = piece.start + piece.len() / 2;
                        pieces.extend([piece.start..middle, middle..piece.end]);
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    async fn submit_piece(&mut self, epoch: Epoch, piece: &mut [NewRow]) -> Result<(), StoreError> {
        let (mut tries, mut draws) = (Tries::default(), 0);
        loop {
            match self.try_submit(epoch, piece).await {
                Err(StoreError::Postgres(error)) if error.is_of_an_id() && draws < DRAWS_MAX => {
                    draws += 1;
                    assign_ids(&self.shared, piece.iter_mut().map(|new| &mut new.task));
                }
                Err(StoreError::Postgres(error)) if tries.again(&error) => {}
                outcome => return outcome,
            }
        }
    }

    async fn try_submit(&mut self, epoch: Epoch, piece: &mut [NewRow]) -> Result<(), StoreError> {
        let now = self.shared.now();
        piece.iter_mut().for_each(|new| clamp(&mut new.task, now));
        let placer = Placer::new(&self.shared, now);
        let is_far = |task: &NewTask| placer.table_of(task) == Destination::Far;
        let rows: Vec<RowKey> = piece.iter().map(|new| new.row).collect();
        let (named, plain): (Vec<&NewTask>, Vec<&NewTask>) =
            piece.iter().map(|new| &new.task).partition(|task| task.name.is_some());
        let wanted: Vec<(&str, &str)> = piece.iter().filter_map(NewRow::name).collect();
        if !wanted.is_empty() {
            // This frees expired names.
            self.names.known(&wanted).await?;
        }
        let (far, near): (Vec<&NewTask>, Vec<&NewTask>) =
            plain.iter().copied().partition(|task| is_far(task));
        let is_far: Vec<bool> = named.iter().map(|task| is_far(task)).collect();
        let is_claimed = vec![false; named.len()];
        let named_rows =
            NamedGroup { tasks: &named, is_far: &is_far, is_claimed: &is_claimed, batch: None };
        let submits = Submits {
            rows: &rows,
            plain: Group { near, far, claimed: None },
            named: (!named.is_empty()).then_some(named_rows),
        };
        let began_at = clock::monotonic();
        let (won, stamp) = self.store.submit(epoch, &submits).await?;
        self.shared.group_stored(rows.len(), plain.len() + won.len(), stamp, began_at);
        let known = named.len().saturating_sub(won.len());
        self.shared.metrics.names_known.inc_by(u64::try_from(known).unwrap_or(u64::MAX));
        let is_new = |task: &&&NewTask| task.name.is_none() || won.contains(&task.id);
        let ids = plain.iter().chain(&named).filter(is_new).map(|task| task.id);
        self.shared.look_after(IdRange::spanning(ids));
        Ok(())
    }

    /// Replaces the task of a name. A replacement that comes too late is rejected, because its
    /// record will never be published.
    async fn replace(
        &mut self,
        epoch: Epoch,
        row: RowKey,
        mut task: NewTask,
        carried: &mut Carried,
    ) -> Result<(), Stop> {
        let mut over: Option<TaskId> = None;
        assign_ids(&self.shared, [&mut task]);
        for _try in 0..TRIES_MAX {
            clamp(&mut task, self.shared.now());
            let placer = Placer::new(&self.shared, self.shared.now());
            let is_far = placer.table_of(&task) == Destination::Far;
            match self.store.replace(epoch, row, (&task, is_far, over)).await {
                Ok(done @ (Replacement::Created | Replacement::Replaced)) => {
                    let metrics = &self.shared.metrics;
                    metrics.submitted.inc();
                    if done == Replacement::Replaced {
                        metrics.replaced.inc();
                    }
                    self.shared.look_after(IdRange::spanning((!is_far).then_some(task.id)));
                    carried.stored += 1;
                    return Ok(());
                }
                Ok(Replacement::Gone(entry)) => {
                    let finding = look(entry, &self.look_up, false).await;
                    match finding.map_err(|refusal| stop_of(outbox::of_service(refusal)))? {
                        NameFinding::Final => over = Some(entry.row),
                        NameFinding::TooLate(_task) => {
                            let reason = "the task of this name is claimed, or an attempt of it \
                                          was published: nothing was replaced";
                            return carried.refuse(row, too_late(reason));
                        }
                        NameFinding::Moving => moving::pause().await,
                    }
                }
                Ok(Replacement::Overtaken | Replacement::Unmet(_)) => {}
                Err(StoreError::Postgres(error)) if error.is_of_an_id() => {
                    assign_ids(&self.shared, [&mut task]);
                }
                Err(StoreError::Postgres(PostgresError::GaveWay { .. })) => {}
                Err(StoreError::Postgres(error @ PostgresError::BadValue { .. })) => {
                    return carried.refuse(row, outbox::of_service(refusal_of(&error)));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(Stop::later("other requests kept replacing the task of a name"))
    }

    /// Cancels the task of a name. A cancel that comes too late, or finds no task, is done.
    async fn cancel(
        &mut self,
        epoch: Epoch,
        row: RowKey,
        permit: &Permit<Cancel>,
        name: &TaskName,
    ) -> Result<(), Stop> {
        let by = self.shared.callers.of(&permit.principal().name).await?;
        for _try in 0..TRIES_MAX {
            match self.store.cancel(epoch, row, (permit.topic(), name, by)).await {
                Ok(OutboxCancel::Cancelled) => {
                    self.shared.metrics.cancelled.inc();
                    return Ok(());
                }
                Ok(OutboxCancel::NotFound) => return Ok(()),
                Ok(OutboxCancel::Gone(entry)) => {
                    match Verdict::of_look(self.look_up.task(entry.id).await?) {
                        // The task is being moved, or the name stands for another task by now.
                        None | Some(Verdict::Replaced(_)) => moving::pause().await,
                        Some(_verdict) => return Ok(self.store.note(epoch, row).await?),
                    }
                }
                Err(StoreError::Postgres(PostgresError::GaveWay { .. })) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Stop::later("other requests kept moving the task of a name"))
    }
}

fn too_late(reason: &str) -> Refused {
    Refused::ForGood { status: 409, reason: reason.to_owned() }
}

fn stop_of(refused: Refused) -> Stop {
    let (Refused::ForNow { reason } | Refused::ForGood { reason, .. }) = refused;
    Stop::Later { reason }
}
