//! Decides when a node that cannot reach the brokers hands its work to other nodes.

use std::time::Duration;

use crate::domain::Monotonic;

/// The publisher's knowledge about the brokers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BrokerContact {
    /// A broker has answered recently: a delivery report, metadata, or a probe.
    pub has_broker: bool,
    /// Tasks are in flight without an outcome: due now, or within a window.
    pub has_due: bool,
}

/// Detects a cut-off node: due records and no broker contact for 3 TTL, while another node reports
/// contact. Such a node purges its producer, frees its batches and leaves the assignment until a
/// broker answers again. When all of Kafka is away, no node is cut off.
#[derive(Debug)]
pub struct CutOff {
    patience: Duration,
    waiting_since: Option<Monotonic>,
    is_cut_off: bool,
}

impl CutOff {
    pub fn new(ttl: Duration) -> Self {
        Self { patience: ttl * 3, waiting_since: None, is_cut_off: false }
    }

    /// Takes in the contact at `now`. Returns true while the node is cut off.
    pub fn take_in(
        &mut self,
        contact: BrokerContact,
        others_have_broker: bool,
        now: Monotonic,
    ) -> bool {
        if contact.has_broker {
            self.is_cut_off = false;
            self.waiting_since = None;
        } else if contact.has_due {
            let since = *self.waiting_since.get_or_insert(now);
            self.is_cut_off |= others_have_broker && now.since(since) >= self.patience;
        } else {
            self.waiting_since = None;
        }
        self.is_cut_off
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(3);
    const AWAY: BrokerContact = BrokerContact { has_broker: false, has_due: true };
    const THERE: BrokerContact = BrokerContact { has_broker: true, has_due: true };

    fn at(seconds: u64) -> Monotonic {
        Monotonic::from_start(Duration::from_secs(seconds))
    }

    #[test]
    fn a_node_alone_without_brokers_is_cut_off_after_three_ttl_and_until_one_answers() {
        let mut cut_off = CutOff::new(TTL);
        assert!(!cut_off.take_in(AWAY, true, at(10)));
        assert!(!cut_off.take_in(AWAY, true, at(18)));
        assert!(cut_off.take_in(AWAY, true, at(19)));
        // The node has freed its batches, so nothing is due any more, and the other nodes may lose
        // contact: the node stays cut off all the same.
        assert!(cut_off.take_in(BrokerContact { has_due: false, ..AWAY }, false, at(20)));
        assert!(!cut_off.take_in(THERE, true, at(21)));
        assert!(!cut_off.take_in(AWAY, true, at(22)));
    }

    #[test]
    fn with_all_of_kafka_away_nobody_is_cut_off() {
        let mut cut_off = CutOff::new(TTL);
        for second in 0..100 {
            assert!(!cut_off.take_in(AWAY, false, at(second)));
        }
    }

    #[test]
    fn a_node_with_nothing_to_publish_is_not_cut_off() {
        let mut cut_off = CutOff::new(TTL);
        for second in 0..100 {
            assert!(!cut_off.take_in(BrokerContact { has_due: false, ..AWAY }, true, at(second)));
        }
        assert!(
            !cut_off.take_in(AWAY, true, at(100)),
            "the patience begins with the first record that waits"
        );
    }

    #[test]
    fn contact_in_between_starts_the_patience_anew() {
        let mut cut_off = CutOff::new(TTL);
        cut_off.take_in(AWAY, true, at(0));
        cut_off.take_in(THERE, true, at(8));
        assert!(!cut_off.take_in(AWAY, true, at(9)));
        assert!(!cut_off.take_in(AWAY, true, at(17)));
        assert!(cut_off.take_in(AWAY, true, at(18)));
    }
}
