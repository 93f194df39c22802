//! The calls of callers on stored tasks: moves, cancels and PUTs.

use punctual::domain::{Precondition, SubmitOrder, TaskState};
use punctual::postgres::tasks::replace::Replacement;
use punctual::postgres::tasks::replace::reschedule::{NewPlace, Rescheduling};

use super::super::protocol::Protocol;
use super::super::protocol::state::{Put, State, row_of, task_of};
use super::World;

impl World {
    pub(super) async fn reschedule(&mut self, protocol: &Protocol, state: &State, next: &State) {
        let first = self.id(protocol, row_of(0, 0), 0);
        let row = state.db.follow[0].map_or(row_of(0, 0), |follow| usize::from(follow.row));
        let due = protocol.due_of_move(state);
        let to = self.id(protocol, row + 1, due);
        let place = NewPlace {
            due_at: to.due_at(),
            is_far: next.db.far >> (row + 1) & 1 == 1,
            position: SubmitOrder::default().next(to.due_at(), to.due_at(), 0),
            random: self.trace << 8 | u64::try_from(row + 1).unwrap(),
        };
        let done = self.replaces.reschedule(first, None, place).await.unwrap();
        let is_moved = matches!(done, Rescheduling::Moved { row, .. } if row == to);
        assert_eq!(is_moved, state.moved_to != next.moved_to, "move: {done:?}");
    }

    pub(super) async fn cancel(&mut self, protocol: &Protocol, state: &State, next: &State) {
        let first = self.id(
            protocol,
            row_of(usize::from(protocol.scope.cancels.unwrap()), 0),
            protocol.scope.cancels.unwrap(),
        );
        let (cancelled, outcome) = self.canceller.cancel_group(&[(first, None)]).await;
        outcome.unwrap();
        assert_eq!(
            cancelled[0].is_some(),
            state.db.cancelled != next.db.cancelled,
            "the verdict of a cancel"
        );
    }

    pub(super) async fn put(
        &mut self,
        protocol: &Protocol,
        (state, next): (&State, &State),
        put: usize,
    ) {
        let over = match state.puts[put] {
            Put::Again { over, .. } => {
                over.map(|row| self.id(protocol, usize::from(row), state.db.due[usize::from(row)]))
            }
            _ => None,
        };
        let new = self.new_task(protocol, put + 1);
        let is_far = next.db.far & !state.db.far != 0;
        let done =
            self.replaces.replace(&new, is_far, over, &Precondition::default()).await.unwrap();
        let is_as_expected = match done {
            Replacement::Created => {
                next.puts[put] == Put::Done && next.db.cancelled == state.db.cancelled
            }
            Replacement::Replaced => {
                next.puts[put] == Put::Done && next.db.cancelled != state.db.cancelled
            }
            Replacement::Gone(_) => matches!(next.puts[put], Put::Gone { .. }),
            Replacement::Overtaken | Replacement::Unmet(_) => false,
        };
        assert!(is_as_expected, "{done:?} is not {:?}", next.puts[put]);
    }

    pub(super) async fn verdict(
        &mut self,
        protocol: &Protocol,
        (state, next): (&State, &State),
        put: usize,
    ) {
        let Put::Gone { row, .. } = state.puts[put] else { panic!("no verdict was asked for") };
        let task = task_of(usize::from(row));
        let view = self
            .look_up
            .task(self.id(protocol, row_of(task, 0), u8::try_from(task).unwrap()))
            .await
            .unwrap();
        let is_final = view.as_ref().is_none_or(|view| {
            matches!(view.state, TaskState::Published | TaskState::Cancelled | TaskState::Dead)
        });
        assert_eq!(
            is_final,
            matches!(next.puts[put], Put::Again { over: Some(_), .. }),
            "{view:?}"
        );
    }
}
