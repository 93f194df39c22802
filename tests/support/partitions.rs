//! Single rounds of the maintenance of partitions.

use punctual::domain::IdRange;
use punctual::domain::leaves::{Parent, Rules};
use punctual::postgres::partitions::mover::{Moved, Mover};
use punctual::postgres::partitions::retire::{Retired, Retirer};
use punctual::postgres::{PostgresError, PostgresSettings};

/// Moves the far tasks that are due within `range` to their leaves.
pub async fn move_far(mover: &mut Mover, range: IdRange) -> Result<Moved, PostgresError> {
    let mut moved = Moved::default();
    mover.round(range, &mut moved).await?;
    Ok(moved)
}

/// Retires all partitions of `parent` that may go.
pub async fn retire_all(
    settings: &PostgresSettings,
    parent: Parent,
    rules: Rules,
) -> Result<Retired, PostgresError> {
    let mut retired = Retired::default();
    Retirer::new(settings, parent, rules).round(&mut retired).await?;
    Ok(retired)
}
