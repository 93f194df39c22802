//! The part that all settles have: the outcomes of batches.

use az::SaturatingAs as _;
use sqlx::Postgres;
use sqlx::postgres::PgArguments;
use uuid::Uuid;

use super::settlement::Settlement;

/// Binds the sixteen parameters of a settle of batches.
pub(super) fn bind_batches<'q>(
    query: sqlx::query::Query<'q, Postgres, PgArguments>,
    node: Uuid,
    settlements: &[&'q Settlement],
) -> sqlx::query::Query<'q, Postgres, PgArguments> {
    let (mut lows, mut highs, mut topic_lows, mut topic_highs) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut end, mut topic_end) = (0_i32, 0_i32);
    for settlement in settlements {
        lows.push(end.saturating_add(1));
        end = end.saturating_add(settlement.outcomes.len().saturating_as::<i32>());
        highs.push(end);
        topic_lows.push(topic_end.saturating_add(1));
        topic_end = topic_end.saturating_add(settlement.topic_names.len().saturating_as::<i32>());
        topic_highs.push(topic_end);
    }
    let each = settlements;
    query
        .bind(node)
        .bind(each.iter().map(|s| s.batch.uuid()).collect::<Vec<_>>())
        .bind(each.iter().map(|s| s.width_class).collect::<Vec<_>>())
        .bind(each.iter().map(|s| s.id_from).collect::<Vec<_>>())
        .bind(each.iter().map(|s| s.id_to).collect::<Vec<_>>())
        .bind(each.iter().map(|s| s.topic_indexes.is_some()).collect::<Vec<_>>())
        .bind(
            each.iter().flat_map(|s| s.topic_names.iter().map(String::as_str)).collect::<Vec<_>>(),
        )
        .bind(each.iter().flat_map(|s| indexes_of(s)).collect::<Vec<_>>())
        .bind(each.iter().flat_map(|s| s.outcomes.iter().copied()).collect::<Vec<_>>())
        .bind(each.iter().flat_map(|s| s.partitions.iter().copied()).collect::<Vec<_>>())
        .bind(each.iter().flat_map(|s| s.offsets.iter().copied()).collect::<Vec<_>>())
        .bind(each.iter().flat_map(|s| s.published_ats.iter().copied()).collect::<Vec<_>>())
        .bind(lows)
        .bind(highs)
        .bind(topic_lows)
        .bind(topic_highs)
}

/// Returns the topic indexes of a batch, as many as it has outcomes, so that the slices of all
/// arrays agree.
fn indexes_of(settlement: &Settlement) -> impl Iterator<Item = i16> {
    (0..settlement.outcomes.len())
        .map(|index| settlement.topic_indexes.as_ref().map_or(1, |indexes| indexes[index]))
}
