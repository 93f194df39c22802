//! Tests the rules of claiming on a table that is a set.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::domain::{Shard, TaskId};

mod keys;
mod topics;

const SETTINGS: ClaimSettings = ClaimSettings {
    window: Duration::from_millis(200),
    slack: Duration::from_millis(750),
    leaf: Duration::from_secs(900),
    rows_target: 1000,
};
const ROWS_MAX: usize = 4000;
const SHARDS: [Shard; 1] = [Shard::new(7)];

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(1_700_000_000_000 + millis)
}

fn id(millis: i64, random: u64) -> Uuid {
    TaskId::new(at(millis), Shard::new(7), random).uuid()
}

fn taken(got: usize) -> Taken {
    Taken { got: u64::try_from(got).unwrap(), ..Taken::default() }
}

/// Does the work of Postgres for a claim. Returns the number of rows taken.
fn carry_out(claiming: &mut Claiming, claim: &Claim, table: &mut BTreeSet<Uuid>) -> usize {
    let found: Vec<Uuid> = table.range(claim.range.from..claim.range.to).copied().collect();
    if found.len() > ROWS_MAX {
        claiming.was_too_large(claim, found.first().copied());
        return 0;
    }
    for id in &found {
        table.remove(id);
    }
    claiming.took(claim, &taken(found.len()));
    found.len()
}

/// Runs one tick: claims at the watermark until it has caught up, then at most `turns` claims of
/// deferred ranges.
fn tick(claiming: &mut Claiming, now: Timestamp, table: &mut BTreeSet<Uuid>, turns: usize) {
    while let Some(claim) = claiming.next_at_watermark(now) {
        assert!(
            claim.range.to <= floor_of(now.plus(SETTINGS.window)),
            "no claim reaches past now + window"
        );
        carry_out(claiming, &claim, table);
    }
    for _ in 0..turns {
        let Some(claim) = claiming.next_deferred() else { return };
        carry_out(claiming, &claim, table);
    }
}

#[test]
fn a_task_is_claimed_a_window_ahead_of_its_due_time() {
    let mut claiming = Claiming::new(SETTINGS, &SHARDS);
    let mut table = BTreeSet::from([id(500, 1)]);
    for millis in 0..=300 {
        tick(&mut claiming, at(millis), &mut table, 1);
    }
    assert_eq!(table.len(), 1, "its millisecond is not yet within the window");
    tick(&mut claiming, at(301), &mut table, 1);
    assert!(table.is_empty());
}

#[test]
fn a_hot_millisecond_is_divided_and_the_watermark_goes_on() {
    let mut claiming = Claiming::new(SETTINGS, &SHARDS);
    let mut table: BTreeSet<Uuid> = (0..100_000_u64).map(|n| id(1_000, n << 45)).collect();
    table.insert(id(1_100, 0));
    for millis in (0..900).step_by(20) {
        tick(&mut claiming, at(millis), &mut table, 0);
    }
    tick(&mut claiming, at(920), &mut table, 0);
    assert_eq!(
        table.len(),
        100_000,
        "the task behind the hotspot has been claimed, the hotspot waits"
    );
    tick(&mut claiming, at(940), &mut table, 1_000);
    assert!(table.is_empty(), "and is claimed in turns: {} are left", table.len());
}

#[test]
fn what_becomes_due_while_there_is_no_room_after_the_shards_have_changed_is_claimed_once_there_is()
{
    let mut claiming = Claiming::new(SETTINGS, &SHARDS);
    tick(&mut claiming, at(0), &mut BTreeSet::new(), 0);
    claiming.restart(&SHARDS, &SHARDS);
    claiming.sweep(at(-900_000), at(10), Scope::Mine);
    // There was no room for claims until now.
    let mut table = BTreeSet::from([
        id(-100, 1),
        id(9, 1),
        id(10, 1),
        id(2_000, 1),
        id(4_900, 1),
        id(5_100, 1),
    ]);
    tick(&mut claiming, at(5_000), &mut table, 100);
    assert_eq!(table, BTreeSet::new());
}

#[test]
fn what_others_left_late_in_their_shards_is_kept_when_the_shards_change() {
    let mut claiming = Claiming::new(SETTINGS, &SHARDS);
    claiming.inserted_late(IdRange { from: id(-100, 0), to: id(-90, 0) }, at(0));
    claiming.sweep(at(-900_000), at(0), Scope::Others);
    claiming.restart(&SHARDS, &SHARDS);
    let claim = claiming.next_deferred().unwrap();
    assert_eq!(
        (claim.range, claim.scope),
        (IdRange { from: id(-100, 0), to: id(-90, 0) }, Scope::All)
    );
    claiming.took(&claim, &taken(0));
    assert_eq!(claiming.next_deferred(), None, "the sweep begins anew with that of the new shards");
}

#[test]
fn what_is_overdue_in_the_shards_of_others_comes_behind_ones_own_and_not_never() {
    let mut claiming = Claiming::new(SETTINGS, &SHARDS);
    // The sweep covers 1,000 leaves.
    claiming.sweep(at(-900_000_000), at(0), Scope::Others);
    claiming.sweep(at(-900_000_000), at(0), Scope::Mine);
    let mut scopes = Vec::new();
    while let Some(claim) = claiming.next_deferred() {
        scopes.push(claim.scope);
        claiming.took(&claim, &taken(1_000));
        if claim.scope == Scope::Mine && claim.range.to == floor_of(at(0)) {
            assert!(
                !claiming.is_sweeping(Scope::Mine) && claiming.is_sweeping(Scope::Others),
                "the next sweep of one's own need not wait"
            );
        }
    }
    let last_of = |wanted: Scope| scopes.iter().rposition(|scope| *scope == wanted).unwrap();
    let meanwhile = &scopes[..last_of(Scope::Mine)];
    let others: Vec<usize> =
        (0..meanwhile.len()).filter(|index| meanwhile[*index] == Scope::Others).collect();
    assert_eq!(others.first(), Some(&64), "what is one's own goes first");
    assert!(
        others.windows(2).all(|pair| pair[1] - pair[0] == 65),
        "and each 65th piece is of the others: {others:?}"
    );
    assert!(
        last_of(Scope::Others) > meanwhile.len(),
        "the rest of theirs comes when one's own is done"
    );
}

#[test]
fn an_idle_time_gives_the_others_no_turn_before_ones_own() {
    let mut claiming = Claiming::new(SETTINGS, &SHARDS);
    claiming.sweep(at(-900_000_000), at(0), Scope::Mine);
    (0..100).for_each(|_| {
        let claim = claiming.next_deferred().unwrap();
        claiming.took(&claim, &taken(1_000));
    });
    claiming.sweep(at(-900_000_000), at(0), Scope::Others);
    assert_eq!(claiming.next_deferred().unwrap().scope, Scope::Mine);
}

#[test]
fn rows_that_nobody_has_named_hold_up_no_sweep() {
    let mut claiming = Claiming::new(SETTINGS, &SHARDS);
    // More ids of another UUID version than one claim takes, inserted by hand.
    let strange: Vec<Uuid> =
        (0..5_000).map(|n| Uuid::from_u128(floor_of(at(0)).as_u128() + (4 << 76) + n)).collect();
    let mut table: BTreeSet<Uuid> =
        strange.iter().copied().chain([id(-5, 1), id(0, 1), id(5, 1)]).collect();
    claiming.sweep(at(-10_000), at(20_000), Scope::Mine);
    for _ in 0..2_000 {
        let Some(claim) = claiming.next_deferred() else { break };
        carry_out(&mut claiming, &claim, &mut table);
    }
    assert_eq!(claiming.deferred_count(), 0, "the sweep comes to its end");
    assert!(table.iter().eq(&strange), "and has claimed what is a task");
    // One of the rows cannot even be read.
    claiming.sweep(at(-10_000), at(20_000), Scope::Mine);
    for _ in 0..2_000 {
        let Some(claim) = claiming.next_deferred() else { break };
        if claim.range.contains(strange[0]) {
            assert_eq!(
                claiming.failed_on_a_row(&claim, lowest(&table, claim.range)),
                Narrowing::Smaller
            );
        } else {
            claiming.took(&claim, &taken(0));
        }
    }
    assert_eq!(claiming.deferred_count(), 0, "the sweep comes to its end");
}

#[test]
fn what_is_due_just_before_a_hotspot_is_not_set_aside_with_it() {
    let mut claiming = Claiming::new(SETTINGS, &SHARDS);
    let alone = id(999, (1 << 62) - 1);
    let mut table: BTreeSet<Uuid> =
        (0..50_000_u64).map(|n| id(1_000, n << 46)).chain([alone]).collect();
    (0..900).step_by(20).for_each(|millis| tick(&mut claiming, at(millis), &mut table, 0));
    assert!(!table.contains(&alone));
    assert_eq!(claiming.deferred_count(), 1, "the hotspot alone waits");
}

#[test]
fn what_is_overdue_in_the_shards_of_others_is_all_that_an_idle_node_looks_after() {
    let mut claiming = Claiming::new(SETTINGS, &SHARDS);
    let mut table = BTreeSet::from([id(-800_000, 1), id(-10_001, 1), id(-9_999, 1)]);
    claiming.sweep(at(-900_000), at(0), Scope::Others);
    while let Some(claim) = claiming.next_deferred() {
        carry_out(&mut claiming, &claim, &mut table);
    }
    assert_eq!(
        table,
        BTreeSet::from([id(-9_999, 1)]),
        "what is overdue by less than 10 s is its owner's"
    );
}

#[test]
fn a_sweep_reaches_up_to_the_watermark_however_wide_the_window() {
    let mut claiming =
        Claiming::new(ClaimSettings { window: Duration::from_secs(10), ..SETTINGS }, &SHARDS);
    while let Some(claim) = claiming.next_at_watermark(at(0)) {
        claiming.took(&claim, &taken(0));
    }
    // A topic accepts records again. The sweep, or the next look behind the watermark, finds the
    // tasks that those claims left out.
    let mut left =
        BTreeSet::from([id(-5_000, 1), id(1, 1), id(3_000, 1), id(9_240, 1), id(9_990, 1)]);
    claiming.sweep(at(-900_000), at(0), Scope::Mine);
    while let Some(claim) = claiming.next_deferred() {
        assert!(claim.range.to <= floor_of(at(10_000)), "no claim reaches past now + window");
        carry_out(&mut claiming, &claim, &mut left);
    }
    let claim = claiming.next_at_watermark(at(50)).unwrap();
    carry_out(&mut claiming, &claim, &mut left);
    assert_eq!(left, BTreeSet::new());
}

#[test]
fn a_watermark_whose_claims_take_long_for_the_slack_still_arrives() {
    let mut claiming = Claiming::new(SETTINGS, &SHARDS);
    let slow = Taken { spent: SPENT_MAX * 4, ..taken(0) };
    for tick in 0..100 {
        let mut claims = 0;
        while let Some(claim) = claiming.next_at_watermark(at(tick * 20)) {
            claims += 1;
            assert!(claims <= 17, "tick {tick}");
            claiming.took(&claim, &slow);
        }
    }
}

#[test]
fn nothing_that_was_set_aside_is_claimed_past_the_window_when_the_clock_has_gone_back() {
    let mut claiming = Claiming::new(SETTINGS, &SHARDS);
    tick(&mut claiming, at(3_600_000), &mut BTreeSet::new(), 0);
    claiming.inserted_late(IdRange { from: id(3_600_000, 0), to: id(3_600_100, 0) }, at(3_600_000));
    tick(&mut claiming, at(0), &mut BTreeSet::new(), 0);
    assert_eq!(claiming.next_deferred(), None);
}

#[test]
fn a_lock_that_lasts_holds_up_no_sweep() {
    let mut claiming = Claiming::new(SETTINGS, &SHARDS);
    let locked = id(-100_000, 1 << 61);
    let behind = id(-50_000, 1);
    let mut table = BTreeSet::from([locked, behind]);
    tick(&mut claiming, at(0), &mut table, 0);
    claiming.sweep(at(-900_000), at(0), Scope::Mine);
    let mut waits = 0;
    while let Some(claim) = claiming.next_deferred() {
        if (claim.range.from..claim.range.to).contains(&locked) {
            waits += 1;
            assert!(waits < 13, "each of them holds up the loop");
            claiming.gave_way(&claim);
        } else {
            carry_out(&mut claiming, &claim, &mut table);
        }
    }
    assert_eq!(
        table,
        BTreeSet::from([locked]),
        "what is due behind it is claimed, and the sweep has ended"
    );
    assert!(!claiming.is_sweeping(Scope::Mine));
}

#[test]
fn what_came_late_is_claimed_up_to_the_window_and_no_further() {
    let mut claiming = Claiming::new(SETTINGS, &SHARDS);
    let window = i64::try_from(SETTINGS.window.as_millis()).unwrap();
    claiming.inserted_late(IdRange { from: id(10, 1), to: id(900, 1) }, at(0));
    let claim = claiming.next_deferred().unwrap();
    assert_eq!((claim.range.from, claim.range.to), (id(10, 1), floor_of(at(window))));
    claiming.took(&claim, &taken(1));
    claiming.inserted_late(IdRange { from: id(window, 1), to: id(window + 500, 1) }, at(0));
    assert_eq!(claiming.deferred_count(), 0, "all of it is due beyond the window");
}

#[test]
fn a_claim_that_took_long_for_what_it_left_is_followed_by_a_smaller_one() {
    let mut claiming = Claiming::new(SETTINGS, &SHARDS);
    claiming.sweep(at(0), at(8_000_000), Scope::Mine);
    let before = claiming.next_deferred().unwrap();
    claiming.took(&before, &taken(0));
    let first = claiming.next_deferred().unwrap();
    claiming.took(&first, &Taken { spent: Duration::from_millis(500), ..taken(0) });
    let second = claiming.next_deferred().unwrap();
    assert!(
        second.range.width() <= first.range.width() / 9,
        "{} after {}",
        second.range.width(),
        first.range.width()
    );
    claiming.took(&second, &Taken { spent: Duration::from_millis(1), ..taken(0) });
    assert!(claiming.next_deferred().unwrap().range.width() > second.range.width());
}

#[test]
fn a_hotspot_over_many_shards_is_claimed_in_pieces_of_one_size() {
    let shards: Vec<Shard> = (0..64).step_by(2).map(Shard::new).collect();
    let mut claiming = Claiming::new(SETTINGS, &shards);
    let ids = (0..50_000_u64).map(|n| {
        TaskId::new(
            at(1_000),
            shards[usize::try_from(n % 32).unwrap()],
            n.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        )
    });
    let mut table: BTreeSet<Uuid> = ids.map(TaskId::uuid).collect();
    let (mut too_large, mut empty, mut sizes) = (0, 0, Vec::new());
    for millis in (0..1_200).step_by(20) {
        while let Some(claim) = claiming.next_at_watermark(at(millis)) {
            let count = table.range(claim.range.from..claim.range.to).count();
            too_large += usize::from(count > ROWS_MAX);
            carry_out(&mut claiming, &claim, &mut table);
        }
        while let Some(claim) = claiming.next_deferred() {
            match table.range(claim.range.from..claim.range.to).count() {
                0 => empty += 1,
                count if count > ROWS_MAX => too_large += 1,
                count => sizes.push(count),
            }
            carry_out(&mut claiming, &claim, &mut table);
        }
    }
    assert!(table.is_empty(), "{} are left", table.len());
    assert!(too_large <= 4 && empty <= 2, "{too_large} were too large, {empty} brought nothing");
    assert!(sizes[1..sizes.len() - 1].iter().all(|size| (900..1_100).contains(size)), "{sizes:?}");
}

#[test]
fn what_is_due_beside_a_hotspot_does_not_wait_for_it() {
    let mut claiming = Claiming::new(SETTINGS, &SHARDS);
    let hotspot = |millis: i64| (0..50_000_u64).map(move |n| id(millis, n << 45));
    let mut table: BTreeSet<Uuid> = hotspot(1_000).chain(hotspot(1_001)).collect();
    let beside: BTreeSet<Uuid> =
        (900..1_100).filter(|n| ![1_000, 1_001].contains(n)).map(|n| id(n, 7)).collect();
    table.extend(&beside);
    for millis in (0..=940).step_by(20) {
        tick(&mut claiming, at(millis), &mut table, 0);
    }
    assert_eq!(table.intersection(&beside).count(), 0, "only the hotspot is set aside");
    assert_eq!((table.len(), claiming.deferred_count()), (100_000, 1));
    tick(&mut claiming, at(960), &mut table, 500);
    assert!(table.is_empty(), "{} are left", table.len());
}

#[test]
fn what_comes_late_in_hotspots_does_not_hold_the_watermark() {
    let mut claiming = Claiming::new(SETTINGS, &SHARDS);
    let mut table = BTreeSet::new();
    tick(&mut claiming, at(1_000), &mut table, 0);
    table.extend((0..10_000_u64).map(|n| id(1_100, n << 45)));
    table.insert(id(1_219, 1));
    tick(&mut claiming, at(1_020), &mut table, 0);
    assert_eq!(table.len(), 10_000, "the one on time is claimed");
    tick(&mut claiming, at(1_040), &mut table, 100);
    assert!(table.is_empty(), "{} are left", table.len());
}

#[test]
fn after_a_pause_what_is_due_now_comes_first() {
    let mut claiming = Claiming::new(SETTINGS, &SHARDS);
    let mut table = BTreeSet::new();
    tick(&mut claiming, at(0), &mut table, 1);
    table.extend((0..50_000).map(|n| id(1_000 + n, 0)));
    let claim = claiming.next_at_watermark(at(60_000)).unwrap();
    assert!(claim.range.from >= floor_of(at(59_000)), "{:?}", claim.range);
    for turn in 0..200 {
        tick(&mut claiming, at(60_000 + turn * 20), &mut table, 4);
    }
    assert!(table.is_empty(), "{} are left", table.len());
}

/// Sweeps at `now` over the dead rows of 5,000 tasks a second since `held_from`. Returns the
/// duration of its longest piece, and the number of pieces. A dead row costs 1.2 us, a statement
/// 0.3 ms.
fn sweep_dead_rows(claiming: &mut Claiming, now: i64, held_from: i64) -> (Duration, usize) {
    claiming.sweep(at(-600_000), at(now), Scope::Mine);
    let (mut longest, mut count) = (Duration::ZERO, 0);
    while let Some(claim) = claiming.next_deferred() {
        let millis = |id: Uuid| i64::try_from(id.as_u128() >> 80).unwrap() - 1_700_000_000_000;
        let dead = 5 * (millis(claim.range.to) - millis(claim.range.from).max(held_from)).max(0);
        let spent = Duration::from_nanos(u64::try_from(300_000 + dead * 1_200).unwrap());
        claiming.took(&claim, &Taken { spent, ..Taken::default() });
        (longest, count) = (longest.max(spent), count + 1);
    }
    (longest, count)
}

#[test]
fn dead_rows_that_an_old_snapshot_keeps_are_swept_in_pieces_that_the_watermark_can_wait_for() {
    let mut claiming = Claiming::new(SETTINGS, &SHARDS);
    let mut sweeps: Vec<(Duration, usize)> =
        (1..40).map(|number| sweep_dead_rows(&mut claiming, number * 15_000, 0)).collect();
    assert!(sweeps.iter().all(|(longest, _)| *longest < SETTINGS.window), "{sweeps:?}");
    assert!(sweeps.iter().all(|(_, count)| *count < 2_000), "{sweeps:?}");
    // The snapshot is gone, and vacuum has run, so a few pieces are enough again.
    sweeps = (40..55)
        .map(|number| sweep_dead_rows(&mut claiming, number * 15_000, number * 15_000))
        .collect();
    assert!(sweeps.last().is_some_and(|(_, count)| *count < 10), "{sweeps:?}");
}

#[test]
fn a_late_insert_is_found_by_the_slack_or_by_the_sweep() {
    let mut claiming = Claiming::new(SETTINGS, &SHARDS);
    let mut table = BTreeSet::new();
    for millis in [0, 500, 1_000] {
        tick(&mut claiming, at(millis), &mut table, 1);
    }
    table.insert(id(600, 1));
    tick(&mut claiming, at(1_020), &mut table, 1);
    assert!(table.is_empty(), "within the slack");
    table.insert(id(100, 1));
    tick(&mut claiming, at(1_040), &mut table, 1);
    assert_eq!(table.len(), 1, "behind the slack");
    claiming.sweep(at(0), at(1_040), Scope::Mine);
    tick(&mut claiming, at(1_060), &mut table, 1);
    assert!(table.is_empty(), "swept");
}

#[test]
fn a_row_that_cannot_be_claimed_is_narrowed_down_and_skipped() {
    let mut claiming = Claiming::new(SETTINGS, &SHARDS);
    let poison = id(1_100, 5);
    let mut table: BTreeSet<Uuid> = (0..1_000).map(|n| id(1_000 + n, 7)).collect();
    claiming.sweep(at(0), at(20_000), Scope::Others);
    let (mut found, mut failed_count) = (None, 0);
    while let Some(claim) = claiming.next_deferred() {
        if claim.range.contains(poison) {
            failed_count += 1;
            let first = lowest(&table, claim.range).map_or(poison, |first| first.min(poison));
            if let Narrowing::Row(row) = claiming.failed_on_a_row(&claim, Some(first)) {
                found = Some(row);
            }
        } else {
            carry_out(&mut claiming, &claim, &mut table);
        }
    }
    assert_eq!(found, Some(poison));
    assert!(table.is_empty(), "the rest of the shard is claimed: {} are left", table.len());
    assert!(
        failed_count <= 40,
        "{failed_count} claims failed: a range shrinks by 16 at a time, and does not grow before \
         it is skipped"
    );
}

#[test]
fn a_range_that_cannot_be_read_makes_no_rows_of_ids_and_ends_no_sweep() {
    let mut claiming = Claiming::new(SETTINGS, &SHARDS);
    // A damaged page of the index: every claim of its range fails, whether or not there is a row.
    let damaged = IdRange { from: id(1_100, 5), to: id(1_300, 9) };
    let mut table: BTreeSet<Uuid> =
        (0..1_000).map(|n| id(1_000 + n, 7)).filter(|id| !damaged.contains(*id)).collect();
    claiming.sweep(at(0), at(20_000), Scope::Others);
    let mut failed_count = 0;
    while let Some(claim) = claiming.next_deferred() {
        if claim.range.from < damaged.to && damaged.from < claim.range.to {
            failed_count += 1;
            let first = lowest(&table, claim.range).filter(|first| *first < damaged.from);
            assert!(!matches!(claiming.failed_on_a_row(&claim, first), Narrowing::Row(_)));
        } else {
            carry_out(&mut claiming, &claim, &mut table);
        }
        assert!(failed_count < 2_000, "it does not come to an end");
    }
    let last_before = id(1_100, 5);
    assert!(table.iter().all(|id| *id > last_before), "what can be read before it is claimed");
}

/// Returns the first id in a range, as Postgres would.
fn lowest(table: &BTreeSet<Uuid>, range: IdRange) -> Option<Uuid> {
    table.range(range.from..range.to).next().copied()
}

#[test]
fn no_claim_reaches_past_the_end_of_a_leaf() {
    let mut claiming = Claiming::new(SETTINGS, &SHARDS);
    claiming.sweep(at(0), at(10_000_000), Scope::Others);
    let leaf = width_of(SETTINGS.leaf);
    while let Some(claim) = claiming.next_deferred() {
        assert_eq!(claim.range.from.as_u128() / leaf, (claim.range.to.as_u128() - 1) / leaf);
        claiming.took(&claim, &taken(0));
    }
}

proptest! {
    #[test]
    fn everything_is_claimed_whatever_comes_when(
        inserts in proptest::collection::vec((0_i64..5_000, 0_i64..5_000, any::<u64>()), 1..200),
        tick_millis in 5_i64..400,
    ) {
        // Tasks as (time of insert, due time), with late inserts and random hotspots among them.
        let mut claiming = Claiming::new(SETTINGS, &SHARDS);
        let mut table = BTreeSet::new();
        let mut now = 0;
        while now < 12_000 {
            table.extend(
                inserts
                    .iter()
                    .filter(|(when, ..)| (now - tick_millis..now).contains(when))
                    .map(|(when, due, random)| id(*due.max(when), *random)),
            );
            tick(&mut claiming, at(now), &mut table, 3);
            if now % 1_000 < tick_millis {
                claiming.sweep(at(0), at(now), Scope::Mine);
            }
            now += tick_millis;
        }
        prop_assert!(table.is_empty(), "{} are left", table.len());
    }
}
