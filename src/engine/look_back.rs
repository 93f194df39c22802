//! Finds out how old the oldest unsettled batch is, so no other query has to look back further.
//!
//! Under an old snapshot, Postgres keeps an index entry for every batch that was ever settled, and
//! one query over all of them may take longer than others can wait. So the search goes in slices of
//! time. A slice without an answer is tried again at half its width. A slice with an answer doubles
//! the width of the next one, but only rarely up to a width that got no answer before.

use std::ops::Range;
use std::time::Duration;

use crate::domain::ids::floor_of;
use crate::domain::{BatchId, Monotonic, TaskId, Timestamp};

/// Pause between two searches. Between two searches, no query looks back further than the last
/// result. The settles that a search has seen are durable after that time: Postgres writes its log
/// after three times `wal_writer_delay` at the latest, which is 0.2 s by default and 10 s at most.
const EVERY: Duration = Duration::from_secs(60);
/// A batch that is committed after a search began may have an older id, because the id is chosen
/// before the claim. It is at most this old: a claim takes at most 10 s.
const RECENT: Duration = Duration::from_secs(60);
/// After this many answered slices, the search doubles the width although the doubled width got no
/// answer before. So one slice in 17 gets no answer, instead of every second slice.
const ANSWERS_TO_WIDEN: u32 = 16;
const SPAN_MIN: Duration = Duration::from_secs(60);
/// Wider than any retention: everything in one slice.
const SPAN_MAX: Duration = Duration::from_secs(3650 * 86_400);

#[derive(Debug)]
pub struct LookBack {
    /// All unsettled batches have this id or a higher one. `None` while unknown.
    from: Option<BatchId>,
    /// The result of the search before.
    previous: Option<BatchId>,
    /// The oldest unsettled batch, if it is older than [`RECENT`].
    oldest: Option<BatchId>,
    ended_at: Option<Monotonic>,
    search: Option<Search>,
    /// Width of the next slice.
    span: Duration,
    /// Maximum width: half of the last slice that was too wide.
    span_max: Duration,
    /// Number of answered slices since then.
    answers: u32,
}

#[derive(Clone, Copy, Debug)]
struct Search {
    /// The search has reached `next`, and goes on up to `end`.
    next: Timestamp,
    end: Timestamp,
    /// Batches that are committed after the begin have this id or a higher one.
    recent: BatchId,
}

/// A range of batch ids to search.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LookBackSlice {
    pub ids: Range<BatchId>,
    /// This slice is not narrowed further, however long it takes.
    pub is_narrowest: bool,
}

impl Default for LookBack {
    fn default() -> Self {
        Self {
            from: None,
            previous: None,
            oldest: None,
            ended_at: None,
            search: None,
            span: SPAN_MAX,
            span_max: SPAN_MAX,
            answers: 0,
        }
    }
}

impl LookBack {
    /// Returns the lowest id that an unsettled batch can have, or `None` while unknown. A crash of
    /// Postgres may undo settles of batches with lower ids. The next search finds these batches.
    pub fn from(&self) -> Option<BatchId> {
        self.from
    }

    /// Returns the lowest id that an unsettled batch can have, also after a crash of Postgres, or
    /// `None` while unknown. The last two searches count: the settles that the first one saw are
    /// durable since, or their undoing was seen by the second one.
    pub fn durable_from(&self) -> Option<BatchId> {
        Some(self.previous?.min(self.from?))
    }

    /// Takes in the cluster's time. Call it regularly: batches have lower ids when its clock was
    /// set back.
    pub fn note(&mut self, now: Timestamp) {
        let recent = recent(now);
        let known = [self.from.as_mut(), self.previous.as_mut()];
        let searched = self.search.as_mut().map(|search| &mut search.recent);
        for from in known.into_iter().flatten().chain(searched) {
            *from = (*from).min(recent);
        }
    }

    /// Returns the age of the oldest batch unsettled at the last search. Zero when none was older
    /// than a minute.
    pub fn age(&self, now: Timestamp) -> Duration {
        self.oldest
            .map_or(Duration::ZERO, |oldest| now.since(TaskId::from_uuid(oldest.uuid()).due_at()))
    }

    /// Returns true when a new search is due. The caller then finds the oldest batch and calls
    /// [`Self::begin`].
    pub fn is_due(&self, now: Monotonic) -> bool {
        self.search.is_none() && self.ended_at.is_none_or(|at| now.since(at) >= EVERY)
    }

    /// Begins a search. `oldest` is the oldest of all batches, settled or not; `now` is a time of
    /// the cluster until which all commits are visible.
    pub fn begin(&mut self, oldest: Option<BatchId>, now: Timestamp) {
        let end = now.minus(RECENT);
        let next = oldest.map_or(end, |oldest| TaskId::from_uuid(oldest.uuid()).due_at()).min(end);
        self.widen();
        self.search = Some(Search { next, end, recent: recent(now) });
    }

    /// Returns the next slice to search, or `None` when the search is done. `at` is the machine's
    /// time.
    pub fn slice(&mut self, at: Monotonic) -> Option<LookBackSlice> {
        let Search { next, end, recent } = self.search?;
        if next >= end {
            self.found(recent, None, at);
            return None;
        }
        let ids = BatchId::from_uuid(floor_of(next))
            ..BatchId::from_uuid(floor_of(self.slice_end(next, end)));
        Some(LookBackSlice { ids, is_narrowest: self.span <= SPAN_MIN })
    }

    fn slice_end(&self, next: Timestamp, end: Timestamp) -> Timestamp {
        next.plus(self.span).min(end)
    }

    /// Records the answer for the slice: its oldest unsettled batch. `at` is the machine's time.
    pub fn answered(&mut self, oldest: Option<BatchId>, at: Monotonic) {
        let Some(search @ Search { next, end, recent }) = self.search else { return };
        match oldest {
            Some(oldest) => self.found(oldest.min(recent), Some(oldest), at),
            None => self.search = Some(Search { next: self.slice_end(next, end), ..search }),
        }
        self.answers += 1;
        if self.answers.is_multiple_of(ANSWERS_TO_WIDEN) {
            self.widen();
        }
        self.span = (self.span * 2).min(self.span_max);
    }

    /// Records that the slice got no answer.
    pub fn was_too_wide(&mut self) {
        if let Some(Search { next, end, .. }) = self.search {
            self.span = (self.slice_end(next, end).since(next) / 2).max(SPAN_MIN);
            (self.span_max, self.answers) = (self.span, 0);
        }
    }

    /// Allows wider slices again: the server may have been slow, or a connection may have broken.
    fn widen(&mut self) {
        self.span_max = (self.span_max * 2).min(SPAN_MAX);
    }

    fn found(&mut self, from: BatchId, oldest: Option<BatchId>, at: Monotonic) {
        self.previous = self.from.replace(from);
        self.ended_at = Some(at);
        self.oldest = oldest;
        self.search = None;
    }
}

/// Returns the lowest id of a batch that is committed from now on, unless the clock is set back.
fn recent(now: Timestamp) -> BatchId {
    BatchId::from_uuid(floor_of(now.minus(RECENT)))
}

/// The lowest possible id of a batch of this node. The node creates batches with present ids, and
/// adopts batches found by a search.
#[derive(Debug, Default)]
pub struct OwnFloor(Option<BatchId>);

impl OwnFloor {
    /// Records the current time. Call it regularly: the cluster's clock may be set back.
    pub fn note(&mut self, now: Timestamp) {
        self.lower(recent(now));
    }

    /// Records that the node may have adopted batches with this id or higher ones.
    pub fn lower(&mut self, from: BatchId) {
        self.0 = Some(self.0.map_or(from, |known| known.min(from)));
    }

    /// Returns the lowest id that a batch of the node can have, or the minimum before anything is
    /// known.
    pub fn get(&self) -> BatchId {
        self.0.unwrap_or(BatchId::MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn day(number: u32) -> Timestamp {
        Timestamp::from_millis(1_795_252_500_000).plus(DAY * number)
    }

    fn batch(at: Timestamp) -> BatchId {
        BatchId::new(at, 1, 1)
    }

    fn at(second: u64) -> Monotonic {
        Monotonic::from_start(Duration::from_secs(second))
    }

    /// Searches everything on a server that does not answer slices wider than `span_max`. Returns
    /// the numbers of slices without and with an answer.
    fn search(
        look_back: &mut LookBack,
        unsettled: Option<BatchId>,
        span_max: Duration,
    ) -> (u32, u32) {
        let (mut unanswered, mut answered) = (0, 0);
        while let Some(LookBackSlice { ids, is_narrowest }) = look_back.slice(at(0)) {
            assert!(ids.start < ids.end);
            let [low, high] = [ids.start, ids.end].map(|id| TaskId::from_uuid(id.uuid()).due_at());
            if high.since(low) > span_max && !is_narrowest {
                unanswered += 1;
                look_back.was_too_wide();
            } else {
                answered += 1;
                look_back.answered(unsettled.filter(|batch| ids.contains(batch)), at(0));
            }
            assert!(unanswered + answered < 1_000);
        }
        (unanswered, answered)
    }

    #[test]
    fn all_is_looked_through_at_once_when_that_gets_an_answer() {
        let mut look_back = LookBack::default();
        assert!(look_back.is_due(at(0)) && look_back.from().is_none());
        look_back.begin(Some(batch(day(0))), day(7));
        assert_eq!(search(&mut look_back, Some(batch(day(3))), SPAN_MAX), (0, 1));
        assert_eq!((look_back.from(), look_back.age(day(7))), (Some(batch(day(3))), DAY * 4));
        assert!(!look_back.is_due(at(59)) && look_back.is_due(at(60)));
    }

    #[test]
    fn slices_without_an_answer_are_narrowed_until_the_end_is_reached() {
        let mut look_back = LookBack::default();
        look_back.begin(Some(batch(day(0))), day(7));
        let (unanswered, answered) = search(&mut look_back, None, Duration::from_secs(3600));
        assert!(
            answered >= 7 * 24 && unanswered <= 8 + answered / 16,
            "what was too wide is rarely tried again: {unanswered} {answered}"
        );
        assert_eq!(
            look_back.from(),
            Some(BatchId::from_uuid(floor_of(day(7).minus(RECENT)))),
            "all before is settled"
        );
        assert_eq!(look_back.age(day(8)), Duration::ZERO);
        // The next search tries wider slices again, once.
        look_back.begin(Some(batch(day(0))), day(7));
        let (unanswered, answered) = search(&mut look_back, None, Duration::from_secs(3600));
        assert!(
            answered >= 7 * 24 && (1..=1 + answered / 16).contains(&unanswered),
            "{unanswered} {answered}"
        );
        for _look in 2..20 {
            look_back.begin(Some(batch(day(0))), day(7));
            search(&mut look_back, None, SPAN_MAX);
        }
        look_back.begin(Some(batch(day(0))), day(7));
        assert_eq!(
            search(&mut look_back, None, SPAN_MAX),
            (0, 1),
            "all at once again, when that gets an answer"
        );
    }

    #[test]
    fn the_last_two_searches_and_the_lowest_time_say_what_is_settled_for_good() {
        let mut look_back = LookBack::default();
        let mut find = |oldest: Option<Timestamp>, now: Timestamp| {
            look_back.begin(Some(batch(day(0))), now);
            search(&mut look_back, oldest.map(batch), SPAN_MAX);
            look_back.durable_from()
        };
        assert_eq!(find(Some(day(3)), day(7)), None, "its settles may be undone");
        assert_eq!(find(None, day(8)), Some(batch(day(3))));
        assert_eq!(find(None, day(9)), Some(recent(day(8))));
        // A crash has undone the settle of a batch.
        assert_eq!(find(Some(day(4)), day(9)), Some(batch(day(4))));
        // The clock is set back: first between two searches, then during one.
        find(None, day(10));
        find(None, day(10));
        look_back.note(day(5));
        assert_eq!([look_back.durable_from(), look_back.from()], [Some(recent(day(5))); 2]);
        look_back.begin(Some(batch(day(0))), day(11));
        look_back.note(day(6));
        search(&mut look_back, None, SPAN_MAX);
        look_back.begin(Some(batch(day(0))), day(11));
        search(&mut look_back, None, SPAN_MAX);
        assert_eq!(look_back.durable_from(), Some(recent(day(6))));
    }

    #[test]
    fn without_an_old_batch_there_is_nothing_to_look_through() {
        for oldest in [None, Some(batch(day(7)))] {
            let mut look_back = LookBack::default();
            look_back.begin(oldest, day(7));
            assert_eq!(search(&mut look_back, None, SPAN_MAX), (0, 0));
            assert_eq!(look_back.from(), Some(BatchId::from_uuid(floor_of(day(7).minus(RECENT)))));
        }
    }

    #[test]
    fn what_is_own_begins_where_the_node_did_or_what_it_may_have_adopted_or_the_clock_went_back_to()
    {
        let mut floor = OwnFloor::default();
        assert_eq!(floor.get(), BatchId::MIN);
        floor.note(day(5));
        floor.note(day(6));
        assert_eq!(floor.get(), BatchId::from_uuid(floor_of(day(5).minus(RECENT))));
        floor.lower(batch(day(3)));
        assert_eq!(floor.get(), batch(day(3)));
        floor.note(day(2));
        assert_eq!(floor.get(), BatchId::from_uuid(floor_of(day(2).minus(RECENT))));
    }
}
