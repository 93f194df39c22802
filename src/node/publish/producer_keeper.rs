//! Keeps the producers working: replaces failed ones, closes replaced ones, and hands records over
//! again.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::publisher::Publisher;
use crate::clock;
use crate::domain::Monotonic;
use crate::engine::topics::KafkaPace;
use crate::error_chain::chain;
use crate::kafka::ClientError;
use crate::node::shared::NodeShared;
use crate::shutdown::TaskFailure;

/// The interval of checks. A record that failed while its topic was not at fault waits as long.
const INTERVAL: Duration = Duration::from_millis(250);
/// Waiting records are compared with the publish deadline four times per deadline. More often
/// would be worse: with an overdue record, the queue of its producer is emptied, and records for
/// healthy partitions wait to be sent again.
const CHECKS_PER_DEADLINE: u32 = 4;

#[derive(Debug)]
pub struct ProducerKeeper {
    pub shared: Arc<NodeShared>,
    pub publisher: Arc<Publisher>,
    /// A record that has waited for this time is taken back, unless Kafka is slow.
    pub publish_deadline: Duration,
    pub stopping: CancellationToken,
}

impl ProducerKeeper {
    /// Closes the replaced producers, until the node stops. This loop runs apart from the rest
    /// because the end of a client may wait for a name server.
    pub async fn close_retired(
        publisher: Arc<Publisher>,
        stopping: CancellationToken,
    ) -> Result<(), TaskFailure> {
        loop {
            tokio::select! {
                () = stopping.cancelled() => return Ok(()),
                () = clock::sleep(INTERVAL) => publisher.tidy().await,
            }
        }
    }

    /// Runs until the node stops, or the delivery reports of a producer stop. Another node then
    /// adopts and publishes the batches.
    pub async fn run(self) -> Result<(), TaskFailure> {
        // The last turn could not replace the producers. This is logged once.
        let mut is_failing = false;
        let mut deadline = OwnDeadline::new(self.publish_deadline, clock::monotonic());
        loop {
            tokio::select! {
                () = self.stopping.cancelled() => return Ok(()),
                () = clock::sleep(INTERVAL) => {}
            }
            if self.publisher.is_deaf() {
                return Err(
                    "the thread for the delivery reports of a Kafka producer has panicked".into()
                );
            }
            match self.mend().await {
                Ok(()) => is_failing = false,
                // The cause (a half-written file, or a lack of threads) may be gone at the next
                // turn.
                Err(error) if !std::mem::replace(&mut is_failing, true) => {
                    tracing::warn!(error = chain(&error), "cannot create a new producer; retrying");
                }
                Err(_) => {}
            }
            self.publisher.try_again();
            let now = clock::monotonic();
            let (pace, _throttle) = self.publisher.pace();
            let is_steady = self.shared.fence.has_broker() && pace == KafkaPace::Steady;
            if deadline.is_to_be_checked(is_steady, now) {
                self.take_back_overdue(now);
            }
        }
    }

    async fn mend(&self) -> Result<(), ClientError> {
        // A failure of one producer must not keep the others from their turn.
        let mended = self.publisher.mend().await;
        mended.and(self.publisher.publish_alone())
    }

    /// A record that has waited until the publish deadline, although Kafka answers questions, will
    /// probably not be sent soon.
    fn take_back_overdue(&self, now: Monotonic) {
        let due_before = self.shared.now().minus(self.publish_deadline);
        let topics = self.shared.in_flight.silent_topics(due_before, now, self.publish_deadline);
        if !topics.is_empty() {
            self.publisher.take_back_overdue(&topics);
        }
    }
}

/// Decides when to compare waiting records with the publish deadline: only after Kafka has kept its
/// pace for a whole deadline. So no record is taken back that waits because of a slow broker. Its
/// delivery report would come later, and must find the record.
#[derive(Debug)]
struct OwnDeadline {
    span: Duration,
    steady_since: Monotonic,
    checked_at: Monotonic,
}

impl OwnDeadline {
    const fn new(span: Duration, now: Monotonic) -> Self {
        Self { span, steady_since: now, checked_at: now }
    }

    fn is_to_be_checked(&mut self, is_steady: bool, now: Monotonic) -> bool {
        if !is_steady {
            self.steady_since = now;
        }
        let is_due = now.since(self.steady_since) >= self.span
            && now.since(self.checked_at) >= self.span / CHECKS_PER_DEADLINE;
        if is_due {
            self.checked_at = now;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deadline_is_for_what_waited_while_kafka_kept_its_pace() {
        let at = |seconds| Monotonic::from_start(Duration::from_secs(seconds));
        let mut deadline = OwnDeadline::new(Duration::from_secs(30), at(0));
        let held = |deadline: &mut OwnDeadline,
                    seconds: std::ops::Range<u64>,
                    is_steady: bool|
         -> Vec<u64> {
            seconds.filter(|second| deadline.is_to_be_checked(is_steady, at(*second))).collect()
        };
        assert_eq!(held(&mut deadline, 1..40, true), [30, 38]);
        assert_eq!(held(&mut deadline, 40..100, false), Vec::<u64>::new());
        assert_eq!(
            held(&mut deadline, 100..135, true),
            [129],
            "slow at 99: it has its time from then on"
        );
    }
}
