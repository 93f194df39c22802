//! Waves: parts of a turn in which each task occurs once, so that the rows of a wave may be carried
//! out in any order. The task of a row without a name may be that of any other row. So a turn is
//! divided into stretches first, and a stretch has such rows only, or none.

use std::collections::HashMap;
use std::hash::Hash;

/// Divides items into stretches, in their order. In each one, `is_apart` is true of all items or of
/// none.
pub fn stretches<T>(items: Vec<T>, is_apart: impl Fn(&T) -> bool) -> Vec<Vec<T>> {
    let mut stretches: Vec<Vec<T>> = Vec::new();
    for item in items {
        let goes_on = |last: &T| is_apart(last) == is_apart(&item);
        match stretches.last_mut().filter(|stretch| stretch.last().is_some_and(goes_on)) {
            Some(stretch) => stretch.push(item),
            None => stretches.push(vec![item]),
        }
    }
    stretches
}

/// Divides items into waves. Items of one key are in as many waves, in their order; an item without
/// a key is in the first wave.
pub fn divide<T, K: Eq + Hash>(items: Vec<T>, key: impl Fn(&T) -> Option<K>) -> Vec<Vec<T>> {
    let mut counts: HashMap<K, usize> = HashMap::new();
    let mut waves: Vec<Vec<T>> = Vec::new();
    for item in items {
        let number = match key(&item) {
            Some(key) => {
                let count = counts.entry(key).or_default();
                *count += 1;
                *count - 1
            }
            None => 0,
        };
        while waves.len() <= number {
            waves.push(Vec::new());
        }
        waves[number].push(item);
    }
    waves
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_cancel_is_in_a_later_wave_than_its_submit() {
        let rows = vec![("submit", Some("a")), ("submit", Some("b")), ("cancel", Some("a"))];
        let waves = divide(rows, |row| row.1);
        let first = vec![("submit", Some("a")), ("submit", Some("b"))];
        assert_eq!(waves, [first, vec![("cancel", Some("a"))]]);
    }

    #[test]
    fn a_row_that_may_be_of_any_task_keeps_its_place_among_the_others() {
        let rows = vec![1, 2, -3, -4, 5, -6];
        let expected = [vec![1, 2], vec![-3, -4], vec![5], vec![-6]];
        assert_eq!(stretches(rows, |row| *row < 0), expected);
    }

    proptest! {
        #[test]
        fn each_key_is_once_in_a_wave_and_keeps_its_order(keys: Vec<Option<u8>>) {
            let items: Vec<(usize, Option<u8>)> = keys.into_iter().enumerate().collect();
            let waves = divide(items.clone(), |item| item.1);
            for wave in &waves {
                let mut keys: Vec<u8> = wave.iter().filter_map(|item| item.1).collect();
                let count = keys.len();
                keys.sort_unstable();
                keys.dedup();
                prop_assert_eq!(keys.len(), count);
            }
            for key in (0..=u8::MAX).map(Some) {
                let of_key = |item: &&(usize, Option<u8>)| item.1 == key;
                let after: Vec<_> = waves.iter().flatten().filter(of_key).collect();
                let before: Vec<_> = items.iter().filter(of_key).collect();
                prop_assert_eq!(after, before);
            }
            prop_assert_eq!(waves.iter().map(Vec::len).sum::<usize>(), items.len());
        }
    }
}
