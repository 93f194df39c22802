//! Carries out requests that were read from an outbox or an intake topic: stores their tasks,
//! cancels, and takes the answers of consumers.

mod answers;
mod submits;

use std::sync::Arc;
use std::time::Duration;

use crate::access::permit::{Cancel, Permit};
use crate::access::{Caller, Policy, PolicyHandle};
use crate::api::access::audit::Audit;
use crate::api::access::turns::AuditedTurn;
use crate::api::inbound::{self, InboundRequest, Refused};
use crate::audit::NoPlace;
use crate::clock;
use crate::domain::task::outbox_row::RejectedRow;
use crate::domain::{Monotonic, NewTask, Record, TaskName, Timestamp, TopicName};
use crate::engine::placing::Destination;
use crate::error_chain::chain;
use crate::node::messages::CancelVerdict;
use crate::node::messages::answers::{ConsumerCall, Target};
use crate::node::requests::moving;
use crate::node::requests::placing::{Placer, assign_ids, clamp};
use crate::node::requests::postgres_failures::refusal_of;
use crate::node::requests::replacer::{NameReads, placed};
use crate::node::requests::service::Service;
use crate::node::shared::NodeShared;
use crate::postgres::inbound::{
    InboundCancel, InboundStore, ItemKey, StoreError, StorePrecondition,
};
use crate::postgres::tasks::look_up::LookUp;
use crate::postgres::tasks::names::Names;
use crate::postgres::tasks::replace::Replacement;
use crate::postgres::{PostgresError, PostgresSettings};

/// The most tries of a replacement or a cancel whose task is being moved or replaced.
const TRIES_MAX: usize = 10;

/// The reason why a turn ends before its end. Its items are carried out again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stop {
    /// A limit is reached, or a server is away.
    Later { reason: String },
    /// Another node is at work, or it is unknown what was stored. The next turn needs a new epoch,
    /// or must read the offset again.
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
            StoreError::Unread(_) => Self::Later { reason },
            StoreError::Postgres(_) | StoreError::Overtaken => Self::NewEpoch { reason },
        }
    }
}

impl From<PostgresError> for Stop {
    fn from(error: PostgresError) -> Self {
        StoreError::from(error).into()
    }
}

/// The items of a turn after they were carried out.
#[derive(Debug)]
pub struct Carried {
    /// Items that were stored now. Those of an earlier turn do not count again.
    pub stored: usize,
    pub rejected: Vec<RejectedRow>,
    /// The numbers of the items that were left to the next turn.
    pub left: Vec<i64>,
    /// The numbers of the items that the next turn carries out, because an item of the same name
    /// before them was refused.
    pub held: Vec<i64>,
    /// When the turn leaves its other items to the next one. `None`: it carries out all.
    pub until: Option<Monotonic>,
    /// The notes for the audit trail.
    pub turn: AuditedTurn,
}

impl Carried {
    pub const fn new(turn: AuditedTurn) -> Self {
        Self {
            stored: 0,
            rejected: Vec::new(),
            left: Vec::new(),
            held: Vec::new(),
            until: None,
            turn,
        }
    }

    /// Returns true when the turn has taken too long.
    pub fn is_over(&self) -> bool {
        self.until.is_some_and(|until| clock::monotonic() >= until)
    }

    /// Notes items that are perhaps stored, if the error says so.
    fn failed(&mut self, action: &'static str, count: usize, error: &StoreError) {
        if matches!(error, StoreError::Postgres(error) if error.is_unknown()) {
            self.turn.perhaps_changed(action, count);
        }
    }

    /// Keeps a refused item.
    ///
    /// # Errors
    /// When the item waits, and with it the turn.
    pub fn refuse(&mut self, item: ItemKey, refused: Refused) -> Result<(), Stop> {
        match refused {
            Refused::ForGood { status, reason, denied } => {
                if let Some((action, topic)) = denied {
                    self.turn.denied(action, &topic);
                }
                self.rejected.push(RejectedRow { seq: item.seq, status, reason });
                Ok(())
            }
            Refused::TopicDenied { reason } | Refused::ForNow { reason } => {
                Err(Stop::Later { reason })
            }
        }
    }
}

/// An item whose change can be stored.
#[derive(Debug)]
pub struct Item {
    pub key: ItemKey,
    pub change: Change,
}

#[derive(Debug)]
pub enum Change {
    Submit(NewTask),
    Replace(NewTask),
    Cancel(Permit<Cancel>, TaskName),
    Answer(Answer),
}

impl Item {
    /// Returns the record of the new task, if there is one.
    pub fn record(&self) -> Option<&Record> {
        match &self.change {
            Change::Submit(task) | Change::Replace(task) => Some(&task.record),
            Change::Cancel(..) | Change::Answer(_) => None,
        }
    }

    pub fn is_answer(&self) -> bool {
        matches!(self.change, Change::Answer(_))
    }

    /// Returns the topic and the name of the task. An answer may name it by its id.
    pub fn name(&self) -> Option<(TopicName, TaskName)> {
        match &self.change {
            Change::Submit(task) | Change::Replace(task) => {
                Some((task.record.topic.clone(), task.name.clone()?))
            }
            Change::Cancel(permit, name) => Some((permit.topic().clone(), name.clone())),
            Change::Answer(Answer { target: Target::Name(permit, name), .. }) => {
                Some((permit.topic().clone(), name.clone()))
            }
            Change::Answer(Answer { target: Target::Id(_), .. }) => None,
        }
    }
}

/// An answer that its consumer may give.
#[derive(Debug)]
pub struct Answer {
    pub target: Target,
    pub call: ConsumerCall,
}

/// A submit on its way into the tables.
#[derive(Debug)]
pub struct NewItem {
    pub key: ItemKey,
    pub task: NewTask,
}

/// The parts of a node that carriers share.
#[derive(Clone, Debug)]
pub struct CarrierParts {
    /// Punctual's database.
    pub postgres: PostgresSettings,
    pub name_retention: Duration,
    pub shared: Arc<NodeShared>,
    pub service: Service,
    pub policy: PolicyHandle,
    pub names: Arc<Names>,
    pub look_up: Arc<LookUp>,
    pub audit: Option<Audit>,
}

/// Carries out items, over a connection of its own.
#[derive(Debug)]
pub struct Carrier {
    /// The name of the outbox or the intake topic, and of its principal.
    pub name: String,
    pub shared: Arc<NodeShared>,
    pub service: Service,
    pub policy: PolicyHandle,
    pub names: Arc<Names>,
    pub look_up: Arc<LookUp>,
    pub store: InboundStore,
    /// The audit trail, with the operation in its lines: `outbox` or `intakeTopic`.
    pub audit: (Option<Audit>, &'static str),
}

impl Carrier {
    /// Creates a carrier for the outbox or the intake topic `name`. `operation` is that of its
    /// lines in the audit trail.
    pub fn new(parts: CarrierParts, name: String, operation: &'static str) -> Self {
        let store = InboundStore::new(&parts.postgres, parts.shared.node, parts.name_retention);
        Self {
            name,
            shared: parts.shared,
            service: parts.service,
            policy: parts.policy,
            names: parts.names,
            look_up: parts.look_up,
            store,
            audit: (parts.audit, operation),
        }
    }

    /// Returns the caller whose rights the items have.
    pub fn caller(&self, policy: &Policy) -> Result<Caller, Stop> {
        inbound::caller_of(policy, &self.name)
            .ok_or_else(|| Stop::later(format!("the auth file has no principal {:?}", self.name)))
    }

    /// Takes the places of the lines of a turn in the audit trail.
    pub fn begin_turn(&self, caller: &Caller) -> Result<AuditedTurn, Stop> {
        let (audit, operation) = &self.audit;
        AuditedTurn::begin(audit.as_ref(), (*operation, &self.name), caller)
            .map_err(|NoPlace| Stop::later("no line of the audit trail can be written"))
    }

    /// Takes what new tasks need from the limits of their caller.
    pub fn charge<'a>(
        &self,
        caller: &Caller,
        records: impl Iterator<Item = &'a Record>,
    ) -> Result<(), Stop> {
        inbound::charge(&self.policy, caller, records).map_err(stop_of)
    }

    /// Counts stored tasks for the principal whose rights the items have.
    fn count_submitted(&self, count: u64) {
        if let Some(caller) = inbound::caller_of(&self.policy.current(), &self.name) {
            caller.principal.counts.submitted(count);
        }
    }

    /// Checks a request of `caller` against Kafka and the clock.
    pub async fn change_of(
        &self,
        request: InboundRequest,
        (caller, arrived_at): (&Caller, Option<Timestamp>),
    ) -> Result<Change, Refused> {
        let checked = match request {
            InboundRequest::Cancel(permit, name) => return Ok(Change::Cancel(permit, name)),
            InboundRequest::Answer(task, call) => {
                let target = inbound::target_of(&self.service, caller, task).await?;
                return Ok(Change::Answer(Answer { target, call }));
            }
            InboundRequest::Submit(draft) => {
                self.service.check(draft, arrived_at).await.map(Change::Submit)
            }
            InboundRequest::Replace(draft) => {
                self.service.check(draft, arrived_at).await.map(Change::Replace)
            }
        };
        checked.map_err(inbound::of_service)
    }

    /// Stores one item.
    pub async fn store_one(
        &mut self,
        precondition: &mut StorePrecondition,
        Item { key, change }: Item,
        carried: &mut Carried,
    ) -> Result<(), Stop> {
        match change {
            Change::Submit(task) => {
                self.submit(precondition, vec![NewItem { key, task }], carried).await
            }
            Change::Replace(task) => self.replace(precondition, key, task, carried).await,
            Change::Cancel(permit, name) => {
                self.cancel(precondition, key, (&permit, &name), carried).await
            }
            Change::Answer(answer) => self.answer(precondition, vec![(key, answer)], carried).await,
        }
    }

    /// Replaces the task of a name. A replacement that comes too late is rejected, because its
    /// record will never be published.
    async fn replace(
        &mut self,
        precondition: &mut StorePrecondition,
        item: ItemKey,
        mut task: NewTask,
        carried: &mut Carried,
    ) -> Result<(), Stop> {
        let mut reads = NameReads::default();
        assign_ids(&self.shared, [&mut task]);
        for _try in 0..TRIES_MAX {
            clamp(&mut task, self.shared.now());
            let placer = Placer::new(&self.shared, self.shared.now());
            let is_far = placer.table_of(&task) == Destination::Far;
            match self.store.replace(precondition, item, (&task, is_far, reads.over)).await {
                Ok(done @ (Replacement::Created | Replacement::Replaced)) => {
                    precondition.stored(&[item]);
                    placed(&self.shared, &task, is_far, done == Replacement::Replaced);
                    self.count_submitted(1);
                    carried.stored += 1;
                    carried.turn.changed("replace", &task.record.topic, Some(task.id));
                    return Ok(());
                }
                Ok(Replacement::Gone(entry)) => {
                    // A task that stays is not moved: an earlier attempt of it may be in the topic.
                    let found = reads.too_late(entry, &self.look_up).await;
                    let found = found.map_err(|refusal| stop_of(inbound::of_service(refusal)))?;
                    if found.is_some() {
                        let reason = "the task of this name is claimed, or an attempt of it was \
                                      published: nothing was replaced";
                        return carried.refuse(item, too_late(reason));
                    }
                }
                Ok(Replacement::Overtaken | Replacement::Unmet(_)) => {}
                Err(StoreError::Postgres(error)) if error.is_duplicate_key() => {
                    assign_ids(&self.shared, [&mut task]);
                }
                Err(StoreError::Postgres(error)) if error.gave_way_to_others() => {}
                Err(StoreError::Postgres(error @ PostgresError::BadValue { .. })) => {
                    return carried.refuse(item, inbound::of_service(refusal_of(&error)));
                }
                Err(error) => {
                    carried.failed("replace", 1, &error);
                    return Err(error.into());
                }
            }
        }
        Err(Stop::later("other requests kept replacing the task of a name"))
    }

    /// Cancels the task of a name. A cancel that comes too late, or finds no task, is done.
    async fn cancel(
        &mut self,
        precondition: &mut StorePrecondition,
        item: ItemKey,
        (permit, name): (&Permit<Cancel>, &TaskName),
        carried: &mut Carried,
    ) -> Result<(), Stop> {
        let by = self.shared.callers.of(&permit.principal().name).await?;
        for _try in 0..TRIES_MAX {
            match self.store.cancel(precondition, item, (permit.topic(), name, by)).await {
                Ok(InboundCancel::Cancelled) => {
                    precondition.stored(&[item]);
                    self.shared.metrics.cancelled.inc();
                    carried.stored += 1;
                    carried.turn.changed("cancel", permit.topic(), None);
                    return Ok(());
                }
                Ok(InboundCancel::NotFound) => {
                    precondition.stored(&[item]);
                    carried.stored += 1;
                    return Ok(());
                }
                Ok(InboundCancel::Gone(entry)) => {
                    match CancelVerdict::of_read(self.look_up.task(entry.id).await?) {
                        // The task is being moved, or the name stands for another task by now.
                        None | Some(CancelVerdict::Replaced(_)) => moving::pause().await,
                        Some(_verdict) => {
                            self.note(precondition, item).await?;
                            carried.stored += 1;
                            return Ok(());
                        }
                    }
                }
                Err(StoreError::Postgres(error)) if error.gave_way_to_others() => {}
                Err(error) => {
                    carried.failed("cancel", 1, &error);
                    return Err(error.into());
                }
            }
        }
        Err(Stop::later("other requests kept moving the task of a name"))
    }

    /// Notes an item that needs no change.
    pub async fn note(
        &mut self,
        precondition: &mut StorePrecondition,
        item: ItemKey,
    ) -> Result<(), Stop> {
        self.store.note(precondition, item).await?;
        precondition.stored(&[item]);
        Ok(())
    }
}

fn too_late(reason: &str) -> Refused {
    Refused::ForGood { status: 409, reason: reason.to_owned(), denied: None }
}

fn stop_of(refused: Refused) -> Stop {
    match refused {
        Refused::ForGood { reason, .. }
        | Refused::TopicDenied { reason }
        | Refused::ForNow { reason } => Stop::Later { reason },
    }
}
