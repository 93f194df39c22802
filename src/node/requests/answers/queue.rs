//! The queue of answers that wait for their statement, and its fair shares.

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

use crate::domain::{Monotonic, PrincipalName};
use crate::node::messages::Unavailable;
use crate::node::requests::group_commit::shares::{Share, Shares};
use crate::postgres::tasks::answers::{AnswerCall, Answered};
use crate::telemetry::{CountGuard, Gauge};

/// The result of a call. `None` when the call found no such task.
pub type Reply = Result<Option<Answered>, Unavailable>;

/// The holder of a share of the queue.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Holder {
    Principal(PrincipalName),
    /// All callbacks of the node. They repeat a refused answer, and act for no caller.
    Callbacks,
}

/// A call that waits for its statement.
#[derive(Debug)]
pub struct AnswerRequest {
    pub call: AnswerCall,
    pub reply: oneshot::Sender<Reply>,
    _share: Share<Holder>,
    _shown: CountGuard,
}

/// The queue. Cheap to clone.
#[derive(Clone, Debug)]
pub struct AnswerQueue {
    sender: mpsc::Sender<AnswerRequest>,
    shares: Shares<Holder>,
    /// Shows the calls that wait.
    waiting: Gauge,
}

impl AnswerQueue {
    /// Makes a queue in which `calls_max` calls may wait.
    pub fn new(calls_max: usize, waiting: Gauge) -> (Self, mpsc::Receiver<AnswerRequest>) {
        let (sender, receiver) = mpsc::channel(calls_max.max(1));
        (Self { sender, shares: Shares::new(calls_max), waiting }, receiver)
    }

    /// Puts a call into the queue. Returns the receiver of its result.
    ///
    /// # Errors
    /// When the queue, or the holder's share of it, has no room, and when the node stops.
    pub fn put(
        &self,
        holder: &Holder,
        call: AnswerCall,
        now: Monotonic,
    ) -> Result<oneshot::Receiver<Reply>, Unavailable> {
        let share = self.shares.take(holder, 1, now);
        let _share = share.ok_or(Unavailable::Busy { limit: "answer_queue_share" })?;
        let _shown = CountGuard::new(&self.waiting, 1);
        let (reply, replied) = oneshot::channel();
        match self.sender.try_send(AnswerRequest { call, reply, _share, _shown }) {
            Ok(()) => Ok(replied),
            // The refused request keeps its share until the end of this arm.
            Err(TrySendError::Full(_refused)) => {
                self.shares.lacked_room(holder, now);
                Err(Unavailable::Busy { limit: "answer_queue" })
            }
            Err(TrySendError::Closed(_refused)) => Err(Unavailable::Draining),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use uuid::Uuid;

    use super::super::steps;
    use super::*;
    use crate::domain::{TaskId, Timestamp};
    use crate::node::messages::answers::ConsumerCall;

    #[test]
    fn no_holder_has_more_than_half_of_the_queue_while_others_wait() {
        let waiting = Gauge::default();
        let (queue, mut receiver) = AnswerQueue::new(6, waiting.clone());
        let [flood, other] =
            ["flood", "other"].map(|name| Holder::Principal(PrincipalName::new(name).unwrap()));
        let put = |holder: &Holder, seconds: u64| {
            let id = TaskId::from_uuid(Uuid::nil());
            let finish = ConsumerCall::Finish { attempt: None };
            let call = steps::call_of(id, finish, Timestamp::EPOCH);
            let now = Monotonic::from_start(Duration::from_secs(100 + seconds));
            queue.put(holder, call, now).map(drop)
        };
        let busy = |limit| Err::<(), _>(Unavailable::Busy { limit });
        for _call in 0..6 {
            assert_eq!(put(&flood, 0), Ok(()), "alone, it has all of it");
        }
        assert_eq!(put(&flood, 0), busy("answer_queue"));
        assert_eq!(put(&other, 0), busy("answer_queue"));
        // Some calls of the flood are answered. Their room is for others.
        (0..3).for_each(|_call| drop(receiver.try_recv().unwrap()));
        assert_eq!(put(&flood, 1), busy("answer_queue_share"));
        assert_eq!([put(&other, 1), put(&Holder::Callbacks, 1)], [Ok(()), Ok(())]);
        assert_eq!(put(&flood, 20), busy("answer_queue_share"), "while others are here");
        assert_eq!((put(&other, 20), waiting.get()), (Ok(()), 6));
        while let Ok(request) = receiver.try_recv() {
            drop(request);
        }
        assert_eq!(put(&flood, 20), Ok(()));
        drop(receiver);
        assert_eq!(put(&flood, 20), Err(Unavailable::Draining));
        assert!(queue.shares.is_empty() && waiting.get() == 0);
    }
}
