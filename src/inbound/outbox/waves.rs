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

/// What an item may not overtake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place<N> {
    /// The name of its task, if it has one.
    pub name: Option<N>,
    /// The key of the record of its new task, as a hash. Tasks of one key that are due at the same
    /// time leave in the order in which they are stored.
    pub key: Option<u64>,
    /// The item is carried out after those of its wave that are not late.
    pub is_late: bool,
}

/// Divides items into waves. Items of one name are in as many waves, in their order. Items of one
/// key are carried out in their order. Other items are in the first wave.
pub fn divide<T, N: Eq + Hash>(items: Vec<T>, place: impl Fn(&T) -> Place<N>) -> Vec<Vec<T>> {
    let mut next_of_name: HashMap<N, usize> = HashMap::new();
    // The wave of the last item of a key, and whether that is late.
    let mut last_of_key: HashMap<u64, (usize, bool)> = HashMap::new();
    let mut waves: Vec<Vec<T>> = Vec::new();
    for item in items {
        let Place { name, key, is_late } = place(&item);
        let of_name = name.as_ref().and_then(|name| next_of_name.get(name)).copied();
        let of_key = key
            .and_then(|key| last_of_key.get(&key))
            .map(|(wave, was_late)| wave + usize::from(*was_late && !is_late));
        let number = of_name.max(of_key).unwrap_or(0);
        if let Some(name) = name {
            next_of_name.insert(name, number + 1);
        }
        if let Some(key) = key {
            last_of_key.insert(key, (number, is_late));
        }
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

    fn named<N>(name: Option<N>) -> Place<N> {
        Place { name, key: None, is_late: false }
    }

    #[test]
    fn a_submit_does_not_overtake_an_earlier_replacement_of_its_key() {
        let place = |row: &(&str, Option<&'static str>, u64)| Place {
            name: row.1,
            key: Some(row.2),
            is_late: row.0 == "replace",
        };
        let rows = vec![("replace", Some("a"), 1), ("submit", None, 1), ("submit", None, 2)];
        let [first, second, third] = rows[..] else { panic!() };
        assert_eq!(divide(rows, place), [vec![first, third], vec![second]]);
        // The name of the second one makes it wait, and its key the third.
        let rows = vec![("submit", Some("a"), 1), ("replace", Some("a"), 1), ("submit", None, 1)];
        let [first, second, third] = rows[..] else { panic!() };
        assert_eq!(divide(rows, place), [[first], [second], [third]]);
    }

    #[test]
    fn a_cancel_is_in_a_later_wave_than_its_submit() {
        let rows = vec![("submit", Some("a")), ("submit", Some("b")), ("cancel", Some("a"))];
        let waves = divide(rows, |row| named(row.1));
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
        fn each_name_is_once_in_a_wave_and_names_and_keys_keep_their_order(
            rows: Vec<(Option<u8>, Option<u8>, bool)>,
        ) {
            let place = |(_, (name, key, is_late)): &(usize, (Option<u8>, Option<u8>, bool))| {
                Place { name: *name, key: key.map(u64::from), is_late: *is_late }
            };
            let items: Vec<_> = rows.into_iter().enumerate().collect();
            let mut waves = divide(items.clone(), place);
            for wave in &mut waves {
                let mut names: Vec<u8> = wave.iter().filter_map(|(_, row)| row.0).collect();
                let count = names.len();
                names.sort_unstable();
                names.dedup();
                prop_assert_eq!(names.len(), count);
                wave.sort_by_key(|(_, row)| row.2);
            }
            prop_assert_eq!(waves.iter().map(Vec::len).sum::<usize>(), items.len());
            for value in (0..=u8::MAX).map(Some) {
                let of_key = |item: &&(usize, (Option<u8>, Option<u8>, bool))| item.1.1 == value;
                let after: Vec<_> = waves.iter().flatten().filter(of_key).collect();
                prop_assert_eq!(after, items.iter().filter(of_key).collect::<Vec<_>>());
                let of_name = |item: &&(usize, (Option<u8>, Option<u8>, bool))| item.1.0 == value;
                let after: Vec<_> = waves.iter().flatten().filter(of_name).collect();
                prop_assert_eq!(after, items.iter().filter(of_name).collect::<Vec<_>>());
            }
        }
    }
}
