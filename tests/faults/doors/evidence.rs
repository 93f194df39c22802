//! Completes the history of the doors at the end of a round.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::asking::Asker;
use super::{Doors, Noted};
use crate::door_history::{Door, Rejection};
use crate::field::Field;
use crate::history::{Call, CallKind, CallVerdict, History, Outcome};
use crate::support::ledger::SERIAL_HEADER;
use crate::support::wait::look_for;
use crate::support::{Consumer, Record};
use crate::traffic::{Ledger, Load};

/// How long the nodes may take for what is written when all servers are up again.
const TAKE_DEADLINE: Duration = Duration::from_secs(120);
const MARKER_DEADLINE: Duration = Duration::from_secs(60);

fn serial_of(record: &Record) -> Option<u64> {
    std::str::from_utf8(record.header(SERIAL_HEADER)?).ok()?.parse().ok()
}

impl Doors {
    /// Finds out what was committed, and waits until all of it was taken.
    pub async fn finish(&self, field: &Field, load: &Load, ledger: &Arc<Ledger>) {
        let places = self.read_intake(load, ledger).await;
        let orders: HashSet<i64> = self.shop.committed().await.into_iter().collect();
        for noted in self.noted.lock().unwrap().iter_mut() {
            let serial = noted.request.serial;
            noted.request.is_committed = match noted.request.door {
                Door::Sql => orders.contains(&i64::try_from(serial).unwrap()),
                Door::Record => places.contains_key(&serial),
            };
            let told = noted.is_committed;
            if told.is_some_and(|told| told != noted.request.is_committed) {
                let what = format!("the runner was told {told:?}, and {:?}", noted.request);
                self.left.lock().unwrap().push(what);
            }
        }
        self.wait_taken(field, &places).await;
        self.watching.lock().unwrap().iter().for_each(tokio::task::JoinHandle::abort);
        let taken = self.taken.lock().unwrap();
        for noted in self.noted.lock().unwrap().iter_mut() {
            if let Some(place) = places.get(&noted.request.serial) {
                noted.request.taken_by = taken.by(*place);
            }
        }
    }

    /// Reads the intake topic up to a record that is written to each partition now. Returns the
    /// places of committed records.
    async fn read_intake(&self, load: &Load, ledger: &Arc<Ledger>) -> HashMap<u64, (i32, i64)> {
        let mut asker = Asker::new(Door::Record, u64::MAX >> 1, load, ledger);
        let count = self.partition_count();
        let id = format!("{}-{}", self.intake, rand::random::<u32>());
        let markers = look_for(MARKER_DEADLINE, async || {
            let producer = self.producer(&id).await?;
            let asked: Vec<_> = (0..count).map(|place| asker.marker(place)).collect();
            let serials: Vec<u64> = asked.iter().map(|asked| asked.serial).collect();
            let (producer, is_certain) =
                self.write_transaction(producer, asked, (true, count)).await;
            (producer.is_some() && is_certain).then_some(serials)
        });
        let markers = markers.await.expect("Kafka takes the last records of the intake topic");
        let consumer = Consumer::start(&self.kafka, &self.intake, i32::try_from(count).unwrap());
        let what = "the intake topic is read to its end";
        let records = consumer.wait_for(what, MARKER_DEADLINE, |records| {
            let found: HashSet<u64> = records.iter().filter_map(serial_of).collect();
            markers.iter().all(|marker| found.contains(marker))
        });
        let records = records.await;
        let placed = records
            .iter()
            .filter_map(|record| Some((serial_of(record)?, (record.partition, record.offset))));
        placed.collect()
    }

    /// Waits until the outbox is empty, the offsets are behind all records, and all rejected
    /// records are written.
    async fn wait_taken(&self, field: &Field, places: &HashMap<u64, (i32, i64)>) {
        let mut left = Vec::new();
        let taken = look_for(TAKE_DEADLINE, async || {
            self.look_at_offsets(field).await;
            left = self.not_taken(field, places).await;
            left.is_empty().then_some(())
        });
        if taken.await.is_none() {
            self.left.lock().unwrap().extend(left);
        }
    }

    async fn not_taken(&self, field: &Field, places: &HashMap<u64, (i32, i64)>) -> Vec<String> {
        let mut left = Vec::new();
        let query = "select count(*) from intake_rejected where is_waiting";
        match sqlx::query_scalar::<_, i64>(query).fetch_one(&field.cluster.sql).await {
            Ok(0) => {}
            waiting => left.push(format!("rejected records are not written: {waiting:?}")),
        }
        {
            let taken = self.taken.lock().unwrap();
            let records = places.values().filter(|place| taken.by(**place).is_none()).count();
            if records > 0 {
                left.push(format!("{records} records of the intake topic are not taken"));
            }
        }
        match self.shop.connect().await {
            None => left.push("the shop does not answer".to_owned()),
            Some(mut sql) => {
                let rows = sqlx::query_scalar::<_, i64>("select count(*) from punctual.outbox");
                match rows.fetch_one(&mut sql).await {
                    Ok(0) => {}
                    rows => left.push(format!("the outbox is not empty: {rows:?}")),
                }
            }
        }
        left
    }

    /// Adds all that came through the doors.
    pub async fn add_to(&self, history: &mut History) {
        let mut doors = crate::door_history::Doors {
            rejections: self.rejections().await,
            left: std::mem::take(&mut self.left.lock().unwrap()),
            kills_at_store: self.kills_at_store.load(Ordering::Relaxed),
            ..Default::default()
        };
        let rejected: HashSet<u64> =
            doors.rejections.iter().map(|rejection| rejection.serial).collect();
        for Noted { request, submit, .. } in std::mem::take(&mut *self.noted.lock().unwrap()) {
            if let Some(mut submit) = submit {
                if !request.is_committed {
                    submit.outcome = Outcome::Refused { why: "rolled back".to_owned() };
                }
                history.submits.push(submit);
            }
            if let Some((id, attempt)) = request.finishes.filter(|_| request.is_committed) {
                let is_rejected = rejected.contains(&request.serial);
                let verdict = match request.taken_by {
                    _ if is_rejected => CallVerdict::NotTaken { why: "rejected".to_owned() },
                    Some(_) => CallVerdict::Finished { in_flight: true },
                    None => CallVerdict::Unknown { why: "not seen".to_owned() },
                };
                history.calls.push(Call {
                    node: 0,
                    sent_at: request.sent_at,
                    answered_at: request.taken_by.unwrap_or(request.ended_at),
                    id,
                    attempt: Some(attempt),
                    kind: CallKind::Finish,
                    verdict,
                });
            }
            doors.requests.push(request);
        }
        history.doors = doors;
    }

    /// Returns all rejections.
    async fn rejections(&self) -> Vec<Rejection> {
        let mut rejections = self.shop.rejections().await;
        let wanted: HashSet<u64> = {
            let noted = self.noted.lock().unwrap();
            let wrong = noted.iter().map(|noted| &noted.request).filter(|request| {
                request.is_wrong && request.is_committed && request.door == Door::Record
            });
            wrong.map(|request| request.serial).collect()
        };
        // If one is missing, the oracle reports it.
        let _arrived = look_for(MARKER_DEADLINE, async || {
            let found: HashSet<u64> =
                self.rejected.records().iter().filter_map(serial_of).collect();
            wanted.is_subset(&found).then_some(())
        })
        .await;
        for record in self.rejected.records() {
            let reason = record.header("punctual-rejected-reason").unwrap_or_default();
            rejections.push(Rejection {
                serial: serial_of(&record).unwrap_or_default(),
                reason: String::from_utf8_lossy(reason).into_owned(),
            });
        }
        rejections
    }
}
