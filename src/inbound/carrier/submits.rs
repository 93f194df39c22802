//! Stores the submits of a turn.

use std::collections::VecDeque;
use std::iter;
use std::ops::Range;

use super::{Carried, Carrier, DRAWS_MAX, Stop};
use crate::api::access::turns::AuditedTurn;
use crate::api::inbound;
use crate::clock;
use crate::domain::{IdRange, NewTask};
use crate::engine::placing::Destination;
use crate::node::requests::placing::{Placer, assign_ids, clamp};
use crate::node::requests::postgres_failures::{Tries, refusal_of};
use crate::postgres::PostgresError;
use crate::postgres::inbound::{ItemKey, StoreError, StorePrecondition, Submits};
use crate::postgres::tasks::submit::Group;
use crate::postgres::tasks::submit_named::NamedGroup;

/// A submit on its way into the tables.
#[derive(Debug)]
pub struct NewItem {
    pub key: ItemKey,
    pub task: NewTask,
}

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
        let (mut tries, mut draws) = (Tries::default(), 0);
        loop {
            match self.try_submit(precondition, piece, turn).await {
                Err(StoreError::Postgres(error)) if error.is_of_an_id() && draws < DRAWS_MAX => {
                    draws += 1;
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
        let now = self.shared.now();
        piece.iter_mut().for_each(|new| clamp(&mut new.task, now));
        let placer = Placer::new(&self.shared, now);
        let is_far = |task: &NewTask| placer.table_of(task) == Destination::Far;
        let items: Vec<ItemKey> = piece.iter().map(|new| new.key).collect();
        let (mut named, plain): (Vec<&NewTask>, Vec<&NewTask>) =
            piece.iter().map(|new| &new.task).partition(|task| task.name.is_some());
        // Names are taken in the order in which the lanes of the API take them.
        named.sort_by(|one, other| name_of(one).cmp(&name_of(other)));
        let wanted: Vec<(&str, &str)> = named.iter().filter_map(|task| name_of(task)).collect();
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
            items: &items,
            plain: Group { near, far, claimed: None },
            named: (!named.is_empty()).then_some(named_rows),
        };
        let began_at = clock::monotonic();
        let (won, stamp) = self.store.submit(precondition, &submits).await?;
        precondition.stored(&items);
        self.shared.group_stored(items.len(), plain.len() + won.len(), stamp, began_at);
        let known = named.len().saturating_sub(won.len());
        self.shared.metrics.names_known.inc_by(u64::try_from(known).unwrap_or(u64::MAX));
        let is_new = |task: &&&NewTask| task.name.is_none() || won.contains(&task.id);
        let new = || plain.iter().chain(&named).filter(is_new);
        new().for_each(|task| turn.changed("submit", &task.record.topic, Some(task.id)));
        self.shared.look_after(IdRange::spanning(new().map(|task| task.id)));
        Ok(())
    }
}
