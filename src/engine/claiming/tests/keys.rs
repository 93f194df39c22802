//! Tests hotspots of tasks with keys. Their ids are in the order of the submits, so the ids of one
//! key are close together.

use super::*;
use crate::domain::{Headers, NewTask, Record, ShardCount, SubmitOrder};

const HOTSPOT: usize = 50_000;

/// Returns a hotspot of `key_count` keys, submitted over 10 s, a day before it is due.
fn hotspot_of(key_count: usize) -> BTreeSet<Uuid> {
    let (order, due_at) = (SubmitOrder::default(), at(1_000));
    let submitted = |number: usize| {
        let topic = TopicName::stored("orders");
        let key = Some(format!("key {}", number % key_count).into_bytes().into());
        let record = Record { topic, key, payload: None, headers: Headers::default() };
        let mut task = NewTask::new(record, None, due_at, ShardCount::DEFAULT, (0, 0));
        let passed = Duration::from_micros(u64::try_from(number).unwrap() * 200);
        let chance =
            |salt: u64| (u64::try_from(number).unwrap() + salt).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        task.put_behind_earlier(
            &order,
            due_at.minus(Duration::from_secs(86_400)).plus(passed),
            (chance(1), chance(2)),
        );
        task.id.uuid()
    };
    (0..HOTSPOT).map(submitted).collect()
}

/// Claims a hotspot. Returns the numbers of claims with tasks, too large, and without tasks.
fn claims_for(key_count: usize) -> [usize; 3] {
    let mut claiming = Claiming::new(SETTINGS, &ShardCount::DEFAULT.all().collect::<Vec<_>>());
    let mut table = hotspot_of(key_count);
    assert_eq!(table.len(), HOTSPOT, "each id is another one");
    let mut counts = [0; 3];
    tick(&mut claiming, at(0), &mut table, 0);
    for millis in (20..=1_200).step_by(20) {
        while let Some(claim) =
            claiming.next_at_watermark(at(millis)).or_else(|| claiming.next_deferred())
        {
            let found = table.range(claim.range.from..claim.range.to).count();
            counts[if found > ROWS_MAX { 1 } else { 2 * usize::from(found == 0) }] +=
                usize::from(found > 0 || !claim.is_at_watermark());
            carry_out(&mut claiming, &claim, &mut table);
        }
    }
    assert!(table.is_empty(), "{} are left", table.len());
    counts
}

#[test]
fn a_hotspot_of_many_keys_is_claimed_in_equal_pieces_and_one_of_few_keys_takes_a_few_more() {
    for (key_count, brought_max, vain_max) in
        [(HOTSPOT, 60, 4), (5_000, 60, 4), (500, 60, 4), (100, 60, 30), (20, 60, 60), (1, 60, 40)]
    {
        let [brought, too_large, empty] = claims_for(key_count);
        assert!(
            brought <= brought_max && too_large + empty <= vain_max,
            "{key_count} keys: {brought} brought something, {too_large} were too large, {empty} \
             brought nothing"
        );
    }
}
