//! The inner wheel: holds what is claimed until its due millisecond, then publishes it.
//!
//! It lives on a thread of its own, with a runtime of its own, so that no other work of the node
//! delays it. A `DelayQueue` holds one entry per due millisecond of a batch (a *slice* of tasks),
//! and hands it out a little early; an exact timer waits out the rest. Before a record is handed
//! over, the cluster's clock is read again: never early comes first.

mod near;
mod slice;

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::time::DelayQueue;

use self::near::{LOOK_AGAIN, Near};
use self::slice::{Slice, slices_of};
use super::exact_timer::ExactTimer;
use super::publisher::Publisher;
use crate::clock::ClusterClock;
use crate::node::in_flight::batches::InFlightBatch;
use crate::shutdown::Tasks;

/// Batches on their way to the wheel. What waits here is held already, and bounded by what may be
/// held.
const QUEUE_MAX: usize = 1_024;
/// How soon a producer that was full, or a fence that was closed, is tried again.
const RETRY: Duration = Duration::from_millis(1);

/// Where batches enter the wheel.
#[derive(Clone, Debug)]
pub struct Entrance {
    sender: mpsc::Sender<Arc<InFlightBatch>>,
}

impl Entrance {
    /// Hands a batch to the wheel; waits while its queue is full. False when the wheel has ended:
    /// the batch is on the registry, unsettled, for others to adopt.
    pub async fn put(&self, held: Arc<InFlightBatch>) -> bool {
        self.sender.send(held).await.is_ok()
    }
}

/// Starts the thread of the wheel. Slices are `precision` wide: a task leaves at the end of its
/// slice at the latest, never before its due time.
///
/// # Errors
/// When the thread, its runtime or its timer cannot be made.
pub fn start(publisher: Arc<Publisher>, clock: Arc<ClusterClock>, precision: Duration, tasks: &Tasks) -> io::Result<Entrance> {
    let (sender, receiver) = mpsc::channel(QUEUE_MAX);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (ended, end) = tokio::sync::oneshot::channel();
    let stopping = tasks.stopping.clone();
    thread::Builder::new().name("wheel".to_owned()).spawn(move || {
        let outcome = runtime.block_on(async {
            let timer = ExactTimer::new()?;
            Wheel { publisher, clock, precision, timer, queue: DelayQueue::new(), near: Near::default() }
                .run(receiver, stopping)
                .await
        });
        // The receiver is gone only when the process is ending.
        drop(ended.send(outcome));
    })?;
    tasks.spawn("wheel", async move {
        match end.await {
            Ok(outcome) => Ok(outcome?),
            Err(_panicked) => Err("the thread of the wheel panicked".into()),
        }
    });
    Ok(Entrance { sender })
}

struct Wheel {
    publisher: Arc<Publisher>,
    clock: Arc<ClusterClock>,
    precision: Duration,
    timer: ExactTimer,
    queue: DelayQueue<Slice>,
    near: Near,
}

impl Wheel {
    async fn run(mut self, mut receiver: mpsc::Receiver<Arc<InFlightBatch>>, stopping: CancellationToken) -> io::Result<()> {
        loop {
            let is_stalled = self.publish_due();
            let wait = self.next_wait(is_stalled);
            tokio::select! {
                biased;
                () = stopping.cancelled() => return Ok(()),
                held = receiver.recv() => match held {
                    Some(held) => self.take_in(&held),
                    None => return Ok(()),
                },
                slice = next_expired(&mut self.queue), if !self.queue.is_empty() => {
                    self.keep(slice);
                    self.keep_expired();
                }
                () = self.publisher.reports.again.arrival(), if !is_stalled => self.take_again(),
                waited = wait_out(&self.timer, wait) => waited?,
            }
        }
    }

    /// How long until something is due; `None` when nothing is near.
    fn next_wait(&self, is_stalled: bool) -> Option<Duration> {
        if is_stalled {
            return Some(RETRY);
        }
        let due_at = self.near.next_due_at()?;
        Some(self.clock.now().map_or(RETRY, |now| due_at.since(now)).min(LOOK_AGAIN))
    }

    fn take_in(&mut self, held: &Arc<InFlightBatch>) {
        for slice in slices_of(held, self.precision) {
            self.keep(slice);
        }
    }

    /// Tasks whose record did not get through, and that are to be published once more.
    fn take_again(&mut self) {
        for (held, index) in self.publisher.reports.again.take() {
            self.keep(Slice::of_one(held, index));
        }
    }

    fn keep(&mut self, slice: Slice) {
        if let Some((slice, wait)) = self.near.keep(slice, self.clock.now()) {
            self.queue.insert(slice, wait);
        }
    }

    /// What else has expired with a slice, so that those of one millisecond are due together also
    /// when this thread is behind.
    fn keep_expired(&mut self) {
        // Before anybody waits the queue is asked again, with the waker of who waits.
        let mut context = Context::from_waker(Waker::noop());
        while let Poll::Ready(Some(expired)) = self.queue.poll_expired(&mut context) {
            self.keep(expired.into_inner());
        }
    }

    /// Publishes what is due, up to a bound; true when the producer takes no more just now, or may
    /// not be given more.
    fn publish_due(&mut self) -> bool {
        let Some(now) = self.clock.now() else { return false };
        if !self.near.ripen(now) {
            return false;
        }
        if !self.publisher.may_publish() {
            return true;
        }
        self.near.hand_over(now, |held, index| self.publisher.publish(held, index, now))
    }
}

async fn next_expired(queue: &mut DelayQueue<Slice>) -> Slice {
    loop {
        if let Some(expired) = poll_fn(|context| queue.poll_expired(context)).await {
            return expired.into_inner();
        }
        // Empty: the caller's condition keeps this from being asked for.
        std::future::pending::<()>().await;
    }
}

async fn wait_out(timer: &ExactTimer, wait: Option<Duration>) -> io::Result<()> {
    match wait {
        Some(wait) if wait.is_zero() => {
            tokio::task::yield_now().await;
            Ok(())
        }
        Some(wait) => timer.wait(wait).await,
        None => std::future::pending().await,
    }
}
