//! The topics whose rows wait, because a limit of the topic is reached, or its look-up has no
//! answer. The rows of other topics go on. All rows wait while another session has the outbox.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use crate::domain::{Backoff, Monotonic};

/// The first pause of a topic. It doubles with each further one.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Another node has the outbox for a turn, at a change of its owner for a few. Longer is worth a
/// warning.
const TAKEN_MAX: Duration = Duration::from_secs(60);

/// The rows of a turn that wait.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct WaitingRows {
    /// The reason for each topic.
    topics: BTreeMap<String, String>,
    seqs: HashSet<i64>,
    /// The topics of which rows are stored.
    going_on: HashSet<String>,
}

impl WaitingRows {
    /// Lets a row wait, and with it all later rows of its topic.
    pub(super) fn add(&mut self, topic: &str, seq: i64, reason: String) {
        self.topics.entry(topic.to_owned()).or_insert(reason);
        self.seqs.insert(seq);
    }

    /// Lets the row wait if its topic does. Returns true in that case.
    pub(super) fn takes(&mut self, topic: &str, seq: i64) -> bool {
        let waits = self.topics.contains_key(topic);
        if waits {
            self.seqs.insert(seq);
        }
        waits
    }

    /// Notes that rows of the topic are stored.
    pub(super) fn goes_on(&mut self, topic: String) {
        self.going_on.insert(topic);
    }

    pub(super) fn has(&self, seq: i64) -> bool {
        self.seqs.contains(&seq)
    }

    /// Returns the first topic that waits, and the reason.
    pub(super) fn first(&self) -> Option<(&str, &str)> {
        self.topics.first_key_value().map(|(topic, reason)| (topic.as_str(), reason.as_str()))
    }
}

/// The topics that wait, over the turns of an outbox. Bounded by the topics of the rows that are
/// searched.
#[derive(Debug, Default)]
pub(super) struct WaitingTopics(BTreeMap<String, Wait>);

#[derive(Clone, Copy, Debug)]
struct Wait {
    retry_at: Monotonic,
    backoff: Backoff,
}

impl WaitingTopics {
    /// Returns the topics whose rows are not to be read at `now`.
    pub(super) fn at(&self, now: Monotonic) -> Vec<&str> {
        let waits = self.0.iter().filter(|(_topic, wait)| wait.retry_at > now);
        waits.map(|(topic, _wait)| topic.as_str()).collect()
    }

    /// Takes in the result of a turn that began to read at `read_at`. A topic of which no row was
    /// stored waits for longer each time. One that was read and does not wait any more is
    /// forgotten.
    pub(super) fn after_turn(&mut self, rows: &WaitingRows, read_at: Monotonic, now: Monotonic) {
        self.0.retain(|topic, wait| wait.retry_at > read_at || rows.topics.contains_key(topic));
        for topic in rows.topics.keys() {
            let before = self.0.get(topic).filter(|_wait| !rows.going_on.contains(topic));
            let mut backoff =
                before.map_or(Backoff::new(PAUSE_MIN, PAUSE_MAX), |wait| wait.backoff);
            let retry_at = now.plus(backoff.next_pause());
            self.0.insert(topic.clone(), Wait { retry_at, backoff });
        }
    }
}

/// The time since which another session has kept an outbox with rows from this node.
#[derive(Debug, Default)]
pub(super) struct TakenSince(Option<Monotonic>);

impl TakenSince {
    /// Notes that the outbox is taken. Returns for how long, once that is worth a warning.
    pub(super) fn taken(&mut self, now: Monotonic) -> Option<Duration> {
        let since = *self.0.get_or_insert(now);
        Some(now.since(since)).filter(|span| *span >= TAKEN_MAX)
    }

    /// Notes that the outbox is free, or has no rows.
    pub(super) fn free(&mut self) {
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outbox_that_is_taken_for_long_is_worth_a_warning() {
        let at = |seconds| Monotonic::default().plus(Duration::from_secs(seconds));
        let mut taken = TakenSince::default();
        assert_eq!([5, 64].map(|seconds| taken.taken(at(seconds))), [None, None]);
        assert_eq!(taken.taken(at(66)), Some(Duration::from_secs(61)));
        taken.free();
        assert_eq!(taken.taken(at(67)), None);
    }

    #[test]
    fn a_topic_waits_longer_each_time_and_is_forgotten_when_its_rows_go_on() {
        let at = |millis| Monotonic::default().plus(Duration::from_millis(millis));
        let mut rows = WaitingRows::default();
        assert!(!rows.takes("slow", 1));
        rows.add("slow", 2, "429".to_owned());
        assert!(rows.takes("slow", 3) && !rows.takes("other", 4));
        assert_eq!([1, 2, 3, 4].map(|seq| rows.has(seq)), [false, true, true, false]);
        let mut topics = WaitingTopics::default();
        topics.after_turn(&rows, at(0), at(0));
        assert_eq!((topics.at(at(99)), topics.at(at(100))), (vec!["slow"], vec![]));
        // A turn that did not read the topic changes nothing.
        topics.after_turn(&WaitingRows::default(), at(50), at(60));
        assert_eq!(topics.at(at(99)), ["slow"]);
        topics.after_turn(&rows, at(100), at(100));
        assert_eq!((topics.at(at(299)), topics.at(at(300))), (vec!["slow"], vec![]));
        rows.goes_on("slow".to_owned());
        topics.after_turn(&rows, at(300), at(300));
        assert_eq!((topics.at(at(399)), topics.at(at(400))), (vec!["slow"], vec![]));
        topics.after_turn(&WaitingRows::default(), at(400), at(410));
        assert!(topics.0.is_empty());
    }
}
