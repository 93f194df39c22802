//! The inner wheel: keeps claimed tasks until their due millisecond, then publishes them.
//!
//! The wheel has its own thread and runtime, so no other work of the node delays it. A `DelayQueue`
//! holds one entry per due millisecond of a batch (a *slice* of tasks), and releases it a little
//! early. An exact timer waits for the rest of the time. The cluster's clock is read again before a
//! record is handed over: being never early comes first.

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

use self::near::{Near, REREAD_INTERVAL};
use self::slice::{DueSlice, slices_of, slices_of_records};
use super::exact_timer::ExactTimer;
use super::publisher::Publisher;
use crate::clock::ClusterClock;
use crate::node::in_flight::batches::InFlightBatch;
use crate::shutdown::Tasks;

/// The capacity of the queue to the wheel. Batches in it are in flight already, so the in-flight
/// limits apply to them.
const QUEUE_MAX: usize = 1_024;
/// The pause after which a full producer, or a closed fence, is tried again.
const RETRY: Duration = Duration::from_millis(1);

/// The entrance to the wheel.
#[derive(Clone, Debug)]
pub struct Entrance {
    sender: mpsc::Sender<Arc<InFlightBatch>>,
}

impl Entrance {
    /// Hands a batch to the wheel, and waits while its queue is full. Returns false when the wheel
    /// has ended: the batch is in the registry, unsettled, for other nodes to adopt.
    pub async fn put(&self, held: Arc<InFlightBatch>) -> bool {
        self.sender.send(held).await.is_ok()
    }
}

/// Starts the thread of the wheel. Slices are `precision` wide: a task leaves at the end of the
/// slice at the latest, and never before the due time.
///
/// # Errors
/// When the thread, the runtime or the timer cannot be made.
pub fn start(
    publisher: Arc<Publisher>,
    clock: Arc<ClusterClock>,
    precision: Duration,
    tasks: &Tasks,
) -> io::Result<Entrance> {
    let (sender, receiver) = mpsc::channel(QUEUE_MAX);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (ended, end) = tokio::sync::oneshot::channel();
    let stopping = tasks.stopping.clone();
    thread::Builder::new().name("wheel".to_owned()).spawn(move || {
        let outcome = runtime.block_on(async {
            let timer = ExactTimer::new()?;
            Wheel {
                publisher,
                clock,
                precision,
                timer,
                queue: DelayQueue::new(),
                near: Near::default(),
            }
            .run(receiver, stopping)
            .await
        });
        // The receiver is gone only when the process is ending.
        drop(ended.send(outcome));
    })?;
    tasks.spawn_vital("wheel", async move {
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
    queue: DelayQueue<DueSlice>,
    near: Near,
}

impl Wheel {
    async fn run(
        mut self,
        mut receiver: mpsc::Receiver<Arc<InFlightBatch>>,
        stopping: CancellationToken,
    ) -> io::Result<()> {
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

    /// Returns how long until the next slice is due, or `None` when no slice is near.
    fn next_wait(&self, is_stalled: bool) -> Option<Duration> {
        if is_stalled {
            return Some(RETRY);
        }
        let due_at = self.near.next_due_at()?;
        Some(self.clock.now().map_or(RETRY, |now| due_at.since(now)).min(REREAD_INTERVAL))
    }

    fn take_in(&mut self, held: &Arc<InFlightBatch>) {
        for slice in slices_of(held, self.precision) {
            self.keep(slice);
        }
    }

    /// Takes the tasks whose record was not published and must be handed over again.
    fn take_again(&mut self) {
        for slice in slices_of_records(self.publisher.reports.again.take()) {
            self.keep(slice);
        }
    }

    fn keep(&mut self, slice: DueSlice) {
        if let Some((slice, wait)) = self.near.keep(slice, self.clock.now()) {
            self.queue.insert(slice, wait);
        }
    }

    /// Takes all other slices that have expired by now. Slices of one millisecond are then due
    /// together even when this thread is behind.
    fn keep_expired(&mut self) {
        // The queue is polled again, with the waker of the waiting task, before the thread sleeps.
        let mut context = Context::from_waker(Waker::noop());
        while let Poll::Ready(Some(expired)) = self.queue.poll_expired(&mut context) {
            self.keep(expired.into_inner());
        }
    }

    /// Publishes due records, up to a limit. Returns true when the producer takes no more now, or
    /// must not get more.
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

async fn next_expired(queue: &mut DelayQueue<DueSlice>) -> DueSlice {
    loop {
        if let Some(expired) = poll_fn(|context| queue.poll_expired(context)).await {
            return expired.into_inner();
        }
        // The queue is empty. The caller's condition prevents this case.
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
