//! What names a record to a producer, and comes back with its report: the slot of its batch, and its place in it.

/// The low half is the place in the batch, the high half the slot.
pub(super) fn of(slot: u32, index: u32) -> usize {
    place(slot) << 32 | place(index)
}

/// The slot, and the place.
pub(super) fn parts(ticket: usize) -> (u32, u32) {
    let low = u32::try_from(ticket & place(u32::MAX)).unwrap_or(u32::MAX);
    (u32::try_from(ticket >> 32).unwrap_or(u32::MAX), low)
}

pub(super) fn place(index: u32) -> usize {
    usize::try_from(index).unwrap_or(usize::MAX)
}
