//! Holds claimed tasks until they are due: a thread that sleeps until the next millisecond with a
//! due task.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use punctual::domain::Timestamp;
use punctual::kafka::Producer;

use crate::held::Held;

/// Tasks of a batch due at the same moment.
type Slice = (Arc<Held>, Vec<usize>);

const BATCHES_MAX: usize = 1_024;
const NOTHING: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
pub struct Timer {
    batches: SyncSender<(Arc<Held>, Vec<usize>)>,
}

impl Timer {
    pub fn start(producer: Arc<Producer>) -> Self {
        let (batches, receiver) = sync_channel(BATCHES_MAX);
        std::thread::spawn(move || run(&producer, &receiver));
        Self { batches }
    }

    /// Sends these tasks of a batch, each at its due time.
    pub fn wait_for(&self, held: Arc<Held>, places: Vec<usize>) {
        if !places.is_empty() {
            self.batches.send((held, places)).expect("the thread lives");
        }
    }
}

fn run(producer: &Producer, batches: &Receiver<(Arc<Held>, Vec<usize>)>) {
    let mut due: BTreeMap<i64, Vec<Slice>> = BTreeMap::new();
    loop {
        let micros = due.first_key_value().map(|(millis, _)| millis * 1000 - now().as_micros());
        let wait = micros
            .map_or(NOTHING, |micros| Duration::from_micros(u64::try_from(micros).unwrap_or(0)));
        match batches.recv_timeout(wait) {
            Ok((held, places)) => {
                let mut by_millis: BTreeMap<i64, Vec<usize>> = BTreeMap::new();
                for place in places {
                    by_millis
                        .entry(held.batch.id_of(place).due_at().as_millis())
                        .or_default()
                        .push(place);
                }
                for (millis, places) in by_millis {
                    due.entry(millis).or_default().push((Arc::clone(&held), places));
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        while let Some(entry) = due.first_entry()
            && *entry.key() <= now().as_millis()
        {
            for (held, places) in entry.remove() {
                held.send(places.into_iter(), producer);
            }
        }
    }
}

pub fn now() -> Timestamp {
    Timestamp::EPOCH.plus(SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970"))
}
