//! Divides a batch into slices: a due millisecond, or as many of them as the precision joins.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use az::SaturatingAs as _;

use crate::domain::{TaskId, Timestamp};
use crate::node::in_flight::batches::InFlightBatch;

/// A due millisecond of a batch: tasks `order[position..end]`.
#[derive(Debug)]
pub(super) struct DueSlice {
    pub(super) due_at: Timestamp,
    pub(super) held: Arc<InFlightBatch>,
    pub(super) order: Arc<[u32]>,
    pub(super) position: usize,
    pub(super) end: usize,
}

impl DueSlice {
    /// Returns the id of the next task, or `None` when all are handed over.
    pub(super) fn next_id(&self) -> Option<TaskId> {
        (self.position < self.end)
            .then(|| self.held.batch.id_of(self.order[self.position].saturating_as()))
    }
}

/// Divides records, given by their batches and their places there, into slices: one for each batch
/// and due time. All records of a second may come back at once. The wheel compares the slices of
/// one due time before each record, so there must be few.
pub(super) fn slices_of_records(records: Vec<(Arc<InFlightBatch>, u32)>) -> Vec<DueSlice> {
    let mut groups = HashMap::new();
    for (held, index) in records {
        let due_at = held.batch.due_at(index.saturating_as());
        let group = groups.entry((Arc::as_ptr(&held), due_at));
        group.or_insert_with(|| (held, Vec::new())).1.push(index);
    }
    let mut slices = Vec::with_capacity(groups.len());
    for ((_, due_at), (held, mut order)) in groups {
        order.sort_unstable_by_key(|index: &u32| held.batch.id_of((*index).saturating_as()));
        let end = order.len();
        slices.push(DueSlice { due_at, held, order: order.into(), position: 0, end });
    }
    slices
}

/// Divides a batch into slices of one `precision` each, in due order.
pub(super) fn slices_of(held: &Arc<InFlightBatch>, precision: Duration) -> Vec<DueSlice> {
    let batch = &held.batch;
    let mut order: Vec<u32> = (0..batch.len().saturating_as::<u32>()).collect();
    order.sort_by_key(|index| batch.id_of((*index).saturating_as()));
    let order: Arc<[u32]> = order.into();
    let end_of = |index: u32| end_of_slice(batch.due_at(index.saturating_as()), precision);
    let (mut slices, mut position) = (Vec::new(), 0);
    while position < order.len() {
        let due_at = end_of(order[position]);
        let end = position + order[position..].partition_point(|index| end_of(*index) <= due_at);
        slices.push(DueSlice {
            due_at,
            held: Arc::clone(held),
            order: Arc::clone(&order),
            position,
            end,
        });
        position = end;
    }
    slices
}

/// Returns the end of the slice containing a due time: the next multiple of the precision.
fn end_of_slice(due_at: Timestamp, precision: Duration) -> Timestamp {
    let width = precision.as_millis().saturating_as::<i64>().max(1);
    let millis = due_at.as_millis();
    Timestamp::from_millis(millis.saturating_add(width - 1) / width * width)
}
