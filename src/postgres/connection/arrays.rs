//! Reads Postgres's binary arrays in place. A claim returns one row of arrays; decoding them into
//! vectors would cost as much as everything else that the node does for a task (0.36 instead of
//! 0.17 us per row).

use sqlx::postgres::{PgRow, PgValueFormat};
use sqlx::{Row, ValueRef};

/// The elements of a one-dimensional array. `None` is NULL. Ends early when the bytes are not an
/// array, and never panics.
#[derive(Clone, Copy, Debug)]
pub struct Elements<'a> {
    rest: &'a [u8],
    left: usize,
}

/// Returns the bytes of column `index` of `row`, an array. `Ok(None)` is NULL.
pub fn array(row: &PgRow, index: usize) -> Result<Option<&[u8]>, sqlx::Error> {
    let value = row.try_get_raw(index)?;
    if value.is_null() {
        return Ok(None);
    }
    if value.format() != PgValueFormat::Binary {
        return Err(sqlx::Error::Decode("an array arrived as text".into()));
    }
    value.as_bytes().map(Some).map_err(sqlx::Error::Decode)
}

impl<'a> Elements<'a> {
    /// The header: number of dimensions, a flag for NULLs, the type of the elements, then the
    /// length and lower bound of the one dimension. Each takes four bytes, big endian.
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        let (dimensions, rest) = split_i32(bytes)?;
        if dimensions == 0 {
            return Some(Self { rest: &[], left: 0 });
        }
        let (_has_nulls, rest) = split_i32(rest)?;
        let (_element_type, rest) = split_i32(rest)?;
        let (length, rest) = split_i32(rest)?;
        let (_lower_bound, rest) = split_i32(rest)?;
        (dimensions == 1).then_some(Self { rest, left: usize::try_from(length).ok()? })
    }

    /// The declared number of elements. There are fewer when the bytes end early.
    pub fn declared_count(&self) -> usize {
        self.left
    }

    /// The maximum number of elements: each has a length of four bytes.
    pub fn count_max(&self) -> usize {
        self.left.min(self.rest.len() / size_of::<i32>())
    }

    /// The maximum number of bytes of all elements together.
    pub fn bytes(&self) -> usize {
        self.rest.len()
    }
}

impl<'a> Iterator for Elements<'a> {
    type Item = Option<&'a [u8]>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let (length, rest) = split_i32(self.rest)?;
        // -1 is NULL.
        let Ok(length) = usize::try_from(length) else {
            self.rest = rest;
            return Some(None);
        };
        let (element, rest) = rest.split_at_checked(length)?;
        self.rest = rest;
        Some(Some(element))
    }
}

fn split_i32(bytes: &[u8]) -> Option<(i32, &[u8])> {
    let (number, rest) = bytes.split_first_chunk::<4>()?;
    Some((i32::from_be_bytes(*number), rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn elements_and_nulls_are_read() {
        let mut bytes = Vec::new();
        for number in [1_i32, 1, 17, 3, 1, 2] {
            bytes.extend(number.to_be_bytes());
        }
        bytes.extend(b"ab");
        bytes.extend((-1_i32).to_be_bytes());
        bytes.extend(0_i32.to_be_bytes());
        let read: Vec<_> = Elements::new(&bytes).unwrap().collect();
        assert_eq!(read, [Some(b"ab".as_slice()), None, Some(b"".as_slice())]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes: Vec<u8>) {
            if let Some(elements) = Elements::new(&bytes) {
                prop_assert!(
                    elements.take(100).flatten().map(<[u8]>::len).sum::<usize>() <= bytes.len()
                );
            }
        }
    }
}
