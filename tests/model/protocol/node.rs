//! The actions of a node: claim, publish, settle, adopt, send heartbeats, declare others dead.

use punctual::domain::Failure;
use punctual::engine::batch_registry::Effect;
use punctual::engine::expiry::Turn;
use punctual::engine::failure::{Circumstances, Remedy, remedy};

use super::decisions::{Other, Standing};
use super::state::{
    ATTEMPTS, BATCHES, Declare, Etcd, Heart, IDENTITIES, Late, Progress, RegistryEntry, State,
    Status, TASKS, bit, each, row_bit, row_of, task_of,
};
use super::{Action, Mistake, Protocol, no_more, to_declare};

impl Protocol {
    /// Returns true when the node is not fenced.
    pub fn may_publish(&self, state: &State, slot: u8) -> bool {
        let node = &state.nodes[usize::from(slot)];
        node.status == Status::Running
            && node.doubt == 0
            && self.decisions.vouches(state.age[usize::from(node.identity)])
    }

    pub fn may_claim(&self, state: &State, slot: u8) -> bool {
        self.may_publish(state, slot)
    }

    pub fn standing(&self, state: &State, slot: u8) -> Standing {
        let own = state.nodes[usize::from(slot)].identity;
        let mut others = [None; IDENTITIES];
        for identity in (0..state.started).filter(|identity| *identity != own) {
            let at = usize::from(identity);
            let node = state.nodes.iter().find(|node| node.identity == identity);
            let is_running = node.is_some_and(|node| node.status == Status::Running);
            let has_key = match state.etcd {
                // A node without a successful heartbeat for a TTL ends the session itself.
                Etcd::Right => is_running && state.age[at] < 2,
                Etcd::Away | Etcd::Empty => false,
                Etcd::Stuck => true,
            };
            others[at] =
                Some(Other { identity, heart: state.db.hearts[at], age: state.age[at], has_key });
        }
        self.decisions.standing(own, state.etcd == Etcd::Away, others)
    }

    pub fn node_actions(&self, state: &State, slot: u8, actions: &mut Vec<Action>) {
        let node = &state.nodes[usize::from(slot)];
        for batch in (0..BATCHES).filter(|batch| node.registry[*batch] == RegistryEntry::InFlight) {
            self.batch_actions(state, slot, batch, actions);
        }
        if node.status != Status::Running {
            return;
        }
        if self.may_claim(state, slot) {
            self.claim_actions(state, slot, actions);
            actions.push(Action::Adopt { slot });
            actions.push(Action::AdoptUnanswered { slot });
        }
        if self.is(Mistake::PublishBeforeTheClaimCommits) {
            let tasks =
                (0..TASKS).filter(|task| self.visible(&state.db) & state.db.rows_of(*task) != 0);
            actions
                .extend(tasks.map(|task| Action::HandOverUncommitted { slot, task: as_u8(task) }));
        }
        actions.extend(
            each(u16::from(node.undone))
                .map(|batch| Action::SettleAgain { slot, batch: as_u8(batch) }),
        );
        actions.extend(
            each(u16::from(node.to_load)).map(|batch| Action::Load { slot, batch: as_u8(batch) }),
        );
        if node.owed != 0 {
            actions.push(Action::InsertOwed { slot });
        }
        if !self.is(Mistake::NoLookForOwnBatches) {
            actions.push(if node.check.is_some() {
                Action::TakeIn { slot }
            } else {
                Action::Ask { slot }
            });
        }
        actions.push(Action::Beat { slot });
        if node.declare.is_some() {
            actions.push(Action::DeclareDead { slot });
        } else {
            let dead = self.standing(state, slot).declare_dead;
            actions.extend(dead.into_iter().map(|identity| Action::Decide { slot, identity }));
        }
    }

    fn claim_actions(&self, state: &State, slot: u8, actions: &mut Vec<Action>) {
        let mine = self.standing(state, slot).mine;
        for (kind, claim) in self.decisions.claims.iter().enumerate() {
            let rows = self.claimable(&state.db, kind, mine);
            if claim.tick == state.tick && rows != 0 {
                let is_hidden = !claim.is_far && rows & !self.visible(&state.db) != 0;
                let kind = as_u8(kind);
                actions.push(match is_hidden {
                    true => Action::ClaimHidden { slot, kind },
                    false => Action::Claim { slot, kind },
                });
                actions.push(Action::ClaimUnanswered { slot, kind });
            }
        }
    }

    fn batch_actions(&self, state: &State, slot: u8, batch: usize, actions: &mut Vec<Action>) {
        let node = &state.nodes[usize::from(slot)];
        let rows = state.db.batches[batch].rows;
        let at = as_u8(batch);
        if each(rows).all(|row| node.progress[batch][task_of(row)].is_outcome()) {
            if node.status == Status::Running {
                actions.push(Action::Settle { slot, batch: at });
                actions.push(Action::SettleUnanswered { slot, batch: at });
            }
            return;
        }
        for row in each(rows) {
            let task = as_u8(task_of(row));
            let progress = node.progress[batch][task_of(row)];
            if progress == Progress::Queued {
                actions.push(Action::Append { slot, batch: at, task });
            }
            if node.status != Status::Running {
                continue;
            }
            match progress {
                Progress::Waiting => {
                    actions.push(Action::HandOver { slot, batch: at, task });
                    if self.scope.times.expires_at.is_some() {
                        actions.push(Action::Expire { slot, batch: at, task });
                    }
                }
                Progress::Queued | Progress::Appended => {
                    actions.push(Action::AcknowledgementLost { slot, batch: at, task });
                    actions.push(Action::ProducerReplaced { slot, batch: at, task });
                    let others: [fn(u8, u8, u8) -> Action; 2] = [
                        |slot, batch, task| Action::NotSent { slot, batch, task },
                        |slot, batch, task| Action::RefusedForGood { slot, batch, task },
                    ];
                    if self.is(Mistake::ExpiryTakesBackWhatWasHandedOver) {
                        actions.push(Action::Expire { slot, batch: at, task });
                    }
                    if progress == Progress::Queued {
                        actions.extend(others.map(|action| action(slot, at, task)));
                    } else {
                        actions.push(Action::Acknowledge { slot, batch: at, task });
                    }
                }
                Progress::Published
                | Progress::Deferred { .. }
                | Progress::Dead
                | Progress::Expired => {}
            }
        }
    }

    pub fn node_step(&self, state: &mut State, action: Action) -> Option<()> {
        match action {
            Action::Claim { slot, kind } | Action::ClaimHidden { slot, kind } => {
                self.claim_step(state, slot, kind, true)
            }
            Action::ClaimUnanswered { slot, kind } => self.claim_step(state, slot, kind, false),
            Action::HandOver { slot, batch, task } => {
                self.hand_over(state, slot, usize::from(batch), usize::from(task))
            }
            Action::Expire { slot, batch, task } => {
                self.expire(state, slot, usize::from(batch), usize::from(task))
            }
            Action::HandOverUncommitted { task, .. } => {
                // The claim is rolled back, but the record is in the topic.
                append(state, usize::from(task));
                state.broken = Some(super::Property::NotClaimed);
                Some(())
            }
            Action::Append { slot, batch, task } => {
                append(state, usize::from(task));
                state.nodes[usize::from(slot)].progress[usize::from(batch)][usize::from(task)] =
                    Progress::Appended;
                Some(())
            }
            Action::Acknowledge { slot, batch, task } => {
                state.nodes[usize::from(slot)].progress[usize::from(batch)][usize::from(task)] =
                    Progress::Published;
                Some(())
            }
            Action::AcknowledgementLost { .. }
            | Action::ProducerReplaced { .. }
            | Action::NotSent { .. }
            | Action::RefusedForGood { .. } => self.fail(state, action),
            Action::Settle { slot, batch } => self.settle_step(state, slot, usize::from(batch)),
            Action::SettleUnanswered { slot, batch } => {
                no_more(&mut state.faults.answers)?;
                let node = &state.nodes[usize::from(slot)];
                let outcomes = self.put_off(node.progress[usize::from(batch)], state.tick);
                let late = Late::Settle { identity: node.identity, batch, outcomes };
                state.late.replace(late).is_none().then_some(())
            }
            Action::SettleAgain { slot, batch } => {
                self.settle_again(state, slot, usize::from(batch))
            }
            Action::InsertOwed { slot } => self.insert_owed(state, slot),
            Action::Ask { slot } => self.ask(state, slot),
            Action::TakeIn { slot } => self.take_in(state, slot),
            Action::Adopt { slot } => self.adopt(state, slot, true),
            Action::AdoptUnanswered { slot } => {
                no_more(&mut state.faults.answers)?;
                self.adopt(state, slot, false)
            }
            Action::Load { slot, batch } => {
                let node = &mut state.nodes[usize::from(slot)];
                node.to_load &= !bit(usize::from(batch));
                let is_own = state.db.unsettled_of(node.identity) >> batch & 1 == 1;
                if is_own && node.registry[usize::from(batch)] == RegistryEntry::None {
                    self.add_in_flight(state, slot, batch, true);
                }
                Some(())
            }
            Action::Beat { slot } => self.beat(state, slot),
            Action::Decide { slot, identity } => {
                state.nodes[usize::from(slot)].declare = Some(to_declare(identity));
                Some(())
            }
            Action::DeclareDead { slot } => {
                let declare = state.nodes[usize::from(slot)].declare.take()?;
                if !declare.is_outdated || self.is(Mistake::DeclareDeadWithoutCounter) {
                    state.db.hearts[usize::from(declare.node)] = Heart::Dead;
                    self.commit(state);
                }
                Some(())
            }
            _ => None,
        }
    }

    fn insert_owed(&self, state: &mut State, slot: u8) -> Option<()> {
        let owed = std::mem::take(&mut state.nodes[usize::from(slot)].owed);
        let due = self.decisions.due_of_follow_up(state.tick);
        for row in each(owed) {
            self.follow_up(&mut state.db, row, false, due);
        }
        self.commit(state);
        Some(())
    }

    fn claim_step(&self, state: &mut State, slot: u8, kind: u8, is_answered: bool) -> Option<()> {
        let (batch, identity) = (state.next_batch, state.nodes[usize::from(slot)].identity);
        state.next_batch += 1;
        if !is_answered {
            no_more(&mut state.faults.answers)?;
            return state
                .late
                .replace(Late::Claim { slot, identity, kind, batch })
                .is_none()
                .then_some(());
        }
        self.claim_now(state, slot, identity, (kind, batch));
        self.add_in_flight(state, slot, batch, false);
        Some(())
    }

    pub fn claim_now(&self, state: &mut State, slot: u8, identity: u8, (kind, batch): (u8, u8)) {
        if usize::from(batch) >= BATCHES {
            return;
        }
        let is_far = self.decisions.claims[usize::from(kind)].is_far;
        let mine = if state.nodes[usize::from(slot)].identity == identity {
            self.standing(state, slot).mine
        } else {
            0b11
        };
        let rows = self.claimable(&state.db, usize::from(kind), mine);
        if rows != 0 {
            self.claim(&mut state.db, identity, usize::from(batch), (rows, is_far));
            self.commit(state);
        }
    }

    /// Takes a batch into a node's memory.
    pub fn add_in_flight(&self, state: &mut State, slot: u8, batch: u8, is_loaded: bool) {
        let at = usize::from(batch);
        if at >= BATCHES {
            return;
        }
        let node = &mut state.nodes[usize::from(slot)];
        node.registry[at] = RegistryEntry::InFlight;
        node.progress[at] = [Progress::Waiting; TASKS];
        node.fresh |= bit(at);
        if is_loaded && !self.is(Mistake::AdoptedIsTakenForFresh) {
            node.maybe_sent |= bit(at);
        }
    }

    fn hand_over(&self, state: &mut State, slot: u8, batch: usize, task: usize) -> Option<()> {
        let found = state.db.batches[batch];
        let row = each(found.rows).find(|row| task_of(*row) == task)?;
        if !self.may_publish(state, slot) || !self.decisions.is_due(state.db.due[row], state.tick) {
            return None;
        }
        let is_published = self.turn_of(state, slot, batch, row) == Turn::Publish;
        if !is_published && !self.is(Mistake::ExpiryIsNotAskedAtTheHandOver) {
            return None;
        }
        let node = &mut state.nodes[usize::from(slot)];
        if found.is_settled || found.owner != node.identity {
            state.broken = Some(super::Property::NotClaimed);
        }
        if !is_published {
            state.broken = Some(super::Property::TooLate);
        }
        node.progress[batch][task] = Progress::Queued;
        Some(())
    }

    /// Ends a task that is too late.
    fn expire(&self, state: &mut State, slot: u8, batch: usize, task: usize) -> Option<()> {
        let found = state.db.batches[batch];
        let row = each(found.rows).find(|row| task_of(*row) == task)?;
        if !self.may_publish(state, slot) || !self.decisions.is_due(state.db.due[row], state.tick) {
            return None;
        }
        let outcome = match self.turn_of(state, slot, batch, row) {
            Turn::Publish => return None,
            Turn::Expire => Progress::Expired,
            Turn::GiveUp => Progress::Dead,
        };
        let progress = &mut state.nodes[usize::from(slot)].progress[batch][task];
        if *progress == Progress::Queued {
            // Only with a mistake.
            state.ghosts[task] += 1;
        }
        *progress = outcome;
        Some(())
    }

    /// Returns what is to be done with a task whose turn has come. Its row tells whether an earlier
    /// one may have been sent, as `task_follow` does.
    fn turn_of(&self, state: &State, slot: u8, batch: usize, row: usize) -> Turn {
        let was_sent = state.nodes[usize::from(slot)].maybe_sent >> batch & 1 == 1;
        let follow = state.db.follow[task_of(row)];
        let was_sent_before = follow.is_some_and(|follow| follow.maybe_sent)
            && !self.is(Mistake::ExpiryForgetsEarlierAttempts);
        self.decisions.turn_of(state.tick, was_sent || was_sent_before)
    }

    /// Handles a record that is not acknowledged. The engine decides how to go on.
    fn fail(&self, state: &mut State, action: Action) -> Option<()> {
        let mut circumstances = Circumstances::default();
        let (failure, slot, batch, task) = match action {
            Action::AcknowledgementLost { slot, batch, task } => {
                (Failure::Unknown, slot, batch, task)
            }
            Action::ProducerReplaced { slot, batch, task } => {
                circumstances.is_blameless = true;
                (Failure::Unknown, slot, batch, task)
            }
            Action::NotSent { slot, batch, task } => (Failure::NotSent, slot, batch, task),
            Action::RefusedForGood { slot, batch, task } => {
                (Failure::RefusedForGood, slot, batch, task)
            }
            _ => return None,
        };
        let (batch, task) = (usize::from(batch), usize::from(task));
        let row = each(state.db.batches[batch].rows).find(|row| task_of(*row) == task)?;
        match failure {
            Failure::Unknown => {
                no_more(&mut state.faults.acknowledgements)?;
                state.excused |= bit(task);
            }
            Failure::RefusedForGood => no_more(&mut state.faults.refusals_for_good)?,
            Failure::NotSent
            | Failure::BatchRefused
            | Failure::Unavailable
            | Failure::Forbidden => no_more(&mut state.faults.refusals)?,
        }
        let was_sent = state.nodes[usize::from(slot)].maybe_sent >> batch & 1 == 1;
        let queued = &mut state.nodes[usize::from(slot)].progress[batch][task];
        if failure == Failure::Unknown && *queued == Progress::Queued {
            // The record may still be on its way.
            state.ghosts[task] += 1;
        }
        let due = self.decisions.due_of_follow_up(state.tick);
        *queued = match remedy(failure, circumstances) {
            Remedy::Alone | Remedy::Later => Progress::Waiting,
            Remedy::GiveUp => Progress::Dead,
            Remedy::Defer if row + 1 >= row_of(task, ATTEMPTS) => return None,
            Remedy::Defer => {
                Progress::Deferred { maybe_sent: was_sent || failure == Failure::Unknown, due }
            }
        };
        if *queued == Progress::Waiting {
            // The record is handed over again, and an earlier attempt may be in the topic.
            state.nodes[usize::from(slot)].maybe_sent |= bit(batch);
        }
        Some(())
    }

    /// Defers tasks to their follow-ups. A follow-up that is overdue is due now.
    pub fn put_off(&self, mut outcomes: [Progress; TASKS], tick: u8) -> [Progress; TASKS] {
        for outcome in &mut outcomes {
            if let Progress::Deferred { due, .. } = outcome {
                *due = self.decisions.due_at_least(*due, tick);
            }
        }
        outcomes
    }

    /// A settle with a follow-up moves the entry of the name, so it waits for the entry's lock. It
    /// also writes `task_follow`, so it waits for a move of the same task, as the settle of a later
    /// row does.
    pub fn waits_for_the_name(
        &self,
        state: &State,
        batch: usize,
        outcomes: &[Progress; TASKS],
    ) -> bool {
        let is_deferred =
            outcomes.iter().any(|outcome| matches!(outcome, Progress::Deferred { .. }));
        let has_entry = state.db.entry.is_some_and(|row| {
            each(state.db.batches[batch].rows).any(|own| task_of(own) == task_of(usize::from(row)))
        });
        let is_being_moved = each(state.db.batches[batch].rows).any(|row| {
            let is_later = row != row_of(task_of(row), 0);
            (is_deferred || is_later) && self.is_being_moved(state, task_of(row))
        });
        is_deferred && has_entry && self.is_locked(state) || is_being_moved
    }

    fn settle_step(&self, state: &mut State, slot: u8, batch: usize) -> Option<()> {
        let at = usize::from(slot);
        let outcomes = self.put_off(state.nodes[at].progress[batch], state.tick);
        if self.waits_for_the_name(state, batch, &outcomes) {
            return None;
        }
        let before = state.db;
        // A refused settle is retried.
        let is_done = self.settle(&mut state.db, state.nodes[at].identity, batch, outcomes).ok()?;
        if is_done {
            state.undo.get_or_insert(before);
            self.owe(state, at, batch, &outcomes);
        }
        // The batch was settled before by the node, with a settle whose answer was lost.
        let is_in_doubt = state.db.batches[batch].owner == state.nodes[at].identity;
        let is_forgotten = self.is(Mistake::SettleForgottenAtItsAnswer)
            || Effect::of(is_done, is_in_doubt) == Effect::None;
        let node = &mut state.nodes[at];
        node.registry[batch] =
            if is_forgotten { RegistryEntry::None } else { RegistryEntry::Settled };
        node.progress[batch] = outcomes;
        node.fresh |= bit(batch);
        Some(())
    }

    pub fn owe(&self, state: &mut State, slot: usize, batch: usize, outcomes: &[Progress; TASKS]) {
        if self.is(Mistake::FollowUpOutsideTheSettle) {
            let is_deferred =
                |row: &usize| matches!(outcomes[task_of(*row)], Progress::Deferred { .. });
            let owed = each(state.db.batches[batch].rows)
                .filter(is_deferred)
                .fold(0, |all, row| all | row_bit(row));
            state.nodes[slot].owed |= owed;
        }
    }

    /// Repeats a settle that a crash of Postgres undid.
    fn settle_again(&self, state: &mut State, slot: u8, batch: usize) -> Option<()> {
        let at = usize::from(slot);
        let known = state.nodes[at].progress[batch];
        let outcomes = if self.is(Mistake::SettleRepeatedAsItWas) {
            known
        } else {
            self.put_off(known, state.tick)
        };
        if self.waits_for_the_name(state, batch, &outcomes) {
            return None;
        }
        let before = state.db;
        let node = &mut state.nodes[at];
        node.undone &= !bit(batch);
        let identity = node.identity;
        if let Ok(is_done) = self.settle(&mut state.db, identity, batch, outcomes) {
            if is_done {
                state.undo.get_or_insert(before);
            }
            if state.nodes[at].registry[batch] != RegistryEntry::None {
                state.nodes[at].registry[batch] = RegistryEntry::Settled;
                state.nodes[at].fresh |= bit(batch);
            }
        }
        Some(())
    }

    fn adopt(&self, state: &mut State, slot: u8, is_answered: bool) -> Option<()> {
        let identity = state.nodes[usize::from(slot)].identity;
        let adopted = self.adoptable(&state.db, identity);
        for batch in each(u16::from(adopted)) {
            let owner = state.db.batches[batch].owner;
            if !state.db.has_live_heart(owner) {
                each(state.db.batches[batch].rows)
                    .for_each(|row| state.excused |= bit(task_of(row)));
            }
            state.db.batches[batch].owner = identity;
        }
        if adopted == 0 {
            return None;
        }
        self.commit(state);
        if is_answered {
            let node = &mut state.nodes[usize::from(slot)];
            node.to_load |= adopted;
            // Settles from before another node had the batch are void.
            for batch in each(u16::from(adopted)) {
                let registered = &mut node.registry[batch];
                *registered = if *registered == RegistryEntry::InFlight {
                    RegistryEntry::InFlight
                } else {
                    RegistryEntry::None
                };
            }
        }
        Some(())
    }

    fn beat(&self, state: &mut State, slot: u8) -> Option<()> {
        let identity = usize::from(state.nodes[usize::from(slot)].identity);
        let was_dead = state.db.hearts[identity] == Heart::Dead;
        let is_in_doubt = was_dead || !self.decisions.vouches(state.age[identity]);
        state.db.hearts[identity] = Heart::Alive;
        state.age[identity] = 0;
        self.commit(state);
        for node in &mut state.nodes {
            if let Some(Declare { node, is_outdated }) = &mut node.declare
                && usize::from(*node) == identity
            {
                *is_outdated = true;
            }
        }
        let node = &mut state.nodes[usize::from(slot)];
        if is_in_doubt && !self.is(Mistake::ZombieDoesNotAsk) {
            node.doubt = if node.check.is_some() { 2 } else { 1 };
        }
        for registered in
            node.registry.iter_mut().filter(|registered| **registered == RegistryEntry::Settled)
        {
            *registered = RegistryEntry::Durable;
        }
        Some(())
    }
}

pub fn append(state: &mut State, task: usize) {
    state.sent[task] = (state.sent[task] + 1).min(2);
}

pub fn drop_batch(state: &mut State, slot: usize, batch: usize) {
    for task in 0..TASKS {
        if state.nodes[slot].progress[batch][task] == Progress::Queued {
            state.ghosts[task] = (state.ghosts[task] + 1).min(2);
        }
    }
    let node = &mut state.nodes[slot];
    node.registry[batch] = RegistryEntry::None;
    node.progress[batch] = [Progress::Waiting; TASKS];
    node.maybe_sent &= !bit(batch);
}

pub fn as_u8(number: usize) -> u8 {
    u8::try_from(number).unwrap()
}
