//! The properties that must hold in every state.

use super::state::{ROWS, State, bit};
use super::table::current_attempt;
use super::{
    ATTEMPTS_MAX, CANCELLED_UNSENT, COUNTED, DEAD_IN_TIME, FINISHED_IS_OVER, Feedback,
    IN_ONE_PLACE, ONE_FINAL_LINE, ONE_OF_A_NAME,
};

impl Feedback {
    pub fn broken_property(&self, state: &State) -> Option<&'static str> {
        let db = &state.db;
        let (pending, claimed) = (db.pending(), db.claimed());
        let places = db.far.count_ones() + db.near.count_ones() + claimed.count_ones();
        let live = pending | claimed;
        if db.lines.count() > 1 {
            return Some(ONE_FINAL_LINE);
        }
        // A task may be finished while it is in flight.
        if db.lines.finished > 0 && pending != 0 {
            return Some(FINISHED_IS_OVER);
        }
        if places != 1 && !(places == 0 && db.lines.count() == 1) {
            return Some(IN_ONE_PLACE);
        }
        if db.lines.dead + db.lines.cancelled > 0 && live != 0 {
            return Some(IN_ONE_PLACE);
        }
        if state.sent >> (state.attempts_max + 1) != 0 {
            return Some(ATTEMPTS_MAX);
        }
        if db.lines.cancelled > 0 && state.sent != 0 {
            return Some(CANCELLED_UNSENT);
        }
        if state.is_succeeded && live != 0 {
            return Some(ONE_OF_A_NAME);
        }
        let current = current_attempt(state);
        for row in (0..ROWS).filter(|row| live & bit(*row as u8) != 0) {
            let row = db.rows[row];
            let is_due = state.is_dead_said || current == state.attempts_max;
            if row.is_verdict && !is_due {
                return Some(DEAD_IN_TIME);
            }
            if !row.is_verdict && row.attempt != current && row.attempt != current + 1 {
                return Some(COUNTED);
            }
        }
        state.broken
    }
}
