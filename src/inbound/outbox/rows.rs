//! Carries out the rows of a turn: skips those that are stored, checks the others, and stores their
//! tasks in waves.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use uuid::Uuid;

use super::waits::WaitingRows;
use super::waves::{self, Place};
use crate::access::{Caller, Policy};
use crate::api::inbound::{Reader, Refused, row};
use crate::clock;
use crate::domain::task::outbox_row::{ClockOffset, OutboxRow, RejectedRow};
use crate::domain::{Monotonic, TaskName, TopicName};
use crate::failpoint::{Failpoint, reach};
use crate::inbound::carrier::{Carried, Carrier, Change, Item, NewItem, Stop};
use crate::postgres::inbound::{Epoch, ItemKey, StorePrecondition};

/// How long a turn checks rows at least, and then stores them at least.
const STEP_MIN: Duration = Duration::from_secs(5);

/// The names, each with its topic, of rows that this turn has refused. A refusal is durable only
/// when the row is deleted. If the turn ends before that, the next one decides again, perhaps
/// otherwise. So later rows of the name wait for the next turn.
type RefusedNames = HashSet<(String, String)>;

impl Carrier {
    /// Carries out rows in their order, and returns those that wait. No piece of work begins after
    /// `until`: the rows that are left then are in [`Carried::left`].
    pub(super) async fn carry_out_rows(
        &mut self,
        epoch: Epoch,
        rows: Vec<OutboxRow>,
        offset: ClockOffset,
        until: Monotonic,
    ) -> Result<(Carried, WaitingRows), Stop> {
        let policy = self.policy.current();
        let caller = self.caller(&policy)?;
        let mut carried = Carried::new(self.begin_turn(&caller)?);
        let whose = (&*policy, &caller);
        let outcome = self.carry_out_with((epoch, until), (rows, offset), whose, &mut carried);
        let outcome = outcome.await;
        // The waves before a failure are stored.
        std::mem::take(&mut carried.turn).end().await;
        outcome.map(|waiting| (carried, waiting))
    }

    async fn carry_out_with(
        &mut self,
        (epoch, until): (Epoch, Monotonic),
        (rows, offset): (Vec<OutboxRow>, ClockOffset),
        whose: (&Policy, &Caller),
        carried: &mut Carried,
    ) -> Result<WaitingRows, Stop> {
        let rows = self.unseen(epoch, rows, carried).await?;
        let mut waiting = WaitingRows::default();
        let mut refused = RefusedNames::default();
        let outcome = (&mut *carried, &mut waiting, &mut refused);
        // Each turn gets on, however long the steps before took.
        let at_least = |until: Monotonic| until.max(clock::monotonic().plus(STEP_MIN));
        let items = self.checked_rows((rows, offset), whose, at_least(until), outcome).await?;
        carried.until = Some(at_least(until));
        let precondition = &mut StorePrecondition::Rows(epoch);
        let hashes = RandomState::new();
        for stretch in waves::stretches(items, |item| item.name().is_none() && item.is_answer()) {
            for wave in waves::divide(stretch, |item| place_of(item, &hashes)) {
                self.store_wave(precondition, wave, (&mut *carried, &mut refused)).await?;
                reach(Failpoint::OutboxStored);
            }
        }
        Ok(waiting)
    }

    /// Returns the rows that are not stored yet.
    async fn unseen(
        &mut self,
        epoch: Epoch,
        rows: Vec<OutboxRow>,
        carried: &mut Carried,
    ) -> Result<Vec<OutboxRow>, Stop> {
        let ids: Vec<Uuid> = rows.iter().map(|row| row.id).collect();
        let mut taken = self.store.seen(epoch, &ids).await?;
        let mut unseen = Vec::with_capacity(rows.len());
        for row in rows {
            match taken.get(&row.id) {
                Some(seq) if *seq == row.seq => {}
                Some(seq) => {
                    let reason = format!("id: the row {seq} has the same id");
                    carried.rejected.push(RejectedRow { seq: row.seq, status: 400, reason });
                }
                None => {
                    taken.insert(row.id, row.seq);
                    unseen.push(row);
                }
            }
        }
        Ok(unseen)
    }

    /// Checks rows as REST checks requests. Refused rows, those that wait, and those that are left
    /// at `until` are kept apart.
    async fn checked_rows(
        &self,
        (rows, offset): (Vec<OutboxRow>, ClockOffset),
        (policy, caller): (&Policy, &Caller),
        until: Monotonic,
        (carried, waiting, refused_names): (&mut Carried, &mut WaitingRows, &mut RefusedNames),
    ) -> Result<Vec<Item>, Stop> {
        let reader = Reader { policy, caller, arrived_at: self.service.arrival() };
        let mut checked: Vec<(String, Item)> = Vec::with_capacity(rows.len());
        for row in rows {
            let key = ItemKey { id: row.id, seq: row.seq };
            if clock::monotonic() >= until {
                carried.left.push(key.seq);
                continue;
            }
            let name = row.name.as_ref().map(|name| (row.topic.clone(), name.clone()));
            if name.as_ref().is_some_and(|name| refused_names.contains(name)) {
                carried.held.push(key.seq);
                continue;
            }
            let request = match row::read(&row, row.due_at(offset), reader) {
                Ok(request) => request,
                Err(refused) => {
                    carried.refuse(key, refused)?;
                    refused_names.extend(name);
                    continue;
                }
            };
            if waiting.takes(&row.topic, key.seq) {
                continue;
            }
            match self.change_of(request, (caller, reader.arrived_at)).await {
                Ok(change) => checked.push((row.topic, Item { key, change })),
                Err(Refused::TopicDenied { reason } | Refused::ForNow { reason }) => {
                    waiting.add(&row.topic, key.seq, reason)
                }
                Err(refused) => {
                    carried.refuse(key, refused)?;
                    refused_names.extend(name);
                }
            }
        }
        // Only what can be stored is charged, so that what waits costs its caller nothing.
        let records = checked.iter().filter_map(|(_topic, item)| item.record());
        if self.charge(caller, records).is_err() {
            checked.retain(|(topic, item)| self.is_within_limits(caller, (topic, item), waiting));
        }
        Ok(checked
            .into_iter()
            .map(|(topic, item)| {
                waiting.goes_on(topic);
                item
            })
            .collect())
    }

    /// Charges one item. It waits if a limit is reached, or if an earlier one of its topic waits.
    fn is_within_limits(
        &self,
        caller: &Caller,
        (topic, item): (&str, &Item),
        waiting: &mut WaitingRows,
    ) -> bool {
        if waiting.takes(topic, item.key.seq) {
            return false;
        }
        match self.charge(caller, item.record().into_iter()) {
            Ok(()) => true,
            Err(stop) => {
                waiting.add(topic, item.key.seq, stop.reason().to_owned());
                false
            }
        }
    }

    async fn store_wave(
        &mut self,
        precondition: &mut StorePrecondition,
        wave: Vec<Item>,
        (carried, refused): (&mut Carried, &mut RefusedNames),
    ) -> Result<(), Stop> {
        let name_of = |item: &Item| {
            item.name().map(|(topic, name)| (topic.as_str().to_owned(), name.as_str().to_owned()))
        };
        let is_held = |item: &Item| name_of(item).is_some_and(|name| refused.contains(&name));
        let (held, wave): (Vec<Item>, Vec<Item>) = wave.into_iter().partition(is_held);
        carried.held.extend(held.iter().map(|item| item.key.seq));
        let names: Vec<(i64, (String, String))> =
            wave.iter().filter_map(|item| Some((item.key.seq, name_of(item)?))).collect();
        let before = carried.rejected.len();
        self.store_items(precondition, wave, carried).await?;
        let is_refused = |seq: i64| carried.rejected[before..].iter().any(|row| row.seq == seq);
        refused.extend(names.into_iter().filter(|(seq, _)| is_refused(*seq)).map(|(_, name)| name));
        Ok(())
    }

    async fn store_items(
        &mut self,
        precondition: &mut StorePrecondition,
        wave: Vec<Item>,
        carried: &mut Carried,
    ) -> Result<(), Stop> {
        if carried.is_over() {
            carried.left.extend(wave.iter().map(|item| item.key.seq));
            return Ok(());
        }
        let (mut submits, mut answers, mut others) = (Vec::new(), Vec::new(), Vec::new());
        for Item { key, change } in wave {
            match change {
                Change::Submit(task) => submits.push(NewItem { key, task }),
                Change::Answer(answer) => answers.push((key, answer)),
                change => others.push(Item { key, change }),
            }
        }
        self.submit(precondition, submits, carried).await?;
        if !answers.is_empty() {
            self.answer(precondition, answers, carried).await?;
        }
        for item in others {
            if carried.is_over() {
                carried.left.push(item.key.seq);
                continue;
            }
            self.store_one(precondition, item, carried).await?;
        }
        Ok(())
    }
}

/// Returns what an item may not overtake. The submits of a wave are stored first.
fn place_of(item: &Item, hashes: &RandomState) -> Place<(TopicName, TaskName)> {
    let key = item.record().and_then(|record| Some((&record.topic, record.key.as_ref()?)));
    Place {
        name: item.name(),
        key: key.map(|key| hashes.hash_one(key)),
        is_late: !matches!(item.change, Change::Submit(_)),
    }
}
