//! Sees from outside when rows and records were taken: a row is gone, or the offset is behind a
//! record.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use sqlx::PgConnection;
use uuid::Uuid;

use super::Doors;
use crate::field::Field;
use crate::support::{now_ms, wait};

const POLL_MS: i64 = 80;
/// A look that takes longer tells nothing.
const PATIENCE: Duration = Duration::from_millis(800);

/// When the offset of a partition was seen to be at a record, in the order of time.
#[derive(Debug, Default)]
pub struct Taken(HashMap<i32, Vec<(i64, i64)>>);

impl Taken {
    fn note(&mut self, at: i64, partition: i32, next: i64) {
        let seen = self.0.entry(partition).or_default();
        if seen.last().is_none_or(|(_, last)| *last < next) {
            seen.push((at, next));
        }
    }

    /// Returns by when the record had certainly taken effect.
    pub fn by(&self, (partition, offset): (i32, i64)) -> Option<i64> {
        let seen = self.0.get(&partition)?;
        let first = seen.partition_point(|(_, next)| *next <= offset);
        seen.get(first).map(|(at, _)| *at)
    }
}

impl Doors {
    /// Looks until the end of the round.
    pub(super) async fn watch(self: Arc<Self>, field: Arc<Field>) {
        let mut session: Option<PgConnection> = None;
        loop {
            wait::until(now_ms() + POLL_MS).await;
            self.look_at_offsets(&field).await;
            if session.is_none() {
                session = self.shop.connect().await;
            }
            let Some(mut sql) = session.take() else { continue };
            let began_at = now_ms();
            let query = sqlx::query_scalar::<_, Uuid>("select id from punctual.outbox");
            let rows = tokio::time::timeout(PATIENCE, query.fetch_all(&mut sql)).await;
            if let Ok(Ok(rows)) = rows {
                self.are_there(&rows.into_iter().collect(), began_at);
                session = Some(sql);
            }
        }
    }

    pub(super) async fn look_at_offsets(&self, field: &Field) {
        let query = "select partition, next from intake_offset where topic = $1";
        let query = sqlx::query_as::<_, (i32, i64)>(query).bind(&self.intake);
        let offsets = tokio::time::timeout(PATIENCE, query.fetch_all(&field.cluster.sql)).await;
        let Ok(Ok(offsets)) = offsets else { return };
        let (mut taken, now) = (self.taken.lock().unwrap(), now_ms());
        offsets.into_iter().for_each(|(partition, next)| taken.note(now, partition, next));
    }

    /// Takes in which rows were there, in a look that began at a moment.
    fn are_there(&self, rows: &HashSet<Uuid>, began_at: i64) {
        let now = now_ms();
        for noted in self.noted.lock().unwrap().iter_mut() {
            let Some(row) = noted.row.filter(|_| noted.is_committed == Some(true)) else {
                continue;
            };
            let is_open = noted.request.taken_by.is_none();
            if is_open && noted.request.ended_at < began_at && !rows.contains(&row) {
                noted.request.taken_by = Some(now);
            }
        }
    }
}
