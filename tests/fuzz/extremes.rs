//! Times at the ends of the range of their types: no operation overflows, and a time outside the
//! limits is set to the limit.

use std::time::Duration;

use punctual::domain::leaves::{Parent, Rules};
use punctual::domain::{BatchId, ClusterSettings, IdRange, Monotonic, Shard, TaskId, Timestamp};
use punctual::engine::cluster_clock::{Stamp, StampedClock};

/// The year 9999, the last millisecond of 48 bits and its neighbours, both ends of the type, and
/// the epoch.
const MILLIS: [i64; 12] = [
    i64::MIN,
    -1,
    0,
    1,
    253_402_300_799_999,
    (1 << 48) - 2,
    (1 << 48) - 1,
    1 << 48,
    i64::MAX / 1_000,
    i64::MAX / 1_000 + 1,
    i64::MAX - 1,
    i64::MAX,
];

const SPANS: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_nanos(1),
    Duration::from_secs(1 << 33),
    Duration::from_secs(u64::MAX),
    Duration::MAX,
];

fn times() -> impl Iterator<Item = Timestamp> {
    MILLIS
        .into_iter()
        .flat_map(|millis| [Timestamp::from_millis(millis), Timestamp::from_micros(millis)])
}

#[test]
fn the_arithmetic_of_times_stops_at_its_bounds() {
    for at in times() {
        for span in SPANS {
            assert!(at.plus(span) >= at.minus(span), "{at:?} {span:?}");
            assert!(at.plus(span).since(at) <= span.saturating_add(Duration::from_micros(1)));
        }
        for other in times() {
            assert_eq!(at.since(other).is_zero(), at <= other);
            assert_eq!(at.micros_after(other) > 0, at > other);
        }
        assert!(at.floor_millis() <= at);
    }
}

#[test]
fn an_id_holds_the_due_time_up_to_the_last_millisecond_of_48_bits() {
    for at in times() {
        let id = TaskId::new(at, Shard::new(4095), u64::MAX);
        let wanted = at.as_millis().clamp(0, Timestamp::MAX.as_millis());
        assert_eq!((id.due_at().as_millis(), id.shard().number()), (wanted, 4095));
        assert_eq!(id.to_string().parse::<TaskId>(), Ok(id));
        let later = TaskId::new(Timestamp::EPOCH, Shard::new(1), 7).due_at_least(at);
        assert!(later.due_at() >= at.min(Timestamp::MAX), "{at:?}: {:?}", later.due_at());
        assert_eq!(later.shard().number(), 1);
        assert!(BatchId::new(at, u16::MAX, u64::MAX).uuid().get_version_num() == 8);
    }
}

#[test]
fn ranges_of_ids_reach_to_both_ends() {
    for from in times() {
        for to in times() {
            let range = IdRange::of_times(from, to);
            assert!(range.is_empty() || range.width() > 0);
        }
    }
    let all = IdRange::of_times(Timestamp::EPOCH, Timestamp::MAX);
    assert!(all.contains(TaskId::new(Timestamp::EPOCH, Shard::new(0), 0).uuid()));
    assert!(
        all.contains(
            TaskId::new(Timestamp::MAX.minus(Duration::from_millis(1)), Shard::new(4095), u64::MAX)
                .uuid()
        )
    );
}

#[test]
fn partitions_of_far_times_have_their_place() {
    let rules = Rules::new(&ClusterSettings::DEFAULT);
    for at in times().filter(|at| (Timestamp::EPOCH..=Timestamp::MAX).contains(at)) {
        for parent in Parent::ALL {
            let partition = rules.partition_of(parent, at);
            assert!(partition.start <= at && rules.end_of(partition) >= at, "{parent:?} of {at:?}");
            assert!(!partition.name().is_empty());
        }
    }
}

#[test]
fn a_clock_that_shows_the_end_of_time_stops_no_node() {
    let mut clock = StampedClock::default();
    for (second, at) in times().enumerate() {
        let moment = Monotonic::from_start(Duration::from_secs(u64::try_from(second).unwrap()));
        clock.take_in(Stamp { at, asked_at: moment, arrived_at: moment.into() });
        assert!(clock.now(moment.into()).unwrap() <= at);
        assert!(clock.now(moment.plus(Duration::MAX).into()).is_some());
    }
}
