//! Keeps the slices that are due now or soon. This module reads no clock: the caller gives the time
//! and takes the records.
//!
//! ```text
//!   keep ──▶ far off: the caller keeps it for a while
//!     │
//!     └──▶ within the lead ──▶ soon ──its time has come──▶ due ──handed over──▶ (gone)
//!                               ▲                           │
//!                               └── the clock was set back ─┘
//! ```
//!
//! Slices of several batches that are due at the same time leave as one, in the order of the ids:
//! tasks of one key leave in the order of their submits.
//!
//! A slice that was due is checked against the clock once more before it is handed over. While the
//! producer was full, or the fence was closed, the clock of the cluster may have been set back.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::slice::DueSlice;
use crate::domain::{TaskId, Timestamp};
use crate::node::in_flight::batches::InFlightBatch;
use crate::node::publish::publisher::Handed;

/// A slice leaves the `DelayQueue` this much before its time. The lead covers the resolution of the
/// queue and tokio's own millisecond of lateness.
pub(super) const LEAD: Duration = Duration::from_millis(3);
/// The cluster's clock is read again at least this often.
pub(super) const REREAD_INTERVAL: Duration = Duration::from_secs(1);
/// The number of records that are handed over before the wheel turns to its other duties: about 0.3
/// ms of work.
const RECORDS_AT_ONCE: usize = 128;

#[derive(Debug, Default)]
pub(super) struct Near {
    /// The number keeps slices of one millisecond in the order of their arrival.
    soon: BTreeMap<(Timestamp, u64), DueSlice>,
    /// Slices that were due at the last look, and are not completely handed over.
    due: VecDeque<DueSlice>,
    count: u64,
}

impl Near {
    /// Keeps a slice that is due within the lead. Otherwise returns the slice, and how long it may
    /// wait elsewhere.
    pub(super) fn keep(
        &mut self,
        slice: DueSlice,
        now: Option<Timestamp>,
    ) -> Option<(DueSlice, Duration)> {
        let wait = now.map_or(Duration::ZERO, |now| slice.due_at.since(now));
        if wait > LEAD {
            // The wait is limited because the cluster's clock may be set meanwhile.
            return Some((slice, (wait - LEAD).min(REREAD_INTERVAL)));
        }
        self.keep_soon(slice);
        None
    }

    fn keep_soon(&mut self, slice: DueSlice) {
        self.count += 1;
        self.soon.insert((slice.due_at, self.count), slice);
    }

    /// Returns when the next slice is due, or `None` when no slice is near.
    pub(super) fn next_due_at(&self) -> Option<Timestamp> {
        let due = self.due.front().map(|slice| slice.due_at);
        due.or_else(|| self.soon.first_key_value().map(|((due_at, _), _)| *due_at))
    }

    /// Moves the slices that have become due. Returns true when there are records to hand over.
    pub(super) fn ripen(&mut self, now: Timestamp) -> bool {
        while let Some(entry) = self.soon.first_entry().filter(|entry| entry.key().0 <= now) {
            self.due.push_back(entry.remove());
        }
        !self.due.is_empty()
    }

    /// Hands over due records, up to a limit. Returns true when the producer takes no more now.
    pub(super) fn hand_over(
        &mut self,
        now: Timestamp,
        mut publish: impl FnMut(&Arc<InFlightBatch>, u32) -> Handed,
    ) -> bool {
        let mut left = RECORDS_AT_ONCE;
        while let Some(first) = self.due.front() {
            if first.due_at > now {
                let set_back = self.due.pop_front();
                set_back.into_iter().for_each(|slice| self.keep_soon(slice));
                continue;
            }
            let (place, until) = self.next_run();
            let slice = &mut self.due[place];
            // Its next id is not above `until`, so at least one record leaves. Otherwise the turns
            // would never end.
            while slice.next_id().is_some_and(|id| until.is_none_or(|until| id <= until)) {
                let is_full =
                    left > 0 && publish(&slice.held, slice.order[slice.position]) == Handed::Full;
                if left == 0 || is_full {
                    return is_full;
                }
                left -= 1;
                slice.position += 1;
            }
            if slice.next_id().is_none() {
                drop(self.due.remove(place));
            }
        }
        false
    }

    /// Returns which of the first slices continues, and up to which id. Slices of several batches
    /// with one due time take turns, so that tasks leave in the order of the ids: tasks of one key
    /// leave in the order of the submits.
    fn next_run(&self) -> (usize, Option<TaskId>) {
        let due_at = self.due.front().map(|first| first.due_at);
        if self.due.get(1).map(|second| second.due_at) != due_at {
            return (0, None);
        }
        let (mut lowest, mut place, mut until) = (None, 0, None);
        for (index, slice) in
            self.due.iter().take_while(|slice| Some(slice.due_at) == due_at).enumerate()
        {
            let Some(id) = slice.next_id() else { continue };
            if lowest.is_none_or(|lowest| id < lowest) {
                (until, lowest, place) = (lowest, Some(id), index);
            } else if until.is_none_or(|until| id < until) {
                until = Some(id);
            }
        }
        (place, until)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::domain::batch::TaskParts;
    use crate::domain::{Batch, BatchBuilder, BatchId, Monotonic, Shard};
    use crate::engine::cluster_clock::{Stamp, StampedClock};
    use crate::engine::topics::{TopicBreakers, TopicSettings};
    use crate::node::in_flight::batches::{InFlightBatches, InFlightLimits, Past};
    use crate::node::publish::wheel::slice::slices_of;

    const START: i64 = 1_700_000_000_000_000;
    const MILLISECOND: Duration = Duration::from_millis(1);
    const HOUR: Duration = Duration::from_secs(3600);

    /// Postgres's clock, in microseconds of this node's monotonic time: steps, each at its moment.
    #[derive(Clone, Debug)]
    struct Server {
        steps: Vec<(u64, i64)>,
    }

    impl Server {
        fn at(&self, micros: u64) -> Timestamp {
            let step: i64 =
                self.steps.iter().filter(|(at, _)| *at <= micros).map(|(_, step)| step).sum();
            Timestamp::from_micros(START + step + i64::try_from(micros).unwrap())
        }

        fn last_step_before(&self, micros: u64) -> u64 {
            self.steps.iter().map(|(at, _)| *at).filter(|at| *at <= micros).max().unwrap_or(0)
        }
    }

    /// A question to Postgres: when it was asked, the time of the way there, and the time of the
    /// way back.
    type Question = (u64, u64, u64);

    /// The events of a wheel: everything that time and other threads may do to it.
    #[derive(Clone, Debug)]
    struct Plan {
        server: Server,
        questions: Vec<Question>,
        /// Batches: when they arrive, and the due times of their tasks, in microseconds from the
        /// start.
        batches: Vec<(u64, Vec<i64>)>,
        /// How long the wheel sleeps between two turns: mostly as little as it asked for.
        sleeps: Vec<u64>,
        /// Turns in which the producer is full after so many records, or the fence is closed (0).
        room: Vec<Option<usize>>,
        precision: Duration,
    }

    fn plans(steps: impl Strategy<Value = i64>) -> impl Strategy<Value = Plan> {
        let moment = || 0_u64..4_000_000;
        let way = || prop_oneof![6 => 0_u64..1_000, 1 => 0_u64..900_000];
        let steps = prop::collection::vec((moment(), steps), 0..4);
        // Answers overlap and overtake each other, like those of several connections.
        let questions = prop::collection::vec((moment(), way(), way()), 1..40);
        let dues = prop::collection::vec(prop_oneof![0_i64..4_000_000, 0_i64..20_000], 1..60);
        let batches = prop::collection::vec((moment(), dues), 1..6);
        let sleeps = prop::collection::vec(
            prop_oneof![20 => 0_u64..500, 2 => 0_u64..50_000, 1 => 0_u64..2_000_000],
            1..300,
        );
        let room = prop::collection::vec(
            prop_oneof![4 => Just(None), 1 => (0_usize..5).prop_map(Some)],
            1..50,
        );
        let precision = prop_oneof![Just(1_u64), Just(7), Just(50)].prop_map(Duration::from_millis);
        (steps, questions, batches, sleeps, room, precision).prop_map(
            |(steps, questions, batches, sleeps, room, precision)| Plan {
                server: Server { steps },
                questions,
                batches,
                sleeps,
                room,
                precision,
            },
        )
    }

    fn batch_of(dues: &[i64]) -> Batch {
        let mut builder =
            BatchBuilder::new(BatchId::new(Timestamp::EPOCH, 0, rand::random()), dues.len(), 0);
        for due in dues {
            push(
                &mut builder,
                TaskId::new(Timestamp::from_micros(START + due), Shard::new(0), rand::random()),
            );
        }
        builder.build()
    }

    fn push(builder: &mut BatchBuilder, id: TaskId) {
        let nothing = TaskParts {
            id,
            first_id: None,
            attempt: None,
            topic: "t",
            key: None,
            payload: None,
            headers: None,
            name: None,
            tracking: None,
            moved_to: None,
        };
        builder.push(nothing);
    }

    /// Returns a plan without events.
    fn no_plan() -> Plan {
        let server = Server { steps: vec![] };
        Plan {
            server,
            questions: vec![],
            batches: vec![],
            sleeps: vec![],
            room: vec![],
            precision: MILLISECOND,
        }
    }

    /// A wheel without threads: the `DelayQueue` is a list, and the monotonic clock is a number.
    struct Bench {
        plan: Plan,
        in_flight: InFlightBatches,
        clock: StampedClock,
        near: Near,
        elsewhere: Vec<(u64, DueSlice)>,
        /// Each record: the task, and the moment of the handover.
        handed: Vec<(TaskId, u64)>,
        /// The question times of the answers that have arrived. An answer whose question came
        /// before a step may be overtaken.
        stamps: Vec<u64>,
    }

    impl Bench {
        fn new(plan: Plan) -> Self {
            let limits = InFlightLimits {
                tasks_max: usize::MAX,
                bytes_max: usize::MAX,
                batches_max: usize::MAX,
            };
            let settings = TopicSettings {
                silence_max: HOUR,
                denial_max: HOUR,
                tasks_max: usize::MAX,
                bytes_max: usize::MAX,
            };
            let in_flight = InFlightBatches::new(limits, TopicBreakers::new(settings));
            let (clock, near) = (StampedClock::default(), Near::default());
            Self {
                plan,
                in_flight,
                clock,
                near,
                elsewhere: Vec::new(),
                handed: Vec::new(),
                stamps: Vec::new(),
            }
        }

        fn clock_bound(&self, micros: u64) -> Option<Timestamp> {
            self.clock.now(monotonic(micros).into())
        }

        fn keep(&mut self, slice: DueSlice, micros: u64) {
            if let Some((slice, wait)) = self.near.keep(slice, self.clock_bound(micros)) {
                self.elsewhere.push((micros + u64::try_from(wait.as_micros()).unwrap(), slice));
            }
        }

        /// Applies all events after `from`, up to and including `to`.
        fn happen(&mut self, from: Option<u64>, to: u64) {
            let is_new = |at: u64| from.is_none_or(|from| at > from) && at <= to;
            let mut answers = self.plan.questions.clone();
            answers.sort_by_key(|(asked, there, back)| asked + there + back);
            for (asked, there, back) in answers {
                let (taken, arrived) = (asked + there, asked + there + back);
                if is_new(arrived) {
                    let stamp = Stamp {
                        at: self.plan.server.at(taken),
                        asked_at: monotonic(asked),
                        arrived_at: monotonic(arrived).into(),
                    };
                    self.clock.take_in(stamp);
                    self.stamps.push(asked);
                }
            }
            for (at, dues) in self.plan.batches.clone() {
                if is_new(at) {
                    let held =
                        self.in_flight.add(batch_of(&dues), Past::Fresh, monotonic(at)).unwrap();
                    slices_of(&held, self.plan.precision)
                        .into_iter()
                        .for_each(|slice| self.keep(slice, to));
                }
            }
            let (expired, waiting) =
                std::mem::take(&mut self.elsewhere).into_iter().partition(|(at, _)| *at <= to);
            self.elsewhere = waiting;
            let expired: Vec<(u64, DueSlice)> = expired;
            expired.into_iter().for_each(|(_, slice)| self.keep(slice, to));
        }

        fn turn(&mut self, micros: u64, room: Option<usize>) {
            let Some(now) = self.clock_bound(micros) else { return };
            if !self.near.ripen(now) || room == Some(0) {
                return;
            }
            let mut left = room.unwrap_or(usize::MAX);
            let handed = &mut self.handed;
            self.near.hand_over(now, |held, index| {
                if left == 0 {
                    return Handed::Full;
                }
                left -= 1;
                handed.push((held.batch.id_of(usize::try_from(index).unwrap()), micros));
                Handed::Over
            });
        }

        /// Checks that no record is early: neither by the lower bound, nor by Postgres's own clock
        /// once it has reported its last step. The only unknown is the division of the last round
        /// trip.
        fn check(&self, from: usize) -> Result<(), TestCaseError> {
            for (id, at) in &self.handed[from..] {
                let clock_bound = self.clock_bound(*at).unwrap();
                prop_assert!(
                    id.due_at() <= clock_bound,
                    "due at {:?}, the clock's lower bound is {clock_bound:?}",
                    id.due_at()
                );
                if self.stamps.iter().any(|asked| *asked >= self.plan.server.last_step_before(*at))
                {
                    let early = id.due_at().micros_after(self.plan.server.at(*at));
                    prop_assert!(early <= self.unsure(), "{id:?} is early by {early} us");
                }
            }
            Ok(())
        }

        /// Returns the uncertainty: none without a step back, otherwise the longest round trip.
        fn unsure(&self) -> i64 {
            let has_step_back = self.plan.server.steps.iter().any(|(_, step)| *step < 0);
            let longest =
                self.plan.questions.iter().map(|(_, there, back)| there + back).max().unwrap_or(0);
            if has_step_back { i64::try_from(longest + longest / 1_000 + 2).unwrap() } else { 0 }
        }

        fn run(&mut self) -> Result<(), TestCaseError> {
            let (mut now, mut before) = (0, None);
            let (sleeps, room) = (self.plan.sleeps.clone(), self.plan.room.clone());
            for (turn, sleep) in sleeps.iter().cycle().enumerate() {
                self.happen(before, now);
                let handed_before = self.handed.len();
                self.turn(now, room[turn % room.len()]);
                self.check(handed_before)?;
                if now > 6_000_000 {
                    break;
                }
                before = Some(now);
                now += sleep + 300;
            }
            self.finish(now)
        }

        /// Runs the wheel without further trouble: a stamp comes every second, and the producer
        /// takes all records. Each record must then come once, within a look and a slice of its
        /// time.
        fn finish(&mut self, from: u64) -> Result<(), TestCaseError> {
            let mut now = from;
            let task_count: usize = self.plan.batches.iter().map(|(_, dues)| dues.len()).sum();
            let steps: i64 =
                self.plan.server.steps.iter().map(|(_, step)| step.min(&0).abs()).sum();
            let end = from + 8_000_000 + u64::try_from(steps).unwrap();
            while now < end && self.handed.len() < task_count {
                let stamp = Stamp {
                    at: self.plan.server.at(now),
                    asked_at: monotonic(now),
                    arrived_at: monotonic(now).into(),
                };
                self.clock.take_in(stamp);
                self.stamps.push(now);
                self.happen(Some(now), now);
                let handed_before = self.handed.len();
                self.turn(now, None);
                self.check(handed_before)?;
                now += 10_000 + u64::try_from(steps).unwrap() / 100;
            }
            let distinct: std::collections::HashSet<TaskId> =
                self.handed.iter().map(|(id, _)| *id).collect();
            prop_assert_eq!((self.handed.len(), distinct.len()), (task_count, task_count));
            Ok(())
        }
    }

    fn monotonic(micros: u64) -> Monotonic {
        Monotonic::from_start(Duration::from_micros(micros))
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

        #[test]
        fn nothing_is_early_and_nothing_stays_while_the_clock_of_postgres_holds(
            plan in plans(Just(0)),
        ) {
            Bench::new(plan).run()?;
        }

        #[test]
        fn nothing_is_early_and_nothing_stays_while_the_clock_of_postgres_is_set_forward(
            plan in plans(0_i64..20_000_000),
        ) {
            Bench::new(plan).run()?;
        }

        #[test]
        fn what_a_clock_set_back_has_told_of_itself_is_kept_to_and_nothing_stays(
            plan in plans(-20_000_000_i64..20_000_000),
        ) {
            Bench::new(plan).run()?;
        }
    }

    /// Returns slices of one batch, due in 10 ms.
    fn slices() -> (Timestamp, Vec<DueSlice>) {
        let bench = Bench::new(no_plan());
        let held = bench.in_flight.add(batch_of(&[10_000]), Past::Fresh, monotonic(0)).unwrap();
        (Timestamp::from_micros(START + 10_000), slices_of(&held, MILLISECOND))
    }

    #[test]
    fn a_slice_that_was_due_waits_again_when_the_clock_is_set_back() {
        let (due_at, slices) = slices();
        let mut near = Near::default();
        for slice in slices {
            assert!(near.keep(slice, Some(due_at)).is_none());
        }
        assert!(near.ripen(due_at));
        assert!(near.hand_over(due_at, |_, _| Handed::Full), "the producer takes nothing");
        let earlier = due_at.minus(MILLISECOND);
        assert!(!near.hand_over(earlier, |_, _| panic!("handed over before its time")));
        assert!(!near.ripen(earlier));
        assert!(near.ripen(due_at));
        assert_eq!((hand_all_over(&mut near, due_at), near.next_due_at()), (1, None));
    }

    /// Returns the number of records that were handed over.
    fn hand_all_over(near: &mut Near, now: Timestamp) -> usize {
        let mut count = 0;
        let is_full = near.hand_over(now, |_, _| {
            count += 1;
            Handed::Over
        });
        assert!(!is_full);
        count
    }

    /// Postgres has lost a claim in a failover, and the node has claimed the rows again.
    #[tokio::test]
    async fn a_task_of_two_batches_is_handed_over_for_each() {
        let (bench, mut near) = (Bench::new(no_plan()), Near::default());
        let due_at = Timestamp::from_micros(START + 10_000);
        for _claim in 0..2 {
            let mut builder =
                BatchBuilder::new(BatchId::new(Timestamp::EPOCH, 0, rand::random()), 2, 0);
            (1..=2).for_each(|low| push(&mut builder, TaskId::new(due_at, Shard::new(0), low)));
            let held = bench.in_flight.add(builder.build(), Past::Fresh, monotonic(0)).unwrap();
            for slice in slices_of(&held, MILLISECOND) {
                assert!(near.keep(slice, None).is_none());
            }
        }
        assert!(near.ripen(due_at));
        // In a thread of its own, because turns without end would stop the test.
        let (sender, handed) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            sender.send((hand_all_over(&mut near, due_at), near.next_due_at()))
        });
        let handed = tokio::time::timeout(Duration::from_secs(30), handed).await;
        assert_eq!(handed.expect("the turns end").unwrap(), (4, None));
    }

    #[test]
    fn what_is_far_off_is_looked_at_again_within_a_second() {
        let (due_at, mut slices) = slices();
        let mut near = Near::default();
        let hour_before = due_at.minus(Duration::from_secs(3600));
        let (slice, wait) = near.keep(slices.remove(0), Some(hour_before)).unwrap();
        assert_eq!(wait, REREAD_INTERVAL);
        let (slice, wait) = near.keep(slice, Some(due_at.minus(MILLISECOND * 10))).unwrap();
        assert_eq!(wait, MILLISECOND * 10 - LEAD);
        assert!(near.keep(slice, None).is_none(), "while no clock is known it is kept near");
    }

    proptest! {
        #[test]
        fn tasks_of_several_batches_that_are_due_at_the_same_time_leave_in_the_order_of_their_ids(
            batches in prop::collection::vec(
                prop::collection::vec((9_i64..12, 0_u64..1 << 62), 1..40),
                1..6,
            ),
            rooms in prop::collection::vec(0_usize..50, 1..10),
            precision_ms in 1_u32..3,
        ) {
            let plan = Plan { precision: MILLISECOND * precision_ms, ..no_plan() };
            let (bench, mut near) = (Bench::new(plan), Near::default());
            for tasks in &batches {
                let mut builder = BatchBuilder::new(
                    BatchId::new(Timestamp::EPOCH, 0, rand::random()),
                    tasks.len(),
                    0,
                );
                for (due, random) in tasks {
                    let id = TaskId::new(
                        Timestamp::from_micros(START + due * 1_000),
                        Shard::new(0),
                        *random,
                    );
                    push(&mut builder, id);
                }
                let held =
                    bench.in_flight.add(builder.build(), Past::Fresh, monotonic(0)).unwrap();
                for slice in slices_of(&held, bench.plan.precision) {
                    prop_assert!(near.keep(slice, None).is_none());
                }
            }
            let (now, mut handed) = (Timestamp::from_micros(START + 20_000), Vec::new());
            for room in rooms.iter().cycle() {
                if !near.ripen(now) {
                    break;
                }
                let mut left = *room + 1;
                near.hand_over(now, |held, index| {
                    if left == 0 {
                        return Handed::Full;
                    }
                    left -= 1;
                    handed.push(held.batch.id_of(usize::try_from(index).unwrap()));
                    Handed::Over
                });
            }
            prop_assert_eq!(handed.len(), batches.iter().map(Vec::len).sum::<usize>());
            prop_assert!(handed.is_sorted());
        }
    }
}
