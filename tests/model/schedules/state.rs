//! Questions about a state of the model of schedules.

use std::time::Duration;

use punctual::domain::schedule::plan::NotMissed;

use super::{Phase, Place, Run, State, TIMES, at, instant};

impl State {
    pub(super) fn is_due(&self, place: usize) -> bool {
        instant(place) <= at(TIMES[usize::from(self.time)])
    }

    /// Returns the instants that are not missed.
    pub(super) fn range(&self) -> NotMissed {
        let range = |(first, last): (u8, u8)| NotMissed {
            from: instant(first.into()),
            to: instant(last.into()).plus(Duration::from_millis(1)),
        };
        self.not_missed.map(range).unwrap_or_default()
    }

    /// Undoes what the open transaction of a change has deleted.
    pub(super) fn put_back(&mut self) {
        for place in &mut self.places {
            place.run = match place.run {
                Some(Run::Withdrawn { revision: 0, .. }) => Some(Run::Claimed),
                Some(Run::Withdrawn { revision, row }) => Some(Run::Unclaimed { revision, row }),
                other => other,
            };
        }
    }

    pub(super) fn is_busy(&self) -> bool {
        let is_unfinished = |place: &Place| !matches!(place.run, None | Some(Run::Finished));
        self.places.iter().any(is_unfinished)
    }

    /// Returns true when the transaction of a change holds the row of the schedule.
    pub(super) fn is_locked(&self) -> bool {
        self.phase != Phase::Idle
    }
}
