//! Maintenance: far tasks are moved to their leaf, and the leaf whose time has passed is retired,
//! step by step. See `postgres::partitions::mover` and `postgres::partitions::retire`.

use super::state::{Leaf, Retirer, Rows, State, Status, each, row_bit};
use super::{Action, Mistake, Protocol};

impl Protocol {
    pub fn leaf_actions(&self, state: &State, slot: u8, actions: &mut Vec<Action>) {
        let status = state.nodes[usize::from(slot)].status;
        if status == Status::Paused && is_of(state.retirer, slot) {
            // The server continues a detach whose node is paused, and ends a session that has been
            // silent for long.
            let is_detaching = state.db.leaf == Leaf::Detaching;
            actions.push(if is_detaching {
                Action::DetachEnds { slot }
            } else {
                Action::LockExpires { slot }
            });
        }
        if status != Status::Running {
            return;
        }
        if self.movable(state) != 0 {
            actions.push(Action::Move { slot });
        }
        if !self.scope.retires {
            return;
        }
        match (state.db.leaf, state.retirer) {
            (Leaf::Attached, Retirer::Nobody) if self.decisions.is_leaf_past(state.tick) => {
                actions.push(Action::Prepare { slot })
            }
            (Leaf::Attached, Retirer::Prepared(by)) if by == slot => {
                actions.push(Action::DetachBegins { slot })
            }
            (Leaf::Detaching, Retirer::Detaching(by)) if by == slot => {
                actions.push(Action::DetachEnds { slot })
            }
            (Leaf::Detaching, Retirer::Nobody) => actions.push(Action::Finalize { slot }),
            (Leaf::Orphan, Retirer::Nobody) => actions.push(Action::DropOrKeep { slot }),
            (Leaf::Orphan, Retirer::Holding(by)) if by == slot => {
                actions.push(Action::DropOrKeep { slot })
            }
            _ => {}
        }
    }

    /// Returns the far rows whose leaf exists by now.
    pub fn movable(&self, state: &State) -> Rows {
        let dues = self.decisions.movable(state.tick);
        each(state.db.far)
            .filter(|row| dues >> state.db.due[*row] & 1 == 1)
            .fold(0, |all, row| all | row_bit(row))
    }

    pub fn leaf_step(&self, state: &mut State, action: Action) -> Option<()> {
        match action {
            Action::Move { .. } => {
                let rows = self.movable(state);
                let is_hidden = state.db.leaf != Leaf::Attached
                    && each(rows).any(|row| self.decisions.is_in_leaf(state.db.due[row]));
                if is_hidden {
                    return None;
                }
                state.db.near |= rows;
                if !self.is(Mistake::MoveWithoutDelete) {
                    state.db.far &= !rows;
                }
                self.commit(state);
            }
            Action::Prepare { slot } => {
                if self.in_leaf(&state.db) != 0 {
                    return None;
                }
                state.retirer = Retirer::Prepared(slot);
            }
            Action::DetachBegins { slot } => {
                let is_stepwise = self.scope.is_stepwise;
                state.db.leaf = if is_stepwise { Leaf::Detaching } else { Leaf::Orphan };
                state.retirer =
                    if is_stepwise { Retirer::Detaching(slot) } else { Retirer::Holding(slot) };
                self.commit(state);
            }
            Action::DetachEnds { slot } | Action::Finalize { slot } => {
                state.db.leaf = Leaf::Orphan;
                state.retirer = Retirer::Holding(slot);
                self.commit(state);
            }
            Action::LockExpires { .. } => {
                if self.is(Mistake::FrozenRetirerKeepsItsLock) {
                    return None;
                }
                state.retirer = Retirer::Nobody;
            }
            Action::DropOrKeep { .. } => {
                let rows = self.in_leaf(&state.db);
                if rows != 0 && !self.is(Mistake::RetireWithoutSecondLook) {
                    state.db.leaf = Leaf::Attached;
                } else {
                    state.db.leaf = Leaf::Dropped;
                    state.db.near &= !rows;
                }
                state.retirer = Retirer::Nobody;
                self.commit(state);
            }
            _ => return None,
        }
        Some(())
    }

    /// The lock of a retirer ends with its session.
    pub fn retirer_is_gone(&self, state: &mut State, slot: usize) {
        if (0..2).any(|by| usize::from(by) == slot && is_of(state.retirer, by)) {
            state.retirer = Retirer::Nobody;
        }
    }
}

fn is_of(retirer: Retirer, slot: u8) -> bool {
    use Retirer::{Detaching, Holding, Prepared};
    matches!(retirer, Prepared(by) | Detaching(by) | Holding(by) if by == slot)
}
