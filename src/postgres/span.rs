//! How the batch of a task is found without an index entry per task (docs/decisions/0002).

use uuid::Uuid;

/// The class of a batch whose least and greatest ids are these: the smallest c for which their due times lie less than 4^c ms apart.
pub fn span_class(id_from: Uuid, id_to: Uuid) -> i16 {
    let millis = (id_to.as_u128() >> 80).saturating_sub(id_from.as_u128() >> 80);
    let bits = 128 - millis.leading_zeros();
    i16::try_from(bits.div_ceil(2)).unwrap_or(i16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_spans_less_than_four_to_its_power() {
        let id = |millis: u128| Uuid::from_u128(millis << 80);
        for (millis, class) in [(0, 0), (1, 1), (3, 1), (4, 2), (15, 2), (16, 3), (900_000, 10)] {
            assert_eq!(span_class(id(1_000), id(1_000 + millis)), class, "{millis} ms");
        }
    }
}
