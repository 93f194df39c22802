//! Gives tasks of a topic to consumers without Kafka.
//!
//! A node reads the topic as a member of the consumer group of the call, for as long as somebody
//! asks it: see `reader`. Kafka divides the partitions among the nodes that are asked, so a task
//! goes to one caller of the group. No state is kept beside the offsets of the group: a task that
//! is not finished comes again as the record of its next attempt.

pub mod calls;
mod reader;

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use self::calls::{Key, PopMetrics, Reader, Readers, WAITERS_MAX, Waiter};
use self::reader::ReaderParts;
use crate::access::permit::{Permit, Pop};
use crate::clock::{self, ClusterClock};
use crate::domain::PrincipalName;
use crate::kafka::{EndsClient, KafkaSettings};
use crate::node::messages::Unavailable;
use crate::node::messages::answers::{PopCall, Popped};
use crate::postgres::tasks::look_up::LookUp;
use crate::shutdown::Tasks;
use crate::telemetry::CountGuard;

/// The most groups that a node reads at the same time, and callbacks besides. Each has a Kafka
/// client with its threads.
const GROUPS_MAX: usize = 64;
/// The most of these groups that one principal has made the node read. Callers without a credential
/// share all groups.
const GROUPS_OF_PRINCIPAL_MAX: usize = 16;

/// Serves pops.
#[derive(Debug)]
pub struct PopService {
    kafka: KafkaSettings,
    look_up: Arc<LookUp>,
    clock: Arc<ClusterClock>,
    tasks: Tasks,
    metrics: PopMetrics,
    readers: Readers,
    ends_client: EndsClient,
}

impl PopService {
    pub fn new(
        kafka: KafkaSettings,
        look_up: Arc<LookUp>,
        clock: Arc<ClusterClock>,
        tasks: Tasks,
        metrics: PopMetrics,
    ) -> Self {
        let ends_client = EndsClient::new(&kafka);
        Self { kafka, look_up, clock, tasks, metrics, readers: Readers::default(), ends_client }
    }

    /// Waits for tasks of a topic that no other caller of the group has. There are none when the
    /// wait ends without one, at `ending`, and when the node drains.
    pub async fn pop(
        &self,
        permit: &Permit<Pop>,
        call: PopCall,
        ending: &CancellationToken,
    ) -> Result<Vec<Popped>, Unavailable> {
        let (reply, mut answer) = oneshot::channel();
        let until = clock::monotonic().plus(call.wait);
        let waiter = Waiter { count_max: call.count_max, until, reply };
        let key = (permit.topic().clone(), call.group);
        self.enqueue(key, waiter, &permit.principal().name)?;
        let _waiting = CountGuard::new(&self.metrics.waiting, 1);
        // A reader that ends answers nobody.
        tokio::select! {
            biased;
            answered = &mut answer => return answered.unwrap_or(Ok(Vec::new())),
            () = ending.cancelled() => {}
        }
        // Tasks that were given in this moment go to the caller. None are given afterwards.
        answer.close();
        answer.try_recv().unwrap_or(Ok(Vec::new()))
    }

    fn enqueue(&self, key: Key, waiter: Waiter, by: &PrincipalName) -> Result<(), Unavailable> {
        let mut all = self.readers.0.lock();
        // A reader that has failed is gone without being forgotten.
        all.retain(|_key, reader| !reader.calls.is_closed());
        if let Some(reader) = all.get(&key) {
            let full = |_full| Unavailable::Busy { limit: "pops_waiting" };
            return reader.calls.try_send(waiter).map_err(full);
        }
        let is_of_callback = key.1.is_of_callback();
        let alike = all.iter().filter(|(other, _)| other.1.is_of_callback() == is_of_callback);
        let alike: Vec<&Reader> = alike.map(|(_, reader)| reader).collect();
        if alike.len() >= GROUPS_MAX {
            return Err(Unavailable::Busy { limit: "pop_groups" });
        }
        let has_share = !is_of_callback && !by.is_anonymous();
        let own = alike.iter().filter(|reader| reader.by == *by).count();
        if has_share && own >= GROUPS_OF_PRINCIPAL_MAX {
            return Err(Unavailable::Busy { limit: "pop_groups_share" });
        }
        let (sender, calls) = mpsc::channel(WAITERS_MAX);
        sender.try_send(waiter).map_err(|_full| Unavailable::Busy { limit: "pops_waiting" })?;
        all.insert(key.clone(), Reader { calls: sender, by: by.clone() });
        let parts = ReaderParts {
            kafka: self.kafka.clone(),
            ends_client: self.ends_client.clone(),
            readers: self.readers.clone(),
            look_up: Arc::clone(&self.look_up),
            clock: Arc::clone(&self.clock),
            metrics: self.metrics.clone(),
            draining: self.tasks.draining.clone(),
        };
        self.tasks.spawn("pops", reader::read_for(key, parts, calls));
        Ok(())
    }
}
