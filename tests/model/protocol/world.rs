//! Faults of nodes and servers, and statements that take effect after their caller has given up.

use super::node::{append, as_u8, drop_batch};
use super::state::{
    BATCHES, Etcd, Heart, IDENTITIES, Late, NOBODY, RegistryEntry, SLOTS, State, Status, TASKS,
};
use super::{Action, Protocol, no_more, node_of, started};

impl Protocol {
    pub fn world_actions(&self, state: &State, actions: &mut Vec<Action>) {
        for slot in 0..2 {
            match state.nodes[usize::from(slot)].status {
                Status::Running => actions.extend([Action::Crash { slot }, Action::Pause { slot }]),
                Status::Paused => actions.push(Action::Wake { slot }),
                Status::Down => actions.push(Action::Restart { slot }),
            }
        }
        for identity in 0..state.started {
            let is_running = state
                .nodes
                .iter()
                .any(|node| node.identity == identity && node.status == Status::Running);
            actions.push(if is_running {
                Action::AgeOfTheLiving { identity }
            } else {
                Action::Age { identity }
            });
        }
        actions.extend(
            (0..TASKS)
                .filter(|task| state.ghosts[*task] > 0)
                .map(|task| Action::AppendOfTheDead { task: as_u8(task) }),
        );
        if state.late.is_some() {
            actions.extend([Action::LateCommit, Action::LateAbort]);
        }
        if state.undo.is_some() {
            actions.push(Action::PostgresCrash);
        }
        actions.extend([Etcd::Right, Etcd::Away, Etcd::Empty, Etcd::Stuck].map(Action::Etcd));
    }

    pub fn world_step(&self, state: &mut State, action: Action) -> Option<()> {
        match action {
            Action::Age { identity } | Action::AgeOfTheLiving { identity } => {
                let at = usize::from(identity);
                if matches!(action, Action::AgeOfTheLiving { .. }) && state.age[at] == 0 {
                    no_more(&mut state.faults.heartbeats)?;
                }
                if state.age[at] == 3 || state.db.hearts[at] != Heart::Alive {
                    return None;
                }
                let may_wake = state.nodes.iter().any(|node| node.identity == identity);
                state.age[at] = if may_wake { state.age[at] + 1 } else { state.age[at].max(1) + 1 };
                Some(())
            }
            Action::Crash { slot } => {
                no_more(&mut state.faults.nodes)?;
                let slot = usize::from(slot);
                (0..BATCHES)
                    .filter(|batch| state.nodes[slot].registry[*batch] == RegistryEntry::InFlight)
                    .collect::<Vec<_>>()
                    .into_iter()
                    .for_each(|batch| {
                        drop_batch(state, slot, batch);
                    });
                state.nodes[slot] = node_of(NOBODY, Status::Down);
                self.retirer_is_gone(state, slot);
                Some(())
            }
            Action::Pause { slot } => {
                no_more(&mut state.faults.nodes)?;
                state.nodes[usize::from(slot)].status = Status::Paused;
                Some(())
            }
            Action::Wake { slot } => {
                state.nodes[usize::from(slot)].status = Status::Running;
                Some(())
            }
            Action::Restart { slot } => {
                if usize::from(state.started) >= IDENTITIES {
                    return None;
                }
                state.nodes[usize::from(slot)] = started(state.started);
                state.db.hearts[usize::from(state.started)] = Heart::Alive;
                state.started += 1;
                self.commit(state);
                Some(())
            }
            Action::AppendOfTheDead { task } => {
                no_more(&mut state.ghosts[usize::from(task)])?;
                append(state, usize::from(task));
                Some(())
            }
            Action::LateCommit => self.late_commit(state),
            Action::LateAbort => state.late.take().map(drop),
            Action::PostgresCrash => {
                no_more(&mut state.faults.postgres)?;
                state.db = state.undo.take()?;
                Some(())
            }
            Action::Etcd(view) => {
                if view != Etcd::Right {
                    no_more(&mut state.faults.etcd)?;
                }
                state.etcd = view;
                Some(())
            }
            _ => None,
        }
    }

    fn late_commit(&self, state: &mut State) -> Option<()> {
        match state.late.take()? {
            Late::Claim { slot, identity, kind, batch } => {
                self.claim_now(state, slot, identity, (kind, batch))
            }
            Late::Submit { task, is_far } => self.accept(state, usize::from(task), is_far)?,
            Late::SubmitClaimed { task, identity, batch } => {
                self.insert_claimed(state, usize::from(task), identity, batch)
            }
            Late::Settle { identity, batch, outcomes } => {
                let batch = usize::from(batch);
                if self.waits_for_the_name(state, batch, &outcomes) {
                    return None;
                }
                let before = state.db;
                if self.settle(&mut state.db, identity, batch, outcomes) == Ok(true) {
                    state.undo.get_or_insert(before);
                    let slot = (0..SLOTS).find(|slot| state.nodes[*slot].identity == identity);
                    slot.into_iter().for_each(|slot| self.owe(state, slot, batch, &outcomes));
                }
            }
        }
        Some(())
    }
}
