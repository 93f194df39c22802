//! The inner wheel: holds what is claimed until its due millisecond, then publishes it.
//!
//! It lives on a thread of its own, with a runtime of its own, so that no other work of the node delays it. A `DelayQueue` holds one entry per due
//! millisecond of a batch (a *slice* of tasks), and hands it out a little early; an exact timer waits out the rest. Before a record is handed over, the
//! cluster's clock is read again: never early comes first.

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::time::DelayQueue;

use super::exact_timer::ExactTimer;
use super::holdings::Held;
use super::publisher::{Handed, Publisher};
use crate::clock::ClusterClock;
use crate::domain::Timestamp;
use crate::shutdown::Tasks;

/// Batches on their way to the wheel. What waits here is held already, and bounded by what may be held.
const QUEUE_MAX: usize = 1_024;
/// So much ahead of its time a slice leaves the `DelayQueue`: its resolution and tokio's own millisecond of lateness.
const LEAD: Duration = Duration::from_millis(3);
/// The cluster's clock is asked again at least so often.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Records that are handed over in one go before the wheel looks at its other duties: about 0.3 ms of work.
const RECORDS_AT_ONCE: usize = 128;
/// How soon a producer that was full, or a gate that was closed, is tried again.
const RETRY: Duration = Duration::from_millis(1);

/// Where batches enter the wheel.
#[derive(Clone, Debug)]
pub struct Entrance {
    sender: mpsc::Sender<Arc<Held>>,
}

impl Entrance {
    /// Hands a batch to the wheel; waits while its queue is full. False when the wheel has ended: the batch is on the books, unsettled, for others to
    /// adopt.
    pub async fn put(&self, held: Arc<Held>) -> bool {
        self.sender.send(held).await.is_ok()
    }
}

/// A due millisecond of a batch: tasks `order[position..end]`.
#[derive(Debug)]
struct Slice {
    due_at: Timestamp,
    held: Arc<Held>,
    order: Arc<[u32]>,
    position: usize,
    end: usize,
}

/// Starts the thread of the wheel. Slices are `precision` wide: a task leaves at the end of its slice at the latest, never before its due time.
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
            Wheel {
                publisher,
                clock,
                precision,
                timer,
                queue: DelayQueue::new(),
                soon: BTreeMap::new(),
                due: VecDeque::new(),
                count: 0,
            }
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
    /// Due within the lead; the number keeps slices of one millisecond in the order of their arrival.
    soon: BTreeMap<(Timestamp, u64), Slice>,
    /// Due, and not all handed over yet.
    due: VecDeque<Slice>,
    count: u64,
}

impl Wheel {
    async fn run(mut self, mut receiver: mpsc::Receiver<Arc<Held>>, stopping: CancellationToken) -> io::Result<()> {
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
                slice = next_expired(&mut self.queue), if !self.queue.is_empty() => self.keep(slice),
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
        if !self.due.is_empty() {
            return Some(Duration::ZERO);
        }
        let ((due_at, _), _) = self.soon.first_key_value()?;
        Some(self.clock.now().map_or(RETRY, |now| due_at.since(now)).min(LOOK_AGAIN))
    }

    /// Cuts a batch into slices and keeps each until its time.
    fn take_in(&mut self, held: &Arc<Held>) {
        let batch = &held.batch;
        let mut order: Vec<u32> = (0..u32::try_from(batch.len()).unwrap_or(u32::MAX)).collect();
        order.sort_by_key(|index| batch.id_of(place(*index)));
        let order: Arc<[u32]> = order.into();
        let mut position = 0;
        while position < order.len() {
            let due_at = self.end_of_slice(batch.due_at(place(order[position])));
            let end =
                position + order[position..].partition_point(|index| self.end_of_slice(batch.due_at(place(*index))) <= due_at);
            self.keep(Slice { due_at, held: Arc::clone(held), order: Arc::clone(&order), position, end });
            position = end;
        }
    }

    /// Tasks whose record did not get through, and that are to be published once more.
    fn take_again(&mut self) {
        for (held, index) in self.publisher.reports.again.take() {
            let due_at = held.batch.due_at(place(index));
            self.due.push_back(Slice { due_at, held, order: Arc::new([index]), position: 0, end: 1 });
        }
    }

    fn keep(&mut self, slice: Slice) {
        let Some(now) = self.clock.now() else { return self.keep_soon(slice) };
        let wait = slice.due_at.since(now);
        if wait.is_zero() {
            self.due.push_back(slice);
        } else if wait <= LEAD {
            self.keep_soon(slice);
        } else {
            // Not for longer than this, for the cluster's clock may be set meanwhile.
            self.queue.insert(slice, (wait - LEAD).min(LOOK_AGAIN));
        }
    }

    fn keep_soon(&mut self, slice: Slice) {
        self.count += 1;
        self.soon.insert((slice.due_at, self.count), slice);
    }

    /// Publishes what is due, up to a bound; true when the producer takes no more just now, or may not be given more.
    fn publish_due(&mut self) -> bool {
        if let Some(now) = self.clock.now() {
            while let Some(entry) = self.soon.first_entry().filter(|entry| entry.key().0 <= now) {
                self.due.push_back(entry.remove());
            }
        }
        if self.due.is_empty() {
            return false;
        }
        if !self.publisher.may_publish() {
            return true;
        }
        let mut left = RECORDS_AT_ONCE;
        while let Some(slice) = self.due.front_mut() {
            while slice.position < slice.end {
                if left == 0 {
                    return false;
                }
                left -= 1;
                match self.publisher.publish(&slice.held, slice.order[slice.position]) {
                    Handed::Over => slice.position += 1,
                    Handed::Full => return true,
                }
            }
            self.due.pop_front();
        }
        false
    }

    /// The end of the slice that a due time falls into: the next multiple of the precision.
    fn end_of_slice(&self, due_at: Timestamp) -> Timestamp {
        let width = i64::try_from(self.precision.as_millis()).unwrap_or(i64::MAX).max(1);
        let millis = due_at.as_millis();
        Timestamp::from_millis(millis.saturating_add(width - 1) / width * width)
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

fn place(index: u32) -> usize {
    usize::try_from(index).unwrap_or(usize::MAX)
}
