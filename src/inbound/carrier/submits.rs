//! Stores the submits of a turn. Tasks that are due within the window are claimed by their insert,
//! as those of the REST API are.

use std::collections::{HashSet, VecDeque};
use std::iter;
use std::ops::Range;
use std::sync::Arc;

use az::SaturatingAs as _;

use super::{Carried, Carrier, NewItem, Stop};
use crate::api::access::turns::AuditedTurn;
use crate::api::inbound;
use crate::clock;
use crate::domain::{BatchBuilder, BatchId, IdRange, NewTask, TaskId, Timestamp};
use crate::engine::placing::Destination;
use crate::failpoint::{Failpoint, reach};
use crate::node::requests::group_commit::submission::may_do_without_claims;
use crate::node::requests::placing::{Placer, assign_ids, clamp};
use crate::node::requests::postgres_failures::{Tries, refusal_of};
use crate::postgres::PostgresError;
use crate::postgres::inbound::{InboundStore, ItemKey, StoreError, StorePrecondition, Submits};
use crate::postgres::tasks::submit::Group;
use crate::postgres::tasks::submit_named::NamedGroup;

fn name_of(task: &NewTask) -> Option<(&str, &str)> {
    let name = task.name.as_ref()?;
    Some((task.record.topic.as_str(), name.as_str()))
}

impl Carrier {
    /// Stores submits. An item with a value refused by Postgres is found by halves, and rejected
    /// alone. Items with a fixed order are stored up to this item.
    pub async fn submit(
        &mut self,
        precondition: &mut StorePrecondition,
        mut submits: Vec<NewItem>,
        carried: &mut Carried,
    ) -> Result<(), Stop> {
        assign_ids(&self.shared, submits.iter_mut().map(|new| &mut new.task));
        let mut pieces: VecDeque<Range<usize>> = iter::once(0..submits.len()).collect();
        while let Some(piece) = pieces.pop_front().filter(|piece| !piece.is_empty()) {
            let turn = &mut carried.turn;
            match self.submit_piece(precondition, &mut submits[piece.clone()], turn).await {
                Ok(()) => carried.stored += piece.len(),
                Err(StoreError::Postgres(error @ PostgresError::BadValue { .. })) => {
                    if let [new] = &submits[piece.clone()] {
                        carried.refuse(new.key, inbound::of_service(refusal_of(&error)))?;
                        if precondition.is_ordered() {
                            return Ok(());
                        }
                    } else {
                        let middle = piece.start + piece.len() / 2;
                        pieces.push_front(middle..piece.end);
                        pieces.push_front(piece.start..middle);
                    }
                }
                Err(error) => {
                    carried.failed("submit", piece.len(), &error);
                    return Err(error.into());
                }
            }
        }
        Ok(())
    }

    async fn submit_piece(
        &mut self,
        precondition: &mut StorePrecondition,
        piece: &mut [NewItem],
        turn: &mut AuditedTurn,
    ) -> Result<(), StoreError> {
        let mut tries = Tries::default();
        loop {
            match self.try_submit(precondition, piece, turn).await {
                Err(StoreError::Postgres(error)) if tries.draws_again(&error) => {
                    assign_ids(&self.shared, piece.iter_mut().map(|new| &mut new.task));
                }
                Err(StoreError::Postgres(error)) if tries.again(&error) => {}
                outcome => return outcome,
            }
        }
    }

    async fn try_submit(
        &mut self,
        precondition: &mut StorePrecondition,
        piece: &mut [NewItem],
        turn: &mut AuditedTurn,
    ) -> Result<(), StoreError> {
        let shared = Arc::clone(&self.shared);
        let now = shared.now();
        piece.iter_mut().for_each(|new| clamp(&mut new.task, now));
        let placer = Placer::new(&shared, now);
        let placed = Placed::new(piece, |task| placer.place_of(task));
        let wanted: Vec<(&str, &str)> =
            placed.named.iter().filter_map(|task| name_of(task)).collect();
        if !wanted.is_empty() {
            // This frees expired names.
            let unread = |error: PostgresError| match error.is_unknown() {
                true => StoreError::Unread(error),
                false => error.into(),
            };
            self.names.known(&wanted).await.map_err(unread)?;
        }
        match self.store_placed(precondition, &placed, turn).await {
            Err(StoreError::Postgres(error))
                if placed.has_claims() && may_do_without_claims(&error) =>
            {
                let placed = Placed::new(piece, |task| placer.table_of(task));
                self.store_placed(precondition, &placed, turn).await
            }
            outcome => outcome,
        }
    }

    /// Stores submits at the places decided for them, and puts the claimed ones on the wheel.
    async fn store_placed(
        &mut self,
        precondition: &mut StorePrecondition,
        placed: &Placed<'_>,
        turn: &mut AuditedTurn,
    ) -> Result<(), StoreError> {
        let plain_batch = self.batch_for(!placed.claimed.is_empty());
        let named_batch = self.batch_for(placed.named_places.contains(&Destination::Claimed));
        let began_at = clock::monotonic();
        let batches = (plain_batch, named_batch);
        let (won, stamp) = match placed.store(&mut self.store, precondition, batches).await {
            Ok(stored) => stored,
            Err(error) => {
                let asked = [plain_batch, named_batch].into_iter().flatten();
                asked.for_each(|batch| self.shared.in_flight.forget(batch));
                return Err(error);
            }
        };
        reach(Failpoint::InsertCommitted);
        precondition.stored(&placed.items);
        let (count, known_count) =
            (placed.items.len(), placed.named.len().saturating_sub(won.len()));
        self.shared.group_stored(count, count.saturating_sub(known_count), stamp, began_at);
        self.shared.metrics.names_known.inc_by(known_count.saturating_as::<u64>());
        self.count_submitted(count.saturating_sub(known_count).saturating_as());
        for task in placed.stored(&won) {
            turn.changed("submit", &task.record.topic, Some(task.id));
        }
        let near = placed.near.iter().copied().chain(placed.winners(&won, Destination::Near));
        self.shared.claim_late(IdRange::spanning(near.map(|task| task.id)));
        if let Some(batch) = plain_batch {
            self.take_in(batch, &placed.claimed).await;
        }
        if let Some(batch) = named_batch {
            let claimed: Vec<&NewTask> = placed.winners(&won, Destination::Claimed).collect();
            self.take_in(batch, &claimed).await;
        }
        Ok(())
    }

    /// Makes the id of a batch that a transaction may store.
    fn batch_for(&self, is_wanted: bool) -> Option<BatchId> {
        is_wanted.then(|| {
            let batch = BatchId::new(self.shared.now(), rand::random(), rand::random());
            self.shared.in_flight.ask_for(batch);
            batch
        })
    }

    /// Puts the tasks of a stored batch on the wheel, in the order of the statement's arrays.
    async fn take_in(&self, batch: BatchId, tasks: &[&NewTask]) {
        if tasks.is_empty() {
            // All of its names were known.
            self.shared.in_flight.forget(batch);
            return;
        }
        let batch = BatchBuilder::of_new_tasks(batch, tasks.iter().copied());
        self.shared.take_in_on_insert(batch).await;
    }
}

/// The submits of one transaction by their destinations.
#[derive(Debug)]
struct Placed<'a> {
    items: Vec<ItemKey>,
    /// Tasks without a name.
    near: Vec<&'a NewTask>,
    far: Vec<&'a NewTask>,
    claimed: Vec<&'a NewTask>,
    /// Tasks with a name, in the order in which the lanes of the API take their names.
    named: Vec<&'a NewTask>,
    /// The destinations of `named`.
    named_places: Vec<Destination>,
}

impl<'a> Placed<'a> {
    fn new(submits: &'a [NewItem], place_of: impl Fn(&NewTask) -> Destination) -> Self {
        let (mut named, plain): (Vec<&NewTask>, Vec<&NewTask>) =
            submits.iter().map(|new| &new.task).partition(|task| task.name.is_some());
        named.sort_by(|one, other| name_of(one).cmp(&name_of(other)));
        let mut placed = Self {
            items: submits.iter().map(|new| new.key).collect(),
            near: Vec::new(),
            far: Vec::new(),
            claimed: Vec::new(),
            named_places: named.iter().map(|task| place_of(task)).collect(),
            named,
        };
        for task in plain {
            match place_of(task) {
                Destination::Near => placed.near.push(task),
                Destination::Far => placed.far.push(task),
                Destination::Claimed => placed.claimed.push(task),
            }
        }
        placed
    }

    fn has_claims(&self) -> bool {
        !self.claimed.is_empty() || self.named_places.contains(&Destination::Claimed)
    }

    /// Stores the submits, and the claimed ones in these batches of the node. Returns the ids of
    /// the named tasks whose names were new, and the time of Postgres's clock.
    async fn store(
        &self,
        store: &mut InboundStore,
        precondition: &StorePrecondition,
        (plain, named): (Option<BatchId>, Option<BatchId>),
    ) -> Result<(HashSet<TaskId>, Timestamp), StoreError> {
        let are_at = |wanted: Destination| -> Vec<bool> {
            self.named_places.iter().map(|place| *place == wanted).collect()
        };
        let (is_far, is_claimed) = (are_at(Destination::Far), are_at(Destination::Claimed));
        let named_rows = NamedGroup {
            tasks: &self.named,
            is_far: &is_far,
            is_claimed: &is_claimed,
            batch: named,
        };
        let submits = Submits {
            items: &self.items,
            plain: Group {
                near: self.near.clone(),
                far: self.far.clone(),
                claimed: plain.map(|batch| (batch, self.claimed.clone())),
            },
            named: (!self.named.is_empty()).then_some(named_rows),
        };
        store.submit(precondition, &submits).await
    }

    /// Returns the named tasks of a destination that were stored: those that `won` has.
    fn winners(
        &self,
        won: &HashSet<TaskId>,
        wanted: Destination,
    ) -> impl Iterator<Item = &'a NewTask> {
        let placed = self.named.iter().zip(&self.named_places);
        placed.filter_map(move |(task, place)| {
            (*place == wanted && won.contains(&task.id)).then_some(*task)
        })
    }

    /// Returns all tasks that were stored.
    fn stored(&self, won: &HashSet<TaskId>) -> impl Iterator<Item = &'a NewTask> {
        let plain = [&self.near, &self.far, &self.claimed].into_iter().flatten();
        let named = self.named.iter().filter(|task| won.contains(&task.id));
        plain.chain(named).copied()
    }
}
